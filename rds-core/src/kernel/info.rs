//! What the kernel tells of its RDS: the lists of getsockopt(2) RDS_INFO_* (`linux/rds.h`), parsed by the size of their elements.
//!
//! A longer element of another kernel has its new fields at its end, and they are passed over. Where there are two forms of a
//! list the one for IPv6 is read, which has IPv4 too (mapped), and the other where a kernel has no IPv6.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use socket2::{Domain, Socket, Type};

use super::error::{KernelBindError, no_module};
use crate::sys::af_rds;

const COUNTERS: i32 = 10000;
const CONNECTIONS: [i32; 2] = [10011, 10001];
const SOCKETS: [i32; 2] = [10015, 10006];
const TCP_SOCKETS: [i32; 2] = [10016, 10007];

/// A connection to a peer; of several lanes it shows the numbers of the first.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connection {
    /// Own address.
    pub local: IpAddr,
    /// The peer's address.
    pub remote: IpAddr,
    /// Number of the next message to be sent.
    pub next_tx: u64,
    /// Number of the next message that is expected.
    pub next_rx: u64,
    /// `tcp` or `loopback`.
    pub transport: String,
    /// Messages are being sent at this moment.
    pub sending: bool,
    /// It is being connected.
    pub connecting: bool,
    /// It is connected.
    pub connected: bool,
}

/// Which messages are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Not sent yet.
    Send,
    /// Sent, not acknowledged.
    Retransmit,
    /// Received, not taken by a program.
    Receive,
}

/// A message that is queued.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InfoMessage {
    /// Its number on its connection.
    pub sequence: u64,
    /// Bytes of payload.
    pub len: u32,
    /// Own address and port. Kernels show 0.0.0.0 in the IPv4 form of [`Queue::Send`] and [`Queue::Retransmit`].
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// RDS_INFO_MESSAGE_FLAG_*.
    pub flags: u8,
}

/// A socket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InfoSocket {
    /// Bytes of its send buffer.
    pub send_buffer: u32,
    /// Bytes of its receive buffer.
    pub recv_buffer: u32,
    /// Where it is bound; unspecified if it is not.
    pub bound: SocketAddr,
    /// Where it is connected to; unspecified if it is not.
    pub connected: SocketAddr,
    /// Its inode.
    pub inode: u64,
}

/// A TCP connection that carries RDS.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpSocket {
    /// Own end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
    /// Bytes of the header that is being received which are still to come.
    pub header_remaining: u64,
    /// The same of the payload.
    pub data_remaining: u64,
    /// The TCP sequence number after what was sent last.
    pub last_sent_next: u32,
    /// Up to where a peer must acknowledge before a message is done.
    pub last_expected_una: u32,
    /// Up to where the peer has acknowledged.
    pub last_seen_una: u32,
}

/// A look at the kernel's RDS, without an address or a port of one's own. A [`super::KernelSocket`] is one, too.
#[derive(Debug)]
pub struct KernelInfo(pub(super) Socket);

impl KernelInfo {
    /// Opens one.
    ///
    /// # Errors
    /// [`KernelBindError::NoModule`]; what socket(2) says otherwise.
    pub fn open() -> Result<Self, KernelBindError> {
        let socket = Socket::new(Domain::from(af_rds::FAMILY), Type::SEQPACKET, None);
        socket.map(Self).map_err(no_module)
    }

    /// All counters, those of the transports too, summed over processors. Names as in `net/rds/stats.c`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn counters(&self) -> io::Result<Vec<(String, u64)>> {
        let (bytes, size) = self.list(&[COUNTERS])?;
        counters(&bytes, size)
    }

    /// All connections.
    ///
    /// # Errors
    /// The kernel's.
    pub fn connections(&self) -> io::Result<Vec<Connection>> {
        let (bytes, size) = self.list(&CONNECTIONS)?;
        connections(&bytes, size)
    }

    /// All messages in queues of a kind.
    ///
    /// # Errors
    /// The kernel's.
    pub fn messages(&self, queue: Queue) -> io::Result<Vec<InfoMessage>> {
        let (bytes, size) = self.list(match queue {
            Queue::Send => &[10012, 10003],
            Queue::Retransmit => &[10013, 10004],
            Queue::Receive => &[10014, 10005],
        })?;
        messages(&bytes, size)
    }

    /// All RDS sockets.
    ///
    /// # Errors
    /// The kernel's.
    pub fn sockets(&self) -> io::Result<Vec<InfoSocket>> {
        let (bytes, size) = self.list(&SOCKETS)?;
        sockets(&bytes, size)
    }

    /// All TCP connections of RDS.
    ///
    /// # Errors
    /// The kernel's; `rds_tcp` must be loaded.
    pub fn tcp_sockets(&self) -> io::Result<Vec<TcpSocket>> {
        let (bytes, size) = self.list(&TCP_SOCKETS)?;
        tcp_sockets(&bytes, size)
    }

    /// The first of the lists that this kernel has, and the size of its elements.
    fn list(&self, forms: &[i32]) -> io::Result<(Vec<u8>, usize)> {
        let mut bytes = Vec::new();
        let mut missing = io::Error::from_raw_os_error(libc::ENOPROTOOPT);
        for form in forms {
            match af_rds::info(self.0.as_fd(), *form, &mut bytes) {
                Ok(size) => return Ok((bytes, size)),
                Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) => missing = e,
                Err(e) => return Err(e),
            }
        }
        Err(missing)
    }
}

