//! Sockets of a kernel's model: sending, receiving, congestion, cancel and close (`send.c`, `recv.c`, `af_rds.c`).

use std::collections::VecDeque;

use bytes::Bytes;
use rds_core::proto::kernel_lane_of_port;
use rds_core::wire::Header;

use super::{KernelHost, LANES, Peer, Queued, State};
use crate::sim::ctx::Ctx;
use crate::sim::ledger;

/// A bound socket.
#[derive(Debug)]
pub struct Socket {
    /// The ledger's number of this life of it.
    pub book: usize,
    /// Send buffer, in bytes.
    pub send_buffer: u64,
    /// Receive buffer, in bytes.
    pub receive_buffer: u64,
    /// Payload bytes queued or unacknowledged.
    pub send_queued: u64,
    /// Lengths of the messages not taken.
    pub queue: VecDeque<usize>,
    /// Their sum.
    pub queued: u64,
    /// Whether the program takes messages at present.
    pub reading: bool,
    /// The path that its messages take whatever its port says, once there are several: that of the first socket bound after an
    /// old kernel loaded the module.
    pub odd_path: Option<u8>,
    congested: bool,
}

/// Why a send was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// EAGAIN.
    Full,
    /// ENOBUFS.
    Congested,
    /// EMSGSIZE.
    TooLarge,
    /// No such socket.
    Closed,
}

impl Socket {
    /// Queues a message; whether the port is congested by it (`rds_recv_rcvbuf_delta`).
    pub fn push(&mut self, len: usize) -> bool {
        self.queue.push_back(len);
        self.queued += len as u64;
        let set = self.queued > self.receive_buffer && !self.congested;
        self.congested |= set;
        set
    }

    /// Takes a message; whether the port is free again by it.
    fn pop(&mut self) -> Option<bool> {
        let len = self.queue.pop_front()?;
        self.queued -= len as u64;
        let cleared = self.congested && self.queued < self.receive_buffer / 2;
        self.congested &= !cleared;
        Some(cleared)
    }
}

impl KernelHost {
    /// Binds a port.
    pub fn bind(&mut self, cx: &mut Ctx, port: u16, send_buffer: u64, receive_buffer: u64) {
        let book = cx.ledger.add_sock(false);
        let socket = Socket {
            book,
            send_buffer,
            // The kernel takes no smaller one (SOCK_MIN_RCVBUF, halved), and would never clear the bit of one.
            receive_buffer: receive_buffer.max(1152),
            send_queued: 0,
            queue: VecDeque::new(),
            queued: 0,
            reading: true,
            odd_path: None,
            congested: false,
        };
        self.sockets.insert(port, socket);
    }

    /// Takes up to `most` messages.
    pub fn take(&mut self, port: u16, most: usize) {
        for _ in 0..most {
            let Some(cleared) = self.sockets.get_mut(&port).and_then(Socket::pop) else { return };
            if cleared {
                self.set_congested(port, false);
            }
        }
    }

    /// sendmsg without waiting (`rds_sendmsg`). `blocking` waits for the handshake, as old kernels do.
    pub fn send(
        &mut self,
        cx: &mut Ctx,
        port: u16,
        dst: usize,
        dport: u16,
        len: usize,
        blocking: bool,
    ) -> Result<usize, Refusal> {
        let Some(s) = self.sockets.get_mut(&port) else { return Err(Refusal::Closed) };
        if len > (1 << 20) || len as u64 > s.send_buffer {
            return Err(Refusal::TooLarge);
        }
        let book = s.book;
        let full = s.send_queued >= s.send_buffer;
        let p = self.peers.entry(dst).or_insert_with(|| Peer::new(self.past_tx));
        if p.map.contains(dport) {
            return Err(Refusal::Congested);
        }
        if full {
            return Err(Refusal::Full);
        }
        s.send_queued += len as u64;
        cx.seen.messages += 1;
        let bytes = Bytes::from(ledger::payload(cx.ledger.next_id(), len));
        let id = cx.ledger.accepted(cx.now, &cx.facts, self.index, book, port, dst, dport, len, false);
        cx.tell(|| {
            format!("kernel {} port {port} sends message {id} to host {dst} port {dport}", self.index)
        });
        let header = Header { sport: port, dport, ..Header::default() };
        self.queue_data(cx, dst, header, bytes, book, Some(id), blocking);
        Ok(id)
    }

