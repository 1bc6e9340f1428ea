//! The control messages that the kernel gives with, or instead of, a message.

use crate::sys::af_rds::SOL_RDS;

const CONG_UPDATE: u32 = 5;
const ZCOPY_COMPLETION: u32 = 13;
/// Cookies in one block (RDS_MAX_ZCOOKIES).
pub(super) const COOKIES: usize = 8;
/// struct cmsghdr: a length of the platform's width, level, type.
const HEADER: usize = size_of::<usize>() + 8;

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Bits of ports (modulo 64) of which congestion may have cleared.
    pub(super) cleared: u64,
    cookies: [u32; COOKIES],
    count: usize,
}

impl Found {
    /// Cookies of messages that the kernel has released.
    pub(super) fn cookies(&self) -> &[u32] {
        &self.cookies[..self.count]
    }
}

/// Reads control messages; others than these two, and what is cut short, are passed over. Never more than one block of cookies comes.
pub(super) fn parse(mut bytes: &[u8]) -> Found {
    let mut found = Found::default();
    while let Some((header, rest)) = bytes.split_at_checked(HEADER) {
        let (len, kind) = header.split_at(size_of::<usize>());
        let len = len.try_into().map_or(0, usize::from_ne_bytes);
        let (level, kind) = (word(kind, 0), word(kind, 4));
        let Some(data) = len.checked_sub(HEADER).and_then(|n| rest.get(..n)) else { break };
        if level == Some(SOL_RDS as u32) {
            match kind {
                Some(CONG_UPDATE) => found.cleared |= mask(data),
                Some(ZCOPY_COMPLETION) => completion(data, &mut found),
                _ => {}
            }
        }
        bytes = rest.get(data.len().next_multiple_of(size_of::<usize>())..).unwrap_or_default();
    }
    found
}

fn mask(data: &[u8]) -> u64 {
    data.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// struct rds_zcopy_cookies: their number, then 8 of them.
fn completion(data: &[u8], found: &mut Found) {
    let Some(count) = word(data, 0) else { return };
    let cookies = (0..count.min(COOKIES as u32) as usize).map_while(|i| word(data, 4 + 4 * i));
    for cookie in cookies.take(COOKIES - found.count) {
        found.cookies[found.count] = cookie;
        found.count += 1;
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(level: i32, kind: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = (HEADER + data.len()).to_ne_bytes().to_vec();
        bytes.extend(level.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(size_of::<usize>()), 0);
        bytes
    }

    fn block(count: u32, cookies: [u32; COOKIES]) -> Vec<u8> {
        [count].iter().chain(&cookies).flat_map(|n| n.to_ne_bytes()).collect()
    }

    #[test]
    fn a_congestion_update_is_a_mask_of_64_bits() {
        let bytes = message(SOL_RDS, CONG_UPDATE, &0x8000_0000_0000_0002_u64.to_ne_bytes());
        assert_eq!(bytes.len(), 24, "as captured from kernels");
        let found = parse(&bytes);
        assert_eq!((found.cleared, found.cookies()), (1 << 63 | 2, &[][..]));
    }

    #[test]
    fn a_block_has_as_many_cookies_as_it_says() {
        let cookies = [7, 6, 5, 4, 3, 2, 1, u32::MAX];
        for count in 0..=8 {
            let bytes = message(SOL_RDS, ZCOPY_COMPLETION, &block(count, cookies));
            assert_eq!(bytes.len(), 56, "as captured from kernels");
            assert_eq!(parse(&bytes).cookies(), &cookies[..count as usize]);
        }
        let liar = message(SOL_RDS, ZCOPY_COMPLETION, &block(u32::MAX, cookies));
        assert_eq!(parse(&liar).cookies(), cookies, "never more than there are");
        let short = message(SOL_RDS, ZCOPY_COMPLETION, &block(8, cookies)[..14]);
        assert_eq!(parse(&short).cookies(), &cookies[..2], "whole ones");
    }

    #[test]
    fn other_control_messages_are_passed_over() {
        let mut bytes = message(libc::SOL_SOCKET, libc::SCM_TIMESTAMP as u32, &[9; 16]);
        bytes.extend(message(libc::SOL_SOCKET, CONG_UPDATE, &[0xff; 8]));
        bytes.extend(message(SOL_RDS, 11, &[1; 32]));
        bytes.extend(message(SOL_RDS, ZCOPY_COMPLETION, &block(1, [42; COOKIES])));
        bytes.extend(message(SOL_RDS, CONG_UPDATE, &4_u64.to_ne_bytes()));
        let found = parse(&bytes);
        assert_eq!((found.cleared, found.cookies()), (4, &[42][..]));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(parse(&bytes).cookies().len() <= COOKIES);
        }

        #[test]
        fn any_number_of_blocks_brings_no_more_cookies_than_there_is_room_for(
            counts in prop::collection::vec(0..20_u32, 0..6)
        ) {
            let bytes: Vec<u8> =
                counts.iter().flat_map(|c| message(SOL_RDS, ZCOPY_COMPLETION, &block(*c, [1; COOKIES]))).collect();
            prop_assert!(parse(&bytes).cookies().len() <= COOKIES);
        }
    }
}
