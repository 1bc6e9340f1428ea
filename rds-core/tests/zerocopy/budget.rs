//! Pinned pages: never above the limit, no socket starves, everything comes back.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use rds_core::zerocopy::budget::LARGE_MESSAGE;
use rds_core::zerocopy::{Budget, Cap, Full, Limits, Share, WhenFull};

#[test]
fn limits_of_the_system_leave_room_for_others() {
    let limits = Limits { memlock: Some(8 << 20), optmem: 131_072 };
    assert_eq!(limits.limit_pages(4096), 1536);
    assert_eq!(limits.limit_pages(65536), 96);
    assert_eq!(limits.notification_limit(), 126);
    let none = Limits { memlock: Some(0), optmem: 0 };
    assert_eq!((none.limit_pages(4096), none.notification_limit()), (0, 0));
    let endless = Limits { memlock: None, optmem: u64::MAX };
    assert_eq!(endless.limit_pages(0), u64::MAX);
    assert!(endless.notification_limit() > 1 << 40);
}

#[test]
fn with_a_limit_of_0_nothing_is_pinned() {
    let budget = Arc::new(Budget::new(0));
    assert_eq!(Share::new(&budget).try_reserve(0), Err(Full::Never));
    assert_eq!(Share::new(&budget).try_reserve(2), Err(Full::Never));
    assert_eq!((budget.refused_never(), budget.used()), (2, 0));
}

#[test]
fn without_a_limit_everything_is_granted_and_counted() {
    let budget = Arc::new(Budget::new(u64::MAX));
    let share = Share::new(&budget);
    for _ in 0..1000 {
        assert_eq!(share.try_reserve(u32::MAX), Ok(()));
    }
    assert_eq!(budget.used(), 1000 * u64::from(u32::MAX));
    drop(share);
    assert_eq!((budget.used(), budget.max_used()), (0, 1000 * u64::from(u32::MAX)));
}

#[test]
fn what_exceeds_the_whole_budget_is_told_apart_from_what_has_to_wait() {
    let budget = Arc::new(Budget::new(100));
    let (one, other) = (Share::new(&budget), Share::new(&budget));
    assert_eq!(one.try_reserve(101), Err(Full::Never));
    assert_eq!(one.try_reserve(100), Ok(()));
    assert_eq!(other.try_reserve(2), Err(Full::Node));
    one.release(50);
    assert_eq!(other.try_reserve(2), Ok(()));
    assert_eq!((budget.refused_never(), budget.refused_node(), budget.used()), (1, 1, 52));
}

#[test]
fn beyond_its_part_a_socket_leaves_a_quarter_to_others() {
    let budget = Arc::new(Budget::new(4000));
    let (greedy, other) = (Share::new(&budget), Share::new(&budget));
    assert_eq!(other.try_reserve(10), Ok(()));
    while greedy.try_reserve(10).is_ok() {}
    assert_eq!((greedy.used(), budget.refused_share()), (2990, 1));
    for _ in 0..99 {
        assert_eq!(other.try_reserve(10), Ok(()), "others find the quarter");
    }
}

#[test]
fn a_dropped_socket_gives_back_what_it_held() {
    let budget = Arc::new(Budget::new(1000));
    let share = Share::new(&budget);
    assert_eq!(share.try_reserve(600), Ok(()));
    drop(share);
    assert_eq!((budget.used(), budget.max_used()), (0, 600));
    assert_eq!(Share::new(&budget).try_reserve(1000), Ok(()), "and is no holder any more");
}

#[test]
fn threads_that_take_and_give_back_at_once_end_at_zero() {
    let budget = Arc::new(Budget::new(2000));
    std::thread::scope(|scope| {
        for n in 0..4_u32 {
            let share = Share::new(&budget);
            let budget = &budget;
            scope.spawn(move || {
                for i in 0..20_000_u32 {
                    let pages = (i * 7 + n) % 300;
                    if share.try_reserve(pages).is_ok() {
                        assert!(budget.used() <= 2000);
                        share.release(pages);
                    }
                }
            });
        }
    });
    assert_eq!(budget.used(), 0);
    assert!(budget.max_used() > 0 && budget.max_used() <= 2000);
    assert_eq!(Share::new(&budget).try_reserve(2000), Ok(()), "nobody counts as a holder any more");
}

