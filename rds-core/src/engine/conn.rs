//! The reading end of a connection; only the holder of the poll right touches it.

use std::io::{self, Read as _};
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::core::Core;
use super::link::Link;
use super::mailbox::Wakes;
use super::mapper::{Mapper, Read};
use super::shared::Shared;
use super::sink::EXACT_READS;
use crate::buffer::Filling;
use crate::proto::{ConnId, Time};
use crate::sys::vectored;
use crate::wire::HEADER_LEN;
use crate::zerocopy::Mode;

/// Reads without a large message for a sink until everything that is there is read again.
const PATIENCE: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Connecting,
    Open,
    /// Shut down for writing; read to the end.
    Closing,
}

/// What a turn of a connection came to.
#[derive(Debug)]
pub(crate) enum Progress {
    /// There may be more to read.
    More,
    /// Everything that is there was read.
    Empty,
    /// The node wants no more before it says so.
    Paused,
    /// The stream ended, in an error or not, and everything before was fed.
    Ended(Option<io::Error>),
}

pub(crate) struct Conn {
    pub(crate) id: ConnId,
    pub(crate) peer: IpAddr,
    pub(crate) link: Arc<Link>,
    pub(crate) stage: Stage,
    /// May have input.
    pub(crate) readable: bool,
    /// The end of the stream, or an error, will come after what is readable.
    pub(crate) hangup: bool,
    /// Stands in the list of connections to be served.
    pub(crate) queued: bool,
    /// The node said to stop reading.
    pub(crate) paused: bool,
    /// The node said to go on; it wants what is pending, or to be called at least.
    resumed: bool,
    /// The node waits for everything that is there.
    pub(crate) draining: bool,
    /// Read and not consumed.
    pending: Vec<u8>,
    /// The message within which the stream stands.
    target: Option<Filling>,
    /// How large messages are received; made with the first read.
    mapper: Option<Mapper>,
    /// Bytes that were read, and are not in the node's count yet.
    received: u64,
    /// So many reads take no more than the next header: a large message for a sink may follow, to be read straight into its memory.
    exact: u8,
}

impl Conn {
    pub(crate) fn new(id: ConnId, peer: IpAddr, link: Arc<Link>, stage: Stage) -> Self {
        Self {
            id,
            peer,
            link,
            stage,
            readable: stage == Stage::Open,
            hangup: false,
            queued: false,
            paused: false,
            resumed: false,
            draining: false,
            pending: Vec::new(),
            target: None,
            mapper: None,
            received: 0,
            exact: 0,
        }
    }

    /// The node wants to go on.
    pub(crate) fn resume(&mut self) {
        self.paused = false;
        self.resumed = true;
    }

    /// Reads once and feeds the node.
    pub(crate) fn serve(
        &mut self,
        shared: &Shared,
        buffer: &mut [u8],
        wakes: &mut Wakes,
        dirty: &mut bool,
    ) -> Progress {
        if std::mem::take(&mut self.resumed) {
            let pending = std::mem::take(&mut self.pending);
            // Even if there is none: the node may hold a message of its own.
            self.feed(shared, &pending, true, wakes, dirty);
            if self.paused {
                return Progress::Paused;
            }
        }
        if !self.readable {
            return Progress::Empty;
        }
        shared.stats.reads.fetch_add(1, Relaxed);
        let read = match self.read(shared, buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                return Progress::Empty;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Progress::More,
            Err(error) => return Progress::Ended(Some(error)),
        };
        self.received += read.read as u64;
        if read.end {
            return Progress::Ended(self.mapper.as_mut().and_then(Mapper::take_error));
        }
        // The socket is empty, and whatever comes makes a new edge (epoll(7)).
        if read.empty && !self.hangup {
            self.readable = false;
        }
        if read.feed {
            self.feed(shared, &buffer[..read.input], false, wakes, dirty);
        }
        if self.paused {
            Progress::Paused
        } else if self.readable {
            Progress::More
        } else {
            Progress::Empty
        }
    }

