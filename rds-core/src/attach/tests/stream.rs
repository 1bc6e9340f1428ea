//! The records over the socket alone.

use std::io::Write;
use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use super::super::channel::Channel;
use super::super::record::{Encode, FULL, HEADER};
use super::super::*;

const MOST: u32 = 1 << 20;

/// A channel, and the other end as bare bytes.
fn bare() -> (Channel, UnixStream) {
    let (mine, theirs) = UnixStream::pair().unwrap();
    (Channel::stream(mine, MOST), theirs)
}

fn reply(body_len: u32) -> Completion {
    Completion::Reply { request: 3, status: Status::Ok, value: 4, body_len }
}

#[test]
fn a_message_of_a_mebibyte_passes_though_the_socket_takes_it_in_pieces() {
    let (mine, theirs) = UnixStream::pair().unwrap();
    let (mut mine, mut theirs) = (Channel::stream(mine, MOST), Channel::stream(theirs, MOST));
    let body: Vec<u8> = (0..MOST).map(|n| (n % 251) as u8).collect();
    for _ in 0..3 {
        assert!(mine.producer.push(&reply(MOST), &body));
        assert!(mine.producer.publish().is_none());
        assert!(mine.producer.has_pending(), "no socket holds so much");
        loop {
            let record = theirs.consumer.next().unwrap();
            if let Some(record) = record {
                assert_eq!(record.completion().unwrap(), reply(MOST));
                assert!(record.bytes().unwrap() == body);
                break;
            }
            mine.producer.flush().unwrap();
        }
        assert!(!mine.producer.has_pending());
    }
}

#[test]
fn what_the_other_side_does_not_read_is_bounded_and_room_comes_back() {
    let (mine, theirs) = UnixStream::pair().unwrap();
    let (mut mine, mut theirs) = (Channel::stream(mine, MOST), Channel::stream(theirs, MOST));
    let body = vec![5; 100_000];
    let mut written = 0;
    while mine.producer.push(&reply(100_000), &body) {
        assert!(mine.producer.publish().is_none());
        written += 1;
        assert!(written < 1000, "there is a limit");
    }
    assert!(!mine.producer.want_room(MOST as usize));
    let mut read = 0;
    while read < written {
        match theirs.consumer.next().unwrap() {
            Some(record) => {
                assert_eq!(record.bytes().unwrap(), &body[..]);
                read += 1;
            }
            None => mine.producer.flush().unwrap(),
        }
    }
    assert!(mine.producer.want_room(MOST as usize) && theirs.consumer.arm().unwrap());
}

#[test]
fn what_came_before_the_end_is_read_before_the_end_is_told() {
    let (mut mine, theirs) = bare();
    let mut theirs = Channel::stream(theirs, MOST);
    for _ in 0..3 {
        assert!(theirs.producer.push(&reply(3), b"abc"));
    }
    assert!(theirs.producer.publish().is_none());
    drop(theirs);
    for _ in 0..3 {
        assert_eq!(mine.consumer.next().unwrap().unwrap().bytes(), Some(&b"abc"[..]));
    }
    assert_eq!(mine.consumer.next().unwrap_err(), Fault::Closed);
    assert_eq!(mine.consumer.arm().unwrap_err(), Fault::Closed);
    // And who writes hears of it, without a signal.
    assert!(mine.producer.push(&reply(3), b"abc"));
    assert!(mine.producer.publish().is_none());
    assert_eq!(mine.producer.fault(), Some(Fault::Closed));
    assert!(!mine.producer.push(&reply(3), b"abc") && !mine.producer.has_pending());
    assert_eq!(mine.producer.flush(), Err(Fault::Closed));
}

#[test]
fn half_a_record_is_no_record() {
    let (mut mine, mut theirs) = bare();
    let encoded = reply(5).encode();
    let (head, len) = encoded.bytes();
    theirs.write_all(&head[..len]).unwrap();
    theirs.write_all(b"abc").unwrap();
    assert!(mine.consumer.next().unwrap().is_none() && mine.consumer.arm().unwrap());
    // What fills it up is part of it.
    theirs.write_all(b"de").unwrap();
    assert!(mine.consumer.next().unwrap().is_none());
    theirs.write_all(&[0; 11]).unwrap();
    assert!(!mine.consumer.arm().unwrap());
    assert_eq!(mine.consumer.next().unwrap().unwrap().bytes(), Some(&b"abcde"[..]));
}

