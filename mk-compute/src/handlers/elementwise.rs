//! What the elementwise handlers have in common: rectangles that are read and written row by row.

use mk_core::{Access, ArgError, DType, Env, Mode, Phase, Proxy, Rect, RegionId, Spec, Views, Walk};

/// Bytes of a page of shared memory, the unit in which operands are staged.
pub const PAGE_BYTES: u64 = 16 * 1024;

/// Rows of one block of an elementwise task: as many as one page holds, at least 1.
///
/// A planner uses it to line waits up with blocks. `widest` is the largest of the operands' types.
///
/// ```
/// use mk_core::DType;
/// assert_eq!(mk_compute::block_rows(1024, DType::Bf16), 8);
/// assert_eq!(mk_compute::block_rows(1 << 20, DType::F32), 1);
/// ```
pub fn block_rows(cols: u64, widest: DType) -> u64 {
    (PAGE_BYTES / cols.saturating_mul(widest.bytes()).max(1)).max(1)
}

/// The rectangles of one elementwise task: all inputs at one place, the output at another.
pub(super) struct Rects<'a> {
    pub(super) inputs: &'a [RegionId],
    pub(super) output: RegionId,
    pub(super) src: [u64; 2],
    pub(super) dst: [u64; 2],
    pub(super) rows: u32,
    pub(super) cols: u32,
}

impl Rects<'_> {
    /// Reads the inputs, then writes the output, both in blocks of [`block_rows`].
    pub(super) fn spec(&self, env: &Env<'_>, flops_per_element: u64) -> Result<Spec, ArgError> {
        self.check_overlap(env)?;
        let (rows, cols) = (u64::from(self.rows), u64::from(self.cols));
        let mut widest = env.region(self.output)?.dtype;
        for &input in self.inputs {
            let dtype = env.region(input)?.dtype;
            widest = if dtype.bytes() > widest.bytes() { dtype } else { widest };
        }
        let block = block_rows(cols, widest);
        let mut spec = Spec::new(rows.div_ceil(block) as u32);
        let access = |region, at: Phase, mode, [row, col]: [u64; 2]| Access {
            region,
            rank: env.rank,
            rect: Rect::new(row, col, rows, cols),
            mode,
            at,
            walk: Walk::Rows(block),
            // Rows come and go by bulk copies.
            proxy: Proxy::Async,
        };
        for &input in self.inputs {
            spec.touch(env, access(input, Phase::Load, Mode::Read, self.src))?;
        }
        spec.touch(env, access(self.output, Phase::Store, Mode::Write, self.dst))?;
        spec.work.vector_flops = (rows * cols).saturating_mul(flops_per_element);
        Ok(spec)
    }

    /// In place is fine: a block is stored after it was loaded. A shifted overlap is not: a block would overwrite what
    /// a later one is yet to load.
    fn check_overlap(&self, env: &Env<'_>) -> Result<(), ArgError> {
        let (rows, cols) = (u64::from(self.rows), u64::from(self.cols));
        let [src, dst] = [self.src, self.dst].map(|[row, col]| Rect::new(row, col, rows, cols));
        let shifted = self.inputs.contains(&self.output) && src != dst && src.intersect(&dst).is_some();
        if shifted {
            return Err(ArgError::new(format!(
                "'{}' is read at {src} and written at {dst}: use the same place, or places that do not overlap",
                env.region(self.output)?.name
            )));
        }
        Ok(())
    }
}

/// All of these regions hold the same type, one of `allowed`.
pub(super) fn same_type(env: &Env<'_>, regions: &[RegionId], allowed: &[DType]) -> Result<DType, ArgError> {
    let mut found = Vec::with_capacity(regions.len());
    for &id in regions {
        found.push(env.region(id)?);
    }
    match found.first() {
        Some(first) if allowed.contains(&first.dtype) && found.iter().all(|r| r.dtype == first.dtype) => {
            Ok(first.dtype)
        }
        _ => {
            let have: Vec<_> = found.iter().map(|r| format!("'{}' holds {}", r.name, r.dtype)).collect();
            let allowed: Vec<_> = allowed.iter().map(DType::to_string).collect();
            Err(ArgError::new(format!("{}: all must hold one of {}", have.join(", "), allowed.join(", "))))
        }
    }
}

/// The types of real numbers.
pub(super) const FLOATS: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

/// Stores `f` of two inputs, element by element, rounded once.
pub(super) fn map2(views: &mut Views<'_>, f: impl Fn(f32, f32) -> f32) {
    let values: Vec<f32> = views.load_f32(0).iter().zip(views.load_f32(1)).map(|(&x, y)| f(x, y)).collect();
    views.store_f32(2, &values);
}

/// Stores `f` of one input, element by element, rounded once.
pub(super) fn map1(views: &mut Views<'_>, f: impl Fn(f32) -> f32) {
    let values: Vec<f32> = views.load_f32(0).into_iter().map(f).collect();
    views.store_f32(1, &values);
}
