//! Nodes for tests: each pair at addresses of its own, so that tests run side by side.
#![allow(dead_code, reason = "not every test uses everything")]

pub(crate) mod paged;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rds_client::{Completion, Event, Lease, Node, NodeBuilder, Received, Socket};
use rds_server::server::Server;
use rds_server::settings::Settings;

/// TCP port of every node in these tests.
pub(crate) const PORT: u16 = 26385;
/// Far longer than anything takes; a test that gets there has failed.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Nodes are a daemon's here, to which the tests attach: `attached.rs` runs the tests of sockets once more.
pub(crate) const ATTACHED: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"attached");

/// A /24 of 127/8 that no other test of this process, and hardly one of another, uses.
pub(crate) fn net() -> impl Fn(u8) -> IpAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Where several files of tests make one program, each has this module, and a part of its own.
    let files = ["messages", "flow", "readiness", "shutdown", "threads", "payloads", "zero_copy_send"];
    let file = files.iter().position(|file| ATTACHED && module_path!().contains(file)).unwrap_or(7);
    let process = std::process::id() % 0x3fff + file as u32 * 0x800;
    let n = NEXT.fetch_add(1, Relaxed);
    let [hi, lo] = u16::try_from((process * 4 + u32::from(n) * 0x101) % 0xffff).unwrap_or(7).to_be_bytes();
    move |host| IpAddr::V4(Ipv4Addr::new(127, hi, lo, host))
}

/// How a test opens its node: embedded, or at a daemon that has the address and lives as long as the test program.
pub(crate) fn builder(address: IpAddr) -> NodeBuilder {
    let builder = Node::builder(address).listen_port(PORT).dial_port(PORT);
    if ATTACHED { builder.attach(daemon(address)) } else { builder.embedded() }
}

/// The socket of the daemon that has the address.
fn daemon(address: IpAddr) -> PathBuf {
    static DAEMONS: Mutex<Vec<(IpAddr, PathBuf, Server)>> = Mutex::new(Vec::new());
    let mut daemons = DAEMONS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, path, _)) = daemons.iter().find(|(of, ..)| *of == address) {
        return path.clone();
    }
    let folder = tempfile::tempdir().unwrap().keep();
    let mut settings = Settings::new(vec![address]);
    settings.socket = folder.join("rds.sock");
    (settings.listen_port, settings.dial_port) = (PORT, PORT);
    let path = settings.socket.clone();
    daemons.push((address, path.clone(), Server::start(settings).unwrap()));
    path
}

/// Two nodes; the first has the smaller address.
pub(crate) fn two_nodes() -> (Node, Node) {
    let net = net();
    (builder(net(1)).open().unwrap(), builder(net(2)).open().unwrap())
}

/// Two nodes with a socket each.
pub(crate) struct Pair {
    pub(crate) alice: Socket,
    pub(crate) bob: Socket,
    pub(crate) a: Node,
    pub(crate) b: Node,
}

pub(crate) fn pair() -> Pair {
    let (a, b) = two_nodes();
    let (alice, bob) = (a.bind(1000).unwrap(), b.bind(2000).unwrap());
    for socket in [&alice, &bob] {
        socket.set_recv_timeout(Some(LONG));
        socket.set_send_timeout(Some(LONG));
    }
    Pair { alice, bob, a, b }
}

/// The next message, whole.
pub(crate) fn message(socket: &Socket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = vec![0; 1 << 20];
    match socket.recv_from(&mut buffer) {
        Ok(Received::Message { len, full_len, from }) => {
            assert_eq!(len, full_len);
            buffer.truncate(len);
            (buffer, from)
        }
        other => panic!("a message was expected: {other:?}"),
    }
}

/// Receives the next message into `buffer`, which it must fill.
pub(crate) fn message_into(socket: &Socket, buffer: &mut [u8]) {
    match socket.recv_from(buffer) {
        Ok(Received::Message { len, full_len, .. }) => {
            assert_eq!((len, full_len), (buffer.len(), buffer.len()))
        }
        other => panic!("a message was expected: {other:?}"),
    }
}

/// A payload that depends on `seed` at every byte.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 8);
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while out.len() < len {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend_from_slice(&x.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// Waits for `n` completions.
pub(crate) fn completions(socket: &Socket, n: usize) -> Vec<Completion> {
    let mut found = Vec::new();
    while found.len() < n {
        assert!(socket.wait_completions(&mut found, Some(LONG)) > 0, "only {found:?}");
    }
    found
}

/// What a node counted.
pub(crate) fn received(node: &Node) -> rds_core::zerocopy::ReceiveCounts {
    node.snapshot().zero_copy.recv.counts
}

/// The next message, in its own memory.
pub(crate) fn lease(socket: &Socket) -> Lease {
    match socket.recv_lease() {
        Ok(Event::Message(message)) => message.payload,
        other => panic!("a message was expected: {other:?}"),
    }
}
