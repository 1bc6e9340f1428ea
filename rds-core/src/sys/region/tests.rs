mod pattern;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;

use pattern::*;

use super::*;

const K: usize = 1 << 10;
const M: usize = 1 << 20;

fn region() -> PathRegion {
    RegionPool::new(1, 2 * M, M).unwrap().take().unwrap()
}

/// Whether something is mapped at an address: a system call that reads there says so instead of faulting.
fn is_mapped(address: *const u8) -> bool {
    let (_reader, writer) = std::io::pipe().unwrap();
    // SAFETY: write(2) reads one byte at the address, or fails with EFAULT.
    let n = unsafe { libc::write(writer.as_raw_fd(), address.cast(), 1) };
    let error = io::Error::last_os_error();
    assert!(n == 1 || error.raw_os_error() == Some(libc::EFAULT), "{error}");
    n == 1
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
    let pool = RegionPool::new(1, 4 * M, 2 * M).unwrap();
    let mut receiver = Receiver::new(b, pool.take().unwrap());
    let part = receiver.region.addresses();
    assert_eq!(part.start % ALIGN, 0);
    for i in 0..count {
        let message = receiver.next().unwrap();
        assert!(*message == *payloads[i % payloads.len()], "message {i} is not what was sent");
        if let Payload::Mapped(lease) = &message {
            let at = lease.as_ptr() as usize;
            assert!(at % page_size() == 0 && part.contains(&at) && at + lease.len() <= part.end);
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
fn a_lease_keeps_its_bytes_while_thousands_of_messages_pass() {
    let len = 64 * K;
    let payloads = payloads(len);
    let (a, b) = pair();
    let sender = sender(a, Arc::clone(&payloads), vec![len; 5000]);
    let mut receiver = Receiver::new(b, region());
    let mut held = Vec::new();
    for i in 0..5000 {
        let message = receiver.next().unwrap();
        assert!(*message == *payloads[i % payloads.len()]);
        // Some early and scattered, so that every lap has to pass over them.
        if i < 24 && i % 3 == 0 {
            held.push((i, message));
        }
        if i % 1000 == 0 {
            assert!(held.iter().all(|(i, m)| **m == *payloads[i % payloads.len()]));
        }
    }
    assert!(held.iter().any(|(_, m)| matches!(m, Payload::Mapped(_))));
    assert!(held.iter().all(|(i, m)| **m == *payloads[i % payloads.len()]));
    assert!(receiver.mapped * 100 >= receiver.total * 90, "{} were mapped", receiver.mapped);
    drop(receiver);
    sender.join().unwrap();
}

#[test]
fn while_all_pages_are_held_messages_are_copied_and_mapped_again_later() {
    let len = 64 * K;
    let payloads = payloads(len);
    let (a, b) = pair();
    let sender = sender(a, Arc::clone(&payloads), vec![len; 600]);
    let mut receiver = Receiver::new(b, region());
    let held: Vec<_> = (0..300).map(|_| receiver.next().unwrap()).collect();
    assert!(receiver.region.target(16).is_none());
    assert!(matches!(held[299], Payload::Copied(_)));
    let pages: usize =
        held.iter().map(|m| if let Payload::Mapped(m) = m { m.len() / page_size() } else { 0 }).sum();
    // Each run is a page longer while it is filled, so the last few pages may be too few.
    assert!((480..=512).contains(&pages), "{pages} of 512 pages were lent");
    assert_eq!(receiver.region.lent_pages() as usize, pages);
    for (i, message) in held.iter().enumerate() {
        assert!(**message == *payloads[i % payloads.len()]);
    }
    drop(held);
    let before = receiver.mapped;
    for i in 300..600 {
        assert!(*receiver.next().unwrap() == *payloads[i % payloads.len()]);
    }
    assert!(receiver.mapped - before >= len * 300 * 95 / 100, "mapping is taken up again");
    drop(receiver);
    sender.join().unwrap();
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
fn a_connection_says_goodbye_although_leases_are_held() {
    let payload = Aligned::new(2 * page_size(), 3);
    let (a, b) = pair();
    send(&a, &[&payload], libc::MSG_ZEROCOPY | libc::MSG_EOR);
    wait_for(&b, payload.len());
    let mut region = region();
    let mut target = region.target(2).unwrap();
    target.receive(b.as_fd(), None).unwrap();
    let (lease, _) = region.finish(target);
    drop(b);
    assert_eq!(
        (&a).read(&mut [0]).unwrap(),
        0,
        "a mapping of the connection's own socket would keep it open"
    );
    drop((a, region));
    assert!(*lease == *payload);
}

#[test]
fn leases_outlive_connection_target_region_and_pool_in_any_order() {
    let payload = Arc::new(Aligned::new(2 * page_size(), 3));
    for order in 0..24 {
        let (a, b) = pair();
        send(&a, &[&payload], libc::MSG_ZEROCOPY | libc::MSG_EOR);
        wait_for(&b, payload.len());
        let pool = RegionPool::new(2, 2 * M, M).unwrap();
        let mut region = pool.take().unwrap();
        let mut target = region.target(1).unwrap();
        target.receive(b.as_fd(), None).unwrap();
        let (lease, _) = region.finish(target);
        let mut open = region.target(1).unwrap();
        open.receive(b.as_fd(), None).unwrap();
        let mut things: Vec<Option<Box<dyn Send>>> =
            vec![Some(Box::new((a, b))), Some(Box::new(region)), Some(Box::new(pool)), Some(Box::new(open))];
        let expected = Arc::clone(&payload);
        let holder = std::thread::spawn(move || {
            let mut rest = order;
            for left in (1..=4).rev() {
                let still: Vec<_> = (0..4).filter(|i| things[*i].is_some()).collect();
                things[still[rest % left]] = None;
                rest /= left;
                assert!(*lease == expected[..page_size()]);
            }
            lease
        });
        assert!(*holder.join().unwrap() == payload[..page_size()]);
    }
}

#[test]
fn a_part_that_comes_back_keeps_its_leases_from_the_next_path() {
    let len = 64 * K;
    let payloads = payloads(len);
    let pool = RegionPool::new(1, 2 * M, M).unwrap();
    let mut held = Vec::new();
    for round in 0..4 {
        let (a, b) = pair();
        let sender = sender(a, Arc::clone(&payloads), vec![len; 100]);
        let region = pool.take().unwrap();
        assert_eq!(region.used_pages(), 0, "what nobody holds is unmapped");
        let mut receiver = Receiver::new(b, region);
        for i in 0..100 {
            let message = receiver.next().unwrap();
            if i == 10 * round {
                held.push((i, message));
            }
        }
        drop(receiver);
        sender.join().unwrap();
    }
    for (i, message) in &held {
        assert!(matches!(message, Payload::Mapped(_)) && **message == *payloads[i % payloads.len()]);
    }
}

#[test]
fn pages_stay_mapped_for_their_holder_and_not_longer_than_a_lap() {
    let page = page_size();
    let payload = Aligned::new(2 * page, 3);
    let (a, b) = pair();
    let mut region = region();
    let mut receive = |region: &mut PathRegion| {
        send(&a, &[&payload], libc::MSG_ZEROCOPY | libc::MSG_EOR);
        wait_for(&b, payload.len());
        let mut target = region.target(2).unwrap();
        target.receive(b.as_fd(), None).unwrap();
        region.finish(target).0
    };
    let held = receive(&mut region);
    let dropped = receive(&mut region);
    let gone = dropped.as_ptr();
    drop(dropped);
    assert!(is_mapped(gone), "unmapped at the end of the lap only");
    region.idle();
    assert!(!is_mapped(gone) && is_mapped(held.as_ptr()) && is_mapped(held[page..].as_ptr()));
    assert_eq!((region.used_pages(), region.lent_pages()), (0, 2));
    let again = receive(&mut region);
    let at = again.as_ptr();
    drop(again);
    // Round the part once, without a word about idleness.
    (0..512).for_each(|_| drop(receive(&mut region)));
    assert!(region.used_pages() <= 512);
    assert!(*held == *payload);
    drop((region, held));
    assert!(!is_mapped(at), "with the last lease the address space goes");
}

#[test]
fn an_abandoned_target_gives_its_pages_back() {
    let payload = Aligned::new(2 * page_size(), 3);
    let (a, b) = pair();
    send(&a, &[&payload], libc::MSG_ZEROCOPY | libc::MSG_EOR);
    wait_for(&b, payload.len());
    let mut region = region();
    let mut target = region.target(511).unwrap();
    assert!(region.target(1).is_none());
    target.receive(b.as_fd(), None).unwrap();
    drop(target);
    assert!(region.target(511).is_some(), "all 512 are free again");
    assert!(region.target(512).is_none() && region.target(0).is_none() && region.target(u32::MAX).is_none());
}

#[test]
fn a_target_may_be_finished_by_another_region() {
    let pool = RegionPool::new(2, 2 * M, M).unwrap();
    let (mut one, mut other) = (pool.take().unwrap(), pool.take().unwrap());
    let target = one.target(511).unwrap();
    let (lease, surplus) = other.finish(target);
    assert!(lease.is_empty() && surplus.is_none());
    assert!(one.target(511).is_some() && other.target(511).is_some());
}

#[test]
fn more_paths_than_foreseen_get_parts_of_their_own() {
    let pool = RegionPool::new(2, 3 * M, M).unwrap();
    let parts: Vec<_> = (0..6).map(|_| pool.take().unwrap()).collect();
    let mut ranges: Vec<_> = parts.iter().map(PathRegion::addresses).collect();
    ranges.sort_by_key(|r| r.start);
    assert!(ranges.iter().all(|r| r.start % ALIGN == 0 && r.len() == 4 * M), "{ranges:?}");
    assert!(ranges.windows(2).all(|w| w[0].end <= w[1].start), "{ranges:?}");
    drop(parts);
    let again: Vec<_> = (0..6).map(|_| pool.take().unwrap()).collect();
    assert!(again.iter().all(|p| ranges.contains(&p.addresses())), "parts that came back are used again");
}

#[test]
fn impossible_sizes_are_errors() {
    for (paths, bytes) in [(1, usize::MAX), (1, 4 << 30), (usize::MAX, M), (1 << 40, M)] {
        assert!(RegionPool::new(paths, bytes, M).is_err(), "{paths} of {bytes}");
    }
}

#[test]
fn what_is_no_tcp_socket_is_an_error() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let mut region = region();
    assert!(region.target(1).unwrap().receive(file.as_fd(), None).is_err());
}

#[test]
fn leases_come_back_from_many_threads_at_once() {
    let len = 16 * K;
    let payloads = payloads(len);
    let (a, b) = pair();
    let sender = sender(a, Arc::clone(&payloads), vec![len; 6000]);
    let mut receiver = Receiver::new(b, region());
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let payloads = Arc::clone(&payloads);
            let (to, from) = std::sync::mpsc::sync_channel::<(usize, Payload)>(8);
            let thread = std::thread::spawn(move || {
                from.iter().for_each(|(i, m)| assert!(*m == *payloads[i % payloads.len()], "message {i}"));
            });
            (to, thread)
        })
        .collect();
    for i in 0..6000 {
        let message = receiver.next().unwrap();
        readers[i % 3].0.send((i, message)).unwrap();
    }
    for (to, thread) in readers {
        drop(to);
        thread.join().unwrap();
    }
    assert!(receiver.region.target(511).is_some(), "everything came back");
    drop(receiver);
    sender.join().unwrap();
}
