//! Runs a seed from its plan to its end, and many seeds on all cores.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::coverage::Coverage;
use super::ctx::{HostKind, Sink};
use super::net::{Event, MS, Nanos, SEC};
use super::plan::{FAULTS, MESSAGES, Plan};
use super::traffic::Traffic;
use super::watch;
use super::world::{Host, Step, World};

/// Events of one seed, at most; usual are 20,000.
const MOST_EVENTS: u64 = 1_000_000;

/// A seed under way.
pub struct Run {
    /// What was drawn.
    pub plan: Plan,
    /// What it became.
    pub world: World,
    pub(super) traffic: Vec<Traffic>,
    /// The fault because of which a host is down.
    pub(super) down_for: Vec<Option<usize>>,
    /// Faults that have begun and not ended.
    pub(super) lasting: Vec<bool>,
    calm: bool,
    nudge_at: Nanos,
    resets: Vec<(Nanos, usize)>,
    /// Pairs of hosts with a message after the last fault.
    talked: BTreeSet<(usize, usize)>,
}

/// How a seed went.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// The promise that was broken, if one was.
    pub broken: Option<String>,
    /// What was hit.
    pub coverage: Coverage,
    /// A number that any difference between two runs would change.
    pub digest: u64,
}

impl Report {
    /// The line that replays a failure.
    #[must_use]
    pub fn line(&self) -> String {
        let promise = self.broken.as_deref().unwrap_or("kept every promise");
        format!("cargo run --release -p rds-tests --bin rds-sim -- --seed {} --trace  # {promise}", self.seed)
    }
}

impl Run {
    /// Sets a seed up.
    #[must_use]
    pub fn new(seed: u64, trace: Option<Sink>) -> Self {
        let plan = Plan::draw(seed);
        let mut world = World::new(seed, plan.wire);
        if let Some(sink) = trace {
            world.cx.trace_to(sink);
        }
        for h in &plan.hosts {
            match h.kind {
                HostKind::Own => world.add_own(h.address, h.spec.clone(), h.temper.clone()),
                HostKind::OldKernel | HostKind::NewKernel => {
                    let host = world.add_kernel(h.address, h.kind == HostKind::NewKernel);
                    let kernel = world.kernel(host);
                    kernel.ping_enable = h.spec.ping_enable;
                    kernel.skip = h.temper.skip;
                    kernel.hasty = if h.temper.nibble > 5 { 60 } else { 0 };
                    host
                }
                HostKind::Stranger => world.add_stranger(h.address),
            };
        }
        let traffic = (0..plan.hosts.len())
            .map(|i| Traffic::new(&plan.hosts[i], targets(&plan, i), plan.calm_at))
            .collect();
        let count = plan.hosts.len();
        let faults = plan.faults.len();
        let mut run = Self {
            plan,
            world,
            traffic,
            down_for: vec![None; count],
            lasting: vec![false; faults],
            calm: false,
            nudge_at: 0,
            resets: Vec::new(),
            talked: BTreeSet::new(),
        };
        for host in 0..count {
            run.bind_all(host);
            let at = run.world.cx.rng.u64(0..SEC);
            run.world.cx.net.queue.push(at, Event::App(host));
        }
        for i in 0..faults {
            let f = run.plan.faults[i];
            run.world.cx.net.queue.push(f.at, Event::Fault(i));
            // Programs are busy when it strikes.
            for host in [f.host, f.other] {
                for _ in 0..3 {
                    let before = run.world.cx.rng.u64(0..30 * MS);
                    run.world.cx.net.queue.push(f.at.saturating_sub(before), Event::App(count + host));
                }
            }
        }
        run
    }

    fn bind_all(&mut self, host: usize) {
        let world = &mut self.world;
        for (port, send, receive, exact) in self.plan.hosts[host].sockets.clone() {
            match &mut world.hosts[host] {
                Host::Own(h) => {
                    if let Some(id) = h.bind(&mut world.cx, port, exact) {
                        h.set_buffers(&mut world.cx, id, send, receive);
                    }
                }
                Host::Kernel(h) => h.bind(&mut world.cx, port, send, receive),
                Host::Stranger(_) => {}
            }
        }
    }

    pub(super) fn start_host(&mut self, host: usize, clock_back: u64) {
        if let Some(spec) = &mut self.world.specs[host]
            && !self.plan.hosts[host].fixed_lanes
            && self.world.cx.rng.u8(..) < 60
        {
            // The next life may be set up otherwise.
            spec.lanes = self.world.cx.rng.u8(1..=8);
        }
        self.world.start(host, clock_back);
        self.bind_all(host);
    }

    pub(super) fn defer_reset(&mut self, f: super::plan::FaultPlan, at: Nanos) {
        let i = self.plan.faults.iter().position(|g| g.at == f.at && g.kind == f.kind).unwrap_or(0);
        self.resets.push((at, i));
        self.world.cx.net.queue.push(at, Event::Fault(i));
    }

