//! What the handlers do to memory.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use mk_core::*;
use mk_nvlink::{Get, Put, PutSignal, ReducePut, Signal, Wait};

/// Two ranks with regions `x` and `y` of 4 x 40 elements. Element i of x on rank r is 1000 r + i, of y minus that.
struct Memory {
    regions: [Region; 2],
    tensors: Vec<[Tensor; 2]>,
}

const X: RegionId = RegionId(0);
const Y: RegionId = RegionId(1);

impl Memory {
    fn new(dtype: DType) -> Memory {
        let region = |name| Region::heap(name, dtype, Shape::Uniform([4, 40]));
        let tensor = |rank: i32, sign: i32| {
            let values: Vec<f32> = (0..160).map(|i| (sign * (1000 * rank + i)) as f32).collect();
            Tensor::from_f32(dtype, 4, 40, &values)
        };
        let tensors = (0..2).map(|rank| [tensor(rank, 1), tensor(rank, -1)]).collect();
        Memory { regions: [region("x"), region("y")], tensors }
    }

    /// Runs a task of `rank` block by block, with NaN in what the model may not read.
    fn run(&mut self, handler: &impl DynHandler, rank: u16, args: &impl DeviceAbi) -> Result<Spec, ArgError> {
        let args = args.to_bytes();
        let spec = handler.spec(&args, &Env { regions: &self.regions, rank: Rank(rank), ranks: 2 })?;
        for block in 0..spec.blocks {
            let at = |a: &Access| (a.rank.index(), a.region.index(), a.block_rect(block));
            let mut views: Vec<View> = spec
                .accesses
                .iter()
                .map(|a| {
                    let (rank, region, r) = at(a);
                    let part = self.tensors[rank][region].slice(r.row, r.rows, r.col, r.cols);
                    let poison = a.mode == Mode::Write;
                    let bytes = if poison { vec![0xff; part.bytes.len()] } else { part.bytes };
                    View { dtype: part.dtype, rows: r.rows as usize, cols: r.cols as usize, bytes }
                })
                .collect();
            handler.model(&args, Step::Block(block), &mut Views::new(&mut views)).unwrap();
            for (a, view) in spec.accesses.iter().zip(views).filter(|(a, _)| a.mode.writes()) {
                let (rank, region, r) = at(a);
                let part = Tensor { dtype: view.dtype, rows: r.rows, cols: r.cols, bytes: view.bytes };
                self.tensors[rank][region].paste(r.row, r.col, &part);
            }
        }
        Ok(spec)
    }

    fn at(&self, rank: usize, region: RegionId, row: usize, col: usize) -> f32 {
        self.tensors[rank][region.index()].to_f32()[row * 40 + col]
    }
}

/// Rows 1..3, columns 8..38 of `x` to rows 2..4, columns 4..34 of `y`, in `units`.
fn args(peer: u16, units: u16) -> CopyArgs {
    CopyArgs {
        src: X,
        dst: Y,
        peer: Rank(peer),
        units,
        src_row: 1,
        src_col: 8,
        dst_row: 2,
        dst_col: 4,
        rows: 2,
        cols: 30,
    }
}

/// Asserts that `y` of `rank` is as it was, but for the rectangle, where it is what `want` makes of row and column.
fn assert_y(memory: &Memory, before: &Memory, rank: usize, want: impl Fn(usize, usize) -> f32) {
    for row in 0..4 {
        for col in 0..40 {
            let inside = (2..4).contains(&row) && (4..34).contains(&col);
            let want = if inside { want(row, col) } else { before.at(rank, Y, row, col) };
            assert_eq!(memory.at(rank, Y, row, col), want, "row {row}, column {col}");
        }
    }
}

#[test]
fn a_put_writes_the_rectangle_and_nothing_else_in_any_number_of_units() {
    for units in [1, 2, 3, 4, 9] {
        let (mut memory, before) = (Memory::new(DType::F32), Memory::new(DType::F32));
        let spec = memory.run(&Put, 0, &args(1, units)).unwrap();
        assert_eq!(spec.blocks, u32::from(units));
        assert_y(&memory, &before, 1, |row, col| before.at(0, X, row - 1, col + 4));
        assert_eq!(memory.tensors[0], before.tensors[0], "the own memory is as it was");

        let mut signalled = Memory::new(DType::F32);
        signalled.run(&PutSignal, 0, &args(1, units)).unwrap();
        assert_eq!(signalled.tensors, memory.tensors);
    }
}

