//! In steady state nothing of the logic allocates.

use std::sync::Arc;
use std::time::Duration;

use rds_core::proto::Time;
use rds_core::zerocopy::{
    Budget, MapController, Mode, Piece, SendController, Share, SharedLedger, next_call,
};

const LEN: usize = 65536;

#[test]
fn a_message_costs_no_allocation_in_steady_state() {
    let ledger = SharedLedger::new();
    let share = Share::new(&Arc::new(Budget::new(1536)));
    let mut send = SendController::new(Mode::Auto, false);
    let mut map = MapController::new(Mode::Auto, false);
    let mut out = Vec::new();
    let run = [Piece { len: 48, pinnable: false }, Piece { len: LEN, pinnable: true }];
    let mut id = 0_u32;
    let mut messages = |n: u64| {
        for i in 0..n {
            let now = Time::from_nanos(i * 1000);
            let choice = send.choose(now, LEN);
            let call = next_call(&run, 16);
            assert!(call.end_record && share.try_reserve(18).is_ok());
            assert!(ledger.begin(now, 18) && ledger.commit(i).is_none());
            if choice.measure {
                send.sample(now, LEN, choice.pin, Duration::from_nanos(5000 + i % 1000));
            }
            let mapped = map.choose(now, LEN, true);
            if mapped {
                map.mapped(now, LEN, true, map.measure().then_some(Duration::from_nanos(4000 + i % 1000)));
            } else {
                map.copied(now, LEN, map.measure().then_some(Duration::from_nanos(5000 + i % 1000)));
            }
            id = id.wrapping_add(1);
            if i % 32 == 31 {
                let n = ledger.notified(now, id.wrapping_sub(32), id.wrapping_sub(1), false, &mut out);
                assert_eq!(n.ids, 32);
                send.completed(now, 32, false, n.oldest_lag);
                for released in out.drain(..) {
                    share.release(released.pages);
                }
            }
        }
    };
    messages(3200);
    let found = allocation_counter::measure(|| messages(32_000));
    assert_eq!(found.count_total, 0, "{found:?}");
}
