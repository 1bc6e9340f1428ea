//! Sockets for tasks: nobody is left waiting, and a cancelled call has done nothing.

mod common;

use std::collections::HashSet;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use ::tokio as runtime;
use common::{LONG, builder, net, pattern, two_nodes};
use rds_client::tokio::Socket;
use rds_client::{
    Completion, Cookie, Event, Mode, Node, Received, RecvError, Refusal, SendError, TrySendError, WhenFull,
};
use runtime::time::timeout;

/// What has to come.
async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(LONG, future).await.expect("nobody is left waiting")
}

/// Begins a call: it must have to wait.
fn begins<F: Future>(future: &mut std::pin::Pin<Box<F>>) {
    let mut cx = Context::from_waker(Waker::noop());
    assert!(future.as_mut().poll(&mut cx).is_pending(), "there is nothing to wait for");
}

struct Pair {
    alice: Arc<Socket>,
    bob: Arc<Socket>,
    a: Node,
    b: Node,
}

fn pair() -> Pair {
    let (a, b) = two_nodes();
    let socket = |node: &Node, port| Arc::new(Socket::new(node.bind(port).unwrap()).unwrap());
    Pair { alice: socket(&a, 1000), bob: socket(&b, 2000), a, b }
}

async fn message(socket: &Socket) -> (Vec<u8>, SocketAddr) {
    match soon(socket.recv_lease()).await.unwrap() {
        Event::Message(message) => (message.payload.to_vec(), message.from),
        other => panic!("a message was expected: {other:?}"),
    }
}

#[runtime::test]
async fn messages_arrive_whole_and_in_order_in_both_kinds_of_receive() {
    let p = pair();
    let to = p.bob.local_addr();
    let sender = runtime::spawn(async move {
        for n in 0..2000_u64 {
            let payload = pattern(n, (n as usize * 37) % 9000);
            p.alice.send_to(&payload, to).await.unwrap();
        }
        p.alice.flush().await;
        (p.a, p.alice)
    });
    let mut buffer = vec![0; 9000];
    for n in 0..2000_u64 {
        let expected = pattern(n, (n as usize * 37) % 9000);
        if n % 2 == 0 {
            assert!(message(&p.bob).await.0 == expected, "message {n}");
        } else {
            let Received::Message { len, .. } = soon(p.bob.recv_from(&mut buffer)).await.unwrap() else {
                panic!("only a message can come")
            };
            assert!(buffer[..len] == expected, "message {n}");
        }
    }
    soon(sender).await.unwrap();
}

#[runtime::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_share_a_socket_and_each_message_is_taken_once() {
    const TASKS: u32 = 8;
    const EACH: u32 = 500;
    let p = pair();
    let to = p.bob.local_addr();
    let senders: Vec<_> = (0..TASKS)
        .map(|task| {
            let alice = Arc::clone(&p.alice);
            runtime::spawn(async move {
                for n in 0..EACH {
                    alice.send_to(&(task * EACH + n).to_le_bytes(), to).await.unwrap();
                }
            })
        })
        .collect();
    let (taken, mut all) = runtime::sync::mpsc::unbounded_channel();
    let receivers: Vec<_> = (0..TASKS)
        .map(|_| {
            let (bob, taken) = (Arc::clone(&p.bob), taken.clone());
            runtime::spawn(async move {
                loop {
                    let mut buffer = [0; 4];
                    let Ok(Received::Message { len: 4, .. }) = bob.recv_from(&mut buffer).await else {
                        return;
                    };
                    taken.send(u32::from_le_bytes(buffer)).unwrap();
                }
            })
        })
        .collect();
    drop(taken);
    let mut found = HashSet::new();
    while found.len() < (TASKS * EACH) as usize {
        assert!(found.insert(soon(all.recv()).await.unwrap()), "taken twice");
    }
    for sender in senders {
        soon(sender).await.unwrap();
    }
    // All of them wait; the end of the node ends them all.
    let b = p.b.clone();
    runtime::task::spawn_blocking(move || b.shutdown(Duration::from_secs(1))).await.unwrap();
    for receiver in receivers {
        soon(receiver).await.unwrap();
    }
}