#[test]
fn a_put_to_oneself_is_a_local_copy() {
    let (mut memory, before) = (Memory::new(DType::F32), Memory::new(DType::F32));
    memory.run(&Put, 1, &args(1, 2)).unwrap();
    assert_y(&memory, &before, 1, |row, col| before.at(1, X, row - 1, col + 4));
    assert_eq!(memory.tensors[0], before.tensors[0]);
}

#[test]
fn a_get_reads_from_the_peer() {
    let (mut memory, before) = (Memory::new(DType::F32), Memory::new(DType::F32));
    let spec = memory.run(&Get, 0, &args(1, 3)).unwrap();
    assert_eq!(
        spec.accesses.iter().map(|a| (a.rank.0, a.mode)).collect::<Vec<_>>(),
        [(1, Mode::Read), (0, Mode::Write)]
    );
    assert_y(&memory, &before, 0, |row, col| before.at(1, X, row - 1, col + 4));
}

#[test]
fn a_reduce_put_adds_to_what_is_there() {
    let (mut memory, before) = (Memory::new(DType::F32), Memory::new(DType::F32));
    let spec = memory.run(&ReducePut, 0, &args(1, 2)).unwrap();
    assert_eq!(spec.accesses[1].mode, Mode::Update);
    // 2 rows of 30 elements, read twice and written once.
    assert_eq!((spec.work.vector_flops, spec.work.read_bytes, spec.work.write_bytes), (60, 480, 240));
    assert_y(&memory, &before, 1, |row, col| before.at(1, Y, row, col) + before.at(0, X, row - 1, col + 4));
}

#[test]
fn a_reduce_put_rounds_the_f32_sum_once() {
    let mut memory = Memory::new(DType::Bf16);
    let (x, y) = (
        Tensor::from_f32(DType::Bf16, 4, 40, &[256.0; 160]),
        Tensor::from_f32(DType::Bf16, 4, 40, &[3.0; 160]),
    );
    (memory.tensors[0][0], memory.tensors[1][1]) = (x, y);
    memory.run(&ReducePut, 0, &args(1, 1)).unwrap();
    // 259 lies half way between the bf16 numbers 258 and 260; the even one is 260.
    assert_eq!(memory.at(1, Y, 2, 4), 260.0);
}

#[test]
fn a_reduce_put_adds_integers_as_integers() {
    let mut memory = Memory::new(DType::I32);
    let ints = |v: i32| Tensor { dtype: DType::I32, rows: 4, cols: 40, bytes: v.to_le_bytes().repeat(160) };
    (memory.tensors[0][0], memory.tensors[1][1]) = (ints(i32::MAX), ints(2));
    memory.run(&ReducePut, 0, &args(1, 2)).unwrap();
    let at = (2 * 40 + 4) * 4;
    assert_eq!(memory.tensors[1][1].bytes[at..at + 4], (i32::MIN + 1).to_le_bytes());
}

#[test]
fn signal_and_wait_touch_nothing() {
    let (mut memory, before) = (Memory::new(DType::F32), Memory::new(DType::F32));
    for peer in [0, 1] {
        assert!(memory.run(&Signal, 0, &SyncArgs { peer: Rank(peer) }).unwrap().accesses.is_empty());
        assert!(memory.run(&Wait, 0, &SyncArgs { peer: Rank(peer) }).unwrap().accesses.is_empty());
    }
    assert_eq!(memory.tensors, before.tensors);
}

#[test]
fn what_does_not_exist_is_refused_by_name() {
    let mut memory = Memory::new(DType::F32);
    let refused = |memory: &mut Memory, args: CopyArgs| memory.run(&Put, 0, &args).unwrap_err().to_string();
    assert_eq!(refused(&mut memory, args(2, 1)), "rank 2 is outside a world of 2 ranks");
    assert_eq!(
        refused(&mut memory, CopyArgs { src: RegionId(9), ..args(1, 1) }),
        "region 9 does not exist: the program has 2 regions"
    );
    assert_eq!(refused(&mut memory, args(1, 0)), "units is 0: at least 1 is needed");
    memory.regions[1].dtype = DType::Bf16;
    assert_eq!(refused(&mut memory, args(1, 1)), "'x' holds fp32 but 'y' holds bf16: cast first");
    assert!(memory.run(&Signal, 0, &SyncArgs { peer: Rank(2) }).is_err());
}
