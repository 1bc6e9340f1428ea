//! The system calls of a connection's sending side.

use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use socket2::SockRef;

use super::pins::{self, Pins};
use crate::buffer::Chunk;
use crate::proto::Time;
use crate::sys::cpu::thread_cpu_time;
use crate::sys::error_queue::ErrorQueue;
use crate::sys::zerocopy::{self, Gather};
use crate::zerocopy::{Ending, Held, Refusal, Wire};

/// From this length on payloads are kept whole: see [`Pinning::keep_whole`].
const LARGE: u64 = 32 << 10;
/// The window is looked at once in so many calls while it was more than wide enough.
const LOOK: u32 = 16;
/// Looks for which calls stay short after segments came out of order.
const CAREFUL: u32 = 8;
/// Options of a segment with three SACK blocks, beside timestamps: 4 bytes and 8 each.
const SACK: u32 = 28;
/// Most bytes that the kernel puts into a segment buffer, whatever the device; a little less than 64 KiB, for headers.
const SEGMENT_BUFFER: u32 = 65_000;

/// What the kernel may read. Never freed unless it is released; counted then.
#[derive(Debug)]
pub(crate) struct Loan(Option<zerocopy::Held<Chunk>>);

impl Held for Loan {
    fn pieces(&self) -> &[Chunk] {
        self.0.as_ref().map_or(&[], zerocopy::Held::pieces)
    }

    fn release(mut self) -> Vec<Chunk> {
        self.0.take().map(zerocopy::Held::release).unwrap_or_default()
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if self.0.is_some() {
            pins::leaked(1);
        }
    }
}

/// What it takes to pin on one socket.
pub(crate) struct Pinning {
    pub(crate) pins: Arc<Pins>,
    /// Whether the socket can, once it was asked.
    enabled: OnceLock<bool>,
    /// The peer is an own one.
    own_peer: AtomicBool,
    /// TCP_NODELAY is off.
    whole: AtomicBool,
    /// The peer's window when it was looked at last, and calls since.
    window: AtomicU32,
    looked: AtomicU32,
    /// Longest call while segments come out of order; 0 if payloads are not laid out in whole pages.
    short: AtomicU32,
    disordered: AtomicU32,
    careful: AtomicU32,
    queue: Mutex<Option<Box<ErrorQueue>>>,
}

impl Pinning {
    pub(crate) fn new(pins: Arc<Pins>) -> Self {
        Self {
            pins,
            enabled: OnceLock::new(),
            own_peer: AtomicBool::new(false),
            whole: AtomicBool::new(false),
            window: AtomicU32::new(0),
            looked: AtomicU32::new(0),
            short: AtomicU32::new(0),
            disordered: AtomicU32::new(0),
            careful: AtomicU32::new(0),
            queue: Mutex::new(None),
        }
    }

    /// Whether the socket may have notifications.
    pub(crate) fn is_enabled(&self) -> bool {
        self.enabled.get() == Some(&true)
    }

    /// The peer is an own one: it acknowledges what it has read before it sleeps, so TCP's acknowledgements are not delayed.
    pub(crate) fn set_own_peer(&self) {
        if !self.own_peer.load(Relaxed) {
            self.own_peer.store(true, Relaxed);
        }
    }

    /// Segments hold `mss` bytes of payload, whole pages of `page` bytes, and the peer may map them.
    ///
    /// While we receive segments out of order, ours carry SACK blocks and so much less payload. A segment buffer that the kernel fills
    /// then ends within a page, and the rest of the call cannot be mapped. Calls that fit one even then are not cut.
    pub(crate) fn set_segment(&self, mss: u32, page: u32) {
        let whole = (SEGMENT_BUFFER / mss.max(1)) * mss.saturating_sub(SACK);
        self.short.store(whole / page.max(1) * page, Relaxed);
    }

    /// Before a call of `len` bytes: has TCP keep segments whole, or send at once what it can.
    ///
    /// With TCP_NODELAY it cuts a segment where the peer's window ends (`tcp_mss_split_point` in `net/ipv4/tcp_output.c`), and what comes
    /// after the cut cannot be mapped, as pages begin elsewhere: of a peer that reads more slowly than we send, nearly every
    /// message. Without it (Nagle's algorithm) it waits for room for whole segments, but holds back a message's last, short segment while
    /// an earlier short one is not acknowledged. So that is for large payloads beyond the peer's window only, which have to wait
    /// anyway, and towards own peers: they acknowledge all they have read before they sleep, so TCP's acknowledgements are not late.
    fn keep_whole(&self, stream: &TcpStream, len: u64) {
        let was = self.whole.load(Relaxed);
        // Where no pages can be mapped there is nothing to keep whole, nor to look at.
        let laid_out = self.short.load(Relaxed) > 0 && self.own_peer.load(Relaxed);
        let whole = laid_out && (was || len >= LARGE) && self.ends_within(stream, len);
        if whole != was {
            self.whole.store(whole, Relaxed);
            if let Err(error) = SockRef::from(stream).set_tcp_nodelay(!whole) {
                tracing::debug!(%error, "TCP_NODELAY");
            }
        }
    }

