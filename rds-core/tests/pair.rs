//! Two nodes, joined by perfect pipes: the rules that need no faults.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use rds_core::info::Counter;
use rds_core::proto::*;

#[derive(Default)]
struct Queue {
    messages: VecDeque<(SocketAddr, Vec<u8>)>,
}

#[derive(Default)]
struct Mailbox(HashMap<SocketId, Queue>);

impl Inbox for Mailbox {
    fn deliver(&mut self, socket: SocketId, from: SocketAddr, body: Body<'_>) {
        self.0.entry(socket).or_default().messages.push_back((from, body.to_vec()));
    }
    fn take_consumed(&mut self, _: SocketId) -> (u64, u64) {
        (0, 0)
    }
}

struct Side {
    node: Node,
    inbox: Mailbox,
    events: Vec<Action>,
}

/// A TCP connection between the two: what each end calls it, and the bytes on their way to it.
struct Wire {
    ids: [Option<ConnId>; 2],
    to: [VecDeque<u8>; 2],
    kept: [Vec<u8>; 2],
    resume: [bool; 2],
}

struct Pair {
    now: Time,
    sides: [Side; 2],
    wires: Vec<Wire>,
    /// Bytes that each side wrote.
    written: [Vec<u8>; 2],
}

const SMALL: &str = "10.0.0.1";
const LARGE: &str = "10.0.0.2";

fn config(address: &str, generation: u32) -> Config {
    let mut c = Config::new(address.parse().unwrap(), NonZeroU32::new(generation).unwrap());
    c.first_sequence = Config::first_sequence_at(1_700_000_000_000 + u64::from(generation));
    c
}

