//! The header checksum (Linux `net/rds/rds.h`: `rds_message_make_checksum`, `rds_message_verify_checksum`).
//!
//! The Internet checksum of RFC 1071 over exactly the 48 header bytes. The TCP transport of Linux neither
//! fills nor checks it; own peers do both.

use super::HEADER_LEN;

/// The checksum of a header, whose checksum field must be zero.
///
/// A true result of 0 is not replaced by 0xffff, as in Linux.
#[must_use]
pub fn checksum(header: &[u8; HEADER_LEN]) -> u16 {
    !fold(header)
}

/// Whether a received header may be believed: its field is 0 ("none"), or the sum is right.
#[must_use]
#[inline]
pub fn verify(header: &[u8; HEADER_LEN]) -> bool {
    (header[30] == 0 && header[31] == 0) || fold(header) == 0xffff
}

/// Ones-complement sum of the 24 big-endian words.
#[inline]
fn fold(header: &[u8; HEADER_LEN]) -> u16 {
    // Summing 32-bit words is the same sum modulo 0xffff (RFC 1071, section 2), in half the steps.
    let (words, _) = header.as_chunks::<4>();
    let mut sum = words.iter().map(|w| u64::from(u32::from_be_bytes(*w))).sum::<u64>();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As RFC 1071 states it: 16-bit words, a carry at each step.
    fn by_the_book(header: &[u8; HEADER_LEN]) -> u16 {
        let mut sum = 0u16;
        for word in header.chunks_exact(2) {
            let (next, carry) = sum.overflowing_add(u16::from_be_bytes([word[0], word[1]]));
            sum = next + u16::from(carry);
        }
        !sum
    }

    fn sample(seed: u8) -> [u8; HEADER_LEN] {
        let mut header = std::array::from_fn(|i| (i as u8).wrapping_mul(seed).wrapping_add(seed >> 3));
        header[30..32].fill(0);
        header
    }

    #[test]
    fn the_checksum_is_that_of_rfc_1071() {
        for seed in 0..=255 {
            assert_eq!(checksum(&sample(seed)), by_the_book(&sample(seed)), "seed {seed}");
        }
        assert_eq!(checksum(&[0xff; HEADER_LEN]), 0);
    }

    #[test]
    fn the_checksum_of_an_all_zero_header_is_ffff() {
        assert_eq!(checksum(&[0; HEADER_LEN]), 0xffff);
    }

    #[test]
    fn a_zero_field_means_no_checksum_and_is_accepted() {
        for seed in 0..=255 {
            assert!(verify(&sample(seed)));
        }
    }

    #[test]
    fn a_field_of_which_one_byte_is_zero_is_a_checksum() {
        for field in [[0, 1], [1, 0]] {
            let mut header = [0; HEADER_LEN];
            header[30..32].copy_from_slice(&field);
            assert!(!verify(&header));
        }
    }

    #[test]
    fn a_true_result_of_zero_stays_zero() {
        let mut header = [0; HEADER_LEN];
        header[..2].copy_from_slice(&[0xff, 0xff]);
        assert_eq!(checksum(&header), 0);
        assert!(verify(&header));
    }

    #[test]
    fn a_right_checksum_is_accepted_and_any_single_bit_error_is_not() {
        let mut header = sample(37);
        let sum = checksum(&header);
        header[30..32].copy_from_slice(&sum.to_be_bytes());
        assert!(verify(&header));
        for bit in 0..HEADER_LEN * 8 {
            let mut damaged = header;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify(&damaged), "bit {bit}");
        }
    }
}
