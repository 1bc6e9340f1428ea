//! A TCP proxy between nodes, which breaks connections on command or by a seeded schedule, holds bytes back, and cuts streams into pieces.
//!
//! It is transparent in addresses: it connects onward from the address that connected to it, and from a source port that is the same
//! modulo 8, because a peer's identity is its address and its lane the port modulo 8 (Linux `net/rds/tcp_listen.c`). So the nodes are
//! opened with one port to listen on and another, the proxy's, to dial.

mod link;
mod split;
mod worker;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use mio::Waker;

pub use split::Split;

/// Where a connection is accepted, and where it is led.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Address on which the proxy listens.
    pub listen: SocketAddr,
    /// Address to which it connects.
    pub target: SocketAddr,
}

impl Route {
    /// The route to a node at `address` that listens on `listen_port`, for peers that dial `dial_port`.
    #[must_use]
    pub fn to(address: impl Into<IpAddr>, listen_port: u16, dial_port: u16) -> Self {
        let address = address.into();
        Self { listen: SocketAddr::new(address, dial_port), target: SocketAddr::new(address, listen_port) }
    }
}

/// How a connection is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Both ends see an orderly end of the stream (FIN); what they still send is swallowed, after its TCP acknowledged it.
    Cut,
    /// Both ends get a reset (RST).
    Reset,
    /// Only the end that connected gets a reset at once; the other sees the end of the stream.
    ResetDialer,
    /// Only the end that was connected to gets a reset at once; the other sees the end of the stream.
    ResetTarget,
}

/// One of the two directions of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the end that connected.
    FromDialer,
    /// From the end that was connected to.
    FromTarget,
}

/// Breaks every connection after a number of bytes that is drawn from `bytes`, in a way that is drawn from `ways`.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Seed of the draws.
    pub seed: u64,
    /// Bytes of both directions together that a connection carries before it breaks.
    pub bytes: Range<u64>,
    /// How it may break.
    pub ways: Vec<Break>,
}

/// What the proxy does to the bytes of a direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Conditions {
    stalled: bool,
    delay: Duration,
    /// Bytes a second; 0 for no limit.
    rate: u64,
    split: Option<Split>,
}

enum Command {
    Break(Break),
    Conditions(Direction, Conditions),
    Refuse(bool),
    Bytes,
    Schedule(Option<Schedule>),
    Stop,
    StallLane(Option<u8>),
}

#[derive(Default)]
struct Counts {
    accepted: AtomicU64,
    broken: AtomicU64,
    refused: AtomicU64,
    open: AtomicUsize,
}

/// A running proxy. Stops with its value, resetting what is open.
pub struct Proxy {
    commands: Sender<(Command, mpsc::SyncSender<usize>)>,
    waker: Arc<Waker>,
    counts: Arc<Counts>,
    conditions: [Conditions; 2],
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens on every route.
    ///
    /// # Errors
    /// A port cannot be listened on.
    pub fn start(routes: &[Route]) -> io::Result<Self> {
        let (commands, orders) = channel();
        let counts = Arc::new(Counts::default());
        let worker = worker::Worker::new(routes, orders, Arc::clone(&counts))?;
        let waker = worker.waker();
        let thread = std::thread::Builder::new().name("proxy".into()).spawn(move || worker.run())?;
        Ok(Self { commands, waker, counts, conditions: Default::default(), thread: Some(thread) })
    }

    /// Breaks every open connection and returns how many there were. New ones are accepted.
    pub fn break_all(&self, how: Break) -> usize {
        self.order(Command::Break(how))
    }

    /// Carries nothing in `direction`, of open and of new connections, until told otherwise. TCP's buffers fill up.
    pub fn stall(&mut self, direction: Direction, stalled: bool) {
        self.change(direction, |c| c.stalled = stalled);
    }

    /// Carries nothing in either direction of the connections of this lane, the open ones and new ones; `None` for all lanes again.
    pub fn stall_lane(&self, lane: Option<u8>) {
        self.order(Command::StallLane(lane));
    }

    /// Holds every byte of `direction` back for this long.
    pub fn delay(&mut self, direction: Direction, delay: Duration) {
        self.change(direction, |c| c.delay = delay);
    }

    /// Carries at most so many bytes a second in `direction` of each connection; 0 for no limit.
    pub fn limit_rate(&mut self, direction: Direction, bytes_per_second: u64) {
        self.change(direction, |c| c.rate = bytes_per_second);
    }

    /// Cuts the stream of `direction` of each connection into pieces, or no longer does.
    pub fn split(&mut self, direction: Direction, split: Option<Split>) {
        self.change(direction, |c| c.split = split);
    }

    /// Resets every new connection at once, as an unreachable host would, or no longer does.
    pub fn refuse(&self, refuse: bool) {
        self.order(Command::Refuse(refuse));
    }

    /// Breaks connections by a schedule from now on, or no longer.
    pub fn schedule(&self, schedule: Option<Schedule>) {
        self.order(Command::Schedule(schedule));
    }

    /// Connections that were accepted, the refused ones left out.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.counts.accepted.load(Relaxed)
    }

    /// Connections that the proxy has broken.
    #[must_use]
    pub fn broken(&self) -> u64 {
        self.counts.broken.load(Relaxed)
    }

    /// Connections that were refused ([`Proxy::refuse`]).
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.counts.refused.load(Relaxed)
    }

    /// Connections that are open.
    #[must_use]
    pub fn open(&self) -> usize {
        self.counts.open.load(Relaxed)
    }

    /// Bytes carried in both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.order(Command::Bytes) as u64
    }

    fn change(&mut self, direction: Direction, change: impl FnOnce(&mut Conditions)) {
        let conditions = &mut self.conditions[direction as usize];
        change(conditions);
        let conditions = *conditions;
        self.order(Command::Conditions(direction, conditions));
    }

    /// Returns when the order is carried out.
    fn order(&self, command: Command) -> usize {
        let (done, result) = mpsc::sync_channel(1);
        self.commands.send((command, done)).expect("the proxy's thread runs as long as its value");
        self.waker.wake().expect("the proxy's poll is open as long as its thread");
        result.recv().expect("the proxy's thread obeys every order")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take()
            && !thread.is_finished()
        {
            self.order(Command::Stop);
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
#[path = "proxy/tests.rs"]
mod tests;
