//! Sockets for tasks of a [tokio](https://docs.rs/tokio) runtime. With the feature `tokio`.
//!
//! [`Socket`] wraps a [`crate::Socket`] and has its blocking calls as `async` ones: a task that waits costs no thread. Receives and completions wait at
//! the socket's descriptors, in the runtime's own poll loop; sends are woken by the node.
//!
//! ```
//! use rds_client::{Event, Node, tokio::Socket};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let node = Node::builder("127.71.4.1".parse()?).listen_port(26385).dial_port(26385).open()?;
//! let alice = Socket::new(node.bind(0)?)?;
//! let bob = Socket::new(node.bind(0)?)?;
//!
//! let (sent, received) = tokio::join!(alice.send_to(b"hello", bob.local_addr()), bob.recv_lease());
//! sent?;
//! let Event::Message(message) = received? else { panic!("only a message can come") };
//! assert_eq!((&message.payload[..], message.from), (&b"hello"[..], alice.local_addr()));
//! # Ok(())
//! # }
//! ```
//!
//! # Cancelling
//!
//! Every call can be cancelled by dropping its future, as `tokio::select!` and `tokio::time::timeout` do, and nothing is lost or done by halves:
//!
//! * A receive that was cancelled has taken nothing. The message is there for the next one.
//! * A send that was cancelled has queued nothing. One that has returned `Ok` is queued, and goes its way whatever becomes of the task.
//!   The payload of a cancelled `send_owned` is dropped with its future.
//! * Completions that were not returned are there for the next call.
//!
//! # What blocks all the same
//!
//! Opening a node, and at a daemon [`Node::bind`](crate::Node::bind), [`Node::snapshot`](crate::Node::snapshot), buffer sizes, cancelling and dropping a socket wait for
//! an answer of another process, of milliseconds as a rule: in a runtime that must not pause, call them within `tokio::task::spawn_blocking`. The timeouts of
//! the socket ([`set_send_timeout`](crate::Socket::set_send_timeout)) concern its blocking calls only; here `tokio::time::timeout` does that.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::task::coop;
use rds_core::engine::task_key;

use crate::{Completion, Cookie, Event, Owned, Received, RecvError, SendError, TrySendError};

/// A descriptor of a socket, which it keeps open.
#[derive(Debug)]
struct Descriptor {
    number: RawFd,
    _socket: Arc<crate::Socket>,
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.number
    }
}

fn registered(
    socket: &Arc<crate::Socket>,
    fd: impl FnOnce(&crate::Socket) -> io::Result<BorrowedFd<'_>>,
) -> io::Result<AsyncFd<Descriptor>> {
    let number = fd(socket)?.as_raw_fd();
    // What it is deprecated for, that a descriptor may be closed while it is registered, a `Descriptor` does not let happen. The call that
    // is to replace it is unsafe, and younger than what we build with.
    #[allow(deprecated, reason = "see above")]
    AsyncFd::with_interest(Descriptor { number, _socket: Arc::clone(socket) }, Interest::READABLE)
}

/// A socket whose calls are `async`. They take `&self`, and many tasks may have calls under way on one socket: share it as `Arc<Socket>`.
///
/// It belongs to the runtime in which it was made. Calls that do not wait, and settings, are those of the [socket inside](Socket::get_ref).
#[derive(Debug)]
pub struct Socket {
    // Both go before the socket does.
    readable: AsyncFd<Descriptor>,
    completion: OnceLock<AsyncFd<Descriptor>>,
    socket: Arc<crate::Socket>,
}

impl Socket {
    /// Makes a bound socket one of the runtime's.
    ///
    /// # Errors
    /// The descriptor cannot be made or registered: too many open files.
    ///
    /// # Panics
    /// Outside of a runtime, or in one without I/O (`tokio::runtime::Builder::enable_io`).
    pub fn new(socket: crate::Socket) -> io::Result<Self> {
        let socket = Arc::new(socket);
        let readable = registered(&socket, crate::Socket::readable_fd)?;
        Ok(Self { readable, completion: OnceLock::new(), socket })
    }

    /// The socket inside, for what does not wait: `try_` calls and settings.
    #[must_use]
    pub fn get_ref(&self) -> &crate::Socket {
        &self.socket
    }