fn counters(bytes: &[u8], size: usize) -> io::Result<Vec<(String, u64)>> {
    elements(bytes, size, 40, |e| (e.text::<32>(), e.u64()))
}

fn connections(bytes: &[u8], size: usize) -> io::Result<Vec<Connection>> {
    let v6 = size >= 65;
    elements(bytes, size, if v6 { 65 } else { 41 }, |e| {
        let (next_tx, next_rx) = (e.u64(), e.u64());
        let (local, remote) = (e.ip(v6), e.ip(v6));
        let (transport, [flags]) = (e.text::<16>(), e.array());
        Connection {
            local,
            remote,
            next_tx,
            next_rx,
            transport,
            sending: flags & 1 != 0,
            connecting: flags & 2 != 0,
            connected: flags & 4 != 0,
        }
    })
}

fn messages(bytes: &[u8], size: usize) -> io::Result<Vec<InfoMessage>> {
    let v6 = size >= 49;
    elements(bytes, size, if v6 { 49 } else { 25 }, |e| {
        let (sequence, len) = (e.u64(), e.u32());
        let (local, remote) = (e.ip(v6), e.ip(v6));
        let (local_port, remote_port, [flags]) = (e.port(), e.port(), e.array());
        InfoMessage {
            sequence,
            len,
            local: SocketAddr::new(local, local_port),
            remote: SocketAddr::new(remote, remote_port),
            flags,
        }
    })
}

fn sockets(bytes: &[u8], size: usize) -> io::Result<Vec<InfoSocket>> {
    let v6 = size >= 52;
    elements(bytes, size, if v6 { 52 } else { 28 }, |e| {
        let send_buffer = e.u32();
        let (bound, connected) = (e.ip(v6), e.ip(v6));
        let (bound_port, connected_port) = (e.port(), e.port());
        InfoSocket {
            send_buffer,
            bound: SocketAddr::new(bound, bound_port),
            connected: SocketAddr::new(connected, connected_port),
            recv_buffer: e.u32(),
            inode: e.u64(),
        }
    })
}

fn tcp_sockets(bytes: &[u8], size: usize) -> io::Result<Vec<TcpSocket>> {
    let v6 = size >= 64;
    elements(bytes, size, if v6 { 64 } else { 40 }, |e| {
        let (local, local_port) = (e.ip(v6), e.port());
        let (remote, remote_port) = (e.ip(v6), e.port());
        TcpSocket {
            local: SocketAddr::new(local, local_port),
            remote: SocketAddr::new(remote, remote_port),
            header_remaining: e.u64(),
            data_remaining: e.u64(),
            last_sent_next: e.u32(),
            last_expected_una: e.u32(),
            last_seen_una: e.u32(),
        }
    })
}

