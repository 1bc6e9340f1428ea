//! What a node looks like at one moment.

use std::net::{IpAddr, SocketAddr};

use serde::Serialize;

use super::Counters;
use crate::zerocopy::{Decision, ReceiveCounts, SendCounts};

/// A node at one moment: what `rds-info` shows.
#[derive(Clone, Debug, Serialize)]
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
}

/// One peer.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct PeerInfo {
    /// Its address.
    pub address: IpAddr,
    /// `application`: a delivered message was accepted by the peer's node; `transport`: by its TCP;
    /// `None` before the peer was ever seen.
    pub delivery: Option<&'static str>,
    /// The generation it showed, if any.
    pub generation: Option<u32>,
    /// Lanes in use.
    pub lanes: u8,
    /// Number of ports of it that are congested.
    pub congested_ports: u32,
    /// A line each lane.
    pub connections: Vec<ConnectionInfo>,
}

/// One lane of a peer.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct ConnectionInfo {
    /// Lane, 0 to 7.
    pub lane: u8,
    /// `down`, `connecting`, `handshake` or `up`.
    pub state: &'static str,
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
    /// The connection that carries it, by its index.
    #[serde(skip)]
    pub(crate) conn: Option<crate::proto::ConnId>,
}

/// Zero copy of a node.
#[derive(Clone, Copy, Debug, Default, Serialize)]
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
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct ConnectionZeroCopy {
    /// Sending.
    pub send: Option<SendZeroCopy>,
    /// Receiving; `None` before anything was read.
    pub recv: Option<ReceiveZeroCopy>,
}

/// Sending without a copy on a connection.
#[derive(Clone, Debug, Serialize)]
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
#[derive(Clone, Copy, Debug, Default, Serialize)]
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
#[derive(Clone, Debug, Serialize)]
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
#[derive(Clone, Copy, Debug, Serialize)]
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

/// One socket.
#[derive(Clone, Copy, Debug, Serialize)]
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
