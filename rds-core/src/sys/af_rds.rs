//! The kernel's own RDS sockets (PF_RDS): the calls that no crate offers safely.
//!
//! Memory that was sent without a copy is read by the kernel until the message is released, so [`lend`] takes it and returns
//! [`Lent`], which does not free it when it is dropped: only [`Lent::give_back`] does, to be called when the kernel has returned
//! the message's cookie.

use std::io;
use std::mem::ManuallyDrop;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use socket2::{SockAddr, SockAddrStorage};

use super::option;

/// PF_RDS and AF_RDS (linux/socket.h).
pub(crate) const FAMILY: libc::c_int = 21;
/// The level of options and control messages.
pub(crate) const SOL_RDS: libc::c_int = 276;
const CANCEL_SENT_TO: libc::c_int = 1;
const CONG_MONITOR: libc::c_int = 6;
const TRANSPORT: libc::c_int = 8;
const TRANSPORT_TCP: libc::c_int = 2;
const CMSG_ZCOPY_COOKIE: libc::c_int = 12;

/// Bytes for control messages: a congestion update takes 24, a block of cookies 56.
pub(crate) const CONTROL: usize = 128;

/// As cmsg(3) wants it aligned.
#[repr(C, align(8))]
pub(crate) struct Control(pub(crate) [u8; CONTROL]);

/// A control message with a cookie: struct cmsghdr, then a u32, padded.
#[repr(C)]
struct CookieMessage {
    header: libc::cmsghdr,
    cookie: u32,
    padding: u32,
}

/// Memory that the kernel may be reading. Dropped, it leaks, which is the only safe thing when nobody waits for the kernel.
#[must_use = "what is not given back is never freed"]
#[derive(Debug)]
pub(crate) struct Lent(ManuallyDrop<Vec<u8>>);

impl Lent {
    /// The memory; to be called when its cookie came back, of a message that was not cancelled: of one that was, TCP may still
    /// be reading.
    pub(crate) fn give_back(self) -> Vec<u8> {
        ManuallyDrop::into_inner(self.0)
    }

    /// As if `message` had been lent.
    #[cfg(test)]
    pub(crate) fn pretended(message: Vec<u8>) -> Self {
        Self(ManuallyDrop::new(message))
    }
}

/// Confines a socket that is not bound yet to RDS over TCP (SO_RDS_TRANSPORT).
pub(crate) fn force_tcp(socket: BorrowedFd<'_>) -> io::Result<()> {
    option::set(socket, SOL_RDS, TRANSPORT, TRANSPORT_TCP)
}

/// RDS_CONG_MONITOR.
pub(crate) fn set_congestion_monitor(socket: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    option::set(socket, SOL_RDS, CONG_MONITOR, on.into())
}

/// SO_ZEROCOPY.
pub(crate) fn set_zero_copy(socket: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    option::set(socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, on.into())
}

/// Sets SO_SNDBUF or SO_RCVBUF, beyond the system's limit where the process has CAP_NET_ADMIN. Returns what RDS uses: half of
/// what the kernel stores, which is the value that was set, as far as it was granted.
pub(crate) fn set_buffer(socket: BorrowedFd<'_>, receive: bool, bytes: usize) -> io::Result<usize> {
    let (force, plain) = if receive {
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF)
    } else {
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)
    };
    // The kernel doubles it.
    let bytes = bytes.min(1 << 30) as libc::c_int;
    option::set(socket, libc::SOL_SOCKET, force, bytes)
        .or_else(|_| option::set(socket, libc::SOL_SOCKET, plain, bytes))?;
    let [stored] = option::get::<1>(socket, libc::SOL_SOCKET, plain)?;
    Ok(stored as usize / 2)
}

