//! Lanes towards kernels: which one a connection is for, how many a kernel was told of, and when it knows.

use std::collections::VecDeque;

use super::connection::Phase;
use super::node::Timer;
use super::peer::Incarnation;
use super::{Action, CloseMode, ConnId, DropReason, Node, Outcome, Time};
use crate::wire::{HandshakeExtensions, Header, Identity, MAX_LANES};

/// How a kernel finds the lane of a connection that it accepts or makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pairing {
    /// By the source port, as it announces: kernels from 7.0 on.
    SourcePort,
    /// By the order in which connections come: kernels up to 6.18.
    Arrival,
}

impl Node {
    /// Lanes that we offer a kernel.
    fn offered(&self, pairing: Pairing) -> u8 {
        match pairing {
            Pairing::SourcePort => self.config.lanes,
            Pairing::Arrival => self.config.old_kernel_lanes,
        }
    }

    /// Whether what we offer depends on what the peer is.
    fn offers_more(&self) -> bool {
        self.config.lanes > 1 || self.config.old_kernel_lanes > 1
    }

    /// NPATHS of the next handshake message on a connection. Without it, a kernel that remembers a number from before keeps that, and
    /// any other takes 1: so nothing is said before it is known which number is right. Where we dial, nothing is said either before the kernel
    /// has answered a ping, since one that answers none would never show us that it knows.
    pub(super) fn npaths(&self, index: u32) -> Option<u16> {
        if !self.offers_more() {
            return Some(1);
        }
        let c = self.conns.at(index)?;
        let pairing = c.pairing.filter(|_| !c.is_own() && (!c.dialed || c.pongs > 0))?;
        Some(u16::from(self.offered(pairing)))
    }

    /// The lane of a connection that comes in from a peer known as a kernel, or whose first message shows one. Before a kernel's version is
    /// known it is taken for one that goes by source ports. `None`: by order of arrival, and all lanes are taken.
    pub(super) fn kernel_lane(&mut self, peer: u32, source_port: u16, but: Option<u32>) -> Option<u8> {
        let p = &self.peers[peer as usize];
        let lane = match p.pairing {
            Some(Pairing::SourcePort) | None => Some((source_port % u16::from(MAX_LANES)) as u8),
            Some(Pairing::Arrival) if self.config.old_kernel_lanes == 1 => Some(0),
            Some(Pairing::Arrival) => {
                let taken = |lane: u8| {
                    p.lanes.get(usize::from(lane)).is_some_and(|l| l.conn.is_some())
                        || self.conns.of_peer(peer).any(|(i, c)| {
                            Some(i) != but && c.phase == Phase::Handshake && !c.any_lane && c.lane == lane
                        })
                };
                (0..self.config.old_kernel_lanes).find(|lane| !taken(*lane))
            }
        };
        self.peers[peer as usize].grow(lane.unwrap_or(0), self.config.first_sequence);
        lane
    }

    /// The first message on an accepted connection shows a kernel: finds the lane that it is for. Returns false if that shows only
    /// once a lane has lost its connection; until then it waits, unread.
    pub(super) fn find_lane(&mut self, conn: ConnId) -> bool {
        let Some(c) = self.conns.get(conn) else { return false };
        let (peer, port, given) = (c.peer, c.source_port, c.lane_given);
        let by_arrival = self.peers[peer as usize].pairing == Some(Pairing::Arrival);
        let keeps = given && by_arrival && self.config.old_kernel_lanes > 1 && !c.any_lane;
        // A lane may have become free since all were taken.
        let lane = if keeps { Some(c.lane) } else { self.kernel_lane(peer, port, Some(conn.index)) };
        let Some(c) = self.conns.get_mut(conn) else { return false };
        c.any_lane = lane.is_none();
        c.lane = lane.unwrap_or(0);
        if lane.is_none() {
            c.phase = Phase::Parked;
            c.paused = true;
            let p = &mut self.peers[peer as usize];
            p.spare.push_back(conn.index);
            // The kernel has lost one that we believe in: whatever is written there makes it say so.
            for conn in p.lanes.iter().filter_map(|l| l.conn).collect::<Vec<_>>() {
                if let Some(c) = self.conns.at_mut(conn) {
                    c.map_due = true;
                    self.mark_ready(conn);
                }
            }
        }
        lane.is_some()
    }

