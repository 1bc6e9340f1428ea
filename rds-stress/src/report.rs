//! The result of a run: what `--json` prints.

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde::{Deserialize, Serialize};

use crate::backend::Choice;
use crate::rtt::Quantiles;
use crate::run::Summary;
use crate::session::{Role, Session};
use crate::stats::CounterList;
use crate::zerocopy::ZeroCopy;

/// CPU time in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuTime {
    /// In programs.
    pub user: f64,
    /// In the kernel.
    pub system: f64,
}

impl CpuTime {
    /// What this process, with all its threads, has used so far.
    #[must_use]
    pub fn of_process() -> Self {
        let seconds = |t: TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
        getrusage(UsageWho::RUSAGE_SELF)
            .map(|u| Self { user: seconds(u.user_time()), system: seconds(u.system_time()) })
            .unwrap_or_default()
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { user: self.user + other.user, system: self.system + other.system }
    }

    /// The difference, at least 0.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self { user: (self.user - before.user).max(0.0), system: (self.system - before.system).max(0.0) }
    }
}

/// The object that `--json` prints. Keys are only ever added; `schema` changes if one ever must go or change.
/// Documented in docs/rds-stress.md.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    schema: u32,
    role: &'static str,
    backend: &'static str,
    tasks: u16,
    depth: u32,
    req_bytes: usize,
    ack_bytes: usize,
    one_way: bool,
    verify: bool,
    elapsed_s: f64,
    requests: u64,
    requests_received: u64,
    bytes: u64,
    requests_per_s: f64,
    bytes_per_s: f64,
    rtt_us: Quantiles,
    cpu_s: CpuTime,
    verify_errors: u64,
    zerocopy: &'a ZeroCopy,
    counters: &'a CounterList,
}

impl<'a> Report<'a> {
    /// The report of a run.
    #[must_use]
    pub fn new(session: &Session, summary: &'a Summary, loopback: bool, backend: Choice) -> Self {
        let elapsed_s = summary.elapsed.as_secs_f64();
        let rate = |n: u64| if elapsed_s > 0.0 { n as f64 / elapsed_s } else { 0.0 };
        Self {
            schema: 1,
            role: match (loopback, session.role) {
                (true, _) => "loopback",
                (false, Role::Active) => "active",
                (false, Role::Passive) => "passive",
            },
            backend: backend.name(),
            tasks: session.tasks,
            depth: session.depth,
            req_bytes: session.req_size,
            ack_bytes: session.ack_size,
            one_way: session.one_way,
            verify: session.verify,
            elapsed_s,
            requests: summary.counts.acked,
            requests_received: summary.counts.rx,
            bytes: summary.counts.bytes,
            requests_per_s: rate(summary.counts.acked),
            bytes_per_s: rate(summary.counts.bytes),
            rtt_us: summary.rtt.quantiles(),
            cpu_s: summary.cpu,
            verify_errors: summary.verify_errors,
            zerocopy: &summary.zero_copy,
            counters: &summary.counters,
        }
    }

    /// The object, in one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Only numbers, strings and maps with string keys: nothing that could fail.
        serde_json::to_string(self).expect("the report is plain data")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Block;
    use crate::rtt::RoundTrips;
    use crate::stats::Counts;
    use crate::zerocopy::{Receive, Send};
    use rds_client::{Mode, Reason};
    use std::time::Duration;

    #[test]
    fn the_object_has_every_documented_key() {
        let block = Block { tasks: 2, depth: 4, ..Block::new([127, 0, 0, 1].into(), [127, 0, 0, 2].into()) };
        let session = Session::new(Role::Active, &block, [127, 0, 0, 2].into(), None).unwrap();
        let mut rtt = RoundTrips::default();
        (1..=10).for_each(|us| rtt.record(us * 1000));
        let summary = Summary {
            elapsed: Duration::from_secs(2),
            counts: Counts { tx: 11, rx: 9, acked: 10, bytes: 21740, send_ns: 1, rtt_ns: 55_000 },
            rtt,
            cpu: CpuTime { user: 0.5, system: 0.25 },
            verify_errors: 0,
            zero_copy: ZeroCopy {
                send: Send {
                    mode: Mode::On,
                    calls: 7,
                    bytes: 700,
                    copied_ratio: 0.5,
                    fallbacks: [("budget", 3)].into(),
                    completions_per_reap: 3.5,
                    decision: "on",
                    reason: Some(Reason::Setting),
                },
                recv: Receive {
                    mode: Mode::Auto,
                    mapped_ratio: 0.75,
                    pages_per_call: 15.0,
                    fallbacks: [("late", 4096)].into(),
                    decision: "off",
                    reason: None,
                },
                pinned_bytes: 4096,
                pinned_bytes_max: 1 << 20,
            },
            counters: CounterList::of_node(&rds_client::Counters::new()),
            failure: None,
        };
        let json: serde_json::Value =
            serde_json::from_str(&Report::new(&session, &summary, false, Choice::Rds).to_json()).unwrap();
        let expected = serde_json::json!({
            "schema": 1, "role": "active", "backend": "rds", "tasks": 2, "depth": 4, "req_bytes": 1024, "ack_bytes": 63,
            "one_way": false, "verify": false, "elapsed_s": 2.0, "requests": 10, "requests_received": 9,
            "bytes": 21740, "requests_per_s": 5.0, "bytes_per_s": 10870.0,
            "cpu_s": { "user": 0.5, "system": 0.25 }, "verify_errors": 0,
            "zerocopy": {
                "send": {
                    "mode": "on", "calls": 7, "bytes": 700, "copied_ratio": 0.5, "fallbacks": { "budget": 3 },
                    "completions_per_reap": 3.5, "decision": "on", "reason": "setting",
                },
                "recv": {
                    "mode": "auto", "mapped_ratio": 0.75, "pages_per_call": 15.0, "fallbacks": { "late": 4096 },
                    "decision": "off", "reason": null,
                },
                "pinned_bytes": 4096, "pinned_bytes_max": 1 << 20,
            },
        });
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(json[key], *value, "{key}");
        }
        for key in ["p50", "p90", "p99", "p99_9", "max"] {
            assert!(json["rtt_us"][key].as_f64().unwrap() >= 5.0, "{key}");
        }
        assert_eq!(json["counters"]["conn_reset"], 0);
        assert_eq!(json.as_object().unwrap().len(), expected.as_object().unwrap().len() + 2);
    }
}
