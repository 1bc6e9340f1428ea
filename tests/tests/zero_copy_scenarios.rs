//! Zero-copy sending between two hosts, one promise each: the writer that the engine uses, over a model of the kernel's
//! MSG_ZEROCOPY. The model reads what was pinned whenever it transmits, so a buffer that is free too early breaks every one of them.

use rds_core::proto::{Guarantee, Outcome, SocketId};
use rds_core::zerocopy::{Mode, WhenFull};
use rds_tests::sim::coverage::Seen;
use rds_tests::sim::net::{MS, SEC, ZeroCopy};
use rds_tests::sim::own::Sending;
use rds_tests::sim::pair::{LARGE, Pair, SMALL};
use rds_tests::sim::world::{Host, OwnSpec};

const DELIVERED: Outcome = Outcome::Delivered(Guarantee::Application);
/// Payload bytes of a message that is worth pinning, and the pages of a call that carries it.
const LEN: usize = 64 << 10;
const PAGES: u64 = 18;

/// Two hosts of which the smaller one pins every payload, under a kernel of that kind; and a socket on each.
fn pair(kernel: ZeroCopy) -> (Pair, SocketId, SocketId) {
    pair_over(kernel, 1 << 20, 1 << 20)
}

fn pair_over(kernel: ZeroCopy, send_buffer: u64, receive_buffer: u64) -> (Pair, SocketId, SocketId) {
    let sending = Sending { mode: Mode::On, when_full: WhenFull::Copy, lends: 255, kernel };
    let mut pair = Pair::with(OwnSpec { sending, ..OwnSpec::default() }, OwnSpec::default());
    let wire = &mut pair.world.cx.net.wire;
    (wire.send_buffer, wire.receive_buffer) = (send_buffer, receive_buffer);
    let (a, b) = (pair.bind(SMALL, 4000), pair.bind(LARGE, 4001));
    // The connection stands.
    let first = pair.send(SMALL, a, (LARGE, 4001), 10);
    pair.end(first);
    (pair, a, b)
}

/// A pair with small TCP buffers: the window closes at once when the receiver stands still, and messages gather.
fn narrow_pair(kernel: ZeroCopy) -> (Pair, SocketId, SocketId) {
    pair_over(kernel, 128 << 10, 8 << 10)
}

fn send(pair: &mut Pair, from: SocketId, len: usize) -> usize {
    pair.send(SMALL, from, (LARGE, 4001), len)
}

fn stand_still(pair: &mut Pair, host: usize, for_how_long: u64) {
    pair.world.own(host).frozen_until = pair.world.cx.now + for_how_long;
}

fn pinned(pair: &mut Pair) -> u64 {
    pair.world.own(SMALL).pinned()
}

/// What the node said about a message's buffer: nothing yet, or whether anything of it was copied.
fn released(pair: &Pair, id: usize) -> Option<bool> {
    pair.world.cx.ledger.messages[id].released
}

fn wait_released(pair: &mut Pair, id: usize) -> bool {
    pair.world.run_until("the buffer's release", 100 * SEC, |w| w.cx.ledger.messages[id].released.is_some());
    released(pair, id).expect("waited for it")
}

/// Everything has ended: no message, buffer or page is left.
fn settle(pair: &mut Pair) {
    pair.world.run_for(5 * SEC);
    pair.settle();
    let Pair { world } = pair;
    let Host::Own(own) = &world.hosts[SMALL] else { unreachable!() };
    assert_eq!(own.all_released(&world.cx), Ok(()));
    assert_eq!(world.cx.net.pinned(SMALL), 0, "the kernel holds nothing");
}

#[test]
fn a_payload_is_sent_from_where_it_lies() {
    let (mut pair, a, _b) = pair(ZeroCopy::default());
    let id = send(&mut pair, a, LEN);
    assert_eq!(pinned(&mut pair), PAGES);
    assert_eq!(pair.end(id), DELIVERED);
    assert!(!wait_released(&mut pair, id), "nothing was copied");
    settle(&mut pair);
}

#[test]
fn a_small_payload_is_copied() {
    let (mut pair, a, _b) = pair(ZeroCopy::default());
    let id = send(&mut pair, a, 2000);
    assert_eq!(pinned(&mut pair), 0);
    assert!(wait_released(&mut pair, id));
    settle(&mut pair);
}