/// Reads each element of a list, of which at least the first `least` bytes are known.
fn elements<T>(
    bytes: &[u8],
    size: usize,
    least: usize,
    read: impl Fn(&mut Fields<'_>) -> T,
) -> io::Result<Vec<T>> {
    if size < least {
        let what =
            format!("a list of the kernel's RDS has elements of {size} bytes, where {least} are known");
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(bytes.chunks_exact(size).map(|element| read(&mut Fields(element))).collect())
}

/// Fields of a packed struct, one after the other. Behind the end there are zeroes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let Some((head, rest)) = self.0.split_first_chunk() else { return [0; N] };
        self.0 = rest;
        *head
    }
    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.array())
    }
    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.array())
    }
    fn port(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }
    fn ip(&mut self, v6: bool) -> IpAddr {
        if v6 {
            Ipv6Addr::from(self.array::<16>()).to_canonical()
        } else {
            Ipv4Addr::from(self.array::<4>()).into()
        }
    }
    /// Text that ends at its first NUL.
    fn text<const N: usize>(&mut self) -> String {
        let bytes = self.array::<N>();
        let len = bytes.iter().position(|b| *b == 0).unwrap_or(N);
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: [IpAddr; 2] =
        [IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2)), IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1))];
    const V6: [IpAddr; 2] = [
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2)),
        IpAddr::V6(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1)),
    ];

    /// An address as the form has it.
    fn ip(v6: bool, address: IpAddr) -> Vec<u8> {
        match address {
            IpAddr::V4(a) if v6 => a.to_ipv6_mapped().octets().to_vec(),
            IpAddr::V4(a) => a.octets().to_vec(),
            IpAddr::V6(a) => a.octets().to_vec(),
        }
    }

    fn text(text: &str, len: usize) -> Vec<u8> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(len, 0);
        bytes
    }

    /// Both forms, with the addresses that each can have, and both again from a kernel that knows more at the end.
    fn forms(element: impl Fn(bool, [IpAddr; 2]) -> Vec<u8>) -> Vec<(Vec<u8>, [IpAddr; 2])> {
        let known = [(false, V4), (true, V4), (true, V6)].map(|(v6, at)| (element(v6, at), at));
        // Not so many that the form for IPv4 would be as long as the other.
        let longer = known.clone().map(|(bytes, at)| ([bytes, vec![0xee; 4]].concat(), at));
        [known, longer].concat()
    }

    #[test]
    fn counters_are_names_and_numbers() {
        let bytes =
            [text("conn_reset", 32), 7_u64.to_ne_bytes().to_vec(), text(&"x".repeat(32), 32), vec![0xff; 8]]
                .concat();
        let expected = [("conn_reset".to_owned(), 7), ("x".repeat(32), u64::MAX)];
        assert_eq!(counters(&bytes, 40).unwrap(), expected);
    }

    #[test]
    fn connections_are_read_from_both_forms() {
        let element = |v6, [local, remote]: [IpAddr; 2]| {
            let numbers = [5_u64.to_ne_bytes(), 6_u64.to_ne_bytes()].concat();
            let tos: &[u8] = if v6 { &[] } else { &[9] };
            [&numbers[..], &ip(v6, local), &ip(v6, remote), &text("tcp", 16), &[5], tos].concat()
        };
        assert_eq!([element(false, V4).len(), element(true, V6).len()], [42, 65]);
        for (bytes, [local, remote]) in forms(element) {
            let connection = Connection {
                local,
                remote,
                next_tx: 5,
                next_rx: 6,
                transport: "tcp".into(),
                sending: true,
                connecting: false,
                connected: true,
            };
            let expected = [connection.clone(), connection];
            assert_eq!(connections(&bytes.repeat(2), bytes.len()).unwrap(), expected, "{}", bytes.len());
        }
    }

    #[test]
    fn messages_are_read_from_both_forms() {
        let element = |v6, [local, remote]: [IpAddr; 2]| {
            let ports = [0x0fa1_u16.to_be_bytes(), 0x0fa2_u16.to_be_bytes()].concat();
            let len = 1000_u32.to_ne_bytes();
            [&8_u64.to_ne_bytes()[..], &len, &ip(v6, local), &ip(v6, remote), &ports, &[1, 0]].concat()
        };
        assert_eq!([element(false, V4).len(), element(true, V6).len()], [26, 50]);
        for (bytes, [local, remote]) in forms(element) {
            let (local, remote) = (SocketAddr::new(local, 4001), SocketAddr::new(remote, 4002));
            let expected = [InfoMessage { sequence: 8, len: 1000, local, remote, flags: 1 }];
            assert_eq!(messages(&bytes, bytes.len()).unwrap(), expected);
        }
    }

    #[test]
    fn sockets_are_read_from_both_forms() {
        let element = |v6, [bound, connected]: [IpAddr; 2]| {
            let ports = [4001_u16.to_be_bytes(), 0_u16.to_be_bytes()].concat();
            let rest = [&200_u32.to_ne_bytes()[..], &77_u64.to_ne_bytes()].concat();
            [&100_u32.to_ne_bytes()[..], &ip(v6, bound), &ip(v6, connected), &ports, &rest].concat()
        };
        assert_eq!([element(false, V4).len(), element(true, V6).len()], [28, 52]);
        for (bytes, [bound, connected]) in forms(element) {
            let (bound, connected) = (SocketAddr::new(bound, 4001), SocketAddr::new(connected, 0));
            let expected = InfoSocket { send_buffer: 100, recv_buffer: 200, bound, connected, inode: 77 };
            assert_eq!(sockets(&bytes, bytes.len()).unwrap(), [expected]);
        }
    }

    #[test]
    fn tcp_sockets_are_read_from_both_forms() {
        let element = |v6, [local, remote]: [IpAddr; 2]| {
            let numbers = [1_u64, 2].iter().flat_map(|n| n.to_ne_bytes());
            let numbers: Vec<u8> =
                numbers.chain([3_u32, 4, 5].iter().flat_map(|n| n.to_ne_bytes())).collect();
            let tos: &[u8] = if v6 { &[] } else { &[0] };
            let (port, peer) = (16385_u16.to_be_bytes(), 40000_u16.to_be_bytes());
            [&ip(v6, local), &port[..], &ip(v6, remote), &peer, &numbers, tos].concat()
        };
        assert_eq!([element(false, V4).len(), element(true, V6).len()], [41, 64]);
        for (bytes, [local, remote]) in forms(element) {
            let expected = TcpSocket {
                local: SocketAddr::new(local, 16385),
                remote: SocketAddr::new(remote, 40000),
                header_remaining: 1,
                data_remaining: 2,
                last_sent_next: 3,
                last_expected_una: 4,
                last_seen_una: 5,
            };
            assert_eq!(tcp_sockets(&bytes, bytes.len()).unwrap(), [expected]);
        }
    }

    #[test]
    fn an_empty_list_is_empty_and_shorter_elements_than_known_are_an_error() {
        assert_eq!(connections(&[], 65).unwrap(), []);
        for size in [0, 1, 39] {
            assert!(counters(&[0; 40], size).is_err() && tcp_sockets(&[0; 40], size).is_err());
        }
    }
}
