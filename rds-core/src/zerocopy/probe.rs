//! Zero copy that is off for a path, and is tried again from time to time: routes, taps and devices change.

use std::time::Duration;

use super::Reason;
use crate::proto::Time;

/// Messages of one probe.
pub(super) const PROBE: u32 = 8;
const LONGEST: Duration = Duration::from_secs(60);

/// Off, until a probe shows something else.
#[derive(Clone, Copy, Debug)]
pub(super) struct Off {
    pub(super) reason: Reason,
    /// When the next probe begins; in a probe when its outcome is no longer waited for.
    pub(super) next: Option<Time>,
    interval: Duration,
    /// Messages that the probe still may send; `None` between probes.
    left: Option<u32>,
    tally: Tally,
}

/// Outcomes: how many there were, and how many of them were bad.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tally {
    seen: u32,
    bad: u32,
}

impl Tally {
    pub(super) const fn new() -> Self {
        Self { seen: 0, bad: 0 }
    }

    pub(super) fn add(&mut self, n: u32, bad: bool) {
        self.seen = self.seen.saturating_add(n);
        self.bad = self.bad.saturating_add(if bad { n } else { 0 });
    }

    /// The share of bad ones, once there are enough.
    pub(super) fn bad_share(self) -> Option<f32> {
        (self.seen >= PROBE).then(|| self.bad as f32 / self.seen as f32)
    }
}

impl Off {
    /// Off from the first message on, whose time is not known yet. The first probe comes `retry` after it.
    pub(super) const fn from_the_start(retry: Duration, reason: Reason) -> Self {
        Self { reason, next: None, interval: retry, left: None, tally: Tally::new() }
    }

    /// Off from now on. The first probe comes after `retry`.
    pub(super) fn from(now: Time, retry: Duration, reason: Reason) -> Self {
        Self { next: Some(now + retry), ..Self::from_the_start(retry, reason) }
    }

    /// Whether a message at `now` belongs to a probe. [`taken`](Self::taken) if it then is sent so.
    pub(super) fn wants(&mut self, now: Time) -> bool {
        let next = *self.next.get_or_insert(now + self.interval);
        match self.left {
            None => now >= next,
            Some(0) if now >= next => {
                // Outcomes got lost with a connection: once more.
                self.left = None;
                true
            }
            Some(left) => left > 0,
        }
    }

    pub(super) fn taken(&mut self, now: Time) {
        let left = self.left.unwrap_or_else(|| {
            self.tally = Tally::new();
            PROBE
        });
        self.left = Some(left.saturating_sub(1));
        self.next = Some(now + self.interval);
    }

    /// Outcomes arrived. The share of bad ones once the probe knows it; the caller then ends it, one way or the other.
    pub(super) fn outcome(&mut self, n: u32, bad: bool) -> Option<f32> {
        self.left?;
        self.tally.add(n, bad);
        self.tally.bad_share()
    }

    /// Still bad: later again.
    pub(super) fn back_off(&mut self, now: Time) {
        self.interval = (self.interval * 2).min(LONGEST);
        self.next = Some(now + self.interval);
        self.left = None;
        self.tally = Tally::new();
    }
}
