//! A bound socket: its settings, and sending.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::core::Core;
use super::mailbox::Mailbox;
use super::shared::Shared;
use super::{Blocked, Engine, SendError, TrySendError};
use crate::proto::{self, Payload, Rejected, SocketId, Token};

/// Payloads above this size are copied before the core is locked.
const COPY_OUTSIDE: usize = 16 << 10;
/// No timeout.
const FOR_EVER: u64 = u64::MAX;

/// A socket, bound to a port of a node. All calls take `&self` and may come from many threads.
///
/// Dropping it unbinds the port; what it has queued is still delivered. [`Socket::close`] cancels that, as the kernel does.
pub struct Socket {
    /// Keeps the node open, and is declared last so that it goes last.
    pub(super) mailbox: Arc<Mailbox>,
    peer: RwLock<Option<SocketAddr>>,
    send_timeout: AtomicU64,
    recv_timeout: AtomicU64,
    next_token: AtomicU64,
    cancel_on_close: AtomicBool,
    engine: Engine,
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("local", &self.mailbox.local).finish_non_exhaustive()
    }
}

impl Socket {
    pub(super) fn new(engine: Engine, mailbox: Arc<Mailbox>) -> Self {
        Self {
            mailbox,
            peer: RwLock::new(None),
            send_timeout: AtomicU64::new(FOR_EVER),
            recv_timeout: AtomicU64::new(FOR_EVER),
            next_token: AtomicU64::new(1),
            cancel_on_close: AtomicBool::new(false),
            engine,
        }
    }

    pub(super) fn shared(&self) -> &Shared {
        self.engine.shared()
    }

    fn id(&self) -> SocketId {
        self.mailbox.id
    }

