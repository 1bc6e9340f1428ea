//! The wire format against what Linux kernels sent (`fixtures/kernel-captures`).

use std::collections::{BTreeSet, HashMap};
use std::fs;

use rds_core::wire::{
    CongestionMap, Decoder, Flags, HEADER_LEN, HandshakeExtensions, Header, Identity, Item, MAX_MESSAGE,
};
use rds_tests::captures::{self, Direction, Kind, Stream};

#[path = "../../rds-core/tests/pieces/mod.rs"]
mod pieces;

use pieces::Cut;

/// A message of a stream, and where it begins in it.
struct Message<'a> {
    at: usize,
    header: Header,
    /// As much of it as the stream has.
    payload: &'a [u8],
    whole: bool,
}

/// Takes a stream apart in one go, and holds that it ends where a message ends or inside the last one.
fn parse(stream: &Stream) -> Vec<Message<'_>> {
    let name = label(stream);
    let mut decoder = Decoder::new();
    let mut input = &stream.bytes[..];
    let mut messages = Vec::new();
    loop {
        let at = stream.bytes.len() - input.len();
        assert_eq!(decoder.offset(), at as u64, "{name}");
        match decoder.next(&mut input, MAX_MESSAGE).unwrap_or_else(|e| panic!("{name}: {e}")) {
            Item::Message { header, payload } => messages.push(Message { at, header, payload, whole: true }),
            Item::Begin { header } => messages.push(Message { at, header, payload: &[], whole: false }),
            Item::Chunk { data, last } => {
                assert!(!last, "{name}: a message was split though it lay whole in the input");
                messages.last_mut().expect("chunks follow a beginning").payload = data;
            }
            Item::NeedMore => break,
        }
    }
    assert!(input.is_empty(), "{name}");
    assert_eq!(decoder.missing() == 0, messages.iter().all(|m| m.whole), "{name}");
    assert_eq!(decoder.at_boundary(), messages.iter().all(|m| m.whole), "{name}: ends inside a header");
    messages
}

fn label(stream: &Stream) -> String {
    format!("{}/{}", stream.kernel, stream.name())
}

fn kind(header: &Header, payload: &[u8]) -> Kind {
    if header.is_congestion_map() {
        // One cut short is judged by the bytes that came.
        let mut bytes = payload.to_vec();
        bytes.resize(header.len as usize, 0);
        let map = CongestionMap::decode(&bytes).expect("kernels send maps of 8192 bytes");
        assert!(map.len() <= 1, "{map:?}");
        let port = map.iter().next();
        return Kind::Map(port);
    }
    if header.is_handshake_ping() {
        Kind::HandshakePing
    } else if header.is_handshake_pong() {
        Kind::HandshakePong
    } else if header.dport == 0 {
        Kind::Ping
    } else if header.sport == 0 {
        Kind::Pong
    } else {
        Kind::Data
    }
}

#[test]
fn every_captured_file_is_listed() {
    let listed: BTreeSet<_> =
        captures::all().iter().map(|s| (s.kernel.clone(), format!("{}.bin.gz", s.name()))).collect();
    let mut present = BTreeSet::new();
    for kernel in fs::read_dir(captures::directory()).expect("fixtures are there") {
        let kernel = kernel.expect("readable").path();
        for file in kernel.is_dir().then(|| fs::read_dir(&kernel).expect("readable")).into_iter().flatten() {
            let name =
                |p: &std::path::Path| p.file_name().and_then(|n| n.to_str()).expect("UTF-8").to_owned();
            present.insert((name(&kernel), name(&file.expect("readable").path())));
        }
    }
    assert_eq!(present, listed, "present (left) and listed in streams.tsv (right)");
    assert_eq!(listed.len(), 221);
}

