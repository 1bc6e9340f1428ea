//! The writing end of a connection, shared by whoever holds its transmit right and the poll loop.

use std::net::{IpAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::closer;
use super::pins::Pins;
use super::wire::{Loan, Pinning, SocketWire};
use crate::buffer::Chunk;
use crate::info::SendZeroCopy;
use crate::proto::Time;
use crate::sys::zerocopy::{Gather, disconnect};
use crate::zerocopy::{Mode, SendPath, Writer, Wrote};

/// A TCP connection.
///
/// Edge-triggered readiness for writing reaches the poll loop while another thread may be writing: the thread that met a
/// full socket must not say so after the edge that ended it was seen. `edges` counts them; the writer compares, see
/// [`Link::stays_blocked`].
///
/// The kernel may go on to read what was pinned after the socket is closed, and then never says when it is done. So a link
/// is [retired](Link::retire) before it is dropped; one that is not hands itself to the [`closer`].
pub(crate) struct Link {
    pub(crate) stream: TcpStream,
    pub(crate) peer: IpAddr,
    edges: AtomicU32,
    blocked: AtomicBool,
    sending: Arc<Sending>,
    writer: Mutex<(Writer, Gather)>,
    /// The last write pinned something.
    pinned: AtomicBool,
}

/// What outlives a link while the kernel reads.
pub(crate) struct Sending {
    pub(crate) path: SendPath<Loan>,
    pinning: Pinning,
}

impl Sending {
    /// Reads the notifications that are there; what they give back is appended to `released`.
    pub(crate) fn reap(&self, stream: &TcpStream, released: &mut Vec<Chunk>) {
        if self.pinning.is_enabled() {
            let mut gather = Gather::default();
            let n = self.path.reap(&mut self.wire(stream, &mut gather), released);
            if n > 0 {
                self.pinning.pins.wake();
            }
        }
    }

    /// Makes the kernel let go. True if it has, and nothing will be pinned any more.
    pub(crate) fn disconnect(&self, stream: &TcpStream, released: &mut Vec<Chunk>) -> bool {
        let mut gather = Gather::default();
        let done = self.path.end(&mut self.wire(stream, &mut gather), released, |_| {
            if let Err(error) = disconnect(stream.as_fd()) {
                tracing::error!(%error, "cannot disconnect");
            }
        });
        self.pinning.pins.wake();
        done
    }

    pub(crate) fn finish(&self, stream: &TcpStream, released: &mut Vec<Chunk>) -> bool {
        let mut gather = Gather::default();
        let done = self.path.finish(&mut self.wire(stream, &mut gather), released);
        self.pinning.pins.wake();
        done
    }

    fn wire<'a>(&'a self, stream: &'a TcpStream, gather: &'a mut Gather) -> SocketWire<'a> {
        SocketWire { stream, pinning: &self.pinning, gather }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.pinning.pins.add_past(&self.path.counts());
    }
}

impl Link {
    pub(crate) fn new(stream: TcpStream, peer: IpAddr, pins: &Arc<Pins>) -> Self {
        let path = SendPath::new(pins.path(peer));
        Self {
            stream,
            peer,
            edges: AtomicU32::new(0),
            blocked: AtomicBool::new(false),
            sending: Arc::new(Sending { path, pinning: Pinning::new(Arc::clone(pins)) }),
            writer: Mutex::default(),
            pinned: AtomicBool::new(false),
        }
    }

    /// To be called before writing, for [`Link::stays_blocked`].
    pub(crate) fn edges(&self) -> u32 {
        self.edges.load(SeqCst)
    }

    /// The writer met a full socket, under the core's lock: whether no edge came since `seen`. If true,
    /// [`Link::writable_edge`] will say so once one comes.
    pub(crate) fn stays_blocked(&self, seen: u32) -> bool {
        self.blocked.store(true, SeqCst);
        let stays = self.edges.load(SeqCst) == seen;
        if !stays {
            self.blocked.store(false, SeqCst);
        }
        stays
    }

