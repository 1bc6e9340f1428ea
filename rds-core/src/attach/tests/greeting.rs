//! How an attachment begins, and all the ways in which it does not.

use std::io::{Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use socket2::{Domain, SockAddr, Socket, Type};

use super::super::greeting::{Answer, PREFIX, Prefix};
use super::super::hello::greet;
use super::super::*;
use super::pair::welcome;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

/// What the daemon makes of these bytes, and what it answers.
fn greeted(bytes: &[u8]) -> (Result<Option<Hello>, GreetingError>, Vec<u8>) {
    let (mut program, daemon) = UnixStream::pair().unwrap();
    program.write_all(bytes).unwrap();
    let mut greeting = Greeting::new(daemon).unwrap();
    let read = greeting.read();
    drop(greeting);
    let mut answer = Vec::new();
    // A connection that is closed with bytes unread is reset, after what was said.
    let _ = program.read_to_end(&mut answer);
    (read, answer)
}

/// What a program makes of an answer.
fn answered(bytes: &[u8]) -> Result<Attached, AttachError> {
    let (program, mut daemon) = UnixStream::pair().unwrap();
    daemon.write_all(bytes).unwrap();
    daemon.shutdown(std::net::Shutdown::Write).unwrap();
    greet(program, &Hello::default(), soon())
}

fn refusal(bytes: &[u8]) -> Refusal {
    let prefix = Prefix::decode(bytes.first_chunk().unwrap()).unwrap();
    assert_eq!(prefix.len, bytes.len());
    match Answer::decode(prefix, bytes).unwrap() {
        Answer::Refused(refusal) => refusal,
        Answer::Welcome(_) => panic!("not welcome"),
    }
}

fn hello() -> impl Strategy<Value = Hello> {
    let address = prop::option::of(
        (any::<IpAddr>(), any::<u32>())
            .prop_map(|(ip, scope)| NodeAddress { ip, scope: if ip.is_ipv6() { scope } else { 0 } }),
    );
    (address, any::<(bool, u32, u32, u64, u64)>(), "[a-zé]{0,80}").prop_map(
        |(address, (stream, submission_ring, completion_ring, send_arena, receive_arena), program)| Hello {
            address,
            stream,
            submission_ring,
            completion_ring,
            send_arena,
            receive_arena,
            program,
        },
    )
}

proptest! {
    #[test]
    fn a_hello_arrives_as_it_was_said_and_a_later_version_may_say_more(said in hello(), more in 0..200_usize) {
        let mut bytes = said.encode();
        bytes.resize(bytes.len() + more, 7);
        let len = bytes.len() as u32;
        bytes[8..12].copy_from_slice(&len.to_ne_bytes());
        let heard = greeted(&bytes).0.unwrap().unwrap();
        prop_assert!(said.program.starts_with(&heard.program));
        prop_assert!(heard.program == said.program || heard.program.len() > 62);
        prop_assert_eq!(Hello { program: said.program.clone(), ..heard }, said);
    }

    #[test]
    fn any_bytes_are_a_hello_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..5000), near: bool) {
        if near && bytes.len() > 200 {
            bytes[..PREFIX].copy_from_slice(&Hello::default().encode()[..PREFIX]);
        }
        let (read, answer) = greeted(&bytes);
        match read {
            Ok(_) => prop_assert!(answer.is_empty()),
            Err(GreetingError::Refused(told)) => prop_assert_eq!(refusal(&answer), told),
            Err(e) => prop_assert!(false, "{}", e),
        }
    }

    #[test]
    fn any_answer_is_one_or_an_error(mut bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 2..4_u16, near: bool) {
        if near && bytes.len() > PREFIX {
            bytes[..PREFIX].copy_from_slice(&Refusal::new(RefusalCode::Quota, "").encode()[..PREFIX]);
            let len = bytes.len() as u32;
            bytes[8..12].copy_from_slice(&len.to_ne_bytes());
            bytes[12..14].copy_from_slice(&kind.to_ne_bytes());
        }
        if let Ok(attached) = answered(&bytes) {
            prop_assert!(attached.welcome.stream, "there were no descriptors");
        }
    }
}

