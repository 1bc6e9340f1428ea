//! Several ranges of memory in one system call, of which others may change the bytes meanwhile: the kernel gets addresses, and no
//! reference to such bytes is formed.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use bytes::Bytes;

use super::shm::Span;

/// Where a range of memory is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) at: *const u8,
    pub(crate) len: usize,
}

impl From<&[u8]> for Part {
    fn from(bytes: &[u8]) -> Self {
        Self { at: bytes.as_ptr(), len: bytes.len() }
    }
}

/// Bytes that the kernel can read.
///
/// # Safety
/// What [`Source::part`] names stays mapped, and readable, as long as the value is borrowed.
pub(crate) unsafe trait Source {
    /// Where they are.
    fn part(&self) -> Part;
}

// SAFETY: borrowed bytes.
unsafe impl Source for &[u8] {
    fn part(&self) -> Part {
        Part::from(*self)
    }
}

// SAFETY: the value keeps them.
unsafe impl Source for Bytes {
    fn part(&self) -> Part {
        Part::from(&self[..])
    }
}

// SAFETY: a span keeps its memory mapped.
unsafe impl Source for Span {
    fn part(&self) -> Part {
        Part { at: self.address(), len: self.len() }
    }
}

/// Memory for gathering parts; used again for any call.
#[derive(Default)]
pub(crate) struct Gather(Vec<libc::iovec>);

// SAFETY: it is empty but within a call of `with`, so no address passes from thread to thread.
unsafe impl Send for Gather {}

impl Gather {
    /// Room for so many parts.
    #[cfg(test)]
    pub(crate) fn with_capacity(n: usize) -> Self {
        Self(Vec::with_capacity(n))
    }

    /// What it has room for.
    #[cfg(test)]
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Sends the parts one after the other (sendmsg(2)). Returns how many bytes the kernel took. Interruptions are retried.
    ///
    /// # Errors
    /// What sendmsg(2) says.
    pub(super) fn send<S: Source>(
        &mut self,
        socket: BorrowedFd<'_>,
        pieces: &[S],
        flags: libc::c_int,
    ) -> io::Result<usize> {
        self.0.clear();
        self.0.extend(
            pieces
                .iter()
                .map(S::part)
                .map(|part| libc::iovec { iov_base: part.at.cast_mut().cast(), iov_len: part.len }),
        );
        // SAFETY: zeroes are a valid msghdr: no address, no control data, no parts.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.0.as_mut_ptr();
        message.msg_iovlen = self.0.len() as _;
        let result = retry(|| {
            // SAFETY: sendmsg(2) reads the vector, which is alive, and the parts that it names, which are mapped as long as `pieces` is
            // borrowed (`Source`). Who changes their bytes meanwhile changes what is sent, and nothing else.
            unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) }
        });
        self.0.clear();
        result
    }
}

/// Memory to be read into.
pub(crate) enum Room<'a> {
    /// Of this process.
    Bytes(&'a mut [u8]),
    /// Of this and another.
    Shared(Span),
}

impl Room<'_> {
    /// Its length in bytes.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Shared(span) => span.len(),
        }
    }
}

/// Reads once, first into `room`, then into `buffer` (readv(2)). Returns how many bytes came; 0 at the end of the stream. Interruptions
/// are retried.
///
/// # Errors
/// What readv(2) says; `InvalidInput` for shared memory that this process cannot write.
pub(crate) fn read(socket: BorrowedFd<'_>, room: &mut Room<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    let (at, len) = match room {
        Room::Bytes(bytes) => (bytes.as_mut_ptr(), bytes.len()),
        Room::Shared(span) => (span.address_mut().ok_or(io::ErrorKind::InvalidInput)?, span.len()),
    };
    let parts = [
        libc::iovec { iov_base: at.cast(), iov_len: len },
        libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() },
    ];
    retry(|| {
        // SAFETY: readv(2) writes into the two ranges, which are exclusively borrowed, or shared memory that is mapped for writing while
        // the span is borrowed, and to which no reference exists.
        unsafe { libc::readv(socket.as_raw_fd(), parts.as_ptr(), 2) }
    })
}

fn retry(mut call: impl FnMut() -> libc::ssize_t) -> io::Result<usize> {
    loop {
        if let Ok(n) = usize::try_from(call()) {
            return Ok(n);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    use super::super::shm::{Access, SharedMemory};
    use super::super::testing::pair;
    use super::*;

    #[test]
    fn parts_of_both_kinds_of_memory_are_sent_in_order() {
        let (sender, mut receiver) = pair();
        let (_, memory) = SharedMemory::create(8192, Access::ReadWrite).unwrap();
        memory.copy_in(100, b"shared ");
        memory.copy_in(8000, b"memory");
        let mut gather = Gather::default();
        let spans =
            [memory.span(100, 7).unwrap(), memory.span(50, 0).unwrap(), memory.span(8000, 6).unwrap()];
        assert_eq!(gather.send(sender.as_fd(), &spans, 0).unwrap(), 13);
        assert_eq!(gather.send(sender.as_fd(), &[&b" and "[..], b"bytes"], 0).unwrap(), 10);
        let mut got = [0; 23];
        receiver.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"shared memory and bytes");
    }

    #[test]
    fn a_stream_is_read_into_shared_memory_and_what_follows_into_a_buffer() {
        let (mut sender, receiver) = pair();
        let (fd, memory) = SharedMemory::create(4096, Access::ReadOnly).unwrap();
        sender.write_all(b"into the arena, and the next header").unwrap();
        let mut room = Room::Shared(memory.span(4000, 14).unwrap());
        let mut header = [0; 64];
        assert_eq!(room.len(), 14);
        let n = read(receiver.as_fd(), &mut room, &mut header).unwrap();
        assert_eq!((n, &header[..n - 14]), (35, &b", and the next header"[..]));
        let mut got = [0; 16];
        memory.copy_out(3999, &mut got);
        assert_eq!(&got, b"\0into the arena\0", "not a byte beside it");
        // Whoever may only read it cannot have the kernel write it.
        let theirs = SharedMemory::map(fd.as_fd(), 4096, Access::ReadOnly).unwrap();
        let error =
            read(receiver.as_fd(), &mut Room::Shared(theirs.span(0, 5).unwrap()), &mut []).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        drop(sender);
        assert_eq!(read(receiver.as_fd(), &mut Room::Bytes(&mut header), &mut []).unwrap(), 0);
    }
}
