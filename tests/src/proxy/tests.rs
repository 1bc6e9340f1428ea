//! The proxy does what it says.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};

use socket2::{Domain, Socket, Type};

use super::*;

struct Ends {
    proxy: Proxy,
    listener: TcpListener,
    dialer: TcpStream,
    target: TcpStream,
}

/// A connection from `net`.1 through a proxy to `net`.2.
fn ends(net: u8, schedule: Option<Schedule>) -> Ends {
    let (near, far) = (crate::address(net, 1), crate::address(net, 2));
    let listener = TcpListener::bind((far, 0)).unwrap();
    let route = Route { listen: (far, 16400).into(), target: listener.local_addr().unwrap() };
    let proxy = Proxy::start(&[route]).unwrap();
    proxy.schedule(schedule);
    let dialer = dial(near, route.listen);
    let (target, from) = listener.accept().unwrap();
    assert_eq!(from.ip(), IpAddr::V4(near), "the proxy must come from the dialer's address");
    assert_eq!(from.port() % 8, dialer.local_addr().unwrap().port() % 8, "the port modulo 8 is the lane");
    Ends { proxy, listener, dialer, target }
}

fn dial(from: Ipv4Addr, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

fn read(stream: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut got = vec![0; len];
    stream.read_exact(&mut got).unwrap();
    got
}

#[test]
fn carries_both_directions_and_each_ones_end() {
    let mut e = ends(1, None);
    e.dialer.write_all(b"there").unwrap();
    assert_eq!(read(&mut e.target, 5), b"there");
    e.dialer.shutdown(Shutdown::Write).unwrap();
    assert_eq!(e.target.read(&mut [0; 8]).unwrap(), 0);
    e.target.write_all(b"back").unwrap();
    assert_eq!(read(&mut e.dialer, 4), b"back");
    assert_eq!(e.proxy.bytes(), 9);
    assert_eq!(e.proxy.accepted(), 1);
}

#[test]
fn a_cut_is_an_orderly_end_for_both() {
    let mut e = ends(2, None);
    e.dialer.write_all(b"x").unwrap();
    assert_eq!(read(&mut e.target, 1), b"x");
    assert_eq!(e.proxy.break_all(Break::Cut), 1);
    assert_eq!(e.dialer.read(&mut [0; 8]).unwrap(), 0);
    assert_eq!(e.target.read(&mut [0; 8]).unwrap(), 0);
    assert_eq!(e.proxy.broken(), 1);
}

#[test]
fn a_reset_reaches_the_ends_it_is_meant_for() {
    for (net, how, dialer, target) in [
        (3, Break::Reset, true, true),
        (4, Break::ResetDialer, true, false),
        (5, Break::ResetTarget, false, true),
    ] {
        let mut e = ends(net, None);
        e.dialer.write_all(b"x").unwrap();
        assert_eq!(read(&mut e.target, 1), b"x");
        e.proxy.break_all(how);
        for (end, reset) in [(&mut e.dialer, dialer), (&mut e.target, target)] {
            let found = end.read(&mut [0; 8]).map_err(|e| e.kind());
            assert_eq!(found, if reset { Err(ErrorKind::ConnectionReset) } else { Ok(0) }, "{how:?}");
        }
    }
}

#[test]
fn a_reset_of_one_end_is_passed_on() {
    let mut e = ends(6, None);
    e.dialer.write_all(b"x").unwrap();
    assert_eq!(read(&mut e.target, 1), b"x");
    socket2::SockRef::from(&e.target).set_linger(Some(Duration::ZERO)).unwrap();
    drop(e.target);
    assert_eq!(e.dialer.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(e.proxy.broken(), 0);
}

#[test]
fn a_schedule_breaks_at_the_byte_that_the_seed_draws() {
    let schedule = Schedule { seed: 9, bytes: 100..101, ways: vec![Break::Cut] };
    let mut e = ends(7, Some(schedule));
    e.dialer.write_all(&[7; 300]).unwrap();
    let mut got = Vec::new();
    e.target.read_to_end(&mut got).unwrap();
    assert_eq!(got, [7; 100]);
    assert_eq!(e.proxy.broken(), 1);
}

#[test]
fn a_stalled_direction_carries_nothing_until_it_is_released() {
    let mut e = ends(8, None);
    e.proxy.stall(Direction::FromDialer, true);
    e.dialer.write_all(b"late").unwrap();
    e.target.write_all(b"other way").unwrap();
    assert_eq!(read(&mut e.dialer, 9), b"other way");
    e.target.set_nonblocking(true).unwrap();
    assert_eq!(e.target.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
    e.target.set_nonblocking(false).unwrap();
    e.proxy.stall(Direction::FromDialer, false);
    assert_eq!(read(&mut e.target, 4), b"late");
}

#[test]
fn delay_and_rate_change_no_byte() {
    let mut e = ends(9, None);
    e.proxy.delay(Direction::FromDialer, Duration::from_millis(20));
    e.proxy.limit_rate(Direction::FromDialer, 1 << 20);
    let sent: Vec<u8> = (0..200_000u32).map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1]).collect();
    let mut dialer = e.dialer.try_clone().unwrap();
    let copy = sent.clone();
    let writer = std::thread::spawn(move || dialer.write_all(&copy));
    assert!(read(&mut e.target, sent.len()) == sent);
    writer.join().unwrap().unwrap();
}

#[test]
fn refuses_as_long_as_it_is_told_to() {
    let e = ends(10, None);
    let to = SocketAddr::from((crate::address(10, 2), 16400));
    e.proxy.refuse(true);
    let mut refused = dial(crate::address(10, 1), to);
    assert_eq!(refused.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    e.proxy.refuse(false);
    let mut fine = dial(crate::address(10, 1), to);
    fine.write_all(b"y").unwrap();
    let (mut target, _) = e.listener.accept().unwrap();
    assert_eq!(read(&mut target, 1), b"y");
}

#[test]
fn an_end_that_is_not_there_is_a_reset() {
    let far = crate::address(11, 2);
    let nobody = TcpListener::bind((far, 0)).unwrap().local_addr().unwrap();
    let _proxy = Proxy::start(&[Route { listen: (far, 16400).into(), target: nobody }]).unwrap();
    let mut dialer = dial(crate::address(11, 1), (far, 16400).into());
    assert_eq!(dialer.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}
