//! Zero copy off, on and by its controller, for messages of each size.

use std::fmt::Write as _;

use super::child::Child;
use super::figures::{Spread, size, table};
use super::part::{Buffers, Part, Role, Slice};
use super::place::{Path, Place};
use super::{Bench, Common, Direction, MODES};

/// The benchmark.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Sizes {
    #[command(flatten)]
    common: Common,
    /// Over which paths.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Path::Loopback, Path::Uncopied])]
    paths: Vec<Path>,
    /// Message sizes in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20])]
    sizes: Vec<usize>,
    /// Size of the messages whose round trip is measured, in bytes.
    #[arg(long, default_value_t = 1 << 20)]
    rtt_size: usize,
    /// Every byte of what is sent is written before.
    #[arg(long)]
    fill: bool,
    /// In which direction modes are compared.
    #[arg(long, value_enum, default_value_t = Direction::Both)]
    direction: Direction,
    /// Only this table.
    #[arg(long, value_enum)]
    only: Option<Table>,
}

/// The tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Table {
    /// What judges: one thread, one CPU.
    Judged,
    /// Two processes.
    WallClock,
    /// A message there, a message back.
    RoundTrip,
}

impl Bench for Sizes {
    fn run(&self) -> Result<(), String> {
        for path in &self.paths {
            let place = match Place::open(*path) {
                Ok(place) => place,
                Err(why) => {
                    println!("skipped: {path}: {why}\n");
                    continue;
                }
            };
            println!("## {path}\n");
            let wanted = |table| self.only.is_none_or(|only| only == table);
            if wanted(Table::Judged) {
                println!("{}", self.judged(&place)?);
            }
            if wanted(Table::WallClock) {
                println!("{}", self.wall_clock(&place)?);
            }
            if wanted(Table::RoundTrip) {
                println!("{}", self.round_trip(&place)?);
            }
        }
        Ok(())
    }
}

impl Sizes {
    fn part(&self, role: Role, mode: usize, size: usize) -> Part {
        let buffers = if self.fill { Buffers::FilledPool } else { Buffers::Pool };
        super::part(role, mode, size, buffers, self.direction, self.common.port)
    }

    /// Both sides in one thread on one CPU: what it costs, without who waits for whom.
    fn judged(&self, place: &Place) -> Result<String, String> {
        let mut rows = Vec::new();
        for &bytes in &self.sizes {
            let mut children = super::each_mode(|mode| {
                let mut child = Child::start(place, &self.part(Role::Both, mode, bytes))?;
                child.work(self.common.warmup)?;
                Ok(child)
            })?;
            let mut found: [Vec<Slice>; 3] = Default::default();
            for _ in 0..self.common.rounds {
                for (child, found) in children.iter_mut().zip(&mut found) {
                    found.push(child.work(self.common.seconds)?);
                }
            }
            let cost = |s: &Slice| super::ns_per_kib(s, bytes);
            let best = [0, 1, 2].map(|i| Spread::of(&found[i], cost).min);
            let mut row = vec![size(bytes)];
            row.extend(found.iter().map(|f| {
                let spread = Spread::of(f, cost);
                format!("{:.1} (median {:.1})", spread.min, spread.median)
            }));
            row.push(format!("{:.3}", best[1] / best[0]));
            row.push(format!("{:.3}", best[2] / best[0].min(best[1])));
            // A tenth more than what was measured: the beginning of each slice counts here.
            let share = |mode: usize, of: fn(&Slice) -> u64| {
                let all: f64 = found[mode].iter().map(|s| s.messages as f64 * 1.1 * bytes as f64).sum();
                100.0 * found[mode].iter().map(|s| of(s) as f64).sum::<f64>() / all
            };
            let pinned = [1, 2].map(|mode| format!("{:.0}", share(mode, |s| s.pinned)));
            row.push(pinned.join(", "));
            row.push(format!("{:.0}", 100.0 * Spread::of(&found[1], |s| s.copied).median));
            let mapped = [1, 2].map(|mode| format!("{:.0}", share(mode, |s| s.mapped)));
            row.push(mapped.join(", "));
            rows.push(row);
        }
        let heading = [
            "size",
            "off",
            "on",
            "auto",
            "on/off",
            "auto/better",
            "pinned %, on and auto",
            "copied %, on",
            "mapped %, on and auto",
        ];
        Ok(format!(
            "One thread that sends and receives, one CPU: ns of CPU a KiB, best of {}\n\n{}",
            self.common.rounds,
            table(&heading, &rows)
        ))
    }

