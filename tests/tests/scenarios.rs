//! Scenarios between two hosts, one promise each; the watch over streams and messages judges every step of them too.

use rds_core::proto::{Guarantee, Outcome};
use rds_tests::sim::coverage::Seen;
use rds_tests::sim::net::{End, SEC};
use rds_tests::sim::pair::{LARGE, Pair, SMALL};
use rds_tests::sim::world::{Host, OwnSpec, World};

const DELIVERED: Outcome = Outcome::Delivered(Guarantee::Application);

#[test]
fn a_message_is_delivered_when_the_peers_node_has_it() {
    let mut pair = Pair::new();
    let (a, _b) = (pair.bind(SMALL, 4000), pair.bind(LARGE, 4001));
    let id = pair.send(SMALL, a, (LARGE, 4001), 13);
    assert_eq!(pair.end(id), DELIVERED);
    assert!(pair.world.has_arrived(id));
}

#[test]
fn larger_address_knocks_and_is_dialled() {
    let mut pair = Pair::new();
    let (_a, b) = (pair.bind(SMALL, 4000), pair.bind(LARGE, 4001));
    let id = pair.send(LARGE, b, (SMALL, 4000), 100);
    pair.arrive(id);
    assert!(pair.seen(Seen::Knock) >= 1);
    assert_eq!(pair.seen(Seen::KnockAnswered), 1);
    let end = pair.end_of(SMALL);
    assert_eq!(end.side, 0, "the smaller address is the one that dialled");
}

#[test]
fn nothing_is_written_on_a_knock() {
    let mut pair = Pair::new();
    let b = pair.bind(LARGE, 4001);
    pair.bind(SMALL, 4000);
    let id = pair.send(LARGE, b, (SMALL, 4000), 100);
    pair.arrive(id);
    let knock = rds_tests::sim::net::End { link: 0, side: 0 };
    assert_eq!(pair.world.cx.net.host_of(knock), LARGE, "the first connection was the knock");
    assert!(!pair.world.cx.watch.wrote_anything(knock));
    assert!(!pair.world.cx.watch.wrote_anything(knock.peer()));
}

#[test]
fn a_cut_that_heals_in_time_costs_nothing() {
    let mut pair = Pair::new();
    let (a, _b) = (pair.bind(SMALL, 4000), pair.bind(LARGE, 4001));
    let first = pair.send(SMALL, a, (LARGE, 4001), 10);
    pair.end(first);
    let now = pair.world.cx.now;
    pair.world.cx.net.cut(now, SMALL, LARGE);
    let ids: Vec<usize> = (0..20).map(|i| pair.send(SMALL, a, (LARGE, 4001), 10 + i)).collect();
    pair.world.run_for(3 * SEC);
    assert!(ids.iter().all(|id| !pair.world.has_arrived(*id)));
    let now = pair.world.cx.now;
    pair.world.cx.net.heal(now, SMALL, LARGE);
    for id in ids {
        assert_eq!(pair.end(id), DELIVERED);
    }
    assert_eq!(pair.seen(Seen::Retransmitted), 0, "TCP repaired it alone");
}

#[test]
fn what_a_reset_took_is_sent_again_flagged_and_arrives_once() {
    let mut pair = Pair::new();
    let (a, _b) = (pair.bind(SMALL, 4000), pair.bind(LARGE, 4001));
    let first = pair.send(SMALL, a, (LARGE, 4001), 10);
    pair.end(first);
    let ids: Vec<usize> = (0..20).map(|_| pair.send(SMALL, a, (LARGE, 4001), 1000)).collect();
    pair.world.run_until("bytes on their way", SEC, |w| {
        ids.iter().all(|id| !w.cx.ledger.messages[*id].written.is_empty())
    });
    pair.reset_at(&[SMALL, LARGE]);
    for id in ids {
        assert_eq!(pair.end(id), DELIVERED);
    }
    assert!(pair.seen(Seen::Retransmitted) > 0);
    pair.settle();
}

