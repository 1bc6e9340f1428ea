//! Sockets for the tests of this room.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};

/// An address that no other test uses.
pub(super) const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 31, 0, 1));

/// Both ends of a connection.
pub(super) fn pair() -> (TcpStream, TcpStream) {
    pair_at(ADDRESS)
}

pub(super) fn pair_at(address: IpAddr) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((address, 0)).unwrap();
    let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    a.set_nodelay(true).unwrap();
    (a, listener.accept().unwrap().0)
}

/// Whether one of poll(2)'s `events`, or an error, is there, or comes within `timeout` milliseconds; -1 waits for ever.
pub(super) fn poll(socket: impl AsFd, events: libc::c_short, timeout: i32) -> bool {
    let mut fd = libc::pollfd { fd: socket.as_fd().as_raw_fd(), events, revents: 0 };
    // SAFETY: poll(2) reads and writes one pollfd, that of `fd`; the descriptor is borrowed for the length of the call.
    let n = unsafe { libc::poll(&raw mut fd, 1, timeout) };
    assert!(n >= 0, "{}", std::io::Error::last_os_error());
    n == 1
}
