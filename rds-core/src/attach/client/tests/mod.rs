//! A program at a daemon that the test plays.

mod daemon;
mod restart;

use std::net::SocketAddr;
use std::time::Duration;

use self::daemon::{ARENA, Daemon, LONG, until};
use super::super::{Completion as Said, Setting, Status, Submission, Where};
use super::book::NAMELESS;
use crate::engine::parker::Parker;
use crate::engine::wait::Waits;
use crate::engine::{Completion, Cookie, Event, Readiness, Received, RecvError, SendError, TrySendError};
use crate::proto::{self, BindError, Guarantee, Outcome};

const RING: u32 = 256 << 10;
const DELIVERED: Outcome = Outcome::Delivered(Guarantee::Application);

fn peer() -> SocketAddr {
    "127.44.0.2:9".parse().unwrap()
}

fn both(test: impl Fn(bool)) {
    test(false);
    test(true);
}

fn received(socket: &super::Socket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = vec![0; 1 << 20];
    match socket.recv_from(&mut buffer) {
        Ok(Received::Message { len, full_len, from }) => {
            assert_eq!(len, full_len);
            buffer.truncate(len);
            (buffer, from)
        }
        other => panic!("a message was expected: {other:?}"),
    }
}

#[test]
fn small_payloads_go_through_the_ring_and_large_ones_through_the_arena() {
    both(|stream| {
        let mut daemon = Daemon::new(stream, RING);
        let client = daemon.client();
        let (socket, number) = daemon.bind(&client, 7);
        assert_eq!(socket.local_addr(), SocketAddr::new(Daemon::address(), 7));
        for len in [0, 1, 4096, 4097, 300_000, 1 << 20] {
            let payload: Vec<u8> = (0..len).map(|i| i as u8).collect();
            socket.send_to(&payload, peer()).unwrap();
            let sent = daemon.sent();
            assert_eq!((sent.socket, sent.to, sent.wants_end), (number, peer(), false));
            assert!(sent.payload == payload, "{len}");
            assert_eq!(matches!(sent.place, Where::Arena { .. }), !stream && len > 4096, "{len}");
            assert_eq!(sent.id == NAMELESS, !matches!(sent.place, Where::Arena { .. }));
            daemon.say(&Said::Credit { socket: number, bytes: len, messages: 1 }, &[]);
            if sent.id != NAMELESS {
                daemon.say(&Said::Released { socket: number, id: sent.id, copied: true }, &[]);
            }
            assert!(socket.flush(LONG));
        }
    });
}

#[test]
fn a_buffer_of_the_arena_is_sent_from_where_it_lies_and_comes_back_once() {
    let mut daemon = Daemon::new(false, RING);
    let client = daemon.client();
    let (socket, number) = daemon.bind(&client, 7);
    let mut buffer = client.buffer(100_000);
    buffer.fill(5);
    let cookie = socket.send_owned(buffer, peer()).map_err(|(error, _)| error).unwrap();
    let sent = daemon.sent();
    let Where::Arena { offset, .. } = sent.place else { panic!("it lies in the arena") };
    assert!(sent.wants_end && sent.payload.iter().all(|byte| *byte == 5));
    let other = client.buffer(100_000);
    let cookie2 = socket.send_owned(other, peer()).map_err(|(error, _)| error).unwrap();
    let Where::Arena { offset: elsewhere, .. } = daemon.sent().place else { panic!("likewise") };
    assert_ne!(offset, elsewhere, "the first is still on its way");

    let mut ends = Vec::new();
    assert_eq!(socket.completions(&mut ends), 0);
    // In whatever order, and were it told twice.
    for _ in 0..2 {
        daemon.say(&Said::Released { socket: number, id: sent.id, copied: false }, &[]);
        daemon.say(&Said::Done { socket: number, id: sent.id, outcome: DELIVERED }, &[]);
    }
    while ends.len() < 2 {
        assert!(socket.wait_completions(&mut ends, Some(LONG)) > 0);
    }
    ends.sort_by_key(|end| matches!(end, Completion::Released { .. }));
    let by = Guarantee::Application;
    assert_eq!(ends, [Completion::Delivered { cookie, by }, Completion::Released { cookie, copied: false }]);
    assert!(!socket.flush(Duration::ZERO), "{cookie2:?} has not ended");
    // There is room for as much as the whole arena holds, beside what is on its way.
    let all: Vec<_> = (0..ARENA / 100_000 - 1).map(|_| client.buffer(98_304)).collect();
    assert!(all.len() > 8);
}

