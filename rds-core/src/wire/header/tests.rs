//! The layout, and the worked examples: bytes as kernels send them, and their checksums.

use super::*;
use crate::wire::checksum;
use crate::wire::{Capabilities, HandshakeExtensions};

/// What kernels send: 48 bytes in hexadecimal, blanks between groups.
fn hex(text: &str) -> [u8; HEADER_LEN] {
    let digits: Vec<_> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let bytes = digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap());
    bytes.collect::<Vec<_>>().try_into().unwrap()
}

/// Holds that `header` is these bytes, both ways, and that its checksum is `csum`.
fn example(header: Header, wire: &str, csum: u16) {
    let wire = hex(wire);
    assert_eq!(header.encode(), wire);
    assert_eq!(Header::decode(&wire), header);
    assert_eq!(checksum::checksum(&wire), csum);
    let filled = header.encode_with_checksum();
    assert!(checksum::verify(&filled));
    assert_eq!(Header::decode(&filled), Header { csum, ..header });
}

fn handshake(lanes: u16, generation: Option<u32>, source_port_lane: bool) -> [u8; 16] {
    HandshakeExtensions { lanes: Some(lanes), generation, source_port_lane }.encode()
}

const DATA: Header = Header {
    sequence: 1,
    ack: 0,
    len: 13,
    sport: 4000,
    dport: 4001,
    flags: Flags(0),
    credit: 0,
    padding: [0; 4],
    csum: 0,
    extensions: [0; 16],
};

#[test]
fn every_field_has_its_offset_and_is_big_endian() {
    let header = Header {
        sequence: 0x0001_0203_0405_0607,
        ack: 0x0809_0a0b_0c0d_0e0f,
        len: 0x1011_1213,
        sport: 0x1415,
        dport: 0x1617,
        flags: Flags(0x18),
        credit: 0x19,
        padding: [0x1a, 0x1b, 0x1c, 0x1d],
        csum: 0x1e1f,
        extensions: std::array::from_fn(|i| 0x20 + i as u8),
    };
    let bytes = std::array::from_fn(|i| i as u8);
    assert_eq!(header.encode(), bytes);
    assert_eq!(Header::decode(&bytes), header);
}

#[test]
fn worked_example_data() {
    example(
        DATA,
        "0000000000000001 0000000000000000 0000000d0fa00fa1 0000000000000000 0000000000000000 0000000000000000",
        0xe0b0,
    );
    assert_eq!(
        DATA.encode_with_checksum(),
        hex(
            "0000000000000001 0000000000000000 0000000d0fa00fa1 000000000000e0b0 0000000000000000 0000000000000000"
        )
    );
}

#[test]
fn worked_example_data_resent() {
    example(
        Header { flags: Flags::RETRANSMITTED, ..DATA },
        "0000000000000001 0000000000000000 0000000d0fa00fa1 0400000000000000 0000000000000000 0000000000000000",
        0xdcb0,
    );
}

#[test]
fn worked_example_empty_data() {
    example(
        Header { sequence: 77, len: 0, sport: 5000, dport: 6000, ..DATA },
        "000000000000004d 0000000000000000 0000000013881770 0000000000000000 0000000000000000 0000000000000000",
        0xd4ba,
    );
}

#[test]
fn worked_example_ping() {
    example(
        Header { sequence: 6, len: 0, sport: 5555, dport: 0, ..DATA },
        "0000000000000006 0000000000000000 0000000015b30000 0000000000000000 0000000000000000 0000000000000000",
        0xea46,
    );
}

#[test]
fn worked_example_pong() {
    example(
        Header { sequence: 4, len: 0, sport: 0, dport: 5555, ..DATA },
        "0000000000000004 0000000000000000 00000000000015b3 0000000000000000 0000000000000000 0000000000000000",
        0xea48,
    );
}

#[test]
fn worked_example_congestion_map() {
    example(
        Header { len: 8192, flags: Flags::CONG_BITMAP, ..Header::default() },
        "0000000000000000 0000000000000000 0000200000000000 0100000000000000 0000000000000000 0000000000000000",
        0xdeff,
    );
}

