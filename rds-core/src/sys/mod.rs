//! Raw system calls: what no crate offers safely. The only home of `unsafe`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

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
