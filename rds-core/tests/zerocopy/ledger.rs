//! The ledger against a naive model of the kernel's numbers.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use rds_core::proto::Time;
use rds_core::zerocopy::{Ledger, Notified, Released, charge};

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

/// A ledger whose calls from `first` on hold their own distance from `first`, all of one page, begun at 0, 1, 2... ms.
fn with_calls(first: u32, n: u32) -> Ledger<u32> {
    let mut ledger = Ledger::starting_at(first);
    for i in 0..n {
        ledger.begin(at(u64::from(i)), 1);
        assert_eq!(ledger.commit(i), None);
    }
    ledger
}

fn notify(ledger: &mut Ledger<u32>, first: u32, last: u32) -> (Notified, Vec<u32>) {
    let mut out = Vec::new();
    let n = ledger.notified(at(100), first, last, false, &mut out);
    (n, out.into_iter().map(|r| r.held).collect())
}

#[test]
fn the_charge_is_the_kernels() {
    for (bytes, pages) in [(0, 2), (1, 2), (4095, 2), (4096, 3), (65536, 18), (1 << 20, 258)] {
        assert_eq!(charge(bytes, 4096), pages, "{bytes} bytes");
    }
    assert_eq!(charge(1 << 20, 65536), 18);
    assert_eq!(charge(usize::MAX, 0), u32::MAX);
}

#[test]
fn a_merged_range_across_the_wrap_releases_its_calls_in_order() {
    let mut ledger = with_calls(u32::MAX - 1, 4);
    let (n, held) = notify(&mut ledger, u32::MAX, 1);
    assert_eq!(held, [1, 2, 3]);
    assert_eq!(n, Notified { ids: 3, unknown: 0, oldest_lag: Duration::from_millis(99) });
    assert_eq!((ledger.outstanding(), ledger.pages(), ledger.oldest()), (1, 1, Some(at(0))));
    assert_eq!(notify(&mut ledger, u32::MAX - 1, u32::MAX - 1).1, [0]);
    assert_eq!(ledger.oldest(), None);
}

#[test]
fn a_call_notified_before_the_writer_is_back_comes_straight_back() {
    let mut ledger = with_calls(7, 1);
    ledger.begin(at(5), 9);
    let (n, held) = notify(&mut ledger, 8, 8);
    assert_eq!((n.ids, n.unknown, held.len()), (1, 0, 0), "nothing is there to give back yet");
    assert_eq!(notify(&mut ledger, 8, 8).0.unknown, 1, "only once");
    assert_eq!(ledger.pages(), 10, "charged until the writer is back");
    assert_eq!(ledger.commit(1), Some(Released { held: 1, copied: false, pages: 9 }));
    assert_eq!(ledger.pages(), 1);
    assert_eq!(notify(&mut ledger, 7, 8).1, [0]);
    assert_eq!(ledger.outstanding(), 0);
}

#[test]
fn a_failed_call_leaves_its_number_to_the_next() {
    let mut ledger = with_calls(u32::MAX, 0);
    ledger.begin(at(1), 4);
    assert_eq!((ledger.outstanding(), ledger.pages(), ledger.oldest()), (1, 4, Some(at(1))));
    assert_eq!(ledger.failed(), 4);
    assert_eq!((ledger.outstanding(), ledger.pages(), ledger.oldest()), (0, 0, None));
    ledger.begin(at(2), 5);
    assert_eq!(ledger.commit(42), None);
    assert_eq!(notify(&mut ledger, u32::MAX, u32::MAX).1, [42]);
}

#[test]
fn a_range_of_all_numbers_costs_no_more_than_the_ledger_has_calls() {
    // Each would take seconds if its numbers were walked.
    for start in 0..200_u32 {
        let mut ledger = with_calls(100, 3);
        let (n, mut held) = notify(&mut ledger, start, start.wrapping_sub(1));
        held.sort_unstable();
        assert_eq!(held, [0, 1, 2]);
        assert_eq!((n.ids, n.unknown), (3, (1 << 32) - 3));
    }
}

#[test]
fn a_ledger_in_steady_state_keeps_no_trace_of_what_is_done() {
    let mut ledger = with_calls(u32::MAX - 5000, 0);
    let mut out = Vec::new();
    for i in 0..10_000_u32 {
        ledger.begin(at(1), 1);
        assert_eq!(ledger.commit(i), None);
        if i >= 8 {
            // Pairs in reverse order, as seen on loopback.
            let id = (u32::MAX - 5000).wrapping_add((i - 8) ^ 1);
            ledger.notified(at(2), id, id, true, &mut out);
        }
        assert!(ledger.outstanding() <= 10);
    }
    assert!(out.iter().all(|r| r.copied));
    assert_eq!(out.len() + ledger.outstanding(), 10_000);
}

