//! Handlers that are a little wrong, under the names of those that are right.

use mk_core::*;

/// What is wrong with a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// The last element that it writes has the wrong sign.
    Sign,
    /// The last element that it writes has the wrong lowest bit.
    LowBit,
    /// It reads from the column after the first.
    ReadsColumnTooFar,
    /// It reads from the row after the first.
    ReadsRowTooFar,
    /// It writes one row more.
    WritesRowTooFar,
    /// It writes one column more.
    WritesColumnTooFar,
    /// It does not write the last row.
    DropsRow,
}

impl How {
    pub(crate) const ALL: [How; 7] = [
        How::Sign,
        How::LowBit,
        How::ReadsColumnTooFar,
        How::ReadsRowTooFar,
        How::WritesRowTooFar,
        How::WritesColumnTooFar,
        How::DropsRow,
    ];

    /// The rectangle that is touched in place of the right one, where that lies inside its region.
    fn rect(self, a: &Access) -> Rect {
        let Rect { row, col, rows, cols } = a.rect;
        match (self, a.mode.writes()) {
            (How::ReadsColumnTooFar, false) => Rect::new(row, col + 1, rows, cols),
            (How::ReadsRowTooFar, false) => Rect::new(row + 1, col, rows, cols),
            (How::WritesRowTooFar, true) => Rect::new(row, col, rows + 1, cols),
            (How::WritesColumnTooFar, true) => Rect::new(row, col, rows, cols + 1),
            (How::DropsRow, true) if rows > 1 => Rect::new(row, col, rows - 1, cols),
            _ => a.rect,
        }
    }
}

/// A handler that is wrong, and otherwise like the one that it stands in for.
struct Wrong {
    right: HandlerRef,
    how: How,
}

/// `handler`, with something wrong.
pub(crate) fn wrong(right: HandlerRef, how: How) -> HandlerRef {
    std::sync::Arc::new(Wrong { right, how })
}

/// A view of other rows and columns: what both have is kept, what is new repeats the last row or column.
fn resized(v: &View, rows: usize, cols: usize) -> View {
    let n = v.dtype.bytes() as usize;
    let mut bytes = Vec::with_capacity(rows * cols * n);
    for r in 0..rows {
        for c in 0..cols {
            let at = (r.min(v.rows.saturating_sub(1)) * v.cols + c.min(v.cols.saturating_sub(1))) * n;
            bytes.extend(v.bytes.get(at..at + n).map_or_else(|| vec![0; n], <[u8]>::to_vec));
        }
    }
    View { dtype: v.dtype, rows, cols, bytes }
}

impl DynHandler for Wrong {
    fn name(&self) -> &'static str {
        self.right.name()
    }
    fn version(&self) -> u32 {
        self.right.version()
    }
    fn stream(&self) -> Stream {
        self.right.stream()
    }
    fn carrier(&self) -> Carrier {
        self.right.carrier()
    }
    fn device(&self) -> Option<Device> {
        self.right.device()
    }
    fn shares(&self, a: &[u8; Limits::ARG_BYTES], b: &[u8; Limits::ARG_BYTES]) -> Option<u8> {
        self.right.shares(a, b)
    }
    fn abi(&self) -> (&'static str, &'static [Field]) {
        self.right.abi()
    }

    fn spec(&self, args: &[u8; Limits::ARG_BYTES], env: &Env<'_>) -> Result<Spec, ArgError> {
        let mut spec = self.right.spec(args, env)?;
        let blocks = spec.blocks;
        for a in spec.accesses.iter_mut().filter(|a| !a.rect.is_empty()) {
            let rect = self.how.rect(a);
            // A block more would be another program.
            let walked = match a.walk {
                Walk::Whole => true,
                Walk::Rows(n) => n * u64::from(blocks) >= rect.rows,
                Walk::Cols(n) => n * u64::from(blocks) >= rect.cols,
            };
            if walked && rect.fits(env.region(a.region)?.extent(a.rank)) {
                a.rect = rect;
            }
        }
        Ok(spec)
    }

    /// The right model sees rectangles of the right size.
    fn model(
        &self,
        args: &[u8; Limits::ARG_BYTES],
        step: Step,
        views: &mut Views<'_>,
    ) -> Result<(), ArgError> {
        let last = self.last();
        let written = views.get(last).clone();
        let (rows, cols) = self.right_size(views);
        let mut right: Vec<View> = (0..=last).map(|i| views.get(i).clone()).collect();
        right[last] = resized(&written, rows, cols);
        self.right.model(args, step, &mut Views::new(&mut right))?;
        *views.get_mut(last) = resized(&right[last], written.rows, written.cols);
        let (dtype, bytes) = (written.dtype, &mut views.get_mut(last).bytes);
        if let Some(first) = bytes.len().checked_sub(dtype.bytes() as usize) {
            match self.how {
                How::Sign => *bytes.last_mut().expect("an element has bytes") ^= 0x80,
                How::LowBit => bytes[first] ^= 1,
                _ => {}
            }
        }
        Ok(())
    }

    fn args_to_json(&self, args: &[u8; Limits::ARG_BYTES]) -> serde_json::Value {
        self.right.args_to_json(args)
    }
    fn write_args(&self, args: &[u8; Limits::ARG_BYTES], to: &mut Vec<u8>) -> Result<(), ArgError> {
        self.right.write_args(args, to)
    }
    fn args_from_json(
        &self,
        json: &serde_json::value::RawValue,
    ) -> Result<[u8; Limits::ARG_BYTES], ArgError> {
        self.right.args_from_json(json)
    }
}

impl Wrong {
    /// The place of the access that writes: the last one of every handler.
    fn last(&self) -> usize {
        match self.name() {
            "gemm" | "add" | "swiglu" => 2,
            _ => 1,
        }
    }

    /// Rows and columns of what the right handler writes: those of what is read.
    fn right_size(&self, views: &Views<'_>) -> (usize, usize) {
        let (x, y) = (views.get(0), views.get(self.last() - 1));
        if self.name() == "gemm" { (x.rows, y.cols) } else { (x.rows, x.cols) }
    }
}

/// A transport of which one handler is wrong.
pub(crate) struct WrongTransport<T> {
    pub(crate) right: T,
    pub(crate) handler: &'static str,
    pub(crate) how: How,
}

impl<T: Transport> Transport for WrongTransport<T> {
    fn name(&self) -> &'static str {
        self.right.name()
    }
    fn probe(&self) -> Result<Caps, Error> {
        self.right.probe()
    }
    fn caps(&self, topology: &Topology, from: Rank, to: Rank) -> Caps {
        self.right.caps(topology, from, to)
    }
    fn link(&self, topology: &Topology, hardware: &Hardware, from: Rank, to: Rank) -> LinkModel {
        self.right.link(topology, hardware, from, to)
    }
    fn handlers(&self) -> Vec<(CommOp, HandlerRef)> {
        let all = self.right.handlers().into_iter();
        all.map(|(op, h)| (op, if h.name() == self.handler { wrong(h, self.how) } else { h })).collect()
    }
}
