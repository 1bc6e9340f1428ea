//! Resets TCP connections from outside, as a middlebox would: by a forged segment with RST to one end or both.
//!
//! The ends' kernels take a reset only if its number is exactly what they expect next (RFC 5961), so it is made after a packet that went by.
//! Linux alone; needs root, for AF_PACKET and raw sockets.

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

/// All protocols (ETH_P_ALL), as AF_PACKET wants it.
const EVERYTHING: i32 = 3_u16.to_be() as i32;
/// A raw socket whose headers the program makes itself (IPPROTO_RAW).
const RAW: i32 = 255;

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

/// What to reset, and when.
#[derive(Clone, Copy, Debug)]
pub struct Reset {
    /// TCP port of the end that was connected to.
    pub port: u16,
    /// Whose segment tells the numbers: the reset follows the next one that this end sends.
    pub after: Ipv4Addr,
    /// The end that gets the reset. The other is told nothing.
    pub victim: Ipv4Addr,
}

impl Reset {
    /// Watches the packets of the network namespace of this thread, and resets the connection that sends the next fitting one. Returns the
    /// two ends, that of `after` first.
    ///
    /// # Errors
    /// `TimedOut`: none came in `patience`. The process may not watch, or not forge.
    pub fn next(&self, patience: Duration) -> io::Result<[SocketAddrV4; 2]> {
        let mut watch = Socket::new(Domain::PACKET, Type::DGRAM, Some(Protocol::from(EVERYTHING)))?;
        watch.set_read_timeout(Some(Duration::from_millis(50)))?;
        let end = Instant::now() + patience;
        let mut packet = [0; 1 << 16];
        loop {
            let len = match watch.read(&mut packet) {
                Ok(len) => len,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => 0,
                Err(e) => return Err(e),
            };
            if let Some(seen) = packet.get(..len).and_then(Segment::read).filter(|s| self.fits(s)) {
                self.forge(&seen)?;
                return Ok([seen.from, seen.to]);
            }
            if Instant::now() >= end {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("nothing went by that fits {self:?}"),
                ));
            }
        }
    }

    fn fits(&self, s: &Segment) -> bool {
        [s.from.port(), s.to.port()].contains(&self.port)
            && *s.from.ip() == self.after
            && [s.from.ip(), s.to.ip()].contains(&&self.victim)
            && s.flags & (SYN | FIN | RST | ACK) == ACK
    }

    fn forge(&self, seen: &Segment) -> io::Result<()> {
        let after = seen.sequence.wrapping_add(u32::try_from(seen.data).unwrap_or(0));
        // What the victim expects next: from the one that sent this, what follows it; from the other, what it has acknowledged here.
        let (from, to, sequence, acknowledged) = if *seen.from.ip() == self.victim {
            (seen.to, seen.from, seen.acknowledged, after)
        } else {
            (seen.from, seen.to, after, seen.acknowledged)
        };
        let raw = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(RAW)))?;
        raw.send_to(&forged(from, to, sequence, acknowledged), &SocketAddrV4::new(*to.ip(), 0).into())?;
        Ok(())
    }
}

/// What matters of a TCP segment over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    from: SocketAddrV4,
    to: SocketAddrV4,
    sequence: u32,
    acknowledged: u32,
    flags: u8,
    /// Bytes of data.
    data: usize,
}

impl Segment {
    fn read(packet: &[u8]) -> Option<Self> {
        let be16 = |at: usize| Some(u16::from_be_bytes(packet.get(at..at + 2)?.try_into().ok()?));
        let be32 = |at: usize| Some(u32::from_be_bytes(packet.get(at..at + 4)?.try_into().ok()?));
        let first = *packet.first()?;
        if first >> 4 != 4 || *packet.get(9)? != 6 {
            return None;
        }
        let tcp = usize::from(first & 15) * 4;
        let header = usize::from(*packet.get(tcp + 12)? >> 4) * 4;
        let end = |ip: usize, port: usize| Some(SocketAddrV4::new(Ipv4Addr::from(be32(ip)?), be16(port)?));
        Some(Self {
            from: end(12, tcp)?,
            to: end(16, tcp + 2)?,
            sequence: be32(tcp + 4)?,
            acknowledged: be32(tcp + 8)?,
            flags: *packet.get(tcp + 13)?,
            data: usize::from(be16(2)?).checked_sub(tcp + header)?,
        })
    }
}

/// An IPv4 packet with RST and ACK.
fn forged(from: SocketAddrV4, to: SocketAddrV4, sequence: u32, acknowledged: u32) -> Vec<u8> {
    let mut tcp = Vec::with_capacity(20);
    tcp.extend_from_slice(&from.port().to_be_bytes());
    tcp.extend_from_slice(&to.port().to_be_bytes());
    tcp.extend_from_slice(&sequence.to_be_bytes());
    tcp.extend_from_slice(&acknowledged.to_be_bytes());
    tcp.extend_from_slice(&[5 << 4, RST | ACK, 0, 0, 0, 0, 0, 0]);
    let mut pseudo = [from.ip().octets(), to.ip().octets()].concat();
    pseudo.extend_from_slice(&[0, 6, 0, 20]);
    pseudo.extend_from_slice(&tcp);
    tcp[16..18].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    // The kernel fills in its checksum and identification.
    let mut packet = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
    packet.extend_from_slice(&from.ip().octets());
    packet.extend_from_slice(&to.ip().octets());
    packet.extend_from_slice(&tcp);
    packet
}

/// RFC 1071, of an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let (words, _) = bytes.as_chunks::<2>();
    let mut sum: u32 = words.iter().map(|w| u32::from(u16::from_be_bytes(*w))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forged_segment_reads_as_what_it_is_and_its_checksum_holds() {
        let (from, to) =
            (SocketAddrV4::new([10, 77, 0, 2].into(), 5), SocketAddrV4::new([10, 77, 0, 3].into(), 6));
        let packet = forged(from, to, 0xdead_beef, 7);
        let read = Segment::read(&packet).expect("a segment");
        let wanted = Segment { from, to, sequence: 0xdead_beef, acknowledged: 7, flags: RST | ACK, data: 0 };
        assert_eq!(read, wanted);
        let mut pseudo = packet[12..20].to_vec();
        pseudo.extend_from_slice(&[0, 6, 0, 20]);
        pseudo.extend_from_slice(&packet[20..]);
        assert_eq!(checksum(&pseudo), 0);
        for short in 0..packet.len() {
            Segment::read(&packet[..short]);
        }
    }
}
