//! Hosts, the net between them and the clock; one step handles one event.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use rds_core::proto::{Config, SendError, SocketId};
use rds_core::wire::Capabilities;

use super::ctx::{Ctx, Fact, HostKind};
use super::kernel::{KernelHost, Refusal};
use super::net::{Event, MS, Nanos, Net, Notice, SEC, Wire};
use super::own::{OwnHost, Sending, Temper};
use super::stranger::Stranger;

/// Milliseconds of the wall clock at the start of every simulation.
pub const EPOCH_MS: u64 = 1_767_225_600_000;

/// One host.
pub enum Host {
    /// With a real node.
    Own(Box<OwnHost>),
    /// With a model of a kernel.
    Kernel(Box<KernelHost>),
    /// Without RDS.
    Stranger(Stranger),
}

/// How an own host is set up, in each of its lives.
#[derive(Clone, Debug)]
pub struct OwnSpec {
    /// Lanes.
    pub lanes: u8,
    /// Lanes towards kernels up to 6.18.
    pub old_kernel_lanes: u8,
    /// What it offers own peers.
    pub capabilities: Capabilities,
    /// Largest message.
    pub max_message: u32,
    /// Limit of received messages held.
    pub receive_budget: u64,
    /// Window of a lane.
    pub window: u64,
    /// See [`Config::port_hard_limit`].
    pub port_hard_limit: u32,
    /// See [`Config::handshake_timeout`].
    pub handshake_timeout: Duration,
    /// See [`Config::identity_grace`].
    pub identity_grace: Duration,
    /// See [`Config::ping_enable`].
    pub ping_enable: bool,
    /// See [`Config::max_handshakes`].
    pub max_handshakes: usize,
    /// See [`Config::max_peers`].
    pub max_peers: usize,
    /// How it sends without copies.
    pub sending: Sending,
}

impl Default for OwnSpec {
    fn default() -> Self {
        let c = Config::new(IpAddr::from([127, 0, 0, 1]), NonZeroU32::MIN);
        Self {
            lanes: c.lanes,
            old_kernel_lanes: c.old_kernel_lanes,
            capabilities: c.capabilities,
            max_message: c.max_message,
            receive_budget: c.receive_budget,
            window: c.window,
            port_hard_limit: c.port_hard_limit,
            handshake_timeout: c.handshake_timeout,
            identity_grace: c.identity_grace,
            ping_enable: c.ping_enable,
            max_handshakes: c.max_handshakes,
            max_peers: c.max_peers,
            sending: Sending::default(),
        }
    }
}

/// The whole simulation.
pub struct World {
    /// What is shared.
    pub cx: Ctx,
    /// The hosts.
    pub hosts: Vec<Host>,
    /// How own hosts are set up.
    pub specs: Vec<Option<OwnSpec>>,
    /// Most delay between a notice and the run that handles it.
    pub wake_delay: Nanos,
    wake_at: Vec<Option<Nanos>>,
}

