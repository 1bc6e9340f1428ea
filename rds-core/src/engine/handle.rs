//! The engine as a program holds it: opening, binding, looking, shutting down.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::core::{Core, End};
use super::info_socket::InfoSocket;
use super::mailbox::{Mailbox, Tally, Wakes};
use super::pins::{PathModes, Pins};
use super::reactor::Reactor;
use super::right::PollRight;
use super::shared::{Shared, Stats};
use super::wait::Waits;
use super::{OpenError, Options, ShutdownReport, Socket, tcp};
use crate::buffer::PoolBuffer;
use crate::info::Snapshot;
use crate::proto::{BindError, Node, PeerFilter};
use crate::zerocopy::{Mode, Share};

/// How long the last handle that goes drains the node.
const DROP_DEADLINE: Duration = Duration::from_secs(1);
/// How long the orderly ends of all connections may take after the messages have.
const CLOSE_DEADLINE: Duration = Duration::from_secs(1);
/// Default receive buffer of a socket, as the protocol has it.
const RECEIVE_BUFFER: u64 = 1 << 20;

/// One RDS node in this process. Cheap to clone; the last clone that goes, sockets included, drains it
/// ([`Engine::shutdown`] with 1 s).
#[derive(Clone)]
pub struct Engine(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    background: Mutex<Option<JoinHandle<()>>>,
    /// Shows the node to rds-info, for as long as it lives.
    _info: Option<InfoSocket>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("listen", &self.listen_addr()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Opens a node: listens, starts its background thread.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(options: Options) -> Result<Self, OpenError> {
        Self::open_bound(options, &[]).map(|(engine, _)| engine)
    }

    /// Opens a node with sockets bound to `ports`, in that order. Peers that are sending already find them there, where
    /// between [`Engine::open`] and [`Engine::bind`] their messages would be dropped for want of a socket.
    ///
    /// # Errors
    /// [`OpenError`]; `Bind` when a port cannot be had.
    pub fn open_bound(options: Options, ports: &[u16]) -> Result<(Self, Vec<Socket>), OpenError> {
        let engine = Self::open_paused(options)?;
        // Nobody polls yet, so nothing is accepted before the sockets are there.
        let sockets = ports.iter().map(|port| engine.bind(*port)).collect::<Result<_, _>>()?;
        engine.resume().map_err(|source| OpenError::io(engine.listen_addr(), source))?;
        Ok((engine, sockets))
    }

    /// Opens a node that has its address and listens, but accepts, dials, reads and writes nothing before [`Engine::resume`]: peers wait in the
    /// kernel's queue of connections. Ports can be bound meanwhile, and messages queued; calls that block would begin to poll.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_paused(options: Options) -> Result<Self, OpenError> {
        let origin = Instant::now();
        let node = Node::new(options.config.clone())?;
        let address = SocketAddr::new(options.config.address, options.listen_port);
        let io = |source| OpenError::io(address, source);
        let listener = tcp::listen(address, &options).map_err(io)?;
        options.check_congestion_control(&listener)?;
        let listen_addr = listener.local_addr().map_err(io)?;
        let pins = Pins::new(options.zero_copy, origin);
        let (reactor, waker) = Reactor::new(listener, Arc::clone(&pins)).map_err(io)?;
        let pool_limit = options.zero_copy.pool_limit;
        let right = Arc::new(PollRight::new(waker));
        let core = Core::new(node, pool_limit);
        let shared = Shared::new(options, listen_addr, core, reactor, right, origin, pins);
        let info = show(&shared)?;
        Ok(Self(Arc::new(Inner { shared, background: Mutex::new(None), _info: info })))
    }

    /// Starts the background thread of a node that was opened paused; of another, does nothing.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn resume(&self) -> io::Result<()> {
        let mut background = self.0.background.lock().unwrap_or_else(PoisonError::into_inner);
        if background.is_some() || self.0.shared.is_stopped() {
            return Ok(());
        }
        let polling = Arc::clone(&self.0.shared);
        let name = format!("rds {}", self.listen_addr().ip());
        *background = Some(std::thread::Builder::new().name(name).spawn(move || run_background(&polling))?);
        Ok(())
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    /// A page-aligned buffer of `len` bytes, from the node's pool, to be filled and sent ([`Socket::send_owned`]) without an allocation.
    /// Its contents are unspecified. Does not block.
    #[must_use]
    pub fn buffer(&self, len: usize) -> PoolBuffer {
        self.shared().pool.take(len)
    }

    /// The node's address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.shared().options.config.address
    }

    /// The TCP address on which it listens.
    #[must_use]
    pub fn listen_addr(&self) -> SocketAddr {
        self.shared().listen_addr
    }

    /// Binds a socket to `port` of the node's address; 0 for any free one.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(&self, port: u16) -> Result<Socket, BindError> {
        let mut core = self.shared().core();
        let (id, port) = core.node.bind(port)?;
        let local = SocketAddr::new(self.address(), port);
        let share = Arc::new(Share::new(&self.shared().pins.budget));
        let mailbox = Arc::new(Mailbox::new(id, local, RECEIVE_BUFFER, Arc::clone(&core.pressed), share));
        core.add_mailbox(Arc::clone(&mailbox));
        drop(core);
        Ok(Socket::new(self.clone(), mailbox))
    }

    /// The node at this moment. With `queues`, every queued message is listed.
    #[must_use]
    pub fn snapshot(&self, queues: bool) -> Snapshot {
        self.shared().snapshot(queues)
    }

    /// Sets whether large payloads to and from a peer are sent and received without a copy, instead of as the node's options
    /// say; `None` for as they say. Messages that begin from now on are sent so; what concerns segments
    /// come with the next connection.
    pub fn set_zero_copy(&self, peer: IpAddr, send: Option<Mode>, receive: Option<Mode>) {
        let shared = self.shared();
        shared.pins.set_modes(peer, PathModes { send, receive });
        let (send, receive) = shared.pins.modes(peer);
        shared.maps.set_mode(peer, receive);
        shared.core().links().filter(|link| link.peer == peer).for_each(|link| link.set_mode(send));
    }

    /// Has other lists of peers from now on, as if the node had been opened with them ([`Config::peers`](crate::proto::Config::peers)).
    /// Connections of peers that are refused now are closed, messages to them end as cancelled. Nobody else's are touched.
    pub fn set_peers(&self, peers: PeerFilter) {
        let shared = self.shared();
        let mut core = shared.core();
        core.node.set_peers(shared.now(), peers);
        shared.settle(core);
    }

    /// Sets whether large payloads are sent without a copy where neither socket nor peer say otherwise. Messages that begin from now on are
    /// sent so; what concerns segments comes with the next connection.
    pub fn set_zero_copy_send(&self, mode: Mode) {
        let shared = self.shared();
        shared.pins.set_send_mode(mode);
        shared.core().links().for_each(|link| link.set_mode(shared.pins.modes(link.peer).0));
    }

    /// Messages that were sent and have not ended. Does not block.
    #[must_use]
    pub fn unfinished(&self) -> u64 {
        self.shared().core().node.unfinished()
    }

    /// Whether the node lives: asks its poll loop, whichever thread runs it, for a whole turn, and blocks up to `timeout` for that. True at once
    /// of a node that is paused ([`Engine::open_paused`]) or shut down: nobody polls there. For a watchdog; each call wakes the poll loop.
    #[must_use]
    pub fn has_pulse(&self, timeout: Duration) -> bool {
        const LOOK: Duration = Duration::from_millis(1);
        let shared = self.shared();
        let until = Instant::now() + timeout;
        let polls = || self.0.background.try_lock().is_ok_and(|thread| thread.is_some());
        if shared.is_stopped() || !polls() {
            return true;
        }
        let number = shared.right.ask_pulse();
        while !shared.right.has_pulse(number) && !shared.is_stopped() {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }

    /// Refuses new sends, delivers what is queued, closes every connection in an orderly way. Blocks up to `deadline`, and up
    /// to one second more for the connections' ends. What could not be delivered is cancelled: when this returns, every message has
    /// all its [completions](super::Completion). Afterwards receives return what is queued, then
    /// [`Shutdown`](super::RecvError::Shutdown).
    pub fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        self.0.shutdown(deadline)
    }
}

