//! Hand-made peers of a node whose ports have sinks: messages that never come to their end, and peers that the node refuses.

mod client;

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;

use client::{Client, Way, counter, engine, pattern};
use rds_core::engine::{Engine, RDS_TCP_PORT};
use rds_core::info::Counter;
use rds_core::proto::{Payload, PeerFilter, PeerRules, SendError};
use rds_core::wire::{CongestionMap, Header, Identity};
use rds_core::zerocopy::Mode;
use socket2::{Domain, Socket, Type};

/// A connection from 127.41.`net`.`host`, which speaks as a kernel does.
fn stranger(net: u8, host: u8, node: &Engine) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 41, net, host], 0)).into()).unwrap();
    socket.connect(&SocketAddr::new(node.address(), RDS_TCP_PORT).into()).unwrap();
    socket.into()
}

fn greeting() -> Vec<u8> {
    CongestionMap::new().to_message(Identity::Kernel).to_vec()
}

fn header(sequence: u64, dport: u16, len: usize) -> [u8; 48] {
    Header { sequence, len: len as u32, sport: 9, dport, ..Header::default() }.encode()
}

#[test]
fn memory_for_a_message_that_breaks_off_comes_back() {
    let node = engine(60, 200, Mode::Off, |_| ());
    let client = Client::new(4);
    let _port = node.bind_sink(5, Arc::clone(&client) as _).unwrap();
    for (round, there) in [0, 1, 10_000, 299_999].into_iter().enumerate() {
        let mut peer = stranger(60, 1, &node);
        peer.write_all(&greeting()).unwrap();
        peer.write_all(&header(round as u64 + 1, 5, 300_000)).unwrap();
        peer.write_all(&pattern(there, 1)).unwrap();
        drop(client.wait("memory is asked for", |s| s.asked > round));
        drop(peer);
        drop(client.wait("it comes back", |s| s.unused > round));
        assert!(client.has_all());
    }
    assert!(client.state().got.is_empty());
}

#[test]
fn memory_of_a_port_that_is_closed_meanwhile_comes_back_and_the_next_owner_gets_a_copy() {
    let node = engine(61, 200, Mode::Off, |_| ());
    let payload = pattern(300_000, 1);
    for (round, next) in ["nobody", "a sink", "a socket"].into_iter().enumerate() {
        let (client, heir) = (Client::new(4), Client::new(4));
        let port = node.bind_sink(5, Arc::clone(&client) as _).unwrap();
        let mut peer = stranger(61, 1, &node);
        peer.write_all(&greeting()).unwrap();
        peer.write_all(&header(round as u64 * 2 + 1, 5, payload.len())).unwrap();
        peer.write_all(&payload[..100_000]).unwrap();
        drop(client.wait("memory is asked for", |s| s.asked > 0));
        drop(port);
        let (mut sink, mut socket) = (None, None);
        match next {
            "a sink" => sink = Some(node.bind_sink(5, Arc::clone(&heir) as _).unwrap()),
            "a socket" => socket = Some(node.bind(5).unwrap()),
            _ => {}
        }
        let end = node.bind_sink(6, Arc::clone(&client) as _).unwrap();
        peer.write_all(&payload[100_000..]).unwrap();
        peer.write_all(&header(round as u64 * 2 + 2, 6, 3)).unwrap();
        peer.write_all(b"end").unwrap();
        assert_eq!(client.take().bytes, b"end");
        assert!(client.has_all() && client.state().unused == 1, "{next}: its memory is back");
        if sink.is_some() {
            let got = heir.take();
            assert!(got.bytes == payload && got.way == Way::Copied);
        }
        if let Some(socket) = &socket {
            let rds_core::engine::Event::Message(message) = socket.recv_lease().unwrap() else { panic!() };
            assert!(*message.payload == payload[..]);
        }
        drop((sink, socket, end));
    }
}

#[test]
fn a_client_without_room_gets_the_nodes_memory_and_nothing_is_lost() {
    let node = engine(62, 200, Mode::Off, |_| ());
    let client = Client::new(2);
    let port = node.bind_sink(5, Arc::clone(&client) as _).unwrap();
    node.batch(|batch| batch.set_receive_buffer(&port, 64 << 20));
    let mut peer = stranger(62, 1, &node);
    peer.write_all(&greeting()).unwrap();
    let writer = std::thread::spawn(move || {
        for n in 1..=20 {
            peer.write_all(&header(n, 5, 400_000)).unwrap();
            peer.write_all(&pattern(400_000, n as u8)).unwrap();
        }
        peer
    });
    drop(client.wait("all", |s| s.got.len() == 20));
    let ways: Vec<Way> = (1..=20)
        .map(|n| {
            let got = client.take();
            assert!(got.bytes == pattern(400_000, n), "message {n}");
            got.way
        })
        .collect();
    assert_eq!(ways.iter().filter(|way| **way == Way::Placed).count(), 2, "{ways:?}");
    assert_eq!(ways.iter().filter(|way| **way == Way::Owned).count(), 18, "{ways:?}");
    drop(writer.join().unwrap());
}

