//! One TCP connection, as the protocol sees it.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::time::Duration;

use super::kernel::Pairing;
use super::{ConnId, SocketId, Time};
use crate::buffer::{Chunk, Filling};
use crate::wire::{Capabilities, Decoder, Header, Identity};

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// TCP is connecting.
    Connecting,
    /// Established; the peer has not said enough yet.
    Handshake,
    /// The peer has said who it is, but an older connection of the lane must be read out first.
    Parked,
    /// Carries its lane.
    Carrying,
    /// Carried its lane; is being read out for a newer one.
    Draining,
    /// We have shut down our side; the rest is being read out.
    Closing,
}

/// A message that did not lie whole in one input.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) header: Header,
    /// Where its payload goes; `None`: nobody wants it.
    pub(super) buffer: Option<Filling>,
}

#[derive(Debug)]
pub(super) struct Conn {
    pub(super) serial: u32,
    pub(super) peer: u32,
    pub(super) lane: u8,
    pub(super) phase: Phase,
    /// We only knock: a larger address that wants to be dialled.
    pub(super) knock: bool,
    pub(super) dialed: bool,
    pub(super) source_port: u16,
    pub(super) since: Time,
    /// Connections of the node in the order in which they were established.
    pub(super) order: u64,
    pub(super) carrying_since: Time,
    /// How it failed, as the driver said.
    pub(super) error: Option<ErrorKind>,

    /// We announce that payloads begin segments of their own on this connection.
    pub(super) segments: bool,
    /// Who is there, once the first message has told.
    pub(super) identity: Option<Identity>,
    /// It has said nothing and was taken for a kernel's: after a time of grace, or because a newer one of its lane has spoken.
    pub(super) assumed: bool,
    /// How the kernel pairs connections with lanes, as its handshake on this connection showed.
    pub(super) pairing: Option<Pairing>,
    /// The lane was found when it was accepted.
    pub(super) lane_given: bool,
    /// Its lane shows only once another connection ends.
    pub(super) any_lane: bool,
    /// Handshake pings sent and pongs received, towards kernels.
    pub(super) pings: u32,
    pub(super) pongs: u32,
    /// The first ping that told the kernel how many lanes there are.
    pub(super) told_in: Option<u32>,
    /// A ping that tells so is due.
    pub(super) tell_due: bool,
    /// No data before the kernel's pong shows who took the connection.
    pub(super) needs_pong: bool,
    /// It has not answered the first ping, as one that has all that is unacknowledged does not: that is sent again, and another ping.
    pub(super) probing: bool,
    /// A kernel has taken the connection for its first lane's, and it is not that.
    pub(super) misplaced: bool,
    /// A message was accepted on it.
    pub(super) accepted: bool,
    /// The first data of a kernel has waited for its turn.
    pub(super) in_turn: bool,
    /// Connections that are to be read first.
    pub(super) after: Vec<ConnId>,
    /// The peer's generation as its handshake on this connection showed it; the outer `None` before any handshake message.
    pub(super) generation: Option<Option<u32>>,
    pub(super) got_ping: bool,
    pub(super) got_pong: bool,
    /// The peer's ping was answered, or its answer is due: it may acknowledge and send.
    pub(super) answered: bool,
    /// No data before this moment unless the generation shows: a kernel that had one before may have restarted.
    pub(super) hold_until: Option<Time>,

    pub(super) decoder: Decoder,
    pub(super) partial: Option<Partial>,
    pub(super) target_out: bool,
    /// A whole message that could not be judged while parked.
    pub(super) deferred: Option<(Header, Filling)>,
    /// The driver was told to stop reading.
    pub(super) paused: bool,
    /// Window bytes received on this connection, and the limit that we announced.
    pub(super) rx_used: u64,
    pub(super) rx_limit: u64,
    /// The window that we would grant if we could; less was granted.
    pub(super) stalled: bool,
    /// Listed among the connections that wait for room.
    pub(super) stall_listed: bool,
    /// Bytes accepted since an acknowledgement went out.
    pub(super) rx_unacked: u64,
    /// A port past its hard limit that this connection filled.
    pub(super) throttled_by: Option<SocketId>,