#[runtime::test]
async fn a_receive_that_was_cancelled_has_taken_nothing() {
    let p = pair();
    for n in 0..200_u32 {
        let mut receive = Box::pin(p.bob.recv_lease());
        begins(&mut receive);
        p.alice.send_to(&n.to_le_bytes(), p.bob.local_addr()).await.unwrap();
        if n % 2 == 0 {
            // It may be there already when it is cancelled.
            runtime::task::yield_now().await;
        }
        drop(receive);
        assert_eq!(message(&p.bob).await.0, n.to_le_bytes());
    }
}

#[runtime::test]
async fn a_cancelled_receive_keeps_no_other_task_asleep() {
    let p = pair();
    let waiting = {
        let bob = Arc::clone(&p.bob);
        runtime::spawn(async move { message(&bob).await.0 })
    };
    for _ in 0..50 {
        let bob = Arc::clone(&p.bob);
        let cancelled = runtime::spawn(async move { bob.recv_lease().await.map(drop) });
        runtime::task::yield_now().await;
        cancelled.abort();
        assert!(cancelled.await.unwrap_err().is_cancelled());
    }
    p.alice.send_to(b"for who is left", p.bob.local_addr()).await.unwrap();
    assert_eq!(soon(waiting).await.unwrap(), b"for who is left");
}

#[runtime::test]
async fn a_send_waits_for_room_and_a_cancelled_one_has_queued_nothing() {
    let net = net();
    let a = builder(net(1)).open().unwrap();
    let alice = Socket::new(a.bind(5).unwrap()).unwrap();
    let nobody = SocketAddr::new(net(2), 5);
    alice.get_ref().set_send_buffer(100);
    alice.send_to(&[0; 100], nobody).await.unwrap();
    let mut cancelled = Box::pin(alice.send_to(&[1; 50], nobody));
    begins(&mut cancelled);
    let mut owned = Box::pin(alice.send_owned(vec![2; 50], nobody));
    begins(&mut owned);
    drop((cancelled, owned));
    let mut waits = Box::pin(alice.send_to(&[3; 50], nobody));
    begins(&mut waits);
    assert_eq!(alice.get_ref().cancel_all(), 1, "what was cancelled was never queued");
    soon(waits).await.unwrap();
    assert_eq!(alice.get_ref().cancel_all(), 1);
}

#[runtime::test]
async fn a_send_waits_for_a_congested_port_and_goes_on_when_it_is_free() {
    let p = pair();
    let to = p.bob.local_addr();
    p.bob.get_ref().set_recv_buffer(1000);
    let mut sent = 0_u32;
    loop {
        match p.alice.get_ref().try_send_to(&[7; 600], to) {
            Ok(()) => sent += 1,
            Err(TrySendError::Congested) => break,
            // A ring's end, of a daemon that has not come round to it.
            Err(TrySendError::Full) => runtime::task::yield_now().await,
            Err(other) => panic!("{other}"),
        }
    }
    let senders: Vec<_> = (0..3_u8)
        .map(|n| {
            let alice = Arc::clone(&p.alice);
            runtime::spawn(async move { alice.send_to(&[n; 10], to).await })
        })
        .collect();
    // One of them is given up: the others are told all the same.
    runtime::task::yield_now().await;
    senders[1].abort();
    for _ in 0..sent {
        assert_eq!(message(&p.bob).await.0, [7; 600]);
    }
    let mut after = [message(&p.bob).await.0[0], message(&p.bob).await.0[0]];
    after.sort_unstable();
    assert_eq!(after, [0, 2]);
    for (n, sender) in senders.into_iter().enumerate() {
        match soon(sender).await {
            Ok(sent) => sent.unwrap(),
            Err(error) => assert!(n == 1 && error.is_cancelled()),
        }
    }
}

