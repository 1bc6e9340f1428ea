//! Sending without a copy: what the kernel pins comes back, whole messages arrive, and the limits hold.

mod common;

use std::collections::HashMap;
use std::io::Write;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{LONG, PORT, builder, completions, message, net, pattern};
use rds_client::{
    Blocked, Completion, Mode, Node, Owned, Refusal, SendError, Socket, TrySendError, WhenFull,
};
use rds_core::wire::{CongestionMap, Identity};

/// Two nodes that pin whatever they can, with a socket each.
struct Pair {
    a: Node,
    b: Node,
    alice: Socket,
    bob: Socket,
}

fn sockets(a: Node, b: Node) -> Pair {
    let (alice, bob) = (a.bind(1000).unwrap(), b.bind(2000).unwrap());
    for socket in [&alice, &bob] {
        socket.set_recv_buffer(16 << 20);
        socket.set_send_buffer(16 << 20);
        socket.set_recv_timeout(Some(LONG));
        socket.set_send_timeout(Some(LONG));
    }
    Pair { a, b, alice, bob }
}

fn pinning_pair() -> Pair {
    let net = net();
    let open = |n| builder(net(n)).zero_copy_send(Mode::On).open().unwrap();
    sockets(open(1), open(2))
}

/// Waits until nothing is pinned.
fn until_unpinned(node: &Node) {
    let start = Instant::now();
    while node.snapshot().zero_copy.pinned_bytes > 0 {
        assert!(start.elapsed() < LONG, "{:?}", node.snapshot().zero_copy);
        std::thread::yield_now();
    }
}

/// A send's error without the payload, which would fill the screen.
fn plain<T, E>(result: Result<T, (E, Owned)>) -> Result<T, E> {
    result.map_err(|(error, _)| error)
}

/// Payloads in memory that is poisoned the moment it is free, and used again.
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

impl Store {
    fn payload(&self, seed: u64, len: usize) -> Owned {
        let mut bytes = self.free.lock().unwrap().pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(&pattern(seed, len));
        self.out.fetch_add(1, SeqCst);
        Owned::new(Poisoned { bytes, store: self.clone() })
    }
}

