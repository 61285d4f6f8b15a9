//! The task record: 128 bytes, no pointers, the same on the host and on the GPU.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | opcode, flags, label |
//! | 8..48 | two [`Wait`]s of 20 bytes |
//! | 48..80 | two [`Post`]s of 16 bytes |
//! | 80..128 | arguments |

use crate::{Limits, OpId, Rank, SignalKind};
use serde::{Deserialize, Serialize};

/// At which point of its task a wait must be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum WaitAt {
    /// All of its words, before the first byte is touched.
    Start = 0,
    /// Word `j` before block `j * every`: an arrival flag per K slice, a credit per unit.
    Block = 1,
    /// All of its words, before the first byte is stored.
    Store = 2,
}

/// At which point of its task a post is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum PostAt {
    /// All reads are done: sources may be overwritten.
    Loaded = 0,
    /// Word `j` after block `(j + 1) * every - 1` (or the last) of a comm task is visible at its destination.
    Block = 1,
    /// Everything that the task writes is visible at its destination.
    Done = 2,
}

/// Waits for words of the task's own rank.
///
/// In epoch `e` (counted from 1) it is met when each of its words stands at
/// `(e - 1 - lag) * total + upto` or more; a target below 0 is met at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Wait {
    /// First word.
    pub word: u32,
    /// Posts that each of the words receives in one epoch. 0: this wait is not used.
    pub total: u32,
    /// How many of them it waits for; `total` for all of them.
    pub upto: u32,
    /// Number of words.
    pub count: u16,
    /// Distance between two of its words.
    pub stride: u16,
    /// Blocks between two of its words (`WaitAt::Block`).
    pub every: u16,
    /// 0: the program's own epoch, else that of a shared signal (its place among them, from 1).
    pub clock: u8,
    /// Low 4 bits: [`WaitAt`]; high 4 bits: lag in epochs.
    pub bits: u8,
}

/// Raises words of some rank.
///
/// In epoch `e` an `Add` post adds 1; a `Set` or `Packet` post writes `(e - 1) * total + ordinal`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Post {
    /// First word (one word more for each further post of a `PostAt::Block`).
    pub word: u32,
    /// Posts that the word receives in one epoch. 0: this post is not used.
    pub total: u32,
    /// Its place among them in stream order, from 1; 0 for `Add`, where the order does not matter.
    pub ordinal: u32,
    /// Whose words.
    pub rank: u16,
    /// Blocks between two posts (`PostAt::Block`).
    pub every: u8,
    /// Bits 0..2: [`PostAt`]; 2..4: [`SignalKind`]; 4..7: clock, as in [`Wait::clock`].
    pub bits: u8,
}

/// One task: what to run, what it waits for, what it posts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct Task {
    /// Index of its handler in the program; the opcode once it is loaded.
    pub op: OpId,
    /// Reserved, 0.
    pub flags: u16,
    /// Index into the program's labels.
    pub label: u32,
    /// What it waits for.
    pub waits: [Wait; Limits::WAITS],
    /// What it posts.
    pub posts: [Post; Limits::POSTS],
    /// Its arguments, as its handler lays them out.
    pub args: [u8; Limits::ARG_BYTES],
}

const _: () = assert!(size_of::<Wait>() == 20 && size_of::<Post>() == 16 && size_of::<Task>() == 128);

impl Wait {
    /// Whether it is used at all.
    #[inline]
    pub fn used(&self) -> bool {
        self.total != 0
    }

    /// When it must be met.
    #[inline]
    pub fn at(&self) -> WaitAt {
        match self.bits & 15 {
            0 => WaitAt::Start,
            1 => WaitAt::Block,
            _ => WaitAt::Store,
        }
    }

    /// How many epochs back the posts lie that it waits for.
    #[inline]
    pub fn lag(&self) -> u8 {
        self.bits >> 4
    }

    /// Packs [`Wait::bits`].
    pub fn pack(at: WaitAt, lag: u8) -> u8 {
        at as u8 | lag << 4
    }

    /// Its words, in order.
    #[inline]
    pub fn words(&self) -> impl Iterator<Item = u32> + use<> {
        let (word, stride) = (self.word, self.stride as u32);
        (0..self.count as u32).map(move |j| word.wrapping_add(j.wrapping_mul(stride)))
    }

    /// How many of its words are met before block `block` starts.
    #[inline]
    pub fn met_before_block(&self, block: u32) -> u32 {
        match self.at() {
            WaitAt::Start => self.count as u32,
            WaitAt::Block => (block / (self.every.max(1) as u32)).saturating_add(1).min(self.count as u32),
            WaitAt::Store => 0,
        }
    }