    /// Encoded bytes that TCP has not taken.
    wire: VecDeque<Chunk>,
    wire_len: usize,
    /// Bytes of the stream up to the end of `wire`.
    pub(super) enqueued: u64,
    /// Bytes of the stream that TCP has taken.
    pub(super) written: u64,
    pub(super) in_transmit: bool,
    pub(super) blocked: bool,
    pub(super) listed: bool,
    pub(super) map_due: bool,
    /// End in the stream of the map encoded last; until TCP has that, changes gather for the next one.
    pub(super) map_end: u64,
    pub(super) ping_due: bool,
    pub(super) pong_due: bool,
    /// Listed for acknowledgement at the next flush.
    pub(super) ack_listed: bool,
    /// An acknowledgement must go out with the next transmission, if no other header carries it.
    pub(super) ack_due: bool,
    /// The window limit must go out.
    pub(super) window_due: bool,
    pub(super) ack_sent: u64,
    /// Window bytes sent on this connection, and the limit that the peer announced.
    pub(super) tx_used: u64,
    pub(super) tx_limit: u64,
    /// When to ask for TCP's acknowledgements next, and after how long again.
    pub(super) query_at: Option<Time>,
    pub(super) query_delay: Duration,
}

impl Conn {
    pub(super) fn new(serial: u32, peer: u32, lane: u8, now: Time) -> Self {
        Self {
            serial,
            peer,
            lane,
            phase: Phase::Connecting,
            knock: false,
            dialed: false,
            source_port: 0,
            since: now,
            order: 0,
            carrying_since: now,
            error: None,
            segments: false,
            identity: None,
            assumed: false,
            pairing: None,
            lane_given: false,
            any_lane: false,
            pings: 0,
            pongs: 0,
            told_in: None,
            tell_due: false,
            needs_pong: false,
            probing: false,
            misplaced: false,
            accepted: false,
            in_turn: false,
            after: Vec::new(),
            generation: None,
            got_ping: false,
            got_pong: false,
            answered: false,
            hold_until: None,
            decoder: Decoder::new(),
            partial: None,
            target_out: false,
            deferred: None,
            paused: false,
            rx_used: 0,
            rx_limit: 0,
            stalled: false,
            stall_listed: false,
            rx_unacked: 0,
            throttled_by: None,
            wire: VecDeque::new(),
            wire_len: 0,
            enqueued: 0,
            written: 0,
            in_transmit: false,
            blocked: false,
            listed: false,
            map_due: false,
            map_end: 0,
            ping_due: false,
            pong_due: false,
            ack_listed: false,
            ack_due: false,
            window_due: false,
            ack_sent: 0,
            tx_used: 0,
            tx_limit: 0,
            query_at: None,
            query_delay: Duration::ZERO,
        }
    }

    /// Says hello as soon as the connection stands: map and handshake ping.
    pub(super) fn greet(&mut self, now: Time) {
        self.phase = Phase::Handshake;
        self.since = now;
        self.map_due = true;
        self.ping_due = true;
    }

    /// Who we say that we are, on this connection.
    pub(super) const fn ours(&self, capabilities: Capabilities) -> Identity {
        let all = if self.segments { capabilities.with(Capabilities::SEGMENTATION) } else { capabilities };
        Identity::ours(all)
    }

    pub(super) fn is_own(&self) -> bool {
        self.identity.is_some_and(Identity::is_own)
    }

    /// What is in force on this connection: what both sides announced.
    pub(super) fn common(&self, ours: Capabilities) -> Capabilities {
        match self.identity {
            Some(Identity::Own { capabilities, .. }) => capabilities.common(ours),
            _ => Capabilities::default(),
        }
    }

    /// Whether the peer acknowledges and we may believe it: its pong proved that it saw our generation.
    pub(super) fn acks_believed(&self, ours: Capabilities) -> bool {
        self.got_pong && self.common(ours).contains(Capabilities::ACKS)
    }

    /// Whether we acknowledge: we have seen the peer's generation, and our pong says so.
    pub(super) fn acks_given(&self, ours: Capabilities) -> bool {
        self.answered && self.common(ours).contains(Capabilities::ACKS)
    }

    /// Whether data may go out.
    pub(super) fn may_send_data(&self) -> bool {
        self.may_send_again() && !self.needs_pong
    }

    /// Whether data may go out that went out on an earlier connection.
    pub(super) fn may_send_again(&self) -> bool {
        self.phase == Phase::Carrying
            && self.hold_until.is_none()
            && (!self.needs_pong || self.probing)
            && (!self.is_own() || self.got_pong)
    }

