//! A model of TCP between the simulated hosts: byte streams with send and receive buffers, latency, flow control,
//! acknowledgements by the receiver's stack, FIN, RST, lost power, cuts, and sockets that outlive their owner.
//!
//! What it keeps of real TCP, because the protocol above leans on it: a byte is acknowledged when it lies in the
//! peer's receive buffer, read or not; what lies there survives a RST until it is read; what is in flight does not; a
//! socket closed with unread bytes sends RST, otherwise its queue still goes out; one end can be gone while the
//! other believes that it is up, until it sends or a keepalive probe finds out.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;

use rds_core::buffer::Chunk;

mod faults;
mod part;
mod queue;
mod stack;
mod zerocopy;

pub use queue::{Event, NetEvent, Queue};
pub use zerocopy::{Met, NOTIFICATION, PAGE, Record, Refused, Ticket, ZeroCopy};

use super::memory::Memory;
use part::Part;
use zerocopy::Calls;

/// Nanoseconds of virtual time.
pub type Nanos = u64;
/// One millisecond.
pub const MS: Nanos = 1_000_000;
/// One second.
pub const SEC: Nanos = 1_000_000_000;

/// One end of a TCP connection; side 0 dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    /// Number of the connection, never used twice.
    pub link: usize,
    /// 0 for the side that dialled, 1 for the one that accepted.
    pub side: usize,
}

impl End {
    /// The other end.
    #[must_use]
    pub fn peer(self) -> Self {
        Self { link: self.link, side: 1 - self.side }
    }
}

/// What a host's TCP tells its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A connection waits to be accepted.
    Incoming(End),
    /// The connection asked for stands.
    Connected(End),
    /// The connection asked for could not be made.
    Failed(End),
    /// There are bytes, an end or an error to be read.
    Readable(End),
    /// Bytes were acknowledged; there may be room.
    Writable(End),
    /// Something came into the error queue.
    Errors(End),
}

/// How an end stands with its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Dialling.
    Connecting,
    /// Established, waiting in the accept queue.
    Queued,
    /// Established and owned.
    Open,
    /// Disconnected: nothing is left of the connection but its descriptor and the error queue.
    Unconnected,
    /// Closed by its owner; the stack still delivers what was written.
    Orphan,
    /// Nothing is known of it any more.
    Gone,
}

/// Why reading fails once the receive buffer is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// ECONNRESET.
    Reset,
    /// ETIMEDOUT.
    TimedOut,
}

/// What a read gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// This many bytes were appended.
    Data(usize),
    /// EAGAIN.
    Nothing,
    /// The peer's FIN.
    Eof,
    /// The connection failed.
    Failed(Failure),
}

#[derive(Debug)]
struct Half {
    host: usize,
    phase: Phase,
    // Sending.
    unsent: VecDeque<Part>,
    flight: VecDeque<(u64, Part)>,
    calls: Calls,
    written: u64,
    sent: u64,
    acked: u64,
    edge: u64,
    fin: bool,
    fin_sent: bool,
    send_buffer: u64,
    // Receiving.
    buffer: VecDeque<Chunk>,
    received: u64,
    read: u64,
    eof: bool,
    receive_buffer: u64,
    advertised: u64,
    failure: Option<Failure>,
    last_arrival: Nanos,
    probing: bool,
}

impl Half {
    fn new(host: usize, phase: Phase, send_buffer: u64, receive_buffer: u64) -> Self {
        Self {
            host,
            phase,
            unsent: VecDeque::new(),
            flight: VecDeque::new(),
            calls: Calls::default(),
            written: 0,
            sent: 0,
            acked: 0,
            edge: receive_buffer,
            fin: false,
            fin_sent: false,
            send_buffer,
            buffer: VecDeque::new(),
            received: 0,
            read: 0,
            eof: false,
            receive_buffer,
            advertised: receive_buffer,
            failure: None,
            last_arrival: 0,
            probing: false,
        }
    }

    /// Bytes that the send buffer takes.
    fn room(&self) -> usize {
        self.send_buffer.saturating_sub(self.written - self.acked) as usize
    }

