//! Doing what the node wants done: connections, and bytes to be written.

use std::net::IpAddr;
use std::rc::Rc;

use rds_core::buffer::Chunk;
use rds_core::proto::{Action, CloseMode, ConnId, DropReason};
use rds_core::zerocopy::Stop;

use super::{Held, ORDERLY_DEADLINE, OwnHost, Path, STEPS_PER_RUN, time};
use crate::sim::coverage::Seen;
use crate::sim::ctx::{Ctx, HostKind};
use crate::sim::net::{MS, Notice};
use crate::sim::watch;

impl OwnHost {
    /// Does all that the node wants done.
    pub fn output(&mut self, cx: &mut Ctx) {
        self.deliveries(cx);
        let mut steps = 0;
        let mut idle = 0;
        loop {
            steps += 1;
            if steps > STEPS_PER_RUN || idle > 1000 {
                cx.fail(format!("host {} never comes to rest: actions or transmits without end", self.index));
                return;
            }
            let Some(node) = self.node.as_mut() else { return };
            if cx.broken.is_some() {
                return;
            }
            if let Some(action) = node.poll_action(time(cx.now)) {
                self.act(cx, action);
            } else if let Some(conn) = node.poll_transmit() {
                if self.transmit(cx, conn) { idle = 0 } else { idle += 1 }
            } else {
                self.hear(cx);
                return;
            }
        }
    }

    pub(super) fn act(&mut self, cx: &mut Ctx, action: Action) {
        cx.tell(|| format!("host {}: {action:?}", self.index));
        cx.digest(0x100);
        match action {
            Action::Connect { conn, peer, lane, port_step } => self.connect(cx, conn, peer, lane, port_step),
            Action::Close { conn, mode, reason, .. } => self.close(cx, conn, &mode, &reason),
            Action::Drain { conn } => {
                if let Some(c) = self.conns.get_mut(&conn) {
                    cx.see(Seen::DrainOld);
                    self.read_out = true;
                    c.draining = true;
                    // It may have been throttled: now everything is taken.
                    c.stopped = false;
                    c.resumed = true;
                    self.read(cx, conn);
                }
            }
            Action::Resume { conn } => {
                if let Some(c) = self.conns.get_mut(&conn) {
                    cx.see(Seen::Resumed);
                    c.stopped = false;
                    c.resumed = true;
                    let end = c.end;
                    if self.read(cx, conn) {
                        self.pending.push_back(Notice::Readable(end));
                    }
                }
            }
            Action::QueryUnacked { conn } => {
                if let Some(c) = self.conns.get(&conn) {
                    let unacked = cx.net.unacked(c.end);
                    self.node.as_mut().expect("it acts").tcp_unacked(time(cx.now), conn, unacked);
                }
            }
            Action::Writable { socket } => {
                if let Some(s) = self.sockets.map.get_mut(&socket) {
                    s.waits_for_room = false;
                    cx.see(Seen::SendWritable);
                }
            }
            Action::Drained { socket } => {
                if let Some(s) = self.sockets.map.get_mut(&socket) {
                    s.waits_for_drain = false;
                    cx.see(Seen::Drained);
                }
            }
            Action::Uncongested { socket, destination } => {
                if let Some(s) = self.sockets.map.get_mut(&socket) {
                    s.waits_for_port.retain(|d| *d != destination);
                    cx.see(Seen::Uncongested);
                }
            }
            Action::Congestion { socket, congested } => {
                cx.see(if congested { Seen::CongestionSet } else { Seen::CongestionCleared });
                if let Some(s) = self.sockets.map.get_mut(&socket) {
                    s.congested = congested;
                    let report = std::mem::take(&mut s.unreported);
                    if congested && report.1 > 0 {
                        s.believed -= report.0;
                        self.node.as_mut().expect("it acts").consumed(socket, report.0, report.1);
                    } else {
                        s.unreported = report;
                    }
                }
            }
            Action::Pressure { on } => {
                cx.see(if on { Seen::PressureOn } else { Seen::PressureOff });
                self.pressed = on;
                for (id, s) in self.sockets.map.iter_mut().filter(|_| on) {
                    let report = std::mem::take(&mut s.unreported);
                    s.believed -= report.0;
                    if report.1 > 0 {
                        self.node.as_mut().expect("it acts").consumed(*id, report.0, report.1);
                    }
                }
            }
            Action::Completed { token, outcome, .. } => watch::completed(cx, self.index, token.0, outcome),
            Action::PeerRemembersLanes { .. } => cx.see(Seen::RemembersLanes),
            Action::PeerUp { peer, lanes, restarted, .. } => {
                if let Some(peer) = cx.host_at(peer) {
                    if lanes > 1 && cx.facts[peer].kind.is_kernel() {
                        cx.see(Seen::KernelFanOut);
                    }
                    cx.watch.lanes.insert((self.index, peer), lanes);
                }
                if restarted {
                    cx.see(Seen::RestartSeen);
                }
                if lanes > 1 {
                    cx.see(Seen::LaneFanOut);
                }
            }
            _ => {}
        }
    }

