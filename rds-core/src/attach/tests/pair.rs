//! Both ends of an attachment in one process.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::super::greeting::{Hello, Welcome};
use super::super::hello::{Accepted, Attached, Greeting, greet};
use super::super::*;

pub(super) const RING: u32 = 4096;
pub(super) const ARENA: u64 = 1 << 20;

pub(super) fn welcome(stream: bool) -> Welcome {
    Welcome {
        session: 7,
        instance: 11,
        address: std::net::IpAddr::from([127, 42, 0, 1]).into(),
        stream,
        max_message: 1 << 20,
        max_sockets: 5,
        submission_ring: RING,
        completion_ring: RING,
        send_arena: ARENA,
        receive_arena: ARENA,
        max_send_buffer: 1 << 30,
        max_receive_buffer: 1 << 31,
    }
}

/// A program and a daemon, attached.
pub(super) fn attached(welcome: &Welcome) -> (Attached, Accepted) {
    let (program, daemon) = UnixStream::pair().unwrap();
    let stream = welcome.stream;
    let program = std::thread::spawn(move || {
        let hello = Hello { stream, program: "test".into(), ..Hello::default() };
        greet(program, &hello, Instant::now() + Duration::from_secs(30)).unwrap()
    });
    let mut greeting = Greeting::new(daemon).unwrap();
    let hello = loop {
        if let Some(hello) = greeting.read().unwrap() {
            break hello;
        }
        std::thread::yield_now();
    };
    assert_eq!((hello.stream, &hello.program[..]), (stream, "test"));
    let accepted = greeting.welcome(welcome).unwrap();
    let attached = program.join().unwrap();
    assert_eq!(attached.welcome, *welcome);
    (attached, accepted)
}

#[test]
fn records_pass_both_ways_in_either_form() {
    for stream in [false, true] {
        let (mut program, mut daemon) = attached(&welcome(stream));
        let to = "127.42.0.2:7".parse().unwrap();
        let payload = Where::Inline(5);
        let said = Submission::Send { socket: 1, id: 2, to, wants_end: true, mode: None, payload };
        assert!(program.channel.producer.push(&said, b"hello"));
        assert!(daemon.channel.consumer.next().unwrap().is_none(), "not published");
        assert!(program.channel.producer.publish().is_none(), "nobody sleeps");
        let record = daemon.channel.consumer.next().unwrap().unwrap();
        assert_eq!((record.submission().unwrap(), record.body_len()), (said, 5));
        let mut out = [0; 5];
        record.copy_to(&mut out);
        assert_eq!(&out, b"hello");
        assert_eq!((record.span().is_some(), record.bytes().is_some()), (!stream, stream));
        assert!(daemon.channel.consumer.next().unwrap().is_none());
        assert!(daemon.channel.consumer.release().is_none(), "nobody waits for room");

        let said = Completion::Reply { request: 9, status: Status::Quota, value: 3, body_len: 3 };
        assert!(daemon.channel.producer.push(&said, b"abc"));
        assert!(daemon.channel.producer.publish().is_none());
        let record = program.channel.consumer.next().unwrap().unwrap();
        assert_eq!(record.completion().unwrap(), said);
        let mut out = bytes::BytesMut::new();
        record.append_to(&mut out);
        assert_eq!(&out[..], b"abc");
    }
}

