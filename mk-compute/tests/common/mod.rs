//! Runs one compute task on tensors, and draws data.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]

pub mod inspect;
pub mod worlds;

use mk_core::*;
use reference::Format;

/// Tensors of one rank, each with its region.
pub struct Memory {
    pub regions: Vec<Region>,
    pub tensors: Vec<Tensor>,
}

impl Memory {
    pub fn new(tensors: Vec<Tensor>) -> Memory {
        let region = |(i, t): (usize, &Tensor)| {
            Region::heap(&format!("r{i}"), t.dtype, Shape::Uniform([t.rows, t.cols]))
        };
        Memory { regions: tensors.iter().enumerate().map(region).collect(), tensors }
    }

    pub fn env(&self) -> Env<'_> {
        Env { regions: &self.regions, rank: Rank(0), ranks: 1 }
    }

    /// Runs a compute task: loads what its spec names, computes with poison in what it may not read, stores.
    pub fn run(&mut self, handler: &dyn DynHandler, args: &impl DeviceAbi) -> Result<Spec, ArgError> {
        self.run_bytes(handler, &args.to_bytes())
    }

    /// The same, for arguments as a task record holds them.
    pub fn run_bytes(
        &mut self,
        handler: &dyn DynHandler,
        args: &[u8; Limits::ARG_BYTES],
    ) -> Result<Spec, ArgError> {
        let spec = handler.spec(args, &self.env())?;
        let view = |a: &Access| {
            let r = a.rect;
            assert!(r.fits(self.regions[a.region.index()].extent(Rank(0))), "{a:?} lies inside its region");
            let t = self.tensors[a.region.index()].slice(r.row, r.rows, r.col, r.cols);
            let bytes = if a.mode == Mode::Write { vec![0xff; t.bytes.len()] } else { t.bytes };
            View { dtype: t.dtype, rows: r.rows as usize, cols: r.cols as usize, bytes }
        };
        let mut views: Vec<View> = spec.accesses.iter().map(view).collect();
        handler.model(args, Step::Math, &mut Views::new(&mut views))?;
        for (a, v) in spec.accesses.iter().zip(views).filter(|(a, _)| a.mode.writes()) {
            let part = Tensor { dtype: v.dtype, rows: a.rect.rows, cols: a.rect.cols, bytes: v.bytes };
            self.tensors[a.region.index()].paste(a.rect.row, a.rect.col, &part);
        }
        Ok(spec)
    }
}

pub fn format(dtype: DType) -> Format {
    match dtype {
        DType::Bf16 => Format::Bf16,
        DType::F16 => Format::F16,
        _ => Format::F32,
    }
}

/// Random numbers of [-1, 1), rounded to `dtype`.
pub fn random(dtype: DType, seed: u64, tensor: u64, rows: u64, cols: u64) -> Tensor {
    Tensor::from_f32(dtype, rows, cols, &reference::uniform_block(seed, tensor, [0, 0], [rows, cols]))
}

/// Asserts that `got` is `a * b`, within the bound of f32 accumulation and one rounding.
pub fn assert_product(got: &Tensor, a: &Tensor, b: &Tensor) {
    let (m, k, n) = (a.rows as usize, a.cols as usize, b.cols as usize);
    let (x, y) = (a.to_f32(), b.to_f32());
    let want = reference::matmul(&x, &y, m, k, n);
    let format = format(got.dtype);
    let bounds = reference::matmul_bounds(format, &want, &reference::abs_matmul(&x, &y, m, k, n), k);
    if let Err(error) = reference::check(format, &got.to_f32(), &want, &bounds) {
        panic!("{m} x {n} x {k} {}: {error}", got.dtype);
    }
}
