//! Sending without a copy where connections break, where the kernel does not copy after all, and where it may pin little.

use std::io::Write;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rds_client::{Completion, Event, Mode, Node, NodeBuilder, Owned, Snapshot, Socket};
use rds_tests::netns::Namespace;
use rds_tests::proxy::{Break, Direction, Proxy, Route, Schedule};
use rds_tests::skip::or_skip;
use rds_tests::unprivileged::{NOBODY, Unprivileged};
use rds_tests::xdp::XdpPass;

/// Far longer than anything takes.
const LONG: Duration = Duration::from_secs(60);
/// TCP port on which nodes listen, and that of the proxy between them.
const LISTEN: u16 = 26395;
const DIAL: u16 = 26396;

/// Memory of payloads. The moment the library lets go of one it is overwritten, and then used again.
#[derive(Clone, Default)]
struct Store {
    free: Arc<Mutex<Vec<Vec<u8>>>>,
    out: Arc<AtomicUsize>,
}

struct Poisoned {
    bytes: Vec<u8>,
    store: Store,
}

impl AsRef<[u8]> for Poisoned {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Poisoned {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.fill(0xee);
        self.store.free.lock().unwrap().push(bytes);
        self.store.out.fetch_sub(1, SeqCst);
    }
}

/// Message `n` of a run: its length, and each of its bytes, follow from its number.
fn message(n: u64, out: &mut Vec<u8>) {
    let mut x = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    const SIZES: [Range<u64>; 5] = [8..2000, 4096..4097, 4097..40_000, 65_536..65_537, 65_537..(1 << 20) + 1];
    let range = SIZES[(next() % 5) as usize].clone();
    let len = (range.start + next() % (range.end - range.start)) as usize;
    out.clear();
    while out.len() < len {
        out.extend_from_slice(&next().to_le_bytes());
    }
    out.truncate(len);
    out[..8].copy_from_slice(&n.to_le_bytes());
}

impl Store {
    fn payload(&self, n: u64) -> Owned {
        let mut bytes = self.free.lock().unwrap().pop().unwrap_or_default();
        message(n, &mut bytes);
        self.out.fetch_add(1, SeqCst);
        Owned::new(Poisoned { bytes, store: self.clone() })
    }
}

struct Pair {
    a: Node,
    alice: Socket,
    b: Node,
    bob: Socket,
}

fn pair(addresses: [IpAddr; 2], set: impl Fn(NodeBuilder) -> NodeBuilder) -> Pair {
    let open = |address| set(Node::builder(address)).zero_copy_send(Mode::On).open().expect("a node");
    let [a, b] = addresses.map(open);
    let (alice, bob) = (a.bind(1000).expect("a port"), b.bind(2000).expect("a port"));
    for socket in [&alice, &bob] {
        socket.set_send_buffer(8 << 20);
        socket.set_recv_buffer(8 << 20);
        socket.set_send_timeout(Some(LONG));
        socket.set_recv_timeout(Some(LONG));
    }
    Pair { a, alice, b, bob }
}

/// Sends messages from alice to bob until `enough`, calling `meanwhile` with each one's number; every byte is verified, every
/// payload released once, every message delivered once. Returns alice's node at the end, and how many messages there were.
fn run(pair: Pair, enough: impl Fn(u64) -> bool, mut meanwhile: impl FnMut(u64)) -> (Snapshot, u64) {
    let Pair { a, alice, b, bob } = pair;
    let to = bob.local_addr();
    let receiver = std::thread::spawn(move || {
        let mut expected = Vec::new();
        for n in 0_u64.. {
            let Event::Message(got) = bob.recv_lease().expect("a message") else {
                panic!("no other event was asked for");
            };
            if got.payload.is_empty() {
                return n;
            }
            message(n, &mut expected);
            assert!(*got.payload == *expected, "message {n} of {} bytes", expected.len());
        }
        unreachable!("endless");
    });
    let store = Store::default();
    let (mut found, mut released, mut delivered) = (Vec::new(), 0, 0);
    let mut count = |found: &mut Vec<Completion>| {
        for completion in found.drain(..) {
            match completion {
                Completion::Released { .. } => released += 1,
                Completion::Delivered { .. } => delivered += 1,
                other => panic!("{other:?}"),
            }
        }
        (released, delivered)
    };
    let mut n = 0;
    while !enough(n) {
        alice.send_owned(store.payload(n), to).map_err(|(error, _)| error).expect("room within a minute");
        alice.completions(&mut found);
        count(&mut found);
        meanwhile(n);
        n += 1;
    }
    alice.send_to(&[], to).expect("the end");
    while count(&mut found) != (n, n) {
        assert!(alice.wait_completions(&mut found, Some(LONG)) > 0, "{n} messages: {:?}", a.snapshot());
    }
    assert_eq!(receiver.join().expect("every message was right"), n);
    assert_eq!(store.out.load(SeqCst), 0);
    let start = Instant::now();
    while a.snapshot().zero_copy.pinned_bytes > 0 {
        assert!(start.elapsed() < LONG, "{:?}", a.snapshot().zero_copy);
    }
    let snapshot = a.snapshot();
    let info = &snapshot.zero_copy;
    assert_eq!((info.leaked_calls, info.send.unknown, info.send.notified), (0, 0, info.send.calls));
    drop((alice, a, b));
    (snapshot, n)
}

