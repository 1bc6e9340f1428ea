//! Sending from an attached socket.

use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard};

use super::super::{Submission, Where};
use super::book::{Held, NAMELESS, Unfinished};
use super::core::Core;
use super::link::Link;
use super::seat::Place;
use super::socket::Socket;
use crate::buffer::{Chunk, OnRelease, Owned, PoolBuffer};
use crate::engine::parker::Parker;
use crate::engine::wait::Waits;
use crate::engine::{Blocked, Cookie, SendError, TrySendError};
use crate::proto;
use crate::sys::shm::count_copy;

/// Payloads of the program's up to this size are copied into the ring; larger ones into the arena, from which the daemon sends.
const INLINE: usize = 4 << 10;
/// The same for payloads that lie in the arena already.
const OWNED_INLINE: usize = 512;

/// What is to be sent.
pub(super) enum Payload<'a> {
    Copy(&'a [u8]),
    Gather(&'a [IoSlice<'a>]),
    Owned(Owned),
}

impl Payload<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Copy(bytes) => bytes.len(),
            Self::Gather(pieces) => pieces.iter().map(|piece| piece.len()).sum(),
            Self::Owned(bytes) => bytes.len(),
        }
    }

    fn pieces(&self, mut put: impl FnMut(&[u8])) {
        match self {
            Self::Copy(bytes) => put(bytes),
            Self::Gather(pieces) => pieces.iter().for_each(|piece| put(piece)),
            Self::Owned(bytes) => put(bytes),
        }
    }

    fn into_owned(self) -> Owned {
        match self {
            Self::Owned(payload) => payload,
            Self::Copy(_) | Self::Gather(_) => unreachable!("what was handed in comes back"),
        }
    }
}

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    Never(SendError),
    Congested,
    Full,
    /// No room in the ring or the arena, or no daemon: as a full buffer to the program.
    Starved,
}

impl Refused {
    fn blocked(self) -> Result<Blocked, SendError> {
        match self {
            Self::Never(error) => Err(error),
            Self::Congested => Ok(Blocked::Congested),
            Self::Full | Self::Starved => Ok(Blocked::Full),
        }
    }
}

impl From<proto::SendError> for Refused {
    fn from(error: proto::SendError) -> Self {
        match error {
            proto::SendError::Congested => Self::Congested,
            proto::SendError::Full => Self::Full,
            other => Self::Never(other.into()),
        }
    }
}

impl From<Refused> for TrySendError {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Never(error) => Self::Refused(error),
            Refused::Congested => Self::Congested,
            Refused::Full | Refused::Starved => Self::Full,
        }
    }
}

/// A message on its way to the ring.
struct Offer<'a> {
    destination: SocketAddr,
    cookie: Option<Cookie>,
    /// `None` once it was taken.
    payload: Option<Payload<'a>>,
    /// Whoever sends it waits until it is taken.
    blocking: bool,
    /// A copy of it in the arena, kept from one attempt to the next.
    copy: Option<PoolBuffer>,
}

impl Core {
    /// The checks of a send, in the order of [`proto::SendError`].
    fn admit(&self, number: u32, destination: SocketAddr, len: u64) -> Result<(), Refused> {
        let Some(seat) = self.seat(number) else { return Err(proto::SendError::Closed.into()) };
        if let Place::Lost(error) = seat.place {
            return Err(Refused::Never(SendError::PortLost(error)));
        }
        let address = destination.ip();
        if !proto::is_unicast(address) {
            return Err(proto::SendError::InvalidDestination.into());
        }
        let canonical = address.to_canonical();
        if canonical.is_ipv4() != self.address.is_ipv4() || canonical != address {
            return Err(proto::SendError::FamilyMismatch.into());
        }
        let most = self.line.as_ref().map_or(u32::MAX, |line| line.link.welcome.max_message);
        let limit = seat.account.limit.min(u64::from(most));
        if len > limit {
            return Err(proto::SendError::TooLarge { limit }.into());
        }
        if self.shutting_down {
            return Err(proto::SendError::ShuttingDown.into());
        }
        if !seat.congested.is_empty() && seat.congested.contains(&destination) {
            return Err(Refused::Congested);
        }
        if !seat.account.has_room() {
            return Err(Refused::Full);
        }
        if self.line.is_none() || seat.place != Place::Bound {
            return Err(Refused::Starved);
        }
        Ok(())
    }

