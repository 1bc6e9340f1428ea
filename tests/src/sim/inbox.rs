//! The queues of a simulated node's sockets, and what their program reports of them.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use rds_core::proto::{Body, Inbox, SocketId};
use rds_core::zerocopy::Share;

/// One socket as its program sees it.
#[derive(Debug)]
pub struct Socket {
    /// RDS port.
    pub port: u16,
    /// The ledger's number of this life of it.
    pub book: usize,
    /// Send buffer, in bytes.
    pub send_buffer: u64,
    /// Receive buffer, in bytes.
    pub receive_buffer: u64,
    /// Lengths of the messages that were not taken, and whether they came from the node itself.
    pub queue: VecDeque<(u32, bool)>,
    /// What the program took and has not reported.
    pub unreported: (u64, u64),
    /// Payload bytes that the node must believe to be queued.
    pub believed: u64,
    /// Something came since the buffers were set: only then is a smaller buffer looked at, as in the kernel.
    pub judged: bool,
    /// What the node said last about congestion.
    pub congested: bool,
    /// Whether the program takes messages at present.
    pub reading: bool,
    /// Sends were refused as full: `Writable` must follow.
    pub waits_for_room: bool,
    /// Sends were refused as congested: `Uncongested` must follow.
    pub waits_for_port: Vec<SocketAddr>,
    /// Its part of what the node may pin.
    pub share: Arc<Share>,
    /// `Drained` must follow.
    pub waits_for_drain: bool,
}

impl Socket {
    /// A socket as `bind` leaves it.
    #[must_use]
    pub fn new(port: u16, book: usize, share: Arc<Share>) -> Self {
        Self {
            port,
            book,
            send_buffer: 1 << 20,
            receive_buffer: 1 << 20,
            queue: VecDeque::new(),
            unreported: (0, 0),
            believed: 0,
            judged: true,
            congested: false,
            reading: true,
            waits_for_room: false,
            waits_for_port: Vec::new(),
            share,
            waits_for_drain: false,
        }
    }

    /// Takes one message out of the queue.
    pub fn take(&mut self) -> bool {
        let Some((len, _)) = self.queue.pop_front() else { return false };
        self.unreported.0 += u64::from(len);
        self.unreported.1 += 1;
        true
    }
}

/// All sockets of a node.
#[derive(Debug, Default)]
pub struct Sockets {
    /// By the node's name for them.
    pub map: BTreeMap<SocketId, Socket>,
    /// What came during the node's last call, to be held against the books: socket, source, payload.
    pub fresh: Vec<(SocketId, SocketAddr, Vec<u8>)>,
    /// The node's own address, to tell local messages.
    pub own: Option<std::net::IpAddr>,
    /// A promise that the node broke while it delivered.
    pub broken: Option<String>,
}

impl Inbox for Sockets {
    fn deliver(&mut self, socket: SocketId, from: SocketAddr, body: Body<'_>) {
        let bytes = body.to_vec();
        match self.map.get_mut(&socket) {
            Some(s) => {
                s.queue.push_back((bytes.len() as u32, Some(from.ip()) == self.own));
                s.judged = true;
                s.believed += bytes.len() as u64;
                self.fresh.push((socket, from, bytes));
            }
            None => {
                self.broken = Some(format!("a message from {from} was delivered to a socket that is closed"))
            }
        }
    }

    fn take_consumed(&mut self, socket: SocketId) -> (u64, u64) {
        let Some(s) = self.map.get_mut(&socket) else { return (0, 0) };
        let report = std::mem::take(&mut s.unreported);
        s.believed -= report.0;
        report
    }
}
