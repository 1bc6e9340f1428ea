//! What was found, as a table and as JSON.

use std::fmt;

use serde::Serialize;

use super::Contender;
use crate::case::{Case, Kind};
use crate::pair::{Run, Setup};
use crate::report::Spread;

pub(crate) struct Table {
    reference: Contender,
    brokers: Vec<String>,
    lines: Vec<Line>,
}

#[derive(Serialize)]
struct Line {
    #[serde(flatten)]
    case: Case,
    way: Contender,
    runs: Vec<Run>,
    /// Of what stands between the programs, in nanoseconds for each message.
    broker_cpu_ns: Vec<f64>,
}

/// A line for those who read.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    line: &'a Line,
    unit: &'static str,
    value: Option<Spread>,
    /// By how much the reference is better, in the same round: above 1, it is.
    reference_ahead: Option<Spread>,
}

impl Line {
    fn spread(&self, of: impl Fn(&Run) -> f64) -> Option<Spread> {
        Spread::of(self.runs.iter().map(of))
    }

    fn median(&self, of: impl Fn(&Run) -> f64) -> f64 {
        self.spread(of).map_or(0.0, |s| s.median)
    }
}

impl Table {
    pub(crate) fn new(
        cases: &[Case],
        ways: &[Contender],
        reference: Contender,
        brokers: Vec<String>,
    ) -> Self {
        let line = |case: &Case, way: &Contender| Line {
            case: *case,
            way: *way,
            runs: Vec::new(),
            broker_cpu_ns: Vec::new(),
        };
        let lines = cases.iter().flat_map(|case| ways.iter().map(move |way| line(case, way))).collect();
        Self { reference, brokers, lines }
    }

    pub(crate) fn add(&mut self, case: Case, way: Contender, run: Run, broker_seconds: f64) {
        if let Some(line) = self.lines.iter_mut().find(|l| l.case == case && l.way == way) {
            line.broker_cpu_ns.push(broker_seconds * 1e9 / run.messages.max(1) as f64);
            line.runs.push(run);
        }
    }

    fn ahead(&self, line: &Line) -> Option<Spread> {
        let reference = self.lines.iter().find(|l| l.case == line.case && l.way == self.reference)?;
        let pairs = reference.runs.iter().zip(&line.runs);
        Spread::of(pairs.map(|(ours, theirs)| match line.case.kind {
            Kind::RoundTrip => theirs.value / ours.value,
            _ => ours.value / theirs.value,
        }))
    }

    pub(crate) fn json(&self, setup: &Setup, rounds: u32) -> Result<String, String> {
        let line = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
        let lines: Vec<Shown<'_>> = self
            .lines
            .iter()
            .map(|line| Shown {
                line,
                unit: if line.case.kind == Kind::RoundTrip { "us" } else { "messages/s" },
                value: line.spread(|r| r.value),
                reference_ahead: self.ahead(line),
            })
            .collect();
        serde_json::to_string_pretty(&serde_json::json!({
            "kernel": line("/proc/sys/kernel/osrelease"),
            "cpus": std::thread::available_parallelism().map_or(0, usize::from),
            "load_average_at_end": line("/proc/loadavg"),
            "brokers": self.brokers,
            "rounds": rounds,
            "setup": setup,
            "reference": self.reference,
            "lines": lines,
        }))
        .map_err(|e| e.to_string())
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.reference.name();
        writeln!(
            f,
            "| case | way | median (least..most) | GB/s | p99 us | CPU ns: sender + receiver + between | lost | {name} is better by |"
        )?;
        writeln!(f, "| --- | --- | --- | --- | --- | --- | --- | --- |")?;
        for line in &self.lines {
            let Some(value) = line.spread(|r| r.value) else { continue };
            let number = |v: f64| if v < 1e4 { format!("{v:.1}") } else { format!("{v:.0}") };
            let round_trip = line.case.kind == Kind::RoundTrip;
            let unit = if round_trip { "us" } else { "/s" };
            let between = Spread::of(line.broker_cpu_ns.iter().copied()).map_or(0.0, |s| s.median);
            let lost: u64 = line.runs.iter().map(|r| r.lost).sum();
            let all: u64 = line.runs.iter().map(|r| r.messages + r.lost).sum();
            writeln!(
                f,
                "| {} | {} | {} {unit} ({}..{}) | {} | {} | {:.0} + {:.0} + {between:.0} | {} | {} |",
                line.case,
                line.way.name(),
                number(value.median),
                number(value.min),
                number(value.max),
                if round_trip {
                    String::new()
                } else {
                    format!("{:.2}", line.median(|r| r.bytes_per_second) / 1e9)
                },
                if round_trip { format!("{:.1}", line.median(|r| r.p99_us)) } else { String::new() },
                line.median(|r| r.sender_cpu_ns),
                line.median(|r| r.receiver_cpu_ns),
                if lost == 0 {
                    "0".to_owned()
                } else {
                    format!("{:.2} %", 100.0 * lost as f64 / all.max(1) as f64)
                },
                self.ahead(line)
                    .map_or_else(String::new, |a| format!("{:.2} ({:.2}..{:.2})", a.median, a.min, a.max)),
            )?;
        }
        Ok(())
    }
}