    /// Whether anything may go out.
    pub(super) fn may_transmit(&self) -> bool {
        matches!(self.phase, Phase::Handshake | Phase::Carrying | Phase::Parked) && !self.knock
    }

    pub(super) fn push(&mut self, bytes: impl Into<Chunk>) {
        let bytes = bytes.into();
        self.wire_len += bytes.len();
        self.enqueued += bytes.len() as u64;
        self.wire.push_back(bytes);
    }

    /// Lets go of what TCP has not taken.
    pub(super) fn abandon(&mut self, released: &mut Vec<Chunk>) {
        self.wire_len = 0;
        released.extend(self.wire.drain(..));
    }

    /// Encoded bytes that TCP has not taken.
    pub(super) fn wire_len(&self) -> usize {
        self.wire_len
    }

    /// Appends up to about `max` encoded bytes to `out`.
    pub(super) fn offer(&self, max: usize, out: &mut Vec<Chunk>) -> usize {
        let mut total = 0;
        for bytes in &self.wire {
            if total >= max {
                break;
            }
            total += bytes.len();
            out.push(bytes.clone());
        }
        total
    }

    /// TCP took `n` bytes.
    pub(super) fn advance(&mut self, mut n: usize, released: &mut Vec<Chunk>) {
        debug_assert!(n <= self.wire_len, "no more than was offered");
        self.written += n as u64;
        self.wire_len -= n;
        while let Some(front) = self.wire.front_mut() {
            if n < front.len() {
                front.advance(n);
                break;
            }
            n -= front.len();
            released.extend(self.wire.pop_front());
        }
    }
}

/// Connections by index, and by the serial that makes an index unique.
#[derive(Default)]
pub(super) struct Conns {
    slots: Vec<Option<Conn>>,
    free: Vec<u32>,
    serial: u32,
}

impl Conns {
    pub(super) fn insert(&mut self, peer: u32, lane: u8, now: Time) -> super::ConnId {
        self.serial = self.serial.wrapping_add(1);
        let conn = Conn::new(self.serial, peer, lane, now);
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer connections than 2^32")
        });
        self.slots[index as usize] = Some(conn);
        super::ConnId { index, serial: self.serial }
    }

    pub(super) fn get(&self, id: super::ConnId) -> Option<&Conn> {
        self.at(id.index).filter(|c| c.serial == id.serial)
    }

    pub(super) fn get_mut(&mut self, id: super::ConnId) -> Option<&mut Conn> {
        self.at_mut(id.index).filter(|c| c.serial == id.serial)
    }

    pub(super) fn at(&self, index: u32) -> Option<&Conn> {
        self.slots.get(index as usize)?.as_ref()
    }

    pub(super) fn at_mut(&mut self, index: u32) -> Option<&mut Conn> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    pub(super) fn id(&self, index: u32) -> Option<super::ConnId> {
        self.at(index).map(|c| super::ConnId { index, serial: c.serial })
    }

    pub(super) fn remove(&mut self, id: super::ConnId) -> Option<Conn> {
        self.get(id)?;
        self.free.push(id.index);
        self.slots[id.index as usize].take()
    }

    pub(super) fn ids(&self) -> Vec<super::ConnId> {
        (0..self.slots.len() as u32).filter_map(|i| self.id(i)).collect()
    }

    /// The accepted connection that stands longest without having said anything.
    pub(super) fn oldest_silent(&self) -> Option<super::ConnId> {
        let silent = |c: &Conn| !c.dialed && c.phase == Phase::Handshake && c.identity.is_none();
        let all = self.slots.iter().enumerate().filter_map(|(i, c)| Some((i as u32, c.as_ref()?)));
        let (index, c) = all.filter(|(_, c)| silent(c)).min_by_key(|(_, c)| c.since)?;
        Some(super::ConnId { index, serial: c.serial })
    }

    /// The peers of all connections.
    pub(super) fn peers(&self) -> impl Iterator<Item = u32> + '_ {
        self.slots.iter().flatten().map(|c| c.peer)
    }

    /// Live connections of a peer, and their number.
    pub(super) fn of_peer(&self, peer: u32) -> impl Iterator<Item = (u32, &Conn)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(move |(i, c)| Some((i as u32, c.as_ref().filter(|c| c.peer == peer)?)))
    }
}
