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
///
/// A thread uses one for all of its calls. Who took it off a list during an earlier one may notify it late, which costs a look for nothing.
pub(crate) struct Parker {
    inner: Mutex<Inner>,
    wake: Condvar,
}

struct Inner {
    state: State,
    /// Of the node in which the thread blocks.
    right: Option<Arc<PollRight>>,
}

thread_local! {
    static SPARE: Cell<Option<Arc<Parker>>> = const { Cell::new(None) };
}

impl Parker {
    /// A parker for this thread, for the time of one blocking call.
    pub(crate) fn take(right: &Arc<PollRight>) -> Arc<Self> {
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        let parker = spare.unwrap_or_else(|| {
            let inner = Mutex::new(Inner { state: State::Running, right: None });
            Arc::new(Self { inner, wake: Condvar::new() })
        });
        parker.lock().right = Some(Arc::clone(right));
        parker
    }

    /// Keeps a parker for the thread's next blocking call.
    pub(crate) fn give_back(parker: Arc<Self>) {
        parker.lock().right = None;
        let _ = SPARE.try_with(|s| s.set(Some(parker)));
    }

    /// Forgets notifications; to be called before looking at what they were about.
    pub(crate) fn reset(&self) {
        self.lock().state = State::Running;
    }

    /// Whether a notification came since the last reset.
    pub(crate) fn notified(&self) -> bool {
        self.lock().state == State::Notified
    }

    /// Announces that the thread goes to sleep in epoll; false if it must not.
    pub(crate) fn begin_poll(&self) -> bool {
        let mut inner = self.lock();
        let sleep = inner.state != State::Notified;
        if sleep {
            inner.state = State::Polling;
        }
        sleep
    }

    /// The thread is back from epoll.
    pub(crate) fn end_poll(&self) {
        let mut inner = self.lock();
        if inner.state == State::Polling {
            inner.state = State::Running;
        }
    }

    /// Sleeps until notified or `deadline`; does not sleep if notified since the last reset.
    pub(crate) fn park(&self, deadline: Option<Instant>) {
        let mut inner = self.lock();
        while inner.state != State::Notified {
            inner.state = State::Parked;
            inner = match deadline {
                None => self.wake.wait(inner).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let left = at.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        inner.state = State::Running;
                        return;
                    }
                    self.wake.wait_timeout(inner, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Notifies the thread.
    pub(crate) fn unpark(&self) {
        let mut inner = self.lock();
        match std::mem::replace(&mut inner.state, State::Notified) {
            State::Running | State::Notified => {}
            State::Parked => {
                drop(inner);
                self.wake.notify_one();
            }
            State::Polling => {
                let right = inner.right.clone();
                drop(inner);
                if let Some(right) = right {
                    right.wake_poller();
                }
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
