//! A peer, played by hand, that sends large payloads so that they can be mapped. It gives the kernel pages of a pipe, which needs no
//! system call that is not safe.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use nix::fcntl::{SpliceFFlags, splice};
use rds_client::Node;
use rds_core::wire::{Capabilities, HandshakeExtensions, Header, Identity};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

/// Five pages, and TCP's timestamps.
const MSS: u32 = 20492;
/// MSG_EOR (`include/linux/socket.h`): what follows begins another segment.
const EOR: i32 = 0x80;
pub(crate) const PAGE: usize = 4096;

pub(crate) struct Paged {
    pub(crate) stream: TcpStream,
    pipe: (OwnedFd, OwnedFd),
    pub(crate) sequence: u64,
    port: u16,
}

impl Paged {
    /// Connects from an address that is smaller than the node's, as a userspace peer, and goes on when the node has answered.
    /// Messages go to `port`.
    pub(crate) fn connect(from: IpAddr, to: &Node, port: u16, announce: bool) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_tcp_mss(MSS).unwrap();
        socket.set_tcp_nodelay(true).unwrap();
        socket.bind(&SockAddr::from(SocketAddr::new(from, 0))).unwrap();
        socket.connect(&SockAddr::from(to.listen_addr())).unwrap();
        socket.set_read_timeout(Some(super::LONG)).unwrap();
        let mut stream = TcpStream::from(socket);
        let capabilities = if announce { Capabilities::SEGMENTATION } else { Capabilities::default() };
        let ping = Header {
            sport: 1,
            padding: Identity::ours(capabilities).encode(),
            extensions: HandshakeExtensions { lanes: Some(1), generation: Some(77), ..Default::default() }
                .encode(),
            ..Header::default()
        };
        stream.write_all(&ping.encode()).unwrap();
        // The node's map, ping and pong.
        stream.read_exact(&mut vec![0; 48 + 8192 + 48 + 48]).unwrap();
        let pipe = nix::unistd::pipe().unwrap();
        nix::fcntl::fcntl(&pipe.1, nix::fcntl::FcntlArg::F_SETPIPE_SZ(1 << 20)).unwrap();
        Self { stream, pipe, sequence: 0, port }
    }

    /// The header of the next message.
    pub(crate) fn header(&mut self, len: usize) -> [u8; 48] {
        self.sequence += 1;
        Header { sequence: self.sequence, len: len as u32, sport: 9, dport: self.port, ..Header::default() }
            .encode()
    }

    /// Bytes by copying; what follows begins another segment if `end`.
    pub(crate) fn copy(&mut self, mut bytes: &[u8], end: bool) {
        while !bytes.is_empty() {
            let flags = if end { EOR } else { 0 };
            let n = SockRef::from(&self.stream).send_with_flags(bytes, flags).unwrap();
            bytes = &bytes[n..];
        }
    }

    /// Bytes in pages of their own.
    pub(crate) fn pages(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let written = nix::unistd::write(&self.pipe.1, &bytes[..bytes.len().min(1 << 19)]).unwrap();
            bytes = &bytes[written..];
            let mut left = written;
            while left > 0 {
                left -= splice(&self.pipe.0, None, &self.stream, None, left, SpliceFFlags::empty()).unwrap();
            }
        }
    }

    /// A large message, as it can be mapped.
    pub(crate) fn large(&mut self, payload: &[u8]) {
        let header = self.header(payload.len());
        self.copy(&header, true);
        self.pages(payload);
    }

    /// A small message.
    pub(crate) fn small(&mut self, payload: &[u8]) {
        let header = self.header(payload.len());
        self.copy(&[&header, payload].concat(), false);
    }
}