#[test]
fn old_connection_is_read_before_the_new() {
    let mut pair = Pair::new();
    let (a, _b) = (pair.bind(SMALL, 4000), pair.bind(LARGE, 4001));
    let first = pair.send(SMALL, a, (LARGE, 4001), 10);
    pair.end(first);
    // The larger host's process stands still while messages come into its TCP; the smaller one then loses its end.
    pair.world.own(LARGE).frozen_until = pair.world.cx.now + 2 * SEC;
    pair.world.own(LARGE).temper.reverse = 255;
    let ids: Vec<usize> = (0..10).map(|_| pair.send(SMALL, a, (LARGE, 4001), 500)).collect();
    let old = pair.end_of(LARGE);
    pair.world.run_until("messages in the old connection", SEC, |w| w.cx.net.unread(old) >= 10 * 548);
    pair.reset_at(&[SMALL]);
    for id in &ids {
        assert_eq!(pair.end(*id), DELIVERED);
    }
    assert_ne!(pair.link(), old.link, "a new connection stands");
    assert!(pair.seen(Seen::DrainOld) >= 1);
    assert!(pair.seen(Seen::DrainedData) >= 10, "they were found in the old connection");
    pair.settle();
}

#[test]
fn restart_reports_unknown_and_nothing_twice() {
    let mut pair = Pair::new();
    let (a, _b) = (pair.bind(SMALL, 4000), pair.bind(LARGE, 4001));
    let first = pair.send(SMALL, a, (LARGE, 4001), 10);
    pair.end(first);
    // What is sent now lies in the dead process's TCP.
    pair.world.own(LARGE).frozen_until = pair.world.cx.now + 10 * SEC;
    let lost: Vec<usize> = (0..5).map(|_| pair.send(SMALL, a, (LARGE, 4001), 100)).collect();
    pair.world.run_for(SEC);
    pair.world.stop(LARGE, false);
    pair.world.own(LARGE).frozen_until = 0;
    pair.world.run_for(SEC);
    let before: Vec<usize> = (0..5).map(|_| pair.send(SMALL, a, (LARGE, 4001), 200)).collect();
    pair.world.start(LARGE, 0);
    pair.bind(LARGE, 4001);
    for id in lost {
        assert_eq!(pair.end(id), Outcome::Unknown);
        assert!(!pair.world.has_arrived(id));
    }
    for id in before {
        assert_eq!(pair.end(id), DELIVERED, "what had not begun goes to the new life");
    }
    assert_eq!(pair.seen(Seen::RestartSeen), 1);
    pair.settle();
}

#[test]
fn a_restart_with_an_older_clock_is_a_restart() {
    let mut pair = Pair::new();
    let (a, b) = (pair.bind(SMALL, 4000), pair.bind(LARGE, 4001));
    for _ in 0..10 {
        let id = pair.send(LARGE, b, (SMALL, 4000), 50);
        pair.end(id);
    }
    let id = pair.send(SMALL, a, (LARGE, 4001), 50);
    pair.end(id);
    pair.world.stop(LARGE, true);
    pair.world.start(LARGE, 3_600_000);
    let b = pair.bind(LARGE, 4001);
    let ids: Vec<usize> = (0..10).map(|_| pair.send(LARGE, b, (SMALL, 4000), 60)).collect();
    for id in ids {
        assert_eq!(pair.end(id), DELIVERED, "its lower numbers are not taken for old ones");
    }
    pair.settle();
}

