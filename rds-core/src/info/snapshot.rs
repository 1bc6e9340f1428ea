//! What a node looks like at one moment.

use std::net::{IpAddr, SocketAddr};

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use super::Counters;
use crate::zerocopy::{Decision, ReceiveCounts, SendCounts};

/// A node at one moment: what `rds-info` shows.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// The node's address.
    pub address: IpAddr,
    /// The number of this incarnation, as the handshake shows it.
    pub generation: u32,
    /// Bytes of received messages that no program has taken yet, with 48 bytes a message added.
    pub receive_queued: u64,
    /// Limit of the same.
    pub receive_budget: u64,
    /// All counters.
    pub counters: Counters,
    /// Zero copy.
    pub zero_copy: NodeZeroCopy,
    /// Known peers.
    pub peers: Vec<PeerInfo>,
    /// Bound sockets, ascending by port.
    pub sockets: Vec<SocketInfo>,
    /// Received messages that programs have not taken, where queues were asked for. Those of a daemon's clients are in the clients' memory, and not
    /// listed.
    #[serde(default)]
    pub received: Vec<ReceivedInfo>,
}

impl Snapshot {
    /// Of sockets alone, where the node cannot be asked.
    pub(crate) fn of_sockets(address: IpAddr, sockets: Vec<SocketInfo>) -> Self {
        Self {
            address,
            generation: 0,
            receive_queued: 0,
            receive_budget: 0,
            counters: Counters::new(),
            zero_copy: NodeZeroCopy::default(),
            peers: Vec::new(),
            sockets,
            received: Vec::new(),
        }
    }
}

/// One peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PeerInfo {
    /// Its address.
    pub address: IpAddr,
    /// `application`: a delivered message was accepted by the peer's node; `transport`: by its TCP;
    /// `None` before the peer was ever seen.
    #[serde(deserialize_with = "maybe_word")]
    pub delivery: Option<Word>,
    /// The generation it showed, if any.
    pub generation: Option<u32>,
    /// Lanes in use: on which we send.
    pub lanes: u8,
    /// `own`, `kernel >= 7.0`, `kernel <= 6.18`, `kernel` while its version is not known, `unknown` before it was ever seen.
    #[serde(deserialize_with = "word")]
    pub kind: Word,
    /// Number of ports of it that are congested.
    pub congested_ports: u32,
    /// Age of its oldest live connection, in ms; `None` while it has none.
    #[serde(default)]
    pub connected_ms: Option<u64>,
    /// How long it has been down, in ms; `None` while it is up, and before it ever was.
    #[serde(default)]
    pub down_ms: Option<u64>,
    /// Connections that we tried to make, all lanes together; knocks at a smaller address included.
    #[serde(default)]
    pub attempts: u64,
    /// Connections lost, all lanes together.
    #[serde(default)]
    pub resets: u64,
    /// Why the last connection or attempt ended, in words for people; `None` if none did.
    #[serde(default)]
    pub last_reason: Option<String>,
    /// A line each lane.
    pub connections: Vec<ConnectionInfo>,
}

/// One lane of a peer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// Lane, 0 to 7.
    pub lane: u8,
    /// `down`, `connecting`, `handshake` or `up`.
    #[serde(deserialize_with = "word")]
    pub state: Word,
    /// Sequence number that the next message sent will have.
    pub next_tx: u64,
    /// One more than the sequence number accepted last.
    pub next_rx: u64,
    /// Messages that wait for their first transmission.
    pub send_queue: Vec<MessageInfo>,
    /// Messages sent and not acknowledged.
    pub retransmit_queue: Vec<MessageInfo>,
    /// Zero copy, while it has a connection.
    pub zero_copy: ConnectionZeroCopy,
    /// Number of messages that wait for their first transmission, also where `send_queue` was not asked for. Cancelled ones that still take room count.
    #[serde(default)]
    pub queued: u64,
    /// The same of messages sent and not acknowledged.
    #[serde(default)]
    pub unacknowledged: u64,
    /// Age of the connection that carries it, in ms.
    #[serde(default)]
    pub connected_ms: Option<u64>,
    /// How long ago we last tried to connect, in ms.
    #[serde(default)]
    pub attempted_ms: Option<u64>,
    /// How long ago it last lost a connection, in ms.
    #[serde(default)]
    pub reset_ms: Option<u64>,
    /// Connections that we tried to make; on lane 0 knocks included.
    #[serde(default)]
    pub attempts: u64,
    /// Connections lost.
    #[serde(default)]
    pub resets: u64,
    /// Why its last connection or attempt ended, in words for people.
    #[serde(default)]
    pub last_reason: Option<String>,
    /// Bytes of the header that comes next which are not here yet: 48 between messages, 0 within one.
    #[serde(default)]
    pub header_remain: Option<u64>,
    /// Payload bytes of the message that is coming which are not here yet.
    #[serde(default)]
    pub data_remain: Option<u64>,
    /// Bytes that TCP took on this connection.
    #[serde(default)]
    pub last_sent: Option<u64>,
    /// Of those, up to the end of the last message that the peer has to acknowledge.
    #[serde(default)]
    pub last_expected: Option<u64>,
    /// What TCP says of the connection.
    #[serde(flatten)]
    pub tcp: TcpInfo,
    /// The connection that carries it, by its index.
    #[serde(skip)]
    pub(crate) conn: Option<crate::proto::ConnId>,
}