impl Pair {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl Fn(&mut Config)) -> Self {
        let side = |address, generation| {
            let mut c = config(address, generation);
            change(&mut c);
            Side { node: Node::new(c).unwrap(), inbox: Mailbox::default(), events: Vec::new() }
        };
        Self {
            now: Time::from_nanos(1),
            sides: [side(SMALL, 11), side(LARGE, 22)],
            wires: Vec::new(),
            written: [Vec::new(), Vec::new()],
        }
    }

    fn address(side: usize) -> IpAddr {
        [SMALL, LARGE][side].parse().unwrap()
    }

    fn bind(&mut self, side: usize, port: u16) -> SocketId {
        self.sides[side].node.bind(port).unwrap().0
    }

    fn send(&mut self, side: usize, socket: SocketId, port: u16, payload: &[u8]) -> Result<(), SendError> {
        let to = SocketAddr::new(Self::address(1 - side), port);
        let s = &mut self.sides[side];
        s.node.send(socket, to, Payload::Copy(payload), None, &mut s.inbox).map_err(|r| r.error)
    }

    fn take(&mut self, side: usize, socket: SocketId) -> Vec<Vec<u8>> {
        let s = &mut self.sides[side];
        let got: Vec<Vec<u8>> =
            s.inbox.0.entry(socket).or_default().messages.drain(..).map(|(_, m)| m).collect();
        let bytes = got.iter().map(|m| m.len() as u64).sum();
        s.node.consumed(socket, bytes, got.len() as u64);
        got
    }

    /// Runs until nothing happens any more at this moment.
    fn run(&mut self) {
        for _ in 0..10_000 {
            if !self.step() {
                return;
            }
        }
        panic!("does not come to rest");
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.run();
            let next = self.sides.iter().filter_map(|s| s.node.next_timeout()).min();
            match next {
                Some(t) if t <= end => {
                    self.now = self.now.max(t);
                    for s in &mut self.sides {
                        s.node.handle_timeout(self.now);
                    }
                }
                _ => break,
            }
        }
        self.now = end;
    }

    fn step(&mut self) -> bool {
        let busy = self.write() | self.read();
        if busy {
            return true;
        }
        for side in 0..2 {
            self.sides[side].node.flush_acks();
        }
        self.write()
    }

    fn write(&mut self) -> bool {
        let mut busy = false;
        for side in 0..2 {
            while let Some(action) = self.sides[side].node.poll_action(self.now) {
                busy = true;
                self.act(side, action);
            }
            while let Some(conn) = self.sides[side].node.poll_transmit() {
                busy = true;
                let mut out = Vec::new();
                let n = self.sides[side].node.begin_transmit(conn, 1 << 16, &mut out);
                let bytes: Vec<u8> = out.iter().flat_map(|piece| piece.to_vec()).collect();
                assert_eq!(n, bytes.len());
                self.written[side].extend(&bytes);
                let wire = self.wires.iter_mut().find(|w| w.ids[side] == Some(conn)).unwrap();
                wire.to[1 - side].extend(bytes);
                self.sides[side].node.end_transmit(self.now, conn, n, false);
            }
        }
        busy
    }

    fn read(&mut self) -> bool {
        let mut busy = false;
        for side in 0..2 {
            for w in 0..self.wires.len() {
                let wire = &mut self.wires[w];
                let Some(id) = wire.ids[side] else { continue };
                if wire.to[side].is_empty() && !wire.resume[side] {
                    continue;
                }
                if !wire.kept[side].is_empty() && !wire.resume[side] {
                    continue;
                }
                busy = true;
                wire.resume[side] = false;
                let mut input = std::mem::take(&mut wire.kept[side]);
                input.extend(wire.to[side].drain(..));
                let s = &mut self.sides[side];
                let got = s.node.receive(self.now, id, &input, &mut s.inbox);
                if got.consumed < input.len() {
                    assert!(!got.more);
                    self.wires[w].kept[side] = input.split_off(got.consumed);
                }
            }
        }
        busy
    }

    fn act(&mut self, side: usize, action: Action) {
        match &action {
            Action::Connect { conn, peer, .. } => {
                assert_eq!(*peer, Self::address(1 - side));
                let port = 40_000;
                match self.sides[1 - side].node.accept(self.now, Self::address(side), port) {
                    Ok(id) => {
                        let mut ids = [None, None];
                        ids[side] = Some(*conn);
                        ids[1 - side] = Some(id);
                        self.wires.push(Wire {
                            ids,
                            to: Default::default(),
                            kept: Default::default(),
                            resume: [false; 2],
                        });
                        self.sides[side].node.connected(self.now, *conn);
                    }
                    Err(_) => {
                        self.sides[side].node.connected(self.now, *conn);
                        self.sides[side].node.closed(self.now, *conn, Some(0));
                    }
                }
            }
            Action::Close { conn, .. } => {
                if let Some(w) = self.wires.iter().position(|w| w.ids[side] == Some(*conn)) {
                    self.wires[w].ids[side] = None;
                    if let Some(other) = self.wires[w].ids[1 - side].take() {
                        let s = &mut self.sides[1 - side];
                        let rest: Vec<u8> = self.wires[w].to[1 - side].drain(..).collect();
                        let _ = s.node.receive(self.now, other, &rest, &mut s.inbox);
                        s.node.closed(self.now, other, None);
                    }
                }
            }
            Action::Drain { conn } => self.sides[side].node.drained(self.now, *conn),
            Action::Resume { conn } => {
                let w = self.wires.iter_mut().find(|w| w.ids[side] == Some(*conn)).unwrap();
                w.resume[side] = true;
            }
            _ => {}
        }
        self.sides[side].events.push(action);
    }

    /// Cuts every connection; what is on its way is lost.
    fn cut(&mut self) {
        for w in std::mem::take(&mut self.wires) {
            for side in 0..2 {
                if let Some(id) = w.ids[side] {
                    self.sides[side].node.closed(self.now, id, None);
                }
            }
        }
    }

    fn count(&self, side: usize, counter: Counter) -> u64 {
        self.sides[side].node.snapshot(false).counters.get(counter)
    }
}

