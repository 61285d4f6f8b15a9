//! Waiting for descriptors.

use crate::deadline::Deadline;
use rustix::event::{PollFd, Timespec};
use rustix::io::Errno;

/// Waits until one of them is ready: false if none was in time.
pub(crate) fn ready(descriptors: &mut [PollFd<'_>], deadline: &Deadline) -> Result<bool, Errno> {
    loop {
        let left = Timespec::try_from(deadline.left()).map_err(|_| Errno::INVAL)?;
        match rustix::event::poll(descriptors, Some(&left)) {
            Err(Errno::INTR) => {}
            other => return other.map(|n| n > 0),
        }
    }
}
