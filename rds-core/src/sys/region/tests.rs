mod leases;
mod pattern;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};

use pattern::*;

use super::*;

const K: usize = 1 << 10;
const M: usize = 1 << 20;

fn region() -> PathRegion {
    RegionPool::new(1, 2 * M, M, u64::MAX).unwrap().take().unwrap()
}

/// Waits until `bytes` have come, without taking them.
fn wait_for(stream: &std::net::TcpStream, bytes: usize) {
    let mut buffer = vec![std::mem::MaybeUninit::uninit(); bytes];
    let flags = libc::MSG_PEEK | libc::MSG_WAITALL;
    let n = socket2::SockRef::from(stream).recv_with_flags(&mut buffer, flags).unwrap();
    assert_eq!(n, bytes);
}

fn flow(len: usize, count: usize) {
    let payloads = payloads(len);
    let (a, b) = pair();
    let sender = sender(a, Arc::clone(&payloads), vec![len; count]);
    let pool = RegionPool::new(1, 4 * M, 2 * M, u64::MAX).unwrap();
    let mut receiver = Receiver::new(b, pool.take().unwrap());
    let part = receiver.region.addresses();
    assert_eq!(part.start % ALIGN, 0);
    for i in 0..count {
        let message = receiver.next().unwrap();
        assert!(*message == *payloads[i % payloads.len()], "message {i} is not what was sent");
        if let Payload::Mapped(lease) = &message {
            let at = lease.as_ptr() as usize;
            assert!(at.is_multiple_of(page_size()) && part.contains(&at) && at + lease.len() <= part.end);
        }
    }
    assert!(receiver.next().is_none());
    assert_eq!(receiver.total, len * count);
    let (mapped, total) = (receiver.mapped, receiver.total);
    assert!(mapped * 100 >= total * 95, "{mapped} of {total} bytes were mapped");
    assert!(receiver.headers > 0, "no header came with a payload");
    drop(receiver);
    sender.join().unwrap();
}

#[test]
fn messages_of_64_kib_are_mapped_and_whole() {
    flow(64 * K, 4000);
}

#[test]
fn messages_of_1_mib_are_mapped_and_whole() {
    flow(M, 300);
}

#[test]
fn messages_of_one_page_are_mapped_and_whole() {
    flow(page_size(), 4000);
}

#[test]
fn the_next_header_comes_with_the_payload_and_only_if_asked_for() {
    let payload = Aligned::new(8 * page_size(), 1);
    let header = [7; HEADER_LEN];
    for ask in [true, false] {
        let (a, b) = pair();
        send(&a, &[&payload, &header], libc::MSG_ZEROCOPY | libc::MSG_EOR);
        wait_for(&b, payload.len() + HEADER_LEN);
        let mut region = region();
        let mut target = region.target(8).unwrap();
        let mut next = [0; HEADER_LEN];
        let mapped = target.receive(b.as_fd(), ask.then_some(&mut next)).unwrap();
        assert_eq!((mapped.bytes, target.missing()), (payload.len(), 0));
        if ask {
            assert_eq!((mapped.header_bytes, mapped.inq, next), (HEADER_LEN, 0, header));
        } else {
            assert_eq!((mapped.header_bytes, mapped.inq), (0, HEADER_LEN as u32));
        }
        let (lease, surplus) = region.finish(target);
        assert!(*lease == *payload && surplus.is_none());
    }
}

#[test]
fn a_page_that_follows_the_payload_is_not_lost() {
    let bytes = Aligned::new(3 * page_size(), 1);
    let (a, b) = pair();
    send(&a, &[&bytes], libc::MSG_ZEROCOPY | libc::MSG_EOR);
    wait_for(&b, bytes.len());
    let mut region = region();
    let mut target = region.target(2).unwrap();
    let mapped = target.receive(b.as_fd(), Some(&mut [0; HEADER_LEN])).unwrap();
    assert_eq!(mapped.bytes, bytes.len());
    let (lease, surplus) = region.finish(target);
    let surplus = surplus.unwrap();
    assert!([&lease[..], &surplus[..]].concat() == *bytes);
    assert_eq!(lease.len(), 2 * page_size());
}

#[test]
fn an_end_of_the_stream_comes_after_everything_before_it() {
    let payload = Aligned::new(page_size(), 1);
    let (a, b) = pair();
    send(&a, &[&payload], libc::MSG_ZEROCOPY | libc::MSG_EOR);
    a.shutdown(Shutdown::Write).unwrap();
    let mut region = region();
    let mut target = region.target(2).unwrap();
    while target.missing() > page_size() {
        b.peek(&mut [0]).unwrap();
        assert!(!target.receive(b.as_fd(), None).unwrap().end);
    }
    assert_eq!(b.peek(&mut [0]).unwrap(), 0);
    let mapped = target.receive(b.as_fd(), Some(&mut [0; HEADER_LEN])).unwrap();
    assert!(mapped.end && mapped.bytes == 0 && mapped.socket_error.is_none());
    assert!(*target.mapped() == *payload);
}

