//! How a run of pieces is cut into calls.

use proptest::collection::vec;
use proptest::prelude::*;
use rds_core::zerocopy::plan::MAX_PINNED;
use rds_core::zerocopy::{Call, Piece, next_call};

const HEADER: Piece = Piece { len: 48, pinnable: false };

fn payload(len: usize) -> Piece {
    Piece { len, pinnable: true }
}

fn small(len: usize) -> Piece {
    Piece { len, pinnable: false }
}

fn calls(mut pieces: &[Piece], max: usize) -> Vec<Call> {
    let mut calls = Vec::new();
    while !pieces.is_empty() {
        let call = next_call(pieces, max);
        assert!(call.pieces > 0 && call.pieces <= pieces.len(), "{call:?} of {pieces:?}");
        pieces = &pieces[call.pieces..];
        calls.push(call);
    }
    calls
}

fn copied(pieces: usize, end_record: bool, more: bool) -> Call {
    Call { pieces, pinned: false, end_record, more }
}

fn pinned(pieces: usize) -> Call {
    Call { pieces, pinned: true, end_record: true, more: false }
}

#[test]
fn an_empty_run_is_no_call() {
    assert_eq!(next_call(&[], 8), Call::default());
}

#[test]
fn small_messages_are_one_copied_call_that_ends_no_record() {
    let run = [HEADER, small(100), HEADER, small(48), HEADER];
    assert_eq!(calls(&run, 64), [copied(5, false, false)]);
}

#[test]
fn large_messages_take_one_call_each_with_the_next_header_behind() {
    let run = [HEADER, payload(65536), HEADER, payload(65536), HEADER, payload(65536)];
    assert_eq!(calls(&run, 64), [copied(1, true, true), pinned(2), pinned(2), pinned(1)]);
}

#[test]
fn what_comes_before_a_large_payload_is_one_copied_call_ending_with_its_header() {
    let run = [HEADER, small(10), HEADER, small(48), HEADER, payload(65536)];
    assert_eq!(calls(&run, 64), [copied(5, true, true), pinned(1)]);
}

#[test]
fn the_header_of_a_small_message_does_not_ride_behind_a_large_payload() {
    let run = [payload(65536), HEADER, small(10), HEADER, payload(4096)];
    assert_eq!(calls(&run, 64), [pinned(1), copied(3, true, true), pinned(1)]);
    assert_eq!(calls(&[payload(65536), HEADER], 64), [pinned(1), copied(1, false, false)]);
}

#[test]
fn the_rest_of_a_header_half_written_is_copied() {
    let run = [small(20), payload(65536), HEADER, payload(4096)];
    assert_eq!(calls(&run, 64), [copied(1, true, true), pinned(2), pinned(1)]);
}

#[test]
fn a_payload_too_large_to_pin_is_copied() {
    assert_eq!(calls(&[HEADER, payload(MAX_PINNED + 1)], 64), [copied(2, false, false)]);
    assert_eq!(calls(&[HEADER, payload(MAX_PINNED)], 64), [copied(1, true, true), pinned(1)]);
}

#[test]
fn few_pieces_a_call_change_nothing_but_the_number_of_calls() {
    let run = [small(1), small(2), small(3), HEADER, payload(4096), HEADER, payload(4096)];
    let expected = [copied(2, false, true), copied(2, true, true), pinned(2), pinned(1)];
    assert_eq!(calls(&run, 2), expected);
    let last = [pinned(1), copied(1, true, true), pinned(1)];
    assert_eq!(calls(&run, 1)[4..], last);
    assert_eq!(calls(&run, 0), calls(&run, 1));
}

/// Any pieces at all: the stream may begin in the middle of a message.
fn any_run() -> impl Strategy<Value = Vec<Piece>> {
    let piece = prop_oneof![
        3 => Just(HEADER),
        3 => (0..300_usize).prop_map(small),
        4 => prop_oneof![Just(4096), Just(65536), Just(MAX_PINNED), 0..2 * MAX_PINNED].prop_map(payload),
    ];
    vec(piece, 0..40)
}

/// Whole messages.
fn messages() -> impl Strategy<Value = Vec<Piece>> {
    let body = prop_oneof![
        (0..9000_usize).prop_map(small),
        (1..=256_usize).prop_map(|pages| payload(pages * 4096)),
    ];
    vec(body, 1..20).prop_map(|bodies| bodies.into_iter().flat_map(|b| [HEADER, b]).collect())
}

/// Bytes in front of each pinned piece in its segment buffer, if the kernel merged all that no record end separates.
fn check(run: &[Piece], max: usize) -> Result<(), TestCaseError> {
    let calls = calls(run, max);
    prop_assert_eq!(calls.iter().map(|c| c.pieces).sum::<usize>(), run.len(), "each piece once");
    let mut at = 0;
    let mut before = 0;
    for (n, call) in calls.iter().enumerate() {
        prop_assert!(call.pieces <= max.max(1));
        let pieces = &run[at..at + call.pieces];
        if call.pinned {
            prop_assert_eq!(before, 0, "a payload begins a segment buffer: call {} of {:?}", n, calls);
            prop_assert!(pieces[0].pinnable && pieces[0].len > 0 && pieces[0].len <= MAX_PINNED);
            if let Some(rider) = pieces.get(1) {
                prop_assert_eq!(*rider, HEADER);
                prop_assert!(calls[n + 1].pinned, "its payload comes next");
            }
            prop_assert!(call.end_record && pieces.len() <= 2);
        } else {
            prop_assert!(
                pieces.iter().all(|p| !p.pinnable || p.len == 0 || p.len > MAX_PINNED),
                "what can be pinned is"
            );
        }
        at += call.pieces;
        prop_assert!(!call.more || at < run.len(), "nothing waits for what does not follow");
        before = if call.end_record { 0 } else { before + pieces.iter().map(|p| p.len).sum::<usize>() };
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn each_piece_goes_once_in_order_and_each_payload_begins_a_segment_buffer(
        run in any_run(), max in 0..20_usize,
    ) {
        check(&run, max)?;
    }

    #[test]
    fn whole_messages_cost_at_most_two_calls_for_each_change_between_small_and_large(run in messages()) {
        check(&run, 1024)?;
        let large: Vec<bool> = run.iter().skip(1).step_by(2).map(|p| p.pinnable).collect();
        let runs_of_small = large.split(|l| *l).filter(|s| !s.is_empty()).count();
        let first = usize::from(large[0]);
        prop_assert!(calls(&run, 1024).len() <= large.iter().filter(|l| **l).count() + runs_of_small + first);
    }
}