#[test]
fn stale_ack_of_dead_incarnation_is_ignored() {
    // The larger host has accepted much from the smaller one's first life; the second life, whose clock is older, has
    // lower numbers: an acknowledgement for the first life would cover all of them.
    let mut pair = Pair::new();
    let (a, _b) = (pair.bind(SMALL, 4000), pair.bind(LARGE, 4001));
    for _ in 0..10 {
        let id = pair.send(SMALL, a, (LARGE, 4001), 50);
        pair.end(id);
    }
    let now = pair.world.cx.now;
    pair.world.stop(SMALL, true);
    pair.world.start(SMALL, 3_600_000);
    let a = pair.bind(SMALL, 4000);
    // Nobody has port 4001's process running: it stands still, so that nothing of the second life is accepted.
    pair.world.own(LARGE).frozen_until = now + 5 * SEC;
    let ids: Vec<usize> = (0..10).map(|_| pair.send(SMALL, a, (LARGE, 4001), 60)).collect();
    pair.world.run_for(4 * SEC);
    assert!(ids.iter().all(|id| pair.world.cx.ledger.messages[*id].outcome.is_none()));
    for id in ids {
        assert_eq!(pair.end(id), DELIVERED);
        assert!(pair.world.has_arrived(id));
    }
    pair.settle();
}

#[test]
fn map_comes_first_on_every_connection() {
    // A port is congested when the connection is lost: the next one must say so before anything else.
    let mut pair = Pair::new();
    let a = pair.bind(SMALL, 4000);
    let b = pair.bind_small(LARGE, 4001, 1000);
    for _ in 0..3 {
        pair.send(SMALL, a, (LARGE, 4001), 600);
    }
    pair.world.run_until("congestion", SEC, |w| {
        w.cx.watch.maps.get(&(SMALL, LARGE)).is_some_and(|m| m.contains(4001))
    });
    for _ in 0..3 {
        let old = pair.link();
        pair.reset_at(&[SMALL, LARGE]);
        pair.world.cx.watch.maps.clear();
        pair.world.run_until("the map on the new connection", SEC, |w| {
            w.cx.net.live_links(SMALL, LARGE).any(|l| l != old)
                && w.cx.watch.maps.get(&(SMALL, LARGE)).is_some_and(|m| m.contains(4001))
        });
    }
    pair.take_all(LARGE, b);
    pair.world.run_until("the map without it", SEC, |w| w.cx.watch.maps[&(SMALL, LARGE)].is_empty());
}

#[test]
fn window_blocks_and_reopens() {
    let spec =
        OwnSpec { window: 64 << 10, receive_budget: 256 << 10, max_message: 64 << 10, ..OwnSpec::default() };
    let mut pair = Pair::with(OwnSpec::default(), spec);
    let a = pair.bind_small(SMALL, 4000, 1 << 20);
    let b = pair.bind_small(LARGE, 4001, 64 << 20);
    let ids: Vec<usize> = (0..100).map(|_| pair.send(SMALL, a, (LARGE, 4001), 16 << 10)).collect();
    pair.see(Seen::WindowBlocked);
    pair.world.run_for(SEC);
    let arrived = ids.iter().filter(|id| pair.world.has_arrived(**id)).count();
    assert!((4..100).contains(&arrived), "{arrived} of 100 arrived although nobody takes any");
    for _ in 0..100 {
        pair.take_all(LARGE, b);
        pair.world.run_for(SEC / 100);
    }
    for id in ids {
        assert_eq!(pair.end(id), DELIVERED);
    }
    assert!(pair.seen(Seen::WindowReopened) > 0);
}

#[test]
fn congested_port_does_not_eat_the_window() {
    let spec =
        OwnSpec { window: 64 << 10, receive_budget: 1 << 20, port_hard_limit: 1000, ..OwnSpec::default() };
    let mut pair = Pair::with(OwnSpec::default(), spec);
    let a = pair.bind_small(SMALL, 4000, 1 << 20);
    let slow = pair.bind_small(LARGE, 4001, 2000);
    pair.bind(LARGE, 4002);
    // More than the window for a port whose program takes nothing, then a little for another.
    let mut stuck = Vec::new();
    for _ in 0..100 {
        stuck.push(pair.send(SMALL, a, (LARGE, 4001), 1500));
    }
    pair.see(Seen::CongestionSet);
    pair.world.run_for(SEC);
    let quick: Vec<usize> = (0..50).map(|_| pair.send(SMALL, a, (LARGE, 4002), 1500)).collect();
    for id in quick {
        assert_eq!(pair.end(id), DELIVERED);
    }
    assert!(stuck.iter().any(|id| !pair.world.has_arrived(*id)));
    for _ in 0..200 {
        pair.take_all(LARGE, slow);
        pair.world.run_for(SEC / 100);
    }
    for id in stuck {
        assert_eq!(pair.end(id), DELIVERED);
    }
}

