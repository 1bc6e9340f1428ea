//! Numbered payloads that `tests/rig/kpeer.c` makes and checks too: every byte depends on the message's number and its place, and
//! messages of 16 bytes or more say their number and length.

/// Bytes that the header takes.
pub const HEADER: usize = 16;

const MAGIC: &[u8; 4] = b"KPR1";

fn byte(number: u64, i: usize) -> u8 {
    let i = i as u64;
    // Only the lowest byte counts.
    (number.wrapping_mul(31).wrapping_add(7 * i).wrapping_add(i >> 8).wrapping_add(13 * (i >> 16))) as u8
}

/// Message `number` of `len` bytes.
#[must_use]
pub fn payload(number: u64, len: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|i| byte(number, i)).collect();
    if let Some(header) = bytes.get_mut(..HEADER) {
        header[..4].copy_from_slice(MAGIC);
        header[4..8].copy_from_slice(&(len as u32).to_be_bytes());
        header[8..].copy_from_slice(&number.to_be_bytes());
    }
    bytes
}

/// The number that a message says it has; `None` for one that is too short for that, or not one of these.
#[must_use]
pub fn number(payload: &[u8]) -> Option<u64> {
    let header: &[u8; HEADER] = payload.first_chunk()?;
    (header[..4] == *MAGIC).then(|| u64::from_be_bytes(*header.last_chunk().expect("16 bytes")))
}

/// Whether these are the bytes of message `number`.
///
/// # Errors
/// Says where they are not.
pub fn check(bytes: &[u8], number: u64) -> Result<(), String> {
    let expected = payload(number, bytes.len());
    match bytes.iter().zip(&expected).position(|(is, should)| is != should) {
        None => Ok(()),
        Some(at) => Err(format!(
            "message {number} of {} bytes is damaged at byte {at}: {:02x?} instead of {:02x?}",
            bytes.len(),
            &bytes[at..bytes.len().min(at + 16)],
            &expected[at..bytes.len().min(at + 16)],
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_its_number_and_a_wrong_byte_shows() {
        for len in [0, 1, 15, 16, 17, 1000, 70_000] {
            let mut bytes = payload(513, len);
            assert_eq!((bytes.len(), number(&bytes)), (len, (len >= HEADER).then_some(513)));
            assert_eq!(check(&bytes, 513), Ok(()));
            for at in [0, len / 2, len.saturating_sub(1)].into_iter().filter(|at| *at < len) {
                bytes[at] ^= 1;
                assert!(check(&bytes, 513).is_err(), "{len} bytes, {at}");
                bytes[at] ^= 1;
            }
        }
        assert!(check(&payload(513, 8), 514).is_err(), "another message");
    }

    #[test]
    fn payloads_are_those_of_the_recordings() {
        // The first 16 bytes of message 5 of 17 bytes say so; byte 16 is 31 * 5 + 7 * 16.
        assert_eq!(payload(5, 17), *b"KPR1\0\0\0\x11\0\0\0\0\0\0\0\x05\x0b");
        assert_eq!(payload(2, 3), [62, 69, 76]);
    }
}
