//! The poll right: who runs the poll loop, and how it changes hands without a wake-up being lost.
//!
//! One thread at a time polls: a caller that waits for something, or, while none does, the background thread. Three
//! promises hold:
//!
//! 1. **Work is seen.** [`PollRight::kick`] stores `work`, then reads `phase`. A holder stores `ASLEEP`, then reads `work`,
//!    before it sleeps, and stores `FREE`, then reads `work`, when it leaves. All are sequentially consistent, so of a
//!    kick and a holder that sleeps or leaves at the same moment at least one sees the other. A new holder starts with
//!    `work` set.
//! 2. **The right does not lie about.** Whenever it is free, one of these is on its way to it: a candidate that was
//!    taken from the list and notified (it tries again, or calls [`PollRight::leave`], which passes the notification on);
//!    or the background thread, which then either was told (`urgent`) or looks again within two grace periods (`Timed`).
//!    It is `Dormant` only while a caller holds the right; release ends that.
//! 3. **A sleeping holder can be woken.** A holder's parker is `Polling` only after `ASLEEP` was stored, so who notifies
//!    it then finds `ASLEEP` (or finds it woken already). The background thread is asked to yield by a flag stored before
//!    `phase` is read, and read by it after `ASLEEP` was stored.
//!
//! A caller that leaves does not wake the background thread: a thread that exchanges messages comes back in microseconds,
//! and a wake-up each time would cost more than the exchange. Where a round trip takes longer than the grace period, the period grows: a
//! caller that waits through a whole one must wake the background thread when it leaves.

use std::collections::VecDeque;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::parker::Parker;

/// How long the right stays free for the caller that left it before the background thread takes it: at first, and at most while callers
/// keep coming back.
const GRACE: Duration = Duration::from_millis(1);
const MOST_GRACE: Duration = Duration::from_millis(8);

/// Writes that callers may make for the poll loop between two turns of it.
const WRITES: u8 = 2;

const FREE: u8 = 0;
const AWAKE: u8 = 1;
const ASLEEP: u8 = 2;
const WOKEN: u8 = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    Nobody,
    Caller,
    Background,
}

/// What the background thread does while it does not hold the right.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Background {
    Running,
    Timed,
    Dormant,
}

struct State {
    holder: Holder,
    /// Counts changes of hand, so that the background thread sees whether callers come and go.
    epoch: u64,
    /// Threads that wait for the right, or for another thread to hand them what they wait for.
    candidates: VecDeque<Arc<Parker>>,
    urgent: bool,
    background: Background,
    stopped: bool,
}

pub(crate) struct PollRight {
    phase: AtomicU8,
    work: AtomicBool,
    /// Writes that callers may still make in place of the poll loop.
    writes: AtomicU8,
    /// Signs of life that were asked for, and the last that was given.
    pulse_asked: AtomicU64,
    pulse_given: AtomicU64,
    /// A caller wants the right that the background thread holds.
    yield_wanted: AtomicBool,
    waker: mio::Waker,
    state: Mutex<State>,
    background: Condvar,
}

