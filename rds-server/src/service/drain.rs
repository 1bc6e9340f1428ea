//! The end: what was accepted is delivered, or reported.
//!
//! Until the nodes are shut down, and programs have taken what was delivered to them, clients are served as before, but that nobody gets in, and
//! that what they send from now on stays in the daemon, to be cancelled at the end: so back-pressure holds them, and they know of each
//! message that it was not sent.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mio::Events;
use mio::unix::SourceFd;
use rds_core::attach::{Refusal, RefusalCode};
use rds_core::engine::ShutdownReport;
use rds_core::info::State;

use super::{LAST_RECORDS, Next, Service, TURN, serve};
use crate::session::{End, Ends};

/// How often it looks whether there is something left to wait for.
const LOOK: Duration = Duration::from_millis(10);
/// Clients that lost something of which the log tells one by one.
const TOLD: usize = 32;

/// How a daemon ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DrainReport {
    /// Its nodes.
    pub nodes: Vec<NodeDrain>,
    /// Clients that lost something, oldest first.
    pub clients: Vec<ClientDrain>,
    /// How long it took.
    pub took: Duration,
    /// Something was left when the time that the settings give was over.
    pub overdue: bool,
}

/// How a node ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeDrain {
    /// Its address.
    pub address: IpAddr,
    /// How messages of its clients ended since the daemon was told to end.
    pub ends: Ends,
    /// Messages that were queued, or on their way, when its time was over.
    pub undelivered: u64,
}

/// What a client lost.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientDrain {
    /// Its number.
    pub session: u64,
    /// Its process.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// The program, as it calls itself.
    pub program: String,
    /// The node that it was attached to.
    pub address: IpAddr,
    /// How its messages ended since the daemon was told to end; it has been told of each.
    pub ends: Ends,
    /// Of those that were cancelled: they waited for congested ports, and were never sent.
    pub waited: u64,
    /// Of those that were cancelled: they were submitted after the daemon was told to end.
    pub late: u64,
    /// Messages that had been delivered to it, and that it did not take in time.
    pub untaken: u64,
}

impl ClientDrain {
    /// Whether anything is lost that was accepted before the daemon was told to end.
    fn lost(&self) -> bool {
        self.ends.unknown > 0 || self.ends.cancelled > self.late || self.untaken > 0
    }
}

/// What is known of a daemon that ends.
#[derive(Debug)]
pub(super) struct Draining {
    began: Instant,
    /// How clients' sends had ended before.
    before: HashMap<u64, Ends>,
    /// By node.
    ends: Vec<Ends>,
    report: DrainReport,
}

impl Draining {
    /// A client of a node has ended.
    pub(super) fn left(&mut self, host: usize, mut client: ClientDrain, ends: Ends) {
        client.ends = ends.since(self.before.remove(&client.session).unwrap_or_default());
        self.ends[host].add_all(client.ends);
        if client.lost() {
            self.report.clients.push(client);
        }
    }
}

impl DrainReport {
    fn log(&self) {
        for NodeDrain { address, ends, undelivered } in &self.nodes {
            let Ends { delivered, cancelled, unknown, .. } = ends;
            tracing::info!(%address, delivered, cancelled, unknown, undelivered, "the node is shut down");
        }
        for client in self.clients.iter().take(TOLD) {
            let ClientDrain { session, pid, uid, program, address, ends, waited, late, untaken } = client;
            let Ends { cancelled, unknown, .. } = ends;
            tracing::warn!(
                client = session, pid, uid, program, %address, cancelled, waited, late, unknown, untaken,
                "a program has lost messages"
            );
        }
        if self.clients.len() > TOLD {
            tracing::warn!(more = self.clients.len() - TOLD, "other programs lost messages as well");
        }
        let took_ms = super::ms(self.took);
        let (lost, overdue) = (self.clients.len(), self.overdue);
        tracing::info!(took_ms, overdue, programs_with_losses = lost, "drained");
    }
}

/// Nodes that shut down, by their numbers.
type Shutting = Vec<(usize, JoinHandle<ShutdownReport>)>;