    pub(super) fn connect(&mut self, cx: &mut Ctx, conn: ConnId, peer: IpAddr, lane: u8, step: u16) {
        let Some(host) = cx.host_at(peer) else {
            cx.fail(format!("host {} dials {peer}, where nobody is", self.index));
            return;
        };
        if self.knocked.remove(&host) {
            cx.see(Seen::KnockAnswered);
        }
        if peer.is_ipv6() {
            cx.see(Seen::Ipv6);
        }
        let end = cx.net.connect(cx.now, self.index, host, (step > 1).then_some((lane, step)));
        cx.watch.open(end, cx.facts[self.index].incarnation, cx.now, Some(lane));
        self.insert(conn, end, host);
    }

    pub(super) fn close(&mut self, cx: &mut Ctx, conn: ConnId, mode: &CloseMode, reason: &DropReason) {
        match reason {
            DropReason::HandshakeTimeout => cx.see(Seen::HandshakeTimeout),
            DropReason::Replaced => cx.see(Seen::Replaced),
            DropReason::Framing(_) => cx.see(Seen::FramingLost),
            DropReason::Limit => cx.see(Seen::RefusedByLimit),
            DropReason::OtherLane => cx.see(Seen::OtherLane),
            DropReason::PokeDone => cx.see(Seen::Knock),
            DropReason::AckBeyondSent { .. }
            | DropReason::WindowOverrun { .. }
            | DropReason::IdentityChanged => {
                let peer = self.conns.get(&conn).map(|c| c.peer);
                if peer.is_some_and(|p| cx.facts[p].kind == HostKind::Own) {
                    cx.fail(format!(
                        "host {} accuses host {peer:?} of breaking the protocol: {reason}",
                        self.index
                    ));
                }
            }
            _ => {}
        }
        let Some(c) = self.conns.get_mut(&conn) else { return };
        if c.writing {
            cx.see(Seen::WriteOutlivedClose);
        }
        match mode {
            CloseMode::Now => {
                let c = self.forget(conn).expect("found above");
                self.end_socket(cx, c.path);
            }
            CloseMode::Orderly => {
                if c.orderly.is_none() {
                    c.orderly = Some(cx.now + ORDERLY_DEADLINE);
                }
                c.stopped = false;
                c.fin = true;
                let (end, writing) = (c.end, c.writing);
                if !writing {
                    cx.net.shutdown(cx.now, end);
                }
                if self.read(cx, conn) {
                    self.pending.push_back(Notice::Readable(end));
                }
            }
        }
    }

