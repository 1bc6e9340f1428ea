//! Sending without a copy: the kernel pins the pages of what is sent, and reads them until the peer's TCP has them.
//!
//! Memory that was given to [`send_pinned`] is read by the kernel long after the call, so whoever frees or changes it in
//! the meantime sends other bytes than it meant to, maybe another message's. Two rules keep that from happening:
//!
//! * only memory that stays in place while a reference to it exists, and that nobody in this process can change, can be given: [`Pinned`];
//! * the call takes the references and returns them as [`Held`], which does not free them when it is dropped. They come
//!   out with [`Held::release`], to be called when the kernel said that it is done ([`super::error_queue`]).

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};

use bytes::Bytes;

use super::option;
pub(crate) use super::vectored::Gather;
use super::vectored::{Part, Source};
use crate::buffer::Chunk;
use crate::zerocopy::{self, Ending};

/// Most pieces that one call takes (IOV_MAX).
pub(crate) const MAX_PIECES: usize = 1024;
/// Kernels before 5.0 answer so for sockets that cannot; not in errno(3).
const ENOTSUPP: i32 = 524;

/// Lets `socket` send without copies (SO_ZEROCOPY). False if this kind of socket, or this kernel, cannot. A socket that
/// was accepted has it from its listener.
///
/// # Errors
/// What setsockopt(2) says otherwise.
pub(crate) fn enable(socket: BorrowedFd<'_>) -> io::Result<bool> {
    match option::set(socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1) {
        Ok(()) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::EOPNOTSUPP | libc::ENOPROTOOPT | ENOTSUPP) => Ok(false),
            _ => Err(error),
        },
    }
}

/// A reference to memory that stays where it is while the reference exists, and as it is, unless another process shares it.
///
/// # Safety
/// [`Source::part`] names the same memory whenever it is asked, also after the value was moved, and it stays mapped until the value is dropped.
/// Nothing in this process changes it before; what another process changes, it changes in its own messages.
pub(crate) unsafe trait Pinned: Source + Send + 'static {}

// SAFETY: `Bytes` is a counted reference to immutable memory; what becomes mutable again (`Bytes::try_into_mut`) consumes the
// value and requires that it is the only one. An owner's bytes (`Bytes::from_owner`) are asked for once and then borrowed.
unsafe impl Pinned for Bytes {}

// SAFETY: a chunk refers to `Bytes`, as above, or to a payload that was lent, which it keeps: its memory neither moves nor is it used
// again before the last of the chunks that refer to it is gone. A pool's pages go back there then; a span is shared memory, which
// stays mapped meanwhile and cannot be cut (F_SEAL_SHRINK).
unsafe impl Source for Chunk {
    fn part(&self) -> Part {
        Self::part(self)
    }
}

// SAFETY: as above. What is shared with a client is that client's own payload.
unsafe impl Pinned for Chunk {}

/// References to what the kernel may be reading. Dropped, it leaks them, which is the only safe thing when nobody waits
/// for the kernel any longer.
#[must_use = "what is not released is never freed"]
#[derive(Debug)]
pub(crate) struct Held<P>(ManuallyDrop<Vec<P>>);

impl<P> Held<P> {
    /// What was given to the call, sent or not.
    pub(crate) fn pieces(&self) -> &[P] {
        &self.0
    }

    /// The references, for the caller to drop outside all locks; the vector may serve for the next call.
    ///
    /// To be called when the number of the call was in a range that [`super::error_queue::ErrorQueue::drain`] reported, and not before.
    pub(crate) fn release(self) -> Vec<P> {
        ManuallyDrop::into_inner(self.0)
    }
}

impl zerocopy::Held for Held<Chunk> {
    fn pieces(&self) -> &[Chunk] {
        self.pieces()
    }

    fn release(self) -> Vec<Chunk> {
        self.release()
    }
}

fn flags(ending: Ending) -> libc::c_int {
    (if ending.record { libc::MSG_EOR } else { 0 }) | (if ending.more { libc::MSG_MORE } else { 0 })
}

/// Sends `pieces` one after the other, at most [`MAX_PIECES`], in one call that copies. Returns how many bytes the kernel
/// took; `ending` is that of the last one taken. Never blocks, raises no SIGPIPE.
///
/// # Errors
/// What sendmsg(2) says, `WouldBlock` if there is no room in the socket's send buffer; `InvalidInput` for too many
/// pieces. Interruptions are retried.
pub(crate) fn send<S: Source>(
    socket: BorrowedFd<'_>,
    pieces: &[S],
    ending: Ending,
    gather: &mut Gather,
) -> io::Result<usize> {
    send_parts(socket, pieces, flags(ending), gather)
}

/// Sends `pieces` as [`send`] does, but without a copy, where the path allows it; `socket` must have been enabled with
/// [`enable`], or the kernel would copy without ever saying so.
///
/// A call that took at least one byte, however few, uses up one number of the socket, from 0 on, modulo 2^32: its
/// references are returned and must be held until that number was reported. A call that took none uses up none.
///
/// # Errors
/// With the pieces, which the kernel does not read: what [`send`] says, and ENOBUFS where more must not be pinned.
pub(crate) fn send_pinned<P: Pinned>(
    socket: BorrowedFd<'_>,
    pieces: Vec<P>,
    ending: Ending,
    gather: &mut Gather,
) -> Result<(usize, Held<P>), Refused<P>> {
    let flags = flags(ending) | libc::MSG_ZEROCOPY;
    // Whatever happens from here on, a panic too, does not free them.
    let pieces = Held(ManuallyDrop::new(pieces));
    let result = send_parts(socket, pieces.pieces(), flags, gather);
    match result {
        Ok(0) => Err(Refused { error: None, pieces: pieces.release() }),
        Ok(n) => Ok((n, pieces)),
        Err(error) => Err(Refused { error: Some(error), pieces: pieces.release() }),
    }
}

/// The pieces of a call that took none.
#[derive(Debug)]
pub(crate) struct Refused<P> {
    /// What the kernel said; nothing if there were no bytes to be sent.
    pub(crate) error: Option<io::Error>,
    pub(crate) pieces: Vec<P>,
}

fn send_parts<S: Source>(
    socket: BorrowedFd<'_>,
    pieces: &[S],
    flags: libc::c_int,
    gather: &mut Gather,
) -> io::Result<usize> {
    if pieces.len() > MAX_PIECES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    gather.send(socket, pieces, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | flags)
}

/// Breaks a connection off at once, with a reset to the peer, and keeps the socket (connect(2) with AF_UNSPEC). The kernel
/// lets go of all that was sent without a copy, and reports what it did not copy by then as not copied. What TCP still had
/// is in the error queue when this returns; what a network device is sending just now follows when that is done. Closing
/// the socket instead would go on sending, and report nothing.
///
/// # Errors
/// What connect(2) says.
pub(crate) fn disconnect(socket: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: zeroes are a valid sockaddr, of the family AF_UNSPEC.
    let address: libc::sockaddr = unsafe { std::mem::zeroed() };
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: connect(2) reads `len` bytes at the address given, which are those of `address`; the descriptor is borrowed for
    // the length of the call.
    let rc = unsafe { libc::connect(socket.as_raw_fd(), &raw const address, len) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
#[path = "zerocopy_tests.rs"]
mod tests;