/// Whether a wakeup is readable now.
pub(super) fn readable(wakeup: &Wakeup) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::AsFd;
    let mut fds = [PollFd::new(wakeup.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
}

/// Writes a record and shows it; whether the bell was rung.
fn say(producer: &mut Producer) -> bool {
    let said = Completion::Reply { request: 1, status: Status::Ok, value: 2, body_len: 3 };
    assert!(producer.push(&said, b"abc"));
    producer.publish().inspect(|bell| bell.ring()).is_some()
}

/// Reads all that is there: how many records.
fn hear(consumer: &mut Consumer) -> usize {
    let mut n = 0;
    while consumer.next().unwrap().is_some() {
        n += 1;
    }
    n
}

#[test]
fn the_doorbell_is_silent_while_the_other_side_is_awake_and_rings_once_a_sleep() {
    let (mut program, mut daemon) = attached(&welcome(false));
    let (from, to) = (&mut daemon.channel.producer, &mut program.channel);
    for _ in 0..10 {
        assert!(!say(from), "it is awake");
    }
    assert!(!to.consumer.arm().unwrap(), "something is there");
    assert_eq!(hear(&mut to.consumer), 10);
    for _ in 0..3 {
        assert!(to.consumer.arm().unwrap() && !readable(&to.wakeup));
        assert!(say(from), "it sleeps");
        for _ in 0..5 {
            assert!(!say(from), "it was rung");
        }
        assert!(readable(&to.wakeup));
        to.wakeup.clear();
        to.consumer.disarm();
        assert!(!readable(&to.wakeup));
        assert!(!say(from), "it is awake again");
        assert_eq!(hear(&mut to.consumer), 7);
    }
    // Quietly: it goes on sleeping until the next one.
    assert!(to.consumer.arm().unwrap());
    assert!(from.push(&Submission::Free { offset: 1 }, &[]));
    from.publish_quietly();
    assert!(from.publish().is_some(), "what was quiet is told later");
}

#[test]
fn a_full_ring_rings_once_there_is_room_and_not_for_every_record() {
    let (mut program, mut daemon) = attached(&welcome(false));
    let (from, to) = (&mut program.channel, &mut daemon.channel.consumer);
    let said = Submission::Send {
        socket: 1,
        id: 1,
        to: "127.42.0.2:7".parse().unwrap(),
        wants_end: false,
        mode: None,
        payload: Where::Inline(52),
    };
    let mut written = 0;
    while from.producer.push(&said, &[7; 52]) {
        written += 1;
    }
    assert_eq!(written, RING as usize / 112);
    assert!(!from.producer.want_room(52) && !readable(&from.wakeup));
    let (mut read, mut bells) = (0, 0);
    while to.next().unwrap().is_some() {
        read += 1;
        if let Some(bell) = to.release() {
            bell.ring();
            bells += 1;
            // Half of the ring, less what does not fit at its end.
            assert!(read * 112 >= RING as usize / 2 - 112, "{read}");
            // A program reads its bell; this one the test has to.
            assert!(from.producer.want_room(52));
        }
    }
    assert_eq!((read, bells), (written, 1));
    assert!(from.producer.push(&said, &[7; 52]));
}

#[test]
fn who_waits_for_room_in_an_arena_is_not_left_in_the_dark() {
    let (mut program, mut daemon) = attached(&welcome(false));
    assert!(!program.channel.consumer.wanted());
    daemon.channel.producer.want_attention();
    assert!(program.channel.consumer.wanted());
    assert!(program.channel.consumer.release().is_none());
    daemon.channel.producer.stop_wanting();
    assert!(!program.channel.consumer.wanted());
}

#[test]
fn a_record_that_was_not_committed_was_never_there() {
    for stream in [false, true] {
        let (mut program, mut daemon) = attached(&welcome(stream));
        let said = Completion::Reply { request: 1, status: Status::Ok, value: 2, body_len: 3 };
        let producer = &mut program.channel.producer;
        let mut slot = producer.reserve(&said).unwrap();
        slot.write(b"ab");
        drop(slot);
        assert!(producer.push(&Submission::Free { offset: 1 }, &[]));
        assert!(producer.publish().is_none());
        let said = daemon.channel.consumer.next().unwrap().unwrap().submission().unwrap();
        assert_eq!(said, Submission::Free { offset: 1 });
        assert!(daemon.channel.consumer.next().unwrap().is_none());
    }
}

#[test]
fn what_does_not_fit_the_longest_record_is_refused_and_the_longest_always_fits() {
    for stream in [false, true] {
        let (mut program, mut daemon) = attached(&welcome(stream));
        let longest = program.channel.producer.max_inline();
        assert!(!program.channel.producer.has_room(longest + 1));
        assert!(!program.channel.producer.has_room(usize::MAX));
        let send = |len: usize| Submission::Send {
            socket: 1,
            id: 1,
            to: "[fe80::1]:7".parse().unwrap(),
            wants_end: false,
            mode: None,
            payload: Where::Inline(len as u32),
        };
        assert!(program.channel.producer.reserve(&send(longest + 1)).is_none());
        // Wherever the ring's end is.
        let (memory, _fd) = {
            let (fd, memory) = SharedMemory::create(longest, Access::ReadWrite).unwrap();
            (memory, fd)
        };
        for n in 0..40_usize {
            memory.copy_in(n, &[n as u8; 9]);
            for len in [n * 16, longest] {
                assert!(program.channel.producer.want_room(len), "{n}: {len} of {longest}");
                let mut slot = program.channel.producer.reserve(&send(len)).unwrap();
                slot.write_span(&memory.span(0, len as u64).unwrap());
                slot.commit();
                // The socket takes it piece by piece.
                let mut got = bytes::BytesMut::new();
                loop {
                    assert!(program.channel.producer.publish().is_none());
                    program.channel.producer.flush().unwrap();
                    if let Some(record) = daemon.channel.consumer.next().unwrap() {
                        assert_eq!(record.submission().unwrap(), send(len));
                        record.append_to(&mut got);
                        break;
                    }
                }
                let mut sent = bytes::BytesMut::new();
                memory.span(0, len as u64).unwrap().append_to(&mut sent);
                assert!(got == sent, "{n}: {len} of {longest}");
                assert!(daemon.channel.consumer.release().is_none());
            }
        }
    }
}

#[test]
fn a_program_that_breaks_its_bell_does_not_block_the_daemon() {
    use std::os::fd::AsFd;
    let (mut program, mut daemon) = attached(&welcome(false));
    // What the program has of the daemon's bell and of its own: it fills one up and makes both wait.
    let heard = program.channel.wakeup.as_fd();
    rustix::io::ioctl_fionbio(heard, false).unwrap();
    assert!(program.channel.consumer.arm().unwrap());
    assert!(say(&mut daemon.channel.producer));
    let bell = {
        assert!(program.channel.consumer.next().unwrap().is_some());
        program.channel.consumer.arm().unwrap();
        assert!(daemon.channel.producer.push(&Submission::Free { offset: 1 }, &[]));
        daemon.channel.producer.publish().unwrap()
    };
    // More than any pipe holds: the daemon's end does not wait, whatever the other is set to.
    for _ in 0..20_000 {
        bell.ring();
    }
    assert_eq!(bell.rung(), 20_001);
    assert!(readable(&program.channel.wakeup));
}

#[test]
fn arenas_meet_in_the_middle() {
    struct Free(std::sync::mpsc::Sender<u64>);
    impl Returned for Free {
        fn returned(&self, offset: u64, len: u64) {
            assert_eq!(len, 5);
            self.0.send(offset).unwrap();
        }
    }
    let (program, mut daemon) = attached(&welcome(false));
    let (send, submitted) = (program.send_arena.unwrap(), daemon.submitted.unwrap());
    assert_eq!((send.len() as u64, submitted.len()), (ARENA, ARENA));
    let mut buffer = send.allocate(70_000).unwrap();
    buffer.fill(9);
    let mut out = bytes::BytesMut::new();
    submitted.span(buffer.offset(), 70_000).unwrap().append_to(&mut out);
    assert!(out.len() == 70_000 && out.iter().all(|b| *b == 9));
    for (offset, len) in [(ARENA, 1), (u64::MAX, 1), (1, ARENA as u32), (0, u32::MAX)] {
        let outside = Violation::OutsideArena { offset, len: len.into(), arena: ARENA };
        assert_eq!(submitted.span(offset, len).unwrap_err(), outside);
    }
    assert!(submitted.span(0, ARENA as u32).is_ok() && submitted.span(ARENA, 0).is_ok());

    let receive = daemon.receive.as_mut().unwrap();
    let span = receive.allocate(5).unwrap();
    span.fill(b"hello");
    let offset = receive.offset_of(&span);
    let (free, freed) = std::sync::mpsc::channel();
    let lease = program.receive_arena.unwrap().lease(offset, 5, std::sync::Arc::new(Free(free))).unwrap();
    // Both memories outlive the attachment.
    drop(program.channel);
    assert_eq!(&lease[..], b"hello");
    drop(lease);
    assert_eq!(freed.recv().unwrap(), offset);
    assert!(receive.used() > 0);
    for wrong in [1, ARENA, u64::MAX, 1 << 16] {
        assert_eq!(receive.free(wrong), Err(Violation::NotOut(wrong)));
    }
    assert!(receive.free(offset).is_ok());
    assert_eq!((receive.free(offset), receive.used()), (Err(Violation::NotOut(offset)), 0));
}
