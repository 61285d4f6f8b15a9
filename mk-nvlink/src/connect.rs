//! How ranks come to reach each other's memory.

use crate::error::Error;
use crate::heap::Mapped;
use crate::island::Island;
use crate::memory::Gpus;
use crate::nvlink::NvLink;
use crate::step::Step;
use mk_core::{Heap, Meeting};

/// The memory of this process's islands.
pub(crate) fn connect(nvlink: &NvLink, meeting: &Meeting) -> Result<Box<dyn Heap>, Error> {
    meeting.check()?;
    let island = Island::of(meeting)?;
    if island.others.is_empty() {
        return alone(nvlink, meeting);
    }
    with_others(nvlink, meeting, &island)
}

/// All ranks in reach are this process's: nobody has to be met.
fn alone(nvlink: &NvLink, meeting: &Meeting) -> Result<Box<dyn Heap>, Error> {
    nvlink.enter(Step::Make);
    Ok(Box::new(Mapped::new(Gpus::open(meeting)?.make(false)?)))
}

#[cfg(target_os = "linux")]
fn with_others(nvlink: &NvLink, meeting: &Meeting, island: &Island) -> Result<Box<dyn Heap>, Error> {
    Ok(Box::new(crate::meeting::meet(nvlink, meeting, island)?))
}

#[cfg(not(target_os = "linux"))]
fn with_others(_: &NvLink, _: &Meeting, _: &Island) -> Result<Box<dyn Heap>, Error> {
    Err(Error::Platform)
}