#[test]
fn a_program_hears_that_the_kernel_copied_after_all() {
    let (mut pair, a, _b) = pair(ZeroCopy { copies: 255, ..ZeroCopy::default() });
    let id = send(&mut pair, a, LEN);
    assert_eq!(pinned(&mut pair), PAGES);
    assert!(wait_released(&mut pair, id), "it was copied");
    settle(&mut pair);
}

#[test]
fn a_delivered_message_keeps_its_buffer_until_the_kernel_lets_go() {
    let (mut pair, a, _b) = pair(ZeroCopy { late: 40 * SEC, ..ZeroCopy::default() });
    let ids: Vec<usize> = (0..8).map(|_| send(&mut pair, a, LEN)).collect();
    for id in &ids {
        assert_eq!(pair.end(*id), DELIVERED);
    }
    assert!(ids.iter().filter(|id| released(&pair, **id).is_none()).count() >= 4);
    for id in ids {
        wait_released(&mut pair, id);
    }
    settle(&mut pair);
}

#[test]
fn a_notified_message_keeps_its_buffer_until_the_peers_node_has_it() {
    let (mut pair, a, _b) = pair(ZeroCopy::default());
    stand_still(&mut pair, LARGE, 5 * SEC);
    let id = send(&mut pair, a, LEN);
    pair.world.run_until("notification", SEC, |w| w.cx.net.pinned(SMALL) == 0);
    pair.world.run_for(SEC);
    assert_eq!((pinned(&mut pair), released(&pair, id)), (0, None), "it may have to be sent again");
    assert_eq!(pair.end(id), DELIVERED);
    assert!(!wait_released(&mut pair, id));
    settle(&mut pair);
}

#[test]
fn a_message_of_many_calls_is_released_after_all_of_them() {
    // The send buffer takes a piece of the message at a time: each is a call of its own.
    let (mut pair, a, _b) = narrow_pair(ZeroCopy { late: 100 * MS, ..ZeroCopy::default() });
    pair.world.own(SMALL).temper.partial = 255;
    let ids: Vec<usize> = (0..4).map(|_| send(&mut pair, a, 4 * LEN)).collect();
    for id in ids {
        assert_eq!(pair.end(id), DELIVERED);
        assert!(!wait_released(&mut pair, id));
    }
    settle(&mut pair);
    assert!(pair.world.cx.net.met.partial > 8, "{:?}", pair.world.cx.net.met);
    assert!(pair.world.cx.net.met.unordered > 0, "{:?}", pair.world.cx.net.met);
}

#[test]
fn the_next_header_rides_along_and_stays_as_it_is() {
    let (mut pair, a, _b) = narrow_pair(ZeroCopy::default());
    stand_still(&mut pair, LARGE, 2 * SEC);
    // More than the send buffer takes: the rest gathers.
    let ids: Vec<usize> = (0..40).map(|_| send(&mut pair, a, 8 << 10)).collect();
    for id in ids {
        assert_eq!(pair.end(id), DELIVERED);
        assert!(!wait_released(&mut pair, id));
    }
    assert!(pair.seen(Seen::HeaderPinned) > 0);
    settle(&mut pair);
}

#[test]
fn pages_are_sent_again_from_the_same_memory() {
    let (mut pair, a, _b) = pair(ZeroCopy::default());
    let now = pair.world.cx.now;
    pair.world.cx.net.cut(now, SMALL, LARGE);
    let id = send(&mut pair, a, LEN);
    pair.world.run_for(5 * SEC);
    assert_eq!((pinned(&mut pair), released(&pair, id)), (PAGES, None));
    let now = pair.world.cx.now;
    pair.world.cx.net.heal(now, SMALL, LARGE);
    assert_eq!(pair.end(id), DELIVERED);
    assert!(!wait_released(&mut pair, id));
    assert!(pair.world.cx.net.met.again > 0);
    settle(&mut pair);
}

