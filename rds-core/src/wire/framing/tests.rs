//! Framing of hand-made streams; `tests/wire_properties.rs` cuts arbitrary ones.

use super::*;
use crate::wire::{MAX_MESSAGE, MAX_MESSAGE_SLACK};

const LIMIT: u32 = 1000;

fn message(sequence: u64, payload: &[u8]) -> Vec<u8> {
    let header =
        Header { sequence, len: payload.len() as u32, sport: 5000, dport: 4000, ..Header::default() };
    [&header.encode()[..], payload].concat()
}

fn next<'a>(decoder: &mut Decoder, input: &mut &'a [u8]) -> Item<'a> {
    decoder.next(input, LIMIT).unwrap()
}

#[test]
fn whole_messages_are_handed_out_one_by_one_without_a_copy() {
    let stream = [message(1, b"first"), message(2, b""), message(3, b"third")].concat();
    let mut input = &stream[..];
    let mut decoder = Decoder::new();
    for (sequence, want) in [(1, &b"first"[..]), (2, b""), (3, b"third")] {
        let Item::Message { header, payload } = next(&mut decoder, &mut input) else { panic!("not whole") };
        assert_eq!((header.sequence, payload), (sequence, want));
        assert!(decoder.at_boundary());
        assert!(payload.is_empty() || stream.as_ptr_range().contains(&payload.as_ptr()));
        assert_eq!(decoder.offset(), (stream.len() - input.len()) as u64);
    }
    assert_eq!(next(&mut decoder, &mut input), Item::NeedMore);
}

#[test]
fn an_empty_input_changes_nothing() {
    let stream = message(1, b"payload");
    for cut in 0..=stream.len() {
        let mut decoder = Decoder::new();
        let mut input = &stream[..cut];
        while next(&mut decoder, &mut input) != Item::NeedMore {}
        let before = (decoder.offset(), decoder.missing(), decoder.at_boundary());
        assert_eq!(next(&mut decoder, &mut &[][..]), Item::NeedMore);
        assert_eq!((decoder.offset(), decoder.missing(), decoder.at_boundary()), before, "cut at {cut}");
        assert_eq!(before.0, cut as u64);
    }
}

#[test]
fn a_message_cut_in_its_payload_begins_and_ends_with_its_last_chunk() {
    let stream = message(9, b"abcdef");
    let mut decoder = Decoder::new();
    let mut input = &stream[..HEADER_LEN];
    assert!(matches!(next(&mut decoder, &mut input), Item::Begin { header } if header.sequence == 9));
    assert_eq!(next(&mut decoder, &mut input), Item::NeedMore);
    assert_eq!(decoder.missing(), 6);
    let mut input = &stream[HEADER_LEN..HEADER_LEN + 4];
    assert_eq!(next(&mut decoder, &mut input), Item::Chunk { data: b"abcd", last: false });
    let mut input = &b"ef and more"[..];
    assert_eq!(next(&mut decoder, &mut input), Item::Chunk { data: b"ef", last: true });
    assert!(decoder.at_boundary());
    assert_eq!(input, b" and more");
}

#[test]
fn a_message_whose_header_was_cut_is_whole_if_its_payload_is() {
    let stream = message(9, b"abcdef");
    for cut in 1..HEADER_LEN {
        let mut decoder = Decoder::new();
        assert_eq!(next(&mut decoder, &mut &stream[..cut]), Item::NeedMore);
        assert!(!decoder.at_boundary());
        let mut input = &stream[cut..];
        assert!(
            matches!(next(&mut decoder, &mut input), Item::Message { payload: b"abcdef", .. }),
            "cut at {cut}"
        );
    }
}

