//! A hostile or broken TCP peer: its connection ends with one clear line in the log, and nobody else notices.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use rds_core::wire::{
    Capabilities, HEADER_LEN, HandshakeExtensions, Header, Identity, MAX_MESSAGE, PORT_ENGINE, PORT_PROBE,
};
use rds_tests::address;
use rds_tests::ledger::process::{PATIENCE, Plan, Process, Scratch};
use socket2::{Domain, Socket, Type};

const PROGRAM: &str = env!("CARGO_BIN_EXE_rds-ledger");
const NODE: u16 = 17403;
/// What a process may have more than before, in bytes: the allocator's, and buffers that stay.
const SLACK: u64 = 24 << 20;

/// A node that is attacked, and one that exchanges messages with it meanwhile.
struct Scene {
    scratch: Scratch,
    net: u8,
    victim: Process,
    friend: Process,
    before: u64,
}

impl Scene {
    fn new(name: &str, net: u8) -> Self {
        let scratch = Scratch::new(name);
        let plan = |host: u8| {
            let plan = Plan::new(PROGRAM, &scratch, address(net, host), &[10, 11]);
            plan.with("listen-port", NODE).with("dial-port", NODE).with("rate", 2000).with("longest", 8192)
        };
        let (victim, friend) = (plan(200), plan(201));
        let (mut victim, mut friend) = (victim.clone().sending_to(&friend), friend.sending_to(&victim));
        let (mut victim, mut friend) = (victim.start(), friend.start());
        victim.load();
        friend.load();
        victim.receives(1000);
        friend.receives(1000);
        let before = victim.memory();
        Self { scratch, net, victim, friend, before }
    }

    fn attacker(&self, host: u8) -> Ipv4Addr {
        // Smaller than the victim's address, which therefore lets it speak.
        assert!(host < 200);
        address(self.net, host)
    }

    /// A TCP connection to the victim.
    fn connect(&self, host: u8) -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SocketAddr::from((self.attacker(host), 0)).into())?;
        socket.connect(&SocketAddr::from((address(self.net, 200), NODE)).into())?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    fn attack(&self, host: u8, bytes: &[u8]) -> TcpStream {
        let mut stream = self.connect(host).expect("the victim listens");
        // It may close before everything is written.
        let _ = stream.write_all(bytes);
        stream
    }

    /// The victim's lines that warn of this attacker.
    #[track_caller]
    fn warnings(&mut self, host: u8) -> Vec<String> {
        let attacker = format!("{} ", self.attacker(host));
        self.victim.logs(&format!("something of {attacker}"), |l| l.contains("WARN") && l.contains(&attacker))
    }

    /// Waits until the victim has ended the connection, with one line in its log that says `why`.
    #[track_caller]
    fn ends(&mut self, host: u8, stream: TcpStream, why: &str) {
        until_closed(stream);
        let lines = self.warnings(host);
        assert_eq!(lines.len(), 1, "one line is enough: {lines:#?}");
        assert!(lines[0].contains(why), "expected {why:?} in {:?}", lines[0]);
    }

    /// The friend has noticed nothing, the victim's memory is bounded, and all messages came out right.
    #[track_caller]
    fn unharmed(mut self) {
        self.victim.delivers(500);
        self.friend.delivers(500);
        assert_eq!(self.friend.now().resets, 0, "the friend lost its connection");
        let grown = self.victim.memory().saturating_sub(self.before);
        assert!(grown <= SLACK, "the victim grew by {grown} bytes");
        let mut both = [self.victim, self.friend];
        both.iter_mut().for_each(Process::drain);
        for process in &mut both {
            process.drained();
        }
        both.into_iter().for_each(Process::exit);
        let report = self.scratch.check();
        assert_eq!((report.delivered, report.received), (report.accepted, report.accepted));
    }
}

/// Reads what the victim still sends until it has closed the connection.
#[track_caller]
fn until_closed(mut stream: TcpStream) {
    let mut buffer = vec![0; 64 << 10];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(_) => {}
            Err(e) if e.kind() == ErrorKind::ConnectionReset => return,
            Err(e) => panic!("the victim does not close the connection: {e}"),
        }
    }
}

