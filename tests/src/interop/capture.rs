//! What our node has put on the wire, from a recording: the extension headers of every message.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;

use rds_core::wire::{HEADER_LEN, Header, RDS_TCP_PORT};

/// What a recording shows of one address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// TCP connections.
    pub connections: u64,
    /// Handshake pings and pongs.
    pub handshakes: u64,
    /// Other messages.
    pub others: u64,
    /// Bytes of RDS that were read.
    pub read: u64,
    /// Bytes that were not, behind a packet that the recording lacks.
    pub missed: u64,
    /// Messages with an extension header that we must never send, or that does not belong there.
    pub wrong: Vec<String>,
}

/// Extension headers that a handshake message of ours may have, and the bytes each has behind its type: NPATHS, GEN_NUM, SPORT_IDX.
/// Kernels read RDMA, RDMA_DEST and RDMA_BYTES (2, 3, 4) on TCP too, and are not made for that.
const ALLOWED: [(u8, usize); 3] = [(5, 2), (6, 4), (8, 1)];

/// Reads a recording (pcap, Ethernet) of what `from` sent, as the rig makes it.
///
/// # Errors
/// It cannot be read, or is none.
pub fn shown(file: &Path, from: &[IpAddr]) -> io::Result<Shown> {
    let bytes = std::fs::read(file)?;
    let mut shown = Shown::default();
    let mut streams: HashMap<(IpAddr, u16, IpAddr, u16), Stream> = HashMap::new();
    let magic = bytes.first_chunk::<4>().copied().unwrap_or_default();
    // As tcpdump writes it on this machine: in its byte order, with microseconds or nanoseconds.
    if ![0xa1b2_c3d4, 0xa1b2_3c4d].contains(&u32::from_ne_bytes(magic)) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a recording of this machine's tcpdump"));
    }
    let mut rest = bytes.get(24..).unwrap_or_default();
    while let Some(head) = rest.first_chunk::<16>() {
        let len = u32::from_ne_bytes(*head[8..].first_chunk().expect("16 bytes")) as usize;
        let Some(frame) = rest.get(16..16 + len) else { break };
        rest = &rest[16 + len..];
        let Some(segment) = Segment::parse(frame).filter(|s| from.contains(&s.from.0)) else { continue };
        let key = (segment.from.0, segment.from.1, segment.to.0, segment.to.1);
        if segment.syn {
            shown.connections += 1;
            streams.insert(key, Stream { next: segment.number.wrapping_add(1), ..Stream::default() });
        } else if let Some(stream) = streams.get_mut(&key) {
            stream.take(&segment, &mut shown);
        }
    }
    Ok(shown)
}

struct Segment<'a> {
    from: (IpAddr, u16),
    to: (IpAddr, u16),
    number: u32,
    syn: bool,
    payload: &'a [u8],
}

impl<'a> Segment<'a> {
    fn parse(frame: &'a [u8]) -> Option<Self> {
        let ip = frame.get(14..)?;
        let (from, to, tcp): (IpAddr, IpAddr, _) = match frame.get(12..14)? {
            [0x08, 0] if ip.get(9) == Some(&6) => {
                let total = usize::from(u16::from_be_bytes(*ip.get(2..)?.first_chunk()?));
                let tcp = ip.get(usize::from(ip[0] & 15) * 4..total)?;
                (
                    (*ip.get(12..)?.first_chunk::<4>()?).into(),
                    (*ip.get(16..)?.first_chunk::<4>()?).into(),
                    tcp,
                )
            }
            [0x86, 0xdd] if ip.get(6) == Some(&6) => {
                let len = usize::from(u16::from_be_bytes(*ip.get(4..)?.first_chunk()?));
                let tcp = ip.get(40..40 + len)?;
                (
                    (*ip.get(8..)?.first_chunk::<16>()?).into(),
                    (*ip.get(24..)?.first_chunk::<16>()?).into(),
                    tcp,
                )
            }
            _ => return None,
        };
        let port = |at| Some(u16::from_be_bytes(*tcp.get(at..)?.first_chunk()?));
        let (source, destination) = (port(0)?, port(2)?);
        if source != RDS_TCP_PORT && destination != RDS_TCP_PORT {
            return None;
        }
        Some(Self {
            from: (from, source),
            to: (to, destination),
            number: u32::from_be_bytes(*tcp.get(4..)?.first_chunk()?),
            syn: tcp.get(13)? & 2 != 0,
            payload: tcp.get(usize::from(tcp.get(12)? >> 4) * 4..)?,
        })
    }
}

/// One connection's direction, as far as it has been read.
#[derive(Default)]
struct Stream {
    /// TCP's number of the next byte.
    next: u32,
    /// A byte was missing: where messages begin is not known any more.
    lost: bool,
    head: Vec<u8>,
    /// Bytes of payload to come.
    payload: usize,
}