#[test]
fn bytes_read_past_the_decoder_end_a_message_without_an_item() {
    let mut decoder = Decoder::new();
    assert!(matches!(next(&mut decoder, &mut &message(1, b"abcdef")[..HEADER_LEN + 1]), Item::Begin { .. }));
    decoder.advance_payload(2);
    assert_eq!(decoder.missing(), 4);
    decoder.advance_payload(4);
    assert!(decoder.at_boundary());
    assert_eq!(decoder.offset(), HEADER_LEN as u64 + 6);
    assert!(matches!(next(&mut decoder, &mut &message(2, b"")[..]), Item::Message { .. }));
}

#[test]
#[should_panic(expected = "no more than is missing")]
fn more_bytes_read_past_the_decoder_than_are_missing_are_a_bug() {
    let mut decoder = Decoder::new();
    assert!(matches!(next(&mut decoder, &mut &message(1, b"ab")[..HEADER_LEN]), Item::Begin { .. }));
    decoder.advance_payload(3);
}

/// Feeds a good message and then `bad`, cut at every place of it, and holds that the error is `want`.
fn fails(bad: &[u8; HEADER_LEN], want: FramingError) {
    let good = message(1, b"good");
    let stream = [&good[..], bad, b"behind"].concat();
    for cut in 0..=stream.len() {
        let mut decoder = Decoder::new();
        let mut error = None;
        for mut input in [&stream[..cut], &stream[cut..]] {
            while error.is_none() {
                match decoder.next(&mut input, LIMIT) {
                    Ok(Item::NeedMore) => break,
                    Ok(_) => {}
                    Err(e) => error = Some(e),
                }
            }
        }
        assert_eq!(error, Some(want), "cut at {cut}");
        assert_eq!(decoder.next(&mut &message(2, b"")[..], LIMIT), Err(want), "a second time, cut at {cut}");
        assert!(!decoder.at_boundary());
        assert_eq!(decoder.offset(), (good.len() + HEADER_LEN) as u64);
    }
}

#[test]
fn a_payload_above_the_limit_means_lost_framing() {
    for len in [LIMIT + 1, 1 << 30, u32::MAX] {
        let header = Header { len, ..Header::default() };
        fails(&header.encode(), FramingError::Oversized { len, limit: LIMIT, offset: 52 });
    }
}

#[test]
fn a_payload_of_the_limit_is_taken() {
    for limit in [LIMIT, MAX_MESSAGE + MAX_MESSAGE_SLACK, u32::MAX] {
        let header = Header { len: limit, ..Header::default() };
        let mut decoder = Decoder::new();
        assert_eq!(decoder.next(&mut &header.encode()[..], limit), Ok(Item::Begin { header }));
        assert_eq!(decoder.missing(), limit as usize);
    }
}

#[test]
fn a_wrong_checksum_means_lost_framing() {
    let good = Header { sequence: 7, sport: 5000, dport: 4000, ..Header::default() };
    let csum = Header::decode(&good.encode_with_checksum()).csum;
    let bad = Header { csum: csum ^ 0x0100, ..good };
    fails(&bad.encode(), FramingError::Checksum { offset: 52 });
}

#[test]
fn a_wrong_checksum_is_told_before_a_length_that_it_makes_doubtful() {
    let bad = Header { len: u32::MAX, csum: 1, ..Header::default() };
    fails(&bad.encode(), FramingError::Checksum { offset: 52 });
}

#[test]
fn a_right_checksum_and_none_are_taken() {
    let header = Header { sequence: 7, sport: 5000, dport: 4000, ..Header::default() };
    for bytes in [header.encode(), header.encode_with_checksum()] {
        let mut decoder = Decoder::new();
        assert!(matches!(next(&mut decoder, &mut &bytes[..]), Item::Message { .. }));
    }
}

#[test]
fn errors_say_what_and_where() {
    let oversized = FramingError::Oversized { len: 7000, limit: 6000, offset: 42 }.to_string();
    for word in ["7000", "6000", "42"] {
        assert!(oversized.contains(word), "{oversized}");
    }
    assert!(FramingError::Checksum { offset: 42 }.to_string().contains("42"));
}
