//! What a message costs the allocator, once everything is warm. Counts those of the test's own thread, which sends, transmits, polls and
//! receives.

mod common;

use common::{message_into, pair};

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
