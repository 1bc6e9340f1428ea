//! Output: what goes out on a connection, and in which order.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::connection::Phase;
use super::lane::{Queued, Stored};
use super::{Action, ConnId, Node, Time};
use crate::buffer::Chunk;
use crate::info::Counter;
use crate::wire::{
    Capabilities, Flags, HEADER_LEN, HandshakeExtensions, Header, PORT_ENGINE, PORT_PROBE, checksum,
};

/// First and longest interval at which TCP's acknowledgements are asked for, towards kernels.
const QUERY_MIN: Duration = Duration::from_millis(2);
const QUERY_MAX: Duration = Duration::from_millis(100);

impl Node {
    /// Remembers that the connection may have something to write.
    pub(super) fn mark_ready(&mut self, index: u32) {
        if let Some(c) = self.conns.at_mut(index)
            && !c.listed
            && !c.in_transmit
            && !c.blocked
        {
            c.listed = true;
            let serial = c.serial;
            self.ready.push_back(ConnId { index, serial });
        }
    }

    /// A connection that has something to write, can be written, and whose transmit right nobody holds. It stays ready until
    /// [`Node::begin_transmit`].
    pub fn poll_transmit(&mut self) -> Option<ConnId> {
        self.spread_map();
        while let Some(&id) = self.ready.front() {
            if self.can_transmit(id) {
                return Some(id);
            }
            self.ready.pop_front();
            if let Some(c) = self.conns.get_mut(id) {
                c.listed = false;
            }
        }
        None
    }

    /// The connection that became ready last, if nothing is outstanding on it: whoever just queued a message writes at once.
    pub fn poll_idle_transmit(&mut self) -> Option<ConnId> {
        self.spread_map();
        self.ready.back().copied().filter(|&id| self.outstanding(id) == 0 && self.can_transmit(id))
    }

    fn can_transmit(&self, id: ConnId) -> bool {
        self.conns.get(id).is_some_and(|c| !c.in_transmit && !c.blocked && c.may_transmit())
            && self.has_output(id.index)
    }

    /// Takes a connection out of the list of ready ones, at whose ends it is found; elsewhere it stays until it gets there.
    fn take_ready(&mut self, id: ConnId) {
        let taken = if self.ready.front() == Some(&id) {
            self.ready.pop_front()
        } else if self.ready.back() == Some(&id) {
            self.ready.pop_back()
        } else {
            None
        };
        if taken.is_some()
            && let Some(c) = self.conns.get_mut(id)
        {
            c.listed = false;
        }
    }

    /// Gives a changed map to every connection that has one already.
    fn spread_map(&mut self) {
        if !std::mem::take(&mut self.local.map_changed) {
            return;
        }
        for id in self.conns.ids() {
            if let Some(c) = self.conns.get_mut(id)
                && c.may_transmit()
            {
                c.map_due = true;
                self.mark_ready(id.index);
            }
        }
    }

    fn has_output(&self, index: u32) -> bool {
        let Some(c) = self.conns.at(index) else { return false };
        if c.wire_len() > 0 || c.map_due || c.ping_due || c.ack_due || c.window_due {
            return true;
        }
        let lane = &self.peers[c.peer as usize].lanes[usize::from(c.lane)];
        if (c.pong_due || c.tell_due) && (c.is_own() || lane.resend == lane.unacked.len()) {
            return true;
        }
        let again = lane.resend < lane.unacked.len();
        let exempt = !again && lane.queue.front().is_some_and(|q| q.sport == PORT_ENGINE);
        if again && c.may_send_again() && !self.window_closed(index) {
            return true;
        }
        c.may_send_data() && (exempt || (!self.window_closed(index) && (again || !lane.queue.is_empty())))
    }

    /// Whether the peer's window forbids to begin a message.
    fn window_closed(&self, index: u32) -> bool {
        self.conns.at(index).is_some_and(|c| {
            c.common(self.config.capabilities).contains(Capabilities::WINDOW) && c.tx_used >= c.tx_limit
        })
    }

    /// Bytes written on this connection's lane that the peer has not acknowledged (at the guarantee's level). While there
    /// are none, writing at once is best; otherwise more messages may be gathered first.
    #[must_use]
    pub fn outstanding(&self, conn: ConnId) -> u64 {
        let Some(c) = self.conns.get(conn) else { return 0 };
        let lane = &self.peers[c.peer as usize].lanes[usize::from(c.lane)];
        if c.is_own() { lane.unacked_bytes } else { c.wire_len() as u64 }
    }

