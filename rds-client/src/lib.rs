//! Reliable Datagram Sockets for Linux programs, without the kernel module.
//!
//! A [`Node`] is one RDS engine with one address; a [`Socket`] is bound to a port of it. From one socket a program sends whole
//! messages, reliably and in order, to any port on any node. Nodes speak to each other, and to the Linux kernel's
//! `rds_tcp`, over TCP port 16385.
//!
//! ```
//! use rds_client::{Node, Received};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Two nodes of one host; anywhere else each would be a host of its own. Without the ports, both are 16385.
//! let a = Node::builder("127.71.1.1".parse()?).listen_port(26385).dial_port(26385).open()?;
//! let b = Node::builder("127.71.1.2".parse()?).listen_port(26385).dial_port(26385).open()?;
//!
//! let alice = a.bind(4000)?;
//! let bob = b.bind(4000)?;
//! alice.send_to(b"hello", bob.local_addr())?;
//!
//! let mut buffer = [0; 100];
//! let Received::Message { len, from, .. } = bob.recv_from(&mut buffer)? else { panic!("only a message can come") };
//! assert_eq!((&buffer[..len], from), (&b"hello"[..], alice.local_addr()));
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! * A message that a send accepted reaches the socket bound to its destination, once, whole, and in the order of the sends from one
//!   socket to one destination, however often connections break, as long as that socket and both nodes live.
//! * No socket there: the message is dropped, and that counts as delivered. Never an error for the sender.
//! * Peer not reachable: the message is kept, within the send buffer, until it is.
//! * A send succeeds when the message is queued. [`Socket::flush`] and [`Socket::completions`] tell when it has arrived.
//!
//! # Blocking
//!
//! Calls that may block say so; their `try_` forms never do. [`Socket::readable_fd`] and [`Socket::writable_fd`] are for programs with a
//! poll loop of their own. A thread that waits does the node's network work meanwhile, so there is no other thread between
//! it and its message.

#[cfg(doctest)]
mod ownership;

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

pub use bytes::Bytes;
pub use rds_core::buffer::{Owned, PoolBuffer};
use rds_core::engine::{self, Engine, Options};
pub use rds_core::engine::{
    Blocked, Completion, Cookie, Event, Lease, Message, OpenError, RDS_TCP_PORT, Readiness, Received,
    RecvError, SendError, ShutdownReport, TrySendError,
};
pub use rds_core::info::{Counter, Counters, Snapshot};
/// Why the node refused a message; inside [`SendError::Refused`].
pub use rds_core::proto::SendError as Refusal;
pub use rds_core::proto::{BindError, Config, ConfigError, Guarantee};
pub use rds_core::zerocopy::{CopiedBytes, Decision, Fallbacks, Mode, Reason, WhenFull};

/// How to open a [`Node`].
#[derive(Clone, Debug)]
pub struct NodeBuilder {
    options: Options,
}

impl NodeBuilder {
    /// TCP port to listen on. Default 16385, the port of Linux rds_tcp; 0 for any free one.
    #[must_use]
    pub fn listen_port(mut self, port: u16) -> Self {
        self.options.listen_port = port;
        self
    }

    /// TCP port to which the node connects. Default 16385.
    #[must_use]
    pub fn dial_port(mut self, port: u16) -> Self {
        self.options.dial_port = port;
        self
    }

    /// Lanes (TCP connections) offered to each peer: 1, 2, 4 or 8. Default 1.
    #[must_use]
    pub fn lanes(mut self, lanes: u8) -> Self {
        self.options.config.lanes = lanes;
        self
    }

    /// Bytes of received messages that no program has taken. Default 256 MiB.
    #[must_use]
    pub fn receive_budget(mut self, bytes: u64) -> Self {
        self.options.config.receive_budget = bytes;
        self
    }

