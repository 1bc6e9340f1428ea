//! Payloads that programs own: when they are given back, and what their drop may do.

mod common;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Instant;

use common::{LONG, builder, message, net, pair};
use rds_client::{Bytes, Node, Socket};

/// A payload whose drop calls the node again.
struct Recalls {
    bytes: Vec<u8>,
    node: Node,
    socket: Arc<Socket>,
    dropped: Arc<AtomicU64>,
}

impl AsRef<[u8]> for Recalls {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Recalls {
    fn drop(&mut self) {
        let _ = self.node.snapshot();
        self.socket.try_send_to(b"from a drop", self.socket.local_addr()).unwrap();
        self.dropped.fetch_add(1, SeqCst);
    }
}

#[test]
fn the_drop_of_a_payload_may_call_the_node() {
    let p = pair();
    let bob = p.bob.local_addr();
    let alice = Arc::new(p.alice);
    let dropped = Arc::new(AtomicU64::new(0));
    let payload = |len: usize| {
        let (node, socket, dropped) = (p.a.clone(), Arc::clone(&alice), Arc::clone(&dropped));
        Bytes::from_owner(Recalls { bytes: vec![5; len], node, socket, dropped })
    };
    // Sent and acknowledged, sent to this very node, cancelled, and refused.
    alice.send_detached(payload(100_000), bob).unwrap();
    alice.send_detached(payload(1000), bob).unwrap();
    assert_eq!(message(&p.bob).0.len(), 100_000);
    assert_eq!(message(&p.bob).0.len(), 1000);
    assert!(alice.flush(LONG));
    let own = alice.local_addr();
    alice.send_detached(payload(10), own).unwrap();
    let nowhere = "127.255.1.2:9".parse().unwrap();
    alice.send_detached(payload(100_000), nowhere).unwrap();
    assert_eq!(alice.cancel_sent_to(nowhere), 1);
    drop(alice.send_detached(payload(2 << 20), bob).unwrap_err());
    // Each left a message of its own behind.
    let mut seen = 0;
    while seen < 5 {
        let (payload, from) = message(&alice);
        assert_eq!(from, own);
        seen += u32::from(payload == b"from a drop");
    }
    assert_eq!(dropped.load(SeqCst), 5);
}

struct Panics;

impl AsRef<[u8]> for Panics {
    fn as_ref(&self) -> &[u8] {
        &[9; 70_000]
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        panic!("a payload that does not go quietly");
    }
}

#[test]
fn a_payload_whose_drop_panics_harms_nothing_else() {
    let p = pair();
    let bob = p.bob.local_addr();
    for i in 0..10_u8 {
        p.alice.send_detached(Bytes::from_owner(Panics), bob).unwrap();
        p.alice.send_to(&[i], bob).unwrap();
    }
    for i in 0..10_u8 {
        assert_eq!(message(&p.bob).0.len(), 70_000);
        assert_eq!(message(&p.bob).0, [i]);
    }
    assert!(p.alice.flush(LONG));
}

/// A payload that keeps the node open from which it was sent.
struct Keeps(#[allow(dead_code, reason = "only its drop matters")] (Node, Arc<Socket>));

impl AsRef<[u8]> for Keeps {
    fn as_ref(&self) -> &[u8] {
        // Large enough that it is not copied.
        &[3; 100_000]
    }
}

#[test]
fn a_node_whose_last_handle_a_payload_holds_delivers_what_is_queued() {
    let net = net();
    let a = builder(net(1)).open().unwrap();
    let alice = Arc::new(a.bind(1000).unwrap());
    alice.set_send_buffer(16 << 20);
    let bob_at = SocketAddr::new(net(2), 2000);
    let open = || {
        let (b, bob) = builder(net(2)).open_bound(&[2000]).unwrap();
        bob[0].set_recv_buffer(16 << 20);
        (b, bob)
    };
    // A daemon's node is there before its programs, and would drop what comes before the port is bound.
    let early = common::ATTACHED.then(open);
    let payload = Bytes::from_owner(Keeps((a.clone(), Arc::clone(&alice))));
    alice.send_detached(payload, bob_at).unwrap();
    // More than is on its way when the first is acknowledged.
    for _ in 0..99 {
        alice.send_to(&[4; 100_000], bob_at).unwrap();
    }
    drop((a, alice));
    // Nobody but the node itself is left to send them, and to drop the payload when it is acknowledged.
    let (_b, bob) = early.unwrap_or_else(open);
    bob[0].set_recv_timeout(Some(LONG));
    for _ in 0..100 {
        assert_eq!(message(&bob[0]).0.len(), 100_000);
    }
    let end = Instant::now() + LONG;
    while let Err(error) = builder(net(1)).open() {
        assert!(Instant::now() < end, "the node does not end: {error}");
        thread::yield_now();
    }
}

#[test]
fn a_node_opened_with_its_sockets_drops_nothing_that_peers_send_first() {
    if common::ATTACHED {
        println!("skipped: a daemon's node is there before any program binds a port of it");
        return;
    }
    let net = net();
    let (a, mut alice) = builder(net(1)).open_bound(&[1000]).unwrap();
    let alice = alice.remove(0);
    let bob_at = SocketAddr::new(net(2), 2000);
    for i in 0..200_u8 {
        alice.send_to(&[i], bob_at).unwrap();
    }
    let (_b, bob) = builder(net(2)).open_bound(&[2000, 2001]).unwrap();
    for i in 0..200_u8 {
        assert_eq!(message(&bob[0]).0, [i]);
    }
    assert_eq!(bob[1].local_addr().port(), 2001);
    drop(a);
}
