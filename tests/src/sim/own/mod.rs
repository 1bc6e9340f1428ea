//! Drives one real [`Node`] over the model of TCP, as an engine would, but at the whim of a seed.

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use rds_core::buffer::Chunk;
use rds_core::proto::{Config, ConnId, DropReason, Node, Time};

use super::coverage::Seen;
use super::ctx::Ctx;
use super::inbox::Sockets;
use super::net::{End, Nanos, Notice, SEC};
use super::watch;

mod output;
mod pinned;
mod programs;
mod read;
mod release;

pub use pinned::Sending;
use pinned::{Path, Pins};
pub use release::PIN_LIMIT;

/// How long a connection that ends in an orderly way may take to do so.
const ORDERLY_DEADLINE: Nanos = 2 * SEC;
/// Steps of one run of the node before it counts as a busy loop.
const STEPS_PER_RUN: u32 = 50_000;
/// Runs of a node within one virtual second before it counts as a busy loop.
const RUNS_PER_SECOND: u32 = 20_000;

/// A connection of the node's, as its driver keeps it.
struct Conn {
    end: End,
    /// How it is written.
    path: Rc<Path>,
    /// Its node knows that it is established.
    stands: bool,
    peer: usize,
    rest: Vec<u8>,
    stopped: bool,
    draining: bool,
    orderly: Option<Nanos>,
    blocked: bool,
    writing: bool,
    fin: bool,
    resumed: bool,
    /// Number of a message that began while nobody had its port.
    homeless: Option<u64>,
}

/// Bytes that a writer took and has not written yet.
struct Held {
    at: Nanos,
    conn: ConnId,
    path: Rc<Path>,
    pieces: Vec<Chunk>,
    total: usize,
}

/// How the driver behaves; each number is a chance in 256.
#[derive(Clone, Debug)]
pub struct Temper {
    /// To leave a readable connection for later.
    pub skip: u8,
    /// To read only a few bytes at a time.
    pub nibble: u8,
    /// To write only a part although TCP would take more.
    pub partial: u8,
    /// To write late, as a thread of its own would.
    pub hold: u8,
    /// To read payload into the message's own buffer.
    pub target: u8,
    /// To handle what came last first, as the order of ready connections is nobody's promise.
    pub reverse: u8,
}

/// A host with a real node.
pub struct OwnHost {
    /// Number of the host.
    pub index: usize,
    /// The node; none while it is down.
    pub node: Option<Node>,
    /// The sockets' queues.
    pub sockets: Sockets,
    /// Habits of the driver.
    pub temper: Temper,
    /// Until when acknowledgements are not flushed.
    pub starve_until: Nanos,
    /// Until when the process stands still.
    pub frozen_until: Nanos,
    /// Notices to be handled.
    pub pending: VecDeque<Notice>,
    conns: BTreeMap<ConnId, Conn>,
    by_end: BTreeMap<End, ConnId>,
    held: Vec<Held>,
    runs: (Nanos, u32),
    knocked: std::collections::BTreeSet<usize>,
    pressed: bool,
    /// Connections that stood since its queues held less than the budget.
    crowd: std::collections::BTreeSet<ConnId>,
    /// One of them was read out for another.
    read_out: bool,
    pins: Pins,
}

fn time(now: Nanos) -> Time {
    Time::from_nanos(now)
}

impl OwnHost {
    /// A host that is down.
    #[must_use]
    pub fn new(index: usize, temper: Temper) -> Self {
        Self {
            index,
            node: None,
            sockets: Sockets::default(),
            temper,
            starve_until: 0,
            frozen_until: 0,
            pending: VecDeque::new(),
            conns: BTreeMap::new(),
            by_end: BTreeMap::new(),
            held: Vec::new(),
            runs: (0, 0),
            knocked: std::collections::BTreeSet::new(),
            pressed: false,
            crowd: std::collections::BTreeSet::new(),
            read_out: false,
            pins: Pins::new(Sending::default()),
        }
    }