    /// How long a thread that waits looks for input before it sleeps. Default 0. Some 50 µs spare a round trip its wake-ups,
    /// which take most of its time, and cost a processor while nothing comes.
    #[must_use]
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.options.busy_poll = time;
        self
    }

    /// TCP congestion control of the node's connections (`TCP_CONGESTION`), such as `cubic`; one that
    /// `/proc/sys/net/ipv4/tcp_allowed_congestion_control` lists. Default: the system's.
    #[must_use]
    pub fn congestion_control(mut self, name: &str) -> Self {
        self.options.congestion_control = Some(name.to_owned());
        self
    }

    /// Whether large payloads are sent from where they lie, without a copy. Default auto: where it was measured to cost less.
    #[must_use]
    pub fn zero_copy_send(mut self, mode: Mode) -> Self {
        self.options.zero_copy.send = mode;
        self
    }

    /// Whether large payloads are received without a copy. Default off. `Auto`: where it was measured to cost less, and never from
    /// a peer on this host.
    #[must_use]
    pub fn zero_copy_receive(mut self, mode: Mode) -> Self {
        self.options.zero_copy.receive = mode;
        self
    }

    /// Bytes that the kernel may have pinned for the node at one time. Default 75 % of `RLIMIT_MEMLOCK`, which the nodes of
    /// the process share. Nodes with limits of their own should stay below it together: past it, the kernel refuses and the
    /// message is copied.
    #[must_use]
    pub fn pin_limit(mut self, bytes: u64) -> Self {
        self.options.zero_copy.pin_limit = Some(bytes);
        self
    }

    /// What happens to a payload handed over ([`Socket::send_owned`], [`Socket::send_detached`]) that the pin limit has no room for.
    /// Default: it is copied. With [`WhenFull::Wait`] the `try_` forms return [`TrySendError::Full`], of which
    /// [`Socket::writable_fd`] knows nothing: there will be room after a [`Completion::Released`].
    #[must_use]
    pub fn when_pins_full(mut self, what: WhenFull) -> Self {
        self.options.zero_copy.when_full = what;
        self
    }

    /// How long the kernel may keep what was pinned, for a peer that does not take it, before its connection is ended and made
    /// anew. Default 30 s.
    #[must_use]
    pub fn pin_hold_limit(mut self, time: Duration) -> Self {
        self.options.zero_copy.hold_limit = time;
        self
    }

    /// Bytes of free buffers that the node keeps. Default 64 MiB.
    #[must_use]
    pub fn pool_limit(mut self, bytes: u64) -> Self {
        self.options.zero_copy.pool_limit = bytes;
        self
    }

    /// Bytes of mapped pages of the node, those that the program holds included; past it, messages are copied. Default 256 MiB.
    #[must_use]
    pub fn map_limit(mut self, bytes: u64) -> Self {
        self.options.zero_copy.map_limit = bytes;
        self
    }

    /// Changes any other setting of the protocol.
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.options.config);
        self
    }

    /// Opens the node: listens, starts its background thread.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(self) -> Result<Node, OpenError> {
        Engine::open(self.options).map(Node)
    }

    /// Opens the node with sockets bound to `ports`, in that order. Peers that are sending already find them there, where
    /// between [`NodeBuilder::open`] and [`Node::bind`] their messages would be dropped for want of a socket.
    ///
    /// # Errors
    /// [`OpenError`]; `Bind` when a port cannot be had.
    pub fn open_bound(self, ports: &[u16]) -> Result<(Node, Vec<Socket>), OpenError> {
        let (engine, sockets) = Engine::open_bound(self.options, ports)?;
        Ok((Node(engine), sockets.into_iter().map(Socket).collect()))
    }
}

/// One RDS node in this process. Cheap to clone; when the last clone and the last socket are gone, it is drained
/// ([`Node::shutdown`] with 1 s).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = rds_client::Node::builder("127.71.2.1".parse()?).listen_port(0).open()?;
/// let socket = node.bind(0)?;
/// assert_eq!(node.snapshot().sockets[0].bound, socket.local_addr());
/// assert_eq!(node.shutdown(std::time::Duration::from_secs(1)).undelivered, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Node(Engine);

impl Node {
    /// Settings for a node at `address`.
    #[must_use]
    pub fn builder(address: IpAddr) -> NodeBuilder {
        NodeBuilder { options: Options::new(address) }
    }

