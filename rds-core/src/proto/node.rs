//! The node: sockets, peers and connections of one address, and the calls that concern it as a whole.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use bytes::BytesMut;

use super::connection::{Conns, Phase};
use super::local::Local;
use super::order::is_smaller;
use super::past::Past;
use super::peer::Peer;
use super::{Action, BindError, CloseMode, Config, ConfigError, ConnId, DropReason, SocketId, Time};
use crate::buffer::Chunk;
use crate::info::{
    ConnectionInfo, ConnectionZeroCopy, Counters, MessageInfo, NodeZeroCopy, PeerInfo, Snapshot, SocketInfo,
    TcpInfo,
};

/// What happens at a moment, unless it has become pointless by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Dial a lane.
    Dial(u32, u8),
    /// Knock at a smaller address.
    Knock(u32),
    /// A connection must have finished its handshake.
    Handshake(ConnId),
    /// A kernel that has said nothing on a lane, or not how it goes about lanes, is taken for one that will not.
    Grace(ConnId),
    /// A kernel that may have restarted has not shown its generation.
    Hold(ConnId),
    /// Ask for TCP's acknowledgements.
    Query(ConnId),
}

/// Timers by time; those of one moment in the order in which they were set.
#[derive(Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Time, u64, Timer)>>,
    count: u64,
}

impl Timers {
    pub(super) fn set(&mut self, at: Time, timer: Timer) {
        self.count += 1;
        self.heap.push(Reverse((at, self.count, timer)));
    }

    fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, ..))| *at)
    }

    fn due(&mut self, now: Time) -> Option<(Time, Timer)> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((at, _, timer))| (at, timer))
    }
}

/// One RDS node: the protocol engine of one address.
pub struct Node {
    pub(super) config: Config,
    pub(super) counters: Counters,
    pub(super) rng: fastrand::Rng,
    pub(super) local: Local,
    pub(super) peers: Vec<Peer>,
    pub(super) vacant: Vec<u32>,
    pub(super) by_address: HashMap<IpAddr, u32>,
    /// The peer looked up last: most sends go where the one before went.
    pub(super) last_peer: Option<(IpAddr, u32)>,
    pub(super) conns: Conns,
    /// Connections established so far.
    pub(super) established: u64,
    pub(super) actions: VecDeque<Action>,
    /// Connections that may have something to write.
    pub(super) ready: VecDeque<ConnId>,
    /// Connections on which something was accepted since the last flush.
    pub(super) ack_list: Vec<ConnId>,
    /// Connections that wait for room in the receive queues.
    pub(super) stalled: Vec<ConnId>,
    /// `stalled` is being gone through.
    pub(super) reconsidering: bool,
    /// Peers to which a connection is wanted.
    pub(super) wanting: Vec<u32>,
    pub(super) timers: Timers,
    /// The time that the driver told last.
    pub(super) clock: Time,
    /// What was accepted from peers that made room for others.
    pub(super) past: Past,
    /// Window bytes that were granted and have not come.
    pub(super) granted: u64,
    /// Accepted connections that do not carry their lane yet.
    pub(super) handshakes: usize,
    pub(super) shutting_down: bool,
    pub(super) closing: bool,
    /// Payloads and buffers that nobody here needs any more.
    pub(super) released: Vec<Chunk>,
    pub(super) segments: Vec<Range<usize>>,
    pub(super) scratch: BytesMut,
}

