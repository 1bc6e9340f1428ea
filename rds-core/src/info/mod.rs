//! Counters and snapshots: one catalogue feeds `rds-info`, metrics and logs.

mod counters;
mod snapshot;
mod status;

pub use counters::{Counter, Counters};
pub use snapshot::{
    ConnectionInfo, ConnectionZeroCopy, MessageInfo, NodeReceiveZeroCopy, NodeZeroCopy, PeerInfo,
    ReceiveZeroCopy, ReceivedInfo, SendZeroCopy, Snapshot, SocketInfo, TcpInfo,
};
pub use status::{
    ClientInfo, ClientSocket, ConfigInfo, HeldInfo, NodeStatus, PortInfo, SharingWord, State, Status,
};
