//! What passes between a node and its driver.

use std::net::{IpAddr, SocketAddr};

use crate::buffer::{Filling, Memory, Span, View};

use crate::wire::FramingError;

/// A connection of a node. Never used again after it was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId {
    pub(super) index: u32,
    pub(super) serial: u32,
}

impl ConnId {
    /// A small number, unique among live connections, for tables of the driver.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

/// A bound socket of a node. Never used again after it was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SocketId {
    pub(super) index: u32,
    pub(super) serial: u32,
}

impl SocketId {
    /// Of a socket that is no node's, but attached to one, by the number that it has there.
    pub(crate) const fn attached(number: u32) -> Self {
        Self { index: number & 0xffff, serial: number >> 16 }
    }

    /// The number of an attached socket.
    pub(crate) const fn number(self) -> u32 {
        self.serial << 16 | self.index
    }

    /// A small number, unique among live sockets, for tables of the driver.
    #[must_use]
    pub const fn index(self) -> usize {
        self.index as usize
    }
}

/// A caller's name for a message whose fate it wants to learn. Any value, chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(pub u64);

/// What "delivered" means towards a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Guarantee {
    /// The peer's node has accepted the message for its socket.
    Application,
    /// The peer's TCP has acknowledged its last byte, as between kernels.
    Transport,
}

impl Guarantee {
    /// `application` or `transport`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::Transport => "transport",
        }
    }
}

/// How a message ended. Each ends in exactly one of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It arrived.
    Delivered(Guarantee),
    /// The peer restarted while it was on its way: it may or may not have arrived.
    Unknown,
    /// It was cancelled; it may or may not arrive.
    Cancelled,
}

/// How to end a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseMode {
    /// Close the socket at once; its bytes no longer matter. No call of [`Node::closed`](super::Node::closed) is expected.
    Now,
    /// Shut down for writing, read to the end (or to a deadline of the driver's), feeding [`Node::receive`](super::Node::receive), then
    /// close and call [`Node::closed`](super::Node::closed).
    Orderly,
}

/// Why a connection was dropped; for one clear log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DropReason {
    /// The byte stream cannot be read any further.
    #[error("{0}")]
    Framing(#[from] FramingError),
    /// An acknowledgement of something that was never sent.
    #[error("peer acknowledges sequence {ack}, but only {sent} was sent")]
    AckBeyondSent {
        /// What it acknowledged.
        ack: u64,
        /// The highest that was sent.
        sent: u64,
    },
    /// More bytes than the window allowed.
    #[error("peer sent {used} bytes where the window allowed {limit}")]
    WindowOverrun {
        /// Bytes that came.
        used: u64,
        /// Bytes that were allowed.
        limit: u64,
    },
    /// Nothing, or not enough, was said in time.
    #[error("no handshake within the time limit")]
    HandshakeTimeout,
    /// The peer changed what it said about itself on one connection.
    #[error("peer changed its identity or generation within a connection")]
    IdentityChanged,
    /// An own peer sent data before the handshake was over.
    #[error("peer sent a message before the handshake was over")]
    OutOfTurn,
    /// The node's settings refuse this peer.
    #[error("the list of peers refuses the address")]
    NotAllowed,
    /// The peer has the address of this very node.
    #[error("the peer has this node's own address")]
    OwnAddress,
    /// The connection is for a lane that is not in use between the two.
    #[error("the connection is for a lane that is not in use")]
    LaneUnused,
    /// A kernel that does not know our lanes took a connection for its first one.
    #[error("the kernel took the connection for another lane")]
    OtherLane,
    /// A newer connection of the peer took its place.
    #[error("replaced by a newer connection")]
    Replaced,
    /// The driver gave it up ([`Node::give_up`](super::Node::give_up)): its peer has taken nothing for too long.
    #[error("the peer has taken nothing for too long")]
    Stuck,
    /// Too many connections or peers.
    #[error("limit of connections or peers reached")]
    Limit,
    /// The peer's address is larger: it only knocked, and we connect to it.
    #[error("a larger address only knocks")]
    Poke,
    /// Our own knock has done its work.
    #[error("knock done")]
    PokeDone,
    /// The peer's incarnation is gone.
    #[error("peer restarted")]
    PeerRestarted,
    /// The node shuts down.
    #[error("node shutting down")]
    Shutdown,
}

impl DropReason {
    /// The sequence number that it is about, if any.
    #[must_use]
    pub const fn sequence(&self) -> Option<u64> {
        match self {
            Self::AckBeyondSent { ack, .. } => Some(*ack),
            _ => None,
        }
    }
}

