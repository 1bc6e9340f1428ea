//! The 48-byte message header (`struct rds_header`, Linux `net/rds/rds.h`).

use super::checksum;
use super::identity::Identity;
use super::{PORT_ENGINE, PORT_PROBE};

/// Length of every RDS header, in bytes.
pub const HEADER_LEN: usize = 48;

/// The bits of `h_flags`. Unknown bits are kept as they came, and ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// The payload is a congestion map; recognised only when it is the sole bit (`rds_tcp_data_recv`).
    pub const CONG_BITMAP: Self = Self(0x01);
    /// Ignored on TCP.
    pub const ACK_REQUIRED: Self = Self(0x02);
    /// The message may have been sent on an earlier connection too.
    pub const RETRANSMITTED: Self = Self(0x04);

    /// Whether every bit of `other` is set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These bits and those of `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A decoded header. Integers are in host order; addresses are not part of it: they are the ends of
/// the TCP connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Header {
    /// `h_sequence`: number of the message on its lane; 0 in congestion maps; the window limit in an
    /// ack-only header between own peers.
    pub sequence: u64,
    /// `h_ack`: 0 from kernels; the highest accepted sequence between own peers.
    pub ack: u64,
    /// `h_len`: payload bytes after the header.
    pub len: u32,
    /// `h_sport`: the sender's RDS port.
    pub sport: u16,
    /// `h_dport`: the receiver's RDS port.
    pub dport: u16,
    /// `h_flags`.
    pub flags: Flags,
    /// `h_credit`: InfiniBand only; 0 on TCP.
    pub credit: u8,
    /// `h_padding`: 0 from kernels; own peers put their [`Identity`] there.
    pub padding: [u8; 4],
    /// `h_csum` as it stands on the wire; 0 means "none".
    pub csum: u16,
    /// `h_exthdr`, undecoded; see [`HandshakeExtensions`](super::HandshakeExtensions).
    pub extensions: [u8; 16],
}

impl Header {
    /// Decodes a header. Every byte pattern is a header; what is plausible is the reader's to judge.
    #[must_use]
    #[inline]
    pub fn decode(b: &[u8; HEADER_LEN]) -> Self {
        let [
            s0,
            s1,
            s2,
            s3,
            s4,
            s5,
            s6,
            s7,
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            l0,
            l1,
            l2,
            l3,
            sp0,
            sp1,
            dp0,
            dp1,
            flags,
            credit,
            p0,
            p1,
            p2,
            p3,
            c0,
            c1,
            ext @ ..,
        ] = *b;
        Self {
            sequence: u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]),
            ack: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len: u32::from_be_bytes([l0, l1, l2, l3]),
            sport: u16::from_be_bytes([sp0, sp1]),
            dport: u16::from_be_bytes([dp0, dp1]),
            flags: Flags(flags),
            credit,
            padding: [p0, p1, p2, p3],
            csum: u16::from_be_bytes([c0, c1]),
            extensions: ext,
        }
    }

    /// Encodes the header with `csum` as it stands.
    #[must_use]
    #[inline]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut b = [0; HEADER_LEN];
        b[0..8].copy_from_slice(&self.sequence.to_be_bytes());
        b[8..16].copy_from_slice(&self.ack.to_be_bytes());
        b[16..20].copy_from_slice(&self.len.to_be_bytes());
        b[20..22].copy_from_slice(&self.sport.to_be_bytes());
        b[22..24].copy_from_slice(&self.dport.to_be_bytes());
        b[24] = self.flags.0;
        b[25] = self.credit;
        b[26..30].copy_from_slice(&self.padding);
        b[30..32].copy_from_slice(&self.csum.to_be_bytes());
        b[32..48].copy_from_slice(&self.extensions);
        b
    }

    /// Encodes the header with its checksum filled in, as own peers do (`rds_message_make_checksum`).
    #[must_use]
    pub fn encode_with_checksum(&self) -> [u8; HEADER_LEN] {
        let mut b = Self { csum: 0, ..*self }.encode();
        let sum = checksum::checksum(&b);
        b[30..32].copy_from_slice(&sum.to_be_bytes());
        b
    }

    /// A congestion map by the kernel's test: the flags are [`Flags::CONG_BITMAP`] and nothing else.
    #[must_use]
    pub fn is_congestion_map(&self) -> bool {
        self.flags == Flags::CONG_BITMAP
    }

    /// A handshake ping: probe port to engine port.
    #[must_use]
    pub fn is_handshake_ping(&self) -> bool {
        !self.is_congestion_map() && self.sport == PORT_PROBE && self.dport == PORT_ENGINE
    }

    /// A handshake pong: engine port to probe port.
    #[must_use]
    pub fn is_handshake_pong(&self) -> bool {
        !self.is_congestion_map() && self.sport == PORT_ENGINE && self.dport == PORT_PROBE
    }

    /// A header from engine port to engine port without payload: between own peers an acknowledgement
    /// alone; kernels ignore it.
    #[must_use]
    pub fn is_ack_only(&self) -> bool {
        !self.is_congestion_map() && self.sport == PORT_ENGINE && self.dport == PORT_ENGINE && self.len == 0
    }

    /// Who sent this, as far as the padding tells; only maps and handshake messages carry it.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity::decode(self.padding)
    }
}

#[cfg(test)]
mod tests;