#[test]
fn a_hello_may_come_byte_by_byte_and_what_is_after_it_is_left() {
    let (mut program, daemon) = UnixStream::pair().unwrap();
    let mut greeting = Greeting::new(daemon).unwrap();
    let bytes = Hello { program: "slow".into(), ..Hello::default() }.encode();
    for byte in &bytes[..bytes.len() - 1] {
        program.write_all(&[*byte]).unwrap();
        assert!(greeting.read().unwrap().is_none());
    }
    program.write_all(&[bytes[bytes.len() - 1], 42]).unwrap();
    assert_eq!(greeting.read().unwrap().unwrap().program, "slow");
    let who = greeting.credentials();
    assert_eq!(who.pid, std::process::id() as i32);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ids = |name: &str| -> Vec<u32> {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().map(|id| id.parse().unwrap()).collect()
    };
    assert_eq!((who.uid, who.gid), (ids("Uid:")[1], ids("Gid:")[1]));
    assert_eq!(who.groups, ids("Groups:"));
}

#[test]
fn without_a_common_version_both_sides_are_told_who_is_to_be_upgraded() {
    let answer = |versions| {
        let (read, answer) = greeted(&Hello::default().encode_for(versions));
        assert!(matches!(read, Err(GreetingError::Refused(_))));
        refusal(&answer)
    };
    let newer = answer(2..=9);
    assert_eq!(newer.code, RefusalCode::Version);
    assert!(newer.text.contains("2 to 9") && newer.text.contains("upgrade the daemon"), "{newer}");
    let older = answer(0..=0);
    assert!(older.text.contains("upgrade the program"), "{older}");
    // One that speaks both this and later ones gets this.
    assert!(greeted(&Hello::default().encode_for(0..=9)).0.unwrap().is_some());
    let mut wrong = Welcome { stream: true, ..welcome(true) }.encode();
    wrong[14..16].copy_from_slice(&2_u16.to_ne_bytes());
    assert!(matches!(answered(&wrong), Err(AttachError::Garbled(Garbled::Field(_)))));
}

#[test]
fn nonsense_is_refused_by_name() {
    let good = Hello::default().encode();
    let with = |at: usize, bytes: &[u8]| {
        let mut wrong = good.clone();
        wrong[at..at + bytes.len()].copy_from_slice(bytes);
        let (read, answer) = greeted(&wrong);
        assert!(matches!(read, Err(GreetingError::Refused(_))), "{read:?}");
        refusal(&answer)
    };
    for told in [
        with(0, b"GET / HTTP/1.1"),
        with(8, &15_u32.to_ne_bytes()),
        with(8, &4097_u32.to_ne_bytes()),
        with(8, &u32::MAX.to_ne_bytes()),
        with(12, &9_u16.to_ne_bytes()),
        with(12, &2_u16.to_ne_bytes()),
        with(16, &2_u16.to_ne_bytes()),
    ] {
        assert_eq!(told.code, RefusalCode::Malformed, "{told}");
        assert!(!told.text.is_empty());
    }
}