impl Inner {
    fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        let shared = &*self.shared;
        let mut core = shared.core();
        core.node.begin_shutdown();
        shared.settle(core);
        self.wait(End::Messages, deadline);
        let mut core = shared.core();
        // What peers sent and we have must not be left unacknowledged.
        core.node.flush_acks();
        (core, _) = shared.transmit_all(core);
        let undelivered = core.node.unfinished() + core.cancelled;
        core.node.close_connections(shared.now());
        shared.settle(core);
        self.wait(End::Connections, CLOSE_DEADLINE);

        halt(shared);
        let background = self.background.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(background) = background {
            // It ends with the flag that was just set; if it panicked, that was reported where it happened.
            let _ = background.join();
        }
        let mut links = shared.reactor().close();
        links.append(&mut shared.core().remove_links());
        let mut wakes = Wakes::default();
        links.iter().for_each(|link| link.retire(&mut wakes.released));
        wakes.fire();
        // Nobody will hear of what is left any more.
        let mut core = shared.core();
        core.cancelled += core.node.cancel_everything(shared.now());
        core.dispatch(shared.now());
        std::mem::swap(&mut core.wakes, &mut wakes);
        drop(core);
        wakes.fire();
        // Other nodes may share the budget.
        shared.pins.wake();
        ShutdownReport { undelivered }
    }

    fn wait(&self, end: End, limit: Duration) {
        self.shared.block(
            Instant::now().checked_add(limit),
            true,
            |parker| self.shared.core().wait_for(end, parker).then_some(()),
            |parker| self.shared.core().forget(parker),
        );
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.shared.is_stopped() {
            return;
        }
        let background = self.background.get_mut().unwrap_or_else(PoisonError::into_inner);
        if background.as_ref().is_none_or(|thread| thread.thread().id() != std::thread::current().id()) {
            self.shutdown(DROP_DEADLINE);
            return;
        }
        // The poll loop has dropped a payload that held the last handle. It cannot wait for its own work.
        let shared = Arc::clone(&self.shared);
        let drain = move || drop(Self { shared, background: Mutex::default(), _info: None });
        if std::thread::Builder::new().name("rds drain".to_owned()).spawn(drain).is_err() {
            halt(&self.shared);
        }
    }
}