#[test]
fn a_pair_of_sockets_changes_lanes_only_when_nothing_is_on_its_way() {
    let spec = OwnSpec { lanes: 8, ..OwnSpec::default() };
    let mut pair = Pair::with(spec.clone(), spec);
    let sockets: Vec<_> = (0..20).map(|i| pair.bind(SMALL, 5000 + i)).collect();
    pair.bind(LARGE, 4001);
    let mut ids = Vec::new();
    for round in 0..20 {
        for socket in &sockets {
            ids.push(pair.send(SMALL, *socket, (LARGE, 4001), 10 + round));
        }
        pair.world.run_for(SEC / 1000);
    }
    for id in ids {
        assert_eq!(pair.end(id), DELIVERED);
    }
    for socket in sockets {
        let id = pair.send(SMALL, socket, (LARGE, 4001), 40);
        assert_eq!(pair.end(id), DELIVERED);
    }
    assert!(pair.seen(Seen::LaneFanOut) > 0);
    assert!(pair.seen(Seen::LaneChangeDeferred) > 0, "messages stayed on the first lane for a while");
    assert!(pair.seen(Seen::LaneChanged) > 0, "and left it in the end");
    pair.settle();
}

#[test]
fn a_cancelled_message_ends_as_cancelled_and_its_number_is_not_missed() {
    let mut pair = Pair::new();
    let (a, _b) = (pair.bind(SMALL, 4000), pair.bind(LARGE, 4001));
    let gone = pair.send(SMALL, a, (LARGE, 4001), 100);
    let World { hosts, cx, .. } = &mut pair.world;
    let Host::Own(own) = &mut hosts[SMALL] else { unreachable!("it is an own host") };
    own.cancel(cx, a, None);
    assert_eq!(pair.end(gone), Outcome::Cancelled);
    let next = pair.send(SMALL, a, (LARGE, 4001), 101);
    assert_eq!(pair.end(next), DELIVERED);
    assert!(!pair.world.has_arrived(gone));
}

// ---- towards kernels -------------------------------------------------------------------------------------------------

#[test]
fn both_kinds_of_kernel_get_and_give_messages_from_both_sides() {
    for new in [false, true] {
        for own in [SMALL, LARGE] {
            let kernel = 1 - own;
            let mut pair = Pair::with_kernel(own, new, OwnSpec::default());
            let a = pair.bind(own, 4000);
            pair.bind_kernel(kernel, 4001);
            let id = pair.send(own, a, (kernel, 4001), 77);
            assert_eq!(
                pair.end(id),
                Outcome::Delivered(Guarantee::Transport),
                "new kernel {new}, own host {own}"
            );
            pair.arrive(id);
            let back = pair.world.kernel_send(kernel, 4001, (own, 4000), 78).expect("room");
            pair.arrive(back);
            pair.settle();
        }
    }
}

#[test]
fn a_larger_kernel_is_woken_by_nothing_and_pokes() {
    for new in [false, true] {
        let mut pair = Pair::with_kernel(SMALL, new, OwnSpec::default());
        pair.bind(SMALL, 4000);
        pair.bind_kernel(LARGE, 4001);
        let id = pair.world.kernel_send(LARGE, 4001, (SMALL, 4000), 78).expect("room");
        pair.arrive(id);
        assert!(pair.seen(Seen::Knock) >= 1);
        assert_eq!(pair.seen(Seen::KnockAnswered), 1);
    }
}