#[runtime::test]
async fn two_calls_of_one_task_are_woken_both() {
    let p = pair();
    let to = p.bob.local_addr();
    p.alice.get_ref().set_send_buffer(10);
    // The end of the first must not end the wait of the second, which has the same waker.
    for n in 0..300_u16 {
        let payload = n.to_le_bytes();
        let both = async { runtime::join!(p.alice.send_to(&payload, to), p.alice.send_to(&payload, to)) };
        let (first, second) = soon(both).await;
        first.and(second).unwrap();
        runtime::select! {
            biased;
            got = message(&p.bob) => assert_eq!(got.0, payload),
        }
        assert_eq!(message(&p.bob).await.0, payload);
    }
}

#[runtime::test]
async fn payloads_come_back_with_an_error_and_completions_tell_of_the_others() {
    let p = pair();
    let to = p.bob.local_addr();
    let (error, payload) = p.alice.send_owned(vec![9; 3 << 20], to).await.unwrap_err();
    assert!(matches!(error, SendError::Refused(Refusal::TooLarge { .. })), "{error}");
    assert_eq!(payload.len(), 3 << 20);
    let mut ends = Vec::new();
    let mut waiting = Box::pin(p.alice.completions(&mut ends));
    begins(&mut waiting);
    drop(waiting);
    let cookie = p.alice.send_owned(pattern(1, 100_000), to).await.unwrap();
    p.alice.send_owned_as(Cookie(7_000_000), pattern(2, 10), to).await.unwrap();
    p.alice.send_detached(pattern(3, 70_000), to).await.unwrap();
    for (n, len) in [(1, 100_000), (2, 10), (3, 70_000)] {
        assert!(message(&p.bob).await.0 == pattern(n, len));
    }
    while ends.len() < 4 {
        assert!(soon(p.alice.completions(&mut ends)).await.unwrap() > 0);
    }
    for cookie in [cookie, Cookie(7_000_000)] {
        let of = |end: &&Completion| end.cookie() == cookie;
        assert_eq!(ends.iter().filter(of).count(), 2, "{ends:?}");
    }
    soon(p.alice.flush()).await;
}

#[runtime::test]
async fn the_end_of_the_node_ends_every_wait() {
    let net = net();
    let a = builder(net(1)).open().unwrap();
    let alice = Arc::new(Socket::new(a.bind(5).unwrap()).unwrap());
    let nobody = SocketAddr::new(net(2), 5);
    alice.get_ref().set_send_buffer(10);
    alice.send_to(&[0; 10], nobody).await.unwrap();
    let spawn = |n: u8| {
        let alice = Arc::clone(&alice);
        runtime::spawn(async move {
            match n {
                0 => assert!(alice.send_to(&[0; 10], nobody).await.is_err()),
                1 => assert_eq!(alice.recv_lease().await.map(drop), Err(RecvError::Shutdown)),
                2 => assert_eq!(alice.completions(&mut Vec::new()).await.unwrap(), 0),
                _ => alice.flush().await,
            }
        })
    };
    let waiting: Vec<_> = (0..4).map(spawn).collect();
    runtime::task::yield_now().await;
    runtime::task::spawn_blocking(move || a.shutdown(Duration::ZERO)).await.unwrap();
    for task in waiting {
        soon(task).await.unwrap();
    }
}

#[runtime::test]
async fn a_send_waits_for_room_to_pin() {
    if common::ATTACHED {
        println!("skipped: what is pinned is the daemon's affair, and such a node is refused");
        return;
    }
    let net = net();
    let open = |host| builder(net(host)).zero_copy_send(Mode::On).when_pins_full(WhenFull::Wait);
    // Room for one message of 64 KiB, its header and the two pages that each call counts.
    let a = open(1).pin_limit(20 << 12).open().unwrap();
    let b = open(2).open().unwrap();
    let (alice, bob) = (Socket::new(a.bind(0).unwrap()).unwrap(), Socket::new(b.bind(0).unwrap()).unwrap());
    for n in 0..50 {
        let send = |m| alice.send_owned(pattern(m, 64 << 10), bob.local_addr());
        let (first, second, ()) = soon(async {
            runtime::join!(send(n), send(n), async {
                for _ in 0..2 {
                    assert!(message(&bob).await.0 == pattern(n, 64 << 10));
                }
            })
        })
        .await;
        assert!(first.is_ok() && second.is_ok());
    }
}