#[test]
fn messages_arrive_whole_and_in_order_in_both_directions() {
    let mut p = Pair::new();
    let a = p.bind(0, 4000);
    let b = p.bind(1, 4001);
    let sizes = [0, 1, 47, 48, 49, 5000, 16 << 10, (16 << 10) + 1, 100_000, 3];
    for (i, n) in sizes.into_iter().enumerate() {
        p.send(0, a, 4001, &vec![i as u8; n]).unwrap();
        p.send(1, b, 4000, &vec![i as u8 ^ 0xff; n]).unwrap();
    }
    p.pass(Duration::from_secs(2));
    for (side, socket, xor) in [(1, b, 0), (0, a, 0xff)] {
        let got = p.take(side, socket);
        assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), sizes);
        assert!(got.iter().enumerate().all(|(i, m)| m.iter().all(|x| *x == i as u8 ^ xor)));
    }
    assert!(p.sides.iter().all(|s| s.node.is_drained()), "everything is acknowledged");
}

#[test]
fn only_the_smaller_address_carries_a_connection_and_the_larger_knocks() {
    let mut p = Pair::new();
    let b = p.bind(1, 4001);
    let a = p.bind(0, 4000);
    p.send(1, b, 4000, b"hello").unwrap();
    p.pass(Duration::from_secs(1));
    assert_eq!(p.take(0, a), [b"hello"]);
    assert_eq!(p.count(1, Counter::ConnPokes), 1);
    assert_eq!(p.count(0, Counter::ConnPokes), 0);
}

#[test]
fn messages_survive_cuts_exactly_once() {
    let mut p = Pair::new();
    let a = p.bind(0, 4000);
    let b = p.bind(1, 4001);
    let mut got = Vec::new();
    for i in 0..200u32 {
        p.send(0, a, 4001, &i.to_be_bytes()).unwrap();
        if i % 10 != 9 {
            (0..i % 7).for_each(|_| _ = p.step());
        } else {
            p.write();
            p.cut();
        }
        if i % 5 == 0 {
            p.pass(Duration::from_millis(5));
        }
        got.extend(p.take(1, b));
    }
    p.pass(Duration::from_secs(5));
    got.extend(p.take(1, b));
    let expected: Vec<Vec<u8>> = (0..200u32).map(|i| i.to_be_bytes().to_vec()).collect();
    assert_eq!(got, expected);
    assert!(p.sides[0].node.is_drained());
    assert!(p.count(0, Counter::SendRetransmitted) > 0, "something was sent again");
}

#[test]
fn a_tracked_message_of_a_dead_incarnation_ends_unknown() {
    let mut p = Pair::new();
    let a = p.bind(0, 4000);
    p.bind(1, 4001);
    p.send(0, a, 4001, b"first").unwrap();
    p.pass(Duration::from_secs(1));
    let to = SocketAddr::new(Pair::address(1), 4001);
    let s = &mut p.sides[0];
    s.node
        .send(a, to, Payload::Owned(Bytes::from_static(b"lost").into()), Some(Token(7)), &mut s.inbox)
        .unwrap();
    // It goes out, and the peer dies before it reads.
    let conn = s.node.poll_transmit().unwrap();
    let mut out = Vec::new();
    let n = s.node.begin_transmit(conn, 1 << 16, &mut out);
    s.node.end_transmit(p.now, conn, n, false);
    p.sides[1] =
        Side { node: Node::new(config(LARGE, 23)).unwrap(), inbox: Mailbox::default(), events: Vec::new() };
    let b = p.bind(1, 4001);
    let w = p.wires.pop().unwrap();
    p.sides[0].node.closed(p.now, w.ids[0].unwrap(), Some(n as u64));
    p.send(0, a, 4001, b"second").unwrap();
    p.pass(Duration::from_secs(2));
    assert_eq!(p.take(1, b), [b"second"]);
    assert!(p.sides[0].events.contains(&Action::Completed {
        socket: a,
        token: Token(7),
        outcome: Outcome::Unknown
    }));
}

