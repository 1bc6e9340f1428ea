//! What each mechanism of zero copy brings, on against off, in turns in one run.

mod change;
mod child;
mod churn;
mod completions;
mod connections;
mod figures;
mod pages;
mod part;
mod place;
mod pool;
mod single;
mod sizes;
mod traffic;

use std::net::IpAddr;

use child::Child;
use part::{Buffers, Part, Role, Slice};
use place::Place;

/// The modes, in the order of all tables.
const MODES: [&str; 3] = ["off", "on", "auto"];

/// The benchmarks.
#[derive(clap::Subcommand, Clone, Debug)]
pub(crate) enum What {
    /// Zero copy: off, on and auto, by the size of messages.
    Sizes(sizes::Sizes),
    /// Zero copy: the controller where the path changes in mid-run.
    Change(change::Change),
    /// Zero copy: 100 connections that map, beside a thread that maps and unmaps memory.
    Churn(churn::Churn),
    /// Buffers of the pool against allocated ones.
    Pool(pool::Pool),
    /// Zero copy: pages mapped by a call, one against many.
    Pages(pages::Pages),
    /// Zero copy: completions reaped and references dropped one by one against in batches.
    Completions(completions::Completions),
    /// One of the processes of a benchmark; started by the program itself.
    #[command(hide = true)]
    Part {
        #[arg(value_parser = parse_part)]
        part: Box<Part>,
    },
}

/// Options of all of them.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Common {
    /// Rounds; each has a slice of everything that is compared.
    #[arg(long, default_value_t = 9)]
    rounds: u32,
    /// Length of a slice in seconds.
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Time before the first round that is not measured, in seconds, of each process: controllers learn in it.
    #[arg(long, default_value_t = 3.0)]
    warmup: f64,
    /// TCP port of the nodes, which are at 127.55.0.0/16.
    #[arg(long, default_value_t = 17386)]
    port: u16,
}

trait Bench {
    /// Measures, and prints.
    fn run(&self) -> Result<(), String>;
}

impl What {
    pub(crate) fn run(&self) -> Result<(), String> {
        match self {
            Self::Sizes(bench) => bench.run(),
            Self::Change(bench) => bench.run(),
            Self::Churn(bench) => bench.run(),
            Self::Pool(bench) => bench.run(),
            Self::Pages(bench) => bench.run(),
            Self::Completions(bench) => bench.run(),
            Self::Part { part } => part.run(),
        }
    }
}

fn parse_part(text: &str) -> Result<Box<Part>, String> {
    serde_json::from_str(text).map_err(|e| e.to_string())
}

/// In which direction modes are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Direction {
    /// Both have the mode.
    Both,
    /// Sending has it; receiving copies.
    Send,
    /// Receiving has it; sending is on, without which nothing could be mapped.
    Receive,
}

/// A process of one of [`MODES`], with addresses of its own.
fn part(role: Role, mode: usize, size: usize, buffers: Buffers, direction: Direction, port: u16) -> Part {
    let address = |last| IpAddr::from([127, 55, 10 + mode as u8, last]);
    let (send, receive) = match direction {
        Direction::Both => (MODES[mode], MODES[mode]),
        Direction::Send => (MODES[mode], "off"),
        Direction::Receive => ("on", MODES[mode]),
    };
    let (send, receive) = (send.to_owned(), receive.to_owned());
    Part { role, send, receive, size, buffers, own: address(1), peer: address(2), port }
}

/// The two ends of traffic between processes: who begins, and who waits for it, which is started first.
fn two(place: &Place, first: &Part, second: Role) -> Result<(Child, Child), String> {
    let other = Part { role: second, own: first.peer, peer: first.own, ..first.clone() };
    let other = Child::start(place, &other)?;
    Ok((Child::start(place, first)?, other))
}

/// Something for each of [`MODES`].
fn each_mode<T>(make: impl FnMut(usize) -> Result<T, String>) -> Result<Vec<T>, String> {
    (0..MODES.len()).map(make).collect()
}

/// CPU time of a slice for each KiB of payload.
fn ns_per_kib(slice: &Slice, size: usize) -> f64 {
    slice.cpu * 1e9 / (slice.messages.max(1) as f64 * size as f64 / 1024.0)
}
