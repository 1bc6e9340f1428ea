//! The daemon goes, and comes again.

use std::time::Duration;

use super::*;
use crate::engine::TrySendError;

#[test]
fn all_that_was_said_is_heard_before_everything_else_is_unknown() {
    both(|stream| {
        let mut daemon = Daemon::new(stream, RING);
        let client = daemon.client();
        let (socket, number) = daemon.bind(&client, 7);
        for n in 1..=3 {
            socket.send_owned_as(Cookie(n), vec![n as u8; 10], peer()).unwrap();
        }
        for len in [100, 100_000] {
            socket.send_to(&vec![1; len], peer()).unwrap();
        }
        let ids: Vec<_> = (0..5).map(|_| daemon.sent().id).collect();
        daemon.say(&Said::Done { socket: number, id: ids[1], outcome: DELIVERED }, &[]);
        daemon.deliver(number, peer(), b"the last", false);
        daemon.say(&Said::Credit { socket: number, bytes: 100, messages: 1 }, &[]);
        daemon.die();
        until(|| (!client.attachment().attached).then_some(()));

        let mut ends = Vec::new();
        socket.completions(&mut ends);
        ends.retain(|end| !matches!(end, Completion::Released { .. }));
        ends.sort_by_key(Completion::cookie);
        let by = Guarantee::Application;
        let unknown = |n| Completion::Unknown { cookie: Cookie(n) };
        assert_eq!(ends, [unknown(1), Completion::Delivered { cookie: Cookie(2), by }, unknown(3)]);
        assert_eq!(client.attachment().unknown, 1, "the large one without a cookie");
        assert_eq!(received(&socket).0, b"the last");
        assert!(socket.flush(Duration::ZERO));
        assert_eq!(socket.try_send_to(b"x", peer()), Err(TrySendError::Full));

        daemon.accept();
        let (asked, again) = daemon.answer_bind(Status::Ok);
        let Submission::Bind { port: 7, .. } = asked else { panic!("{asked:?}") };
        until(|| socket.try_send_to(b"on", peer()).ok());
        assert_eq!(daemon.sent().payload, b"on");
        daemon.deliver(again, peer(), b"new", false);
        assert_eq!(received(&socket).0, b"new");
        let attachment = client.attachment();
        assert!(attachment.attached && attachment.reattachments == 1, "{attachment:?}");
    });
}

#[test]
fn each_payload_that_was_lent_is_released_once_and_its_memory_is_never_used_again() {
    let mut daemon = Daemon::new(false, RING);
    let client = daemon.client();
    let (socket, _) = daemon.bind(&client, 7);
    let mut buffer = client.buffer(50_000);
    buffer.fill(1);
    let at = buffer.as_ptr().addr();
    let kept = client.buffer(50_000);
    let cookie = socket.send_owned(buffer, peer()).map_err(|(error, _)| error).unwrap();
    daemon.sent();
    daemon.die();
    daemon.accept();
    daemon.answer_bind(Status::Ok);
    until(|| socket.try_send_to(b"on", peer()).ok());
    let mut ends = Vec::new();
    while ends.len() < 2 {
        assert!(socket.wait_completions(&mut ends, Some(LONG)) > 0);
    }
    assert!(ends.contains(&Completion::Unknown { cookie }), "{ends:?}");
    assert!(ends.contains(&Completion::Released { cookie, copied: true }), "{ends:?}");
    // What is of the old memory is copied into the new one.
    assert_eq!(daemon.sent().payload, b"on");
    let text = kept.to_vec();
    assert_ne!(client.buffer(50_000).as_ptr().addr(), at);
    socket.send_owned(kept, peer()).map_err(|(error, _)| error).unwrap();
    assert_eq!(daemon.sent().payload, text);
}

#[test]
fn blocked_calls_go_on_waiting_over_a_restart() {
    both(|stream| {
        let mut daemon = Daemon::new(stream, RING);
        let client = daemon.client();
        let (socket, _) = daemon.bind(&client, 7);
        let (full, _) = daemon.bind(&client, 8);
        full.send_to(&vec![0; 1 << 20], peer()).unwrap();
        daemon.sent();
        std::thread::scope(|scope| {
            let receiving = scope.spawn(|| received(&socket).0);
            let sending = scope.spawn(|| full.send_to(b"at last", peer()));
            daemon.die();
            daemon.refuse();
            daemon.accept();
            let numbers: Vec<_> = (0..2).map(|_| daemon.answer_bind(Status::Ok)).collect();
            assert_eq!(daemon.sent().payload, b"at last");
            sending.join().unwrap().unwrap();
            let port = |asked: &Submission| matches!(asked, Submission::Bind { port: 7, .. });
            let number = numbers.iter().find(|(asked, _)| port(asked)).unwrap().1;
            daemon.deliver(number, peer(), b"hello", false);
            assert_eq!(receiving.join().unwrap(), b"hello");
        });
    });
}

