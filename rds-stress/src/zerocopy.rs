//! Zero copy: how it is set, and what it did, as the node's snapshot tells.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use rds_client::{Mode, Snapshot};
use serde::Serialize;

use crate::out::{Out, line};

/// How zero copy is set, on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes {
    /// Of what is sent.
    pub send: Mode,
    /// Of what is received.
    pub receive: Mode,
    /// How long the kernel may keep what was pinned.
    pub hold: Duration,
    /// Whether the table has columns for it: only for those who asked, as the reference's has none.
    pub shown: bool,
}

/// What stands behind the reference's columns.
pub const HEADING: &str = " zc tx/s copd% c/reap mapd% pg/cl pinned K";

/// What was counted, of all connections of a node since it was opened, or over an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Calls that pinned what they sent.
    pub calls: u64,
    /// Calls of which the kernel has let go.
    pub notified: u64,
    /// Of these, those that it copied all the same.
    pub copied: u64,
    /// Times that completions were taken from the kernel.
    pub reaps: u64,
    /// Calls that mapped pages.
    pub map_calls: u64,
    /// Pages that they mapped.
    pub pages: u64,
    /// Payload bytes that were mapped.
    pub mapped_bytes: u64,
    /// Payload bytes that were received in any way.
    pub received_bytes: u64,
    /// Bytes that are pinned, at the end.
    pub pinned: u64,
}

impl Totals {
    /// What was counted since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let since = |of: fn(&Self) -> u64| of(self).saturating_sub(of(before));
        Self {
            calls: since(|t| t.calls),
            notified: since(|t| t.notified),
            copied: since(|t| t.copied),
            reaps: since(|t| t.reaps),
            map_calls: since(|t| t.map_calls),
            pages: since(|t| t.pages),
            mapped_bytes: since(|t| t.mapped_bytes),
            received_bytes: since(|t| t.received_bytes),
            pinned: self.pinned,
        }
    }

    /// The columns of an interval; as wide as [`HEADING`].
    #[must_use]
    pub fn columns(&self, elapsed: Duration) -> String {
        format!(
            " {:7.0} {:5.1} {:6.1} {:5.1} {:5.1} {:8}",
            self.calls as f64 / elapsed.as_secs_f64().max(1e-9),
            100.0 * self.copied_ratio(),
            ratio(self.notified, self.reaps),
            100.0 * self.mapped_ratio(),
            ratio(self.pages, self.map_calls),
            self.pinned >> 10
        )
    }

    fn copied_ratio(&self) -> f64 {
        ratio(self.copied, self.notified)
    }

    fn mapped_ratio(&self) -> f64 {
        ratio(self.mapped_bytes, self.received_bytes)
    }
}

/// 0 where there is nothing to divide by.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// What zero copy did: the object `zerocopy` of the report. Documented in docs/rds-stress.md.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ZeroCopy {
    /// Of what was sent.
    pub send: Send,
    /// Of what was received.
    pub recv: Receive,
    /// Bytes that the kernel has pinned, by its own count.
    pub pinned_bytes: u64,
    /// The most that it ever had.
    pub pinned_bytes_max: u64,
}

/// Sending.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Send {
    /// The setting.
    pub mode: Mode,
    /// Calls with MSG_ZEROCOPY.
    pub calls: u64,
    /// Payload bytes that they sent.
    pub bytes: u64,
    /// Share of completions that say that the kernel copied.
    pub copied_ratio: f64,
    /// Messages that were copied although they should have been pinned, by reason.
    pub fallbacks: BTreeMap<&'static str, u64>,
    /// Completions that one look at the error queue brought, on average.
    pub completions_per_reap: f64,
    /// `on` if messages of some size are pinned, `off` if none are.
    pub decision: &'static str,
    /// Why.
    pub reason: String,
}

/// Receiving.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Receive {
    /// The setting.
    pub mode: Mode,
    /// Share of payload bytes that were mapped.
    pub mapped_ratio: f64,
    /// Pages that one call mapped, on average.
    pub pages_per_call: f64,
    /// Payload bytes that were copied instead, by reason.
    pub fallbacks: BTreeMap<&'static str, u64>,
    /// `on` if messages of some size are mapped, `off` if none are.
    pub decision: &'static str,
    /// Why.
    pub reason: String,
}

impl ZeroCopy {
    /// Two lines for those who read.
    pub fn print(&self, out: Out) {
        let (send, recv) = (&self.send, &self.recv);
        line!(
            out,
            "zero copy sending ({}): {} ({}), {} calls, {:.1} % copied by the kernel, {:.1} completions a reap{}; pinned {} KiB, at most {}",
            send.mode,
            send.decision,
            send.reason,
            send.calls,
            100.0 * send.copied_ratio,
            send.completions_per_reap,
            list("not pinned", &send.fallbacks),
            self.pinned_bytes >> 10,
            self.pinned_bytes_max >> 10
        );
        line!(
            out,
            "zero copy receiving ({}): {} ({}), {:.2} % of bytes mapped, {:.1} pages a call{}",
            recv.mode,
            recv.decision,
            recv.reason,
            100.0 * recv.mapped_ratio,
            recv.pages_per_call,
            list("bytes not mapped", &recv.fallbacks)
        );
    }
}

fn list(what: &str, numbers: &BTreeMap<&'static str, u64>) -> String {
    let mut text = String::new();
    for (name, number) in numbers.iter().filter(|(_, n)| **n > 0) {
        let begin = if text.is_empty() { format!("; {what}:") } else { ",".into() };
        let _ = write!(text, "{begin} {number} {name}");
    }
    text
}