#[test]
fn worked_example_handshake_up_to_6_18() {
    let ping = Header { sequence: 1, sport: 1, extensions: handshake(8, None, false), ..Header::default() };
    example(
        ping,
        "0000000000000001 0000000000000000 0000000000010000 0000000000000000 0500080000000000 0000000000000000",
        0xf2fd,
    );
    example(
        Header { sequence: 2, sport: 0, dport: 1, ..ping },
        "0000000000000002 0000000000000000 0000000000000001 0000000000000000 0500080000000000 0000000000000000",
        0xf2fc,
    );
}

#[test]
fn worked_example_handshake_from_7_0_on() {
    let extensions = handshake(8, Some(0xf21e_8f8d), true);
    let ping = Header { sequence: 1, sport: 1, extensions, ..Header::default() };
    example(
        ping,
        "0000000000000001 0000000000000000 0000000000010000 0000000000000000 05000806f21e8f8d 0800000000000000",
        0x694b,
    );
    example(
        Header { sequence: 2, sport: 0, dport: 1, ..ping },
        "0000000000000002 0000000000000000 0000000000000001 0000000000000000 05000806f21e8f8d 0800000000000000",
        0x694a,
    );
}

#[test]
fn worked_example_handshake_with_one_lane() {
    let ping = Header {
        sequence: 1,
        sport: 1,
        extensions: handshake(1, Some(0x0bad_cafe), false),
        ..Header::default()
    };
    example(
        ping,
        "0000000000000001 0000000000000000 0000000000010000 0000000000000000 050001060badcafe 0000000000000000",
        0x234c,
    );
    example(
        Header { sequence: 2, sport: 0, dport: 1, extensions: handshake(1, None, false), ..ping },
        "0000000000000002 0000000000000000 0000000000000001 0000000000000000 0500010000000000 0000000000000000",
        0xf9fc,
    );
}

#[test]
fn a_congestion_map_has_its_flag_and_no_other() {
    for flags in 0..=255 {
        let header = Header { flags: Flags(flags), ..Header::default() };
        assert_eq!(header.is_congestion_map(), flags == 1, "flags {flags:#04x}");
    }
}

#[test]
fn the_ports_tell_what_a_message_is_unless_it_is_a_map() {
    for (sport, dport, len, [ping, pong, ack]) in [
        (1, 0, 0, [true, false, false]),
        (1, 0, 7, [true, false, false]),
        (0, 1, 0, [false, true, false]),
        (0, 0, 0, [false, false, true]),
        (0, 0, 1, [false, false, false]),
        (1, 1, 0, [false, false, false]),
        (5000, 0, 0, [false, false, false]),
        (0, 5000, 0, [false, false, false]),
        (5000, 1, 0, [false, false, false]),
    ] {
        let header = Header { sport, dport, len, flags: Flags::RETRANSMITTED, ..DATA };
        assert_eq!(
            [header.is_handshake_ping(), header.is_handshake_pong(), header.is_ack_only()],
            [ping, pong, ack]
        );
        let map = Header { flags: Flags::CONG_BITMAP, ..header };
        assert_eq!([map.is_handshake_ping(), map.is_handshake_pong(), map.is_ack_only()], [false; 3]);
    }
}

#[test]
fn unknown_flags_are_kept() {
    let header = Header { flags: Flags(0xfa), ..DATA };
    assert_eq!(Header::decode(&header.encode()), header);
    assert!(header.flags.contains(Flags::ACK_REQUIRED));
    assert!(!header.flags.contains(Flags::RETRANSMITTED.with(Flags::ACK_REQUIRED)));
}

#[test]
fn the_identity_stands_in_the_padding() {
    let identity = Identity::ours(Capabilities::ACKS);
    let bytes = Header { padding: identity.encode(), ..DATA }.encode();
    assert_eq!(bytes[26..30], [0x75, 0x52, 1, 1]);
    assert_eq!(Header::decode(&bytes).identity(), identity);
}
