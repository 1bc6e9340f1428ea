//! A node survives any peer: arbitrary bytes on its connections, in any pieces, at any time, while programs send, take,
//! cancel and close. It must not panic, and must not hold more than its budget allows.
//!
//! The input is a list of steps: a byte that chooses, then what the step needs. Headers are made from few values, so that
//! the fuzzer finds handshakes sooner than by chance; raw bytes are among the steps as well.
#![no_main]

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rds_core::proto::{Action, Body, Config, ConnId, Inbox, Node, Payload, SocketId, Time, Token};
use rds_core::wire::{
    Capabilities, CongestionMap, Flags, HandshakeExtensions, Header, Identity, MAX_MESSAGE, MAX_MESSAGE_SLACK,
};

#[derive(Default)]
struct Queues(BTreeMap<SocketId, (u64, u64)>);

impl Inbox for Queues {
    fn deliver(&mut self, socket: SocketId, _: SocketAddr, body: Body<'_>) {
        let q = self.0.entry(socket).or_default();
        q.0 += body.len() as u64;
        q.1 += 1;
    }
    fn take_consumed(&mut self, _: SocketId) -> (u64, u64) {
        (0, 0)
    }
}

const BUDGET: u64 = 2 << 20;
const CONNECTIONS: u64 = 64;

struct World<'a> {
    input: &'a [u8],
    node: Node,
    queues: Queues,
    now: Time,
    conns: Vec<ConnId>,
    rest: BTreeMap<ConnId, Vec<u8>>,
    sockets: Vec<SocketId>,
    token: u64,
}

fuzz_target!(|input: &[u8]| {
    let mut config = Config::new(Ipv4Addr::new(10, 0, 0, 5).into(), NonZeroU32::MIN);
    config.receive_budget = BUDGET;
    config.window = 128 << 10;
    config.lanes = 2;
    config.max_peers = 16;
    config.first_sequence = 100;
    let node = Node::new(config).expect("settings that work");
    let mut w = World {
        input,
        node,
        queues: Queues::default(),
        now: Time::ZERO,
        conns: Vec::new(),
        rest: BTreeMap::new(),
        sockets: Vec::new(),
        token: 0,
    };
    let mut steps = 0;
    while let Some(choice) = w.byte() {
        w.step(choice);
        w.act();
        steps += 1;
        if steps % 32 == 0 || w.input.is_empty() {
            let held = w.node.snapshot(false).receive_queued;
            let most = 2 * BUDGET + CONNECTIONS * u64::from(MAX_MESSAGE + MAX_MESSAGE_SLACK);
            assert!(held <= most, "{held} bytes held");
        }
    }
});

