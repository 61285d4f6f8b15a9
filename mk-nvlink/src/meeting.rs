//! Processes of one node meet, and exchange their ranks' memory.
//!
//! The process of the island's lowest rank is the host: it listens at a socket in the folder. The others, its guests, connect to
//! it and say who they are and what they came for. Each process makes its memory and sends the host a file descriptor for each
//! rank, and one for its sign of life ([`life`]); when the host has those of all, it passes them on. Each maps what it got and
//! tells the host what became of it; the host tells all of them whether it worked everywhere. Then the sockets are closed: from
//! there on, a process that ends is seen by its sign of life.
//!
//! Whatever goes wrong on one process, the host tells the others, and waits for those that have not come yet, to tell them, too,
//! as long as the bound allows. What goes wrong before a process has arrived, nobody can be told: it is missing then.

mod bond;
mod guest;
mod host;
mod life;
mod line;
mod message;
mod parcel;
mod place;
mod poll;
mod seat;

use crate::deadline::Deadline;
use crate::error::Error;
use crate::island::Island;
use crate::nvlink::NvLink;
use crate::step::Step;
use bond::Bond;
use message::Purpose;
use mk_core::{Error as Refused, Meeting};
use place::Place;

/// What a process brings to a meeting.
struct Party<'a> {
    nvlink: &'a NvLink,
    meeting: &'a Meeting,
    island: &'a Island,
    /// What all have to agree on.
    purpose: Purpose,
}

/// Meets the island's other processes.
pub(crate) fn meet(nvlink: &NvLink, meeting: &Meeting, island: &Island) -> Result<Bond, Error> {
    let deadline = Deadline::after(meeting.bound);
    nvlink.enter(Step::Folder);
    let Some(folder) = &meeting.folder else { return Err(no_folder(island)) };
    let place = Place::at(folder, &meeting.key, island.host)?;
    let party = Party { nvlink, meeting, island, purpose: Purpose::of(meeting, nvlink.offered()) };
    if island.is_host() {
        host::host(&party, &place, deadline)
    } else {
        guest::visit(&party, &place, deadline)
    }
}

fn no_folder(island: &Island) -> Error {
    let others: Vec<String> = island.others.iter().map(ToString::to_string).collect();
    Error::Input(Refused::input(
        "there is no folder in which processes could meet",
        format!("no folder, and {} of other processes", others.join(", ")),
        "a folder that all processes of the node reach",
        "name a folder, or give all ranks to one process",
    ))
}
