//! Large messages are received in the pages in which they came, and whatever does not fit that is received all the same.

mod common;

use common::paged::{PAGE, Paged};
use common::{LONG, builder, lease, net, pattern, received};
use rds_client::{Mode, Node, Socket};

/// A node that maps, and a socket.
fn mapping() -> (impl Fn(u8) -> std::net::IpAddr, Node, Socket) {
    let net = net();
    let node = builder(net(200)).zero_copy_receive(Mode::On).open().unwrap();
    let socket = node.bind(7).unwrap();
    socket.set_recv_timeout(Some(LONG));
    socket.set_recv_buffer(64 << 20);
    (net, node, socket)
}

#[test]
fn large_messages_come_in_their_own_pages() {
    let (net, node, socket) = mapping();
    let mut peer = Paged::connect(net(1), &node, 7, true);
    let mut mapped = 0;
    for round in 0..200 {
        // Two at a time fit TCP's window, at whose edge segments would be cut.
        (0..2).for_each(|i| peer.large(&pattern(round + i, 7 * PAGE)));
        for i in 0..2 {
            let lease = lease(&socket);
            assert!(*lease == *pattern(round + i, 7 * PAGE), "round {round}, message {i}");
            assert!(!lease.is_mapped() || lease.as_ptr().align_offset(PAGE) == 0);
            mapped += u32::from(lease.is_mapped());
        }
    }
    assert!(mapped >= 380, "{mapped} of 400: {:?}", received(&node));
}

#[test]
fn a_message_is_whole_wherever_the_stream_is_cut() {
    let (net, node, socket) = mapping();
    let mut peer = Paged::connect(net(1), &node, 7, true);
    let len = 3 * PAGE;
    let cuts = (0..51).chain([
        100,
        PAGE - 1,
        PAGE,
        PAGE + 1,
        2 * PAGE,
        2 * PAGE + 1000,
        len - PAGE,
        len - 48,
        len - 1,
    ]);
    // So that the connection reads by headers from the first cut on.
    peer.large(&pattern(0, len));
    assert!(*lease(&socket) == *pattern(0, len));
    let mut healed = 0;
    for cut in cuts {
        let payload = pattern(cut as u64, len);
        let (first, second) = payload.split_at(cut);
        // As pages, then not; not, then as pages; the cut within the header; with what follows behind.
        let header = peer.header(len);
        peer.copy(&header, true);
        peer.pages(first);
        peer.copy(second, true);
        let header = peer.header(len);
        peer.copy(&header, true);
        peer.copy(first, true);
        peer.pages(second);
        let header = peer.header(len);
        let (head, tail) = header.split_at(cut % 48);
        peer.copy(head, true);
        peer.copy(tail, true);
        peer.pages(&payload);
        let header = peer.header(len);
        peer.copy(&[&header, first].concat(), true);
        let small = peer.header(cut % 500);
        peer.copy(&[second, &small, &payload[..cut % 500]].concat(), false);
        for way in 0..4 {
            assert!(*lease(&socket) == *payload, "cut at {cut}, way {way}");
        }
        assert!(*lease(&socket) == payload[..cut % 500], "cut at {cut}, the small one");
        peer.large(&payload);
        let lease = lease(&socket);
        assert!(*lease == *payload, "cut at {cut}, the last one");
        healed += u32::from(lease.is_mapped());
    }
    let counts = received(&node);
    assert!(healed >= 57, "{healed} of 60 healed with the next message: {counts:?}");
    assert!(counts.copied.unaligned > 0, "{counts:?}");
}

#[test]
fn what_is_held_is_not_touched_and_the_rest_is_copied() {
    let (net, node, socket) = mapping();
    let mut peer = Paged::connect(net(1), &node, 7, true);
    let len = 7 * PAGE;
    let mut one = |i| {
        peer.large(&pattern(i, len));
        lease(&socket)
    };
    // More than a path has room for.
    let held: Vec<_> = (0..400).map(&mut one).collect();
    let mapped = held.iter().filter(|l| l.is_mapped()).count();
    assert!((250..300).contains(&mapped), "{mapped} of 400");
    let before = received(&node);
    assert!(before.copied.held > 0, "{before:?}");
    // In the other order, and while more comes.
    for (i, lease) in held.into_iter().enumerate().rev() {
        assert!(*lease == *pattern(i as u64, len), "message {i}");
    }
    for i in 400..800 {
        assert!(*one(i) == *pattern(i, len), "message {i}");
    }
    assert!(received(&node).messages >= before.messages + 380, "mapping is taken up again");
}

