//! The ends of nodes.

mod common;

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use common::{LONG, builder, message, net, pair, pattern};
use rds_client::{BindError, Event, Readiness, RecvError, SendError};

#[test]
fn everything_queued_arrives_before_a_shutdown_ends() {
    let p = pair();
    p.alice.set_send_buffer(16 << 20);
    p.bob.set_recv_buffer(16 << 20);
    for i in 0..300 {
        p.alice.send_to(&pattern(i, 20_000), p.bob.local_addr()).unwrap();
    }
    let reader = thread::spawn(move || {
        for i in 0..300 {
            assert!(message(&p.bob).0 == pattern(i, 20_000), "message {i}");
        }
    });
    assert_eq!(p.a.shutdown(LONG).undelivered, 0);
    reader.join().unwrap();
}

#[test]
fn a_shutdown_reports_what_could_not_be_delivered() {
    let net = net();
    let a = builder(net(1)).open().unwrap();
    let alice = a.bind(5).unwrap();
    for _ in 0..3 {
        alice.send_to(b"nobody", SocketAddr::new(net(2), 5)).unwrap();
    }
    assert_eq!(a.shutdown(Duration::from_millis(5)).undelivered, 3);
}

#[test]
fn a_shutdown_without_a_limit_ends_when_another_one_does() {
    let net = net();
    let a = builder(net(1)).open().unwrap();
    let alice = a.bind(5).unwrap();
    let nobody = SocketAddr::new(net(2), 5);
    alice.send_to(b"nobody", nobody).unwrap();
    thread::scope(|scope| {
        let patient = scope.spawn(|| a.shutdown(Duration::MAX));
        // The patient one has begun when sends are refused.
        while alice.try_send_to(b"more", SocketAddr::new(net(1), 6)).is_ok() {
            thread::yield_now();
        }
        a.shutdown(Duration::from_millis(5));
        assert!(patient.join().unwrap().undelivered >= 1);
    });
}

#[test]
fn a_shutdown_refuses_sends_and_sockets_and_ends_every_wait() {
    let p = pair();
    p.alice.set_recv_timeout(None);
    let to = p.bob.local_addr();
    thread::scope(|scope| {
        let receivers: Vec<_> = (0..3).map(|_| scope.spawn(|| p.alice.recv_lease())).collect();
        let waiter = scope.spawn(|| p.alice.wait(Readiness::READABLE, None));
        p.a.shutdown(LONG);
        for receiver in receivers {
            assert_eq!(receiver.join().unwrap(), Err(RecvError::Shutdown));
        }
        waiter.join().unwrap();
    });
    let refused = Err(SendError::Refused(rds_core::proto::SendError::ShuttingDown));
    assert_eq!(p.alice.send_to(b"x", to), refused);
    assert!(matches!(p.a.bind(0), Err(BindError::ShuttingDown)));
    assert_eq!(p.alice.recv_lease(), Err(RecvError::Shutdown));
    assert_eq!(p.alice.peek_from(&mut []), Err(RecvError::Shutdown));
}

#[test]
fn what_was_received_can_be_taken_after_a_shutdown() {
    let p = pair();
    p.alice.send_to(b"kept", p.bob.local_addr()).unwrap();
    assert!(p.bob.wait(Readiness::READABLE, Some(LONG)).readable);
    p.b.shutdown(LONG);
    let Event::Message(m) = p.bob.recv_lease().unwrap() else { panic!("a message was expected") };
    assert_eq!(&m.payload[..], b"kept");
    assert_eq!(p.bob.recv_lease(), Err(RecvError::Shutdown));
}

#[test]
fn a_shutdown_frees_the_address_for_the_next_node() {
    let net = net();
    for _ in 0..3 {
        let a = builder(net(1)).open().unwrap();
        let kept = a.bind(5).unwrap();
        a.shutdown(LONG);
        a.shutdown(LONG);
        drop(kept);
    }
}

#[test]
fn dropping_the_last_handle_delivers_what_is_queued() {
    let p = pair();
    for i in 0..50 {
        p.alice.send_to(&pattern(i, 10_000), p.bob.local_addr()).unwrap();
    }
    drop(p.a);
    drop(p.alice);
    for i in 0..50 {
        assert_eq!(message(&p.bob).0, pattern(i, 10_000));
    }
}

#[test]
fn a_socket_keeps_its_node_open() {
    let p = pair();
    drop((p.a, p.b));
    p.alice.send_to(b"still", p.bob.local_addr()).unwrap();
    assert_eq!(message(&p.bob).0, b"still");
}

#[test]
fn messages_for_a_node_that_comes_back_arrive_there() {
    let p = pair();
    p.alice.send_to(b"one", p.bob.local_addr()).unwrap();
    assert_eq!(message(&p.bob).0, b"one");
    assert!(p.alice.flush(LONG));
    let (address, to) = (p.b.address(), p.bob.local_addr());
    p.b.shutdown(LONG);
    drop((p.b, p.bob));
    // Not begun while nobody is there, so not unknown: it is for whoever has the address next.
    let b = builder(address).open().unwrap();
    let bob = b.bind(to.port()).unwrap();
    bob.set_recv_timeout(Some(LONG));
    p.alice.send_to(b"two", to).unwrap();
    assert_eq!(message(&bob).0, b"two");
    assert!(p.alice.flush(LONG));
}
