//! What TCP says of a connection, and what it can be told.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use super::option;

/// What the timestamp option takes of every segment (RFC 7323, appendix A).
const TIMESTAMPS: u32 = 12;
/// A TCP header without options.
const TCP_HEADER: u32 = 20;
/// The largest value that TCP_MAXSEG takes (MAX_TCP_WINDOW of Linux).
const MAX_MSS: u32 = 32_767;
/// More pages make no larger segment buffer: one holds 17 of them, and 3 segments of 5 pages fit best.
const MAX_PAGES: u32 = 5;

/// Bytes written to a TCP socket that the peer's TCP has not acknowledged (SIOCOUTQ, tcp(7)). Exact, and still valid after
/// the peer's reset.
///
/// # Errors
/// What the kernel says; not a TCP socket, for one.
pub(crate) fn unacknowledged(socket: BorrowedFd<'_>) -> io::Result<u64> {
    let mut value: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (TIOCOUTQ) stores one int at the address given, which is that of `value`; the descriptor is open for
    // the length of the call because it is borrowed.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut value) };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::try_from(value).unwrap_or(0))
}

/// Payload bytes of the segments that a connection sends now (tcpi_snd_mss of TCP_INFO, tcp(7)): without headers and
/// options. Of a socket that is not connected, a default.
///
/// # Errors
/// What the kernel says; not a TCP socket, for one.
pub(crate) fn send_mss(socket: BorrowedFd<'_>) -> io::Result<u32> {
    // struct tcp_info of linux/tcp.h: 8 bytes of small fields, then tcpi_rto, tcpi_ato, tcpi_snd_mss.
    let [_, _, _rto, _ato, mss] = option::get::<5>(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    Ok(mss)
}

/// What TCP_INFO tells of how segments are cut (since Linux 5.4).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Segmenting {
    /// Bytes beyond what the peer's TCP has acknowledged for which it has room (tcpi_snd_wnd).
    pub(crate) window: u32,
    /// Segments that came out of order so far (tcpi_rcv_ooopack). While some are, our own carry SACK blocks, and less payload.
    pub(crate) disordered: u32,
}

/// What TCP_INFO tells of a connection (since Linux 4.1).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// Smoothed round trip and its mean deviation, in µs.
    pub(crate) rtt: u32,
    pub(crate) rttvar: u32,
    /// Bytes that the peer's TCP has acknowledged, and that ours has received.
    pub(crate) bytes_acked: u64,
    pub(crate) bytes_received: u64,
    /// Segments sent again.
    pub(crate) retransmits: u32,
}

