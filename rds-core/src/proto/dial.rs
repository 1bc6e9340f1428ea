//! Making connections: who dials, who knocks, and how long to wait in between (Linux `net/rds/threads.c`, `tcp_listen.c`).

use std::io::ErrorKind;
use std::net::IpAddr;
use std::time::Duration;

use super::carry::KEEP;
use super::connection::Phase;
use super::node::Timer;
use super::order::{is_smaller, port_step};
use super::{Action, CloseMode, ConnId, DropReason, Node, Time};
use crate::info::Counter;

/// First interval between two knocks at a smaller address.
const KNOCK_MIN: Duration = Duration::from_millis(50);
/// How often a knock makes us test connections that seem alive.
const TEST_INTERVAL: Duration = Duration::from_secs(1);

impl Node {
    /// Remembers that a connection to the peer is wanted; [`Node::poll_action`] sees to it.
    pub(super) fn want(&mut self, peer: u32) {
        if self.wanting.last() != Some(&peer) && !self.wanting.contains(&peer) {
            self.wanting.push(peer);
        }
    }

    pub(super) fn satisfy_wants(&mut self, now: Time) {
        while let Some(peer) = self.wanting.pop() {
            self.connect_peer(now, peer);
        }
    }

    /// Makes whatever connection of the peer is missing and wanted.
    fn connect_peer(&mut self, now: Time, peer: u32) {
        let p = &self.peers[peer as usize];
        if self.closing || !p.is_wanted(now) || !self.config.peers.outbound.allows(p.address) {
            return;
        }
        let kernel = p.is_kernel();
        let missing: Vec<u8> = (0..p.lanes.len() as u8)
            .filter(|&i| {
                let lane = &p.lanes[usize::from(i)];
                let used = match i {
                    0 => true,
                    // A larger node's knock makes a kernel dial its first lane only.
                    _ if kernel => p.we_dial && self.may_dial_upper(peer, i),
                    _ => (i < p.count && p.incarnation.is_some()) || lane.has_messages(),
                };
                used && lane.conn.is_none() && lane.dialing.is_none() && lane.dial_at.is_none()
            })
            .collect();
        if p.we_dial {
            for lane in missing {
                self.dial(now, peer, lane);
            }
        } else if !missing.is_empty() && p.lanes[0].conn.is_none()
            || missing.iter().any(|&i| p.lanes[usize::from(i)].has_messages())
        {
            self.knock(now, peer);
        }
    }

    fn dial(&mut self, now: Time, peer: u32, lane: u8) {
        let conn = self.conns.insert(peer, lane, now);
        if let Some(c) = self.conns.get_mut(conn) {
            c.dialed = true;
        }
        let p = &mut self.peers[peer as usize];
        p.lanes[usize::from(lane)].dialing = Some(conn.index);
        p.lanes[usize::from(lane)].history.attempted(now);
        let own = p.incarnation.is_some_and(|i| i.identity.is_own());
        // A kernel may remember that an earlier life of ours told lanes by source ports, even if we offer but one.
        let port_step = if own && self.config.lanes == 1 { 1 } else { port_step(self.config.lanes) };
        self.actions.push_back(Action::Connect { conn, peer: p.address, lane, port_step });
        self.timers.set(now + self.config.handshake_timeout, Timer::Handshake(conn));
    }

    /// Sets when to dial next: at once, then after random delays with a doubling bound (`rds_queue_reconnect`).
    pub(super) fn schedule_dial(&mut self, now: Time, peer: u32, lane: u8) {
        let (least, most) = (self.config.reconnect_min, self.config.reconnect_max);
        let l = &mut self.peers[peer as usize].lanes[usize::from(lane)];
        let bound = l.backoff;
        l.backoff = (bound * 2).clamp(least, most.max(least));
        let delay = Duration::from_nanos(self.rng.u64(0..=bound.as_nanos() as u64));
        let at = now + delay;
        l.dial_at = Some(at);
        self.timers.set(at, Timer::Dial(peer, lane));
    }

    pub(super) fn dial_due(&mut self, now: Time, at: Time, peer: u32, lane: u8) {
        let Some(l) = self.peers[peer as usize].lanes.get_mut(usize::from(lane)) else { return };
        if l.dial_at == Some(at) {
            l.dial_at = None;
            self.connect_peer(now, peer);
            self.forget_stranger(now, peer);
        }
    }

    /// A larger address cannot dial: it connects and closes at once, and the smaller one dials back.
    fn knock(&mut self, now: Time, peer: u32) {
        let p = &self.peers[peer as usize];
        let coming =
            self.conns.of_peer(peer).any(|(_, c)| matches!(c.phase, Phase::Handshake | Phase::Parked));
        if p.knocking.is_some() || p.knock_at.is_some() || coming {
            return;
        }
        let conn = self.conns.insert(peer, 0, now);
        if let Some(c) = self.conns.get_mut(conn) {
            c.knock = true;
            c.dialed = true;
        }
        let p = &mut self.peers[peer as usize];
        p.knocking = Some(conn.index);
        p.lanes[0].history.attempted(now);
        self.counters.add(Counter::ConnPokes, 1);
        self.actions.push_back(Action::Connect { conn, peer: p.address, lane: 0, port_step: 1 });
        self.timers.set(now + self.config.handshake_timeout, Timer::Handshake(conn));
    }

    pub(super) fn knocked(&mut self, now: Time, peer: u32) {
        let p = &mut self.peers[peer as usize];
        p.knocking = None;
        let most = self.config.reconnect_max.max(self.config.reconnect_min);
        p.knock_delay = (p.knock_delay * 2).clamp(KNOCK_MIN.min(most), most);
        let half = p.knock_delay.as_nanos() as u64 / 2;
        let at = now + Duration::from_nanos(half + self.rng.u64(0..=half));
        p.knock_at = Some(at);
        self.timers.set(at, Timer::Knock(peer));
    }

