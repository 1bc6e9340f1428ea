//! Receiving, and waiting for either side.

use std::time::{Duration, Instant};

use super::mailbox::{Refill, Taken};
use super::parker::Parker;
use super::{Event, Message, Readiness, Received, RecvError, Socket};
use std::sync::Arc;

/// Either form of a notification.
enum Notice {
    Done(crate::proto::Token, crate::proto::Outcome),
    Cleared(u64),
}

impl Socket {
    /// Receives into `buffer`, blocking up to the receive timeout. Order: ended sends, cleared congestion, messages.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn recv_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        match self.take_into(buffer, None) {
            Some(result) => result,
            None => self.block_receive(|parker| self.take_into(buffer, Some(parker))),
        }
    }

    /// As [`Socket::recv_from`], without blocking.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        self.take_into(buffer, None).unwrap_or(Err(RecvError::Empty))
    }

    /// Receives without copying large messages; blocks up to the receive timeout.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn recv(&self) -> Result<Event, RecvError> {
        match self.take(None) {
            Some(result) => result,
            None => self.block_receive(|parker| self.take(Some(parker))),
        }
    }

    /// As [`Socket::recv`], without blocking.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn try_recv(&self) -> Result<Event, RecvError> {
        self.take(None).unwrap_or(Err(RecvError::Empty))
    }

    /// Copies the oldest message and leaves it queued (kernel: MSG_PEEK). Does not block.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn peek_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        let mut front = self.mailbox.front();
        match self.mailbox.refill(&mut front, None) {
            Refill::Closed => return Err(RecvError::Shutdown),
            Refill::Empty | Refill::Notice => return Err(RecvError::Empty),
            Refill::Messages => {}
        }
        let (len, full_len, from) = front.queue.peek(buffer).ok_or(RecvError::Empty)?;
        front.tally.copied += len as u64;
        Ok(Received::Message { len, full_len, from })
    }

    /// Length of the oldest message in bytes, if any is queued.
    #[must_use]
    pub fn next_len(&self) -> Option<usize> {
        let mut front = self.mailbox.front();
        let _ = self.mailbox.refill(&mut front, None);
        front.queue.next_len()
    }

    /// Blocks until one of the `interest` is there or the timeout has passed.
    pub fn wait(&self, interest: Readiness, timeout: Option<Duration>) -> Readiness {
        let shared = self.shared();
        let look = |parker: Option<&Arc<Parker>>| {
            let mut found = Readiness::default();
            if interest.writable {
                let mut core = shared.core();
                found.writable = core.node.watch_writable(self.mailbox.id);
                if let (false, Some(parker)) = (found.writable, parker) {
                    self.mailbox.back().wait_send(parker);
                }
            }
            if interest.readable {
                found.readable = self.mailbox.poll_receive(parker);
            }
            found
        };
        if interest == Readiness::default() {
            return interest;
        }
        shared
            .block(
                timeout.and_then(|t| Instant::now().checked_add(t)),
                interest.readable,
                |parker| Some(look(Some(parker))).filter(|found| found.readable || found.writable),
                |parker| self.mailbox.forget(parker),
            )
            .unwrap_or_default()
    }

    fn block_receive<T>(
        &self,
        take: impl FnMut(&Arc<Parker>) -> Option<Result<T, RecvError>>,
    ) -> Result<T, RecvError> {
        let deadline = self.recv_deadline();
        match self.shared().block(deadline, true, take, |parker| self.mailbox.forget(parker)) {
            Some(result) => result,
            None if self.shared().is_stopped() => Err(RecvError::Shutdown),
            None => Err(RecvError::TimedOut),
        }
    }

    /// One attempt. When nothing is there the parker, if any, is registered.
    fn take_into(
        &self,
        buffer: &mut [u8],
        parker: Option<&Arc<Parker>>,
    ) -> Option<Result<Received, RecvError>> {
        let mailbox = &self.mailbox;
        loop {
            match self.take_notice() {
                Some(Notice::Done(token, outcome)) => return Some(Ok(Received::SendDone { token, outcome })),
                Some(Notice::Cleared(mask)) => return Some(Ok(Received::CongestionCleared(mask))),
                None => {}
            }
            let mut front = mailbox.front();
            match mailbox.refill(&mut front, parker) {
                Refill::Notice => continue,
                Refill::Empty => return None,
                Refill::Closed => return Some(Err(RecvError::Shutdown)),
                Refill::Messages => {}
            }
            let (len, full_len, from, large) = front.queue.pop_into(buffer)?;
            front.tally.copied += len as u64;
            let report = mailbox.taken(&mut front, full_len);
            drop(front);
            if let Some(large) = large {
                self.shared().pool.give(large);
            }
            self.report(report);
            return Some(Ok(Received::Message { len, full_len, from }));
        }
    }

    /// As [`Socket::take_into`], keeping the message's own buffer.
    fn take(&self, parker: Option<&Arc<Parker>>) -> Option<Result<Event, RecvError>> {
        let mailbox = &self.mailbox;
        loop {
            match self.take_notice() {
                Some(Notice::Done(token, outcome)) => return Some(Ok(Event::SendDone { token, outcome })),
                Some(Notice::Cleared(mask)) => return Some(Ok(Event::CongestionCleared(mask))),
                None => {}
            }
            let mut guard = mailbox.front();
            match mailbox.refill(&mut guard, parker) {
                Refill::Notice => continue,
                Refill::Empty => return None,
                Refill::Closed => return Some(Err(RecvError::Shutdown)),
                Refill::Messages => {}
            }
            let front = &mut *guard;
            let (payload, from) = front.queue.pop(&mut front.store)?;
            let report = mailbox.taken(front, payload.len());
            drop(guard);
            self.report(report);
            return Some(Ok(Event::Message(Message { from, payload })));
        }
    }

    fn take_notice(&self) -> Option<Notice> {
        if !self.mailbox.has_notices() {
            return None;
        }
        let front = self.mailbox.front();
        let mut back = self.mailbox.back();
        let notice = match back.done.pop_front() {
            Some((token, outcome)) => Some(Notice::Done(token, outcome)),
            None if back.cleared != 0 => Some(Notice::Cleared(std::mem::take(&mut back.cleared))),
            None => None,
        };
        self.mailbox.settle_notices(&back);
        drop(back);
        self.mailbox.after_take(&front);
        notice
    }

    /// Tells the node what was taken, when it is time to.
    fn report(&self, taken: Option<Taken>) {
        if let Some(taken) = taken {
            let shared = self.shared();
            let mut core = shared.core();
            core.node.consumed(self.mailbox.id, taken.bytes, taken.messages);
            shared.settle(core);
        }
    }
}