    fn established(&self) -> bool {
        matches!(self.phase, Phase::Queued | Phase::Open | Phase::Orphan) && self.failure.is_none()
    }
}

#[derive(Debug)]
struct Link {
    ends: [Half; 2],
    source_port: u16,
}

#[derive(Debug)]
struct HostNet {
    address: IpAddr,
    powered: bool,
    listening: bool,
    next_port: u16,
    zero_copy: ZeroCopy,
    /// Pages that calls with MSG_ZEROCOPY have pinned.
    pinned: u64,
    /// Pages that another process of the same user has locked.
    locked_elsewhere: u64,
}

/// Buffers and delays of the connections that are made from now on.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    /// Shortest delay of a packet.
    pub latency: Nanos,
    /// What may come on top of it.
    pub jitter: Nanos,
    /// Bytes that a socket takes before it would block.
    pub send_buffer: u64,
    /// Bytes that a socket holds unread.
    pub receive_buffer: u64,
}

/// All connections.
#[derive(Debug)]
pub struct Net {
    /// Everything that will happen.
    pub queue: Queue,
    /// What hosts have to be told.
    pub notices: Vec<(usize, Notice)>,
    /// Delays and buffers.
    pub wire: Wire,
    /// Memory of all programs.
    pub memory: Memory,
    /// What of MSG_ZEROCOPY was met.
    pub met: Met,
    /// A promise that an owner broke.
    pub broken: Option<String>,
    /// Notifications are not late at the moment.
    prompt: bool,
    rng: fastrand::Rng,
    links: Vec<Link>,
    hosts: Vec<HostNet>,
    cuts: BTreeSet<(usize, usize)>,
}

/// Attempts of a SYN before the dialler gives up.
const SYN_ATTEMPTS: u32 = 4;
/// Probes without an answer that end a connection: 5 s idle, then every 5 s (`net/rds/tcp.c`, `rds_tcp_keepalive`).
const PROBES: u32 = 6;
const PROBE_EVERY: Nanos = 5 * SEC;

impl Net {
    /// A network without hosts.
    #[must_use]
    pub fn new(rng: fastrand::Rng, wire: Wire) -> Self {
        Self {
            queue: Queue::default(),
            notices: Vec::new(),
            wire,
            memory: Memory::default(),
            met: Met::default(),
            broken: None,
            prompt: false,
            rng,
            links: Vec::new(),
            hosts: Vec::new(),
            cuts: BTreeSet::new(),
        }
    }

    /// Adds a host, with its listener open; hosts are numbered from 0.
    pub fn add_host(&mut self, address: IpAddr) {
        self.hosts.push(HostNet {
            address,
            powered: true,
            listening: true,
            next_port: 4096,
            zero_copy: ZeroCopy::default(),
            pinned: 0,
            locked_elsewhere: 0,
        });
    }

    /// Whose end that is.
    #[must_use]
    pub fn host_of(&self, end: End) -> usize {
        self.half(end).host
    }

    /// The address of a host.
    #[must_use]
    pub fn address_of(&self, host: usize) -> IpAddr {
        self.hosts[host].address
    }

    /// The dialler's TCP port.
    #[must_use]
    pub fn source_port(&self, link: usize) -> u16 {
        self.links[link].source_port
    }

