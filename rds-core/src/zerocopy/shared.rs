//! The ledger between a thread that writes to a socket and one that reaps its notifications.
//!
//! What comes back is always handed to the caller: nothing that a call holds is dropped under the lock.

#[cfg(loom)]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Mutex, MutexGuard};

use super::{Ledger, Notified, Released};
use crate::proto::Time;

#[derive(Debug)]
struct Inner<H> {
    ledger: Ledger<H>,
    finished: bool,
}

/// A [`Ledger`] for one writer at a time and any number of reapers. Each call blocks for the other's few instructions.
#[derive(Debug)]
pub struct SharedLedger<H> {
    inner: Mutex<Inner<H>>,
}

impl<H> Default for SharedLedger<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H> SharedLedger<H> {
    /// The ledger of a new socket.
    #[must_use]
    pub fn new() -> Self {
        Self::starting_at(0)
    }

    /// As [`Ledger::starting_at`].
    #[must_use]
    pub fn starting_at(id: u32) -> Self {
        Self { inner: Mutex::new(Inner { ledger: Ledger::starting_at(id), finished: false }) }
    }

    /// The lock is held for moves alone, which cannot panic, so what a panic elsewhere left behind is whole.
    fn lock(&self) -> MutexGuard<'_, Inner<H>> {
        self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// As [`Ledger::begin`]. False, and then no call may be made, once the socket is [finished](Self::finish).
    ///
    /// # Panics
    ///
    /// If a call is in flight already.
    #[must_use]
    pub fn begin(&self, now: Time, pages: u32) -> bool {
        let mut inner = self.lock();
        if !inner.finished {
            inner.ledger.begin(now, pages);
        }
        !inner.finished
    }

    /// As [`Ledger::failed`].
    pub fn failed(&self) -> u32 {
        self.lock().ledger.failed()
    }

    /// As [`Ledger::commit`].
    pub fn commit(&self, held: H) -> Option<Released<H>> {
        self.lock().ledger.commit(held)
    }

    /// As [`Ledger::notified`].
    pub fn notified(
        &self,
        now: Time,
        first: u32,
        last: u32,
        copied: bool,
        out: &mut Vec<Released<H>>,
    ) -> Notified {
        self.lock().ledger.notified(now, first, last, copied, out)
    }

    /// The end of the socket, if nothing is outstanding: no call begins any more. False, and nothing has changed, otherwise.
    ///
    /// To be asked after the socket was disconnected (`connect` to `AF_UNSPEC`, which makes the kernel let go of all that is queued)
    /// and its error queue read. Closing the descriptor is not enough: the kernel goes on to send the pages, and notifies nobody.
    pub fn finish(&self) -> bool {
        let mut inner = self.lock();
        inner.finished |= inner.ledger.outstanding() == 0;
        inner.finished
    }

    /// As [`Ledger::outstanding`].
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.lock().ledger.outstanding()
    }

    /// As [`Ledger::pages`].
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.lock().ledger.pages()
    }

    /// As [`Ledger::oldest`].
    #[must_use]
    pub fn oldest(&self) -> Option<Time> {
        self.lock().ledger.oldest()
    }
}
