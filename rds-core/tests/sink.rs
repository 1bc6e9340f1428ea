//! Ports with a sink, over real sockets: what is sent from shared memory and received into it, how sends end, what is held back.

mod client;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use client::{Client, Pair, Way, counter, engine, pattern};
use rds_core::info::Counter;
use rds_core::proto::{Guarantee, Outcome, Payload, SendError, Token};
use rds_core::zerocopy::Mode;

const DELIVERED: Outcome = Outcome::Delivered(Guarantee::Application);

#[test]
fn payloads_come_from_one_clients_memory_into_anothers() {
    for (net, mode) in [(40, Mode::Off), (41, Mode::On), (42, Mode::Auto)] {
        let pair = Pair::new(net, mode);
        let mut cookie = 0;
        for round in 0..6 {
            for len in [0, 1, 64, 600, 5000, 16 << 10, 64 << 10, 200_000, 1 << 20] {
                let expected = pattern(len, round);
                let span = pair.a.payload(usize::from(round) * (1 << 20) + 3, len, round);
                // Lent, copied at once, and of the caller's own.
                let payload = match cookie % 3 {
                    0 => pair.a.lend(&span, cookie, None),
                    1 => Payload::Shared(&span),
                    _ => Payload::Copy(&expected),
                };
                pair.send(payload, u64::from(cookie)).unwrap();
                let got = pair.b.take();
                assert!(got.bytes == expected, "{len} bytes, {mode:?}");
                assert_eq!(got.from, pair.from.local_addr());
                pair.consumed(len, 1);
                cookie += 1;
            }
        }
        let n = cookie as usize;
        let lent = (0..cookie).filter(|cookie| cookie % 3 == 0);
        let a = pair.a.wait("every end, once", |s| s.ended.len() >= n);
        assert!(a.ended.iter().copied().eq((0..n as u64).map(|token| (token, DELIVERED))), "{:?}", a.ended);
        drop(a);
        let a = pair.a.wait("every release", |s| s.released.len() >= lent.clone().count());
        assert!(a.released.keys().copied().eq(lent));
        drop(a);
        assert!(pair.b.has_all(), "all memory is back");
        let snapshot = pair.to.engine().snapshot(false);
        assert_eq!(snapshot.receive_queued, 0, "all was consumed");
        assert_eq!(snapshot.counters.get(Counter::RecvDelivered), n as u64);
    }
}

#[test]
fn what_a_client_changes_while_it_is_sent_breaks_nothing_but_that_message() {
    for (net, mode) in [(43, Mode::Off), (44, Mode::On)] {
        let pair = Pair::new(net, mode);
        let stop = AtomicBool::new(false);
        let marker = pattern(100, 9);
        std::thread::scope(|scope| {
            // The client writes all over its memory meanwhile.
            scope.spawn(|| {
                let mut seed = 0;
                while !stop.load(SeqCst) {
                    seed += 1;
                    pair.a.sends.copy_in(0, &[seed; 300_000]);
                    seed = seed.wrapping_mul(7) % 200;
                }
            });
            for n in 0..300_u32 {
                let len = [600, 20_000, 64 << 10, 300_000][n as usize % 4];
                let span = pair.a.sends.span(0, len).unwrap();
                let payload = if n % 5 == 0 { Payload::Shared(&span) } else { pair.a.lend(&span, n, None) };
                pair.send(payload, u64::from(n)).unwrap();
                pair.send(Payload::Copy(&marker), 1 << 32 | u64::from(n)).unwrap();
                assert_eq!(pair.b.take().bytes.len() as u64, len);
                assert_eq!(pair.b.take().bytes, marker);
                pair.consumed(len as usize + 100, 2);
            }
            stop.store(true, SeqCst);
        });
        let a = pair.a.wait("every end", |s| s.ended.len() >= 600);
        assert!(a.ended.iter().all(|(_, outcome)| *outcome == DELIVERED));
        drop(a);
        for of in [&pair.from, &pair.to] {
            let count = |c| counter(of.engine(), c);
            assert_eq!((count(Counter::ProtocolErrors), count(Counter::ConnReset)), (0, 0));
        }
        assert!(pair.b.has_all());
    }
}

