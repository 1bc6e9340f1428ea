//! Zero copy: how it is set, and what it did, as the node's snapshot tells.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use rds_client::{CopiedBytes, Decision, Fallbacks, Mode, Reason, Snapshot};
use serde::{Deserialize, Serialize};

use crate::out::{Out, line};

/// How zero copy is set, on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Bytes of payloads that tasks got in the pages that were mapped.
    pub mapped_bytes: u64,
    /// Bytes of payloads of a page and more, however they came.
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
    /// Bytes that they took, headers of RDS included.
    pub bytes: u64,
    /// Share of completions that say that the kernel copied.
    pub copied_ratio: f64,
    /// Messages that were copied although they should have been pinned, by reason.
    pub fallbacks: BTreeMap<&'static str, u64>,
    /// Completions that one look at the error queue brought, on average.
    pub completions_per_reap: f64,
    /// `on` if messages of some size are pinned, `off` if none are.
    pub decision: &'static str,
    /// Why; without a connection nothing was decided.
    pub reason: Option<Reason>,
}

/// Receiving.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Receive {
    /// The setting.
    pub mode: Mode,
    /// Share of payload bytes that were mapped, of payloads of a page and more.
    pub mapped_ratio: f64,
    /// Pages that one call mapped, on average.
    pub pages_per_call: f64,
    /// Payload bytes that were copied instead, by reason.
    pub fallbacks: BTreeMap<&'static str, u64>,
    /// `on` if messages of some size are mapped, `off` if none are.
    pub decision: &'static str,
    /// Why; without a connection nothing was decided.
    pub reason: Option<Reason>,
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
            why(send.reason),
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
            why(recv.reason),
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

impl Totals {
    /// What a node counted.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Self {
        let zero_copy = &snapshot.zero_copy;
        let (send, recv) = (&zero_copy.send, &zero_copy.recv.counts);
        Self {
            calls: send.calls,
            notified: send.notified,
            copied: send.copied,
            reaps: send.reaps,
            map_calls: recv.calls,
            pages: recv.pages,
            mapped_bytes: recv.bytes,
            received_bytes: recv.bytes + recv.copied.total(),
            pinned: zero_copy.pinned_bytes,
        }
    }
}

