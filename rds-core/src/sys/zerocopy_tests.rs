use std::collections::BTreeSet;
use std::io::Read;
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::super::error_queue::ErrorQueue;
use super::super::testing::{ADDRESS, pair_at, poll};
use super::*;

/// What the error queue of a sender said so far, and what it still holds.
struct Sender {
    stream: TcpStream,
    queue: ErrorQueue,
    gather: Gather,
    held: Vec<Held<Bytes>>,
    back: BTreeSet<u32>,
    not_copied: usize,
    records: usize,
}

impl Sender {
    fn new(address: IpAddr) -> (Self, TcpStream) {
        let (stream, peer) = pair_at(address);
        assert!(enable(stream.as_fd()).unwrap());
        let sender = Self {
            stream,
            queue: ErrorQueue::new(),
            gather: Gather::default(),
            held: Vec::new(),
            back: BTreeSet::new(),
            not_copied: 0,
            records: 0,
        };
        (sender, peer)
    }

    fn send(&mut self, pieces: &[Bytes]) -> io::Result<usize> {
        self.send_ending(pieces, Ending::default())
    }

    fn send_ending(&mut self, pieces: &[Bytes], ending: Ending) -> io::Result<usize> {
        match send_pinned(self.stream.as_fd(), pieces.to_vec(), ending, &mut self.gather) {
            Ok((n, held)) => {
                assert_eq!(held.pieces(), pieces);
                self.held.push(held);
                Ok(n)
            }
            Err(refused) => {
                assert_eq!(refused.pieces, pieces);
                refused.error.map_or(Ok(0), Err)
            }
        }
    }

    fn drain(&mut self) -> usize {
        let Self { stream, queue, back, not_copied, .. } = self;
        let n = queue.drain(stream.as_fd(), |first, last, copied| {
            for id in first..=last {
                assert!(back.insert(id), "{id} came twice");
            }
            *not_copied += if copied { 0 } else { (last - first + 1) as usize };
        });
        self.records += n.unwrap();
        assert_eq!(queue.truncated(), 0);
        self.back.len()
    }

    /// Waits until as many numbers are back as calls took something.
    fn drain_all(&mut self) {
        while self.drain() < self.held.len() {
            assert!(poll(&self.stream, 0, -1));
        }
        let expected = u32::try_from(self.held.len()).unwrap();
        assert_eq!(self.back, (0..expected).collect(), "one number a call, from 0 on");
        self.held.drain(..).for_each(|held| drop(held.release()));
        let Self { stream, queue, .. } = self;
        assert_eq!(queue.drain(stream.as_fd(), |_, _, _| ()).unwrap_or(1), 0, "nothing is left in the queue");
    }
}

fn bytes(len: usize) -> Bytes {
    (0..len).map(|i| u8::try_from(i % 251).unwrap()).collect::<Vec<_>>().into()
}

/// What follows starts a segment buffer of its own.
const RECORD: Ending = Ending { record: true, more: false };

/// Sends, copying, until the peer's window, which does not read, is closed for sure, and returns how many bytes that took:
/// whatever is sent then stays in the send buffer, which has room for more.
fn close_window(sender: &mut Sender) -> usize {
    const ENOUGH: u64 = 1 << 20;
    let chunk = [bytes(64 << 10)];
    let mut filled = 0;
    while super::super::unacknowledged(sender.stream.as_fd()).unwrap() < ENOUGH {
        filled += send(sender.stream.as_fd(), &chunk, Ending::default(), &mut sender.gather).unwrap();
    }
    filled
}

/// Reads in a thread until the end; returns what it read.
fn reader(mut peer: TcpStream) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut got = Vec::new();
        let _ = peer.read_to_end(&mut got);
        got
    })
}

#[test]
fn every_call_that_takes_bytes_has_one_number_and_loopback_copies() {
    for address in [ADDRESS, IpAddr::from(Ipv6Addr::LOCALHOST)] {
        if let Err(error) = TcpListener::bind((address, 0)) {
            println!("skipped: no {address} here: {error}");
            continue;
        }
        let (mut sender, peer) = Sender::new(address);
        let reader = reader(peer);
        let mut sent = Vec::new();
        for len in [1, 48, 4096, 4097, 10_000, 1, 20_480] {
            let pieces = [bytes(len), bytes(len / 2)];
            assert_eq!(sender.send(&pieces).unwrap(), len + len / 2);
            pieces.iter().for_each(|p| sent.extend_from_slice(p));
        }
        sender.drain_all();
        assert_eq!((sender.back.len(), sender.not_copied), (7, 0));
        drop(sender);
        assert_eq!(reader.join().unwrap(), sent);
    }
}

