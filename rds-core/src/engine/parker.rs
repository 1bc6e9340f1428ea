//! One blocked thread.

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::right::PollRight;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// On a processor; it will look before it sleeps.
    Running,
    /// Told that something changed; it will not sleep before it has looked.
    Notified,
    /// Asleep on the condition variable.
    Parked,
    /// Holds the poll right and is asleep in epoll, or about to be.
    Polling,
}

/// Lets a thread sleep, parked or in the poll loop, and be woken once something it registered for has changed.
///
/// A notification is never lost: it is kept until the thread has looked ([`Parker::reset`]). It costs a system call only
/// if the thread sleeps.
pub(crate) struct Parker {
    right: Option<Arc<PollRight>>,
    state: Mutex<State>,
    wake: Condvar,
}

thread_local! {
    static SPARE: Cell<Option<Arc<Parker>>> = const { Cell::new(None) };
}

impl Parker {
    /// A parker for this thread, for the time of one blocking call.
    pub(crate) fn take(right: &Arc<PollRight>) -> Arc<Self> {
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        if let Some(mut parker) = spare
            && let Some(p) = Arc::get_mut(&mut parker)
        {
            p.right = Some(Arc::clone(right));
            return parker;
        }
        Arc::new(Self {
            right: Some(Arc::clone(right)),
            state: Mutex::new(State::Running),
            wake: Condvar::new(),
        })
    }

    /// Keeps a parker for the next blocking call, unless somebody still holds it and might notify it late.
    pub(crate) fn give_back(mut parker: Arc<Self>) {
        if let Some(p) = Arc::get_mut(&mut parker) {
            p.right = None;
            let _ = SPARE.try_with(|s| s.set(Some(parker)));
        }
    }

    /// Forgets notifications; to be called before looking at what they were about.
    pub(crate) fn reset(&self) {
        *self.lock() = State::Running;
    }

    /// Whether a notification came since the last reset.
    pub(crate) fn notified(&self) -> bool {
        *self.lock() == State::Notified
    }

    /// Announces that the thread goes to sleep in epoll; false if it must not.
    pub(crate) fn begin_poll(&self) -> bool {
        let mut state = self.lock();
        let sleep = *state != State::Notified;
        if sleep {
            *state = State::Polling;
        }
        sleep
    }

    /// The thread is back from epoll.
    pub(crate) fn end_poll(&self) {
        let mut state = self.lock();
        if *state == State::Polling {
            *state = State::Running;
        }
    }

    /// Sleeps until notified or `deadline`; does not sleep if notified since the last reset.
    pub(crate) fn park(&self, deadline: Option<Instant>) {
        let mut state = self.lock();
        while *state != State::Notified {
            *state = State::Parked;
            state = match deadline {
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        *state = State::Running;
                        return;
                    }
                    self.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Notifies the thread.
    pub(crate) fn unpark(&self) {
        let before = std::mem::replace(&mut *self.lock(), State::Notified);
        match before {
            State::Running | State::Notified => {}
            State::Parked => self.wake.notify_one(),
            State::Polling => {
                if let Some(right) = &self.right {
                    right.wake_poller();
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