    /// Writes the record of a message that was admitted, and notes what is to be told of it.
    fn submit(&mut self, socket: &Socket, offer: &mut Offer<'_>, whole: &Arc<Link>) -> Result<(), Refused> {
        let payload = offer.payload.as_ref().expect("it was not taken yet");
        let len = payload.len();
        // Where it lies in the arena, if it does.
        let own = match payload {
            Payload::Owned(Owned::Pool(buffer)) if len > OWNED_INLINE => buffer.offset_in(whole),
            _ => None,
        };
        let copied = offer.copy.as_ref().and_then(|copy| copy.offset_in(whole));
        let place = match own.or(copied) {
            Some(offset) => Where::Arena { offset, len: len as u32 },
            None => Where::Inline(len as u32),
        };
        let (held, wants_end) = (matches!(place, Where::Arena { .. }), offer.cookie.is_some());
        let id = if held || wants_end { self.book.next() } else { NAMELESS };
        let record = Submission::Send {
            socket: socket.number,
            id,
            to: offer.destination,
            wants_end,
            mode: socket.settings.send_mode(),
            payload: place,
        };
        let line = self.line.as_mut().ok_or(Refused::Starved)?;
        if !line.producer.has_room(if held { 0 } else { len })
            && !line.producer.want_room(if held { 0 } else { len })
        {
            return Err(Refused::Starved);
        }
        let mut slot = line.producer.reserve(&record).ok_or(Refused::Starved)?;
        if !held {
            payload.pieces(|piece| slot.write(piece));
        }
        slot.commit();
        let seat = self.seat_mut(socket.number).expect("it was admitted");
        seat.account.charge(len as u64, wants_end);
        if own.is_none() {
            self.counts.copied_in += len as u64;
        }
        let hook = offer.cookie.map(|cookie| (Arc::clone(&socket.mailbox) as Arc<dyn OnRelease>, cookie.0));
        let taken = offer.payload.take();
        let copy = offer.copy.take().map(|copy| Chunk::of(Owned::from(copy).lend(None)));
        let owned = match taken {
            Some(Payload::Owned(payload)) => Some(Chunk::of(payload.lend(hook))),
            _ => None,
        };
        let held = if own.is_some() {
            owned.map(Held)
        } else {
            if let Some(owned) = owned {
                // It was copied, so its memory is free. Dropped once no lock is held.
                owned.mark_copied();
                self.wakes.released.push(owned);
            }
            copy.map(Held)
        };
        if id != NAMELESS {
            let (number, cookie) = (socket.number, offer.cookie);
            self.book.add(Unfinished { socket: number, len: len as u32, cookie, held });
        }
        Ok(())
    }
}

