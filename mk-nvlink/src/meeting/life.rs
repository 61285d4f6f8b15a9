//! Whether a process lives: a pipe, of which it alone has the end for writing.
//!
//! When the process ends, however that is, the system closes that end, and whoever has the other one sees it hung up. A process
//! that leaves in good order writes a byte first, which nobody takes out: then the pipe is hung up and holds something.

use mk_core::Rank;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{self, PipeReader, PipeWriter, Write as _};
use std::os::fd::OwnedFd;

/// This process's sign of life.
#[derive(Debug)]
pub(crate) struct Life {
    writer: PipeWriter,
    /// Kept, so that there is somebody to write to.
    reader: PipeReader,
}

impl Life {
    pub(crate) fn new() -> io::Result<Life> {
        let (reader, writer) = io::pipe()?;
        Ok(Life { writer, reader })
    }

    /// What others see it by.
    pub(crate) fn sign(&self) -> io::Result<OwnedFd> {
        self.reader.try_clone().map(OwnedFd::from)
    }

    /// Leaves in good order.
    pub(crate) fn leave(mut self) {
        // A byte always fits; if it did not, others would take this process for lost.
        let _ = self.writer.write(&[1]);
    }
}

/// The signs of life of others.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Each with the first rank of its process.
    signs: Vec<(Rank, OwnedFd)>,
}

impl Watch {
    pub(crate) fn new(mut signs: Vec<(Rank, OwnedFd)>) -> Watch {
        signs.sort_by_key(|(rank, _)| *rank);
        Watch { signs }
    }

    /// The first that has ended without having left.
    pub(crate) fn lost(&self) -> Option<Rank> {
        let mut polled: Vec<PollFd<'_>> =
            self.signs.iter().map(|(_, sign)| PollFd::new(sign, PollFlags::IN)).collect();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A signal that comes in between: the next time will tell.
        rustix::event::poll(&mut polled, Some(&now)).ok()?;
        let ended =
            polled.iter().position(|p| p.revents() & (PollFlags::IN | PollFlags::HUP) == PollFlags::HUP);
        ended.map(|i| self.signs[i].0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_leaves_is_not_lost_and_who_ends_is() {
        let lives = [(); 3].map(|()| Life::new().unwrap());
        let sign = |i: usize| (Rank(i as u16), lives[i].sign().unwrap());
        let watch = Watch::new(vec![sign(2), sign(0), sign(1)]);
        assert_eq!(watch.lost(), None);
        let [zero, one, two] = lives;
        zero.leave();
        assert_eq!(watch.lost(), None);
        drop(two);
        assert_eq!(watch.lost(), Some(Rank(2)));
        drop(one);
        assert_eq!(watch.lost(), Some(Rank(1)));
        assert_eq!(Watch::new(Vec::new()).lost(), None);
    }
}