#[runtime::test]
async fn a_task_that_could_always_go_on_lets_others_run() {
    let p = pair();
    let (alice, bob) = (Arc::clone(&p.alice), Arc::clone(&p.bob));
    // Its own address: sends and receives are done at once, each time.
    let busy = runtime::spawn(async move {
        loop {
            alice.send_to(b"again", alice.local_addr()).await.unwrap();
            assert_eq!(message(&alice).await.0, b"again");
        }
    });
    p.bob.get_ref().send_to(b"meanwhile", bob.local_addr()).unwrap();
    assert_eq!(message(&p.bob).await.0, b"meanwhile");
    assert!(!busy.is_finished());
    busy.abort();
}

#[runtime::test]
async fn a_socket_can_be_taken_out_again() {
    let p = pair();
    let bob = Arc::into_inner(p.bob).unwrap();
    p.alice.send_to(b"to a blocking call", bob.local_addr()).await.unwrap();
    let bob = bob.into_inner();
    bob.set_recv_timeout(Some(LONG));
    assert_eq!(common::message(&bob).0, b"to a blocking call");
    let again = Socket::new(bob).unwrap();
    p.alice.send_to(b"and again", again.local_addr()).await.unwrap();
    assert_eq!(message(&again).await.0, b"and again");
    drop(again);
    assert!(p.b.bind(2000).is_ok(), "its port is free once it is gone");
}

#[test]
fn futures_may_move_between_threads() {
    fn is_send<T: Send>(_: impl FnOnce(&'static Socket) -> T) {}
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Socket>();
    let to = SocketAddr::from(([127, 0, 0, 1], 1));
    is_send(|socket| socket.recv_lease());
    is_send(|socket| socket.flush());
    is_send(move |socket| socket.send_to(b"", to));
    is_send(move |socket| socket.send_owned(Vec::new(), to));
    is_send(|socket| async { socket.completions(&mut Vec::new()).await });
}

#[runtime::test]
async fn a_daemon_that_is_started_anew_leaves_no_task_waiting() {
    if common::ATTACHED {
        // Once is enough: the daemon is this test's own.
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let net = net();
    let mut settings = rds_server::settings::Settings::new(vec![net(1)]);
    settings.socket = folder.path().join("rds.sock");
    (settings.listen_port, settings.dial_port) = (common::PORT, common::PORT);
    settings.drain = Duration::from_millis(100);
    let start = move || rds_server::server::Server::start(settings.clone()).unwrap();
    let first = start();
    let node = Node::attach(folder.path().join("rds.sock")).unwrap();
    let socket = |port| Arc::new(Socket::new(node.bind(port).unwrap()).unwrap());
    let (alice, bob) = (socket(1000), socket(2000));
    let nobody = SocketAddr::new(net(9), 5);
    let lost = alice.send_owned(pattern(1, 50_000), nobody).await.unwrap();
    let (receiving, completing) = {
        let (alice, bob) = (Arc::clone(&alice), Arc::clone(&bob));
        let receiving = runtime::spawn(async move { message(&bob).await.0 });
        let completing = runtime::spawn(async move {
            let mut ends = Vec::new();
            while ends.len() < 2 {
                alice.completions(&mut ends).await.unwrap();
            }
            ends
        });
        (receiving, completing)
    };
    runtime::task::spawn_blocking(move || drop(first)).await.unwrap();
    let ends = soon(completing).await.unwrap();
    assert!(ends.iter().all(|end| end.cookie() == lost), "{ends:?}");
    // Without a daemon it waits.
    let mut waits = Box::pin(alice.send_to(b"after", bob.local_addr()));
    let gone = || node.attachment().is_some_and(|attachment| !attachment.attached);
    while !gone() {
        runtime::task::yield_now().await;
    }
    begins(&mut waits);
    let second = runtime::task::spawn_blocking(start);
    soon(waits).await.unwrap();
    assert_eq!(soon(receiving).await.unwrap(), b"after");
    drop((alice, bob, node));
    drop(second.await.unwrap());
}