#[test]
fn a_repeat_of_a_kernels_message_is_dropped() {
    for new in [false, true] {
        let mut pair = Pair::with_kernel(LARGE, new, OwnSpec::default());
        pair.bind(LARGE, 4000);
        pair.bind_kernel(SMALL, 4001);
        let first = pair.world.kernel_send(SMALL, 4001, (LARGE, 4000), 20).expect("room");
        pair.arrive(first);
        let ids: Vec<usize> =
            (0..10).map(|_| pair.world.kernel_send(SMALL, 4001, (LARGE, 4000), 300).expect("room")).collect();
        pair.world
            .run_until("their arrival, unacknowledged", SEC, |w| ids.iter().all(|id| w.has_arrived(*id)));
        pair.reset_at(&[SMALL, LARGE]);
        pair.world.run_until("acknowledgement", 10 * SEC, |w| w.kernel(SMALL).is_drained());
        assert!(pair.seen(Seen::Retransmitted) > 0, "the kernel's TCP had not heard of their arrival");
        pair.settle();
    }
}

#[test]
fn handshake_ping_never_hides_a_retransmission_from_a_kernel() {
    // The messages of the lost connection come again, flagged, behind a fresh handshake ping: its number must be below
    // theirs, or the kernel takes them for old ones.
    for new in [false, true] {
        for own in [SMALL, LARGE] {
            let kernel = 1 - own;
            let mut pair = Pair::with_kernel(own, new, OwnSpec::default());
            let a = pair.bind(own, 4000);
            pair.bind_kernel(kernel, 4001);
            let first = pair.send(own, a, (kernel, 4001), 20);
            pair.end(first);
            for _ in 0..5 {
                let now = pair.world.cx.now;
                pair.world.cx.net.cut(now, SMALL, LARGE);
                let ids: Vec<usize> = (0..10).map(|_| pair.send(own, a, (kernel, 4001), 200)).collect();
                pair.world.run_for(SEC / 100);
                pair.reset_at(&[SMALL, LARGE]);
                let now = pair.world.cx.now;
                pair.world.cx.net.heal(now, SMALL, LARGE);
                for id in ids {
                    pair.arrive(id);
                    assert_eq!(pair.end(id), Outcome::Delivered(Guarantee::Transport));
                }
            }
            assert!(pair.seen(Seen::Retransmitted) >= 50);
            pair.settle();
        }
    }
}

#[test]
fn a_restarted_node_is_not_taken_for_its_past_by_a_kernel() {
    for new in [false, true] {
        for own in [SMALL, LARGE] {
            let kernel = 1 - own;
            let mut pair = Pair::with_kernel(own, new, OwnSpec::default());
            let a = pair.bind(own, 4000);
            pair.bind_kernel(kernel, 4001);
            for _ in 0..20 {
                let id = pair.send(own, a, (kernel, 4001), 30);
                pair.end(id);
            }
            pair.world.stop(own, false);
            pair.world.run_for(SEC);
            pair.world.start(own, 0);
            let a = pair.bind(own, 4000);
            let ids: Vec<usize> = (0..20).map(|_| pair.send(own, a, (kernel, 4001), 30)).collect();
            for id in ids {
                pair.arrive(id);
                pair.end(id);
            }
            pair.settle();
        }
    }
}

