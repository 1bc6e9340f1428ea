//! The congestion map: one bit for each RDS port of an address (Linux `net/rds/cong.c`).

use std::fmt;

use bytes::Bytes;

use super::{Flags, Header, Identity};

/// Length of a map on the wire, in bytes (`RDS_CONG_MAP_BYTES`).
pub const MAP_LEN: usize = 8192;

/// Which ports of an address are congested. Port `p` is bit `p & 7` of byte `p >> 3` on every
/// architecture.
///
/// Bits 0 and 1 (engine and probe port) are never set by us. A map without any bit takes no memory
/// beyond the value itself.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CongestionMap {
    bits: Option<Box<[u8; MAP_LEN]>>,
    set: u32,
}

impl CongestionMap {
    /// A map without a congested port.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether `port` is congested.
    #[must_use]
    pub fn contains(&self, port: u16) -> bool {
        self.bits.as_ref().is_some_and(|b| b[usize::from(port >> 3)] & (1 << (port & 7)) != 0)
    }

    /// Sets or clears a port; returns whether that changed the map.
    pub fn set(&mut self, port: u16, congested: bool) -> bool {
        if self.contains(port) == congested {
            return false;
        }
        let bits = self.bits.get_or_insert_with(|| Box::new([0; MAP_LEN]));
        bits[usize::from(port >> 3)] ^= 1 << (port & 7);
        if congested {
            self.set += 1;
        } else {
            self.set -= 1;
            if self.set == 0 {
                self.bits = None;
            }
        }
        true
    }

    /// Number of congested ports.
    #[must_use]
    pub fn len(&self) -> usize {
        self.set as usize
    }

    /// Whether no port is congested.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.set == 0
    }

    /// Reads a map's payload; `None` when its length is not [`MAP_LEN`] (Linux reads such a map and
    /// ignores it, `rds_tcp_cong_recv`).
    #[must_use]
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let bytes: &[u8; MAP_LEN] = payload.try_into().ok()?;
        let set = bytes.iter().map(|b| b.count_ones()).sum();
        Some(if set == 0 { Self::new() } else { Self { bits: Some(Box::new(*bytes)), set } })
    }

    /// The payload bytes.
    #[must_use]
    pub fn encode(&self) -> Box<[u8; MAP_LEN]> {
        self.bits.clone().unwrap_or_else(|| Box::new([0; MAP_LEN]))
    }

    /// A whole message, header and payload, with the sender's identity in the padding.
    #[must_use]
    pub fn to_message(&self, identity: Identity) -> Bytes {
        let header = Header {
            len: MAP_LEN as u32,
            flags: Flags::CONG_BITMAP,
            padding: identity.encode(),
            ..Header::default()
        };
        let mut message = Vec::with_capacity(super::HEADER_LEN + MAP_LEN);
        message.extend_from_slice(&if identity.is_own() {
            header.encode_with_checksum()
        } else {
            header.encode()
        });
        message.extend_from_slice(&self.encode()[..]);
        message.into()
    }

    /// The congested ports, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.bits.iter().flat_map(|b| b.iter().enumerate()).filter(|(_, b)| **b != 0).flat_map(|(i, b)| {
            (0..8u16).filter(move |bit| b & (1 << bit) != 0).map(move |bit| (i as u16) << 3 | bit)
        })
    }
}

impl fmt::Debug for CongestionMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
