//! Raw system calls: what no crate offers safely. The only home of `unsafe`.
#![allow(unsafe_code)]

#[cfg_attr(not(test), expect(dead_code, reason = "the engine copies what it receives"))]
pub(crate) mod region;
#[cfg_attr(not(test), expect(dead_code, reason = "as `region`"))]
mod zc_receive;

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use bytes::BytesMut;

/// Bytes written to a TCP socket that the peer's TCP has not acknowledged (SIOCOUTQ, tcp(7)). Exact, and still valid after
/// the peer's reset.
///
/// # Errors
/// What the kernel says; not a TCP socket, for one.
pub(crate) fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut value: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (TIOCOUTQ) stores one int at the address given, which is that of `value`; the descriptor is open for
    // the length of the call because it is borrowed.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut value) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::try_from(value).unwrap_or(0))
}

/// Reads with one call, first into the spare capacity of `target`, at most `limit` bytes, then into `rest`. Does not
/// allocate. Returns how many bytes were appended to `target` and how many lie in `rest`; none at all means the end of the
/// stream, unless there was no room.
///
/// # Errors
/// What the kernel says; `WouldBlock` when nothing is there. Interruptions are retried.
pub(crate) fn read_into(
    socket: BorrowedFd<'_>,
    target: &mut BytesMut,
    limit: usize,
    rest: &mut [u8],
) -> io::Result<(usize, usize)> {
    let len = target.len();
    let spare = target.spare_capacity_mut();
    let first = spare.len().min(limit);
    let parts = [
        libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: first },
        libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() },
    ];
    loop {
        // SAFETY: both parts name memory that is exclusively borrowed here, `first` is within the spare capacity, and
        // readv(2) writes at most `iov_len` bytes to each; it reads nothing of them, so `spare` may be uninitialised.
        let n = unsafe { libc::readv(socket.as_raw_fd(), parts.as_ptr(), 2) };
        let Ok(n) = usize::try_from(n) else {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        };
        let appended = n.min(first);
        // SAFETY: readv(2) fills the parts in order, so the first `appended` bytes after `len` are initialised, and
        // `len + appended` is within the capacity.
        unsafe { target.set_len(len + appended) };
        return Ok((appended, n - appended));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (a, listener.accept().unwrap().0)
    }

    #[test]
    fn a_read_fills_the_target_before_the_rest() {
        let (mut a, b) = pair();
        a.write_all(b"0123456789").unwrap();
        drop(a);
        let mut target = BytesMut::with_capacity(64);
        target.extend_from_slice(b"x");
        let mut rest = [0; 64];
        let mut got = (0, 0);
        while got.0 + got.1 < 10 {
            let (t, r) = read_into(b.as_fd(), &mut target, 4 - got.0, &mut rest[got.1..]).unwrap();
            assert!(t + r > 0);
            got = (got.0 + t, got.1 + r);
        }
        assert_eq!((&target[..], &rest[..got.1]), (&b"x0123"[..], &b"456789"[..]));
        assert_eq!(read_into(b.as_fd(), &mut target, 4, &mut rest).unwrap(), (0, 0));
    }

    #[test]
    fn bytes_that_the_peers_tcp_has_are_not_unacknowledged() {
        let (mut a, b) = pair();
        a.write_all(b"hello").unwrap();
        // Loopback acknowledges when the segment is delivered, which is before it can be read.
        let mut buffer = [0; 5];
        std::io::Read::read_exact(&mut &b, &mut buffer).unwrap();
        assert_eq!(unacknowledged(a.as_fd()).unwrap(), 0);
    }

    #[test]
    fn a_file_has_no_output_queue() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(unacknowledged(file.as_fd()).is_err());
    }
}
