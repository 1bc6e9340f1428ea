//! One process of a run.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use hdrhistogram::Histogram;
use nix::sys::resource::{UsageWho, getrusage};

use crate::case::{Found, Kind, Transport};
use crate::{floor, rds, versus};

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Takes, or answers. Started first.
    Receiver,
    /// Sends, or asks.
    Sender,
}

/// Everything a side must know.
#[derive(Args, Clone, Debug)]
pub(crate) struct Side {
    #[arg(long, value_enum)]
    pub(crate) transport: Transport,
    #[arg(long, value_enum)]
    pub(crate) kind: Kind,
    #[arg(long, value_enum)]
    pub(crate) role: Role,
    #[arg(long)]
    pub(crate) size: usize,
    #[arg(long)]
    pub(crate) seconds: f64,
    #[arg(long)]
    pub(crate) warmup: f64,
    #[arg(long)]
    pub(crate) port: u16,
    #[arg(long)]
    pub(crate) send_buffer: u64,
    #[arg(long)]
    pub(crate) receive_buffer: u64,
    #[arg(long)]
    pub(crate) congestion_control: String,
    /// Where the receiver is: an address, or what a broker calls it.
    #[arg(long)]
    pub(crate) to: Option<String>,
    /// Be a client of the daemon with this socket, instead of a node.
    #[arg(long)]
    pub(crate) attach: Option<PathBuf>,
    /// Address of the RDS node, if it is not the usual one of the role.
    #[arg(long)]
    pub(crate) at: Option<Ipv4Addr>,
    /// The broker.
    #[arg(long)]
    pub(crate) broker: Option<SocketAddr>,
}

impl Side {
    /// Runs the side: prints `ready ADDRESS` (a receiver), later what it found as JSON; ends when standard input does.
    pub(crate) fn run(&self) -> Result<(), String> {
        match (self.transport, self.role) {
            (Transport::Floor, Role::Receiver) => floor::receiver(self),
            (Transport::Floor, Role::Sender) => floor::sender(self),
            (Transport::Rds, Role::Receiver) => rds::receiver(self),
            (Transport::Rds, Role::Sender) => rds::sender(self),
            (Transport::Nats, _) => versus::client::run(self, versus::nats::Nats::new(self)?),
            (Transport::Mqtt0, _) => versus::client::run(self, versus::mqtt::Mqtt::new(self, 0)?),
            (Transport::Mqtt1, _) => versus::client::run(self, versus::mqtt::Mqtt::new(self, 1)?),
        }
    }

    /// The congestion control to set, if any.
    pub(crate) fn congestion(&self) -> Option<&str> {
        (self.congestion_control != SYSTEM).then_some(&self.congestion_control)
    }

    pub(crate) fn destination(&self) -> Result<SocketAddr, String> {
        let to = self.to.as_ref().ok_or_else(|| "a sender needs --to".to_owned())?;
        to.parse().map_err(|e| format!("--to {to}: {e}"))
    }
}

/// Set when standard input ends: the other side has what it wants.
pub(crate) fn stop_at_end_of_input() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&stop);
    std::thread::spawn(move || {
        // An error ends the input as well.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        set.store(true, Relaxed);
    });
    stop
}

/// Prints a line for the program that started this side.
pub(crate) fn say(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|e| format!("standard output: {e}"))
}

pub(crate) fn say_found(found: &Found) -> Result<(), String> {
    say(&serde_json::to_string(found).map_err(|e| e.to_string())?)
}

/// Processor time of this process so far, in seconds.
pub(crate) fn cpu_seconds() -> f64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return 0.0 };
    [usage.user_time(), usage.system_time()]
        .iter()
        .map(|t| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6)
        .sum()
}

/// The name that leaves congestion control to the system.
const SYSTEM: &str = "system";
/// Longest round trip that is told from longer ones: a minute.
const MOST_NANOS: u64 = 60_000_000_000;

/// Counts what comes in the measured time.
pub(crate) struct Meter {
    warmup: Duration,
    measured: Duration,
    first: Option<Instant>,
    begun: Option<(Instant, u64)>,
    done: bool,
    in_all: u64,
    histogram: Histogram<u64>,
}

impl Meter {
    pub(crate) fn new(side: &Side) -> Self {
        Self {
            warmup: Duration::from_secs_f64(side.warmup),
            measured: Duration::from_secs_f64(side.seconds),
            first: None,
            begun: None,
            done: false,
            in_all: 0,
            histogram: Histogram::new_with_max(MOST_NANOS, 3).expect("bounds and three digits are possible"),
        }
    }

    /// Counts messages. Cheap: the clock is not read.
    pub(crate) fn count(&mut self, messages: u64) {
        self.in_all += messages;
    }

    /// Records a round trip.
    pub(crate) fn round_trip(&mut self, took: Duration) {
        if self.begun.is_some() && !self.done {
            self.histogram.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// Reads the clock. Returns the result once the measured time is over.
    pub(crate) fn look(&mut self, now: Instant) -> Option<Found> {
        let first = *self.first.get_or_insert(now);
        match self.begun {
            None if now - first >= self.warmup => self.begun = Some((now, self.in_all)),
            Some((begun, before)) if !self.done && now - begun >= self.measured => {
                self.done = true;
                return Some(Found {
                    messages: self.in_all - before,
                    seconds: (now - begun).as_secs_f64(),
                    p50_us: self.histogram.value_at_quantile(0.5) as f64 / 1e3,
                    p99_us: self.histogram.value_at_quantile(0.99) as f64 / 1e3,
                    ..Found::default()
                });
            }
            _ => {}
        }
        None
    }

    /// What it cost in all, to be said at the end.
    pub(crate) fn cost(&self) -> Found {
        Found { cpu_seconds: cpu_seconds(), messages_in_all: self.in_all, ..Found::default() }
    }
}
