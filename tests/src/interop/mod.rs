//! Our node, in a program or in a daemon, against the kernels of guests: the interoperability suite.
//!
//! A [`Case`] is one kernel, and our node either below or above its address, which decides who connects; a [`Scenario`] is what is done
//! with the two, and what must hold of it. [`run::all`] runs every scenario of every case, and [`table`] writes down what came of it.

pub mod capture;
pub mod exchange;
pub mod kpeer;
pub mod ours;
pub mod pattern;
pub mod process;
pub mod rendezvous;
pub mod run;
pub mod said;
pub mod scenarios;
pub mod table;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use crate::daemon::Plan as DaemonPlan;
use crate::guest::{Guest, Kernel};
use crate::ledger::process::Scratch;
use kpeer::Kpeer;
use rendezvous::{Party, Rendezvous};

/// How long anything may take that must happen; long enough for a link that was down for longer than keepalive, and a kernel that is
/// emulated.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Where our node's address is, seen from the kernel's. The lower one connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Below: our node connects.
    Smaller,
    /// Above: the kernel connects.
    Larger,
}

impl Role {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Smaller, Self::Larger];

    /// "smaller" or "larger".
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Smaller => "smaller",
            Self::Larger => "larger",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One kernel and one role of our node, for one scenario.
#[derive(Debug)]
pub struct Case<'a> {
    /// The guest.
    pub guest: &'a Guest,
    /// What it runs.
    pub kernel: Kernel,
    /// Which of its two addresses here our node has.
    pub role: Role,
    /// Whether over IPv6.
    pub v6: bool,
    /// Whether our node is a daemon's, of which whoever uses it is a client.
    pub daemon: bool,
    /// Program `rds-interop-peer`: a node of ours in a process of its own.
    pub program: &'a Path,
    /// The scenario's number: each has ports of its own, so that what one that failed has left behind harms no other.
    pub number: usize,
    /// The cases that share the guest at this time.
    pub party: Party<'a>,
}

impl Case<'_> {
    /// Our node's address.
    #[must_use]
    pub fn ours(&self) -> IpAddr {
        match (self.role, self.v6) {
            (Role::Smaller, false) => Guest::HOST_BELOW.into(),
            (Role::Larger, false) => Guest::HOST_ABOVE.into(),
            (Role::Smaller, true) => Guest::HOST_BELOW_V6.into(),
            (Role::Larger, true) => Guest::HOST_ABOVE_V6.into(),
        }
    }

    /// [`Case::port`] of our node's.
    #[must_use]
    pub fn ours_at(&self, base: u16) -> SocketAddr {
        SocketAddr::new(self.ours(), self.port(base))
    }

    /// [`Case::port`] of the kernel's.
    #[must_use]
    pub fn kernel_at(&self, base: u16) -> SocketAddr {
        let address = if self.v6 { Guest::ADDRESS_V6.into() } else { Guest::ADDRESS.into() };
        SocketAddr::new(address, self.port(base))
    }

    /// The port that this scenario and role have for what another calls `base`, from 2000 to 9999; port 0 is the same for all.
    ///
    /// # Panics
    /// There are too many scenarios for that.
    #[must_use]
    pub fn port(&self, base: u16) -> u16 {
        if base == 0 {
            return 0;
        }
        let number = u16::try_from(self.number).expect("a few");
        // 20 ports a scenario, and the two roles far apart.
        base + number * 20 + if self.role == Role::Larger { 10_000 } else { 0 }
    }

    /// The same with a daemon's node for ours. It must not meet the others of its party.
    #[must_use]
    pub fn through_daemon<'b>(&'b self, alone: &'b Rendezvous) -> Case<'b> {
        Case { daemon: true, party: alone.join(), ..*self }
    }

    /// A daemon for our node, whose files are in `scratch`.
    ///
    /// # Panics
    /// The case is one of IPv6.
    #[must_use]
    pub fn daemon_plan(&self, scratch: &Scratch) -> DaemonPlan {
        match self.ours() {
            IpAddr::V4(ours) => DaemonPlan::new(scratch, ours),
            IpAddr::V6(ours) => panic!("no daemon at {ours} in this suite"),
        }
    }

    /// A directory of this case's own.
    #[must_use]
    pub fn scratch(&self) -> Scratch {
        Scratch::new(&format!("interop-{}-{}-{}", self.kernel, self.role, self.number))
    }

    /// Starts a program on the kernel's side. An IPv6 address in `arguments` stands in quotes.
    #[must_use]
    pub fn kpeer(&self, arguments: &str) -> Kpeer {
        Kpeer::start(self.guest, arguments)
    }

    /// Does something to the guest, once for all cases that share it, after all of them have come here.
    pub fn together(&self, what: impl FnOnce()) {
        self.party.together(what);
    }
}

/// What is done with a case, and what must hold. Fails by a panic that says what does not.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// A few words.
    pub name: &'static str,
    /// What holds when it passes, with this kernel.
    pub promise: fn(Kernel) -> &'static str,
    /// Does it.
    pub run: fn(&Case<'_>),
}

impl fmt::Debug for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scenario").field("name", &self.name).finish_non_exhaustive()
    }
}
