//! What is bounded although a client does not read, and what it hears in spite of that.

mod common;

use common::honest::Honest;
use common::raw::{REPLY, RING, Raw};
use common::{Daemon, LONG};
use rds_client::{Received, RecvError, TrySendError};
use rds_core::attach::{Sharing, Submission, Where};

const DONE: u8 = 66;
const CONGESTED: u8 = 69;
const UNCONGESTED: u8 = 70;

fn send(socket: u32, id: u32, to: &str, payload: Where) -> Submission {
    let to = to.parse().unwrap();
    Submission::Send { socket, id, to, wants_end: true, mode: None, payload }
}

#[test]
fn a_length_that_makes_a_batchs_count_overflow_ends_its_client_alone() {
    let daemon = Daemon::at(&["127.47.1.1"]);
    let mut honest = Honest::at(&daemon);
    let mut raw = Raw::attach(&daemon.path());
    raw.bind(1, 0);
    raw.put(&send(1, 1, "127.47.1.1:9", Where::Inline(5)), b"hello");
    raw.put(&send(1, 2, "127.47.1.1:9", Where::Arena { offset: 0, len: u32::MAX }), &[]);
    raw.publish();
    let why = raw.ended();
    assert!(why.contains("not within the arena"), "{why}");
    honest.goes_on();
}

#[test]
fn ends_that_a_client_does_not_read_are_bounded_and_all_told_once_it_does() {
    const MOST: u32 = 60_000;
    let daemon = Daemon::at(&["127.47.1.2"]);
    let mut honest = Honest::at(&daemon);
    let mut raw = Raw::attach(&daemon.path());
    raw.bind(1, 0);
    let (mut sent, mut stuck, mut unread) = (0, 0, u64::MAX);
    // Nobody has the port, so each send ends at once; its room in the send buffer is free again.
    while stuck < 20 {
        while sent < MOST && raw.unread() < RING as u64 - 256 {
            raw.put(&send(1, sent, "127.47.1.2:9", Where::Inline(0)), &[]);
            sent += 1;
            unread = u64::MAX;
        }
        raw.publish();
        assert!(sent < MOST, "the daemon holds all that is not read");
        // The service thread has looked at everybody meanwhile.
        honest.goes_on();
        stuck = if raw.unread() == unread { stuck + 1 } else { 0 };
        unread = raw.unread();
    }
    for id in 0..sent {
        let said = raw.wait();
        assert_eq!((said.kind, said.id), (DONE, id), "each, once, in order");
    }
}

#[test]
fn a_client_that_holds_every_lease_still_hears_all_but_messages() {
    let daemon = Daemon::at(&["127.47.1.3"]);
    let mut raw = Raw::attach(&daemon.path());
    let bind = Submission::Bind {
        request: 1,
        socket: 1,
        port: 7,
        sharing: Sharing::Exclusive,
        send_buffer: 0,
        receive_buffer: 8 << 20,
    };
    raw.put(&bind, &[]);
    raw.publish();
    raw.reply(1);
    // Its arena has room for a few of them at most.
    let node = daemon.attach();
    let sender = node.bind(0).unwrap();
    sender.set_send_timeout(Some(LONG));
    for _ in 0..6 {
        sender.send_to(&vec![1; 700 << 10], "127.47.1.3:7".parse().unwrap()).unwrap();
    }
    // The answer comes after the daemon has had them.
    let _ = node.snapshot();
    let messages = std::iter::from_fn(|| raw.next()).map(|said| assert_eq!(said.kind, common::raw::MESSAGE));
    assert!((1..6).contains(&messages.count()), "some, but not all");
    raw.put(&send(1, 5, "127.47.1.3:9", Where::Inline(0)), &[]);
    raw.put(&Submission::Snapshot { request: 9, queues: false }, &[]);
    raw.publish();
    assert_eq!(raw.wait().kind, DONE);
    let said = raw.wait();
    assert_eq!((said.kind, said.id), (REPLY, 9));
}

#[test]
fn what_waited_for_room_at_the_node_is_free_again_when_it_is_cancelled() {
    let daemon = Daemon::at(&["127.47.1.4"]);
    let nobody = "127.47.255.4:9";
    let (mut first, mut second) = (Raw::attach(&daemon.path()), Raw::attach(&daemon.path()));
    for raw in [&mut first, &mut second] {
        let bind = Submission::Bind {
            request: 1,
            socket: 1,
            port: 7,
            sharing: Sharing::Balance,
            send_buffer: 1 << 20,
            receive_buffer: 0,
        };
        raw.put(&bind, &[]);
        raw.publish();
        raw.reply(1);
    }
    // What one has left behind takes the room of the port that the other has.
    first.put(&send(1, 1, nobody, Where::Arena { offset: 0, len: (1 << 20) - 1 }), &[]);
    first.put(&send(1, 2, nobody, Where::Arena { offset: 0, len: 1 << 20 }), &[]);
    first.put(&Submission::Close { request: 2, socket: 1, drain: true }, &[]);
    first.publish();
    first.reply(2);
    second.put(&send(1, 1, nobody, Where::Inline(1)), b"a");
    second.put(&send(1, 2, nobody, Where::Inline(1)), b"b");
    second.put(&Submission::Cancel { request: 3, socket: 1, to: None }, &[]);
    second.publish();
    let mut told = Vec::new();
    loop {
        let said = second.wait();
        if said.kind == REPLY {
            assert_eq!(said.id, 3);
            break;
        }
        told.push(said.kind);
    }
    assert_eq!(told.iter().filter(|kind| **kind == DONE).count(), 2, "{told:?}");
    assert!(told.contains(&CONGESTED), "the test makes the port's buffer full: {told:?}");
    assert!(told.contains(&UNCONGESTED), "it is not congested, and nobody else will say so: {told:?}");
}

#[test]
fn a_port_whose_buffer_a_quota_cuts_is_free_again_once_all_was_received() {
    let daemon = Daemon::with(&["127.47.1.5"], |settings| settings.quotas.client.receive_bytes = 128 << 10);
    let receiver = daemon.attach().bind(7).unwrap();
    let sender = daemon.attach().bind(0).unwrap();
    receiver.set_recv_timeout(Some(LONG));
    sender.set_send_timeout(Some(LONG));
    let to = receiver.local_addr();
    let mut buffer = vec![0; 64 << 10];
    for _ in 0..5 {
        // Until it is congested: far less than what the receiver believes to have.
        let mut sent = 0;
        loop {
            match sender.try_send_to(&buffer, to) {
                Ok(()) => sent += 1,
                Err(TrySendError::Congested) => break,
                Err(TrySendError::Full) => {}
                Err(other) => panic!("{other}"),
            }
        }
        for _ in 0..sent {
            assert!(matches!(receiver.recv_from(&mut buffer), Ok(Received::Message { .. })));
        }
        assert!(matches!(receiver.try_recv_from(&mut buffer), Err(RecvError::Empty)));
        sender.send_to(&buffer, to).expect("it has room again");
        assert!(matches!(receiver.recv_from(&mut buffer), Ok(Received::Message { .. })));
    }
}
