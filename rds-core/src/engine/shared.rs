//! What every handle, socket and thread of an engine shares, and the transmit path that any of them runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use super::Options;
use super::core::Core;
use super::inlet::{Fills, Frees};
use super::mailbox::{Mailbox, Taken, Tally};
use super::maps::Maps;
use super::parker::Parker;
use super::pins::Pins;
use super::reactor::Reactor;
use super::right::PollRight;
use super::wait::Waits;
use crate::buffer::Pool;
use crate::proto::{ConnId, Time};
use crate::zerocopy::Stop;

/// Most bytes that one transmit takes from the node.
const BATCH: usize = 128 << 10;
/// The same where large payloads are pinned: one of 1 MiB and the header of the next, which rides along.
const PINNING_BATCH: usize = (1 << 20) + (256 << 10);
/// Transmits that one pass of the poll loop makes before it looks for input again.
const POLLER_ROUNDS: usize = 32;
/// Transmits that a caller makes before it leaves the rest to the poll loop.
const CALLER_ROUNDS: usize = 2;
/// Attempts to get the core's lock before sleeping for it: it is held for microseconds, and a sleep costs more.
const SPIN: u32 = 100;

pub(crate) struct Shared {
    this: Weak<Self>,
    pub(crate) options: Options,
    pub(crate) listen_addr: std::net::SocketAddr,
    core: Mutex<Core>,
    reactor: Mutex<Reactor>,
    pub(crate) right: Arc<PollRight>,
    origin: Instant,
    pub(crate) stats: Stats,
    pub(crate) pool: Arc<Pool>,
    pub(crate) maps: Arc<Maps>,
    pub(crate) pins: Arc<Pins>,
    /// Receives end: the node was shut down.
    pub(crate) stopped: AtomicBool,
}

/// Counters that the node does not keep.
#[derive(Default)]
pub(crate) struct Stats {
    pub(crate) reads: AtomicU64,
    pub(crate) congestion_waits: AtomicU64,
    /// Of sockets that are closed.
    pub(crate) closed: Mutex<Tally>,
}

