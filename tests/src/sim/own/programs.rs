//! What programs do on a host with a real node.

use std::net::SocketAddr;
use std::sync::Arc;

use rds_core::info::Counter;
use rds_core::proto::{BindError, Payload, SendError, SocketId, Token};
use rds_core::zerocopy::Share;

use super::{OwnHost, time};
use crate::sim::coverage::Seen;
use crate::sim::ctx::Ctx;
use crate::sim::inbox::Socket;
use crate::sim::ledger;

impl OwnHost {
    /// Binds a port.
    pub fn bind(&mut self, cx: &mut Ctx, port: u16, exact: bool) -> Option<SocketId> {
        let node = self.node.as_mut()?;
        match node.bind(port) {
            Ok((id, bound)) => {
                if port != 0 && bound != port {
                    cx.fail(format!("host {} binds {bound} where {port} was asked for", self.index));
                }
                let book = cx.ledger.add_sock(exact);
                self.sockets
                    .map
                    .insert(id, Socket::new(bound, book, Arc::new(Share::new(&self.pins.budget))));
                Some(id)
            }
            Err(BindError::ShuttingDown) => None,
            Err(e) => {
                cx.fail(format!("host {} cannot bind {port}: {e}", self.index));
                None
            }
        }
    }

    /// Sets a socket's buffers.
    pub fn set_buffers(&mut self, cx: &mut Ctx, id: SocketId, send: u64, receive: u64) {
        let (Some(node), Some(s)) = (self.node.as_mut(), self.sockets.map.get_mut(&id)) else { return };
        (s.send_buffer, s.receive_buffer, s.judged) = (send, receive, false);
        node.set_send_buffer(id, send);
        node.set_receive_buffer(id, receive);
        self.output(cx);
    }

    /// Sends one message. Returns how it was refused, if it was.
    pub fn send(
        &mut self,
        cx: &mut Ctx,
        id: SocketId,
        dst: usize,
        dport: u16,
        len: usize,
    ) -> Result<usize, Option<SendError>> {
        let (Some(node), Some(s)) = (self.node.as_mut(), self.sockets.map.get_mut(&id)) else {
            return Err(None);
        };
        let tracked = cx.ledger.socks[s.book].exact || cx.rng.bool();
        let number = cx.ledger.next_id();
        let bytes = ledger::payload(number, len);
        let destination = SocketAddr::new(cx.net.address_of(dst), dport);
        let token = tracked.then_some(Token(number as u64));
        let (owned, pieces);
        let lends = self.pins.sending.lends;
        let lent = lends == 255 || cx.chance(if len < 4096 { lends / 3 } else { lends });
        let told = lent && (lends == 255 || cx.rng.u8(0..8) > 0);
        let payload = match cx.rng.u8(0..3) {
            _ if lent => match self.pins.lend(cx, &s.share, number, bytes, told) {
                Some(chunk) => Payload::Owned(chunk),
                None => return Err(None),
            },
            0 => Payload::Copy(&bytes),
            1 => {
                owned = bytes.split_at(cx.rng.usize(0..=len));
                pieces = [std::io::IoSlice::new(owned.0), std::io::IoSlice::new(owned.1)];
                Payload::Gather(&pieces)
            }
            _ => Payload::Owned(bytes.clone().into()),
        };
        let before = cx.ledger.socks[s.book].outstanding;
        let many = cx.ledger.socks[s.book].messages >= 1024;
        let exact = cx.ledger.socks[s.book].exact;
        let result = node.send(id, destination, payload, token, &mut self.sockets);
        let s = self.sockets.map.get_mut(&id).expect("found above");
        let outcome = match result {
            Ok(()) => {
                cx.seen.messages += 1;
                if exact && before >= s.send_buffer && dst != self.index {
                    cx.fail(format!(
                        "host {} port {} takes a message with {before} bytes outstanding in a buffer of {}",
                        self.index, s.port, s.send_buffer
                    ));
                }
                let (book, port) = (s.book, s.port);
                let got =
                    cx.ledger.accepted(cx.now, &cx.facts, self.index, book, port, dst, dport, len, tracked);
                cx.ledger.messages[got].lent = told;
                cx.tell(|| {
                    format!(
                        "host {} port {port} sends message {got} to {destination}, {len} bytes",
                        self.index
                    )
                });
                if dst == self.index {
                    let bound = self.sockets.map.values().any(|s| s.port == dport);
                    cx.ledger.messages[got].dropped = !bound;
                }
                Ok(got)
            }
            Err(rejected) => {
                if rejected.payload.len() != len {
                    cx.fail(format!("host {} gives back another payload than it refused", self.index));
                }
                cx.tell(|| {
                    format!(
                        "host {} port {} cannot send to {destination}: {:?}",
                        self.index, s.port, rejected.error
                    )
                });
                match rejected.error {
                    SendError::Full => {
                        cx.see(Seen::SendFull);
                        if exact && before < s.send_buffer && !many {
                            cx.fail(format!(
                                "host {} port {} is full with {before} bytes outstanding in a buffer of {}",
                                self.index, s.port, s.send_buffer
                            ));
                        }
                        s.waits_for_room = true;
                    }
                    SendError::Congested => {
                        cx.see(Seen::CongestedSend);
                        let known = cx.watch.maps.get(&(self.index, dst)).is_some_and(|m| m.contains(dport));
                        // With several lanes a node may pass over the greeting of a connection that stood before one that has
                        // spoken already; whether that blocks anybody for good shows in the end.
                        let lanes = cx.facts[self.index].lanes.min(cx.facts[dst].lanes);
                        if !known && dst != self.index && lanes == 1 {
                            cx.fail(format!(
                                "host {} thinks {destination} congested, which its map does not say",
                                self.index
                            ));
                        }
                        if !s.waits_for_port.contains(&destination) {
                            s.waits_for_port.push(destination);
                        }
                    }
                    SendError::TooLarge { limit } if limit >= len as u64 => {
                        cx.fail(format!("host {} refuses {len} bytes as larger than {limit}", self.index));
                    }
                    _ => {}
                }
                let error = rejected.error;
                if let Payload::Owned(chunk) = rejected.payload
                    && chunk.reclaim().is_none()
                {
                    cx.fail(format!("host {} gives a payload back that it has kept", self.index));
                }
                Err(Some(error))
            }
        };
        self.output(cx);
        outcome
    }