#[test]
fn a_message_is_published_before_it_is_acknowledged() {
    let pair = Pair::new(45, Mode::Off);
    *pair.a.other.lock().unwrap() = Some(Arc::clone(&pair.b));
    let span = pair.a.payload(0, 20_000, 1);
    for n in 0..200 {
        let payload = if n % 2 == 0 { Payload::Shared(&span) } else { Payload::Copy(b"small") };
        pair.send(payload, n).unwrap();
        pair.consumed(pair.b.take().len(), 1);
    }
    let a = pair.a.wait("the ends", |s| s.ended.len() == 200);
    for (i, published) in a.published_then.iter().enumerate() {
        assert!(*published > i, "{published} were published when message {i} had ended");
    }
}

#[test]
fn neighbours_cost_one_copy_and_obey_congestion() {
    let node = engine(46, 1, Mode::On, |_| ());
    let (a, b) = (Client::new(1), Client::new(4));
    let from = node.bind_sink(10, Arc::clone(&a) as _).unwrap();
    let to = node.bind_sink(20, Arc::clone(&b) as _).unwrap();
    let span = a.payload(0, 100_000, 3);
    let send = |payload, token| {
        node.batch(|batch| {
            batch.send(&from, to.local_addr(), payload, Some(Token(token))).map_err(|rejected| {
                if let Payload::Owned(chunk) = rejected.payload {
                    chunk.withdraw();
                }
                rejected.error
            })
        })
    };
    node.batch(|batch| batch.set_receive_buffer(&to, 150_000));
    send(Payload::Shared(&span), 0).unwrap();
    send(a.lend(&span, 1, None), 1).unwrap();
    // Past its buffer now.
    assert_eq!(send(a.lend(&span, 2, None), 2), Err(SendError::Congested));
    assert!(node.batch(|batch| batch.watch_congestion(&from, to.local_addr())));
    assert_eq!(b.state().pressed, [true]);
    assert_eq!(b.state().pressed_flushed, 1, "whoever is to look at it hears of it");
    for _ in 0..2 {
        let got = b.take();
        assert!(got.bytes == pattern(100_000, 3) && got.way == Way::Copied && got.from == from.local_addr());
    }
    node.batch(|batch| batch.consumed(&to, 200_000, 2));
    assert_eq!(
        (a.state().uncongested.clone(), b.state().pressed.clone()),
        (vec![to.local_addr()], vec![true, false])
    );
    assert_eq!(b.state().pressed_flushed, 2);
    send(a.lend(&span, 3, None), 3).unwrap();
    let tokens: Vec<u64> = a.state().ended.iter().map(|(token, _)| *token).collect();
    assert_eq!(tokens, [0, 1, 3]);
    let released: Vec<_> = a.state().released.clone().into_iter().collect();
    assert_eq!(released, [(1, true), (3, true)], "the refused one was taken back");
    // From a port with a sink to a socket, and back.
    let socket = node.bind(30).unwrap();
    node.batch(|batch| batch.send(&from, socket.local_addr(), Payload::Shared(&span), None)).unwrap();
    let mut buffer = vec![0; 200_000];
    let rds_core::engine::Received::Message { len, .. } = socket.recv_from(&mut buffer).unwrap() else {
        panic!()
    };
    assert!(buffer[..len] == pattern(100_000, 3));
    socket.send_to(b"back", from.local_addr()).unwrap();
    assert_eq!(a.take().bytes, b"back");
}

#[test]
fn a_full_send_buffer_is_refused_and_room_is_told() {
    let node = engine(47, 1, Mode::Off, |_| ());
    let a = Client::new(1);
    let port = node.bind_sink(10, Arc::clone(&a) as _).unwrap();
    let (nobody, span) = ("127.41.47.9:10".parse().unwrap(), a.payload(0, 60_000, 1));
    let send = || {
        let sent = node.batch(|batch| batch.send(&port, nobody, Payload::Shared(&span), Some(Token(1))));
        sent.map_err(|rejected| rejected.error)
    };
    node.batch(|batch| batch.set_send_buffer(&port, 100_000));
    assert_eq!([send(), send()], [Ok(()), Ok(())], "the second while the first leaves room");
    assert_eq!(send(), Err(SendError::Full));
    assert!(!node.batch(|batch| batch.watch_writable(&port)));
    assert_eq!(a.state().writable, 0);
    assert_eq!(node.batch(|batch| batch.cancel(&port, None, |_| true)), 2);
    assert_eq!((a.state().writable, send()), (1, Ok(())));
    let error =
        node.batch(|batch| batch.send(&port, nobody, Payload::Copy(&[0; 200_000]), None)).unwrap_err();
    assert_eq!(error.error, SendError::TooLarge { limit: 100_000 });
}

