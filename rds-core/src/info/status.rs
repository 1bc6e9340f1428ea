//! What a daemon looks like at one moment: its nodes, who uses them, and how it fares itself.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::Snapshot;
use crate::zerocopy::Mode;

/// A daemon at one moment. What its admin endpoint answers to `/status`, as JSON.
///
/// A reader of another version leaves out what it does not know, and has the default for what is missing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Status {
    /// The daemon's version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// A random number, another with each start.
    pub instance: u64,
    /// When it started, in ms since 1970.
    pub started_ms: u64,
    /// How long it has been running, in ms.
    pub uptime_ms: u64,
    /// When this was so, in ms since 1970.
    pub at_ms: u64,
    /// Where it is in its life.
    pub state: State,
    /// The Unix socket at which programs attach.
    pub socket: PathBuf,
    /// Its configuration.
    pub config: ConfigInfo,
    /// Whether large payloads are sent from where they lie, unless something says otherwise.
    pub zero_copy_send: Option<Mode>,
    /// Its nodes, in the order of their addresses in the configuration.
    pub nodes: Vec<NodeStatus>,
    /// How often what is worth a line in the log has happened since it started, by the names of the catalogue.
    pub events: BTreeMap<String, u64>,
    /// Lines that were left out of the log because there were too many.
    pub suppressed_log_lines: u64,
}

impl Status {
    /// Of a process, without anything in it.
    #[must_use]
    pub fn new(version: impl Into<String>, pid: u32) -> Self {
        Self { version: version.into(), pid, ..Self::default() }
    }
}

/// Where a daemon is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum State {
    /// It serves programs, and waits for ports that were bound before it was started anew; peers wait meanwhile.
    Starting,
    /// It serves programs and peers.
    #[default]
    Ready,
    /// It takes no new programs, delivers what it has, and ends.
    Draining,
    /// A node has stopped by itself, so that it ends.
    Failed,
    /// A word of a newer version.
    #[serde(other)]
    Unknown,
}

impl State {
    /// As in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a daemon's configuration is from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ConfigInfo {
    /// Its file; none if there is none.
    pub file: Option<PathBuf>,
    /// When it was read last, in ms since 1970.
    pub loaded_ms: u64,
    /// How often it was read again, successfully.
    pub reloads: u64,
    /// How often it could not be, so that all stayed as it was.
    pub failed_reloads: u64,
    /// Why not, the last time; none once it could be.
    pub last_error: Option<String>,
}

/// A node, and who uses it. Of a node in a program of its own there are no clients.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The node.
    #[serde(flatten)]
    pub node: Snapshot,
    /// Programs that are attached, oldest first.
    #[serde(default, deserialize_with = "clients")]
    pub clients: Vec<ClientInfo>,
    /// Bound ports, ascending.
    #[serde(default)]
    pub ports: Vec<PortInfo>,
    /// The addresses of all nodes of the daemon, or of this one alone.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
}

impl NodeStatus {
    /// A node and those who use it.
    #[must_use]
    pub fn new(node: Snapshot, clients: Vec<ClientInfo>, mut ports: Vec<PortInfo>) -> Self {
        ports.sort_by_key(|port| port.bound);
        let addresses = vec![node.address];
        Self { node, clients, ports, addresses }
    }

    /// A node in a program of its own, whose ports are its sockets'.
    #[must_use]
    pub fn embedded(node: Snapshot) -> Self {
        let port = |bound| PortInfo { bound, sharing: SharingWord::Exclusive, members: 1 };
        let ports = node.sockets.iter().map(|socket| port(socket.bound)).collect();
        Self::new(node, Vec::new(), ports)
    }
}

/// Most programs that are taken of what somebody says: each takes far more memory than the least text that can stand for one.
const MOST_CLIENTS: usize = 1 << 16;

fn clients<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ClientInfo>, D::Error> {
    struct Clients;
    impl<'de> Visitor<'de> for Clients {
        type Value = Vec<ClientInfo>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "up to {MOST_CLIENTS} programs")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<ClientInfo>, A::Error> {
            let mut clients = Vec::new();
            while let Some(client) = seq.next_element()? {
                if clients.len() == MOST_CLIENTS {
                    return Err(de::Error::invalid_length(clients.len() + 1, &self));
                }
                clients.push(client);
            }
            Ok(clients)
        }
    }
    deserializer.deserialize_seq(Clients)
}

