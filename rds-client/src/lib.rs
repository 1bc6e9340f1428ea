//! Reliable Datagram Sockets for Linux programs, without the kernel module.
//!
//! A [`Node`] is one RDS engine with one address; a [`Socket`] is bound to a port of it. From one socket a program sends whole
//! messages, reliably and in order, to any port on any node.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

pub use bytes::{Bytes, BytesMut};
pub use rds_core::info::{Counter, Counters, Snapshot};
pub use rds_core::proto::{BindError, Config, ConfigError, Guarantee, Outcome, Token};

/// Why a node could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A setting cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address is not one of this host.
    #[error("{0} is not an address of this host: add it to an interface, or give another")]
    NotLocal(IpAddr),
    /// Another process (or the rds_tcp module) has the listening port.
    #[error(
        "TCP port {0} is in use: another RDS node or the rds_tcp kernel module has it; choose another listen port or stop it"
    )]
    PortInUse(SocketAddr),
    /// Anything else.
    #[error("cannot open the node at {address}: {source}")]
    Io {
        /// Where.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
}

/// How to open a [`Node`].
#[derive(Clone, Debug)]
pub struct NodeBuilder {}

#[allow(unused_variables, clippy::todo)]
impl NodeBuilder {
    /// TCP port to listen on. Default 16385, the port of Linux rds_tcp; 0 for any free one.
    #[must_use]
    pub fn listen_port(self, port: u16) -> Self {
        todo!()
    }
    /// TCP port to which the node connects. Default 16385.
    #[must_use]
    pub fn dial_port(self, port: u16) -> Self {
        todo!()
    }
    /// Lanes offered to each peer, 1 to 8. Default 1.
    #[must_use]
    pub fn lanes(self, lanes: u8) -> Self {
        todo!()
    }
    /// Bytes of received messages that no program has taken. Default 256 MiB.
    #[must_use]
    pub fn receive_budget(self, bytes: u64) -> Self {
        todo!()
    }
    /// Opens the node: listens, starts its background thread.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(self) -> Result<Node, OpenError> {
        todo!()
    }
}

/// One RDS node in this process. Cheap to clone; the last clone that goes drains it ([`Node::shutdown`] with 1 s).
#[derive(Clone)]
pub struct Node {}

/// What [`Node::shutdown`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Messages that were still queued or unacknowledged at the deadline.
    pub undelivered: u64,
}

#[allow(unused_variables, clippy::todo)]
impl Node {
    /// Settings for a node at `address`.
    #[must_use]
    pub fn builder(address: IpAddr) -> NodeBuilder {
        todo!()
    }
    /// Opens a node at `address` with the defaults.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(address: IpAddr) -> Result<Self, OpenError> {
        todo!()
    }
    /// The node's address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        todo!()
    }
    /// The TCP address on which it listens.
    #[must_use]
    pub fn listen_addr(&self) -> SocketAddr {
        todo!()
    }
    /// Binds a socket to `port` of the node's address; 0 for any free one.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(&self, port: u16) -> Result<Socket, BindError> {
        todo!()
    }
    /// The node at this moment, without the queues' messages.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        todo!()
    }
    /// The node at this moment, every queued message included.
    #[must_use]
    pub fn snapshot_with_queues(&self) -> Snapshot {
        todo!()
    }
    /// Refuses new sends, delivers what is queued, closes every connection in an orderly way. Blocks up to `deadline`.
    pub fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        todo!()
    }
}

/// A socket, bound to a port of a node. All calls take `&self` and may come from many threads.
///
/// Dropping it unbinds the port; what it has queued is still delivered. [`Socket::close`] cancels that, as the kernel does.
pub struct Socket {}

/// What a receive call returned.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Received {
    /// A message.
    Message {
        /// Bytes copied into the buffer.
        len: usize,
        /// Bytes that the message has; more than `len` when it was cut.
        full_len: usize,
        /// Who sent it.
        from: SocketAddr,
    },
    /// Congestion cleared (only with [`Socket::set_congestion_monitor`]): bit `port % 64` of each destination that is free again.
    CongestionCleared(u64),
    /// A message sent with a token has ended.
    SendDone {
        /// The token that `send_tracked` returned.
        token: Token,
        /// How it ended.
        outcome: Outcome,
    },
}

