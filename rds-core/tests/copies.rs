//! What payloads cost between a client's memory and another's: bytes of send and receive calls, and copies from and to shared memory.
//! One test, since those are counted for the whole process.

mod client;

use std::sync::Arc;

use client::{Client, Pair, Way, counter, engine};
use rds_core::attach::{Span, copied, count_copies};
use rds_core::info::Counter;
use rds_core::proto::Payload;
use rds_core::zerocopy::Mode;

/// Bytes of calls and copies, a payload byte, with at most `ahead` messages on their way.
fn copies(pair: &Pair, len: usize, messages: u64, ahead: u64) -> f64 {
    let calls = || {
        let received = counter(pair.to.engine(), Counter::TcpBytesReceived);
        counter(pair.from.engine(), Counter::TcpBytesSent) + received
    };
    let span = pair.a.payload(64, len, 7);
    let mut placed = 0;
    let mut go = |cookies: std::ops::Range<u64>| {
        let mut sent = cookies.start;
        for cookie in cookies.clone() {
            while sent < cookies.end.min(cookie + ahead) {
                pair.send(pair.a.lend(&span, sent as u32, None), sent).unwrap();
                sent += 1;
            }
            let got = pair.b.take_lease();
            assert_eq!(got.len(), len);
            placed += u64::from(got.way == Way::Placed);
            pair.b.give(got);
            pair.consumed(len, 1);
        }
        drop(pair.a.wait("the ends", |s| s.ended.len() as u64 >= cookies.end));
    };
    // Who has read everything there is once reads exactly then.
    go(0..8);
    count_copies();
    let before = (calls(), copied());
    go(8..8 + messages);
    let after = (calls(), copied());
    let payload = (len as u64 * messages) as f64;
    println!(
        "{len} bytes, {ahead} ahead: {:.4} in calls, {:.4} in copies, a payload byte",
        (after.0 - before.0) as f64 / payload,
        (after.1 - before.1) as f64 / payload
    );
    assert!(placed >= messages, "read straight into the client's memory: {placed}");
    (after.0 + after.1 - before.0 - before.1) as f64 / payload
}

#[test]
fn a_large_message_costs_one_copy_a_side_and_one_between_neighbours() {
    let mut net = 10;
    for (len, most) in [(16 << 10, 2.03), (64 << 10, 2.01), (1 << 20, 2.01)] {
        for mode in [Mode::Off, Mode::On] {
            // One after the other, and one behind the other.
            for ahead in [1, 6] {
                let pair = Pair::new(net, mode);
                net += 1;
                let copies = copies(&pair, len, 64, ahead);
                assert!(
                    (2.0..most).contains(&copies),
                    "{copies} copies of {len} bytes, {ahead} ahead, {mode:?}"
                );
            }
        }
    }
    neighbours();
}

/// Between two clients of one node.
fn neighbours() {
    let node = engine(9, 1, Mode::On, |_| ());
    let (a, b) = (Client::new(1), Client::new(4));
    let from = node.bind_sink(10, Arc::clone(&a) as _).unwrap();
    let to = node.bind_sink(20, Arc::clone(&b) as _).unwrap();
    for len in [100_usize, 5000, 64 << 10, 1 << 20] {
        let span = a.payload(0, len, 3);
        for lent in [true, false] {
            let before = copied();
            let payload = if lent { a.lend(&span, len as u32, None) } else { Payload::Shared(&span) };
            node.batch(|batch| batch.send(&from, to.local_addr(), payload, None)).unwrap();
            assert_eq!(copied() - before, len as u64, "one copy of {len} bytes");
            let got = b.take_lease();
            assert_eq!(got.span.as_ref().map(Span::len), Some(len));
            b.give(got);
            node.batch(|batch| batch.consumed(&to, len as u64, 1));
        }
    }
}
