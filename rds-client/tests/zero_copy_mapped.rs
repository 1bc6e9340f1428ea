//! Between own nodes with zero copy on, large messages arrive in their own pages, whatever goes on beside them.

mod common;

use common::{LONG, builder, lease, net, pattern, received};
use rds_client::{Mode, Node, Socket};

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

fn flow(len: usize, count: u64) {
    let (a, b, alice, bob) = both();
    let to = bob.local_addr();
    let sender = std::thread::spawn(move || {
        for i in 0..count {
            alice.send_owned(pattern(i % 17, len), to).unwrap();
        }
        alice
    });
    for i in 0..count {
        assert!(*lease(&bob) == *pattern(i % 17, len), "message {i}");
    }
    let counts = received(&b);
    assert!(counts.mapped_ratio().unwrap() >= 0.95, "{counts:?}");
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
    for len in [64 << 10, 1 << 20] {
        let (a, b, alice, bob) = both();
        let to = bob.local_addr();
        let back = alice.local_addr();
        let sender = std::thread::spawn(move || {
            for i in 0..300_u64 {
                alice.send_owned(pattern(i % 17, len), to).unwrap();
                for small in 0..i % 5 {
                    alice.send_to(&pattern(i + small, 1 + (i as usize * 37) % 3000), to).unwrap();
                }
                // What comes the other way makes acknowledgements ride on these.
                if i % 16 == 0 {
                    assert!(!lease(&alice).is_empty());
                }
            }
            alice
        });
        for i in 0..300_u64 {
            if i % 16 == 0 {
                bob.send_to(b"go on", back).unwrap();
            }
            assert!(*lease(&bob) == *pattern(i % 17, len), "message {i}");
            for small in 0..i % 5 {
                assert!(*lease(&bob) == *pattern(i + small, 1 + (i as usize * 37) % 3000));
            }
        }
        let counts = received(&b);
        assert!(counts.mapped_ratio().unwrap() >= 0.95, "{counts:?}");
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
