//! TCP sockets as RDS wants them.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use crate::zerocopy::Mode;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::Options;
use super::pins::Pins;
use crate::info::TcpInfo;
use crate::sys::{self, limits::page_size};

/// Linux rds_tcp's listener has 64; reconnects of many peers at once deserve more.
const BACKLOG: i32 = 256;
/// Ports tried for one that is `lane` modulo 8.
const PORT_TRIES: usize = 64;
/// The range that IANA sets aside for source ports.
const DYNAMIC_PORTS: std::ops::Range<u16> = 49152..65528;
/// Linux rds_tcp's keepalive: 5 s idle, 5 s between probes, 5 probes.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 5;
/// A peer that acknowledges nothing for so long is gone. Linux rds_tcp has no such limit and may wait 15 minutes.
const USER_TIMEOUT: Duration = Duration::from_secs(30);
const LOOPBACK_MTU: u32 = 65_535;

fn stream_socket(address: IpAddr) -> io::Result<Socket> {
    let domain = if address.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))
}

/// Listens on the node's own address only, so that several nodes fit on one host.
pub(crate) fn listen(address: SocketAddr, options: &Options) -> io::Result<TcpListener> {
    let socket = stream_socket(address.ip())?;
    if [options.zero_copy.send, options.zero_copy.receive].contains(&Mode::On) {
        // For peers that do not think of it. Where the interface takes less, it changes nothing.
        limit_segments(&socket, address.ip(), LOOPBACK_MTU);
    }
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Starts to connect from the node's address; the connection stands when it is writable without an error.
pub(crate) fn connect(
    options: &Options,
    pins: &Pins,
    peer: IpAddr,
    lane: u8,
    port_step: u16,
) -> io::Result<TcpStream> {
    let source = options.config.address;
    let socket = stream_socket(peer)?;
    prepare(&SockRef::from(&socket), options)?;
    let (send, receive) = pins.wants_segments(peer);
    if send || receive {
        match sys::path_mtu(source, peer) {
            Ok(mtu) => limit_segments(&socket, peer, mtu),
            Err(error) => tracing::debug!(%error, %peer, "path MTU"),
        }
    }
    let bound = port_step > 1 && bind_lane_port(&socket, source, lane, port_step)?;
    if !bound {
        // The port is chosen at connect, when the four-tuple is known: many more connections fit.
        if let Err(error) =
            nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::IpBindAddressNoPort, &true)
        {
            tracing::debug!(%error, "IP_BIND_ADDRESS_NO_PORT");
        }
        socket.bind(&SocketAddr::new(source, 0).into())?;
    }
    match socket.connect(&SocketAddr::new(peer, options.dial_port).into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket.into()),
    }
}

/// Makes segments of a whole number of pages, so that pages can be mapped at the other end. The other end learns of it.
fn limit_segments(socket: &Socket, peer: IpAddr, mtu: u32) {
    let Some(mss) = u32::try_from(page_size()).ok().and_then(|page| sys::page_mss(peer, mtu, page)) else {
        return;
    };
    if let Err(error) = sys::set_max_segment(socket.as_fd(), mss) {
        tracing::debug!(%error, mss, "TCP_MAXSEG");
    }
}

/// Bytes of payload in a segment, if they are a whole number of pages.
pub(crate) fn page_segments(stream: &TcpStream) -> Option<u32> {
    let mss = sys::send_mss(stream.as_fd()).ok()?;
    (mss > 0 && (mss as usize).is_multiple_of(page_size())).then_some(mss)
}

/// Peers recognise a lane by its source port. A first lane does without where all such ports are taken.
fn bind_lane_port(socket: &Socket, source: IpAddr, lane: u8, step: u16) -> io::Result<bool> {
    for _ in 0..PORT_TRIES {
        let port = fastrand::u16(DYNAMIC_PORTS) / step * step + u16::from(lane);
        match socket.bind(&SocketAddr::new(source, port).into()) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            other => return other.map(|()| true),
        }
    }
    if lane == 0 {
        return Ok(false);
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("no free source port that is {lane} modulo {step}")))
}

/// Options of every connection, made or accepted. Buffer sizes are left to the kernel's autotuning.
pub(crate) fn prepare(socket: &SockRef<'_>, options: &Options) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE).with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    if let Some(name) = &options.congestion_control {
        socket.set_tcp_congestion(name.as_bytes())?;
    }
    Ok(())
}

/// How an attempt to connect ended, once the socket is writable.
pub(crate) fn connect_result(stream: &TcpStream) -> io::Result<()> {
    match stream.take_error()? {
        Some(error) => Err(error),
        None => stream.peer_addr().map(drop),
    }
}

/// What TCP says of a connection of whose bytes it took `taken`.
pub(crate) fn info(stream: &TcpStream, taken: Option<u64>) -> TcpInfo {
    let figures = sys::figures(stream.as_fd()).ok();
    TcpInfo {
        local: stream.local_addr().ok(),
        remote: stream.peer_addr().ok(),
        rtt_us: figures.map(|f| f.rtt),
        rttvar_us: figures.map(|f| f.rttvar),
        tcp_bytes_sent: figures.map(|f| f.bytes_acked),
        tcp_bytes_received: figures.map(|f| f.bytes_received),
        tcp_retransmits: figures.map(|f| f.retransmits),
        // More may have been written since.
        last_una: unacknowledged(stream).zip(taken).map(|(unacked, taken)| taken.saturating_sub(unacked)),
    }
}

/// SIOCOUTQ, or nothing when the kernel does not say.
pub(crate) fn unacknowledged(stream: &TcpStream) -> Option<u64> {
    crate::sys::unacknowledged(stream.as_fd()).ok()
}