    /// Runs to the end.
    pub fn finish(mut self) -> Report {
        let calm_at = self.plan.calm_at;
        self.advance(calm_at, |_| false);
        self.calm = true;
        self.world.cx.tell(|| "calm: no more faults".into());
        self.end_all_faults();
        for host in 0..self.traffic.len() {
            self.traffic[host].calm_down(&mut self.world.cx);
            let words = self.traffic[host].last_words.iter();
            self.talked.extend(words.map(|(_, to)| (host, to.0)).filter(|(from, to)| from != to));
        }
        self.advance(calm_at + Self::PATIENCE, |run| run.is_settled());
        // Nothing may come after the end, either.
        let now = self.world.cx.now;
        self.advance(now + 5 * SEC, |_| false);
        self.judge();
        let met = self.world.cx.net.met;
        self.world.cx.seen.met(&met);
        let cx = self.world.cx;
        Report { seed: self.plan.seed, broken: cx.broken, coverage: cx.seen, digest: cx.digest }
    }

    fn advance(&mut self, until: Nanos, mut done: impl FnMut(&mut Self) -> bool) {
        let mut look_at = self.world.cx.now;
        while self.world.cx.broken.is_none() {
            match self.world.step(until) {
                Step::Done => {}
                Step::Over => return,
                Step::Yours(Event::App(host)) => self.app(host),
                Step::Yours(Event::Fault(i)) => self.fault(i),
                Step::Yours(_) => {}
            }
            if self.world.cx.seen.events > MOST_EVENTS {
                let now = self.world.cx.now / SEC;
                self.world.cx.fail(format!(
                    "more than {MOST_EVENTS} events in {now} virtual seconds: nothing comes to rest"
                ));
            }
            if self.world.cx.now >= look_at {
                look_at = self.world.cx.now + SEC;
                self.nudge();
                if done(self) {
                    return;
                }
            }
        }
    }

    fn fault(&mut self, i: usize) {
        if let Some(at) = self.resets.iter().position(|(at, j)| *j == i && *at <= self.world.cx.now) {
            self.resets.remove(at);
            self.reset_both(self.plan.faults[i]);
        } else if std::mem::take(&mut self.lasting[i]) {
            self.end_fault(i);
        } else if !self.calm {
            let before = self.world.cx.seen.faults_total();
            self.lasting[i] = self.begin_fault(i);
            for kind in self.plan.instead.clone() {
                if self.world.cx.seen.faults_total() > before {
                    break;
                }
                self.plan.faults[i].kind = kind;
                self.lasting[i] = self.begin_fault(i);
            }
            if self.lasting[i] {
                self.world.cx.net.queue.push(self.plan.faults[i].until, Event::Fault(i));
            }
        }
    }

    fn app(&mut self, number: usize) {
        let count = self.traffic.len();
        let (host, extra) = (number % count, number >= count);
        let (world, traffic) = (&mut self.world, &mut self.traffic[host]);
        let frozen = match &world.hosts[host] {
            Host::Own(h) => h.frozen_until > world.cx.now,
            Host::Kernel(h) => h.frozen_until > world.cx.now,
            Host::Stranger(_) => true,
        };
        let mut busy = false;
        if !frozen || matches!(world.hosts[host], Host::Own(_)) && extra {
            busy = match &mut world.hosts[host] {
                Host::Own(h) if h.node.is_some() => traffic.step_own(&mut world.cx, h),
                Host::Kernel(h) if h.up => traffic.step_kernel(&mut world.cx, h),
                _ => false,
            };
            world.settle_calls(host);
        }
        if !extra {
            let at = self.traffic[host].next(&mut self.world.cx, busy);
            self.world.cx.net.queue.push(at, Event::App(host));
        }
    }

    /// A larger kernel waits for ever once its poke was missed: a program of it pings, as a person would.
    fn nudge(&mut self) {
        if !self.calm || self.world.cx.now < self.nudge_at {
            return;
        }
        self.nudge_at = self.world.cx.now + 5 * SEC;
        let world = &mut self.world;
        for host in 0..world.hosts.len() {
            if let Host::Kernel(h) = &mut world.hosts[host]
                && h.needs_nudge()
            {
                h.nudge(&mut world.cx);
                world.kick(host);
            }
        }
    }

    fn is_settled(&mut self) -> bool {
        let quiet = self.traffic.iter().all(|t| t.last_words.is_empty() && t.quota == 0)
            && self.world.hosts.iter().all(|h| match h {
                Host::Own(h) => {
                    h.node.as_ref().is_none_or(rds_core::proto::Node::is_drained)
                        && h.all_released(&self.world.cx).is_ok()
                        && h.sockets.map.values().all(|s| s.queue.is_empty() && !s.congested)
                }
                Host::Kernel(h) => h.is_drained() && h.sockets.values().all(|s| s.queue.is_empty()),
                Host::Stranger(_) => true,
            });
        quiet && watch::settle(&self.world.cx).is_ok()
    }

