//! What every handle, socket and thread of an attached node shares, and its poll loop.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use super::super::{Consumer, Doorbell, Hello, Wakeup};
use super::core::Core;
use super::link::Link;
use super::seat::Place;
use crate::buffer::Pool;
use crate::engine::RecvError;
use crate::engine::inlet::{Fills, Frees};
use crate::engine::mailbox::{Mailbox, Taken, Wakes};
use crate::engine::parker::Parker;
use crate::engine::right::PollRight;
use crate::engine::wait::Waits;

const WAKE: Token = Token(0);
const DOORBELL: Token = Token(1);
const CONTROL: Token = Token(2);

/// How long a caller that waits looks before it sleeps, if it is not to look longer. Under load the daemon is about to write: it would have to wake
/// us, and we it, for every few small messages.
const LOOK: Duration = Duration::from_micros(20);

/// The completion side of an attachment.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) consumer: Option<Consumer>,
    pub(super) link: Option<Arc<Link>>,
    pub(super) wakeup: Option<Arc<Wakeup>>,
    /// Counts attachments, so that the poll loop sees that there is another one.
    pub(super) epoch: u64,
}

pub(crate) struct Shared {
    pub(super) this: Weak<Self>,
    pub(super) path: PathBuf,
    /// What is said when attaching again.
    pub(super) hello: Hello,
    pub(super) inbox: Mutex<Inbox>,
    pub(super) core: Mutex<Core>,
    poller: Mutex<Poller>,
    pub(super) right: Arc<PollRight>,
    /// Buffers for what is not in the arenas.
    pub(super) pool: Arc<Pool>,
    /// The thread that brings in what comes while no caller does; only where somebody polls a descriptor, or would wait in vain.
    pub(super) background: Mutex<Option<JoinHandle<()>>>,
    listens: AtomicBool,
    pub(super) busy_poll: Duration,
    pub(super) stopped: AtomicBool,
    /// Ends the pauses of whoever attaches again.
    pub(super) halt: (Mutex<bool>, Condvar),
    /// The process that opened it: one that was forked must not touch what it inherited.
    process: u32,
}

/// The poll loop's own state.
pub(crate) struct Poller {
    poll: Poll,
    events: Events,
    /// Of the attachment whose descriptors are registered.
    epoch: u64,
    registered: Vec<OwnedFd>,
    wakeup: Option<Arc<Wakeup>>,
}

