//! What calls on a socket return.

use std::fmt;
use std::net::SocketAddr;

use super::Lease;

/// What a receive call returned.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Received {
    /// A message.
    Message {
        /// Bytes copied into the buffer.
        len: usize,
        /// Bytes that the message has; more than `len` when it was cut.
        full_len: usize,
        /// Who sent it.
        from: SocketAddr,
    },
    /// Congestion cleared (only with [`Socket::set_congestion_monitor`](super::Socket::set_congestion_monitor)): bit
    /// `port % 64` of each destination that is free again.
    CongestionCleared(u64),
}

/// A received message.
#[derive(PartialEq, Eq)]
pub struct Message {
    /// Who sent it.
    pub from: SocketAddr,
    /// Its payload.
    pub payload: Lease,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message").field("from", &self.from).field("len", &self.payload.len()).finish()
    }
}

/// What a receive of leases returned.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A message.
    Message(Message),
    /// As [`Received::CongestionCleared`].
    CongestionCleared(u64),
}

/// What [`Socket::wait`](super::Socket::wait) waits for, and found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// A receive would return something.
    pub readable: bool,
    /// The send buffer has room. The destination may be congested all the same.
    pub writable: bool,
    /// [`Socket::completions`](super::Socket::completions) would return something.
    pub completions: bool,
}

impl Readiness {
    /// Something can be received.
    pub const READABLE: Self = Self { readable: true, writable: false, completions: false };
    /// Something can be sent.
    pub const WRITABLE: Self = Self { readable: false, writable: true, completions: false };
    /// There are completions.
    pub const COMPLETIONS: Self = Self { readable: false, writable: false, completions: true };
}

/// What [`Engine::shutdown`](super::Engine::shutdown) found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Messages that were still queued or unacknowledged at the deadline.
    pub undelivered: u64,
}
