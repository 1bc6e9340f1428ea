//! Sockets.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rds_core::attach::client;
use rds_core::engine;

use crate::either::{Kind, either};
use crate::{
    Completion, Cookie, Event, Mode, Owned, Readiness, Received, RecvError, SendError, TrySendError,
};

/// A socket, bound to a port of a node. All calls take `&self` and may come from many threads.
///
/// Dropping it unbinds the port; what it has queued is still delivered. [`Socket::close`] cancels that, as the kernel does. Of an attached node,
/// either waits for the daemon's answer, up to 1 s.
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
pub struct Socket(Kind<engine::Socket, client::Socket>);

impl From<engine::Socket> for Socket {
    fn from(socket: engine::Socket) -> Self {
        Self(Kind::Embedded(socket))
    }
}

impl From<client::Socket> for Socket {
    fn from(socket: client::Socket) -> Self {
        Self(Kind::Attached(socket))
    }
}

impl Socket {
    /// Where it is bound.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        either!(&self.0, socket => socket.local_addr())
    }

    /// Sets the default destination of [`Socket::send`]; sends nothing and filters nothing.
    ///
    /// # Errors
    /// `Refused`: not a unicast address of the node's family.
    pub fn connect(&self, destination: SocketAddr) -> Result<(), SendError> {
        either!(&self.0, socket => socket.connect(destination))
    }

    /// The default destination.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        either!(&self.0, socket => socket.peer_addr())
    }

    /// Sends to the connected destination; blocks as [`Socket::send_to`].
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&self, payload: &[u8]) -> Result<(), SendError> {
        either!(&self.0, socket => socket.send(payload))
    }

    /// Queues a whole message of up to 1 MiB, blocking while the port is congested or the buffer full, up to the send timeout.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_to(&self, payload: &[u8], destination: SocketAddr) -> Result<(), SendError> {
        either!(&self.0, socket => socket.send_to(payload, destination))
    }

    /// As [`Socket::send_to`], the payload gathered from pieces.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_vectored_to(&self, pieces: &[IoSlice<'_>], destination: SocketAddr) -> Result<(), SendError> {
        either!(&self.0, socket => socket.send_vectored_to(pieces, destination))
    }

    /// Queues a message without blocking.
    ///
    /// # Errors
    /// [`TrySendError`].
    pub fn try_send_to(&self, payload: &[u8], destination: SocketAddr) -> Result<(), TrySendError> {
        either!(&self.0, socket => socket.try_send_to(payload, destination))
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
        either!(&self.0, socket => socket.try_send_vectored_to(pieces, destination))
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
        either!(&self.0, socket => socket.send_owned(payload, destination))
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
        either!(&self.0, socket => socket.send_owned_as(cookie, payload, destination))
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
        either!(&self.0, socket => socket.try_send_owned(payload, destination))
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
        either!(&self.0, socket => socket.try_send_owned_as(cookie, payload, destination))
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
        either!(&self.0, socket => socket.send_detached(payload, destination))
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
        either!(&self.0, socket => socket.try_send_detached(payload, destination))
    }

    /// Appends all completions that are there to `out`, oldest first, and returns how many. Does not block.
    pub fn completions(&self, out: &mut Vec<Completion>) -> usize {
        either!(&self.0, socket => socket.completions(out))
    }

    /// As [`Socket::completions`], blocking until there is one, the timeout has passed (`None`: never), or the node is shut down; 0 in
    /// the latter two cases.
    pub fn wait_completions(&self, out: &mut Vec<Completion>, timeout: Option<Duration>) -> usize {
        either!(&self.0, socket => socket.wait_completions(out, timeout))
    }

    /// A descriptor that polls readable while there are completions. Level triggered; never read it.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn completion_fd(&self) -> io::Result<BorrowedFd<'_>> {
        either!(&self.0, socket => socket.completion_fd())
    }

    /// Receives into `buffer`, blocking up to the receive timeout. Cleared congestion comes before messages. A message
    /// that is longer than the buffer is cut and the rest of it is gone; `full_len` tells.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn recv_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        either!(&self.0, socket => socket.recv_from(buffer))
    }

    /// As [`Socket::recv_from`], without blocking.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        either!(&self.0, socket => socket.try_recv_from(buffer))
    }

    /// Receives a message in the memory into which it was received: without a copy, if it is larger than 16 KiB (of an attached node: 2 KiB). Blocks
    /// up to the receive timeout.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn recv_lease(&self) -> Result<Event, RecvError> {
        either!(&self.0, socket => socket.recv_lease())
    }

    /// As [`Socket::recv_lease`], without blocking.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn try_recv_lease(&self) -> Result<Event, RecvError> {
        either!(&self.0, socket => socket.try_recv_lease())
    }

    /// Copies the oldest message and leaves it queued (kernel: MSG_PEEK). Does not block.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn peek_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        either!(&self.0, socket => socket.peek_from(buffer))
    }

    /// Length of the oldest message in bytes, if any is queued.
    #[must_use]
    pub fn next_len(&self) -> Option<usize> {
        either!(&self.0, socket => socket.next_len())
    }

    /// Sets whether large payloads are sent without a copy, whatever the node and the path say; `None` for as they say.
    /// Applies to messages that are sent from now on.
    pub fn set_zero_copy_send(&self, mode: impl Into<Option<Mode>>) {
        either!(&self.0, socket => socket.set_zero_copy_send(mode));
    }

    /// Limits how long sends block, also while the port is congested; `None` (default) for ever.
    pub fn set_send_timeout(&self, timeout: Option<Duration>) {
        either!(&self.0, socket => socket.set_send_timeout(timeout));
    }

    /// Sets whether large messages to this socket are mapped when they are received, whatever the node and the path say;
    /// `None` for as they say. [`Mode::On`] maps what can be, also where it costs more, and from peers on this host, which could
    /// change what they sent; [`Mode::Off`] copies. Applies to messages that come from now on. Of an attached node without effect: the daemon
    /// receives into memory that it shares with this program in any case.
    pub fn set_zero_copy_receive(&self, mode: impl Into<Option<Mode>>) {
        either!(&self.0, socket => socket.set_zero_copy_receive(mode));
    }

    /// Limits how long receives block; `None` (default) for ever.
    pub fn set_recv_timeout(&self, timeout: Option<Duration>) {
        either!(&self.0, socket => socket.set_recv_timeout(timeout));
    }

    /// Send buffer in payload bytes, not doubled: what may be queued or unacknowledged. Default 1 MiB. The last message
    /// taken may go beyond, as in the kernel. Of an attached node the daemon may grant less, down to what the program's quota has left; this waits for
    /// its answer, up to 1 s.
    pub fn set_send_buffer(&self, bytes: u64) {
        either!(&self.0, socket => socket.set_send_buffer(bytes));
    }

    /// Receive buffer in payload bytes, not doubled: above it the port is congested, below half of it no more. Default 1 MiB. Of an attached node
    /// granted as the send buffer is.
    pub fn set_recv_buffer(&self, bytes: u64) {
        either!(&self.0, socket => socket.set_recv_buffer(bytes));
    }

    /// Whether destinations that were refused as congested are reported when free ([`Received::CongestionCleared`]). Only
    /// refusals of non-blocking sends count, as in the kernel.
    pub fn set_congestion_monitor(&self, on: bool) {
        either!(&self.0, socket => socket.set_congestion_monitor(on));
    }

    /// Accepted and without effect on TCP, as in the kernel.
    pub fn set_tos(&self, tos: u8) {
        either!(&self.0, socket => socket.set_tos(tos));
    }

    /// Forgets this socket's messages to `destination`; what TCP has may still arrive. Returns how many. Of an attached node it blocks until the
    /// daemon has answered; without a daemon there are none.
    pub fn cancel_sent_to(&self, destination: SocketAddr) -> usize {
        either!(&self.0, socket => socket.cancel_sent_to(destination))
    }

    /// As [`Socket::cancel_sent_to`], for every destination.
    pub fn cancel_all(&self) -> usize {
        either!(&self.0, socket => socket.cancel_all())
    }

    /// Blocks until nothing of this socket is queued or unacknowledged, or `deadline` has passed; whether it is so.
    pub fn flush(&self, deadline: Duration) -> bool {
        either!(&self.0, socket => socket.flush(deadline))
    }

    /// Blocks until one of the `interest` is there or the timeout has passed.
    pub fn wait(&self, interest: Readiness, timeout: Option<Duration>) -> Readiness {
        either!(&self.0, socket => socket.wait(interest, timeout))
    }

    /// Blocks until `destination` is not congested or the timeout has passed; whether it is so. Of an attached node the daemon is asked, and waited
    /// for if it is away.
    pub fn wait_uncongested(&self, destination: SocketAddr, timeout: Option<Duration>) -> bool {
        either!(&self.0, socket => socket.wait_uncongested(destination, timeout))
    }

    /// A descriptor that polls readable while a receive would return something. Level triggered; never read it.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn readable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        either!(&self.0, socket => socket.readable_fd())
    }

    /// A descriptor that polls readable (POLLIN) while the send buffer has room; of an attached node, also the ring to the daemon, and there is
    /// one. Level triggered; never read it.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn writable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        either!(&self.0, socket => socket.writable_fd())
    }

    /// Has a task woken, once, when a send that was refused for now may be tried again, or all is sent.
    #[cfg(feature = "tokio")]
    pub(crate) fn watch_send(&self, key: u64, waker: &std::task::Waker) {
        either!(&self.0, socket => socket.watch_send(key, waker));
    }

    /// The same for the end of the node.
    #[cfg(feature = "tokio")]
    pub(crate) fn watch_end(&self, key: u64, waker: &std::task::Waker) {
        either!(&self.0, socket => socket.watch_end(key, waker));
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn has_ended(&self) -> bool {
        either!(&self.0, socket => socket.has_ended())
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn unwatch(&self, key: u64) {
        either!(&self.0, socket => socket.unwatch(key));
    }

    /// Unbinds the port and cancels what is queued, as the kernel's close does.
    pub fn close(self) {
        either!(self.0, socket => socket.close());
    }
}