    pub(super) fn knock_due(&mut self, now: Time, at: Time, peer: u32) {
        let p = &mut self.peers[peer as usize];
        if p.knock_at == Some(at) {
            p.knock_at = None;
            self.connect_peer(now, peer);
            self.forget_stranger(now, peer);
        }
    }

    /// The connection asked for by [`Action::Connect`] is established.
    pub fn connected(&mut self, now: Time, conn: ConnId) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        if c.phase != Phase::Connecting {
            return;
        }
        if c.knock {
            self.end(now, conn, Some((CloseMode::Now, DropReason::PokeDone)));
            return;
        }
        c.greet(now);
        self.expect_handshake(now, conn);
    }

    fn expect_handshake(&mut self, now: Time, conn: ConnId) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        self.established += 1;
        c.order = self.established;
        self.expect_word(now, conn);
        self.mark_ready(conn.index);
    }

    /// A connection that stands has to say who is there, within a time.
    pub(super) fn expect_word(&mut self, now: Time, conn: ConnId) {
        self.timers.set(now + self.config.handshake_timeout, Timer::Handshake(conn));
        let Some(c) = self.conns.get(conn) else { return };
        if c.lane > 0 && self.peers[c.peer as usize].is_kernel() {
            self.timers.set(now + self.config.identity_grace, Timer::Grace(conn));
        }
    }

    /// How a connection failed, or why it could not be made, for [`Node::snapshot_at`]. To be called before [`Node::closed`] or
    /// [`Node::connect_failed`], which work without it.
    pub fn note_error(&mut self, conn: ConnId, error: ErrorKind) {
        if let Some(c) = self.conns.get_mut(conn) {
            c.error = Some(error);
        }
    }

    /// The connection asked for by [`Action::Connect`] could not be made. Another attempt follows after a delay.
    pub fn connect_failed(&mut self, now: Time, conn: ConnId) {
        self.end(now, conn, None);
    }

    /// A TCP connection came in from `peer`.
    ///
    /// # Errors
    /// [`DropReason`]: close it at once; nothing is kept of it.
    pub fn accept(&mut self, now: Time, peer: IpAddr, source_port: u16) -> Result<ConnId, DropReason> {
        self.clock = self.clock.max(now);
        if self.closing {
            return Err(DropReason::Shutdown);
        }
        if peer == self.config.address {
            return Err(DropReason::OwnAddress);
        }
        let we_dial = is_smaller(self.config.address, peer);
        let rules = &self.config.peers;
        if !rules.inbound.allows(peer) || (we_dial && !rules.outbound.allows(peer)) {
            self.counters.add(Counter::ConnRefused, 1);
            return Err(DropReason::NotAllowed);
        }
        let Some(index) = self.peer_of(peer) else {
            self.counters.add(Counter::ConnRefused, 1);
            return Err(DropReason::Limit);
        };
        if we_dial {
            self.answer_knock(now, index);
            return Err(DropReason::Poke);
        }
        let waiting = self.conns.of_peer(index).filter(|(_, c)| c.phase != Phase::Carrying).count();
        let crowded = waiting >= 2 * usize::from(crate::wire::MAX_LANES);
        if crowded || (self.handshakes >= self.config.max_handshakes && !self.drop_oldest_silent(now)) {
            self.counters.add(Counter::ConnRefused, 1);
            self.forget_stranger(now, index);
            return Err(DropReason::Limit);
        }
        // Its peer may have been this one, and have been forgotten with it.
        let index = self.peer_of(peer).ok_or(DropReason::Limit)?;
        let kernel = self.peers[index as usize].is_kernel();
        let lane = if kernel { self.kernel_lane(index, source_port, None) } else { Some(0) };
        let conn = self.conns.insert(index, lane.unwrap_or(0), now);
        if let Some(c) = self.conns.get_mut(conn) {
            c.source_port = source_port;
            (c.lane_given, c.any_lane) = (kernel, lane.is_none());
            c.greet(now);
        }
        self.handshakes += 1;
        self.expect_handshake(now, conn);
        Ok(conn)
    }

    /// Makes room for a connection that wants to shake hands: drops the one that has said nothing for the longest time, so
    /// that silent ones cannot keep others out.
    fn drop_oldest_silent(&mut self, now: Time) -> bool {
        let Some(oldest) = self.conns.oldest_silent() else { return false };
        self.counters.add(Counter::ConnRefused, 1);
        self.end(now, oldest, Some((CloseMode::Now, DropReason::Limit)));
        true
    }

    /// A larger address has something for us: dial it, or find out whether what seems to stand still does.
    fn answer_knock(&mut self, now: Time, peer: u32) {
        let p = &mut self.peers[peer as usize];
        p.keep_until = Some(now + KEEP);
        if p.tested_at.is_none_or(|t| now.since(t) >= TEST_INTERVAL) {
            p.tested_at = Some(now);
            // If the peer has lost its end, anything we write makes it say so.
            let carrying: Vec<u32> = p.lanes.iter().filter_map(|l| l.conn).collect();
            for conn in carrying {
                if let Some(c) = self.conns.at_mut(conn)
                    && now.since(c.carrying_since) >= TEST_INTERVAL
                {
                    c.map_due = true;
                    self.mark_ready(conn);
                }
            }
        }
        for lane in &mut self.peers[peer as usize].lanes {
            if lane.conn.is_none() && lane.dialing.is_none() {
                lane.dial_at = None;
                lane.backoff = Duration::ZERO;
            }
        }
        self.want(peer);
    }
}
