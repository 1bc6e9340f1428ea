//! Hearing when the kernel has let go of memory that was sent without a copy: the error queue of a socket.
//!
//! The kernel numbers the calls of each socket that had MSG_ZEROCOPY, from 0 on, and queues a record for each range of
//! numbers that it is done with (Documentation/networking/msg_zerocopy.rst): merged where it can, mostly but not always in
//! ascending order, modulo 2^32.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// Records taken with one system call.
const RECORDS: usize = 16;
/// Bytes of control data of a record: an error with the offender's IPv6 address takes 64, a timestamp beside it as much.
const CONTROL: usize = 128;
/// struct cmsghdr: a length of the platform's width, level, type.
const HEADER: usize = size_of::<usize>() + 8;
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;

/// Memory for draining error queues; used again for any socket.
pub(crate) struct ErrorQueue {
    control: Box<[Control; RECORDS]>,
    /// Bytes of each control buffer that the kernel may fill.
    room: usize,
    truncated: u64,
}

/// As cmsg(3) wants it aligned.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct Control([u8; CONTROL]);

impl ErrorQueue {
    pub(crate) fn new() -> Self {
        Self { control: Box::new([Control([0; CONTROL]); RECORDS]), room: CONTROL, truncated: 0 }
    }

    /// Takes everything out of the error queue of `socket`, and calls `on(first, last, copied)` for each range of numbers
    /// that the kernel is done with: both ends included, `last` below `first` where the numbers wrap, `copied` if the
    /// kernel copied of the first what it was given. The others of the range were merged with it, whatever happened to
    /// them (`skb_zerocopy_notify_extend`): the more often the queue is drained, the more `copied` is worth. Records of other origins are taken out and ignored. Returns how many records
    /// there were. Never blocks, and leaves SO_ERROR alone. Does not allocate.
    ///
    /// # Errors
    /// What recvmmsg(2) says, but for the end of the queue; ranges that were reported before stay reported.
    pub(crate) fn drain(
        &mut self,
        socket: BorrowedFd<'_>,
        mut on: impl FnMut(u32, u32, bool),
    ) -> io::Result<usize> {
        let mut records = 0;
        loop {
            let filled = match self.take(socket) {
                Ok(filled) => filled,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(records),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            records += filled.count;
            for (control, &len) in self.control.iter().zip(&filled.len[..filled.count]) {
                match parse(&control.0[..len.min(self.room)]) {
                    Parsed::Range { first, last, copied } => on(first, last, copied),
                    Parsed::Other => {}
                    Parsed::Truncated => self.truncated += 1,
                }
            }
            // recvmmsg(2) returns fewer only when no more are there.
            if filled.count < RECORDS {
                return Ok(records);
            }
        }
    }

    /// Records so far that did not hold what they should, and were ignored. The numbers in them are lost, and must be
    /// taken for outstanding until the connection ends. None with the kernels known today.
    pub(crate) fn truncated(&self) -> u64 {
        self.truncated
    }

    /// One system call.
    fn take(&mut self, socket: BorrowedFd<'_>) -> io::Result<Filled> {
        let room = self.room;
        let mut messages: [libc::mmsghdr; RECORDS] = self.control.each_mut().map(|control| {
            // SAFETY: zeroes are a valid msghdr, null pointers and lengths of 0; some platforms pad it with private fields.
            let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
            header.msg_control = control.0.as_mut_ptr().cast();
            header.msg_controllen = room as _;
            libc::mmsghdr { msg_hdr: header, msg_len: 0 }
        });
        // SAFETY: each header names a control buffer of `room` bytes at most `CONTROL`, which is exclusively borrowed through
        // `self` and which the kernel may fill with any bytes, no name and no data; `messages` has `RECORDS` of them.
        // recvmmsg(2) reads and writes nothing else. The descriptor is borrowed for the length of the call.
        let n = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                RECORDS as _,
                (libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) as _,
                ptr::null_mut(),
            )
        };
        let count = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        #[allow(clippy::unnecessary_cast, reason = "32 bits wide on some platforms")]
        Ok(Filled { count, len: messages.map(|m| m.msg_hdr.msg_controllen as usize) })
    }
}

