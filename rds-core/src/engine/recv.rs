//! Receiving, and waiting for either side.

use std::time::{Duration, Instant};

use super::inlet::Inlet;
use super::shared::Shared;
use super::{Event, Readiness, Received, RecvError, Socket};

impl Socket {
    /// Receives into `buffer`, blocking up to the receive timeout. Cleared congestion comes before messages.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn recv_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        self.inlet().recv_from(buffer, || self.settings.recv_deadline())
    }

    /// As [`Socket::recv_from`], without blocking.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        self.inlet().try_recv_from(buffer)
    }

    /// Receives a message in the memory into which it was received, without copying it if it is larger than 16 KiB; blocks up to the receive timeout.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn recv_lease(&self) -> Result<Event, RecvError> {
        self.inlet().recv_lease(|| self.settings.recv_deadline())
    }

    /// As [`Socket::recv_lease`], without blocking.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn try_recv_lease(&self) -> Result<Event, RecvError> {
        self.inlet().try_recv_lease()
    }

    /// Copies the oldest message and leaves it queued (kernel: MSG_PEEK). Does not block.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn peek_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        self.inlet().peek_from(buffer)
    }

    /// Length of the oldest message in bytes, if any is queued.
    #[must_use]
    pub fn next_len(&self) -> Option<usize> {
        self.inlet().next_len()
    }

    /// Blocks until one of the `interest` is there or the timeout has passed.
    pub fn wait(&self, interest: Readiness, timeout: Option<Duration>) -> Readiness {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        self.inlet().wait(interest, deadline, |parker| {
            let mut core = self.shared().core();
            let writable = core.node.watch_writable(self.mailbox.id);
            if !writable {
                self.mailbox.back().wait_send(parker);
            }
            writable
        })
    }

    pub(super) fn inlet(&self) -> Inlet<'_, Shared> {
        Inlet { host: self.shared(), mailbox: &self.mailbox }
    }
}
