//! The thread that serves all clients: the listener, hellos, doorbells and submissions.
//!
//! A client whose ring has something is *hot*: it is looked at in turn, a bounded number of records each time, and rings no doorbell meanwhile.
//! One whose ring is empty announces that the daemon sleeps, and is not looked at again before it rings. So what costs time is what
//! clients do, not how many there are.

mod calls;
mod drain;
mod hellos;
mod reload;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rds_core::attach::{Accepted, Completion, Credentials, Greeting, Hello, Refusal, RefusalCode, Wakeup};
use rds_core::events::{self, note};
use rds_core::info::{ConfigInfo, NodeStatus, State, Status};
use rds_core::zerocopy::Cap;

pub use self::calls::Calls;
pub(crate) use self::calls::Task;
use self::drain::Draining;
pub use self::drain::{ClientDrain, DrainReport, NodeDrain};
use self::hellos::Hellos;
use crate::access::Table;
use crate::host::Host;
use crate::listener::Listener;
use crate::remember::Remembered;
use crate::session::{End, Ends, Outlet, Session, Setup, Turn};
use crate::settings::Settings;
use crate::snapshot;

/// Records of one client before the next has its turn.
const TURN: usize = 256;
/// Records that a client may have submitted before it hung up, which are still done: as many as fit into the largest ring.
const LAST_RECORDS: usize = (1 << 20) / 32;
/// How long a client that submitted many records at a time is looked at after the last of them, unless the settings say longer: it submits more soon,
/// and to sleep and be woken costs both more than that. The processor is offered to others meanwhile.
const LINGER: Duration = Duration::from_micros(20);
/// How many are many. Who waits for an answer to each is served sooner by a thread that sleeps: the scheduler prefers one that is woken.
const MANY: usize = 16;
/// Looks at the hot clients between two looks at everything else.
const ROUNDS: u32 = 8;
/// Connections accepted before clients have their turn.
const ACCEPTS: usize = 16;
/// How long accepting waits when there are no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const LISTENER: Token = Token(0);
const CALLS: Token = Token(1);

/// A client's two tokens: its connection, and its doorbell.
fn connection(id: u64) -> Token {
    Token(2 + 2 * id as usize)
}

fn doorbell(id: u64) -> Token {
    Token(3 + 2 * id as usize)
}

/// An attached client.
struct Attached {
    session: Session,
    host: usize,
    socket: Arc<std::os::unix::net::UnixStream>,
    wakeup: Option<Arc<Wakeup>>,
    /// It is in the list of those that are looked at.
    hot: bool,
    /// It has hung up, and so many of its records are still read.
    gone: Option<usize>,
    /// When many records were last read of it.
    busy: Option<Instant>,
}

/// All that the thread has.
pub struct Service {
    settings: Settings,
    table: Arc<Table>,
    poll: Poll,
    calls: Arc<Calls>,
    listener: Option<Listener>,
    /// When accepting is tried again although nobody came.
    accept_at: Option<Instant>,
    hosts: Vec<Host>,
    remembered: Arc<Remembered>,
    hellos: Hellos,
    clients: HashMap<u64, Attached>,
    hot: VecDeque<u64>,
    next: u64,
    instance: u64,
    started: (SystemTime, Instant),
    /// What users may have pinned, by node and user.
    pin_caps: HashMap<(usize, u32), Weak<Cap>>,
    /// It ends.
    draining: Option<Draining>,
}

impl Service {
    /// Serves these nodes at this socket.
    ///
    /// # Errors
    /// No descriptors for polling.
    pub fn new(
        settings: Settings,
        hosts: Vec<Host>,
        listener: Listener,
        remembered: Arc<Remembered>,
    ) -> io::Result<Self> {
        // What an earlier daemon left is of no use any more once nobody waits for it.
        if hosts.iter().all(|host| host.paused_until().is_none()) {
            remembered.renew();
        }
        let poll = Poll::new()?;
        let mut config = ConfigInfo::default();
        config.file.clone_from(&settings.file);
        config.loaded_ms = since_1970(SystemTime::now());
        let calls = Calls::new(poll.registry(), CALLS, config)?;
        poll.registry().register(
            &mut SourceFd(&listener.socket().as_raw_fd()),
            LISTENER,
            Interest::READABLE,
        )?;
        calls.set_drain(settings.drain);
        let hellos = Hellos::new(settings.max_hellos, settings.hello_timeout);
        Ok(Self {
            table: Table::new(settings.quotas),
            settings,
            poll,
            calls,
            listener: Some(listener),
            accept_at: None,
            hosts,
            remembered,
            hellos,
            clients: HashMap::new(),
            hot: VecDeque::new(),
            next: 0,
            instance: fastrand::u64(1..),
            started: (SystemTime::now(), Instant::now()),
            pin_caps: HashMap::new(),
            draining: None,
        })
    }

