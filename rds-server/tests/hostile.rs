//! Clients that break every rule: each is ended by itself, with a reason, while others go on.

mod common;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed, Ordering::SeqCst};
use std::time::Duration;

use common::honest::Honest;
use common::raw::{ARENA, HEAD, PAGE, RING, Raw, connect};
use common::{Daemon, LONG};
use rds_client::{Received, TrySendError};
use rds_core::attach::{Encode, Hello, Submission, Where};

fn send(to: &str, payload: Where) -> Submission {
    let to = to.parse().unwrap();
    Submission::Send { socket: 1, id: 1, to, wants_end: true, mode: None, payload }
}

/// A header alone, with a kind and a length that may be wrong.
fn header(kind: u8, flags: u8, len: u32) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    (bytes[4], bytes[5]) = (kind, flags);
    bytes
}

#[test]
fn whoever_breaks_a_rule_is_ended_alone_and_told_which() {
    let daemon = Daemon::at(&["127.43.2.1"]);
    let mut honest = Honest::at(&daemon);
    type Crime = (&'static str, &'static str, fn(&mut Raw));
    let crimes: &[Crime] = &[
        ("tail past the ring", "past its head", |raw| raw.show(RING as u64 + 16)),
        ("tail that goes back", "went back", |raw| {
            raw.write(&header(8, 0, 64));
            raw.put(&Submission::Snapshot { request: 1, queues: false }, &[]);
            raw.tail = 0;
            raw.put(&Submission::Snapshot { request: 1, queues: false }, &[]);
            raw.publish();
            raw.reply(1);
            raw.show(16);
        }),
        ("tail between records", "multiple of 16", |raw| raw.show(24)),
        ("head past the tail", "", |raw| {
            raw.ours.word(HEAD).store(1 << 40, SeqCst);
            // The daemon looks at the head when it needs room.
            for request in 0..4000 {
                raw.put(&Submission::Snapshot { request, queues: false }, &[]);
                while raw.unread() > RING as u64 / 2 && raw.theirs.word(64).load(SeqCst) < RING as u64 / 2 {
                    std::thread::yield_now();
                }
                raw.publish();
                if raw.theirs.word(64).load(SeqCst) >= RING as u64 / 2 {
                    break;
                }
            }
        }),
        ("record shorter than a header", "a record of 8 bytes", |raw| {
            raw.write(&header(8, 0, 8));
            raw.publish();
        }),
        ("record longer than what is there", "a record of 4000000000 bytes", |raw| {
            raw.write(&header(8, 0, 4_000_000_000));
            raw.publish();
        }),
        ("record of a kind that is none", "kind 200", |raw| {
            raw.write(&header(200, 0, 32));
            raw.publish();
        }),
        ("record of the daemon's", "kind 65", |raw| {
            raw.write(&header(65, 0, 32));
            raw.publish();
        }),
        ("flags that are none", "flags", |raw| {
            raw.write(&header(8, 0xff, 32));
            raw.publish();
        }),
        ("a skip in the middle", "kind 255", |raw| {
            raw.write(&header(255, 0, 64));
            raw.write(&[0; 64]);
            raw.publish();
        }),
        ("payload past the arena", "not within the arena", |raw| {
            raw.bind(1, 0);
            raw.put(&send("127.43.2.1:9", Where::Arena { offset: ARENA as u64 - 10, len: 11 }), &[]);
            raw.publish();
        }),
        ("payload whose end is past all numbers", "not within the arena", |raw| {
            raw.bind(1, 0);
            raw.put(&send("127.43.2.1:9", Where::Arena { offset: u64::MAX - 2, len: 100 }), &[]);
            raw.publish();
        }),
        ("gives back what it does not have", "nothing is out at 4096", |raw| {
            raw.put(&Submission::Free { offset: 4096 }, &[]);
            raw.publish();
        }),
        ("gives back what no arena has", "nothing is out at", |raw| {
            raw.put(&Submission::Free { offset: u64::MAX }, &[]);
            raw.publish();
        }),
        ("consumes what it never got", "consumed more", |raw| {
            raw.bind(1, 0);
            raw.put(&Submission::Consumed { socket: 1, bytes: 1, messages: 1 }, &[]);
            raw.publish();
        }),
        ("consumes more than there can be", "consumed more", |raw| {
            raw.bind(1, 0);
            raw.put(&Submission::Consumed { socket: 1, bytes: u64::MAX, messages: u64::MAX }, &[]);
            raw.publish();
        }),
        ("sends more than its send buffer", "more than its send buffer", |raw| {
            raw.bind(1, 0);
            // Nobody is there.
            let payload = Where::Arena { offset: 0, len: ARENA as u32 };
            for _ in 0..3 {
                raw.put(&send("127.43.255.1:9", payload), &[]);
            }
            raw.publish();
        }),
    ];
    for (crime, why, commit) in crimes {
        let mut raw = Raw::attach(&daemon.path());
        commit(&mut raw);
        let said = raw.ended();
        assert!(said.contains(why), "{crime}: {said:?}");
        honest.goes_on();
    }
}

