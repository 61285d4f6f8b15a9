//! A connection between two processes: whole messages, with descriptors. Nothing here waits beyond a deadline.

use super::message::{MESSAGE_BYTES, Message, Unread, VERSION};
use super::poll::ready;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::island::MOST_RANKS;
use crate::step::Step;
use mk_core::Rank;
use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Descriptors of one message: one for each rank, and the sign of life.
const MOST_DESCRIPTORS: usize = MOST_RANKS + 1;

/// How all sockets are: closed in children, and never waited for but by `poll`.
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A new socket, for whole messages.
pub(crate) fn socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Line {
    socket: OwnedFd,
}

/// A message that arrived.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) message: Message,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Why a message did not come or go.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The other end was closed.
    Ended,
    /// There was no time left.
    Late,
    /// Nothing of ours was sent.
    Stranger,
    /// The other end is of another version.
    Version(String),
    /// It sent what has no meaning.
    Garbled(String),
    /// The system refused.
    System(Errno),
}

impl From<Unread> for Trouble {
    fn from(unread: Unread) -> Trouble {
        match unread {
            Unread::Stranger => Trouble::Stranger,
            Unread::Version(version) => Trouble::Version(version),
            Unread::Garbled(what) => Trouble::Garbled(what),
        }
    }
}

impl Trouble {
    /// The error, if it was this rank's process that was to do this.
    pub(crate) fn of(self, rank: Rank, step: Step, deadline: &Deadline) -> Error {
        match self {
            Trouble::Ended => Error::Left { rank, step },
            Trouble::Late => Error::Late { rank, step, bound: deadline.bound() },
            Trouble::Stranger => {
                Error::Garbled { rank, step, what: "it is no message of this protocol".into() }
            }
            Trouble::Version(given) => Error::Version { given, needed: VERSION },
            Trouble::Garbled(what) => Error::Garbled { rank, step, what },
            Trouble::System(errno) => Error::system(format!("the connection to {rank}"), errno),
        }
    }
}

impl Line {
    /// Connects; nothing if nobody listens there yet.
    pub(crate) fn open(address: &SocketAddrUnix) -> Result<Option<Line>, Errno> {
        let socket = socket()?;
        match rustix::net::connect(&socket, address) {
            Ok(()) => Ok(Some(Line { socket })),
            Err(Errno::NOENT | Errno::CONNREFUSED | Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The next process that waits at a listening socket. Other users' are sent away.
    pub(crate) fn accept(listening: &OwnedFd) -> Result<Option<Line>, Errno> {
        loop {
            match rustix::net::accept_with(listening, FLAGS) {
                Ok(socket) => {
                    let line = Line { socket };
                    if line.same_user()? {
                        return Ok(Some(line));
                    }
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
    }

    /// Whether the process at the other end is of this user. It is not looked at more closely: of one in another container, the
    /// system tells no number.
    pub(crate) fn same_user(&self) -> Result<bool, Errno> {
        Ok(rustix::net::sockopt::socket_peercred(&self.socket)?.uid == rustix::process::geteuid())
    }

    /// Says something.
    pub(crate) fn send(
        &self,
        message: &Message,
        descriptors: &[BorrowedFd<'_>],
        deadline: &Deadline,
    ) -> Result<(), Trouble> {
        let bytes = message.encode();
        loop {
            let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
                return Err(Trouble::Garbled(format!("{} descriptors at once", descriptors.len())));
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT, deadline)?,
                Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN) => return Err(Trouble::Ended),
                Err(e) => return Err(Trouble::System(e)),
            }
        }
    }

    /// The next message, when it comes.
    pub(crate) fn receive(&self, deadline: &Deadline) -> Result<Packet, Trouble> {
        loop {
            if let Some(packet) = self.take()? {
                return Ok(packet);
            }
            self.wait(PollFlags::IN, deadline)?;
        }
    }

    fn wait(&self, flags: PollFlags, deadline: &Deadline) -> Result<(), Trouble> {
        let mut descriptors = [PollFd::new(&self.socket, flags)];
        match ready(&mut descriptors, deadline) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Trouble::Late),
            Err(e) => Err(Trouble::System(e)),
        }
    }

    /// The next message, if it is there already.
    pub(crate) fn take(&self) -> Result<Option<Packet>, Trouble> {
        // One byte more than a message has: then it was cut.
        let mut bytes = [0; MESSAGE_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let Some((count, flags)) = self.read(&mut bytes, &mut control)? else { return Ok(None) };
        let rights = control.drain().filter_map(|m| match m {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors: Vec<OwnedFd> = rights.flatten().collect();
        if count == 0 {
            return Err(Trouble::Ended);
        }
        if count > MESSAGE_BYTES {
            return Err(Trouble::Garbled(format!("more than {MESSAGE_BYTES} bytes")));
        }
        // There are never more than fit: this process may not open as many.
        if flags.contains(ReturnFlags::CTRUNC) {
            return Err(Trouble::System(Errno::MFILE));
        }
        Ok(Some(Packet { message: Message::decode(&bytes[..count])?, descriptors }))
    }

    fn read(
        &self,
        bytes: &mut [u8],
        control: &mut RecvAncillaryBuffer<'_>,
    ) -> Result<Option<(usize, ReturnFlags)>, Trouble> {
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let mut reset = false;
        loop {
            match rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(bytes)], control, flags) {
                Ok(got) => return Ok(Some((got.bytes, got.flags))),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                // The other end was closed with something unread; what it had said before is still there.
                Err(Errno::CONNRESET) if !reset => reset = true,
                Err(Errno::CONNRESET | Errno::NOTCONN) => return Err(Trouble::Ended),
                Err(e) => return Err(Trouble::System(e)),
            }
        }
    }
}

impl AsFd for Line {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