#[test]
fn a_reset_ends_the_calls_at_once_and_not_the_message() {
    let (mut pair, a, _b) = narrow_pair(ZeroCopy::default());
    stand_still(&mut pair, LARGE, 2 * SEC);
    let id = send(&mut pair, a, LEN);
    pair.world.run_for(SEC / 2);
    assert_eq!(pinned(&mut pair), PAGES);
    pair.reset_at(&[SMALL, LARGE]);
    pair.world.run_until("end of the calls", SEC, |w| w.own(SMALL).pinned() == 0);
    assert_eq!(released(&pair, id), None, "it is to be sent again");
    assert_eq!(pair.end(id), DELIVERED);
    assert!(!wait_released(&mut pair, id), "neither time was it copied");
    assert!(pair.seen(Seen::Retransmitted) > 0);
    settle(&mut pair);
}

#[test]
fn a_peer_that_never_reads_cannot_hold_pages_for_ever() {
    let (mut pair, a, _b) = narrow_pair(ZeroCopy::default());
    stand_still(&mut pair, LARGE, 90 * SEC);
    let ids: Vec<usize> = (0..4).map(|_| send(&mut pair, a, LEN)).collect();
    pair.world.run_for(20 * SEC);
    assert!(pinned(&mut pair) >= PAGES);
    // What the new connection could pin it does not get to: the peer has not said hello on it.
    pair.world.run_for(40 * SEC);
    assert_eq!(
        (pinned(&mut pair), pair.world.cx.net.pinned(SMALL)),
        (0, 0),
        "with its window closed for 60 s"
    );
    assert!(pair.seen(Seen::PinOverdue) > 0);
    assert!(ids.iter().all(|id| released(&pair, *id).is_none()), "they are still to be sent");
    pair.world.run_for(40 * SEC);
    for id in ids {
        assert_eq!(pair.end(id), DELIVERED, "nothing is lost");
        wait_released(&mut pair, id);
    }
    settle(&mut pair);
}

#[test]
fn a_process_that_stood_still_does_not_blame_its_peer() {
    let (mut pair, a, _b) = pair(ZeroCopy::default());
    let id = send(&mut pair, a, LEN);
    stand_still(&mut pair, SMALL, 60 * SEC);
    pair.world.run_for(61 * SEC);
    assert_eq!(pair.end(id), DELIVERED);
    assert_eq!(pair.seen(Seen::PinOverdue), 0, "the notifications had come long ago");
    settle(&mut pair);
}

#[test]
fn a_cancelled_message_keeps_its_buffer_until_the_kernel_lets_go() {
    let (mut pair, a, _b) = narrow_pair(ZeroCopy::default());
    stand_still(&mut pair, LARGE, 3 * SEC);
    let id = send(&mut pair, a, LEN);
    pair.world.run_for(SEC);
    let Pair { world } = &mut pair;
    let Host::Own(own) = &mut world.hosts[SMALL] else { unreachable!() };
    own.cancel(&mut world.cx, a, None);
    world.settle_calls(SMALL);
    assert_eq!(pair.end(id), Outcome::Cancelled);
    pair.world.run_for(SEC);
    assert_eq!((pinned(&mut pair), released(&pair, id)), (PAGES, None), "half of it is on its way");
    wait_released(&mut pair, id);
    settle(&mut pair);
}

#[test]
fn a_closed_socket_gives_its_buffers_back() {
    let (mut pair, a, _b) = narrow_pair(ZeroCopy::default());
    stand_still(&mut pair, LARGE, 3 * SEC);
    let ids: Vec<usize> = (0..3).map(|_| send(&mut pair, a, LEN)).collect();
    pair.world.run_for(SEC);
    let Pair { world } = &mut pair;
    let Host::Own(own) = &mut world.hosts[SMALL] else { unreachable!() };
    own.close_socket(&mut world.cx, a, false);
    world.settle_calls(SMALL);
    for id in ids {
        wait_released(&mut pair, id);
    }
    settle(&mut pair);
}

#[test]
fn an_orderly_end_waits_for_the_peer_and_then_takes_its_pages_back() {
    let (mut pair, a, _b) = narrow_pair(ZeroCopy::default());
    stand_still(&mut pair, LARGE, 20 * SEC);
    let id = send(&mut pair, a, LEN);
    pair.world.run_for(SEC);
    let end = pair.end_of(SMALL);
    let Pair { world } = &mut pair;
    let Host::Own(own) = &mut world.hosts[SMALL] else { unreachable!() };
    own.say_goodbye(&mut world.cx);
    world.settle_calls(SMALL);
    pair.world.run_for(SEC);
    assert_eq!(pinned(&mut pair), PAGES, "the peer has time");
    pair.world.run_for(4 * SEC);
    assert_eq!((pinned(&mut pair), pair.world.cx.net.calls(end)), (0, 0));
    assert!(pair.world.cx.net.met.disconnected > 0, "before it was closed");
    assert_eq!(released(&pair, id), None, "nobody knows yet how the message ended");
}

