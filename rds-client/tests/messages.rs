//! Messages between two nodes over TCP.

mod common;

use std::io::IoSlice;
use std::net::SocketAddr;
use std::thread;

use common::{ATTACHED, LONG, builder, completions, message, net, pair, pattern, two_nodes};
use rds_client::{
    Bytes, Completion, Counter, Event, Guarantee, Readiness, Received, RecvError, SendError, TrySendError,
};

#[test]
fn a_message_arrives_with_its_senders_address_in_both_directions() {
    let p = pair();
    p.alice.send_to(b"there", p.bob.local_addr()).unwrap();
    assert_eq!(message(&p.bob), (b"there".to_vec(), p.alice.local_addr()));
    p.bob.send_to(b"back", p.alice.local_addr()).unwrap();
    assert_eq!(message(&p.alice), (b"back".to_vec(), p.bob.local_addr()));
}

#[test]
fn the_larger_address_may_send_first() {
    let p = pair();
    p.bob.send_to(b"knock", p.alice.local_addr()).unwrap();
    assert_eq!(message(&p.alice), (b"knock".to_vec(), p.bob.local_addr()));
}

#[test]
fn many_round_trips_lose_nothing() {
    let p = pair();
    let echo = thread::spawn(move || {
        for _ in 0..2000 {
            let (payload, from) = message(&p.bob);
            p.bob.send_to(&payload, from).unwrap();
        }
        p.bob
    });
    let bob = SocketAddr::new(p.b.address(), 2000);
    for i in 0..2000_u32 {
        p.alice.send_to(&i.to_le_bytes(), bob).unwrap();
        assert_eq!(message(&p.alice).0, i.to_le_bytes());
    }
    echo.join().unwrap();
}

#[test]
fn messages_of_all_sizes_arrive_whole_and_in_order() {
    let p = pair();
    let sizes = [0, 1, 63, 64, 512, 513, 4096, 16384, 16385, 65536, 262_144 - 48, 262_144, 1 << 20, 0, 7];
    let bob = p.bob.local_addr();
    let sender = thread::spawn(move || {
        for round in 0..6_u64 {
            for (i, &size) in sizes.iter().enumerate() {
                let payload = pattern(round * 100 + i as u64, size);
                match (round + i as u64) % 3 {
                    0 => p.alice.send_to(&payload, bob).unwrap(),
                    1 => {
                        let (x, y) = payload.split_at(size / 3);
                        p.alice.send_vectored_to(&[IoSlice::new(x), IoSlice::new(y)], bob).unwrap();
                    }
                    _ => p.alice.send_detached(payload, bob).unwrap(),
                }
            }
        }
        p.alice
    });
    for round in 0..6_u64 {
        for (i, &size) in sizes.iter().enumerate() {
            let expected = pattern(round * 100 + i as u64, size);
            let got = if i % 2 == 0 {
                message(&p.bob).0
            } else {
                let Event::Message(m) = p.bob.recv_lease().unwrap() else { panic!("a message was expected") };
                m.payload.to_vec()
            };
            assert!(got == expected, "round {round}, size {size}");
        }
    }
    sender.join().unwrap();
}

#[test]
fn a_flood_of_small_messages_keeps_its_order() {
    let p = pair();
    const COUNT: u32 = 100_000;
    let bob = p.bob.local_addr();
    let sender = thread::spawn(move || {
        for i in 0..COUNT {
            p.alice.send_to(&i.to_le_bytes(), bob).unwrap();
        }
        p.alice
    });
    let mut buffer = [0; 64];
    for i in 0..COUNT {
        let got = p.bob.recv_from(&mut buffer).unwrap();
        assert!(matches!(got, Received::Message { len: 4, full_len: 4, .. }), "{got:?}");
        assert_eq!(u32::from_le_bytes(buffer[..4].try_into().unwrap()), i);
    }
    drop(sender.join().unwrap());
}

#[test]
fn a_short_buffer_cuts_a_message_and_says_so() {
    let p = pair();
    for len in [10, 100_000] {
        p.alice.send_to(&pattern(1, len), p.bob.local_addr()).unwrap();
        p.alice.send_to(b"next", p.bob.local_addr()).unwrap();
        let mut buffer = [0; 4];
        let got = p.bob.recv_from(&mut buffer).unwrap();
        assert_eq!(got, Received::Message { len: 4, full_len: len, from: p.alice.local_addr() });
        assert_eq!(buffer, pattern(1, len)[..4]);
        assert_eq!(message(&p.bob).0, b"next");
    }
}

