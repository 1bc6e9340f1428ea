//! Which connection carries a lane, what becomes of older ones, and how a peer's restart is noticed.

use std::time::Duration;

use super::connection::{Conn, Phase};
use super::lane::{Ended, Unacked};
use super::node::Timer;
use super::order::lane_of_port;
use super::peer::Incarnation;
use super::{Action, CloseMode, ConnId, DropReason, Guarantee, Node, Outcome, Time};
use crate::info::Counter;
use crate::wire::{HandshakeExtensions, Identity};

/// How long a lost connection is made again without a reason of our own.
pub(super) const KEEP: Duration = Duration::from_secs(60);

impl Node {
    /// Makes the connection carry its lane, unless older ones must be read out first. Returns whether it carries.
    pub(super) fn try_carry(&mut self, now: Time, conn: ConnId) -> bool {
        let mut waiting = self.silent_before(conn);
        let Some(c) = self.conns.get(conn) else { return false };
        let (peer, index, own) = (c.peer, usize::from(c.lane), c.is_own());
        let carrying = self.peers[peer as usize].lanes[index].conn;
        if carrying == Some(conn.index) {
            return true;
        }
        if carrying.is_none() && waiting.is_empty() {
            self.carry(now, conn);
            return true;
        }
        waiting.push(conn.index);
        for waits in &waiting {
            if let Some(c) = self.conns.at_mut(*waits) {
                c.phase = Phase::Parked;
                c.paused = true;
                c.lane = index as u8;
            }
        }
        if own {
            self.peers[peer as usize].lanes[index].parked.extend(waiting);
        } else {
            // What was established first is read first, whichever spoke first.
            self.park(peer, index, waiting);
        }
        match carrying {
            Some(old) => self.read_out(old),
            None => self.next_parked(now, peer, index as u8),
        }
        false
    }

    /// Has the driver read an old connection to its end.
    pub(super) fn read_out(&mut self, old: u32) {
        if let (Some(id), Some(c)) = (self.conns.id(old), self.conns.at_mut(old))
            && c.phase == Phase::Carrying
        {
            c.phase = Phase::Draining;
            // It may wait for its turn.
            c.paused = !c.after.is_empty();
            self.actions.push_back(Action::Drain { conn: id });
        }
    }

    /// The driver must end a connection that still stands, because its peer takes nothing. What has come on it is read first
    /// ([`Action::Drain`]): TCP has acknowledged that, and a kernel would not send it again.
    pub fn give_up(&mut self, now: Time, conn: ConnId) {
        match self.conns.get(conn).map(|c| c.phase) {
            Some(Phase::Carrying) => self.read_out(conn.index),
            Some(Phase::Connecting | Phase::Handshake) => {
                self.end(now, conn, Some((CloseMode::Now, DropReason::Stuck)));
            }
            // What is parked is read when its turn comes; the others end soon.
            Some(Phase::Parked | Phase::Draining | Phase::Closing) | None => {}
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
        let (peer, c_own, upper) = (c.peer, c.is_own(), c.dialed && c.lane > 0);
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
        // A kernel that had a generation will show it again. Until then it may be another incarnation, and what is sent now would be
        // of an unknown one for ever.
        let had = p.incarnation.and_then(|i| i.generation.flatten()).is_some();
        if !c_own && !c.assumed && (had || upper) && c.generation.is_none() {
            let until = now + self.config.identity_grace;
            c.hold_until = Some(until);
            self.timers.set(until, Timer::Hold(conn));
        }
        let restarted = self.adopt(now, conn);
        if !c_own {
            self.carries_kernel(now, conn);
            if restarted && upper {
                self.leave_upper(now, peer, conn);
                return;
            }
        }
        self.came_up(now, conn);
        self.mark_ready(conn.index);
    }

    /// The connection's peer is the peer's present incarnation; returns whether it is another than before.
    pub(super) fn adopt(&mut self, now: Time, conn: ConnId) -> bool {
        let Some(c) = self.conns.get_mut(conn) else { return false };
        let (Some(identity), Phase::Carrying) = (c.identity, c.phase) else { return false };
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
        } else if before.is_none_or(|b| b.generation.flatten().is_none()) && generation.flatten().is_some() {
            self.hold_others(now, peer);
        }
        restarted
    }