impl PollRight {
    pub(crate) fn new(waker: mio::Waker) -> Self {
        Self {
            phase: AtomicU8::new(FREE),
            work: AtomicBool::new(false),
            writes: AtomicU8::new(0),
            pulse_asked: AtomicU64::new(0),
            pulse_given: AtomicU64::new(0),
            yield_wanted: AtomicBool::new(false),
            waker,
            state: Mutex::new(State {
                holder: Holder::Nobody,
                epoch: 0,
                candidates: VecDeque::new(),
                urgent: true,
                background: Background::Running,
                stopped: false,
            }),
            background: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- for callers ---------------------------------------------------------------------------------------------

    /// Takes the right if it is free; otherwise the thread becomes a candidate, which is notified when the right becomes
    /// free. With `steal`, the background thread is asked to give it up. Whoever was a candidate calls
    /// [`PollRight::leave`] when it waits no longer.
    pub(crate) fn acquire(&self, parker: &Arc<Parker>, steal: bool) -> bool {
        let mut state = self.lock();
        if state.holder == Holder::Nobody && !state.stopped {
            state.candidates.retain(|p| !Arc::ptr_eq(p, parker));
            self.hand_to(&mut state, Holder::Caller);
            return true;
        }
        if !state.candidates.iter().any(|p| Arc::ptr_eq(p, parker)) {
            state.candidates.push_back(Arc::clone(parker));
        }
        if steal && state.holder == Holder::Background {
            self.yield_wanted.store(true, SeqCst);
            drop(state);
            self.wake_poller();
        }
        false
    }

    /// Ends a wait during which [`PollRight::acquire`] made the thread a candidate.
    pub(crate) fn leave(&self, parker: &Arc<Parker>) {
        let mut state = self.lock();
        state.candidates.retain(|p| !Arc::ptr_eq(p, parker));
        if state.holder == Holder::Nobody {
            // The notification that the right is free may have come to this thread: somebody else must get it.
            self.pass_on(&mut state);
        }
    }

    /// Gives the right back.
    pub(crate) fn release(&self) {
        self.writes.store(WRITES, Relaxed);
        let mut state = self.lock();
        state.holder = Holder::Nobody;
        state.epoch += 1;
        self.phase.store(FREE, SeqCst);
        self.pass_on(&mut state);
    }

    fn hand_to(&self, state: &mut State, holder: Holder) {
        state.holder = holder;
        state.epoch += 1;
        state.urgent = false;
        self.work.store(true, SeqCst);
        self.phase.store(AWAKE, SeqCst);
    }

    /// The right is free: see promise 2.
    fn pass_on(&self, state: &mut State) {
        if let Some(next) = state.candidates.pop_front() {
            next.unpark();
        } else if self.work.load(SeqCst) {
            self.urge(state);
        } else if state.background == Background::Dormant {
            state.background = Background::Timed;
            self.background.notify_one();
        }
    }

    fn urge(&self, state: &mut State) {
        if !state.urgent {
            state.urgent = true;
            if state.background != Background::Running {
                state.background = Background::Timed;
                self.background.notify_one();
            }
        }
    }

    // ---- for everybody -------------------------------------------------------------------------------------------

    /// There is something for the poll loop to do: transmit, or perform actions.
    pub(crate) fn kick(&self) {
        self.work.store(true, SeqCst);
        match self.phase.load(SeqCst) {
            FREE => {
                let mut state = self.lock();
                if state.holder == Holder::Nobody {
                    self.urge(&mut state);
                }
            }
            ASLEEP => self.wake_poller(),
            _ => {}
        }
    }

    /// Asks for a sign of life: a whole turn of the poll loop from now on. Returns its number.
    pub(crate) fn ask_pulse(&self) -> u64 {
        let number = self.pulse_asked.fetch_add(1, SeqCst) + 1;
        self.kick();
        number
    }

    /// Whether that sign was given.
    pub(crate) fn has_pulse(&self, number: u64) -> bool {
        self.pulse_given.load(SeqCst) >= number
    }

    /// Wakes the holder if it sleeps and nobody has woken it yet.
    pub(crate) fn wake_poller(&self) {
        if self.phase.compare_exchange(ASLEEP, WOKEN, SeqCst, SeqCst).is_ok()
            && let Err(error) = self.waker.wake()
        {
            tracing::error!(%error, "cannot wake the poll loop");
        }
    }

    /// Whether a caller may write what the poll loop would have to be woken for: nobody polls, and there were not many such writes yet.
    pub(crate) fn may_write(&self) -> bool {
        self.phase.load(SeqCst) == FREE
            && self.writes.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// A deadline came nearer: whoever polls must not sleep past it. While nobody polls, the next holder sees it.
    pub(crate) fn nearer_deadline(&self) {
        if self.phase.load(SeqCst) != FREE {
            self.kick();
        }
    }

    // ---- for the holder ------------------------------------------------------------------------------------------

    /// Leaves work for the next turn, of whichever holder.
    pub(crate) fn set_work(&self) {
        self.work.store(true, SeqCst);
    }

    /// A turn begins: what is to be given when it has come to its end, or to its sleep ([`PollRight::give_pulse`]). Who has announced sleep
    /// looks again: a kick whose work this turn has taken already does not wake it.
    pub(crate) fn begin_pulse(&self) -> u64 {
        self.pulse_asked.load(SeqCst)
    }

    /// The turn has come to its end. Costs nothing while nobody asks.
    pub(crate) fn give_pulse(&self, number: u64) {
        if self.pulse_given.load(Relaxed) != number {
            self.pulse_given.store(number, SeqCst);
        }
    }

    /// Whether there is work.
    pub(crate) fn has_work(&self) -> bool {
        self.work.load(SeqCst)
    }

    /// Whether there is work since this was asked last.
    pub(crate) fn take_work(&self) -> bool {
        self.work.swap(false, SeqCst)
    }

    /// Announces sleep; false if there is work, the caller was notified, or the background thread must yield.
    pub(crate) fn begin_sleep(&self, parker: Option<&Parker>) -> bool {
        self.phase.store(ASLEEP, SeqCst);
        let free = match parker {
            Some(parker) => parker.begin_poll(),
            None => !self.must_yield(),
        };
        free && !self.work.load(SeqCst)
    }

    /// The holder is awake.
    pub(crate) fn end_sleep(&self, parker: Option<&Parker>) {
        self.phase.store(AWAKE, SeqCst);
        if let Some(parker) = parker {
            parker.end_poll();
        }
    }

    // ---- for the background thread -------------------------------------------------------------------------------

    /// Whether the background thread must give the right up.
    pub(crate) fn must_yield(&self) -> bool {
        self.yield_wanted.load(SeqCst)
    }

    /// The background thread: calls `poll`, which polls until [`PollRight::must_yield`], whenever no caller does. Returns
    /// after [`PollRight::stop`].
    pub(crate) fn run_background(&self, mut poll: impl FnMut()) {
        let mut state = self.lock();
        let mut quiet = false;
        let mut grace = GRACE;
        while !state.stopped {
            if state.holder == Holder::Nobody && (state.urgent || quiet) {
                self.hand_to(&mut state, Holder::Background);
                state.background = Background::Running;
                grace = GRACE;
                drop(state);
                poll();
                state = self.lock();
                self.yield_wanted.store(false, SeqCst);
                state.holder = Holder::Nobody;
                state.epoch += 1;
                self.phase.store(FREE, SeqCst);
                self.pass_on(&mut state);
                quiet = false;
            } else if quiet {
                // A caller has held the right for a whole grace period: nothing to do before it releases it.
                state.background = Background::Dormant;
                while state.background == Background::Dormant && !state.stopped {
                    state = self.background.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                quiet = false;
            } else {
                state.background = Background::Timed;
                let epoch = state.epoch;
                let (again, result) =
                    self.background.wait_timeout(state, grace).unwrap_or_else(PoisonError::into_inner);
                state = again;
                quiet = result.timed_out() && state.epoch == epoch;
                if result.timed_out() && !quiet {
                    grace = (grace * 2).min(MOST_GRACE);
                }
            }
        }
        state.background = Background::Running;
        while let Some(parker) = state.candidates.pop_front() {
            parker.unpark();
        }
    }

    /// Ends the background thread and polling altogether.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.stopped = true;
        self.yield_wanted.store(true, SeqCst);
        self.background.notify_one();
        drop(state);
        self.kick_stop();
    }

    fn kick_stop(&self) {
        self.work.store(true, SeqCst);
        self.wake_poller();
    }

    /// Whether [`PollRight::stop`] was called.
    pub(crate) fn stopped(&self) -> bool {
        self.lock().stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn right() -> Arc<PollRight> {
        let poll = mio::Poll::new().expect("epoll");
        Arc::new(PollRight::new(mio::Waker::new(poll.registry(), mio::Token(0)).expect("an eventfd")))
    }

    #[test]
    fn a_caller_writes_in_place_of_a_poll_loop_that_nobody_runs_and_only_a_few_times_a_turn() {
        let right = right();
        let parker = Parker::take(&right);
        assert!(!right.may_write(), "nobody has polled yet: the background thread is on its way");
        for _turn in 0..3 {
            assert!(right.acquire(&parker, false));
            assert!(!right.may_write(), "who polls writes");
            right.release();
            let allowed = (0..10).filter(|_| right.may_write()).count();
            assert_eq!(allowed, usize::from(WRITES));
        }
    }
}
