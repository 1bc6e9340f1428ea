//! The simulator's model of MSG_ZEROCOPY does what was measured of Linux: numbers, notifications, limits, ends.

use std::net::IpAddr;
use std::slice::from_ref;
use std::sync::Arc;

use rds_core::buffer::{Chunk, Owned};
use rds_tests::sim::memory::{Event as MemoryEvent, Payload, Process};
use rds_tests::sim::net::{
    End, Event, MS, Net, Notice, Phase, Read, Record, Refused, SEC, Ticket, Wire, ZeroCopy,
};

/// Two hosts and one connection between them, of which host 0 holds side 0.
struct Bench {
    net: Net,
    now: u64,
    end: End,
    process: Arc<Process>,
    number: usize,
}

impl Bench {
    fn new(kernel: ZeroCopy, receive_buffer: u64) -> Self {
        let wire = Wire { latency: MS, jitter: 0, send_buffer: 1 << 20, receive_buffer };
        let mut net = Net::new(fastrand::Rng::with_seed(7), wire);
        for last in 1..3 {
            net.add_host(IpAddr::from([10, 0, 0, last]));
        }
        net.set_zero_copy(0, kernel);
        let end = net.connect(0, 0, 1, None);
        let mut bench = Self { net, now: 0, end, process: Arc::default(), number: 0 };
        bench.run(SEC);
        assert!(bench.net.accept(end.peer()) && bench.net.phase(end) == Phase::Open);
        bench
    }

    /// Lets the net do what it does for so long.
    fn run(&mut self, for_how_long: u64) {
        let until = self.now + for_how_long;
        while let Some((at, event)) = self.net.queue.pop() {
            if at > until {
                self.net.queue.push(at, event);
                break;
            }
            self.now = at;
            if let Event::Net(event) = event {
                self.net.happen(at, event);
            }
        }
        self.now = until;
    }

    /// A payload, and the piece of a stream that it is.
    fn payload(&mut self, len: usize) -> Chunk {
        self.number += 1;
        let bytes = (0..len).map(|i| i as u8).collect();
        let payload: Payload = self.net.memory.allocate(&self.process, self.number, bytes, false);
        let Owned::Bytes(bytes) = Owned::new(payload) else { unreachable!() };
        Chunk::payload(bytes)
    }

    fn pin(&mut self, pieces: &[Chunk]) -> Result<(usize, Arc<Ticket>), Refused> {
        self.net.pin(self.now, self.end, pieces, usize::MAX)
    }

    /// Everything that the error queue has.
    fn reap(&mut self) -> Vec<Record> {
        std::iter::from_fn(|| self.net.reap(self.end)).collect()
    }

    fn broken(&mut self) -> Option<String> {
        let told = self.process.take_events().into_iter().find_map(|event| match event {
            MemoryEvent::Broken(text) => Some(text),
            _ => None,
        });
        self.net.broken.take().or(told)
    }
}

fn record(first: u32, last: u32, copied: bool) -> Record {
    Record { first, last, copied }
}

#[test]
fn each_call_that_takes_bytes_has_a_number_whatever_it_takes() {
    let mut b = Bench::new(ZeroCopy::default(), 1 << 20);
    let payload = b.payload(100_000);
    assert_eq!(b.net.pin(b.now, b.end, from_ref(&payload), 10).map(|r| r.0), Ok(10), "a short call");
    assert_eq!(b.net.write(b.now, b.end, &[payload.slice(10..20)], usize::MAX), 10, "no number");
    assert_eq!(b.pin(&[payload.slice(20..payload.len())]).map(|r| r.0), Ok(99_980));
    b.run(SEC);
    assert_eq!(b.reap(), [record(0, 1, false)], "merged");
    assert_eq!(b.net.pinned(0), 0);
}