/// What an own peer says first.
fn ping(generation: u32) -> Header {
    let extensions =
        HandshakeExtensions { lanes: Some(1), generation: Some(generation), source_port_lane: false };
    Header {
        sequence: 1000,
        sport: PORT_PROBE,
        dport: PORT_ENGINE,
        padding: Identity::ours(Capabilities::ACKS.with(Capabilities::WINDOW)).encode(),
        extensions: extensions.encode(),
        ..Header::default()
    }
}

fn pong(generation: u32) -> Header {
    Header { sport: PORT_ENGINE, dport: PORT_PROBE, ..ping(generation) }
}

fn bytes(headers: &[Header]) -> Vec<u8> {
    headers.iter().flat_map(Header::encode_with_checksum).collect()
}

/// Reads messages from the victim until one is so.
#[track_caller]
fn read_until(stream: &mut TcpStream, so: impl Fn(&Header) -> bool) {
    loop {
        let mut header = [0; HEADER_LEN];
        stream.read_exact(&mut header).expect("the victim speaks");
        let header = Header::decode(&header);
        assert!(header.len <= MAX_MESSAGE);
        io::copy(&mut Read::by_ref(stream).take(header.len.into()), &mut io::sink())
            .expect("the victim speaks");
        if so(&header) {
            return;
        }
    }
}

#[test]
fn bytes_without_sense_end_the_connection() {
    let mut scene = Scene::new("garbage", 1);
    let mut random = fastrand::Rng::with_seed(7);
    for host in 1..10 {
        let garbage: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(100_000).collect();
        let stream = scene.attack(host, &garbage);
        scene.ends(host, stream, "framing lost");
    }
    let stream =
        scene.attack(10, b"GET / HTTP/1.1\r\nHost: example.org\r\nAccept: */*\r\nUser-Agent: none\r\n\r\n");
    scene.ends(10, stream, "framing lost");
    scene.unharmed();
}

#[test]
fn an_impossible_length_ends_the_connection() {
    let mut scene = Scene::new("length", 2);
    for (host, len) in [(1, u32::MAX), (2, MAX_MESSAGE * 2)] {
        let header = Header { sequence: 1, sport: 5, dport: 10, len, ..Header::default() };
        for (host, bytes) in [(host, header.encode()), (host + 100, header.encode_with_checksum())] {
            let stream = scene.attack(host, &bytes);
            scene.ends(host, stream, &format!("announces {len} payload bytes"));
        }
    }
    scene.unharmed();
}

#[test]
fn a_wrong_checksum_ends_the_connection() {
    let mut scene = Scene::new("checksum", 3);
    // In the first header, in a later one, and in one after the handshake.
    let mut bad = ping(7).encode_with_checksum();
    bad[3] ^= 1;
    let stream = scene.attack(1, &bad);
    scene.ends(1, stream, "wrong checksum");
    let stream = scene.attack(2, &[bytes(&[ping(7)]), bad.to_vec()].concat());
    scene.ends(2, stream, "wrong checksum");
    let mut stream = scene.attack(3, &bytes(&[ping(7)]));
    read_until(&mut stream, Header::is_handshake_pong);
    stream.write_all(&bytes(&[pong(7)])).expect("the victim reads");
    stream.write_all(&bad).expect("the victim reads");
    scene.ends(3, stream, "wrong checksum");
    scene.unharmed();
}

#[test]
fn a_peer_that_contradicts_itself_ends_its_connection() {
    let mut scene = Scene::new("contradiction", 4);
    let stream = scene.attack(1, &bytes(&[ping(7), ping(8)]));
    scene.ends(1, stream, "changed its identity or generation");
    let mut stream = scene.attack(2, &bytes(&[ping(7)]));
    read_until(&mut stream, Header::is_handshake_pong);
    // Nothing was ever sent to it, so there is nothing to acknowledge.
    let ack = Header { ack: 1 << 62, ..Header::default() };
    stream.write_all(&bytes(&[pong(7), ack])).expect("the victim reads");
    scene.ends(2, stream, "acknowledges sequence");
    scene.unharmed();
}

