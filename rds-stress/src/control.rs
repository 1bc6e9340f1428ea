//! The control connection: who connects, what is said before the run, and how its end is seen (rds-tools, section 2).

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use crate::block::{Block, Form, V1_4_LEN, VERSION_LEN, version};
use crate::error::{Failure, failure};
use crate::out::{Out, line};

/// How long the other side may take for each step before the run.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a TCP connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// What the active side says when its tasks are bound.
const GO: u8 = 0;
/// The reference answers with this to accept an exchange of options as JSON, which we do not speak.
const JSON_ACCEPTED: u8 = 97;

/// Listens for the active side at `address`, or any address of this host.
///
/// # Errors
/// The address is not local, the port is in use or not allowed.
pub fn listen(address: Option<IpAddr>, port: u16) -> Result<TcpListener, Failure> {
    let listener = match address {
        Some(address) => bind_listener(SocketAddr::new(address, port)),
        // One socket for both families, where the host has IPv6.
        None => {
            bind_listener(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port)).or_else(|e| match e.kind() {
                io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(e),
                _ => bind_listener(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port)),
            })
        }
    };
    listener.map_err(|e| match (e.kind(), address) {
        (io::ErrorKind::AddrInUse, _) => {
            failure!("control port {port} is in use, perhaps by another rds-stress: stop that one, or give another port to both sides with -p")
        }
        (io::ErrorKind::AddrNotAvailable, Some(a)) => not_local(a),
        _ => failure!("cannot listen on control port {port}: {e}: give another port to both sides with -p"),
    })
}

fn bind_listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(1)?;
    Ok(socket.into())
}

/// The failure of an address that is none of this host's.
#[must_use]
pub fn not_local(address: IpAddr) -> Failure {
    failure!("{address} is not an address of this host: give one that is with -r ('ip address' lists them)")
}

/// Waits for the active side; returns the connection, the own and the other address. IPv4 in IPv6 form becomes IPv4.
///
/// # Errors
/// The kernel's.
pub fn accept(listener: &TcpListener) -> Result<(TcpStream, SocketAddr, SocketAddr), Failure> {
    let (stream, peer) =
        listener.accept().map_err(|e| failure!("cannot accept a control connection: {e}"))?;
    let local = stream.local_addr().map_err(|e| failure!("the control connection broke: {e}"))?;
    let canonical = |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
    Ok((stream, canonical(local), canonical(peer)))
}

/// Connects to the passive side from `source`, retrying as the reference does: once a second, `retries` times, and only
/// where the peer or the way to it is missing.
///
/// # Errors
/// The address is not local, or nobody answers.
pub fn connect(
    source: Option<IpAddr>,
    destination: SocketAddr,
    retries: u32,
    out: Out,
) -> Result<TcpStream, Failure> {
    out.write(format_args!("connecting to {destination}"));
    let mut left = retries;
    let mut reported = false;
    loop {
        let error = match connect_once(source, destination) {
            Ok(stream) => {
                line!(out, "");
                return Ok(stream);
            }
            Err(ConnectError::Source(e)) => {
                line!(out, "");
                return Err(match (e.kind(), source) {
                    (io::ErrorKind::AddrNotAvailable, Some(a)) => not_local(a),
                    _ => failure!("cannot make a control connection: {e}"),
                });
            }
            Err(ConnectError::Peer(e)) => e,
        };
        let reason =
            error.raw_os_error().map_or_else(|| error.to_string(), |e| Errno::from_raw(e).desc().to_string());
        if !reported {
            out.write(format_args!(": {reason}"));
        }
        let retryable = matches!(
            error.kind(),
            io::ErrorKind::ConnectionRefused
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkUnreachable
        );
        if left == 0 || !retryable {
            line!(out, "");
            return Err(failure!(
                "no rds-stress answers at {destination} ({reason}): start 'rds-stress' there first, or give --connect-retries"
            ));
        }
        out.write(format_args!("{}", if reported { "." } else { " - retrying" }));
        reported = true;
        left -= 1;
        thread::sleep(Duration::from_secs(1));
    }
}

enum ConnectError {
    /// Nothing to do with the peer.
    Source(io::Error),
    Peer(io::Error),
}