#[test]
fn a_crime_within_a_batch_does_not_undo_what_came_before() {
    let daemon = Daemon::at(&["127.43.2.2"]);
    let mut honest = Honest::at(&daemon);
    let mut raw = Raw::attach(&daemon.path());
    raw.bind(1, 77);
    let to = honest.b.local_addr().to_string();
    raw.put(&send(&to, Where::Inline(2)), b"ok");
    raw.write(&header(200, 0, 32));
    raw.publish();
    assert!(raw.ended().contains("kind 200"));
    let mut got = [0; 10];
    let Received::Message { len, .. } = honest.b.recv_from(&mut got).unwrap() else { panic!("a message") };
    assert_eq!(&got[..len], b"ok");
    // Its port is free again.
    drop(daemon.attach().bind(77).unwrap());
    honest.goes_on();
}

#[test]
fn a_client_that_changes_what_it_wrote_while_it_is_read_harms_nobody() {
    let daemon = Daemon::at(&["127.43.2.3"]);
    let mut honest = Honest::at(&daemon);
    let mut rng = fastrand::Rng::with_seed(7);
    for round in 0..20 {
        let mut raw = Raw::attach(&daemon.path());
        raw.bind(1, 0);
        let to = honest.b.local_addr().ip().to_string() + ":9";
        for n in 0..200_u64 {
            let payload = match n % 3 {
                0 => Where::Inline(40),
                _ => Where::Arena { offset: n * 1000, len: 100 },
            };
            let inline = [n as u8; 40];
            let inline = if n % 3 == 0 { &inline[..] } else { &[] };
            raw.put(&send(&to, payload), inline);
        }
        let stop = Arc::new(AtomicBool::new(false));
        let scribbler = {
            let (stop, memory, seed) = (Arc::clone(&stop), Arc::clone(&raw.ours), rng.u64(..));
            std::thread::spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                while !stop.load(Relaxed) {
                    let at = PAGE + rng.usize(..RING / 8) * 8;
                    memory.copy_in(at, &rng.u64(..).to_ne_bytes());
                    if round % 4 == 3 {
                        memory.word(rng.usize(..4) * 64).store(rng.u64(..) & !15, SeqCst);
                    }
                }
            })
        };
        raw.publish();
        for _ in 0..20 {
            honest.goes_on();
            raw.ring();
        }
        stop.store(true, Relaxed);
        scribbler.join().unwrap();
        drop(raw);
        honest.goes_on();
    }
}

#[test]
fn hellos_that_are_none_are_refused_and_silence_is_ended() {
    let daemon = Daemon::with(&["127.43.2.4"], |settings| {
        settings.hello_timeout = Duration::from_millis(200);
        settings.max_hellos = 4;
    });
    let mut honest = Honest::at(&daemon);
    let whole = Hello::default().encode();
    let mut wrong_version = whole.clone();
    wrong_version[14..18].copy_from_slice(&[9, 0, 9, 0]);
    let mut too_long = whole.clone();
    too_long[8..12].copy_from_slice(&u32::MAX.to_ne_bytes());
    for (bytes, why) in [
        (&b"GET / HTTP/1.1\r\n\r\n"[..], "not those of the local RDS protocol"),
        (&wrong_version, "upgrade the daemon"),
        (&too_long, "too short or too long"),
        (&whole[..20], "no hello came in time"),
        (&[], "no hello came in time"),
    ] {
        let mut socket = connect(&daemon.path());
        socket.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // The daemon leaves unread what is no hello, which resets the connection; what it said before comes all the same.
        if let Err(e) = socket.read_to_end(&mut answer) {
            assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset);
        }
        let text = String::from_utf8_lossy(&answer);
        assert!(text.contains(why), "{why}: {text}");
        honest.goes_on();
    }
    // More that are silent than there may be, while others attach.
    let silent: Vec<_> = (0..50).map(|_| connect(&daemon.path())).collect();
    for _ in 0..5 {
        drop(daemon.attach());
        honest.goes_on();
    }
    drop(silent);
}

