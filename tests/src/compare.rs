//! The kernel's RDS and ours under the same traffic, between the same two guests, in turns.

use std::fmt::Write as _;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::guest::{Guest, Kernel};
use crate::skip::Unavailable;
use crate::stress::Stress;

/// TCP port of our nodes in the guests, whose kernel has 16385.
const NODE: &str = "17485";
/// How long a run goes on before anything is measured, in seconds.
const WARM_UP: f64 = 0.5;

/// Which RDS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The guest's.
    Kernel,
    /// A node in `rds-stress`.
    Ours,
}

/// Traffic: one task a side, requests of both sides.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Length of a request in bytes, with the header of rds-stress.
    pub size: u32,
    /// Requests under way, each way.
    pub depth: u32,
}

/// What is measured by default: for each size one request at a time, and as many as fill the path.
pub const CASES: [Case; 8] = [
    Case { size: 64, depth: 1 },
    Case { size: 64, depth: 64 },
    Case { size: 4096, depth: 1 },
    Case { size: 4096, depth: 32 },
    Case { size: 65536, depth: 1 },
    Case { size: 65536, depth: 8 },
    Case { size: 1 << 20, depth: 1 },
    Case { size: 1 << 20, depth: 4 },
];

/// What a run gave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Measured {
    /// Requests of one side that were answered, in a second.
    pub rate: f64,
    /// Bytes of requests and acks, sent and received, in a second.
    pub bytes: f64,
    /// Median round trip of a request, in microseconds.
    pub rtt: f64,
    /// Processor time of both guests, kernels and all, in microseconds a request of either side.
    pub cpu: f64,
}

/// Two guests with `rds-stress` in them.
pub struct Pair {
    guests: Vec<Guest>,
    program: String,
}

impl Pair {
    /// Boots them, and puts `program` into both.
    ///
    /// # Errors
    /// No guests.
    pub fn boot(kernel: Kernel, program: &Path) -> Result<Self, Unavailable> {
        let guests = Guest::several(kernel, 2)?;
        let paths: Vec<String> = guests.iter().map(|g| g.put(program)).collect();
        Ok(Self { guests, program: paths[0].clone() })
    }

    /// Name and version of the guests' kernel.
    #[must_use]
    pub fn kernel(&self) -> String {
        self.guests[0].shell("uname -r").trim().to_owned()
    }

    fn start(&self, guest: usize, backend: Backend, case: Case, seconds: u32) -> Stress {
        let mut command = self.guests[guest].command(&self.program);
        command.args(["-r", &self.guests[guest].address().to_string()]);
        match backend {
            Backend::Kernel => command.args(["--backend", "kernel"]),
            Backend::Ours => command.args(["--listen-port", NODE, "--dial-port", NODE]),
        };
        if guest == 0 {
            let to = self.guests[1].address().to_string();
            let (size, depth) = (case.size.to_string(), case.depth.to_string());
            command.args(["-s", &to, "-q", &size, "-d", &depth, "-T", &seconds.to_string()]);
        }
        Stress::start_after(command, &WARM_UP.to_string())
    }

    /// Runs a case.
    ///
    /// # Panics
    /// A run fails.
    #[must_use]
    pub fn run(&self, backend: Backend, case: Case, seconds: u32) -> Measured {
        let mut passive = self.start(1, backend, case, seconds);
        passive.waits();
        let mut active = self.start(0, backend, case, seconds);
        active.says(|line| line.contains("Starting up"));
        thread::sleep(Duration::from_secs_f64(WARM_UP + 0.2));
        let begin = (Instant::now(), self.busy());
        thread::sleep(Duration::from_secs_f64(f64::from(seconds) - 0.8));
        let end = (Instant::now(), self.busy());
        let (active, passive) = (active.end(), passive.end());
        let busy = (end.1 - begin.1) / end.0.duration_since(begin.0).as_secs_f64();
        let number = |report: &Value, key: &str| report[key].as_f64().unwrap_or_default();
        let rate = number(&active, "requests_per_s");
        let both = rate + number(&passive, "requests_per_s");
        Measured {
            rate,
            bytes: number(&active, "bytes_per_s"),
            rtt: active["rtt_us"]["p50"].as_f64().unwrap_or_default(),
            cpu: busy * 1e6 / both.max(1e-9),
        }
    }

