//! The counters of a node, under the kernel's names and in its order (`net/rds/stats.c`, `tcp_stats.c`),
//! then our own.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! counters {
    ($($(#[doc = $help:literal])+ $variant:ident = $name:literal,)+) => {
        /// One counter. The names are the kernel's where the kernel has one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Counter {
            $($(#[doc = $help])+ $variant,)+
        }

        impl Counter {
            /// Every counter, in the order in which tools print them.
            pub const ALL: &'static [Counter] = &[$(Counter::$variant),+];

            /// Its name, as `rds-info -c` prints it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)+ }
            }

            /// What it counts, in a line.
            #[must_use]
            pub fn help(self) -> &'static str {
                match self { $(Counter::$variant => concat!($($help),+).trim(),)+ }
            }
        }
    };
}

counters! {
    /// Connections lost (a path torn down).
    ConnReset = "conn_reset",
    /// Headers with a wrong checksum; each ends its connection.
    RecvDropBadChecksum = "recv_drop_bad_checksum",
    /// Messages that had come before.
    RecvDropOldSeq = "recv_drop_old_seq",
    /// Messages for a port to which no socket is bound.
    RecvDropNoSock = "recv_drop_no_sock",
    /// Messages for a socket that is closing.
    RecvDropDeadSock = "recv_drop_dead_sock",
    /// Messages taken by programs.
    RecvDelivered = "recv_delivered",
    /// Messages queued for a socket.
    RecvQueued = "recv_queued",
    /// Pings received, those of the handshake included.
    RecvPing = "recv_ping",
    /// A socket's send queue drained to nothing.
    SendQueueEmpty = "send_queue_empty",
    /// A send met a full send buffer.
    SendQueueFull = "send_queue_full",
    /// Messages queued for sending.
    SendQueued = "send_queued",
    /// Pings and pongs sent.
    SendPong = "send_pong",
    /// Payload bytes copied out to programs.
    CopyToUser = "copy_to_user",
    /// Payload bytes copied in from programs.
    CopyFromUser = "copy_from_user",
    /// Changes of our own congestion map.
    CongUpdateQueued = "cong_update_queued",
    /// Congestion maps received.
    CongUpdateReceived = "cong_update_received",
    /// Sends refused because the destination port is congested.
    CongSendError = "cong_send_error",
    /// Sends that waited because the destination port was congested.
    CongSendBlocked = "cong_send_blocked",
    /// Payload bytes added to sockets' receive queues.
    RecvBytesAddedToSock = "recv_bytes_added_to_sock",
    /// Payload bytes taken from sockets' receive queues.
    RecvBytesFreedFromSock = "recv_bytes_freed_fromsock",
    /// Reads from TCP sockets.
    TcpDataReadyCalls = "tcp_data_ready_calls",
    /// Bytes that read calls have brought, headers included; not those of mapped pages.
    TcpBytesReceived = "tcp_bytes_received",
    /// Bytes that send calls have taken, headers included, pinned ones too.
    TcpBytesSent = "tcp_bytes_sent",
    /// A TCP socket's send buffer was full.
    TcpSndbufFull = "tcp_sndbuf_full",
    /// Messages sent again after a connection was lost.
    SendRetransmitted = "send_retransmitted",
    /// Headers sent only to acknowledge or to open the window.
    SendAckOnly = "send_ack_only",
    /// Headers received that only acknowledge or open the window.
    RecvAckOnly = "recv_ack_only",
    /// Messages whose fate is unknown because the peer restarted.
    SendUnknown = "send_unknown",
    /// Messages cancelled before they were acknowledged.
    SendCancelled = "send_cancelled",
    /// Peers seen to have restarted.
    PeerRestarts = "peer_restarts",
    /// Connections dropped because of what the peer sent.
    ProtocolErrors = "protocol_errors",
    /// Connections refused because of a limit.
    ConnRefused = "conn_refused",
    /// Connection attempts made to wake a smaller address.
    ConnPokes = "conn_pokes",
}

/// The values of all counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters([u64; Counter::ALL.len()]);

impl Default for Counters {
    fn default() -> Self {
        Self([0; Counter::ALL.len()])
    }
}

impl Counters {
    /// All zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The value of one.
    #[must_use]
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Adds `n`, wrapping as the kernel's do.
    #[inline]
    pub fn add(&mut self, counter: Counter, n: u64) {
        let value = &mut self.0[counter as usize];
        *value = value.wrapping_add(n);
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.iter().map(|c| (c.name(), self.get(*c)))
    }
}

impl Serialize for Counters {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(Counter::ALL.len()))?;
        for (name, value) in self.iter() {
            map.serialize_entry(name, &value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Counters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Named;
        impl<'de> Visitor<'de> for Named {
            type Value = Counters;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("counters by name")
            }

            /// Counters of a newer version are left out, those that an older one does not have are 0.
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Counters, A::Error> {
                let mut counters = Counters::new();
                while let Some((name, value)) = map.next_entry::<String, u64>()? {
                    if let Some(counter) = Counter::ALL.iter().find(|counter| counter.name() == name) {
                        counters.0[*counter as usize] = value;
                    }
                }
                Ok(counters)
            }
        }
        deserializer.deserialize_map(Named)
    }
}
