//! Copies that a payload byte costs on its way from one program to another through daemons, for each form of the API.
//!
//! Counted are bytes of the one function that copies from and to shared memory, bytes that the library copies between memory of the
//! program's own and an arena, and bytes in send and receive calls of TCP. They are counted for the whole process, which holds the daemons and both
//! programs; so this is one test.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::time::Duration;

use rds_client::{Bytes, Counter, Event, Node, Received, Socket};
use rds_core::attach::{copied, count_copies};
use rds_server::server::Server;
use rds_server::settings::Settings;
use rds_tests::address;
use rds_tests::ledger::process::Scratch;

const NODE: u16 = 17414;
const MESSAGES: u64 = 32;

/// What the sender hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Send {
    /// A buffer of the arena.
    Buffer,
    /// Memory of its own, by a reference.
    Borrowed,
    /// Memory of its own, for good.
    Bytes,
}

/// How the receiver takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Take {
    /// A lease.
    Lease,
    /// Into memory of its own.
    Copy,
}

fn server(scratch: &Scratch, at: Ipv4Addr) -> Server {
    let mut settings = Settings::new(vec![IpAddr::V4(at)]);
    settings.socket = scratch.path().join(format!("{at}.sock"));
    (settings.listen_port, settings.dial_port) = (NODE, NODE);
    Server::start(settings).unwrap_or_else(|e| panic!("{e}"))
}

struct Program {
    node: Node,
    socket: Socket,
}

impl Program {
    fn new(scratch: &Path, at: Ipv4Addr, port: u16) -> Self {
        let node =
            Node::builder(at.into()).attach(scratch.join(format!("{at}.sock"))).open().expect("a daemon");
        let socket = node.bind(port).expect("a free port");
        socket.set_recv_timeout(Some(Duration::from_secs(60)));
        socket.set_recv_buffer(8 << 20);
        socket.set_send_buffer(8 << 20);
        Self { node, socket }
    }

    fn send(&self, how: Send, payload: &Bytes, to: &Self) {
        let to = to.socket.local_addr();
        match how {
            Send::Buffer => {
                let mut buffer = self.node.buffer(payload.len());
                // The program writes its message where it is sent from: no copy of the library's.
                buffer[0] = 1;
                self.socket.send_detached(buffer, to).map_err(|(e, _)| e).expect("it is taken");
            }
            Send::Borrowed => self.socket.send_to(payload, to).expect("it is taken"),
            Send::Bytes => {
                self.socket.send_detached(payload.clone(), to).map_err(|(e, _)| e).expect("it is taken")
            }
        }
    }

    fn take(&self, how: Take, room: &mut [u8]) {
        let len = match how {
            Take::Lease => match self.socket.recv_lease() {
                Ok(Event::Message(message)) => message.payload.len(),
                other => panic!("no message, but {other:?}"),
            },
            Take::Copy => match self.socket.recv_from(room) {
                Ok(Received::Message { len, .. }) => len,
                other => panic!("no message, but {other:?}"),
            },
        };
        assert_eq!(len, room.len());
    }

    /// Bytes of its daemon's TCP calls, both ways.
    fn calls(&self) -> u64 {
        let counters = self.node.snapshot().counters;
        counters.get(Counter::TcpBytesSent) + counters.get(Counter::TcpBytesReceived)
    }
}

/// Bytes that were copied, for each byte of payload. `calls`: in send and receive calls; each byte passes through one of either.
fn copies(from: &Program, to: &Program, calls: bool, how: (Send, Take), len: usize) -> f64 {
    let payload = Bytes::from(vec![7; len]);
    let mut room = vec![0; len];
    let mut go = |count: u64| {
        for _ in 0..count {
            from.send(how.0, &payload, to);
            to.take(how.1, &mut room);
        }
        assert!(from.socket.flush(Duration::from_secs(60)));
    };
    // The first messages find out that large ones are to come.
    go(8);
    let in_calls = || if calls { from.calls() + to.calls() } else { 0 };
    // Without what the snapshots themselves cost.
    let before = (in_calls(), copied());
    go(MESSAGES);
    let now = copied();
    let all = in_calls() - before.0 + now - before.1;
    all as f64 / (len as u64 * MESSAGES) as f64
}

#[test]
fn arena_buffers_and_leases_cost_one_copy_a_side_and_borrowed_slices_two() {
    let scratch = Scratch::new("copies");
    let at = [1, 2].map(|host| address(61, host));
    let servers = at.map(|at| server(&scratch, at));
    count_copies();
    let near = Program::new(scratch.path(), at[0], 10);
    let far = Program::new(scratch.path(), at[1], 20);
    let neighbour = Program::new(scratch.path(), at[0], 30);
    println!("copies a payload byte: through two daemons, through one");
    for len in [64 << 10, 1 << 20] {
        for (send, sender) in [(Send::Buffer, 1.0), (Send::Borrowed, 2.0), (Send::Bytes, 2.0)] {
            for (take, receiver) in [(Take::Lease, 1.0), (Take::Copy, 2.0)] {
                let two = copies(&near, &far, true, (send, take), len);
                let one = copies(&near, &neighbour, false, (send, take), len);
                println!("{len} bytes, {send:?} to {take:?}: {two:.3}, {one:.3}");
                // Headers, acknowledgements and records of the rings are a little more.
                let fits = |copies: f64, most: f64| (most..most + 0.02).contains(&copies);
                assert!(fits(two, sender + receiver), "{len} bytes, {send:?} to {take:?}: {two} copies");
                // Between two clients of one daemon one copy does for both sides.
                assert!(
                    fits(one, sender + receiver - 1.0),
                    "{len} bytes, {send:?} to {take:?}: {one} copies"
                );
            }
        }
    }
    drop((near, far, neighbour));
    servers.into_iter().for_each(|server| drop(server.stop().expect("it ends")));
}