    /// Opens a node at `address` with the defaults.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(address: IpAddr) -> Result<Self, OpenError> {
        Self::builder(address).open()
    }

    /// The node's address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.0.address()
    }

    /// The TCP address on which it listens.
    #[must_use]
    pub fn listen_addr(&self) -> SocketAddr {
        self.0.listen_addr()
    }

    /// A page-aligned buffer of `len` bytes from the node's pool, to be filled and sent with [`Socket::send_owned`]. Its contents are
    /// unspecified. It returns to the pool when it is dropped, or when the message that was sent from it has ended. Does not block.
    #[must_use]
    pub fn buffer(&self, len: usize) -> PoolBuffer {
        self.0.buffer(len)
    }

    /// Binds a socket to `port` of the node's address; 0 for any free one.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(&self, port: u16) -> Result<Socket, BindError> {
        self.0.bind(port).map(Socket)
    }

    /// Sets whether large payloads to and from a peer are sent and received without a copy, instead of as the node's settings
    /// say; `None` for as they say. Messages that begin from now on are sent so; what concerns segments comes with the next
    /// connection.
    pub fn set_zero_copy(&self, peer: IpAddr, send: Option<Mode>, receive: Option<Mode>) {
        self.0.set_zero_copy(peer, send, receive);
    }

    /// The node at this moment, without the queues' messages.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.0.snapshot(false)
    }

    /// The node at this moment, every queued message included.
    #[must_use]
    pub fn snapshot_with_queues(&self) -> Snapshot {
        self.0.snapshot(true)
    }

    /// Refuses new sends, delivers what is queued, closes every connection in an orderly way. Blocks up to `deadline`, and up
    /// to one second more for the connections' ends. What could not be delivered is cancelled: when this returns, every message has
    /// all its [completions](Completion). Afterwards receives return what is queued, then
    /// [`RecvError::Shutdown`].
    pub fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        self.0.shutdown(deadline)
    }
}

/// A socket, bound to a port of a node. All calls take `&self` and may come from many threads.
///
/// Dropping it unbinds the port; what it has queued is still delivered. [`Socket::close`] cancels that, as the kernel does.
///
/// ```
/// use rds_client::{Completion, Event, Node, TrySendError};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let a = Node::builder("127.71.3.1".parse()?).listen_port(26385).dial_port(26385).open()?;
/// # let b = Node::builder("127.71.3.2".parse()?).listen_port(26385).dial_port(26385).open()?;
/// let (alice, bob) = (a.bind(0)?, b.bind(0)?);
/// alice.connect(bob.local_addr())?;
/// alice.send(b"to the connected destination")?;
/// // Owned payloads are not copied, and completions tell how a message ended, and when its memory is free.
/// let cookie = alice.send_owned("large, perhaps", bob.local_addr()).map_err(|(error, _)| error)?;
///
/// let Event::Message(first) = bob.recv_lease()? else { panic!("nothing else can come") };
/// assert_eq!(&first.payload[..], b"to the connected destination");
///
/// let mut ends = Vec::new();
/// while ends.len() < 2 {
///     alice.wait_completions(&mut ends, None);
/// }
/// assert!(ends.iter().all(|end| end.cookie() == cookie));
/// assert!(ends.iter().any(|end| matches!(end, Completion::Delivered { .. })));
///
/// // A send that would block says why.
/// bob.set_recv_buffer(1);
/// match alice.try_send_to(b"x", bob.local_addr()) {
///     Ok(()) => {}
///     Err(TrySendError::Congested) => assert!(alice.wait_uncongested(bob.local_addr(), None)),
///     Err(other) => return Err(other.into()),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Socket(engine::Socket);

impl Socket {
    /// Where it is bound.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    /// Sets the default destination of [`Socket::send`]; sends nothing and filters nothing.
    ///
    /// # Errors
    /// `Refused`: not a unicast address of the node's family.
    pub fn connect(&self, destination: SocketAddr) -> Result<(), SendError> {
        self.0.connect(destination)
    }

