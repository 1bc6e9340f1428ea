//! Input: what comes in on a connection, and what follows from it.

use std::net::SocketAddr;

use super::connection::{Conn, Partial, Phase};
use super::{Action, Body, CloseMode, ConnId, DropReason, Inbox, Node, SocketId, Time};
use crate::buffer::Filling;
use crate::info::Counter;
use crate::wire::congestion::MAP_LEN;
use crate::wire::{
    Capabilities, CongestionMap, Flags, FramingError, HEADER_LEN, HandshakeExtensions, Header, Identity,
    Item, MAX_MESSAGE, MAX_MESSAGE_SLACK, PORT_ENGINE, PORT_PROBE,
};

/// What [`Node::receive`] did with its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Received {
    /// Bytes of the input that were used. When less than all: keep the rest, stop reading this connection, and feed the
    /// rest again after [`Action::Resume`] (or never, after [`Action::Close`] with [`CloseMode::Now`]).
    pub consumed: usize,
    /// Whether to go on reading. False means: stop reading until [`Action::Resume`]; the rest, if any, is to be kept.
    pub more: bool,
    /// Messages of 4 KiB and more that lay whole in the input: payload bytes of all of them, and of the largest.
    pub large: (u64, u32),
}

/// From this length on messages count as large in [`Received`].
const LARGE: usize = 4096;

impl Node {
    /// Bytes came in on a connection. After [`Action::Resume`] it is to be called even with an empty input.
    pub fn receive(&mut self, now: Time, conn: ConnId, input: &[u8], inbox: &mut impl Inbox) -> Received {
        let total = input.len();
        let mut rest = input;
        let mut large = (0, 0);
        self.take_deferred(now, conn, inbox);
        let more = loop {
            let Some(c) = self.conns.get_mut(conn) else { break false };
            if c.paused {
                break false;
            }
            match c.decoder.next(&mut rest, MAX_MESSAGE + MAX_MESSAGE_SLACK) {
                Ok(Item::NeedMore) => break true,
                Ok(Item::Message { header, payload }) => {
                    if payload.len() >= LARGE && !header.is_congestion_map() {
                        large = (large.0 + payload.len() as u64, header.len.max(large.1));
                    }
                    self.message(now, conn, header, Body::Borrowed(payload), inbox)
                }
                Ok(Item::Begin { header }) => self.begin(conn, header),
                Ok(Item::Chunk { data, last }) => {
                    if let Some(Partial { header, buffer: Some(buffer) }) = c.partial.as_mut() {
                        if !buffer.has_memory() {
                            let of = |h: &Header| {
                                if h.is_congestion_map() { None } else { self.local.by_port(h.dport) }
                            };
                            inbox.place(of(header), buffer);
                        }
                        buffer.extend(data);
                    }
                    if last {
                        self.complete(now, conn, inbox);
                    }
                }
                Err(error) => {
                    if matches!(error, FramingError::Checksum { .. }) {
                        self.counters.add(Counter::RecvDropBadChecksum, 1);
                    }
                    self.fail(now, conn, DropReason::Framing(error));
                }
            }
        };
        self.after_receive(conn);
        let gone = self.conns.get(conn).is_none();
        Received { consumed: if gone { total } else { total - rest.len() }, more, large }
    }

    /// When the connection stands inside a message that did not fit the input: takes its buffer, to be appended to
    /// directly. Until [`Node::return_target`], `receive` must not be called for it.
    pub fn take_target(&mut self, conn: ConnId) -> Option<Filling> {
        let c = self.conns.get_mut(conn)?;
        let missing = c.decoder.missing();
        if missing == 0 || c.paused {
            return None;
        }
        let buffer = c.partial.as_mut()?.buffer.take()?;
        c.target_out = true;
        Some(buffer)
    }

    /// The socket to which the message goes within which the connection stands; `None` of a congestion map.
    #[must_use]
    pub fn target_socket(&self, conn: ConnId) -> Option<SocketId> {
        let header = &self.conns.get(conn)?.partial.as_ref()?.header;
        if header.is_congestion_map() { None } else { self.local.by_port(header.dport) }
    }

    /// Gives the buffer of [`Node::take_target`] back after 0 or more bytes were appended, never more than were missing.
    pub fn return_target(
        &mut self,
        now: Time,
        conn: ConnId,
        buffer: Filling,
        inbox: &mut impl Inbox,
    ) -> Received {
        if let Some(c) = self.conns.get_mut(conn)
            && std::mem::take(&mut c.target_out)
            && let Some(partial) = c.partial.as_mut()
        {
            let had = partial.header.len as usize - c.decoder.missing();
            c.decoder.advance_payload(buffer.filled() - had);
            partial.buffer = Some(buffer);
            if c.decoder.missing() == 0 {
                self.complete(now, conn, inbox);
            }
        }
        self.after_receive(conn);
        let more = self.conns.get(conn).is_some_and(|c| !c.paused);
        Received { consumed: 0, more, large: (0, 0) }
    }