/// A received message that owns its bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    /// Who sent it.
    pub from: SocketAddr,
    /// Its payload.
    pub payload: BytesMut,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("from", &self.from).field("len", &self.payload.len()).finish()
    }
}

/// What an owned receive returned.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A message.
    Message(Message),
    /// As [`Received::CongestionCleared`].
    CongestionCleared(u64),
    /// As [`Received::SendDone`].
    SendDone {
        /// The token that `send_tracked` returned.
        token: Token,
        /// How it ended.
        outcome: Outcome,
    },
}

/// Why a blocking send failed. The message was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// Never possible: wrong destination, too large, closed, shutting down.
    #[error(transparent)]
    Refused(#[from] rds_core::proto::SendError),
    /// No destination was given and none is connected (kernel: ENOTCONN).
    #[error("no destination: connect the socket, or use send_to")]
    NotConnected,
    /// The send timeout passed (kernel: ETIMEDOUT).
    #[error("the send timeout passed while the {0}")]
    TimedOut(Blocked),
}

/// What a send waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// The destination port is congested.
    Congested,
    /// The send buffer is full.
    Full,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Congested => "destination port was congested",
            Self::Full => "send buffer was full",
        })
    }
}

/// Why a non-blocking send did not queue the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrySendError {
    /// The destination port is congested (kernel: ENOBUFS).
    #[error("the destination port is congested: wait until it is not (Socket::wait_uncongested)")]
    Congested,
    /// The send buffer is full (kernel: EAGAIN).
    #[error("the send buffer is full: wait until the socket is writable")]
    Full,
    /// Never possible.
    #[error(transparent)]
    Refused(SendError),
}

/// Why a receive returned nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// Nothing is queued (kernel: EAGAIN); only from the non-blocking calls.
    #[error("nothing is queued")]
    Empty,
    /// The receive timeout passed (kernel: ETIMEDOUT).
    #[error("the receive timeout passed")]
    TimedOut,
    /// The node was shut down.
    #[error("the node is shut down")]
    Shutdown,
}

/// What [`Socket::wait`] waits for, and found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A receive would return something.
    pub readable: bool,
    /// The send buffer has room. The destination may be congested all the same.
    pub writable: bool,
}

