//! The congestion map: one bit for each RDS port of an address (Linux `net/rds/cong.c`).

use std::fmt;

use bytes::Bytes;

use super::{Flags, Header, Identity};

/// Length of a map on the wire, in bytes (`RDS_CONG_MAP_BYTES`).
pub const MAP_LEN: usize = 8192;

/// Which ports of an address are congested. Port `p` is bit `p & 7` of byte `p >> 3` on every
/// architecture.
///
/// The map itself gives no port a meaning: whoever sends one leaves bits 0 and 1 (engine and probe port)
/// clear. A map without any bit takes no memory beyond the value itself.
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
        match &self.bits {
            Some(bits) => message.extend_from_slice(&bits[..]),
            None => message.resize(super::HEADER_LEN + MAP_LEN, 0),
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Capabilities, HEADER_LEN};

    fn with(ports: &[u16]) -> CongestionMap {
        let mut map = CongestionMap::new();
        for &port in ports {
            assert!(map.set(port, true));
        }
        map
    }

    #[test]
    fn a_port_is_bit_p_mod_8_of_byte_p_div_8() {
        for (port, byte, mask) in [
            (0, 0, 0x01),
            (1, 0, 0x02),
            (7, 0, 0x80),
            (8, 1, 0x01),
            (4010, 501, 0x04),
            (7000, 875, 0x01),
            (65535, 8191, 0x80),
        ] {
            let bytes = with(&[port]).encode();
            assert_eq!(bytes[byte], mask, "port {port}");
            assert_eq!(bytes.iter().filter(|b| **b != 0).count(), 1, "port {port}");
            assert_eq!(CongestionMap::decode(&bytes[..]).unwrap().iter().collect::<Vec<_>>(), [port]);
        }
    }

    #[test]
    fn set_says_whether_it_changed_the_map() {
        let mut map = CongestionMap::new();
        assert!(!map.set(4000, false));
        assert!(map.set(4000, true));
        assert!(!map.set(4000, true));
        assert!(map.contains(4000) && !map.contains(4001));
        assert!(map.set(4000, false));
        assert!(!map.contains(4000));
    }

    #[test]
    fn a_map_that_was_emptied_equals_a_new_one_and_holds_no_memory() {
        let mut map = with(&[9, 65535]);
        assert_eq!(map.len(), 2);
        map.set(9, false);
        map.set(65535, false);
        assert!(map.is_empty() && map.bits.is_none());
        assert_eq!(map, CongestionMap::new());
        let decoded = CongestionMap::decode(&[0; MAP_LEN]).unwrap();
        assert!(decoded.bits.is_none());
        assert_eq!(decoded, map);
    }

    #[test]
    fn a_full_map_has_every_port() {
        let map = CongestionMap::decode(&[0xff; MAP_LEN]).unwrap();
        assert_eq!(map.len(), 65536);
        assert!(map.iter().eq(0..=65535));
    }

    #[test]
    fn a_map_of_a_wrong_length_is_not_a_map() {
        for len in [0, 1, MAP_LEN - 1, MAP_LEN + 1, 2 * MAP_LEN] {
            assert!(CongestionMap::decode(&vec![0xff; len]).is_none(), "{len} bytes");
        }
    }

    #[test]
    fn a_message_to_a_kernel_is_what_kernels_send() {
        let message = with(&[4000]).to_message(Identity::Kernel);
        let mut header = [0; HEADER_LEN];
        header[18] = 0x20;
        header[24] = 1;
        assert_eq!(message[..HEADER_LEN], header);
        assert_eq!(message.len(), 8240);
        assert_eq!(message[HEADER_LEN + 500], 1);
        assert_eq!(CongestionMap::new().to_message(Identity::Kernel)[HEADER_LEN..], [0; MAP_LEN]);
    }

    #[test]
    fn a_message_to_an_own_peer_has_identity_and_checksum() {
        let identity = Identity::ours(Capabilities::ACKS.with(Capabilities::WINDOW));
        let message = with(&[4000]).to_message(identity);
        let header = message.first_chunk::<HEADER_LEN>().unwrap();
        let decoded = Header::decode(header);
        assert!(decoded.is_congestion_map());
        assert_eq!(decoded.identity(), identity);
        assert_ne!(decoded.csum, 0);
        assert!(super::super::checksum::verify(header));
    }

    #[test]
    fn debug_lists_the_congested_ports() {
        assert_eq!(format!("{:?}", with(&[4000, 5])), "{5, 4000}");
    }
}