/// What TCP says of a connection at the moment of the snapshot; every field `None` without one.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
#[serde(default)]
pub struct TcpInfo {
    /// Our end.
    pub local: Option<SocketAddr>,
    /// The peer's end.
    pub remote: Option<SocketAddr>,
    /// Smoothed round trip of TCP, in µs (tcpi_rtt).
    pub rtt_us: Option<u32>,
    /// Its mean deviation, in µs (tcpi_rttvar).
    pub rttvar_us: Option<u32>,
    /// Bytes that the peer's TCP has acknowledged, headers included (tcpi_bytes_acked).
    pub tcp_bytes_sent: Option<u64>,
    /// Bytes received in order, headers included (tcpi_bytes_received).
    pub tcp_bytes_received: Option<u64>,
    /// Segments sent again so far (tcpi_total_retrans).
    pub tcp_retransmits: Option<u32>,
    /// Bytes of [`ConnectionInfo::last_sent`] that the peer's TCP has acknowledged (SIOCOUTQ), some moments later.
    pub last_una: Option<u64>,
}

/// Zero copy of a node.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeZeroCopy {
    /// Bytes that the kernel has pinned now, as it counts them: whole pages, and two more a call.
    pub pinned_bytes: u64,
    /// Most bytes that it had pinned at one time.
    pub pinned_bytes_max: u64,
    /// Limit of the same; `None` without one.
    pub pin_limit: Option<u64>,
    /// RLIMIT_MEMLOCK in bytes; `None` where it does not bind.
    pub memlock: Option<u64>,
    /// net.core.optmem_max in bytes.
    pub optmem: u64,
    /// Bytes of free buffers that the node keeps.
    pub pool_bytes: u64,
    /// Calls of this process that the kernel never said it was done with: what they held is never freed. 0 unless the kernel is at fault.
    pub leaked_calls: u64,
    /// Sending, all connections together.
    pub send: SendCounts,
    /// Receiving, all connections together.
    pub recv: NodeReceiveZeroCopy,
}

/// Zero copy of a connection.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ConnectionZeroCopy {
    /// Sending.
    pub send: Option<SendZeroCopy>,
    /// Receiving; `None` before anything was read.
    pub recv: Option<ReceiveZeroCopy>,
}

/// Sending without a copy on a connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SendZeroCopy {
    /// What its controller does, and why.
    pub decision: Decision,
    /// What was done.
    #[serde(flatten)]
    pub counts: SendCounts,
    /// Pages pinned now.
    pub pinned_pages: u64,
    /// Calls that were not notified.
    pub outstanding: u64,
    /// Age of the oldest of them, in ms; 0 without one.
    pub oldest_ms: u64,
    /// Bytes of payload in a segment now.
    pub segment: Option<u32>,
}

/// Receiving by mapping, of a node.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NodeReceiveZeroCopy {
    /// Bytes of pages that are being filled or held, or are free and still mapped.
    pub region_bytes: u64,
    /// Limit of the same.
    pub map_limit: u64,
    /// What was done, all connections together.
    #[serde(flatten)]
    pub counts: ReceiveCounts,
}

/// Receiving by mapping, of a connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReceiveZeroCopy {
    /// What its controller does, and why.
    pub decision: Decision,
    /// What was done.
    #[serde(flatten)]
    pub counts: ReceiveCounts,
    /// Pages that are being filled, or held by programs.
    pub lent_pages: u32,
    /// Pages that nobody holds and that are still mapped.
    pub used_pages: u32,
}

/// One message in a queue.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MessageInfo {
    /// Its sequence number; 0 while it has none.
    pub sequence: u64,
    /// Payload bytes.
    pub len: u32,
    /// Sender's port.
    pub local_port: u16,
    /// Receiver's port.
    pub remote_port: u16,
    /// Whether it was sent on an earlier connection.
    pub retransmitted: bool,
}

/// One received message.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReceivedInfo {
    /// The socket in whose queue it is.
    pub local: SocketAddr,
    /// Who sent it.
    pub remote: SocketAddr,
    /// Payload bytes.
    pub len: u32,
}