/// RDS_CANCEL_SENT_TO.
pub(crate) fn cancel_sent_to(socket: BorrowedFd<'_>, to: SocketAddr) -> io::Result<()> {
    let to = SockAddr::from(to);
    // SAFETY: setsockopt(2) reads as many bytes at the address given as it is told, and `to` has them; the descriptor is borrowed
    // for the length of the call.
    let rc = unsafe {
        libc::setsockopt(socket.as_raw_fd(), SOL_RDS, CANCEL_SENT_TO, to.as_ptr().cast(), to.len())
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads an RDS_INFO_* list whole into `into`; returns the bytes of an element.
pub(crate) fn info(socket: BorrowedFd<'_>, what: libc::c_int, into: &mut Vec<u8>) -> io::Result<usize> {
    /// A list that grows faster than that cannot be read.
    const ATTEMPTS: u32 = 16;
    let mut size: libc::socklen_t = 0;
    for _ in 0..ATTEMPTS {
        into.clear();
        into.resize(size as usize, 0);
        // SAFETY: getsockopt(2) writes at most `size` bytes at the address given, which `into` has, and any bytes are valid there; it
        // reads and writes `size` itself. The descriptor is borrowed for the length of the call.
        let rc = unsafe {
            libc::getsockopt(socket.as_raw_fd(), SOL_RDS, what, into.as_mut_ptr().cast(), &raw mut size)
        };
        if let Ok(element) = usize::try_from(rc) {
            into.truncate(size as usize);
            return Ok(element);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ENOSPC) {
            return Err(error);
        }
        // Messages come and go: room for some more. Without a bound the kernel would be asked for any length.
        size = size.saturating_add(size / 4).saturating_add(4096).min(1 << 28);
    }
    Err(io::Error::from_raw_os_error(libc::ENOSPC))
}

/// Why a message was not lent, and its memory unless the kernel may be reading it all the same.
pub(crate) type NotLent = (io::Error, Result<Vec<u8>, Lent>);

/// Sends `message` without a copy. `Ok` means that the kernel reads it until `cookie` comes back.
pub(crate) fn lend(
    socket: BorrowedFd<'_>,
    message: Vec<u8>,
    to: &SockAddr,
    cookie: u32,
) -> Result<Lent, NotLent> {
    // Whatever happens from here on does not free it.
    let message = Lent(ManuallyDrop::new(message));
    let mut part = libc::iovec { iov_base: message.0.as_ptr().cast_mut().cast(), iov_len: message.0.len() };
    // SAFETY: zeroes are a valid cmsghdr and a valid msghdr: null pointers, lengths of 0; some platforms pad them.
    let (mut control, mut header) =
        unsafe { (std::mem::zeroed::<CookieMessage>(), std::mem::zeroed::<libc::msghdr>()) };
    control.header.cmsg_len = (size_of::<libc::cmsghdr>() + size_of::<u32>()) as _;
    control.header.cmsg_level = SOL_RDS;
    control.header.cmsg_type = CMSG_ZCOPY_COOKIE;
    control.cookie = cookie;
    header.msg_name = to.as_ptr().cast_mut().cast();
    header.msg_namelen = to.len();
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = size_of::<CookieMessage>() as _;
    // SAFETY: sendmsg(2) only reads what the header names: the name, one part, one control message, all of which live during the
    // call. What the part names is read after it, too, and stays: only `give_back` frees it. The descriptor is borrowed for the length of
    // the call.
    let n = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_ZEROCOPY) };
    if n >= 0 {
        return Ok(message);
    }
    let error = io::Error::last_os_error();
    // ENETUNREACH is the one error that comes after the message was queued (rds_sendmsg).
    let queued = error.raw_os_error() == Some(libc::ENETUNREACH);
    Err((error, if queued { Err(message) } else { Ok(message.give_back()) }))
}

/// What one call brought.
pub(crate) struct Taken {
    /// Bytes of the message, of which there may be more than fit.
    pub(crate) len: usize,
    /// The sender; none of what is no message.
    pub(crate) from: Option<SocketAddr>,
    /// Bytes of control messages.
    pub(crate) control: usize,
}

/// Takes what is next: a message into `into`, control messages into `control`.
pub(crate) fn receive(socket: BorrowedFd<'_>, into: &mut [u8], control: &mut Control) -> io::Result<Taken> {
    let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: zeroes are a valid msghdr, null pointers and lengths of 0; some platforms pad it with private fields.
    let mut header = unsafe { std::mem::zeroed::<libc::msghdr>() };
    let mut name = SockAddrStorage::zeroed();
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = name.size_of();
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = ptr::from_mut(control).cast();
    header.msg_controllen = CONTROL as _;
    // SAFETY: recvmsg(2) writes only into what the header names, within the lengths there, and all of it is exclusively borrowed or
    // ours, and may hold any bytes. The descriptor is borrowed for the length of the call.
    let n = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_TRUNC) };
    let len = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: an address was written there by the kernel, which told its length; one without is all zeroes, of no family.
    let from = unsafe { SockAddr::new(name, header.msg_namelen) };
    let from = if header.msg_namelen == 0 { None } else { from.as_socket() };
    #[allow(clippy::unnecessary_cast, reason = "32 bits wide on some platforms")]
    Ok(Taken { len, from, control: header.msg_controllen as usize })
}

const _: () = assert!(size_of::<CookieMessage>() == size_of::<libc::cmsghdr>() + 8);
