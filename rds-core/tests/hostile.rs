//! One node and hand-made bytes of its peers: what no honest peer, or only an unlucky one, would say.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rds_core::proto::*;
use rds_core::wire::{
    Capabilities, CongestionMap, Decoder, Flags, HandshakeExtensions, Header, Identity, Item,
};

#[derive(Default)]
struct Mailbox(Vec<(SocketId, Vec<u8>)>);

impl Inbox for Mailbox {
    fn deliver(&mut self, socket: SocketId, _: SocketAddr, body: Body<'_>) {
        self.0.push((socket, body.to_vec()));
    }
    fn take_consumed(&mut self, _: SocketId) -> (u64, u64) {
        (0, 0)
    }
}

const NODE: &str = "10.0.0.2";
const SMALLER: &str = "10.0.0.1";
const LARGER: &str = "10.0.0.3";

/// A message that the node wrote: header and payload.
type Heard = (Header, Vec<u8>);

/// A node whose peers are played by the test.
struct Bench {
    now: Time,
    node: Node,
    inbox: Mailbox,
    events: Vec<Action>,
    /// What the node wrote on each connection.
    heard: HashMap<ConnId, (Decoder, Vec<Heard>)>,
}

fn full() -> Capabilities {
    Capabilities::ACKS.with(Capabilities::WINDOW)
}

impl Bench {
    fn new(change: impl Fn(&mut Config)) -> Self {
        let mut c = Config::new(NODE.parse().unwrap(), NonZeroU32::new(77).unwrap());
        c.first_sequence = 1 << 30;
        change(&mut c);
        Self {
            now: Time::from_nanos(1),
            node: Node::new(c).unwrap(),
            inbox: Mailbox::default(),
            events: Vec::new(),
            heard: HashMap::new(),
        }
    }

    fn accept(&mut self, port: u16) -> ConnId {
        self.node.accept(self.now, SMALLER.parse().unwrap(), port).unwrap()
    }

    fn feed(&mut self, conn: ConnId, bytes: &[u8]) {
        let _ = self.node.receive(self.now, conn, bytes, &mut self.inbox);
        self.pump();
    }