impl Node {
    /// A node with no sockets and no peers.
    ///
    /// # Errors
    /// [`ConfigError`]: a setting that cannot work.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            rng: fastrand::Rng::with_seed(config.seed),
            config,
            counters: Counters::new(),
            local: Local::new(),
            peers: Vec::new(),
            vacant: Vec::new(),
            by_address: HashMap::new(),
            last_peer: None,
            conns: Conns::default(),
            established: 0,
            actions: VecDeque::new(),
            ready: VecDeque::new(),
            ack_list: Vec::new(),
            stalled: Vec::new(),
            reconsidering: false,
            wanting: Vec::new(),
            timers: Timers::default(),
            clock: Time::ZERO,
            past: Past::default(),
            granted: 0,
            handshakes: 0,
            shutting_down: false,
            closing: false,
            released: Vec::new(),
            segments: Vec::new(),
            scratch: BytesMut::new(),
        })
    }

    /// The node's settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Binds a socket to `port`, or to a random free one for 0. Returns it and its port.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(&mut self, port: u16) -> Result<(SocketId, u16), BindError> {
        if self.shutting_down {
            return Err(BindError::ShuttingDown);
        }
        self.local.bind(port, &mut self.rng)
    }

    /// Sets the send buffer: payload bytes that may be queued or unacknowledged. Default 1 MiB; at least 1.
    pub fn set_send_buffer(&mut self, socket: SocketId, bytes: u64) {
        let Some(s) = self.local.live(socket) else { return };
        s.send_limit = bytes.max(1);
        if s.has_room() && std::mem::take(&mut s.want_writable) {
            self.actions.push_back(Action::Writable { socket });
        }
    }

    /// Sets the receive buffer: payload bytes past which the port is congested. Default 1 MiB; at least 1.
    pub fn set_receive_buffer(&mut self, socket: SocketId, bytes: u64) {
        if let Some(s) = self.local.live(socket) {
            s.receive_limit = bytes.max(1);
        }
        self.consumed(socket, 0, 0);
    }

    /// Reports what the program took from the socket's queue and was not yet returned by
    /// [`Inbox::take_consumed`](super::Inbox::take_consumed). To be called at once while the port is congested
    /// ([`Action::Congestion`]), otherwise whenever about a quarter of the receive buffer has been consumed.
    pub fn consumed(&mut self, socket: SocketId, bytes: u64, messages: u64) {
        self.local.consumed(socket, bytes, messages, &mut self.actions, &self.config);
        self.after_consumption();
    }

    /// Refuses new sockets and sends from now on; what is queued still goes out.
    pub fn begin_shutdown(&mut self) {
        self.shutting_down = true;
    }

    /// Whether no message of any socket is queued or unacknowledged.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.local.unfinished == 0
    }

    /// Messages of all sockets that are queued or unacknowledged.
    #[must_use]
    pub fn unfinished(&self) -> u64 {
        self.local.unfinished
    }

    /// The lane of a connection; of one that came in and has not shown it yet, 0.
    #[must_use]
    pub fn lane(&self, conn: ConnId) -> Option<u8> {
        self.conns.get(conn).map(|c| c.lane)
    }

    /// Ends every connection in an orderly way ([`Action::Close`]) and starts no new one.
    pub fn close_connections(&mut self, now: Time) {
        self.shutting_down = true;
        self.closing = true;
        for conn in self.conns.ids() {
            let Some(c) = self.conns.get_mut(conn) else { continue };
            if c.phase == Phase::Carrying {
                c.phase = Phase::Closing;
                let peer = self.peers[c.peer as usize].address;
                let (mode, reason) = (CloseMode::Orderly, DropReason::Shutdown);
                let lane = Some(c.lane);
                self.actions.push_back(Action::Close { conn, peer, lane, mode, reason });
            } else if c.phase != Phase::Closing {
                self.end(now, conn, Some((CloseMode::Now, DropReason::Shutdown)));
            }
        }
    }

    /// The end of the node, after the last transmit: every message that has not ended is cancelled, and what was kept of it comes
    /// with [`Node::take_released`]. Returns how many there were.
    pub fn cancel_everything(&mut self, now: Time) -> u64 {
        (self.shutting_down, self.closing) = (true, true);
        for conn in self.conns.ids() {
            self.end(now, conn, None);
        }
        let unfinished = self.local.unfinished;
        for socket in self.local.iter().map(|(id, _)| id).collect::<Vec<_>>() {
            self.cancel(socket, None);
        }
        unfinished
    }

    /// Whether [`Node::poll_action`] would return something, or do something.
    #[must_use]
    pub fn has_actions(&self) -> bool {
        !self.wanting.is_empty() || !self.actions.is_empty()
    }

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Time) -> Option<Action> {
        self.clock = self.clock.max(now);
        self.satisfy_wants(now);
        self.actions.pop_front()
    }

    /// Moves the payloads of messages that have ended, and buffers that were written, to `out`, for the driver to drop when it
    /// holds no lock: what a program gave as [`Payload::Owned`](super::Payload::Owned) may do anything when it is dropped. To be
    /// called after every other call.
    pub fn take_released(&mut self, out: &mut Vec<Chunk>) {
        out.append(&mut self.released);
    }

    /// When [`Node::handle_timeout`] must be called, at the latest.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        self.clock = self.clock.max(now);
        while let Some((at, timer)) = self.timers.due(now) {
            match timer {
                Timer::Dial(peer, lane) => self.dial_due(now, at, peer, lane),
                Timer::Knock(peer) => self.knock_due(now, at, peer),
                Timer::Handshake(conn) => self.handshake_due(now, conn),
                Timer::Grace(conn) => self.grace_over(now, conn),
                Timer::Hold(conn) => self.hold_over(now, conn),
                Timer::Query(conn) => {
                    if let Some(c) = self.conns.get_mut(conn)
                        && c.query_at == Some(at)
                    {
                        c.query_at = None;
                        self.actions.push_back(Action::QueryUnacked { conn });
                    }
                }
            }
        }
    }

    /// The peer at `address`, made if it is new; `None` when no more can be known.
    pub(super) fn peer_of(&mut self, address: IpAddr) -> Option<u32> {
        if let Some((last, index)) = self.last_peer
            && last == address
        {
            return Some(index);
        }
        if let Some(&index) = self.by_address.get(&address) {
            self.last_peer = Some((address, index));
            return Some(index);
        }
        if !self.make_room() {
            return None;
        }
        let mut peer =
            Peer::new(address, is_smaller(self.config.address, address), self.config.first_sequence);
        self.past.recall(&mut peer, self.config.first_sequence);
        let index = match self.vacant.pop() {
            Some(index) => {
                self.peers[index as usize] = peer;
                index
            }
            None => {
                self.peers.push(peer);
                u32::try_from(self.peers.len() - 1).ok()?
            }
        };
        self.by_address.insert(address, index);
        Some(index)
    }

    /// Forgets a peer that never said who it is and to which nothing is to be sent.
    pub(super) fn forget_stranger(&mut self, now: Time, index: u32) {
        let peer = &self.peers[index as usize];
        if peer.incarnation.is_none()
            && !peer.is_wanted(now)
            && peer.knocking.is_none()
            && self.by_address.get(&peer.address) == Some(&index)
            && self.conns.of_peer(index).next().is_none()
        {
            self.by_address.remove(&peer.address);
            self.last_peer = None;
            // Timers that still name the slot find nothing to do in a fresh peer.
            self.peers[index as usize] = Peer::new(peer.address, peer.we_dial, self.config.first_sequence);
            self.vacant.push(index);
        }
    }

    /// The node at the moment that the driver told last. With `queues`, every queued message is listed.
    #[must_use]
    pub fn snapshot(&self, queues: bool) -> Snapshot {
        self.snapshot_at(self.clock, queues)
    }

    /// The node at this moment, of which ages are counted. With `queues`, every queued message is listed.
    #[must_use]
    pub fn snapshot_at(&self, now: Time, queues: bool) -> Snapshot {
        let mut sockets: Vec<SocketInfo> = self
            .local
            .iter()
            .filter(|(_, s)| !s.zombie)
            .map(|(_, s)| SocketInfo {
                bound: SocketAddr::new(self.config.address, s.port),
                send_buffer: s.send_limit,
                send_queued: s.send_used,
                receive_buffer: s.receive_limit,
                receive_queued: s.receive_used,
                congested: s.congested,
                pinned_bytes: 0,
            })
            .collect();
        sockets.sort_by_key(|s| s.bound.port());
        let mut peers: Vec<PeerInfo> =
            self.by_address.values().map(|&p| self.peer_info(p, now, queues)).collect();
        peers.sort_by_key(|p| p.address);
        Snapshot {
            address: self.config.address,
            generation: self.config.generation.get(),
            receive_queued: self.local.queued,
            receive_budget: self.config.receive_budget,
            counters: self.counters.clone(),
            zero_copy: NodeZeroCopy::default(),
            peers,
            sockets,
            received: Vec::new(),
        }
    }

    fn peer_info(&self, index: u32, now: Time, queues: bool) -> PeerInfo {
        let age = |at: Time| now.since(at).as_millis() as u64;
        let peer = &self.peers[index as usize];
        let used = |l: &super::lane::Lane| l.conn.is_some() || l.rx > 0 || l.has_messages();
        let shown = peer.lanes.iter().rposition(used).map_or(1, |last| last + 1).max(usize::from(peer.count));
        let connections: Vec<ConnectionInfo> = peer
            .lanes
            .iter()
            .take(shown)
            .enumerate()
            .map(|(lane, l)| {
                let carrying = l.conn.and_then(|c| self.conns.at(c));
                let state = match (carrying, l.dialing) {
                    (Some(c), _) if c.may_send_data() => "up",
                    (Some(_), _) => "handshake",
                    (None, Some(_)) => "connecting",
                    (None, None) => "down",
                };
                let own = carrying.is_some_and(super::connection::Conn::is_own);
                let list = |on: bool| if on { usize::MAX } else { 0 };
                ConnectionInfo {
                    lane: lane as u8,
                    state,
                    next_tx: l.next_tx,
                    next_rx: if own { l.rx.wrapping_add(1) } else { l.rx },
                    send_queue: l
                        .queue
                        .iter()
                        .chain(l.held.values().flatten())
                        .filter(|q| !q.dead)
                        .take(list(queues))
                        .map(|q| MessageInfo {
                            sequence: 0,
                            len: q.len,
                            local_port: q.sport,
                            remote_port: q.dport,
                            retransmitted: false,
                        })
                        .collect(),
                    retransmit_queue: l
                        .unacked
                        .iter()
                        .enumerate()
                        .filter(|(_, u)| !u.dead)
                        .take(list(queues))
                        .map(|(i, u)| MessageInfo {
                            sequence: u.sequence,
                            len: u.len,
                            local_port: u.sport,
                            remote_port: u.dport,
                            retransmitted: i >= l.resend,
                        })
                        .collect(),
                    zero_copy: ConnectionZeroCopy::default(),
                    queued: (l.queue.len() + l.held.values().map(VecDeque::len).sum::<usize>()) as u64,
                    unacknowledged: l.unacked.len() as u64,
                    connected_ms: carrying.map(|c| age(c.carrying_since)),
                    attempted_ms: l.history.attempted_at.map(age),
                    reset_ms: l.history.reset_at.map(age),
                    attempts: l.history.attempts,
                    resets: l.history.resets,
                    last_reason: l.history.reason.map(|why| why.to_string()),
                    header_remain: carrying.map(|c| c.decoder.header_missing() as u64),
                    data_remain: carrying.map(|c| c.decoder.missing() as u64),
                    last_sent: carrying.map(|c| c.written),
                    last_expected: carrying.map(|c| l.last_end().unwrap_or(c.written)),
                    tcp: TcpInfo::default(),
                    conn: l.conn.and_then(|c| self.conns.id(c)),
                }
            })
            .collect();
        let last = connections.iter().min_by_key(|c| c.reset_ms.or(c.attempted_ms).unwrap_or(u64::MAX));
        PeerInfo {
            address: peer.address,
            delivery: peer.guarantee(self.config.capabilities).map(super::Guarantee::name),
            generation: peer.incarnation.and_then(|i| i.generation.flatten()),
            lanes: peer.count,
            kind: peer.kind(),
            congested_ports: peer.map.len() as u32,
            connected_ms: connections.iter().filter_map(|c| c.connected_ms).max(),
            down_ms: match peer.up {
                true => None,
                false => connections.iter().filter_map(|c| c.reset_ms).min(),
            },
            attempts: connections.iter().map(|c| c.attempts).sum(),
            resets: connections.iter().map(|c| c.resets).sum(),
            last_reason: last.and_then(|c| c.last_reason.clone()),
            connections,
        }
    }
}