    /// sendmsg of a payload that is not in the books, by a program that waits for the handshake where old kernels make it.
    pub fn send_raw(&mut self, cx: &mut Ctx, port: u16, dst: usize, dport: u16, payload: Bytes) {
        let Some(s) = self.sockets.get_mut(&port) else { return };
        s.send_queued += payload.len() as u64;
        let book = s.book;
        self.queue_data(
            cx,
            dst,
            Header { sport: port, dport, ..Header::default() },
            payload,
            book,
            None,
            true,
        );
    }

    /// Chooses the path of a message and queues it.
    #[allow(clippy::too_many_arguments)]
    pub fn queue_data(
        &mut self,
        cx: &mut Ctx,
        dst: usize,
        header: Header,
        payload: Bytes,
        book: usize,
        id: Option<usize>,
        blocking: bool,
    ) {
        let p = self.peers.entry(dst).or_insert_with(|| Peer::new(self.past_tx));
        let mut index = 0;
        if self.new {
            if p.paths[0].state != State::Up {
                self.send_ping(cx, dst);
            } else if p.npaths > 1 {
                index = usize::from(kernel_lane_of_port(header.sport, p.npaths));
            }
        } else {
            // `rds_send_mprds_hash`
            let known = p.npaths;
            let odd = self.sockets.get(&header.sport).and_then(|s| s.odd_path).map(usize::from);
            let index_by_port =
                usize::from(kernel_lane_of_port(header.sport, if known == 0 { LANES } else { known }));
            index = odd.filter(|_| known != 1).unwrap_or(index_by_port);
            if known == 0 && index != 0 {
                self.send_ping(cx, dst);
                if blocking {
                    let p = self.peers.get_mut(&dst).expect("made above");
                    p.waiting.push_back(Queued {
                        header,
                        payload,
                        book: Some(book),
                        id,
                        end: 0,
                        stale: false,
                    });
                    self.dial(cx, dst, 0);
                    return;
                }
                index = 0;
            }
        }
        let p = self.peers.get_mut(&dst).expect("made above");
        p.paths[index].queue(header, payload, Some(book), id);
        self.dial(cx, dst, index);
    }

    /// RDS_CANCEL_SENT_TO, or everything with `None`: unsent messages vanish, unacknowledged ones are not repeated.
    pub fn cancel(&mut self, cx: &mut Ctx, port: u16, destination: Option<(usize, u16)>) {
        let Some(s) = self.sockets.get_mut(&port) else { return };
        let book = s.book;
        let mut freed = 0;
        for (peer, p) in &mut self.peers {
            if destination.is_some_and(|(dst, _)| dst != *peer) {
                continue;
            }
            let hit = |m: &Queued| {
                m.book == Some(book) && destination.is_none_or(|(_, dport)| m.header.dport == dport)
            };
            let mut drop_hits = |queue: &mut VecDeque<Queued>| {
                queue.retain(|m| {
                    if hit(m) {
                        freed += m.payload.len() as u64;
                        if let Some(id) = m.id {
                            cx.ledger.messages[id].cancelled = true;
                        }
                    }
                    !hit(m)
                });
            };
            drop_hits(&mut p.waiting);
            for path in &mut p.paths {
                drop_hits(&mut path.send);
                drop_hits(&mut path.retransmit);
            }
        }
        s.send_queued -= freed;
    }

    /// Closes a socket: its messages are cancelled, its congestion cleared (`rds_release`).
    pub fn close_socket(&mut self, cx: &mut Ctx, port: u16) {
        self.cancel(cx, port, None);
        if self.sockets.remove(&port).is_some() {
            self.set_congested(port, false);
        }
    }
}