/// Shows the node to rds-info, if that was asked for.
fn show(shared: &Arc<Shared>) -> Result<Option<InfoSocket>, OpenError> {
    let Some(path) = &shared.options.info_socket else { return Ok(None) };
    match InfoSocket::open(path, shared) {
        Ok(info) => Ok(Some(info)),
        Err(source) if shared.options.info_required => Err(OpenError::Info { path: path.clone(), source }),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot show the node to rds-info");
            Ok(None)
        }
    }
}

fn run_background(shared: &Shared) {
    let poll = || {
        let mut reactor = shared.reactor();
        while !shared.right.must_yield() {
            reactor.turn(shared, None, None);
        }
    };
    if catch_unwind(AssertUnwindSafe(|| shared.right.run_background(poll))).is_err() {
        // A defect. Better that every call says so than that all of them hang.
        tracing::error!(node = %shared.listen_addr, "the background thread panicked; the node is stopped");
        shared.core().node.begin_shutdown();
        halt(shared);
    }
}

/// Ends polling and every wait, for good.
fn halt(shared: &Shared) {
    shared.stopped.store(true, SeqCst);
    shared.right.stop();
    let core = shared.core();
    let mailboxes: Vec<_> = core.mailboxes.iter().flatten().cloned().collect();
    core.sinks.iter().for_each(|bound| bound.sink.closed());
    drop(core);
    let mut wakes = Wakes::default();
    for mailbox in mailboxes {
        mailbox.close(&mut wakes);
    }
    wakes.fire();
}

impl Stats {
    pub(super) fn add_closed(&self, tally: Tally) {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner).add(tally);
    }

    pub(super) fn closed(&self) -> Tally {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tally {
    pub(super) fn add(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.copied += other.copied;
        self.freed += other.freed;
    }
}
