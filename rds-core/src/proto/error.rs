//! Why a call on a node was refused.

use thiserror::Error;

/// Why a port cannot be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BindError {
    /// Port 1 carries the handshake (kernel: EINVAL).
    #[error("RDS port 1 is reserved for the handshake: choose 2 to 65535, or 0 for any free one")]
    Reserved,
    /// Another socket has the port (kernel: EADDRINUSE).
    #[error("RDS port {0} is taken by another socket of this node: choose another, or 0 for any free one")]
    InUse(u16),
    /// No port is free (kernel: EADDRINUSE).
    #[error("every RDS port is taken: close sockets first")]
    Exhausted,
    /// The node is shutting down (kernel: ENETDOWN).
    #[error("the node is shutting down")]
    ShuttingDown,
}

/// Why a message was not queued. Never partial: the whole message was taken, or nothing.
///
/// The order of the variants is the order of the checks (Linux `net/rds/send.c`, `rds_sendmsg`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The socket was closed.
    #[error("the socket is closed")]
    Closed,
    /// The destination is a wildcard, multicast or broadcast address (kernel: EINVAL).
    #[error("the destination is not a unicast address")]
    InvalidDestination,
    /// IPv4 and IPv6 do not mix (kernel: EOPNOTSUPP).
    #[error("the destination is of another address family than the node")]
    FamilyMismatch,
    /// Larger than a message can be, or than the send buffer (kernel: EMSGSIZE). Permanent.
    #[error("the message is larger than {limit} bytes, the smaller of message limit and send buffer")]
    TooLarge {
        /// Largest message that this socket could send, in bytes.
        limit: u64,
    },
    /// The node is shutting down (kernel: ENETUNREACH).
    #[error("the node is shutting down")]
    ShuttingDown,
    /// The node knows as many peers as it may. Raise `max_peers`.
    #[error("the node already knows the most peers it may")]
    TooManyPeers,
    /// The destination port is congested (kernel: ENOBUFS). Wait until it is not.
    #[error("the destination port is congested")]
    Congested,
    /// The send buffer is full (kernel: EAGAIN). Wait until the socket is writable.
    #[error("the send buffer is full")]
    Full,
}
