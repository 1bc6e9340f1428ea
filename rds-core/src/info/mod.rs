//! Counters and snapshots: one catalogue feeds `rds-info`, metrics and logs.

mod counters;
mod snapshot;

pub use counters::{Counter, Counters};
pub use snapshot::{
    ConnectionInfo, ConnectionZeroCopy, MessageInfo, NodeReceiveZeroCopy, NodeZeroCopy, PeerInfo,
    ReceiveZeroCopy, SendZeroCopy, Snapshot, SocketInfo, TcpInfo,
};
