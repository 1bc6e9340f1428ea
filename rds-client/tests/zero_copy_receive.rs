//! Large messages are received in the pages in which they came, and whatever does not fit that is received all the same.

mod common;

use common::paged::{PAGE, Paged};
use common::{LONG, builder, net, pattern};
use rds_client::{Event, Lease, Mode, Node, Socket};

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