    /// Starts an incarnation.
    pub fn start(&mut self, cx: &mut Ctx, config: Config, sending: Sending) {
        self.pins = Pins::new(sending);
        cx.net.set_zero_copy(self.index, sending.kernel);
        let fact = &mut cx.facts[self.index];
        fact.incarnation += 1;
        fact.lanes = config.lanes;
        fact.capabilities = config.capabilities;
        fact.generation = config.generation.get();
        fact.first_sequence = config.first_sequence;
        fact.window = config.window;
        fact.grace = config.identity_grace.as_nanos() as Nanos;
        fact.old_kernel_lanes = config.old_kernel_lanes;
        fact.ping_enable = config.ping_enable;
        self.sockets.own = Some(config.address);
        match Node::new(config) {
            Ok(node) => self.node = Some(node),
            Err(e) => cx.fail(format!("host {} refuses its settings: {e}", self.index)),
        }
    }

    /// Forgets everything; the net is told by the caller.
    pub fn stop(&mut self, cx: &mut Ctx) {
        self.hear(cx);
        // What the kernel still sends stays as it is.
        self.pins.process.die();
        cx.net.memory.forget_process(&self.pins.process);
        self.pins = Pins::new(Sending::default());
        self.node = None;
        self.sockets = Sockets::default();
        self.conns.clear();
        self.by_end.clear();
        self.held.clear();
        self.pending.clear();
        self.pressed = false;
        self.crowd.clear();
        self.knocked.clear();
        cx.ledger.host_died(self.index);
    }

    /// Whether the node has connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// When the host must run next, by itself.
    #[must_use]
    pub fn next_run(&self) -> Option<Nanos> {
        let node = self.node.as_ref()?.next_timeout().map(Time::as_nanos);
        let held = self.held.iter().map(|h| h.at).min();
        let orderly = self.conns.values().filter_map(|c| c.orderly).min();
        [node, held, orderly, self.next_look()].into_iter().flatten().min()
    }

    /// Runs the host once: notices, timers, output, and what an engine does before it sleeps.
    /// Returns whether something was left for a later run.
    pub fn run(&mut self, cx: &mut Ctx) -> bool {
        if self.node.is_none() {
            self.pending.clear();
            return false;
        }
        let second = cx.now / SEC;
        self.runs = if self.runs.0 == second { (second, self.runs.1 + 1) } else { (second, 0) };
        if self.runs.1 > RUNS_PER_SECOND {
            cx.fail(format!(
                "host {} runs more than {RUNS_PER_SECOND} times a second: a busy loop",
                self.index
            ));
            return false;
        }
        self.output(cx);
        self.finish_held(cx);
        // What lies in buffers comes before what a clock says: a process may have stood still.
        let late = self.notices(cx);
        self.orderly_deadlines(cx);
        self.end_overdue(cx);
        if let Some(node) = self.node.as_mut()
            && node.next_timeout().is_some_and(|t| t <= time(cx.now))
        {
            node.handle_timeout(time(cx.now));
        }
        self.output(cx);
        if cx.now >= self.starve_until
            && let Some(node) = self.node.as_mut()
        {
            node.flush_acks();
            self.output(cx);
        }
        self.invariants(cx);
        late
    }

    fn notices(&mut self, cx: &mut Ctx) -> bool {
        let mut later = VecDeque::new();
        if cx.chance(self.temper.reverse) {
            // All but the accept queue, which keeps its order.
            let (queue, mut rest): (Vec<_>, Vec<_>) =
                self.pending.drain(..).partition(|n| matches!(n, Notice::Incoming(_)));
            rest.reverse();
            self.pending = queue.into_iter().chain(rest).collect();
        }
        while let Some(notice) = self.pending.pop_front() {
            if cx.broken.is_some() {
                return false;
            }
            // Nobody reads a connection before it knows that it stands.
            // And connections are accepted in the order in which they were made.
            let behind = matches!(notice, Notice::Incoming(_))
                && later.iter().any(|n| matches!(n, Notice::Incoming(_)));
            if behind || !matches!(notice, Notice::Connected(_)) && cx.chance(self.temper.skip) {
                later.push_back(notice);
                continue;
            }
            match notice {
                Notice::Incoming(end) => self.accept(cx, end),
                Notice::Connected(end) => {
                    if let Some(&conn) = self.by_end.get(&end) {
                        self.conns.get_mut(&conn).expect("both tables agree").stands = true;
                        let node = self.node.as_mut().expect("runs only while it is up");
                        node.connected(time(cx.now), conn);
                        if cx.net.is_readable(end) {
                            self.pending.push_back(Notice::Readable(end));
                        }
                    }
                }
                Notice::Failed(end) => {
                    if let Some(conn) = self.by_end.remove(&end) {
                        self.conns.remove(&conn);
                        cx.see(Seen::ConnectFailed);
                        let node = self.node.as_mut().expect("runs only while it is up");
                        node.connect_failed(time(cx.now), conn);
                    }
                }
                Notice::Readable(end) => {
                    if let Some(&conn) = self.by_end.get(&end)
                        && self.read(cx, conn)
                    {
                        later.push_back(notice);
                    }
                }
                Notice::Errors(end) => self.reap(cx, end),
                Notice::Writable(end) => {
                    if let Some(&conn) = self.by_end.get(&end) {
                        let c = self.conns.get_mut(&conn).expect("both tables agree");
                        if c.blocked && !c.writing && cx.net.has_room(end) {
                            c.blocked = false;
                            self.node.as_mut().expect("runs only while it is up").writable(conn);
                        }
                    }
                }
            }
            self.output(cx);
        }
        self.pending = later;
        !self.pending.is_empty()
    }