#[test]
fn what_is_not_of_the_arena_is_copied_and_free_at_once() {
    both(|stream| {
        let mut daemon = Daemon::new(stream, RING);
        let client = daemon.client();
        let (socket, number) = daemon.bind(&client, 7);
        for len in [10, 100_000] {
            let cookie = socket.send_owned(vec![1; len], peer()).map_err(|(error, _)| error).unwrap();
            let mut ends = Vec::new();
            assert_eq!(socket.completions(&mut ends), 1);
            assert_eq!(ends, [Completion::Released { cookie, copied: true }]);
            let sent = daemon.sent();
            assert_eq!(sent.payload, vec![1; len]);
            daemon.say(&Said::Done { socket: number, id: sent.id, outcome: Outcome::Cancelled }, &[]);
            ends.clear();
            assert_eq!(socket.wait_completions(&mut ends, Some(LONG)), 1);
            assert_eq!(ends, [Completion::Cancelled { cookie }]);
        }
    });
}

#[test]
fn sends_are_refused_as_a_node_refuses_them_and_in_its_order() {
    let mut daemon = Daemon::new(false, RING);
    let client = daemon.client();
    let (socket, number) = daemon.bind(&client, 7);
    let refused = |error: proto::SendError| Err(TrySendError::Refused(SendError::Refused(error)));
    assert_eq!(socket.send(b"x"), Err(SendError::NotConnected));
    let big = vec![0; (1 << 20) + 1];
    let wild = "0.0.0.0:9".parse().unwrap();
    let other: SocketAddr = "[2001:db8::1]:9".parse().unwrap();
    let mapped: SocketAddr = "[::ffff:127.44.0.2]:9".parse().unwrap();
    assert_eq!(socket.try_send_to(&big, wild), refused(proto::SendError::InvalidDestination));
    assert_eq!(socket.try_send_to(&big, other), refused(proto::SendError::FamilyMismatch));
    assert_eq!(socket.try_send_to(&big, mapped), refused(proto::SendError::FamilyMismatch));
    assert_eq!(socket.try_send_to(&big, peer()), refused(proto::SendError::TooLarge { limit: 1 << 20 }));
    daemon.say(&Said::Congested { socket: number, to: peer() }, &[]);
    until(|| (socket.try_send_to(b"x", peer()) == Err(TrySendError::Congested)).then_some(()));
    assert_eq!(socket.try_send_to(&big, peer()), refused(proto::SendError::TooLarge { limit: 1 << 20 }));
    while daemon.poll().is_some() {}
    // Congested comes before full, and full of another destination after that.
    let free: SocketAddr = "127.44.0.3:9".parse().unwrap();
    socket.send_to(&big[..1 << 20], free).unwrap();
    assert_eq!(socket.try_send_to(b"x", free), Err(TrySendError::Full));
    assert_eq!(socket.try_send_to(b"x", peer()), Err(TrySendError::Congested));
    socket.set_send_timeout(Some(Duration::from_millis(1)));
    let timed_out = |blocked| Err(SendError::TimedOut(blocked));
    assert_eq!(socket.send_to(b"x", peer()), timed_out(crate::engine::Blocked::Congested));
    assert_eq!(socket.send_to(b"x", free), timed_out(crate::engine::Blocked::Full));
}

#[test]
fn room_and_cleared_congestion_wake_who_waits_for_them() {
    both(|stream| {
        let mut daemon = Daemon::new(stream, RING);
        let client = daemon.client();
        let (socket, number) = daemon.bind(&client, 7);
        socket.set_congestion_monitor(true);
        socket.send_to(&vec![0; 1 << 20], peer()).unwrap();
        let first = daemon.sent();
        assert_eq!(socket.wait(Readiness::WRITABLE, Some(Duration::ZERO)), Readiness::default());
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| socket.send_to(b"second", peer()));
            daemon.say(&Said::Credit { socket: number, bytes: 1 << 20, messages: 1 }, &[]);
            if first.id != NAMELESS {
                daemon.say(&Said::Released { socket: number, id: first.id, copied: false }, &[]);
            }
            assert_eq!(daemon.sent().payload, b"second");
            sending.join().unwrap().unwrap();
        });
        daemon.say(&Said::Congested { socket: number, to: peer() }, &[]);
        until(|| (socket.try_send_to(b"x", peer()) == Err(TrySendError::Congested)).then_some(()));
        while daemon.poll().is_some() {}
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| socket.send_to(b"third", peer()));
            daemon.say(&Said::Uncongested { socket: number, to: peer() }, &[]);
            assert_eq!(daemon.sent().payload, b"third");
            sending.join().unwrap().unwrap();
        });
        let mut buffer = [0; 10];
        assert_eq!(socket.recv_from(&mut buffer), Ok(Received::CongestionCleared(1 << 9)));
    });
}