#[test]
fn calls_time_out_while_there_is_no_daemon() {
    let mut daemon = Daemon::new(false, RING);
    let client = daemon.client();
    let (socket, _) = daemon.bind(&client, 7);
    daemon.die();
    socket.set_recv_timeout(Some(Duration::from_millis(5)));
    socket.set_send_timeout(Some(Duration::from_millis(5)));
    assert_eq!(socket.recv_from(&mut [0; 1]), Err(RecvError::TimedOut));
    until(|| (!client.attachment().attached).then_some(()));
    let error = SendError::TimedOut(crate::engine::Blocked::Full);
    assert_eq!(socket.send_to(b"x", peer()), Err(error));
    assert!(!socket.wait_uncongested(peer(), Some(Duration::from_millis(5))));
    assert_eq!(socket.cancel_all(), 0);
}

#[test]
fn a_cancel_that_waits_for_room_ends_with_the_daemon() {
    let mut daemon = Daemon::new(false, 4096);
    let client = daemon.client();
    let (socket, _) = daemon.bind(&client, 7);
    while socket.try_send_to(&[7; 100], peer()).is_ok() {}
    std::thread::scope(|scope| {
        // The first may find room for their question, and wait for the answer.
        let cancelling: Vec<_> = (0..5).map(|_| scope.spawn(|| socket.cancel_all())).collect();
        until(|| (!client.shared().core().room.is_empty()).then_some(()));
        daemon.die();
        cancelling.into_iter().for_each(|cancel| assert_eq!(cancel.join().unwrap(), 0));
    });
    assert_eq!(socket.cancel_sent_to(peer()), 0, "nobody is there to be asked");
}

#[test]
fn a_new_daemon_hears_nothing_of_what_the_old_one_delivered() {
    let mut daemon = Daemon::new(false, RING);
    let client = daemon.client();
    let (socket, number) = daemon.bind(&client, 7);
    daemon.deliver(number, peer(), &[1; 30_000], true);
    daemon.deliver(number, peer(), &[2; 30_000], true);
    let Ok(Event::Message(held)) = socket.recv_lease() else { panic!("a message") };
    daemon.die();
    until(|| (!client.attachment().attached).then_some(()));
    daemon.accept();
    let (_, number) = daemon.answer_bind(Status::Ok);
    assert_eq!(received(&socket).0, [2; 30_000]);
    assert_eq!(held.payload[..], [1; 30_000], "the old memory is there as long as it is held");
    drop(held);
    daemon.deliver(number, peer(), &[3; 40_000], true);
    assert_eq!(received(&socket).0, [3; 40_000]);
    assert_eq!(socket.try_recv_from(&mut []), Err(RecvError::Empty));
    let (mut consumed, mut freed) = ((0, 0), 0);
    while let Some((said, _)) = daemon.poll() {
        match said {
            Submission::Consumed { bytes, messages, .. } => {
                consumed = (consumed.0 + bytes, consumed.1 + messages)
            }
            Submission::Free { offset } => {
                freed += 1;
                daemon.attached.as_mut().unwrap().receive.as_mut().unwrap().free(offset).unwrap();
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((consumed, freed), ((40_000, 1), 1));
}

#[test]
fn a_port_that_cannot_be_had_again_is_an_error_that_says_so() {
    let mut daemon = Daemon::new(false, RING);
    let client = daemon.client();
    let (socket, number) = daemon.bind(&client, 7);
    daemon.deliver(number, peer(), b"kept", false);
    daemon.die();
    daemon.accept();
    daemon.answer_bind(Status::NotAllowed);
    let lost = BindError::NotAllowed(7);
    assert_eq!(received(&socket).0, b"kept");
    assert_eq!(socket.recv_from(&mut [0; 1]), Err(RecvError::PortLost(lost)));
    assert_eq!(socket.send_to(b"x", peer()), Err(SendError::PortLost(lost)));
}

#[test]
fn a_port_that_somebody_still_has_is_asked_for_again() {
    let mut daemon = Daemon::new(false, RING);
    let client = daemon.client();
    let (socket, _) = daemon.bind(&client, 7);
    daemon.die();
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| received(&socket).0);
        daemon.accept();
        daemon.answer_bind(Status::InUse);
        let (_, number) = daemon.answer_bind(Status::Ok);
        daemon.deliver(number, peer(), b"hello", false);
        assert_eq!(receiving.join().unwrap(), b"hello");
    });
}

#[test]
fn a_goodbye_ends_the_attachment_after_what_was_said_before() {
    let mut daemon = Daemon::new(false, RING);
    let client = daemon.client();
    let (socket, number) = daemon.bind(&client, 7);
    daemon.deliver(number, peer(), b"before", false);
    daemon.say(&Said::Goodbye { code: 1, body_len: 3 }, b"why");
    assert_eq!(received(&socket).0, b"before");
    until(|| {
        let _ = socket.try_recv_from(&mut []);
        (!client.attachment().attached).then_some(())
    });
    daemon.accept();
    daemon.answer_bind(Status::Ok);
    until(|| socket.try_send_to(b"on", peer()).ok());
}
