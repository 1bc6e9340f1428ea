//! Byte streams that Linux kernels put on the wire (`tests/fixtures/kernel-captures`).
//!
//! Everything here panics with what is wrong with which file: a broken fixture is a broken checkout.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;

/// Who sent a captured stream.
///
/// In every captured connection that carried a byte the lower address is the TCP client (10.77.0.2 or
/// fd77::2), the higher one the server (10.77.0.3 or fd77::3, TCP port 16385).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// From the node with the lower address.
    ClientToServer,
    /// From the node with the higher address.
    ServerToClient,
}

/// What a captured message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A congestion map, with the one congested port or none.
    Map(Option<u16>),
    /// RDS port 1 to port 0.
    HandshakePing,
    /// RDS port 0 to port 1.
    HandshakePong,
    /// Any other port to port 0.
    Ping,
    /// Port 0 to any other port but 1.
    Pong,
    /// From a socket to a socket.
    Data,
}

/// One line of what a captured stream contains: `count` messages in a row that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Expected {
    /// How many.
    pub count: usize,
    /// What they are.
    pub kind: Kind,
    /// Whether RETRANSMITTED is set.
    pub retransmitted: bool,
    /// Whether the stream ends inside the last of them.
    pub cut_short: bool,
}

/// One direction of one captured TCP connection, from its first byte.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Version of the Linux kernel at both ends, as the directory is called: "6.1", "6.12", "7.2".
    pub kernel: String,
    /// What happens in the recording.
    pub scenario: String,
    /// Number of the connection in its recording, from 0 in the order of the first packets; connections
    /// that carried nothing are counted and have no stream.
    pub connection: u32,
    /// Who sent it.
    pub direction: Direction,
    /// What it contains, according to `streams.tsv`; messages in the order of the stream.
    pub expected: Vec<Expected>,
    /// Number of messages according to `streams.tsv`, one cut short included.
    pub messages: usize,
    /// The TCP payload.
    pub bytes: Vec<u8>,
}

impl Stream {
    /// The stream's name without the kernel: "ping.0-c2s".
    #[must_use]
    pub fn name(&self) -> String {
        let direction = match self.direction {
            Direction::ClientToServer => "c2s",
            Direction::ServerToClient => "s2c",
        };
        format!("{}.{}-{direction}", self.scenario, self.connection)
    }
}

/// Where the captures are.
#[must_use]
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/kernel-captures")
}

/// Every captured stream, in the order of `streams.tsv`.
#[must_use]
pub fn all() -> Vec<Stream> {
    select(|_, _| true)
}

/// The streams of one recording: `scenario("6.1", "ping")`. Never empty.
#[must_use]
pub fn scenario(kernel: &str, name: &str) -> Vec<Stream> {
    let found = select(|k, s| k == kernel && s == name);
    assert!(!found.is_empty(), "no stream of scenario {name:?}, kernel {kernel:?} in streams.tsv");
    found
}

fn select(wanted: impl Fn(&str, &str) -> bool) -> Vec<Stream> {
    let path = directory().join("streams.tsv");
    let table = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut found = Vec::new();
    for (number, line) in table.lines().enumerate().filter(|(_, l)| !l.starts_with('#')) {
        let at = format!("streams.tsv, line {}", number + 1);
        let fields: Vec<_> = line.split('\t').collect();
        let [kernel, name, len, messages, content] = fields[..] else {
            panic!("{at}: {} columns instead of 5", fields.len());
        };
        let (scenario, connection, direction) =
            parse_name(name).unwrap_or_else(|| panic!("{at}: {name:?} is not SCENARIO.NUMBER-c2s or -s2c"));
        if !wanted(kernel, scenario) {
            continue;
        }
        let bytes = unpack(&directory().join(kernel).join(format!("{name}.bin.gz")));
        assert_eq!(Ok(bytes.len()), len.parse(), "{at}: length of {kernel}/{name} in bytes");
        let expected = content
            .split(", ")
            .map(|item| parse_item(item).unwrap_or_else(|| panic!("{at}: what is {item:?}?")))
            .collect();
        found.push(Stream {
            kernel: kernel.to_owned(),
            scenario: scenario.to_owned(),
            connection,
            direction,
            expected,
            messages: messages.parse().unwrap_or_else(|e| panic!("{at}: messages {messages:?}: {e}")),
            bytes,
        });
    }
    found
}

fn unpack(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| GzDecoder::new(file).read_to_end(&mut bytes))
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    bytes
}

fn parse_name(name: &str) -> Option<(&str, u32, Direction)> {
    let (scenario, rest) = name.rsplit_once('.')?;
    let (connection, direction) = rest.split_once('-')?;
    let direction = match direction {
        "c2s" => Direction::ClientToServer,
        "s2c" => Direction::ServerToClient,
        _ => return None,
    };
    Some((scenario, connection.parse().ok()?, direction))
}

/// `[N x ][RETRANSMITTED ]KIND[ (cut short)]`
fn parse_item(item: &str) -> Option<Expected> {
    let (count, rest) = match item.split_once(" x ") {
        Some((count, rest)) => (count.parse().ok()?, rest),
        None => (1, item),
    };
    let (retransmitted, rest) = match rest.strip_prefix("RETRANSMITTED ") {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let (cut_short, rest) = match rest.strip_suffix(" (cut short)") {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let kind = match rest {
        "map" => Kind::Map(None),
        "probe ping" => Kind::HandshakePing,
        "probe pong" => Kind::HandshakePong,
        "ping" => Kind::Ping,
        "pong" => Kind::Pong,
        "data" => Kind::Data,
        _ => Kind::Map(Some(rest.strip_prefix("map[")?.strip_suffix(']')?.parse().ok()?)),
    };
    Some(Expected { count, kind, retransmitted, cut_short })
}