#[test]
fn a_full_ring_is_a_full_buffer_until_the_daemon_reads() {
    let mut daemon = Daemon::new(false, 4096);
    let client = daemon.client();
    let (socket, _) = daemon.bind(&client, 7);
    let writable = socket.writable_fd().unwrap();
    let mut sent = 0;
    while socket.try_send_to(&[7; 100], peer()).is_ok() {
        sent += 1;
    }
    assert!(sent > 10 && sent < 40, "{sent} in 4 KiB");
    assert!(!is_readable(writable));
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| socket.send_to(b"last", peer()));
        for _ in 0..sent {
            assert_eq!(daemon.sent().payload, [7; 100]);
        }
        assert_eq!(daemon.sent().payload, b"last");
        sending.join().unwrap().unwrap();
    });
    until(|| is_readable(writable).then_some(()));
}

fn is_readable(fd: std::os::fd::BorrowedFd<'_>) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
}

#[test]
fn messages_are_leased_where_they_lie_and_their_memory_is_given_back() {
    let mut daemon = Daemon::new(false, RING);
    let client = daemon.client();
    let (socket, number) = daemon.bind(&client, 7);
    for round in 0..100_u8 {
        daemon.deliver(number, peer(), &[round; 20_000], true);
        let Ok(Event::Message(message)) = socket.recv_lease() else { panic!("a message") };
        assert_eq!((&message.payload[..], message.from), (&[round; 20_000][..], peer()));
        while let Some((said, _)) = daemon.poll() {
            assert!(
                matches!(said, Submission::Consumed { .. }),
                "nothing is given back while it is held: {said:?}"
            );
        }
        drop(message);
        let mut given = Vec::new();
        while let Some((said, _)) = daemon.poll() {
            match said {
                Submission::Free { offset } => {
                    given.push(
                        daemon.attached.as_mut().unwrap().receive.as_mut().unwrap().free(offset).unwrap(),
                    );
                }
                Submission::Consumed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(given.len(), 1);
    }
}

#[test]
fn everything_taken_is_reported_when_nothing_is_left() {
    both(|stream| {
        let mut daemon = Daemon::new(stream, RING);
        let client = daemon.client();
        let (socket, number) = daemon.bind(&client, 7);
        let mut total = (0, 0);
        for len in [0, 1, 16_384, 16_385, 100_000] {
            let payload: Vec<u8> = (0..len).map(|i| (i * 7) as u8).collect();
            daemon.deliver(number, peer(), &payload, len > 16_384);
            assert!(received(&socket) == (payload, peer()), "{len}");
            total = (total.0 + len, total.1 + 1);
        }
        assert_eq!(socket.try_recv_from(&mut [0; 10]), Err(RecvError::Empty));
        let mut told = (0, 0);
        while let Some((said, _)) = daemon.poll() {
            if let Submission::Consumed { socket, bytes, messages } = said {
                assert_eq!(socket, number);
                told = (told.0 + bytes, told.1 + messages);
            }
        }
        assert_eq!(told, total);
    });
}

#[test]
fn a_descriptor_is_readable_though_no_caller_looks() {
    both(|stream| {
        let mut daemon = Daemon::new(stream, RING);
        let client = daemon.client();
        let (socket, number) = daemon.bind(&client, 7);
        daemon.deliver(number, peer(), b"before", false);
        let fd = socket.readable_fd().unwrap();
        until(|| is_readable(fd).then_some(()));
        assert_eq!(received(&socket).0, b"before");
        assert!(!is_readable(fd));
        daemon.deliver(number, peer(), b"after", false);
        until(|| is_readable(fd).then_some(()));
        let ends = socket.completion_fd().unwrap();
        socket.send_owned_as(Cookie(9), vec![1; 4], peer()).unwrap();
        until(|| is_readable(ends).then_some(()));
        assert_eq!(socket.completions(&mut Vec::new()), 1);
        assert!(!is_readable(ends));
        let id = daemon.sent().id;
        daemon.say(&Said::Done { socket: number, id, outcome: DELIVERED }, &[]);
        until(|| is_readable(ends).then_some(()));
    });
}

#[test]
fn binds_are_refused_with_the_reason() {
    let mut daemon = Daemon::new(false, RING);
    let client = daemon.client();
    let cases = [
        (Status::Reserved, BindError::Reserved),
        (Status::InUse, BindError::InUse(7)),
        (Status::Exhausted, BindError::Exhausted),
        (Status::Quota, BindError::Quota),
        (Status::NotAllowed, BindError::NotAllowed(7)),
    ];
    for (status, error) in cases {
        let binding = client.clone();
        let thread = std::thread::spawn(move || binding.bind(7).map(|_| ()));
        daemon.answer_bind(status);
        assert_eq!(thread.join().unwrap(), Err(error));
    }
}

#[test]
fn settings_are_told_and_no_more_is_used_than_was_granted() {
    let mut daemon = Daemon::new(false, RING);
    let client = daemon.client();
    let (socket, number) = daemon.bind(&client, 7);
    std::thread::scope(|scope| {
        let setting = scope.spawn(|| {
            socket.set_send_buffer(8 << 20);
            socket.set_recv_buffer(1 << 16);
        });
        let (said, _) = daemon.next();
        let Submission::Set { request, what: Setting::SendBuffer, value, .. } = said else {
            panic!("{said:?}")
        };
        assert_eq!(value, 8 << 20);
        daemon.reply(request, Status::Ok, 2 << 20, &[]);
        let (said, _) = daemon.next();
        let Submission::Set { request, socket: of, what: Setting::ReceiveBuffer, value } = said else {
            panic!("{said:?}")
        };
        assert_eq!((of, value), (number, 1 << 16));
        daemon.reply(request, Status::Ok, 1 << 16, &[]);
        setting.join().unwrap();
    });
    let mut taken = 0;
    while socket.try_send_to(&[0; 4000], peer()).is_ok() {
        taken += 4000;
        while daemon.poll().is_some() {}
    }
    assert!((2 << 20..(2 << 20) + 4000).contains(&taken), "{taken}");
}

#[test]
fn an_answer_to_any_setting_wakes_who_waits_for_it() {
    let mut daemon = Daemon::new(false, RING);
    let client = daemon.client();
    let (socket, _) = daemon.bind(&client, 7);
    let settings: [fn(&super::Socket); 2] =
        [|socket| socket.set_send_buffer(5), |socket| socket.set_recv_buffer(5)];
    for set in settings {
        std::thread::scope(|scope| {
            scope.spawn(|| set(&socket));
            let (said, _) = daemon.next();
            let Submission::Set { request, .. } = said else { panic!("{said:?}") };
            // Registered as a caller is, whose own wait ends by itself after a second.
            let parker = Parker::take(client.shared().right());
            socket.mailbox.back().wait_send(&parker);
            daemon.reply(request, Status::Ok, 5, &[]);
            until(|| parker.notified().then_some(()));
            socket.mailbox.forget(&parker);
        });
    }
}

#[test]
fn questions_are_answered_and_a_long_answer_comes_in_parts() {
    let mut daemon = Daemon::new(false, RING);
    let client = daemon.client();
    let (socket, number) = daemon.bind(&client, 7);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| socket.cancel_sent_to(peer()));
        let (said, _) = daemon.next();
        let Submission::Cancel { request, socket: of, to } = said else { panic!("{said:?}") };
        assert_eq!((of, to), (number, Some(peer())));
        daemon.reply(request, Status::Ok, 3, &[]);
        assert_eq!(asking.join().unwrap(), 3);

        let asking = scope.spawn(|| socket.wait_uncongested(peer(), Some(LONG)));
        let (said, _) = daemon.next();
        let Submission::Watch { request, .. } = said else { panic!("{said:?}") };
        daemon.reply(request, Status::Ok, 1, &[]);
        daemon.say(&Said::Uncongested { socket: number, to: peer() }, &[]);
        let request = loop {
            // It may ask once more, when the news was faster than the answer's reader.
            if asking.is_finished() {
                break None;
            }
            if let Some((Submission::Watch { request, .. }, _)) = daemon.poll() {
                break Some(request);
            }
        };
        if let Some(request) = request {
            daemon.reply(request, Status::Ok, 0, &[]);
        }
        assert!(asking.join().unwrap());

        let asking = scope.spawn(|| client.snapshot(true).unwrap());
        let (said, _) = daemon.next();
        let Submission::Snapshot { request, queues: true } = said else { panic!("{said:?}") };
        let json = serde_json::to_vec(&client.own_snapshot()).unwrap();
        let (a, b) = json.split_at(json.len() / 2);
        daemon.reply(request, Status::Ok, b.len() as u64, a);
        daemon.reply(request, Status::Ok, 0, b);
        assert_eq!(asking.join().unwrap().sockets[0].bound, socket.local_addr());
    });
}