    /// Everything that was there on a connection named by [`Action::Drain`] was fed to [`Node::receive`].
    pub fn drained(&mut self, now: Time, conn: ConnId) {
        let Some(c) = self.conns.get(conn) else { return };
        if c.phase != Phase::Draining {
            self.was_read(c.peer, conn);
            return;
        }
        let lane = &self.peers[c.peer as usize].lanes[usize::from(c.lane)];
        let replaced = lane.stale || !lane.parked.is_empty();
        let reason = if replaced { DropReason::Replaced } else { DropReason::Stuck };
        self.end(now, conn, Some((CloseMode::Now, reason)));
    }

    fn after_receive(&mut self, conn: ConnId) {
        self.grant(conn.index);
        let pause = self.must_pause(conn.index);
        let quarter = self.config.window / 4;
        let Some(c) = self.conns.get_mut(conn) else { return };
        if pause {
            c.paused = true;
        }
        if c.rx_unacked >= quarter && c.is_own() {
            c.ack_due = true;
        }
        let (ready, waiting) = (
            c.window_due || c.ack_due || c.pong_due,
            (pause && c.phase != Phase::Parked && c.after.is_empty())
                || (c.stalled && !matches!(c.phase, Phase::Parked | Phase::Draining)),
        );
        if ready {
            self.mark_ready(conn.index);
        }
        if waiting {
            self.note_stalled(conn);
        }
    }

    /// A header whose payload comes in pieces: decides whether anybody wants it.
    fn begin(&mut self, conn: ConnId, header: Header) {
        let wanted = if header.is_congestion_map() {
            header.len as usize == MAP_LEN
        } else {
            header.sport != PORT_ENGINE
                && self.local.by_port(header.dport).is_some()
                && !self.conns.get(conn).is_some_and(|c| self.is_duplicate(c, &header))
        };
        if let Some(c) = self.conns.get_mut(conn) {
            let buffer = wanted.then(|| Filling::new(header.len as usize));
            c.partial = Some(Partial { header, buffer });
        }
    }

    /// The message begun by [`Node::begin`] is whole.
    fn complete(&mut self, now: Time, conn: ConnId, inbox: &mut impl Inbox) {
        if let Some(Partial { header, buffer }) = self.conns.get_mut(conn).and_then(|c| c.partial.take()) {
            self.message(now, conn, header, buffer.map_or(Body::Borrowed(&[]), Body::Owned), inbox);
        }
    }

    fn take_deferred(&mut self, now: Time, conn: ConnId, inbox: &mut impl Inbox) {
        if let Some(c) = self.conns.get_mut(conn)
            && !c.paused
            && let Some((header, payload)) = c.deferred.take()
        {
            self.message(now, conn, header, Body::Owned(payload), inbox);
        }
    }

    /// One whole message.
    #[inline]
    fn message(&mut self, now: Time, conn: ConnId, header: Header, body: Body<'_>, inbox: &mut impl Inbox) {
        let Some(c) = self.conns.get(conn) else { return };
        let mut body = body;
        if c.identity.is_none() || c.assumed {
            match self.first_message(now, conn, &header, body) {
                Some(now) => body = now,
                None => return,
            }
        }
        if header.is_congestion_map() {
            if self.same_identity(now, conn, &header) {
                self.congestion_map(conn, body.as_slice().unwrap_or_default());
            }
            return;
        }
        if header.is_handshake_ping() || header.is_handshake_pong() {
            if self.same_identity(now, conn, &header) {
                self.handshake(now, conn, &header);
            }
            return;
        }
        let Some(c) = self.conns.get(conn) else { return };
        if c.is_own() {
            if !c.answered {
                self.fail(now, conn, DropReason::OutOfTurn);
                return;
            }
            if header.ack != 0 && !self.acknowledged(now, conn, header.ack) {
                return;
            }
            if header.is_ack_only() {
                self.window_update(conn, header.sequence);
                return;
            }
            if c_closing(self.conns.get(conn)) {
                // We have said goodbye: what comes now is not accepted, and the peer learns that from our silence.
                return;
            }
            if header.sport != PORT_ENGINE && !self.charge_window(now, conn, &header) {
                return;
            }
        } else if !c.in_turn {
            match self.wait_for_others(conn, &header, body) {
                Some(now) => body = now,
                None => return,
            }
        }
        if self.is_too_much(conn)
            && let Some(c) = self.conns.get_mut(conn)
        {
            // It goes on once there is room; nothing may be lost of what its TCP was told that we have.
            c.deferred = Some((header, body.keep()));
            c.paused = true;
            return;
        }
        self.data(conn, &header, body, inbox);
    }

