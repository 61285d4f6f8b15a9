//! How a post may be written, in every order in which the writers can meet.

use shuttle::scheduler::DfsScheduler;
use shuttle::sync::Arc;
use shuttle::sync::atomic::{AtomicU64, Ordering::SeqCst};
use shuttle::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Lanes of peers that post, and epochs for which each does.
const PEERS: usize = 3;
const EPOCHS: u64 = 2;

/// Words that a rank waits for.
trait Words: Send + Sync + 'static {
    /// A peer posts for an epoch.
    fn post(&self, peer: usize, epoch: u64);

    /// Posts of a peer that the waiting rank sees.
    fn seen(&self, peer: usize) -> u64;
}

/// An aligned word for each lane of a peer, which sets it: `Set` posts.
#[derive(Default)]
struct Set([AtomicU64; PEERS]);

impl Words for Set {
    fn post(&self, peer: usize, epoch: u64) {
        self.0[peer].store(epoch, SeqCst);
    }

    fn seen(&self, peer: usize) -> u64 {
        self.0[peer].load(SeqCst)
    }
}

/// An aligned word for each lane of a peer, to which it adds: `Add` posts.
#[derive(Default)]
struct Add([AtomicU64; PEERS]);

impl Words for Add {
    fn post(&self, peer: usize, _: u64) {
        self.0[peer].fetch_add(1, SeqCst);
    }

    fn seen(&self, peer: usize) -> u64 {
        self.0[peer].load(SeqCst)
    }
}

/// One word that all peers add to: it counts the posts of all.
#[derive(Default)]
struct AddToOne(AtomicU64);

impl Words for AddToOne {
    fn post(&self, _: usize, _: u64) {
        self.0.fetch_add(1, SeqCst);
    }

    fn seen(&self, _: usize) -> u64 {
        self.0.load(SeqCst) / PEERS as u64
    }
}

/// A byte for each peer, all in one word, which is read, changed and written.
#[derive(Default)]
struct Packed(AtomicU64);

impl Words for Packed {
    fn post(&self, peer: usize, epoch: u64) {
        let word = self.0.load(SeqCst);
        self.0.store(word & !(0xff << (8 * peer)) | epoch << (8 * peer), SeqCst);
    }

    fn seen(&self, peer: usize) -> u64 {
        self.0.load(SeqCst) >> (8 * peer) & 0xff
    }
}

/// All peers post, side by side; then every post is there.
fn all_post<W: Words + Default>() {
    let words = Arc::new(W::default());
    let post = |peer| {
        let words = words.clone();
        thread::spawn(move || (1..=EPOCHS).for_each(|epoch| words.post(peer, epoch)))
    };
    let peers: Vec<_> = (0..PEERS).map(post).collect();
    peers.into_iter().for_each(|p| p.join().expect("a peer posts"));
    for peer in 0..PEERS {
        assert_eq!(words.seen(peer), EPOCHS, "posts of peer {peer}");
    }
}

/// Whether no order of the peers' steps loses a post; and how many orders there are.
fn holds<W: Words + Default>() -> (bool, usize) {
    let orders = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = orders.clone();
    let every = || {
        let runner = shuttle::Runner::new(DfsScheduler::new(None, false), shuttle::Config::new());
        runner.run(move || {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            all_post::<W>();
        })
    };
    let holds = catch_unwind(AssertUnwindSafe(every)).is_ok();
    (holds, orders.load(std::sync::atomic::Ordering::Relaxed))
}

/// Eight flags of a byte each in one word: peers that wrote theirs at the same time took each other's back.
#[test]
fn regress_vllm_2760() {
    // As many orders as there are of three times two steps, and more, for threads also begin and end.
    for (holds, orders) in [holds::<Set>(), holds::<Add>(), holds::<AddToOne>()] {
        assert!(holds && orders >= 90, "{holds}, {orders} orders");
    }
    let (packed_holds, _) = holds::<Packed>();
    assert!(!packed_holds, "packed flags are never lost: the orders are not all there");
}