#[test]
fn memory_that_is_poisoned_when_it_is_released_was_sent_before() {
    const COUNT: u64 = 2000;
    let p = pinning_pair();
    let to = p.bob.local_addr();
    let bob = p.bob;
    let size = |i: u64| [65_536, 5000, 1 << 20, 20_000][(i % 4) as usize] / (1 + i as usize % 3);
    let receiver = std::thread::spawn(move || {
        (0..COUNT).for_each(|i| assert!(message(&bob).0 == pattern(i, size(i)), "message {i}"));
    });
    let store = Store::default();
    let mut seen: HashMap<u32, (u32, u32)> = HashMap::new();
    let mut found = Vec::new();
    for i in 0..COUNT {
        let cookie = plain(p.alice.send_owned(store.payload(i, size(i)), to)).unwrap();
        seen.insert(cookie.0, (0, 0));
        p.alice.completions(&mut found);
    }
    while (found.len() as u64) < 2 * COUNT {
        assert!(p.alice.wait_completions(&mut found, Some(LONG)) > 0);
    }
    receiver.join().unwrap();
    for completion in found {
        let seen = seen.get_mut(&completion.cookie().0).unwrap();
        match completion {
            Completion::Released { .. } => seen.0 += 1,
            Completion::Delivered { .. } => seen.1 += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(seen.values().all(|s| *s == (1, 1)));
    assert_eq!(store.out.load(SeqCst), 0);
    until_unpinned(&p.a);
    let info = p.a.snapshot().zero_copy;
    assert_eq!((info.leaked_calls, info.send.unknown, info.send.notified), (0, 0, info.send.calls));
    // Of each large message at least one call, and the kernel copies on loopback.
    let large = (0..COUNT).filter(|i| size(*i) >= 4096).count() as u64;
    assert!(info.send.calls >= large, "{large} of {info:?}");
    assert_eq!(info.send.copied, info.send.calls);
    assert!(info.pinned_bytes_max > 0);
    drop(p.b);
}

#[test]
fn nothing_is_pinned_where_the_mode_is_off_and_on_this_host_where_it_is_auto() {
    for mode in [Mode::Off, Mode::Auto] {
        let net = net();
        let open = |n| builder(net(n)).zero_copy_send(mode).open().unwrap();
        let p = sockets(open(1), open(2));
        for i in 0..20 {
            plain(p.alice.send_owned(pattern(i, 65_536), p.bob.local_addr())).unwrap();
            assert!(message(&p.bob).0 == pattern(i, 65_536));
        }
        let released = completions(&p.alice, 40);
        let copied = |c: &&Completion| matches!(c, Completion::Released { copied: true, .. });
        assert_eq!(released.iter().filter(copied).count(), 20);
        assert_eq!(p.a.snapshot().zero_copy.send.calls, 0, "{mode}");
    }
}

#[test]
fn a_path_and_a_socket_may_differ_from_their_node() {
    let net = net();
    let open = |n, mode| builder(net(n)).zero_copy_send(mode).open().unwrap();
    let p = sockets(open(1, Mode::Off), open(2, Mode::Off));
    let to = p.bob.local_addr();
    let mut calls = 0;
    let mut pins = |expected: bool| {
        for i in 0..3 {
            plain(p.alice.send_owned(pattern(i, 65_536), to)).unwrap();
            assert!(message(&p.bob).0 == pattern(i, 65_536));
        }
        let now = p.a.snapshot().zero_copy.send.calls;
        assert_eq!(now > calls, expected);
        calls = now;
    };
    pins(false);
    p.alice.set_zero_copy_send(Mode::On);
    pins(true);
    p.alice.set_zero_copy_send(None);
    pins(false);
    p.a.set_zero_copy(to.ip(), Some(Mode::On), None);
    pins(true);
    p.alice.set_zero_copy_send(Mode::Off);
    pins(false);
    p.alice.set_zero_copy_send(None);
    p.a.set_zero_copy(to.ip(), None, None);
    pins(false);
}

/// A peer that accepts connections, says what a kernel says, and reads nothing.
struct Silent {
    stop: Arc<AtomicUsize>,
    thread: Option<std::thread::JoinHandle<Vec<TcpStream>>>,
    address: IpAddr,
}

impl Silent {
    fn new(address: IpAddr) -> Self {
        let listener = TcpListener::bind((address, PORT)).unwrap();
        let stop = Arc::new(AtomicUsize::new(0));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut all = Vec::new();
            while stopped.load(SeqCst) == 0 {
                let mut stream = listener.accept().unwrap().0;
                let _ = stream.write_all(&CongestionMap::default().to_message(Identity::Kernel));
                all.push(stream);
            }
            all
        });
        Self { stop, thread: Some(thread), address }
    }

    /// Stops listening, and closes everything. Returns how many connections there were.
    fn end(mut self) -> usize {
        self.stop.store(1, SeqCst);
        let _ = TcpStream::connect((self.address, PORT));
        self.thread.take().unwrap().join().unwrap().len()
    }
}

/// A node with a socket, whose peer reads nothing, and messages of which some are pinned.
fn stuck(hold_limit: Duration) -> (Node, Socket, Silent, Store, u64) {
    const COUNT: u64 = 30;
    let net = net();
    let silent = Silent::new(net(2));
    // The smaller address dials.
    let a = builder(net(1)).zero_copy_send(Mode::On).pin_hold_limit(hold_limit).open().unwrap();
    let alice = a.bind(1000).unwrap();
    alice.set_send_buffer(64 << 20);
    alice.set_send_timeout(Some(LONG));
    let store = Store::default();
    for i in 0..COUNT {
        plain(alice.send_owned(store.payload(i, 1 << 20), (net(2), 2000).into())).unwrap();
    }
    let start = Instant::now();
    while a.snapshot().zero_copy.pinned_bytes == 0 {
        assert!(start.elapsed() < LONG, "nothing was pinned: {:?}", a.snapshot());
        std::thread::yield_now();
    }
    (a, alice, silent, store, COUNT)
}

