//! The poll loop. Runs in whichever thread holds the poll right.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};

use super::conn::{Conn, Stage};
use super::link::Link;
use super::log;
use super::mailbox::Wakes;
use super::parker::Parker;
use super::pins::Pins;
use super::shared::Shared;
use super::tcp;
use crate::proto::{Action, CloseMode, ConnId};

const WAKE: Token = Token(usize::MAX);
const LISTENER: Token = Token(usize::MAX - 1);
/// Bytes that one read takes at most, beside a large message's own buffer.
const READ: usize = 256 << 10;
/// Connections accepted before others get their turn.
pub(super) const ACCEPTS: usize = 32;
/// Pause after the process ran out of descriptors.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Pause before writing again where the kernel had no memory.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// How often connections are asked whether they keep pages that nobody reads.
const MAP_TICK: Duration = Duration::from_secs(1);
/// How often paths are looked at while something is pinned.
const TICK: Duration = Duration::from_secs(1);
/// How long an attempt to connect may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long an orderly end waits for the peer's end.
const ORDERLY_LIMIT: Duration = Duration::from_secs(5);

pub(crate) struct Reactor {
    pub(super) poll: Poll,
    events: Events,
    /// `None` after the node was shut down.
    pub(super) listener: Option<TcpListener>,
    /// The listener may have more.
    pub(super) accepting: bool,
    pub(super) accept_at: Option<Instant>,
    /// By [`ConnId::index`].
    pub(super) conns: Vec<Option<Conn>>,
    /// Connections that may have input, in turn.
    pub(super) ready: VecDeque<usize>,
    /// Connections with a deadline of the reactor's own; few.
    pub(super) timed: Vec<(Instant, ConnId)>,
    /// When connections are asked for pages next, while any may have some.
    pub(super) map_tick_at: Option<Instant>,
    /// The node may have something to transmit or to do.
    pub(super) dirty: bool,
    /// When the node wants to be called.
    next: Option<Instant>,
    pub(super) buffer: Box<[u8]>,
    actions: VecDeque<Action>,
    pub(super) wakes: Wakes,
    pub(super) pins: Arc<Pins>,
    /// When paths and the pool are looked at next, while something is pinned, or buffers are free.
    tick_at: Option<Instant>,
    /// When the pool may be trimmed next.
    trim_at: Option<Instant>,
}

impl Reactor {
    /// A poll loop for a listener, and the waker for its [`PollRight`](super::right::PollRight).
    pub(crate) fn new(listener: TcpListener, pins: Arc<Pins>) -> io::Result<(Self, mio::Waker)> {
        let poll = Poll::new()?;
        poll.registry().register(&mut SourceFd(&listener.as_raw_fd()), LISTENER, Interest::READABLE)?;
        let waker = mio::Waker::new(poll.registry(), WAKE)?;
        let reactor = Self {
            poll,
            events: Events::with_capacity(256),
            listener: Some(listener),
            accepting: false,
            accept_at: None,
            conns: Vec::new(),
            ready: VecDeque::new(),
            timed: Vec::new(),
            map_tick_at: None,
            dirty: true,
            next: None,
            buffer: vec![0; READ].into_boxed_slice(),
            actions: VecDeque::new(),
            wakes: Wakes::default(),
            pins,
            tick_at: None,
            trim_at: None,
        };
        Ok((reactor, waker))
    }

    /// One turn: transmit and act, then read what is there; if nothing was, sleep until something is, `until`, or the
    /// caller (the background thread if none is given) is wanted elsewhere.
    pub(crate) fn turn(&mut self, shared: &Shared, until: Option<Instant>, parker: Option<&Parker>) {
        let pulse = shared.right.begin_pulse();
        self.expire(shared);
        let due = self.next.is_some_and(|at| at <= Instant::now());
        if due {
            // After a long stall: what has come must be read before a connection is judged by its deadline.
            self.poll_events(shared, Some(Duration::ZERO));
            self.input(shared);
        }
        if shared.right.take_work() || self.dirty || due {
            self.pass(shared, false);
        }
        let mut found = self.poll_events(shared, Some(Duration::ZERO));
        if !found && self.is_idle() {
            found = self.spin(shared, until, parker);
        }
        if !found && self.is_idle() {
            self.pass(shared, true);
            shared.right.give_pulse(pulse);
            if shared.right.begin_sleep(parker) && !self.dirty && shared.right.begin_pulse() == pulse {
                let until = [until, self.next, self.next_deadline()].into_iter().flatten().min();
                // Rounded up, so that the deadline has passed when the sleep ends.
                let timeout = until.map(|at| at.saturating_duration_since(Instant::now()));
                self.poll_events(shared, timeout);
            }
            shared.right.end_sleep(parker);
        }
        self.input(shared);
        if self.dirty {
            self.pass(shared, false);
        }
        if self.dirty {
            // More than one pass's share; whoever polls next goes on.
            shared.right.set_work();
        }
        shared.right.give_pulse(pulse);
    }