#[test]
fn a_closed_port_gives_back_all_that_was_lent() {
    let node = engine(48, 1, Mode::On, |_| ());
    for drain in [false, true] {
        let a = Client::new(1);
        let port = node.bind_sink(10, Arc::clone(&a) as _).unwrap();
        let span = a.payload(0, 30_000, 1);
        // Nobody is there.
        let nobody = "127.41.48.9:10".parse().unwrap();
        for cookie in 0..20 {
            let payload = a.lend(&span, cookie, None);
            node.batch(|batch| batch.send(&port, nobody, payload, Some(Token(cookie.into())))).unwrap();
        }
        port.close(drain);
        if drain {
            assert!(a.state().released.is_empty(), "they are still to be delivered");
            node.shutdown(std::time::Duration::ZERO);
        }
        let state = a.wait("every release", |s| s.released.len() == 20);
        assert!(state.released.values().all(|copied| !copied), "none was sent");
        assert!(state.ended.is_empty(), "nobody is there to hear it");
        drop(state);
    }
}

#[test]
fn a_client_cancels_its_own_messages_of_a_shared_port() {
    let node = engine(49, 1, Mode::Off, |_| ());
    let a = Client::new(1);
    let port = node.bind_sink(10, Arc::clone(&a) as _).unwrap();
    let nobody = "127.41.49.9:10".parse().unwrap();
    let span = a.payload(0, 1000, 1);
    for n in 0..40_u64 {
        let payload = if n % 4 < 2 { a.lend(&span, n as u32, None) } else { Payload::Copy(b"small") };
        node.batch(|batch| batch.send(&port, nobody, payload, Some(Token(n)))).unwrap();
    }
    let odd = |token: Option<Token>| token.is_some_and(|token| token.0 % 2 == 1);
    assert_eq!(node.batch(|batch| batch.cancel(&port, Some(nobody), odd)), 20);
    assert_eq!(node.batch(|batch| batch.cancel(&port, None, odd)), 0);
    let state = a.state();
    assert!(state.ended.iter().copied().eq((0..40).filter(|n| n % 2 == 1).map(|n| (n, Outcome::Cancelled))));
    assert!(state.released.keys().all(|cookie| cookie % 2 == 1) && state.released.len() == 10);
    drop(state);
    assert_eq!(node.batch(|batch| batch.cancel(&port, None, |_| true)), 20);
}

#[test]
fn a_client_pins_no_more_than_its_part() {
    let pair = Pair::new(50, Mode::On);
    let (little, none) =
        (pair.from.engine().pin_share(Some(300 << 10)), pair.from.engine().pin_share(Some(0)));
    let span = pair.a.payload(0, 64 << 10, 5);
    for cookie in 0..60 {
        let share = [None, Some(&little), Some(&none)][cookie as usize % 3];
        pair.send(pair.a.lend(&span, cookie, share), cookie.into()).unwrap();
    }
    for _ in 0..60 {
        let got = pair.b.take();
        assert!(got.bytes == pattern(64 << 10, 5));
        pair.consumed(got.bytes.len(), 1);
    }
    let state = pair.a.wait("every release", |s| s.released.len() == 60);
    assert!(state.released.iter().filter(|(cookie, _)| *cookie % 3 == 2).all(|(_, copied)| *copied));
    let pages = (300 << 10) / 4096;
    assert!(little.max_used() <= pages && none.max_used() == 0 && little.used() == 0, "{little:?}");
    drop(state);
    assert!(little.max_used() > 0, "something was pinned");
}

#[test]
fn a_node_that_is_shut_down_says_so_and_ends_every_message() {
    let node = engine(51, 1, Mode::Off, |_| ());
    let a = Client::new(1);
    let port = node.bind_sink(10, Arc::clone(&a) as _).unwrap();
    let nobody = "127.41.51.9:10".parse().unwrap();
    node.batch(|batch| batch.send(&port, nobody, Payload::Copy(b"x"), Some(Token(5)))).unwrap();
    node.shutdown(std::time::Duration::ZERO);
    let state = a.wait("the end", |s| s.closed);
    drop(state);
    let state = a.wait("the message's", |s| !s.ended.is_empty());
    assert_eq!(state.ended, [(5, Outcome::Cancelled)]);
    drop(state);
    let refused = node.batch(|batch| batch.send(&port, nobody, Payload::Copy(b"x"), None)).unwrap_err();
    assert_eq!(refused.error, SendError::ShuttingDown);
}