#[test]
fn a_peer_that_never_reads_holds_nothing_for_ever_and_nothing_is_lost() {
    let (a, alice, silent, store, count) = stuck(Duration::from_millis(300));
    let to = silent.address;
    // Its connection is ended, and made anew.
    until_unpinned(&a);
    assert_eq!(store.out.load(SeqCst) as u64, count, "the messages are kept");
    assert!(silent.end() > 1);
    let b = builder(to).open().unwrap();
    let bob = b.bind(2000).unwrap();
    bob.set_recv_timeout(Some(LONG));
    // A kernel that says nothing has none of our numbers, so what TCP acknowledged to it counts as delivered.
    let mut next = None;
    let mut n = 0;
    while next.is_none_or(|next| next < count) {
        let got = message(&bob).0;
        let i = (0..count).find(|i| got == pattern(*i, 1 << 20)).expect("a message as it was sent");
        assert!(next.is_none_or(|next| i == next), "{i}");
        next = Some(i + 1);
        n += 1;
    }
    assert!(n >= count - 6, "only what fitted into a receive buffer, a connection, is missing: {n}");
    let all = completions(&alice, 2 * count as usize);
    let released = all.iter().filter(|c| matches!(c, Completion::Released { .. })).count() as u64;
    assert_eq!((released, store.out.load(SeqCst)), (count, 0));
    assert_eq!(a.snapshot().zero_copy.leaked_calls, 0);
}

#[test]
fn what_is_cancelled_while_the_kernel_holds_it_is_released_once_the_path_ends() {
    let (a, alice, silent, store, count) = stuck(Duration::from_millis(1500));
    let to = (silent.address, 2000).into();
    let cancelled = alice.cancel_sent_to(to) as u64;
    let mut all = Vec::new();
    while all.iter().filter(|c| matches!(c, Completion::Cancelled { .. })).count() as u64 != cancelled {
        assert!(alice.wait_completions(&mut all, Some(LONG)) > 0);
    }
    let snapshot = a.snapshot();
    let held = snapshot.zero_copy.pinned_bytes;
    assert!(snapshot.sockets[0].pinned_bytes > 0, "one socket has all of it");
    if held > 0 {
        assert!(store.out.load(SeqCst) > 0, "the kernel holds {held} bytes");
    }
    while (all.len() as u64) < 2 * count {
        assert!(alice.wait_completions(&mut all, Some(LONG)) > 0, "{all:?}");
    }
    assert_eq!(store.out.load(SeqCst), 0);
    assert_eq!(a.snapshot().zero_copy.leaked_calls, 0);
    silent.end();
}

#[test]
fn a_shutdown_and_a_drop_give_back_what_the_kernel_held() {
    for shutdown in [true, false] {
        let (a, alice, silent, store, count) = stuck(Duration::from_secs(30));
        if shutdown {
            assert!(a.shutdown(Duration::ZERO).undelivered > 0);
            assert_eq!(a.snapshot().zero_copy.pinned_bytes, 0);
            let mut all = Vec::new();
            alice.completions(&mut all);
            drop((alice, a));
            assert!(all.len() as u64 <= 2 * count);
        } else {
            alice.close();
            drop(a);
        }
        let start = Instant::now();
        while store.out.load(SeqCst) > 0 {
            assert!(start.elapsed() < LONG, "{} payloads are not free", store.out.load(SeqCst));
            std::thread::yield_now();
        }
        silent.end();
    }
}

#[test]
fn beyond_the_pin_limit_messages_are_copied() {
    let net = net();
    let a = builder(net(1)).zero_copy_send(Mode::On).pin_limit(300 << 10).open().unwrap();
    let p = sockets(a, builder(net(2)).open().unwrap());
    let to = p.bob.local_addr();
    for i in 0..10 {
        // Larger than the limit; and several that fit one by one.
        for len in [1 << 20, 100_000, 100_000, 100_000, 100_000] {
            plain(p.alice.send_owned(pattern(i, len), to)).unwrap();
        }
        for len in [1 << 20, 100_000, 100_000, 100_000, 100_000] {
            assert!(message(&p.bob).0 == pattern(i, len));
        }
    }
    let info = p.a.snapshot().zero_copy;
    assert!(info.send.fallbacks.budget >= 10 && info.send.calls > 0, "{info:?}");
    assert!(info.pinned_bytes_max <= 300 << 10, "{info:?}");
    assert_eq!(info.pin_limit, Some(300 << 10));
}

