//! What a snapshot tells of peers and their connections.

mod common;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, builder, message, net, pair};
use rds_client::{Node, Snapshot};

/// Waits until the node looks as `wanted` says.
fn until(node: &Node, wanted: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let end = Instant::now() + LONG;
    loop {
        let snapshot = node.snapshot();
        if wanted(&snapshot) {
            return snapshot;
        }
        assert!(Instant::now() < end, "never so: {snapshot:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_connection_shows_what_tcp_says_of_it() {
    let p = pair();
    p.alice.send_to(&[7; 5000], p.bob.local_addr()).unwrap();
    message(&p.bob);
    p.bob.send_to(&[8; 300], p.alice.local_addr()).unwrap();
    message(&p.alice);
    let alice = until(&p.a, |s| s.peers[0].connections[0].unacknowledged == 0);
    let bob = p.b.snapshot();
    let (there, here) = (&alice.peers[0].connections[0], &bob.peers[0].connections[0]);
    assert_eq!((there.tcp.local, there.tcp.remote), (here.tcp.remote, here.tcp.local));
    assert_eq!(there.tcp.local.unwrap().ip(), p.a.address());
    assert!(there.tcp.rtt_us.unwrap() > 0 && there.tcp.rttvar_us.is_some(), "{there:?}");
    assert!(there.tcp.tcp_bytes_sent.unwrap() > 5000 && there.tcp.tcp_bytes_received.unwrap() > 300);
    assert!(here.tcp.tcp_bytes_received.unwrap() > 5000);
    assert_eq!(there.header_remain.zip(there.data_remain), Some((48, 0)));
    assert!(there.tcp.last_una <= there.last_sent && there.last_sent.unwrap() > 5000, "{there:?}");
    assert!(alice.peers[0].connected_ms.is_some() && alice.peers[0].down_ms.is_none());
    assert_eq!((alice.peers[0].attempts, alice.peers[0].resets), (1, 0), "the smaller address dials");
}

#[test]
fn messages_that_wait_are_counted_without_listing_them() {
    let net = net();
    let node = builder(net(1)).open().unwrap();
    let socket = node.bind(1000).unwrap();
    for _ in 0..3 {
        socket.send_to(b"nobody is there", SocketAddr::new(net(2), 1000)).unwrap();
    }
    let snapshot = node.snapshot();
    let lane = &snapshot.peers[0].connections[0];
    assert_eq!((lane.queued, lane.unacknowledged, lane.send_queue.len()), (3, 0, 0));
    assert_eq!((lane.tcp.local, lane.tcp.rtt_us, lane.last_sent), (None, None, None));
}

#[test]
fn a_peer_that_is_not_there_shows_attempts_and_why_they_fail() {
    let net = net();
    // Seen from both sides: the larger one can but knock.
    for (ours, theirs) in [(1, 2), (4, 3)] {
        let node = builder(net(ours)).open().unwrap();
        let socket = node.bind(1000).unwrap();
        socket.send_to(b"?", SocketAddr::new(net(theirs), 1000)).unwrap();
        let snapshot = until(&node, |s| s.peers[0].attempts > 1 && s.peers[0].last_reason.is_some());
        let peer = &snapshot.peers[0];
        assert_eq!(peer.last_reason.as_deref(), Some("connection refused"));
        assert_eq!((peer.resets, peer.connected_ms, peer.down_ms), (0, None, None), "it was never up");
    }
}

#[test]
fn a_lost_peer_shows_since_when_and_why() {
    let p = pair();
    p.alice.send_to(b"hello", p.bob.local_addr()).unwrap();
    message(&p.bob);
    until(&p.a, |s| s.peers[0].connected_ms.is_some());
    p.b.shutdown(LONG);
    drop((p.b, p.bob));
    let snapshot = until(&p.a, |s| s.peers[0].down_ms.is_some() && s.peers[0].attempts > 1);
    let peer = &snapshot.peers[0];
    assert_eq!((peer.resets, peer.connected_ms), (1, None));
    assert!(peer.last_reason.is_some(), "{peer:?}");
    assert_eq!(peer.connections[0].resets, 1);
    assert!(peer.connections[0].reset_ms >= peer.down_ms);
}
