//! Sending.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};

use super::core::Core;
use super::wait::Waits;
use super::{Blocked, Cookie, SendError, Socket, TrySendError};
use crate::buffer::{Chunk, OnRelease, Owned};
use crate::proto::{self, Payload, Rejected, Token};
use crate::zerocopy::{Full, WhenFull};

/// Payloads above this size are copied before the core is locked.
pub(super) const COPY_OUTSIDE: usize = 16 << 10;

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

    /// Queues a message that is sent from where it lies; blocks as [`Socket::send_to`]. The payload belongs to the node from here on: it
    /// cannot be changed, and [`Socket::completions`] tells when its memory is free and how the message ended.
    ///
    /// # Errors
    /// The error, and the payload back.
    pub fn send_owned(
        &self,
        payload: impl Into<Owned>,
        destination: SocketAddr,
    ) -> Result<Cookie, (SendError, Owned)> {
        let cookie = self.settings.cookie();
        self.send_owned_as(cookie, payload, destination).map(|()| cookie)
    }

    /// As [`Socket::send_owned`], under a cookie of the caller's.
    ///
    /// # Errors
    /// The error, and the payload back.
    pub fn send_owned_as(
        &self,
        cookie: Cookie,
        payload: impl Into<Owned>,
        destination: SocketAddr,
    ) -> Result<(), (SendError, Owned)> {
        let payload = payload.into();
        let reserved = match self.reserve_blocking(payload.len(), destination) {
            Ok(reserved) => reserved,
            Err(error) => return Err((error, payload)),
        };
        let payload =
            self.lend_tracked(payload, cookie, reserved).map_err(|p| (SendError::CompletionsUntaken, p))?;
        self.send_blocking(payload, destination, Some(token(cookie)))
            .map_err(|(error, payload)| (error, self.take_back(payload, true)))
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
        let cookie = self.settings.cookie();
        self.try_send_owned_as(cookie, payload, destination).map(|()| cookie)
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
        let untaken = |p| (TrySendError::Refused(SendError::CompletionsUntaken), p);
        let payload = payload.into();
        let reserved = match self.reserve(payload.len(), destination) {
            Ok(reserved) => reserved,
            Err(_) => return Err((self.no_room(), payload)),
        };
        let payload = self.lend_tracked(payload, cookie, reserved).map_err(untaken)?;
        self.try_send(payload, destination, Some(token(cookie)))
            .map_err(|rejected| (rejected.error.into(), self.take_back(rejected.payload, true)))
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
        let payload = payload.into();
        let reserved = match self.reserve_blocking(payload.len(), destination) {
            Ok(reserved) => reserved,
            Err(error) => return Err((error, payload)),
        };
        let payload = self.detached(payload, reserved);
        self.send_blocking(payload, destination, None)
            .map_err(|(error, payload)| (error, self.take_back(payload, false)))
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
        let payload = payload.into();
        let reserved = match self.reserve(payload.len(), destination) {
            Ok(reserved) => reserved,
            Err(_) => return Err((self.no_room(), payload)),
        };
        let payload = self.detached(payload, reserved);
        self.try_send(payload, destination, None)
            .map_err(|rejected| (rejected.error.into(), self.take_back(rejected.payload, false)))
    }

    /// Lends a payload to the node. Fails if the program has left too many completions untaken.
    fn lend_tracked(&self, payload: Owned, cookie: Cookie, reserved: u32) -> Result<Payload<'static>, Owned> {
        if !self.mailbox.expect_completions() {
            self.mailbox.share.release(reserved);
            self.shared().pins.wake();
            return Err(payload);
        }
        let hook = (Arc::clone(&self.mailbox) as Arc<dyn OnRelease>, cookie.0);
        Ok(Payload::Owned(Chunk::of(payload.lend_on(Some(hook), self.terms(), reserved))))
    }

    /// A payload of which nobody wants to know when it is free.
    fn detached(&self, payload: Owned, reserved: u32) -> Payload<'static> {
        Payload::Owned(match payload {
            Owned::Bytes(bytes) if self.settings.send_mode().is_none() && reserved == 0 => {
                Chunk::payload(bytes)
            }
            other => Chunk::of(other.lend_on(None, self.terms(), reserved)),
        })
    }

    /// Pages for a payload, where the node's options say what happens without.
    fn reserve(&self, len: usize, destination: SocketAddr) -> Result<u32, Full> {
        let shared = self.shared();
        // What is refused for its length, whatever room there is, is to be told so.
        if shared.pins.settings.when_full == WhenFull::Copy
            || destination.ip() == self.mailbox.local.ip()
            || len > shared.options.config.max_message as usize
        {
            return Ok(0);
        }
        shared.pins.reserve(&self.mailbox.share, self.settings.send_mode(), destination.ip(), len)
    }

    fn reserve_blocking(&self, len: usize, destination: SocketAddr) -> Result<u32, SendError> {
        let shared = self.shared();
        if let Ok(reserved) = self.reserve(len, destination) {
            return Ok(reserved);
        }
        if shared.pins.settings.when_full != WhenFull::Wait {
            return Err(self.pin_limit());
        }
        let attempt = |parker: &_| {
            shared.pins.wait(parker);
            self.reserve(len, destination).ok()
        };
        let reserved =
            shared.block(self.settings.send_deadline(), false, attempt, |parker| shared.pins.forget(parker));
        reserved.ok_or(if shared.is_stopped() {
            proto::SendError::ShuttingDown.into()
        } else {
            SendError::TimedOut(Blocked::Pins)
        })
    }

    fn pin_limit(&self) -> SendError {
        SendError::PinLimit { limit: self.shared().pins.limit() }
    }

    fn no_room(&self) -> TrySendError {
        match self.shared().pins.settings.when_full {
            WhenFull::Wait => TrySendError::Full,
            _ => TrySendError::Refused(self.pin_limit()),
        }
    }

    /// The payload of a send that was refused.
    fn take_back(&self, payload: Payload<'_>, expected: bool) -> Owned {
        if expected {
            self.mailbox.unexpect_completions();
        }
        let Payload::Owned(chunk) = payload else { unreachable!("what was handed in comes back") };
        let payload = chunk.reclaim().expect("nobody refers to what was refused");
        // The pages that were reserved for it are free.
        self.shared().pins.wake();
        payload
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
        let deadline = self.settings.send_deadline();
        // Copied once, however often it is tried. The caller's own payload goes back if it fails.
        let (original, mut pending) = match rejected.payload {
            owned @ Payload::Owned(_) => (None, Some(owned)),
            other => {
                let copy = self.copy_in(&other);
                shared.core().copied_in += copy.len() as u64;
                (Some(other), Some(Payload::Owned(copy)))
            }
        };
        let outcome = shared.block(
            deadline,
            false,
            |parker| {
                let mut core = shared.core();
                let (node, mut inbox) = core.with_inbox();
                let payload = pending.take().expect("a refused payload comes back");
                let result = node.send(self.id(), destination, payload, token, &mut inbox);
                drop(inbox);
                let result = result.map_err(|rejected| {
                    pending = Some(rejected.payload);
                    rejected.error
                });
                let again = result.err().and_then(blocked_by);
                if let Some(why) = again {
                    blocked = why;
                    count(why);
                    self.mailbox.back().wait_send(parker);
                }
                self.update_writable(&mut core);
                shared.settle(core);
                again.is_none().then_some(result)
            },
            |parker| self.mailbox.forget(parker),
        );
        let error = match outcome {
            Some(Ok(())) => return Ok(()),
            Some(Err(error)) => error.into(),
            None if shared.is_stopped() => proto::SendError::ShuttingDown.into(),
            None => SendError::TimedOut(blocked),
        };
        Err((error, original.or(pending).expect("a refused payload comes back")))
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

    fn copy_in(&self, payload: &Payload<'_>) -> Chunk {
        let mut buffer = self.shared().pool.take(payload.len());
        let mut rest = &mut buffer[..];
        let mut put = |piece: &[u8]| {
            let (to, after) = std::mem::take(&mut rest).split_at_mut(piece.len());
            to.copy_from_slice(piece);
            rest = after;
        };
        match payload {
            Payload::Copy(bytes) => put(bytes),
            Payload::Gather(pieces) => pieces.iter().for_each(|piece| put(piece)),
            Payload::Shared(span) => span.copy_to(&mut buffer),
            Payload::Owned(chunk) => chunk.view().copy_to(&mut buffer),
        }
        Chunk::of(Owned::from(buffer).lend_on(None, self.terms(), 0))
    }
}

fn blocked_by(error: proto::SendError) -> Option<Blocked> {
    match error {
        proto::SendError::Congested => Some(Blocked::Congested),
        proto::SendError::Full => Some(Blocked::Full),
        _ => None,
    }
}

fn token(cookie: Cookie) -> Token {
    Token(u64::from(cookie.0))
}
