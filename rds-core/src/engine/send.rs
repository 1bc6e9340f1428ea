//! Sending.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;

use super::core::Core;
use super::{Blocked, SendError, Socket, TrySendError};
use crate::proto::{self, Payload, Rejected, Token};

/// Payloads above this size are copied before the core is locked.
const COPY_OUTSIDE: usize = 16 << 10;

impl Socket {
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
        let deadline = self.send_deadline();
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
