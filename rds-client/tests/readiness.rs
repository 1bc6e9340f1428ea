//! Descriptors for programs with a poll loop of their own, and waiting.

mod common;

use std::net::{SocketAddr, TcpListener};
use std::os::fd::BorrowedFd;
use std::thread;
use std::time::Duration;

use common::{ATTACHED, LONG, PORT, builder, message, net, pair};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rds_client::{Readiness, RecvError, TrySendError};
use socket2::SockRef;

/// Whether the descriptor is readable now.
fn is_set(fd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).unwrap() == 1
}

/// Waits until the descriptor is readable.
fn wait_set(fd: BorrowedFd<'_>) {
    let limit = PollTimeout::try_from(LONG).unwrap();
    assert_eq!(poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], limit).unwrap(), 1, "never readable");
}

#[test]
fn the_readable_descriptor_is_set_exactly_while_something_can_be_received() {
    let p = pair();
    let fd = p.bob.readable_fd().unwrap();
    assert!(!is_set(fd));
    for _ in 0..3 {
        p.alice.send_to(b"one", p.bob.local_addr()).unwrap();
        p.alice.send_to(b"two", p.bob.local_addr()).unwrap();
        wait_set(fd);
        assert_eq!(message(&p.bob).0, b"one");
        // The second may still be on its way.
        wait_set(fd);
        assert!(is_set(fd), "level triggered");
        assert_eq!(message(&p.bob).0, b"two");
        assert!(!is_set(fd));
        assert_eq!(p.bob.try_recv_lease(), Err(RecvError::Empty));
    }
}

#[test]
fn a_descriptor_made_late_knows_what_is_there() {
    let p = pair();
    p.alice.send_to(b"early", p.bob.local_addr()).unwrap();
    assert!(p.bob.wait(Readiness::READABLE, Some(LONG)).readable);
    assert!(is_set(p.bob.readable_fd().unwrap()));
    assert_eq!(p.bob.next_len(), Some(5));
    assert!(is_set(p.bob.readable_fd().unwrap()), "asking does not take");
    message(&p.bob);
    assert!(!is_set(p.bob.readable_fd().unwrap()));
}

#[test]
fn the_completion_descriptor_is_set_while_there_are_completions() {
    let p = pair();
    let fd = p.alice.completion_fd().unwrap();
    assert!(!is_set(fd));
    for _ in 0..10 {
        p.alice.send_owned("x", p.bob.local_addr()).unwrap();
        let mut ends = Vec::new();
        while ends.len() < 2 {
            wait_set(fd);
            assert!(p.alice.completions(&mut ends) > 0);
        }
        assert!(!is_set(fd));
    }
    p.alice.send_owned("x", p.bob.local_addr()).unwrap();
    let completions = Readiness::COMPLETIONS;
    assert_eq!(p.alice.wait(completions, None), completions);
}

#[test]
fn the_writable_descriptor_follows_the_send_buffer() {
    let net = net();
    let a = builder(net(1)).open().unwrap();
    let alice = a.bind(5).unwrap();
    let nobody = SocketAddr::new(net(2), 5);
    let fd = alice.writable_fd().unwrap();
    assert!(is_set(fd));
    alice.set_send_buffer(100);
    alice.try_send_to(&[0; 99], nobody).unwrap();
    assert!(is_set(fd));
    alice.try_send_to(&[0; 99], nobody).unwrap();
    assert!(!is_set(fd));
    assert_eq!(alice.try_send_to(&[0; 1], nobody), Err(TrySendError::Full));
    assert!(!is_set(fd));
    assert_eq!(alice.cancel_all(), 2);
    assert!(is_set(fd));
}

#[test]
fn a_program_that_only_polls_descriptors_gets_and_sends_everything() {
    let p = pair();
    let bob = p.bob.local_addr();
    p.alice.set_send_buffer(20_000);
    const COUNT: u32 = 5000;
    let sender = thread::spawn(move || {
        let fd = p.alice.writable_fd().unwrap();
        let mut buffer = [0; 1000];
        let mut next: u32 = 0;
        while next < COUNT {
            buffer[..4].copy_from_slice(&next.to_le_bytes());
            match p.alice.try_send_to(&buffer, bob) {
                Ok(()) => next += 1,
                Err(TrySendError::Full) => wait_set(fd),
                Err(TrySendError::Congested) => assert!(p.alice.wait_uncongested(bob, Some(LONG))),
                Err(other) => panic!("{other}"),
            }
        }
        p.alice
    });
    let fd = p.bob.readable_fd().unwrap();
    let mut buffer = [0; 1000];
    let mut next: u32 = 0;
    while next < COUNT {
        match p.bob.try_recv_from(&mut buffer) {
            Ok(_) => {
                assert_eq!(buffer[..4], next.to_le_bytes());
                next += 1;
            }
            Err(RecvError::Empty) => wait_set(fd),
            Err(other) => panic!("{other}"),
        }
    }
    drop(sender.join().unwrap());
}

#[test]
fn a_wait_for_both_sides_ends_with_the_first() {
    let p = pair();
    let both = Readiness { readable: true, ..Readiness::WRITABLE };
    assert_eq!(p.bob.wait(both, None), Readiness::WRITABLE);
    p.alice.send_to(b"x", p.bob.local_addr()).unwrap();
    let read = Readiness::READABLE;
    assert_eq!(p.bob.wait(read, None), read);
    assert_eq!(p.bob.wait(both, None), both);
    assert_eq!(p.bob.wait(Readiness::default(), None), Readiness::default());
}

#[test]
fn a_thread_that_never_sleeps_still_does_what_is_due() {
    if ATTACHED {
        println!(
            "skipped: a daemon dials by itself, and would drop the question that comes before its program has bound the port"
        );
        return;
    }
    let net = net();
    let a = builder(net(1)).busy_poll(Duration::MAX).open().unwrap();
    let alice = a.bind(0).unwrap();
    let to = SocketAddr::new(net(2), 2000);
    alice.set_recv_timeout(Some(LONG));
    // A peer that hangs up: whoever waits for the answer has to dial again and again, and when is a matter of time.
    let listener = TcpListener::bind((net(2), PORT)).unwrap();
    SockRef::from(&listener).set_read_timeout(Some(LONG)).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            alice.send_to(b"question", to).unwrap();
            message(&alice)
        });
        for _ in 0..6 {
            drop(listener.accept().unwrap());
        }
        drop(listener);
        let (b, bob) = builder(net(2)).open_bound(&[2000]).unwrap();
        bob[0].set_recv_timeout(Some(LONG));
        let (question, from) = message(&bob[0]);
        assert_eq!(question, b"question");
        bob[0].send_to(b"answer", from).unwrap();
        assert_eq!(waiting.join().unwrap(), (b"answer".to_vec(), to));
        drop(b);
    });
}