#[test]
fn calls_that_take_nothing_have_no_number() {
    let (mut sender, peer) = Sender::new(ADDRESS);
    assert_eq!(sender.send(&[]).unwrap(), 0);
    assert_eq!(sender.send(&[Bytes::new(), Bytes::new()]).unwrap(), 0);
    let error = sender.send(&vec![bytes(1); MAX_PIECES + 1]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    // Each piece is charged a page of the send buffer, so not all may fit.
    assert!((1..=MAX_PIECES).contains(&sender.send(&vec![bytes(1); MAX_PIECES]).unwrap()));
    let chunk = bytes(1 << 20);
    // The peer does not read.
    let full = loop {
        if let Err(error) = sender.send(std::slice::from_ref(&chunk)) {
            break error;
        }
    };
    assert_eq!(full.kind(), io::ErrorKind::WouldBlock, "of a blocking socket");
    sender.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(sender.send(&[bytes(10)]).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    let reader = reader(peer);
    sender.drain_all();
    reader.join().unwrap();
}

#[test]
fn calls_that_copy_have_no_number() {
    let (mut sender, peer) = Sender::new(ADDRESS);
    let reader = reader(peer);
    for _ in 0..3 {
        let pieces = [bytes(9), bytes(100)];
        assert_eq!(send(sender.stream.as_fd(), &pieces, Ending::default(), &mut sender.gather).unwrap(), 109);
        assert_eq!(sender.send(&pieces).unwrap(), 109);
    }
    sender.drain_all();
    assert_eq!(sender.back.len(), 3);
    drop(sender);
    assert_eq!(reader.join().unwrap(), [&bytes(9)[..], &bytes(100)].concat().repeat(6));
}

#[test]
fn a_call_that_took_a_part_has_one_number() {
    let (mut sender, peer) = Sender::new(ADDRESS);
    let payload = bytes(64 << 20);
    let mut partial = 0;
    let reader = reader(peer);
    let mut rest = payload.clone();
    while !rest.is_empty() {
        match sender.send(&[rest.clone()]) {
            Ok(n) => {
                partial += usize::from(n < rest.len());
                rest = rest.slice(n..);
            }
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                assert!(poll(&sender.stream, libc::POLLOUT, -1));
                sender.drain();
            }
        }
    }
    assert!(partial > 0, "64 MiB do not fit into a send buffer");
    sender.stream.shutdown(Shutdown::Write).unwrap();
    sender.drain_all();
    assert!(reader.join().unwrap() == payload);
}

#[test]
fn ranges_are_merged() {
    const CALLS: usize = 200;
    let (mut sender, peer) = Sender::new(ADDRESS);
    let reader = reader(peer);
    for _ in 0..CALLS {
        assert_eq!(sender.send(&[bytes(100)]).unwrap(), 100);
    }
    // Not drained before everything has arrived.
    while super::super::unacknowledged(sender.stream.as_fd()).unwrap() > 0 {
        std::thread::yield_now();
    }
    sender.drain_all();
    assert!(sender.records < CALLS / 4, "{} records", sender.records);
    drop(sender);
    assert_eq!(reader.join().unwrap().len(), 100 * CALLS);
}

#[test]
fn a_disconnect_returns_what_a_closed_window_held_and_not_copied() {
    let (mut sender, peer) = Sender::new(ADDRESS);
    let freed = Arc::new(AtomicUsize::new(0));
    struct Payload(Vec<u8>, Arc<AtomicUsize>);
    impl AsRef<[u8]> for Payload {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Payload {
        fn drop(&mut self) {
            self.1.fetch_add(1, SeqCst);
        }
    }
    close_window(&mut sender);
    let mut calls = 0;
    loop {
        let payload = Bytes::from_owner(Payload(vec![7; 64 << 10], Arc::clone(&freed)));
        match sender.send(&[payload]) {
            Ok(_) => calls += 1,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(calls > 1);
    assert_eq!(sender.drain(), 0, "the window is closed");
    assert_eq!(freed.load(SeqCst), 1, "that of the call that took nothing");
    disconnect(sender.stream.as_fd()).unwrap();
    // Without waiting.
    assert_eq!((sender.drain(), sender.not_copied), (calls, calls));
    sender.drain_all();
    assert_eq!(freed.load(SeqCst), calls + 1);
    drop(peer);
}

#[test]
fn a_reset_by_the_peer_returns_everything() {
    let (mut sender, peer) = Sender::new(ADDRESS);
    close_window(&mut sender);
    let calls = (0..10).map(|_| sender.send(&[bytes(1000)]).unwrap()).count();
    // It has unread data, so its end is a reset.
    drop(peer);
    sender.drain_all();
    assert_eq!(sender.not_copied, calls);
    let error = sender.send(&[bytes(1)]).unwrap_err();
    assert!(matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe), "{error}");
}

#[test]
fn a_merged_range_says_of_its_first_number_whether_it_was_copied() {
    let (mut sender, peer) = Sender::new(ADDRESS);
    sender.send(&[bytes(1000)]).unwrap();
    // Copied, and reported, before anything else is.
    while super::super::unacknowledged(sender.stream.as_fd()).unwrap() > 0 {
        std::thread::yield_now();
    }
    close_window(&mut sender);
    sender.send(&[bytes(1000)]).unwrap();
    disconnect(sender.stream.as_fd()).unwrap();
    sender.drain_all();
    assert_eq!((sender.records, sender.not_copied), (1, 0), "the second was not copied");
    drop(peer);
}

#[test]
fn numbers_go_on_after_a_disconnect() {
    let (mut sender, peer) = Sender::new(ADDRESS);
    sender.send(&[bytes(1)]).unwrap();
    disconnect(sender.stream.as_fd()).unwrap();
    let listener = TcpListener::bind((ADDRESS, 0)).unwrap();
    socket2::SockRef::from(&sender.stream).connect(&listener.local_addr().unwrap().into()).unwrap();
    let second = listener.accept().unwrap().0;
    sender.send(&[bytes(2)]).unwrap();
    sender.drain_all();
    drop((peer, second));
}

#[test]
fn what_is_held_lives_until_it_is_released() {
    let memory = Arc::new([1_u8; 100]);
    struct Shared(Arc<[u8; 100]>);
    impl AsRef<[u8]> for Shared {
        fn as_ref(&self) -> &[u8] {
            &*self.0
        }
    }
    let (stream, _peer) = pair_at(ADDRESS);
    assert!(enable(stream.as_fd()).unwrap());
    let piece = Bytes::from_owner(Shared(Arc::clone(&memory)));
    let (n, held) =
        send_pinned(stream.as_fd(), vec![piece.clone()], Ending::default(), &mut Gather::default()).unwrap();
    assert_eq!(n, 100);
    drop(piece);
    assert_eq!(Arc::strong_count(&memory), 2);
    drop(held.release());
    assert_eq!(Arc::strong_count(&memory), 1);
    let piece = Bytes::from_owner(Shared(Arc::clone(&memory)));
    drop(send_pinned(stream.as_fd(), vec![piece], Ending::default(), &mut Gather::default()).unwrap());
    assert_eq!(Arc::strong_count(&memory), 2, "never freed rather than too early");
}

#[test]
fn the_bytes_on_the_wire_are_read_after_the_call() {
    use std::sync::atomic::AtomicU8;
    /// What [`Pinned`] forbids: memory that changes.
    #[derive(Debug)]
    struct Changing(Arc<[AtomicU8; 4096]>);
    // SAFETY: the array lives as long as the value. Atomics may change while they are read, and nothing but the kernel reads these.
    unsafe impl Source for Changing {
        fn part(&self) -> Part {
            Part { at: self.0.as_ptr().cast(), len: self.0.len() }
        }
    }
    // SAFETY: as above.
    unsafe impl Pinned for Changing {}
    let (mut sender, mut peer) = Sender::new(ADDRESS);
    // Close the window, so that what follows stays here.
    let before = close_window(&mut sender);
    let memory = Arc::new(std::array::from_fn(|_| AtomicU8::new(1)));
    let changing = vec![Changing(Arc::clone(&memory))];
    let (n, held) = send_pinned(sender.stream.as_fd(), changing, RECORD, &mut sender.gather).unwrap();
    memory.iter().for_each(|byte| byte.store(2, SeqCst));
    let mut skipped = vec![0; before];
    peer.read_exact(&mut skipped).unwrap();
    let mut got = vec![0; n];
    peer.read_exact(&mut got).unwrap();
    assert!(got.iter().all(|&b| b == 2), "the kernel reads the memory when it sends, not when it is called");
    drop(held.release());
}

#[test]
fn a_record_starts_a_new_segment_buffer() {
    // Seen by the segments of data that go out: two records make two, two calls without make one once they wait together.
    let segments = |ending: Ending| {
        let (mut sender, mut peer) = Sender::new(ADDRESS);
        let filled = close_window(&mut sender);
        let extra: usize = (0..50).map(|_| sender.send_ending(&[bytes(10)], ending).unwrap()).sum();
        let before = segments_in(&peer);
        let mut all = vec![0; filled + extra];
        peer.read_exact(&mut all).unwrap();
        segments_in(&peer) - before
    };
    let (merged, apart) = (segments(Ending::default()), segments(RECORD));
    assert!(apart >= merged + 40, "{apart} and {merged} segments");
}

/// tcpi_data_segs_in of TCP_INFO.
fn segments_in(socket: &TcpStream) -> u32 {
    let info = option::get::<40>(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO).unwrap();
    info[38]
}

#[test]
fn sockets_that_cannot_say_so() {
    let (unix, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(!enable(unix.as_fd()).unwrap());
    assert!(enable(UdpSocket::bind((ADDRESS, 0)).unwrap().as_fd()).unwrap());
    assert!(enable(std::fs::File::open("/dev/null").unwrap().as_fd()).is_err());
}

#[test]
fn memory_for_gathering_is_used_again() {
    let pieces = vec![bytes(3); 100];
    let (mut sender, _peer) = Sender::new(ADDRESS);
    sender.gather = Gather::with_capacity(100);
    for _ in 0..3 {
        let counted = allocation_counter::measure(|| {
            let n = send(sender.stream.as_fd(), &pieces, Ending::default(), &mut sender.gather).unwrap();
            assert_eq!(n, 300);
        });
        assert_eq!((counted.count_total, sender.gather.capacity()), (0, 100));
    }
}