impl World {
    /// An empty world.
    #[must_use]
    pub fn new(seed: u64, wire: Wire) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let net = Net::new(rng.fork(), wire);
        Self {
            cx: Ctx::new(rng, net),
            hosts: Vec::new(),
            specs: Vec::new(),
            wake_delay: MS / 4,
            wake_at: Vec::new(),
        }
    }

    fn add(&mut self, address: IpAddr, kind: HostKind, host: Host, spec: Option<OwnSpec>) -> usize {
        self.cx.net.add_host(address);
        self.cx.facts.push(Fact {
            address,
            kind,
            changed_kind: false,
            incarnation: 0,
            lanes: 1,
            capabilities: Capabilities::default(),
            generation: 0,
            first_sequence: 0,
            clock_back: false,
            window: 0,
            grace: 0,
            old_kernel_lanes: 1,
            ping_enable: true,
        });
        self.hosts.push(host);
        self.specs.push(spec);
        self.wake_at.push(None);
        self.hosts.len() - 1
    }

    /// Adds a host with a real node, and starts it.
    pub fn add_own(&mut self, address: IpAddr, spec: OwnSpec, temper: Temper) -> usize {
        let index = self.hosts.len();
        let host = Host::Own(Box::new(OwnHost::new(index, temper)));
        self.add(address, HostKind::Own, host, Some(spec));
        self.start(index, 0);
        index
    }

    /// Adds a host with a model of a kernel, and starts it.
    pub fn add_kernel(&mut self, address: IpAddr, new: bool) -> usize {
        let index = self.hosts.len();
        let kind = if new { HostKind::NewKernel } else { HostKind::OldKernel };
        self.add(address, kind, Host::Kernel(Box::new(KernelHost::new(index, new))), None);
        self.start(index, 0);
        index
    }

    /// Adds a host without RDS.
    pub fn add_stranger(&mut self, address: IpAddr) -> usize {
        let index = self.hosts.len();
        self.add(address, HostKind::Stranger, Host::Stranger(Stranger::new(index)), None);
        self.cx.net.listen(index, false);
        index
    }

    /// Starts a life of a host. `clock_back` sets its wall clock back by so many milliseconds.
    pub fn start(&mut self, host: usize, clock_back: u64) {
        let life = self.cx.facts[host].incarnation + 1;
        self.cx.facts[host].clock_back |= clock_back > 0;
        let generation = 0x0100_0000 * (host as u32 + 1) + life;
        match &mut self.hosts[host] {
            Host::Own(own) => {
                let spec = self.specs[host].as_ref().expect("own hosts have one");
                let mut config = Config::new(
                    self.cx.facts[host].address,
                    NonZeroU32::new(generation).expect("hosts count from 1 there"),
                );
                config.lanes = spec.lanes;
                config.old_kernel_lanes = spec.old_kernel_lanes;
                config.capabilities = spec.capabilities;
                config.max_message = spec.max_message;
                config.receive_budget = spec.receive_budget;
                config.window = spec.window;
                config.port_hard_limit = spec.port_hard_limit;
                config.handshake_timeout = spec.handshake_timeout;
                config.identity_grace = spec.identity_grace;
                config.ping_enable = spec.ping_enable;
                config.max_handshakes = spec.max_handshakes;
                config.max_peers = spec.max_peers;
                config.first_sequence = Config::first_sequence_at(EPOCH_MS + self.cx.now / MS - clock_back);
                config.seed = self.cx.rng.u64(..);
                own.start(&mut self.cx, config, spec.sending);
            }
            Host::Kernel(kernel) => kernel.start(&mut self.cx, generation),
            Host::Stranger(_) => {}
        }
        let fact = &self.cx.facts[host];
        let line = format!("host {host} starts life {life}: {fact:?}");
        self.cx.tell(|| line);
        self.cx.net.power_on(host);
        self.cx.net.listen(host, true);
        self.kick(host);
    }

    /// Ends a life: the process dies, or (`power`) the whole host.
    pub fn stop(&mut self, host: usize, power: bool) {
        self.cx.tell(|| format!("host {host} {}", if power { "loses power" } else { "dies" }));
        self.cx.net.listen(host, false);
        if power {
            self.cx.net.power_off(self.cx.now, host);
        } else {
            self.cx.net.kill(self.cx.now, host);
        }
        match &mut self.hosts[host] {
            Host::Own(own) => own.stop(&mut self.cx),
            Host::Kernel(kernel) => kernel.stop(&mut self.cx),
            Host::Stranger(_) => {}
        }
    }

    /// Whether a host is up.
    #[must_use]
    pub fn is_up(&self, host: usize) -> bool {
        match &self.hosts[host] {
            Host::Own(own) => own.node.is_some(),
            Host::Kernel(kernel) => kernel.up,
            Host::Stranger(_) => true,
        }
    }

    /// The own host of that number.
    ///
    /// # Panics
    /// If it is none.
    pub fn own(&mut self, host: usize) -> &mut OwnHost {
        match &mut self.hosts[host] {
            Host::Own(own) => own,
            _ => panic!("host {host} has no node"),
        }
    }

    /// The kernel of that number.
    ///
    /// # Panics
    /// If it is none.
    pub fn kernel(&mut self, host: usize) -> &mut KernelHost {
        match &mut self.hosts[host] {
            Host::Kernel(kernel) => kernel,
            _ => panic!("host {host} has no kernel"),
        }
    }

    /// Makes a host run at `at`, if it would not earlier.
    pub fn wake(&mut self, host: usize, at: Nanos) {
        if self.wake_at[host].is_none_or(|w| at < w) {
            self.wake_at[host] = Some(at);
            self.cx.net.queue.push(at, Event::Wake(host));
        }
    }

    /// Makes a host run soon.
    pub fn kick(&mut self, host: usize) {
        let at = self.cx.now + 1 + self.cx.rng.u64(0..=self.wake_delay);
        self.wake(host, at);
    }

    /// Gives the hosts their notices, and makes them run.
    fn spread_notices(&mut self) {
        for (host, notice) in std::mem::take(&mut self.cx.net.notices) {
            let pending = match &mut self.hosts[host] {
                Host::Own(h) => &mut h.pending,
                Host::Kernel(h) => &mut h.pending,
                Host::Stranger(h) => &mut h.pending,
            };
            if !matches!(notice, Notice::Readable(_) | Notice::Writable(_) | Notice::Errors(_))
                || !pending.contains(&notice)
            {
                pending.push_back(notice);
            }
            self.kick(host);
        }
    }

    fn run_host(&mut self, host: usize) {
        let frozen = match &self.hosts[host] {
            Host::Own(h) => h.frozen_until,
            Host::Kernel(h) => h.frozen_until,
            Host::Stranger(_) => 0,
        };
        if frozen > self.cx.now {
            self.wake(host, frozen);
            return;
        }
        let (late, next) = match &mut self.hosts[host] {
            Host::Own(h) => (h.run(&mut self.cx), h.next_run()),
            Host::Kernel(h) => (h.run(&mut self.cx), h.next_run()),
            Host::Stranger(h) => (h.run(&mut self.cx), None),
        };
        if late {
            let at = self.cx.now + self.cx.rng.u64(1..=2 * MS);
            self.wake(host, at);
        }
        if let Some(next) = next {
            self.wake(host, next.max(self.cx.now + 1));
        }
    }

    /// Handles the next event of the net or of a host. Gives events of the scenario back: the caller's to handle.
    pub fn step(&mut self, until: Nanos) -> Step {
        let Some((at, event)) = self.cx.net.queue.pop() else { return Step::Over };
        if at > until {
            self.cx.net.queue.push(at, event);
            self.cx.now = until;
            return Step::Over;
        }
        self.cx.now = at;
        self.cx.seen.events += 1;
        let step = self.handle(at, event);
        if let Some(broken) = self.cx.net.broken.take() {
            self.cx.fail(broken);
        }
        step
    }

    fn handle(&mut self, at: Nanos, event: Event) -> Step {
        match event {
            Event::Net(event) => {
                self.cx.net.happen(at, event);
                self.spread_notices();
            }
            Event::Wake(host) => {
                if self.wake_at[host] == Some(at) {
                    self.wake_at[host] = None;
                    self.cx.digest(at ^ host as u64);
                    self.run_host(host);
                    self.spread_notices();
                }
            }
            event => return Step::Yours(event),
        }
        Step::Done
    }

    /// After programs did something on a host: what follows from it happens.
    pub fn settle_calls(&mut self, host: usize) {
        self.spread_notices();
        self.kick(host);
    }

    // ---- for scenarios that are written by hand ---------------------------------------------------------------------

    /// Runs until nothing happens before `for_how_long` is over.
    ///
    /// # Panics
    /// With the promise that was broken.
    pub fn run_for(&mut self, for_how_long: Nanos) {
        let until = self.cx.now + for_how_long;
        self.run_while(until, |_| true);
    }

    /// Runs until `done`; panics when that takes longer than `limit`.
    ///
    /// # Panics
    /// With the promise that was broken, or with `what` was waited for.
    #[track_caller]
    pub fn run_until(&mut self, what: &str, limit: Nanos, mut done: impl FnMut(&mut Self) -> bool) {
        let until = self.cx.now + limit;
        if !self.run_while(until, |w| !done(w)) {
            panic!("waited {} s in vain for: {what}", limit as f64 / SEC as f64);
        }
    }

    /// Whether it ended because `go_on` said so.
    fn run_while(&mut self, until: Nanos, mut go_on: impl FnMut(&mut Self) -> bool) -> bool {
        loop {
            if let Some(promise) = &self.cx.broken {
                panic!("{promise}");
            }
            if !go_on(self) {
                return true;
            }
            if matches!(self.step(until), Step::Over) {
                return false;
            }
        }
    }

    /// Binds a port of an own host.
    ///
    /// # Panics
    /// If that fails.
    pub fn bind(&mut self, host: usize, port: u16) -> SocketId {
        let Self { hosts, cx, .. } = self;
        let Host::Own(own) = &mut hosts[host] else { panic!("host {host} has no node") };
        let id = own.bind(cx, port, true).expect("it is up and the port free");
        self.settle_calls(host);
        id
    }

    /// Sends from an own host's socket.
    ///
    /// # Errors
    /// The node's refusal.
    pub fn send(
        &mut self,
        host: usize,
        socket: SocketId,
        to: (usize, u16),
        len: usize,
    ) -> Result<usize, Option<SendError>> {
        let Self { hosts, cx, .. } = self;
        let Host::Own(own) = &mut hosts[host] else { panic!("host {host} has no node") };
        let result = own.send(cx, socket, to.0, to.1, len);
        self.settle_calls(host);
        result
    }

    /// Sends from a kernel's socket.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn kernel_send(
        &mut self,
        host: usize,
        port: u16,
        to: (usize, u16),
        len: usize,
    ) -> Result<usize, Refusal> {
        let Self { hosts, cx, .. } = self;
        let Host::Kernel(kernel) = &mut hosts[host] else { panic!("host {host} has no kernel") };
        let result = kernel.send(cx, port, to.0, to.1, len, false);
        self.settle_calls(host);
        result
    }

    /// Whether message `id` was queued for a socket at its destination.
    #[must_use]
    pub fn has_arrived(&self, id: usize) -> bool {
        !self.cx.ledger.messages[id].deliveries.is_empty()
    }
}

/// What one step did.
pub enum Step {
    /// One event was handled.
    Done,
    /// An event that the caller put into the queue is due.
    Yours(Event),
    /// Nothing more happens until then.
    Over,
}
