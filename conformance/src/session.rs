//! What a session must do whatever its programs are.

use crate::case::{Case, Open};
use crate::config::{Config, Numerics};
use crate::context::Context;
use crate::network::Network;
use crate::operators::all_gather_gemm::{Product, case, with_data};
use crate::value::{encode, values};
use mk_compute::AllGatherGemm;
use mk_core::{Bindings, DType, Rank, RunError, Tensor};

const A: &str = AllGatherGemm::A;

fn context(config: Config) -> Context {
    Context::new(config, Network::Mapped)
}

/// An AllGather+GEMM of this shape.
fn product(config: Config, world: u64, size: [u64; 3], epochs: usize) -> Result<Case, String> {
    case(&mut context(config), (1, world, Network::Mapped), size, DType::Bf16, epochs)
}

/// Tensors that do not fit are an input error, and the session goes on as if nothing had been asked.
///
/// # Errors
/// What was accepted, or what does not work afterwards.
pub fn refuses_wrong_tensors(config: Config, open: Open<'_>) -> Result<(), String> {
    let case = product(config, 2, [40, 24, 64], 2)?;
    let mut session = case.open(open, 0);
    let given = &case.epochs[0].given;
    for (what, wrong) in wrong_tensors(given)? {
        match session.run(&case.program, &wrong) {
            Err(RunError::Input(_)) => {}
            Err(other) => return Err(format!("{what}: not an input error: {other}")),
            Ok(_) => return Err(format!("{what} is accepted")),
        }
        case.run_epoch(&mut *session, 0).map_err(|e| format!("after {what}: {e}"))?;
    }
    case.run_epoch(&mut *session, 1)
}

fn wrong_tensors(given: &Bindings) -> Result<Vec<(&'static str, Bindings)>, String> {
    let a = given.get(Rank(1), A).ok_or("rank 1 has no rows of A")?;
    let with = |name: &str, rank: u16, tensor: Tensor| {
        let mut wrong = given.clone();
        wrong.set(Rank(rank), name, tensor);
        wrong
    };
    let mut without = Bindings::new();
    for (rank, name, tensor) in given.iter().filter(|(rank, name, _)| (*rank, *name) != (Rank(1), A)) {
        without.set(rank, name, tensor.clone());
    }
    let damaged = Tensor { bytes: a.bytes[1..].to_vec(), ..a.clone() };
    let turned = Tensor { rows: a.cols, cols: a.rows, ..a.clone() };
    Ok(vec![
        ("no tensor at all", Bindings::new()),
        ("no tensor for one rank", without),
        ("a row too many", with(A, 1, Tensor::zeros(a.dtype, a.rows + 1, a.cols))),
        ("a column too few", with(A, 1, Tensor::zeros(a.dtype, a.rows, a.cols - 1))),
        ("rows for columns", with(A, 1, turned)),
        ("another type of the same size", with(A, 1, Tensor::zeros(DType::F16, a.rows, a.cols))),
        ("another type", with(A, 1, Tensor::zeros(DType::F32, a.rows, a.cols))),
        ("a byte too few", with(A, 1, damaged)),
        ("a tensor that the program does not know", with("unknown", 1, a.clone())),
        ("a tensor for a rank that does not exist", with(A, 2, a.clone())),
    ])
}

/// A program that was proved for another world is refused when it is loaded and when it is run, and the session's own
/// programs still run.
///
/// # Errors
/// What was accepted, or what does not work afterwards.
pub fn refuses_foreign_programs(config: Config, open: Open<'_>) -> Result<(), String> {
    let (own, larger) = (product(config, 2, [40, 24, 64], 2)?, product(config, 3, [40, 24, 64], 1)?);
    let mut session = own.open(open, 0);
    own.run_epoch(&mut *session, 0)?;
    for result in [
        session.load(&larger.program),
        session.run(&larger.program, &larger.epochs[0].given).map(|_| ()),
        session.run(&larger.program, &own.epochs[0].given).map(|_| ()),
    ] {
        match result {
            Err(RunError::Input(_)) => {}
            Err(other) => return Err(format!("a program for 3 ranks: not an input error: {other}")),
            Ok(()) => return Err("a program for 3 ranks is accepted by a session of 2".into()),
        }
    }
    own.run_epoch(&mut *session, 1)
}

/// Two programs in one session, in turn; each may be loaded before, and loaded twice.
///
/// # Errors
/// What is wrong with the first run that fails.
pub fn alternates(config: Config, open: Open<'_>) -> Result<(), String> {
    let (one, other) = (product(config, 2, [129, 24, 72], 3)?, product(config, 2, [7, 264, 8], 3)?);
    let mut session = one.open(open, 0);
    for program in [&one.program, &other.program, &one.program] {
        session.load(program).map_err(|e| format!("loading '{}': {e}", program.program().name))?;
    }
    for epoch in 0..3 {
        one.run_epoch(&mut *session, epoch)?;
        other.run_epoch(&mut *session, epoch)?;
    }
    // One of them several times in a row, then the other.
    (0..3).try_for_each(|epoch| other.run_epoch(&mut *session, epoch))?;
    one.run_epoch(&mut *session, 1)
}

/// The same data give the same bits: in the same session, and in another, whatever it draws.
///
/// # Errors
/// What differs.
pub fn gives_the_same_bits(config: Config, open: Open<'_>) -> Result<(), String> {
    let case = product(Config { numerics: Numerics::Rounded, ..config }, 3, [130, 48, 320], 2)?;
    let given = &case.epochs[0].given;
    let mut first = None;
    for seed in 0..4 {
        let mut session = case.open(open, seed);
        case.run_epoch(&mut *session, 0)?;
        case.run_epoch(&mut *session, 1)?;
        let out = session.run(&case.program, given).map_err(|e| e.to_string())?;
        let first = first.get_or_insert_with(|| out.clone());
        if *first != out {
            return Err(format!("{}: the bits differ in session {seed}", case.name));
        }
    }
    Ok(())
}

/// A NaN in A spoils its row of C and one in B its column, and nothing else.
///
/// # Errors
/// What is spoilt, or what is not.
pub fn spreads_nan(config: Config, open: Open<'_>) -> Result<(), String> {
    let ([m, n, k], world) = ([40, 24, 72], (1, 3, Network::Mapped));
    let mut context = context(config);
    let mut draw = |size| crate::value::draw(config.numerics, DType::Bf16, size, 3, &mut context.random);
    let (mut a, mut b) = (draw([m, k]), draw([k, n]));
    let nan = encode(DType::Bf16, f64::NAN);
    for (t, row, col) in [(&mut a, 17, 70), (&mut b, 65, 9)] {
        let at = (row * t.cols + col) as usize * nan.len();
        t.bytes[at..at + nan.len()].copy_from_slice(&nan);
    }
    let case = with_data(world, AllGatherGemm::new(m, n, k, DType::Bf16), &[Product::new(config, a, b)])?;
    let wanted = case.epochs[0].want.values().flat_map(|e| values(&e.tensor));
    assert_eq!(wanted.filter(|x| x.is_nan()).count() as u64, m + n - 1, "a row and a column are expected");
    case.run(open, 1)
}
