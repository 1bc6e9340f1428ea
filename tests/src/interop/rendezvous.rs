//! Cases that share a guest do to it together what happens to all of them: it crashes once, after each has come to that point.

use std::sync::{Condvar, Mutex, PoisonError};

/// Where members meet.
#[derive(Debug, Default)]
pub struct Rendezvous {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    members: usize,
    waiting: usize,
    meetings: u64,
}

/// One that comes to every meeting; leaves with its value, so that the others do not wait for one that failed.
#[derive(Debug)]
pub struct Party<'a> {
    meeting: &'a Rendezvous,
}

impl Rendezvous {
    /// One more member. All join before the first of them meets.
    #[must_use]
    pub fn join(&self) -> Party<'_> {
        self.lock().members += 1;
        Party { meeting: self }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // A panic while it was held was one of `what`, after which the counts are as they were.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Party<'_> {
    /// Waits for all other members; then one of them does its `what`, and all return.
    pub fn together(&self, what: impl FnOnce()) {
        let mut state = self.meeting.lock();
        state.waiting += 1;
        let meeting = state.meetings;
        while state.meetings == meeting {
            if state.waiting >= state.members {
                state.waiting = 0;
                state.meetings += 1;
                self.meeting.changed.notify_all();
                // The others come out when it is done, or has failed.
                what();
                return;
            }
            state = self.meeting.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Party<'_> {
    fn drop(&mut self) {
        self.meeting.lock().members -= 1;
        self.meeting.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use super::*;

    #[test]
    fn what_is_done_together_is_done_once_after_all_have_come_and_a_member_that_fails_holds_nobody_up() {
        let (meeting, done, come) = (Rendezvous::default(), AtomicU32::new(0), AtomicU32::new(0));
        let parties = [meeting.join(), meeting.join(), meeting.join()];
        let ended = std::thread::scope(|scope| {
            let members = parties.into_iter().enumerate().map(|(number, party)| {
                let (done, come) = (&done, &come);
                scope.spawn(move || {
                    come.fetch_add(1, SeqCst);
                    party.together(|| {
                        assert_eq!(come.load(SeqCst), 3);
                        done.fetch_add(1, SeqCst);
                    });
                    assert_eq!(done.load(SeqCst), 1, "nobody comes out before it is done");
                    assert_ne!(number, 0, "the first one fails");
                    party.together(|| {
                        done.fetch_add(1, SeqCst);
                    });
                    assert_eq!(done.load(SeqCst), 2);
                })
            });
            members.collect::<Vec<_>>().into_iter().map(|m| m.join().is_ok()).collect::<Vec<_>>()
        });
        assert_eq!(ended, [false, true, true]);
    }
}