    /// Accepted connections of the same lane that are older and have said nothing: they stand before this one.
    pub(super) fn silent_before(&self, conn: ConnId) -> Vec<u32> {
        let Some(c) = self.conns.get(conn).filter(|c| !c.dialed && !c.is_own()) else { return Vec::new() };
        let by_arrival = self.peers[c.peer as usize].pairing == Some(Pairing::Arrival);
        let same_lane = |o: &super::connection::Conn| {
            if by_arrival { o.lane == c.lane } else { o.source_port % 8 == c.source_port % 8 }
        };
        let silent = |o: &super::connection::Conn| {
            o.phase == Phase::Handshake
                && o.identity.is_none()
                && !o.dialed
                && !o.any_lane
                && o.order < c.order
        };
        self.conns.of_peer(c.peer).filter(|(_, o)| silent(o) && same_lane(o)).map(|(i, _)| i).collect()
    }

    /// Connections that are to be read before the first data of this one, so that no pair of sockets is overtaken: what a kernel sends
    /// on another lane than before is younger than what TCP holds of the first. Before its version is known, any older connection
    /// may have carried the same lane.
    pub(super) fn read_before(&self, conn: ConnId) -> Vec<ConnId> {
        let Some(c) = self.conns.get(conn) else { return Vec::new() };
        let p = &self.peers[c.peer as usize];
        let mut others: Vec<u32> = match p.pairing {
            Some(Pairing::Arrival) => {
                let apart = |i: u32, o: &super::connection::Conn| {
                    o.phase == Phase::Draining
                        && o.order < c.order
                        && p.lanes[usize::from(o.lane)].conn != Some(i)
                };
                self.conns.of_peer(c.peer).filter(|(i, o)| apart(*i, o)).map(|(i, _)| i).collect()
            }
            // Even a newer one: it may repeat what the kernel held this lane back for. The first lane itself waits for none but those
            // that it left, so that no two wait for each other.
            Some(Pairing::SourcePort) if c.lane > 0 => p.lanes[0].conn.into_iter().collect(),
            Some(Pairing::SourcePort) => Vec::new(),
            None => {
                let before = |o: &super::connection::Conn| {
                    o.order < c.order
                        && (o.phase == Phase::Carrying || o.phase == Phase::Handshake && !o.dialed)
                };
                self.conns.of_peer(c.peer).filter(|(_, o)| before(o)).map(|(i, _)| i).collect()
            }
        };
        if c.lane == 0 {
            others.extend(self.conns.of_peer(c.peer).filter(|(_, o)| o.misplaced).map(|(i, _)| i));
        }
        others.into_iter().filter_map(|o| self.conns.id(o)).collect()
    }

    /// All that there was on a connection has been read: those that waited for it go on.
    pub(super) fn was_read(&mut self, peer: u32, read: ConnId) {
        let waiting: Vec<u32> =
            self.conns.of_peer(peer).filter(|(_, c)| c.after.contains(&read)).map(|(i, _)| i).collect();
        for index in waiting {
            let Some(conn) = self.conns.id(index) else { continue };
            let Some(c) = self.conns.get_mut(conn) else { continue };
            c.after.retain(|a| *a != read);
            self.go_on(conn);
        }
    }

