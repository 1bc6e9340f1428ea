//! Reads a stream in pieces; shared by the property tests and the fuzz target `stream`.

use rds_core::wire::{Decoder, FramingError, Header, Item};

/// What a reader of a stream sees in the end.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) messages: Vec<(Header, Vec<u8>)>,
    pub(crate) offset: u64,
    pub(crate) missing: usize,
    pub(crate) at_boundary: bool,
    pub(crate) error: Option<FramingError>,
}

/// The next piece of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// Its length, in bytes.
    pub(crate) len: usize,
    /// Whether the reader takes it past the decoder, as a read into a message's own buffer does; then it is
    /// no longer than what the message still lacks.
    pub(crate) past: bool,
}

/// Reads `stream` in pieces, the last one being the rest. Panics where the decoder breaks its word.
pub(crate) fn read(stream: &[u8], cuts: &[Cut], limit: u32) -> Seen {
    let mut seen = Seen::default();
    let mut decoder = Decoder::new();
    let mut rest = stream;
    for Cut { len: n, past } in cuts.iter().copied().chain([Cut { len: usize::MAX, past: false }]) {
        if past {
            let n = n.min(decoder.missing()).min(rest.len());
            let (direct, behind) = rest.split_at(n);
            if n > 0 {
                seen.messages.last_mut().expect("a message was begun").1.extend_from_slice(direct);
                decoder.advance_payload(n);
            }
            rest = behind;
            continue;
        }
        let (mut piece, behind) = rest.split_at(n.min(rest.len()));
        rest = behind;
        loop {
            let before = piece.len();
            match decoder.next(&mut piece, limit) {
                Ok(Item::NeedMore) => break assert!(piece.is_empty()),
                Ok(Item::Message { header, payload }) => {
                    assert_eq!(payload.len(), header.len as usize);
                    seen.messages.push((header, payload.to_vec()));
                }
                Ok(Item::Begin { header }) => seen.messages.push((header, Vec::new())),
                Ok(Item::Chunk { data, last }) => {
                    assert!(!data.is_empty());
                    assert_eq!(last, decoder.missing() == 0);
                    seen.messages.last_mut().expect("a message was begun").1.extend_from_slice(data);
                }
                Err(e) => {
                    seen.error = Some(e);
                    break;
                }
            }
            assert!(piece.len() < before, "an item takes at least a byte");
        }
        if seen.error.is_some() {
            break;
        }
    }
    (seen.offset, seen.missing, seen.at_boundary) =
        (decoder.offset(), decoder.missing(), decoder.at_boundary());
    seen
}