/// One attached program.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientInfo {
    /// Its number, of this run of the daemon.
    pub session: u64,
    /// Its process, as the kernel told the daemon.
    pub pid: i32,
    /// Its user.
    pub uid: u32,
    /// What it calls itself. It may be anything: show it as text, without control characters.
    pub program: String,
    /// How long it has been attached, in ms.
    pub attached_ms: u64,
    /// Whether it shares memory with the daemon; otherwise everything goes over the Unix socket.
    pub shared_memory: bool,
    /// Bytes of shared memory.
    pub arena: u64,
    /// Send buffers of its sockets together, in bytes.
    pub send_buffers: u64,
    /// Receive buffers of its sockets together, in bytes.
    pub receive_buffers: u64,
    /// Bytes that the kernel has pinned for it now, whole pages.
    pub pinned_bytes: u64,
    /// Most of the same that there may be; none if only the node limits it.
    pub pinned_limit: Option<u64>,
    /// What it has not taken, past its rings and arenas.
    pub held: HeldInfo,
    /// Its sockets at this node.
    pub sockets: Vec<ClientSocket>,
}

/// What is held for a client for want of room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HeldInfo {
    /// Records that have no room in the client's ring or arena now.
    pub records: u64,
    /// Payload bytes of the messages among them.
    pub bytes: u64,
    /// Messages that had to wait so, since the client attached.
    pub ever: u64,
}

/// A client's socket.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ClientSocket {
    /// Where it is bound.
    pub bound: SocketAddr,
    /// Sends that wait for congested ports.
    pub waiting: usize,
}

/// One bound port.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct PortInfo {
    /// Where.
    pub bound: SocketAddr,
    /// How its sockets share it.
    pub sharing: SharingWord,
    /// How many sockets have it.
    pub members: usize,
}

/// How the sockets of a port share it, as words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SharingWord {
    /// There is one.
    Exclusive,
    /// Each message goes to one of them.
    Balance,
    /// Each message goes to all.
    FanOut,
}

impl SharingWord {
    /// As in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Balance => "balance",
            Self::FanOut => "fan-out",
        }
    }
}

impl fmt::Display for SharingWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::proto::{Config, Node};

    #[test]
    fn a_status_that_went_through_json_is_the_same_and_an_older_or_newer_one_is_read_too() {
        let mut node = Node::new(Config::new([127, 0, 0, 1].into(), NonZeroU32::MIN)).unwrap();
        let _ = node.bind(7).unwrap();
        let mut one = NodeStatus::embedded(node.snapshot(false));
        one.clients.push(ClientInfo {
            program: "a <b>\u{1b}[0m".into(),
            sockets: vec![ClientSocket { bound: ([127, 0, 0, 1], 7).into(), waiting: 3 }],
            ..ClientInfo::default()
        });
        let mut status = Status::new("1.2.3", 5);
        status.nodes.push(one);
        status.events.insert("peer_up".into(), 3);
        let json = serde_json::to_string(&status).unwrap();
        let back: Status = serde_json::from_str(&json).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), json);
        assert!(
            json.contains(r#""ports":[{"bound":"127.0.0.1:7","sharing":"exclusive","members":1}]"#),
            "{json}"
        );
        let newer = json.replacen('{', r#"{"what_comes_later":[1],"#, 1).replace(r#""ready""#, r#""musing""#);
        assert_eq!(serde_json::from_str::<Status>(&newer).unwrap().state, State::Unknown);
        assert_eq!(serde_json::from_str::<Status>(r#"{"pid":9}"#).unwrap().pid, 9);
    }

    #[test]
    fn a_short_text_cannot_stand_for_programs_without_end() {
        let node = Node::new(Config::new([127, 0, 0, 1].into(), NonZeroU32::MIN)).unwrap();
        let said = serde_json::to_string(&NodeStatus::embedded(node.snapshot(false))).unwrap();
        let read = |clients: usize| {
            let many = format!(r#""clients":[{}]"#, vec!["{}"; clients].join(","));
            let text = said.replacen(r#""clients":[]"#, &many, 1);
            serde_json::from_str::<NodeStatus>(&text).map(|status| status.clients.len())
        };
        assert_eq!(read(MOST_CLIENTS).unwrap(), MOST_CLIENTS);
        let error = read(MOST_CLIENTS + 1).unwrap_err().to_string();
        assert!(error.contains("up to 65536 programs"), "{error}");
    }
}
