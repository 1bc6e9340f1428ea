//! Between own nodes with zero copy on, large messages arrive in their own pages, whatever goes on beside them.

mod common;

use common::{LONG, builder, lease, net, pattern, received};
use rds_client::{Mode, Node, Reason, Socket};
use rds_core::zerocopy::ReceiveCounts;

/// Two nodes with zero copy on, both ways.
fn both() -> (Node, Node, Socket, Socket) {
    let net = net();
    let node = |host| {
        let builder = builder(net(host)).zero_copy_send(Mode::On).zero_copy_receive(Mode::On);
        builder.congestion_control("reno").open().unwrap()
    };
    let (a, b) = (node(1), node(2));
    let (alice, bob) = (a.bind(1000).unwrap(), b.bind(2000).unwrap());
    for socket in [&alice, &bob] {
        socket.set_recv_timeout(Some(LONG));
        socket.set_send_timeout(Some(LONG));
    }
    (a, b, alice, bob)
}

/// Payloads in turn: a prime number of them, so that no two neighbours are alike. Shared, for making them takes longer than sending.
fn payloads(len: usize) -> std::sync::Arc<Vec<bytes::Bytes>> {
    std::sync::Arc::new((0..17).map(|seed| pattern(seed, len).into()).collect())
}

/// Share of the bytes that were mapped since `before`. Judged from the middle on: the first message comes with what is read at once, and the
/// sender does not know the peer at first, so segments may be cut where the peer's window ends.
fn share(node: &Node, before: ReceiveCounts) -> f64 {
    let now = received(node);
    let (mapped, copied) = (now.bytes - before.bytes, now.copied.total() - before.copied.total());
    mapped as f64 / (mapped + copied) as f64
}

fn flow(len: usize, count: usize) {
    let payloads = payloads(len);
    let ours = std::sync::Arc::clone(&payloads);
    let (a, b, alice, bob) = both();
    let to = bob.local_addr();
    let sender = std::thread::spawn(move || {
        for i in 0..count {
            alice.send_owned(ours[i % 17].clone(), to).unwrap();
        }
        alice
    });
    let mut before = ReceiveCounts::default();
    for i in 0..count {
        if i == count / 2 {
            before = received(&b);
        }
        assert!(*lease(&bob) == *payloads[i % 17], "message {i}");
    }
    let share = share(&b, before);
    assert!(share >= 0.95, "{share}: {:?}", received(&b));
    drop((sender.join().unwrap(), a));
}

#[test]
fn between_own_nodes_large_messages_of_64_kib_are_mapped() {
    flow(64 << 10, 3000);
}

#[test]
fn between_own_nodes_large_messages_of_1_mib_are_mapped() {
    flow(1 << 20, 300);
}

#[test]
fn small_messages_in_between_spoil_nothing() {
    for (len, count) in [(64 << 10, 2000), (1 << 20, 400)] {
        let (a, b, alice, bob) = both();
        let to = bob.local_addr();
        let back = alice.local_addr();
        let payloads = payloads(len);
        let ours = std::sync::Arc::clone(&payloads);
        let sender = std::thread::spawn(move || {
            for i in 0..count {
                alice.send_owned(ours[i % 17].clone(), to).unwrap();
                for small in 0..i % 5 {
                    alice.send_to(&ours[small][..1 + i * 37 % 3000], to).unwrap();
                }
                // What comes the other way makes acknowledgements ride on these.
                if i % 16 == 0 {
                    assert!(!lease(&alice).is_empty());
                }
            }
            alice
        });
        let mut before = ReceiveCounts::default();
        for i in 0..count {
            if i == count / 2 {
                before = received(&b);
            }
            if i % 16 == 0 {
                bob.send_to(b"go on", back).unwrap();
            }
            assert!(*lease(&bob) == *payloads[i % 17], "message {i}");
            for small in 0..i % 5 {
                assert!(*lease(&bob) == payloads[small][..1 + i * 37 % 3000]);
            }
        }
        let share = share(&b, before);
        assert!(share >= 0.95, "{share}: {:?}", received(&b));
        drop((sender.join().unwrap(), a));
    }
}

#[test]
fn a_hundred_connections_map_side_by_side() {
    let net = net();
    let node = |host| {
        let builder = builder(net(host)).zero_copy_send(Mode::On).zero_copy_receive(Mode::On);
        builder.congestion_control("reno").open().unwrap()
    };
    let hub = node(250);
    let to = hub.bind(7).unwrap();
    to.set_recv_timeout(Some(LONG));
    // Each sends before the first is taken.
    to.set_recv_buffer(16 << 20);
    let len = 16 << 10;
    let others: Vec<_> = (1..=100).map(|host| (node(host), host)).collect();
    let sockets: Vec<_> = others.iter().map(|(node, host)| (node.bind(5).unwrap(), *host)).collect();
    let mut mapped = 0;
    for round in 0..10_u64 {
        for (socket, host) in &sockets {
            let payload = pattern(round * 1000 + u64::from(*host), len);
            socket.send_detached(payload, to.local_addr()).unwrap();
        }
        let mut seen = std::collections::BTreeSet::new();
        for _ in &sockets {
            let (lease, from) = match to.recv_lease() {
                Ok(rds_client::Event::Message(message)) => (message.payload, message.from),
                other => panic!("a message was expected: {other:?}"),
            };
            let std::net::IpAddr::V4(ip) = from.ip() else { panic!("{from}") };
            assert!(*lease == *pattern(round * 1000 + u64::from(ip.octets()[3]), len), "{from}");
            assert!(seen.insert(from));
            mapped += u32::from(lease.is_mapped());
        }
    }
    // The first of each connection comes with what is read at once.
    assert!(mapped >= 850, "{mapped} of 1000: {:?}", received(&hub));
}

#[test]
fn what_a_handshake_brings_is_no_message_and_nobody_is_said_to_be_silent_who_announced() {
    let (a, b, alice, bob) = both();
    for (from, to) in [(&alice, &bob), (&bob, &alice)] {
        from.send_to(b"small", to.local_addr()).unwrap();
        assert_eq!(&lease(to)[..], b"small");
    }
    for node in [&a, &b] {
        // A congestion map has 8192 bytes, which are nobody's payload.
        let counts = received(node);
        assert_eq!((counts.copied.total(), counts.mapped_bytes), (0, 0), "{counts:?}");
        let snapshot = node.snapshot();
        let decision = &snapshot.peers[0].connections[0].zero_copy.recv.as_ref().unwrap().decision;
        assert_eq!((decision.zero_copy, decision.reason), (true, Reason::Setting));
    }
}