    /// A kernel has shown its generation for the first time: its other connections have to show it as well before anything goes out.
    pub(super) fn hold_others(&mut self, now: Time, peer: u32) {
        let until = now + self.config.identity_grace;
        for index in self.peers[peer as usize].lanes.iter().filter_map(|l| l.conn).collect::<Vec<_>>() {
            let Some(conn) = self.conns.id(index) else { continue };
            if let Some(c) = self.conns.get_mut(conn)
                && !c.is_own()
                && !c.assumed
                && c.generation.is_none()
                && c.hold_until.is_none()
            {
                c.hold_until = Some(until);
                self.timers.set(until, Timer::Hold(conn));
            }
        }
    }

    /// The peer is another incarnation than before: what it had not acknowledged is unknown for ever.
    fn restarted(&mut self, now: Time, conn: ConnId) {
        let Some(c) = self.conns.get(conn) else { return };
        let (peer, lane) = (c.peer, usize::from(c.lane));
        self.counters.add(Counter::PeerRestarts, 1);
        let (p, own) = (&mut self.peers[peer as usize], c.is_own());
        // What a kernel sent on this connection before it showed itself is of its present life.
        let rx = if c.accepted && !own { p.lanes[lane].rx } else { 0 };
        (p.up, p.agreed, p.misplaced_rx) = (false, false, 0);
        if own {
            p.pairing = None;
        } else {
            // How many lanes a kernel's new life uses shows later.
            p.set_count(1, self.config.first_sequence);
        }
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
        self.peers[peer as usize].lanes[lane].rx = rx;
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
    pub(super) fn settle_lanes(&mut self, peer: u32) {
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

    /// What an own peer's handshake says about lanes.
    /// Returns whether the connection's lane is one of them.
    pub(super) fn note_lanes(&mut self, conn: ConnId, shown: &HandshakeExtensions) -> bool {
        let Some(c) = self.conns.get_mut(conn) else { return false };
        let Some(Identity::Own { capabilities, .. }) = c.identity else { return false };
        let p = &mut self.peers[c.peer as usize];
        p.set_count(capabilities.lanes().min(self.config.lanes), self.config.first_sequence);
        let told = match c.dialed {
            true => c.lane,
            false if shown.source_port_lane => (c.source_port % 8) as u8,
            false => 0,
        };
        // A peer that used more lanes with an earlier life of ours tries them all again; it learns better on the first.
        let used = told < p.count;
        if used {
            c.lane = told;
        }
        used
    }

    /// Tells that the peer is up, and makes its other lanes, once the handshake is over.
    pub(super) fn came_up(&mut self, now: Time, conn: ConnId) {
        let Some(c) = self.conns.get(conn) else { return };
        if c.phase != Phase::Carrying || c.identity.is_none() || (c.is_own() && !c.got_pong) {
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
            Phase::Carrying if c.needs_pong => now.since(c.carrying_since) < self.config.handshake_timeout,
            Phase::Carrying => !c.is_own() || c.got_pong,
            Phase::Draining | Phase::Closing => true,
            // It waits for us. A kernel would not send again what lies on it.
            Phase::Parked if !c.is_own() => true,
            // The timer set when it was dialled does not count once it stands.
            Phase::Connecting | Phase::Handshake | Phase::Parked => {
                now.since(c.since) < self.config.handshake_timeout
            }
        };
        if !done {
            self.end(now, conn, Some((CloseMode::Now, DropReason::HandshakeTimeout)));
        }
    }

    pub(super) fn hold_over(&mut self, now: Time, conn: ConnId) {
        if let Some(c) = self.conns.get_mut(conn)
            && c.hold_until.is_some_and(|t| t <= now)
        {
            c.hold_until = None;
            c.probing = c.needs_pong;
            // The first ping may have had a number that the kernel knows: once all is sent again, it is asked with one that it takes.
            c.tell_due |= c.pairing.is_none();
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
        if c.acks_believed(self.config.capabilities) || !matches!(c.phase, Phase::Carrying | Phase::Draining)
        {
            return false;
        }
        c.query_at = None;
        let acked = c.written.saturating_sub(unacked);
        let (peer, lane) = (c.peer, usize::from(c.lane));
        if self.peers[peer as usize].lanes[lane].conn != Some(conn.index) {
            // It carries the lane no more.
            return false;
        }
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

    pub(super) fn ended(&mut self, peer: u32, u: &Unacked, outcome: Outcome) {
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
        let why = match (c.error, &close) {
            (Some(error), _) => Ended::Failed(error),
            (None, Some((_, reason))) => Ended::Dropped(*reason),
            (None, None) => Ended::Closed,
        };
        if let Some((mode, reason)) = close {
            let peer = self.peers[peer as usize].address;
            let lane = Some(c.lane);
            self.actions.push_back(Action::Close { conn, peer, lane, mode, reason });
        }
        self.granted -= c.rx_limit.saturating_sub(c.rx_used);
        self.forget_stalled(conn, &c);
        if c.knock {
            if !matches!(why, Ended::Dropped(DropReason::PokeDone)) {
                self.peers[peer as usize].lanes[0].history.reason = Some(why);
            }
            self.knocked(now, peer);
            return;
        }
        if !c.dialed && matches!(c.phase, Phase::Handshake | Phase::Parked) {
            self.handshakes -= 1;
        }
        self.was_read(peer, conn);
        let index = usize::from(c.lane);
        self.peers[peer as usize].spare.retain(|s| *s != conn.index);
        let lane = &mut self.peers[peer as usize].lanes[index];
        lane.parked.retain(|p| *p != conn.index);
        let tried = lane.dialing == Some(conn.index);
        let carried = lane.conn == Some(conn.index);
        if tried {
            lane.dialing = None;
        }
        if tried || carried {
            lane.history.reason = Some(why);
        }
        if carried {
            lane.history.resets += 1;
            lane.history.reset_at = Some(now);
            self.local.connections -= 1;
            lane.conn = None;
            lane.resend = 0;
            lane.drop_unsent_dead(&mut self.released);
            self.lost(now, peer, index, &c);
        }
        self.forget_map(conn, peer);
        self.peers[peer as usize].idle_since = now;
        if (tried || carried) && !self.closing {
            self.after_loss(now, peer, c.lane);
        } else if !c.dialed {
            if c.phase == Phase::Handshake && !c.any_lane && !self.closing {
                self.free_lane(now, peer, c.lane);
            }
            // No knock was sent while it was coming.
            self.want(peer);
        }
        self.forget_stranger(now, peer);
    }

    fn lost(&mut self, now: Time, peer: u32, index: usize, c: &Conn) {
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

    /// A connection ended that would have carried the lane: if it was kept for it, one that waits for any lane takes its place.
    fn free_lane(&mut self, now: Time, peer: u32, lane: u8) {
        let p = &self.peers[peer as usize];
        if p.lanes[usize::from(lane)].conn.is_none() && !p.spare.is_empty() {
            self.after_loss(now, peer, lane);
        }
    }

    /// The lane has no connection: takes the next one that waits for it, or makes one.
    fn after_loss(&mut self, now: Time, peer: u32, lane: u8) {
        let p = &mut self.peers[peer as usize];
        if p.lanes[usize::from(lane)].parked.is_empty()
            && let Some(spare) = p.spare.pop_front()
        {
            if let Some(c) = self.conns.at_mut(spare) {
                (c.lane, c.any_lane) = (lane, false);
            }
            self.park(peer, usize::from(lane), [spare]);
        }
        if !self.peers[peer as usize].lanes[usize::from(lane)].parked.is_empty() {
            self.next_parked(now, peer, lane);
        } else if self.peers[peer as usize].we_dial {
            self.schedule_dial(now, peer, lane);
        } else {
            self.want(peer);
        }
    }

    /// Makes the connection that waits first for a lane carry it, to be read out at once if others wait behind it.
    pub(super) fn next_parked(&mut self, now: Time, peer: u32, lane: u8) {
        let parked = &mut self.peers[peer as usize].lanes[usize::from(lane)].parked;
        let Some(next) = parked.pop_front() else { return };
        let last = parked.is_empty();
        let Some(id) = self.conns.id(next) else { return };
        let Some(c) = self.conns.get_mut(id) else { return };
        c.paused = false;
        if last && c.identity.is_none() {
            // Nobody stands behind it any more: it may still say who it is, and for which lane.
            (c.phase, c.since) = (Phase::Handshake, now);
            self.expect_word(now, id);
            self.actions.push_back(Action::Resume { conn: id });
            return;
        }
        self.carry(now, id);
        if self.conns.get(id).is_some_and(Conn::is_own) {
            self.answer(id);
        }
        self.actions.push_back(Action::Resume { conn: id });
        if !last {
            self.read_out(next);
        }
    }
}