    pub(super) fn orderly_deadlines(&mut self, cx: &mut Ctx) {
        let due: Vec<ConnId> = self
            .conns
            .iter()
            .filter(|(_, c)| c.orderly.is_some_and(|at| at <= cx.now))
            .map(|(id, _)| *id)
            .collect();
        for conn in due {
            if let Some(c) = self.forget(conn) {
                let unacked = cx.net.unacked(c.end);
                self.end_socket(cx, c.path);
                self.node.as_mut().expect("runs only while it is up").closed(
                    time(cx.now),
                    conn,
                    Some(unacked),
                );
                self.output(cx);
            }
        }
    }

    /// Transmits once; false if there was nothing after all.
    pub(super) fn transmit(&mut self, cx: &mut Ctx, conn: ConnId) -> bool {
        let Some(c) = self.conns.get_mut(&conn) else {
            cx.fail(format!("host {} wants to transmit on a connection that is closed", self.index));
            return false;
        };
        let most = if cx.chance(64) {
            cx.rng.usize(1..4096)
        } else if c.path.writer.borrow().pinned() {
            // So that the header of the next message is there to ride along.
            1280 << 10
        } else {
            256 << 10
        };
        let mut pieces = Vec::new();
        let node = self.node.as_mut().expect("it transmits");
        let total = node.begin_transmit(conn, most, &mut pieces);
        if total != pieces.iter().map(Chunk::len).sum::<usize>() {
            cx.fail(format!("host {}: begin_transmit miscounts its pieces", self.index));
            return false;
        }
        if total == 0 {
            return false;
        }
        if c.orderly.is_some() || c.fin {
            cx.fail(format!("host {} transmits on a connection that it has closed", self.index));
            return false;
        }
        let path = Rc::clone(&c.path);
        if cx.chance(self.temper.hold) {
            c.writing = true;
            let at = cx.now + cx.rng.u64(1..20 * MS);
            self.held.push(Held { at, conn, path, pieces, total });
        } else {
            self.write(cx, conn, &path, pieces, total);
        }
        true
    }

    fn write(&mut self, cx: &mut Ctx, conn: ConnId, path: &Rc<Path>, mut pieces: Vec<Chunk>, total: usize) {
        let end = path.end;
        let most = if cx.chance(self.temper.partial) { cx.rng.usize(0..=total) } else { total };
        let alive = self.conns.get(&conn).is_some_and(|c| c.end == end);
        // A writer that comes back to a connection that was closed meanwhile finds it broken.
        let wrote = path.write(cx, &mut pieces, most);
        drop(pieces);
        let written = wrote.bytes;
        if written < total {
            cx.see(Seen::PartialWrite);
        }
        if !alive && written > 0 {
            cx.fail(format!("host {} writes to a connection that it has closed", self.index));
        }
        cx.digest((end.link as u64) << 32 | written as u64);
        cx.tell(|| {
            format!("host {} writes {written} of {total} bytes to connection {}", self.index, end.link)
        });
        let starved = wrote.stop == Some(Stop::NoMemory);
        let blocked = starved || written < most || !alive || (written < total && !cx.net.has_room(end));
        if let Some(c) = self.conns.get_mut(&conn) {
            c.blocked = blocked;
            c.writing = false;
            if c.fin {
                cx.net.shutdown(cx.now, end);
            }
        }
        let node = self.node.as_mut().expect("it writes");
        node.end_transmit(time(cx.now), conn, written, blocked);
        // Room may have come between the write and this moment.
        if blocked && alive && cx.net.has_room(end) {
            self.pending.push_back(Notice::Writable(end));
        }
        if path.was_closed.get() && alive {
            // Another thread has closed it meanwhile.
            self.closed_elsewhere(cx, conn);
        }
        self.hear(cx);
    }

    pub(super) fn finish_held(&mut self, cx: &mut Ctx) {
        while let Some(i) = self.held.iter().position(|h| h.at <= cx.now) {
            let held = self.held.remove(i);
            self.write(cx, held.conn, &held.path, held.pieces, held.total);
            self.output(cx);
        }
    }
}