    fn read(&mut self, shared: &Shared, buffer: &mut [u8]) -> io::Result<Read> {
        let mapper = self.mapper.get_or_insert_with(|| {
            Mapper::new(&shared.maps, self.id, self.peer, shared.pins.modes(self.peer).1)
        });
        let stream = &self.link.stream;
        if mapper.is_exact() {
            return mapper.read(shared.now(), stream, self.hangup, &mut self.target, &shared.pool, buffer);
        }
        // All that is there: into the message within which the stream stands first, then into `buffer`.
        // Where a sink gets large ones, only the next header: what lies behind it may be the next.
        let large =
            self.target.as_ref().is_some_and(|target| target.is_shared() && target.capacity() >= EXACT_READS);
        if large {
            self.exact = PATIENCE;
        }
        let buffer = if self.exact > 0 { &mut buffer[..HEADER_LEN] } else { buffer };
        if !large {
            self.exact = self.exact.saturating_sub(1);
        }
        let Some(target) = &mut self.target else {
            let n = (&mut &*stream).read(buffer)?;
            return Ok(Read { input: n, read: n, feed: n > 0, empty: n < buffer.len(), end: n == 0 });
        };
        if !target.has_memory() {
            target.place(shared.pool.memory(target.capacity()));
        }
        let (missing, room) = (target.missing(), target.missing() + buffer.len());
        let n = vectored::read(stream.as_fd(), &mut target.unfilled(), buffer)?;
        target.advance(n.min(missing));
        // Less than there was room for: nothing is left.
        Ok(Read {
            input: n.saturating_sub(missing),
            read: n,
            feed: n >= missing,
            empty: n < room,
            end: n == 0,
        })
    }

    /// Hands the node what was read, and keeps what it does not take.
    fn feed(&mut self, shared: &Shared, input: &[u8], resumed: bool, wakes: &mut Wakes, dirty: &mut bool) {
        let mut core = shared.core();
        core.received += std::mem::take(&mut self.received);
        let now = shared.now();
        let mut more = true;
        let (node, mut inbox) = core.with_inbox();
        if let Some(target) = self.target.take() {
            if let Some(mapper) = &mut self.mapper {
                mapper.finished(now, &target);
            }
            more = node.return_target(now, self.id, target, &mut inbox).more;
        }
        let (mut used, mut large) = (0, (0, 0));
        if more && (resumed || !input.is_empty()) {
            let received = node.receive(now, self.id, input, &mut inbox);
            used = received.consumed;
            more = received.more;
            large = received.large;
        }
        if more {
            self.target = node.take_target(self.id);
        }
        if node.peer_is_own(self.id) {
            self.link.set_own_peer();
        }
        // Of messages alone: a congestion map is read as whatever comes.
        let socket = self.target.is_some().then(|| node.target_socket(self.id)).flatten();
        let announced = (socket.is_some() || large.0 > 0) && node.peer_segments(self.id);
        if inbox.exactly {
            self.exact = PATIENCE;
        }
        drop(inbox);
        let wanted = match (socket, &mut self.target) {
            (Some(socket), Some(target)) if core.sinks.get(socket).is_some() => {
                if !target.has_memory() {
                    core.place(socket, target);
                }
                // Mapped pages cannot be passed on.
                Some(Mode::Off)
            }
            (socket, _) => socket.and_then(|socket| core.mailbox(socket)?.receive_mode()),
        };
        core.dispatch(now);
        *dirty |= core.is_unsettled();
        std::mem::swap(&mut core.wakes, wakes);
        drop(core);
        if let Some(mapper) = &mut self.mapper {
            if large.0 > 0 {
                mapper.passed(large, announced);
            }
            if let (Some(target), true) = (&self.target, socket.is_some()) {
                mapper.begin(now, target, announced, wanted);
            }
        }
        self.paused = !more;
        self.pending.extend_from_slice(&input[used..]);
    }

    /// To be called from time to time: see [`Mapper::tick`].
    pub(crate) fn tick(&mut self) {
        if let Some(mapper) = &mut self.mapper {
            mapper.tick();
        }
    }

    /// Whether [`Conn::tick`] is worth a call.
    pub(crate) fn wants_tick(&self) -> bool {
        self.mapper.as_ref().is_some_and(Mapper::is_active)
    }

    /// Gives the node what it lent, at the end of the connection.
    pub(crate) fn return_target(mut self, core: &mut Core, now: Time) {
        if let Some(target) = self.target.take() {
            let (node, mut inbox) = core.with_inbox();
            let _ = node.return_target(now, self.id, target, &mut inbox);
        }
    }
}
