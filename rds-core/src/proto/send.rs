//! What programs hand in: sending, cancelling, closing.

use std::net::{IpAddr, SocketAddr};

use bytes::{BufMut, BytesMut};

use super::lane::{Queued, Stored};
use super::{Action, Body, Guarantee, Inbox, Node, Outcome, SendError, SocketId, Time, Token};
use crate::buffer::{Chunk, Filling, Memory, Span, View};
use crate::info::Counter;
use crate::wire::{PORT_ENGINE, PORT_PROBE};

/// Owned payloads up to this many bytes are copied all the same: that is cheaper than a slice of their own.
const OWNED_INLINE_MAX: usize = 512;
/// Payloads up to this many bytes are encoded behind their headers, many to a buffer; larger ones keep their own.
const INLINE_MAX: usize = 16 << 10;

/// The payload of a message to be sent.
#[derive(Debug)]
pub enum Payload<'a> {
    /// Copied before the call returns.
    Copy(&'a [u8]),
    /// Copied, piece after piece, before the call returns.
    Gather(&'a [std::io::IoSlice<'a>]),
    /// Copied before the call returns, out of memory that another process may change meanwhile.
    Shared(&'a Span),
    /// Kept until the message has ended; sent from where it lies.
    Owned(Chunk),
}

impl Payload<'_> {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Copy(b) => b.len(),
            Self::Gather(v) => v.iter().map(|s| s.len()).sum(),
            Self::Shared(span) => span.len(),
            Self::Owned(b) => b.len(),
        }
    }

    /// Whether it is empty; an empty message is a message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn write(&self, out: &mut BytesMut) {
        match self {
            Self::Copy(b) => out.put_slice(b),
            Self::Gather(v) => v.iter().for_each(|s| out.put_slice(s)),
            Self::Owned(b) => {
                b.mark_copied();
                b.append_to(out);
            }
            Self::Shared(span) => span.append_to(out),
        }
    }

    fn into_chunk(self) -> Chunk {
        match self {
            Self::Owned(b) => b,
            other => {
                let mut out = BytesMut::with_capacity(other.len());
                other.write(&mut out);
                out.freeze().into()
            }
        }
    }
}

/// A message that was not queued.
#[derive(Debug)]
pub struct Rejected<'a> {
    /// Why.
    pub error: SendError,
    /// The payload, untouched.
    pub payload: Payload<'a>,
}

/// Whether a message can be addressed to `address`.
pub(crate) fn is_unicast(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => !a.is_unspecified() && !a.is_multicast() && !a.is_broadcast(),
        // Link-local addresses mean nothing without an interface, which a node does not have.
        IpAddr::V6(a) => !a.is_unspecified() && !a.is_multicast() && !a.is_unicast_link_local(),
    }
}