    /// What a kernel's handshake message tells about lanes. Returns whether the connection is still for its lane.
    pub(super) fn kernel_handshake(
        &mut self,
        now: Time,
        conn: ConnId,
        header: &Header,
        shown: &HandshakeExtensions,
    ) -> bool {
        let pairing = if shown.source_port_lane { Pairing::SourcePort } else { Pairing::Arrival };
        let pong = header.is_handshake_pong();
        let Some(c) = self.conns.get_mut(conn) else { return false };
        c.pairing = Some(pairing);
        if pong {
            c.pongs = c.pongs.saturating_add(1);
        }
        if c.phase == Phase::Draining && c.generation.flatten().is_some() {
            // Of the past perhaps: but from now on the present one has to show itself.
            let (peer, identity, generation) = (c.peer, Identity::Kernel, c.generation);
            let known = &mut self.peers[peer as usize].incarnation;
            if known.is_none_or(|i| i.identity == identity && i.generation.flatten().is_none()) {
                *known = Some(Incarnation { identity, generation });
                self.hold_others(now, peer);
            }
            return true;
        }
        if c.phase != Phase::Carrying {
            return true;
        }
        let (peer, dialed) = (c.peer, c.dialed);
        let upper = dialed && c.lane > 0;
        let restarted = self.adopt(now, conn);
        self.set_pairing(now, peer, pairing);
        // Kernels ping on their first lane only: it has taken the connection for that.
        if upper && (restarted || !pong) {
            self.leave_upper(now, peer, conn);
            return false;
        }
        let Some(c) = self.conns.get_mut(conn) else { return false };
        if pong {
            c.needs_pong = false;
        }
        if c.phase != Phase::Carrying {
            return true;
        }
        let (lane, told) = (c.lane, c.told_in);
        let known = pong && told.is_some_and(|ping| c.pongs >= ping);
        if !self.offers_more() {
            return true;
        }
        let dials_all = self.dials_all(peer);
        let p = &mut self.peers[peer as usize];
        p.agreed |= known || dials_all;
        if lane == 0
            && told.is_none()
            && !p.agreed
            && (pong || !dialed)
            && let Some(c) = self.conns.get_mut(conn)
        {
            c.tell_due = true;
            self.mark_ready(conn.index);
        }
        if self.peers[peer as usize].agreed {
            self.use_lanes(peer, self.offered(pairing));
        }
        true
    }

    /// Whether the kernel has dialled the highest of the lanes that we offer: it knows them all.
    fn dials_all(&self, peer: u32) -> bool {
        let p = &self.peers[peer as usize];
        let highest = usize::from(self.config.lanes) - 1;
        let carries = |conn| self.conns.at(conn).is_some_and(|c| c.phase == Phase::Carrying);
        p.pairing == Some(Pairing::SourcePort)
            && !p.we_dial
            && highest > 0
            && p.lanes.get(highest).is_some_and(|l| !l.stale && l.conn.is_some_and(carries))
    }