impl ZeroCopy {
    /// What nothing did.
    #[must_use]
    pub fn idle(modes: Modes) -> Self {
        let none = |reasons: &[&'static str]| reasons.iter().map(|reason| (*reason, 0)).collect();
        Self {
            send: Send {
                mode: modes.send,
                calls: 0,
                bytes: 0,
                copied_ratio: 0.0,
                fallbacks: none(&["budget", "notifications", "refused", "unpinnable"]),
                completions_per_reap: 0.0,
                decision: "off",
                reason: None,
            },
            recv: Receive {
                mode: modes.receive,
                mapped_ratio: 0.0,
                pages_per_call: 0.0,
                fallbacks: none(&[
                    "setting",
                    "not_announced",
                    "length",
                    "controller",
                    "late",
                    "unaligned",
                    "held",
                    "limit",
                    "unavailable",
                ]),
                decision: "off",
                reason: None,
            },
            pinned_bytes: 0,
            pinned_bytes_max: 0,
        }
    }

    /// What a node did between two snapshots, and decides at the second.
    #[must_use]
    pub fn new(modes: Modes, before: &Snapshot, snapshot: &Snapshot) -> Self {
        let totals = Totals::of(snapshot).since(&Totals::of(before));
        let (before, zero_copy) = (&before.zero_copy, &snapshot.zero_copy);
        let connections = || snapshot.peers.iter().flat_map(|peer| &peer.connections);
        let sending = connections().filter_map(|c| c.zero_copy.send.as_ref()).map(|s| &s.decision);
        let receiving = connections().filter_map(|c| c.zero_copy.recv.as_ref()).map(|r| &r.decision);
        let ((decision, reason), (recv_decision, recv_reason)) = (decided(sending), decided(receiving));
        let fallbacks = |of: fn(&Fallbacks) -> u64| {
            of(&zero_copy.send.fallbacks).saturating_sub(of(&before.send.fallbacks))
        };
        let copied = |of: fn(&CopiedBytes) -> u64| {
            of(&zero_copy.recv.counts.copied).saturating_sub(of(&before.recv.counts.copied))
        };
        Self {
            send: Send {
                mode: modes.send,
                calls: totals.calls,
                bytes: zero_copy.send.bytes.saturating_sub(before.send.bytes),
                copied_ratio: totals.copied_ratio(),
                fallbacks: BTreeMap::from([
                    ("budget", fallbacks(|f| f.budget)),
                    ("notifications", fallbacks(|f| f.notifications)),
                    ("refused", fallbacks(|f| f.refused)),
                    ("unpinnable", fallbacks(|f| f.unpinnable)),
                ]),
                completions_per_reap: ratio(totals.notified, totals.reaps),
                decision,
                reason,
            },
            recv: Receive {
                mode: modes.receive,
                mapped_ratio: totals.mapped_ratio(),
                pages_per_call: ratio(totals.pages, totals.map_calls),
                fallbacks: BTreeMap::from([
                    ("setting", copied(|c| c.setting)),
                    ("not_announced", copied(|c| c.not_announced)),
                    ("length", copied(|c| c.length)),
                    ("controller", copied(|c| c.controller)),
                    ("late", copied(|c| c.late)),
                    ("unaligned", copied(|c| c.unaligned)),
                    ("held", copied(|c| c.held)),
                    ("limit", copied(|c| c.limit)),
                    ("unavailable", copied(|c| c.unavailable)),
                ]),
                decision: recv_decision,
                reason: recv_reason,
            },
            pinned_bytes: zero_copy.pinned_bytes,
            pinned_bytes_max: zero_copy.pinned_bytes_max,
        }
    }
}

/// What the controllers of several connections do: `on` if any does, with its reason.
fn decided<'a>(decisions: impl Iterator<Item = &'a Decision>) -> (&'static str, Option<Reason>) {
    let decision = decisions.max_by_key(|d| d.zero_copy);
    (if decision.is_some_and(|d| d.zero_copy) { "on" } else { "off" }, decision.map(|d| d.reason))
}

fn why(reason: Option<Reason>) -> String {
    reason.map_or_else(|| "no connection".to_owned(), |reason| reason.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTALS: Totals = Totals {
        calls: 3000,
        notified: 2000,
        copied: 500,
        reaps: 100,
        map_calls: 10,
        pages: 155,
        mapped_bytes: 900,
        received_bytes: 1000,
        pinned: 5 << 20,
    };

    #[test]
    fn columns_stand_below_their_heading() {
        let columns = TOTALS.columns(Duration::from_secs(2));
        assert_eq!(columns, "    1500  25.0   20.0  90.0  15.5     5120");
        assert_eq!(columns.len(), HEADING.len());
    }

    #[test]
    fn an_interval_counts_what_was_added_and_shows_what_is_pinned_at_its_end() {
        let later = Totals { calls: 3010, pinned: 7, ..TOTALS };
        assert_eq!(later.since(&TOTALS), Totals { calls: 10, pinned: 7, ..Totals::default() });
    }

    #[test]
    fn nothing_done_is_no_ratio_of_nothing() {
        let columns = Totals::default().columns(Duration::ZERO);
        assert_eq!(columns, "       0   0.0    0.0   0.0   0.0        0");
    }

    #[test]
    fn only_reasons_that_were_met_are_listed() {
        let fallbacks = BTreeMap::from([("budget", 2), ("refused", 0), ("unpinnable", 1)]);
        assert_eq!(list("not pinned", &fallbacks), "; not pinned: 2 budget, 1 unpinnable");
        assert_eq!(list("not pinned", &BTreeMap::new()), "");
    }
}
