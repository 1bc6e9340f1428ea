//! Reading: what comes goes to the node, and is held against the books.

use rds_core::proto::{ConnId, Received};

use super::{Conn, OwnHost, time};
use crate::sim::coverage::Seen;
use crate::sim::ctx::Ctx;
use crate::sim::net::{End, Read};
use crate::sim::watch;

impl OwnHost {
    /// Reads a connection; true if there is more to be read later.
    pub(super) fn read(&mut self, cx: &mut Ctx, conn: ConnId) -> bool {
        loop {
            let Some(c) = self.conns.get_mut(&conn) else { return false };
            if c.stopped || !c.stands || cx.broken.is_some() {
                return false;
            }
            let end = c.end;
            let draining = c.draining;
            let most = if cx.chance(self.temper.nibble) { cx.rng.usize(1..100) } else { 64 << 10 };
            let node = self.node.as_mut().expect("runs only while it is up");
            if c.rest.is_empty()
                && cx.chance(self.temper.target)
                && let Some(mut buffer) = node.take_target(conn)
            {
                let mut bytes = Vec::new();
                let read = cx.net.read(cx.now, end, most.min(buffer.missing()), &mut bytes);
                buffer.extend(&bytes);
                let received = node.return_target(time(cx.now), conn, buffer, &mut self.sockets);
                if let Read::Data(_) = read {
                    cx.see(Seen::Target);
                    self.fed(cx, conn, end, &bytes, received);
                    continue;
                }
                self.fed(cx, conn, end, &[], received);
                return self.ended(cx, conn, end, read);
            }
            let mut bytes = std::mem::take(&mut c.rest);
            let read = cx.net.read(cx.now, end, most, &mut bytes);
            // After `Resume` the node is to be called in any case.
            if bytes.is_empty() && !std::mem::take(&mut c.resumed) {
                return self.ended(cx, conn, end, read);
            }
            cx.digest((end.link as u64) << 32 | bytes.len() as u64);
            let received = node.receive(time(cx.now), conn, &bytes, &mut self.sockets);
            if received.consumed > bytes.len() {
                cx.fail(format!("host {}: receive used more than it was given", self.index));
                return false;
            }
            if let Some(c) = self.conns.get_mut(&conn) {
                c.rest = bytes[received.consumed..].to_vec();
            }
            bytes.truncate(received.consumed);
            self.fed(cx, conn, end, &bytes, received);
            if !draining && cx.chance(self.temper.nibble) && self.conns.contains_key(&conn) {
                return cx.net.is_readable(end);
            }
        }
    }

    /// A read gave nothing more.
    pub(super) fn ended(&mut self, cx: &mut Ctx, conn: ConnId, end: End, read: Read) -> bool {
        let Some(c) = self.conns.get_mut(&conn) else { return false };
        let node = self.node.as_mut().expect("runs only while it is up");
        if c.draining {
            c.draining = false;
            let unacked = cx.net.unacked(end);
            node.tcp_unacked(time(cx.now), conn, unacked);
            node.drained(time(cx.now), conn);
            self.output(cx);
            // Whatever it does with the connection, its end is reported if it is still there.
            return self.conns.contains_key(&conn) && cx.net.has_ended(end);
        }
        if read == Read::Nothing {
            return false;
        }
        if cx.watch.is_mid_message(end.peer()) {
            cx.see(Seen::CutMessage);
        }
        if c.orderly.is_some() {
            cx.see(Seen::OrderlyClose);
        }
        let Some(c) = self.forget(conn) else { return false };
        let unacked = cx.net.unacked(end);
        cx.tell(|| {
            format!("host {} finds connection {} ended: {read:?}, {unacked} unacked", self.index, end.link)
        });
        self.end_socket(cx, c.path);
        self.node.as_mut().expect("runs only while it is up").closed(time(cx.now), conn, Some(unacked));
        self.output(cx);
        false
    }