    /// To have it stop.
    #[must_use]
    pub fn calls(&self) -> Arc<Calls> {
        Arc::clone(&self.calls)
    }

    /// Serves until it is told to stop; then delivers what is queued, within the time that the settings give, and ends.
    ///
    /// # Errors
    /// Polling fails; nothing can be served then.
    pub fn run(mut self) -> io::Result<DrainReport> {
        let mut events = Events::with_capacity(256);
        let mut called = Vec::new();
        let mut rounds = 0;
        while !self.calls.stopped() {
            self.answer(None);
            let idle = self.round(&mut called);
            if self.hosts.iter().any(|host| host.paused_until().is_some()) {
                self.resume(Instant::now())?;
            }
            let sleeps = self.hot.is_empty();
            rounds += 1;
            if !sleeps && rounds < ROUNDS {
                if idle {
                    std::thread::yield_now();
                }
                continue;
            }
            rounds = 0;
            let timeout =
                if sleeps && self.calls.sleep(false) { self.timeout() } else { Some(Duration::ZERO) };
            let polled = self.poll.poll(&mut events, timeout);
            self.calls.awake();
            match polled {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
                _ => {}
            }
            for event in &events {
                self.event(event);
            }
            self.expire();
        }
        let failed = self.calls.failed();
        let report = self.stop(if failed { State::Failed } else { State::Draining });
        if failed {
            return Err(io::Error::other("a node has stopped by itself; what was wrong is in the log"));
        }
        Ok(report)
    }

    /// Gives each client that is hot its turn; whether there was nothing to do.
    fn round(&mut self, called: &mut Vec<u64>) -> bool {
        self.calls.take(called);
        for id in called.drain(..) {
            self.heat(id);
        }
        let mut idle = true;
        for _ in 0..self.hot.len() {
            if let Some(id) = self.hot.pop_front() {
                idle &= self.serve(id);
            }
        }
        idle
    }

