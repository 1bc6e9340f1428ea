//! What a message costs the allocator, once everything is warm. Counts those of the test's own thread, which sends, transmits, polls and
//! receives.

mod common;

use common::{LONG, message_into, pair};
use rds_client::{Event, Mode};

/// Allocations for each message of so many bytes, sent and received by this thread.
fn allocations(len: usize) -> f64 {
    const COUNT: u32 = 5000;
    let p = pair();
    let (to, back) = (p.bob.local_addr(), p.alice.local_addr());
    let (payload, mut buffer) = (vec![7; len], vec![0; len]);
    let mut exchange = |count: u32| {
        for _ in 0..count {
            p.alice.send_to(&payload, to).unwrap();
            message_into(&p.bob, &mut buffer);
            p.bob.send_to(&payload, back).unwrap();
            message_into(&p.alice, &mut buffer);
        }
    };
    exchange(COUNT);
    let found = allocation_counter::measure(|| exchange(COUNT));
    found.count_total as f64 / f64::from(2 * COUNT)
}

#[test]
fn messages_that_are_copied_cost_no_allocation_each() {
    for len in [0, 64, 1000] {
        let each = allocations(len);
        assert!(each < 0.1, "{len} bytes: {each} allocations a message");
    }
}

#[test]
fn pool_buffers_sent_and_leased_cost_no_allocation_each() {
    const COUNT: u32 = 2000;
    for (len, mode) in [4096, 65_536, 1 << 20].into_iter().flat_map(|len| [(len, Mode::Off), (len, Mode::On)])
    {
        let p = pair();
        p.alice.set_zero_copy_send(mode);
        let to = p.bob.local_addr();
        let mut ends = Vec::new();
        let mut exchange = |count: u32| {
            for _ in 0..count {
                p.alice.send_owned(p.a.buffer(len), to).unwrap();
                let Event::Message(message) = p.bob.recv_lease().unwrap() else {
                    panic!("a message was expected")
                };
                assert_eq!(message.payload.len(), len);
                drop(message);
                // Both ends of the message, so that nothing is under way when the next begins.
                while ends.len() < 2 {
                    p.alice.wait_completions(&mut ends, Some(LONG));
                }
                ends.clear();
            }
        };
        exchange(COUNT);
        let found = allocation_counter::measure(|| exchange(COUNT));
        let each = found.count_total as f64 / f64::from(COUNT);
        // Two references that go at the very same moment make the pool forget one box.
        assert!(each < 0.1, "{len} bytes, zero copy {mode}: {each} allocations a message");
        let calls = p.a.snapshot().zero_copy.send.calls;
        assert!(if mode == Mode::On { calls >= u64::from(COUNT) } else { calls == 0 }, "{calls} calls");
    }
}
