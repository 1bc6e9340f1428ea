//! What strangers on the network can do, which is little.

mod common;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use common::{LONG, PORT, builder, message, net, pair, pattern};
use rds_client::{Counter, Node, OpenError};
use rds_core::wire::{CongestionMap, Header, Identity};
use socket2::{Domain, SockAddr, Socket, Type};

/// A TCP connection from an address that is no node.
fn stranger(from: std::net::IpAddr, to: &Node) -> TcpStream {
    stranger_by(from, to, |_| true)
}

/// One whose source port is to the test's liking.
fn stranger_by(from: std::net::IpAddr, to: &Node, liked: impl Fn(u16) -> bool) -> TcpStream {
    let socket = loop {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SockAddr::from(SocketAddr::new(from, 0))).unwrap();
        if liked(socket.local_addr().unwrap().as_socket().unwrap().port()) {
            break socket;
        }
    };
    socket.connect(&SockAddr::from(to.listen_addr())).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket.into()
}

/// Reads to the end of the stream, however it ends.
fn read_out(mut stream: &TcpStream) -> usize {
    let mut buffer = [0; 65536];
    let mut total = 0;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return total,
            Ok(n) => total += n,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return total,
            Err(error) => panic!("the node did not close the connection: {error}"),
        }
    }
}

#[test]
fn garbage_ends_its_own_connection_and_no_other() {
    let net = net();
    let (a, b) = (builder(net(10)).open().unwrap(), builder(net(11)).open().unwrap());
    let (alice, bob) = (a.bind(5).unwrap(), b.bind(5).unwrap());
    bob.set_recv_timeout(Some(LONG));
    for seed in 0..20 {
        let mut s = stranger(net(1), &b);
        // What the node says first may not fit any more when it has gone.
        let _ = s.write_all(&pattern(seed, 100_000));
        read_out(&s);
        alice.send_to(&seed.to_le_bytes(), bob.local_addr()).unwrap();
        assert_eq!(message(&bob).0, seed.to_le_bytes());
    }
    assert!(b.snapshot().counters.get(Counter::ProtocolErrors) > 0);
}

#[test]
fn an_idle_stranger_is_dropped_when_its_time_is_over() {
    let net = net();
    let b = builder(net(11))
        .configure(|c| c.handshake_timeout = std::time::Duration::from_millis(50))
        .open()
        .unwrap();
    let s = stranger(net(1), &b);
    // The node introduces itself: a congestion map and a ping.
    assert_eq!(read_out(&s), 48 + 8192 + 48);
}

#[test]
fn a_flood_of_connections_meets_a_limit_and_hurts_nobody() {
    let net = net();
    let (a, b) = (
        builder(net(10)).open().unwrap(),
        builder(net(11)).configure(|c| c.max_handshakes = 8).open().unwrap(),
    );
    let (alice, bob) = (a.bind(5).unwrap(), b.bind(5).unwrap());
    bob.set_recv_timeout(Some(LONG));
    alice.send_to(b"before", bob.local_addr()).unwrap();
    assert_eq!(message(&bob).0, b"before");
    let flood: Vec<_> = (0..100).map(|i| stranger(net(1 + i % 9), &b)).collect();
    alice.send_to(b"after", bob.local_addr()).unwrap();
    assert_eq!(message(&bob).0, b"after");
    while b.snapshot().counters.get(Counter::ConnRefused) < 92 {
        std::thread::yield_now();
    }
    drop(flood);
}

#[test]
fn a_larger_stranger_is_a_knock_and_is_closed_at_once() {
    let net = net();
    let b = builder(net(11)).open().unwrap();
    let s = stranger(net(200), &b);
    assert_eq!(read_out(&s), 0);
}

#[test]
fn a_lost_connection_is_made_again_without_loss() {
    // A stranger at the peer's address takes the place of its connection, again and again.
    let p = pair();
    for i in 0..20_u64 {
        p.alice.send_to(&i.to_le_bytes(), p.bob.local_addr()).unwrap();
        let s = stranger(p.a.address(), &p.b);
        drop(s);
        p.alice.send_to(&pattern(i, 50_000), p.bob.local_addr()).unwrap();
        assert_eq!(message(&p.bob).0, i.to_le_bytes());
        assert_eq!(message(&p.bob).0, pattern(i, 50_000));
    }
}

#[test]
fn what_tcp_delivered_before_a_reset_is_received() {
    let net = net();
    let b = builder(net(11)).open().unwrap();
    let bob = b.bind(5).unwrap();
    bob.set_recv_timeout(Some(LONG));
    for round in 0..20_u64 {
        // As a kernel speaks: a congestion map, then messages.
        let map = CongestionMap::new().to_message(Identity::Kernel);
        let mut stream = map.to_vec();
        for i in 1..=10 {
            let header = Header { sequence: round * 10 + i, len: 3, sport: 9, dport: 5, ..Header::default() };
            stream.extend_from_slice(&header.encode());
            stream.extend_from_slice(b"abc");
        }
        let mut s = stranger(net(1), &b);
        s.write_all(&stream).unwrap();
        // What the node sent was not read, so this is a reset.
        drop(s);
        for _ in 0..10 {
            assert_eq!(message(&bob), (b"abc".to_vec(), SocketAddr::new(net(1), 9)));
        }
    }
}