#[test]
fn a_full_receive_buffer_congests_the_port_and_half_clears_it() {
    let mut p = Pair::new();
    let a = p.bind(0, 4000);
    let b = p.bind(1, 4001);
    p.sides[1].node.set_receive_buffer(b, 2000);
    for _ in 0..5 {
        p.send(0, a, 4001, &[0; 1000]).unwrap();
    }
    p.pass(Duration::from_millis(100));
    assert_eq!(p.send(0, a, 4001, b"x"), Err(SendError::Congested));
    p.sides[1].node.consumed(b, 4000, 4);
    p.pass(Duration::from_millis(100));
    assert_eq!(p.send(0, a, 4001, b"x"), Err(SendError::Congested), "half is not below half");
    p.sides[1].node.consumed(b, 1000, 1);
    p.pass(Duration::from_millis(100));
    let to = SocketAddr::new(Pair::address(1), 4001);
    assert!(p.sides[0].events.contains(&Action::Uncongested { socket: a, destination: to }));
    assert_eq!(p.send(0, a, 4001, b"x"), Ok(()));
}

#[test]
fn the_window_bounds_what_the_peer_holds() {
    let mut p = Pair::with(|c| {
        c.receive_budget = 1 << 20;
        c.window = 128 << 10;
    });
    let a = p.bind(0, 4000);
    let b = p.bind(1, 4001);
    p.sides[0].node.set_send_buffer(a, 64 << 20);
    p.sides[1].node.set_receive_buffer(b, 64 << 20);
    for _ in 0..400 {
        p.send(0, a, 4001, &[0; 10_000]).unwrap();
    }
    let mut received = 0;
    for _ in 0..100 {
        p.pass(Duration::from_millis(10));
        let held = p.sides[1].node.snapshot(false).receive_queued;
        assert!(held <= (1 << 20) + (64 << 10) + 10_048, "{held} bytes held");
        received += p.take(1, b).len();
    }
    assert_eq!(received, 400);
}

#[test]
fn sockets_of_eight_lanes_keep_their_order() {
    let mut p = Pair::with(|c| c.lanes = 8);
    // The harness has one source port for all, so this holds lane 0 and what falls back to it.
    let sockets: Vec<SocketId> = (0..16).map(|i| p.bind(0, 4301 + i)).collect();
    let b = p.bind(1, 4001);
    for round in 0..20u8 {
        for s in &sockets {
            p.send(0, *s, 4001, &[round]).unwrap();
        }
    }
    p.step();
    assert!(p.take(1, b).len() <= 320);
}

#[test]
fn pings_are_answered_and_messages_to_nobody_are_dropped() {
    let mut p = Pair::new();
    let a = p.bind(0, 4000);
    p.send(0, a, 0, b"").unwrap();
    p.send(0, a, 9999, b"nobody").unwrap();
    p.pass(Duration::from_secs(1));
    assert_eq!(p.take(0, a), [b""]);
    assert_eq!(p.count(1, Counter::RecvDropNoSock), 1);
    assert!(p.sides[0].node.is_drained());
}

#[test]
fn cancelled_messages_do_not_arrive_and_give_their_room_back() {
    let mut p = Pair::new();
    let a = p.bind(0, 4000);
    let b = p.bind(1, 4001);
    let c = p.bind(1, 4002);
    for i in 0..10u8 {
        p.send(0, a, 4001 + u16::from(i % 2), &[i]).unwrap();
    }
    let to = SocketAddr::new(Pair::address(1), 4001);
    assert_eq!(p.sides[0].node.cancel(a, Some(to)), 5);
    p.pass(Duration::from_secs(1));
    assert!(p.take(1, b).is_empty());
    assert_eq!(p.take(1, c), [[1], [3], [5], [7], [9]]);
    assert_eq!(p.sides[0].node.snapshot(false).sockets[0].send_queued, 0);
}