    /// The socket itself, for blocking calls again.
    #[must_use]
    pub fn into_inner(self) -> crate::Socket {
        let Self { readable, completion, socket } = self;
        drop((readable, completion));
        Arc::into_inner(socket).expect("only its descriptors had it, beside this")
    }

    /// Where it is bound.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    // ---- receiving -----------------------------------------------------------------------------------------------

    /// Receives into `buffer`. A message that is longer than the buffer is cut and the rest of it is gone; `full_len` tells. Cancel-safe.
    ///
    /// # Errors
    /// [`RecvError::Shutdown`], also where the runtime is going down; [`RecvError::PortLost`]. Never `Empty` or `TimedOut`.
    pub async fn recv_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        self.receive(|socket| socket.try_recv_from(buffer)).await
    }

    /// Receives a message in the memory into which it was received, as [`crate::Socket::recv_lease`]. Cancel-safe.
    ///
    /// # Errors
    /// As [`Socket::recv_from`].
    pub async fn recv_lease(&self) -> Result<Event, RecvError> {
        self.receive(crate::Socket::try_recv_lease).await
    }

    async fn receive<T>(
        &self,
        mut attempt: impl FnMut(&crate::Socket) -> Result<T, RecvError>,
    ) -> Result<T, RecvError> {
        loop {
            let mut ready = self.readable.readable().await.map_err(|_| RecvError::Shutdown)?;
            // A task that finds something each time would keep all others from running.
            coop::consume_budget().await;
            match attempt(&self.socket) {
                // What came since it was found ready counts as an event of its own, which this leaves alone.
                Err(RecvError::Empty) => ready.clear_ready(),
                done => return done,
            }
        }
    }

    // ---- sending -------------------------------------------------------------------------------------------------

    /// Queues a whole message of up to 1 MiB; waits while the port is congested or the buffer full. Cancel-safe: unless it returns `Ok`, nothing was
    /// queued.
    ///
    /// # Errors
    /// [`SendError`]; never `TimedOut`.
    pub async fn send_to(&self, payload: &[u8], destination: SocketAddr) -> Result<(), SendError> {
        self.send_when_possible(|socket| socket.try_send_to(payload, destination)).await
    }

    /// Sends to the connected destination, as [`Socket::send_to`].
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn send(&self, payload: &[u8]) -> Result<(), SendError> {
        self.send_to(payload, self.socket.peer_addr().ok_or(SendError::NotConnected)?).await
    }

    /// Queues a message that is sent from where it lies, as [`crate::Socket::send_owned`]; waits as [`Socket::send_to`]. Cancel-safe: a call that was
    /// cancelled has queued nothing, and drops the payload.
    ///
    /// # Errors
    /// The error, and the payload back.
    pub async fn send_owned(
        &self,
        payload: impl Into<Owned>,
        destination: SocketAddr,
    ) -> Result<Cookie, (SendError, Owned)> {
        self.send_payload(payload.into(), |socket, payload| socket.try_send_owned(payload, destination)).await
    }

    /// As [`Socket::send_owned`], under a cookie of the caller's.
    ///
    /// # Errors
    /// The error, and the payload back.
    pub async fn send_owned_as(
        &self,
        cookie: Cookie,
        payload: impl Into<Owned>,
        destination: SocketAddr,
    ) -> Result<(), (SendError, Owned)> {
        let send = |socket: &crate::Socket, payload| socket.try_send_owned_as(cookie, payload, destination);
        self.send_payload(payload.into(), send).await
    }

    /// As [`Socket::send_owned`], without completions: nothing tells how it ended.
    ///
    /// # Errors
    /// The error, and the payload back.
    pub async fn send_detached(
        &self,
        payload: impl Into<Owned>,
        destination: SocketAddr,
    ) -> Result<(), (SendError, Owned)> {
        self.send_payload(payload.into(), |socket, payload| socket.try_send_detached(payload, destination))
            .await
    }

    async fn send_payload<T>(
        &self,
        payload: Owned,
        mut attempt: impl FnMut(&crate::Socket, Owned) -> Result<T, (TrySendError, Owned)>,
    ) -> Result<T, (SendError, Owned)> {
        let mut kept = Some(payload);
        let sent = self.send_when_possible(|socket| {
            let payload = kept.take().expect("a refused payload comes back");
            attempt(socket, payload).map_err(|(error, payload)| {
                kept = Some(payload);
                error
            })
        });
        let sent = sent.await;
        sent.map_err(|error| (error, kept.expect("a refused payload comes back")))
    }

    async fn send_when_possible<T>(
        &self,
        mut attempt: impl FnMut(&crate::Socket) -> Result<T, TrySendError>,
    ) -> Result<T, SendError> {
        let mut attempt = |socket: &_| match attempt(socket) {
            Ok(value) => Some(Ok(value)),
            Err(TrySendError::Congested | TrySendError::Full) => None,
            Err(TrySendError::Refused(error)) => Some(Err(error)),
            Err(other) => unreachable!("no other refusal is for now: {other}"),
        };
        self.sooner_or_later(&mut attempt).await
    }

    /// Until nothing of this socket is queued or unacknowledged. Cancel-safe.
    pub async fn flush(&self) {
        let mut drained = |socket: &crate::Socket| socket.flush(Duration::ZERO).then_some(());
        self.sooner_or_later(&mut drained).await;
    }

    /// Tries again whenever something of sending has changed.
    async fn sooner_or_later<T>(&self, attempt: &mut impl FnMut(&crate::Socket) -> Option<T>) -> T {
        let mut watch = Watch::new(&self.socket);
        poll_fn(|cx| {
            // A task that could always go on would keep all others from running.
            let budget = ready!(coop::poll_proceed(cx));
            let mut value = attempt(watch.socket);
            if value.is_none() {
                // What changes from here on is heard of; what changed before shows in the next attempt.
                watch.send(cx);
                value = attempt(watch.socket);
            }
            match value {
                Some(value) => {
                    budget.made_progress();
                    Poll::Ready(value)
                }
                None => Poll::Pending,
            }
        })
        .await
    }

    // ---- completions ---------------------------------------------------------------------------------------------

    /// Appends all completions that are there to `out`, oldest first, and returns how many; waits until there is one. 0 once the node is shut down
    /// and all were taken. Cancel-safe: what was not returned is there for the next call. One task should take them: several share them at random.
    ///
    /// # Errors
    /// The descriptor cannot be made or registered at the first call: too many open files. The runtime is going down.
    pub async fn completions(&self, out: &mut Vec<Completion>) -> io::Result<usize> {
        if self.completion.get().is_none() {
            // Another task may have been faster: then this one is taken out again.
            let _ = self.completion.set(registered(&self.socket, crate::Socket::completion_fd)?);
        }
        let Some(fd) = self.completion.get() else { return Err(io::Error::other("no descriptor")) };
        let mut watch = Watch::new(&self.socket);
        loop {
            // In this order: what came before the end is there after it.
            let ended = self.socket.has_ended();
            let there = self.socket.completions(out);
            if there > 0 || ended {
                return Ok(there);
            }
            let mut readable = pin!(fd.readable());
            let ready = poll_fn(|cx| {
                // The descriptor tells of completions only; of the end, the node does.
                watch.end(cx);
                if self.socket.has_ended() { Poll::Ready(None) } else { readable.as_mut().poll(cx).map(Some) }
            });
            let Some(ready) = ready.await else { continue };
            let mut ready = ready?;
            coop::consume_budget().await;
            let there = self.socket.completions(out);
            if there > 0 {
                return Ok(there);
            }
            ready.clear_ready();
        }
    }
}

/// A call that waits, among those that the node wakes.
struct Watch<'a> {
    socket: &'a crate::Socket,
    key: Option<u64>,
}

impl<'a> Watch<'a> {
    fn new(socket: &'a crate::Socket) -> Self {
        Self { socket, key: None }
    }

    fn key(&mut self) -> u64 {
        *self.key.get_or_insert_with(task_key)
    }

    fn send(&mut self, cx: &Context<'_>) {
        let key = self.key();
        self.socket.watch_send(key, cx.waker());
    }

    fn end(&mut self, cx: &Context<'_>) {
        let key = self.key();
        self.socket.watch_end(key, cx.waker());
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.socket.unwatch(key);
        }
    }
}
