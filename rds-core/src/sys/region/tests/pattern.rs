//! A peer that sends as mapping asks for: each payload starts a segment of its own, in whole pages; and a program that
//! receives by mapping.

use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use socket2::{Domain, SockRef, Socket, Type};

use super::super::*;

/// Five pages, and the timestamp option.
const MSS: u32 = 20492;

/// A connection over loopback whose segments are whole pages; sender and receiver.
pub(super) fn pair() -> (TcpStream, TcpStream) {
    let tuned = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_tcp_mss(MSS).unwrap();
        socket.set_tcp_congestion(b"reno").unwrap();
        socket.bind(&SocketAddr::from(([127, 32, 0, 1], 0)).into()).unwrap();
        socket
    };
    let listener = tuned();
    listener.listen(1).unwrap();
    let listener: TcpListener = listener.into();
    let sender = tuned();
    sender.connect(&listener.local_addr().unwrap().into()).unwrap();
    sender.set_tcp_nodelay(true).unwrap();
    let on: libc::c_int = 1;
    // SAFETY: SO_ZEROCOPY reads one int, whose address and size are given.
    let rc = unsafe {
        libc::setsockopt(
            sender.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            (&raw const on).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    assert_eq!(rc, 0, "SO_ZEROCOPY: {}", io::Error::last_os_error());
    (sender.into(), listener.accept().unwrap().0)
}

/// Bytes that never change, beginning at a page.
pub(super) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub(super) fn new(len: usize, seed: u64) -> Self {
        let page = page_size();
        let mut bytes = vec![0; len + page];
        let start = bytes.as_ptr().align_offset(page);
        fastrand::Rng::with_seed(seed).fill(&mut bytes[start..start + len]);
        Self { bytes, start, len }
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }
}

/// Which payload the message of a number has: a prime number of them, so that no two neighbours in the region are alike.
pub(super) fn payloads(len: usize) -> Arc<Vec<Aligned>> {
    Arc::new((0..7).map(|seed| Aligned::new(len, seed)).collect())
}

pub(super) fn message_header(number: usize, len: usize) -> [u8; HEADER_LEN] {
    let mut header = [0xA5; HEADER_LEN];
    header[..8].copy_from_slice(&(number as u64).to_be_bytes());
    header[8..16].copy_from_slice(&(len as u64).to_be_bytes());
    header
}

/// Discards notifications; whether there were any.
fn reap(socket: &SockRef<'_>) -> bool {
    let mut any = false;
    while socket.recv_with_flags(&mut [MaybeUninit::uninit(); 1], libc::MSG_ERRQUEUE).is_ok() {
        any = true;
    }
    any
}

/// Sends all of `parts` with one call, or as few as the kernel has memory for.
pub(super) fn send(stream: &TcpStream, parts: &[&[u8]], flags: libc::c_int) {
    let socket = SockRef::from(stream);
    let mut slices: Vec<_> = parts.iter().map(|p| IoSlice::new(p)).collect();
    let mut rest = &mut slices[..];
    while rest.iter().any(|s| !s.is_empty()) {
        match socket.send_vectored_with_flags(rest, flags) {
            Ok(n) => IoSlice::advance_slices(&mut rest, n),
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                if !reap(&socket) {
                    let mut poll = libc::pollfd { fd: stream.as_raw_fd(), events: 0, revents: 0 };
                    // SAFETY: one `pollfd`, exclusively borrowed. POLLERR, for notifications, is always asked for.
                    unsafe { libc::poll(&raw mut poll, 1, -1) };
                }
            }
            Err(e) => panic!("{e}"),
        }
    }
    reap(&socket);
}

/// Messages that may be on their way at once. Where TCP's window is what limits them, segments are cut at its edge, which is no
/// page's.
const WINDOW: usize = 2;