#[test]
fn a_connection_stays_ready_until_its_transmission_begins() {
    let mut p = Pair::new();
    let a = p.bind(0, 4000);
    p.bind(1, 4001);
    p.send(0, a, 4001, b"first").unwrap();
    p.run();
    p.send(0, a, 4001, b"second").unwrap();
    let node = &mut p.sides[0].node;
    let conn = node.poll_transmit().unwrap();
    assert_eq!((node.poll_transmit(), node.poll_idle_transmit()), (Some(conn), Some(conn)));
    let mut out = Vec::new();
    let n = node.begin_transmit(conn, 1 << 16, &mut out);
    assert!(n > 0);
    assert_eq!((node.poll_transmit(), node.poll_idle_transmit()), (None, None), "the right is taken");
    node.end_transmit(p.now, conn, n, false);
    assert_eq!(node.poll_transmit(), None, "all was written");
    p.send(0, a, 4001, b"third").unwrap();
    let node = &mut p.sides[0].node;
    assert_eq!(node.poll_transmit(), Some(conn));
    assert_eq!(node.poll_idle_transmit(), None, "the second is outstanding");
}

#[test]
fn cancelling_under_cuts_loses_and_repeats_nothing_else() {
    for seed in 1..12u64 {
        let mut p = Pair::new();
        let mut state = seed;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (kept, gone) = (p.bind(0, 4000), p.bind(0, 4002));
        let b = p.bind(1, 4001);
        let c = p.bind(1, 4003);
        for socket in [b, c] {
            p.sides[1].node.set_receive_buffer(socket, 64 << 20);
        }
        for i in 0..300u32 {
            let long = if random(8) == 0 { 20_000 } else { random(200) as usize };
            p.send(0, kept, 4001, &[&i.to_be_bytes()[..], &vec![0; long]].concat()).unwrap();
            p.send(0, gone, 4003, &vec![1; random(2) as usize * 20_000 + 1]).unwrap();
            match random(8) {
                0 => p.cut(),
                1 => _ = p.sides[0].node.cancel(gone, None),
                2 => p.run(),
                3 => p.pass(Duration::from_millis(random(30))),
                _ => _ = p.step(),
            }
            if random(20) == 0 {
                p.write();
                p.cut();
                p.sides[0].node.cancel(gone, None);
            }
            p.pass(Duration::from_millis(random(3)));
            if p.sides[0].node.snapshot(false).sockets[1].send_queued > 500_000 {
                p.sides[0].node.cancel(gone, None);
            }
            if p.sides[0].node.snapshot(false).sockets[0].send_queued > 500_000 {
                p.pass(Duration::from_secs(3));
            }
        }
        p.pass(Duration::from_secs(5));
        let got: Vec<u32> =
            p.take(1, b).iter().map(|m| u32::from_be_bytes(*m.first_chunk().unwrap())).collect();
        assert_eq!(got, (0..300).collect::<Vec<_>>(), "seed {seed}");
        assert!(p.sides[0].node.is_drained(), "seed {seed}");
        let snapshot = p.sides[0].node.snapshot(true);
        assert!(snapshot.sockets.iter().all(|s| s.send_queued == 0), "seed {seed}");
    }
}

/// Lists that refuse what the other side has.
fn refuse(inbound: &[&str], outbound: &[&str]) -> PeerFilter {
    let rules =
        |nets: &[&str]| PeerRules::new(Vec::new(), nets.iter().map(|net| net.parse().unwrap()).collect());
    PeerFilter::new(rules(inbound), rules(outbound))
}

