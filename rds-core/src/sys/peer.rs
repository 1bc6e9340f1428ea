//! Who is at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The supplementary groups that the other end had when it connected (SO_PEERGROUPS, since Linux 4.13).
///
/// # Errors
/// What getsockopt(2) says.
pub(crate) fn groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0 as libc::gid_t; 32];
    loop {
        let room = size_of_val(&groups[..]);
        let mut size = libc::socklen_t::try_from(room).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: getsockopt(2) writes at most `size` bytes at the address given, for which `groups` has room, and any bytes are
        // valid numbers; it reads and writes `size` itself. The descriptor is borrowed for the length of the call.
        let rc = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut size,
            )
        };
        let count = size as usize / size_of::<libc::gid_t>();
        if rc == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let e = io::Error::last_os_error();
        // With too little room it says how much is needed.
        if e.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() {
            return Err(e);
        }
        groups.resize(count, 0);
    }
}