    /// What must be true at the end.
    fn judge(&mut self) {
        let settled = watch::settle(&self.world.cx);
        self.world.cx.check(settled);
        let mut complaints = Vec::new();
        for host in &self.world.hosts {
            match host {
                Host::Kernel(kernel) => self.world.cx.tell(|| kernel.describe()),
                Host::Own(own) => {
                    let peers = own.node.as_ref().map(|n| n.snapshot(true).peers);
                    self.world.cx.tell(|| format!("host {}: {peers:?}", own.index));
                }
                Host::Stranger(_) => {}
            }
        }
        for (i, t) in self.traffic.iter().enumerate() {
            if let Some((port, to)) = t.last_words.first() {
                complaints
                    .push(format!("host {i} port {port} still cannot send to host {} port {}", to.0, to.1));
            }
        }
        for (i, host) in self.world.hosts.iter().enumerate() {
            let Host::Own(h) = host else { continue };
            if let Err(text) = h.all_released(&self.world.cx) {
                complaints.push(text);
            }
            for s in h.sockets.map.values() {
                if s.waits_for_room {
                    complaints
                        .push(format!("host {i} port {} was never told that it can send again", s.port));
                }
                if let Some(to) = s.waits_for_port.first() {
                    complaints
                        .push(format!("host {i} port {} was never told that {to} is free again", s.port));
                }
                if s.waits_for_drain {
                    complaints.push(format!("host {i} port {} was never told that it is drained", s.port));
                }
            }
            let Some(node) = &h.node else { continue };
            let snapshot = node.snapshot(false);
            for peer in &snapshot.peers {
                if peer.congested_ports > 0 {
                    complaints
                        .push(format!("host {i} believes ports of {} congested for ever", peer.address));
                }
                let host = self.world.cx.host_at(peer.address);
                let own = host.is_some_and(|p| self.world.cx.facts[p].kind == HostKind::Own);
                let down = peer.connections.iter().take(usize::from(peer.lanes)).any(|c| c.state != "up");
                let talked =
                    host.is_some_and(|p| self.talked.contains(&(i, p)) || self.talked.contains(&(p, i)));
                if own && down && talked {
                    complaints
                        .push(format!("host {i} has lanes to {} that did not come up again", peer.address));
                }
            }
        }
        for complaint in complaints {
            self.world.cx.fail(complaint);
        }
        let (messages, faults) = (self.world.cx.seen.messages, self.world.cx.seen.faults_total());
        if self.world.cx.broken.is_none() && (messages < u64::from(MESSAGES) || faults < FAULTS as u64) {
            self.world
                .cx
                .fail(format!("only {messages} messages and {faults} faults: the seed tests too little"));
        }
    }
}

/// Where a host's programs send: to every port of hosts of its family, its own included, and to one that nobody has.
/// Kernels among themselves are not ours to test.
fn targets(plan: &Plan, from: usize) -> Vec<(usize, u16)> {
    let me = &plan.hosts[from];
    let mut found = Vec::new();
    for (to, h) in plan.hosts.iter().enumerate() {
        let strange = me.kind == HostKind::Stranger || h.kind == HostKind::Stranger;
        let foreign = me.address.is_ipv4() != h.address.is_ipv4();
        if strange || foreign || (me.kind.is_kernel() && h.kind.is_kernel()) {
            continue;
        }
        found.extend(h.sockets.iter().map(|s| (to, s.0)));
        if to != from {
            found.push((to, 9));
        }
    }
    found
}

/// Runs one seed; a panic counts as a broken promise.
#[must_use]
pub fn run_seed(seed: u64, trace: Option<Sink>) -> Report {
    let result = catch_unwind(AssertUnwindSafe(|| Run::new(seed, trace).finish()));
    result.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
            .unwrap_or_else(|| "without a word".into());
        Report { seed, broken: Some(format!("panic: {text}")), coverage: Coverage::default(), digest: 0 }
    })
}

/// Runs `count` seeds from `first` on `threads` threads; stops after `most_failures`.
#[must_use]
pub fn run_many(first: u64, count: u64, threads: usize, most_failures: usize) -> (Coverage, Vec<Report>) {
    let next = AtomicU64::new(first);
    let enough = AtomicBool::new(false);
    let sum = Mutex::new((Coverage::default(), Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || enough.load(Ordering::Relaxed) {
                        return;
                    }
                    let report = run_seed(seed, None);
                    let mut sum = sum.lock().expect("no panic leaves the lock");
                    sum.0.merge(&report.coverage);
                    if report.broken.is_some() {
                        sum.1.push(report);
                        if sum.1.len() >= most_failures {
                            enough.store(true, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let (coverage, mut failures) = sum.into_inner().expect("no panic leaves the lock");
    failures.sort_by_key(|r: &Report| r.seed);
    (coverage, failures)
}
