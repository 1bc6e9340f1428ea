//! What the kernel may still read: the calls with `MSG_ZEROCOPY` of one TCP socket, and what each of them holds.
//!
//! The kernel numbers the calls of a socket that succeed with `u32` from 0, wrapping, and later notifies ranges of these
//! numbers: merged, out of order, and sometimes before the writer is back from the call itself. What a call
//! holds must neither change nor be freed before its notification, so the ledger owns it until then and gives it back.
//!
//! The ledger never drops what it holds (but for its own `Drop`): what is given back may run code of the program when
//! dropped, and that must happen outside all locks.

use std::collections::VecDeque;
use std::time::Duration;

use crate::proto::Time;

/// Pages that the kernel charges to `RLIMIT_MEMLOCK` for a call of `bytes` bytes, whatever their alignment.
///
/// `page_size` is that of the system, in bytes.
#[must_use]
pub const fn charge(bytes: usize, page_size: usize) -> u32 {
    let page_size = if page_size == 0 { 1 } else { page_size };
    let pages = (bytes / page_size).saturating_add(2);
    if pages > u32::MAX as usize { u32::MAX } else { pages as u32 }
}

/// What a notified call held, given back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "holds what the kernel has let go, and the pages to release to the budget"]
pub struct Released<H> {
    /// What was handed to [`Ledger::commit`].
    pub held: H,
    /// The kernel copied after all (`SO_EE_CODE_ZEROCOPY_COPIED`).
    pub copied: bool,
    /// Pages that the call was charged.
    pub pages: u32,
}

/// What became of one notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notified {
    /// Calls that it ended.
    pub ids: u64,
    /// Numbers in it that no call has, or whose call had ended before.
    pub unknown: u64,
    /// Time since the oldest of the calls that it ended was begun; zero if it ended none.
    pub oldest_lag: Duration,
}

/// A call with a number, notified or not.
#[derive(Debug)]
struct Entry<H> {
    /// `None` once it was notified.
    held: Option<H>,
    begun: Time,
    pages: u32,
}

/// The call that a writer is in.
#[derive(Clone, Copy, Debug, Default)]
struct Flight {
    begun: Time,
    pages: u32,
    /// Whether the kernel copied, once it was notified.
    notified: Option<bool>,
}

/// Calls of one TCP socket that are not notified yet. `H` is what a call holds, such as references to payloads.
///
/// One writer at a time: [`begin`](Self::begin), the system call, then [`commit`](Self::commit) if it took a number
/// (it returned more than 0) or [`failed`](Self::failed) if it did not.
#[derive(Debug)]
pub struct Ledger<H> {
    /// The number of `ring[0]`.
    first: u32,
    /// Calls in the order of their numbers. The first is never one that was notified.
    ring: VecDeque<Entry<H>>,
    /// Entries that still hold something.
    holding: usize,
    /// Their pages.
    pages: u64,
    flight: Option<Flight>,
}

impl<H> Default for Ledger<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H> Ledger<H> {
    /// The ledger of a new socket, whose first call has number 0.
    #[must_use]
    pub const fn new() -> Self {
        Self::starting_at(0)
    }

    /// A ledger whose next call has the number `id`.
    #[must_use]
    pub const fn starting_at(id: u32) -> Self {
        Self { first: id, ring: VecDeque::new(), holding: 0, pages: 0, flight: None }
    }

    /// A writer is about to make a call that pins `pages` pages.
    ///
    /// # Panics
    ///
    /// If a call is in flight already: two writers would get each other's numbers.
    pub fn begin(&mut self, now: Time, pages: u32) {
        assert!(self.flight.is_none(), "one writer at a time");
        self.flight = Some(Flight { begun: now, pages, notified: None });
    }

    /// The call took no number: it returned an error or 0. Returns the pages that it was charged.
    pub fn failed(&mut self) -> u32 {
        self.flight.take().map_or(0, |f| f.pages)
    }

    /// The call took its number, and holds `held` until it is notified. It comes straight back if that has happened
    /// already.
    pub fn commit(&mut self, held: H) -> Option<Released<H>> {
        debug_assert!(self.flight.is_some(), "a call is begun before it is committed");
        let Flight { begun, pages, notified } = self.flight.take().unwrap_or_default();
        if let Some(copied) = notified {
            if self.ring.is_empty() {
                self.first = self.first.wrapping_add(1);
            } else {
                self.ring.push_back(Entry { held: None, begun, pages });
            }
            return Some(Released { held, copied, pages });
        }
        self.holding += 1;
        self.pages += u64::from(pages);
        self.ring.push_back(Entry { held: Some(held), begun, pages });
        None
    }

    /// The kernel notified the calls `first` to `last`, both included, wrapping. What they held is appended to `out`.
    ///
    /// Costs as much as the range has numbers, never more than there are calls in the ledger, whatever the range.
    pub fn notified(
        &mut self,
        now: Time,
        first: u32,
        last: u32,
        copied: bool,
        out: &mut Vec<Released<H>>,
    ) -> Notified {
        const NUMBERS: u64 = 1 << 32;
        let start = u64::from(first.wrapping_sub(self.first));
        let end = start + u64::from(last.wrapping_sub(first)) + 1;
        let mut n = Notified::default();
        // As distances from the oldest call: one run, and a second one if the range goes on past the oldest.
        self.notify_run(now, start, end.min(NUMBERS), copied, &mut n, out);
        self.notify_run(now, 0, end.saturating_sub(NUMBERS), copied, &mut n, out);
        n.unknown = end - start - n.ids;
        while self.ring.front().is_some_and(|e| e.held.is_none()) {
            self.ring.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        n
    }

    /// The calls at the distances `start..end` from the oldest were notified.
    fn notify_run(
        &mut self,
        now: Time,
        start: u64,
        end: u64,
        copied: bool,
        n: &mut Notified,
        out: &mut Vec<Released<H>>,
    ) {
        let known = self.ring.len() as u64;
        // Both at most the length of the ring, so they fit.
        let (from, to) = (start.min(known) as usize, end.min(known) as usize);
        for entry in self.ring.range_mut(from..to.max(from)) {
            let Some(held) = entry.held.take() else { continue };
            self.holding -= 1;
            self.pages -= u64::from(entry.pages);
            n.ids += 1;
            n.oldest_lag = n.oldest_lag.max(now.since(entry.begun));
            out.push(Released { held, copied, pages: entry.pages });
        }
        if (start..end).contains(&known)
            && let Some(flight) = &mut self.flight
            && flight.notified.is_none()
        {
            flight.notified = Some(copied);
            n.ids += 1;
            n.oldest_lag = n.oldest_lag.max(now.since(flight.begun));
        }
    }

    /// Calls that the kernel may still read for, with the one in flight.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.holding + usize::from(self.flight.is_some())
    }

    /// Pages that these calls are charged.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages + self.flight.map_or(0, |f| u64::from(f.pages))
    }

    /// When the oldest call that is not notified was begun.
    #[must_use]
    pub fn oldest(&self) -> Option<Time> {
        let in_flight = self.flight.filter(|f| f.notified.is_none()).map(|f| f.begun);
        self.ring.front().map(|e| e.begun).or(in_flight)
    }
}