#[test]
fn every_captured_stream_holds_the_messages_that_the_table_lists() {
    for stream in captures::all() {
        let messages = parse(&stream);
        let name = label(&stream);
        assert_eq!(messages.len(), stream.messages, "{name}: number of messages");
        let want = stream.expected.iter().flat_map(|e| {
            (0..e.count).map(|i| (e.kind, e.retransmitted, !(e.cut_short && i + 1 == e.count)))
        });
        let have = messages
            .iter()
            .map(|m| (kind(&m.header, m.payload), m.header.flags.contains(Flags::RETRANSMITTED), m.whole));
        assert_eq!(have.collect::<Vec<_>>(), want.collect::<Vec<_>>(), "{name}: kind, retransmitted, whole");
    }
}

/// Pieces of a segment's size, as Linux sends them, and of a size that cuts through every header.
#[test]
fn every_captured_stream_gives_the_same_messages_in_pieces() {
    for stream in captures::all() {
        let whole = pieces::read(&stream.bytes, &[], MAX_MESSAGE);
        assert_eq!(whole.messages.len(), stream.messages, "{}", label(&stream));
        for (len, past) in [(1448, false), (1448, true), (47, false)] {
            // Every second piece is read past the decoder where there is a payload to take.
            let cuts = (0..stream.bytes.len() / len).map(|i| Cut { len, past: past && i % 2 == 1 });
            let cut = pieces::read(&stream.bytes, &cuts.collect::<Vec<_>>(), MAX_MESSAGE);
            assert!(cut == whole, "{} in pieces of {len} bytes", label(&stream));
        }
    }
}

#[test]
fn a_stream_that_was_cut_short_ends_inside_its_last_message() {
    let cut: Vec<_> =
        captures::all().into_iter().filter(|s| s.expected.iter().any(|e| e.cut_short)).collect();
    assert_eq!(cut.len(), 2);
    for stream in cut {
        let messages = parse(&stream);
        let (last, whole) = messages.split_last().expect("not empty");
        assert!(!last.whole && whole.iter().all(|m| m.whole), "{}", label(&stream));
        assert_eq!(last.at + HEADER_LEN + last.payload.len(), stream.bytes.len(), "{}", label(&stream));
        assert!(last.payload.len() < last.header.len as usize, "{}", label(&stream));
    }
}

#[test]
fn every_captured_header_encodes_to_the_same_bytes() {
    for stream in captures::all() {
        for message in parse(&stream) {
            let bytes = &stream.bytes[message.at..message.at + HEADER_LEN];
            assert_eq!(message.header.encode(), bytes, "{} at {}", label(&stream), message.at);
        }
    }
}

#[test]
fn every_captured_map_encodes_to_the_same_bytes() {
    for stream in captures::all() {
        for m in parse(&stream).iter().filter(|m| m.whole && m.header.is_congestion_map()) {
            let map = CongestionMap::decode(m.payload).expect("length of a map");
            assert_eq!(&map.encode()[..], m.payload, "{} at {}", label(&stream), m.at);
            let end = m.at + HEADER_LEN + m.payload.len();
            assert_eq!(
                map.to_message(Identity::Kernel),
                stream.bytes[m.at..end],
                "{} at {}",
                label(&stream),
                m.at
            );
        }
    }
}

#[test]
fn kernels_leave_ack_credit_padding_and_checksum_zero() {
    for stream in captures::all() {
        for Message { at, header: h, .. } in parse(&stream) {
            let name = format!("{} at {at}", label(&stream));
            assert_eq!((h.ack, h.credit, h.padding, h.csum), (0, 0, [0; 4], 0), "{name}");
            assert_eq!(h.identity(), Identity::Kernel, "{name}");
            assert!(!h.is_ack_only(), "{name}");
            assert_eq!(h.flags.0 & !(Flags::CONG_BITMAP.0 | Flags::RETRANSMITTED.0), 0, "{name}");
            assert_eq!(h.sequence == 0, h.is_congestion_map(), "{name}: only maps have no number");
        }
    }
}