    pub(super) fn forget(&mut self, conn: ConnId) -> Option<Conn> {
        let c = self.conns.remove(&conn)?;
        self.by_end.remove(&c.end);
        Some(c)
    }

    /// Books what a call of `receive` did.
    pub(super) fn fed(&mut self, cx: &mut Ctx, conn: ConnId, end: End, bytes: &[u8], received: Received) {
        let draining = self.conns.get(&conn).is_some_and(|c| c.draining);
        let superseded = draining || self.conns.get(&conn).is_some_and(|c| c.orderly.is_some());
        match watch::consumed(cx, end, bytes, superseded) {
            Ok(passed) => {
                let homeless = self.conns.get(&conn).and_then(|c| c.homeless);
                self.hold_against_books(cx, end, &passed, draining, homeless);
                let between = cx.watch.in_between(end);
                if let Some(c) = self.conns.get_mut(&conn) {
                    let bound =
                        |h: &rds_core::wire::Header| self.sockets.map.values().any(|s| s.port == h.dport);
                    // A socket that comes while the payload is passed over does not get the message.
                    c.homeless =
                        between.filter(|h| c.homeless == Some(h.sequence) || !bound(h)).map(|h| h.sequence);
                }
            }
            // A stranger's garbage, or a node's: the writer's side complains about the latter.
            Err(text) => cx.tell(|| text),
        }
        if let Some(c) = self.conns.get_mut(&conn) {
            let stop = !received.more || !c.rest.is_empty();
            if stop && !c.stopped {
                c.stopped = true;
                cx.see(Seen::Throttled);
            }
        }
        self.output(cx);
    }

    pub(super) fn hold_against_books(
        &mut self,
        cx: &mut Ctx,
        end: End,
        passed: &[watch::Passed],
        draining: bool,
        homeless: Option<u64>,
    ) {
        self.deliveries(cx);
        let peer = cx.net.host_of(end.peer());
        for message in passed {
            let h = &message.header;
            if h.is_congestion_map() || h.sport == 0 || h.sport == 1 {
                continue;
            }
            let found = cx.ledger.find(peer, h.sport, self.index, h.dport, h.len as usize, &message.head);
            if draining && found.is_some() {
                cx.see(Seen::DrainedData);
            }
            let bound = self.sockets.map.values().any(|s| s.port == h.dport);
            if let Some(id) = found
                && (!bound || h.dport == 0 || homeless == Some(h.sequence))
                && cx.ledger.messages[id].deliveries.is_empty()
            {
                cx.ledger.messages[id].dropped = true;
                cx.see(if h.dport == 0 { Seen::Pong } else { Seen::NoSocket });
            }
        }
    }

    /// Holds what was delivered since the last call against the books.
    pub(super) fn deliveries(&mut self, cx: &mut Ctx) {
        if let Some(broken) = self.sockets.broken.take() {
            cx.fail(format!("host {}: {broken}", self.index));
        }
        for (socket, from, body) in std::mem::take(&mut self.sockets.fresh) {
            let Some(port) = self.sockets.map.get(&socket).map(|s| s.port) else { continue };
            let Some(src) = cx.host_at(from.ip()) else {
                cx.fail(format!("host {} delivers a message from {from}, where nobody is", self.index));
                return;
            };
            cx.tell(|| format!("host {} port {port} gets {} bytes from {from}", self.index, body.len()));
            if body.is_empty() {
                cx.see(Seen::EmptyMessage);
            }
            if src == self.index {
                cx.see(Seen::Local);
            }
            match cx.ledger.delivered(&cx.facts, src, from.port(), self.index, port, &body) {
                Ok(Some(id)) => {
                    let m = &cx.ledger.messages[id];
                    if m.cancelled {
                        cx.see(Seen::CancelledArrived);
                    }
                }
                Ok(None) => cx.see(Seen::Pong),
                Err(promise) => cx.fail(promise),
            }
        }
    }
}