impl Shared {
    pub(crate) fn new(
        options: Options,
        listen_addr: std::net::SocketAddr,
        core: Core,
        reactor: Reactor,
        right: Arc<PollRight>,
        origin: Instant,
        pins: Arc<Pins>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: this.clone(),
            maps: Maps::new(options.zero_copy),
            options,
            listen_addr,
            pool: Arc::clone(&core.pool),
            pins,
            core: Mutex::new(core),
            reactor: Mutex::new(reactor),
            right,
            origin,
            stats: Stats::default(),
            stopped: AtomicBool::new(false),
        })
    }

    pub(crate) fn now(&self) -> Time {
        time_since(self.origin)
    }

    /// The moment of `time` on the system's clock.
    pub(crate) fn instant(&self, time: Time) -> Instant {
        self.origin + std::time::Duration::from_nanos(time.as_nanos())
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        for _ in 0..SPIN {
            match self.core.try_lock() {
                Ok(core) => return core,
                Err(std::sync::TryLockError::Poisoned(p)) => return p.into_inner(),
                Err(std::sync::TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        }
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only for the holder of the poll right.
    pub(crate) fn reactor(&self) -> MutexGuard<'_, Reactor> {
        self.reactor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- after a program's call ----------------------------------------------------------------------------------

    /// Ends a program's call that may have produced actions or output: performs what concerns sockets, transmits what goes
    /// out on idle connections, and leaves the rest to the poll loop. Wakes whom it made ready.
    pub(crate) fn settle<'a>(&'a self, mut core: MutexGuard<'a, Core>) {
        if core.node.has_actions() {
            let now = self.now();
            core.dispatch(now);
        } else {
            core.notify_ends();
        }
        for _ in 0..CALLER_ROUNDS {
            // While something is on its way an answer will come, and more messages may gather until then. But where nobody polls, to
            // wake somebody for it costs more than a write; for one or two messages nothing gathers.
            let idle = core.node.poll_idle_transmit();
            let next = idle.or_else(|| core.node.poll_transmit().filter(|_| self.right.may_write()));
            let Some(conn) = next else { break };
            core = self.transmit(core, conn);
        }
        let kick = !core.io.is_empty() || !core.retry.is_empty() || core.node.poll_transmit().is_some();
        let nearer = core.deadline_is_nearer();
        if nearer {
            core.planned = core.node.next_timeout();
        }
        let c = &mut *core;
        c.node.take_released(&mut c.wakes.released);
        let wakes = core.wakes.take();
        drop(core);
        if kick {
            self.right.kick();
        } else if nearer {
            self.right.nearer_deadline();
        }
        if let Some(wakes) = wakes {
            wakes.finish();
            self.pins.wake();
        }
    }

    /// Tells the node what a program took.
    pub(crate) fn report(&self, mailbox: &Mailbox, taken: Taken) {
        let mut core = self.core();
        core.node.consumed(mailbox.id, taken.bytes, taken.messages);
        self.settle(core);
    }

    // ---- transmitting --------------------------------------------------------------------------------------------

    /// Transmits everything that is ready, within bounds. True if more is left.
    pub(crate) fn transmit_all<'a>(&'a self, mut core: MutexGuard<'a, Core>) -> (MutexGuard<'a, Core>, bool) {
        for _ in 0..POLLER_ROUNDS {
            let Some(conn) = core.node.poll_transmit() else { return (core, false) };
            core = self.transmit(core, conn);
        }
        let more = core.node.poll_transmit().is_some();
        (core, more)
    }

    /// Writes a batch of one connection, without the core's lock.
    fn transmit<'a>(&'a self, mut core: MutexGuard<'a, Core>, conn: ConnId) -> MutexGuard<'a, Core> {
        let mut batch = core.take_batch();
        let link = core.link(conn);
        let most = if link.as_ref().is_some_and(|link| link.pins()) { PINNING_BATCH } else { BATCH };
        if core.node.begin_transmit(conn, most, &mut batch.slices) == 0 {
            core.give_batch(batch);
            return core;
        }
        drop(core);
        let (bytes, stop, seen) = match &link {
            Some(link) => {
                let seen = link.edges();
                let wrote = link.write(&mut batch);
                (wrote.bytes, wrote.stop, seen)
            }
            None => (0, Some(Stop::Failed), 0),
        };
        let mut core = self.core();
        core.sent += bytes as u64;
        core.wakes.released.append(&mut batch.slices);
        core.wakes.released.append(&mut batch.released);
        if link.as_ref().is_some_and(|link| link.pins()) && !self.pins.ticking.swap(true, SeqCst) {
            // The poll loop may sleep without a deadline.
            self.right.kick();
        }
        let blocked = match (stop, &link) {
            (Some(Stop::Full), Some(link)) => link.stays_blocked(seen),
            (Some(Stop::NoMemory), _) => {
                core.retry.push(conn);
                true
            }
            (Some(_), _) => true,
            (None, _) => false,
        };
        let now = self.now();
        core.node.end_transmit(now, conn, bytes, blocked);
        core.dispatch(now);
        core.give_batch(batch);
        core
    }
}

impl Waits for Shared {
    type Poller = Reactor;

    fn right(&self) -> &Arc<PollRight> {
        &self.right
    }

    fn poller(&self) -> MutexGuard<'_, Reactor> {
        self.reactor()
    }

    fn turn(&self, reactor: &mut Reactor, until: Option<Instant>, parker: Option<&Parker>) {
        reactor.turn(self, until, parker);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }
}

impl Fills for Shared {
    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn frees(&self) -> Weak<dyn Frees> {
        self.this.clone()
    }
}

impl Frees for Shared {
    fn freed(&self, mailbox: &Mailbox, report: Option<Taken>) {
        if let Some(taken) = report {
            self.report(mailbox, taken);
        }
    }
}

/// Time since an engine's origin.
pub(crate) fn time_since(origin: Instant) -> Time {
    Time::from_nanos(u64::try_from(origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
}