#[test]
fn the_end_of_a_kernel_with_a_generation_is_told_as_unknown() {
    let mut pair = Pair::with_kernel(SMALL, true, OwnSpec::default());
    let a = pair.bind(SMALL, 4000);
    pair.bind_kernel(LARGE, 4001);
    let first = pair.send(SMALL, a, (LARGE, 4001), 20);
    pair.end(first);
    let now = pair.world.cx.now;
    pair.world.cx.net.cut(now, SMALL, LARGE);
    let ids: Vec<usize> = (0..5).map(|_| pair.send(SMALL, a, (LARGE, 4001), 200)).collect();
    pair.world.run_for(SEC / 10);
    pair.world.stop(LARGE, true);
    let now = pair.world.cx.now;
    pair.world.cx.net.heal(now, SMALL, LARGE);
    pair.world.start(LARGE, 0);
    pair.bind_kernel(LARGE, 4001);
    for id in ids {
        assert_eq!(pair.end(id), Outcome::Unknown);
    }
    let next = pair.send(SMALL, a, (LARGE, 4001), 20);
    pair.arrive(next);
}

#[test]
fn nothing_goes_to_a_kernel_that_may_have_restarted() {
    // The kernel restarts while nothing is unacknowledged, and answers no pings any more: its generation does not show on the next
    // connection. What is sent there at once would belong to an unknown life, and end as unknown with the next restart that shows.
    let mut pair = Pair::with_kernel(LARGE, true, OwnSpec::default());
    let a = pair.bind(LARGE, 4000);
    pair.bind_kernel(SMALL, 4001);
    let first = pair.send(LARGE, a, (SMALL, 4001), 20);
    pair.end(first);
    pair.world.stop(SMALL, false);
    pair.world.run_for(SEC);
    pair.world.kernel(SMALL).ping_enable = false;
    pair.world.start(SMALL, 0);
    pair.bind_kernel(SMALL, 4001);
    let ids: Vec<usize> = (0..5).map(|_| pair.send(LARGE, a, (SMALL, 4001), 200)).collect();
    let heard = |w: &World| {
        let mut links = w.cx.net.live_links(SMALL, LARGE);
        links.any(|link| w.cx.watch.heard_anything(End { link, side: 1 }))
    };
    pair.world.run_until("the kernel's first message", 10 * SEC, |w| heard(w));
    pair.world.run_for(SEC / 2);
    assert!(ids.iter().all(|id| pair.world.cx.ledger.messages[*id].written.is_empty()));
    // It cannot wait for ever, though.
    for id in ids {
        assert_eq!(pair.end(id), Outcome::Delivered(Guarantee::Transport));
        pair.arrive(id);
    }
    pair.settle();
}

#[test]
fn connections_of_a_kernel_are_read_in_the_order_in_which_they_were_made() {
    // The node's process stands still while the kernel loses one connection after another: each has messages in its receive buffer. The
    // process then reads the last one first.
    for new in [false, true] {
        let mut pair = Pair::with_kernel(LARGE, new, OwnSpec::default());
        pair.bind(LARGE, 4000);
        pair.bind_kernel(SMALL, 4001);
        let first = pair.world.kernel_send(SMALL, 4001, (LARGE, 4000), 20).expect("room");
        pair.arrive(first);
        pair.world.own(LARGE).frozen_until = pair.world.cx.now + 5 * SEC;
        pair.world.own(LARGE).temper.reverse = 255;
        let mut ids = Vec::new();
        for _ in 0..4 {
            for _ in 0..5 {
                ids.push(pair.world.kernel_send(SMALL, 4001, (LARGE, 4000), 300).expect("room"));
            }
            let id = *ids.last().expect("just sent");
            pair.world.run_until("their way into the receive buffer", SEC, |w| {
                let written = &w.cx.ledger.messages[id].written;
                written.iter().any(|(end, at)| w.cx.net.acked(*end) >= *at)
            });
            pair.reset_at(&[SMALL]);
            pair.world.run_for(SEC / 10);
        }
        // The watch over messages sees to it that none comes twice, or behind a later one.
        for id in ids {
            pair.arrive(id);
        }
        pair.world.run_until("acknowledgement", 10 * SEC, |w| w.kernel(SMALL).is_drained());
        assert!(pair.seen(Seen::DrainOld) >= 3);
        pair.settle();
    }
}
