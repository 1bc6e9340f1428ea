//! Settings of a node.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use thiserror::Error;

use super::PeerFilter;
use crate::wire::{Capabilities, MAX_LANES, MAX_MESSAGE};

/// Settings of a [`Node`](super::Node). Every limit bounds something that a peer could make the node hold.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The node's address: source of all its connections. Unicast; not a wildcard.
    pub address: IpAddr,
    /// Number of this incarnation, shown in the handshake; another one means a restart.
    pub generation: NonZeroU32,
    /// Sequence numbers of this incarnation begin above this; see [`Config::first_sequence_at`].
    pub first_sequence: u64,
    /// Seed of the random part of reconnect delays.
    pub seed: u64,
    /// Lanes (TCP connections) that the node offers own peers and kernels from 7.0 on, 1 to 8. Default 1.
    pub lanes: u8,
    /// Lanes that it offers kernels up to 6.18, 1 to 8. Those pair connections with lanes by the order in which they come, so that
    /// after a reset messages can be lost, come twice or out of order when there are several. Default 1; 8 for a host that ran the kernel's
    /// module before, whose old peers remember 8 and would strand what waits on their lanes above 0 if told less.
    pub old_kernel_lanes: u8,
    /// What the node offers own peers. Default: acks and window.
    pub capabilities: Capabilities,
    /// Largest message in bytes, at most 1 MiB. Default 1 MiB.
    pub max_message: u32,
    /// Bytes of received messages that no program has taken, with 48 bytes a message, that the node holds
    /// before it stops granting and reading. Default 256 MiB. A message begun before may go beyond, one a connection.
    pub receive_budget: u64,
    /// Most bytes that one own peer may send ahead on one lane. Default 4 MiB.
    pub window: u64,
    /// A port's hard limit, in times its receive buffer: past it the connection that fills it is throttled.
    /// Default 4.
    pub port_hard_limit: u32,
    /// Shortest upper bound of the reconnect delay (kernel: `reconnect_min_delay_ms`). Default 1 ms.
    pub reconnect_min: Duration,
    /// Longest upper bound of the reconnect delay (kernel: `reconnect_max_delay_ms`). Default 1 s.
    pub reconnect_max: Duration,
    /// How long a new connection may take to say who is there before it is dropped. Default 10 s.
    pub handshake_timeout: Duration,
    /// How long to wait for a sign from a kernel that sends none before sending anyway. Default 1 s.
    pub identity_grace: Duration,
    /// Whether pings are answered (kernel: `ping_enable`). Handshake pings always are: programs of kernels before 7.0 would wait for ever
    /// for the answer. Default true.
    pub ping_enable: bool,
    /// Most peers known at once. Past it the one that has been without a connection, messages and waiting senders for the longest time makes
    /// room. Default 4096.
    pub max_peers: usize,
    /// Most accepted connections that have not finished their handshake. Default 256.
    pub max_handshakes: usize,
    /// Which peers are talked to. Default everybody.
    pub peers: PeerFilter,
}

/// A setting that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The address is a wildcard, multicast, broadcast or link-local IPv6 address.
    #[error("{0} cannot be a node's address: give one unicast address of this host, not a link-local one")]
    Address(IpAddr),
    /// A number of lanes out of range.
    #[error("{0} lanes: give 1 to 8")]
    Lanes(u8),
    /// Message limit out of range.
    #[error("a message limit of {0} bytes: give 1 to 1048576")]
    MaxMessage(u32),
    /// Another limit that leaves no room to work.
    #[error("{name} of {value}: give at least {least}")]
    TooSmall {
        /// The setting.
        name: &'static str,
        /// Its value.
        value: u64,
        /// The least that works.
        least: u64,
    },
}

impl Config {
    /// Defaults for a node at `address`, in the incarnation `generation`.
    #[must_use]
    pub fn new(address: IpAddr, generation: NonZeroU32) -> Self {
        Self {
            address,
            generation,
            first_sequence: 0,
            seed: u64::from(generation.get()),
            lanes: 1,
            old_kernel_lanes: 1,
            capabilities: Capabilities::ACKS.with(Capabilities::WINDOW),
            max_message: MAX_MESSAGE,
            receive_budget: 256 << 20,
            window: 4 << 20,
            port_hard_limit: 4,
            reconnect_min: Duration::from_millis(1),
            reconnect_max: Duration::from_secs(1),
            handshake_timeout: Duration::from_secs(10),
            identity_grace: Duration::from_secs(1),
            ping_enable: true,
            max_peers: 4096,
            max_handshakes: 256,
            peers: PeerFilter::default(),
        }
    }

    /// Lanes for a host of that many CPUs: the largest power of two that is not above their number, at most 8.
    #[must_use]
    pub const fn lanes_for(cpus: usize) -> u8 {
        match cpus {
            8.. => 8,
            4.. => 4,
            2.. => 2,
            _ => 1,
        }
    }

    /// The number that an incarnation begun at `unix_millis` counts from: above all that an earlier one used, as
    /// long as it sent less than 2^20 messages a millisecond and lane.
    #[must_use]
    pub const fn first_sequence_at(unix_millis: u64) -> u64 {
        (unix_millis & ((1 << 43) - 1)) << 20
    }

    /// What the node announces to own peers: its capabilities, and how many lanes it offers.
    pub(super) const fn announced(&self) -> Capabilities {
        self.capabilities.with_lanes(self.lanes)
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// The first setting that cannot work.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let unicast = match self.address {
            IpAddr::V4(a) => !a.is_unspecified() && !a.is_multicast() && !a.is_broadcast(),
            IpAddr::V6(a) => {
                !a.is_unspecified()
                    && !a.is_multicast()
                    && a.to_ipv4_mapped().is_none()
                    && !a.is_unicast_link_local()
            }
        };
        if !unicast {
            return Err(ConfigError::Address(self.address));
        }
        for lanes in [self.lanes, self.old_kernel_lanes] {
            if !(1..=MAX_LANES).contains(&lanes) {
                return Err(ConfigError::Lanes(lanes));
            }
        }
        if self.max_message == 0 || self.max_message > MAX_MESSAGE {
            return Err(ConfigError::MaxMessage(self.max_message));
        }
        let least = [
            ("receive_budget", self.receive_budget, u64::from(self.max_message)),
            ("window", self.window, 64 << 10),
            ("port_hard_limit", u64::from(self.port_hard_limit), 1),
            ("reconnect_min (microseconds)", self.reconnect_min.as_micros() as u64, 1),
            ("max_peers", self.max_peers as u64, 1),
            ("max_handshakes", self.max_handshakes as u64, 1),
        ];
        for (name, value, least) in least {
            if value < least {
                return Err(ConfigError::TooSmall { name, value, least });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn automatic_lanes_are_the_largest_power_of_two_that_the_cpus_allow() {
        let lanes: Vec<u8> = [0, 1, 2, 3, 4, 6, 7, 8, 9, 100].map(Config::lanes_for).into();
        assert_eq!(lanes, [1, 1, 2, 2, 4, 4, 4, 8, 8, 8]);
    }

    #[test]
    fn lanes_are_1_to_8_towards_everybody() {
        let address = IpAddr::from([127, 0, 0, 1]);
        for lanes in 0..=9 {
            let mut config = Config::new(address, NonZeroU32::MIN);
            config.lanes = lanes;
            let refused = if (1..=8).contains(&lanes) { Ok(()) } else { Err(ConfigError::Lanes(lanes)) };
            assert_eq!(config.validate(), refused);
            (config.lanes, config.old_kernel_lanes) = (1, lanes);
            assert_eq!(config.validate(), refused);
        }
    }
}