#[test]
fn a_node_may_refuse_or_wait_where_the_pin_limit_is_reached() {
    for what in [WhenFull::Error, WhenFull::Wait] {
        let net = net();
        let silent = Silent::new(net(2));
        let a = builder(net(1))
            .zero_copy_send(Mode::On)
            .pin_limit(300 << 10)
            .when_pins_full(what)
            .pin_hold_limit(Duration::from_millis(300))
            .open()
            .unwrap();
        let alice = a.bind(1000).unwrap();
        alice.set_send_buffer(64 << 20);
        let to = (silent.address, 2000).into();
        let mut sent = 0;
        let full = loop {
            match alice.try_send_owned(vec![1; 65_536], to) {
                Ok(_) => sent += 1,
                Err((error, payload)) => {
                    assert_eq!(payload.len(), 65_536);
                    break error;
                }
            }
        };
        assert!((1..=4).contains(&sent), "{sent} times 18 pages fit into 75");
        alice.set_send_timeout(Some(Duration::from_millis(1)));
        let (blocking, payload) = alice.send_owned(vec![1; 65_536], to).unwrap_err();
        if what == WhenFull::Error {
            let limit = SendError::PinLimit { limit: 300 << 10 };
            assert_eq!((full, blocking), (TrySendError::Refused(limit), limit));
        } else {
            assert_eq!((full, blocking), (TrySendError::Full, SendError::TimedOut(Blocked::Pins)));
            // One larger than all that may be pinned is copied, however long one waits.
            plain(alice.try_send_owned(vec![1; 1 << 20], to)).unwrap();
        }
        // What is too large at any time is said to be.
        let error = plain(alice.try_send_owned(vec![1; (1 << 20) + 1], to)).unwrap_err();
        assert!(
            matches!(error, TrySendError::Refused(SendError::Refused(Refusal::TooLarge { .. }))),
            "{error}"
        );
        // Small ones are not concerned, and neither is the node itself.
        plain(alice.try_send_owned(vec![1; 100], to)).unwrap();
        plain(alice.try_send_owned(vec![1; 65_536], alice.local_addr())).unwrap();
        if what == WhenFull::Wait {
            // What is cancelled makes room.
            std::thread::scope(|scope| {
                alice.set_send_timeout(Some(LONG));
                let waits = scope.spawn(|| alice.send_owned(payload, to).map_err(|(error, _)| error));
                assert!(alice.cancel_sent_to(to) > 0);
                waits.join().unwrap().unwrap();
            });
        }
        silent.end();
    }
}

/// Asserts one `Released` and one end of each of `count` messages.
fn assert_all_ended(all: &[Completion], count: u64) {
    let mut seen: HashMap<u32, (u32, u32)> = HashMap::new();
    for completion in all {
        let seen = seen.entry(completion.cookie().0).or_default();
        match completion {
            Completion::Released { .. } => seen.0 += 1,
            _ => seen.1 += 1,
        }
    }
    assert!(seen.len() as u64 == count && seen.values().all(|s| *s == (1, 1)), "of {count}: {seen:?}");
}

#[test]
fn a_shutdown_ends_every_message_that_it_could_not_deliver() {
    let (a, alice, silent, store, count) = stuck(Duration::from_secs(30));
    // Some are with TCP, some have not begun, and these have nobody to go to.
    for i in 0..3 {
        plain(alice.send_owned(store.payload(i, 10), (silent.address, 2001).into())).unwrap();
    }
    let undelivered = a.shutdown(Duration::ZERO).undelivered;
    let mut all = Vec::new();
    alice.completions(&mut all);
    assert_all_ended(&all, count + 3);
    let cancelled = all.iter().filter(|c| matches!(c, Completion::Cancelled { .. })).count() as u64;
    assert!(undelivered > 0 && undelivered >= cancelled, "{undelivered} {all:?}");
    assert_eq!(store.out.load(SeqCst), 0);
    assert_eq!(a.shutdown(Duration::ZERO).undelivered, undelivered);
    silent.end();
}