impl World<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.input.split_first()?;
        self.input = rest;
        Some(first)
    }

    fn small(&mut self) -> u64 {
        u64::from(self.byte().unwrap_or(0))
    }

    fn bytes(&mut self, n: usize) -> Vec<u8> {
        let (head, tail) = self.input.split_at(n.min(self.input.len()));
        self.input = tail;
        head.to_vec()
    }

    fn conn(&mut self) -> Option<ConnId> {
        let at = self.small() as usize;
        (!self.conns.is_empty()).then(|| self.conns[at % self.conns.len()])
    }

    fn socket(&mut self) -> Option<SocketId> {
        let at = self.small() as usize;
        (!self.sockets.is_empty()).then(|| self.sockets[at % self.sockets.len()])
    }

    fn peer(&mut self) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, 1 + (self.small() % 8) as u8).into()
    }

    fn step(&mut self, choice: u8) {
        match choice % 16 {
            0 => {
                let (peer, port) = (self.peer(), self.small() as u16);
                if self.conns.len() < CONNECTIONS as usize
                    && let Ok(conn) = self.node.accept(self.now, peer, port)
                {
                    self.conns.push(conn);
                }
            }
            1..=5 => {
                if let Some(conn) = self.conn() {
                    let message = self.message();
                    self.feed(conn, &message);
                }
            }
            6 => {
                if let Some(conn) = self.conn() {
                    let n = self.small() as usize;
                    let raw = self.bytes(n);
                    self.feed(conn, &raw);
                }
            }
            7 => {
                if let Some(conn) = self.conn() {
                    let n = self.small() as usize * 16;
                    self.feed_direct(conn, n);
                }
            }
            8 | 9 => {
                if let Some(conn) = self.node.poll_transmit() {
                    let mut out = Vec::new();
                    let n = self.node.begin_transmit(conn, 1 << 16, &mut out);
                    assert_eq!(n, out.iter().map(|b| b.len()).sum::<usize>());
                    let part = n * self.small() as usize / 255;
                    self.node.end_transmit(self.now, conn, part, part < n);
                    self.node.writable(conn);
                }
            }
            10 => {
                self.now = self.now + Duration::from_millis(self.small() * self.small());
                self.node.handle_timeout(self.now);
                self.node.flush_acks();
            }
            11 => {
                if let Some(conn) = self.conn() {
                    let unacked = self.small().checked_mul(97);
                    self.closed(conn, unacked);
                }
            }
            12 => {
                if let Ok((socket, _)) = self.node.bind(self.input.first().map_or(0, |b| u16::from(*b % 8))) {
                    let bytes = 1 + self.small() * 64;
                    self.node.set_receive_buffer(socket, bytes);
                    self.sockets.push(socket);
                }
            }
            13 => {
                if let Some(socket) = self.socket() {
                    let to = SocketAddr::new(self.peer(), self.small() as u16 % 8);
                    let len = (self.small() * self.small()) as usize;
                    self.token += 1;
                    let token = Some(Token(self.token));
                    let _ = self.node.send(socket, to, Payload::Copy(&vec![7; len]), token, &mut self.queues);
                }
            }
            14 => {
                if let Some(socket) = self.socket() {
                    let (bytes, messages) = self.queues.0.remove(&socket).unwrap_or_default();
                    self.node.consumed(socket, bytes, messages);
                }
            }
            _ => {
                if let Some(socket) = self.socket() {
                    if self.small() % 2 == 0 {
                        self.node.cancel(socket, None);
                    } else {
                        let drain = self.small() % 2 == 0;
                        self.node.close(socket, drain);
                        self.sockets.retain(|s| *s != socket);
                        self.queues.0.remove(&socket);
                    }
                }
            }
        }
    }

    /// A message that a peer might send, or nearly.
    fn message(&mut self) -> Vec<u8> {
        let kind = self.small();
        let padding = match kind % 4 {
            0 => [0; 4],
            1 => Identity::ours(Capabilities(self.small() as u8)).encode(),
            _ => Identity::ours(Capabilities::ACKS.with(Capabilities::WINDOW)).encode(),
        };
        let extensions = HandshakeExtensions {
            lanes: (kind % 5 != 0).then_some(1 + (kind % 3) as u16),
            generation: (kind % 7 != 0).then_some(1 + (kind % 2) as u32),
            source_port_lane: kind % 2 == 0,
        };
        let sequence = self.small();
        let header = Header { sequence, padding, extensions: extensions.encode(), ..Header::default() };
        match (kind / 4) % 8 {
            0 => {
                let mut map = CongestionMap::new();
                map.set(self.small() as u16 % 8, true);
                return map.to_message(Identity::decode(padding)).to_vec();
            }
            1 => Header { sport: 1, dport: 0, ..header },
            2 => Header { sport: 0, dport: 1, ack: self.small(), ..header },
            3 => Header { sequence: sequence << 10, ack: self.small(), ..Header::default() },
            4 => Header { flags: Flags(self.small() as u8), ..header },
            _ => Header {
                sequence,
                ack: self.small(),
                sport: self.small() as u16 % 8,
                dport: self.small() as u16 % 8,
                flags: Flags(self.small() as u8 & 4),
                len: (self.small() * self.small()) as u32,
                ..Header::default()
            },
        }
        .encode_with_checksum()
        .to_vec()
    }

    fn feed(&mut self, conn: ConnId, bytes: &[u8]) {
        let mut input = self.rest.remove(&conn).unwrap_or_default();
        input.extend_from_slice(bytes);
        let got = self.node.receive(self.now, conn, &input, &mut self.queues);
        assert!(got.consumed <= input.len());
        assert!(got.consumed == input.len() || !got.more);
        let rest = input.split_off(got.consumed);
        if !rest.is_empty() {
            self.rest.insert(conn, rest);
        }
    }

    fn feed_direct(&mut self, conn: ConnId, n: usize) {
        if self.rest.contains_key(&conn) {
            return;
        }
        if let Some(mut buffer) = self.node.take_target(conn) {
            buffer.extend(&vec![3; n]);
            let _ = self.node.return_target(self.now, conn, buffer, &mut self.queues);
        }
    }

    fn closed(&mut self, conn: ConnId, unacked: Option<u64>) {
        self.node.closed(self.now, conn, unacked);
        self.conns.retain(|c| *c != conn);
        self.rest.remove(&conn);
    }

    fn act(&mut self) {
        let mut turns = 0;
        while let Some(action) = self.node.poll_action(self.now) {
            turns += 1;
            assert!(turns < 10_000, "actions without end");
            match action {
                Action::Connect { conn, .. } => {
                    if self.conns.len() < CONNECTIONS as usize && self.small() % 4 != 0 {
                        self.conns.push(conn);
                        self.node.connected(self.now, conn);
                    } else {
                        self.node.connect_failed(self.now, conn);
                    }
                }
                Action::Close { conn, .. } => {
                    self.conns.retain(|c| *c != conn);
                    self.rest.remove(&conn);
                }
                Action::Drain { conn } => {
                    self.feed(conn, &[]);
                    self.node.drained(self.now, conn);
                }
                Action::Resume { conn } => self.feed(conn, &[]),
                Action::QueryUnacked { conn } => {
                    let unacked = self.small();
                    self.node.tcp_unacked(self.now, conn, unacked);
                }
                _ => {}
            }
        }
    }
}