/// Sends messages of the lengths given, by the pattern, each when the one before the last has been taken, and ends the stream.
pub(super) fn sender(
    stream: TcpStream,
    payloads: Arc<Vec<Aligned>>,
    lens: Vec<usize>,
) -> JoinHandle<TcpStream> {
    let zerocopy = libc::MSG_ZEROCOPY | libc::MSG_EOR | libc::MSG_NOSIGNAL;
    std::thread::spawn(move || {
        // All at once, because a header must not change while it is pinned.
        let headers: Vec<_> = lens.iter().enumerate().map(|(i, len)| message_header(i, *len)).collect();
        send(&stream, &[&headers[0]], libc::MSG_EOR);
        for (i, len) in lens.iter().enumerate() {
            if i >= WINDOW {
                (&stream).read_exact(&mut [0]).unwrap();
            }
            let payload = &payloads[i % payloads.len()][..*len];
            let next = headers.get(i + 1).map_or(&[][..], |h| h);
            send(&stream, &[payload, next], zerocopy);
        }
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // Not before everything was read: the pages that are pinned are those of `payloads`.
        let _ = (&stream).read_to_end(&mut Vec::new());
        stream
    })
}

/// A payload, received either way.
pub(super) enum Payload {
    Mapped(MappedPages),
    Copied(Vec<u8>),
}

impl Deref for Payload {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(pages) => pages,
            Self::Copied(bytes) => bytes,
        }
    }
}

/// A program that receives messages, by mapping where it can.
pub(super) struct Receiver {
    pub(super) stream: TcpStream,
    pub(super) region: PathRegion,
    /// Taken from the stream and not used yet.
    pending: Vec<u8>,
    number: u64,
    /// Bytes of payload that the kernel mapped, and in all; headers that came with a payload.
    pub(super) mapped: usize,
    pub(super) total: usize,
    pub(super) headers: usize,
}

impl Receiver {
    pub(super) fn new(stream: TcpStream, region: PathRegion) -> Self {
        Self { stream, region, pending: Vec::new(), number: 0, mapped: 0, total: 0, headers: 0 }
    }

    /// The next message, or none at the end of the stream.
    pub(super) fn next(&mut self) -> Option<Payload> {
        let mut header = [0; HEADER_LEN];
        if self.pending.len() < HEADER_LEN {
            let have = self.pending.len();
            self.pending.resize(HEADER_LEN, 0);
            match (&self.stream).read_exact(&mut self.pending[have..]) {
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof && have == 0 => return None,
                other => other.unwrap(),
            }
        }
        header.copy_from_slice(&self.pending[..HEADER_LEN]);
        self.pending.drain(..HEADER_LEN);
        let number = u64::from_be_bytes(header[..8].try_into().unwrap());
        assert_eq!(number, self.number, "framing is lost");
        self.number += 1;
        let len = u64::from_be_bytes(header[8..16].try_into().unwrap()) as usize;
        self.total += len;
        let payload = self.payload(len);
        // Whoever sends may have ended.
        let _ = (&self.stream).write(&[0]);
        Some(payload)
    }

    fn payload(&mut self, len: usize) -> Payload {
        let page = page_size();
        let mut payload = Vec::new();
        let pages = (len / page) as u32;
        if self.pending.is_empty()
            && len.is_multiple_of(page)
            && let Ok(mut target) = self.region.target(pages)
        {
            let mut next = [0; HEADER_LEN];
            loop {
                let mapped = target.receive(self.stream.as_fd(), Some(&mut next)).unwrap();
                self.mapped += mapped.bytes;
                let after = &next[..mapped.header_bytes];
                if target.missing() == 0 {
                    self.headers += usize::from(after.len() == HEADER_LEN);
                    let (lease, surplus) = self.region.finish(target);
                    if let Some(surplus) = surplus {
                        self.pending.extend_from_slice(&surplus);
                    }
                    self.pending.extend_from_slice(after);
                    return Payload::Mapped(lease);
                }
                assert!(!mapped.end, "the stream ended within a message");
                if mapped.skip_hint > 0 || !after.is_empty() {
                    payload.extend_from_slice(target.mapped());
                    payload.extend_from_slice(after);
                    break;
                }
                if mapped.bytes == 0 {
                    assert_eq!(self.stream.peek(&mut [0]).unwrap(), 1, "the stream ended within a message");
                }
            }
        }
        let have = payload.len() + self.pending.len().min(len - payload.len());
        payload.extend(self.pending.drain(..have - payload.len()));
        payload.resize(len, 0);
        (&self.stream).read_exact(&mut payload[have..]).unwrap();
        Payload::Copied(payload)
    }
}