#[test]
fn an_empty_queue_is_no_end() {
    let (_a, b) = pair();
    let mut region = region();
    let mapped = region.target(2).unwrap().receive(b.as_fd(), Some(&mut [0; HEADER_LEN])).unwrap();
    assert!(!mapped.end && mapped.bytes + mapped.header_bytes == 0 && mapped.skip_hint == 0);
}

#[test]
fn a_reset_is_reported_and_what_came_before_is_not_lost() {
    let payload = Aligned::new(page_size(), 1);
    let (a, b) = pair();
    send(&a, &[&payload], libc::MSG_ZEROCOPY | libc::MSG_EOR);
    wait_for(&b, payload.len());
    socket2::SockRef::from(&a).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(a);
    // Not in steps that take the error: only POLLERR and POLLHUP announce it.
    let mut poll = libc::pollfd { fd: b.as_raw_fd(), events: 0, revents: 0 };
    // SAFETY: one `pollfd`, exclusively borrowed.
    unsafe { libc::poll(&raw mut poll, 1, -1) };
    let mut region = region();
    let mut target = region.target(2).unwrap();
    let mapped = target.receive(b.as_fd(), None).unwrap();
    assert_eq!(mapped.bytes, payload.len());
    assert_eq!(mapped.socket_error.unwrap().kind(), io::ErrorKind::ConnectionReset);
    assert!(*target.mapped() == *payload);
    let again = target.receive(b.as_fd(), None).unwrap();
    assert!(again.socket_error.is_none() && again.bytes == 0, "it is told once");
}

#[test]
fn what_cannot_be_mapped_is_left_to_be_read() {
    let (mut a, b) = pair();
    let bytes: Vec<u8> = (0..64 * K).map(|i| (i % 251) as u8).collect();
    a.write_all(&bytes[..HEADER_LEN]).unwrap();
    a.write_all(&bytes[HEADER_LEN..]).unwrap();
    wait_for(&b, 48 * K);
    let mut region = region();
    let mut target = region.target(4).unwrap();
    let mapped = target.receive(b.as_fd(), None).unwrap();
    assert_eq!((mapped.bytes, mapped.header_bytes), (0, 0));
    assert!(mapped.skip_hint > 0);
    let mut next = [0; HEADER_LEN];
    let mapped = target.receive(b.as_fd(), Some(&mut next)).unwrap();
    assert_eq!((mapped.bytes, mapped.header_bytes), (0, HEADER_LEN));
    let mut rest = vec![0; bytes.len() - HEADER_LEN];
    (&b).read_exact(&mut rest).unwrap();
    assert!(bytes == [&next[..], &rest].concat());
}

#[test]
fn a_message_survives_every_way_in_which_alignment_breaks() {
    let page = page_size();
    let lens = vec![4 * page; 40];
    let payloads = payloads(4 * page);
    for cut in [1, HEADER_LEN, 100, page - 1, page, page + 1, 3 * page + 5] {
        let (a, b) = pair();
        let (to, lens) = (Arc::clone(&payloads), lens.clone());
        let sender = std::thread::spawn(move || {
            let zerocopy = libc::MSG_ZEROCOPY | libc::MSG_EOR;
            for (i, len) in lens.iter().enumerate() {
                let payload = &to[i % to.len()];
                let head = message_header(i, *len);
                if i % 3 == 1 {
                    // Cut at a place of its own.
                    send(&a, &[&head, &payload[..cut]], libc::MSG_EOR);
                    send(&a, &[&payload[cut..]], libc::MSG_EOR);
                } else {
                    send(&a, &[&head], libc::MSG_EOR);
                    send(&a, &[payload], zerocopy);
                }
            }
            a.shutdown(Shutdown::Write).unwrap();
            let _ = (&a).read_to_end(&mut Vec::new());
        });
        let mut receiver = Receiver::new(b, region());
        for i in 0..40 {
            assert!(*receiver.next().unwrap() == *payloads[i % payloads.len()], "cut at {cut}, message {i}");
        }
        assert!(receiver.next().is_none());
        assert!(receiver.mapped >= 4 * page, "it heals with the next message");
        drop(receiver);
        sender.join().unwrap();
    }
}

#[test]
fn impossible_sizes_are_errors() {
    for (paths, bytes) in [(1, usize::MAX), (1, 4 << 30), (usize::MAX, M), (1 << 40, M)] {
        assert!(RegionPool::new(paths, bytes, M, u64::MAX).is_err(), "{paths} of {bytes}");
    }
}

#[test]
fn what_is_no_tcp_socket_is_an_error() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let mut region = region();
    assert!(region.target(1).unwrap().receive(file.as_fd(), None).is_err());
}
