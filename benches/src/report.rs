//! Medians, ratios, table and JSON.

use std::fmt;

use serde::Serialize;

use crate::Cli;
use crate::case::{Case, Kind, Transport};
use crate::pair::Run;

/// Everything that was measured.
pub(crate) struct Report {
    lines: Vec<Line>,
}

struct Line {
    case: Case,
    floor: Vec<Run>,
    rds: Vec<Run>,
}

/// The middle of some values, and their range.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    pub(crate) fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Some(Self { median, min, max })
    }
}

#[derive(Serialize)]
struct Json<'a> {
    case: String,
    #[serde(flatten)]
    what: Case,
    unit: &'static str,
    floor: Option<Spread>,
    rds: Option<Spread>,
    /// RDS divided by floor, round by round.
    ratio: Option<Spread>,
    floor_runs: &'a [Run],
    rds_runs: &'a [Run],
}

#[derive(Serialize)]
struct Machine<'a> {
    kernel: String,
    /// Of 1, 5 and 15 minutes, at the end: the comparison itself keeps about two cores busy.
    load_average: String,
    congestion_control: &'a str,
    cpus: usize,
    rounds: u32,
    seconds: f64,
    warmup: f64,
    send_buffer: u64,
    receive_buffer: u64,
}

impl Line {
    fn runs(&self, transport: Transport) -> &[Run] {
        match transport {
            Transport::Floor => &self.floor,
            _ => &self.rds,
        }
    }

    fn spread(&self, transport: Transport, of: impl Fn(&Run) -> f64) -> Option<Spread> {
        Spread::of(self.runs(transport).iter().map(of))
    }

    fn ratio(&self) -> Option<Spread> {
        Spread::of(self.rds.iter().zip(&self.floor).map(|(rds, floor)| rds.value / floor.value))
    }
}

impl Report {
    pub(crate) fn new(cases: &[Case]) -> Self {
        Self {
            lines: cases
                .iter()
                .map(|case| Line { case: *case, floor: Vec::new(), rds: Vec::new() })
                .collect(),
        }
    }

    pub(crate) fn add(&mut self, case: usize, transport: Transport, run: Run) {
        match transport {
            Transport::Floor => self.lines[case].floor.push(run),
            _ => self.lines[case].rds.push(run),
        }
    }

    pub(crate) fn json(&self, cli: &Cli) -> Result<String, String> {
        let cases: Vec<Json<'_>> = self
            .lines
            .iter()
            .map(|line| Json {
                case: line.case.to_string(),
                what: line.case,
                unit: if line.case.kind == Kind::RoundTrip { "us" } else { "messages/s" },
                floor: line.spread(Transport::Floor, |r| r.value),
                rds: line.spread(Transport::Rds, |r| r.value),
                ratio: line.ratio(),
                floor_runs: &line.floor,
                rds_runs: &line.rds,
            })
            .collect();
        let line = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let machine = Machine {
            kernel: line("/proc/sys/kernel/osrelease"),
            load_average: line("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
            congestion_control: &cli.congestion_control,
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            rounds: cli.rounds,
            seconds: cli.seconds,
            warmup: cli.warmup,
            send_buffer: cli.send_buffer,
            receive_buffer: cli.receive_buffer,
        };
        serde_json::to_string_pretty(&serde_json::json!({ "machine": machine, "cases": cases }))
            .map_err(|e| e.to_string())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<25} {:>11} {:>27} {:>8} {:>14} {:>18}",
            "case", "transport", "median (min..max)", "GB/s", "CPU ns s+r", "rds/floor"
        )?;
        for line in &self.lines {
            for transport in [Transport::Floor, Transport::Rds] {
                let Some(value) = line.spread(transport, |r| r.value) else { continue };
                let shown = if line.case.kind == Kind::RoundTrip {
                    format!("{:.1} us ({:.1}..{:.1})", value.median, value.min, value.max)
                } else {
                    let millions = |v: f64| format!("{:.*}", if v < 1e5 { 4 } else { 2 }, v / 1e6);
                    format!(
                        "{} M/s ({}..{})",
                        millions(value.median),
                        millions(value.min),
                        millions(value.max)
                    )
                };
                let median = |of: fn(&Run) -> f64| line.spread(transport, of).map_or(0.0, |s| s.median);
                let cpu = format!("{:.0}+{:.0}", median(|r| r.sender_cpu_ns), median(|r| r.receiver_cpu_ns));
                let ratio = line.ratio().filter(|_| transport == Transport::Rds);
                let ratio =
                    ratio.map_or(String::new(), |r| format!("{:.2} ({:.2}..{:.2})", r.median, r.min, r.max));
                let speed = median(|r| r.bytes_per_second) / 1e9;
                writeln!(
                    f,
                    "{:<25} {:>11} {:>27} {:>8.2} {:>14} {:>18}",
                    line.case.to_string(),
                    transport.to_string(),
                    shown,
                    speed,
                    cpu,
                    ratio
                )?;
            }
        }
        Ok(())
    }
}