    /// Two processes.
    fn wall_clock(&self, place: &Place) -> Result<String, String> {
        let mut rows = Vec::new();
        for &bytes in &self.sizes {
            let mut pairs = super::each_mode(|mode| {
                let part = self.part(Role::Sender, mode, bytes);
                let (mut sender, receiver) = super::two(place, &part, Role::Receiver)?;
                sender.work(self.common.warmup)?;
                Ok((sender, receiver))
            })?;
            let mut found: [Vec<(Slice, Slice)>; 3] = Default::default();
            for _ in 0..self.common.rounds {
                for ((sender, receiver), found) in pairs.iter_mut().zip(&mut found) {
                    receiver.cost()?;
                    let sent = sender.work(self.common.seconds)?;
                    found.push((sent, receiver.cost()?));
                }
            }
            let mut row = vec![size(bytes)];
            for found in &found {
                let speed = Spread::of(found, |(s, _)| s.messages as f64 * bytes as f64 / s.seconds / 1e9);
                let cpu = Spread::of(found, |(s, _)| super::ns_per_kib(s, bytes)).median;
                let taken = Spread::of(found, |(_, r)| super::ns_per_kib(r, bytes)).median;
                row.push(format!("{:.2} ({:.2}..{:.2})", speed.median, speed.min, speed.max));
                row.push(format!("{cpu:.0} + {taken:.0}"));
            }
            rows.push(row);
        }
        let heading = ["size", "off GB/s", "CPU s + r", "on GB/s", "CPU s + r", "auto GB/s", "CPU s + r"];
        Ok(format!(
            "Two processes: GB/s, and ns of CPU a KiB of sender and receiver; medians of {}\n\n{}",
            self.common.rounds,
            table(&heading, &rows)
        ))
    }

    /// A message there, a message back.
    fn round_trip(&self, place: &Place) -> Result<String, String> {
        let bytes = self.rtt_size;
        let mut pairs = super::each_mode(|mode| {
            let part = self.part(Role::Asker, mode, bytes);
            let (mut asker, answerer) = super::two(place, &part, Role::Answerer)?;
            asker.work(self.common.warmup)?;
            Ok((asker, answerer))
        })?;
        let mut found: [Vec<(Slice, Slice)>; 3] = Default::default();
        for _ in 0..self.common.rounds {
            for ((asker, answerer), found) in pairs.iter_mut().zip(&mut found) {
                answerer.cost()?;
                let asked = asker.work(self.common.seconds)?;
                found.push((asked, answerer.cost()?));
            }
        }
        let mut rows = Vec::new();
        for (mode, found) in MODES.iter().zip(&found) {
            let us = |s: &Slice| s.cpu * 1e6 / s.messages.max(1) as f64;
            rows.push(vec![
                (*mode).to_owned(),
                Spread::of(found, |(a, _)| a.p50_us).show(0),
                Spread::of(found, |(a, _)| a.p99_us).show(0),
                Spread::of(found, |(a, _)| us(a)).show(0),
                Spread::of(found, |(_, b)| us(b)).show(0),
            ]);
        }
        let mut text = format!("Round trips of {} there and back, between two processes\n\n", size(bytes));
        let heading = ["zero copy", "p50 us", "p99 us", "CPU us of the asker", "CPU us of the answerer"];
        let _ = write!(text, "{}", table(&heading, &rows));
        Ok(text)
    }
}
