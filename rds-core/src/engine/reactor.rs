//! The poll loop. Runs in whichever thread holds the poll right.

use std::collections::VecDeque;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};
use socket2::SockRef;

use super::conn::{Conn, Progress, Stage};
use super::link::Link;
use super::log::Log;
use super::mailbox::Wakes;
use super::parker::Parker;
use super::shared::Shared;
use super::tcp;
use crate::proto::{Action, CloseMode, ConnId};

const WAKE: Token = Token(usize::MAX);
const LISTENER: Token = Token(usize::MAX - 1);
/// Bytes that one read takes at most, beside a large message's own buffer.
const READ: usize = 256 << 10;
/// Connections accepted before others get their turn.
const ACCEPTS: usize = 32;
/// Pause after the process ran out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Pause before writing again where the kernel had no memory.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// How long an attempt to connect may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long an orderly end waits for the peer's end.
const ORDERLY_LIMIT: Duration = Duration::from_secs(5);

pub(crate) struct Reactor {
    poll: Poll,
    events: Events,
    /// `None` after the node was shut down.
    listener: Option<TcpListener>,
    /// The listener may have more.
    accepting: bool,
    accept_at: Option<Instant>,
    /// By [`ConnId::index`].
    conns: Vec<Option<Conn>>,
    /// Connections that may have input, in turn.
    ready: VecDeque<usize>,
    /// Connections with a deadline of the reactor's own; few.
    timed: Vec<(Instant, ConnId)>,
    /// The node may have something to transmit or to do.
    dirty: bool,
    /// When the node wants to be called.
    next: Option<Instant>,
    buffer: Box<[u8]>,
    actions: VecDeque<Action>,
    wakes: Wakes,
    log: Log,
}