/// What happens to a ledger. Numbers are relative to the first call.
#[derive(Clone, Copy, Debug)]
enum Step {
    Begin { pages: u32 },
    Fail,
    Commit,
    Notify { from: i32, len: u32, copied: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..300_u32).prop_map(|pages| Step::Begin { pages }),
        1 => Just(Step::Fail),
        8 => Just(Step::Commit),
        6 => (-2..60_i32, 0..6_u32, any::<bool>()).prop_map(|(from, len, copied)| Step::Notify { from, len, copied }),
        1 => (any::<i32>(), any::<u32>(), any::<bool>())
            .prop_map(|(from, len, copied)| Step::Notify { from, len, copied }),
    ]
}

/// The calls that are outstanding, by number.
#[derive(Default)]
struct Model {
    next: u32,
    held: BTreeMap<u32, (u64, Time, u32)>,
    flight: Option<(Time, u32, Option<bool>)>,
}

impl Model {
    /// Membership, one number after the other: what the ledger must not do.
    fn in_range(first: u32, last: u32, id: u32) -> bool {
        id.wrapping_sub(first) <= last.wrapping_sub(first)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_call_comes_back_exactly_once_whatever_is_notified(
        start in prop_oneof![Just(0), u32::MAX - 40..=u32::MAX, any::<u32>()],
        steps in vec(step(), 0..120),
    ) {
        let mut ledger = Ledger::starting_at(start);
        let mut model = Model { next: start, ..Model::default() };
        let mut committed = 0_u64;
        let mut returned = Vec::new();
        for (i, step) in steps.into_iter().enumerate() {
            let now = at(i as u64);
            match step {
                Step::Begin { pages } if model.flight.is_none() => {
                    ledger.begin(now, pages);
                    model.flight = Some((now, pages, None));
                }
                Step::Begin { .. } => {}
                Step::Fail => {
                    let pages = model.flight.take().map_or(0, |f| f.1);
                    prop_assert_eq!(ledger.failed(), pages);
                }
                Step::Commit => if let Some((begun, pages, notified)) = model.flight.take() {
                    let back = ledger.commit(committed);
                    prop_assert_eq!(
                        back.as_ref().map(|r| (r.held, r.copied, r.pages)),
                        notified.map(|copied| (committed, copied, pages))
                    );
                    if notified.is_none() {
                        model.held.insert(model.next, (committed, begun, pages));
                    }
                    returned.extend(back.map(|r| r.held));
                    model.next = model.next.wrapping_add(1);
                    committed += 1;
                },
                Step::Notify { from, len, copied } => {
                    let (first, last) = (start.wrapping_add_signed(from), start.wrapping_add_signed(from).wrapping_add(len));
                    let mut out = Vec::new();
                    let n = ledger.notified(now, first, last, copied, &mut out);
                    let mut lag = Duration::ZERO;
                    let ended: Vec<u32> =
                        model.held.keys().copied().filter(|id| Model::in_range(first, last, *id)).collect();
                    let mut ids = ended.len() as u64;
                    let mut expected = Vec::new();
                    for id in ended {
                        let (held, begun, pages) = model.held.remove(&id).expect("just listed");
                        lag = lag.max(now.since(begun));
                        expected.push((held, copied, pages));
                    }
                    if let Some((begun, _, notified @ None)) = &mut model.flight
                        && Model::in_range(first, last, model.next)
                    {
                        *notified = Some(copied);
                        ids += 1;
                        lag = lag.max(now.since(*begun));
                    }
                    let mut got: Vec<_> = out.iter().map(|r| (r.held, r.copied, r.pages)).collect();
                    got.sort_unstable();
                    expected.sort_unstable();
                    prop_assert_eq!(got, expected);
                    prop_assert_eq!(n, Notified { ids, unknown: u64::from(len) + 1 - ids, oldest_lag: lag });
                    returned.extend(out.into_iter().map(|r| r.held));
                }
            }
            let flight = model.flight;
            prop_assert_eq!(ledger.outstanding(), model.held.len() + usize::from(flight.is_some()));
            let pages: u64 = model.held.values().map(|v| u64::from(v.2)).sum();
            prop_assert_eq!(ledger.pages(), pages + flight.map_or(0, |f| u64::from(f.1)));
            let in_flight = flight.filter(|f| f.2.is_none()).map(|f| f.0);
            prop_assert_eq!(ledger.oldest(), model.held.values().map(|v| v.1).chain(in_flight).min());
        }
        if model.flight.is_some() {
            ledger.failed();
        }
        let mut out = Vec::new();
        ledger.notified(at(1000), 0, u32::MAX, false, &mut out);
        returned.extend(out.into_iter().map(|r| r.held));
        returned.sort_unstable();
        prop_assert_eq!(returned, (0..committed).collect::<Vec<_>>());
    }
}
