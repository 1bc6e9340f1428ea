//! Round-trip times: quantiles, and the reference's histogram.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::out::{Out, line};

/// Longest round trip that is told apart from longer ones, in nanoseconds.
const LONGEST_NS: u64 = 60_000_000_000;
/// Rows of the reference's histogram.
const ROWS: usize = 16;

/// Round-trip times of one task, or of all.
#[derive(Clone, Debug)]
pub struct RoundTrips {
    times: Histogram<u64>,
    rows: [u64; ROWS],
}

/// [`RoundTrips`] as one process tells them to another.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// How many times of each length in nanoseconds, as exactly as a histogram knows them.
    times: Vec<(u64, u64)>,
    rows: [u64; ROWS],
}

/// Round-trip times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// 90 % are at most this.
    pub p90: f64,
    /// 99 % are at most this.
    pub p99: f64,
    /// 99.9 % are at most this.
    pub p99_9: f64,
    /// The longest.
    pub max: f64,
}

impl Default for RoundTrips {
    fn default() -> Self {
        // Allocated whole, so that recording never does. Three digits: 0.1 %.
        let times = Histogram::new_with_bounds(1, LONGEST_NS, 3).expect("the bounds are valid");
        Self { times, rows: [0; ROWS] }
    }
}

impl RoundTrips {
    /// Takes up a round trip of `ns` nanoseconds.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.times.saturating_record(ns);
        let us = ns / 1000;
        // The reference does not clamp: from 65536 us on it writes past its table.
        let row = if us == 0 { 0 } else { us.ilog2() as usize };
        self.rows[row.min(ROWS - 1)] += 1;
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.times.reset();
        self.rows = [0; ROWS];
    }

    /// Takes up those of another task.
    pub fn add(&mut self, other: &Self) {
        self.times.add(&other.times).expect("all have the same bounds");
        for (row, more) in self.rows.iter_mut().zip(other.rows) {
            *row += more;
        }
    }

    /// What to tell another process.
    #[must_use]
    pub fn recorded(&self) -> Recorded {
        let times = self.times.iter_recorded().map(|v| (v.value_iterated_to(), v.count_at_value())).collect();
        Recorded { times, rows: self.rows }
    }

    /// Takes up those of another process.
    pub fn add_recorded(&mut self, other: &Recorded) {
        for (ns, count) in &other.times {
            self.times.saturating_record_n(*ns, *count);
        }
        for (row, more) in self.rows.iter_mut().zip(other.rows) {
            *row += more;
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.times.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    /// Their quantiles; all 0 if there are none.
    #[must_use]
    pub fn quantiles(&self) -> Quantiles {
        let us = |ns: u64| ns as f64 / 1000.0;
        let at = |quantile| us(self.times.value_at_quantile(quantile));
        Quantiles { p50: at(0.5), p90: at(0.9), p99: at(0.99), p99_9: at(0.999), max: us(self.times.max()) }
    }

    /// The line of quantiles.
    pub fn print_quantiles(&self, out: Out) {
        if self.is_empty() {
            return;
        }
        let q = self.quantiles();
        line!(
            out,
            "rtt us: p50 {:.1}  p90 {:.1}  p99 {:.1}  p99.9 {:.1}  max {:.1}  ({} round trips)",
            q.p50,
            q.p90,
            q.p99,
            q.p99_9,
            q.max,
            self.len()
        );
    }

    /// The reference's histogram (`--show-histogram`).
    pub fn print_histogram(&self, out: Out) {
        line!(out, "");
        line!(out, "RTT histogram");
        line!(out, "{:>15} {:>12} {:>8}", "RTT (us)", "count", "%");
        let all = self.rows.iter().sum::<u64>().max(1) as f64;
        for (i, count) in self.rows.iter().enumerate() {
            let range = format!("[{} - {}]", 1u32 << i, 1u32 << (i + 1));
            line!(out, "{range:>15} {count:>12} {:>8.2}", 100.0 * *count as f64 / all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_fall_into_the_rows_of_the_reference_and_the_last_takes_all_longer_ones() {
        let mut rtt = RoundTrips::default();
        for us in [0, 1, 2, 3, 4, 1023, 1024, 65535, 65536, 1 << 40] {
            rtt.record(us * 1000);
        }
        let mut rows = [0; ROWS];
        for (row, count) in [(0, 2), (1, 2), (2, 1), (9, 1), (10, 1), (15, 3)] {
            rows[row] = count;
        }
        assert_eq!(rtt.rows, rows);
    }

    #[test]
    fn quantiles_are_those_of_all_tasks_together() {
        let (mut a, mut b) = (RoundTrips::default(), RoundTrips::default());
        (1..=500).for_each(|us| a.record(us * 1000));
        (501..=1000).for_each(|us| b.record(us * 1000));
        a.add(&b);
        let q = a.quantiles();
        for (value, expected) in
            [(q.p50, 500.0), (q.p90, 900.0), (q.p99, 990.0), (q.p99_9, 999.0), (q.max, 1000.0)]
        {
            assert!((value - expected).abs() <= expected / 500.0, "{q:?}");
        }
        assert_eq!(a.len(), 1000);
        let mut told = RoundTrips::default();
        let line = serde_json::to_string(&a.recorded()).unwrap();
        told.add_recorded(&serde_json::from_str(&line).unwrap());
        assert_eq!((told.quantiles(), told.rows), (a.quantiles(), a.rows), "as told to another process");
        a.clear();
        assert!(a.is_empty());
        assert_eq!(a.quantiles(), Quantiles { p50: 0.0, p90: 0.0, p99: 0.0, p99_9: 0.0, max: 0.0 });
    }
}