    /// Accepts and reads what is there, each connection its share.
    fn input(&mut self, shared: &Shared) {
        if self.accepting {
            self.accept(shared);
        }
        for _ in 0..self.ready.len() {
            if let Some(index) = self.ready.pop_front() {
                self.serve(shared, index);
            }
        }
    }

    /// Closes the listener and every connection, at the end of the node. Their links are to be retired.
    #[must_use]
    pub(crate) fn close(&mut self) -> Vec<Arc<Link>> {
        self.listener = None;
        self.ready.clear();
        self.conns.drain(..).flatten().map(|conn| conn.link).collect()
    }

    fn is_idle(&self) -> bool {
        self.ready.is_empty() && !self.accepting && !self.dirty
    }

    /// Looks for input for a while without sleeping, if a caller waits.
    fn spin(&mut self, shared: &Shared, until: Option<Instant>, parker: Option<&Parker>) -> bool {
        let limit = shared.options.busy_poll;
        let (Some(parker), false) = (parker, limit.is_zero()) else { return false };
        let end = Instant::now().checked_add(limit);
        let end = [until, end, self.next, self.next_deadline()].into_iter().flatten().min();
        while end.is_none_or(|end| Instant::now() < end) {
            if parker.notified() || shared.right.has_work() {
                break;
            }
            if self.poll_events(shared, Some(Duration::ZERO)) {
                return true;
            }
            // Whoever is to answer may need this very processor.
            std::thread::yield_now();
        }
        false
    }

    /// Polls once. Whether any connection or the listener has something.
    fn poll_events(&mut self, shared: &Shared, timeout: Option<Duration>) -> bool {
        if let Err(error) = self.poll.poll(&mut self.events, timeout) {
            if error.kind() != io::ErrorKind::Interrupted {
                tracing::error!(%error, "epoll failed");
            }
            return false;
        }
        let mut found = false;
        let mut writable = Vec::new();
        let mut established = Vec::new();
        for event in &self.events {
            match event.token() {
                WAKE => {}
                LISTENER => {
                    found = true;
                    self.accepting = true;
                }
                Token(index) => {
                    let Some(conn) = self.conns.get_mut(index).and_then(Option::as_mut) else { continue };
                    found = true;
                    if conn.stage == Stage::Connecting {
                        if event.is_writable() || event.is_error() || event.is_write_closed() {
                            established.push(index);
                        }
                        continue;
                    }
                    if event.is_writable() && conn.link.writable_edge() {
                        writable.push(conn.id);
                    }
                    // Where payloads are pinned, what the kernel is done with is an error to epoll too. A broken connection is
                    // closed for reading as well.
                    let notified = event.is_error() && conn.link.may_have_notifications();
                    if notified {
                        conn.link.reap(&mut self.wakes.released);
                    }
                    let ended = event.is_read_closed() || (event.is_error() && !notified);
                    if event.is_readable() || ended {
                        conn.readable = true;
                        conn.hangup |= ended;
                        enqueue(&mut self.ready, conn, index);
                    }
                }
            }
        }
        self.wakes.fire();
        if !writable.is_empty() {
            let mut core = shared.core();
            for conn in writable {
                core.node.writable(conn);
            }
            self.dirty = true;
        }
        for index in established {
            self.established(shared, index);
        }
        found
    }

