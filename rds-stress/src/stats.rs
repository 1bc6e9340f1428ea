//! What tasks count and the parent reads.

use std::borrow::Cow;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicU64, Ordering};

use rds_client::Counters;
use serde::{Deserialize, Serialize, Serializer};

/// Counts of one task or of all, from the start or over an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests sent.
    pub tx: u64,
    /// Requests received.
    pub rx: u64,
    /// Acks received, each of which ends a round trip.
    pub acked: u64,
    /// Bytes of requests and acks, sent and received, headers included.
    pub bytes: u64,
    /// Nanoseconds spent in sending requests.
    pub send_ns: u64,
    /// Nanoseconds from sending requests to receiving their acks.
    pub rtt_ns: u64,
}

impl Counts {
    const FIELDS: usize = 6;

    const fn to_array(self) -> [u64; Self::FIELDS] {
        [self.tx, self.rx, self.acked, self.bytes, self.send_ns, self.rtt_ns]
    }

    const fn from_array([tx, rx, acked, bytes, send_ns, rtt_ns]: [u64; Self::FIELDS]) -> Self {
        Self { tx, rx, acked, bytes, send_ns, rtt_ns }
    }
}

impl Add for Counts {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        let (a, b) = (self.to_array(), other.to_array());
        Self::from_array(std::array::from_fn(|i| a[i].wrapping_add(b[i])))
    }
}

impl Sub for Counts {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        let (a, b) = (self.to_array(), other.to_array());
        Self::from_array(std::array::from_fn(|i| a[i].wrapping_sub(b[i])))
    }
}

/// A task's counts where the parent sees them. Only the task writes; on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Published([AtomicU64; Counts::FIELDS]);

impl Published {
    /// Shows `counts`.
    #[inline]
    pub fn publish(&self, counts: &Counts) {
        for (place, value) in self.0.iter().zip(counts.to_array()) {
            place.store(value, Ordering::Relaxed);
        }
    }

    /// What was shown last.
    #[must_use]
    pub fn read(&self) -> Counts {
        Counts::from_array(std::array::from_fn(|i| self.0[i].load(Ordering::Relaxed)))
    }
}

/// The counters of a backend: names and values, in its order. As JSON an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CounterList(pub Vec<(Cow<'static, str>, u64)>);

impl CounterList {
    /// Those of a node.
    #[must_use]
    pub fn of_node(counters: &Counters) -> Self {
        Self(counters.iter().map(|(name, value)| (name.into(), value)).collect())
    }

    /// What was counted since `before`, a look at the same counters.
    #[must_use]
    pub fn since(mut self, before: &Self) -> Self {
        for (name, value) in &mut self.0 {
            let earlier = before.0.iter().find(|(n, _)| n == name).map_or(0, |(_, v)| *v);
            *value = value.wrapping_sub(earlier);
        }
        self
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, value)| (&**name, *value))
    }
}

impl Serialize for CounterList {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// The sum over all tasks.
#[must_use]
pub fn total(tasks: &[Published]) -> Counts {
    tasks.iter().map(Published::read).fold(Counts::default(), Add::add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_compared_by_name() {
        let list =
            |list: &[(&'static str, u64)]| CounterList(list.iter().map(|(n, v)| ((*n).into(), *v)).collect());
        let since = list(&[("a", 5), ("b", 1), ("c", 7)]).since(&list(&[("b", 2), ("a", 3)]));
        assert_eq!(since, list(&[("a", 2), ("b", u64::MAX), ("c", 7)]));
        assert_eq!(serde_json::to_string(&since).unwrap(), r#"{"a":2,"b":18446744073709551615,"c":7}"#);
    }

    #[test]
    fn the_total_is_the_sum_of_what_tasks_published() {
        let tasks = [Published::default(), Published::default()];
        let one = Counts { tx: 1, rx: 2, acked: 3, bytes: 4, send_ns: 5, rtt_ns: 6 };
        tasks[0].publish(&one);
        tasks[1].publish(&(one + one));
        assert_eq!(total(&tasks), Counts { tx: 3, rx: 6, acked: 9, bytes: 12, send_ns: 15, rtt_ns: 18 });
        assert_eq!(total(&tasks) - one - one, one);
    }
}
