//! What holds of the wire format for all inputs.

mod pieces;

use pieces::Cut;
use proptest::collection::vec;
use proptest::prelude::*;
use rds_core::wire::congestion::MAP_LEN;
use rds_core::wire::{
    Capabilities, CongestionMap, Decoder, Flags, FramingError, HEADER_LEN, HandshakeExtensions, Header,
    Identity, Item, checksum,
};

/// Largest payload that the streams here may have, in bytes.
const LIMIT: u32 = 200;

prop_compose! {
    fn header()(
        sequence: u64, ack: u64, len: u32, sport: u16, dport: u16, flags: u8, credit: u8,
        padding: [u8; 4], csum: u16, extensions: [u8; 16],
    ) -> Header {
        Header { sequence, ack, len, sport, dport, flags: Flags(flags), credit, padding, csum, extensions }
    }
}

/// How a message of a stream gets its checksum field.
#[derive(Clone, Copy, Debug)]
enum Sum {
    None,
    Right,
    Arbitrary,
}

/// One message's bytes, the payload at most a little above the limit, the checksum seldom wrong.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let sum = prop_oneof![10 => Just(Sum::None), 10 => Just(Sum::Right), 1 => Just(Sum::Arbitrary)];
    let payload = prop_oneof![3 => vec(any::<u8>(), 0..8), 8 => vec(any::<u8>(), 0..=LIMIT as usize), 1 => vec(any::<u8>(), 200..210)];
    (header(), payload, sum).prop_map(|(header, payload, sum)| {
        let header = Header { len: payload.len() as u32, ..header };
        let bytes = match sum {
            Sum::None => Header { csum: 0, ..header }.encode(),
            Sum::Right => header.encode_with_checksum(),
            Sum::Arbitrary => header.encode(),
        };
        [&bytes[..], &payload].concat()
    })
}

/// Messages, then anything, broken off anywhere.
fn stream() -> impl Strategy<Value = Vec<u8>> {
    (vec(message(), 0..6), vec(any::<u8>(), 0..100), any::<prop::sample::Index>()).prop_map(
        |(messages, garbage, end)| {
            let mut bytes = messages.concat();
            bytes.extend(garbage);
            bytes.truncate(end.index(bytes.len() + 1));
            bytes
        },
    )
}

/// Reads `stream` with this file's limit.
fn read(stream: &[u8], cuts: &[Cut]) -> pieces::Seen {
    pieces::read(stream, cuts, LIMIT)
}

fn cuts() -> impl Strategy<Value = Vec<Cut>> {
    let size = prop_oneof![Just(0usize), Just(1), 1usize..10, Just(HEADER_LEN), 1usize..300];
    vec((size, any::<bool>()).prop_map(|(len, past)| Cut { len, past }), 0..60)
}

fn ports() -> impl Strategy<Value = Vec<u16>> {
    vec(any::<u16>(), 0..100)
}

