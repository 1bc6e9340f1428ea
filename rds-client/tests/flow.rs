//! Full buffers, congested ports, timeouts, cancelling and closing.

mod common;

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use common::{ATTACHED, LONG, builder, completions, message, net, pair, pattern};
use rds_client::{
    BindError, Blocked, Bytes, Completion, Counter, Event, Readiness, RecvError, SendError, Socket,
    TrySendError,
};

/// Sends until the destination is congested. Returns how many messages were taken.
fn congest(from: &Socket, to: &Socket) -> usize {
    to.set_recv_buffer(1000);
    let mut count = 0;
    loop {
        match from.try_send_to(&pattern(count as u64, 400), to.local_addr()) {
            Ok(()) => count += 1,
            Err(TrySendError::Congested) => return count,
            Err(TrySendError::Full) => assert!(from.wait(Readiness::WRITABLE, Some(LONG)).writable),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_congested_port_refuses_until_half_is_consumed_and_nothing_is_lost() {
    let p = pair();
    let count = congest(&p.alice, &p.bob);
    assert!(count >= 3);
    for i in 0..count {
        assert_eq!(message(&p.bob).0, pattern(i as u64, 400));
    }
    assert!(p.alice.wait_uncongested(p.bob.local_addr(), Some(LONG)));
    p.alice.try_send_to(b"free", p.bob.local_addr()).unwrap();
    assert_eq!(message(&p.bob).0, b"free");
}

#[test]
fn a_blocking_send_waits_out_congestion() {
    let p = pair();
    let count = congest(&p.alice, &p.bob);
    let bob = p.bob.local_addr();
    let sender = thread::spawn(move || p.alice.send_to(b"later", bob).map(|()| p.alice));
    for i in 0..count {
        assert_eq!(message(&p.bob).0, pattern(i as u64, 400));
    }
    assert_eq!(message(&p.bob).0, b"later");
    drop(sender.join().unwrap().unwrap());
}

#[test]
fn the_send_timeout_holds_while_the_port_is_congested() {
    let p = pair();
    congest(&p.alice, &p.bob);
    p.alice.set_send_timeout(Some(Duration::from_millis(5)));
    assert_eq!(p.alice.send_to(b"x", p.bob.local_addr()), Err(SendError::TimedOut(Blocked::Congested)));
    let payload = Bytes::from_static(b"mine");
    let (error, back) = p.alice.send_owned(payload.clone(), p.bob.local_addr()).unwrap_err();
    assert_eq!((error, &back[..]), (SendError::TimedOut(Blocked::Congested), &payload[..]));
    assert!(!p.alice.wait_uncongested(p.bob.local_addr(), Some(Duration::from_millis(5))));
    let counters = p.a.snapshot().counters;
    assert!(counters.get(Counter::CongSendBlocked) >= 2);
    // A daemon meets the congestion with a message that it took already, and tells only then.
    let refused = if ATTACHED { 2 } else { 1 };
    assert_eq!(counters.get(Counter::CongSendError), refused, "only the send that did not block");
}

#[test]
fn the_monitor_tells_once_when_a_refused_port_is_free() {
    let p = pair();
    p.alice.set_congestion_monitor(true);
    let count = congest(&p.alice, &p.bob);
    assert_eq!(p.alice.try_recv_lease(), Err(RecvError::Empty), "still congested");
    for _ in 0..count {
        message(&p.bob);
    }
    assert_eq!(p.alice.recv_lease().unwrap(), Event::CongestionCleared(1 << (2000 % 64)));
    assert_eq!(p.alice.try_recv_lease(), Err(RecvError::Empty));
}

#[test]
fn without_the_monitor_nothing_is_told() {
    let p = pair();
    let count = congest(&p.alice, &p.bob);
    for _ in 0..count {
        message(&p.bob);
    }
    assert!(p.alice.wait_uncongested(p.bob.local_addr(), Some(LONG)));
    assert_eq!(p.alice.try_recv_lease(), Err(RecvError::Empty));
}

#[test]
fn a_congested_port_of_the_own_node_blocks_and_frees_as_well() {
    let p = pair();
    let own = p.a.bind(3000).unwrap();
    let count = congest(&p.alice, &own);
    let to = own.local_addr();
    let sender = thread::spawn(move || p.alice.send_to(b"later", to).map(|()| p.alice));
    own.set_recv_timeout(Some(LONG));
    for _ in 0..count {
        message(&own);
    }
    assert_eq!(message(&own).0, b"later");
    drop(sender.join().unwrap().unwrap());
}

#[test]
fn a_full_send_buffer_refuses_and_its_timeout_holds() {
    let net = net();
    let a = builder(net(1)).open().unwrap();
    let alice = a.bind(5).unwrap();
    // Nobody is there, so nothing ever leaves.
    let nobody = SocketAddr::new(net(2), 5);
    alice.set_send_buffer(1000);
    alice.try_send_to(&[1; 600], nobody).unwrap();
    alice.try_send_to(&[2; 600], nobody).expect("room is what was free before the message");
    assert_eq!(alice.try_send_to(&[3; 1], nobody), Err(TrySendError::Full));
    assert!(!alice.wait(Readiness::WRITABLE, Some(Duration::from_millis(2))).writable);
    alice.set_send_timeout(Some(Duration::from_millis(5)));
    assert_eq!(alice.send_to(&[3; 1], nobody), Err(SendError::TimedOut(Blocked::Full)));
    assert_eq!(alice.cancel_sent_to(nobody), 2);
    assert!(alice.wait(Readiness::WRITABLE, None).writable);
    alice.try_send_to(&[3; 1], nobody).unwrap();
    assert_eq!(alice.cancel_all(), 1);
}

#[test]
fn room_in_the_send_buffer_wakes_a_blocked_send() {
    let net = net();
    let a = builder(net(1)).open().unwrap();
    let alice = a.bind(5).unwrap();
    let nobody = SocketAddr::new(net(2), 5);
    alice.set_send_buffer(100);
    alice.try_send_to(&[1; 100], nobody).unwrap();
    thread::scope(|scope| {
        let blocked = scope.spawn(|| alice.send_to(&[2; 100], nobody));
        while a.snapshot().counters.get(Counter::SendQueueFull) == 0 {
            thread::yield_now();
        }
        assert_eq!(alice.cancel_sent_to(nobody), 1);
        assert_eq!(blocked.join().unwrap(), Ok(()));
    });
    assert_eq!(alice.cancel_all(), 1);
}

#[test]
fn a_small_send_buffer_is_used_again_and_again() {
    let p = pair();
    p.alice.set_send_buffer(10_000);
    let bob = p.bob.local_addr();
    let sender = thread::spawn(move || {
        for i in 0..500 {
            p.alice.send_to(&pattern(i, 3000), bob).unwrap();
        }
        p.alice
    });
    for i in 0..500 {
        assert_eq!(message(&p.bob).0, pattern(i, 3000));
    }
    drop(sender.join().unwrap());
}

#[test]
fn receive_timeouts_hold() {
    let p = pair();
    p.bob.set_recv_timeout(Some(Duration::from_millis(3)));
    assert_eq!(p.bob.recv_from(&mut [0; 8]), Err(RecvError::TimedOut));
    assert_eq!(p.bob.recv_lease(), Err(RecvError::TimedOut));
    p.bob.set_recv_timeout(Some(Duration::ZERO));
    assert_eq!(p.bob.recv_lease(), Err(RecvError::TimedOut));
    assert_eq!(p.bob.try_recv_lease(), Err(RecvError::Empty));
    assert_eq!(p.bob.wait(Readiness::READABLE, Some(Duration::from_millis(3))), Readiness::default());
}

#[test]
fn cancelled_messages_end_as_cancelled_and_the_rest_arrives() {
    let p = pair();
    let net = net();
    let nobody = SocketAddr::new(net(9), 9);
    let cookie = p.alice.send_owned("gone", nobody).unwrap();
    p.alice.send_to(b"stays", p.bob.local_addr()).unwrap();
    assert_eq!(p.alice.cancel_sent_to(nobody), 1);
    let ends = completions(&p.alice, 2);
    assert!(ends.contains(&Completion::Cancelled { cookie }), "{ends:?}");
    assert_eq!(message(&p.bob).0, b"stays");
    assert_eq!(p.alice.cancel_sent_to(nobody), 0);
}

#[test]
fn a_flush_ends_when_everything_is_acknowledged_or_its_time_is_over() {
    let p = pair();
    assert!(p.alice.flush(Duration::ZERO), "nothing is queued");
    for i in 0..100 {
        p.alice.send_to(&pattern(i, 5000), p.bob.local_addr()).unwrap();
    }
    assert!(p.alice.flush(LONG));
    assert_eq!(p.a.snapshot().sockets[0].send_queued, 0);
    let net = net();
    p.alice.send_to(b"x", SocketAddr::new(net(9), 9)).unwrap();
    assert!(!p.alice.flush(Duration::from_millis(5)));
}

#[test]
fn a_closed_port_can_be_bound_again_and_old_messages_are_not_for_the_new_socket() {
    let p = pair();
    assert!(matches!(p.b.bind(2000), Err(BindError::InUse(2000))));
    assert!(matches!(p.b.bind(1), Err(BindError::Reserved)));
    p.alice.send_to(b"old", p.bob.local_addr()).unwrap();
    assert!(p.alice.flush(LONG));
    let port = p.bob.local_addr().port();
    p.bob.close();
    let bob = p.b.bind(port).unwrap();
    bob.set_recv_timeout(Some(LONG));
    assert_eq!(bob.try_recv_lease(), Err(RecvError::Empty));
    p.alice.send_to(b"new", bob.local_addr()).unwrap();
    assert_eq!(message(&bob).0, b"new");
}

#[test]
fn a_dropped_socket_still_delivers_and_a_closed_one_cancels() {
    let net = net();
    let a = builder(net(1)).open().unwrap();
    let bob = SocketAddr::new(net(2), 7);
    let open = || builder(net(2)).open_bound(&[7]).unwrap();
    // A daemon's node is there before its programs, and would drop what comes before the port is bound.
    let early = ATTACHED.then(open);
    // Else sent before the peer exists, so that they are queued for sure.
    let dropped = a.bind(5).unwrap();
    dropped.send_to(b"dropped", bob).unwrap();
    drop(dropped);
    let closed = a.bind(6).unwrap();
    closed.send_to(b"closed", bob).unwrap();
    closed.close();
    let last = a.bind(7).unwrap();
    last.send_to(b"last", bob).unwrap();
    let (_b, mut bound) = early.unwrap_or_else(open);
    let receiver = bound.remove(0);
    receiver.set_recv_timeout(Some(LONG));
    let mut got = vec![message(&receiver).0];
    while got.last().is_some_and(|m| m != b"last") {
        got.push(message(&receiver).0);
    }
    if ATTACHED {
        // It may have gone before it could be cancelled.
        got.retain(|m| m != b"closed");
    }
    assert_eq!(got, [&b"dropped"[..], b"last"]);
}

#[test]
fn closing_a_congested_socket_frees_its_port() {
    let p = pair();
    congest(&p.alice, &p.bob);
    let to = p.bob.local_addr();
    p.bob.close();
    assert!(p.alice.wait_uncongested(to, Some(LONG)));
}

#[test]
fn a_slow_reader_of_large_messages_gets_them_all() {
    let p = pair();
    p.bob.set_recv_buffer(100_000);
    let bob = p.bob.local_addr();
    let sender = thread::spawn(move || {
        for i in 0..40 {
            p.alice.send_detached(pattern(i, 1 << 20), bob).unwrap();
        }
        p.alice
    });
    for i in 0..40 {
        assert!(message(&p.bob).0 == pattern(i, 1 << 20), "message {i}");
    }
    drop(sender.join().unwrap());
}

#[test]
fn a_small_budget_slows_down_and_loses_nothing() {
    let net = net();
    let a = builder(net(1)).open().unwrap();
    let b = builder(net(2)).receive_budget(1 << 20).open().unwrap();
    let (alice, bob) = (a.bind(5).unwrap(), b.bind(5).unwrap());
    bob.set_recv_buffer(64 << 20);
    bob.set_recv_timeout(Some(LONG));
    let to = bob.local_addr();
    let sender = thread::spawn(move || {
        for i in 0..2000 {
            alice.send_to(&pattern(i, 10_000), to).unwrap();
        }
        alice
    });
    for i in 0..2000 {
        assert!(message(&bob).0 == pattern(i, 10_000), "message {i}");
    }
    drop(sender.join().unwrap());
}