impl Reactor {
    /// A poll loop for a listener, and the waker for its [`PollRight`](super::right::PollRight).
    pub(crate) fn new(listener: TcpListener) -> io::Result<(Self, mio::Waker)> {
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
            dirty: true,
            next: None,
            buffer: vec![0; READ].into_boxed_slice(),
            actions: VecDeque::new(),
            wakes: Wakes::default(),
            log: Log::default(),
        };
        Ok((reactor, waker))
    }

    /// One turn: transmit and act, then read what is there; if nothing was, sleep until something is, `until`, or the
    /// caller (the background thread if none is given) is wanted elsewhere.
    pub(crate) fn turn(&mut self, shared: &Shared, until: Option<Instant>, parker: Option<&Parker>) {
        self.expire(shared);
        if shared.right.take_work() || self.dirty || self.next.is_some_and(|at| at <= Instant::now()) {
            self.pass(shared, false);
        }
        let mut found = self.poll_events(shared, Some(Duration::ZERO));
        if !found && self.is_idle() {
            found = self.spin(shared, until, parker);
        }
        if !found && self.is_idle() {
            self.pass(shared, true);
            if shared.right.begin_sleep(parker) && !self.dirty {
                let until = [until, self.next, self.next_deadline()].into_iter().flatten().min();
                // Rounded up, so that the deadline has passed when the sleep ends.
                let timeout = until.map(|at| at.saturating_duration_since(Instant::now()));
                self.poll_events(shared, timeout);
            }
            shared.right.end_sleep(parker);
        }
        if self.accepting {
            self.accept(shared);
        }
        for _ in 0..self.ready.len() {
            if let Some(index) = self.ready.pop_front() {
                self.serve(shared, index);
            }
        }
        if self.dirty {
            self.pass(shared, false);
        }
        if self.dirty {
            // More than one pass's share; whoever polls next goes on.
            shared.right.set_work();
        }
    }

    /// Closes the listener and every connection, at the end of the node.
    pub(crate) fn close(&mut self) {
        self.listener = None;
        self.conns.clear();
        self.ready.clear();
    }

    fn is_idle(&self) -> bool {
        self.ready.is_empty() && !self.accepting && !self.dirty
    }

    /// Looks for input for a while without sleeping, if a caller waits.
    fn spin(&mut self, shared: &Shared, until: Option<Instant>, parker: Option<&Parker>) -> bool {
        let limit = shared.options.busy_poll;
        let (Some(parker), false) = (parker, limit.is_zero()) else { return false };
        let end = Instant::now() + limit;
        let end = until.map_or(end, |u| u.min(end));
        while Instant::now() < end {
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
                    let ended = event.is_read_closed() || event.is_error();
                    if event.is_readable() || ended {
                        conn.readable = true;
                        conn.hangup |= ended;
                        enqueue(&mut self.ready, conn, index);
                    }
                }
            }
        }
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
            Action::Connect { conn, peer, lane, lanes } => {
                match tcp::connect(&shared.options, peer, lane, lanes) {
                    Ok(stream) => match self.add(conn, peer, stream, Stage::Connecting) {
                        Ok(_) => self.timed.push((Instant::now() + CONNECT_LIMIT, conn)),
                        Err(error) => self.connect_failed(shared, conn, &error),
                    },
                    Err(error) => self.connect_failed(shared, conn, &error),
                };
            }
            Action::Close { conn, peer, mode, reason } => {
                self.log.closed(peer, &reason);
                match mode {
                    CloseMode::Now => self.remove(shared, conn),
                    CloseMode::Orderly => self.close_orderly(shared, conn),
                }
            }
            Action::Drain { conn } => {
                if let Some(c) = self.conn(conn) {
                    c.draining = true;
                    c.readable = true;
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
                if let Some(unacked) = self.conn(conn).and_then(|c| tcp::unacknowledged(&c.link.stream)) {
                    let mut core = shared.core();
                    let now = shared.now();
                    core.node.tcp_unacked(now, conn, unacked);
                    core.dispatch(now);
                    self.dirty = true;
                }
            }
            Action::PeerUp { peer, guarantee, generation, lanes, restarted } => {
                self.log.up(peer, guarantee, generation, lanes, restarted);
            }
            Action::PeerDown { peer } => self.log.down(peer),
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
        self.timed.push((Instant::now() + ORDERLY_LIMIT, conn));
        self.enqueue(conn);
    }

    fn connect_failed(&mut self, shared: &Shared, conn: ConnId, error: &io::Error) {
        tracing::debug!(?conn, %error, "cannot connect");
        let mut core = shared.core();
        core.remove_link(conn);
        let now = shared.now();
        core.node.connect_failed(now, conn);
        core.dispatch(now);
        self.dirty = true;
    }

    // ---- connections ---------------------------------------------------------------------------------------------

    fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(id.index())?.as_mut().filter(|c| c.id == id)
    }

    fn enqueue(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(id.index()).and_then(Option::as_mut).filter(|c| c.id == id) {
            enqueue(&mut self.ready, conn, id.index());
        }
    }

    fn add(
        &mut self,
        id: ConnId,
        peer: std::net::IpAddr,
        stream: TcpStream,
        stage: Stage,
    ) -> io::Result<Arc<Link>> {
        let index = id.index();
        if self.conns.len() <= index {
            self.conns.resize_with(index + 1, || None);
        }
        if let Some(old) = self.conns[index].take() {
            deregister(self.poll.registry(), &old);
        }
        let fd = stream.as_raw_fd();
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut SourceFd(&fd), Token(index), interest)?;
        let link = Arc::new(Link::new(stream));
        self.conns[index] = Some(Conn::new(id, peer, Arc::clone(&link), stage));
        Ok(link)
    }

    /// Forgets a connection. Its socket closes once nobody writes to it any more.
    fn remove(&mut self, shared: &Shared, id: ConnId) {
        if self.conn(id).is_some()
            && let Some(conn) = self.conns[id.index()].take()
        {
            deregister(self.poll.registry(), &conn);
        }
        let mut core = shared.core();
        core.remove_link(id);
        core.dispatch(shared.now());
    }

    /// An attempt to connect has come to its end.
    fn established(&mut self, shared: &Shared, index: usize) {
        let Some(conn) = self.conns.get_mut(index).and_then(Option::as_mut) else { return };
        let id = conn.id;
        self.timed.retain(|(_, c)| *c != id);
        match tcp::connect_result(&conn.link.stream) {
            Ok(()) => {
                conn.stage = Stage::Open;
                conn.readable = true;
                enqueue(&mut self.ready, conn, index);
                let mut core = shared.core();
                core.add_link(id, Arc::clone(&conn.link));
                let now = shared.now();
                core.node.connected(now, id);
                core.dispatch(now);
                self.dirty = true;
            }
            Err(error) => {
                if let Some(conn) = self.conns[index].take() {
                    deregister(self.poll.registry(), &conn);
                }
                self.connect_failed(shared, id, &error);
            }
        }
    }

    fn accept(&mut self, shared: &Shared) {
        if self.accept_at.is_some() {
            self.accepting = false;
            return;
        }
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else {
                self.accepting = false;
                return;
            };
            match listener.accept() {
                Ok((stream, from)) => {
                    if let Err(error) = self.accepted(shared, stream, from) {
                        self.log.accept_failed(&error);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.accepting = false;
                    return;
                }
                Err(error) => {
                    self.log.accept_failed(&error);
                    // Out of descriptors or memory: more attempts at once would fail as well. Everything else concerns the
                    // one connection only (accept(2)).
                    let exhausted = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
                    if error.raw_os_error().is_some_and(|e| exhausted.contains(&e)) {
                        self.accepting = false;
                        self.accept_at = Some(Instant::now() + ACCEPT_PAUSE);
                        return;
                    }
                }
            }
        }
    }

    fn accepted(&mut self, shared: &Shared, stream: TcpStream, from: std::net::SocketAddr) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let mut core = shared.core();
        let now = shared.now();
        let id = match core.node.accept(now, from.ip(), from.port()) {
            Ok(id) => id,
            Err(reason) => {
                core.dispatch(now);
                drop(core);
                self.dirty = true;
                self.log.closed(from.ip(), &reason);
                return Ok(());
            }
        };
        // Under the same lock: the node may name the connection to anybody who transmits from now on.
        let added = self.add(id, from.ip(), stream, Stage::Open);
        match &added {
            Ok(link) => core.add_link(id, Arc::clone(link)),
            Err(_) => core.node.closed(now, id, None),
        }
        core.dispatch(now);
        drop(core);
        self.dirty = true;
        tcp::prepare(&SockRef::from(&added?.stream), &shared.options)
    }

    /// Reads from a connection once, within its share, and feeds what came.
    fn serve(&mut self, shared: &Shared, index: usize) {
        let Some(conn) = self.conns.get_mut(index).and_then(Option::as_mut) else { return };
        conn.queued = false;
        if conn.paused {
            return;
        }
        let progress = conn.serve(shared, &mut self.buffer, &mut self.wakes, &mut self.dirty);
        self.wakes.fire();
        let id = conn.id;
        match progress {
            Progress::More => enqueue(&mut self.ready, conn, index),
            Progress::Paused => {}
            Progress::Empty => {
                if std::mem::take(&mut conn.draining) {
                    self.drained(shared, id);
                }
            }
            Progress::Ended(error) => self.end(shared, id, error),
        }
    }

    fn drained(&mut self, shared: &Shared, id: ConnId) {
        let unacked = self.conn(id).and_then(|c| tcp::unacknowledged(&c.link.stream));
        let mut core = shared.core();
        let now = shared.now();
        if let Some(unacked) = unacked {
            core.node.tcp_unacked(now, id, unacked);
        }
        core.node.drained(now, id);
        core.dispatch(now);
        self.dirty = true;
    }

    /// The end of a connection: everything readable was fed.
    fn end(&mut self, shared: &Shared, id: ConnId, error: Option<io::Error>) {
        self.timed.retain(|(_, c)| *c != id);
        let Some(conn) = self.conns.get_mut(id.index()).and_then(Option::take) else { return };
        deregister(self.poll.registry(), &conn);
        let unacked = tcp::unacknowledged(&conn.link.stream);
        let connecting = conn.stage == Stage::Connecting;
        if conn.stage == Stage::Open {
            self.log.lost(conn.peer, error.as_ref());
        }
        let mut core = shared.core();
        core.remove_link(id);
        let now = shared.now();
        if connecting {
            core.node.connect_failed(now, id);
        } else {
            conn.return_target(&mut core, now);
            core.node.closed(now, id, unacked);
        }
        core.dispatch(now);
        self.dirty = true;
    }

    // ---- deadlines -----------------------------------------------------------------------------------------------

    fn next_deadline(&self) -> Option<Instant> {
        self.timed.iter().map(|(at, _)| *at).chain(self.accept_at).min()
    }

    fn expire(&mut self, shared: &Shared) {
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

fn enqueue(ready: &mut VecDeque<usize>, conn: &mut Conn, index: usize) {
    if !conn.queued && !conn.paused {
        conn.queued = true;
        ready.push_back(index);
    }
}

fn deregister(registry: &Registry, conn: &Conn) {
    if let Err(error) = registry.deregister(&mut SourceFd(&conn.link.stream.as_raw_fd())) {
        tracing::debug!(%error, "epoll deregister");
    }
}
