//! Which connection carries a lane, what becomes of older ones, and how a peer's restart is noticed.

use std::time::Duration;

use super::connection::Phase;
use super::lane::Unacked;
use super::node::Timer;
use super::order::lane_of_port;
use super::peer::Incarnation;
use super::{Action, CloseMode, ConnId, DropReason, Guarantee, Node, Outcome, Time};
use crate::info::Counter;
use crate::wire::{HandshakeExtensions, Identity};

/// How long a lost connection is made again without a reason of our own.
pub(super) const KEEP: Duration = Duration::from_secs(60);

impl Node {
    /// Makes the connection carry its lane, unless an older one must be read out first. Returns whether it carries.
    pub(super) fn try_carry(&mut self, now: Time, conn: ConnId) -> bool {
        let Some(c) = self.conns.get_mut(conn) else { return false };
        let lane = &mut self.peers[c.peer as usize].lanes[usize::from(c.lane)];
        match lane.conn {
            Some(old) if old == conn.index => true,
            Some(old) => {
                c.phase = Phase::Parked;
                c.paused = true;
                lane.parked.push_back(conn.index);
                self.read_out(old);
                false
            }
            None => {
                self.carry(now, conn);
                true
            }
        }
    }

    /// Has the driver read an old connection to its end.
    fn read_out(&mut self, old: u32) {
        if let (Some(id), Some(c)) = (self.conns.id(old), self.conns.at_mut(old))
            && c.phase == Phase::Carrying
        {
            c.phase = Phase::Draining;
            c.paused = false;
            self.actions.push_back(Action::Drain { conn: id });
        }
    }