    /// Takes the transmit right and appends up to about `max` bytes to `out`, headers and payloads in the order of the
    /// stream. Returns their number; 0 means nothing to do and no right taken. The slices stay valid without the node.
    pub fn begin_transmit(&mut self, conn: ConnId, max: usize, out: &mut Vec<Chunk>) -> usize {
        self.spread_map();
        self.take_ready(conn);
        match self.conns.get(conn) {
            Some(c) if !c.in_transmit && !c.blocked && c.may_transmit() => {}
            _ => return 0,
        }
        self.fill(conn.index, max);
        let Some(c) = self.conns.get_mut(conn) else { return 0 };
        let offered = c.offer(max, out);
        c.in_transmit = offered > 0;
        offered
    }

    /// Gives the right back: the first `written` bytes are with TCP. `blocked` when TCP would take no more; then nothing is
    /// transmitted until [`Node::writable`].
    pub fn end_transmit(&mut self, now: Time, conn: ConnId, written: usize, blocked: bool) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        c.in_transmit = false;
        c.blocked = blocked;
        c.advance(written, &mut self.released);
        if blocked {
            self.counters.add(Counter::TcpSndbufFull, 1);
        } else {
            self.mark_ready(conn.index);
        }
        self.schedule_query(now, conn, false);
    }

    /// Announces that large payloads begin segments of their own on this connection, so that the peer can map them. To be called right
    /// after [`Node::connected`] or [`Node::accept`], before anything is transmitted on it.
    pub fn announce_segmentation(&mut self, conn: ConnId) {
        if let Some(c) = self.conns.get_mut(conn) {
            c.segments = true;
        }
    }

    /// Whether the peer has shown on this connection that it is an own one.
    #[must_use]
    pub fn peer_is_own(&self, conn: ConnId) -> bool {
        self.conns.get(conn).is_some_and(|c| c.is_own())
    }

    /// Whether the peer has announced that large payloads begin segments of their own on this connection.
    #[must_use]
    pub fn peer_segments(&self, conn: ConnId) -> bool {
        let identity = self.conns.get(conn).and_then(|c| c.identity);
        matches!(identity, Some(crate::wire::Identity::Own { capabilities, .. }) if capabilities.contains(Capabilities::SEGMENTATION))
    }

    /// TCP takes bytes of this connection again.
    pub fn writable(&mut self, conn: ConnId) {
        if let Some(c) = self.conns.get_mut(conn) {
            c.blocked = false;
            self.mark_ready(conn.index);
        }
    }

    /// Makes acknowledgements and window updates that are due go out as headers of their own. To be called before the
    /// driver sleeps; messages sent meanwhile carry them for nothing.
    pub fn flush_acks(&mut self) {
        while let Some(id) = self.ack_list.pop() {
            let Some(c) = self.conns.get_mut(id) else { continue };
            c.ack_listed = false;
            let lane = &self.peers[c.peer as usize].lanes[usize::from(c.lane)];
            if c.acks_given(self.config.capabilities) && c.phase == Phase::Carrying && c.ack_sent != lane.rx {
                c.ack_due = true;
                self.mark_ready(id.index);
            }
        }
    }

    /// Encodes what may go out now, until about `max` bytes wait for TCP.
    fn fill(&mut self, index: u32, max: usize) {
        self.grant(index);
        let Some(c) = self.conns.at_mut(index) else { return };
        let ours = c.ours(self.config.announced());
        if c.map_due && c.written >= c.map_end {
            c.map_due = false;
            c.push(self.local.map.to_message(ours));
            c.map_end = c.enqueued;
        }
        let lane = &self.peers[c.peer as usize].lanes[usize::from(c.lane)];
        if std::mem::take(&mut c.ping_due) {
            let (sequence, again) = lane.ping_number();
            let flags = if again { Flags::RETRANSMITTED } else { Flags::default() };
            self.counters.add(Counter::SendPong, 1);
            self.push_handshake(
                index,
                Header { sequence, flags, sport: PORT_PROBE, dport: PORT_ENGINE, ..Header::default() },
            );
        }
        // Towards an own peer the pong comes first: it waits for it. Towards a kernel it must not get a number above
        // one that is still to be sent again.
        if self.conns.at(index).is_some_and(super::connection::Conn::is_own) {
            self.push_pong(index);
        }
        if self.conns.at(index).is_some_and(super::connection::Conn::may_send_again) {
            self.fill_again(index, max);
        }
        self.push_pong(index);
        self.push_tell(index);
        if self.conns.at(index).is_some_and(super::connection::Conn::may_send_data) {
            self.fill_first(index, max);
        }
        self.push_ack(index);
    }

    fn push_pong(&mut self, index: u32) {
        let Some(c) = self.conns.at_mut(index) else { return };
        let lane = &self.peers[c.peer as usize].lanes[usize::from(c.lane)];
        if !c.pong_due || !(c.is_own() || lane.resend == lane.unacked.len()) {
            return;
        }
        c.pong_due = false;
        let ack = if c.acks_given(self.config.capabilities) { lane.rx } else { 0 };
        c.ack_sent = ack;
        let sequence = lane.next_tx.wrapping_sub(1);
        self.counters.add(Counter::SendPong, 1);
        self.push_handshake(
            index,
            Header { sequence, ack, sport: PORT_ENGINE, dport: PORT_PROBE, ..Header::default() },
        );
    }

    /// Tells a kernel how many lanes it has with us. Like a pong, with the number given last and behind every retransmission, it leaves
    /// the kernel's expectation as it is.
    fn push_tell(&mut self, index: u32) {
        let Some(c) = self.conns.at_mut(index) else { return };
        let lane = &self.peers[c.peer as usize].lanes[usize::from(c.lane)];
        if !c.tell_due || lane.resend < lane.unacked.len() {
            return;
        }
        c.tell_due = false;
        let sequence = lane.next_tx.wrapping_sub(1);
        self.counters.add(Counter::SendPong, 1);
        self.push_handshake(
            index,
            Header { sequence, sport: PORT_PROBE, dport: PORT_ENGINE, ..Header::default() },
        );
    }

    fn push_handshake(&mut self, index: u32, header: Header) {
        let lanes = self.npaths(index);
        let Some(c) = self.conns.at_mut(index) else { return };
        if header.is_handshake_ping() {
            c.pings += 1;
            if lanes.is_some() {
                c.told_in.get_or_insert(c.pings);
            }
        }
        let extensions = HandshakeExtensions {
            lanes,
            generation: Some(self.config.generation.get()),
            source_port_lane: self.config.lanes > 1,
        };
        let header = Header {
            padding: c.ours(self.config.announced()).encode(),
            extensions: extensions.encode(),
            ..header
        };
        c.push(small(&mut self.scratch, &header.encode_with_checksum()));
    }

    /// Sends again what an earlier connection of the lane had sent.
    fn fill_again(&mut self, index: u32, max: usize) {
        let windowed = self.is_windowed(index);
        let Some(c) = self.conns.at_mut(index) else { return };
        let lane = &mut self.peers[c.peer as usize].lanes[usize::from(c.lane)];
        let ack = if c.acks_given(self.config.capabilities) { lane.rx } else { 0 };
        while lane.resend < lane.unacked.len() && c.wire_len() < max {
            if windowed && c.tx_used >= c.tx_limit {
                return;
            }
            let payload = lane.payload(lane.resend);
            let at = lane.resend;
            lane.resend += 1;
            let u = &mut lane.unacked[at];
            if u.dead {
                u.end = c.enqueued;
                continue;
            }
            let header = Header {
                sequence: u.sequence,
                ack,
                len: u.len,
                sport: u.sport,
                dport: u.dport,
                flags: Flags::RETRANSMITTED,
                ..Header::default()
            };
            let bytes = if c.is_own() { header.encode_with_checksum() } else { header.encode() };
            c.push(small(&mut self.scratch, &bytes));
            if !payload.is_empty() {
                c.push(payload);
            }
            u.end = c.enqueued;
            if u.sport != PORT_ENGINE {
                c.tx_used += HEADER_LEN as u64 + u64::from(u.len);
            }
            c.ack_sent = ack;
            self.counters.add(Counter::SendRetransmitted, 1);
        }
    }

    fn is_windowed(&self, index: u32) -> bool {
        self.conns
            .at(index)
            .is_some_and(|c| c.common(self.config.capabilities).contains(Capabilities::WINDOW))
    }

    /// Begins messages of the queue: gives them their numbers and encodes their headers.
    fn fill_first(&mut self, index: u32, max: usize) {
        let windowed = self.is_windowed(index);
        let Some(c) = self.conns.at_mut(index) else { return };
        let lane = &mut self.peers[c.peer as usize].lanes[usize::from(c.lane)];
        if lane.resend < lane.unacked.len() {
            return;
        }
        let own = c.is_own();
        let ack = if c.acks_given(self.config.capabilities) { lane.rx } else { 0 };
        let mut began = false;
        while let Some(front) = lane.queue.front()
            && c.wire_len() < max
            && (front.sport == PORT_ENGINE || !(windowed && c.tx_used >= c.tx_limit))
        {
            if let Stored::Apart(payload) = &front.stored {
                let payload = payload.clone();
                let message = lane.queue.pop_front().expect("it was there");
                c.push(small(&mut self.scratch, &first_header(&message, lane.next_tx, ack, own)));
                let batch = lane.next_batch();
                lane.add_batch(payload.clone(), 1);
                if !payload.is_empty() {
                    c.push(payload);
                }
                if message.sport == PORT_ENGINE {
                    self.counters.add(Counter::SendPong, 1);
                } else {
                    c.tx_used += HEADER_LEN as u64 + u64::from(message.len);
                }
                lane.begin(&message, c.enqueued, batch, 0);
                began = true;
                continue;
            }
            // A run of inline messages lies in one piece: fill in their headers, then cut the piece off.
            let batch = lane.next_batch();
            let (mut at, mut live, mut stream) = (0, 0, c.enqueued);
            let room = max - c.wire_len();
            self.segments.clear();
            while let Some(q) = lane.queue.front()
                && matches!(q.stored, Stored::Inline)
                && at < room
                && !(windowed && c.tx_used >= c.tx_limit)
            {
                let message = lane.queue.pop_front().expect("it was there");
                let size = HEADER_LEN + message.len as usize;
                if !message.dead {
                    let header = first_header(&message, lane.next_tx, ack, own);
                    lane.open_mut()[at..at + HEADER_LEN].copy_from_slice(&header);
                    stream += size as u64;
                    c.tx_used += size as u64;
                    lane.begin(&message, stream, batch, (at + HEADER_LEN) as u32);
                    live += 1;
                    match self.segments.last_mut() {
                        Some(last) if last.end == at => last.end = at + size,
                        _ => self.segments.push(at..at + size),
                    }
                }
                at += size;
            }
            let bytes = Chunk::from(lane.open_mut().split_to(at).freeze());
            for segment in &self.segments {
                c.push(bytes.slice(segment.clone()));
            }
            if live > 0 {
                lane.add_batch(bytes, live);
                began = true;
            }
        }
        if began && ack != 0 {
            c.ack_sent = ack;
            c.rx_unacked = 0;
        }
    }

    /// Acknowledges by a header alone when that is due and no message carries it.
    fn push_ack(&mut self, index: u32) {
        let Some(c) = self.conns.at_mut(index) else { return };
        if !c.ack_due && !c.window_due {
            return;
        }
        let lane = &self.peers[c.peer as usize].lanes[usize::from(c.lane)];
        let ack = if c.acks_given(self.config.capabilities) { lane.rx } else { 0 };
        let due = c.window_due || c.ack_sent != ack;
        c.ack_due = false;
        if !due || c.pong_due {
            return;
        }
        c.window_due = false;
        c.rx_unacked = 0;
        c.ack_sent = ack;
        let header = Header { sequence: c.rx_limit, ack, ..Header::default() };
        c.push(small(&mut self.scratch, &header.encode_with_checksum()));
        self.counters.add(Counter::SendAckOnly, 1);
    }

    /// Asks for TCP's acknowledgements of a kernel peer at once: a sender waits for room.
    pub(super) fn query_unacked(&mut self, peer: u32) {
        for lane in &self.peers[peer as usize].lanes {
            if let Some(id) = lane.conn.and_then(|c| self.conns.id(c))
                && self.conns.get(id).is_some_and(|c| !c.acks_believed(self.config.capabilities))
                && !lane.unacked.is_empty()
            {
                self.actions.push_back(Action::QueryUnacked { conn: id });
            }
        }
    }

    pub(super) fn schedule_query(&mut self, now: Time, conn: ConnId, progress: bool) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        let lane = &self.peers[c.peer as usize].lanes[usize::from(c.lane)];
        if c.acks_believed(self.config.capabilities) || lane.unacked.is_empty() || c.phase != Phase::Carrying
        {
            c.query_at = None;
            c.query_delay = Duration::ZERO;
            return;
        }
        if c.query_at.is_some() {
            return;
        }
        c.query_delay = if progress { QUERY_MIN } else { (c.query_delay * 2).clamp(QUERY_MIN, QUERY_MAX) };
        let at = now + c.query_delay;
        c.query_at = Some(at);
        self.timers.set(at, super::node::Timer::Query(conn));
    }
}

fn first_header(message: &Queued, sequence: u64, ack: u64, own: bool) -> [u8; HEADER_LEN] {
    let header = Header {
        sequence,
        ack,
        len: message.len,
        sport: message.sport,
        dport: message.dport,
        ..Header::default()
    };
    let mut bytes = header.encode();
    if own {
        let sum = checksum::checksum(&bytes);
        bytes[30..32].copy_from_slice(&sum.to_be_bytes());
    }
    bytes
}

/// Bytes of a lone header; many share one allocation.
fn small(scratch: &mut BytesMut, bytes: &[u8; HEADER_LEN]) -> Bytes {
    const CHUNK: usize = 4 << 10;
    if scratch.capacity() < bytes.len() {
        scratch.reserve(CHUNK);
    }
    scratch.extend_from_slice(bytes);
    scratch.split().freeze()
}
