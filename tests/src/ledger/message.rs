//! What a ledger message carries: who sent it to whom, its number, and a checksum over all of it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use bytes::{Bytes, BytesMut};

/// Shortest message, in bytes: what [`Id`] and the checksum need.
pub const LEAST: usize = 48;

const MAGIC: [u8; 8] = *b"rdsledgr";
const CHECKSUM_AT: usize = 40;
const POOL: usize = 1 << 20;

/// Two sockets, in the direction of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pair {
    /// The sending socket.
    pub source: SocketAddrV4,
    /// The receiving socket.
    pub destination: SocketAddrV4,
}

/// The name of a message. No two messages of a run have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id {
    /// From where to where.
    pub pair: Pair,
    /// Which life of the sending process, counted from 1.
    pub incarnation: u32,
    /// Its place among the messages of this pair and incarnation, counted from 0.
    pub number: u64,
}

/// Why a received payload is not what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// Shorter than any ledger message.
    #[error("{0} bytes are no ledger message")]
    Short(usize),
    /// No ledger message, or another length than the sender's.
    #[error("the message does not say what it is, or says another length")]
    Foreign,
    /// Its checksum is wrong.
    #[error("the checksum of {number} says {stated:08x}, the content {found:08x}")]
    Checksum {
        /// The number that the message states.
        number: u64,
        /// Its checksum.
        stated: u32,
        /// The sum of what came.
        found: u32,
    },
    /// It came from, or to, another socket than it says.
    #[error("number {0} came from or to another socket than it was sent from and to")]
    Misrouted(u64),
}

/// Makes messages of pseudo-random content.
pub struct Writer {
    pool: Vec<u8>,
}

impl Writer {
    /// Content that depends on `seed` alone.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pool = vec![0; 2 * POOL];
        random.fill(&mut pool);
        Self { pool }
    }

    /// A message of `len` bytes, at least [`LEAST`] and at most 1 MiB.
    #[must_use]
    pub fn message(&self, id: &Id, len: usize) -> Bytes {
        let mut out = BytesMut::with_capacity(len);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&id.incarnation.to_be_bytes());
        out.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_be_bytes());
        out.extend_from_slice(&id.number.to_be_bytes());
        for end in [id.pair.source, id.pair.destination] {
            out.extend_from_slice(&end.ip().octets());
            out.extend_from_slice(&end.port().to_be_bytes());
        }
        out.resize(LEAST, 0);
        // Neighbouring messages begin at different places, so that parts which change places show.
        let start = usize::try_from(id.number.wrapping_mul(7919)).unwrap_or(0) % POOL;
        out.extend_from_slice(&self.pool[start..start + len.saturating_sub(LEAST)]);
        let sum = checksum(&out);
        out[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_be_bytes());
        out.freeze()
    }
}

/// Reads what [`Writer::message`] made, as it came from `from` at `to`.
///
/// # Errors
/// [`Damage`].
pub fn read(payload: &[u8], from: SocketAddr, to: SocketAddr) -> Result<Id, Damage> {
    if payload.len() < LEAST {
        return Err(Damage::Short(payload.len()));
    }
    if payload[..8] != MAGIC || u32_at(payload, 12) as usize != payload.len() {
        return Err(Damage::Foreign);
    }
    let number = u64::from(u32_at(payload, 16)) << 32 | u64::from(u32_at(payload, 20));
    let (stated, found) = (u32_at(payload, CHECKSUM_AT), checksum(payload));
    if stated != found {
        return Err(Damage::Checksum { number, stated, found });
    }
    let pair = Pair { source: end_at(payload, 24), destination: end_at(payload, 30) };
    if Some(pair.source) != v4(from) || Some(pair.destination) != v4(to) {
        return Err(Damage::Misrouted(number));
    }
    Ok(Id { pair, incarnation: u32_at(payload, 8), number })
}

/// An address of the family in which all ledger tests run.
#[must_use]
pub fn v4(address: SocketAddr) -> Option<SocketAddrV4> {
    match address.ip() {
        IpAddr::V4(ip) => Some(SocketAddrV4::new(ip, address.port())),
        IpAddr::V6(ip) => ip.to_ipv4_mapped().map(|ip| SocketAddrV4::new(ip, address.port())),
    }
}

fn checksum(message: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&message[..CHECKSUM_AT]);
    sum.update(&message[CHECKSUM_AT + 4..]);
    sum.finalize()
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn end_at(b: &[u8], at: usize) -> SocketAddrV4 {
    let ip = Ipv4Addr::new(b[at], b[at + 1], b[at + 2], b[at + 3]);
    SocketAddrV4::new(ip, u16::from_be_bytes([b[at + 4], b[at + 5]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> Id {
        let end = |port| SocketAddrV4::new(Ipv4Addr::new(127, 9, 9, 1), port);
        Id { pair: Pair { source: end(7), destination: end(8) }, incarnation: 3, number: (5 << 32) | 6 }
    }

    #[test]
    fn a_message_names_itself_and_every_changed_byte_shows() {
        let writer = Writer::new(1);
        let (from, to) = (id().pair.source.into(), id().pair.destination.into());
        for len in [LEAST, LEAST + 1, 300] {
            let message = writer.message(&id(), len);
            assert_eq!(message.len(), len);
            assert_eq!(read(&message, from, to), Ok(id()));
            for at in 0..len {
                let mut bad = message.to_vec();
                bad[at] ^= 0x10;
                read(&bad, from, to).expect_err("a changed byte must show");
            }
            read(&message[..len - 1], from, to).expect_err("a cut message must show");
            assert_eq!(read(&message, to, from), Err(Damage::Misrouted(id().number)));
        }
    }
}