    /// A kernel has kept silent on a connection, or about how it goes about lanes.
    pub(super) fn grace_over(&mut self, now: Time, conn: ConnId) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        if c.phase == Phase::Handshake && c.identity.is_none() {
            // On an upper lane it may have nothing to say: one map serves all lanes, and our ping has a number that it knows.
            (c.identity, c.assumed) = (Some(Identity::Kernel), true);
            self.try_carry(now, conn);
            return;
        }
        if c.phase != Phase::Carrying || c.is_own() {
            return;
        }
        // It answers no pings.
        let peer = c.peer;
        let p = &self.peers[peer as usize];
        if p.pairing.is_none() {
            // One that uses several lanes remembers them from before.
            let several = p.lanes.iter().filter(|l| l.conn.is_some()).count() > 2;
            let pairing = if several { Pairing::SourcePort } else { Pairing::Arrival };
            self.set_pairing(now, peer, pairing);
        }
    }

    fn set_pairing(&mut self, now: Time, peer: u32, pairing: Pairing) {
        let p = &mut self.peers[peer as usize];
        let before = p.pairing.replace(pairing);
        if before == Some(pairing) {
            return;
        }
        p.agreed = false;
        self.use_lanes(peer, 1);
        self.note_remembered(peer);
        match pairing {
            Pairing::Arrival if !self.peers[peer as usize].we_dial => self.gather(now, peer),
            Pairing::Arrival => {}
            Pairing::SourcePort => self.wait_for_fewer(peer),
        }
    }

    /// Each connection's lane is known now: those that waited for others which cannot have carried it go on. One of those might wait
    /// for them.
    fn wait_for_fewer(&mut self, peer: u32) {
        let waiting: Vec<u32> =
            self.conns.of_peer(peer).filter(|(_, c)| !c.after.is_empty()).map(|(i, _)| i).collect();
        for conn in waiting.into_iter().filter_map(|i| self.conns.id(i)).collect::<Vec<_>>() {
            let still = self.read_before(conn);
            if let Some(c) = self.conns.get_mut(conn) {
                c.after.retain(|a| still.contains(a));
                self.go_on(conn);
            }
        }
    }

    /// Reads a connection on that waits for none any more.
    fn go_on(&mut self, conn: ConnId) {
        if let Some(c) = self.conns.get_mut(conn)
            && c.after.is_empty()
            && matches!(c.phase, Phase::Carrying | Phase::Draining)
        {
            c.paused = false;
            self.actions.push_back(Action::Resume { conn });
        }
    }

    fn use_lanes(&mut self, peer: u32, count: u8) {
        let p = &mut self.peers[peer as usize];
        let before = p.count;
        p.set_count(count, self.config.first_sequence);
        if count < before {
            self.settle_lanes(peer);
        }
    }

    /// A kernel whose connections were taken for those of several lanes has one, or pairs them by arrival: the first one is lane 0,
    /// and with one lane each displaces those before it.
    fn gather(&mut self, now: Time, peer: u32) {
        let lanes = &self.peers[peer as usize].lanes;
        let mut carrying: Vec<(u64, u32)> = lanes
            .iter()
            .skip(1)
            .filter_map(|l| l.conn)
            .filter_map(|i| Some((self.conns.at(i).filter(|c| !c.dialed)?.order, i)))
            .collect();
        carrying.sort_unstable();
        if self.config.old_kernel_lanes > 1 {
            carrying.truncate(usize::from(lanes[0].conn.is_none()));
        }
        if self.config.old_kernel_lanes == 1 {
            self.unseat(peer);
        }
        let first = self.peers[peer as usize].lanes[0].conn;
        let first = first.and_then(|c| self.conns.at(c)).map_or(0, |c| c.order);
        for (order, index) in carrying {
            if order < first {
                self.read_apart(peer, index);
            } else {
                self.move_down(peer, index);
            }
        }
        let first = &self.peers[peer as usize].lanes[0];
        if first.conn.is_none() && !first.parked.is_empty() {
            self.next_parked(now, peer, 0);
        }
    }

    /// Connections that have said nothing stand before the newest, and before the one that carries lane 0, if they are older.
    fn unseat(&mut self, peer: u32) {
        let spoken = |c: &super::connection::Conn| !c.dialed && c.identity.is_some();
        let newest =
            self.conns.of_peer(peer).filter(|(_, c)| spoken(c)).map(|(_, c)| c.order).max().unwrap_or(0);
        let first = self.peers[peer as usize].lanes[0].conn;
        let order = first.and_then(|i| self.conns.at(i)).map_or(0, |c| c.order);
        let silent = |c: &super::connection::Conn| {
            !c.dialed && c.phase == Phase::Handshake && c.identity.is_none() && c.order < newest
        };
        let mut waiting: Vec<u32> =
            self.conns.of_peer(peer).filter(|(_, c)| silent(c)).map(|(i, _)| i).collect();
        for index in &waiting {
            if let Some(c) = self.conns.at_mut(*index) {
                (c.phase, c.paused, c.lane) = (Phase::Parked, true, 0);
            }
        }
        let older = waiting.iter().any(|i| self.conns.at(*i).is_some_and(|c| c.order < order));
        if let Some(index) = first.filter(|_| older)
            && let Some(c) = self.conns.at_mut(index)
            && c.phase == Phase::Carrying
        {
            (c.phase, c.paused) = (Phase::Parked, true);
            c.after.clear();
            self.handshakes += 1;
            self.local.connections -= 1;
            let lane = &mut self.peers[peer as usize].lanes[0];
            (lane.conn, lane.resend) = (None, 0);
            waiting.push(index);
        }
        self.park(peer, 0, waiting);
    }

    /// Has an older connection than lane 0's present one, and of that lane too, read to its end beside it: the kernel has left it.
    fn read_apart(&mut self, peer: u32, index: u32) {
        let Some(c) = self.conns.at_mut(index) else { return };
        let from = usize::from(std::mem::take(&mut c.lane));
        let (rx, parked) = self.vacate(peer, from);
        self.local.connections -= 1;
        let first = &mut self.peers[peer as usize].lanes[0];
        first.rx = first.rx.max(rx);
        let present = first.conn.filter(|_| !parked.is_empty());
        self.park(peer, 0, parked);
        self.read_out(index);
        present.into_iter().for_each(|present| self.read_out(present));
    }

    /// Takes a lane above 0 out of use. Returns the number that would have come next, and the connections that wait for the lane, for lane 0.
    fn vacate(&mut self, peer: u32, from: usize) -> (u64, VecDeque<u32>) {
        let p = &mut self.peers[peer as usize];
        let lane = &mut p.lanes[from];
        (lane.conn, lane.resend) = (None, 0);
        let (rx, parked, next_tx) =
            (std::mem::take(&mut lane.rx), std::mem::take(&mut lane.parked), lane.next_tx);
        // Pongs, unless the kernel says of lanes what it denied before.
        let gone = lane.drop_unacked_from(0, &mut self.released);
        p.lanes[0].next_tx = p.lanes[0].next_tx.max(next_tx);
        for u in gone {
            self.ended(peer, &u, Outcome::Unknown);
        }
        self.settle_lanes(peer);
        for index in &parked {
            if let Some(c) = self.conns.at_mut(*index) {
                c.lane = 0;
            }
        }
        (rx, parked)
    }

    /// Makes a connection that carries a lane above 0, which is not in use any more, lane 0's.
    fn move_down(&mut self, peer: u32, index: u32) {
        let Some(c) = self.conns.at_mut(index) else { return };
        let from = usize::from(std::mem::take(&mut c.lane));
        let (rx, parked) = self.vacate(peer, from);
        let first = &mut self.peers[peer as usize].lanes[0];
        match first.conn {
            None if first.parked.is_empty() => {
                (first.conn, first.rx, first.resend) = (Some(index), rx, 0);
                first.dial_at = None;
                self.park(peer, 0, parked);
                self.mark_ready(index);
                if !self.peers[peer as usize].lanes[0].parked.is_empty() {
                    self.read_out(index);
                }
            }
            old => {
                if let Some(c) = self.conns.at_mut(index) {
                    c.phase = Phase::Parked;
                    c.paused = true;
                    c.after.clear();
                    self.handshakes += 1;
                    self.local.connections -= 1;
                }
                self.park(peer, 0, parked.into_iter().chain([index]));
                if let Some(old) = old {
                    self.read_out(old);
                }
            }
        }
        self.want(peer);
    }

    /// Makes connections wait for a lane, oldest first.
    pub(super) fn park(&mut self, peer: u32, lane: usize, conns: impl IntoIterator<Item = u32>) {
        let order = |i: &u32| self.conns.at(*i).map_or(0, |c| c.order);
        let parked = &mut self.peers[peer as usize].lanes[lane].parked;
        parked.extend(conns);
        parked.make_contiguous().sort_by_key(order);
    }

    /// A kernel that knows nothing of lanes has taken a connection of an upper lane for its first one's, and would take the next one
    /// as well: ends all that are not settled, without losing what comes. The first lane is dialled again before them.
    pub(super) fn leave_upper(&mut self, now: Time, peer: u32, taken: ConnId) {
        if let Some(c) = self.conns.get(taken) {
            let rx = &mut self.peers[peer as usize].lanes[usize::from(c.lane)].rx;
            let rx = std::mem::take(rx);
            if c.accepted {
                self.peers[peer as usize].misplaced_rx = rx;
            }
        }
        let upper: Vec<(u32, Phase)> = self
            .conns
            .of_peer(peer)
            .filter(|(i, c)| {
                let unsettled = c.phase == Phase::Handshake || c.phase == Phase::Carrying && c.needs_pong;
                c.dialed
                    && !c.knock
                    && c.lane > 0
                    && (unsettled || c.phase == Phase::Connecting || *i == taken.index)
            })
            .map(|(i, c)| (i, c.phase))
            .collect();
        for (index, phase) in upper {
            let Some(conn) = self.conns.id(index) else { continue };
            if phase == Phase::Connecting {
                self.end(now, conn, Some((CloseMode::Now, DropReason::OtherLane)));
            } else {
                self.leave(conn);
            }
        }
    }

    fn leave(&mut self, conn: ConnId) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        c.phase = Phase::Closing;
        c.misplaced = true;
        c.after.clear();
        c.paused = false;
        let (peer, lane) = (self.peers[c.peer as usize].address, Some(c.lane));
        let (mode, reason) = (CloseMode::Orderly, DropReason::OtherLane);
        self.actions.push_back(Action::Close { conn, peer, lane, mode, reason });
    }

    /// Whether a lane above 0 of a kernel may be dialled: its first lane carries, and on that very connection it has shown itself as the life
    /// that knows how many lanes there are. A kernel that does not know takes whatever comes first for its first lane.
    pub(super) fn may_dial_upper(&self, peer: u32, lane: u8) -> bool {
        let p = &self.peers[peer as usize];
        let first = p.lanes[0].conn.and_then(|c| self.conns.at(c));
        lane < p.count
            && p.agreed
            && first.is_some_and(|c| c.phase == Phase::Carrying && c.pairing.is_some())
            && (p.pairing == Some(Pairing::SourcePort) || p.lanes[usize::from(lane) - 1].conn.is_some())
    }

    /// Tells, once, that a kernel dials lanes that we do not offer.
    fn note_remembered(&mut self, peer: u32) {
        let offered = self.config.lanes;
        let p = &mut self.peers[peer as usize];
        if p.we_dial || p.warned || p.pairing != Some(Pairing::SourcePort) {
            return;
        }
        let Some(lane) =
            p.lanes.iter().rposition(|l| l.conn.is_some()).filter(|l| *l >= usize::from(offered))
        else {
            return;
        };
        p.warned = true;
        let peer = p.address;
        self.actions.push_back(Action::PeerRemembersLanes { peer, lane: lane as u8, lanes: offered });
    }

    /// Prepares for what a kernel's connection that carries a lane from now on may still have to show.
    pub(super) fn carries_kernel(&mut self, now: Time, conn: ConnId) {
        let Some(c) = self.conns.get_mut(conn) else { return };
        let (peer, lane, dialed) = (c.peer, c.lane, c.dialed);
        c.needs_pong = dialed && lane > 0;
        if c.needs_pong {
            self.timers.set(now + self.config.handshake_timeout, Timer::Handshake(conn));
        }
        if c.needs_pong && c.assumed {
            // It was silent long enough.
            (c.hold_until, c.probing, c.tell_due) = (None, true, true);
        }
        let p = &mut self.peers[peer as usize];
        match p.pairing {
            None if !dialed => {
                self.timers.set(now + self.config.identity_grace, Timer::Grace(conn));
            }
            // It shows no generation, so it may be another life, which knows nothing.
            Some(Pairing::Arrival) if lane == 0 => p.agreed = false,
            _ => {}
        }
        self.note_remembered(peer);
        if self.dials_all(peer) {
            self.peers[peer as usize].agreed = true;
            self.use_lanes(peer, self.config.lanes);
        }
    }
}