#[allow(unused_variables, clippy::todo)]
impl Socket {
    /// Where it is bound.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        todo!()
    }
    /// Sets the default destination of [`Socket::send`]; sends nothing and filters nothing.
    ///
    /// # Errors
    /// `Refused`: not a unicast address of the node's family.
    pub fn connect(&self, destination: SocketAddr) -> Result<(), SendError> {
        todo!()
    }
    /// The default destination.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        todo!()
    }
    /// Sends to the connected destination; blocks as [`Socket::send_to`].
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&self, payload: &[u8]) -> Result<(), SendError> {
        todo!()
    }
    /// Queues a whole message, blocking while the port is congested or the buffer full, up to the send timeout.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_to(&self, payload: &[u8], destination: SocketAddr) -> Result<(), SendError> {
        todo!()
    }
    /// As [`Socket::send_to`], the payload gathered from pieces.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_vectored_to(&self, pieces: &[IoSlice<'_>], destination: SocketAddr) -> Result<(), SendError> {
        todo!()
    }
    /// Queues a message without blocking.
    ///
    /// # Errors
    /// [`TrySendError`].
    pub fn try_send_to(&self, payload: &[u8], destination: SocketAddr) -> Result<(), TrySendError> {
        todo!()
    }
    /// As [`Socket::try_send_to`], the payload gathered from pieces.
    ///
    /// # Errors
    /// [`TrySendError`].
    pub fn try_send_vectored_to(
        &self,
        pieces: &[IoSlice<'_>],
        destination: SocketAddr,
    ) -> Result<(), TrySendError> {
        todo!()
    }
    /// Queues a message without copying it; blocks as [`Socket::send_to`].
    ///
    /// # Errors
    /// The error, and the payload back.
    pub fn send_owned(&self, payload: Bytes, destination: SocketAddr) -> Result<(), (SendError, Bytes)> {
        todo!()
    }
    /// As [`Socket::send_owned`], without blocking.
    ///
    /// # Errors
    /// The error, and the payload back.
    pub fn try_send_owned(
        &self,
        payload: Bytes,
        destination: SocketAddr,
    ) -> Result<(), (TrySendError, Bytes)> {
        todo!()
    }
    /// As [`Socket::send_owned`]; [`Received::SendDone`] with the returned token will tell how the message ended.
    ///
    /// # Errors
    /// The error, and the payload back.
    pub fn send_tracked(&self, payload: Bytes, destination: SocketAddr) -> Result<Token, (SendError, Bytes)> {
        todo!()
    }
    /// As [`Socket::send_tracked`], without blocking.
    ///
    /// # Errors
    /// The error, and the payload back.
    pub fn try_send_tracked(
        &self,
        payload: Bytes,
        destination: SocketAddr,
    ) -> Result<Token, (TrySendError, Bytes)> {
        todo!()
    }
    /// Receives into `buffer`, blocking up to the receive timeout. Order: ended sends, cleared congestion, messages.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn recv_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        todo!()
    }
    /// As [`Socket::recv_from`], without blocking.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        todo!()
    }
    /// Receives without copying large messages; blocks up to the receive timeout.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn recv(&self) -> Result<Event, RecvError> {
        todo!()
    }
    /// As [`Socket::recv`], without blocking.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn try_recv(&self) -> Result<Event, RecvError> {
        todo!()
    }
    /// Copies the oldest message and leaves it queued (kernel: MSG_PEEK). Does not block.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn peek_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        todo!()
    }
    /// Length of the oldest message in bytes, if any is queued.
    #[must_use]
    pub fn next_len(&self) -> Option<usize> {
        todo!()
    }
    /// Limits how long sends block; `None` (default) for ever.
    pub fn set_send_timeout(&self, timeout: Option<Duration>) {
        todo!()
    }
    /// Limits how long receives block; `None` (default) for ever.
    pub fn set_recv_timeout(&self, timeout: Option<Duration>) {
        todo!()
    }
    /// Send buffer in payload bytes, not doubled. Default 1 MiB.
    pub fn set_send_buffer(&self, bytes: u64) {
        todo!()
    }
    /// Receive buffer in payload bytes, not doubled. Default 1 MiB.
    pub fn set_recv_buffer(&self, bytes: u64) {
        todo!()
    }
    /// Whether destinations that were refused as congested are reported when free ([`Received::CongestionCleared`]).
    pub fn set_congestion_monitor(&self, on: bool) {
        todo!()
    }
    /// Accepted and without effect on TCP, as in the kernel.
    pub fn set_tos(&self, tos: u8) {
        todo!()
    }
    /// Forgets this socket's messages to `destination`; what TCP has may still arrive. Returns how many.
    pub fn cancel_sent_to(&self, destination: SocketAddr) -> usize {
        todo!()
    }
    /// As [`Socket::cancel_sent_to`], for every destination.
    pub fn cancel_all(&self) -> usize {
        todo!()
    }
    /// Blocks until nothing of this socket is queued or unacknowledged, or `deadline` has passed; whether it is so.
    pub fn flush(&self, deadline: Duration) -> bool {
        todo!()
    }
    /// Blocks until one of the `interest` is there or the timeout has passed.
    pub fn wait(&self, interest: Readiness, timeout: Option<Duration>) -> Readiness {
        todo!()
    }
    /// Blocks until `destination` is not congested or the timeout has passed; whether it is so.
    pub fn wait_uncongested(&self, destination: SocketAddr, timeout: Option<Duration>) -> bool {
        todo!()
    }
    /// A descriptor that polls readable while a receive would return something. Level triggered; never read it.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn readable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        todo!()
    }
    /// A descriptor that polls readable (POLLIN) while the send buffer has room. Level triggered; never read it.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn writable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        todo!()
    }
    /// Unbinds the port and cancels what is queued, as the kernel's close does.
    pub fn close(self) {
        todo!()
    }
}
