//! Drives one real [`Node`] over the model of TCP, as an engine would, but at the whim of a seed.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use rds_core::info::Counter;
use rds_core::proto::{
    Action, CloseMode, Config, ConnId, DropReason, Node, Received, SendError, SocketId, Time,
};

use super::coverage::Seen;
use super::ctx::Ctx;
use super::inbox::{Socket, Sockets};
use super::net::{End, MS, Nanos, Notice, Read, SEC};
use super::watch;

/// How long a connection that ends in an orderly way may take to do so.
const ORDERLY_DEADLINE: Nanos = 2 * SEC;
/// Steps of one run of the node before it counts as a busy loop.
const STEPS_PER_RUN: u32 = 50_000;
/// Runs of a node within one virtual second before it counts as a busy loop.
const RUNS_PER_SECOND: u32 = 20_000;

/// A connection of the node's, as its driver keeps it.
#[derive(Debug)]
struct Conn {
    end: End,
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
#[derive(Debug)]
struct Held {
    at: Nanos,
    conn: ConnId,
    end: End,
    pieces: Vec<Bytes>,
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
        }
    }

    /// Starts an incarnation.
    pub fn start(&mut self, cx: &mut Ctx, config: Config) {
        let fact = &mut cx.facts[self.index];
        fact.incarnation += 1;
        fact.lanes = config.lanes;
        fact.capabilities = config.capabilities;
        fact.generation = config.generation.get();
        fact.first_sequence = config.first_sequence;
        fact.window = config.window;
        fact.grace = config.identity_grace.as_nanos() as Nanos;
        fact.ping_enable = config.ping_enable;
        self.sockets.own = Some(config.address);
        match Node::new(config) {
            Ok(node) => self.node = Some(node),
            Err(e) => cx.fail(format!("host {} refuses its settings: {e}", self.index)),
        }
    }

    /// Forgets everything; the net is told by the caller.
    pub fn stop(&mut self, cx: &mut Ctx) {
        self.node = None;
        self.sockets = Sockets::default();
        self.conns.clear();
        self.by_end.clear();
        self.held.clear();
        self.pending.clear();
        self.pressed = false;
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
        [node, held, orderly].into_iter().flatten().min()
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
            if !matches!(notice, Notice::Connected(_)) && cx.chance(self.temper.skip) {
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
                        self.pending.push_front(Notice::Readable(end));
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
        self.by_end.insert(end, conn);
    }

    /// Reads a connection; true if there is more to be read later.
    fn read(&mut self, cx: &mut Ctx, conn: ConnId) -> bool {
        loop {
            let Some(c) = self.conns.get_mut(&conn) else { return false };
            if c.stopped || !c.stands || cx.broken.is_some() {
                return false;
            }
            let end = c.end;
            let draining = c.draining;
            let most = if cx.chance(self.temper.nibble) { cx.rng.usize(1..100) } else { 64 << 10 };
            let node = self.node.as_mut().expect("runs only while it is up");
            if c.rest.is_empty()
                && cx.chance(self.temper.target)
                && let Some((mut buffer, missing)) = node.take_target(conn)
            {
                let mut bytes = Vec::new();
                let read = cx.net.read(cx.now, end, most.min(missing), &mut bytes);
                buffer.extend_from_slice(&bytes);
                let received = node.return_target(time(cx.now), conn, buffer, &mut self.sockets);
                if let Read::Data(_) = read {
                    cx.see(Seen::Target);
                    self.fed(cx, conn, end, &bytes, received);
                    continue;
                }
                self.fed(cx, conn, end, &[], received);
                return self.ended(cx, conn, end, read);
            }
            let mut bytes = std::mem::take(&mut c.rest);
            let read = cx.net.read(cx.now, end, most, &mut bytes);
            // After `Resume` the node is to be called in any case.
            if bytes.is_empty() && !std::mem::take(&mut c.resumed) {
                return self.ended(cx, conn, end, read);
            }
            cx.digest((end.link as u64) << 32 | bytes.len() as u64);
            let received = node.receive(time(cx.now), conn, &bytes, &mut self.sockets);
            if received.consumed > bytes.len() {
                cx.fail(format!("host {}: receive used more than it was given", self.index));
                return false;
            }
            if let Some(c) = self.conns.get_mut(&conn) {
                c.rest = bytes[received.consumed..].to_vec();
            }
            bytes.truncate(received.consumed);
            self.fed(cx, conn, end, &bytes, received);
            if !draining && cx.chance(self.temper.nibble) && self.conns.contains_key(&conn) {
                return cx.net.is_readable(end);
            }
        }
    }

    /// A read gave nothing more.
    fn ended(&mut self, cx: &mut Ctx, conn: ConnId, end: End, read: Read) -> bool {
        let Some(c) = self.conns.get_mut(&conn) else { return false };
        let node = self.node.as_mut().expect("runs only while it is up");
        if c.draining {
            c.draining = false;
            node.drained(time(cx.now), conn);
            self.output(cx);
            // Whatever it does with the connection, its end is reported if it is still there.
            return self.conns.contains_key(&conn) && cx.net.has_ended(end);
        }
        if read == Read::Nothing {
            return false;
        }
        if cx.watch.is_mid_message(end.peer()) {
            cx.see(Seen::CutMessage);
        }
        if c.orderly.is_some() {
            cx.see(Seen::OrderlyClose);
        }
        self.forget(conn);
        let unacked = cx.net.unacked(end);
        cx.tell(|| {
            format!("host {} finds connection {} ended: {read:?}, {unacked} unacked", self.index, end.link)
        });
        cx.net.close(cx.now, end);
        self.node.as_mut().expect("runs only while it is up").closed(time(cx.now), conn, Some(unacked));
        self.output(cx);
        false
    }

    fn forget(&mut self, conn: ConnId) -> Option<Conn> {
        let c = self.conns.remove(&conn)?;
        self.by_end.remove(&c.end);
        Some(c)
    }

    /// Books what a call of `receive` did.
    fn fed(&mut self, cx: &mut Ctx, conn: ConnId, end: End, bytes: &[u8], received: Received) {
        let draining = self.conns.get(&conn).is_some_and(|c| c.draining);
        let superseded = draining || self.conns.get(&conn).is_some_and(|c| c.orderly.is_some());
        match watch::consumed(cx, end, bytes, superseded) {
            Ok(passed) => {
                let homeless = self.conns.get(&conn).and_then(|c| c.homeless);
                self.hold_against_books(cx, end, &passed, draining, homeless);
                let between = cx.watch.in_between(end);
                if let Some(c) = self.conns.get_mut(&conn) {
                    let bound =
                        |h: &rds_core::wire::Header| self.sockets.map.values().any(|s| s.port == h.dport);
                    // A socket that comes while the payload is passed over does not get the message.
                    c.homeless =
                        between.filter(|h| c.homeless == Some(h.sequence) || !bound(h)).map(|h| h.sequence);
                }
            }
            // A stranger's garbage, or a node's: the writer's side complains about the latter.
            Err(text) => cx.tell(|| text),
        }
        if let Some(c) = self.conns.get_mut(&conn) {
            let stop = !received.more || !c.rest.is_empty();
            if stop && !c.stopped {
                c.stopped = true;
                cx.see(Seen::Throttled);
            }
        }
        self.output(cx);
    }

    fn hold_against_books(
        &mut self,
        cx: &mut Ctx,
        end: End,
        passed: &[watch::Passed],
        draining: bool,
        homeless: Option<u64>,
    ) {
        self.deliveries(cx);
        let peer = cx.net.host_of(end.peer());
        for message in passed {
            let h = &message.header;
            if h.is_congestion_map() || h.sport == 0 || h.sport == 1 {
                continue;
            }
            let found = cx.ledger.find(peer, h.sport, self.index, h.dport, h.len as usize, &message.head);
            if draining && found.is_some() {
                cx.see(Seen::DrainedData);
            }
            let bound = self.sockets.map.values().any(|s| s.port == h.dport);
            if let Some(id) = found
                && (!bound || h.dport == 0 || homeless == Some(h.sequence))
                && cx.ledger.messages[id].deliveries.is_empty()
            {
                cx.ledger.messages[id].dropped = true;
                cx.see(if h.dport == 0 { Seen::Pong } else { Seen::NoSocket });
            }
        }
    }

    /// Holds what was delivered since the last call against the books.
    fn deliveries(&mut self, cx: &mut Ctx) {
        if let Some(broken) = self.sockets.broken.take() {
            cx.fail(format!("host {}: {broken}", self.index));
        }
        for (socket, from, body) in std::mem::take(&mut self.sockets.fresh) {
            let Some(port) = self.sockets.map.get(&socket).map(|s| s.port) else { continue };
            let Some(src) = cx.host_at(from.ip()) else {
                cx.fail(format!("host {} delivers a message from {from}, where nobody is", self.index));
                return;
            };
            cx.tell(|| format!("host {} port {port} gets {} bytes from {from}", self.index, body.len()));
            if body.is_empty() {
                cx.see(Seen::EmptyMessage);
            }
            if src == self.index {
                cx.see(Seen::Local);
            }
            match cx.ledger.delivered(&cx.facts, src, from.port(), self.index, port, &body) {
                Ok(Some(id)) => {
                    let m = &cx.ledger.messages[id];
                    if m.cancelled {
                        cx.see(Seen::CancelledArrived);
                    }
                }
                Ok(None) => cx.see(Seen::Pong),
                Err(promise) => cx.fail(promise),
            }
        }
    }

    /// Does all that the node wants done.
    pub fn output(&mut self, cx: &mut Ctx) {
        self.deliveries(cx);
        let mut steps = 0;
        let mut idle = 0;
        loop {
            steps += 1;
            if steps > STEPS_PER_RUN || idle > 1000 {
                cx.fail(format!("host {} never comes to rest: actions or transmits without end", self.index));
                return;
            }
            let Some(node) = self.node.as_mut() else { return };
            if cx.broken.is_some() {
                return;
            }
            if let Some(action) = node.poll_action(time(cx.now)) {
                self.act(cx, action);
            } else if let Some(conn) = node.poll_transmit() {
                if self.transmit(cx, conn) { idle = 0 } else { idle += 1 }
            } else {
                return;
            }
        }
    }

    fn act(&mut self, cx: &mut Ctx, action: Action) {
        cx.tell(|| format!("host {}: {action:?}", self.index));
        cx.digest(0x100);
        match action {
            Action::Connect { conn, peer, lane, lanes } => self.connect(cx, conn, peer, lane, lanes),
            Action::Close { conn, mode, reason, .. } => self.close(cx, conn, &mode, &reason),
            Action::Drain { conn } => {
                if let Some(c) = self.conns.get_mut(&conn) {
                    cx.see(Seen::DrainOld);
                    c.draining = true;
                    // It may have been throttled: now everything is taken.
                    c.stopped = false;
                    c.resumed = true;
                    self.read(cx, conn);
                }
            }
            Action::Resume { conn } => {
                if let Some(c) = self.conns.get_mut(&conn) {
                    cx.see(Seen::Resumed);
                    c.stopped = false;
                    c.resumed = true;
                    let end = c.end;
                    if self.read(cx, conn) {
                        self.pending.push_back(Notice::Readable(end));
                    }
                }
            }
            Action::QueryUnacked { conn } => {
                if let Some(c) = self.conns.get(&conn) {
                    let unacked = cx.net.unacked(c.end);
                    self.node.as_mut().expect("it acts").tcp_unacked(time(cx.now), conn, unacked);
                }
            }
            Action::Writable { socket } => {
                if let Some(s) = self.sockets.map.get_mut(&socket) {
                    s.waits_for_room = false;
                    cx.see(Seen::SendWritable);
                }
            }
            Action::Drained { socket } => {
                if let Some(s) = self.sockets.map.get_mut(&socket) {
                    s.waits_for_drain = false;
                    cx.see(Seen::Drained);
                }
            }
            Action::Uncongested { socket, destination } => {
                if let Some(s) = self.sockets.map.get_mut(&socket) {
                    s.waits_for_port.retain(|d| *d != destination);
                    cx.see(Seen::Uncongested);
                }
            }
            Action::Congestion { socket, congested } => {
                cx.see(if congested { Seen::CongestionSet } else { Seen::CongestionCleared });
                if let Some(s) = self.sockets.map.get_mut(&socket) {
                    s.congested = congested;
                    let report = std::mem::take(&mut s.unreported);
                    if congested && report.1 > 0 {
                        s.believed -= report.0;
                        self.node.as_mut().expect("it acts").consumed(socket, report.0, report.1);
                    } else {
                        s.unreported = report;
                    }
                }
            }
            Action::Pressure { on } => {
                cx.see(if on { Seen::PressureOn } else { Seen::PressureOff });
                self.pressed = on;
                for (id, s) in self.sockets.map.iter_mut().filter(|_| on) {
                    let report = std::mem::take(&mut s.unreported);
                    s.believed -= report.0;
                    if report.1 > 0 {
                        self.node.as_mut().expect("it acts").consumed(*id, report.0, report.1);
                    }
                }
            }
            Action::Completed { token, outcome, .. } => watch::completed(cx, self.index, token.0, outcome),
            Action::PeerUp { peer, lanes, restarted, .. } => {
                if let Some(peer) = cx.host_at(peer) {
                    cx.watch.lanes.insert((self.index, peer), lanes);
                }
                if restarted {
                    cx.see(Seen::RestartSeen);
                }
                if lanes > 1 {
                    cx.see(Seen::LaneFanOut);
                }
            }
            _ => {}
        }
    }

    fn connect(&mut self, cx: &mut Ctx, conn: ConnId, peer: IpAddr, lane: u8, lanes: u8) {
        let Some(host) = cx.host_at(peer) else {
            cx.fail(format!("host {} dials {peer}, where nobody is", self.index));
            return;
        };
        if self.knocked.remove(&host) {
            cx.see(Seen::KnockAnswered);
        }
        if peer.is_ipv6() {
            cx.see(Seen::Ipv6);
        }
        let end = cx.net.connect(cx.now, self.index, host, (lanes > 1).then_some(lane));
        cx.watch.open(end, cx.facts[self.index].incarnation, cx.now, Some(lane));
        self.insert(conn, end, host);
    }

    fn close(&mut self, cx: &mut Ctx, conn: ConnId, mode: &CloseMode, reason: &DropReason) {
        match reason {
            DropReason::HandshakeTimeout => cx.see(Seen::HandshakeTimeout),
            DropReason::Replaced => cx.see(Seen::Replaced),
            DropReason::Framing(_) => cx.see(Seen::FramingLost),
            DropReason::Limit => cx.see(Seen::RefusedByLimit),
            DropReason::PokeDone => cx.see(Seen::Knock),
            DropReason::AckBeyondSent { .. }
            | DropReason::WindowOverrun { .. }
            | DropReason::IdentityChanged => {
                let peer = self.conns.get(&conn).map(|c| c.peer);
                if peer.is_some_and(|p| cx.facts[p].kind == super::ctx::HostKind::Own) {
                    cx.fail(format!(
                        "host {} accuses host {peer:?} of breaking the protocol: {reason}",
                        self.index
                    ));
                }
            }
            _ => {}
        }
        let Some(c) = self.conns.get_mut(&conn) else { return };
        if c.writing {
            cx.see(Seen::WriteOutlivedClose);
        }
        match mode {
            CloseMode::Now => {
                let c = self.forget(conn).expect("found above");
                cx.net.close(cx.now, c.end);
            }
            CloseMode::Orderly => {
                if c.orderly.is_none() {
                    c.orderly = Some(cx.now + ORDERLY_DEADLINE);
                }
                c.stopped = false;
                c.fin = true;
                let (end, writing) = (c.end, c.writing);
                if !writing {
                    cx.net.shutdown(cx.now, end);
                }
                if self.read(cx, conn) {
                    self.pending.push_back(Notice::Readable(end));
                }
            }
        }
    }

    fn orderly_deadlines(&mut self, cx: &mut Ctx) {
        let due: Vec<ConnId> = self
            .conns
            .iter()
            .filter(|(_, c)| c.orderly.is_some_and(|at| at <= cx.now))
            .map(|(id, _)| *id)
            .collect();
        for conn in due {
            if let Some(c) = self.forget(conn) {
                let unacked = cx.net.unacked(c.end);
                cx.net.close(cx.now, c.end);
                self.node.as_mut().expect("runs only while it is up").closed(
                    time(cx.now),
                    conn,
                    Some(unacked),
                );
                self.output(cx);
            }
        }
    }

    /// Transmits once; false if there was nothing after all.
    fn transmit(&mut self, cx: &mut Ctx, conn: ConnId) -> bool {
        let Some(c) = self.conns.get_mut(&conn) else {
            cx.fail(format!("host {} wants to transmit on a connection that is closed", self.index));
            return false;
        };
        let most = if cx.chance(64) { cx.rng.usize(1..4096) } else { 256 << 10 };
        let mut pieces = Vec::new();
        let node = self.node.as_mut().expect("it transmits");
        let total = node.begin_transmit(conn, most, &mut pieces);
        if total != pieces.iter().map(Bytes::len).sum::<usize>() {
            cx.fail(format!("host {}: begin_transmit miscounts its pieces", self.index));
            return false;
        }
        if total == 0 {
            return false;
        }
        if c.orderly.is_some() || c.fin {
            cx.fail(format!("host {} transmits on a connection that it has closed", self.index));
            return false;
        }
        let end = c.end;
        if cx.chance(self.temper.hold) {
            c.writing = true;
            let at = cx.now + cx.rng.u64(1..20 * MS);
            self.held.push(Held { at, conn, end, pieces, total });
        } else {
            self.write(cx, conn, end, &pieces, total);
        }
        true
    }

    fn write(&mut self, cx: &mut Ctx, conn: ConnId, end: End, pieces: &[Bytes], total: usize) {
        let most = if cx.chance(self.temper.partial) { cx.rng.usize(0..=total) } else { total };
        let alive = self.conns.get(&conn).is_some_and(|c| c.end == end);
        let written = if alive { cx.net.write(cx.now, end, pieces, most) } else { 0 };
        if written < total {
            cx.see(Seen::PartialWrite);
        }
        let mut left = written;
        for piece in pieces {
            let n = piece.len().min(left);
            let result = watch::written(cx, end, &piece[..n]);
            cx.check(result);
            left -= n;
        }
        cx.digest((end.link as u64) << 32 | written as u64);
        cx.tell(|| {
            format!("host {} writes {written} of {total} bytes to connection {}", self.index, end.link)
        });
        let blocked = written < most || !alive || (written < total && !cx.net.has_room(end));
        if let Some(c) = self.conns.get_mut(&conn) {
            c.blocked = blocked;
            c.writing = false;
            if c.fin {
                cx.net.shutdown(cx.now, end);
            }
        }
        let node = self.node.as_mut().expect("it writes");
        node.end_transmit(time(cx.now), conn, written, blocked);
        // Room may have come between the write and this moment.
        if blocked && alive && cx.net.has_room(end) {
            self.pending.push_back(Notice::Writable(end));
        }
    }

    fn finish_held(&mut self, cx: &mut Ctx) {
        while let Some(i) = self.held.iter().position(|h| h.at <= cx.now) {
            let held = self.held.remove(i);
            self.write(cx, held.conn, held.end, &held.pieces, held.total);
            self.output(cx);
        }
    }

    /// What must hold whenever the node is at rest.
    fn invariants(&mut self, cx: &mut Ctx) {
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
        let each = (64 << 10) + 48 + u64::from(config.max_message);
        let most = config.receive_budget + each * (self.conns.len() as u64 + 1);
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

    // ---- what programs do -----------------------------------------------------------------------------------------

    /// Binds a port.
    pub fn bind(&mut self, cx: &mut Ctx, port: u16, exact: bool) -> Option<SocketId> {
        let node = self.node.as_mut()?;
        match node.bind(port) {
            Ok((id, bound)) => {
                if port != 0 && bound != port {
                    cx.fail(format!("host {} binds {bound} where {port} was asked for", self.index));
                }
                let book = cx.ledger.add_sock(exact);
                self.sockets.map.insert(id, Socket::new(bound, book));
                Some(id)
            }
            Err(rds_core::proto::BindError::ShuttingDown) => None,
            Err(e) => {
                cx.fail(format!("host {} cannot bind {port}: {e}", self.index));
                None
            }
        }
    }

    /// Sets a socket's buffers.
    pub fn set_buffers(&mut self, cx: &mut Ctx, id: SocketId, send: u64, receive: u64) {
        let (Some(node), Some(s)) = (self.node.as_mut(), self.sockets.map.get_mut(&id)) else { return };
        (s.send_buffer, s.receive_buffer, s.judged) = (send, receive, false);
        node.set_send_buffer(id, send);
        node.set_receive_buffer(id, receive);
        self.output(cx);
    }

    /// Sends one message. Returns how it was refused, if it was.
    pub fn send(
        &mut self,
        cx: &mut Ctx,
        id: SocketId,
        dst: usize,
        dport: u16,
        len: usize,
    ) -> Result<usize, Option<SendError>> {
        let (Some(node), Some(s)) = (self.node.as_mut(), self.sockets.map.get_mut(&id)) else {
            return Err(None);
        };
        let tracked = cx.ledger.socks[s.book].exact || cx.rng.bool();
        let number = cx.ledger.next_id();
        let bytes = super::ledger::payload(number, len);
        let destination = SocketAddr::new(cx.net.address_of(dst), dport);
        let token = tracked.then_some(rds_core::proto::Token(number as u64));
        let (owned, pieces);
        let payload = match cx.rng.u8(0..3) {
            0 => rds_core::proto::Payload::Copy(&bytes),
            1 => {
                owned = bytes.split_at(cx.rng.usize(0..=len));
                pieces = [std::io::IoSlice::new(owned.0), std::io::IoSlice::new(owned.1)];
                rds_core::proto::Payload::Gather(&pieces)
            }
            _ => rds_core::proto::Payload::Owned(bytes.clone().into()),
        };
        let before = cx.ledger.socks[s.book].outstanding;
        let many = cx.ledger.socks[s.book].messages >= 1024;
        let exact = cx.ledger.socks[s.book].exact;
        let result = node.send(id, destination, payload, token, &mut self.sockets);
        let s = self.sockets.map.get_mut(&id).expect("found above");
        let outcome = match result {
            Ok(()) => {
                cx.seen.messages += 1;
                if exact && before >= s.send_buffer && dst != self.index {
                    cx.fail(format!(
                        "host {} port {} takes a message with {before} bytes outstanding in a buffer of {}",
                        self.index, s.port, s.send_buffer
                    ));
                }
                let (book, port) = (s.book, s.port);
                let got =
                    cx.ledger.accepted(cx.now, &cx.facts, self.index, book, port, dst, dport, len, tracked);
                cx.tell(|| {
                    format!(
                        "host {} port {port} sends message {got} to {destination}, {len} bytes",
                        self.index
                    )
                });
                if dst == self.index {
                    let bound = self.sockets.map.values().any(|s| s.port == dport);
                    cx.ledger.messages[got].dropped = !bound;
                }
                Ok(got)
            }
            Err(rejected) => {
                if rejected.payload.len() != len {
                    cx.fail(format!("host {} gives back another payload than it refused", self.index));
                }
                cx.tell(|| {
                    format!(
                        "host {} port {} cannot send to {destination}: {:?}",
                        self.index, s.port, rejected.error
                    )
                });
                match rejected.error {
                    SendError::Full => {
                        cx.see(Seen::SendFull);
                        if exact && before < s.send_buffer && !many {
                            cx.fail(format!(
                                "host {} port {} is full with {before} bytes outstanding in a buffer of {}",
                                self.index, s.port, s.send_buffer
                            ));
                        }
                        s.waits_for_room = true;
                    }
                    SendError::Congested => {
                        cx.see(Seen::CongestedSend);
                        let known = cx.watch.maps.get(&(self.index, dst)).is_some_and(|m| m.contains(dport));
                        if !known && dst != self.index {
                            cx.fail(format!(
                                "host {} thinks {destination} congested, which its map does not say",
                                self.index
                            ));
                        }
                        if !s.waits_for_port.contains(&destination) {
                            s.waits_for_port.push(destination);
                        }
                    }
                    SendError::TooLarge { limit } if limit >= len as u64 => {
                        cx.fail(format!("host {} refuses {len} bytes as larger than {limit}", self.index));
                    }
                    _ => {}
                }
                Err(Some(rejected.error))
            }
        };
        self.output(cx);
        outcome
    }

    /// Takes up to `most` messages of a socket, and reports it as the contract says.
    pub fn take(&mut self, cx: &mut Ctx, id: SocketId, most: usize) {
        let Some(s) = self.sockets.map.get_mut(&id) else { return };
        for _ in 0..most {
            if !s.take() {
                break;
            }
        }
        if s.unreported.1 > 0 && (s.congested || self.pressed || s.unreported.0 >= s.receive_buffer / 4) {
            let (bytes, messages) = std::mem::take(&mut s.unreported);
            s.believed -= bytes;
            if let Some(node) = self.node.as_mut() {
                node.consumed(id, bytes, messages);
            }
        }
        self.output(cx);
    }

    /// Ends all connections in an orderly way, as a process does before it exits.
    pub fn say_goodbye(&mut self, cx: &mut Ctx) {
        if let Some(node) = self.node.as_mut() {
            node.begin_shutdown();
            node.close_connections(time(cx.now));
            self.output(cx);
        }
    }

    /// Asks to be told when nothing of the socket is on its way.
    pub fn watch_drained(&mut self, cx: &mut Ctx, id: SocketId) {
        let (Some(node), Some(s)) = (self.node.as_mut(), self.sockets.map.get_mut(&id)) else { return };
        s.waits_for_drain = !node.watch_drained(id);
        self.output(cx);
    }

    /// Cancels a socket's messages to one destination, or to all.
    pub fn cancel(&mut self, cx: &mut Ctx, id: SocketId, destination: Option<(usize, u16)>) {
        let (Some(node), Some(s)) = (self.node.as_mut(), self.sockets.map.get(&id)) else { return };
        for m in &mut cx.ledger.messages {
            let hit =
                m.sock == s.book && destination.is_none_or(|(dst, port)| m.dst == dst && m.dport == port);
            if hit && m.outcome.is_none() {
                m.cancelled = true;
            }
        }
        let address = destination.map(|(dst, port)| SocketAddr::new(cx.net.address_of(dst), port));
        node.cancel(id, address);
        cx.tell(|| format!("host {} port {} cancels {address:?}", self.index, s.port));
        self.output(cx);
    }

    /// Closes a socket.
    pub fn close_socket(&mut self, cx: &mut Ctx, id: SocketId, drain: bool) {
        let (Some(node), Some(s)) = (self.node.as_mut(), self.sockets.map.get(&id)) else { return };
        if !drain {
            for m in cx.ledger.messages.iter_mut().filter(|m| m.sock == s.book && m.outcome.is_none()) {
                m.cancelled = true;
            }
        }
        cx.tell(|| format!("host {} closes port {}", self.index, s.port));
        cx.ledger.socks[s.book].closed = true;
        node.close(id, drain);
        self.sockets.map.remove(&id);
        self.output(cx);
    }

    /// Value of one of the node's counters.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.node.as_ref().map_or(0, |n| n.snapshot(false).counters.get(counter))
    }
}