/// How a connection does.
///
/// # Errors
/// What the kernel says; not a TCP socket, for one.
pub(crate) fn figures(socket: BorrowedFd<'_>) -> io::Result<Figures> {
    // struct tcp_info of linux/tcp.h: tcpi_rtt is at byte 68, tcpi_total_retrans at 100, tcpi_bytes_acked at 120.
    let words = option::get::<34>(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    let long = |at: usize| {
        let ([a, b, c, d], [e, f, g, h]) = (words[at].to_ne_bytes(), words[at + 1].to_ne_bytes());
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    };
    Ok(Figures {
        rtt: words[17],
        rttvar: words[18],
        bytes_acked: long(30),
        bytes_received: long(32),
        retransmits: words[25],
    })
}

/// How segments are cut at present.
///
/// # Errors
/// What the kernel says; not a TCP socket, for one.
pub(crate) fn segmenting(socket: BorrowedFd<'_>) -> io::Result<Segmenting> {
    // struct tcp_info of linux/tcp.h: they are at bytes 224 and 228.
    let words = option::get::<58>(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    Ok(Segmenting { window: words[57], disordered: words[56] })
}

/// Bounds the segments of a connection that is not made yet, or of all that a listener will accept, to `mss` bytes with
/// options (TCP_MAXSEG, tcp(7)): our own, and, since it is announced, the peer's.
///
/// # Errors
/// `InvalidInput` below 88 and above 32767.
pub(crate) fn set_max_segment(socket: BorrowedFd<'_>, mss: u32) -> io::Result<()> {
    let mss = libc::c_int::try_from(mss).map_err(|_| io::ErrorKind::InvalidInput)?;
    option::set(socket, libc::IPPROTO_TCP, libc::TCP_MAXSEG, mss)
}

/// The MTU of the path from `source` to `to` as the kernel knows it now (IP_MTU, ip(7); IPV6_MTU, ipv6(7)): that of the
/// route's interface, unless a router told of a smaller one. Sends nothing. On loopback 65535 with IPv4,
/// 65536 with IPv6.
///
/// # Errors
/// What the kernel says: no route, no such source address.
pub(crate) fn path_mtu(source: IpAddr, to: IpAddr) -> io::Result<u32> {
    /// Any port will do.
    const DISCARD: u16 = 9;
    let socket = UdpSocket::bind(SocketAddr::new(source, 0))?;
    socket.connect(SocketAddr::new(to, DISCARD))?;
    let (level, name) =
        if to.is_ipv4() { (libc::IPPROTO_IP, libc::IP_MTU) } else { (libc::IPPROTO_IPV6, libc::IPV6_MTU) };
    let [mtu] = option::get::<1>(socket.as_fd(), level, name)?;
    Ok(mtu)
}

/// What to give [`set_max_segment`] for segments of a whole number of pages on a path to `to` with that MTU: the largest
/// that fits, up to 5 pages, with the timestamp option, which is on unless net.ipv4.tcp_timestamps is 0: [`send_mss`]
/// shows what it came to. `None` if not even one page fits.
pub(crate) fn page_mss(to: IpAddr, mtu: u32, page_size: u32) -> Option<u32> {
    let ip_header = if to.is_ipv4() { 20 } else { 40 };
    let room = mtu.saturating_sub(ip_header + TCP_HEADER).min(MAX_MSS).saturating_sub(TIMESTAMPS);
    let pages = room.checked_div(page_size)?.min(MAX_PAGES);
    (pages > 0).then(|| pages * page_size + TIMESTAMPS)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv6Addr, TcpListener};

    use socket2::{Domain, Socket, Type};

    use super::super::testing::{ADDRESS, pair};
    use super::*;

    #[test]
    fn bytes_that_the_peers_tcp_has_are_not_unacknowledged() {
        let (mut a, b) = pair();
        a.write_all(b"hello").unwrap();
        // Loopback acknowledges when the segment is delivered, which is before it can be read.
        (&b).read_exact(&mut [0; 5]).unwrap();
        assert_eq!(unacknowledged(a.as_fd()).unwrap(), 0);
    }

    #[test]
    fn what_one_end_received_the_other_was_acknowledged() {
        let (mut a, b) = pair();
        let before = figures(a.as_fd()).unwrap();
        a.write_all(&[7; 1000]).unwrap();
        (&b).read_exact(&mut [0; 1000]).unwrap();
        let (sent, received) = (figures(a.as_fd()).unwrap(), figures(b.as_fd()).unwrap());
        assert_eq!(sent.bytes_acked - before.bytes_acked, 1000);
        assert_eq!(received.bytes_received, 1000);
        assert!(sent.rtt > 0 && sent.rttvar > 0 && sent.retransmits == 0, "{sent:?}");
    }

    #[test]
    fn the_peers_window_shrinks_while_it_does_not_read() {
        let (mut a, b) = pair();
        assert!(segmenting(a.as_fd()).unwrap().window > 1 << 14);
        a.set_nonblocking(true).unwrap();
        while a.write(&[0; 1 << 16]).is_ok() {}
        // What could not be sent keeps the window from counting as open, however much was acknowledged.
        while segmenting(a.as_fd()).unwrap().window > 1 << 14 {
            std::thread::yield_now();
        }
        drop(b);
    }

    #[test]
    fn a_file_has_no_output_queue_and_no_segments() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(unacknowledged(file.as_fd()).is_err());
        assert!(send_mss(file.as_fd()).is_err() && segmenting(file.as_fd()).is_err());
        assert!(set_max_segment(file.as_fd(), 4108).is_err());
    }

    #[test]
    fn one_end_sets_the_segments_of_both() {
        let listener = TcpListener::bind((ADDRESS, 0)).unwrap();
        let mtu = path_mtu(ADDRESS, ADDRESS).unwrap();
        let mss = page_mss(ADDRESS, mtu, 4096).unwrap();
        assert_eq!((mtu, mss), (65535, 20492));
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        set_max_segment(socket.as_fd(), mss).unwrap();
        socket.connect(&listener.local_addr().unwrap().into()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        if std::fs::read_to_string("/proc/sys/net/ipv4/tcp_timestamps").unwrap().trim() == "0" {
            println!("skipped: net.ipv4.tcp_timestamps is 0");
            return;
        }
        assert_eq!(send_mss(socket.as_fd()).unwrap(), 20480);
        assert_eq!(send_mss(accepted.as_fd()).unwrap(), 20480);
    }

    #[test]
    fn a_segment_that_tcp_refuses_is_an_error() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        assert!(set_max_segment(socket.as_fd(), MAX_MSS).is_ok());
        for refused in [1, MAX_MSS + 1, u32::MAX] {
            let error = set_max_segment(socket.as_fd(), refused).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{refused}");
        }
    }

    #[test]
    fn segments_are_whole_pages_and_fit() {
        let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
        for (to, mtu, page, expected) in [
            (ADDRESS, 1500, 4096, None),
            (ADDRESS, 4147, 4096, None),
            (ADDRESS, 4148, 4096, Some(4108)),
            (v6, 4167, 4096, None),
            (v6, 4168, 4096, Some(4108)),
            (ADDRESS, 9000, 4096, Some(8204)),
            (ADDRESS, 65535, 4096, Some(20492)),
            (v6, 65536, 4096, Some(20492)),
            (ADDRESS, 65536, 16384, Some(16396)),
            (ADDRESS, 65536, 65536, None),
            (ADDRESS, 0, 4096, None),
            (ADDRESS, u32::MAX, 4096, Some(20492)),
            (ADDRESS, 1500, 0, None),
        ] {
            assert_eq!(page_mss(to, mtu, page), expected, "{to} {mtu} {page}");
        }
    }

    #[test]
    fn an_unreachable_path_has_no_mtu() {
        assert!(path_mtu(IpAddr::from([192, 0, 2, 1]), ADDRESS).is_err(), "not an address of ours");
        let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
        assert!(path_mtu(ADDRESS, v6).is_err(), "two families");
        match path_mtu(v6, v6) {
            Ok(mtu) => assert_eq!(mtu, 65536),
            Err(error) => println!("skipped: no IPv6 here: {error}"),
        }
    }
}