#[test]
fn an_answer_without_end_is_an_error_and_takes_no_more_memory() {
    let mut daemon = Daemon::new(false, 1 << 20);
    let client = daemon.client();
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| client.snapshot(true).map(drop).unwrap_err());
        let (said, _) = daemon.next();
        let Submission::Snapshot { request, .. } = said else { panic!("{said:?}") };
        let (part, end) = (vec![b' '; 100_000], std::time::Instant::now() + LONG);
        while !asking.is_finished() {
            assert!(std::time::Instant::now() < end, "it takes whatever comes");
            if !daemon.try_reply(request, 1, &part) {
                std::thread::yield_now();
            }
        }
        assert!(asking.join().unwrap().to_string().contains("too long"));
    });
}

#[test]
fn a_socket_that_goes_says_how_and_its_number_is_used_again_once_that_is_answered() {
    let mut daemon = Daemon::new(false, RING);
    let client = daemon.client();
    for drain in [true, false] {
        let (socket, number) = daemon.bind(&client, 7);
        if drain {
            drop(socket)
        } else {
            socket.close()
        }
        let (said, _) = daemon.next();
        let Submission::Close { request, socket: of, drain: said } = said else { panic!("{said:?}") };
        assert_eq!((of, said), (number, drain));
        // A message that was on its way to it.
        daemon.deliver(number, peer(), &[1; 20_000], true);
        let (other, another) = daemon.bind(&client, 8);
        assert_ne!(number, another);
        let offset = until(|| match daemon.poll() {
            Some((Submission::Free { offset }, _)) => Some(offset),
            _ => {
                let _ = other.try_recv_from(&mut []);
                None
            }
        });
        daemon.attached.as_mut().unwrap().receive.as_mut().unwrap().free(offset).unwrap();
        daemon.reply(request, Status::Ok, 0, &[]);
        drop(other);
        let (said, _) = daemon.next();
        let Submission::Close { request, .. } = said else { panic!("{said:?}") };
        daemon.reply(request, Status::Ok, 0, &[]);
    }
}