/// What the driver must do.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Open a TCP connection from the node's address to `peer` and report [`Node::connected`](super::Node::connected) or
    /// [`Node::connect_failed`](super::Node::connect_failed).
    Connect {
        /// Its name from now on.
        conn: ConnId,
        /// Where to.
        peer: IpAddr,
        /// Lane, 0 to 7.
        lane: u8,
        /// The source port must be congruent to `lane` modulo this; 1: any port will do.
        port_step: u16,
    },
    /// End a connection. No transmit of it begins any more; one that is under way may end.
    Close {
        /// Which.
        conn: ConnId,
        /// Whose.
        peer: IpAddr,
        /// Its lane, if it is known yet.
        lane: Option<u8>,
        /// How.
        mode: CloseMode,
        /// Why.
        reason: DropReason,
    },
    /// A newer connection is about to take this one's place: read all that is there (to EAGAIN or the end), feed it to
    /// [`Node::receive`](super::Node::receive), then call [`Node::drained`](super::Node::drained).
    Drain {
        /// The old one.
        conn: ConnId,
    },
    /// Feed bytes that [`Node::receive`](super::Node::receive) left unconsumed again, and go on reading.
    Resume {
        /// Which.
        conn: ConnId,
    },
    /// Ask the kernel how many bytes written to this connection are not acknowledged (SIOCOUTQ), and report
    /// [`Node::tcp_unacked`](super::Node::tcp_unacked).
    QueryUnacked {
        /// Which.
        conn: ConnId,
    },
    /// The socket's send buffer has room again, after a send was refused as [`Full`](super::SendError::Full).
    Writable {
        /// Which.
        socket: SocketId,
    },
    /// Nothing of the socket is queued or unacknowledged any more, after [`Node::watch_drained`](super::Node::watch_drained).
    Drained {
        /// Which.
        socket: SocketId,
    },
    /// A destination at which a send of this socket was refused as [`Congested`](super::SendError::Congested) is free again.
    Uncongested {
        /// Which socket.
        socket: SocketId,
        /// The destination.
        destination: SocketAddr,
    },
    /// The port's congestion changed: while it lasts, report what is consumed at once ([`Node::consumed`](super::Node::consumed)).
    Congestion {
        /// Which socket.
        socket: SocketId,
        /// Whether it is congested now.
        congested: bool,
    },
    /// Room in the receive queues is short, or no longer: while it is, report everything that programs take at once
    /// ([`Node::consumed`](super::Node::consumed)), beginning with what they took before. Connections wait for it.
    Pressure {
        /// Whether room is short now.
        on: bool,
    },
    /// A message with a token has ended. Not told for a socket that is closed: nobody is there to hear it.
    Completed {
        /// Which socket sent it.
        socket: SocketId,
        /// The caller's name for it.
        token: Token,
        /// How it ended.
        outcome: Outcome,
    },
    /// A peer came up or its guarantee, generation or lanes changed; for the log.
    PeerUp {
        /// Which.
        peer: IpAddr,
        /// What "delivered" means towards it.
        guarantee: Guarantee,
        /// The generation it showed.
        generation: Option<u32>,
        /// Lanes in use.
        lanes: u8,
        /// Whether it is another incarnation than before.
        restarted: bool,
    },
    /// A kernel uses a lane that this node does not offer: it remembers more lanes of an earlier life. What it sends there is received; what waits
    /// there when the connection breaks is stranded. Told once for each peer; for the log.
    PeerRemembersLanes {
        /// Which.
        peer: IpAddr,
        /// The lane, 0 to 7.
        lane: u8,
        /// Lanes that this node offers.
        lanes: u8,
    },
    /// The last connection to a peer was lost; for the log.
    PeerDown {
        /// Which.
        peer: IpAddr,
    },
}

/// The payload of a message that is delivered.
#[derive(Debug)]
pub enum Body<'a> {
    /// Lies in the driver's receive buffer: copy it.
    Borrowed(&'a [u8]),
    /// Lies in memory that another process may change at any moment: copy it. Of senders on this node alone.
    Shared(&'a Span),
    /// Was put together in a buffer of its own: keep it.
    Owned(Filling),
}

impl Body<'_> {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Borrowed(b) => b.len(),
            Self::Shared(span) => span.len(),
            Self::Owned(b) => b.filled(),
        }
    }

    /// Whether it is empty; an empty message is a message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The payload bytes, unless another process shares them.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match self {
            Self::Borrowed(b) => Some(b),
            Self::Shared(_) => None,
            Self::Owned(b) => b.as_slice(),
        }
    }

    /// A copy of the payload bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        match self {
            Self::Shared(span) => span.to_vec(),
            Self::Owned(b) => b.to_vec(),
            Self::Borrowed(b) => b.to_vec(),
        }
    }

    /// The payload in memory that may be kept: its own, or a copy.
    pub(super) fn keep(self) -> Filling {
        let copy = |view: View<'_>, len| {
            let mut bytes = vec![0; len].into_boxed_slice();
            view.copy_to(&mut bytes);
            Filling::whole(Memory::Heap(bytes))
        };
        match self {
            Self::Borrowed(b) => copy(View::Bytes(b), b.len()),
            Self::Shared(span) => copy(View::Shared(span.clone()), span.len()),
            Self::Owned(b) => b,
        }
    }
}

/// Where a node puts messages for sockets. The driver owns the queues; the node only counts.
pub trait Inbox {
    /// Gives memory to a message that does not lie whole in the input, of which nothing has come. `socket`: the one to which it goes, unless
    /// it is closed meanwhile; `None` of a congestion map.
    fn place(&mut self, socket: Option<SocketId>, message: &mut Filling) {
        let _ = socket;
        message.place(Memory::Heap(vec![0; message.capacity()].into_boxed_slice()));
    }

    /// Queues a message for `socket`. It counts as accepted when this returns.
    fn deliver(&mut self, socket: SocketId, from: SocketAddr, body: Body<'_>);

    /// Payload bytes and messages that the program took from `socket`'s queue since this was asked last, or since
    /// [`Node::consumed`](super::Node::consumed) reported them. Each is reported once.
    fn take_consumed(&mut self, socket: SocketId) -> (u64, u64);
}