    /// The default destination.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.0.peer_addr()
    }

    /// Sends to the connected destination; blocks as [`Socket::send_to`].
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&self, payload: &[u8]) -> Result<(), SendError> {
        self.0.send(payload)
    }

    /// Queues a whole message of up to 1 MiB, blocking while the port is congested or the buffer full, up to the send timeout.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_to(&self, payload: &[u8], destination: SocketAddr) -> Result<(), SendError> {
        self.0.send_to(payload, destination)
    }

    /// As [`Socket::send_to`], the payload gathered from pieces.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_vectored_to(&self, pieces: &[IoSlice<'_>], destination: SocketAddr) -> Result<(), SendError> {
        self.0.send_vectored_to(pieces, destination)
    }

    /// Queues a message without blocking.
    ///
    /// # Errors
    /// [`TrySendError`].
    pub fn try_send_to(&self, payload: &[u8], destination: SocketAddr) -> Result<(), TrySendError> {
        self.0.try_send_to(payload, destination)
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
        self.0.try_send_vectored_to(pieces, destination)
    }

    /// Queues a message that is sent from where it lies; blocks as [`Socket::send_to`]. Payloads up to 512 bytes are copied all the same.
    ///
    /// The payload belongs to the node from here on: it cannot be changed. [`Socket::completions`] tells when its memory is free
    /// ([`Completion::Released`]) and how the message ended. It is dropped when nobody reads it any more, by whichever thread does the
    /// node's work at that moment; its drop may call the node, but nothing that blocks.
    ///
    /// # Errors
    /// The error, and the payload back.
    pub fn send_owned(
        &self,
        payload: impl Into<Owned>,
        destination: SocketAddr,
    ) -> Result<Cookie, (SendError, Owned)> {
        self.0.send_owned(payload, destination)
    }

    /// As [`Socket::send_owned`], under a cookie of the caller's. Cookies that the node chooses count up from 1.
    ///
    /// # Errors
    /// The error, and the payload back.
    pub fn send_owned_as(
        &self,
        cookie: Cookie,
        payload: impl Into<Owned>,
        destination: SocketAddr,
    ) -> Result<(), (SendError, Owned)> {
        self.0.send_owned_as(cookie, payload, destination)
    }

    /// As [`Socket::send_owned`], without blocking.
    ///
    /// # Errors
    /// The error, and the payload back.
    pub fn try_send_owned(
        &self,
        payload: impl Into<Owned>,
        destination: SocketAddr,
    ) -> Result<Cookie, (TrySendError, Owned)> {
        self.0.try_send_owned(payload, destination)
    }

    /// As [`Socket::send_owned_as`], without blocking.
    ///
    /// # Errors
    /// The error, and the payload back.
    pub fn try_send_owned_as(
        &self,
        cookie: Cookie,
        payload: impl Into<Owned>,
        destination: SocketAddr,
    ) -> Result<(), (TrySendError, Owned)> {
        self.0.try_send_owned_as(cookie, payload, destination)
    }

    /// As [`Socket::send_owned`], without completions: nothing tells how it ended.
    ///
    /// # Errors
    /// The error, and the payload back.
    pub fn send_detached(
        &self,
        payload: impl Into<Owned>,
        destination: SocketAddr,
    ) -> Result<(), (SendError, Owned)> {
        self.0.send_detached(payload, destination)
    }

    /// As [`Socket::send_detached`], without blocking.
    ///
    /// # Errors
    /// The error, and the payload back.
    pub fn try_send_detached(
        &self,
        payload: impl Into<Owned>,
        destination: SocketAddr,
    ) -> Result<(), (TrySendError, Owned)> {
        self.0.try_send_detached(payload, destination)
    }

    /// Appends all completions that are there to `out`, oldest first, and returns how many. Does not block.
    pub fn completions(&self, out: &mut Vec<Completion>) -> usize {
        self.0.completions(out)
    }

    /// As [`Socket::completions`], blocking until there is one, the timeout has passed (`None`: never), or the node is shut down; 0 in
    /// the latter two cases.
    pub fn wait_completions(&self, out: &mut Vec<Completion>, timeout: Option<Duration>) -> usize {
        self.0.wait_completions(out, timeout)
    }

    /// A descriptor that polls readable while there are completions. Level triggered; never read it.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn completion_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.0.completion_fd()
    }

    /// Receives into `buffer`, blocking up to the receive timeout. Cleared congestion comes before messages. A message
    /// that is longer than the buffer is cut and the rest of it is gone; `full_len` tells.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn recv_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        self.0.recv_from(buffer)
    }

    /// As [`Socket::recv_from`], without blocking.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        self.0.try_recv_from(buffer)
    }

    /// Receives a message in the memory into which it was received: without a copy, if it is larger than 16 KiB. Blocks up to the
    /// receive timeout.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn recv_lease(&self) -> Result<Event, RecvError> {
        self.0.recv_lease()
    }

    /// As [`Socket::recv_lease`], without blocking.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn try_recv_lease(&self) -> Result<Event, RecvError> {
        self.0.try_recv_lease()
    }

    /// Copies the oldest message and leaves it queued (kernel: MSG_PEEK). Does not block.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn peek_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        self.0.peek_from(buffer)
    }

    /// Length of the oldest message in bytes, if any is queued.
    #[must_use]
    pub fn next_len(&self) -> Option<usize> {
        self.0.next_len()
    }

    /// Sets whether large payloads are sent without a copy, whatever the node and the path say; `None` for as they say.
    /// Applies to messages that are sent from now on.
    pub fn set_zero_copy_send(&self, mode: impl Into<Option<Mode>>) {
        self.0.set_zero_copy_send(mode);
    }

    /// Limits how long sends block, also while the port is congested; `None` (default) for ever.
    pub fn set_send_timeout(&self, timeout: Option<Duration>) {
        self.0.set_send_timeout(timeout);
    }

    /// Sets whether large messages to this socket are mapped when they are received, whatever the node and the path say;
    /// `None` for as they say. [`Mode::On`] maps what can be, also where it costs more, and from peers on this host, which could
    /// change what they sent; [`Mode::Off`] copies. Applies to messages that come from now on.
    pub fn set_zero_copy_receive(&self, mode: impl Into<Option<Mode>>) {
        self.0.set_zero_copy_receive(mode);
    }

    /// Limits how long receives block; `None` (default) for ever.
    pub fn set_recv_timeout(&self, timeout: Option<Duration>) {
        self.0.set_recv_timeout(timeout);
    }

    /// Send buffer in payload bytes, not doubled: what may be queued or unacknowledged. Default 1 MiB. The last message
    /// taken may go beyond, as in the kernel.
    pub fn set_send_buffer(&self, bytes: u64) {
        self.0.set_send_buffer(bytes);
    }

    /// Receive buffer in payload bytes, not doubled: above it the port is congested, below half of it no more. Default 1 MiB.
    pub fn set_recv_buffer(&self, bytes: u64) {
        self.0.set_recv_buffer(bytes);
    }

    /// Whether destinations that were refused as congested are reported when free ([`Received::CongestionCleared`]). Only
    /// refusals of non-blocking sends count, as in the kernel.
    pub fn set_congestion_monitor(&self, on: bool) {
        self.0.set_congestion_monitor(on);
    }

    /// Accepted and without effect on TCP, as in the kernel.
    pub fn set_tos(&self, tos: u8) {
        self.0.set_tos(tos);
    }

    /// Forgets this socket's messages to `destination`; what TCP has may still arrive. Returns how many.
    pub fn cancel_sent_to(&self, destination: SocketAddr) -> usize {
        self.0.cancel_sent_to(destination)
    }

    /// As [`Socket::cancel_sent_to`], for every destination.
    pub fn cancel_all(&self) -> usize {
        self.0.cancel_all()
    }

    /// Blocks until nothing of this socket is queued or unacknowledged, or `deadline` has passed; whether it is so.
    pub fn flush(&self, deadline: Duration) -> bool {
        self.0.flush(deadline)
    }

    /// Blocks until one of the `interest` is there or the timeout has passed.
    pub fn wait(&self, interest: Readiness, timeout: Option<Duration>) -> Readiness {
        self.0.wait(interest, timeout)
    }

    /// Blocks until `destination` is not congested or the timeout has passed; whether it is so.
    pub fn wait_uncongested(&self, destination: SocketAddr, timeout: Option<Duration>) -> bool {
        self.0.wait_uncongested(destination, timeout)
    }

    /// A descriptor that polls readable while a receive would return something. Level triggered; never read it.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn readable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.0.readable_fd()
    }

    /// A descriptor that polls readable (POLLIN) while the send buffer has room. Level triggered; never read it.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn writable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.0.writable_fd()
    }

    /// Unbinds the port and cancels what is queued, as the kernel's close does.
    pub fn close(self) {
        self.0.close();
    }
}