    fn accept(&mut self, cx: &mut Ctx, end: End) {
        if !cx.net.accept(end) {
            return;
        }
        let peer = cx.net.host_of(end.peer());
        let address = cx.net.address_of(peer);
        let node = self.node.as_mut().expect("runs only while it is up");
        match node.accept(time(cx.now), address, cx.net.source_port(end.link)) {
            Ok(conn) => {
                cx.watch.open(end, cx.facts[self.index].incarnation, cx.now, None);
                self.insert(conn, end, peer);
                if cx.net.is_readable(end) {
                    if cx.chance(self.temper.reverse) {
                        // Before those that came earlier, once all that wait are accepted.
                        let accepts = self.pending.iter().take_while(|n| matches!(n, Notice::Incoming(_)));
                        let at = accepts.count();
                        self.pending.insert(at, Notice::Readable(end));
                    } else {
                        self.pending.push_back(Notice::Readable(end));
                    }
                }
            }
            Err(reason) => {
                cx.tell(|| format!("host {} refuses connection {}: {reason}", self.index, end.link));
                match reason {
                    DropReason::Limit => cx.see(Seen::RefusedByLimit),
                    DropReason::Poke => cx.see(Seen::Knock),
                    _ => {}
                }
                if reason == DropReason::Poke {
                    self.knocked.insert(peer);
                }
                cx.net.close(cx.now, end);
            }
        }
    }

    fn insert(&mut self, conn: ConnId, end: End, peer: usize) {
        let c = Conn {
            stands: end.side == 1,
            end,
            path: self.pins.path(end),
            peer,
            rest: Vec::new(),
            stopped: false,
            draining: false,
            orderly: None,
            blocked: false,
            writing: false,
            fin: false,
            resumed: false,
            homeless: None,
        };
        self.conns.insert(conn, c);
        self.crowd.insert(conn);
        self.by_end.insert(end, conn);
    }

    /// What must hold whenever the node is at rest.
    fn invariants(&mut self, cx: &mut Ctx) {
        self.pin_invariants(cx);
        let Some(node) = self.node.as_ref() else { return };
        let config = node.config();
        let queued: u64 = self
            .sockets
            .map
            .values()
            .flat_map(|s| s.queue.iter())
            .filter(|(_, local)| !local)
            .map(|(len, _)| 48 + u64::from(*len))
            .sum();
        for c in self.conns.values() {
            watch::note_window(cx, c.end);
        }
        // Each connection that stood since there was room may have gone beyond once.
        if queued < config.receive_budget {
            self.crowd = self.conns.keys().copied().collect();
            self.read_out = false;
        }
        let each = (64 << 10) + 48 + u64::from(config.max_message);
        // What is read out may fill it twice.
        let budget = config.receive_budget * if self.read_out { 2 } else { 1 };
        let most = budget + each * (self.crowd.len() as u64 + 1);
        if queued > most {
            cx.fail(format!(
                "host {} holds {queued} bytes for its programs, which is more than {most}",
                self.index
            ));
        }
        for s in self.sockets.map.values() {
            if s.congested && s.believed < s.receive_buffer / 2 {
                cx.fail(format!(
                    "host {} port {} stays congested at {} bytes",
                    self.index, s.port, s.believed
                ));
            }
            if s.judged && !s.congested && s.believed > s.receive_buffer {
                cx.fail(format!(
                    "host {} port {} is not congested at {} bytes",
                    self.index, s.port, s.believed
                ));
            }
        }
    }
}