/// What one call brought: how many records, and the bytes of control data of each.
struct Filled {
    count: usize,
    len: [usize; RECORDS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parsed {
    Range {
        first: u32,
        last: u32,
        copied: bool,
    },
    /// About something else.
    Other,
    Truncated,
}

/// Finds the notification in the control data of a record.
fn parse(mut control: &[u8]) -> Parsed {
    while !control.is_empty() {
        let Some((header, rest)) = control.split_at_checked(HEADER) else { return Parsed::Truncated };
        let (len, kind) = header.split_at(size_of::<usize>());
        let len = len.try_into().map_or(0, usize::from_ne_bytes);
        let (level, kind) = (word(kind, 0), word(kind, 4));
        // A truncated one has the length of what is there.
        let Some(data) = len.checked_sub(HEADER).and_then(|n| rest.get(..n)) else {
            return Parsed::Truncated;
        };
        let is = |l, k| (level, kind) == (Some(l as u32), Some(k as u32));
        if is(libc::SOL_IP, libc::IP_RECVERR) || is(libc::SOL_IPV6, libc::IPV6_RECVERR) {
            return extended_error(data);
        }
        let next = data.len().next_multiple_of(size_of::<usize>());
        control = rest.get(next..).unwrap_or_default();
    }
    // A record without an error in it: there was no room.
    Parsed::Truncated
}

/// struct sock_extended_err: errno (4 bytes), origin, type, code, padding, info (4 bytes), data (4 bytes).
fn extended_error(data: &[u8]) -> Parsed {
    let (Some(error), Some(first), Some(last)) = (word(data, 0), word(data, 8), word(data, 12)) else {
        return Parsed::Truncated;
    };
    let (origin, code) = (data[4], data[6]);
    if origin != ORIGIN_ZEROCOPY || error != 0 {
        return Parsed::Other;
    }
    Parsed::Range { first, last, copied: code & CODE_COPIED != 0 }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

const _: () = assert!(size_of::<libc::sock_extended_err>() == 16);
const _: () = assert!(HEADER == size_of::<libc::cmsghdr>());

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use proptest::prelude::*;

    use super::super::testing::{pair, poll};
    use super::*;

    const V4: (libc::c_int, libc::c_int) = (libc::SOL_IP, libc::IP_RECVERR);
    const V6: (libc::c_int, libc::c_int) = (libc::SOL_IPV6, libc::IPV6_RECVERR);

    /// A control message, padded as cmsg(3) wants it.
    fn message((level, kind): (libc::c_int, libc::c_int), data: &[u8]) -> Vec<u8> {
        let mut bytes = (HEADER + data.len()).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(size_of::<usize>()), 0);
        bytes
    }

    /// A sock_extended_err and the offender's address, of the family AF_UNSPEC.
    fn error(errno: u32, origin: u8, code: u8, first: u32, last: u32, address: usize) -> Vec<u8> {
        let mut bytes = errno.to_ne_bytes().to_vec();
        bytes.extend([origin, 0, code, 0]);
        bytes.extend(first.to_ne_bytes());
        bytes.extend(last.to_ne_bytes());
        bytes.resize(16 + address, 0);
        bytes
    }

    #[test]
    fn both_families_show_the_range_and_whether_it_was_copied() {
        for (kind, address) in [(V4, 16), (V6, 28)] {
            for (first, last, code) in [(0, 0, 0), (7, 300, 1), (u32::MAX - 1, 3, 1), (u32::MAX, u32::MAX, 0)]
            {
                let control = message(kind, &error(0, ORIGIN_ZEROCOPY, code, first, last, address));
                assert_eq!(parse(&control), Parsed::Range { first, last, copied: code == 1 });
            }
        }
    }

    #[test]
    fn a_range_is_found_behind_other_control_messages() {
        let mut control = message((libc::SOL_SOCKET, libc::SCM_TIMESTAMPING), &[1; 48]);
        control.extend(message((libc::SOL_SOCKET, 77), &[2; 5]));
        control.extend(message(V4, &error(0, ORIGIN_ZEROCOPY, 0, 4, 5, 16)));
        assert_eq!(parse(&control), Parsed::Range { first: 4, last: 5, copied: false });
    }

    #[test]
    fn errors_of_other_origins_are_no_ranges() {
        for origin in (0..=u8::MAX).filter(|&o| o != ORIGIN_ZEROCOPY) {
            assert_eq!(parse(&message(V4, &error(0, origin, 1, 1, 2, 16))), Parsed::Other);
        }
        assert_eq!(parse(&message(V6, &error(111, ORIGIN_ZEROCOPY, 1, 1, 2, 28))), Parsed::Other);
    }

    #[test]
    fn what_is_cut_short_is_no_range() {
        assert_eq!(parse(&[]), Parsed::Truncated);
        let whole = message(V4, &error(0, ORIGIN_ZEROCOPY, 0, 1, 2, 0));
        for len in 0..whole.len() {
            assert_eq!(parse(&whole[..len]), Parsed::Truncated, "{len}");
            // As put_cmsg of the kernel cuts it: the length in the header is what there was room for.
            let mut cut = whole[..len].to_vec();
            if len >= HEADER {
                cut[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
                assert_eq!(parse(&cut), Parsed::Truncated, "{len}");
            }
        }
        for wrong in [0, 1, HEADER - 1, whole.len() + 1, usize::MAX] {
            let mut bytes = whole.clone();
            bytes[..size_of::<usize>()].copy_from_slice(&wrong.to_ne_bytes());
            assert_eq!(parse(&bytes), Parsed::Truncated, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..CONTROL)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn any_range_is_found_behind_any_messages(
            first: u32,
            last: u32,
            code in 0..2_u8,
            before in prop::collection::vec((2..40, 0..40, prop::collection::vec(any::<u8>(), 0..30)), 0..4),
        ) {
            let mut control: Vec<u8> = before.iter().flat_map(|(l, k, d)| message((*l, *k), d)).collect();
            control.extend(message(V4, &error(0, ORIGIN_ZEROCOPY, code, first, last, 16)));
            prop_assert_eq!(parse(&control), Parsed::Range { first, last, copied: code == 1 });
        }
    }

    /// Makes the kernel queue a record of another origin for each segment that is acknowledged.
    fn timestamp_acks(socket: impl AsFd) {
        let flags = libc::SOF_TIMESTAMPING_TX_ACK | libc::SOF_TIMESTAMPING_SOFTWARE;
        let flags = flags | libc::SOF_TIMESTAMPING_OPT_TSONLY | libc::SOF_TIMESTAMPING_OPT_ID;
        super::super::option::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags as _)
            .unwrap();
    }

    fn sent_and_acknowledged(n: usize) -> (std::net::TcpStream, std::net::TcpStream) {
        let (mut a, b) = pair();
        timestamp_acks(&a);
        for _ in 0..n {
            a.write_all(b"x").unwrap();
            std::io::Read::read_exact(&mut &b, &mut [0]).unwrap();
            while super::super::unacknowledged(a.as_fd()).unwrap() > 0 {
                std::thread::yield_now();
            }
        }
        (a, b)
    }

    #[test]
    fn more_records_than_a_call_takes_are_all_drained_and_those_of_other_origins_ignored() {
        for n in [1, RECORDS - 1, RECORDS, RECORDS + 1, 3 * RECORDS, 40] {
            let (a, _b) = sent_and_acknowledged(n);
            let mut queue = ErrorQueue::new();
            let records =
                queue.drain(a.as_fd(), |_, _, _| panic!("nothing was sent without a copy")).unwrap();
            assert_eq!((records, queue.truncated()), (n, 0));
            assert_eq!(queue.drain(a.as_fd(), |_, _, _| ()).unwrap(), 0);
            assert!(!poll(&a, 0, 0), "POLLERR is gone");
        }
    }

    #[test]
    fn records_without_room_are_counted() {
        let (a, _b) = sent_and_acknowledged(3);
        let mut queue = ErrorQueue { room: 24, ..ErrorQueue::new() };
        assert_eq!(queue.drain(a.as_fd(), |_, _, _| panic!("no whole record")).unwrap(), 3);
        assert_eq!(queue.truncated(), 3);
    }

    #[test]
    fn an_empty_queue_does_not_block_and_no_socket_is_an_error() {
        let (a, _b) = pair();
        let mut queue = ErrorQueue::new();
        assert_eq!(queue.drain(a.as_fd(), |_, _, _| ()).unwrap(), 0, "the socket itself is a blocking one");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(queue.drain(file.as_fd(), |_, _, _| ()).is_err());
    }
}
