//! What is measured.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Bytes that the floor copies together before it writes them, and that the ceiling writes at once.
pub(crate) const BATCH: usize = 256 << 10;
/// From this payload length on nothing is copied by the programs: the floor gathers, RDS is given owned buffers.
pub(crate) const UNCOPIED_FROM: usize = 1024;

/// Over what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Transport {
    /// A TCP connection and a loop.
    Floor,
    /// RDS: nodes in the two programs, or daemons to which they attach.
    Rds,
    /// A broker that speaks NATS.
    Nats,
    /// A broker that speaks MQTT, without any acknowledgement.
    Mqtt0,
    /// The same with each hop acknowledged (QoS 1).
    Mqtt1,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Floor => "floor",
            Self::Rds => "rds",
            Self::Nats => "nats",
            Self::Mqtt0 => "mqtt-qos0",
            Self::Mqtt1 => "mqtt-qos1",
        })
    }
}

/// What of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Plain 256 KiB writes without any framing: what TCP gives at most.
    Ceiling,
    /// Messages one way, as many as go.
    Throughput,
    /// One message there and one back, the programs blocking in between.
    RoundTrip,
}

/// One line of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Case {
    /// What.
    pub(crate) kind: Kind,
    /// Payload bytes of a message.
    pub(crate) size: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = match self.size {
            s if s >= 1 << 20 && s % (1 << 20) == 0 => format!("{} MiB", s >> 20),
            s if s >= 1 << 10 && s % (1 << 10) == 0 => format!("{} KiB", s >> 10),
            s => format!("{s} B"),
        };
        match self.kind {
            Kind::Ceiling => write!(f, "plain writes of {size}"),
            Kind::Throughput => write!(f, "{size} messages"),
            Kind::RoundTrip => write!(f, "{size} round trip"),
        }
    }
}

/// What one side of a run found.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Messages (or round trips, or writes) in the measured time.
    pub(crate) messages: u64,
    /// The measured time in seconds.
    pub(crate) seconds: f64,
    /// Median and 99th percentile of the round trip in microseconds.
    pub(crate) p50_us: f64,
    /// The same.
    pub(crate) p99_us: f64,
    /// Processor time, user and system, of the whole run in seconds.
    pub(crate) cpu_seconds: f64,
    /// Messages of the whole run.
    pub(crate) messages_in_all: u64,
    /// Messages that were sent and did not come, as far as later ones show.
    #[serde(default)]
    pub(crate) lost: u64,
}