    /// The value at which its words meet it in `epoch` (from 1).
    #[inline]
    pub fn target(&self, epoch: u64) -> u64 {
        let epochs = epoch as i128 - 1 - self.lag() as i128;
        (epochs * self.total as i128 + self.upto as i128).max(0) as u64
    }
}

impl Post {
    /// Whether it is used at all.
    #[inline]
    pub fn used(&self) -> bool {
        self.total != 0
    }

    /// When it is made.
    #[inline]
    pub fn at(&self) -> PostAt {
        match self.bits & 3 {
            0 => PostAt::Loaded,
            1 => PostAt::Block,
            _ => PostAt::Done,
        }
    }

    /// How its word is written.
    #[inline]
    pub fn kind(&self) -> SignalKind {
        SignalKind::from_code(self.bits >> 2 & 3).unwrap_or(SignalKind::Add)
    }

    /// 0: the program's own epoch, else that of a shared signal.
    #[inline]
    pub fn clock(&self) -> u8 {
        self.bits >> 4 & 7
    }

    /// Packs [`Post::bits`].
    pub fn pack(at: PostAt, kind: SignalKind, clock: u8) -> u8 {
        at as u8 | (kind as u8) << 2 | clock << 4
    }

    /// Whose words it raises.
    #[inline]
    pub fn to(&self) -> Rank {
        Rank(self.rank)
    }

    /// How many words it raises in a task of `blocks` blocks.
    #[inline]
    pub fn count(&self, blocks: u32) -> u32 {
        match self.at() {
            PostAt::Block => blocks.max(1).div_ceil(self.every.max(1) as u32),
            _ => 1,
        }
    }

    /// Whether it raises a word that `other`, a post of the same task of `blocks` blocks, raises too.
    #[inline]
    pub fn meets(&self, other: &Post, blocks: u32) -> bool {
        let end = |p: &Post| p.word as u64 + p.count(blocks) as u64;
        self.rank == other.rank && (self.word as u64) < end(other) && (other.word as u64) < end(self)
    }

    /// The value that a `Set` or `Packet` post writes in `epoch` (from 1).
    #[inline]
    pub fn value(&self, epoch: u64) -> u64 {
        epoch.saturating_sub(1).saturating_mul(self.total as u64).saturating_add(self.ordinal as u64)
    }
}

impl Task {
    /// The waits that are used.
    #[inline]
    pub fn waits(&self) -> impl Iterator<Item = &Wait> {
        self.waits.iter().filter(|w| w.used())
    }

    /// The posts that are used.
    #[inline]
    pub fn posts(&self) -> impl Iterator<Item = &Post> {
        self.posts.iter().filter(|p| p.used())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_grows_with_the_epoch_and_a_credit_is_free_at_first() {
        let all = Wait { total: 3, upto: 3, count: 1, ..Wait::default() };
        assert_eq!([all.target(1), all.target(2)], [3, 6]);
        let credit = Wait { bits: Wait::pack(WaitAt::Start, 1), ..all };
        assert_eq!([credit.target(1), credit.target(2)], [0, 3]);
        let prefix = Wait { upto: 1, ..all };
        assert_eq!([prefix.target(1), prefix.target(2)], [1, 4]);
    }

    #[test]
    fn packed_bits_round_trip() {
        for at in [WaitAt::Start, WaitAt::Block, WaitAt::Store] {
            for lag in 0..=Limits::LAG {
                let w = Wait { bits: Wait::pack(at, lag), ..Wait::default() };
                assert_eq!((w.at(), w.lag()), (at, lag));
            }
        }
        for at in [PostAt::Loaded, PostAt::Block, PostAt::Done] {
            for kind in [SignalKind::Add, SignalKind::Set, SignalKind::Packet] {
                let p = Post { bits: Post::pack(at, kind, 7), ..Post::default() };
                assert_eq!((p.at(), p.kind(), p.clock()), (at, kind, 7));
            }
        }
    }

    #[test]
    fn a_strided_wait_guards_block_by_block() {
        let w = Wait { total: 1, count: 3, every: 4, bits: Wait::pack(WaitAt::Block, 0), ..Wait::default() };
        assert_eq!([0, 3, 4, 8, 99].map(|b| w.met_before_block(b)), [1, 1, 2, 3, 3]);
    }
}
