//! What every part of a simulation shares: time, chance, the net, and the books that are kept about it all.

use std::net::IpAddr;

use rds_core::wire::Capabilities;

use super::coverage::{Coverage, Seen};
use super::ledger::Ledger;
use super::net::{Nanos, Net};
use super::watch::Watch;

/// What runs on a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind {
    /// A real `proto::Node`.
    Own,
    /// A model of rds_tcp in kernels up to 6.18.
    OldKernel,
    /// A model of rds_tcp in kernels from 7.0 on.
    NewKernel,
    /// No RDS at all.
    Stranger,
}

impl HostKind {
    /// Whether it is a kernel's model.
    #[must_use]
    pub fn is_kernel(self) -> bool {
        matches!(self, Self::OldKernel | Self::NewKernel)
    }
}

/// What is publicly known of a host, for those who judge.
#[derive(Clone, Debug)]
pub struct Fact {
    /// Its address.
    pub address: IpAddr,
    /// What runs there.
    pub kind: HostKind,
    /// An earlier life of it was a kernel of another kind.
    pub changed_kind: bool,
    /// Number of its life, from 1.
    pub incarnation: u32,
    /// Lanes that it offers.
    pub lanes: u8,
    /// What it offers own peers.
    pub capabilities: Capabilities,
    /// The generation that it shows.
    pub generation: u32,
    /// Its sequence numbers are above this.
    pub first_sequence: u64,
    /// Its clock was set back between two of its lives: its numbers are not above all that it used before.
    pub clock_back: bool,
    /// Its window, in bytes.
    pub window: u64,
    /// How long it waits for a kernel's sign.
    pub grace: Nanos,
    /// Lanes that it offers kernels up to 6.18, or as one.
    pub old_kernel_lanes: u8,
    /// Whether it answers pings.
    pub ping_enable: bool,
}

/// Takes the lines of a trace.
pub type Sink = Box<dyn FnMut(&str)>;

/// What is shared.
pub struct Ctx {
    /// Now.
    pub now: Nanos,
    /// Chance.
    pub rng: fastrand::Rng,
    /// The connections.
    pub net: Net,
    /// What passes over them.
    pub watch: Watch,
    /// What was sent and what became of it.
    pub ledger: Ledger,
    /// What was hit.
    pub seen: Coverage,
    /// The hosts.
    pub facts: Vec<Fact>,
    /// The first promise that was broken.
    pub broken: Option<String>,
    /// A number that any difference between two runs would change.
    pub digest: u64,
    trace: Option<Sink>,
}

impl Ctx {
    /// Everything empty.
    #[must_use]
    pub fn new(rng: fastrand::Rng, net: Net) -> Self {
        Self {
            now: 0,
            rng,
            net,
            watch: Watch::default(),
            ledger: Ledger::default(),
            seen: Coverage::default(),
            facts: Vec::new(),
            broken: None,
            digest: 0xcbf2_9ce4_8422_2325,
            trace: None,
        }
    }

    /// Hands every event's line to `sink` from now on.
    pub fn trace_to(&mut self, sink: impl FnMut(&str) + 'static) {
        self.trace = Some(Box::new(sink));
    }

    /// Tells one event; `line` is built only if someone listens.
    pub fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(sink) = &mut self.trace {
            let now = self.now;
            sink(&format!("{:>5}.{:06} {}", now / 1_000_000_000, now / 1_000 % 1_000_000, line()));
        }
    }

    /// Mixes a number into the digest.
    pub fn digest(&mut self, n: u64) {
        self.digest = (self.digest ^ n).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    }

    /// Keeps the first broken promise.
    pub fn check(&mut self, result: Result<(), String>) {
        if let Err(promise) = result {
            self.fail(promise);
        }
    }

    /// A promise was broken.
    pub fn fail(&mut self, promise: String) {
        self.tell(|| format!("BROKEN: {promise}"));
        self.broken.get_or_insert(promise);
    }

    /// Counts a transition.
    pub fn see(&mut self, kind: Seen) {
        self.seen.see(kind);
    }

    /// The host with this address.
    #[must_use]
    pub fn host_at(&self, address: IpAddr) -> Option<usize> {
        self.facts.iter().position(|f| f.address == address)
    }

    /// True `n` times in 256.
    pub fn chance(&mut self, n: u8) -> bool {
        self.rng.u8(..) < n
    }
}
