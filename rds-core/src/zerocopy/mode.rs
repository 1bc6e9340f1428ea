//! Settings of the controllers, and what they report.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::proto::Time;

/// Whether zero copy is used in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Never.
    Off,
    /// For every message that can be, also where it costs more than copying.
    On,
    /// Where it was measured to cost less.
    #[default]
    Auto,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::On => "on",
            Self::Auto => "auto",
        })
    }
}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(s: &str) -> Result<Self, UnknownMode> {
        match s {
            "off" => Ok(Self::Off),
            "on" => Ok(Self::On),
            "auto" => Ok(Self::Auto),
            _ => Err(UnknownMode),
        }
    }
}

/// Neither `off`, `on` nor `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a mode of zero copy is one of off, on, auto")]
pub struct UnknownMode;

/// Why a controller does what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// The mode says so.
    Setting,
    /// The peer is on this host: the kernel would copy what is pinned, and what is mapped could belong to the peer.
    LocalPeer,
    /// The peer did not announce the sending pattern without which pages cannot be mapped.
    NotAnnounced,
    /// Too little is known yet.
    Probing,
    /// The kernel copies what is pinned.
    Copied,
    /// Too many messages could not be mapped whole.
    Unmapped,
    /// Measured CPU time decides, for each size.
    Measured,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Setting => "the mode says so",
            Self::LocalPeer => "the peer is on this host",
            Self::NotAnnounced => "the peer did not announce the sending pattern",
            Self::Probing => "too little is known yet",
            Self::Copied => "the kernel copies what is pinned",
            Self::Unmapped => "too many messages could not be mapped",
            Self::Measured => "measured CPU time decides",
        })
    }
}

/// What is known of messages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SizeDecision {
    /// Messages from this length on, in bytes, below twice that (the largest size has no end).
    pub from: usize,
    /// Zero copy is used.
    pub zero_copy: bool,
    /// CPU time by copying, in ns a KiB, once measured.
    pub copying: Option<f32>,
    /// CPU time with zero copy, in ns a KiB, once measured.
    pub zero_copying: Option<f32>,
}

/// The state of a controller, for snapshots and logs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The setting.
    pub mode: Mode,
    /// Zero copy is used for at least one size.
    pub zero_copy: bool,
    /// Why.
    pub reason: Reason,
    /// When zero copy is tried again, if it is off; in ns of the driver's time when serialised.
    #[serde(serialize_with = "nanos", deserialize_with = "from_nanos")]
    pub next_probe: Option<Time>,
    /// Sizes of which messages came, in `auto`.
    pub sizes: Vec<SizeDecision>,
    /// Recent share of what was pinned and copied by the kernel all the same, or was not mapped; 0 to 1.
    pub failed_share: f32,
    /// How long the latest completions took. Zero when receiving.
    pub lag: Duration,
    /// Bytes of messages that could have gone either way.
    pub eligible_bytes: u64,
    /// Of these, bytes that went the way not preferred, to measure it; without the warm-up.
    pub explored_bytes: u64,
    /// Bytes that the warm-up took.
    pub warm_up_bytes: u64,
}

fn nanos<S: Serializer>(time: &Option<Time>, serializer: S) -> Result<S::Ok, S::Error> {
    time.map(Time::as_nanos).serialize(serializer)
}

fn from_nanos<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Time>, D::Error> {
    Ok(Option::deserialize(deserializer)?.map(Time::from_nanos))
}