proptest! {
    #[test]
    fn a_header_comes_back_as_it_was_encoded(header in header()) {
        prop_assert_eq!(Header::decode(&header.encode()), header);
    }

    #[test]
    fn any_48_bytes_are_a_header_and_encode_to_themselves(bytes: [u8; HEADER_LEN]) {
        prop_assert_eq!(Header::decode(&bytes).encode(), bytes);
    }

    #[test]
    fn a_filled_in_checksum_verifies_and_changes_nothing_else(header in header()) {
        let bytes = header.encode_with_checksum();
        prop_assert!(checksum::verify(&bytes));
        let back = Header::decode(&bytes);
        prop_assert_eq!(Header { csum: header.csum, ..back }, header);
    }

    #[test]
    fn extensions_come_back_as_they_were_encoded(
        lanes: Option<u16>, generation: Option<u32>, source_port_lane: bool,
    ) {
        let list = HandshakeExtensions { lanes, generation, source_port_lane };
        prop_assert_eq!(HandshakeExtensions::decode(&list.encode()), list);
    }

    /// Types are drawn low, so that lists have more than one element.
    #[test]
    fn any_16_bytes_are_an_extension_list_whose_meaning_survives_encoding(bytes in prop::array::uniform16(0u8..20)) {
        let list = HandshakeExtensions::decode(&bytes);
        prop_assert_eq!(HandshakeExtensions::decode(&list.encode()), list);
    }

    #[test]
    fn an_identity_comes_back_as_it_was_encoded(version in 1u8.., capabilities: u8) {
        let identity = Identity::Own { version, capabilities: Capabilities(capabilities) };
        prop_assert_eq!(Identity::decode(identity.encode()), identity);
    }

    #[test]
    fn a_map_comes_back_as_it_was_encoded(on in ports(), off in ports()) {
        let mut map = CongestionMap::new();
        let mut model = std::collections::BTreeSet::new();
        for &port in &on {
            prop_assert_eq!(map.set(port, true), model.insert(port));
        }
        for port in off.into_iter().chain(on.iter().copied().step_by(2)) {
            prop_assert_eq!(map.set(port, false), model.remove(&port));
        }
        prop_assert_eq!(map.len(), model.len());
        prop_assert!(map.iter().eq(model.iter().copied()));
        let back = CongestionMap::decode(&map.encode()[..]).expect("of the right length");
        prop_assert_eq!(&back, &map);
        for port in on {
            prop_assert_eq!(map.contains(port), model.contains(&port));
        }
    }

    #[test]
    fn a_map_message_decodes_to_its_map_and_identity(on in ports(), capabilities: u8, own: bool) {
        let mut map = CongestionMap::new();
        on.into_iter().for_each(|port| { map.set(port, true); });
        let identity = if own { Identity::ours(Capabilities(capabilities)) } else { Identity::Kernel };
        let message = map.to_message(identity);
        let mut input = &message[..];
        let Ok(Item::Message { header, payload }) = Decoder::new().next(&mut input, MAP_LEN as u32) else {
            return Err(TestCaseError::fail("not one whole message"));
        };
        prop_assert!(header.is_congestion_map() && input.is_empty());
        prop_assert_eq!(header.identity(), identity);
        prop_assert_eq!(CongestionMap::decode(payload), Some(map));
    }

    #[test]
    fn a_stream_gives_the_same_messages_however_it_is_cut(stream in stream(), cuts in cuts()) {
        prop_assert_eq!(read(&stream, &cuts), read(&stream, &[]));
    }

    #[test]
    fn whole_messages_give_back_the_stream(messages in vec((header(), vec(any::<u8>(), 0..=LIMIT as usize)), 0..6)) {
        let mut stream = Vec::new();
        let mut sent = Vec::new();
        for (header, payload) in messages {
            let header = Header { len: payload.len() as u32, csum: 0, ..header };
            stream.extend_from_slice(&header.encode());
            stream.extend_from_slice(&payload);
            sent.push((header, payload));
        }
        let seen = read(&stream, &[]);
        prop_assert_eq!(seen.messages, sent);
        prop_assert_eq!((seen.offset, seen.at_boundary, seen.error), (stream.len() as u64, true, None));
    }

    #[test]
    fn arbitrary_bytes_end_in_an_error_that_names_the_header_or_are_read_to_their_end(
        stream in vec(any::<u8>(), 0..500), cuts in cuts(),
    ) {
        let seen = read(&stream, &cuts);
        match seen.error {
            None => prop_assert_eq!(seen.offset, stream.len() as u64),
            Some(FramingError::Oversized { offset, .. } | FramingError::Checksum { offset }) => {
                let before: u64 = seen.messages.iter().map(|(_, p)| (HEADER_LEN + p.len()) as u64).sum();
                prop_assert_eq!(offset, before);
                prop_assert_eq!(seen.offset, offset + HEADER_LEN as u64);
            }
            Some(e) => return Err(TestCaseError::fail(format!("unknown error {e}"))),
        }
    }
}