impl Service {
    /// Ends: `state` is what is said meanwhile of how it is. Takes as long as the settings say, and a second for connections' ends.
    pub(super) fn stop(&mut self, state: State) -> DrainReport {
        let began = Instant::now();
        let until = began + self.settings.drain;
        // The programs will be back.
        self.remembered.freeze();
        // It goes last: until then nobody else has its socket and notes.
        let listener = self.listener.take();
        if let Some(listener) = &listener {
            let fd = listener.socket().as_raw_fd();
            // It goes with the descriptor anyway.
            let _ = self.poll.registry().deregister(&mut SourceFd(&fd));
        }
        self.accept_at = None;
        for greeting in self.hellos.take_all() {
            self.deregister(&greeting);
            greeting.refuse(&Refusal::new(RefusalCode::ShuttingDown, "the daemon ends"));
        }
        let before = self.clients.iter().map(|(id, client)| (*id, client.session.outlet().ends())).collect();
        let ends = vec![Ends::default(); self.hosts.len()];
        self.draining = Some(Draining { began, before, ends, report: DrainReport::default() });
        self.read_all();
        let overdue = self.serve_rest(state, until);
        let mut ids: Vec<_> = self.clients.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.end(id, &End::Shutdown);
        }
        let report = self.draining.take().map(|draining| self.report(draining, overdue)).unwrap_or_default();
        report.log();
        drop(listener);
        report
    }

    /// What was submitted before counts as sent.
    fn read_all(&mut self) {
        let mut ended = Vec::new();
        for (id, client) in &mut self.clients {
            // Who submits all the time is not to keep it from ending.
            let mut left = LAST_RECORDS / TURN;
            while left > 0 {
                left -= 1;
                match serve(client, &mut self.hosts, Duration::ZERO) {
                    Ok(Next::Again) => {}
                    // The snapshot is told once more when it is asked for again.
                    Ok(Next::Snapshot { request, queues }) => {
                        ended.push((*id, Ok((request, queues))));
                        break;
                    }
                    Ok(Next::Linger | Next::Wait) => break,
                    Err(end) => {
                        ended.push((*id, Err(end)));
                        break;
                    }
                }
            }
        }
        for (id, what) in ended {
            match what {
                Ok((request, queues)) => self.snapshot(id, request, queues),
                Err(end) => self.end(id, &end),
            }
        }
        for client in self.clients.values_mut() {
            client.session.drain();
        }
        let ids: Vec<_> = self.clients.keys().copied().collect();
        ids.into_iter().for_each(|id| self.heat(id));
    }

    /// Serves clients until nothing is left that could be delivered, or the time is over. Returns whether something was left.
    fn serve_rest(&mut self, state: State, until: Instant) -> bool {
        let mut events = Events::with_capacity(256);
        let mut called = Vec::new();
        let mut shutting: Option<Shutting> = None;
        let mut look = Instant::now();
        loop {
            self.answer(Some(state));
            self.round(&mut called);
            let now = Instant::now();
            if now >= look {
                look = now + LOOK;
                let over = now >= until;
                match shutting.take() {
                    None if over || !self.waits() => shutting = Some(self.shut_down(until)),
                    Some(threads) if threads.iter().all(|(_, thread)| thread.is_finished()) => {
                        let undelivered = self.shut(threads);
                        shutting = Some(Vec::new());
                        // Nothing more comes in: what programs have not taken is all that they are to take.
                        if over || !self.holds() {
                            return undelivered || self.waits() || self.holds();
                        }
                    }
                    waiting => shutting = waiting,
                }
            }
            let sleeps = self.hot.is_empty() && self.calls.sleep(true);
            let timeout =
                if sleeps { look.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
            let polled = self.poll.poll(&mut events, Some(timeout));
            self.calls.awake();
            if polled.is_err_and(|e| e.kind() != io::ErrorKind::Interrupted) {
                // Doorbells are not heard any more: who waits looks by itself.
                std::thread::sleep(LOOK);
            }
            for event in &events {
                self.event(event);
            }
        }
    }

    /// Whether something waits for a congested port that may become free. What waits for the ports of programs that have not come back
    /// does not.
    fn waits(&self) -> bool {
        let mut clients = self.clients.values();
        clients.any(|client| client.session.waits() && self.hosts[client.host].paused_until().is_none())
    }

    /// Whether something is held for want of room in a client's ring or arena.
    fn holds(&self) -> bool {
        self.clients.values().any(|client| client.session.outlet().held().records > 0)
    }

    fn shut_down(&self, until: Instant) -> Shutting {
        let threads = self.hosts.iter().enumerate().filter_map(|(n, host)| {
            let (engine, calls) = (host.engine.clone(), self.calls());
            let work = move || {
                let report = engine.shutdown(until.saturating_duration_since(Instant::now()));
                // Nobody has this number: it is to be looked at what has ended.
                calls.call(u64::MAX);
                report
            };
            let name = "rds drain".to_owned();
            let spawned = std::thread::Builder::new().name(name).spawn(work);
            // Without memory for a thread: the engine drains itself when it is dropped, for a second.
            spawned
                .map_err(|error| tracing::error!(%error, "a node cannot be drained"))
                .ok()
                .map(|thread| (n, thread))
        });
        threads.collect()
    }

    /// Takes what nodes say of their end; whether anything was undelivered.
    fn shut(&mut self, threads: Shutting) -> bool {
        let Some(draining) = &mut self.draining else { return false };
        for (n, thread) in threads {
            // A panic was reported where it happened.
            let undelivered = thread.join().map_or(0, |report| report.undelivered);
            let (address, ends) = (self.hosts[n].address(), Ends::default());
            draining.report.nodes.push(NodeDrain { address, ends, undelivered });
        }
        draining.report.nodes.iter().any(|node| node.undelivered > 0)
    }

    fn report(&self, draining: Draining, overdue: bool) -> DrainReport {
        let Draining { began, ends, mut report, .. } = draining;
        for node in &mut report.nodes {
            let n = self.hosts.iter().position(|host| host.address() == node.address);
            node.ends = n.map_or_else(Ends::default, |n| ends[n]);
        }
        report.took = began.elapsed();
        report.overdue = overdue;
        report
    }
}
