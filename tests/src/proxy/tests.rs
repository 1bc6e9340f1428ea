//! The proxy does what it says.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::num::NonZeroUsize;

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
    for end in [&dialer, &target] {
        end.set_read_timeout(Some(crate::ledger::process::PATIENCE)).unwrap();
    }
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

const NEVER: Duration = Duration::from_secs(1 << 30);

fn bytes(bytes: usize) -> NonZeroUsize {
    NonZeroUsize::new(bytes).unwrap()
}

/// What there is to be read, after waiting for a first byte. The sender pauses, so the first piece is all.
fn piece(stream: &mut TcpStream) -> usize {
    let mut first = read(stream, 1).len();
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.read(&mut [0; 4096]) {
            Ok(0) => panic!("the stream has ended"),
            Ok(n) => first += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) => panic!("{e}"),
        }
    }
    stream.set_nonblocking(false).unwrap();
    first
}

#[test]
fn a_split_lets_one_piece_through_and_then_pauses() {
    let mut e = ends(12, None);
    e.dialer.write_all(b"whole").unwrap();
    assert_eq!(read(&mut e.target, 5), b"whole");
    e.proxy.split(Direction::FromDialer, Some(Split::every(bytes(1000)).with_pause(NEVER)));
    e.dialer.write_all(&[1; 2500]).unwrap();
    assert_eq!(piece(&mut e.target), 1000);
    // The other direction is whole. Another split begins anew where the first one was.
    e.target.write_all(&[2; 3000]).unwrap();
    read(&mut e.dialer, 3000);
    e.proxy.split(Direction::FromDialer, Some(Split::every(bytes(7)).with_pause(NEVER)));
    assert_eq!(piece(&mut e.target), 7);
    e.proxy.split(Direction::FromDialer, None);
    read(&mut e.target, 2500 - 1007);
}

#[test]
fn a_seed_draws_the_same_pieces_again_and_another_one_others() {
    let mut e = ends(13, None);
    let mut drawn = Vec::new();
    let one = Split::every(bytes(1)).with_pause(NEVER);
    e.proxy.split(Direction::FromDialer, Some(one));
    e.dialer.write_all(&[3; 60_000]).unwrap();
    for seed in [1, 1, 2, 3, 4] {
        // Something else in between, because the same split again would be no change.
        e.proxy.split(Direction::FromDialer, Some(one));
        assert_eq!(piece(&mut e.target), 1);
        e.proxy.split(Direction::FromDialer, Some(Split::random(seed, bytes(4000)).with_pause(NEVER)));
        drawn.push(piece(&mut e.target));
    }
    assert_eq!(drawn[0], drawn[1]);
    assert!(drawn[1..].windows(2).any(|w| w[0] != w[1]), "{drawn:?}");
}

#[test]
fn a_split_stream_has_every_byte_in_its_place() {
    let mut e = ends(14, None);
    let sent: Vec<u8> = (0..300_000u32).map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1]).collect();
    for (len, split) in [
        (10_000, Some(Split::every(bytes(1)))),
        (300_000, Some(Split::every(bytes(65_537)))),
        (300_000, Some(Split::random(5, bytes(3000)))),
        (300_000, Some(Split::every(bytes(10_000)).with_pause(Duration::from_millis(1)))),
        (300_000, None),
    ] {
        e.proxy.split(Direction::FromDialer, split);
        let mut dialer = e.dialer.try_clone().unwrap();
        let copy = sent[..len].to_vec();
        let writer = std::thread::spawn(move || dialer.write_all(&copy));
        assert!(read(&mut e.target, len) == sent[..len], "{split:?}");
        writer.join().unwrap().unwrap();
    }
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