    /// Seconds that the processors of both guests have worked since they were booted.
    fn busy(&self) -> f64 {
        let asked: Vec<JoinHandle<_>> = self
            .guests
            .iter()
            .map(|g| {
                let mut ask = g.command("cat /proc/stat");
                thread::spawn(move || ask.output().expect("the rig runs").stdout)
            })
            .collect();
        let all = asked.into_iter().map(|a| a.join().expect("no panic"));
        all.map(|stat| busy_seconds(&String::from_utf8_lossy(&stat)).expect("/proc/stat has a line for all"))
            .sum()
    }
}

/// From the text of /proc/stat: time of all processors but idle and waiting, in seconds (proc_stat(5), at 100 ticks a second).
fn busy_seconds(stat: &str) -> Option<f64> {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = all.split_whitespace().map_while(|word| word.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; what follows is part of the first two.
    let idle = ticks.get(3)? + ticks.get(4)?;
    Some((ticks.iter().take(8).sum::<u64>() - idle) as f64 / 100.0)
}

/// A case's runs, by round.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    /// The kernel's.
    pub kernel: Vec<Measured>,
    /// Ours, of the same rounds.
    pub ours: Vec<Measured>,
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    match (of.len(), of.len() / 2) {
        (0, _) => f64::NAN,
        (n, half) if n.is_multiple_of(2) => f64::midpoint(of[half - 1], of[half]),
        (_, half) => of[half],
    }
}

impl Rounds {
    /// Ours over the kernel's within a round: median, least, most.
    #[must_use]
    pub fn ratio(&self, of: impl Fn(&Measured) -> f64) -> (f64, f64, f64) {
        let ratios: Vec<f64> = self.ours.iter().zip(&self.kernel).map(|(o, k)| of(o) / of(k)).collect();
        let (least, most) =
            (ratios.iter().copied().reduce(f64::min), ratios.iter().copied().reduce(f64::max));
        (median(ratios), least.unwrap_or(f64::NAN), most.unwrap_or(f64::NAN))
    }
}

/// A table in Markdown, one line a case.
#[must_use]
pub fn table(results: &[(Case, Rounds)]) -> String {
    let mut text = String::from(
        "| size | under way | kernel: requests/s | ours: requests/s | rate, ours/kernel | round trip, ours/kernel | CPU a request, ours/kernel |\n| --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for (case, rounds) in results {
        let rate = |of: &[Measured]| median(of.iter().map(|m| m.rate).collect());
        let show = |(middle, least, most): (f64, f64, f64)| format!("{middle:.2} ({least:.2}..{most:.2})");
        let _ = writeln!(
            text,
            "| {} | {} | {:.0} | {:.0} | {} | {} | {} |",
            size(case.size),
            case.depth,
            rate(&rounds.kernel),
            rate(&rounds.ours),
            show(rounds.ratio(|m| m.rate)),
            show(rounds.ratio(|m| m.rtt)),
            show(rounds.ratio(|m| m.cpu)),
        );
    }
    text
}

fn size(bytes: u32) -> String {
    match bytes {
        b if b.is_multiple_of(1 << 20) => format!("{} MiB", b >> 20),
        b if b.is_multiple_of(1 << 10) => format!("{} KiB", b >> 10),
        b => format!("{b} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_processors_worked_is_all_but_idle_and_waiting() {
        let stat = "cpu  100 1 50 1000 300 2 7 0 90 90\ncpu0 100 1 50 1000 300 2 7 0 90 90\nintr 1\n";
        assert_eq!(busy_seconds(stat), Some(1.6));
        assert_eq!(busy_seconds("intr 1"), None);
    }

    #[test]
    fn ratios_are_of_runs_in_the_same_round() {
        let run = |rate| Measured { rate, ..Measured::default() };
        let rounds = Rounds {
            kernel: vec![run(100.0), run(10.0), run(50.0)],
            ours: vec![run(150.0), run(20.0), run(50.0)],
        };
        assert_eq!(rounds.ratio(|m| m.rate), (1.5, 1.0, 2.0));
        let text = table(&[(Case { size: 4096, depth: 32 }, rounds)]);
        assert!(
            text.ends_with(
                "| 4 KiB | 32 | 50 | 50 | 1.50 (1.00..2.00) | NaN (NaN..NaN) | NaN (NaN..NaN) |\n"
            ),
            "{text}"
        );
    }
}