fn connect_once(source: Option<IpAddr>, destination: SocketAddr) -> Result<TcpStream, ConnectError> {
    let socket = Socket::new(Domain::for_address(destination), Type::STREAM, Some(Protocol::TCP))
        .map_err(ConnectError::Source)?;
    if let Some(source) = source {
        socket.bind(&SocketAddr::new(source, 0).into()).map_err(ConnectError::Source)?;
    }
    socket.connect_timeout(&destination.into(), CONNECT_TIMEOUT).map_err(ConnectError::Peer)?;
    Ok(socket.into())
}

/// Sends the options block, in one write: the reference reads its beginning with one read.
///
/// # Errors
/// The passive side has gone.
pub fn send_block(stream: &mut TcpStream, block: &Block, peer_version: &str) -> Result<(), Failure> {
    stream
        .set_nodelay(true)
        .and_then(|()| stream.write_all(&block.encode(peer_version)))
        .map_err(passive_gone)
}

/// The active side's tasks are bound: says GO and waits for OK, after which the passive side's are bound, too.
///
/// # Errors
/// The passive side has gone, does not answer, or is something else.
pub fn go(stream: &mut TcpStream) -> Result<(), Failure> {
    stream.write_all(&[GO]).map_err(passive_gone)?;
    let mut ok = [0];
    match read_exact_within(stream, &mut ok, STEP_TIMEOUT) {
        // Every release answers with what it was told, as long as no JSON was asked for.
        Ok(()) if ok[0] == GO => Ok(()),
        Ok(()) => Err(failure!(
            "the other side answered {:#04x} where rds-stress answers {GO:#04x}: something else listens there; check the address (-s) and the port (-p)",
            ok[0]
        )),
        Err((_, e)) if e.kind() == io::ErrorKind::TimedOut => Err(failure!(
            "the other side has taken the options but is not ready after {} s: look at its output, or whether it is rds-stress",
            STEP_TIMEOUT.as_secs()
        )),
        Err((_, e)) => Err(passive_gone(e)),
    }
}

fn passive_gone(e: io::Error) -> Failure {
    failure!("the passive side ended before the run ({e}): its own output says why; correct that and start both again").echo()
}

/// What the active side asks for.
#[derive(Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its options, not yet judged.
    pub block: Block,
    /// Its version, if it told one.
    pub version: Option<String>,
    /// Whether it wants to exchange options as JSON.
    pub json: bool,
}

/// Reads the options block of whoever connected as `peer`.
///
/// # Errors
/// What came is not a block.
pub fn receive_offer(stream: &mut TcpStream, peer: SocketAddr) -> Result<Offer, Failure> {
    receive_offer_within(stream, peer, STEP_TIMEOUT)
}

fn receive_offer_within(
    stream: &mut TcpStream,
    peer: SocketAddr,
    timeout: Duration,
) -> Result<Offer, Failure> {
    let mut bytes = [0; Form::V3.len()];
    let incomplete = |read: usize, e: io::Error| {
        // With the GO byte, unless it waits for its tasks still.
        if (V1_4_LEN..=V1_4_LEN + 1).contains(&read) {
            return failure!(
                "{peer} sent the {V1_4_LEN} bytes of rds-stress 1.4 or older: use 1.5 or newer there"
            );
        }
        failure!("{peer} sent {read} bytes that are not a whole options block of rds-stress ({e}): check what connects to this port, and start again").echo()
    };
    read_exact_within(stream, &mut bytes[..VERSION_LEN], timeout).map_err(|(n, e)| incomplete(n, e))?;
    let first: [u8; VERSION_LEN] = *bytes.first_chunk().expect("longer than 16 bytes");
    let form = Form::detect(&first, peer.is_ipv6());
    read_exact_within(stream, &mut bytes[VERSION_LEN..form.len()], timeout)
        .map_err(|(n, e)| incomplete(VERSION_LEN + n, e))?;
    let (version, json) = version(&first);
    let versioned = form != Form::V1;
    Ok(Offer {
        block: Block::decode(form, &bytes[..form.len()]),
        version: versioned.then_some(version),
        json: versioned && json,
    })
}

