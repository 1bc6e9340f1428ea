//! Receiving and waiting at one socket's mailbox, whoever fills it.

use std::sync::{Arc, Weak};
use std::time::Instant;

use super::completion::Completion;
use super::lease::Bytes;
use super::mailbox::{Mailbox, Refill, Taken};
use super::parker::Parker;
use super::wait::Waits;
use super::{Event, Lease, Message, Readiness, Received, RecvError};
use crate::buffer::Pool;

/// Who fills a mailbox: the engine, or the connection to a daemon.
pub(crate) trait Fills: Waits + Frees {
    /// Memory for messages that are handed out.
    fn pool(&self) -> &Pool;

    /// Whom leases tell that they are free.
    fn frees(&self) -> Weak<dyn Frees>;

    /// Nothing is queued: brings in what has come and nobody has looked at. Whether to look again.
    fn fetch(&self, mailbox: &Mailbox) -> bool {
        let _ = mailbox;
        false
    }

    /// Why the mailbox is closed.
    fn closed(&self, mailbox: &Mailbox) -> RecvError {
        let _ = mailbox;
        RecvError::Shutdown
    }
}

/// Who is told that received messages were taken.
pub(crate) trait Frees: Send + Sync {
    /// The memory of a message is free; `report` is what the mailbox says is to be reported now.
    fn freed(&self, mailbox: &Mailbox, report: Option<Taken>);
}

/// A socket's receiving side, for one call.
pub(crate) struct Inlet<'a, F> {
    pub(crate) host: &'a F,
    pub(crate) mailbox: &'a Arc<Mailbox>,
}