#[test]
fn policies_have_the_names_of_the_settings() {
    for policy in [WhenFull::Copy, WhenFull::Wait, WhenFull::Error] {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert_eq!(WhenFull::default(), WhenFull::Copy);
    assert!("never".parse::<WhenFull>().is_err());
}

/// A socket that always has something to send, of one size, whose messages are acknowledged in order.
struct Sender {
    share: Share,
    pages: u32,
    in_flight: VecDeque<u32>,
    granted: u64,
}

/// Runs sockets that want as much as they get. `order` picks who tries, and whether it first gets something back.
fn run(limit: u64, sizes: &[u32], order: &[(usize, bool)]) -> Vec<Sender> {
    let budget = Arc::new(Budget::new(limit));
    let mut senders: Vec<_> = sizes
        .iter()
        .map(|pages| Sender {
            share: Share::new(&budget),
            pages: *pages,
            in_flight: VecDeque::new(),
            granted: 0,
        })
        .collect();
    for (who, back) in order {
        let n = senders.len();
        let s = &mut senders[who % n];
        if *back && let Some(pages) = s.in_flight.pop_front() {
            s.share.release(pages);
        }
        if s.share.try_reserve(s.pages).is_ok() {
            s.in_flight.push_back(s.pages);
            s.granted += u64::from(s.pages);
        }
        assert!(budget.used() <= limit);
        assert_eq!(budget.used(), senders.iter().map(|s| s.share.used()).sum::<u64>());
    }
    for s in &mut senders {
        for pages in s.in_flight.drain(..) {
            s.share.release(pages);
        }
        assert_eq!(s.share.used(), 0);
    }
    assert_eq!(budget.used(), 0);
    senders
}

/// The same in random order, each acknowledged now and then.
fn seeded(limit: u64, sizes: &[u32], seed: u64, steps: usize) -> Vec<u64> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let order: Vec<_> = (0..steps).map(|_| (rng.usize(..sizes.len()), rng.bool())).collect();
    run(limit, sizes, &order).into_iter().map(|s| s.granted).collect()
}

#[test]
fn no_socket_starves_whatever_the_others_want() {
    let cases: [(u64, &[u32]); 6] = [
        (1536, &[258, 258]),
        (1536, &[258, 258, 258, 18, 18, 3]),
        (1536, &[258; 12]),
        (768, &[258, 18, 18, 18]),
        (300, &[258, 258, 18]),
        (12, &[6, 6, 3]),
    ];
    for (limit, sizes) in cases {
        for seed in 0..20 {
            let granted = seeded(limit, sizes, seed, 20_000);
            // Of what an equal division would give, in the tries that each had.
            for (i, pages) in granted.iter().enumerate() {
                let messages = pages / u64::from(sizes[i]);
                let tries = 20_000 / sizes.len() as u64;
                let could = (tries / 2).min(tries * limit / (sizes.len() as u64 * u64::from(sizes[i])));
                assert!(
                    messages * 10 >= could,
                    "limit {limit}, sizes {sizes:?}, seed {seed}: socket {i} pinned {messages} of {could}, all {granted:?}"
                );
            }
        }
    }
}

#[test]
fn equal_sockets_get_about_equal_parts() {
    for (limit, n) in [(1536, 2), (1536, 4), (1536, 12), (300, 3)] {
        for seed in 0..20 {
            let granted = seeded(limit, &vec![258; n], seed, 30_000);
            let mean = granted.iter().sum::<u64>() / n as u64;
            assert!(
                granted.iter().all(|g| g * 2 >= mean),
                "limit {limit}, {n} sockets, seed {seed}: {granted:?}"
            );
        }
    }
}

#[test]
fn a_newcomer_gets_its_part_from_one_that_has_everything() {
    let budget = Arc::new(Budget::new(1536));
    let (old, new) = (Share::new(&budget), Share::new(&budget));
    while old.try_reserve(258).is_ok() {}
    let mut granted = 0;
    // The old one is always back first for what it has just given back.
    for _ in 0..20 {
        if old.used() >= 258 {
            old.release(258);
        }
        let _ = old.try_reserve(258);
        granted += u32::from(new.try_reserve(258).is_ok());
    }
    assert!(granted >= 2, "{granted} large messages, of an equal part of 768 pages");
    assert!(new.used() <= 768 + LARGE_MESSAGE);
}

proptest! {
    #[test]
    fn never_above_the_limit_and_back_to_zero(
        limit in 0..2000_u64,
        sizes in vec(0..400_u32, 1..8),
        order in vec((0..8_usize, any::<bool>()), 0..400),
    ) {
        // Checks it at each step.
        run(limit, &sizes, &order);
    }
}

#[test]
fn shares_within_a_cap_hold_no_more_than_it_together() {
    let budget = Arc::new(Budget::new(1000));
    let cap = Cap::new(100);
    let share = || Share::with_limit(&budget, 80).within(&cap);
    let (a, b, other) = (share(), share(), Share::new(&budget));
    assert_eq!(a.try_reserve(81), Err(Full::Never), "its own limit");
    a.try_reserve(70).unwrap();
    assert_eq!(a.try_reserve(11), Err(Full::Share));
    assert_eq!(b.try_reserve(31), Err(Full::Share), "the cap");
    b.try_reserve(30).unwrap();
    assert_eq!((cap.used(), budget.used()), (100, 100));
    other.try_reserve(200).unwrap();
    a.release(20);
    assert_eq!((cap.used(), budget.used()), (80, 280));
    b.try_reserve(20).unwrap();
    drop((a, b));
    assert_eq!((cap.used(), budget.used()), (0, 200));
}