/// Waits for the GO byte.
///
/// # Errors
/// The active side has gone.
pub fn wait_go(stream: &mut TcpStream) -> Result<u8, Failure> {
    let mut go = [0];
    read_exact_within(stream, &mut go, STEP_TIMEOUT).map_err(|(_, e)| {
        failure!("the active side ended before the run ({e}): its own output says why; correct that and start both again").echo()
    })?;
    Ok(go[0])
}

/// The passive side's tasks are bound: answers the GO byte with itself, as old releases do. That refuses an exchange of
/// options as JSON, too: the active side then ends with a message of its own.
///
/// # Errors
/// The active side has gone.
pub fn answer_go(stream: &mut TcpStream, go: u8, json: bool) -> Result<(), Failure> {
    let answer = if json && go == JSON_ACCEPTED { 0 } else { go };
    stream
        .set_nodelay(true)
        .and_then(|()| stream.write_all(&[answer]))
        .map_err(|e| failure!("the active side ended before the run ({e}): its own output says why").echo())
}

/// Blocks until the other side ends the run: a byte, a hang-up and an error mean the same.
pub fn wait_end(stream: &mut TcpStream) {
    // A timeout set for an earlier step must not end the run.
    let _ = stream.set_read_timeout(None);
    while matches!(stream.read(&mut [0]), Err(e) if e.kind() == io::ErrorKind::Interrupted) {}
}

