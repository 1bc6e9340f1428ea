//! CSV lines instead of the table (`--show-perfdata`; rds-tools, section 4.3).

use std::fs;
use std::time::Duration;

use crate::out::{Out, line};
use crate::session::Session;
use crate::stats::{CounterList, Counts};
use crate::table::{kib_per_second, mean_us};

/// Prints the lines, and remembers what rates are taken against.
#[derive(Debug)]
pub struct Perfdata {
    out: Out,
    counters: CounterList,
    system: System,
}

impl Perfdata {
    /// Prints the heading. The reference's has one RDMA column where its lines have two; this one names both.
    #[must_use]
    pub fn begin(out: Out, counters: CounterList) -> Self {
        let mut heading = String::from(
            "::nr_tasks:count,req_size:bytes,ack_size:bytes,rdma_size:bytes,req_sent:count,thruput:kB/s,thruput_rdma_in:kB/s,thruput_rdma_out:kB/s,tx_delay:microseconds,rtt:microseconds,cpu:percent",
        );
        for (name, _) in counters.iter() {
            let unit = if name.contains("_bytes") { "bytes" } else { "count" };
            heading.push_str(&format!(",{name}:{unit}"));
        }
        heading.push_str(",user:percent,system:percent,idle:percent,irq:percent,intr:count");
        line!(out, "{heading}");
        Self { out, counters, system: System::read() }
    }

    /// Prints a line for the time since the last one.
    pub fn print(
        &mut self,
        session: &Session,
        counts: &Counts,
        elapsed: Duration,
        cpu: f64,
        counters: CounterList,
    ) {
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let mut row = format!(
            "::{},{},{},0,{},{:.2},0.00,0.00,{:.2},{:.2},{cpu:.2}",
            session.tasks,
            session.req_size,
            session.ack_size,
            counts.tx,
            kib_per_second(counts, elapsed),
            mean_us(counts.send_ns, counts.tx),
            mean_us(counts.rtt_ns, counts.acked),
        );
        for ((_, now), (_, before)) in counters.iter().zip(self.counters.iter()) {
            row.push_str(&format!(",{:.2}", now.wrapping_sub(before) as f64 / seconds));
        }
        let system = System::read();
        row.push_str(&system.since(&self.system));
        line!(self.out, "{row}");
        (self.counters, self.system) = (counters, system);
    }
}

/// The host's CPU times, in ticks, and its interrupts. All 0 where /proc/stat cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct System {
    user: u64,
    system: u64,
    idle: u64,
    irq: u64,
    all: u64,
    interrupts: u64,
}

impl System {
    fn read() -> Self {
        fs::read_to_string("/proc/stat").map(|text| Self::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &str) -> Self {
        let numbers = |name: &str| {
            let line = text.lines().find(|l| l.split_whitespace().next() == Some(name)).unwrap_or_default();
            line.split_whitespace().skip(1).map_while(|w| w.parse::<u64>().ok()).collect::<Vec<_>>()
        };
        // user nice system idle iowait irq softirq steal guest guest_nice; guest is in user already.
        let mut cpu = numbers("cpu");
        cpu.resize(8, 0);
        Self {
            user: cpu[0] + cpu[1],
            system: cpu[2],
            idle: cpu[3] + cpu[4],
            irq: cpu[5] + cpu[6],
            all: cpu.iter().sum(),
            interrupts: numbers("intr").first().copied().unwrap_or(0),
        }
    }

    fn since(&self, before: &Self) -> String {
        let all = self.all.saturating_sub(before.all).max(1) as f64;
        let percent = |now: u64, then: u64| 100.0 * now.saturating_sub(then) as f64 / all;
        format!(
            ",{:.2},{:.2},{:.2},{:.2},{}",
            percent(self.user, before.user),
            percent(self.system, before.system),
            percent(self.idle, before.idle),
            percent(self.irq, before.irq),
            self.interrupts.saturating_sub(before.interrupts)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_are_read_as_the_kernel_prints_them() {
        let before = System::parse("cpu  10 0 10 80 0 0 0 0 0 0\ncpu0 1 2 3\nintr 100 1 2 3\n");
        let after = System::parse("cpu  20 10 30 120 10 5 5 0 7 0\ncpu0 1 2 3\nintr 142 1 2 3\n");
        assert_eq!(after.since(&before), ",20.00,20.00,50.00,10.00,42");
        assert_eq!(System::parse("nonsense"), System::default());
    }
}