#[test]
fn a_call_that_is_refused_has_no_number_and_no_charge() {
    let mut b = Bench::new(ZeroCopy { memlock: Some(100 << 12), ..ZeroCopy::default() }, 8 << 10);
    let large = b.payload(99 << 12);
    assert_eq!(b.pin(&[large]).map(|r| r.0), Err(Refused::Memlock), "101 pages");
    let fits = b.payload(98 << 12);
    assert_eq!(b.pin(from_ref(&fits)).map(|r| r.0), Ok(98 << 12));
    assert_eq!(b.net.pinned(0), 100);
    let one = b.payload(1);
    assert_eq!(b.pin(from_ref(&one)).map(|r| r.0), Err(Refused::Memlock));
    b.run(SEC);
    b.net.disconnect(b.now, b.end);
    assert_eq!(b.pin(&[one]).map(|r| r.0), Err(Refused::Broken));
    assert_eq!((b.reap(), b.net.pinned(0)), (vec![record(0, 0, false)], 0));
}

#[test]
fn a_full_send_buffer_is_no_want_of_memory() {
    let mut b = Bench::new(ZeroCopy::default(), 8 << 10);
    let payload = b.payload(2 << 20);
    assert_eq!(b.pin(from_ref(&payload)).map(|r| r.0), Ok(1 << 20));
    assert_eq!(b.pin(&[payload.slice(1 << 20..2 << 20)]).map(|r| r.0), Err(Refused::Full));
    assert_eq!(b.net.pinned(0), 514, "a short call is charged for all that it was offered");
}

#[test]
fn notifications_that_are_not_read_count_against_optmem_unless_they_merge() {
    let mut b = Bench::new(ZeroCopy { optmem: 3 * 832, ..ZeroCopy::default() }, 8 << 10);
    let payload = b.payload(30_000);
    for i in 0..3 {
        assert!(b.pin(&[payload.slice(i * 10_000..(i + 1) * 10_000)]).is_ok());
    }
    let more = b.payload(10);
    assert_eq!(b.pin(from_ref(&more)).map(|r| r.0), Err(Refused::Optmem));
    b.net.read(b.now, b.end.peer(), usize::MAX, &mut Vec::new());
    b.run(SEC);
    for _ in 0..3 {
        b.net.read(b.now, b.end.peer(), usize::MAX, &mut Vec::new());
        b.run(SEC);
    }
    assert!(b.pin(&[more]).is_ok(), "three that merged take the room of one");
    drop(payload);
}

#[test]
fn a_call_is_over_when_the_peers_tcp_has_it_read_or_not() {
    let mut b = Bench::new(ZeroCopy::default(), 1 << 20);
    let payload = b.payload(50_000);
    let (_, ticket) = b.pin(&[payload]).unwrap();
    b.net.notices.clear();
    b.run(SEC);
    assert_eq!(b.net.unread(b.end.peer()), 50_000);
    assert!(b.net.notices.contains(&(0, Notice::Errors(b.end))));
    assert!(!ticket.is_over(), "nobody has read it");
    b.reap();
    assert!(ticket.is_over());
}

#[test]
fn a_closed_window_holds_a_call_and_its_pages() {
    let mut b = Bench::new(ZeroCopy::default(), 8 << 10);
    let payload = b.payload(50_000);
    b.pin(from_ref(&payload)).unwrap();
    b.run(60 * SEC);
    assert_eq!((b.reap(), b.net.pinned(0)), (vec![], 14));
    // What is read from the memory is what lies there when the peer makes room.
    let mut got = Vec::new();
    while b.net.read(b.now, b.end.peer(), usize::MAX, &mut got) != Read::Nothing || got.len() < 50_000 {
        b.run(SEC);
    }
    assert_eq!(got, payload.to_vec());
    b.run(SEC);
    assert_eq!(b.reap(), [record(0, 0, false)]);
}