    /// The node to which it belongs.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Where it is bound.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.mailbox.local
    }

    /// Sets the default destination of [`Socket::send`]; sends nothing and filters nothing.
    ///
    /// # Errors
    /// `Refused`: not a unicast address of the node's family.
    pub fn connect(&self, destination: SocketAddr) -> Result<(), SendError> {
        let ip = destination.ip();
        let broadcast = matches!(ip, std::net::IpAddr::V4(a) if a.is_broadcast());
        if ip.is_unspecified() || ip.is_multicast() || broadcast {
            return Err(proto::SendError::InvalidDestination.into());
        }
        if ip.is_ipv4() != self.mailbox.local.is_ipv4() {
            return Err(proto::SendError::FamilyMismatch.into());
        }
        *self.peer.write().unwrap_or_else(PoisonError::into_inner) = Some(destination);
        Ok(())
    }

    /// The default destination.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        *self.peer.read().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- sending -------------------------------------------------------------------------------------------------

    /// Sends to the connected destination; blocks as [`Socket::send_to`].
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&self, payload: &[u8]) -> Result<(), SendError> {
        self.send_to(payload, self.peer_addr().ok_or(SendError::NotConnected)?)
    }

    /// Queues a whole message, blocking while the port is congested or the buffer full, up to the send timeout.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_to(&self, payload: &[u8], destination: SocketAddr) -> Result<(), SendError> {
        self.send_blocking(Payload::Copy(payload), destination, None).map_err(|(error, _)| error)
    }

    /// As [`Socket::send_to`], the payload gathered from pieces.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_vectored_to(&self, pieces: &[IoSlice<'_>], destination: SocketAddr) -> Result<(), SendError> {
        self.send_blocking(Payload::Gather(pieces), destination, None).map_err(|(error, _)| error)
    }

    /// Queues a message without blocking.
    ///
    /// # Errors
    /// [`TrySendError`].
    pub fn try_send_to(&self, payload: &[u8], destination: SocketAddr) -> Result<(), TrySendError> {
        self.try_send(Payload::Copy(payload), destination, None).map_err(|rejected| rejected.error.into())
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
        self.try_send(Payload::Gather(pieces), destination, None).map_err(|rejected| rejected.error.into())
    }

    /// Queues a message without copying it; blocks as [`Socket::send_to`].
    ///
    /// # Errors
    /// The error, and the payload back.
    pub fn send_owned(&self, payload: Bytes, destination: SocketAddr) -> Result<(), (SendError, Bytes)> {
        self.send_blocking(Payload::Owned(payload), destination, None).map_err(|(e, p)| (e, owned(p)))
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
        self.try_send(Payload::Owned(payload), destination, None)
            .map_err(|rejected| (rejected.error.into(), owned(rejected.payload)))
    }

    /// As [`Socket::send_owned`]; [`Received::SendDone`](super::Received::SendDone) with the returned token will tell how
    /// the message ended.
    ///
    /// # Errors
    /// The error, and the payload back.
    pub fn send_tracked(&self, payload: Bytes, destination: SocketAddr) -> Result<Token, (SendError, Bytes)> {
        let token = self.token();
        self.send_blocking(Payload::Owned(payload), destination, Some(token))
            .map(|()| token)
            .map_err(|(e, p)| (e, owned(p)))
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
        let token = self.token();
        self.try_send(Payload::Owned(payload), destination, Some(token))
            .map(|()| token)
            .map_err(|rejected| (rejected.error.into(), owned(rejected.payload)))
    }

    fn token(&self) -> Token {
        Token(self.next_token.fetch_add(1, Relaxed))
    }

    fn try_send<'a>(
        &self,
        payload: Payload<'a>,
        destination: SocketAddr,
        token: Option<Token>,
    ) -> Result<(), Rejected<'a>> {
        let (core, result) = self.submit(payload, destination, token);
        let mut core = core;
        if result.as_ref().is_err_and(|r| r.error == proto::SendError::Congested) {
            let mut back = self.mailbox.back();
            if back.monitor {
                back.armed |= 1 << (destination.port() % 64);
            }
        }
        self.update_writable(&mut core);
        self.shared().settle(core);
        result
    }

    fn send_blocking<'a>(
        &self,
        payload: Payload<'a>,
        destination: SocketAddr,
        token: Option<Token>,
    ) -> Result<(), (SendError, Payload<'a>)> {
        let shared = self.shared();
        let (mut core, result) = self.submit(payload, destination, token);
        self.update_writable(&mut core);
        let Err(rejected) = result else {
            shared.settle(core);
            return Ok(());
        };
        let Some(mut blocked) = blocked_by(rejected.error) else {
            shared.settle(core);
            return Err((rejected.error.into(), rejected.payload));
        };
        let count = |why| {
            if why == Blocked::Congested {
                shared.stats.congestion_waits.fetch_add(1, Relaxed);
            }
        };
        count(blocked);
        shared.settle(core);
        let deadline = deadline(&self.send_timeout);
        // Copied once, however often it is tried. The caller's own payload goes back if it fails.
        let original = rejected.payload;
        let copy = match &original {
            Payload::Owned(bytes) => bytes.clone(),
            other => {
                let copy = self.copy_in(other);
                shared.core().copied_in += copy.len() as u64;
                copy
            }
        };
        let outcome = shared.block(
            deadline,
            false,
            |parker| {
                let mut core = shared.core();
                let (node, mut inbox) = core.with_inbox();
                let result =
                    node.send(self.id(), destination, Payload::Owned(copy.clone()), token, &mut inbox);
                drop(inbox);
                let again = match &result {
                    Err(rejected) => blocked_by(rejected.error),
                    Ok(()) => None,
                };
                if let Some(why) = again {
                    blocked = why;
                    count(why);
                    self.mailbox.back().wait_send(parker);
                }
                self.update_writable(&mut core);
                shared.settle(core);
                again.is_none().then(|| result.map_err(|rejected| rejected.error))
            },
            |parker| self.mailbox.forget(parker),
        );
        match outcome {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err((error.into(), original)),
            None if shared.is_stopped() => Err((proto::SendError::ShuttingDown.into(), original)),
            None => Err((SendError::TimedOut(blocked), original)),
        }
    }

    /// Offers a message to the node once. Large payloads are copied before the core is locked, but not in vain where it is
    /// cheap to know.
    fn submit<'a>(
        &self,
        payload: Payload<'a>,
        destination: SocketAddr,
        token: Option<Token>,
    ) -> (MutexGuard<'_, Core>, Result<(), Rejected<'a>>) {
        let shared = self.shared();
        let len = payload.len();
        let mut core = shared.core();
        let copies = !matches!(payload, Payload::Owned(_));
        if copies
            && len > COPY_OUTSIDE
            && len <= shared.options.config.max_message as usize
            && core.node.may_send(self.id(), destination)
        {
            drop(core);
            let copy = self.copy_in(&payload);
            core = shared.core();
            core.copied_in += len as u64;
            let (node, mut inbox) = core.with_inbox();
            let result = node.send(self.id(), destination, Payload::Owned(copy), token, &mut inbox);
            drop(inbox);
            return (core, result.map_err(|rejected| Rejected { error: rejected.error, payload }));
        }
        let (node, mut inbox) = core.with_inbox();
        let result = node.send(self.id(), destination, payload, token, &mut inbox);
        drop(inbox);
        if copies && result.is_ok() {
            core.copied_in += len as u64;
        }
        (core, result)
    }

    fn copy_in(&self, payload: &Payload<'_>) -> Bytes {
        let pool = &self.shared().pool;
        match payload {
            Payload::Copy(bytes) => pool.copy(bytes.len(), std::iter::once(*bytes)),
            Payload::Gather(pieces) => pool.copy(payload.len(), pieces.iter().map(|piece| &**piece)),
            Payload::Owned(bytes) => bytes.clone(),
        }
    }

    /// Keeps the writable descriptor, if there is one, in step with the send buffer.
    fn update_writable(&self, core: &mut Core) {
        if self.mailbox.has_writable() {
            let writable = core.node.watch_writable(self.id());
            self.mailbox.set_writable(&mut self.mailbox.back(), writable);
        }
    }

    // ---- settings ------------------------------------------------------------------------------------------------

    /// Limits how long sends block; `None` (default) for ever.
    pub fn set_send_timeout(&self, timeout: Option<Duration>) {
        store_timeout(&self.send_timeout, timeout);
    }

    /// Limits how long receives block; `None` (default) for ever.
    pub fn set_recv_timeout(&self, timeout: Option<Duration>) {
        store_timeout(&self.recv_timeout, timeout);
    }

    pub(super) fn recv_deadline(&self) -> Option<Instant> {
        deadline(&self.recv_timeout)
    }

    /// Send buffer in payload bytes, not doubled. Default 1 MiB.
    pub fn set_send_buffer(&self, bytes: u64) {
        let mut core = self.shared().core();
        core.node.set_send_buffer(self.id(), bytes);
        self.update_writable(&mut core);
        self.shared().settle(core);
    }

    /// Receive buffer in payload bytes, not doubled. Default 1 MiB.
    pub fn set_recv_buffer(&self, bytes: u64) {
        let shared = self.shared();
        let mut core = shared.core();
        self.mailbox.set_receive_buffer(bytes);
        core.node.set_receive_buffer(self.id(), bytes);
        shared.settle(core);
    }

    /// Whether destinations that were refused as congested are reported when free
    /// ([`Received::CongestionCleared`](super::Received::CongestionCleared)). Only refusals of non-blocking sends count, as in
    /// the kernel.
    pub fn set_congestion_monitor(&self, on: bool) {
        let mut back = self.mailbox.back();
        back.monitor = on;
        if !on {
            back.armed = 0;
            back.cleared = 0;
            self.mailbox.settle_notices(&back);
        }
    }

    /// Accepted and without effect on TCP, as in the kernel.
    pub fn set_tos(&self, tos: u8) {
        let _ = tos;
    }

    /// Forgets this socket's messages to `destination`; what TCP has may still arrive. Returns how many.
    pub fn cancel_sent_to(&self, destination: SocketAddr) -> usize {
        self.cancel(Some(destination))
    }

    /// As [`Socket::cancel_sent_to`], for every destination.
    pub fn cancel_all(&self) -> usize {
        self.cancel(None)
    }

    fn cancel(&self, destination: Option<SocketAddr>) -> usize {
        let mut core = self.shared().core();
        let count = core.node.cancel(self.id(), destination);
        self.shared().settle(core);
        count
    }

    /// Blocks until nothing of this socket is queued or unacknowledged, or `deadline` has passed; whether it is so.
    pub fn flush(&self, deadline: Duration) -> bool {
        let shared = self.shared();
        shared
            .block(
                Instant::now().checked_add(deadline),
                true,
                |parker| {
                    let mut core = shared.core();
                    let drained = core.node.watch_drained(self.id());
                    if !drained {
                        self.mailbox.back().wait_send(parker);
                    }
                    drained.then_some(())
                },
                |parker| self.mailbox.forget(parker),
            )
            .is_some()
    }

    /// Blocks until `destination` is not congested or the timeout has passed; whether it is so.
    pub fn wait_uncongested(&self, destination: SocketAddr, timeout: Option<Duration>) -> bool {
        let shared = self.shared();
        shared
            .block(
                timeout.and_then(|t| Instant::now().checked_add(t)),
                true,
                |parker| {
                    let mut core = shared.core();
                    let congested = core.node.watch_congestion(self.id(), destination);
                    if congested {
                        self.mailbox.back().wait_send(parker);
                    }
                    shared.settle(core);
                    (!congested).then_some(())
                },
                |parker| self.mailbox.forget(parker),
            )
            .is_some()
    }

    /// A descriptor that polls readable while a receive would return something. Level triggered; never read it.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn readable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.mailbox.readable_fd()
    }

    /// A descriptor that polls readable (POLLIN) while the send buffer has room. Level triggered; never read it.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn writable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        let mut core = self.shared().core();
        let fd = self.mailbox.writable_fd()?;
        self.update_writable(&mut core);
        Ok(fd)
    }

    /// Unbinds the port and cancels what is queued, as the kernel's close does.
    pub fn close(self) {
        self.cancel_on_close.store(true, Relaxed);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let drain = !self.cancel_on_close.load(Relaxed);
        let shared = self.engine.shared();
        let mut core = shared.core();
        core.node.close(self.mailbox.id, drain);
        core.remove_mailbox(self.mailbox.id);
        let tally = self.mailbox.front().tally;
        shared.stats.add_closed(tally);
        shared.settle(core);
    }
}

fn blocked_by(error: proto::SendError) -> Option<Blocked> {
    match error {
        proto::SendError::Congested => Some(Blocked::Congested),
        proto::SendError::Full => Some(Blocked::Full),
        _ => None,
    }
}

fn owned(payload: Payload<'_>) -> Bytes {
    match payload {
        Payload::Owned(bytes) => bytes,
        // Not reached: what was handed in comes back.
        Payload::Copy(bytes) => Bytes::copy_from_slice(bytes),
        Payload::Gather(_) => Bytes::new(),
    }
}

fn store_timeout(cell: &AtomicU64, timeout: Option<Duration>) {
    let nanos = timeout.map_or(FOR_EVER, |t| u64::try_from(t.as_nanos()).unwrap_or(FOR_EVER));
    cell.store(nanos, Relaxed);
}

fn deadline(cell: &AtomicU64) -> Option<Instant> {
    match cell.load(Relaxed) {
        FOR_EVER => None,
        nanos => Instant::now().checked_add(Duration::from_nanos(nanos)),
    }
}