#[test]
fn handshakes_carry_the_extensions_of_their_kernel_and_nothing_else_does() {
    // A generation belongs to one life of one node: one in a recording, unless somebody crashed or unloaded.
    let mut generations = HashMap::<_, BTreeSet<u32>>::new();
    for stream in captures::all() {
        for Message { at, header, payload, .. } in parse(&stream) {
            let name = format!("{} at {at}", label(&stream));
            let extensions = HandshakeExtensions::decode(&header.extensions);
            if !matches!(kind(&header, payload), Kind::HandshakePing | Kind::HandshakePong) {
                assert_eq!(header.extensions, [0; 16], "{name}");
                continue;
            }
            assert_eq!(extensions.lanes, Some(8), "{name}");
            assert_eq!(extensions.encode(), header.extensions, "{name}");
            let new = stream.kernel == "7.2";
            assert_eq!(extensions.source_port_lane, new, "{name}");
            assert_eq!(extensions.generation.is_some(), new, "{name}");
            if let Some(generation) = extensions.generation {
                generations
                    .entry((stream.scenario.clone(), stream.direction))
                    .or_default()
                    .insert(generation);
            }
        }
    }
    assert!(!generations.is_empty());
    for ((scenario, direction), seen) in generations {
        let lives = match (&scenario[..], direction) {
            ("crash-receiver", Direction::ServerToClient) | ("crash-sender", Direction::ClientToServer) => 2,
            _ => 1,
        };
        assert_eq!(seen.len(), lives, "{scenario}, {direction:?}: {seen:x?}");
    }
}

/// Byte `i` of message `number` of a captured sender; see the captures' README.
fn pattern(number: u64, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        (0..len).map(|i| (31 * number as usize + 7 * i + (i >> 8) + 13 * (i >> 16)) as u8).collect();
    if len >= 16 {
        bytes[..4].copy_from_slice(b"KPR1");
        bytes[4..8].copy_from_slice(&(len as u32).to_be_bytes());
        bytes[8..16].copy_from_slice(&number.to_be_bytes());
    }
    bytes
}

/// The number that a payload of 16 bytes and more says it has.
fn number_in(payload: &[u8]) -> Option<u64> {
    payload.get(8..16).map(|b| u64::from_be_bytes(b.try_into().expect("8 bytes")))
}

#[test]
fn every_captured_payload_has_its_pattern() {
    let mut checked = 0;
    for stream in captures::all() {
        // Shorter ones do not say their number: they are numbered from 0 in their stream.
        let mut next = HashMap::new();
        for Message { at, header, payload, .. } in parse(&stream) {
            if kind(&header, payload) != Kind::Data {
                if !header.is_congestion_map() {
                    assert!(payload.is_empty(), "{} at {at}", label(&stream));
                }
                continue;
            }
            let next = next.entry((header.sport, header.dport)).or_insert(0);
            let number = number_in(payload).unwrap_or(*next);
            assert!(payload == pattern(number, payload.len()), "{} at {at}: wrong payload", label(&stream));
            *next = number + 1;
            checked += 1;
        }
    }
    assert_eq!(checked, captured_data());
}

/// How many messages of data the table lists.
fn captured_data() -> usize {
    let all = captures::all();
    all.iter().flat_map(|s| &s.expected).filter(|e| e.kind == Kind::Data).map(|e| e.count).sum()
}

#[test]
fn a_sender_numbers_its_messages_in_order_on_each_connection() {
    for stream in captures::all() {
        let mut last = HashMap::new();
        for Message { at, header, payload, .. } in parse(&stream) {
            if let (Kind::Data, Some(number)) = (kind(&header, payload), number_in(payload))
                && let Some((sequence, before)) =
                    last.insert((header.sport, header.dport), (header.sequence, number))
            {
                assert!(sequence < header.sequence && before < number, "{} at {at}", label(&stream));
            }
        }
    }
}
