//! The payload pattern of `-v`.

/// The first `len` bytes of the pattern: `p[0] = 11`, `p[i] = 41 * (p[i-1] + 3) + (i >> 8)`, modulo 256. The `i >> 8` shifts
/// successive blocks of 256, so that swapped blocks show.
#[must_use]
pub fn pattern(len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    let mut last = 11u8;
    for i in 0..len {
        if i > 0 {
            // The cast drops all but the low byte, as 8-bit arithmetic does.
            last = last.wrapping_add(3).wrapping_mul(41).wrapping_add((i >> 8) as u8);
        }
        bytes.push(last);
    }
    bytes
}

/// How `received` differs from `expected` (of the same length): offset of the first bad byte and number of bad bytes.
#[must_use]
pub fn difference(expected: &[u8], received: &[u8]) -> Option<(usize, usize)> {
    let mut bad = expected.iter().zip(received).enumerate().filter(|(_, (e, r))| e != r).map(|(i, _)| i);
    let first = bad.next()?;
    Some((first, 1 + bad.count()))
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    #[test]
    fn the_pattern_is_the_references() {
        let p = pattern(1 << 20);
        assert_eq!(hex(&p[..16]), "0b3e694ca73ac508c3b6a1445fb2fd00");
        assert_eq!(hex(&p[252..264]), "efc28d100c682440bc98d470");
        assert_eq!(hex(&p[508..520]), "5c3874100d92df34d1f6e3d8");
        assert_eq!(hex(&p[65532..65544]), "824ca6100b3e694ca73ac508");
        for (len, digest) in [
            (961, "ff24100a800fc61ef25d599b4df4546d845bb6ad81b664b637bc54a7be064af7"),
            (1024, "74aa580b8251f6acf5ed82146eb86adce7143229f128ce0d82bc47097ccdd584"),
            (1 << 20, "a8281f3bdb82532769635147b1b3fa5730cce510436356b1bf8c441af095ef8a"),
        ] {
            assert_eq!(hex(&Sha256::digest(&p[..len])), digest, "{len}");
        }
    }

    #[test]
    fn a_difference_is_counted_from_its_first_byte() {
        let p = pattern(100);
        let mut q = p.clone();
        assert_eq!(difference(&p, &q), None);
        q[7] ^= 1;
        q[99] ^= 0x80;
        assert_eq!(difference(&p, &q), Some((7, 2)));
    }
}
