//! Receiving, and waiting for either side.

use std::time::{Duration, Instant};

use super::lease::Bytes;
use super::mailbox::{Refill, Taken};
use super::parker::Parker;
use super::{Event, Lease, Message, Readiness, Received, RecvError, Socket};
use std::sync::Arc;

impl Socket {
    /// Receives into `buffer`, blocking up to the receive timeout. Cleared congestion comes before messages.
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

    /// Receives a message in the memory into which it was received, without copying it if it is larger than 16 KiB; blocks up to the receive timeout.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn recv_lease(&self) -> Result<Event, RecvError> {
        match self.take(None) {
            Some(result) => result,
            None => self.block_receive(|parker| self.take(Some(parker))),
        }
    }

    /// As [`Socket::recv_lease`], without blocking.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn try_recv_lease(&self) -> Result<Event, RecvError> {
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
            if interest.completions {
                found.completions = self.mailbox.poll_completions(parker);
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
                interest.readable || interest.completions,
                |parker| Some(look(Some(parker))).filter(|found| *found != Readiness::default()),
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
            if let Some(mask) = self.take_notice() {
                return Some(Ok(Received::CongestionCleared(mask)));
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
            drop(large);
            self.report(report);
            return Some(Ok(Received::Message { len, full_len, from }));
        }
    }

    /// As [`Socket::take_into`], keeping the message's own buffer.
    fn take(&self, parker: Option<&Arc<Parker>>) -> Option<Result<Event, RecvError>> {
        let mailbox = &self.mailbox;
        loop {
            if let Some(mask) = self.take_notice() {
                return Some(Ok(Event::CongestionCleared(mask)));
            }
            let mut guard = mailbox.front();
            match mailbox.refill(&mut guard, parker) {
                Refill::Notice => continue,
                Refill::Empty => return None,
                Refill::Closed => return Some(Err(RecvError::Shutdown)),
                Refill::Messages => {}
            }
            let front = &mut *guard;
            let (bytes, from) = front.queue.pop(&mut front.store, &self.shared().pool)?;
            let payload = if let Bytes::Large(_) = &bytes {
                mailbox.leased(front);
                drop(guard);
                Lease::counted(bytes, mailbox, self.engine().shared_arc())
            } else {
                let report = mailbox.taken(front, bytes.len());
                drop(guard);
                self.report(report);
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

    /// Tells the node what was taken, when it is time to.
    fn report(&self, taken: Option<Taken>) {
        if let Some(taken) = taken {
            self.shared().report(&self.mailbox, taken);
        }
    }
}