    /// Performs what the node asks for: all is written, old connections are read out, acknowledgements flushed.
    fn pump(&mut self) {
        for round in 0.. {
            assert!(round < 1000, "does not come to rest");
            let mut busy = false;
            while let Some(action) = self.node.poll_action(self.now) {
                busy = true;
                self.events.push(action.clone());
                match action {
                    Action::Drain { conn } => self.node.drained(self.now, conn),
                    Action::Resume { conn } => {
                        let _ = self.node.receive(self.now, conn, &[], &mut self.inbox);
                    }
                    _ => {}
                }
            }
            while let Some(conn) = self.node.poll_transmit() {
                busy = true;
                let mut out = Vec::new();
                let n = self.node.begin_transmit(conn, 1 << 16, &mut out);
                if n == 0 {
                    continue;
                }
                let bytes: Vec<u8> = out.iter().flat_map(|piece| piece.to_vec()).collect();
                self.node.end_transmit(self.now, conn, n, false);
                let (decoder, heard) = self.heard.entry(conn).or_default();
                let mut rest = &bytes[..];
                loop {
                    match decoder.next(&mut rest, 1 << 21).unwrap() {
                        Item::NeedMore => break,
                        Item::Message { header, payload } => heard.push((header, payload.to_vec())),
                        Item::Begin { header } => heard.push((header, Vec::new())),
                        Item::Chunk { data, .. } => heard.last_mut().unwrap().1.extend_from_slice(data),
                    }
                }
            }
            self.node.flush_acks();
            if !busy {
                return;
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.pump();
        while let Some(t) = self.node.next_timeout().filter(|t| *t <= end) {
            self.now = self.now.max(t);
            self.node.handle_timeout(self.now);
            self.pump();
        }
        self.now = end;
    }

    fn heard(&self, conn: ConnId) -> Vec<Header> {
        self.heard.get(&conn).map(|h| h.1.iter().map(|m| m.0).collect()).unwrap_or_default()
    }

    /// A connection of an own peer that has finished its handshake.
    fn own(&mut self, port: u16, peer: Own) -> ConnId {
        let conn = self.accept(port);
        self.feed(conn, &peer.hello());
        self.feed(conn, &peer.pong(0));
        conn
    }

    fn send(&mut self, socket: SocketId, to: &str, port: u16, payload: &[u8]) -> Result<(), SendError> {
        let to = SocketAddr::new(to.parse().unwrap(), port);
        let payload = Payload::Copy(payload);
        let sent = self.node.send(socket, to, payload, None, &mut self.inbox).map_err(|r| r.error);
        self.pump();
        sent
    }

    fn connects(&mut self) -> Vec<(ConnId, u8)> {
        let found = |a| match a {
            Action::Connect { conn, lane, .. } => Some((conn, lane)),
            _ => None,
        };
        std::mem::take(&mut self.events).into_iter().filter_map(found).collect()
    }
}

/// An own peer, as the test plays it.
#[derive(Clone, Copy)]
struct Own {
    generation: u32,
    lanes: u8,
    capabilities: Capabilities,
}

impl Own {
    fn new(generation: u32) -> Self {
        Self { generation, lanes: 1, capabilities: full() }
    }

    fn identity(self) -> Identity {
        Identity::ours(self.capabilities.with_lanes(self.lanes))
    }

    fn map(self, ports: &[u16]) -> Vec<u8> {
        let mut map = CongestionMap::new();
        for p in ports {
            map.set(*p, true);
        }
        map.to_message(self.identity()).to_vec()
    }

    fn shake(self, sport: u16, dport: u16, ack: u64) -> Vec<u8> {
        let extensions = HandshakeExtensions {
            lanes: Some(u16::from(self.lanes)),
            generation: Some(self.generation),
            source_port_lane: self.lanes > 1,
        };
        let (padding, extensions) = (self.identity().encode(), extensions.encode());
        Header { sport, dport, ack, padding, extensions, ..Header::default() }.encode_with_checksum().to_vec()
    }

    fn hello(self) -> Vec<u8> {
        [self.map(&[]), self.shake(1, 0, 0)].concat()
    }

    fn pong(self, ack: u64) -> Vec<u8> {
        self.shake(0, 1, ack)
    }
}

fn data(sequence: u64, sport: u16, dport: u16, payload: &[u8]) -> Vec<u8> {
    let header = Header { sequence, sport, dport, len: payload.len() as u32, ..Header::default() };
    [&header.encode_with_checksum()[..], payload].concat()
}

fn window(limit: u64, ack: u64) -> Vec<u8> {
    Header { sequence: limit, ack, ..Header::default() }.encode_with_checksum().to_vec()
}

#[test]
fn the_highest_sequence_number_is_a_number_like_any_other() {
    let mut b = Bench::new(|_| {});
    b.node.bind(4001).unwrap();
    let conn = b.own(9000, Own::new(5));
    b.feed(conn, &data(u64::MAX, 4000, 4001, b"last"));
    assert_eq!(b.inbox.0.len(), 1);
    assert_eq!(b.node.snapshot(true).peers.len(), 1);
}

#[test]
fn a_window_is_granted_without_acknowledgements() {
    let mut b = Bench::new(|c| c.capabilities = Capabilities::WINDOW);
    let conn = b.own(9000, Own { capabilities: Capabilities::WINDOW, ..Own::new(5) });
    let heard = b.heard(conn);
    assert!(heard.iter().any(|h| h.is_ack_only() && h.sequence > 0 && h.ack == 0), "{heard:?}");
}

#[test]
fn pings_of_a_peer_that_never_acknowledges_are_not_answered_without_end() {
    let mut b = Bench::new(|_| {});
    let conn = b.own(9000, Own::new(5));
    b.feed(conn, &window(1 << 30, 0));
    for i in 0..100 {
        let pings: Vec<u8> = (0..500).flat_map(|j| data(1 + i * 500 + j, 4000, 0, b"")).collect();
        b.feed(conn, &pings);
    }
    let unacked = b.node.snapshot(true).peers[0].connections[0].retransmit_queue.len();
    assert!(unacked <= 1 << 14, "{unacked} pongs are kept");
    // Once it acknowledges, it is answered again.
    let answered = b.heard(conn).iter().filter(|h| h.dport == 4000).count();
    let last = b.heard(conn).iter().rfind(|h| h.dport == 4000).unwrap().sequence;
    b.feed(conn, &window(0, last));
    b.feed(conn, &data(1_000_000, 4000, 0, b""));
    assert_eq!(b.heard(conn).iter().filter(|h| h.dport == 4000).count(), answered + 1);
}

#[test]
fn cancelled_messages_leave_no_reason_to_connect_and_no_memory() {
    let mut b = Bench::new(|_| {});
    let (socket, _) = b.node.bind(4000).unwrap();
    b.send(socket, LARGER, 4001, b"for nobody").unwrap();
    let (conn, _) = b.connects()[0];
    b.node.cancel(socket, None);
    b.node.connect_failed(b.now, conn);
    b.pass(Duration::from_secs(300));
    assert_eq!(b.connects(), [], "nothing is to be sent");
    assert!(b.node.snapshot(false).peers.is_empty(), "the peer is forgotten");
}

#[test]
fn messages_between_cancelled_ones_arrive_whole_and_in_order() {
    let mut b = Bench::new(|_| {});
    let (kept, _) = b.node.bind(4000).unwrap();
    let (gone, _) = b.node.bind(4002).unwrap();
    for i in 0..50u8 {
        b.send(kept, SMALLER, 4001, &vec![i; usize::from(i)]).unwrap();
        b.send(gone, SMALLER, 4001, &[0xee; 3000]).unwrap();
        if i % 7 == 0 {
            b.node.cancel(gone, None);
        }
    }
    let conn = b.own(9000, Own::new(5));
    b.node.cancel(gone, None);
    b.feed(conn, &window(1 << 30, 0));
    let got: Vec<Vec<u8>> =
        b.heard[&conn].1.iter().filter(|m| m.0.sport == 4000).map(|m| m.1.clone()).collect();
    assert_eq!(got, (0..50u8).map(|i| vec![i; usize::from(i)]).collect::<Vec<_>>());
    assert!(b.heard(conn).iter().all(|h| h.sport != 4002));
}

#[test]
fn a_late_connection_of_a_dead_incarnation_does_not_bring_it_back() {
    let mut b = Bench::new(|_| {});
    b.node.bind(4001).unwrap();
    let (old, new) = (Own::new(5), Own::new(6));
    b.own(9000, old);
    let late = b.accept(9008);
    let present = b.own(9016, new);
    b.feed(present, &data(100, 4000, 4001, b"once"));
    // What the dead incarnation had said on its last connection is read only now.
    b.feed(late, &[old.map(&[4000]), old.shake(1, 0, 0)].concat());
    let (socket, _) = b.node.bind(4002).unwrap();
    assert_eq!(b.send(socket, SMALLER, 4000, b"x"), Ok(()), "the dead incarnation's map counts no more");
    b.node.closed(b.now, late, None);
    b.pump();
    if !b.events.iter().any(|a| matches!(a, Action::Close { conn, .. } if *conn == present)) {
        b.node.closed(b.now, present, None);
    }
    let again = b.own(9024, new);
    let header = Header {
        sequence: 100,
        sport: 4000,
        dport: 4001,
        len: 4,
        flags: Flags::RETRANSMITTED,
        ..Header::default()
    };
    b.feed(again, &[&header.encode_with_checksum()[..], b"once"].concat());
    assert_eq!(b.inbox.0.len(), 1, "delivered once");
}

#[test]
fn knocking_goes_on_when_the_connection_that_came_fails() {
    let mut b = Bench::new(|_| {});
    let (socket, _) = b.node.bind(4000).unwrap();
    b.send(socket, SMALLER, 4001, b"wait for me").unwrap();
    let (knock, _) = b.connects()[0];
    b.node.connected(b.now, knock);
    let conn = b.accept(9000);
    b.pass(Duration::from_secs(1));
    b.node.closed(b.now, conn, None);
    b.pass(Duration::from_secs(5));
    assert!(!b.connects().is_empty(), "it knocks again");
}

#[test]
fn a_knock_that_gets_no_answer_is_given_up() {
    let mut b = Bench::new(|_| {});
    let (socket, _) = b.node.bind(4000).unwrap();
    b.send(socket, SMALLER, 4001, b"wait for me").unwrap();
    assert_eq!(b.connects().len(), 1);
    b.pass(Duration::from_secs(60));
    assert!(b.connects().len() >= 4, "it knocks again and again");
}

#[test]
fn the_handshake_has_its_time_from_when_the_connection_stands() {
    let mut b = Bench::new(|_| {});
    let (socket, _) = b.node.bind(4000).unwrap();
    b.send(socket, LARGER, 4001, b"x").unwrap();
    let (conn, _) = b.connects()[0];
    b.pass(Duration::from_secs(9));
    b.node.connected(b.now, conn);
    b.pass(Duration::from_secs(9));
    assert_eq!(b.connects(), [], "it has ten seconds");
    b.pass(Duration::from_secs(2));
    assert_ne!(b.connects(), [], "and no more");
}

#[test]
fn connections_that_come_and_go_leave_no_pressure() {
    let mut b = Bench::new(|_| {});
    b.node.bind(4001).unwrap();
    let mut on = false;
    for i in 0..20 {
        let conn = b.own(9000, Own::new(5));
        if i % 2 == 0 {
            b.node.closed(b.now, conn, None);
        }
        b.pump();
        for action in std::mem::take(&mut b.events) {
            if let Action::Pressure { on: now } = action {
                on = now;
            }
        }
    }
    assert!(!on, "no room is short");
}

#[test]
fn empty_messages_to_one_port_do_not_use_up_the_node() {
    let mut b = Bench::new(|c| c.receive_budget = 1 << 20);
    let (to, _) = b.node.bind(4001).unwrap();
    b.node.set_receive_buffer(to, 64 << 10);
    let conn = b.accept(9000);
    b.feed(conn, &CongestionMap::new().to_message(Identity::Kernel));
    for i in 0..40_000 {
        let header = Header { sequence: 1 + i, sport: 4000, dport: 4001, ..Header::default() };
        b.feed(conn, &header.encode());
    }
    let held = b.node.snapshot(false).receive_queued;
    assert!(held <= (1 << 19) + 48, "{held} bytes are held for one port");
}

#[test]
fn pongs_that_nobody_asked_for_do_not_use_up_the_node() {
    let mut b = Bench::new(|c| c.receive_budget = 1 << 20);
    let (to, _) = b.node.bind(4001).unwrap();
    b.node.set_receive_buffer(to, 64 << 10);
    let conn = b.own(9000, Own::new(5));
    b.feed(conn, &data(1, 0, 4001, b"no pong has a payload"));
    assert!(b.inbox.0.is_empty());
    for i in 0..100 {
        let pongs: Vec<u8> = (0..500).flat_map(|j| data(2 + i * 500 + j, 0, 4001, b"")).collect();
        b.feed(conn, &pongs);
    }
    let held = b.node.snapshot(false).receive_queued;
    assert!(held > 0 && held <= (1 << 19) + 48, "{held} bytes are held for one port");
}

#[test]
fn empty_messages_within_the_node_are_bounded() {
    let mut b = Bench::new(|c| c.receive_budget = 1 << 20);
    let (from, _) = b.node.bind(4000).unwrap();
    let (to, _) = b.node.bind(4001).unwrap();
    b.node.set_receive_buffer(to, 64 << 10);
    let sent = (0..40_000).take_while(|_| b.send(from, NODE, 4001, b"") == Ok(())).count();
    assert!(sent < 20_000, "{sent} are held");
    b.node.consumed(to, 0, sent as u64);
    b.pump();
    let destination = SocketAddr::new(NODE.parse().unwrap(), 4001);
    assert!(b.events.contains(&Action::Uncongested { socket: from, destination }));
    assert_eq!(b.send(from, NODE, 4001, b""), Ok(()));
}

#[test]
fn a_dialled_lane_that_the_peer_no_longer_offers_carries_nothing() {
    let mut b = Bench::new(|c| c.lanes = 8);
    b.node.bind(4001).unwrap();
    let (socket, _) = b.node.bind(4000).unwrap();
    let before = Own { lanes: 8, ..Own::new(5) };
    let after = Own::new(6);
    b.send(socket, LARGER, 4001, b"x").unwrap();
    let (first, _) = b.connects()[0];
    b.node.connected(b.now, first);
    b.feed(first, &before.hello());
    b.feed(first, &before.pong(0));
    let others = b.connects();
    assert_eq!(others.len(), 7);
    let (third, _) = others[2];
    b.node.closed(b.now, first, None);
    b.pass(Duration::from_millis(5));
    let (again, lane) = b.connects()[0];
    assert_eq!(lane, 0);
    b.node.connected(b.now, again);
    b.feed(again, &after.hello());
    b.feed(again, &after.pong(0));
    b.feed(again, &data(100, 4005, 4001, b"once"));
    // The peer, which has but one lane, takes this for its lane 0 too.
    b.node.connected(b.now, third);
    b.feed(third, &after.hello());
    b.feed(third, &after.pong(0));
    b.feed(third, &data(100, 4005, 4001, b"once"));
    assert_eq!(b.inbox.0.len(), 1, "delivered once");
}

#[test]
fn a_refused_message_makes_no_peer() {
    let mut b = Bench::new(|_| {});
    let (socket, _) = b.node.bind(4000).unwrap();
    b.node.set_send_buffer(socket, 1);
    b.send(socket, SMALLER, 4001, b"x").unwrap();
    assert_eq!(b.send(socket, LARGER, 4001, b"x"), Err(SendError::Full));
    assert_eq!(b.node.snapshot(false).peers.len(), 1);
}

#[test]
fn a_mapped_address_is_of_the_other_family() {
    let mut b = Bench::new(|c| c.address = "fd00::1".parse().unwrap());
    let (socket, _) = b.node.bind(4000).unwrap();
    assert_eq!(b.send(socket, "::ffff:10.0.0.1", 4001, b"x"), Err(SendError::FamilyMismatch));
}

struct Owner(Arc<AtomicBool>, [u8; 4]);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.1
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_programs_small_payload_is_dropped_by_the_driver() {
    let mut b = Bench::new(|_| {});
    let (socket, _) = b.node.bind(4000).unwrap();
    let dropped = Arc::new(AtomicBool::new(false));
    let payload = Payload::Owned(Bytes::from_owner(Owner(Arc::clone(&dropped), *b"tiny")).into());
    let to = SocketAddr::new(SMALLER.parse().unwrap(), 4001);
    b.node.send(socket, to, payload, None, &mut b.inbox).unwrap();
    assert!(!dropped.load(Ordering::Relaxed), "not within the node");
    let mut out = Vec::new();
    b.node.take_released(&mut out);
    drop(out);
    assert!(dropped.load(Ordering::Relaxed));
}

#[test]
fn what_was_cancelled_is_not_kept_for_a_peer_that_will_never_see_it() {
    let mut b = Bench::new(|_| {});
    let (socket, _) = b.node.bind(4000).unwrap();
    let conn = b.own(9000, Own::new(5));
    b.feed(conn, &window(1 << 30, 0));
    let dropped = Arc::new(AtomicBool::new(false));
    let payload = Payload::Owned(Bytes::from_owner(Owner(Arc::clone(&dropped), *b"tiny")).into());
    let to = SocketAddr::new(SMALLER.parse().unwrap(), 4001);
    b.node.send(socket, to, payload, None, &mut b.inbox).unwrap();
    b.pump();
    b.node.closed(b.now, conn, None);
    b.node.cancel(socket, None);
    let conn = b.own(9000, Own::new(5));
    b.feed(conn, &window(1 << 30, 0));
    assert_eq!(b.node.outstanding(conn), 0);
}

/// What an acknowledgement says before the pong may be about an earlier life of this node, or of the peer.
#[test]
fn an_acknowledgement_before_the_pong_is_not_believed() {
    let mut b = Bench::new(|_| {});
    let (socket, _) = b.node.bind(4000).unwrap();
    let peer = Own::new(1);
    let first = b.own(1000, peer);
    b.feed(first, &window(1 << 20, 0));
    b.send(socket, SMALLER, 4001, b"not acknowledged").unwrap();
    let sent = b.heard(first).last().unwrap().sequence;
    b.node.closed(b.now, first, None);
    let second = b.accept(1001);
    b.feed(second, &peer.hello());
    b.feed(second, &window(1 << 20, sent));
    assert!(!b.node.is_drained(), "an acknowledgement before the pong was believed");
    b.feed(second, &peer.pong(0));
    let again = *b.heard(second).last().unwrap();
    assert_eq!((again.sequence, again.flags), (sent, Flags::RETRANSMITTED));
    b.feed(second, &window(1 << 20, sent));
    assert!(b.node.is_drained());
}

#[test]
fn silent_connections_do_not_keep_others_out() {
    let mut b = Bench::new(|c| c.max_handshakes = 1);
    for host in 10..50 {
        let address = format!("9.0.0.{host}").parse().unwrap();
        assert!(b.node.accept(b.now, address, 1000).is_ok(), "the oldest silent one makes room");
        b.now = b.now + Duration::from_millis(1);
    }
    b.pump();
    let closed =
        b.events.iter().filter(|a| matches!(a, Action::Close { reason: DropReason::Limit, .. })).count();
    assert_eq!(closed, 39);
    let (socket, _) = b.node.bind(4000).unwrap();
    // Also where the silent one is the same peer's.
    for port in 0..5 {
        b.accept(port);
        b.node.accept(b.now, "9.0.0.7".parse().unwrap(), 1000 + port).unwrap();
    }
    let conn = b.own(1000, Own::new(1));
    b.feed(conn, &window(1 << 20, 0));
    assert_eq!(b.send(socket, SMALLER, 4001, b"through"), Ok(()));
    assert_eq!(b.heard(conn).last().unwrap().dport, 4001);
}

#[test]
fn pongs_do_not_wait_for_the_window() {
    let mut b = Bench::new(|_| {});
    let (socket, _) = b.node.bind(4000).unwrap();
    let conn = b.own(1000, Own::new(1));
    b.send(socket, SMALLER, 4001, b"no window for this").unwrap();
    b.feed(conn, &data(5, 4001, 0, b""));
    let last = *b.heard(conn).iter().rev().find(|h| h.dport == 4001).expect("a pong");
    assert_eq!((last.sport, last.len), (0, 0));
}

#[test]
fn maps_do_not_pile_up_for_a_peer_that_reads_slowly() {
    let mut b = Bench::new(|_| {});
    let (socket, _) = b.node.bind(4000).unwrap();
    b.node.set_receive_buffer(socket, 100);
    let conn = b.own(1000, Own::new(1));
    let mut written = 0;
    for i in 0..100 {
        // The port is congested and free again, and TCP takes a few bytes only.
        b.node
            .receive(b.now, conn, &data(100 + i, 4001, 4000, &[0; 200]), &mut b.inbox)
            .more
            .then_some(())
            .unwrap();
        b.node.consumed(socket, 200, 1);
        while b.node.poll_action(b.now).is_some() {}
        if b.node.poll_transmit() == Some(conn) {
            let mut out = Vec::new();
            let n = b.node.begin_transmit(conn, 1 << 16, &mut out);
            assert!(n < 3 * 8240, "{n} bytes wait for a peer that took {written}");
            b.node.end_transmit(b.now, conn, 10.min(n), true);
            b.node.writable(conn);
            written += 10;
        }
    }
    assert!(written > 500, "maps were due");
}

#[test]
fn a_pair_of_sockets_leaves_its_lane_only_when_nothing_of_it_is_unacknowledged() {
    let mut b = Bench::new(|c| c.lanes = 8);
    // Port 4301 belongs on lane 6 of 8; before the number of lanes is known everything goes on lane 0.
    let (socket, _) = b.node.bind(4301).unwrap();
    b.send(socket, SMALLER, 4001, b"first").unwrap();
    let mut peer = Own::new(1);
    peer.lanes = 8;
    let (zero, six) = (b.own(1000, peer), b.own(1006, peer));
    b.feed(zero, &window(1 << 20, 0));
    b.feed(six, &window(1 << 20, 0));
    b.send(socket, SMALLER, 4001, b"second").unwrap();
    let data = |b: &Bench, conn| {
        b.heard(conn).iter().filter(|h| h.sport == 4301).map(|h| h.sequence).collect::<Vec<_>>()
    };
    let sent = data(&b, zero);
    assert_eq!((sent.len(), data(&b, six).len()), (2, 0), "the second follows the first");
    b.feed(zero, &window(1 << 20, sent[0]));
    b.send(socket, SMALLER, 4001, b"third").unwrap();
    let sent = data(&b, zero);
    assert_eq!((sent.len(), data(&b, six).len()), (3, 0), "the second is still on its way");
    b.feed(zero, &window(1 << 20, sent[2]));
    b.send(socket, SMALLER, 4001, b"fourth").unwrap();
    assert_eq!((data(&b, zero).len(), data(&b, six).len()), (3, 1));
}

#[test]
fn what_a_connection_said_of_congestion_does_not_outlive_it_while_others_stand() {
    let mut b = Bench::new(|c| c.lanes = 2);
    let (socket, _) = b.node.bind(4300).unwrap();
    let peer = Own { lanes: 2, ..Own::new(1) };
    let (old, _new) = (b.own(1000, peer), b.own(1001, peer));
    // Read late: the newer connection has told already that the port is free, and nobody will say it again.
    b.feed(old, &peer.map(&[4001]));
    assert_eq!(b.send(socket, SMALLER, 4001, b"x"), Err(SendError::Congested));
    b.events.clear();
    b.node.closed(b.now, old, None);
    b.pump();
    let freed =
        |e: &Action| matches!(e, Action::Uncongested { destination, .. } if destination.port() == 4001);
    assert!(b.events.iter().any(freed), "{:?}", b.events);
    assert_eq!(b.send(socket, SMALLER, 4001, b"x"), Ok(()));
}