    /// The first data on a kernel's connection: kept if others are to be read before, returned if not.
    fn wait_for_others<'a>(&mut self, conn: ConnId, header: &Header, body: Body<'a>) -> Option<Body<'a>> {
        let after = self.read_before(conn);
        let Some(c) = self.conns.get_mut(conn) else { return Some(body) };
        c.in_turn = true;
        if !matches!(c.phase, Phase::Carrying | Phase::Draining) || after.is_empty() {
            return Some(body);
        }
        c.paused = true;
        c.deferred = Some((*header, body.keep()));
        self.actions.extend(after.iter().map(|conn| Action::Drain { conn: *conn }));
        c.after = after;
        None
    }

    /// Whether the node holds twice what it should, and the connection has no window that bounds what it adds: each new connection of a
    /// peer would bring another message, and one that is read out for it all that is on its way.
    fn is_too_much(&self, conn: ConnId) -> bool {
        let windowed = |c: &Conn| c.common(self.config.capabilities).contains(Capabilities::WINDOW);
        self.local.queued >= self.config.receive_budget.saturating_mul(2)
            && self.conns.get(conn).is_some_and(|c| !windowed(c))
    }

    /// The connection's first message tells who is there. Returns its payload if it is to be handled now.
    fn first_message<'a>(
        &mut self,
        now: Time,
        conn: ConnId,
        header: &Header,
        body: Body<'a>,
    ) -> Option<Body<'a>> {
        let speaks = header.is_congestion_map() || header.is_handshake_ping() || header.is_handshake_pong();
        let identity = if speaks { header.identity() } else { Identity::Kernel };
        let c = self.conns.get_mut(conn)?;
        if c.assumed && identity.is_own() {
            // It was slow, and data went out to it unannounced.
            self.fail(now, conn, DropReason::IdentityChanged);
            return None;
        }
        if identity.is_own() && c.phase == Phase::Draining {
            // Nothing had been read of it when a kernel spoke on a newer one. It was not answered, so greetings are all there is.
            self.end(now, conn, Some((CloseMode::Now, DropReason::Replaced)));
            return None;
        }
        let known = c.identity.is_some();
        c.assumed = false;
        c.identity = Some(identity);
        if identity.is_own() || known || c.phase == Phase::Closing {
            return Some(body);
        }
        let placed = c.dialed || c.phase != Phase::Handshake;
        let found = placed || self.find_lane(conn);
        if found && self.try_carry(now, conn) {
            return Some(body);
        }
        if let Some(c) = self.conns.get_mut(conn) {
            c.deferred = Some((*header, body.keep()));
        }
        None
    }

    /// Maps and handshake messages must go on saying the same.
    fn same_identity(&mut self, now: Time, conn: ConnId, header: &Header) -> bool {
        let same = self.conns.get(conn).is_some_and(|c| c.identity == Some(header.identity()));
        if !same {
            self.fail(now, conn, DropReason::IdentityChanged);
        }
        same
    }

    fn congestion_map(&mut self, conn: ConnId, payload: &[u8]) {
        let Some(map) = CongestionMap::decode(payload) else { return };
        let Some(c) = self.conns.get(conn) else { return };
        let index = c.peer;
        if self.superseded(c) {
            return;
        }
        self.counters.add(Counter::CongUpdateReceived, 1);
        self.peers[index as usize].map_from = Some(conn);
        self.apply_map(index, map);
    }

    /// A connection has ended while others of its peer stand. If it told last which ports are congested, it may have been read late,
    /// after a newer one had told better, and nobody would ever correct it: what is not known to be congested counts as free. The peer
    /// tells all its connections of every change.
    pub(super) fn forget_map(&mut self, conn: ConnId, peer: u32) {
        // One that waits for its turn has told already, and will not do so again.
        if self.peers[peer as usize].map_from == Some(conn)
            && self.conns.of_peer(peer).any(|(_, c)| c.identity.is_some())
        {
            self.peers[peer as usize].map_from = None;
            self.apply_map(peer, CongestionMap::new());
        }
    }

    fn apply_map(&mut self, index: u32, map: CongestionMap) {
        let peer = &mut self.peers[index as usize];
        if peer.map == map {
            return;
        }
        peer.map = map;
        let (address, map) = (peer.address, &peer.map);
        for lane in &mut peer.lanes {
            lane.hold(map);
        }
        let actions = &mut self.actions;
        peer.waiters.retain(|(socket, port)| {
            let wait = map.contains(*port);
            if !wait {
                actions
                    .push_back(Action::Uncongested { socket: *socket, destination: (address, *port).into() });
            }
            wait
        });
        let carrying: Vec<u32> = peer.lanes.iter().filter_map(|l| l.conn).collect();
        for conn in carrying {
            self.mark_ready(conn);
        }
    }

    /// A newer connection has spoken: what this one says of the present is old.
    fn superseded(&self, c: &Conn) -> bool {
        matches!(c.phase, Phase::Draining | Phase::Closing)
            || c.phase == Phase::Handshake && c.order < self.peers[c.peer as usize].shown
    }

    fn handshake(&mut self, now: Time, conn: ConnId, header: &Header) {
        let shown = HandshakeExtensions::decode(&header.extensions);
        let Some(c) = self.conns.get_mut(conn) else { return };
        let (own, was) = (c.is_own(), c.generation);
        if own && (shown.generation.is_none_or(|g| g == 0) || was.is_some_and(|g| g != shown.generation)) {
            self.fail(now, conn, DropReason::IdentityChanged);
            return;
        }
        c.generation = Some(shown.generation.filter(|g| *g != 0));
        if header.is_handshake_ping() {
            self.counters.add(Counter::RecvPing, 1);
            let first = !std::mem::replace(&mut c.got_ping, true);
            if own && first {
                if self.is_outlived(conn) {
                    self.end(now, conn, Some((CloseMode::Now, DropReason::PeerRestarted)));
                    return;
                }
                if !self.note_lanes(conn, &shown) {
                    self.end(now, conn, Some((CloseMode::Now, DropReason::LaneUnused)));
                    return;
                }
                if self.try_carry(now, conn) {
                    self.answer(conn);
                }
                return;
            }
            // Whatever `ping_enable` says: programs of kernels before 7.0 block in their first send until the pong comes.
            self.answer(conn);
        } else {
            c.got_pong = true;
            if own && header.ack != 0 && c.answered && !self.acknowledged(now, conn, header.ack) {
                return;
            }
            // Before our own pong nothing of the peer's is known to be about this incarnation of it; it will ask again.
        }
        if !own && !self.kernel_handshake(now, conn, header, &shown) {
            return;
        }
        self.came_up(now, conn);
    }

    /// Answers the peer's handshake ping; from here on it may send and we acknowledge.
    pub(super) fn answer(&mut self, conn: ConnId) {
        if let Some(c) = self.conns.get_mut(conn) {
            let first = !std::mem::replace(&mut c.answered, true);
            c.pong_due = true;
            if first {
                self.grant(conn.index);
            }
            self.mark_ready(conn.index);
        }
    }

    /// The peer's node has accepted everything up to `ack` on this lane. Returns whether the connection still stands.
    fn acknowledged(&mut self, now: Time, conn: ConnId, ack: u64) -> bool {
        let Some(c) = self.conns.get(conn) else { return false };
        if !c.acks_believed(self.config.capabilities) {
            return true;
        }
        let (peer, index) = (c.peer, usize::from(c.lane));
        let lane = &self.peers[peer as usize].lanes[index];
        let sent = lane.next_tx - 1;
        if ack > sent {
            self.fail(now, conn, DropReason::AckBeyondSent { ack, sent });
            return false;
        }
        self.release(peer, index, |u, _| u.sequence <= ack);
        true
    }

    fn window_update(&mut self, conn: ConnId, limit: u64) {
        self.counters.add(Counter::RecvAckOnly, 1);
        let ours = self.config.capabilities;
        if let Some(c) = self.conns.get_mut(conn)
            && c.common(ours).contains(Capabilities::WINDOW)
            && limit > c.tx_limit
        {
            c.tx_limit = limit;
            self.mark_ready(conn.index);
        }
    }

    /// Counts a message against the window. Returns whether it was allowed.
    fn charge_window(&mut self, now: Time, conn: ConnId, header: &Header) -> bool {
        let ours = self.config.capabilities;
        let Some(c) = self.conns.get_mut(conn) else { return false };
        let size = HEADER_LEN as u64 + u64::from(header.len);
        if c.common(ours).contains(Capabilities::WINDOW) {
            let (used, limit) = (c.rx_used, c.rx_limit);
            if used >= limit {
                self.fail(now, conn, DropReason::WindowOverrun { used, limit });
                return false;
            }
            self.granted -= size.min(limit - used);
        }
        c.rx_used += size;
        true
    }

    /// Whether the message was accepted before. From own peers by number, whatever the flag; from kernels by their rule
    /// (`rds_recv_incoming`).
    fn is_duplicate(&self, c: &Conn, header: &Header) -> bool {
        let p = &self.peers[c.peer as usize];
        let rx = match p.lanes[usize::from(c.lane)].rx {
            _ if c.misplaced => p.misplaced_rx,
            rx if c.lane == 0 && c.phase == Phase::Carrying => rx.max(p.misplaced_rx),
            rx => rx,
        };
        if c.is_own() {
            header.sequence <= rx
        } else {
            header.sequence < rx && header.flags.contains(Flags::RETRANSMITTED)
        }
    }

    /// A message to a socket, or an ordinary ping or pong.
    #[inline]
    fn data(&mut self, conn: ConnId, header: &Header, body: Body<'_>, inbox: &mut impl Inbox) {
        let Some(c) = self.conns.get(conn) else { return };
        let duplicate = self.is_duplicate(c, header);
        let (peer, index, own) = (c.peer as usize, usize::from(c.lane), c.is_own());
        let (misplaced, present) = (c.misplaced, c.phase == Phase::Carrying);
        if own && !c.ack_listed {
            self.ack_list.push(conn);
        }
        if let Some(c) = self.conns.get_mut(conn) {
            c.ack_listed |= own;
            c.rx_unacked += HEADER_LEN as u64 + u64::from(header.len);
            c.accepted |= !duplicate;
            if duplicate {
                // It was not acknowledged, or that was lost: say so again.
                c.ack_sent = 0;
            }
        }
        if duplicate {
            self.counters.add(Counter::RecvDropOldSeq, 1);
            return;
        }
        let p = &mut self.peers[peer];
        let next = if own { header.sequence } else { header.sequence.wrapping_add(1) };
        if misplaced {
            p.misplaced_rx = next;
        } else {
            p.lanes[index].rx = next;
            if index == 0 && present {
                p.misplaced_rx = 0;
            }
        }
        let from = p.address;
        if header.dport == PORT_ENGINE {
            if header.sport != PORT_ENGINE {
                self.ping(conn, header.sport);
            }
            return;
        }
        // No window bounds pongs: they have no payload, and a congested port gets none (a peer that knew would not answer).
        let refused =
            header.sport == PORT_ENGINE && (header.len > 0 || own && self.local.map.contains(header.dport));
        let socket = self.local.by_port(header.dport).filter(|_| header.dport != PORT_PROBE && !refused);
        let Some(socket) = socket else {
            self.counters.add(Counter::RecvDropNoSock, 1);
            return;
        };
        if body.len() != header.len as usize {
            // The socket came while the payload was being passed over.
            self.counters.add(Counter::RecvDropNoSock, 1);
            return;
        }
        if self.hand_over(socket, SocketAddr::new(from, header.sport), body, inbox)
            && let Some(c) = self.conns.get_mut(conn)
        {
            c.throttled_by = Some(socket);
        }
        if self.must_pause(conn.index)
            && let Some(c) = self.conns.get_mut(conn)
        {
            c.paused = true;
        }
    }

    /// An ordinary ping: the answer is a message like any other.
    fn ping(&mut self, conn: ConnId, port: u16) {
        self.counters.add(Counter::RecvPing, 1);
        let Some(c) = self.conns.get(conn) else { return };
        let peer = &mut self.peers[c.peer as usize];
        if self.config.ping_enable
            && !peer.map.contains(port)
            && peer.lanes[usize::from(c.lane)].push_pong(port)
        {
            self.mark_ready(conn.index);
        }
    }

    /// Gives a message to its socket's queue. Returns whether the port is past its hard limit now.
    pub(super) fn hand_over(
        &mut self,
        socket: SocketId,
        from: SocketAddr,
        body: Body<'_>,
        inbox: &mut impl Inbox,
    ) -> bool {
        let len = body.len() as u64;
        inbox.deliver(socket, from, body);
        self.counters.add(Counter::RecvQueued, 1);
        self.counters.add(Counter::RecvBytesAddedToSock, len);
        self.local.charge_receive(socket, len);
        if self.local.queued >= self.config.receive_budget {
            self.local.sync_all(inbox, &mut self.actions, &self.config);
        }
        self.local.check_receive(socket, &self.config, inbox, &mut self.counters, &mut self.actions)
    }
}

fn c_closing(c: Option<&Conn>) -> bool {
    c.is_none_or(|c| c.phase == Phase::Closing)
}