    /// Takes up to `most` messages of a socket, and reports it as the contract says.
    pub fn take(&mut self, cx: &mut Ctx, id: SocketId, most: usize) {
        let Some(s) = self.sockets.map.get_mut(&id) else { return };
        for _ in 0..most {
            if !s.take() {
                break;
            }
        }
        if s.unreported.1 > 0 && (s.congested || self.pressed || s.unreported.0 >= s.receive_buffer / 4) {
            let (bytes, messages) = std::mem::take(&mut s.unreported);
            s.believed -= bytes;
            if let Some(node) = self.node.as_mut() {
                node.consumed(id, bytes, messages);
            }
        }
        self.output(cx);
    }

    /// Ends all connections in an orderly way, as a process does before it exits.
    pub fn say_goodbye(&mut self, cx: &mut Ctx) {
        if let Some(node) = self.node.as_mut() {
            node.begin_shutdown();
            node.close_connections(time(cx.now));
            self.output(cx);
        }
    }

    /// Asks to be told when nothing of the socket is on its way.
    pub fn watch_drained(&mut self, cx: &mut Ctx, id: SocketId) {
        let (Some(node), Some(s)) = (self.node.as_mut(), self.sockets.map.get_mut(&id)) else { return };
        s.waits_for_drain = !node.watch_drained(id);
        self.output(cx);
    }

    /// Cancels a socket's messages to one destination, or to all.
    pub fn cancel(&mut self, cx: &mut Ctx, id: SocketId, destination: Option<(usize, u16)>) {
        let (Some(node), Some(s)) = (self.node.as_mut(), self.sockets.map.get(&id)) else { return };
        for m in &mut cx.ledger.messages {
            let hit =
                m.sock == s.book && destination.is_none_or(|(dst, port)| m.dst == dst && m.dport == port);
            if hit && m.outcome.is_none() {
                m.cancelled = true;
            }
        }
        let address = destination.map(|(dst, port)| SocketAddr::new(cx.net.address_of(dst), port));
        node.cancel(id, address);
        cx.tell(|| format!("host {} port {} cancels {address:?}", self.index, s.port));
        self.output(cx);
    }

    /// Closes a socket.
    pub fn close_socket(&mut self, cx: &mut Ctx, id: SocketId, drain: bool) {
        let (Some(node), Some(s)) = (self.node.as_mut(), self.sockets.map.get(&id)) else { return };
        if !drain {
            for m in cx.ledger.messages.iter_mut().filter(|m| m.sock == s.book && m.outcome.is_none()) {
                m.cancelled = true;
            }
        }
        cx.tell(|| format!("host {} closes port {}", self.index, s.port));
        cx.ledger.close(s.book);
        node.close(id, drain);
        self.sockets.map.remove(&id);
        self.output(cx);
    }

    /// Value of one of the node's counters.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.node.as_ref().map_or(0, |n| n.snapshot(false).counters.get(counter))
    }
}