    /// Does what is due, performs actions and transmits, until nothing is left or it has had its share. With `acks`, also
    /// sends acknowledgements that are due.
    fn pass(&mut self, shared: &Shared, acks: bool) {
        loop {
            self.dirty = false;
            let mut core = shared.core();
            let now = shared.now();
            if core.node.next_timeout().is_some_and(|at| at <= now) {
                core.node.handle_timeout(now);
            }
            if acks {
                core.node.flush_acks();
            }
            core.dispatch(now);
            let (mut core, more) = shared.transmit_all(core);
            std::mem::swap(&mut core.io, &mut self.actions);
            std::mem::swap(&mut core.wakes, &mut self.wakes);
            core.planned = core.node.next_timeout();
            self.next = core.planned.map(|at| shared.instant(at));
            for conn in core.retry.drain(..) {
                self.timed.push((Instant::now() + RETRY_PAUSE, conn));
            }
            drop(core);
            self.wakes.fire();
            self.pins.wake();
            if self.actions.is_empty() {
                self.dirty |= more;
                return;
            }
            while let Some(action) = self.actions.pop_front() {
                self.perform(shared, action);
            }
        }
    }

    // ---- actions -------------------------------------------------------------------------------------------------

    fn perform(&mut self, shared: &Shared, action: Action) {
        match action {
            Action::Connect { conn, peer, lane, port_step } => {
                match tcp::connect(&shared.options, &self.pins, peer, lane, port_step) {
                    Ok(stream) => match self.add(conn, peer, stream, Stage::Connecting) {
                        Ok(_) => self.timed.push((Instant::now() + CONNECT_LIMIT, conn)),
                        Err(error) => self.connect_failed(shared, conn, &error),
                    },
                    Err(error) => self.connect_failed(shared, conn, &error),
                };
            }
            Action::Close { conn, peer, lane, mode, reason } => {
                log::closed(peer, lane, &reason);
                match mode {
                    CloseMode::Now => self.remove(shared, conn),
                    CloseMode::Orderly => self.close_orderly(shared, conn),
                }
            }
            Action::Drain { conn } => {
                if let Some(c) = self.conn(conn) {
                    c.draining = true;
                    c.readable = true;
                    // Room or not: until it is read out, nothing is read of the one that replaces it.
                    if c.paused {
                        c.resume();
                    }
                    self.enqueue(conn);
                }
            }
            Action::Resume { conn } => {
                if let Some(c) = self.conn(conn) {
                    c.resume();
                    self.enqueue(conn);
                }
            }
            Action::QueryUnacked { conn } => {
                // Under the lock: what a program writes meanwhile must not count as written but not as unacknowledged.
                let mut core = shared.core();
                if let Some(unacked) = self.conn(conn).and_then(|c| tcp::unacknowledged(&c.link.stream)) {
                    let now = shared.now();
                    core.node.tcp_unacked(now, conn, unacked);
                    core.dispatch(now);
                    self.dirty = true;
                }
            }
            Action::PeerUp { peer, guarantee, generation, lanes, restarted } => {
                log::up(peer, guarantee, generation, lanes, restarted);
            }
            Action::PeerRemembersLanes { peer, lane, lanes } => log::remembers(peer, lane, lanes),
            Action::PeerDown { peer } => log::down(peer),
            // Sockets' actions are performed where they arise.
            _ => {}
        }
    }

    fn close_orderly(&mut self, shared: &Shared, conn: ConnId) {
        let Some(c) = self.conn(conn) else { return };
        if c.stage == Stage::Connecting {
            return self.end(shared, conn, None);
        }
        c.stage = Stage::Closing;
        // A connection that is already broken says so at the next read.
        let _ = c.link.stream.shutdown(std::net::Shutdown::Write);
        c.readable = true;
        // A pause of its writing is not the time that it has.
        self.timed.retain(|(_, c)| *c != conn);
        self.timed.push((Instant::now() + ORDERLY_LIMIT, conn));
        self.enqueue(conn);
    }

    pub(super) fn connect_failed(&mut self, shared: &Shared, conn: ConnId, error: &io::Error) {
        tracing::debug!(?conn, %error, "cannot connect");
        let mut core = shared.core();
        // It never stood, so nothing was pinned.
        let _link = core.remove_link(conn);
        let now = shared.now();
        core.node.note_error(conn, error.kind());
        core.node.connect_failed(now, conn);
        core.dispatch(now);
        self.dirty = true;
    }

