//! The table of the reference: column by column, width by width (rds-tools, section 4.1).

use std::time::Duration;

use crate::out::{Out, line};
use crate::stats::Counts;

/// The heading.
pub const HEADING: &str = "tsks   tx/s   rx/s  tx+rx K/s    mbi K/s    mbo K/s tx us/c   rtt us cpu %";

/// What the `cpu %` column shows without `-c`.
pub const NO_CPU: f64 = -1.0;

/// A second's line: numbers of requests as they are, rates scaled to one second.
#[must_use]
pub fn interval(tasks: usize, counts: &Counts, elapsed: Duration, cpu: f64) -> String {
    row(tasks, counts.tx, counts.rx, counts, elapsed, cpu)
}

/// The final line: rates over the run, in whole requests a second, and columns that are not the reference's behind.
#[must_use]
pub fn average(tasks: usize, counts: &Counts, elapsed: Duration, cpu: f64, more: &str) -> String {
    let rate = |n: u64| (n as f64 / seconds(elapsed)) as u64;
    format!("{}{more}  (average)", row(tasks, rate(counts.tx), rate(counts.rx), counts, elapsed, cpu))
}

fn row(tasks: usize, tx: u64, rx: u64, counts: &Counts, elapsed: Duration, cpu: f64) -> String {
    format!(
        "{tasks:4} {tx:6} {rx:6} {:10.2} {:10.2} {:10.2} {:7.2} {:8.2} {cpu:5.2}",
        kib_per_second(counts, elapsed),
        0.0,
        0.0,
        mean_us(counts.send_ns, counts.tx),
        mean_us(counts.rtt_ns, counts.acked),
    )
}

/// Bytes of requests and acks, both ways, in KiB a second.
#[must_use]
pub fn kib_per_second(counts: &Counts, elapsed: Duration) -> f64 {
    counts.bytes as f64 / 1024.0 / seconds(elapsed)
}

/// Mean of `n` times that sum up to `ns`, in microseconds; 0 if there are none.
#[must_use]
pub fn mean_us(ns: u64, n: u64) -> f64 {
    ns as f64 / 1000.0 / n.max(1) as f64
}

/// Prints the final line, after a rule if lines came before it.
pub fn print_average(out: Out, row: &str, rule: bool) {
    if rule {
        line!(out, "{}", "-".repeat(45));
    }
    line!(out, "{row}");
}

/// Never 0, to divide by.
fn seconds(elapsed: Duration) -> f64 {
    elapsed.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: Counts = Counts {
        tx: 20001,
        rx: 19999,
        acked: 20000,
        bytes: 43_480_000,
        send_ns: 40_002_000,
        rtt_ns: 900_000_000,
    };

    #[test]
    fn a_second_shows_requests_as_counted_and_rates_scaled() {
        let row = interval(4, &COUNTS, Duration::from_secs(2), NO_CPU);
        assert_eq!(row, "   4  20001  19999   21230.47       0.00       0.00    2.00    45.00 -1.00");
        assert_eq!(row.len(), HEADING.len());
    }

    #[test]
    fn the_average_shows_whole_requests_a_second() {
        let row = average(4, &COUNTS, Duration::from_secs(2), 12.5, "");
        assert_eq!(
            row,
            "   4  10000   9999   21230.47       0.00       0.00    2.00    45.00 12.50  (average)"
        );
    }

    #[test]
    fn a_run_without_traffic_shows_zeros() {
        let row = average(1, &Counts::default(), Duration::ZERO, NO_CPU, "");
        assert_eq!(
            row,
            "   1      0      0       0.00       0.00       0.00    0.00     0.00 -1.00  (average)"
        );
    }
}