    /// The peer is an own one.
    pub(crate) fn set_own_peer(&self) {
        self.sending.pinning.set_own_peer();
    }

    /// Segments hold whole pages, `mss` bytes, and the peer was told so.
    pub(crate) fn set_segment(&self, mss: u32) {
        self.sending.pinning.set_segment(mss, crate::sys::limits::page_size() as u32);
    }

    /// The poll loop saw that the connection is writable: whether a writer waits for that.
    pub(crate) fn writable_edge(&self) -> bool {
        self.edges.fetch_add(1, SeqCst);
        self.blocked.swap(false, SeqCst)
    }

    // ---- writing -------------------------------------------------------------------------------------------------

    fn writer(&self) -> MutexGuard<'_, (Writer, Gather)> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what the kernel takes now of the batch, which is the next of the stream. For the holder of the transmit right.
    pub(crate) fn write(&self, batch: &mut Batch) -> Wrote {
        let mut writer = self.writer();
        let (writer, gather) = &mut *writer;
        let pins = &self.sending.pinning.pins;
        let before = self.sending.path.counts().fallbacks;
        let mut wire = self.sending.wire(&self.stream, gather);
        let wrote = self.sending.path.write(writer, &mut wire, &mut batch.slices, &mut batch.released);
        let after = self.sending.path.counts().fallbacks;
        if after != before {
            pins.fell_back(&before, &after, self.sending.path.outstanding());
        }
        self.pinned.store(writer.pinned(), Relaxed);
        if !batch.released.is_empty() {
            pins.wake();
        }
        wrote
    }

    /// Whether the last write pinned something.
    pub(crate) fn pins(&self) -> bool {
        self.pinned.load(Relaxed)
    }

    // ---- notifications -------------------------------------------------------------------------------------------

    /// Whether the socket may have notifications in its error queue.
    pub(crate) fn may_have_notifications(&self) -> bool {
        self.sending.pinning.is_enabled()
    }

    /// The sending side, for what looks at it.
    pub(crate) fn path(&self) -> &SendPath<Loan> {
        &self.sending.path
    }

    pub(crate) fn info(&self, now: Time) -> SendZeroCopy {
        let path = self.path();
        SendZeroCopy {
            decision: path.decision(),
            counts: path.counts(),
            pinned_pages: path.pages(),
            outstanding: path.outstanding() as u64,
            oldest_ms: path.oldest().map_or(0, |oldest| now.since(oldest).as_millis() as u64),
            segment: super::tcp::page_segments(&self.stream),
        }
    }

    pub(crate) fn set_mode(&self, mode: Mode) {
        self.sending.path.set_mode(mode);
    }

    /// Reads the notifications that are there; what they give back is appended to `released`.
    pub(crate) fn reap(&self, released: &mut Vec<Chunk>) {
        self.sending.reap(&self.stream, released);
    }

    /// The end of the connection: whatever the kernel still reads it lets go, and appends it to `released`; from now on
    /// nothing can be pinned. TCP must have been asked before what the peer has not acknowledged. A writer may be in a call.
    pub(crate) fn retire(self: &Arc<Self>, released: &mut Vec<Chunk>) {
        if !self.sending.disconnect(&self.stream, released) {
            closer::adopt(closer::Orphan::Link(Arc::clone(self)));
        }
    }

    /// For the closer: whether the kernel has let go by now.
    pub(crate) fn finish(&self, released: &mut Vec<Chunk>) -> bool {
        self.sending.finish(&self.stream, released)
    }
}

impl Drop for Link {
    /// Nobody retired it: a thread panicked, for one.
    fn drop(&mut self) {
        if self.sending.path.outstanding() == 0 {
            return;
        }
        let mut released = Vec::new();
        let done = self.sending.disconnect(&self.stream, &mut released);
        // Locks may be held here. A payload's drop may call the engine.
        let orphan = match self.stream.try_clone() {
            Ok(stream) if !done => Some((stream, Arc::clone(&self.sending))),
            _ => None,
        };
        closer::adopt(closer::Orphan::Rest { sending: orphan, released });
    }
}

