//! What clients send each other: checksum, kind, lives of both, number, time.

/// Shortest message.
pub(super) const LEAST: usize = 32;

/// What it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Request,
    Answer,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// Of who sends it.
    pub(super) life: u32,
    /// Of whose request it is.
    pub(super) asker_life: u32,
    pub(super) number: u64,
    /// When the request was sent, in nanoseconds of the asker's clock.
    pub(super) sent_at: u64,
}

impl Message {
    /// Fills `bytes`, all of them.
    pub(super) fn write(&self, bytes: &mut [u8]) {
        let (head, rest) = bytes.split_at_mut(LEAST);
        head[4] = if self.kind == Kind::Request { 1 } else { 2 };
        head[5..8].fill(0);
        head[8..12].copy_from_slice(&self.life.to_be_bytes());
        head[12..16].copy_from_slice(&self.asker_life.to_be_bytes());
        head[16..24].copy_from_slice(&self.number.to_be_bytes());
        head[24..32].copy_from_slice(&self.sent_at.to_be_bytes());
        rest.fill(self.number as u8 ^ self.life as u8);
        let crc = crc32fast::hash(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_be_bytes());
    }

    /// Reads one; nothing if it is damaged.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let head = bytes.first_chunk::<LEAST>()?;
        let u32_at = |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) << 32 | u64::from(u32_at(at + 4));
        if u32_at(0) != crc32fast::hash(&bytes[4..]) {
            return None;
        }
        let kind = match head[4] {
            1 => Kind::Request,
            2 => Kind::Answer,
            _ => return None,
        };
        Some(Self { kind, life: u32_at(8), asker_life: u32_at(12), number: u64_at(16), sent_at: u64_at(24) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_written_and_every_damaged_byte_shows() {
        let message = Message { kind: Kind::Answer, life: 3, asker_life: 7, number: 1 << 40, sent_at: 99 };
        let mut bytes = [0; 100];
        message.write(&mut bytes);
        assert_eq!(Message::read(&bytes), Some(message));
        for at in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[at] ^= 4;
            assert_eq!(Message::read(&damaged), None, "byte {at}");
        }
    }
}