impl Stream {
    fn take(&mut self, segment: &Segment<'_>, shown: &mut Shown) {
        // What was sent before comes again.
        let behind = self.next.wrapping_sub(segment.number);
        let (known, gap) = if behind < 1 << 31 { (behind as usize, false) } else { (0, true) };
        let new = segment.payload.get(known..).unwrap_or_default();
        if new.is_empty() {
            return;
        }
        self.lost |= gap;
        if self.lost {
            shown.missed += new.len() as u64;
            return;
        }
        self.next = self.next.wrapping_add(new.len() as u32);
        shown.read += new.len() as u64;
        self.read(new, shown);
    }

    fn read(&mut self, mut bytes: &[u8], shown: &mut Shown) {
        while !bytes.is_empty() {
            let skipped = self.payload.min(bytes.len());
            self.payload -= skipped;
            bytes = &bytes[skipped..];
            let wanted = (HEADER_LEN - self.head.len()).min(bytes.len());
            self.head.extend_from_slice(&bytes[..wanted]);
            bytes = &bytes[wanted..];
            if let Ok(head) = <&[u8; HEADER_LEN]>::try_from(self.head.as_slice()) {
                let header = Header::decode(head);
                self.head.clear();
                self.payload = header.len as usize;
                judge(&header, shown);
            }
        }
    }
}

fn judge(header: &Header, shown: &mut Shown) {
    let handshake = header.is_handshake_ping() || header.is_handshake_pong();
    *(if handshake { &mut shown.handshakes } else { &mut shown.others }) += 1;
    let mut rest = &header.extensions[..];
    while let Some((kind, after)) = rest.split_first().filter(|(kind, _)| **kind != 0) {
        let allowed = ALLOWED.iter().find(|(allowed, _)| handshake && allowed == kind);
        let Some(next) = allowed.and_then(|(_, len)| after.get(*len..)) else {
            shown.wrong.push(format!("extension {kind} in {header:?}"));
            return;
        };
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn header(ports: (u16, u16), len: u32, extensions: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        bytes[16..20].copy_from_slice(&len.to_be_bytes());
        bytes[20..22].copy_from_slice(&ports.0.to_be_bytes());
        bytes[22..24].copy_from_slice(&ports.1.to_be_bytes());
        bytes[32..32 + extensions.len()].copy_from_slice(extensions);
        bytes
    }

    /// A recording of one connection from 10.0.0.1 to 10.0.0.2, whose packets have these numbers behind the first, and bytes.
    fn recording(packets: &[(u32, &[u8])]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a new file");
        let mut bytes = 0xa1b2_c3d4_u32.to_ne_bytes().to_vec();
        bytes.resize(24, 0);
        let syn: &[(u32, &[u8])] = &[(0, &[])];
        for (number, payload) in syn.iter().chain(packets) {
            let mut tcp = [0; 20];
            tcp[..2].copy_from_slice(&5000_u16.to_be_bytes());
            tcp[2..4].copy_from_slice(&RDS_TCP_PORT.to_be_bytes());
            // They go round 2^32.
            tcp[4..8].copy_from_slice(&number.wrapping_add(u32::MAX - 2).to_be_bytes());
            (tcp[12], tcp[13]) = (5 << 4, if *number == 0 { 2 } else { 16 });
            let mut ip = [0; 20];
            (ip[0], ip[9]) = (0x45, 6);
            ip[2..4].copy_from_slice(&(40 + payload.len() as u16).to_be_bytes());
            ip[12..].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
            let frame = [&[0; 12][..], &[0x08, 0], &ip, &tcp, payload].concat();
            let len = (frame.len() as u32).to_ne_bytes();
            bytes.extend([&[0; 8][..], &len, &len, &frame].concat());
        }
        file.write_all(&bytes).expect("a file of ours");
        file
    }

    const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    #[test]
    fn every_message_is_looked_at_however_the_stream_is_cut_and_sent_again() {
        let stream = [
            header((1, 0), 0, &[5, 0, 8, 6, 1, 2, 3, 4, 8]),
            header((4000, 4001), 3, &[]),
            b"\x05\x02\x02".to_vec(),
            header((4000, 4001), 0, &[]),
        ]
        .concat();
        let (a, b) = stream.split_at(50);
        let file = recording(&[(1, a), (1, a), (31, &stream[30..70]), (51, b)]);
        let expected =
            Shown { connections: 1, handshakes: 1, others: 2, read: stream.len() as u64, ..Shown::default() };
        assert_eq!(shown(file.path(), &[FROM]).expect("a recording"), expected);
        assert_eq!(shown(file.path(), &[]).expect("a recording"), Shown::default());
        let hole = recording(&[(1, a), (52, &b[1..])]);
        let found = shown(hole.path(), &[FROM]).expect("a recording");
        assert_eq!((found.others, found.missed), (0, b.len() as u64 - 1));
    }

    #[test]
    fn an_rdma_extension_is_found_behind_others_and_none_belongs_in_data() {
        for (ports, extensions) in [((1, 0), &[5, 0, 8, 3][..]), ((0, 1), &[2]), ((4000, 4001), &[5, 0, 1])] {
            let file = recording(&[(1, &header(ports, 0, extensions))]);
            assert_eq!(shown(file.path(), &[FROM]).expect("a recording").wrong.len(), 1, "{extensions:?}");
        }
    }
}