#[test]
fn a_peek_leaves_the_message_and_its_length_can_be_asked() {
    let p = pair();
    assert_eq!(p.bob.next_len(), None);
    assert_eq!(p.bob.peek_from(&mut []), Err(RecvError::Empty));
    p.alice.send_to(b"peek", p.bob.local_addr()).unwrap();
    p.alice.send_to(b"", p.bob.local_addr()).unwrap();
    let both = rds_client::Readiness::READABLE;
    assert!(p.bob.wait(both, Some(LONG)).readable);
    let mut buffer = [0; 2];
    for _ in 0..2 {
        let got = p.bob.peek_from(&mut buffer).unwrap();
        assert_eq!(got, Received::Message { len: 2, full_len: 4, from: p.alice.local_addr() });
        assert_eq!(p.bob.next_len(), Some(4));
    }
    assert_eq!(message(&p.bob).0, b"peek");
    assert_eq!(message(&p.bob), (vec![], p.alice.local_addr()));
}

#[test]
fn a_message_to_the_own_node_is_delivered_without_tcp() {
    let (a, _b) = two_nodes();
    let (x, y) = (a.bind(10).unwrap(), a.bind(11).unwrap());
    x.send_to(b"local", y.local_addr()).unwrap();
    // Embedded, it is there when the send returns.
    if ATTACHED {
        y.wait(Readiness::READABLE, Some(LONG));
    }
    assert_eq!(
        y.try_recv_from(&mut [0; 8]),
        Ok(Received::Message { len: 5, full_len: 5, from: x.local_addr() })
    );
    assert!(a.snapshot().peers.is_empty());
}

#[test]
fn a_local_message_wakes_a_thread_that_polls() {
    let (a, _b) = two_nodes();
    let (x, y) = (a.bind(10).unwrap(), a.bind(11).unwrap());
    y.set_recv_timeout(Some(LONG));
    let receiver = thread::spawn(move || (0..200).map(|_| message(&y).0.len()).sum::<usize>());
    for _ in 0..200 {
        x.send_to(b"local", SocketAddr::new(a.address(), 11)).unwrap();
        thread::yield_now();
    }
    assert_eq!(receiver.join().unwrap(), 1000);
}

#[test]
fn a_tracked_message_ends_as_delivered_to_the_application() {
    let p = pair();
    let mut cookies = Vec::new();
    for i in 0..10 {
        let payload = Bytes::from(vec![7; i * 20_000]);
        cookies.push(p.alice.send_owned(payload, p.bob.local_addr()).unwrap());
    }
    for _ in 0..10 {
        message(&p.bob);
    }
    let ends = completions(&p.alice, 20);
    for cookie in cookies {
        let of: Vec<_> = ends.iter().filter(|end| end.cookie() == cookie).collect();
        assert!(of.contains(&&Completion::Delivered { cookie, by: Guarantee::Application }), "{of:?}");
        // Which way depends on the path; that it is told once does not.
        assert!(of.iter().filter(|end| matches!(end, Completion::Released { .. })).count() == 1, "{of:?}");
    }
    assert_eq!(p.alice.completions(&mut Vec::new()), 0);
}

#[test]
fn a_message_to_an_unbound_port_is_dropped_and_counts_as_delivered() {
    let p = pair();
    let nobody = SocketAddr::new(p.b.address(), 999);
    let cookie = p.alice.send_owned("x", nobody).unwrap();
    let ends = completions(&p.alice, 2);
    assert!(ends.contains(&Completion::Delivered { cookie, by: Guarantee::Application }), "{ends:?}");
    assert_eq!(p.b.snapshot().counters.get(Counter::RecvDropNoSock), 1);
}

#[test]
fn errors_say_what_cannot_be_sent() {
    use rds_core::proto::SendError as E;
    let p = pair();
    let net = net();
    assert_eq!(p.alice.send(b"x"), Err(SendError::NotConnected));
    let refused = |error| Err(TrySendError::Refused(SendError::Refused(error)));
    let any = SocketAddr::from(([0, 0, 0, 0], 1));
    assert_eq!(p.alice.try_send_to(b"x", any), refused(E::InvalidDestination));
    assert_eq!(p.alice.connect(any), Err(SendError::Refused(E::InvalidDestination)));
    assert_eq!(p.alice.try_send_to(b"x", "[::1]:5".parse().unwrap()), refused(E::FamilyMismatch));
    let big = vec![0; (1 << 20) + 1];
    assert_eq!(p.alice.try_send_to(&big, p.bob.local_addr()), refused(E::TooLarge { limit: 1 << 20 }));
    let (error, back) = p.alice.try_send_owned(big, p.bob.local_addr()).unwrap_err();
    assert_eq!((Err(error), back.len()), (refused(E::TooLarge { limit: 1 << 20 }), (1 << 20) + 1));
    p.alice.connect(SocketAddr::new(net(9), 5)).unwrap();
    assert_eq!(p.alice.peer_addr(), Some(SocketAddr::new(net(9), 5)));
    assert_eq!(p.alice.send(b"nobody is there, and that is no error"), Ok(()));
}