#[test]
fn a_shutdown_cancels_what_does_not_end_and_tells_every_end() {
    let mut daemon = Daemon::new(false, RING);
    let client = daemon.client();
    let (socket, number) = daemon.bind(&client, 7);
    let cookie = socket.send_owned(vec![1; 10], peer()).map_err(|(error, _)| error).unwrap();
    let id = daemon.sent().id;
    std::thread::scope(|scope| {
        let ending = scope.spawn(|| client.shutdown(Duration::from_millis(10)));
        let (said, _) = daemon.next();
        let Submission::Cancel { request, to: None, .. } = said else { panic!("{said:?}") };
        daemon.say(&Said::Done { socket: number, id, outcome: Outcome::Cancelled }, &[]);
        daemon.reply(request, Status::Ok, 1, &[]);
        assert_eq!(ending.join().unwrap().undelivered, 1);
    });
    let mut ends = Vec::new();
    socket.completions(&mut ends);
    assert_eq!(ends, [Completion::Released { cookie, copied: true }, Completion::Cancelled { cookie }]);
    assert_eq!(socket.recv_from(&mut [0; 1]), Err(RecvError::Shutdown));
    let error = TrySendError::Refused(SendError::Refused(proto::SendError::ShuttingDown));
    assert_eq!(socket.try_send_to(b"x", peer()), Err(error));
    assert_eq!(client.bind(8).map(|_| ()), Err(BindError::ShuttingDown));
}