#[test]
fn a_refusal_tells_code_and_text_however_long() {
    for code in [RefusalCode::NoSuchAddress, RefusalCode::TimedOut, RefusalCode::Other(77)] {
        let (program, daemon) = UnixStream::pair().unwrap();
        let greeting = Greeting::new(daemon).unwrap();
        greeting.refuse(&Refusal::new(code, "é".repeat(3000)));
        match greet(program, &Hello::default(), soon()) {
            Err(AttachError::Refused(told)) => {
                assert_eq!((told.code, told.text), (code, "é".repeat(2000)));
            }
            // Who was refused before it spoke may find the connection closed already; what it was told is still there to be read.
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(RefusalCode::of(0), RefusalCode::Other(0));
    assert_eq!(RefusalCode::of(8), RefusalCode::TimedOut);
}

#[test]
fn a_program_gives_up_on_a_daemon_that_is_silent_or_gone_or_not_there() {
    let dir = std::env::temp_dir().join(format!("rds-attach-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("none.sock");
    let gone = attach(&path, &Hello::default(), Duration::from_secs(30));
    assert!(matches!(&gone, Err(AttachError::Connect { .. })), "{gone:?}");
    assert!(gone.unwrap_err().to_string().contains("start rds-server"), "it says what to do");

    let path = dir.join("stale.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let stale = attach(&path, &Hello::default(), Duration::from_secs(30)).unwrap_err().to_string();
    assert!(stale.contains("no daemon listens there"), "{stale}");
    let path = dir.join("x".repeat(200));
    let long = attach(&path, &Hello::default(), Duration::from_secs(30)).unwrap_err().to_string();
    assert!(long.contains("give a shorter path"), "{long}");

    let path = dir.join("silent.sock");
    let unix = || Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
    let (listener, address) = (unix(), SockAddr::unix(&path).unwrap());
    listener.bind(&address).unwrap();
    listener.listen(0).unwrap();
    let silent = attach(&path, &Hello::default(), Duration::from_millis(50));
    assert!(matches!(silent, Err(AttachError::TimedOut)), "{silent:?}");
    // Nobody accepts: once the queue is full even connecting would take for ever.
    let mut waiting = Vec::new();
    loop {
        let socket = unix();
        socket.set_nonblocking(true).unwrap();
        match socket.connect(&address) {
            Ok(()) => waiting.push(socket),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(e) => panic!("{e}"),
        }
    }
    let full = attach(&path, &Hello::default(), Duration::from_millis(50));
    assert!(matches!(full, Err(AttachError::TimedOut)), "{full:?}");
    drop(listener);

    let (program, daemon) = UnixStream::pair().unwrap();
    drop(daemon);
    let closed = greet(program, &Hello::default(), soon());
    assert!(matches!(closed, Err(AttachError::Io(_))), "{closed:?}");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_program_that_hangs_up_is_noticed() {
    let (program, daemon) = UnixStream::pair().unwrap();
    let mut greeting = Greeting::new(daemon).unwrap();
    assert!(greeting.read().unwrap().is_none());
    drop(program);
    assert!(matches!(greeting.read(), Err(GreetingError::Closed)));
}

#[test]
fn sizes_that_cannot_be_are_clamped_or_refused() {
    assert_eq!(ring_capacity(0, 1 << 18, 1 << 20), 1 << 18);
    assert_eq!(ring_capacity(1, 1 << 18, 1 << 20), 4096);
    assert_eq!(ring_capacity(5000, 1 << 18, 1 << 20), 8192);
    assert_eq!(ring_capacity(u32::MAX, 1 << 18, 1 << 20), 1 << 20);
    assert_eq!(ring_capacity(u32::MAX, 1 << 18, u32::MAX), 1 << 30);
    assert_eq!(ring_capacity(7000, 1 << 18, 7000), 4096);
    let page = crate::sys::limits::page_size() as u64;
    assert_eq!(arena_size(0, 10 * page, 20 * page), 10 * page);
    assert_eq!(arena_size(1, 10 * page, 20 * page), page);
    assert_eq!(arena_size(u64::MAX, 10 * page, 20 * page + 1), 20 * page);
    assert_eq!(arena_size(u64::MAX, 0, u64::MAX), MAX_ARENA);
    let good = welcome(false);
    let wrong = [
        Welcome { submission_ring: 5000, ..good },
        Welcome { completion_ring: 2048, ..good },
        Welcome { send_arena: page + 1, ..good },
        Welcome { receive_arena: 0, ..good },
        Welcome { receive_arena: MAX_ARENA * 2, ..good },
    ];
    for wrong in wrong {
        let (_program, daemon) = UnixStream::pair().unwrap();
        let refused = Greeting::new(daemon).unwrap().welcome(&wrong).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::InvalidInput);
        assert!(matches!(answered(&wrong.encode()), Err(AttachError::Garbled(Garbled::Field(_)))));
    }
    // Descriptors are missing.
    assert!(matches!(answered(&good.encode()), Err(AttachError::Garbled(Garbled::Field(_)))));
}