/// One socket.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SocketInfo {
    /// Where it is bound.
    pub bound: SocketAddr,
    /// Its send buffer, in payload bytes.
    pub send_buffer: u64,
    /// Payload bytes queued and not acknowledged.
    pub send_queued: u64,
    /// Its receive buffer, in payload bytes.
    pub receive_buffer: u64,
    /// Payload bytes received and not taken, as far as the node has been told.
    pub receive_queued: u64,
    /// Whether its port is congested.
    pub congested: bool,
    /// Bytes of its payloads that are pinned, or reserved for that, by the kernel's count: whole pages, and two more a call. Payloads that are sent
    /// without completions count for their connection only.
    pub pinned_bytes: u64,
}

/// One of [`WORDS`].
type Word = &'static str;

/// Every word that a snapshot has for something.
const WORDS: [&str; 11] = [
    "application",
    "transport",
    "own",
    "kernel >= 7.0",
    "kernel <= 6.18",
    "kernel",
    "unknown",
    "down",
    "connecting",
    "handshake",
    "up",
];

fn known<E: Error>(word: &str) -> Result<Word, E> {
    WORDS.iter().find(|known| **known == word).copied().ok_or_else(|| E::unknown_variant(word, &WORDS))
}

fn word<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
    known(&String::deserialize(deserializer)?)
}

fn maybe_word<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Word>, D::Error> {
    Option::<String>::deserialize(deserializer)?.map(|word| known(&word)).transpose()
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::info::Counter;
    use crate::proto::{Config, Node};

    #[test]
    fn a_snapshot_that_went_through_json_is_the_same() {
        let mut node = Node::new(Config::new([127, 0, 0, 1].into(), NonZeroU32::MIN)).unwrap();
        let (socket, _) = node.bind(7).unwrap();
        let mut snapshot = node.snapshot(true);
        snapshot.counters.add(Counter::SendQueued, 3);
        for (i, state) in ["down", "connecting", "handshake", "up"].into_iter().enumerate() {
            let message =
                MessageInfo { sequence: 1, len: 2, local_port: 3, remote_port: 4, retransmitted: true };
            let send = SendZeroCopy {
                decision: Decision {
                    mode: crate::zerocopy::Mode::Auto,
                    zero_copy: true,
                    reason: crate::zerocopy::Reason::Measured,
                    next_probe: Some(crate::proto::Time::from_nanos(5)),
                    sizes: Vec::new(),
                    failed_share: 0.5,
                    lag: std::time::Duration::from_micros(7),
                    eligible_bytes: 1,
                    explored_bytes: 2,
                    warm_up_bytes: 3,
                },
                counts: SendCounts { calls: 9, ..SendCounts::default() },
                pinned_pages: 1,
                outstanding: 2,
                oldest_ms: 3,
                segment: None,
            };
            snapshot.peers.push(PeerInfo {
                address: [127, 0, 0, 2].into(),
                delivery: [None, Some("application"), Some("transport"), None][i],
                generation: Some(9),
                lanes: 1,
                kind: ["own", "kernel >= 7.0", "kernel <= 6.18", "unknown"][i],
                congested_ports: 0,
                connected_ms: Some(1),
                down_ms: None,
                attempts: 2,
                resets: 1,
                last_reason: Some("closed by the peer".to_owned()),
                connections: vec![ConnectionInfo {
                    lane: 0,
                    state,
                    next_tx: 1,
                    next_rx: 2,
                    send_queue: vec![message],
                    retransmit_queue: Vec::new(),
                    zero_copy: ConnectionZeroCopy { send: Some(send), recv: None },
                    queued: 1,
                    unacknowledged: 0,
                    connected_ms: Some(1),
                    attempted_ms: Some(2),
                    reset_ms: Some(3),
                    attempts: 2,
                    resets: 1,
                    last_reason: Some("connection refused".to_owned()),
                    header_remain: Some(48),
                    data_remain: Some(0),
                    last_sent: Some(9),
                    last_expected: Some(8),
                    tcp: TcpInfo { rtt_us: Some(40), last_una: Some(7), ..TcpInfo::default() },
                    conn: None,
                }],
            });
        }
        node.close(socket, false);
        let json = serde_json::to_string(&snapshot).unwrap();
        let back: Snapshot = serde_json::from_str(&json).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), json);
        assert_eq!(back.counters, snapshot.counters);
        assert!(serde_json::from_str::<Snapshot>(&json.replace("\"up\"", "\"sideways\"")).is_err());
        // One of a version that did not tell of TCP.
        let older = json.replace("\"rtt_us\":40,", "").replace("\"attempts\":2,", "");
        let back: Snapshot = serde_json::from_str(&older).unwrap();
        assert_eq!((back.peers[0].attempts, back.peers[0].connections[0].tcp.rtt_us), (0, None));
    }
}