#[test]
fn pages_of_a_process_that_died_are_sent_as_they_are() {
    let (mut pair, a, _b) = narrow_pair(ZeroCopy::default());
    stand_still(&mut pair, LARGE, 2 * SEC);
    let id = send(&mut pair, a, LEN);
    pair.world.run_for(SEC);
    assert_eq!(pinned(&mut pair), PAGES);
    pair.world.stop(SMALL, false);
    pair.arrive(id);
    pair.world.run_until("the last page", SEC, |w| w.cx.net.pinned(SMALL) == 0);
}

#[test]
fn a_device_that_still_sends_gets_its_time() {
    let (mut pair, a, _b) = narrow_pair(ZeroCopy { keeps: 255, device: 9 * SEC, ..ZeroCopy::default() });
    stand_still(&mut pair, LARGE, SEC);
    let id = send(&mut pair, a, LEN);
    pair.world.run_for(SEC / 2);
    let end = pair.end_of(SMALL);
    pair.reset_at(&[SMALL, LARGE]);
    pair.world.run_for(SEC / 10);
    assert_eq!((pair.world.cx.net.calls(end), pinned(&mut pair)), (1, PAGES), "the device has them");
    assert_eq!(pair.end(id), DELIVERED, "on another connection");
    assert!(!wait_released(&mut pair, id));
    settle(&mut pair);
}

#[test]
fn without_memory_to_lock_everything_is_copied() {
    let (mut pair, a, b) = pair(ZeroCopy { memlock: Some(0), ..ZeroCopy::default() });
    for _ in 0..20 {
        let id = send(&mut pair, a, LEN);
        pair.take_all(LARGE, b);
        assert_eq!(pinned(&mut pair), 0);
        assert_eq!(pair.end(id), DELIVERED);
        assert!(wait_released(&mut pair, id), "it was copied");
    }
    assert_eq!(pair.world.cx.net.met.calls, 0);
    assert_eq!(pair.world.cx.net.met.memlock, 0, "the kernel was not even asked");
    settle(&mut pair);
}

#[test]
fn a_little_memory_to_lock_is_used_and_never_exceeded() {
    let memlock = 256 << 10;
    let (mut pair, a, _b) = pair(ZeroCopy { memlock: Some(memlock), late: 10 * MS, ..ZeroCopy::default() });
    let ids: Vec<usize> = (0..15).map(|_| send(&mut pair, a, LEN)).collect();
    let copied = ids.iter().filter(|id| wait_released(&mut pair, **id)).count();
    assert!((1..15).contains(&copied), "{copied} of 15 were copied");
    let most = pair.world.own(SMALL).most_pinned();
    assert!((PAGES..=memlock / 4096 * 3 / 4).contains(&most), "{most} pages");
    settle(&mut pair);
}

#[test]
fn memory_that_others_lock_is_not_waited_for() {
    let (mut pair, a, _b) = pair(ZeroCopy { memlock: Some(8 << 20), ..ZeroCopy::default() });
    pair.world.cx.net.lock_elsewhere(SMALL, 2048);
    let id = send(&mut pair, a, LEN);
    assert_eq!(pinned(&mut pair), 0);
    assert_eq!(pair.end(id), DELIVERED);
    assert!(wait_released(&mut pair, id), "it was copied");
    assert_eq!(pair.world.cx.net.met.memlock, 1, "asked once: nothing had come back that would help");
    pair.world.cx.net.lock_elsewhere(SMALL, 0);
    let id = send(&mut pair, a, LEN);
    assert!(!wait_released(&mut pair, id), "pinned again");
    settle(&mut pair);
}

#[test]
fn a_kernel_with_less_room_for_notifications_than_thought_is_no_obstacle() {
    let kernel = ZeroCopy { optmem: 4096, notification: 2000, late: 20 * MS, ..ZeroCopy::default() };
    let (mut pair, a, _b) = narrow_pair(kernel);
    stand_still(&mut pair, LARGE, SEC);
    let ids: Vec<usize> = (0..10).map(|_| send(&mut pair, a, 8 << 10)).collect();
    let copied = ids.iter().filter(|id| wait_released(&mut pair, **id)).count();
    assert!((1..10).contains(&copied), "{copied} of 10 were copied");
    assert!(pair.world.cx.net.met.optmem > 0);
    settle(&mut pair);
}