impl Node {
    /// Queues a message. `inbox` serves a destination on this very node, which is delivered before this returns.
    ///
    /// A peer that cannot be reached is no error: the message is kept until it can, or is cancelled.
    ///
    /// # Errors
    /// [`Rejected`]: nothing was queued; it holds the reason and the payload. After `Full`, [`Action::Writable`] follows;
    /// after `Congested`, [`Action::Uncongested`].
    pub fn send<'a>(
        &mut self,
        socket: SocketId,
        destination: SocketAddr,
        payload: Payload<'a>,
        token: Option<Token>,
        inbox: &mut impl Inbox,
    ) -> Result<(), Rejected<'a>> {
        let len = payload.len();
        match self.admit(socket, destination, len as u64) {
            Err(error) => Err(Rejected { error, payload }),
            Ok((sport, None)) => {
                self.deliver_local(socket, sport, destination, &payload, token, inbox);
                if let Payload::Owned(bytes) = payload {
                    self.released.push(bytes);
                }
                Ok(())
            }
            Ok((sport, Some(peer))) => {
                self.enqueue(socket, sport, peer, destination.port(), payload, token);
                Ok(())
            }
        }
    }

    /// The checks of a send, in the kernel's order. Returns the source port and the peer; `None`: this very node.
    fn admit(
        &mut self,
        socket: SocketId,
        destination: SocketAddr,
        len: u64,
    ) -> Result<(u16, Option<u32>), SendError> {
        let address = destination.ip();
        let Some(s) = self.local.live(socket) else { return Err(SendError::Closed) };
        let (sport, limit) = (s.port, s.send_limit.min(u64::from(self.config.max_message)));
        if !is_unicast(address) {
            return Err(SendError::InvalidDestination);
        }
        if address.to_canonical().is_ipv4() != self.config.address.is_ipv4()
            || address.to_canonical() != address
        {
            return Err(SendError::FamilyMismatch);
        }
        if len > limit {
            return Err(SendError::TooLarge { limit });
        }
        if self.shutting_down {
            return Err(SendError::ShuttingDown);
        }
        if address == self.config.address {
            if self.local.map.contains(destination.port()) {
                self.local.watch_own_port(socket, destination.port());
                self.counters.add(Counter::CongSendError, 1);
                return Err(SendError::Congested);
            }
            return Ok((sport, None));
        }
        if !self.config.peers.outbound.allows(address) {
            return Err(SendError::NotAllowed);
        }
        let peer = self.peer_of(address).ok_or(SendError::TooManyPeers)?;
        let p = &mut self.peers[peer as usize];
        if p.map.contains(destination.port()) {
            p.waiters.insert((socket, destination.port()));
            self.counters.add(Counter::CongSendError, 1);
            self.want(peer);
            return Err(SendError::Congested);
        }
        let s = self.local.live(socket).ok_or(SendError::Closed)?;
        if !s.has_room() {
            s.want_writable = true;
            self.counters.add(Counter::SendQueueFull, 1);
            self.query_unacked(peer);
            self.forget_stranger(Time::ZERO, peer);
            return Err(SendError::Full);
        }
        Ok((sport, Some(peer)))
    }

    fn enqueue(
        &mut self,
        socket: SocketId,
        sport: u16,
        peer: u32,
        dport: u16,
        payload: Payload<'_>,
        token: Option<Token>,
    ) {
        let len = payload.len();
        self.local.charge_send(socket, len as u64);
        self.counters.add(Counter::SendQueued, 1);
        let p = &mut self.peers[peer as usize];
        let index = p.choose_lane(sport, dport);
        let lane = &mut p.lanes[usize::from(index)];
        let mut message =
            Queued { socket, token, len: len as u32, sport, dport, dead: false, stored: Stored::Inline };
        if len <= INLINE_MAX && !matches!(payload, Payload::Owned(ref b) if b.len() > OWNED_INLINE_MAX) {
            lane.push_inline(message, |out| payload.write(out));
            if let Payload::Owned(bytes) = payload {
                self.released.push(bytes);
            }
        } else {
            message.stored = Stored::Apart(payload.into_chunk());
            lane.push_apart(message);
        }
        match lane.conn {
            Some(conn) => self.mark_ready(conn),
            None => self.want(peer),
        }
    }

    fn deliver_local(
        &mut self,
        socket: SocketId,
        sport: u16,
        destination: SocketAddr,
        payload: &Payload<'_>,
        token: Option<Token>,
        inbox: &mut impl Inbox,
    ) {
        self.counters.add(Counter::SendQueued, 1);
        if destination.port() == PORT_ENGINE {
            self.counters.add(Counter::RecvPing, 1);
            if self.config.ping_enable {
                self.counters.add(Counter::SendPong, 1);
                self.hand_over(
                    socket,
                    SocketAddr::new(self.config.address, PORT_ENGINE),
                    Body::Borrowed(&[]),
                    inbox,
                );
            }
        } else if let Some(to) =
            self.local.by_port(destination.port()).filter(|_| destination.port() != PORT_PROBE)
        {
            let from = SocketAddr::new(self.config.address, sport);
            let shared;
            let mut whole = Vec::new();
            let body = match payload {
                Payload::Copy(b) => Body::Borrowed(b),
                Payload::Shared(span) => Body::Shared(span),
                Payload::Owned(b) => {
                    b.mark_copied();
                    match b.view() {
                        View::Bytes(b) => Body::Borrowed(b),
                        View::Shared(span) => {
                            shared = span;
                            Body::Shared(&shared)
                        }
                    }
                }
                Payload::Gather(pieces) => {
                    pieces.iter().for_each(|piece| whole.extend_from_slice(piece));
                    Body::Owned(Filling::whole(Memory::Heap(whole.into_boxed_slice())))
                }
            };
            self.hand_over(to, from, body, inbox);
        } else {
            self.counters.add(Counter::RecvDropNoSock, 1);
        }
        if let Some(token) = token {
            let outcome = Outcome::Delivered(Guarantee::Application);
            self.actions.push_back(Action::Completed { socket, token, outcome });
        }
    }

    /// Cancels the socket's messages to `destination` (or to all): those not begun are forgotten, those unacknowledged are
    /// not sent again. Returns how many.
    pub fn cancel(&mut self, socket: SocketId, destination: Option<SocketAddr>) -> usize {
        self.cancel_if(socket, destination, |_| true)
    }

    /// The same, of those messages of which `mine` says so by their tokens.
    pub fn cancel_if(
        &mut self,
        socket: SocketId,
        destination: Option<SocketAddr>,
        mut mine: impl FnMut(Option<Token>) -> bool,
    ) -> usize {
        let mut count = 0;
        for peer in 0..self.peers.len() {
            if destination.is_some_and(|d| d.ip() != self.peers[peer].address) {
                continue;
            }
            for lane in 0..self.peers[peer].lanes.len() {
                let gone = self.peers[peer].lanes[lane].cancel(
                    |s, dport, token| {
                        s == socket && destination.is_none_or(|d| d.port() == dport) && mine(token)
                    },
                    &mut self.released,
                );
                count += gone.len();
                for (socket, sport, dport, len, token) in gone {
                    self.peers[peer].unpin(sport, dport);
                    self.finish(socket, u64::from(len), token, Outcome::Cancelled);
                }
            }
        }
        count
    }

    /// Unbinds the socket and clears its congestion. What it has queued is cancelled, as the kernel does, or with `drain`
    /// still delivered. Messages received and not taken are the driver's to drop. The id is dead after this call.
    pub fn close(&mut self, socket: SocketId, drain: bool) {
        if self.local.live(socket).is_none() {
            return;
        }
        if !drain {
            self.cancel(socket, None);
        }
        for peer in &mut self.peers {
            peer.waiters.retain(|(s, _)| *s != socket);
        }
        self.local.unbind(socket, &mut self.actions, self.config.address);
        self.after_consumption();
    }

    /// Whether a send to `destination` would be refused as congested. When so, [`Action::Uncongested`] will follow for this
    /// socket and destination, once.
    pub fn watch_congestion(&mut self, socket: SocketId, destination: SocketAddr) -> bool {
        if self.local.live(socket).is_none() {
            return false;
        }
        if destination.ip() == self.config.address {
            let congested = self.local.map.contains(destination.port());
            if congested {
                self.local.watch_own_port(socket, destination.port());
            }
            return congested;
        }
        let Some(&peer) = self.by_address.get(&destination.ip()) else { return false };
        let p = &mut self.peers[peer as usize];
        let congested = p.map.contains(destination.port());
        if congested {
            p.waiters.insert((socket, destination.port()));
            self.want(peer);
        }
        congested
    }

    /// Whether a send of `socket` to `destination` might be taken, as far as it is cheap to know; promises nothing and watches
    /// nothing. For drivers that would copy a large payload first.
    #[must_use]
    pub fn may_send(&self, socket: SocketId, destination: SocketAddr) -> bool {
        let (address, port) = (destination.ip(), destination.port());
        let congested = if address == self.config.address {
            self.local.map.contains(port)
        } else {
            self.by_address.get(&address).is_some_and(|&p| self.peers[p as usize].map.contains(port))
        };
        !congested && !self.shutting_down && self.local.get(socket).is_some_and(|s| !s.zombie && s.has_room())
    }

    /// Whether the socket's send buffer has room (kernel: POLLOUT). When not, [`Action::Writable`] will follow, once.
    pub fn watch_writable(&mut self, socket: SocketId) -> bool {
        let Some(s) = self.local.live(socket) else { return true };
        let room = s.has_room();
        s.want_writable |= !room;
        room
    }

    /// Whether nothing of the socket is queued or unacknowledged. When not, [`Action::Drained`] will follow, once.
    pub fn watch_drained(&mut self, socket: SocketId) -> bool {
        let Some(s) = self.local.live(socket) else { return true };
        let drained = s.send_messages == 0;
        s.want_drained |= !drained;
        drained
    }

    pub(super) fn finish(&mut self, socket: SocketId, len: u64, token: Option<Token>, outcome: Outcome) {
        self.local.finish_send(socket, len, token, outcome, &mut self.counters, &mut self.actions);
    }
}