#[test]
fn counters_tell_of_every_message_once() {
    let p = pair();
    for i in 0..50 {
        p.alice.send_to(&pattern(i, 1000), p.bob.local_addr()).unwrap();
    }
    p.alice.send_to(&pattern(1, 100_000), p.bob.local_addr()).unwrap();
    for _ in 0..51 {
        message(&p.bob);
    }
    assert!(p.alice.flush(LONG));
    let (sent, got) = (p.a.snapshot().counters, p.b.snapshot());
    // Small payloads go through a ring on either side, and are copied once more.
    let copied = if ATTACHED { 200_000 } else { 150_000 };
    assert_eq!((sent.get(Counter::SendQueued), sent.get(Counter::CopyFromUser)), (51, copied));
    let c = &got.counters;
    assert_eq!((c.get(Counter::RecvQueued), c.get(Counter::RecvDelivered)), (51, 51));
    let bytes = (c.get(Counter::RecvBytesAddedToSock), c.get(Counter::RecvBytesFreedFromSock));
    assert_eq!(bytes, (150_000, 150_000));
    // The daemon may have to copy the large one into the arena, too: when its beginning came with the messages before it.
    let more = if ATTACHED { 100_000 } else { 0 };
    assert!((copied..=copied + more).contains(&c.get(Counter::CopyToUser)), "{}", c.get(Counter::CopyToUser));
    assert_eq!((got.receive_queued, got.sockets[0].receive_queued), (0, 0));
    // Those of a closed socket are kept.
    p.bob.close();
    assert_eq!(p.b.snapshot().counters.get(Counter::RecvDelivered), 51);
}

#[test]
fn more_lanes_carry_the_same_messages() {
    if ATTACHED {
        println!("skipped: how many lanes there are is the daemon's affair");
        return;
    }
    let net = net();
    let a = builder(net(1)).lanes(4).open().unwrap();
    let b = builder(net(2)).lanes(4).open().unwrap();
    let senders: Vec<_> = (0..16).map(|i| a.bind(100 + i).unwrap()).collect();
    let bob = b.bind(5).unwrap();
    bob.set_recv_timeout(Some(LONG));
    for round in 0..100_u32 {
        for s in &senders {
            s.send_to(&round.to_le_bytes(), bob.local_addr()).unwrap();
        }
    }
    let mut next = [0_u32; 16];
    for _ in 0..1600 {
        let (payload, from) = message(&bob);
        let n = &mut next[usize::from(from.port() - 100)];
        assert_eq!(payload, n.to_le_bytes(), "in order from {from}");
        *n += 1;
    }
    let lanes = b.snapshot().peers[0].connections.len();
    assert!(lanes > 1, "{lanes}");
}

#[test]
fn ipv6_nodes_exchange_messages() {
    if ATTACHED {
        println!("skipped: the daemon cannot be made without knowing whether the address is there");
        return;
    }
    let a = match builder("::1".parse().unwrap()).open() {
        Ok(a) => a,
        Err(error) => return println!("skipped: {error}"),
    };
    let Ok(b) = builder("fd00:7263::2".parse().unwrap()).open() else {
        // One address is enough for what needs no peer.
        let (x, y) = (a.bind(10).unwrap(), a.bind(11).unwrap());
        x.send_to(b"six", y.local_addr()).unwrap();
        assert_eq!(message(&y), (b"six".to_vec(), x.local_addr()));
        return println!(
            "skipped: the exchange between two nodes, because the host has one IPv6 address only"
        );
    };
    let (alice, bob) = (a.bind(1).unwrap_or_else(|_| a.bind(10).unwrap()), b.bind(10).unwrap());
    alice.send_to(b"six", bob.local_addr()).unwrap();
    assert_eq!(message(&bob), (b"six".to_vec(), alice.local_addr()));
}
