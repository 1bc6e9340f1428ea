//! The node: sockets, peers and connections of one address.

use std::net::{IpAddr, SocketAddr};

use bytes::{Bytes, BytesMut};

use super::{
    Action, BindError, Config, ConfigError, ConnId, DropReason, Inbox, Payload, Rejected, SocketId, Time, Token,
};
use crate::info::Snapshot;

/// What [`Node::receive`] did with its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Received {
    /// Bytes of the input that were used. When less than all: keep the rest, stop reading this connection, and feed the
    /// rest again after [`Action::Resume`] (or never, after [`Action::Close`] with [`CloseMode::Now`](super::CloseMode::Now)).
    pub consumed: usize,
    /// Whether to go on reading. False means: stop reading until [`Action::Resume`]; the rest, if any, is to be kept.
    pub more: bool,
}

/// One RDS node: the protocol engine of one address.
pub struct Node {
    config: Config,
}

#[allow(unused_variables, clippy::todo)]
impl Node {
    /// A node with no sockets and no peers.
    ///
    /// # Errors
    /// [`ConfigError`]: a setting that cannot work.
    pub fn new(config: Config, now: Time) -> Result<Self, ConfigError> {
        todo!()
    }

    /// The node's settings.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    // ---- calls of programs -------------------------------------------------------------------------------------