#[test]
fn a_lease_outlives_connection_socket_and_node() {
    let (net, node, socket) = mapping();
    let mut peer = Paged::connect(net(1), &node, 7, true);
    let mut one = |i| {
        peer.large(&pattern(i, 2 * PAGE));
        lease(&socket)
    };
    let leases: Vec<_> = (0..8).map(&mut one).collect();
    assert!(leases.iter().any(rds_client::Lease::is_mapped));
    drop(peer);
    drop(socket);
    drop(node);
    let reader = std::thread::spawn(move || {
        for (i, lease) in leases.iter().enumerate() {
            assert!(**lease == *pattern(i as u64, 2 * PAGE));
        }
    });
    reader.join().unwrap();
}

#[test]
fn what_came_before_a_reset_or_an_end_is_received() {
    for reset in [false, true] {
        let (net, node, socket) = mapping();
        for round in 0..10 {
            let mut peer = Paged::connect(net(1 + round), &node, 7, true);
            let cut = [0, 1, PAGE, PAGE + 1, 3 * PAGE][round as usize % 5];
            peer.large(&pattern(1, 4 * PAGE));
            peer.large(&pattern(2, 4 * PAGE));
            let header = peer.header(4 * PAGE);
            peer.copy(&header, true);
            peer.pages(&pattern(3, 4 * PAGE)[..cut]);
            // Loopback has delivered all of it by now.
            if reset {
                socket2::SockRef::from(&peer.stream).set_linger(Some(std::time::Duration::ZERO)).unwrap();
            }
            drop(peer);
            assert!(*lease(&socket) == *pattern(1, 4 * PAGE), "round {round}, reset {reset}");
            assert!(*lease(&socket) == *pattern(2, 4 * PAGE), "round {round}, reset {reset}");
        }
        // Each connection has ended: none is left that waits for something.
        while node.snapshot().counters.get(rds_client::Counter::ConnReset) < 10 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn without_the_announcement_or_the_will_nothing_is_mapped() {
    for (announce, mode) in [(false, Mode::On), (true, Mode::Off), (true, Mode::Auto)] {
        let net = net();
        let node = builder(net(200)).zero_copy_receive(mode).open().unwrap();
        let socket = node.bind(7).unwrap();
        socket.set_recv_timeout(Some(LONG));
        let mut peer = Paged::connect(net(1), &node, 7, announce);
        for i in 0..20 {
            peer.large(&pattern(i, 16 * PAGE));
            let lease = lease(&socket);
            assert!(*lease == *pattern(i, 16 * PAGE) && !lease.is_mapped(), "{announce} {mode}");
        }
        let counts = received(&node);
        let bytes = 20 * 16 * PAGE as u64;
        assert_eq!((counts.calls, counts.copied.total()), (0, bytes), "{announce} {mode}: {counts:?}");
        let because = match (announce, mode) {
            (false, _) => counts.copied.not_announced,
            (_, Mode::Off) => counts.copied.setting,
            // A peer on this host is not trusted without being told so.
            _ => counts.copied.controller,
        };
        assert_eq!(because, bytes, "{announce} {mode}: {counts:?}");
    }
}

#[test]
fn a_socket_or_a_path_may_want_it_otherwise_than_the_node() {
    let (net, node, socket) = mapping();
    let mut peer = Paged::connect(net(1), &node, 7, true);
    let mut mapped = || {
        let mut one = || {
            peer.large(&pattern(1, 16 * PAGE));
            let lease = lease(&socket);
            assert!(*lease == *pattern(1, 16 * PAGE));
            lease.is_mapped()
        };
        // The first may still be read as before.
        one();
        one()
    };
    assert!(mapped());
    socket.set_zero_copy_receive(Mode::Off);
    assert!(!mapped());
    // `auto` trusts no peer on this host, whatever the node does.
    socket.set_zero_copy_receive(Mode::Auto);
    assert!(!mapped());
    socket.set_zero_copy_receive(None);
    assert!(mapped());
    node.set_zero_copy(net(1), None, Some(Mode::Off));
    assert!(!mapped());
    socket.set_zero_copy_receive(Mode::On);
    assert!(mapped());
    socket.set_zero_copy_receive(None);
    node.set_zero_copy(net(1), None, None);
    assert!(mapped());
}

#[test]
fn lengths_that_are_no_whole_pages_are_copied() {
    let (net, node, socket) = mapping();
    let mut peer = Paged::connect(net(1), &node, 7, true);
    for i in 0..200 {
        let len = [16 * PAGE, 16 * PAGE + 1, PAGE, PAGE - 1, 20 * PAGE - 100][i as usize % 5];
        peer.large(&pattern(i, len));
        let lease = lease(&socket);
        assert!(*lease == *pattern(i, len), "message {i}");
        assert!(!lease.is_mapped() || len.is_multiple_of(PAGE));
    }
    let counts = received(&node);
    assert!(counts.copied.length > 0 && counts.messages >= 76, "{counts:?}");
}

#[test]
fn no_more_is_mapped_than_the_limit_allows() {
    let net = net();
    let limit = 64 * PAGE as u64;
    let node = builder(net(200)).zero_copy_receive(Mode::On).map_limit(limit).open().unwrap();
    let socket = node.bind(7).unwrap();
    socket.set_recv_timeout(Some(LONG));
    socket.set_recv_buffer(64 << 20);
    let mut peer = Paged::connect(net(1), &node, 7, true);
    let mut held = Vec::new();
    for i in 0..20 {
        peer.large(&pattern(i, 16 * PAGE));
        held.push(lease(&socket));
        assert!(**held.last().unwrap() == *pattern(i, 16 * PAGE));
        assert!(node.snapshot().zero_copy.recv.region_bytes <= limit);
    }
    let counts = received(&node);
    assert!(counts.copied.limit > 0 && counts.messages >= 2, "{counts:?}");
    drop(held);
    // The path is idle, so it gives everything up.
    while node.snapshot().zero_copy.recv.region_bytes > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn what_programs_hold_counts_as_received() {
    let (net, node, socket) = mapping();
    socket.set_recv_buffer(8 * 16 * PAGE as u64);
    let mut peer = Paged::connect(net(1), &node, 7, true);
    let mut held = Vec::new();
    let congested = |node: &Node| node.snapshot().sockets[0].congested;
    for i in 0..10 {
        assert_eq!(congested(&node), i > 8, "message {i}");
        peer.large(&pattern(i, 16 * PAGE));
        held.push(lease(&socket));
    }
    assert!(held.iter().any(rds_client::Lease::is_mapped));
    held.clear();
    assert!(!congested(&node));
}

#[test]
fn reading_that_stops_for_want_of_room_goes_on_where_it_was() {
    let net = net();
    // This peer knows no window, so the node stops reading when its budget is used up.
    let node = builder(net(200)).zero_copy_receive(Mode::On).receive_budget(1 << 20).open().unwrap();
    let socket = node.bind(7).unwrap();
    socket.set_recv_timeout(Some(LONG));
    let mut peer = Paged::connect(net(1), &node, 7, true);
    let sender = std::thread::spawn(move || {
        for i in 0..200 {
            peer.large(&pattern(i, 16 * PAGE));
            peer.small(&pattern(i, 100));
        }
        peer
    });
    // Nothing is taken before the budget is used up, again and again.
    for batch in 0..10 {
        while batch < 9 && node.snapshot().receive_queued < 1 << 20 {
            std::thread::yield_now();
        }
        for i in 20 * batch..20 * (batch + 1) {
            assert!(*lease(&socket) == *pattern(i, 16 * PAGE), "message {i}");
            assert!(*lease(&socket) == *pattern(i, 100), "message {i}");
        }
    }
    drop(sender.join().unwrap());
}

#[test]
fn a_connection_that_is_replaced_is_read_out_first() {
    let (net, node, socket) = mapping();
    let mut sequence = 0;
    for round in 0..20 {
        let mut peer = Paged::connect(net(1), &node, 7, true);
        peer.sequence = sequence;
        for i in 0..8 {
            peer.large(&pattern(round * 8 + i, 4 * PAGE));
        }
        sequence = peer.sequence;
        // Kept open: the next one takes its place.
        std::mem::forget(peer.stream.try_clone().unwrap());
        for i in 0..if round % 2 == 0 { 8 } else { 0 } {
            assert!(*lease(&socket) == *pattern(round * 8 + i, 4 * PAGE), "round {round}, message {i}");
        }
        if round % 2 == 1 {
            let mut next = Paged::connect(net(1), &node, 7, true);
            next.sequence = sequence;
            next.large(&pattern(1, 4 * PAGE));
            sequence = next.sequence;
            for i in 0..8 {
                assert!(*lease(&socket) == *pattern(round * 8 + i, 4 * PAGE), "round {round}, message {i}");
            }
            assert!(*lease(&socket) == *pattern(1, 4 * PAGE));
        }
    }
}
