//! TCP_ZEROCOPY_RECEIVE: received pages are mapped instead of copied (`include/uapi/linux/tcp.h`, `net/ipv4/tcp.c`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::wire::HEADER_LEN;

/// The option; the `libc` crate's structure for it is shorter than that of today's kernels.
const TCP_ZEROCOPY_RECEIVE: libc::c_int = 35;
/// The pages at the address are not mapped: the kernel need not unmap them first. Without a fault if that is wrong: the kernel then
/// unmaps them and tries again.
const TLB_CLEAN_HINT: u32 = 1;
/// Up to here a kernel must know the structure: it reads `copybuf` and `flags` (Linux 5.11 and later).
const NEEDED: usize = 40;

/// `struct tcp_zerocopy_receive`.
#[repr(C)]
#[derive(Default)]
struct ZerocopyReceive {
    address: u64,
    length: u32,
    recv_skip_hint: u32,
    inq: u32,
    err: i32,
    copybuf_address: u64,
    copybuf_len: i32,
    flags: u32,
    msg_control: u64,
    msg_controllen: u64,
    msg_flags: u32,
    reserved: u32,
}

const _: () = assert!(size_of::<ZerocopyReceive>() == 64);

/// What a call brought. The stream goes on with `bytes` in mapped pages, then `header_bytes` in the header's buffer, then
/// what is still in the socket's queue.
#[derive(Debug, Default)]
pub(crate) struct Mapped {
    /// Bytes that were mapped; whole pages.
    pub(crate) bytes: usize,
    /// Bytes that were copied into the header's buffer. They follow those that were mapped, whatever they are: not the next header
    /// unless mapping went exactly to the end of the payload.
    pub(crate) header_bytes: usize,
    /// Bytes that come next and cannot be mapped. They must be read before anything is mapped again.
    pub(crate) skip_hint: u32,
    /// Bytes left in the socket's queue; 1, after the peer's end of the stream, when there are none.
    pub(crate) inq: u32,
    /// The peer ended the stream, and everything before has been taken.
    pub(crate) end: bool,
    /// An error that the socket had met. Telling it cleared it: reading says it no more. What is in the queue is still there.
    pub(crate) socket_error: Option<io::Error>,
}

/// Maps up to `length` bytes of the stream at `address`, and copies what follows, as far as it cannot be mapped, into
/// `header`. Never blocks; nothing at all means that nothing is there.
///
/// # Errors
/// What the kernel says. `Unsupported` from kernels before 5.11. Nothing was taken from the stream then.
///
/// # Safety
/// `address` is a multiple of the page size, and `length` bytes from there belong to the caller and lie in one mapping of a TCP
/// socket: whatever is mapped there is replaced. With `clean`, nothing should be mapped there.
pub(super) unsafe fn map(
    socket: BorrowedFd<'_>,
    address: *const u8,
    length: u32,
    clean: bool,
    header: Option<&mut [u8; HEADER_LEN]>,
) -> io::Result<Mapped> {
    let mut receive = ZerocopyReceive {
        address: address as u64,
        length,
        flags: if clean { TLB_CLEAN_HINT } else { 0 },
        ..ZerocopyReceive::default()
    };
    if let Some(header) = header {
        receive.copybuf_address = header.as_mut_ptr() as u64;
        receive.copybuf_len = HEADER_LEN as i32;
    }
    let mut size = size_of::<ZerocopyReceive>() as libc::socklen_t;
    // SAFETY: the kernel reads and writes at most `size` bytes of `receive` and writes at most `copybuf_len` bytes of
    // `header`, both of which are exclusively borrowed; the caller owns the `length` bytes of address space from `address` on.
    // The descriptor is open for the length of the call because it is borrowed.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_ZEROCOPY_RECEIVE,
            (&raw mut receive).cast(),
            &raw mut size,
        )
    };
    if rc < 0 {
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::EIO) {
            return Ok(Mapped { end: true, ..Mapped::default() });
        }
        return Err(error);
    }
    if (size as usize) < NEEDED {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "TCP_ZEROCOPY_RECEIVE of a kernel before 5.11",
        ));
    }
    Ok(Mapped {
        bytes: receive.length as usize,
        // Negative when copying failed; nothing was taken then.
        header_bytes: usize::try_from(receive.copybuf_len).unwrap_or(0),
        skip_hint: receive.recv_skip_hint,
        inq: receive.inq,
        end: false,
        socket_error: (receive.err < 0).then(|| io::Error::from_raw_os_error(-receive.err)),
    })
}
