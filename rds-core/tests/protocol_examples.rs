//! The bytes in `docs/protocol.md` are those that the wire format encodes.

use rds_core::proto::Config;
use rds_core::wire::{
    Capabilities, CongestionMap, Flags, HEADER_LEN, HandshakeExtensions, Header, Identity, PORT_ENGINE,
    PORT_PROBE,
};

/// The examples of section 2.8: what each shows, and its bytes.
fn examples() -> Vec<(String, [u8; HEADER_LEN])> {
    let document = include_str!("../../docs/protocol.md");
    let section = document.split("### 2.8 Worked examples").nth(1).expect("section 2.8");
    let block = section.split("```").nth(1).and_then(|b| b.strip_prefix("text\n")).expect("a block of text");
    let lines: Vec<_> = block.lines().collect();
    lines.chunks(2).map(|pair| (pair[0].to_owned(), bytes(pair[1]))).collect()
}

fn bytes(hex: &str) -> [u8; HEADER_LEN] {
    let digits: Vec<_> = hex.chars().filter(|c| !c.is_whitespace()).collect();
    let bytes = digits
        .chunks(2)
        .map(|d| u8::from_str_radix(&d.iter().collect::<String>(), 16).expect("two hex digits"));
    bytes.collect::<Vec<_>>().try_into().expect("48 bytes")
}

#[test]
fn documented_headers_are_what_the_wire_format_encodes() {
    let ours = Identity::ours(Capabilities::ACKS.with(Capabilities::WINDOW));
    let start = Config::first_sequence_at(1_767_225_600_000);
    let handshake = |sport, dport, generation| Header {
        sequence: start,
        sport,
        dport,
        padding: ours.encode(),
        extensions: HandshakeExtensions {
            lanes: Some(1),
            generation: Some(generation),
            source_port_lane: false,
        }
        .encode(),
        ..Header::default()
    };
    let lanes = |lanes| Header {
        sport: PORT_PROBE,
        dport: PORT_ENGINE,
        sequence: start,
        padding: Identity::ours(Capabilities::ACKS.with(Capabilities::WINDOW).with_lanes(8)).encode(),
        extensions: HandshakeExtensions { lanes, generation: Some(0x0bad_cafe), source_port_lane: true }
            .encode(),
        ..Header::default()
    };
    let ack_only = |ack, limit| Header { sequence: limit, ack, ..Header::default() };
    let expected = [
        Header { len: 8192, flags: Flags::CONG_BITMAP, padding: ours.encode(), ..Header::default() },
        handshake(PORT_PROBE, PORT_ENGINE, 0x0bad_cafe),
        handshake(PORT_ENGINE, PORT_PROBE, 0x5eed_0002),
        ack_only(0, 4 << 20),
        Header { sequence: start + 1, len: 13, sport: 4000, dport: 4001, ..Header::default() },
        ack_only(start + 1, (4 << 20) + 61),
        lanes(None),
        lanes(Some(8)),
    ];
    let documented = examples();
    assert_eq!(documented.len(), expected.len());
    for ((what, bytes), header) in documented.iter().zip(expected) {
        assert_eq!(bytes, &header.encode_with_checksum(), "{what}");
        assert_eq!(Header { csum: 0, ..Header::decode(bytes) }, header, "{what}");
    }
    assert_eq!(&CongestionMap::new().to_message(ours)[..HEADER_LEN], &documented[0].1, "{}", documented[0].0);
}

#[test]
fn documented_headers_are_recognised_for_what_they_are() {
    let documented = examples();
    let header = |n: usize| Header::decode(&documented[n].1);
    assert!(header(0).is_congestion_map());
    assert!(header(1).is_handshake_ping());
    assert!(header(2).is_handshake_pong());
    assert!(header(3).is_ack_only());
    assert!(header(5).is_ack_only());
    for n in 0..3 {
        assert_eq!(header(n).identity(), Identity::ours(Capabilities::ACKS.with(Capabilities::WINDOW)));
    }
    assert_eq!(HandshakeExtensions::decode(&header(1).extensions).generation, Some(0x0bad_cafe));
    for (n, told) in [(6, None), (7, Some(8))] {
        assert!(header(n).is_handshake_ping());
        let Identity::Own { capabilities, .. } = header(n).identity() else { panic!("an own peer's") };
        assert_eq!(capabilities.lanes(), 8);
        let said = HandshakeExtensions::decode(&header(n).extensions);
        assert_eq!((said.lanes, said.source_port_lane), (told, true));
    }
}
