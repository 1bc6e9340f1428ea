//! Large messages are received in the pages in which they came, and whatever does not fit that is received all the same.

mod common;

use common::paged::{PAGE, Paged};
use common::{LONG, builder, net, pattern};
use rds_client::{Event, Lease, Mode, Node, Socket};
use rds_core::zerocopy::ReceiveCounts;

/// A node that maps, and a socket.
fn mapping() -> (impl Fn(u8) -> std::net::IpAddr, Node, Socket) {
    let net = net();
    let node = builder(net(200)).zero_copy_receive(Mode::On).open().unwrap();
    let socket = node.bind(7).unwrap();
    socket.set_recv_timeout(Some(LONG));
    socket.set_recv_buffer(64 << 20);
    (net, node, socket)
}

fn lease(socket: &Socket) -> Lease {
    match socket.recv_lease() {
        Ok(Event::Message(message)) => message.payload,
        other => panic!("a message was expected: {other:?}"),
    }
}

#[test]
fn large_messages_come_in_their_own_pages() {
    let (net, node, socket) = mapping();
    let mut peer = Paged::connect(net(1), &node, 7, true);
    let sender = std::thread::spawn(move || {
        for i in 0..400 {
            peer.large(&pattern(i, 16 * PAGE));
        }
        peer
    });
    let mut mapped = 0;
    for i in 0..400 {
        let lease = lease(&socket);
        assert!(*lease == *pattern(i, 16 * PAGE), "message {i}");
        mapped += u32::from(lease.is_mapped());
        if lease.is_mapped() {
            assert_eq!(lease.as_ptr() as usize % PAGE, 0);
        }
    }
    println!("{mapped} of 400");
    assert!(mapped >= 380, "{mapped} of 400");
    drop(sender.join().unwrap());
}

/// What a node counted.
fn counts(node: &Node) -> ReceiveCounts {
    node.snapshot().zero_copy.recv.counts
}

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
    let counts = counts(&b);
    println!("{len}: {counts:?} {:?}", counts.mapped_ratio());
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