    // ---- deadlines -----------------------------------------------------------------------------------------------

    fn next_deadline(&self) -> Option<Instant> {
        let ticks = self.tick_at.into_iter().chain(self.map_tick_at);
        self.timed.iter().map(|(at, _)| *at).chain(self.accept_at).chain(ticks).min()
    }

    /// Has paths without traffic give up pages that nobody reads.
    fn map_tick(&mut self, shared: &Shared) {
        let now = Instant::now();
        if self.map_tick_at.is_some_and(|at| at <= now) {
            self.conns.iter_mut().flatten().for_each(Conn::tick);
            let more = shared.maps.idle() || self.conns.iter().flatten().any(Conn::wants_tick);
            self.map_tick_at = more.then(|| now + MAP_TICK);
        }
    }

    /// Ends paths whose peer has taken nothing for too long: what is pinned for it must not stay so for ever. And gives free buffers
    /// that nobody needs back to the system.
    fn tick(&mut self, shared: &Shared) {
        if self.tick_at.is_none() && !self.pins.ticking.load(SeqCst) {
            if shared.pool.free_bytes() > 0 {
                self.tick_at = Some(Instant::now() + TICK);
            }
            return;
        }
        let now = Instant::now();
        if self.tick_at.is_some_and(|at| at > now) {
            return;
        }
        let limit = self.pins.settings.hold_limit;
        let mut overdue = Vec::new();
        for conn in self.conns.iter().flatten() {
            let is_overdue = || conn.link.path().is_overdue(shared.now(), limit);
            if is_overdue() {
                // What has come must not count against the peer: this process may have stood still.
                conn.link.reap(&mut self.wakes.released);
                if is_overdue() {
                    overdue.push(conn.id);
                }
            }
        }
        if !overdue.is_empty() {
            let mut core = shared.core();
            let now = shared.now();
            for id in overdue {
                core.node.give_up(now, id);
            }
            core.dispatch(now);
            self.dirty = true;
        }
        // The flag first: whoever pins something after that sets it again and wakes us.
        self.pins.ticking.store(false, SeqCst);
        let busy = self.pins.gauge.now() > 0;
        if busy {
            self.pins.ticking.store(true, SeqCst);
        }
        if self.trim_at.is_none_or(|at| at <= now) {
            shared.pool.trim();
            self.trim_at = Some(now + TICK);
        }
        self.tick_at = (busy || shared.pool.free_bytes() > 0)
            .then(|| now + if busy { TICK.min(limit / 2).max(Duration::from_millis(1)) } else { TICK });
    }

    fn expire(&mut self, shared: &Shared) {
        self.tick(shared);
        if self.map_tick_at.is_some() {
            self.map_tick(shared);
        }
        if self.timed.is_empty() && self.accept_at.is_none() {
            return;
        }
        let now = Instant::now();
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            self.accepting = true;
        }
        let mut due = Vec::new();
        self.timed.retain(|(at, conn)| {
            let over = *at <= now;
            if over {
                due.push(*conn);
            }
            !over
        });
        for id in due {
            match self.conn(id).map(|c| c.stage) {
                Some(Stage::Connecting | Stage::Closing) => {
                    self.end(shared, id, Some(io::ErrorKind::TimedOut.into()));
                }
                // The kernel had no memory before.
                Some(Stage::Open) => {
                    shared.core().node.writable(id);
                    self.dirty = true;
                }
                None => {}
            }
        }
    }
}

/// When to look at pages first, once a connection has some.
pub(super) fn first_map_tick() -> Instant {
    Instant::now() + MAP_TICK
}

pub(super) fn enqueue(ready: &mut VecDeque<usize>, conn: &mut Conn, index: usize) {
    if !conn.queued && !conn.paused {
        conn.queued = true;
        ready.push_back(index);
    }
}

pub(super) fn deregister(registry: &Registry, conn: &Conn) {
    if let Err(error) = registry.deregister(&mut SourceFd(&conn.link.stream.as_raw_fd())) {
        tracing::debug!(%error, "epoll deregister");
    }
}