/// Slices to be written, and what notifications gave back meanwhile; used again and again.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) slices: Vec<Chunk>,
    pub(crate) released: Vec<Chunk>,
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener};
    use std::time::Instant;

    use super::super::{Options, ZeroCopy};
    use super::*;
    use crate::zerocopy::Stop;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 31, 1, 1));

    fn pair(mode: Mode) -> (Arc<Link>, TcpStream) {
        let settings = ZeroCopy { send: mode, ..Options::new(ADDRESS).zero_copy };
        let listener = TcpListener::bind((ADDRESS, 0)).unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        a.set_nonblocking(true).unwrap();
        let link = Link::new(a, ADDRESS, &Pins::new(settings, Instant::now()));
        (Arc::new(link), listener.accept().unwrap().0)
    }

    fn batch(slices: Vec<Chunk>) -> Batch {
        Batch { slices, released: Vec::new() }
    }

    #[test]
    fn more_slices_than_one_call_takes_arrive_in_order() {
        let (link, mut peer) = pair(Mode::Off);
        let expected: Vec<u8> = (0..3 * 1024).map(|i| u8::try_from(i % 251).unwrap()).collect();
        let mut batch = batch(expected.iter().map(|b| Chunk::from(vec![*b])).collect());
        let wrote = link.write(&mut batch);
        assert_eq!((wrote.bytes, wrote.stop), (expected.len(), None));
        let mut got = vec![0; expected.len()];
        peer.read_exact(&mut got).unwrap();
        assert_eq!(got, expected);
    }

    #[test]
    fn a_full_socket_and_a_broken_one_are_told_apart() {
        let (link, peer) = pair(Mode::Off);
        let whole = vec![Chunk::from(vec![0; 64 << 20])];
        assert_eq!(link.write(&mut batch(whole.clone())).stop, Some(Stop::Full));
        link.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(link.write(&mut batch(whole)).stop, Some(Stop::Failed));
        drop(peer);
    }

    #[test]
    fn an_edge_between_a_full_write_and_its_report_is_not_lost() {
        let (link, _peer) = pair(Mode::Off);
        let seen = link.edges();
        assert!(!link.writable_edge(), "nobody waits yet");
        assert!(!link.stays_blocked(seen), "the edge came after the write began");
        let seen = link.edges();
        assert!(link.stays_blocked(seen));
        assert!(link.writable_edge(), "the writer waits for this one");
    }

    /// Fills a link whose peer does not read; returns the payloads.
    fn fill(link: &Link) -> Vec<bytes::Bytes> {
        let mut payloads = Vec::new();
        loop {
            let payload = bytes::Bytes::from(vec![1; 65536]);
            payloads.push(payload.clone());
            let mut batch = batch(vec![Chunk::payload(payload)]);
            if link.write(&mut batch).stop.is_some() {
                return payloads;
            }
        }
    }

    #[test]
    fn a_link_that_ends_gives_back_what_the_kernel_held() {
        let (link, peer) = pair(Mode::On);
        let payloads = fill(&link);
        assert!(link.path().outstanding() > 1, "the peer does not read");
        let mut released = Vec::new();
        link.retire(&mut released);
        drop(released);
        assert_eq!(link.path().outstanding(), 0);
        assert!(payloads.iter().all(bytes::Bytes::is_unique));
        let mut batch = batch(vec![Chunk::payload(bytes::Bytes::from(vec![1; 65536]))]);
        assert_eq!(link.write(&mut batch).stop, Some(Stop::Failed));
        drop(peer);
    }

    #[test]
    fn a_link_that_is_just_dropped_gives_back_what_the_kernel_held() {
        let (link, peer) = pair(Mode::On);
        let payloads = fill(&link);
        let pins = Arc::clone(&link.sending.pinning.pins);
        drop(link);
        while pins.gauge.now() > 0 || !payloads.iter().all(bytes::Bytes::is_unique) {
            std::thread::yield_now();
        }
        drop(peer);
    }
}
