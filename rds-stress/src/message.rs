//! The header of every request and ack (rds-tools, section 3.2).

use std::net::{IpAddr, SocketAddr};

/// Bytes of the header of IPv4 messages: Oracle's 2.0.7-1.16 and later.
pub const HEADER_V4: usize = 63;
/// Bytes of the header of IPv6 messages.
pub const HEADER_V6: usize = 96;
/// Header lengths that are known for IPv4: 1.4, the community's 1.5 to 2.0.7, Oracle's.
pub const HEADERS_V4: [usize; 3] = [56, 60, HEADER_V4];

/// The header length of a peer that asks for acks of `ack_size` bytes: the longest header that fits.
#[must_use]
pub fn header_len(ipv6: bool, ack_size: u32) -> usize {
    match ack_size {
        _ if ipv6 => HEADER_V6,
        ..60 => HEADERS_V4[0],
        60..63 => HEADERS_V4[1],
        63.. => HEADERS_V4[2],
    }
}

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Asks for an ack.
    Request,
    /// Answers a request.
    Ack,
}

impl Op {
    /// The byte on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Request => 1,
            Self::Ack => 2,
        }
    }

    /// The operation of a byte from the wire.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Request),
            2 => Some(Self::Ack),
            _ => None,
        }
    }
}

/// The fields of a header that carry anything without RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Counts requests and acks alike from one task to another, from 0.
    pub seq: u32,
    /// Sender's RDS address and port.
    pub from: SocketAddr,
    /// Receiver's RDS address and port.
    pub to: SocketAddr,
    /// The slot of the request, also in its ack.
    pub index: u16,
    /// The operation's byte; [`Op::from_code`].
    pub op: u8,
    /// Whether it is a resend of the reference's `--async`.
    pub retry: bool,
}

impl Header {
    /// Fills `out`, a whole header of 56, 60, 63 or (IPv6) 96 bytes.
    pub fn write(&self, out: &mut [u8]) {
        out.fill(0);
        out[0..4].copy_from_slice(&self.seq.to_be_bytes());
        if let (IpAddr::V4(from), IpAddr::V4(to)) = (self.from.ip(), self.to.ip()) {
            out[4..8].copy_from_slice(&from.octets());
            out[8..12].copy_from_slice(&to.octets());
        }
        out[12..14].copy_from_slice(&self.from.port().to_be_bytes());
        out[14..16].copy_from_slice(&self.to.port().to_be_bytes());
        out[16..18].copy_from_slice(&self.index.to_be_bytes());
        out[18] = self.op;
        if let Some(retry) = out.get_mut(60) {
            *retry = u8::from(self.retry);
        }
        if let (IpAddr::V6(from), IpAddr::V6(to), HEADER_V6) = (self.from.ip(), self.to.ip(), out.len()) {
            out[64..80].copy_from_slice(&from.octets());
            out[80..96].copy_from_slice(&to.octets());
        }
    }

    /// Reads a header of 56, 60, 63 or (IPv6) 96 bytes.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Self {
        let u32_at = |i: usize| u32::from_be_bytes([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
        let u16_at = |i: usize| u16::from_be_bytes([bytes[i], bytes[i + 1]]);
        let (from, to) = if bytes.len() == HEADER_V6 {
            let address = |i: usize| IpAddr::from(<[u8; 16]>::try_from(&bytes[i..i + 16]).expect("16 bytes"));
            (address(64), address(80))
        } else {
            let address = |i: usize| IpAddr::from([bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]]);
            (address(4), address(8))
        };
        Self {
            seq: u32_at(0),
            from: SocketAddr::new(from, u16_at(12)),
            to: SocketAddr::new(to, u16_at(14)),
            index: u16_at(16),
            op: bytes[18],
            retry: bytes.get(60).is_some_and(|b| *b != 0),
        }
    }

    /// Changes in a header written before what differs between the messages of one task: sequence, receiver's port, slot.
    #[inline]
    pub fn patch(out: &mut [u8], seq: u32, to_port: u16, index: u16) {
        out[0..4].copy_from_slice(&seq.to_be_bytes());
        out[14..16].copy_from_slice(&to_port.to_be_bytes());
        out[16..18].copy_from_slice(&index.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            seq: 0x0102_0304,
            from: "10.0.0.1:4001".parse().unwrap(),
            to: "10.0.0.2:4002".parse().unwrap(),
            index: 7,
            op: Op::Ack.code(),
            retry: false,
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn an_ipv4_header_is_the_references() {
        let expected = format!("01020304{}{}{}{}{}{}", "0a000001", "0a000002", "0fa1", "0fa2", "0007", "02");
        for len in HEADERS_V4 {
            let mut out = vec![0xee; len];
            header().write(&mut out);
            assert_eq!(hex(&out), format!("{expected}{}", "00".repeat(len - 19)));
            assert_eq!(Header::read(&out), header());
        }
    }

    #[test]
    fn an_ipv6_header_is_the_references() {
        let header = Header {
            from: "[fd00::1]:4001".parse().unwrap(),
            to: "[fd00::2]:4002".parse().unwrap(),
            ..header()
        };
        let mut out = [0xee; HEADER_V6];
        header.write(&mut out);
        let expected = format!(
            "01020304{}0fa10fa2000702{}{}{}",
            "00".repeat(8),
            "00".repeat(45),
            "fd000000000000000000000000000001",
            "fd000000000000000000000000000002"
        );
        assert_eq!(hex(&out), expected);
        assert_eq!(Header::read(&out), header);
    }

    #[test]
    fn a_resend_is_marked_where_the_header_has_room_for_it() {
        let header = Header { retry: true, ..header() };
        let mut out = [0; HEADER_V4];
        header.write(&mut out);
        assert_eq!(out[60], 1);
        assert!(Header::read(&out).retry);
        assert!(!Header::read(&out[..60]).retry);
    }

    #[test]
    fn a_patched_header_is_the_written_one() {
        let mut patched = [0; HEADER_V4];
        Header { seq: 0, index: 0, to: "10.0.0.2:1".parse().unwrap(), ..header() }.write(&mut patched);
        Header::patch(&mut patched, header().seq, header().to.port(), header().index);
        let mut written = [0; HEADER_V4];
        header().write(&mut written);
        assert_eq!(patched, written);
    }

    #[test]
    fn the_header_length_follows_the_ack_size() {
        for (ack, len) in [(0, 56), (56, 56), (59, 56), (60, 60), (62, 60), (63, 63), (1 << 20, 63)] {
            assert_eq!(header_len(false, ack), len);
            assert_eq!(header_len(true, ack), 96);
        }
    }
}