#[test]
fn a_port_in_use_is_named() {
    let net = net();
    let a = builder(net(1)).open().unwrap();
    let error = builder(net(1)).open().unwrap_err();
    assert!(matches!(error, OpenError::PortInUse(at) if at == SocketAddr::new(net(1), PORT)), "{error}");
    drop(a);
    builder(net(1)).open().unwrap();
}

#[test]
fn an_address_of_another_host_is_named() {
    // 192.0.2.0/24 is for documentation (RFC 5737).
    let address = Ipv4Addr::new(192, 0, 2, 1).into();
    let error = builder(address).open().unwrap_err();
    assert!(matches!(error, OpenError::NotLocal(at) if at == address), "{error}");
    assert!(matches!(Node::open(Ipv4Addr::UNSPECIFIED.into()).unwrap_err(), OpenError::Config(_)));
}

#[test]
fn any_free_port_can_be_listened_on() {
    let net = net();
    let a = Node::builder(net(1)).listen_port(0).open().unwrap();
    assert_ne!(a.listen_addr().port(), 0);
    let b = Node::builder(net(2)).listen_port(0).dial_port(a.listen_addr().port()).open().unwrap();
    // The smaller address dials, so it needs the larger one's port.
    let c = Node::builder(net(0)).listen_port(0).dial_port(b.listen_addr().port()).open();
    let Ok(c) = c else { return println!("skipped: no third address: {c:?}") };
    let (x, y) = (c.bind(5).unwrap(), b.bind(5).unwrap());
    y.set_recv_timeout(Some(LONG));
    x.send_to(b"ports", y.local_addr()).unwrap();
    assert_eq!(message(&y).0, b"ports");
}

#[test]
fn a_congestion_control_that_the_kernel_does_not_have_is_named() {
    let error = builder(net()(1)).congestion_control("nonsense").open().unwrap_err();
    assert!(matches!(&error, OpenError::CongestionControl { name, .. } if name == "nonsense"), "{error}");
    // Each connection has it, made or accepted.
    let net = net();
    let node = |host| builder(net(host)).congestion_control("reno").open().unwrap();
    let (a, b) = (node(1), node(2));
    let (alice, bob) = (a.bind(0).unwrap(), b.bind(0).unwrap());
    bob.set_recv_timeout(Some(LONG));
    alice.send_to(b"hello", bob.local_addr()).unwrap();
    assert_eq!(message(&bob).0, b"hello");
}

#[test]
fn a_peer_that_comes_anew_while_its_old_connection_is_paused_is_read_on_both() {
    // Before it is known whether a kernel has lanes, the source port tells whether the connections are of one.
    for same_lane in [true, false] {
        is_read_on_both(same_lane);
    }
}

fn is_read_on_both(same_lane: bool) {
    const BUDGET: u64 = 1 << 20;
    let net = net();
    let b = builder(net(11)).configure(|c| c.receive_budget = BUDGET).open().unwrap();
    let bob = b.bind(5).unwrap();
    bob.set_recv_timeout(Some(LONG));
    bob.set_recv_buffer(64 << 20);
    let greeting = CongestionMap::default().to_message(Identity::Kernel);
    let data = |sequence: u64, len: usize| {
        let header = Header { sequence, len: len as u32, sport: 7, dport: 5, ..Header::default() };
        let mut bytes = header.encode_with_checksum().to_vec();
        bytes.extend(pattern(sequence, len));
        bytes
    };
    let mut old = stranger(net(1), &b);
    old.write_all(&greeting).unwrap();
    let all: Vec<u8> = (1..=150).flat_map(|i| data(i, 8192)).collect();
    old.write_all(&all).unwrap();
    while b.snapshot().receive_queued < BUDGET {
        std::thread::yield_now();
    }
    let reads = || b.snapshot().counters.get(Counter::TcpDataReadyCalls);
    let before = reads();
    let lane = old.local_addr().unwrap().port() % 8;
    let mut new = stranger_by(net(1), &b, |port| (port % 8 == lane) == same_lane);
    new.write_all(&greeting).unwrap();
    new.write_all(&data(151, 100)).unwrap();
    // Nothing else is read before somebody takes what there is.
    while reads() == before {
        std::thread::yield_now();
    }
    for i in 1..=150 {
        assert!(message(&bob).0 == pattern(i, 8192), "message {i}");
    }
    assert!(message(&bob).0 == pattern(151, 100));
}
