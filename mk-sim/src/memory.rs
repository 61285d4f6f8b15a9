//! Bytes of all regions on all ranks.

use mk_core::{Error, Io, Rank, Rect, Region};

/// What nobody has written: a NaN in every floating-point type.
pub(crate) const POISON: u8 = 0xff;

/// Which part of a write lands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of it, for the last time.
    All,
    /// All of it, but it lands once more.
    First,
    /// The first half, cut at 16 bytes.
    Half,
}

/// Widest write that lands at once.
const ATOM: usize = 16;

/// One region.
struct Storage {
    element: usize,
    depth: usize,
    /// Rows and columns of each rank.
    extent: Vec<[u64; 2]>,
    /// By rank and copy.
    bytes: Vec<Vec<u8>>,
}

/// All regions of a session.
#[derive(Default)]
pub(crate) struct Memory {
    regions: Vec<Storage>,
}

impl Memory {
    /// Asks for a region's memory, without keeping it, so that too little is an error and not the end of the process.
    ///
    /// # Errors
    /// There is not as much.
    pub(crate) fn reserve(&self, region: &Region, ranks: u32) -> Result<(), Error> {
        let bytes: u64 = (0..ranks).map(|r| region.whole(Rank(r as u16)).area()).fold(0, u64::saturating_add);
        let bytes = bytes.saturating_mul(region.dtype.bytes()).saturating_mul(region.depth.max(1).into());
        let fits = usize::try_from(bytes).is_ok_and(|n| Vec::<u8>::new().try_reserve_exact(n).is_ok());
        if fits {
            return Ok(());
        }
        Err(Error::input(
            format!("there is not enough memory for region '{}'", region.name),
            format!("{bytes} bytes on {ranks} ranks"),
            "what this machine has",
            "simulate the time only (Mode::Timing), or use smaller regions or fewer ranks",
        ))
    }

    /// Allocates a region on all ranks: poison, or zeros where the caller may look at it before it is written.
    pub(crate) fn allocate(&mut self, region: &Region, ranks: u32) -> usize {
        let extent: Vec<[u64; 2]> = (0..ranks).map(|r| region.extent(Rank(r as u16))).collect();
        let element = region.dtype.bytes() as usize;
        let fill = if matches!(region.io, Io::Input | Io::InOut) { 0 } else { POISON };
        let depth = region.depth.max(1) as usize;
        let copies = extent.iter().flat_map(|e| std::iter::repeat_n((e[0] * e[1]) as usize * element, depth));
        let bytes = copies.map(|n| vec![fill; n]).collect();
        self.regions.push(Storage { element, depth, extent, bytes });
        self.regions.len() - 1
    }

    /// Which copy an epoch uses.
    fn at(&self, region: usize, rank: Rank, epoch: u64) -> (&Storage, usize) {
        let s = &self.regions[region];
        (s, rank.index() * s.depth + (epoch % s.depth as u64) as usize)
    }

    /// All bytes of a region.
    pub(crate) fn whole(&self, region: usize, rank: Rank, epoch: u64) -> &[u8] {
        let (s, at) = self.at(region, rank, epoch);
        &s.bytes[at]
    }

    /// All bytes of a region, to write to.
    pub(crate) fn whole_mut(&mut self, region: usize, rank: Rank, epoch: u64) -> &mut [u8] {
        let (_, at) = self.at(region, rank, epoch);
        &mut self.regions[region].bytes[at]
    }

    /// Copies `part` of an access to its place in the view of `view` (both in elements of the region).
    pub(crate) fn read(
        &self,
        region: usize,
        rank: Rank,
        epoch: u64,
        part: &Rect,
        view: &Rect,
        to: &mut [u8],
    ) {
        let (s, at) = self.at(region, rank, epoch);
        let pitch = s.extent[rank.index()][1] as usize;
        let n = part.cols as usize * s.element;
        for row in part.row..part.row_end() {
            let from = (row as usize * pitch + part.col as usize) * s.element;
            let into =
                ((row - view.row) as usize * view.cols as usize + (part.col - view.col) as usize) * s.element;
            to[into..into + n].copy_from_slice(&s.bytes[at][from..from + n]);
        }
    }

    /// Writes a dense rectangle, or the part of it that lands first.
    pub(crate) fn write(
        &mut self,
        region: usize,
        rank: Rank,
        epoch: u64,
        rect: &Rect,
        bytes: &[u8],
        part: Part,
    ) {
        let (_, at) = self.at(region, rank, epoch);
        let s = &mut self.regions[region];
        copy_rows(&mut s.bytes[at], s.extent[rank.index()][1], s.element, rect, bytes, part);
    }
}

/// Writes a dense rectangle into a row-major matrix of `pitch` columns.
fn copy_rows(to: &mut [u8], pitch: u64, element: usize, rect: &Rect, bytes: &[u8], part: Part) {
    let n = rect.cols as usize * element;
    let limit = match part {
        Part::All | Part::First => bytes.len(),
        Part::Half => (bytes.len() / 2).next_multiple_of(ATOM).min(bytes.len()),
    };
    for row in 0..rect.rows as usize {
        let from = row * n;
        let len = n.min(limit.saturating_sub(from));
        let into = ((rect.row as usize + row) * pitch as usize + rect.col as usize) * element;
        to[into..into + len].copy_from_slice(&bytes[from..from + len]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mk_core::{DType, Shape};

    #[test]
    fn the_pitch_is_the_ranks_own_and_copies_rotate() {
        let region = Region::heap("h", DType::Bf16, Shape::PerRank(vec![[2, 3], [3, 4]])).rotating(2);
        let mut memory = Memory::default();
        let id = memory.allocate(&region, 2);
        assert_eq!(memory.whole(id, Rank(0), 1), [POISON; 12]);
        let rect = Rect::new(1, 1, 2, 2);
        memory.write(id, Rank(1), 3, &rect, &[1, 2, 3, 4, 5, 6, 7, 8], Part::All);
        let mut back = [0; 8];
        memory.read(id, Rank(1), 1, &rect, &rect, &mut back);
        assert_eq!(back, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(memory.whole(id, Rank(1), 1)[10..14], [1, 2, 3, 4]);
        memory.read(id, Rank(1), 2, &rect, &rect, &mut back);
        assert_eq!(back, [POISON; 8]);
    }

    #[test]
    fn a_torn_write_lands_in_whole_atoms() {
        let mut to = [0u8; 40];
        copy_rows(&mut to, 40, 1, &Rect::new(0, 0, 1, 40), &[7; 40], Part::Half);
        assert_eq!(to.iter().filter(|b| **b == 7).count(), 32);
        let mut to = [0u8; 16];
        copy_rows(&mut to, 16, 1, &Rect::new(0, 0, 1, 16), &[7; 16], Part::Half);
        assert_eq!(to, [7; 16]);
    }
}
