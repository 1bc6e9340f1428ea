//! Extension headers of handshake messages (Linux `net/rds/message.c`).
//!
//! A list of one type byte and data whose length the type implies; type 0 ends it. On TCP only pings and
//! pongs of the handshake carry any that matter, and every other message's must be ignored.

/// What a handshake message announces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HandshakeExtensions {
    /// `RDS_EXTHDR_NPATHS`: how many lanes the sender can use.
    pub lanes: Option<u16>,
    /// `RDS_EXTHDR_GEN_NUM`: number of the sender's incarnation; kernels before 7.0 never send it.
    pub generation: Option<u32>,
    /// `RDS_EXTHDR_SPORT_IDX`: the source port of a connection tells its lane.
    pub source_port_lane: bool,
}

const NONE: u8 = 0;
const NPATHS: u8 = 5;
const GEN_NUM: u8 = 6;
const SPORT_IDX: u8 = 8;
/// First type at which Linux ends the list (`__RDS_EXTHDR_MAX`).
const MAX_TYPE: u8 = 16;

/// Data bytes of each type, as mainline Linux's table has it; unknown types below [`MAX_TYPE`] have 0, so
/// that the list goes on inside their data.
const fn data_len(kind: u8) -> usize {
    match kind {
        1 | 2 | 6 => 4,
        3 | 4 => 8,
        5 => 2,
        8 => 1,
        _ => 0,
    }
}

impl HandshakeExtensions {
    /// Reads the list as Linux does. Never fails: what is cut short or unknown is passed over.
    #[must_use]
    pub fn decode(space: &[u8; 16]) -> Self {
        let mut found = Self::default();
        let mut rest = &space[..];
        while let Some((&kind, tail)) = rest.split_first() {
            if kind == NONE || kind >= MAX_TYPE {
                break;
            }
            let Some((data, tail)) = tail.split_at_checked(data_len(kind)) else { break };
            match (kind, data) {
                (NPATHS, &[a, b]) => found.lanes = Some(u16::from_be_bytes([a, b])),
                (GEN_NUM, &[a, b, c, d]) => found.generation = Some(u32::from_be_bytes([a, b, c, d])),
                (SPORT_IDX, _) => found.source_port_lane = true,
                _ => {}
            }
            rest = tail;
        }
        found
    }

    /// Writes the list in the order that Linux from 7.0 on uses: NPATHS, GEN_NUM, SPORT_IDX.
    #[must_use]
    pub fn encode(&self) -> [u8; 16] {
        let mut space = [0; 16];
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            space[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        if let Some(lanes) = self.lanes {
            put(&[NPATHS]);
            put(&lanes.to_be_bytes());
        }
        if let Some(generation) = self.generation {
            put(&[GEN_NUM]);
            put(&generation.to_be_bytes());
        }
        if self.source_port_lane {
            // Its value must be 0: kernels before 7.0 do not know the type and read on inside it.
            put(&[SPORT_IDX, 0]);
        }
        space
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: HandshakeExtensions =
        HandshakeExtensions { lanes: None, generation: None, source_port_lane: false };

    /// Decodes a list that begins with `list`, the rest being zero.
    fn decode(list: &[u8]) -> HandshakeExtensions {
        let mut space = [0; 16];
        space[..list.len()].copy_from_slice(list);
        HandshakeExtensions::decode(&space)
    }

    #[test]
    fn the_handshake_of_kernels_up_to_6_18_has_the_lanes_alone() {
        let list = HandshakeExtensions { lanes: Some(8), ..NOTHING };
        assert_eq!(list.encode(), *b"\x05\x00\x08\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(decode(&[5, 0, 8]), list);
    }

    #[test]
    fn the_handshake_of_kernels_from_7_0_on_has_all_three_back_to_back() {
        let list =
            HandshakeExtensions { lanes: Some(8), generation: Some(0xf21e_8f8d), source_port_lane: true };
        assert_eq!(list.encode(), *b"\x05\x00\x08\x06\xf2\x1e\x8f\x8d\x08\0\0\0\0\0\0\0");
        assert_eq!(decode(&[5, 0, 8, 6, 0xf2, 0x1e, 0x8f, 0x8d, 8, 0]), list);
    }

    #[test]
    fn extensions_are_read_in_any_order() {
        let list = HandshakeExtensions { lanes: Some(258), generation: Some(7), source_port_lane: true };
        assert_eq!(decode(&[8, 0, 6, 0, 0, 0, 7, 5, 1, 2]), list);
    }

    #[test]
    fn an_empty_list_announces_nothing() {
        assert_eq!(decode(&[]), NOTHING);
        assert_eq!(NOTHING.encode(), [0; 16]);
    }

    #[test]
    fn type_0_ends_the_list() {
        assert_eq!(decode(&[5, 0, 8, 0, 6, 0, 0, 0, 7]), HandshakeExtensions { lanes: Some(8), ..NOTHING });
    }

    #[test]
    fn types_from_16_on_end_the_list() {
        for kind in 16..=255 {
            assert_eq!(decode(&[kind, 5, 0, 8]), NOTHING, "type {kind}");
        }
    }

    #[test]
    fn known_types_without_meaning_here_are_passed_over() {
        for (kind, len) in [(1, 4), (2, 4), (3, 8), (4, 8)] {
            let mut list = vec![0xff; 1 + len];
            list[0] = kind;
            list.extend([5, 0, 8]);
            assert_eq!(decode(&list), HandshakeExtensions { lanes: Some(8), ..NOTHING }, "type {kind}");
        }
    }

    #[test]
    fn the_list_goes_on_inside_the_data_of_an_unknown_type() {
        for kind in [7].into_iter().chain(9..16) {
            // Four data bytes 05 00 02 00, as UEK's CAP_BITS may have them: a kernel takes them for NPATHS.
            let found = decode(&[kind, 5, 0, 2, 0, 6, 0, 0, 0, 7]);
            assert_eq!(found, HandshakeExtensions { lanes: Some(2), ..NOTHING }, "type {kind}");
            assert_eq!(decode(&[kind, 0, 5, 0, 2]), NOTHING, "type {kind}");
        }
    }

    #[test]
    fn the_value_of_sport_idx_is_passed_over() {
        let list = HandshakeExtensions { source_port_lane: true, lanes: Some(3), generation: None };
        assert_eq!(decode(&[8, 5, 5, 0, 3]), list);
    }

    #[test]
    fn of_equal_types_the_last_one_holds() {
        assert_eq!(decode(&[5, 0, 8, 5, 0, 1]), HandshakeExtensions { lanes: Some(1), ..NOTHING });
    }

    #[test]
    fn an_extension_that_does_not_fit_ends_the_list() {
        // Types 9 take no data: they only fill the space.
        for (kind, len) in [(5, 2), (6, 4), (8, 1)] {
            let mut space = [9; 16];
            space[15 - len] = kind;
            assert_ne!(HandshakeExtensions::decode(&space), NOTHING, "type {kind} fits");
            let mut space = [9; 16];
            space[16 - len] = kind;
            assert_eq!(HandshakeExtensions::decode(&space), NOTHING, "type {kind} is one byte short");
        }
    }
}