    fn carry(&mut self, now: Time, conn: ConnId) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        if !c.dialed {
            self.handshakes -= 1;
        }
        c.phase = Phase::Carrying;
        self.local.connections += 1;
        c.carrying_since = now;
        let peer = c.peer;
        let p = &mut self.peers[peer as usize];
        p.knock_delay = Duration::ZERO;
        p.knock_at = None;
        let lane = &mut p.lanes[usize::from(c.lane)];
        lane.conn = Some(conn.index);
        if lane.dialing == Some(conn.index) {
            lane.dialing = None;
        }
        lane.dial_at = None;
        lane.resend = 0;
        // A kernel that had a generation will show it again; until then it may be another incarnation.
        let had = p.incarnation.and_then(|i| i.generation.flatten()).is_some();
        if !c.is_own() && had && c.generation.is_none() && !p.lanes[usize::from(c.lane)].unacked.is_empty() {
            let until = now + self.config.identity_grace;
            c.hold_until = Some(until);
            self.timers.set(until, Timer::Hold(conn));
        }
        self.adopt(now, conn);
        self.came_up(now, conn);
        self.mark_ready(conn.index);
    }

    /// The connection's peer is the peer's present incarnation; finds out whether it is another than before.
    pub(super) fn adopt(&mut self, now: Time, conn: ConnId) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        let (Some(identity), Phase::Carrying) = (c.identity, c.phase) else { return };
        if c.generation.is_some() {
            c.hold_until = None;
        }
        let (peer, order) = (c.peer, c.order);
        let shown = Incarnation { identity, generation: c.generation };
        let before = self.peers[peer as usize].incarnation;
        let restarted = before.is_some_and(|b| b.differs(&shown));
        let generation =
            if restarted { shown.generation } else { shown.generation.or(before.and_then(|b| b.generation)) };
        let p = &mut self.peers[peer as usize];
        p.incarnation = Some(Incarnation { identity, generation });
        p.shown = if restarted { order } else { p.shown.max(order) };
        if restarted {
            self.restarted(now, conn);
        }
    }

    /// The peer is another incarnation than before: what it had not acknowledged is unknown for ever.
    fn restarted(&mut self, now: Time, conn: ConnId) {
        let Some(c) = self.conns.get(conn) else { return };
        let (peer, lane) = (c.peer, usize::from(c.lane));
        self.counters.add(Counter::PeerRestarts, 1);
        self.peers[peer as usize].up = false;
        for index in 0..self.peers[peer as usize].lanes.len() {
            let other = self.peers[peer as usize].lanes[index].conn.filter(|o| *o != conn.index);
            match other {
                Some(old) => {
                    self.peers[peer as usize].lanes[index].stale = true;
                    self.read_out(old);
                }
                None => self.forget_incarnation(peer, index, index == lane),
            }
        }
        self.settle_lanes(peer);
        let parked = self.peers[peer as usize].lanes.iter().flat_map(|l| &l.parked);
        let parked: Vec<ConnId> = parked.filter_map(|c| self.conns.id(*c)).collect();
        for dead in parked.into_iter().filter(|c| self.is_outlived(*c)).collect::<Vec<_>>() {
            self.end(now, dead, Some((CloseMode::Now, DropReason::PeerRestarted)));
        }
    }

    /// Whether an own peer's connection is one of a dead incarnation: the present one showed itself on a connection that was
    /// established later. Nothing but greetings came on it, since it was never answered.
    pub(super) fn is_outlived(&self, conn: ConnId) -> bool {
        self.conns.get(conn).is_some_and(|c| {
            let p = &self.peers[c.peer as usize];
            let shown = c.identity.map(|identity| Incarnation { identity, generation: c.generation });
            c.is_own()
                && c.order < p.shown
                && matches!((p.incarnation, shown), (Some(present), Some(shown)) if present.differs(&shown))
        })
    }

    /// Ends what the dead incarnation had not acknowledged as unknown. With `keep_sent`, what went out on the present
    /// connection is the new incarnation's.
    fn forget_incarnation(&mut self, peer: u32, index: usize, keep_sent: bool) {
        let lane = &mut self.peers[peer as usize].lanes[index];
        lane.stale = false;
        lane.rx = 0;
        let keep = if keep_sent { lane.resend } else { 0 };
        let gone = lane.drop_unacked_from(keep, &mut self.released);
        for u in gone {
            self.ended(peer, &u, Outcome::Unknown);
        }
    }

    /// Moves messages that have not begun off lanes that are no longer in use.
    fn settle_lanes(&mut self, peer: u32) {
        let p = &mut self.peers[peer as usize];
        for index in usize::from(p.count)..p.lanes.len() {
            if !p.lanes[index].unacked.is_empty()
                || p.lanes[index].queue.is_empty() && p.lanes[index].held.is_empty()
            {
                continue;
            }
            for message in p.lanes[index].take_queued() {
                p.pins.remove(&(message.sport, message.dport));
                let lane = &mut p.lanes[usize::from(lane_of_port(message.sport, p.count))];
                if message.sport != crate::wire::PORT_ENGINE {
                    lane.push_apart(message);
                }
            }
        }
        let map = &p.map;
        for lane in &mut p.lanes {
            lane.hold(map);
        }
        self.want(peer);
    }

    /// What the peer's handshake says about lanes.
    /// Returns whether the connection's lane is one of them.
    pub(super) fn note_lanes(&mut self, conn: ConnId, shown: &HandshakeExtensions) -> bool {
        let Some(c) = self.conns.get_mut(conn) else { return false };
        let own = c.is_own();
        let p = &mut self.peers[c.peer as usize];
        if let Some(lanes) = shown.lanes.or(own.then_some(1)) {
            let count = lanes.clamp(1, u16::from(self.config.lanes)) as u8;
            p.set_count(count, self.config.first_sequence);
        }
        let told = if own && !c.dialed {
            if shown.source_port_lane { (c.source_port % 8) as u8 } else { 0 }
        } else {
            c.lane
        };
        // A peer that used more lanes with an earlier life of ours tries them all again; it learns better on the first.
        let used = !own || told < p.count;
        if used {
            c.lane = told;
        }
        used
    }

    /// Tells that the peer is up, and makes its other lanes, once the handshake is over.
    pub(super) fn came_up(&mut self, now: Time, conn: ConnId) {
        let Some(c) = self.conns.get(conn) else { return };
        if c.phase != Phase::Carrying || (c.is_own() && !c.got_pong) {
            return;
        }
        let peer = c.peer;
        self.mark_ready(conn.index);
        let p = &mut self.peers[peer as usize];
        let guarantee = p.guarantee(self.config.capabilities).unwrap_or(Guarantee::Transport);
        let generation = p.incarnation.and_then(|i| i.generation.flatten());
        let news = (guarantee, generation, p.count);
        if !p.up || p.told != Some(news) {
            // A kernel shows its generation some time after it came up; that is no restart.
            let restarted = p.told.is_some_and(|(g, shown, _)| {
                g != guarantee || shown.is_some_and(|shown| Some(shown) != generation)
            });
            p.up = true;
            p.told = Some(news);
            let (peer, lanes) = (p.address, p.count);
            self.actions.push_back(Action::PeerUp { peer, guarantee, generation, lanes, restarted });
        }
        if p.lanes.len() > 1 {
            p.keep_until = Some(now + KEEP);
            self.want(peer);
        }
    }

    pub(super) fn handshake_due(&mut self, now: Time, conn: ConnId) {
        let Some(c) = self.conns.get(conn) else { return };
        let done = match c.phase {
            Phase::Carrying => !c.is_own() || c.got_pong,
            Phase::Draining | Phase::Closing => true,
            // The timer set when it was dialled does not count once it stands.
            Phase::Connecting | Phase::Handshake | Phase::Parked => {
                now.since(c.since) < self.config.handshake_timeout
            }
        };
        if !done {
            self.end(now, conn, Some((CloseMode::Now, DropReason::HandshakeTimeout)));
        }
    }

    pub(super) fn grace_over(&mut self, now: Time, conn: ConnId) {
        if let Some(c) = self.conns.get_mut(conn)
            && c.phase == Phase::Handshake
            && c.identity.is_none()
        {
            c.identity = Some(Identity::Kernel);
            c.assumed = true;
            self.try_carry(now, conn);
        }
    }

    pub(super) fn hold_over(&mut self, now: Time, conn: ConnId) {
        if let Some(c) = self.conns.get_mut(conn)
            && c.hold_until.is_some_and(|t| t <= now)
        {
            c.hold_until = None;
            self.mark_ready(conn.index);
        }
    }

    // ---- acknowledgements --------------------------------------------------------------------------------------

    /// Reports SIOCOUTQ: bytes written to the connection that the peer's TCP has not acknowledged.
    pub fn tcp_unacked(&mut self, now: Time, conn: ConnId, unacked: u64) {
        let progress = self.release_tcp(conn, unacked);
        self.schedule_query(now, conn, progress);
    }

    fn release_tcp(&mut self, conn: ConnId, unacked: u64) -> bool {
        let Some(c) = self.conns.get_mut(conn) else { return false };
        if c.acks_believed(self.config.capabilities) || c.phase != Phase::Carrying {
            return false;
        }
        c.query_at = None;
        let acked = c.written.saturating_sub(unacked);
        let (peer, lane) = (c.peer, usize::from(c.lane));
        self.release(peer, lane, |u, sent| sent && u.end <= acked)
    }

    /// Ends unacknowledged messages from the front on, as long as `arrived` says so; it is told whether the message was sent
    /// on the present connection.
    pub(super) fn release(
        &mut self,
        peer: u32,
        lane: usize,
        arrived: impl Fn(&Unacked, bool) -> bool,
    ) -> bool {
        let guarantee =
            self.peers[peer as usize].guarantee(self.config.capabilities).unwrap_or(Guarantee::Transport);
        let mut any = false;
        loop {
            let l = &mut self.peers[peer as usize].lanes[lane];
            let sent = l.resend > 0;
            if !l.unacked.front().is_some_and(|u| arrived(u, sent)) {
                return any;
            }
            if let Some(u) = l.pop_unacked(&mut self.released) {
                self.ended(peer, &u, Outcome::Delivered(guarantee));
            }
            any = true;
        }
    }

    fn ended(&mut self, peer: u32, u: &Unacked, outcome: Outcome) {
        if !u.dead {
            let p = &mut self.peers[peer as usize];
            if !p.pins.is_empty() {
                p.unpin(u.sport, u.dport);
            }
            self.finish(u.socket, u64::from(u.len), u.token, outcome);
        }
    }

    // ---- ending ------------------------------------------------------------------------------------------------

    /// The connection ended: the peer closed or reset it, or it failed; all that could be read was fed to [`Node::receive`].
    /// `unacked`: bytes written and not acknowledged at the end, when known (SIOCOUTQ).
    pub fn closed(&mut self, now: Time, conn: ConnId, unacked: Option<u64>) {
        if let Some(unacked) = unacked {
            self.release_tcp(conn, unacked);
        }
        self.end(now, conn, None);
    }

    /// Drops a connection because of what its peer sent.
    pub(super) fn fail(&mut self, now: Time, conn: ConnId, reason: DropReason) {
        self.counters.add(Counter::ProtocolErrors, 1);
        self.end(now, conn, Some((CloseMode::Now, reason)));
    }

    /// Takes a connection out of every table, and sees to what comes after it.
    pub(super) fn end(&mut self, now: Time, conn: ConnId, close: Option<(CloseMode, DropReason)>) {
        let Some(mut c) = self.conns.remove(conn) else { return };
        c.abandon(&mut self.released);
        let peer = c.peer;
        if let Some((mode, reason)) = close {
            let peer = self.peers[peer as usize].address;
            self.actions.push_back(Action::Close { conn, peer, mode, reason });
        }
        self.granted -= c.rx_limit.saturating_sub(c.rx_used);
        self.forget_stalled(conn, &c);
        if c.knock {
            self.knocked(now, peer);
            return;
        }
        if !c.dialed && matches!(c.phase, Phase::Handshake | Phase::Parked) {
            self.handshakes -= 1;
        }
        let index = usize::from(c.lane);
        let lane = &mut self.peers[peer as usize].lanes[index];
        lane.parked.retain(|p| *p != conn.index);
        let tried = lane.dialing == Some(conn.index);
        let carried = lane.conn == Some(conn.index);
        if tried {
            lane.dialing = None;
        }
        if carried {
            self.local.connections -= 1;
            lane.conn = None;
            lane.resend = 0;
            lane.drop_unsent_dead(&mut self.released);
            self.lost(now, peer, index, &c);
        }
        self.forget_map(conn, peer);
        if (tried || carried) && !self.closing {
            self.after_loss(now, peer, c.lane);
        } else if !c.dialed {
            // No knock was sent while it was coming.
            self.want(peer);
        }
        self.forget_stranger(now, peer);
    }

    fn lost(&mut self, now: Time, peer: u32, index: usize, c: &super::connection::Conn) {
        self.counters.add(Counter::ConnReset, 1);
        let lane = &mut self.peers[peer as usize].lanes[index];
        if now.since(c.carrying_since) >= self.config.reconnect_max {
            lane.backoff = Duration::ZERO;
        }
        if lane.stale {
            self.forget_incarnation(peer, index, false);
            self.settle_lanes(peer);
        }
        let p = &mut self.peers[peer as usize];
        if p.we_dial {
            p.keep_until = Some(now + KEEP);
        }
        if p.up && p.lanes.iter().all(|l| l.conn.is_none() && l.parked.is_empty()) {
            p.up = false;
            self.actions.push_back(Action::PeerDown { peer: p.address });
        }
    }

    /// The lane has no connection: takes the next one that waits for it, or makes one.
    fn after_loss(&mut self, now: Time, peer: u32, lane: u8) {
        let index = usize::from(lane);
        if let Some(next) = self.peers[peer as usize].lanes[index].parked.pop_front()
            && let Some(id) = self.conns.id(next)
        {
            if let Some(c) = self.conns.get_mut(id) {
                c.paused = false;
            }
            self.carry(now, id);
            if self.conns.get(id).is_some_and(super::connection::Conn::is_own) {
                self.answer(id);
            }
            self.actions.push_back(Action::Resume { conn: id });
            if !self.peers[peer as usize].lanes[index].parked.is_empty() {
                self.read_out(next);
            }
        } else if self.peers[peer as usize].we_dial {
            self.schedule_dial(now, peer, lane);
        } else {
            self.want(peer);
        }
    }
}