impl Socket {
    /// Sends to the connected destination; blocks as [`Socket::send_to`].
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&self, payload: &[u8]) -> Result<(), SendError> {
        self.send_to(payload, self.peer_addr().ok_or(SendError::NotConnected)?)
    }

    /// Hands a whole message over, blocking while the port is congested, the buffer full or the daemon away, up to the send timeout.
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

    /// Hands a message over without blocking.
    ///
    /// # Errors
    /// [`TrySendError`].
    pub fn try_send_to(&self, payload: &[u8], destination: SocketAddr) -> Result<(), TrySendError> {
        self.try_send(Payload::Copy(payload), destination, None).map_err(|(refused, _)| refused)
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
        self.try_send(Payload::Gather(pieces), destination, None).map_err(|(refused, _)| refused)
    }

    /// Hands a payload over. A buffer of [`Client::buffer`](super::Client::buffer) is sent from where it lies; anything else is copied once.
    /// Blocks as [`Socket::send_to`].
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
        if !self.mailbox.expect_completions() {
            return Err((SendError::CompletionsUntaken, payload));
        }
        self.send_blocking(Payload::Owned(payload), destination, Some(cookie)).map_err(|(error, payload)| {
            self.mailbox.unexpect_completions();
            (error, payload.into_owned())
        })
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
        let payload = payload.into();
        if !self.mailbox.expect_completions() {
            return Err((TrySendError::Refused(SendError::CompletionsUntaken), payload));
        }
        self.try_send(Payload::Owned(payload), destination, Some(cookie)).map_err(|(error, payload)| {
            self.mailbox.unexpect_completions();
            (error, payload.into_owned())
        })
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
        self.send_blocking(Payload::Owned(payload.into()), destination, None)
            .map_err(|(error, payload)| (error, payload.into_owned()))
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
        self.try_send(Payload::Owned(payload.into()), destination, None)
            .map_err(|(error, payload)| (error, payload.into_owned()))
    }

    fn try_send<'a>(
        &self,
        payload: Payload<'a>,
        destination: SocketAddr,
        cookie: Option<Cookie>,
    ) -> Result<(), (TrySendError, Payload<'a>)> {
        let mut offer = Offer { destination, cookie, payload: Some(payload), blocking: false, copy: None };
        let mut result = self.offer(&mut offer, None);
        // Room may have come that nobody has looked at.
        if result.is_err_and(|refused| refused.blocked().is_ok()) && self.shared.drain() {
            result = self.offer(&mut offer, None);
        }
        let Err(refused) = result else { return Ok(()) };
        if refused == Refused::Congested {
            let core = self.shared.core();
            let mut back = self.mailbox.back();
            // Unless it was cleared just now, of which nobody would be told.
            let congested = core.seat(self.number).is_some_and(|s| s.congested.contains(&destination));
            if back.monitor && congested {
                back.armed |= 1 << (destination.port() % 64);
            }
        }
        Err((refused.into(), offer.payload.expect("what is refused is not taken")))
    }

    fn send_blocking<'a>(
        &self,
        payload: Payload<'a>,
        destination: SocketAddr,
        cookie: Option<Cookie>,
    ) -> Result<(), (SendError, Payload<'a>)> {
        let mut offer = Offer { destination, cookie, payload: Some(payload), blocking: true, copy: None };
        let Err(refused) = self.offer(&mut offer, None) else { return Ok(()) };
        let error = match refused.blocked() {
            Err(error) => error,
            Ok(mut blocked) => {
                let deadline = self.settings.send_deadline();
                let attempt = |parker: &Arc<Parker>| match self.offer(&mut offer, Some(parker)) {
                    Ok(()) => Some(Ok(())),
                    Err(refused) => match refused.blocked() {
                        Err(error) => Some(Err(error)),
                        Ok(why) => {
                            blocked = why;
                            None
                        }
                    },
                };
                match self.shared.block(deadline, false, attempt, |parker| self.forget_sender(parker)) {
                    Some(Ok(())) => return Ok(()),
                    Some(Err(error)) => error,
                    None if self.shared.is_stopped() => proto::SendError::ShuttingDown.into(),
                    None => SendError::TimedOut(blocked),
                }
            }
        };
        Err((error, offer.payload.expect("what is refused is not taken")))
    }

    /// Offers a message once. If it is refused for now, the parker, if any, is registered.
    fn offer(&self, offer: &mut Offer<'_>, parker: Option<&Arc<Parker>>) -> Result<(), Refused> {
        let len = offer.payload.as_ref().map_or(0, Payload::len);
        loop {
            let mut core = self.shared.core();
            if let Err(refused) = core.admit(self.number, offer.destination, len as u64) {
                self.refused(core, refused, parker, offer.blocking);
                return Err(refused);
            }
            let link = core.line.as_ref().map(|line| Arc::clone(&line.link)).expect("it was admitted");
            if self.must_copy(offer, len, &link, &core) {
                drop(core);
                self.copy(offer, len, &link, parker)?;
                continue;
            }
            let result = core.submit(self, offer, &link);
            match result {
                Ok(()) => {
                    core.update_writable(self.number);
                    self.shared.settle(core, true);
                }
                Err(refused) => self.refused(core, refused, parker, offer.blocking),
            }
            return result;
        }
    }

    fn must_copy(&self, offer: &Offer<'_>, len: usize, link: &Arc<Link>, core: &Core) -> bool {
        // Where the rings are small, little goes into them.
        let most = core.line.as_ref().map_or(0, |line| line.producer.max_inline());
        if len <= INLINE.min(most) || link.send_arena.is_none() {
            return false;
        }
        let lies_there = match &offer.payload {
            Some(Payload::Owned(Owned::Pool(buffer))) => buffer.offset_in(link).is_some(),
            _ => false,
        };
        !lies_there && offer.copy.as_ref().is_none_or(|copy| copy.offset_in(link).is_none())
    }

    /// Copies a large payload into the arena, without a lock.
    fn copy(
        &self,
        offer: &mut Offer<'_>,
        len: usize,
        link: &Arc<Link>,
        parker: Option<&Arc<Parker>>,
    ) -> Result<(), Refused> {
        // A copy in the memory of an earlier daemon is of no use.
        offer.copy = None;
        let mut buffer = link.buffer(len);
        if buffer.is_none() {
            if let Some(parker) = parker {
                link.wait(parker);
            }
            self.refused(self.shared.core(), Refused::Starved, parker, offer.blocking);
            buffer = link.buffer(len);
        }
        let mut buffer = buffer.ok_or(Refused::Starved)?;
        let mut rest = &mut buffer[..];
        if let Some(payload) = &offer.payload {
            payload.pieces(|piece| {
                let (to, after) = std::mem::take(&mut rest).split_at_mut(piece.len());
                to.copy_from_slice(piece);
                count_copy(piece.len());
                rest = after;
            });
        }
        offer.copy = Some(buffer);
        Ok(())
    }

    /// Counts a refusal, and registers the parker, if any, where it is one for now.
    fn refused(
        &self,
        mut core: MutexGuard<'_, Core>,
        refused: Refused,
        parker: Option<&Arc<Parker>>,
        blocking: bool,
    ) {
        match refused {
            Refused::Congested if blocking => core.counts.waits += 1,
            Refused::Congested => core.counts.congested += 1,
            Refused::Full | Refused::Starved => core.counts.full += 1,
            Refused::Never(_) => {}
        }
        if refused == Refused::Starved {
            // Otherwise it ends when the port is bound again.
            let attached = core.is_attached();
            if let Some(seat) =
                core.seat_mut(self.number).filter(|seat| attached && seat.place == Place::Bound)
            {
                seat.starved = true;
                core.starved = true;
            }
        }
        if let (Some(parker), Ok(_)) = (parker, refused.blocked()) {
            self.mailbox.back().wait_send(parker);
        }
        core.update_writable(self.number);
        self.shared.settle(core, true);
    }

    pub(super) fn forget_sender(&self, parker: &Arc<Parker>) {
        self.mailbox.forget(parker);
        let core = self.shared.core();
        if let Some(line) = &core.line {
            line.link.forget(parker);
        }
    }
}