impl Shared {
    pub(super) fn new(
        path: PathBuf,
        hello: Hello,
        address: std::net::IpAddr,
        busy_poll: Duration,
    ) -> io::Result<Arc<Self>> {
        let poll = Poll::new()?;
        let waker = mio::Waker::new(poll.registry(), WAKE)?;
        let poller =
            Poller { poll, events: Events::with_capacity(8), epoch: 0, registered: Vec::new(), wakeup: None };
        Ok(Arc::new_cyclic(|this| Self {
            this: this.clone(),
            path,
            hello,
            inbox: Mutex::default(),
            core: Mutex::new(Core::new(address)),
            poller: Mutex::new(poller),
            right: Arc::new(PollRight::new(waker)),
            pool: Pool::new(),
            background: Mutex::default(),
            listens: AtomicBool::new(false),
            busy_poll,
            stopped: AtomicBool::new(false),
            halt: (Mutex::new(false), Condvar::new()),
            process: std::process::id(),
        }))
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process was forked from the one that attached.
    pub(super) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Ends a call: says what is to be said, wakes the daemon if it sleeps and `urgent`, and threads here.
    pub(super) fn settle(&self, core: MutexGuard<'_, Core>, urgent: bool) {
        self.prepare(core, urgent).run(self);
    }

    /// As [`Shared::settle`], but for what is to be done when no lock is held.
    #[must_use = "what is to be done when no lock is held"]
    pub(super) fn prepare(&self, mut core: MutexGuard<'_, Core>, urgent: bool) -> After {
        let core = &mut *core;
        let mut after = After { listen: !core.flush(), ..After::default() };
        if let Some(line) = &mut core.line {
            let quarter = line.link.welcome.receive_arena / 4;
            // What is not written to a socket cannot be seen.
            let urgent = urgent || core.given_back > quarter || line.producer.is_stream();
            if urgent {
                core.given_back = 0;
                after.rings[0] = line.producer.publish();
            } else {
                line.producer.publish_quietly();
            }
            // The stream form may have to wait for the socket.
            after.listen |= line.producer.has_pending();
        }
        after.wakes[0] = core.wakes.take();
        after
    }

    /// Has a background thread bring in what comes while no caller does, from now on.
    pub(super) fn listen(&self) {
        if self.listens.swap(true, SeqCst) {
            return;
        }
        let Some(shared) = self.this.upgrade() else { return };
        let run = move || {
            let poll = || {
                let mut poller = shared.poller();
                while !shared.right.must_yield() {
                    shared.turn(&mut poller, None, None);
                }
            };
            shared.right.run_background(poll);
        };
        match std::thread::Builder::new().name("rds attached".to_owned()).spawn(run) {
            Ok(thread) => {
                *self.background.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
            }
            Err(error) => {
                self.listens.store(false, SeqCst);
                tracing::error!(%error, "cannot start the thread that listens to the daemon");
            }
        }
    }

    /// Tells the daemon what was taken of a socket's messages and has come back of its memory.
    fn report(&self, mailbox: &Mailbox, report: Option<Taken>, urgent: bool) {
        let mut core = self.core();
        let number = mailbox.id.number();
        if let (Some(taken), Some(seat)) = (report, core.seat_mut(number)) {
            seat.took(taken);
            if seat.taken.messages > 0 {
                core.say(number);
            }
        }
        self.settle(core, urgent);
        // Should the daemon wait for just this room, it is told at once. Another thread that reads what it writes tells it by itself.
        if !urgent
            && let Ok(inbox) = self.inbox.try_lock()
            && inbox.consumer.as_ref().is_some_and(Consumer::wanted)
        {
            let core = self.core();
            drop(inbox);
            self.settle(core, true);
        }
    }
}

thread_local! {
    static FINISHING: Cell<bool> = const { Cell::new(false) };
}

/// What is to be done when no lock is held. A batch and the end of an attachment may come together.
#[derive(Default)]
pub(super) struct After {
    rings: [Option<Arc<Doorbell>>; 3],
    wakes: [Option<Wakes>; 2],
    /// When there is room, somebody must go on.
    listen: bool,
}

impl After {
    pub(super) fn ring(&mut self, doorbell: Option<Arc<Doorbell>>) {
        if let Some(free) = self.rings.iter_mut().find(|ring| ring.is_none()) {
            *free = doorbell;
        }
    }

    pub(super) fn add(&mut self, other: Self) {
        other.rings.into_iter().for_each(|doorbell| self.ring(doorbell));
        for wakes in other.wakes.into_iter().flatten() {
            match self.wakes.iter_mut().find(|free| free.is_none()) {
                Some(free) => *free = Some(wakes),
                // Dropping it wakes them as well.
                None => drop(wakes),
            }
        }
        self.listen |= other.listen;
    }

    pub(super) fn run(self, shared: &Shared) {
        for doorbell in self.rings.into_iter().flatten() {
            doorbell.ring();
        }
        for wakes in self.wakes.into_iter().flatten() {
            // Payloads are dropped here, which may call us again.
            let outer = FINISHING.replace(true);
            wakes.finish();
            FINISHING.set(outer);
        }
        if self.listen {
            shared.listen();
        }
    }
}

/// Whether this thread drops payloads while it works for the library: what its callers wait for, it may have to bring.
pub(super) fn is_finishing() -> bool {
    FINISHING.get()
}

impl Waits for Shared {
    type Poller = Poller;

    fn right(&self) -> &Arc<PollRight> {
        &self.right
    }

    fn poller(&self) -> MutexGuard<'_, Poller> {
        self.poller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self, poller: &mut Poller, until: Option<Instant>, parker: Option<&Parker>) {
        if self.right.take_work() {
            self.work();
        }
        if self.drain() || self.spin(until, parker) {
            return;
        }
        poller.follow(self);
        let deadline = self.core().next_deadline();
        // From here on the daemon rings for whatever it writes.
        if self.arm() && self.right.begin_sleep(parker) {
            let until = [until, deadline].into_iter().flatten().min();
            // Rounded up, so that the deadline has passed when the sleep ends.
            let timeout = until.map(|at| at.saturating_duration_since(Instant::now()));
            poller.sleep(self, timeout);
        }
        self.right.end_sleep(parker);
        if let Some(consumer) = &mut self.inbox().consumer {
            consumer.disarm();
        }
        self.drain();
        if deadline.is_some_and(|at| at <= Instant::now()) {
            self.work();
        }
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(SeqCst)
    }
}

