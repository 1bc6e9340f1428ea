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
    /// Only of a daemon: the program, or its user, has as many sockets or as large buffers as it may.
    #[error("the daemon gives this program no more sockets: close some, or have its quota raised")]
    Quota,
    /// Only of a daemon: this user may not bind the port.
    #[error("this user may not bind RDS port {0}: choose another, or have the daemon's access rules changed")]
    NotAllowed(u16),
    /// Only of a daemon: it cannot be reached, or did not answer in time.
    #[error("the daemon does not answer: see that rds-server runs, and try again")]
    Unreachable,
    /// An embedded node's ports cannot be shared: that takes a daemon.
    #[error("RDS port {0} can only be shared at a daemon: attach to one")]
    NotShared(u16),
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
    /// The node's settings forbid to send to this peer.
    #[error("the node may not send to this address: its list of peers refuses it")]
    NotAllowed,
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
