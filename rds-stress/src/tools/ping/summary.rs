//! What came of all pings.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use serde::ser::SerializeMap;

/// What came of all pings.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Whom they went to.
    pub destination: IpAddr,
    /// Whom they came from.
    pub source: IpAddr,
    /// Pings sent.
    pub sent: u64,
    /// Those that were answered.
    pub received: u64,
    /// Answers to pings that had one.
    pub duplicates: u64,
    /// Errors of sends and receives.
    pub errors: u64,
    least: Duration,
    most: Duration,
    sum: Duration,
    /// In ns, to three digits.
    times: Histogram<u64>,
}

impl Summary {
    /// Of none.
    #[must_use]
    pub fn new(destination: IpAddr, source: IpAddr) -> Self {
        Self {
            destination,
            source,
            sent: 0,
            received: 0,
            duplicates: 0,
            errors: 0,
            least: Duration::MAX,
            most: Duration::ZERO,
            sum: Duration::ZERO,
            times: Histogram::new_with_max(86_400_000_000_000, 3).expect("the bounds are sound"),
        }
    }

    /// One was answered after that time.
    pub fn answered(&mut self, took: Duration) {
        self.received += 1;
        self.least = self.least.min(took);
        self.most = self.most.max(took);
        self.sum += took;
        self.times.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Those without an answer.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.received)
    }

    /// Least, mean, 99th percentile and most, in µs.
    #[must_use]
    pub fn times_us(&self) -> Option<[f64; 4]> {
        if self.received == 0 {
            return None;
        }
        let us = |time: Duration| time.as_nanos() as f64 / 1000.0;
        // The histogram rounds up.
        let p99 = (self.times.value_at_quantile(0.99) as f64 / 1000.0).min(us(self.most)).max(us(self.least));
        Some([us(self.least), us(self.sum) / self.received as f64, p99, us(self.most)])
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = self.lost() as f64 * 100.0 / self.sent.max(1) as f64;
        writeln!(f, "\n--- rds-ping {} from {} ---", self.destination, self.source)?;
        write!(f, "{} sent, {} received, {lost:.1}% lost", self.sent, self.received)?;
        for (n, what) in [(self.duplicates, "duplicates"), (self.errors, "errors")] {
            if n > 0 {
                write!(f, ", {n} {what}")?;
            }
        }
        if let Some([least, mean, p99, most]) = self.times_us() {
            write!(f, "\nmin/avg/p99/max = {least:.0}/{mean:.0}/{p99:.0}/{most:.0} usec")?;
        }
        writeln!(f)
    }
}

impl Serialize for Summary {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("destination", &self.destination)?;
        map.serialize_entry("source", &self.source)?;
        for (name, value) in [
            ("sent", self.sent),
            ("received", self.received),
            ("lost", self.lost()),
            ("duplicates", self.duplicates),
            ("errors", self.errors),
        ] {
            map.serialize_entry(name, &value)?;
        }
        let times = self.times_us();
        for (i, name) in ["min_us", "avg_us", "p99_us", "max_us"].iter().enumerate() {
            map.serialize_entry(name, &times.map(|times| times[i]))?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_has_what_was_sent_received_lost_and_how_long_it_took() {
        let mut summary = Summary::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into());
        summary.sent = 4;
        assert_eq!(
            summary.to_string(),
            "\n--- rds-ping 10.0.0.2 from 10.0.0.1 ---\n4 sent, 0 received, 100.0% lost\n"
        );
        for us in [100, 200, 330] {
            summary.answered(Duration::from_micros(us));
        }
        summary.duplicates = 1;
        let expected = "\n--- rds-ping 10.0.0.2 from 10.0.0.1 ---\n\
            4 sent, 3 received, 25.0% lost, 1 duplicates\nmin/avg/p99/max = 100/210/330/330 usec\n";
        assert_eq!(summary.to_string(), expected);
        let json: serde_json::Value = serde_json::to_value(&summary).unwrap();
        assert_eq!(
            (&json["lost"], &json["avg_us"], &json["max_us"]),
            (&1.into(), &210.0.into(), &330.0.into())
        );
    }
}