#[test]
fn messages_of_all_sizes_come_whole_however_they_are_cut() {
    let node = engine(63, 200, Mode::Off, |_| ());
    let client = Client::new(8);
    let port = node.bind_sink(5, Arc::clone(&client) as _).unwrap();
    let mut peer = stranger(63, 1, &node);
    peer.set_nodelay(true).unwrap();
    peer.write_all(&greeting()).unwrap();
    let mut rng = fastrand::Rng::with_seed(3);
    for n in 1..=400_u64 {
        let len = [0, 1, 100, 4096, 20_000, 70_000][rng.usize(..6)];
        let mut stream = header(n, 5, len).to_vec();
        stream.extend_from_slice(&pattern(len, n as u8));
        let cut = rng.usize(..=stream.len());
        peer.write_all(&stream[..cut]).unwrap();
        if n % 3 > 0 {
            // Let it be read in two pieces.
            std::thread::yield_now();
        }
        peer.write_all(&stream[cut..]).unwrap();
        if n % 4 == 0 {
            for n in n - 3..=n {
                let got = client.take();
                assert!(got.bytes == pattern(got.bytes.len(), n as u8), "message {n}");
                node.batch(|batch| batch.consumed(&port, got.bytes.len() as u64, 1));
            }
        }
    }
    assert!(client.has_all());
    assert_eq!(counter(&node, Counter::ProtocolErrors), 0);
}

fn refusing(inbound: &str, outbound: &str) -> PeerFilter {
    let rules = |net: &str| PeerRules::new(Vec::new(), vec![net.parse().unwrap()]);
    PeerFilter::new(rules(inbound), rules(outbound))
}

#[test]
fn a_peer_that_is_refused_is_not_read_and_the_others_are() {
    let node =
        engine(64, 200, Mode::Off, |o| o.config.peers = refusing("127.41.64.0/28", "127.41.64.250/32"));
    let client = Client::new(1);
    let _port = node.bind_sink(5, Arc::clone(&client) as _).unwrap();
    for host in [1, 15] {
        let mut peer = stranger(64, host, &node);
        // It may be closed already.
        let _ = peer.write_all(&greeting());
        let closed = peer.read(&mut [0; 100]);
        assert!(matches!(closed, Ok(0) | Err(_)), "not even greeted: {closed:?}");
    }
    // One that we would connect to, but may not: its knock is refused.
    let _ = stranger(64, 250, &node).read(&mut [0; 1]);
    let mut peer = stranger(64, 16, &node);
    peer.write_all(&greeting()).unwrap();
    peer.write_all(&header(1, 5, 5)).unwrap();
    peer.write_all(b"hello").unwrap();
    assert_eq!(client.take().bytes, b"hello");
    let snapshot = node.snapshot(false);
    assert_eq!(snapshot.counters.get(Counter::ConnRefused), 3);
    let known: Vec<IpAddr> = snapshot.peers.iter().map(|peer| peer.address).collect();
    assert_eq!(known, [IpAddr::from([127, 41, 64, 16])], "nothing is kept of the others");
}

#[test]
fn nothing_is_sent_to_a_peer_that_is_refused() {
    let filter =
        |o: &mut rds_core::engine::Options| o.config.peers = refusing("10.0.0.0/8", "127.41.65.0/28");
    let node = engine(65, 200, Mode::Off, filter);
    let client = Client::new(1);
    let port = node.bind_sink(5, Arc::clone(&client) as _).unwrap();
    let send = |to: &str| {
        let to = to.parse().unwrap();
        node.batch(|batch| batch.send(&port, to, Payload::Copy(b"x"), None))
            .map_err(|rejected| rejected.error)
    };
    assert_eq!(send("127.41.65.3:5"), Err(SendError::NotAllowed));
    assert_eq!(send("127.41.65.16:5"), Ok(()));
    assert_eq!(send("127.41.65.200:5"), Ok(()), "its own address");
    let socket = node.bind(6).unwrap();
    let error = socket.try_send_to(b"x", "127.41.65.1:5".parse().unwrap()).unwrap_err();
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::PermissionDenied);
    assert_eq!(node.snapshot(false).peers.len(), 1);
}