#[test]
fn numbers_wrap() {
    let (mut pair, a, _b) = pair(ZeroCopy { first_call: u32::MAX - 2, ..ZeroCopy::default() });
    stand_still(&mut pair, LARGE, SEC);
    let ids: Vec<usize> = (0..8).map(|_| send(&mut pair, a, LEN)).collect();
    stand_still(&mut pair, SMALL, SEC);
    for id in ids {
        assert!(!wait_released(&mut pair, id));
    }
    assert!(pair.world.cx.net.met.wrapped > 0, "one record held them all: {:?}", pair.world.cx.net.met);
    settle(&mut pair);
}

#[test]
fn a_call_may_be_notified_before_its_writer_is_back() {
    let (mut pair, a, b) = pair(ZeroCopy { prompt: 255, ..ZeroCopy::default() });
    for _ in 0..100 {
        let id = send(&mut pair, a, LEN);
        assert!(!wait_released(&mut pair, id));
        pair.take_all(LARGE, b);
    }
    assert!(pair.seen(Seen::NotifiedEarly) > 0);
    settle(&mut pair);
}

#[test]
fn auto_goes_on_pinning_where_nothing_copies_and_stops_where_the_kernel_does() {
    for (copies, pins) in [(0, true), (255, false)] {
        let sending = Sending {
            mode: Mode::Auto,
            when_full: WhenFull::Copy,
            lends: 255,
            kernel: ZeroCopy { copies, ..ZeroCopy::default() },
        };
        let mut pair = Pair::with(OwnSpec { sending, ..OwnSpec::default() }, OwnSpec::default());
        let (a, b) = (pair.bind(SMALL, 4000), pair.bind(LARGE, 4001));
        for _ in 0..200 {
            let id = send(&mut pair, a, LEN);
            pair.end(id);
            pair.take_all(LARGE, b);
        }
        let before = pair.world.cx.net.met.calls;
        for _ in 0..100 {
            let id = send(&mut pair, a, LEN);
            pair.end(id);
            pair.take_all(LARGE, b);
        }
        let calls = pair.world.cx.net.met.calls - before;
        assert_eq!(calls > 50, pins, "{calls} of 100 pinned where {copies} of 255 are copied");
        settle(&mut pair);
    }
}

#[test]
fn what_a_kernel_had_sent_is_read_before_a_stuck_path_is_ended() {
    // The kernel has sent more than the program takes, so that its connection is not read; then it stands still with its window closed.
    // Its TCP was told that we have all of it: it will not send that again.
    let sending =
        Sending { mode: Mode::On, when_full: WhenFull::Copy, lends: 255, kernel: ZeroCopy::default() };
    let spec = OwnSpec { sending, receive_budget: 64 << 10, max_message: LEN as u32, ..OwnSpec::default() };
    let mut pair = Pair::with_kernel(SMALL, true, spec);
    pair.world.cx.net.wire.receive_buffer = 128 << 10;
    let a = pair.bind(SMALL, 4000);
    pair.bind_kernel(LARGE, 4001);
    let first = pair.send(SMALL, a, (LARGE, 4001), 10);
    pair.end(first);
    let given: Vec<usize> =
        (0..30).map(|_| pair.world.kernel_send(LARGE, 4001, (SMALL, 4000), 4000).expect("room")).collect();
    pair.world.run_for(SEC);
    assert!(given.iter().any(|id| !pair.world.has_arrived(*id)), "reading has stopped");
    pair.world.kernel(LARGE).frozen_until = pair.world.cx.now + 60 * SEC;
    let ids: Vec<usize> = (0..8).map(|_| send(&mut pair, a, LEN)).collect();
    pair.see(Seen::PinOverdue);
    for id in given {
        pair.arrive(id);
        pair.take_all(SMALL, a);
    }
    for id in ids {
        pair.world.run_until("its end", 100 * SEC, |w| w.cx.ledger.messages[id].outcome.is_some());
        wait_released(&mut pair, id);
    }
    pair.settle();
}