#[test]
fn a_peer_that_ignores_its_window_ends_its_connection() {
    let mut scene = Scene::new("window", 5);
    scene.victim.command("pause 0");
    let mut stream = scene.attack(1, &bytes(&[ping(7)]));
    read_until(&mut stream, Header::is_handshake_pong);
    stream.write_all(&bytes(&[pong(7)])).expect("the victim reads");
    // To the socket that takes nothing, far more than any node would hold for it.
    let len = 256 << 10;
    let mut stopped = false;
    for sequence in 2000..2400 {
        let header = Header { sequence, sport: 5, dport: 10, len, ..Header::default() };
        let message = [&header.encode_with_checksum()[..], &vec![0; len as usize]].concat();
        if stream.write_all(&message).is_err() {
            stopped = true;
            break;
        }
    }
    assert!(stopped, "the victim swallowed 100 MiB beyond every window");
    scene.ends(1, stream, "window allowed");
    scene.victim.command("resume 0");
    // The attacker's messages are no ledger messages; the socket says so, and the ledger's own are all right.
    scene.victim.delivers(500);
    scene.friend.delivers(500);
    assert_eq!(scene.friend.now().resets, 0, "the friend lost its connection");
}

#[test]
fn who_says_nothing_or_half_a_thing_is_not_waited_for() {
    let mut scene = Scene::new("silence", 6);
    let half = &ping(7).encode_with_checksum()[..20];
    let long = Header { sequence: 1, sport: 5, dport: 10, len: MAX_MESSAGE, ..Header::default() };
    let silent = [
        (1, scene.attack(1, b"")),
        (2, scene.attack(2, half)),
        (3, scene.attack(3, &bytes(&[ping(7)]))),
        (4, scene.attack(4, &[bytes(&[long]), vec![0; 1000]].concat())),
    ];
    // A byte now and then does not help.
    let mut slow = scene.connect(5).expect("the victim listens");
    let mut written = 0;
    slow.set_read_timeout(Some(Duration::from_millis(500))).expect("a socket has a timeout");
    loop {
        if slow.write_all(&half[written.min(19)..][..1]).is_err() {
            break;
        }
        written += 1;
        match slow.read(&mut [0; 16384]) {
            Ok(0) => break,
            Err(e) if e.kind() == ErrorKind::ConnectionReset => break,
            Ok(_) | Err(_) => assert!(written < 47, "the victim waits for ever"),
        }
    }
    for (host, stream) in silent {
        scene.ends(host, stream, "no handshake within the time limit");
    }
    let lines = scene.warnings(5);
    assert_eq!(lines.len(), 1, "one line is enough: {lines:#?}");
    scene.unharmed();
}

#[test]
fn a_flood_of_connections_is_refused_at_the_limit() {
    let mut scene = Scene::new("flood", 7);
    let mut open = Vec::new();
    let mut refused = 0;
    for round in 0..20 {
        for host in 1..=100 {
            match scene.connect(host) {
                Ok(stream) => open.push(stream),
                Err(_) => refused += 1,
            }
        }
        assert!(round < 19 || open.len() + refused == 2000);
    }
    let least = 2000 - 256 - refused as u64;
    scene.victim.wait("it refuses what is too much", |p| p.refused >= least);
    let grown = scene.victim.memory().saturating_sub(scene.before);
    assert!(grown <= SLACK, "a flood made the victim grow by {grown} bytes");
    let lines = scene.victim.errors().lines().count();
    assert!(lines < 400, "a flood of connections made {lines} lines of log");
    scene.victim.delivers(200);
    scene.friend.delivers(200);
    drop(open);
    scene.unharmed();
}

#[test]
fn a_peer_that_comes_after_the_bad_ones_is_served() {
    let scene = Scene::new("after", 8);
    for host in 1..20 {
        let stream = scene.attack(host, &[0xff; 4096]);
        until_closed(stream);
    }
    // A node at an address from which an attack came.
    let late = Plan::new(PROGRAM, &scene.scratch, scene.attacker(7), &[10]);
    let victim = Plan::new(PROGRAM, &scene.scratch, address(8, 200), &[10, 11]);
    let late = late.with("listen-port", NODE).with("dial-port", NODE).with("rate", 1000);
    let mut late = late.sending_to(&victim).start();
    late.load();
    late.delivers(500);
    late.drain();
    late.drained();
    late.exit();
    scene.unharmed();
}