impl<F: Fills> Inlet<'_, F> {
    pub(crate) fn recv_from(
        &self,
        buffer: &mut [u8],
        deadline: impl FnOnce() -> Option<Instant>,
    ) -> Result<Received, RecvError> {
        match self.now(|| self.take_into(buffer, None)) {
            Some(result) => result,
            None => self.block_receive(deadline(), |parker| self.take_into(buffer, Some(parker))),
        }
    }

    pub(crate) fn try_recv_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        self.now(|| self.take_into(buffer, None)).unwrap_or(Err(RecvError::Empty))
    }

    pub(crate) fn recv_lease(&self, deadline: impl FnOnce() -> Option<Instant>) -> Result<Event, RecvError> {
        match self.now(|| self.take(None)) {
            Some(result) => result,
            None => self.block_receive(deadline(), |parker| self.take(Some(parker))),
        }
    }

    pub(crate) fn try_recv_lease(&self) -> Result<Event, RecvError> {
        self.now(|| self.take(None)).unwrap_or(Err(RecvError::Empty))
    }

    pub(crate) fn peek_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        let peek = || {
            let mut front = self.mailbox.front();
            match self.mailbox.refill(&mut front, None) {
                Refill::Closed => return Some(Err(self.host.closed(self.mailbox))),
                Refill::Empty | Refill::Notice => return None,
                Refill::Messages => {}
            }
            let (len, full_len, from) = front.queue.peek(buffer)?;
            front.tally.copied += len as u64;
            Some(Ok(Received::Message { len, full_len, from }))
        };
        self.now(peek).unwrap_or(Err(RecvError::Empty))
    }

    pub(crate) fn next_len(&self) -> Option<usize> {
        self.now(|| {
            let mut front = self.mailbox.front();
            let _ = self.mailbox.refill(&mut front, None);
            front.queue.next_len()
        })
    }

    /// Blocks until one of the `interest` is there or the deadline has passed. `writable` registers the parker where there is no room to send.
    pub(crate) fn wait(
        &self,
        interest: Readiness,
        deadline: Option<Instant>,
        writable: impl Fn(&Arc<Parker>) -> bool,
    ) -> Readiness {
        let look = |parker: &Arc<Parker>| {
            let mut found = Readiness::default();
            if interest.writable {
                found.writable = writable(parker);
            }
            if interest.completions {
                found.completions = self.mailbox.poll_completions(Some(parker));
            }
            if interest.readable {
                found.readable = self.mailbox.poll_receive(Some(parker));
            }
            Some(found).filter(|found| *found != Readiness::default())
        };
        if interest == Readiness::default() {
            return interest;
        }
        let steal = interest.readable || interest.completions;
        // A wait that may not sleep polls, too.
        self.host.fetch(self.mailbox);
        self.host.block(deadline, steal, look, |parker| self.mailbox.forget(parker)).unwrap_or_default()
    }

    pub(crate) fn completions(&self, out: &mut Vec<Completion>) -> usize {
        let take = |out: &mut Vec<Completion>| {
            let n = self.mailbox.take_completions(out, None);
            (n > 0).then_some(n)
        };
        self.now(|| take(out)).unwrap_or(0)
    }

    pub(crate) fn wait_completions(&self, out: &mut Vec<Completion>, deadline: Option<Instant>) -> usize {
        let take = |parker: &_| {
            let n = self.mailbox.take_completions(out, Some(parker));
            (n > 0).then_some(n)
        };
        self.host.block(deadline, true, take, |parker| self.mailbox.forget(parker)).unwrap_or(0)
    }

    /// One attempt, and another if that may find what the first did not.
    fn now<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        attempt().or_else(|| if self.host.fetch(self.mailbox) { attempt() } else { None })
    }

    fn block_receive<T>(
        &self,
        deadline: Option<Instant>,
        take: impl FnMut(&Arc<Parker>) -> Option<Result<T, RecvError>>,
    ) -> Result<T, RecvError> {
        match self.host.block(deadline, true, take, |parker| self.mailbox.forget(parker)) {
            Some(result) => result,
            None if self.host.is_stopped() => Err(RecvError::Shutdown),
            None => Err(RecvError::TimedOut),
        }
    }

    /// One attempt. When nothing is there the parker, if any, is registered.
    fn take_into(
        &self,
        buffer: &mut [u8],
        parker: Option<&Arc<Parker>>,
    ) -> Option<Result<Received, RecvError>> {
        let mailbox = self.mailbox;
        loop {
            if let Some(mask) = self.take_notice() {
                return Some(Ok(Received::CongestionCleared(mask)));
            }
            let mut front = mailbox.front();
            match mailbox.refill(&mut front, parker) {
                Refill::Notice => continue,
                Refill::Empty => return None,
                Refill::Closed => return Some(Err(self.host.closed(mailbox))),
                Refill::Messages => {}
            }
            let (len, full_len, from, large) = front.queue.pop_into(buffer)?;
            front.tally.copied += len as u64;
            let report = mailbox.taken(&mut front, full_len);
            drop(front);
            let tell = report.is_some() || large.is_some();
            drop(large);
            if tell {
                self.host.freed(mailbox, report);
            }
            return Some(Ok(Received::Message { len, full_len, from }));
        }
    }

    /// As [`Inlet::take_into`], keeping the message's own buffer.
    fn take(&self, parker: Option<&Arc<Parker>>) -> Option<Result<Event, RecvError>> {
        let mailbox = self.mailbox;
        loop {
            if let Some(mask) = self.take_notice() {
                return Some(Ok(Event::CongestionCleared(mask)));
            }
            let mut guard = mailbox.front();
            match mailbox.refill(&mut guard, parker) {
                Refill::Notice => continue,
                Refill::Empty => return None,
                Refill::Closed => return Some(Err(self.host.closed(mailbox))),
                Refill::Messages => {}
            }
            let front = &mut *guard;
            let (bytes, from) = front.queue.pop(&mut front.store, self.host.pool())?;
            let payload = if let Bytes::Large(_) = &bytes {
                mailbox.leased(front);
                drop(guard);
                Lease::counted(bytes, mailbox, self.host.frees())
            } else {
                let report = mailbox.taken(front, bytes.len());
                drop(guard);
                if report.is_some() {
                    self.host.freed(mailbox, report);
                }
                Lease::taken(bytes)
            };
            return Some(Ok(Event::Message(Message { from, payload })));
        }
    }

    fn take_notice(&self) -> Option<u64> {
        if !self.mailbox.has_notices() {
            return None;
        }
        let front = self.mailbox.front();
        let mut back = self.mailbox.back();
        let cleared = std::mem::take(&mut back.cleared);
        self.mailbox.settle_notices(&back);
        drop(back);
        self.mailbox.after_take(&front);
        (cleared != 0).then_some(cleared)
    }
}
