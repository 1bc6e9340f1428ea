//! Pages and whoever holds them.

use super::*;

/// Whether something is mapped at an address: a system call that reads there says so instead of faulting.
fn is_mapped(address: *const u8) -> bool {
    let (_reader, writer) = std::io::pipe().unwrap();
    // SAFETY: write(2) reads one byte at the address, or fails with EFAULT.
    let n = unsafe { libc::write(writer.as_raw_fd(), address.cast(), 1) };
    let error = io::Error::last_os_error();
    assert!(n == 1 || error.raw_os_error() == Some(libc::EFAULT), "{error}");
    n == 1
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
    assert!(receiver.region.target(16).is_err());
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
        let pool = RegionPool::new(2, 2 * M, M, u64::MAX).unwrap();
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
    let pool = RegionPool::new(1, 2 * M, M, u64::MAX).unwrap();
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
    // Another test's thread may map something where the address space was.
    let gone = (0..5).any(|_| !is_mapped(holds_pages_for_a_lap()));
    assert!(gone, "with the last lease the address space goes");
}

/// Returns where pages were that neither the region nor a lease holds any more.
fn holds_pages_for_a_lap() -> *const u8 {
    let page = page_size();
    let payload = Aligned::new(2 * page, 3);
    let (a, b) = pair();
    let mut region = region();
    let receive = |region: &mut PathRegion| {
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
    assert!(region.used_pages() <= 256 + 3, "no more than a lap is kept");
    assert!(*held == *payload);
    drop((region, held));
    at
}

#[test]
fn an_abandoned_target_gives_its_pages_back() {
    let payload = Aligned::new(2 * page_size(), 3);
    let (a, b) = pair();
    send(&a, &[&payload], libc::MSG_ZEROCOPY | libc::MSG_EOR);
    wait_for(&b, payload.len());
    let mut region = region();
    let mut target = region.target(511).unwrap();
    assert!(region.target(1).is_err());
    target.receive(b.as_fd(), None).unwrap();
    drop(target);
    assert!(region.target(511).is_ok(), "all 512 are free again");
    assert!(region.target(512).is_err() && region.target(0).is_err() && region.target(u32::MAX).is_err());
}

#[test]
fn a_target_may_be_finished_by_another_region() {
    let pool = RegionPool::new(2, 2 * M, M, u64::MAX).unwrap();
    let (mut one, mut other) = (pool.take().unwrap(), pool.take().unwrap());
    let target = one.target(511).unwrap();
    let (lease, surplus) = other.finish(target);
    assert!(lease.is_empty() && surplus.is_none());
    assert!(one.target(511).is_ok() && other.target(511).is_ok());
}

#[test]
fn more_paths_than_foreseen_get_parts_of_their_own() {
    let pool = RegionPool::new(2, 3 * M, M, u64::MAX).unwrap();
    let mut parts: Vec<_> = (0..6).map(|_| pool.take().unwrap()).collect();
    let mut ranges: Vec<_> = parts.iter().map(PathRegion::addresses).collect();
    ranges.sort_by_key(|r| r.start);
    assert!(ranges.iter().all(|r| r.start % ALIGN == 0 && r.len() == 4 * M), "{ranges:?}");
    assert!(ranges.windows(2).all(|w| w[0].end <= w[1].start), "{ranges:?}");
    // So that no new mapping can be at the old addresses.
    let _held: Vec<_> = parts.iter_mut().map(|p| p.target(1).unwrap()).collect();
    drop(parts);
    let again: Vec<_> = (0..6).map(|_| pool.take().unwrap()).collect();
    assert!(again.iter().all(|p| ranges.contains(&p.addresses())), "parts that came back are used again");
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
    assert!(receiver.region.target(511).is_ok(), "everything came back");
    drop(receiver);
    sender.join().unwrap();
}

#[test]
fn all_paths_together_keep_to_the_limit_of_mapped_bytes() {
    let page = page_size() as u64;
    let pool = RegionPool::new(2, 2 * M, M, 100 * page).unwrap();
    let (mut one, mut other) = (pool.take().unwrap(), pool.take().unwrap());
    let first = one.target(59).unwrap();
    assert_eq!(pool.bytes_in_use(), 60 * page);
    assert_eq!(other.target(40).err(), Some(NoRoom::Limit));
    let second = other.target(39).unwrap();
    assert_eq!(one.target(1).err(), Some(NoRoom::Limit));
    drop(first);
    // What came back is noticed by its owner.
    assert!(one.target(59).is_ok());
    drop(one);
    drop(second);
    pool.idle();
    assert_eq!(pool.bytes_in_use(), 40 * page, "the other path has not looked");
    other.idle();
    assert_eq!(pool.bytes_in_use(), 0);
}