#[test]
fn lengths_that_cannot_be_end_it_before_memory_is_taken() {
    for len in [0, 31, MOST + FULL as u32 + 1, u32::MAX] {
        let (mut mine, mut theirs) = bare();
        let mut head = [0; FULL];
        head[..4].copy_from_slice(&len.to_ne_bytes());
        theirs.write_all(&head).unwrap();
        let fault = mine.consumer.next().unwrap_err();
        assert!(matches!(fault, Fault::Violation(Violation::Length { len: l, .. }) if l == len), "{fault}");
    }
}

#[test]
fn there_is_no_arena_without_shared_memory() {
    let (mut mine, theirs) = bare();
    let mut theirs = Channel::stream(theirs, MOST);
    let to = "127.42.0.2:7".parse().unwrap();
    let payload = Where::Arena { offset: 0, len: 5 };
    let send = Submission::Send { socket: 1, id: 2, to, wants_end: true, mode: None, payload };
    assert!(theirs.producer.push(&send, &[]));
    assert!(theirs.producer.push(&Completion::Message { socket: 1, from: to, payload }, &[]));
    assert!(theirs.producer.publish().is_none());
    let refused = Err(Fault::Violation(Violation::OutsideArena { offset: 0, len: 5, arena: 0 }));
    assert_eq!(mine.consumer.next().unwrap().unwrap().submission(), refused);
    assert_eq!(mine.consumer.next().unwrap().unwrap().completion().map(|_| ()), refused.map(|_| ()));
}

proptest! {
    #[test]
    fn records_come_whole_however_the_bytes_are_cut(
        lens in prop::collection::vec(0..70_000_u32, 1..20), cuts in prop::collection::vec(1..40_000_usize, 1..40),
    ) {
        let (mut mine, mut theirs) = bare();
        let mut bytes = Vec::new();
        for (n, len) in lens.iter().enumerate() {
            let encoded = reply(*len).encode();
            let (head, head_len) = encoded.bytes();
            bytes.extend(&head[..head_len]);
            bytes.resize(bytes.len() + *len as usize, n as u8);
            bytes.resize(bytes.len().next_multiple_of(16), 0);
        }
        let (mut at, mut n) = (0, 0);
        for cut in cuts.iter().cycle() {
            let end = bytes.len().min(at + cut);
            theirs.write_all(&bytes[at..end]).unwrap();
            at = end;
            while let Some(record) = mine.consumer.next().unwrap() {
                prop_assert_eq!(record.completion().unwrap(), reply(lens[n]));
                let body = record.bytes().unwrap();
                prop_assert!(body.len() == lens[n] as usize && body.iter().all(|b| *b == n as u8));
                n += 1;
            }
            if at == bytes.len() {
                break;
            }
        }
        prop_assert_eq!(n, lens.len());
    }

    #[test]
    fn any_bytes_at_all_are_records_or_a_fault(bytes in prop::collection::vec(any::<u8>(), 0..2000), small: bool) {
        let (mut mine, mut theirs) = bare();
        let mut bytes = bytes;
        if small {
            // Lengths that can be.
            (0..bytes.len()).filter(|n| n % 16 < 4 && n % 16 != 0).for_each(|n| bytes[n] = 0);
        }
        theirs.write_all(&bytes).unwrap();
        drop(theirs);
        loop {
            match mine.consumer.next() {
                Ok(Some(record)) => {
                    let _ = (record.submission(), record.completion());
                    prop_assert_eq!(record.bytes().map(<[u8]>::len), Some(record.body_len()));
                    record.copy_to(&mut vec![0; record.body_len()]);
                    prop_assert!(record.body_len() + HEADER <= bytes.len());
                }
                Ok(None) => {}
                Err(fault) => {
                    prop_assert!(!fault.to_string().is_empty());
                    break;
                }
            }
        }
    }
}
