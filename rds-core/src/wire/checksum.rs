//! The header checksum (Linux `net/rds/rds.h`: `rds_message_make_checksum`, `rds_message_verify_checksum`).
//!
//! The Internet checksum of RFC 1071 over exactly the 48 header bytes. The TCP transport of Linux neither
//! fills nor checks it; own peers do both.

use super::HEADER_LEN;

/// The checksum of a header whose checksum field is zero.
///
/// A true result of 0 is not replaced by 0xffff, as in Linux.
#[must_use]
pub fn checksum(header: &[u8; HEADER_LEN]) -> u16 {
    !fold(header)
}

/// Whether a received header may be believed: its field is 0 ("none"), or the sum is right.
#[must_use]
pub fn verify(header: &[u8; HEADER_LEN]) -> bool {
    (header[30] == 0 && header[31] == 0) || fold(header) == 0xffff
}

/// Ones-complement sum of the 24 big-endian words.
fn fold(header: &[u8; HEADER_LEN]) -> u16 {
    // Summing 32-bit words is the same sum modulo 0xffff (RFC 1071, section 2), in half the steps.
    let (words, _) = header.as_chunks::<4>();
    let mut sum = words.iter().map(|w| u64::from(u32::from_be_bytes(*w))).sum::<u64>();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    u16::try_from(sum).unwrap_or(u16::MAX)
}