    /// Binds a socket to `port`, or to a random free one for 0. Returns it and its port.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(&mut self, port: u16) -> Result<(SocketId, u16), BindError> {
        todo!()
    }

    /// Sets the send buffer: payload bytes that may be queued or unacknowledged. Default 1 MiB; at least 1.
    pub fn set_send_buffer(&mut self, socket: SocketId, bytes: u64) {
        todo!()
    }

    /// Sets the receive buffer: payload bytes past which the port is congested. Default 1 MiB; at least 1.
    pub fn set_receive_buffer(&mut self, now: Time, socket: SocketId, bytes: u64) {
        todo!()
    }

    /// Queues a message. `inbox` serves a destination on this very node, which is delivered before this returns.
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
        todo!()
    }

    /// Cancels the socket's messages to `destination` (or to all): those not begun are forgotten, those unacknowledged are
    /// not sent again. Returns how many.
    pub fn cancel(&mut self, socket: SocketId, destination: Option<SocketAddr>) -> usize {
        todo!()
    }

    /// Unbinds the socket and clears its congestion. What it has queued is cancelled, as the kernel does, or with `drain`
    /// still delivered. Messages received and not taken are the driver's to drop. The id is dead after this call.
    pub fn close(&mut self, socket: SocketId, drain: bool) {
        todo!()
    }

    /// Reports what the program took from the socket's queue and was not yet returned by [`Inbox::take_consumed`]. To be
    /// called at once while the port is congested ([`Action::Congestion`]), otherwise whenever about a quarter of the
    /// receive buffer has been consumed.
    pub fn consumed(&mut self, socket: SocketId, bytes: u64, messages: u64) {
        todo!()
    }

    /// Whether a send to `destination` would be refused as congested. When so, [`Action::Uncongested`] will follow for this
    /// socket and destination, once.
    pub fn watch_congestion(&mut self, socket: SocketId, destination: SocketAddr) -> bool {
        todo!()
    }

    /// Whether the socket's send buffer has room (kernel: POLLOUT). When not, [`Action::Writable`] will follow, once.
    pub fn watch_writable(&mut self, socket: SocketId) -> bool {
        todo!()
    }

    /// Whether nothing of the socket is queued or unacknowledged. When not, [`Action::Drained`] will follow, once.
    pub fn watch_drained(&mut self, socket: SocketId) -> bool {
        todo!()
    }

    /// Refuses new sockets and sends from now on; what is queued still goes out.
    pub fn begin_shutdown(&mut self) {
        todo!()
    }

    /// Whether no message of any socket is queued or unacknowledged.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        todo!()
    }

    /// Ends every connection in an orderly way ([`Action::Close`]) and starts no new one.
    pub fn close_connections(&mut self) {
        todo!()
    }

    /// The node at this moment. With `queues`, every queued message is listed.
    #[must_use]
    pub fn snapshot(&self, queues: bool) -> Snapshot {
        todo!()
    }

    // ---- results of I/O ----------------------------------------------------------------------------------------

    /// The connection asked for by [`Action::Connect`] is established.
    pub fn connected(&mut self, now: Time, conn: ConnId) {
        todo!()
    }

    /// The connection asked for by [`Action::Connect`] could not be made. Another attempt follows after a delay.
    pub fn connect_failed(&mut self, now: Time, conn: ConnId) {
        todo!()
    }

    /// A TCP connection came in from `peer`.
    ///
    /// # Errors
    /// [`DropReason`]: close it at once; nothing is kept of it.
    pub fn accept(&mut self, now: Time, peer: IpAddr, source_port: u16) -> Result<ConnId, DropReason> {
        todo!()
    }

    /// Bytes came in on a connection.
    pub fn receive(&mut self, now: Time, conn: ConnId, input: &[u8], inbox: &mut impl Inbox) -> Received {
        todo!()
    }

    /// When the connection stands inside a message that did not fit the input: takes its buffer, to be appended to
    /// directly, and the number of bytes that are missing. Until [`Node::return_target`], `receive` must not be called for it.
    pub fn take_target(&mut self, conn: ConnId) -> Option<(BytesMut, usize)> {
        todo!()
    }

    /// Gives the buffer of [`Node::take_target`] back after 0 or more bytes were appended, never more than were missing.
    pub fn return_target(&mut self, now: Time, conn: ConnId, buffer: BytesMut, inbox: &mut impl Inbox) -> Received {
        todo!()
    }

    /// Everything that was there on a connection named by [`Action::Drain`] was fed to [`Node::receive`].
    pub fn drained(&mut self, now: Time, conn: ConnId) {
        todo!()
    }

    /// The connection ended: the peer closed or reset it, or it failed; all that could be read was fed to [`Node::receive`].
    /// `unacked`: bytes written and not acknowledged at the end, when known (SIOCOUTQ).
    pub fn closed(&mut self, now: Time, conn: ConnId, unacked: Option<u64>) {
        todo!()
    }

    /// Reports SIOCOUTQ: bytes written to the connection that the peer's TCP has not acknowledged.
    pub fn tcp_unacked(&mut self, now: Time, conn: ConnId, unacked: u64) {
        todo!()
    }

    // ---- output ------------------------------------------------------------------------------------------------

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Time) -> Option<Action> {
        todo!()
    }

    /// A connection that has something to write, can be written, and whose transmit right nobody holds.
    pub fn poll_transmit(&mut self) -> Option<ConnId> {
        todo!()
    }

    /// Bytes written on this connection's lane that the peer has not acknowledged (at the guarantee's level). While there
    /// are none, writing at once is best; otherwise more messages may be gathered first.
    #[must_use]
    pub fn outstanding(&self, conn: ConnId) -> u64 {
        todo!()
    }

    /// Takes the transmit right and appends up to about `max` bytes to `out`, headers and payloads in the order of the
    /// stream. Returns their number; 0 means nothing to do and no right taken. The slices stay valid without the node.
    pub fn begin_transmit(&mut self, conn: ConnId, max: usize, out: &mut Vec<Bytes>) -> usize {
        todo!()
    }

    /// Gives the right back: the first `written` bytes are with TCP. `blocked` when TCP would take no more; then nothing is
    /// transmitted until [`Node::writable`].
    pub fn end_transmit(&mut self, now: Time, conn: ConnId, written: usize, blocked: bool) {
        todo!()
    }

    /// TCP takes bytes of this connection again.
    pub fn writable(&mut self, conn: ConnId) {
        todo!()
    }

    /// Makes acknowledgements and window updates that are due go out as headers of their own. To be called before the
    /// driver sleeps; messages sent meanwhile carry them for nothing.
    pub fn flush_acks(&mut self) {
        todo!()
    }

    /// When [`Node::handle_timeout`] must be called, at the latest.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        todo!()
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        todo!()
    }
}