#[test]
fn a_buffer_that_is_free_too_early_is_found() {
    let mut b = Bench::new(ZeroCopy::default(), 8 << 10);
    let payload = b.payload(50_000);
    b.pin(&[payload]).unwrap();
    assert!(b.broken().is_some_and(|text| text.contains("free while 1 calls")));
    b.net.read(b.now, b.end.peer(), usize::MAX, &mut Vec::new());
    b.run(SEC);
    b.net.read(b.now, b.end.peer(), usize::MAX, &mut Vec::new());
    b.run(SEC);
    assert!(b.broken().is_some_and(|text| text.contains("the kernel transmits from the buffer")));
}

#[test]
fn copied_is_said_of_a_whole_notification() {
    let mut b = Bench::new(ZeroCopy { copies: 255, ..ZeroCopy::default() }, 1 << 20);
    for _ in 0..3 {
        let payload = b.payload(5000);
        b.pin(from_ref(&payload)).unwrap();
        b.run(SEC);
        drop(payload);
    }
    assert_eq!(b.reap(), [record(0, 2, true)]);
}

#[test]
fn calls_in_one_unsent_segment_share_a_notification() {
    let mut b = Bench::new(ZeroCopy { joins: 255, ..ZeroCopy::default() }, 8 << 10);
    let payload = b.payload(40_000);
    for i in 0..4 {
        b.pin(&[payload.slice(i * 10_000..(i + 1) * 10_000)]).unwrap();
    }
    assert_eq!(b.net.calls(b.end), 1);
    b.net.disconnect(b.now, b.end);
    assert_eq!(b.reap(), [record(0, 3, false)]);
}

#[test]
fn numbers_wrap_within_a_record() {
    let mut b = Bench::new(ZeroCopy { first_call: u32::MAX, ..ZeroCopy::default() }, 1 << 20);
    let payload = b.payload(2000);
    b.pin(&[payload.slice(0..1000)]).unwrap();
    b.pin(&[payload.slice(1000..2000)]).unwrap();
    b.run(SEC);
    assert_eq!(b.reap(), [record(u32::MAX, 0, false)]);
}

#[test]
fn a_reset_and_a_disconnect_end_all_calls_at_once_not_copied() {
    for disconnect in [false, true] {
        let mut b = Bench::new(ZeroCopy { copies: 255, ..ZeroCopy::default() }, 8 << 10);
        let payload = b.payload(50_000);
        b.pin(&[payload]).unwrap();
        let _ = b.broken();
        if disconnect {
            b.net.disconnect(b.now, b.end);
        } else {
            b.net.inject_rst(b.now, b.end);
        }
        assert_eq!(b.reap(), [record(0, 0, false)]);
        assert_eq!(b.net.pinned(0), 0);
        b.net.close(b.now, b.end);
        assert_eq!(b.broken(), None);
    }
}

#[test]
fn a_socket_that_is_closed_with_calls_outstanding_goes_on_sending_and_never_tells() {
    let mut b = Bench::new(ZeroCopy::default(), 8 << 10);
    let payload = b.payload(20_000);
    b.pin(from_ref(&payload)).unwrap();
    b.net.close(b.now, b.end);
    assert!(b.broken().is_some_and(|text| text.contains("1 notifications")));
    let mut got = Vec::new();
    for _ in 0..10 {
        b.net.read(b.now, b.end.peer(), usize::MAX, &mut got);
        b.run(SEC);
    }
    assert_eq!(got, payload.to_vec(), "still sent");
    assert_eq!((b.reap(), b.net.pinned(0)), (vec![], 0));
}

#[test]
fn another_process_of_the_user_counts_as_well() {
    let mut b = Bench::new(ZeroCopy { memlock: Some(64 << 12), ..ZeroCopy::default() }, 1 << 20);
    let payload = b.payload(1000);
    b.net.lock_elsewhere(0, 63);
    assert_eq!(b.pin(from_ref(&payload)).map(|r| r.0), Err(Refused::Memlock));
    b.net.lock_elsewhere(0, 0);
    assert!(b.pin(&[payload]).is_ok());
    let _ = b.broken();
}
