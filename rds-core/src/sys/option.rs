//! Socket options that are integers.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sets an option whose value is an int.
///
/// # Errors
/// What setsockopt(2) says.
pub(super) fn set(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let size = size_of_val(&value) as libc::socklen_t;
    // SAFETY: setsockopt(2) reads `size` bytes at the address given, which are those of `value`; the descriptor is open for
    // the length of the call because it is borrowed.
    let rc = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), size) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The first `N` 32-bit words of an option's value; those that the kernel does not know are 0.
///
/// # Errors
/// What getsockopt(2) says.
pub(super) fn get<const N: usize>(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
) -> io::Result<[u32; N]> {
    let mut value = [0_u32; N];
    let mut size = size_of_val(&value) as libc::socklen_t;
    // SAFETY: getsockopt(2) writes at most `size` bytes at the address given, which are those of `value`, and any bytes are
    // valid words; it reads and writes `size` itself. The descriptor is borrowed for the length of the call.
    let rc = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &raw mut size)
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}