    /// How long it may sleep.
    fn timeout(&self) -> Option<Duration> {
        let paused = self.hosts.iter().filter_map(Host::paused_until);
        let next = self.hellos.deadline().into_iter().chain(self.accept_at).chain(paused).min()?;
        // A little later than due, rather than twice.
        Some(next.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn event(&mut self, event: &mio::event::Event) {
        match event.token() {
            LISTENER => self.accept(),
            CALLS => {}
            Token(n) => {
                let id = (n as u64 - 2) / 2;
                if let Some(client) = self.clients.get_mut(&id) {
                    if n % 2 == 0 && (event.is_read_closed() || event.is_error()) {
                        client.gone.get_or_insert(LAST_RECORDS);
                    }
                    if event.is_writable() {
                        client.session.outlet().socket_is_writable();
                    }
                    self.heat(id);
                } else {
                    self.hello(id);
                }
            }
        }
    }

    fn expire(&mut self) {
        let now = Instant::now();
        for (id, greeting) in self.hellos.expired(now) {
            let text = "no hello came in time";
            let Credentials { pid, uid, .. } = *greeting.credentials();
            note!(AttachRefused, client = id, pid, uid, reason = text, "refused");
            self.deregister(&greeting);
            greeting.refuse(&Refusal::new(RefusalCode::TimedOut, text));
        }
        if self.accept_at.is_some_and(|at| at <= now) {
            self.accept_at = None;
            self.accept();
        }
    }

    /// Has nodes serve peers that waited for their ports.
    fn resume(&mut self, now: Instant) -> io::Result<()> {
        let mut resumed = false;
        for n in 0..self.hosts.len() {
            if !self.hosts[n].resume(now)? {
                continue;
            }
            resumed = true;
            let ids: Vec<_> = self.clients.iter().filter(|(_, c)| c.host == n).map(|(id, _)| *id).collect();
            for id in ids {
                if let Some(client) = self.clients.get_mut(&id) {
                    client.session.resumed(&mut self.hosts[n]);
                }
                self.heat(id);
            }
        }
        if resumed && self.hosts.iter().all(|host| host.paused_until().is_none()) {
            self.remembered.renew();
        }
        Ok(())
    }

    fn deregister(&self, fd: &impl AsFd) {
        // It goes with the descriptor anyway.
        let _ = self.poll.registry().deregister(&mut SourceFd(&fd.as_fd().as_raw_fd()));
    }

    // ---- attaching --------------------------------------------------------------------------------------------------

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else { return };
            let socket = match listener.socket().accept() {
                Ok((socket, _)) => socket,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e)
                    if [io::ErrorKind::Interrupted, io::ErrorKind::ConnectionAborted].contains(&e.kind()) =>
                {
                    continue;
                }
                Err(e) => {
                    note!(
                        AttachFailed,
                        error = %e,
                        "a program cannot attach now; raise the limit of open files (ulimit -n)"
                    );
                    self.accept_at = Some(Instant::now() + ACCEPT_PAUSE);
                    return;
                }
            };
            let greeting = match Greeting::new(socket) {
                Ok(greeting) => greeting,
                Err(e) => {
                    note!(AttachRefused, reason = %e, "a program that connected cannot be asked who it is");
                    continue;
                }
            };
            let who = snapshot::who(greeting.credentials());
            if !self.settings.attach.allows(&who) {
                let text =
                    format!("user {} may not attach: see --allow-uid and --allow-gid of the daemon", who.uid);
                note!(AttachRefused, pid = who.pid, uid = who.uid, reason = text, "refused");
                greeting.refuse(&Refusal::new(RefusalCode::NotAllowed, text));
                continue;
            }
            let id = self.next;
            self.next += 1;
            let registered = self.poll.registry().register(
                &mut SourceFd(&greeting.as_fd().as_raw_fd()),
                connection(id),
                Interest::READABLE,
            );
            if let Err(e) = registered {
                note!(AttachFailed, client = id, pid = who.pid, uid = who.uid, error = %e, "a program cannot attach");
                continue;
            }
            if let Some(other) = self.hellos.add(id, greeting) {
                let text = "too many programs are attaching at the same time: try again";
                let Credentials { pid, uid, .. } = *other.credentials();
                note!(AttachRefused, pid, uid, reason = text, "refused");
                self.deregister(&other);
                other.refuse(&Refusal::new(RefusalCode::Quota, text));
            }
            // It may have said hello already, of which no event tells.
            self.hello(id);
        }
        // There may be more, of which no event tells again.
        self.accept_at = Some(Instant::now());
    }

    /// Reads what a client that is not attached yet says.
    fn hello(&mut self, id: u64) {
        let Some(read) = self.hellos.read(id) else { return };
        match read {
            Ok(None) => {}
            Ok(Some(hello)) => {
                if let Some(greeting) = self.hellos.take(id) {
                    self.deregister(&greeting);
                    self.welcome(id, greeting, &hello);
                }
            }
            Err(e) => {
                if let Some(greeting) = self.hellos.take(id) {
                    let Credentials { pid, uid, .. } = *greeting.credentials();
                    note!(AttachRefused, client = id, pid, uid, reason = %e, "refused");
                    self.deregister(&greeting);
                }
            }
        }
    }

    fn welcome(&mut self, id: u64, greeting: Greeting, hello: &Hello) {
        let who = snapshot::who(greeting.credentials());
        let (pid, uid, program) = (who.pid, who.uid, &hello.program);
        let admitted = match self.admit(id, &who, hello) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                note!(AttachRefused, client = id, pid, uid, program, reason = %refusal, "refused");
                greeting.refuse(&refusal);
                return;
            }
        };
        let accepted = match greeting.welcome(&admitted.welcome) {
            Ok(accepted) => accepted,
            Err(e) => {
                note!(AttachFailed, client = id, pid, uid, program, error = %e, "cannot be served");
                return;
            }
        };
        let Accepted { channel, submitted, receive } = accepted;
        let registry = self.poll.registry();
        let stream = admitted.welcome.stream;
        let interest = if stream { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        let mut registered =
            registry.register(&mut SourceFd(&channel.socket.as_raw_fd()), connection(id), interest);
        if !stream && registered.is_ok() {
            registered = registry.register(
                &mut SourceFd(&channel.wakeup.as_fd().as_raw_fd()),
                doorbell(id),
                Interest::READABLE,
            );
        }
        if let Err(e) = registered {
            note!(AttachFailed, client = id, pid, uid, program, error = %e, "cannot be served");
            return;
        }
        let outlet = Outlet::new(id, channel.producer, receive, self.calls());
        let host = &self.hosts[admitted.host];
        let share = host.engine.pin_share_within(admitted.pins, &admitted.pin_cap);
        let setup = Setup {
            id,
            privileged: who.uid == 0 || who.uid == nix::unistd::geteuid().as_raw(),
            ports: admitted.ports,
            who,
            program: hello.program.clone(),
            quota: admitted.quota,
            memory: admitted.memory,
            share,
            consumer: channel.consumer,
            arena: submitted,
            outlet,
        };
        note!(Attached, client = id, pid, uid, program, address = %host.address(), stream, "attached");
        let client = Attached {
            session: Session::new(setup),
            host: admitted.host,
            socket: channel.socket,
            wakeup: (!stream).then_some(channel.wakeup),
            hot: false,
            gone: None,
            busy: None,
        };
        self.clients.insert(id, client);
        self.heat(id);
    }

    // ---- serving ----------------------------------------------------------------------------------------------------

    /// Has a client looked at.
    fn heat(&mut self, id: u64) {
        if let Some(client) = self.clients.get_mut(&id)
            && !std::mem::replace(&mut client.hot, true)
        {
            client.session.disarm();
            self.hot.push_back(id);
        }
    }

    /// Gives a client its turn; whether there was nothing to do.
    fn serve(&mut self, id: u64) -> bool {
        let Some(client) = self.clients.get_mut(&id) else { return true };
        client.hot = false;
        match serve(client, &mut self.hosts, self.settings.busy_poll) {
            Ok(next @ (Next::Again | Next::Linger)) => {
                client.hot = true;
                self.hot.push_back(id);
                return matches!(next, Next::Linger);
            }
            Ok(Next::Wait) => return true,
            Ok(Next::Snapshot { request, queues }) => {
                self.snapshot(id, request, queues);
                self.heat(id);
            }
            Err(end) => self.end(id, &end),
        }
        false
    }

    fn snapshot(&mut self, id: u64, request: u32, queues: bool) {
        let Some(client) = self.clients.get(&id) else { return };
        let status = self.node_status(client.host, queues);
        // Numbers, texts and lists alone: nothing that could fail.
        let text = serde_json::to_vec(&status).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}").into());
        client.session.outlet().reply_long(request, &text);
    }

    fn node_status(&self, host: usize, queues: bool) -> NodeStatus {
        let clients = self.clients.values().filter(|client| client.host == host);
        let clients = clients.map(|client| (&client.session, client.wakeup.is_some()));
        let mut status =
            snapshot::status(self.hosts[host].engine.snapshot(queues), clients, &self.hosts[host]);
        status.addresses = self.hosts.iter().map(Host::address).collect();
        status
    }

    // ---- what other threads want ------------------------------------------------------------------------------------

    /// Does what other threads asked for.
    fn answer(&mut self, state: Option<State>) {
        for task in self.calls.tasks() {
            match task {
                Task::Status(tell) => tell(self.status(state)),
                // Who has given up waiting needs nothing.
                Task::Pulse(to) => _ = to.send(()),
                // Who ends changes nothing any more: the answer's end says so.
                Task::Reload(..) if state.is_some() => {}
                Task::Reload(settings, to) => {
                    self.reload(*settings);
                    self.calls.set_drain(self.settings.drain);
                    let _ = to.send(());
                }
            }
        }
    }

    fn status(&self, state: Option<State>) -> Status {
        let paused = self.hosts.iter().any(|host| host.paused_until().is_some());
        let mut status = Status::new(env!("CARGO_PKG_VERSION"), std::process::id());
        status.instance = self.instance;
        status.started_ms = since_1970(self.started.0);
        status.uptime_ms = ms(self.started.1.elapsed());
        status.at_ms = since_1970(SystemTime::now());
        status.state = state.unwrap_or(if paused { State::Starting } else { State::Ready });
        status.socket.clone_from(&self.settings.socket);
        status.config = self.calls.config();
        status.events = events::times().map(|(event, times)| (event.name().to_owned(), times)).collect();
        status.suppressed_log_lines = events::left_out();
        status.zero_copy_send = Some(self.settings.zero_copy_send);
        status.nodes = (0..self.hosts.len()).map(|host| self.node_status(host, false)).collect();
        status
    }

    fn end(&mut self, id: u64, why: &End) {
        let Some(mut client) = self.clients.remove(&id) else { return };
        let (waited, late) = if self.draining.is_some() { client.session.give_up() } else { (0, 0) };
        let (pid, uid, program) =
            (client.session.who().pid, client.session.who().uid, client.session.program());
        let code = match why {
            End::Gone | End::Io(_) => {
                note!(Detached, client = id, pid, uid, program, reason = %why, "detached");
                None
            }
            End::Shutdown => Some(RefusalCode::ShuttingDown),
            _ => {
                note!(ClientEnded, client = id, pid, uid, program, reason = %why, "ended");
                Some(RefusalCode::Malformed)
            }
        };
        if let Some(code) = code {
            let text = why.to_string();
            let goodbye = Completion::Goodbye { code: code.code(), body_len: text.len() as u32 };
            client.session.outlet().tell(goodbye, text.as_bytes());
            client.session.outlet().advance();
        }
        self.deregister(&*client.socket);
        if let Some(wakeup) = &client.wakeup {
            self.deregister(&**wakeup);
        }
        let outlet = Arc::clone(client.session.outlet());
        let lost = self.draining.is_some().then(|| ClientDrain {
            session: id,
            pid: client.session.who().pid,
            uid: client.session.who().uid,
            program: program.to_owned(),
            address: self.hosts[client.host].address(),
            ends: Ends::default(),
            waited,
            late,
            // What nobody is there to take is nobody's loss.
            untaken: if code.is_some() { outlet.held_messages() } else { 0 },
        });
        client.session.end(&mut self.hosts[client.host]);
        if let (Some(draining), Some(lost)) = (&mut self.draining, lost) {
            draining.left(client.host, lost, outlet.ends());
        }
    }
}

pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn since_1970(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, ms)
}

/// What is to be done with a client next.
enum Next {
    /// Look at it again.
    Again,
    /// Look at it again, although nothing is there now.
    Linger,
    /// Nothing before it rings, or somebody calls.
    Wait,
    Snapshot {
        request: u32,
        queues: bool,
    },
}

fn serve(client: &mut Attached, hosts: &mut [Host], busy_poll: Duration) -> Result<Next, End> {
    let (session, host) = (&mut client.session, &mut hosts[client.host]);
    let turn = session.turn(host, TURN)?;
    let held = session.settle(host)?;
    let read = match turn {
        Turn::Snapshot { request, queues } if client.gone.is_none() => {
            return Ok(Next::Snapshot { request, queues });
        }
        Turn::Snapshot { .. } => 1,
        Turn::Read(read) => read,
    };
    if let Some(left) = &mut client.gone {
        *left = left.saturating_sub(read);
        // What it is told in reply nobody reads, so there may be no room for more.
        let over = read == 0 || *left == 0;
        return if over { Err(End::Gone) } else { Ok(Next::Again) };
    }
    if held && session.outlet().is_choked() {
        // Its requests wait until it takes what it was told.
        return Ok(Next::Wait);
    }
    if read > 0 {
        client.busy = (read >= MANY || !busy_poll.is_zero()).then(Instant::now);
        return Ok(Next::Again);
    }
    if client.busy.is_some_and(|busy| busy.elapsed() < busy_poll.max(LINGER)) {
        return Ok(Next::Linger);
    }
    Ok(if session.arm()? { Next::Wait } else { Next::Again })
}
