//! The phases of a run, and when they begin.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// How long what comes before and after the measured time takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// From the agreement of both sides until tasks start. The reference's is 2 s.
    pub start_delay: Duration,
    /// From the agreement until measuring begins, at least the start delay. The reference's is 4 s.
    pub warmup: Duration,
    /// From the end of sending until tasks end, in which they still receive. The reference's is 1 s.
    pub drain: Duration,
}

impl Schedule {
    /// The reference's.
    pub const DEFAULT: Self = Self {
        start_delay: Duration::from_secs(2),
        warmup: Duration::from_secs(4),
        drain: Duration::from_secs(1),
    };

    /// From the agreement until measuring begins.
    #[must_use]
    pub fn measure_after(&self) -> Duration {
        self.warmup.max(self.start_delay)
    }
}

/// What tasks should be doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(u8)]
pub enum Phase {
    /// Send and receive, without recording round trips.
    Warmup,
    /// Send, receive and record.
    Measuring,
    /// Send nothing more, not even acks, but receive.
    Stopping,
    /// End.
    Ended,
}

/// Tells tasks the phase.
#[derive(Debug)]
pub struct Gate {
    phase: AtomicU8,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Default for Gate {
    fn default() -> Self {
        Self { phase: AtomicU8::new(Phase::Warmup as u8), lock: Mutex::new(()), changed: Condvar::new() }
    }
}

impl Gate {
    /// The phase at this moment.
    #[inline]
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Warmup,
            1 => Phase::Measuring,
            2 => Phase::Stopping,
            _ => Phase::Ended,
        }
    }

    /// Goes on to `phase`; never back.
    pub fn advance(&self, phase: Phase) {
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
        self.changed.notify_all();
    }

    /// Blocks until `start`, or until the run ends before it.
    pub fn wait_start(&self, start: Instant) {
        let left = start.saturating_duration_since(Instant::now());
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_timeout_while(guard, left, |()| self.phase() < Phase::Stopping));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_never_go_back() {
        let gate = Gate::default();
        assert_eq!(gate.phase(), Phase::Warmup);
        gate.advance(Phase::Stopping);
        gate.advance(Phase::Measuring);
        assert_eq!(gate.phase(), Phase::Stopping);
        gate.advance(Phase::Ended);
        assert_eq!(gate.phase(), Phase::Ended);
    }

    #[test]
    fn a_task_that_waits_for_its_start_is_woken_by_the_end() {
        let gate = Gate::default();
        std::thread::scope(|s| {
            let waiting = s.spawn(|| gate.wait_start(Instant::now() + Duration::from_secs(3600)));
            gate.advance(Phase::Stopping);
            waiting.join().unwrap();
        });
    }

    #[test]
    fn measuring_never_begins_before_the_tasks() {
        let schedule = Schedule { warmup: Duration::ZERO, ..Schedule::DEFAULT };
        assert_eq!(schedule.measure_after(), Duration::from_secs(2));
        assert_eq!(Schedule::DEFAULT.measure_after(), Duration::from_secs(4));
    }
}