/// Fills `buffer` within `timeout`, or tells how much came.
fn read_exact_within(
    stream: &mut TcpStream,
    buffer: &mut [u8],
    timeout: Duration,
) -> Result<(), (usize, io::Error)> {
    let deadline = Instant::now() + timeout;
    let mut read = 0;
    while read < buffer.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        let late = || io::Error::new(io::ErrorKind::TimedOut, "and then nothing more");
        if left.is_zero() {
            return Err((read, late()));
        }
        if let Err(e) = stream.set_read_timeout(Some(left)) {
            return Err((read, e));
        }
        match stream.read(&mut buffer[read..]) {
            Ok(0) => return Err((read, io::Error::new(io::ErrorKind::UnexpectedEof, "and then closed"))),
            Ok(n) => read += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Err((read, late())),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err((read, e)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Shutdown;

    fn pair() -> (TcpStream, TcpStream, SocketAddr) {
        let listener = listen(Some(Ipv4Addr::LOCALHOST.into()), 0).unwrap();
        let active = connect(None, listener.local_addr().unwrap(), 0, Out::Nowhere).unwrap();
        let (passive, _, peer) = accept(&listener).unwrap();
        (active, passive, peer)
    }

    fn block() -> Block {
        Block::new([127, 0, 0, 1].into(), [127, 0, 0, 2].into())
    }

    #[test]
    fn both_sides_agree_and_the_close_ends_the_run() {
        let (mut active, mut passive, peer) = pair();
        let waiting = thread::spawn(move || {
            send_block(&mut active, &block(), "2.0.7").unwrap();
            go(&mut active).unwrap();
            active
        });
        let offer = receive_offer(&mut passive, peer).unwrap();
        assert_eq!(offer, Offer { block: block(), version: None, json: false });
        let byte = wait_go(&mut passive).unwrap();
        assert_eq!(byte, 0);
        answer_go(&mut passive, byte, false).unwrap();
        drop(waiting.join().unwrap());
        wait_end(&mut passive);
    }

    #[test]
    fn a_block_may_come_in_pieces_and_with_the_go_byte_at_once() {
        let (mut active, mut passive, peer) = pair();
        let mut bytes = Block { tos: 3, ..block() }.encode("2.3.0");
        bytes.push(5);
        let sending = thread::spawn(move || {
            for piece in bytes.chunks(7) {
                active.write_all(piece).unwrap();
                thread::yield_now();
            }
            let mut ok = [0];
            active.read_exact(&mut ok).unwrap();
            ok[0]
        });
        let offer = receive_offer(&mut passive, peer).unwrap();
        assert_eq!((offer.version.as_deref(), offer.block.tos), (Some("2.3.0"), 3));
        let byte = wait_go(&mut passive).unwrap();
        answer_go(&mut passive, byte, offer.json).unwrap();
        assert_eq!(sending.join().unwrap(), 5);
    }

    #[test]
    fn an_exchange_as_json_is_never_accepted() {
        for byte in [0, JSON_ACCEPTED] {
            let (mut active, mut passive, peer) = pair();
            let mut bytes = Block { tos: 1, ..block() }.encode("2.0.7");
            bytes[8..12].copy_from_slice(b"json");
            bytes.push(byte);
            active.write_all(&bytes).unwrap();
            let offer = receive_offer(&mut passive, peer).unwrap();
            assert!(offer.json);
            let go = wait_go(&mut passive).unwrap();
            answer_go(&mut passive, go, offer.json).unwrap();
            let mut ok = [1];
            active.read_exact(&mut ok).unwrap();
            assert_eq!(ok[0], 0);
        }
    }

    #[test]
    fn what_is_too_short_for_a_block_is_refused_by_name() {
        let cases: [(usize, &str); 6] = [
            (0, "0 bytes"),
            (3, "3 bytes"),
            (16, "16 bytes"),
            (58, "58 bytes"),
            (53, "1.4 or older"),
            (54, "1.4 or older"),
        ];
        for (len, word) in cases {
            let (mut active, mut passive, peer) = pair();
            active.write_all(&block().encode("2.0.7")[..len]).unwrap();
            active.shutdown(Shutdown::Write).unwrap();
            let message = receive_offer(&mut passive, peer).unwrap_err().message;
            assert!(message.contains(word) && message.contains(&peer.to_string()), "{message}");
        }
    }

    #[test]
    fn a_silent_stranger_does_not_hold_the_passive_side_for_ever() {
        let (_active, mut passive, peer) = pair();
        let message =
            receive_offer_within(&mut passive, peer, Duration::from_millis(20)).unwrap_err().message;
        assert!(message.contains("nothing more"), "{message}");
    }

    #[test]
    fn a_block_that_comes_drop_by_drop_must_be_whole_in_its_time() {
        let (mut active, mut passive, peer) = pair();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let dripping = thread::spawn(move || {
            // Each byte within the time of a single read, all of them far beyond it.
            while stopped.recv_timeout(Duration::from_millis(20)).is_err() {
                if active.write_all(&[0]).is_err() {
                    break;
                }
            }
        });
        let message =
            receive_offer_within(&mut passive, peer, Duration::from_millis(100)).unwrap_err().message;
        assert!(message.contains("bytes that are not a whole options block"), "{message}");
        drop(passive);
        let _ = stop.send(());
        dripping.join().unwrap();
    }

    #[test]
    fn an_answer_that_rds_stress_does_not_give_is_refused() {
        let (mut active, mut passive, _) = pair();
        passive.write_all(b"HTTP/1.1 400 Bad Request\r\n").unwrap();
        let message = go(&mut active).unwrap_err().message;
        assert!(message.contains("0x48") && message.contains("something else listens"), "{message}");
    }

    #[test]
    fn a_passive_side_that_goes_away_is_named() {
        let (mut active, passive, _) = pair();
        drop(passive);
        let message = go(&mut active).unwrap_err().message;
        assert!(message.contains("the passive side ended"), "{message}");
    }

    #[test]
    fn nobody_at_the_port_and_an_address_not_local_are_named() {
        let listener = listen(Some(Ipv4Addr::LOCALHOST.into()), 0).unwrap();
        let address = listener.local_addr().unwrap();
        let in_use = listen(Some(Ipv4Addr::LOCALHOST.into()), address.port()).unwrap_err().message;
        assert!(in_use.contains("in use") && in_use.contains("-p"), "{in_use}");
        drop(listener);
        let nobody = connect(None, address, 0, Out::Nowhere).unwrap_err().message;
        assert!(nobody.contains("no rds-stress answers"), "{nobody}");
        // 192.0.2.0/24 is for documentation: no host has it.
        let foreign = IpAddr::from([192, 0, 2, 1]);
        for message in [
            listen(Some(foreign), 0).unwrap_err().message,
            connect(Some(foreign), address, 0, Out::Nowhere).unwrap_err().message,
        ] {
            assert!(message.contains("192.0.2.1 is not an address of this host"), "{message}");
        }
    }
}
