//! One node, and connections of hand-made peers that come, wait, go and come back: which is read when, and what stays known.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use rds_core::proto::*;
use rds_core::wire::{
    Capabilities, CongestionMap, Decoder, Flags, HandshakeExtensions, Header, Identity, Item,
};

#[derive(Default)]
struct Mailbox(Vec<Vec<u8>>);

impl Inbox for Mailbox {
    fn deliver(&mut self, _: SocketId, _: SocketAddr, body: Body<'_>) {
        self.0.push(body.to_vec());
    }
    fn take_consumed(&mut self, _: SocketId) -> (u64, u64) {
        (0, 0)
    }
}

const NODE: [u8; 4] = [10, 0, 0, 200];
const PORT: u16 = 4001;

/// A node whose peers are played by the test; `drained` and `closed` are the test's to report.
struct Bench {
    now: Time,
    node: Node,
    /// At [`PORT`].
    socket: SocketId,
    inbox: Mailbox,
    events: Vec<Action>,
    /// Connections that are not to be read, and what was left of their bytes.
    paused: HashSet<ConnId>,
    heard: Vec<(ConnId, Header)>,
}

fn peer(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

impl Bench {
    fn new(change: impl Fn(&mut Config)) -> Self {
        let mut c = Config::new(IpAddr::from(NODE), NonZeroU32::new(77).unwrap());
        c.first_sequence = 1 << 30;
        change(&mut c);
        let mut node = Node::new(c).unwrap();
        let (socket, _) = node.bind(PORT).unwrap();
        Self {
            now: Time::from_nanos(1),
            node,
            socket,
            inbox: Mailbox::default(),
            events: Vec::new(),
            paused: HashSet::new(),
            heard: Vec::new(),
        }
    }

    fn accept(&mut self, last: u8) -> ConnId {
        self.node.accept(self.now, peer(last), 9000).unwrap()
    }

    /// Feeds bytes, of which all must be taken.
    fn feed(&mut self, conn: ConnId, bytes: &[u8]) {
        assert!(!self.paused.contains(&conn), "it is not to be read");
        let received = self.node.receive(self.now, conn, bytes, &mut self.inbox);
        assert_eq!(received.consumed, bytes.len());
        if !received.more {
            self.paused.insert(conn);
        }
        self.pump();
    }

    fn drained(&mut self, conn: ConnId) {
        self.node.drained(self.now, conn);
        self.pump();
    }

    fn closed(&mut self, conn: ConnId) {
        self.node.closed(self.now, conn, Some(0));
        self.pump();
    }

    fn pump(&mut self) {
        loop {
            while let Some(action) = self.node.poll_action(self.now) {
                match action {
                    Action::Drain { conn } => {
                        self.paused.remove(&conn);
                    }
                    Action::Resume { conn } => {
                        self.paused.remove(&conn);
                        let received = self.node.receive(self.now, conn, &[], &mut self.inbox);
                        if !received.more {
                            self.paused.insert(conn);
                        }
                    }
                    _ => {}
                }
                self.events.push(action);
            }
            self.node.flush_acks();
            let Some(conn) = self.node.poll_transmit() else { return };
            let mut out = Vec::new();
            let n = self.node.begin_transmit(conn, 1 << 20, &mut out);
            let bytes: Vec<u8> = out.iter().flat_map(|piece| piece.to_vec()).collect();
            let (mut decoder, mut rest) = (Decoder::new(), &bytes[..]);
            while let Item::Message { header, .. } | Item::Begin { header } =
                decoder.next(&mut rest, 1 << 21).unwrap()
            {
                self.heard.push((conn, header));
            }
            if n > 0 {
                self.node.end_transmit(self.now, conn, n, false);
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

    fn was_closed(&self, conn: ConnId) -> Option<DropReason> {
        self.events.iter().find_map(|a| match a {
            Action::Close { conn: c, reason, .. } if *c == conn => Some(*reason),
            _ => None,
        })
    }

    fn is_draining(&self, conn: ConnId) -> bool {
        self.events.contains(&Action::Drain { conn })
    }

    /// Sends to a peer's port 4000.
    fn send(&mut self, last: u8) -> Result<(), SendError> {
        let (socket, _) = self.node.bind(0).unwrap();
        let to = SocketAddr::new(peer(last), 4000);
        let sent =
            self.node.send(socket, to, Payload::Copy(b"x"), None, &mut self.inbox).map_err(|r| r.error);
        self.pump();
        sent
    }
}

fn map(identity: Identity, ports: &[u16]) -> Vec<u8> {
    let mut map = CongestionMap::new();
    ports.iter().for_each(|p| {
        map.set(*p, true);
    });
    map.to_message(identity).to_vec()
}

/// A message with a kernel's header.
fn data(sequence: u64, flags: Flags, payload: &[u8]) -> Vec<u8> {
    let header =
        Header { sequence, flags, sport: 4000, dport: PORT, len: payload.len() as u32, ..Header::default() };
    [&header.encode()[..], payload].concat()
}

fn own() -> Identity {
    Identity::ours(Capabilities::ACKS.with(Capabilities::WINDOW))
}

/// A handshake message of an own peer, or of a kernel from 7.0 on.
fn shake(identity: Identity, sport: u16, dport: u16, generation: u32) -> Vec<u8> {
    let extensions =
        HandshakeExtensions { lanes: Some(1), generation: Some(generation), source_port_lane: false };
    let (padding, extensions) = (identity.encode(), extensions.encode());
    let header = Header { sport, dport, padding, extensions, ..Header::default() };
    if identity.is_own() { header.encode_with_checksum().to_vec() } else { header.encode().to_vec() }
}

const FIRST: Flags = Flags(0);
const AGAIN: Flags = Flags::RETRANSMITTED;

#[test]
fn an_older_connection_of_a_kernel_is_read_before_a_newer_one_that_spoke_first() {
    let mut b = Bench::new(|_| {});
    let (first, second, third) = (b.accept(1), b.accept(1), b.accept(1));
    let hello = map(Identity::Kernel, &[]);
    b.feed(third, &hello);
    assert!(b.paused.contains(&third));
    assert!(b.is_draining(first) && !b.is_draining(second));
    b.feed(first, &[&hello[..], &data(1, FIRST, b"one")].concat());
    b.drained(first);
    b.feed(second, &[&hello[..], &data(1, AGAIN, b"one"), &data(2, FIRST, b"two")].concat());
    b.drained(second);
    b.feed(third, &[data(2, AGAIN, b"two"), data(3, FIRST, b"three")].concat());
    assert_eq!(b.inbox.0, [&b"one"[..], b"two", b"three"]);
    assert_eq!(b.was_closed(third), None);
}

#[test]
fn an_unread_connection_that_turns_out_to_be_an_own_peers_is_not_mistaken_for_a_kernels() {
    let mut b = Bench::new(|_| {});
    let (dead, kernel) = (b.accept(1), b.accept(1));
    b.feed(kernel, &map(Identity::Kernel, &[]));
    b.feed(dead, &[map(own(), &[]), shake(own(), 1, 0, 5)].concat());
    assert_eq!(b.was_closed(dead), Some(DropReason::Replaced));
    assert!(!b.paused.contains(&kernel), "it carries");
    b.feed(kernel, &data(1, FIRST, b"one"));
    assert_eq!(b.inbox.0, [b"one"]);
}

#[test]
fn a_kernels_connection_that_waits_for_its_turn_is_kept() {
    // The first message on it may be data: the map goes out on whichever of a kernel's paths is first.
    let mut b = Bench::new(|_| {});
    let old = b.accept(1);
    b.feed(old, &map(Identity::Kernel, &[]));
    let new = b.accept(1);
    b.feed(new, &data(1, FIRST, b"first of the new one"));
    assert!(b.is_draining(old) && b.paused.contains(&new));
    b.pass(Duration::from_secs(60));
    assert_eq!(b.was_closed(new), None, "its TCP has acknowledged what lies on it");
    b.drained(old);
    assert_eq!(b.inbox.0, [b"first of the new one"]);
    // It has ended meanwhile: what its end leaves is read all the same.
    b.feed(new, &data(2, FIRST, b"last"));
    b.closed(new);
    assert_eq!(b.inbox.0.len(), 2);
}

#[test]
fn a_map_that_a_waiting_connection_had_told_is_not_replaced_by_an_older_ones() {
    let mut b = Bench::new(|_| {});
    let (old, new) = (b.accept(1), b.accept(1));
    b.feed(new, &map(own(), &[]));
    b.feed(old, &[map(own(), &[4000]), shake(own(), 1, 0, 5)].concat());
    assert_eq!(b.send(1), Err(SendError::Congested));
    b.feed(new, &shake(own(), 1, 0, 5));
    b.drained(old);
    b.feed(new, &shake(own(), 0, 1, 5));
    assert_eq!(b.send(1), Ok(()), "nobody would ever say again that the port is free");
}

#[test]
fn connections_that_are_read_out_bring_no_more_than_twice_the_budget() {
    let (budget, len) = (1 << 20, 100_000);
    let mut b = Bench::new(|c| c.receive_budget = budget);
    let (mut next, mut sequence, mut given, mut taken) = (b.accept(1), 0, 0, 0);
    b.feed(next, &map(Identity::Kernel, &[]));
    for _ in 0..20 {
        // One connection takes the other's place, again and again; each has more on it than there is room for.
        let old = std::mem::replace(&mut next, b.accept(1));
        b.feed(next, &map(Identity::Kernel, &[]));
        assert!(b.is_draining(old));
        for _ in 0..40 {
            while b.paused.contains(&old) {
                let held = b.inbox.0.len() - taken;
                assert!(held as u64 * len <= 2 * budget + len, "{held} messages are held");
                taken += held;
                b.node.consumed(b.socket, held as u64 * len, held as u64);
                b.pump();
            }
            sequence += 1;
            given += 1;
            b.feed(old, &data(sequence, FIRST, &vec![7; len as usize]));
        }
        while b.paused.contains(&old) {
            let held = b.inbox.0.len() - taken;
            taken += held;
            b.node.consumed(b.socket, held as u64 * len, held as u64);
            b.pump();
        }
        b.drained(old);
    }
    assert_eq!(b.inbox.0.len(), given, "nothing of it is lost");
}

#[test]
fn new_connections_of_a_kernel_bring_no_message_each_past_the_budget() {
    let (budget, len) = (1 << 20, 100_000);
    let mut b = Bench::new(|c| c.receive_budget = budget);
    let mut sequence = 0;
    for _ in 0..200 {
        let conn = b.accept(1);
        sequence += 1;
        let message = data(sequence, FIRST, &vec![7; len as usize]);
        b.feed(conn, &[map(Identity::Kernel, &[]), message].concat());
        b.closed(conn);
    }
    let held = b.inbox.0.len() as u64 * len;
    assert!(held <= 2 * budget + len, "{held} bytes are held");
}

#[test]
fn a_kernels_handshake_ping_is_answered_whatever_ping_enable_says() {
    let mut b = Bench::new(|c| c.ping_enable = false);
    let conn = b.accept(1);
    let handshake = shake(Identity::Kernel, 1, 0, 5);
    let ping = Header { sequence: 9, sport: 4000, ..Header::default() }.encode();
    b.feed(conn, &[map(Identity::Kernel, &[]), handshake, ping.to_vec()].concat());
    let pongs = |dport| {
        b.heard.iter().filter(|(_, h)| h.sport == 0 && h.dport == dport && !h.is_congestion_map()).count()
    };
    assert_eq!((pongs(1), pongs(4000)), (1, 0), "{:?}", b.heard);
}

#[test]
fn the_peer_that_was_idle_for_the_longest_time_makes_room() {
    let mut b = Bench::new(|c| c.max_peers = 3);
    let mut conns = Vec::new();
    for last in 1..=3 {
        let conn = b.accept(last);
        b.feed(conn, &map(Identity::Kernel, &[]));
        conns.push(conn);
    }
    assert_eq!(b.node.accept(b.now, peer(4), 9000), Err(DropReason::Limit), "nobody is idle");
    for i in [1, 0, 2] {
        b.pass(Duration::from_secs(1));
        b.closed(conns[i]);
    }
    b.send(2).unwrap();
    let known =
        |b: &Bench| -> Vec<IpAddr> { b.node.snapshot(false).peers.iter().map(|p| p.address).collect() };
    b.accept(4);
    assert_eq!(known(&b), [peer(2), peer(3), peer(4)], "the second has a message");
    b.accept(5);
    assert_eq!(known(&b), [peer(2), peer(4), peer(5)]);
    assert_eq!(b.node.accept(b.now, peer(6), 9000), Err(DropReason::Limit));
    assert_eq!(b.send(6), Err(SendError::TooManyPeers));
}

#[test]
fn a_peer_that_made_room_gets_nothing_delivered_twice_when_it_comes_back() {
    for identity in [Identity::Kernel, own()] {
        let mut b = Bench::new(|c| c.max_peers = 1);
        let greet = |b: &mut Bench, last, generation| {
            let conn = b.accept(last);
            b.feed(conn, &map(identity, &[]));
            b.feed(conn, &shake(identity, 1, 0, generation));
            b.feed(conn, &shake(identity, 0, 1, generation));
            if identity.is_own() {
                let window = Header { sequence: 1 << 30, ..Header::default() };
                b.feed(conn, &window.encode_with_checksum());
            }
            conn
        };
        let message = |sequence, flags, payload: &[u8]| {
            let mut bytes = data(sequence, flags, payload);
            if identity.is_own() {
                let header = Header { csum: 0, ..Header::decode(bytes[..48].try_into().unwrap()) };
                bytes[..48].copy_from_slice(&header.encode_with_checksum());
            }
            bytes
        };
        let conn = greet(&mut b, 1, 5);
        b.feed(conn, &message(7, FIRST, b"once"));
        b.send(1).unwrap();
        let number = |b: &Bench| b.heard.iter().rev().find(|(_, h)| h.dport == 4000).unwrap().1.sequence;
        let before = number(&b);
        if identity.is_own() {
            b.feed(conn, &Header { ack: before, ..Header::default() }.encode_with_checksum());
        } else {
            b.node.tcp_unacked(b.now, conn, 0);
        }
        b.closed(conn);
        let other = greet(&mut b, 2, 6);
        b.closed(other);
        // It has not heard that we have it.
        let conn = greet(&mut b, 1, 5);
        b.feed(conn, &message(7, AGAIN, b"once"));
        b.feed(conn, &message(8, FIRST, b"new"));
        assert_eq!(b.inbox.0, [&b"once"[..], b"new"], "{identity:?}");
        b.send(1).unwrap();
        assert!(number(&b) > before, "its numbers go on");
        b.closed(conn);
        // Another life of it counts from the start.
        let conn = greet(&mut b, 1, 99);
        b.feed(conn, &message(3, FIRST, b"another life"));
        assert_eq!(b.inbox.0.len(), 3);
        b.closed(conn);
    }
}

/// A connection of a kernel is being read out for a newer one, before which another, silent one stands; the newer one goes.
fn silent_one_whose_turn_comes(lanes: u8) -> (Bench, ConnId) {
    let mut b = Bench::new(|c| c.lanes = lanes);
    let hello = [map(Identity::Kernel, &[]), kernel_shake(0, 1, false)].concat();
    let first = b.accept(1);
    b.feed(first, &hello);
    let silent = b.node.accept(b.now, peer(1), 9001).unwrap();
    let third = b.accept(1);
    b.feed(third, &hello[..8240]);
    assert!(b.is_draining(first) && b.paused.contains(&third));
    b.closed(third);
    b.drained(first);
    assert_eq!(b.was_closed(first), Some(DropReason::Replaced));
    (b, silent)
}

#[test]
fn a_silent_connection_whose_turn_comes_still_may_turn_out_to_be_an_own_peers() {
    let (mut b, silent) = silent_one_whose_turn_comes(2);
    let identity = Identity::ours(Capabilities::ACKS.with(Capabilities::WINDOW).with_lanes(2));
    // By its source port it is for lane 1, not for the one whose turn it was.
    let lanes = HandshakeExtensions { lanes: Some(2), generation: Some(5), source_port_lane: true };
    let ping =
        Header { sport: 1, padding: identity.encode(), extensions: lanes.encode(), ..Header::default() };
    b.feed(silent, &[map(identity, &[]), ping.encode_with_checksum().to_vec()].concat());
    let known = b.node.snapshot(false).peers.remove(0);
    assert_eq!((known.kind, known.generation), ("own", Some(5)), "{known:?}");
    let states: Vec<_> = known.connections.iter().map(|c| c.state).collect();
    assert_eq!(states, ["down", "handshake"]);
    b.closed(silent);
    b.accept(2);
}

#[test]
fn a_silent_connection_whose_turn_comes_has_the_time_of_a_handshake_and_no_more() {
    let (mut b, silent) = silent_one_whose_turn_comes(1);
    b.pass(Duration::from_secs(11));
    assert_eq!(b.was_closed(silent), Some(DropReason::HandshakeTimeout));
    let (mut b, silent) = silent_one_whose_turn_comes(1);
    b.feed(silent, &[map(Identity::Kernel, &[]), data(1, FIRST, b"x")].concat());
    b.pass(Duration::from_secs(11));
    assert_eq!((b.was_closed(silent), b.inbox.0.len()), (None, 1));
}

/// A handshake message of a kernel that tells lanes by source ports, or by order of arrival.
fn kernel_shake(sport: u16, dport: u16, by_port: bool) -> Vec<u8> {
    let extensions =
        HandshakeExtensions { lanes: Some(8), generation: by_port.then_some(5), source_port_lane: by_port };
    Header { sport, dport, extensions: extensions.encode(), ..Header::default() }.encode().to_vec()
}

#[test]
fn two_lanes_of_a_kernel_do_not_wait_for_each_other() {
    let mut b = Bench::new(|_| {});
    let upper = b.node.accept(b.now, peer(1), 9002).unwrap();
    let first = b.node.accept(b.now, peer(1), 9000).unwrap();
    // The first lane's data comes before its pong; nothing is known of how lanes are told yet.
    b.feed(first, &[map(Identity::Kernel, &[]), data(1, FIRST, b"first lane")].concat());
    assert!(b.is_draining(upper) && b.paused.contains(&first));
    b.feed(upper, &[kernel_shake(0, 1, true), data(7, FIRST, b"upper lane")].concat());
    // What was sent on the first lane may be older, though its connection is not.
    assert!(!b.paused.contains(&first));
    assert!(b.is_draining(first));
    b.drained(first);
    assert!(!b.paused.contains(&upper));
    assert_eq!(b.inbox.0, [&b"first lane"[..], b"upper lane"]);
}

/// Two lanes of a kernel up to 6.18, and what it says first on any connection.
fn old_kernel_with_two_lanes() -> (Bench, [ConnId; 2], Vec<u8>) {
    let mut b = Bench::new(|c| c.old_kernel_lanes = 2);
    let hello = [map(Identity::Kernel, &[]), kernel_shake(0, 1, false)].concat();
    let first = b.accept(1);
    b.feed(first, &hello);
    let second = b.accept(1);
    b.feed(second, &hello);
    assert!(!b.paused.contains(&first) && !b.paused.contains(&second));
    (b, [first, second], hello)
}

#[test]
fn a_connection_accepted_before_its_lane_was_lost_carries_that() {
    let (mut b, [_, second], hello) = old_kernel_with_two_lanes();
    let third = b.accept(1);
    b.closed(second);
    b.feed(third, &hello);
    b.feed(third, &data(1, FIRST, b"x"));
    assert_eq!(b.inbox.0, [b"x"]);
}

#[test]
fn a_spare_connection_carries_the_lane_of_one_that_never_spoke() {
    let (mut b, [_, second], hello) = old_kernel_with_two_lanes();
    b.closed(second);
    let silent = b.accept(1);
    let spare = b.accept(1);
    b.feed(spare, &map(Identity::Kernel, &[]));
    assert!(b.paused.contains(&spare), "all lanes are taken");
    b.closed(silent);
    b.feed(spare, &[&hello[..], &data(1, FIRST, b"x")].concat());
    assert_eq!(b.inbox.0, [b"x"]);
}

#[test]
fn a_peer_whose_segments_fit_on_one_connection_and_not_on_the_next_has_not_restarted() {
    let mut b = Bench::new(|_| {});
    let plain = Capabilities::ACKS.with(Capabilities::WINDOW);
    let message = |sequence, payload: &[u8]| {
        let mut bytes = data(sequence, FIRST, payload);
        let header = Header { csum: 0, ..Header::decode(bytes[..48].try_into().unwrap()) };
        bytes[..48].copy_from_slice(&header.encode_with_checksum());
        bytes
    };
    let lives = [plain.with(Capabilities::SEGMENTATION), plain, plain.with(Capabilities::LARGE_MESSAGES)];
    for capabilities in lives {
        let identity = Identity::ours(capabilities);
        let conn = b.accept(1);
        b.feed(conn, &[map(identity, &[]), shake(identity, 1, 0, 5), shake(identity, 0, 1, 5)].concat());
        // Once more: it does not know that we have it.
        b.feed(conn, &message(7, b"x"));
        b.closed(conn);
    }
    assert_eq!(b.inbox.0.len(), 2, "other capabilities are another life's");
}

#[test]
fn what_was_sent_on_a_lane_that_a_kernel_denies_ends_all_the_same() {
    let mut b = Bench::new(|c| c.lanes = 2);
    let lanes = [9000, 9001].map(|port| {
        let conn = b.node.accept(b.now, peer(1), port).unwrap();
        b.feed(conn, &[map(Identity::Kernel, &[]), kernel_shake(1, 0, true)].concat());
        conn
    });
    let port = (5000..).find(|port| lane_of_port(*port, 2) == 1).unwrap();
    let (socket, _) = b.node.bind(port).unwrap();
    let send = |b: &mut Bench, number| {
        let to = SocketAddr::new(peer(1), 4000);
        let payload = Payload::Copy(b"x");
        b.node.send(socket, to, payload, Some(Token(number)), &mut b.inbox).unwrap();
    };
    send(&mut b, 1);
    b.pump();
    assert_eq!(b.heard.last().map(|(conn, _)| *conn), Some(lanes[1]));
    // One message was sent, one was not when the kernel turns out to be one that knows no lanes by ports.
    send(&mut b, 2);
    let ping = Header {
        sport: 1,
        extensions: HandshakeExtensions { lanes: Some(8), generation: Some(5), source_port_lane: false }
            .encode(),
        ..Header::default()
    };
    b.feed(lanes[0], &ping.encode());
    b.drained(lanes[0]);
    b.node.tcp_unacked(b.now, lanes[1], 0);
    b.pump();
    let ends: Vec<_> = b
        .events
        .iter()
        .filter_map(|a| match a {
            Action::Completed { token, outcome, .. } => Some((token.0, *outcome)),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [(1, Outcome::Unknown), (2, Outcome::Delivered(Guarantee::Transport))]);
    assert!(b.node.is_drained());
}

#[test]
fn an_older_connection_does_not_displace_a_newer_one_when_it_shows_that_they_are_of_one_lane() {
    let mut b = Bench::new(|_| {});
    let hello = map(Identity::Kernel, &[]);
    let older = b.node.accept(b.now, peer(1), 9003).unwrap();
    b.feed(older, &hello);
    let newer = b.node.accept(b.now, peer(1), 9000).unwrap();
    b.feed(newer, &[&hello[..], &kernel_shake(0, 1, false), &data(1, AGAIN, b"one")].concat());
    assert!(b.is_draining(older) && b.paused.contains(&newer));
    b.feed(older, &data(1, FIRST, b"one"));
    b.drained(older);
    assert!(b.was_closed(older).is_some() && !b.is_draining(newer));
    b.feed(newer, &data(2, FIRST, b"two"));
    assert_eq!(b.inbox.0, [b"one", b"two"]);
}

#[test]
fn what_a_kernel_repeats_on_a_newer_connection_of_its_first_lane_is_read_before_what_waited_for_that() {
    let mut b = Bench::new(|_| {});
    let first = b.node.accept(b.now, peer(1), 9000).unwrap();
    b.feed(first, &[map(Identity::Kernel, &[]), kernel_shake(1, 0, true)].concat());
    let upper = b.node.accept(b.now, peer(1), 9002).unwrap();
    // The first lane's connection breaks; the kernel sends on an upper lane only once its TCP knows that the repeat has come.
    b.closed(first);
    let again = b.node.accept(b.now, peer(1), 9008).unwrap();
    b.feed(again, &map(Identity::Kernel, &[]));
    b.feed(upper, &data(7, FIRST, b"later"));
    assert!(b.paused.contains(&upper) && b.is_draining(again));
    b.feed(again, &data(1, FIRST, b"sooner"));
    b.drained(again);
    assert!(!b.paused.contains(&upper));
    assert_eq!(b.inbox.0, [&b"sooner"[..], b"later"]);
}
