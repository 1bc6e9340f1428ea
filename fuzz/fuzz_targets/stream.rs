//! A stream gives the same messages however it is cut, and everything in them can be decoded.
//!
//! The input is a stream with its cuts behind it: the last byte counts them, two bytes each before that: the
//! lower 15 bits the piece's length, the highest whether it is read past the decoder. So a captured stream,
//! which seldom ends in anything but zero, is an input as it stands.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rds_core::wire::congestion::MAP_LEN;
use rds_core::wire::{CongestionMap, HandshakeExtensions, Header};

#[path = "../../rds-core/tests/pieces/mod.rs"]
mod pieces;

use pieces::Cut;

/// Room for a map, but little enough to be gone beyond.
const LIMIT: u32 = 10_000;

fuzz_target!(|input: &[u8]| {
    let Some((&count, rest)) = input.split_last() else { return };
    let (stream, cuts) = rest.split_at(rest.len().saturating_sub(2 * usize::from(count)));
    let cuts: Vec<_> = cuts
        .chunks_exact(2)
        .map(|c| u16::from_be_bytes([c[0], c[1]]))
        .map(|c| Cut { len: usize::from(c & 0x7fff), past: c & 0x8000 != 0 })
        .collect();

    let whole = pieces::read(stream, &[], LIMIT);
    assert_eq!(pieces::read(stream, &cuts, LIMIT), whole);
    if whole.error.is_none() {
        assert_eq!(whole.offset, stream.len() as u64);
    }
    for (header, payload) in &whole.messages {
        decode(header, payload);
    }
});

fn decode(header: &Header, payload: &[u8]) {
    assert_eq!(Header::decode(&header.encode()), *header);
    let extensions = HandshakeExtensions::decode(&header.extensions);
    assert_eq!(HandshakeExtensions::decode(&extensions.encode()), extensions);
    let identity = header.identity();
    if !header.is_congestion_map() {
        return;
    }
    let map = CongestionMap::decode(payload);
    assert_eq!(map.is_some(), payload.len() == MAP_LEN);
    if let Some(map) = map {
        assert_eq!(map.encode()[..], *payload);
        assert_eq!(map.iter().count(), map.len());
        assert!(map.iter().all(|port| map.contains(port)));
        assert!(map.to_message(identity).ends_with(payload));
    }
}