/// For how long the tests with faults run; longer with RDS_ZERO_COPY_SECONDS.
fn seconds() -> u64 {
    std::env::var("RDS_ZERO_COPY_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(4)
}

#[test]
fn poisoned_memory_never_reaches_the_peer_however_connections_break() {
    let addresses = [1, 2].map(|host| rds_tests::address(70, host));
    let routes = addresses.map(|address| Route::to(address, LISTEN, DIAL));
    let mut proxy = Proxy::start(&routes).expect("free ports");
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    proxy.schedule(Some(Schedule {
        seed,
        bytes: 100_000..30_000_000,
        ways: vec![Break::Cut, Break::Reset, Break::ResetDialer, Break::ResetTarget],
    }));
    let pair = pair(addresses.map(IpAddr::from), |b| {
        b.listen_port(LISTEN).dial_port(DIAL).pin_hold_limit(Duration::from_millis(200))
    });
    let end = Instant::now() + Duration::from_secs(seconds());
    let mut stalled_until = None;
    let (snapshot, n) = run(
        pair,
        |_| Instant::now() > end,
        |n| {
            // Now and then nothing is carried, for longer than the kernel may hold what was pinned.
            if n % 200 == 50 && stalled_until.is_none() {
                proxy.stall(Direction::FromDialer, true);
                proxy.stall(Direction::FromTarget, true);
                stalled_until = Some(Instant::now() + Duration::from_millis(500));
            }
            // The sender blocks when its buffer is full, so this is done by whoever sends next, or by the clock below.
            if let Some(until) = stalled_until {
                while n % 200 == 70 && Instant::now() < until {
                    std::thread::yield_now();
                }
                if Instant::now() >= until {
                    proxy.stall(Direction::FromDialer, false);
                    proxy.stall(Direction::FromTarget, false);
                    stalled_until = None;
                }
            }
        },
    );
    assert!(snapshot.zero_copy.send.calls > 0 && n > 100, "{n}: {:?}", snapshot.zero_copy);
    assert!(proxy.broken() > 1, "{}", proxy.broken());
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn where_the_kernel_does_not_copy_it_says_so_of_every_call() {
    let Some(namespace) = or_skip(Namespace::new()) else { return };
    for addresses in [["192.0.2.1", "192.0.2.2"], ["fd00::1", "fd00::2"]] {
        let addresses = addresses.map(ip);
        addresses.iter().for_each(|address| namespace.add_address(*address));
        let Some(pass) = or_skip(XdpPass::attach(&namespace)) else { return };
        let (snapshot, _) = namespace.run(|| run(pair(addresses, |b| b), |n| n == 1000, |_| ()));
        let send = snapshot.zero_copy.send;
        assert!(send.calls >= 700 && send.copied == 0, "{send:?}");
        pass.detach();
    }
}

#[test]
fn ipv6_pins_like_ipv4() {
    let Some(namespace) = or_skip(Namespace::new()) else { return };
    let addresses = ["fd00::1", "fd00::2"].map(ip);
    addresses.iter().for_each(|address| namespace.add_address(*address));
    let (snapshot, _) = namespace.run(|| run(pair(addresses, |b| b), |n| n == 300, |_| ()));
    let send = snapshot.zero_copy.send;
    assert!(send.calls >= 200 && send.copied == send.calls, "{send:?}");
    let segment = snapshot.peers[0].connections[0].zero_copy.send.as_ref().and_then(|s| s.segment);
    assert_eq!(segment, Some(20480), "whole pages");
}

#[test]
fn a_socket_with_room_for_few_notifications_goes_on_by_copying() {
    let Some(namespace) = or_skip(Namespace::new()) else { return };
    let addresses = ["192.0.2.1", "192.0.2.2"].map(ip);
    addresses.iter().for_each(|address| namespace.add_address(*address));
    for optmem in [1024, 2048, 4096, 20480] {
        namespace.set_sysctl("core/optmem_max", &optmem.to_string()).expect("root may");
        let (snapshot, _) = namespace.run(|| run(pair(addresses, |b| b), |n| n == 300, |_| ()));
        assert_eq!(snapshot.zero_copy.optmem, optmem);
        let fallbacks = snapshot.zero_copy.send.fallbacks;
        // We count as the kernel does, or less; and it is never asked in vain for long.
        assert!(fallbacks.notifications > 0 || optmem >= 4096, "{optmem}: {fallbacks:?}");
    }
    // It may become less while the node runs: then the kernel itself refuses.
    namespace.set_sysctl("core/optmem_max", "131072").expect("root may");
    let pair = namespace.run(|| pair(addresses, |b| b));
    namespace.set_sysctl("core/optmem_max", "1024").expect("root may");
    let (snapshot, _) = namespace.run(|| run(pair, |n| n == 300, |_| ()));
    assert!(snapshot.zero_copy.send.fallbacks.refused > 0, "{:?}", snapshot.zero_copy);
}

/// Tells the test below, run again as another user, its pin limit; empty for the default.
const AS_NOBODY: &str = "RDS_TEST_ZERO_COPY_PIN_LIMIT";

#[test]
fn with_little_memory_that_may_be_pinned_everything_works_and_a_line_says_why_it_is_slow() {
    if let Ok(limit) = std::env::var(AS_NOBODY) {
        return as_nobody(limit.parse().ok());
    }
    let this = std::env::current_exe().expect("a running program");
    let Some(this) = or_skip(Unprivileged::new(&this)) else { return };
    let this = this.with_user(NOBODY - 2000 - std::process::id() % 1000);
    let name = "with_little_memory_that_may_be_pinned_everything_works_and_a_line_says_why_it_is_slow";
    for (memlock, limit) in
        [(0, None), (64 << 10, None), (256 << 10, None), (8 << 20, None), (64 << 10, Some(64 << 20))]
    {
        let own = limit.map(|l: u64| l.to_string()).unwrap_or_default();
        let done = this
            .command(memlock)
            .env(AS_NOBODY, own)
            .args(["--exact", name, "--nocapture"])
            .output()
            .expect("this program again");
        let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && said.contains("1 passed"), "{memlock}: {said}");
        let lines: Vec<_> = said.lines().filter(|line| line.contains("payloads are copied")).collect();
        if memlock < 1 << 20 {
            assert_eq!(lines.len(), 1, "once: {said}");
            assert!(lines[0].contains(&format!("RLIMIT_MEMLOCK is {memlock} bytes")), "{lines:?}");
            assert!(lines[0].contains("ulimit -l") && lines[0].contains("LimitMEMLOCK="), "{lines:?}");
        }
    }
}

fn as_nobody(pin_limit: Option<u64>) {
    tracing_subscriber::fmt().with_ansi(false).with_writer(std::io::stderr).init();
    let pair = pair([1, 2].map(|host| rds_tests::address(71, host).into()), |b| {
        let b = b.listen_port(DIAL).dial_port(DIAL);
        match pin_limit {
            Some(bytes) => b.pin_limit(bytes),
            None => b,
        }
    });
    let memlock = pair.a.snapshot().zero_copy.memlock.expect("no capability");
    let (snapshot, _) = run(pair, |n| n == 500, |_| ());
    let info = snapshot.zero_copy;
    let _ = writeln!(std::io::stderr(), "{info:?}");
    match pin_limit {
        None => {
            assert_eq!(info.send.fallbacks.refused, 0, "the limit is kept: {info:?}");
            assert!(info.pinned_bytes_max <= memlock - memlock / 4, "{info:?}");
        }
        Some(_) => assert!(info.send.fallbacks.refused > 0, "{info:?}"),
    }
    assert_eq!(info.send.calls > 0, memlock > 0, "{info:?}");
}