    /// Whether the peer's window ends before `len` more bytes.
    fn ends_within(&self, stream: &TcpStream, len: u64) -> bool {
        let wanted = crate::sys::unacknowledged(stream.as_fd()).unwrap_or(0) + len;
        let wide = wanted < u64::from(self.window.load(Relaxed) / 2);
        if wide && !self.whole.load(Relaxed) && self.looked.fetch_add(1, Relaxed) < LOOK {
            return false;
        }
        self.looked.store(0, Relaxed);
        let now = crate::sys::segmenting(stream.as_fd()).unwrap_or_default();
        self.window.store(now.window, Relaxed);
        let careful = if self.disordered.swap(now.disordered, Relaxed) == now.disordered {
            self.careful.load(Relaxed).saturating_sub(1)
        } else {
            CAREFUL
        };
        self.careful.store(careful, Relaxed);
        wanted > u64::from(now.window)
    }

    fn enable(&self, socket: BorrowedFd<'_>) -> bool {
        *self.enabled.get_or_init(|| {
            zerocopy::enable(socket).unwrap_or_else(|error| {
                tracing::debug!(%error, "SO_ZEROCOPY");
                false
            })
        })
    }
}

/// A socket, and memory for its calls.
pub(crate) struct SocketWire<'a> {
    pub(crate) stream: &'a TcpStream,
    pub(crate) pinning: &'a Pinning,
    pub(crate) gather: &'a mut Gather,
}

fn refusal(error: &std::io::Error) -> Refusal {
    match error.raw_os_error() {
        Some(libc::EAGAIN) => Refusal::Full,
        Some(libc::ENOBUFS | libc::ENOMEM) => Refusal::NoMemory,
        Some(libc::EFAULT) => Refusal::Unpinnable,
        _ => Refusal::Failed,
    }
}

impl Wire for SocketWire<'_> {
    type Held = Loan;

    fn now(&self) -> Time {
        self.pinning.pins.now()
    }

    fn cpu_time(&self) -> Duration {
        thread_cpu_time()
    }

    fn copy(&mut self, pieces: &[Chunk], ending: Ending) -> Result<usize, Refusal> {
        // Otherwise a large payload follows at once.
        if !ending.record && self.pinning.whole.load(Relaxed) {
            self.pinning.keep_whole(self.stream, pieces.iter().map(|piece| piece.len() as u64).sum());
        }
        zerocopy::send(self.stream.as_fd(), pieces, ending, self.gather).map_err(|error| refusal(&error))
    }

    fn cut(&self) -> Option<usize> {
        let short = self.pinning.short.load(Relaxed) as usize;
        (short > 0 && self.pinning.careful.load(Relaxed) > 0).then_some(short)
    }

    fn pin(&mut self, pieces: Vec<Chunk>, ending: Ending) -> Result<(usize, Loan), (Refusal, Vec<Chunk>)> {
        if !self.pinning.enable(self.stream.as_fd()) {
            return Err((Refusal::Unpinnable, pieces));
        }
        self.pinning.keep_whole(self.stream, pieces.iter().map(|piece| piece.len() as u64).sum());
        match zerocopy::send_pinned(self.stream.as_fd(), pieces, ending, self.gather) {
            Ok((n, held)) => Ok((n, Loan(Some(held)))),
            Err(refused) => {
                // No bytes were to be sent: the writer never asks for that.
                let why = refused.error.as_ref().map_or(Refusal::Failed, refusal);
                Err((why, refused.pieces))
            }
        }
    }

    fn reap(&mut self, on: &mut dyn FnMut(u32, u32, bool)) {
        if !self.pinning.is_enabled() {
            return;
        }
        let mut queue = self.pinning.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queue.get_or_insert_with(|| Box::new(ErrorQueue::new()));
        let before = queue.truncated();
        if let Err(error) = queue.drain(self.stream.as_fd(), on) {
            tracing::error!(%error, "reading an error queue");
        }
        if queue.truncated() > before {
            tracing::error!(
                "a record of an error queue was cut short; what it told of counts as outstanding"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::engine::ZeroCopy;

    #[test]
    fn what_is_never_released_is_never_freed_and_counted() {
        let listener = TcpListener::bind("127.31.2.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let pins = Pins::new(ZeroCopy::default(), std::time::Instant::now());
        let pinning = Pinning::new(Arc::clone(&pins));
        let mut wire = SocketWire { stream: &stream, pinning: &pinning, gather: &mut Gather::default() };
        let bytes = bytes::Bytes::from(vec![1; 100]);
        let leaked = || pins.info(std::iter::empty()).leaked_calls;
        let before = leaked();
        for release in [true, false] {
            let Ok((n, loan)) = wire.pin(vec![Chunk::payload(bytes.clone())], Ending::default()) else {
                panic!("there is room")
            };
            assert_eq!(n, 100);
            if release { drop(loan.release()) } else { drop(loan) }
        }
        assert_eq!(leaked() - before, 1);
        assert!(!bytes.is_unique(), "the kernel may read the second one for ever");
    }
}