    /// The connections between two hosts of which at least one end is owned or waits to be.
    pub fn live_links(&self, a: usize, b: usize) -> impl Iterator<Item = usize> + '_ {
        self.links
            .iter()
            .enumerate()
            .filter(move |(_, l)| {
                let hosts = (l.ends[0].host, l.ends[1].host);
                (hosts == (a, b) || hosts == (b, a))
                    && l.ends
                        .iter()
                        .any(|e| matches!(e.phase, Phase::Open | Phase::Queued) && e.failure.is_none())
            })
            .map(|(i, _)| i)
    }

    /// Bytes in the receive buffer of an end.
    #[must_use]
    pub fn unread(&self, end: End) -> u64 {
        let half = self.half(end);
        half.received - half.read
    }

    /// Bytes that this end's owner has read.
    #[must_use]
    pub fn read_offset(&self, end: End) -> u64 {
        self.half(end).read
    }

    /// Bytes that came into this end's receive buffer, read or not.
    #[must_use]
    pub fn received_offset(&self, end: End) -> u64 {
        self.half(end).received
    }

    /// SIOCOUTQ: bytes written and not acknowledged.
    #[must_use]
    pub fn unacked(&self, end: End) -> u64 {
        let half = self.half(end);
        half.written - half.acked
    }

    /// Bytes acknowledged, as this end knows.
    #[must_use]
    pub fn acked(&self, end: End) -> u64 {
        self.half(end).acked
    }

    /// How the end stands.
    #[must_use]
    pub fn phase(&self, end: End) -> Phase {
        self.half(end).phase
    }

    /// Whether there is an end, an error or a byte to read.
    #[must_use]
    pub fn is_readable(&self, end: End) -> bool {
        let half = self.half(end);
        !half.buffer.is_empty() || half.eof || half.failure.is_some()
    }

    /// Whether the connection failed.
    #[must_use]
    pub fn is_failed(&self, end: End) -> bool {
        self.half(end).failure.is_some()
    }

    /// Whether FIN came, or the connection failed.
    #[must_use]
    pub fn has_ended(&self, end: End) -> bool {
        let half = self.half(end);
        half.eof || half.failure.is_some()
    }

    /// Whether bytes could be written now.
    #[must_use]
    pub fn has_room(&self, end: End) -> bool {
        let half = self.half(end);
        half.phase == Phase::Open && half.failure.is_none() && half.written - half.acked < half.send_buffer
    }

    fn half(&self, end: End) -> &Half {
        &self.links[end.link].ends[end.side]
    }

    fn half_mut(&mut self, end: End) -> &mut Half {
        &mut self.links[end.link].ends[end.side]
    }

    fn reachable(&self, link: usize) -> bool {
        let [a, b] = &self.links[link].ends;
        self.hosts[a.host].powered
            && self.hosts[b.host].powered
            && !self.cuts.contains(&(a.host.min(b.host), a.host.max(b.host)))
    }

    fn delay(&mut self) -> Nanos {
        self.wire.latency + self.rng.u64(0..=self.wire.jitter)
    }

    /// Sends something to `to`, behind all that was sent there before.
    fn send(&mut self, now: Nanos, to: End, make: impl FnOnce() -> NetEvent) {
        let at = now + self.delay();
        let half = self.half_mut(to);
        let at = at.max(half.last_arrival + 1);
        half.last_arrival = at;
        self.queue.push(at, Event::Net(make()));
    }

    fn tell(&mut self, end: End, notice: fn(End) -> Notice) {
        let half = self.half(end);
        if matches!(half.phase, Phase::Open | Phase::Connecting | Phase::Queued) {
            let host = half.host;
            self.notices.push((host, notice(end)));
        }
    }

    // ---- what owners do ------------------------------------------------------------------------------------------

    /// Dials. With a lane, the source port is that modulo the number behind it.
    pub fn connect(&mut self, now: Nanos, from: usize, to: usize, lane: Option<(u8, u16)>) -> End {
        let host = &mut self.hosts[from];
        let (lane, step) = lane.unwrap_or_else(|| (self.rng.u8(0..8), 8));
        host.next_port = if host.next_port > 65_000 { 4096 } else { host.next_port + 8 };
        host.next_port = host.next_port.next_multiple_of(step);
        let source_port = host.next_port + u16::from(lane);
        let half = |host, phase| Half::new(host, phase, self.wire.send_buffer, self.wire.receive_buffer);
        self.links.push(Link { ends: [half(from, Phase::Connecting), half(to, Phase::Gone)], source_port });
        let end = End { link: self.links.len() - 1, side: 0 };
        self.send(now, end.peer(), || NetEvent::Syn(end.link, 1));
        end
    }

    /// Takes a connection out of the accept queue; it may have ended already. False if its listener is gone.
    pub fn accept(&mut self, end: End) -> bool {
        let half = self.half_mut(end);
        let waiting = half.phase == Phase::Queued;
        if waiting {
            half.phase = Phase::Open;
        }
        waiting
    }

    /// Writes from `pieces`, at most `most` bytes and what fits. Returns how many.
    pub fn write(&mut self, now: Nanos, end: End, pieces: &[Chunk], most: usize) -> usize {
        let half = &mut self.links[end.link].ends[end.side];
        if half.phase != Phase::Open || half.failure.is_some() || half.fin {
            return 0;
        }
        let total = half.room().min(most);
        let mut left = total;
        for piece in pieces {
            let n = piece.len().min(left);
            if n > 0 {
                // A copy where the owner can tell.
                let bytes = match self.memory.find(piece) {
                    Some((life, _)) => {
                        life.mark_copied();
                        piece.slice(0..n).to_vec().into()
                    }
                    None => piece.slice(0..n),
                };
                half.unsent.push_back(Part::Copied(bytes));
            }
            left -= n;
        }
        let n = total - left;
        half.written += n as u64;
        self.pump(now, end);
        n
    }

    /// Reads at most `most` bytes into `out`.
    pub fn read(&mut self, now: Nanos, end: End, most: usize, out: &mut Vec<u8>) -> Read {
        let half = self.half_mut(end);
        let mut n = 0;
        while n < most {
            let Some(front) = half.buffer.front_mut() else { break };
            let take = front.len().min(most - n);
            out.extend_from_slice(&front.slice(0..take).to_vec());
            front.advance(take);
            n += take;
            if front.is_empty() {
                half.buffer.pop_front();
            }
        }
        half.read += n as u64;
        if n > 0 {
            let edge = half.read + half.receive_buffer;
            let received = half.received;
            let opened = edge - self.half(end).advertised >= self.half(end).receive_buffer / 2;
            let peer = self.half(end.peer());
            if (opened || !peer.unsent.is_empty()) && peer.established() && self.reachable(end.link) {
                self.half_mut(end).advertised = edge;
                self.send(now, end.peer(), || NetEvent::Ack(end.peer(), received, edge));
            }
            return Read::Data(n);
        }
        match half.failure {
            Some(failure) => Read::Failed(failure),
            None if half.eof => Read::Eof,
            None => Read::Nothing,
        }
    }

    /// Sends FIN behind what was written; goes on receiving.
    pub fn shutdown(&mut self, now: Nanos, end: End) {
        self.half_mut(end).fin = true;
        self.pump(now, end);
    }

    /// Closes: with unread bytes a RST, otherwise what was written goes out, then FIN.
    pub fn close(&mut self, now: Nanos, end: End) {
        let calls = self.calls(end);
        if calls > 0 && matches!(self.phase(end), Phase::Open | Phase::Unconnected) {
            let host = self.half(end).host;
            self.promise(Err(format!(
                "host {host} closes connection {} with {calls} notifications of MSG_ZEROCOPY not read",
                end.link
            )));
        }
        self.let_close(now, end);
    }

    /// As the kernel closes what a process leaves behind.
    fn let_close(&mut self, now: Nanos, end: End) {
        let half = self.half_mut(end);
        half.calls.forget_errors();
        match half.phase {
            Phase::Gone | Phase::Orphan => {}
            Phase::Connecting | Phase::Unconnected => half.phase = Phase::Gone,
            Phase::Queued | Phase::Open if half.failure.is_some() => half.phase = Phase::Gone,
            Phase::Queued | Phase::Open if !half.buffer.is_empty() => self.abort(now, end),
            Phase::Queued | Phase::Open => {
                half.phase = Phase::Orphan;
                half.fin = true;
                self.pump(now, end);
            }
        }
    }

    /// Closes with RST; what was not yet sent is gone.
    pub fn abort(&mut self, now: Nanos, end: End) {
        let was_up = self.half(end).established();
        let half = self.half_mut(end);
        half.phase = Phase::Gone;
        half.buffer.clear();
        self.drop_queue(now, end);
        if was_up {
            self.reply_rst(now, end);
        }
    }
}
