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
