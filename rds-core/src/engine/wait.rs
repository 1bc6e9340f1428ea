//! Blocking: a thread that waits does the work that brings what it waits for.

use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use super::parker::Parker;
use super::right::PollRight;

/// What has a poll loop that its callers run: the engine, or the connection to a daemon.
pub(crate) trait Waits {
    /// The poll loop's own state, for the holder of the poll right.
    type Poller;

    /// Who polls.
    fn right(&self) -> &Arc<PollRight>;

    /// Only for the holder of the poll right.
    fn poller(&self) -> MutexGuard<'_, Self::Poller>;

    /// One turn of the poll loop: does what is there, or sleeps until something is, `until`, or the thread is notified.
    fn turn(&self, poller: &mut Self::Poller, until: Option<Instant>, parker: Option<&Parker>);

    /// Waiting ends for good.
    fn is_stopped(&self) -> bool;

    /// Blocks until `attempt` returns something, the deadline passes, or it is all stopped; polls meanwhile if nobody else
    /// does. `attempt` registers the parker, before it returns nothing, wherever a notification will say that another
    /// attempt may succeed; `forget` takes it out again. With `steal` the background thread makes way.
    fn block<T>(
        &self,
        deadline: Option<Instant>,
        steal: bool,
        mut attempt: impl FnMut(&Arc<Parker>) -> Option<T>,
        forget: impl FnOnce(&Arc<Parker>),
    ) -> Option<T> {
        let right = self.right();
        let parker = Parker::take(right);
        let mut candidate = false;
        let expired = || deadline.is_some_and(|at| Instant::now() >= at);
        let result = loop {
            parker.reset();
            // The order matters: an attempt after the stop sees what the stop made of it.
            let last = expired() || self.is_stopped();
            if let Some(value) = attempt(&parker) {
                break Some(value);
            }
            if last {
                break None;
            }
            if right.acquire(&parker, steal) {
                let _hold = Hold(right);
                let mut poller = self.poller();
                while !parker.notified() && !expired() && !self.is_stopped() {
                    self.turn(&mut poller, deadline, Some(&parker));
                }
            } else {
                candidate = true;
                if right.stopped() && self.is_stopped() {
                    continue;
                }
                parker.park(deadline);
            }
        };
        forget(&parker);
        if candidate {
            right.leave(&parker);
        }
        Parker::give_back(parker);
        result
    }
}

/// The poll right, given back on every way out.
struct Hold<'a>(&'a PollRight);

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.0.release();
    }
}