#[test]
fn a_client_that_never_reads_costs_itself_alone() {
    let daemon = Daemon::at(&["127.43.2.6"]);
    let mut honest = Honest::at(&daemon);
    let mut raw = Raw::attach(&daemon.path());
    raw.bind(1, 88);
    let to = "127.43.2.6:88".parse().unwrap();
    let mut sent = 0;
    for len in [64_usize, 3000, 64, 50_000].into_iter().cycle() {
        match honest.a.try_send_to(&vec![1; len], to) {
            Ok(()) => sent += len,
            Err(TrySendError::Congested | TrySendError::Full) => break,
            Err(e) => panic!("{e}"),
        }
        assert!(sent < 64 << 20, "the port is never congested");
    }
    honest.goes_on();
    // When it is gone, so is the congestion, and what waited for it.
    drop(raw);
    assert!(honest.a.wait_uncongested(to, Some(LONG)));
    assert!(honest.a.flush(LONG));
    drop(daemon.attach().bind(88).unwrap());
    honest.goes_on();
}

#[test]
fn a_client_that_takes_no_replies_is_not_given_more_and_goes_on_when_it_does() {
    let daemon = Daemon::at(&["127.43.2.7"]);
    let mut honest = Honest::at(&daemon);
    let mut raw = Raw::attach(&daemon.path());
    raw.bind(1, 0);
    let to = "127.43.2.7:9".parse().unwrap();
    let (mut asked, mut told) = (0, 0);
    // Until its own ring is full and stays so.
    for quiet in 0.. {
        if raw.unread() + 64 < RING as u64 {
            raw.put(&Submission::Watch { request: asked, socket: 1, to }, &[]);
            raw.publish();
            asked += 1;
            continue;
        }
        honest.goes_on();
        if quiet > asked as usize + 50 {
            break;
        }
    }
    // Both rings, and what the daemon holds.
    assert!(asked < 3 * (RING / 32) as u32 + 1000, "{asked} are held");
    while told < asked {
        let said = raw.wait();
        assert_eq!(said.id, told);
        told += 1;
    }
    honest.goes_on();
}

#[test]
fn a_doorbell_that_the_client_has_filled_stops_nobody() {
    let daemon = Daemon::at(&["127.43.2.8"]);
    let mut honest = Honest::at(&daemon);
    let mut raw = Raw::attach(&daemon.path());
    raw.bind(1, 99);
    // Without O_NONBLOCK a write would wait as long as the counter is full, and a read of an empty pipe for ever.
    rustix::io::ioctl_fionbio(&raw.bell, false).unwrap();
    rustix::io::ioctl_fionbio(&raw.hears, false).unwrap();
    rustix::io::read(&raw.bell, &mut [0; 8]).unwrap();
    rustix::io::write(&raw.bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let to = "127.43.2.8:99".parse().unwrap();
    for n in 0..2000_u64 {
        // It sleeps anew each time, so it is rung each time; it never clears the bell.
        raw.ours.word(128).store(n + 1, SeqCst);
        let _ = honest.a.try_send_to(b"ring", to);
    }
    honest.goes_on();
}

#[test]
fn a_client_that_holds_every_lease_stops_only_who_sends_to_it() {
    let daemon = Daemon::at(&["127.43.2.9"]);
    let mut honest = Honest::at(&daemon);
    let holder = daemon.attach().bind(66).unwrap();
    holder.set_recv_buffer(200 << 20);
    holder.set_recv_timeout(Some(LONG));
    let mut leases = Vec::new();
    let mut bytes = 0;
    // More than its arena holds: what has no room there waits in the daemon.
    let (mut sent, mut stopped) = (0_usize, false);
    while bytes < 30 << 20 {
        while !stopped && sent < 40 << 20 {
            match honest.a.try_send_to(&vec![7; 1 << 20], holder.local_addr()) {
                Ok(()) => sent += 1 << 20,
                Err(TrySendError::Full) => break,
                Err(TrySendError::Congested) => stopped = true,
                Err(e) => panic!("{e}"),
            }
        }
        let lease = holder.recv_lease().unwrap();
        bytes += 1 << 20;
        leases.push(lease);
    }
    honest.goes_on();
    drop(leases);
    // All of the rest comes.
    while bytes < sent {
        drop(holder.recv_lease().unwrap());
        bytes += 1 << 20;
    }
    honest.goes_on();
}

#[test]
fn a_record_as_long_as_half_the_ring_passes() {
    let daemon = Daemon::at(&["127.43.2.10"]);
    let honest = Honest::at(&daemon);
    let mut raw = Raw::attach(&daemon.path());
    raw.bind(1, 0);
    let to = honest.b.local_addr().to_string();
    let payload = vec![5; RING / 2 - 48];
    let send = send(&to, Where::Inline(payload.len() as u32));
    assert_eq!(send.encode().len() as usize, RING / 2);
    raw.put(&send, &payload);
    raw.publish();
    let mut got = vec![0; RING];
    let Received::Message { len, .. } = honest.b.recv_from(&mut got).unwrap() else { panic!("a message") };
    assert!(got[..len] == payload);
}
