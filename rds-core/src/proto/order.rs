//! Which side of a pair connects, and which lane a socket uses.

use std::net::IpAddr;

fn key(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
        IpAddr::V6(a) => a.octets(),
    }
}

/// Whether `a` is the smaller address: the one that connects (`net/rds/threads.c`, `rds_addr_cmp`: 128-bit
/// big-endian order of the IPv4-mapped addresses).
#[must_use]
pub fn is_smaller(a: IpAddr, b: IpAddr) -> bool {
    key(a) < key(b)
}

/// The lane on which we send from a socket bound to `port` when `count` lanes are in use: `jhash_1word(port, 0) % count`. With a power
/// of two that is what kernels do (`net/rds/rds.h`, `RDS_MPATH_HASH`), which leave some lanes unused otherwise
/// ([`kernel_lane_of_port`]). `count` of 0 or 1 gives 0.
#[must_use]
pub fn lane_of_port(port: u16, count: u8) -> u8 {
    (jhash_1word(u32::from(port)) % u32::from(count.max(1))) as u8
}

/// The lane on which a kernel sends: `jhash_1word(port, 0) & (count - 1)`. `count` of 0 or 1 gives 0.
#[must_use]
pub fn kernel_lane_of_port(port: u16, count: u8) -> u8 {
    (jhash_1word(u32::from(port)) & (u32::from(count.max(1)) - 1)) as u8
}

/// The number to which the source port of a connection must be congruent to its lane: own peers look at the port modulo 8, kernels
/// at it modulo the lanes that we told them.
#[must_use]
pub fn port_step(lanes: u8) -> u16 {
    let lanes = u16::from(lanes.max(1));
    (8..).step_by(8).find(|step| step % lanes == 0).unwrap_or(8)
}

/// `jhash_1word(a, 0)` of `include/linux/jhash.h`.
fn jhash_1word(a: u32) -> u32 {
    const INITVAL: u32 = 0xdead_beef + (1 << 2);
    let (mut a, mut b, mut c) = (a.wrapping_add(INITVAL), INITVAL, INITVAL);
    // __jhash_final
    c ^= b;
    c = c.wrapping_sub(b.rotate_left(14));
    a ^= c;
    a = a.wrapping_sub(c.rotate_left(11));
    b ^= a;
    b = b.wrapping_sub(a.rotate_left(25));
    c ^= b;
    c = c.wrapping_sub(b.rotate_left(16));
    a ^= c;
    a = a.wrapping_sub(c.rotate_left(4));
    b ^= a;
    b = b.wrapping_sub(a.rotate_left(14));
    c ^= b;
    c.wrapping_sub(b.rotate_left(24))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_those_that_kernels_choose() {
        // Seen on kernels, eight lanes (wire specification, worked examples).
        let lanes: Vec<u8> = (4301..=4308).map(|p| lane_of_port(p, 8)).collect();
        assert_eq!(lanes, [6, 6, 1, 3, 0, 3, 3, 6]);
        let lanes: Vec<u8> = (4811..=4816).map(|p| lane_of_port(p, 8)).collect();
        assert_eq!(lanes, [5, 6, 6, 7, 6, 7]);
        assert_eq!(lane_of_port(4301, 1), 0);
        assert_eq!(lane_of_port(4301, 0), 0);
        for count in [1, 2, 4, 8] {
            assert!(
                (2..5000).all(|p| lane_of_port(p, count) == kernel_lane_of_port(p, count)),
                "{count} lanes"
            );
        }
    }

    #[test]
    fn any_number_of_lanes_is_used_whole() {
        for count in 1..=8u8 {
            let used: std::collections::BTreeSet<u8> = (2..2000).map(|p| lane_of_port(p, count)).collect();
            assert_eq!(used, (0..count).collect(), "{count} lanes");
        }
        // A kernel told 3 uses two of them (seen on kernels).
        let used: std::collections::BTreeSet<u8> = (2..2000).map(|p| kernel_lane_of_port(p, 3)).collect();
        assert_eq!(used, [0, 2].into());
    }

    #[test]
    fn a_source_port_tells_its_lane_modulo_8_and_modulo_the_number_of_lanes() {
        let steps: Vec<u16> = (1..=8).map(port_step).collect();
        assert_eq!(steps, [8, 8, 24, 8, 40, 24, 56, 8]);
        for lanes in 1..=8u8 {
            for lane in 0..u16::from(lanes) {
                let port = 40_000 / port_step(lanes) * port_step(lanes) + lane;
                assert_eq!((port % 8, port % u16::from(lanes)), (lane, lane));
            }
        }
    }

    #[test]
    fn order_is_numeric_over_mapped_addresses() {
        let smaller = |a: &str, b: &str| is_smaller(a.parse().unwrap(), b.parse().unwrap());
        assert!(smaller("10.0.0.2", "10.0.0.10"));
        assert!(smaller("9.255.255.255", "10.0.0.0"));
        assert!(smaller("200.0.0.1", "fd77::1"));
        assert!(smaller("fd77::2", "fd77::3"));
        assert!(!smaller("fd77::2", "fd77::2"));
    }
}