#[test]
fn a_peer_that_is_refused_from_now_on_loses_its_connection_and_what_waits_for_it_is_cancelled() {
    let mut p = Pair::new();
    let (a, b) = (p.bind(0, 4000), p.bind(1, 4001));
    p.send(0, a, 4001, b"before").unwrap();
    p.send(1, b, 4000, b"back").unwrap();
    p.run();
    let to = SocketAddr::new(Pair::address(1), 4001);
    for (number, len) in [(1, 8), (2, 40_000)] {
        let s = &mut p.sides[0];
        s.node.send(a, to, Payload::Copy(&vec![7; len]), Some(Token(number)), &mut s.inbox).unwrap();
    }
    p.sides[0].node.set_peers(p.now, refuse(&[], &["10.0.0.2/32"]));
    assert!(p.sides[0].node.is_drained());
    assert_eq!(p.send(0, a, 4001, b"refused"), Err(SendError::NotAllowed));
    p.pass(Duration::from_secs(5));
    let events = &p.sides[0].events;
    let cancelled = |e: &&Action| matches!(e, Action::Completed { outcome: Outcome::Cancelled, .. });
    assert_eq!(events.iter().filter(cancelled).count(), 2, "{events:?}");
    let refused = |e: &Action| matches!(e, Action::Close { reason: DropReason::NotAllowed, .. });
    assert_eq!(events.iter().filter(|e| refused(e)).count(), 1);
    assert!(events.iter().any(|e| matches!(e, Action::PeerDown { .. })), "{events:?}");
    // The other side goes on trying; and is heard again as soon as it may be.
    p.send(1, b, 4000, b"meanwhile").unwrap();
    p.pass(Duration::from_secs(5));
    assert_eq!(p.take(0, a), [b"back"]);
    p.sides[0].node.set_peers(p.now, PeerFilter::default());
    p.send(0, a, 4001, b"after").unwrap();
    p.pass(Duration::from_secs(5));
    assert_eq!(p.take(0, a), [b"meanwhile"]);
    assert_eq!(p.take(1, b), [&b"before"[..], b"after"]);
}

#[test]
fn what_waits_for_a_peer_that_may_not_come_in_any_more_arrives_once_it_may_again() {
    let mut p = Pair::new();
    let (a, b) = (p.bind(0, 4000), p.bind(1, 4001));
    p.send(0, a, 4001, b"0").unwrap();
    p.run();
    // The larger one is connected to; what it says of who comes in counts.
    p.sides[1].node.set_peers(p.now, refuse(&["10.0.0.1/32"], &[]));
    for text in [b"1", b"2", b"3"] {
        p.send(0, a, 4001, text).unwrap();
        p.pass(Duration::from_secs(1));
    }
    p.send(1, b, 4000, b"x").unwrap();
    p.pass(Duration::from_secs(5));
    assert_eq!((p.take(1, b), p.take(0, a).len()), (vec![b"0".to_vec()], 0));
    assert!(p.count(1, Counter::ConnRefused) > 0);
    p.sides[1].node.set_peers(p.now, PeerFilter::default());
    p.pass(Duration::from_secs(5));
    assert_eq!(p.take(1, b), [b"1", b"2", b"3"]);
    assert_eq!(p.take(0, a), [b"x"]);
}

#[test]
fn other_lists_leave_a_peer_alone_that_is_still_allowed_and_let_go_who_waits_for_one_that_is_not() {
    let mut p = Pair::new();
    let (a, b) = (p.bind(0, 4000), p.bind(1, 4001));
    p.send(0, a, 4001, b"0").unwrap();
    p.run();
    // The smaller one connects: who may come in to it does not concern the connection that it made.
    p.sides[0].node.set_peers(p.now, refuse(&["10.0.0.2/32", "10.9.0.0/16"], &["10.9.0.0/16"]));
    p.sides[1].node.set_peers(p.now, refuse(&["10.9.0.0/16"], &["10.0.0.1/32"]));
    p.send(0, a, 4001, b"1").unwrap();
    p.pass(Duration::from_secs(1));
    assert_eq!((p.count(0, Counter::ConnReset), p.count(1, Counter::ConnReset)), (0, 0));
    assert_eq!(p.take(1, b), [b"0", b"1"]);
    assert_eq!(p.send(1, b, 4000, b"refused"), Err(SendError::NotAllowed));
    // Who waits for a port of a peer would wait for ever.
    p.sides[1].node.set_receive_buffer(b, 1);
    p.send(0, a, 4001, b"fills").unwrap();
    p.run();
    let to = SocketAddr::new(Pair::address(1), 4001);
    assert!(p.sides[0].node.watch_congestion(a, to), "it is congested");
    p.sides[0].events.clear();
    p.sides[0].node.set_peers(p.now, refuse(&[], &["10.0.0.2/32"]));
    p.run();
    let told = |e: &Action| matches!(e, Action::Uncongested { destination, .. } if *destination == to);
    assert!(p.sides[0].events.iter().any(told), "{:?}", p.sides[0].events);
}