impl Shared {
    /// Says what is still to be said.
    fn work(&self) {
        let mut core = self.core();
        core.ask_again(Instant::now());
        self.settle(core, true);
    }

    /// Announces sleep to the daemon; false if something has come.
    fn arm(&self) -> bool {
        let mut inbox = self.inbox();
        match inbox.consumer.as_mut().map(Consumer::arm) {
            None => true,
            Some(Ok(nothing)) => nothing,
            Some(Err(fault)) => {
                let after = self.detach(&mut inbox, &fault.to_string());
                drop(inbox);
                after.run(self);
                false
            }
        }
    }

    /// Looks for a while without sleeping, if a caller waits. Whether anything came.
    fn spin(&self, until: Option<Instant>, parker: Option<&Parker>) -> bool {
        let Some(parker) = parker else { return false };
        let end = Instant::now().checked_add(self.busy_poll.max(LOOK));
        let end = [until, end].into_iter().flatten().min();
        while !parker.notified() && !self.right.has_work() {
            // Whoever is to answer may need this very processor.
            std::thread::yield_now();
            if self.drain() {
                return true;
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                break;
            }
        }
        false
    }
}

impl Poller {
    /// Watches the descriptors of the present attachment.
    fn follow(&mut self, shared: &Shared) {
        let inbox = shared.inbox();
        if inbox.epoch == self.epoch {
            return;
        }
        for fd in self.registered.drain(..) {
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd.as_raw_fd()));
        }
        self.wakeup = None;
        self.epoch = inbox.epoch;
        let (Some(link), Some(wakeup)) = (&inbox.link, &inbox.wakeup) else { return };
        self.wakeup = Some(Arc::clone(wakeup));
        let both = Interest::READABLE | Interest::WRITABLE;
        // Duplicates, which stay ours while they are registered.
        let control = link.socket.try_clone().map(OwnedFd::from);
        let mut wanted = vec![(control, both, CONTROL)];
        // Without shared memory they are the same.
        if wakeup.as_fd().as_raw_fd() != link.socket.as_raw_fd() {
            wanted.push((wakeup.as_fd().try_clone_to_owned(), Interest::READABLE, DOORBELL));
        }
        for (copy, interest, token) in wanted {
            let registered = copy.and_then(|copy| {
                self.poll.registry().register(&mut SourceFd(&copy.as_raw_fd()), token, interest)?;
                self.registered.push(copy);
                Ok(())
            });
            if let Err(error) = registered {
                tracing::error!(%error, "cannot watch the connection to the daemon");
            }
        }
    }

    fn sleep(&mut self, shared: &Shared, timeout: Option<Duration>) {
        if let Err(error) = self.poll.poll(&mut self.events, timeout) {
            if error.kind() != io::ErrorKind::Interrupted {
                tracing::error!(%error, "epoll failed");
            }
            return;
        }
        let (mut rung, mut gone, mut writable) = (false, false, false);
        for event in &self.events {
            match event.token() {
                DOORBELL => rung = true,
                CONTROL => {
                    gone |= event.is_read_closed() || event.is_error();
                    writable |= event.is_writable();
                    rung |= event.is_readable();
                }
                _ => {}
            }
        }
        if rung && let Some(wakeup) = &self.wakeup {
            wakeup.clear();
        }
        if rung || writable {
            // Maybe because there is room again.
            shared.room();
        }
        if gone {
            shared.hung_up(self.epoch);
        }
    }
}

impl Fills for Shared {
    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn frees(&self) -> Weak<dyn Frees> {
        self.this.clone()
    }

    fn fetch(&self, mailbox: &Mailbox) -> bool {
        // What was taken until now: nothing is left, so there may be no later occasion.
        let taken = mailbox.take_published();
        if taken.messages > 0 {
            self.report(mailbox, Some(taken), false);
        }
        self.drain()
    }

    fn closed(&self, mailbox: &Mailbox) -> RecvError {
        match self.core().seat(mailbox.id.number()).map(|seat| seat.place) {
            Some(Place::Lost(error)) => RecvError::PortLost(error),
            _ => RecvError::Shutdown,
        }
    }
}

impl Frees for Shared {
    fn freed(&self, mailbox: &Mailbox, report: Option<Taken>) {
        self.report(mailbox, report, report.is_some());
    }
}
