//! Lanes: between own peers, towards kernels from 7.0 on, and towards older ones. The watch over streams and messages judges every step:
//! what arrives, once and in order, and that nothing goes out on a lane before a kernel has shown whose connection it is.

use rds_core::proto::{Outcome, SocketId};
use rds_tests::sim::coverage::Seen;
use rds_tests::sim::ctx::HostKind;
use rds_tests::sim::net::{End, SEC};
use rds_tests::sim::pair::{LARGE, Pair, SMALL};
use rds_tests::sim::world::OwnSpec;

fn offer(lanes: u8) -> OwnSpec {
    OwnSpec { lanes, ..OwnSpec::default() }
}

/// Ports of the sockets on either side; they cover all lanes.
const PORTS: std::ops::Range<u16> = 5000..5024;

/// An own host and a kernel, with sockets on both sides.
struct Two {
    pair: Pair,
    own: usize,
    kernel: usize,
    sockets: Vec<SocketId>,
}

impl Two {
    fn new(own: usize, new: bool, spec: OwnSpec) -> Self {
        let pair = Pair::with_kernel(own, new, spec);
        let mut two = Self { pair, own, kernel: 1 - own, sockets: Vec::new() };
        two.bind_own();
        two.bind_kernel();
        two
    }

    fn bind_own(&mut self) {
        self.sockets = PORTS.map(|port| self.pair.bind(self.own, port)).collect();
    }

    fn bind_kernel(&mut self) {
        for port in PORTS {
            self.pair.bind_kernel(self.kernel, port);
        }
    }

    /// Each socket sends to one on the other side, from both sides.
    fn send_all(&mut self, len: usize) -> Vec<usize> {
        let mut ids = self.send_from_own(len);
        ids.extend(self.send_from_kernel(len));
        ids
    }

    fn send_from_own(&mut self, len: usize) -> Vec<usize> {
        let sockets = self.sockets.clone();
        sockets.into_iter().map(|s| self.pair.send(self.own, s, (self.kernel, 5001), len)).collect()
    }

    fn send_from_kernel(&mut self, len: usize) -> Vec<usize> {
        let mut ids = Vec::new();
        for port in PORTS {
            ids.push(self.pair.world.kernel_send(self.kernel, port, (self.own, 5002), len).expect("room"));
        }
        for socket in self.sockets.clone() {
            self.pair.take_all(self.own, socket);
        }
        for port in PORTS {
            self.pair.world.kernel(self.kernel).take(port, usize::MAX);
        }
        self.pair.world.settle_calls(self.kernel);
        ids
    }

    #[track_caller]
    fn arrive(&mut self, ids: Vec<usize>) {
        for id in ids {
            self.pair.arrive(id);
        }
    }

    /// Waits until messages to a kernel that has restarted have ended: those that went to its past are unknown.
    #[track_caller]
    fn end(&mut self, ids: Vec<usize>) {
        for id in ids {
            if self.pair.end(id) != Outcome::Unknown {
                assert!(self.pair.world.has_arrived(id));
            }
        }
    }

    /// Each socket sends a message to the other side, and all arrive.
    #[track_caller]
    fn exchange(&mut self, len: usize) {
        let ids = self.send_all(len);
        self.arrive(ids);
    }

    /// We send to a kernel that has restarted before we know it.
    #[track_caller]
    fn send_to_its_past(&mut self, len: usize) {
        let ids = self.send_from_own(len);
        self.end(ids);
    }

    #[track_caller]
    fn settle(&mut self) {
        self.pair.world.run_for(SEC);
        self.pair.settle();
    }

    /// Sends until `lanes` lanes stand.
    #[track_caller]
    fn come_up(&mut self, lanes: u8) {
        for round in 0..10 {
            let ids = self.send_all(20 + round);
            self.arrive(ids);
            self.pair.world.run_for(SEC / 20);
        }
        assert_eq!(self.lanes_in_use(), lanes, "{}", self.pair.world.kernel(self.kernel).describe());
        assert_eq!(self.pair.world.cx.net.live_links(SMALL, LARGE).count(), usize::from(lanes));
        self.paths_are_right();
    }

    fn lanes_in_use(&mut self) -> u8 {
        let own = self.own;
        let snapshot = self.pair.world.own(own).node.as_ref().expect("it is up").snapshot(false);
        snapshot.peers[0].lanes
    }

    fn kind(&mut self) -> &'static str {
        let own = self.own;
        self.pair.world.own(own).node.as_ref().expect("it is up").snapshot(false).peers[0].kind
    }

    /// Each of the kernel's connections is on the path that its source port tells.
    #[track_caller]
    fn paths_are_right(&mut self) {
        let own = self.own;
        let kernel = self.kernel;
        if !self.pair.world.kernel(kernel).new {
            return;
        }
        let ends: Vec<(usize, End)> = self.pair.world.kernel(kernel).peers[&own]
            .paths
            .iter()
            .enumerate()
            .filter_map(|(i, path)| Some((i, path.end?)))
            .collect();
        assert!(!ends.is_empty());
        for (path, end) in ends {
            assert_eq!(usize::from(self.pair.world.cx.net.source_port(end.link) % 8), path, "of {end:?}");
        }
    }

    fn links(&self) -> Vec<usize> {
        self.pair.world.cx.net.live_links(SMALL, LARGE).collect()
    }

    /// Resets connections at both ends.
    fn reset(&mut self, links: &[usize]) {
        let now = self.pair.world.cx.now;
        for link in links {
            for side in 0..2 {
                self.pair.world.cx.net.inject_rst(now, End { link: *link, side });
            }
        }
        for host in [SMALL, LARGE] {
            self.pair.world.settle_calls(host);
        }
    }

    fn restart_own(&mut self, lanes: u8) {
        let own = self.own;
        self.pair.world.stop(own, false);
        self.pair.world.run_for(SEC / 10);
        if let Some(spec) = &mut self.pair.world.specs[own] {
            spec.lanes = lanes;
        }
        self.pair.world.start(own, 0);
        self.bind_own();
    }

    fn restart_kernel(&mut self, new: bool) {
        let kernel = self.kernel;
        self.pair.world.stop(kernel, true);
        self.pair.world.run_for(SEC / 10);
        self.pair.world.kernel(kernel).new = new;
        let fact = &mut self.pair.world.cx.facts[kernel];
        let kind = if new { HostKind::NewKernel } else { HostKind::OldKernel };
        fact.changed_kind |= fact.kind != kind;
        fact.kind = kind;
        self.pair.world.start(kernel, 0);
        self.bind_kernel();
    }
}

#[test]
fn any_number_of_lanes_comes_up_with_a_kernel_of_7_0_and_keeps_order() {
    for own in [SMALL, LARGE] {
        for lanes in 1..=8 {
            let mut two = Two::new(own, true, offer(lanes));
            two.come_up(lanes);
            assert_eq!(two.kind(), "kernel >= 7.0");
            two.settle();
        }
    }
}

#[test]
fn any_number_of_lanes_comes_up_between_own_peers() {
    for (small, large) in [(3, 3), (5, 8), (8, 6), (7, 7), (1, 8), (8, 1), (2, 3)] {
        let mut pair = Pair::with(offer(small), offer(large));
        let sockets: Vec<_> = PORTS.map(|port| pair.bind(SMALL, port)).collect();
        pair.bind(LARGE, 4001);
        for round in 0..10 {
            let ids: Vec<usize> =
                sockets.iter().map(|s| pair.send(SMALL, *s, (LARGE, 4001), 10 + round)).collect();
            for id in ids {
                pair.end(id);
            }
        }
        let lanes = small.min(large);
        for host in [SMALL, LARGE] {
            let peer = &pair.world.own(host).node.as_ref().unwrap().snapshot(false).peers[0];
            assert_eq!((peer.lanes, peer.kind), (lanes, "own"));
            assert!(peer.connections.iter().all(|c| c.state == "up"), "{small} and {large}: {peer:?}");
        }
        assert_eq!(pair.world.cx.net.live_links(SMALL, LARGE).count(), usize::from(lanes));
        pair.settle();
    }
}

#[test]
fn a_kernel_up_to_6_18_gets_one_lane_unless_more_are_meant_for_it() {
    for own in [SMALL, LARGE] {
        let mut two = Two::new(own, false, offer(8));
        two.come_up(1);
        assert_eq!(two.kind(), "kernel <= 6.18");
        two.settle();
    }
}

#[test]
fn eight_lanes_to_a_kernel_up_to_6_18_come_up_in_order_and_stay() {
    for own in [SMALL, LARGE] {
        let spec = OwnSpec { lanes: 8, old_kernel_lanes: 8, ..OwnSpec::default() };
        let mut two = Two::new(own, false, spec);
        two.come_up(8);
        let links = two.links();
        for round in 0..20 {
            two.exchange(100 + round);
        }
        two.pair.world.run_for(5 * SEC);
        assert_eq!(two.links(), links, "no connection displaced another");
        assert_eq!(two.pair.seen(Seen::Replaced), 0);
        two.settle();
    }
}

#[test]
fn order_holds_while_lanes_go_down_and_come_up() {
    for own in [SMALL, LARGE] {
        let mut two = Two::new(own, true, offer(8));
        let mut ids = Vec::new();
        for round in 0..40 {
            ids.extend(two.send_all(10 + round));
            two.pair.world.run_for(SEC / 200);
            let links = two.links();
            if !links.is_empty() && round % 2 == 0 {
                two.reset(&[links[round % links.len()]]);
            }
            two.pair.world.run_for(SEC / 50);
        }
        two.arrive(ids);
        two.come_up(8);
        two.settle();
    }
}

#[test]
fn after_the_loss_of_all_lanes_the_first_is_dialled_first() {
    for own in [SMALL, LARGE] {
        let mut two = Two::new(own, true, offer(8));
        two.come_up(8);
        for _ in 0..5 {
            let links = two.links();
            let last = *links.iter().max().expect("they stand");
            let ids = two.send_all(300);
            two.reset(&links);
            two.arrive(ids);
            if own == SMALL {
                let first = two.links().into_iter().filter(|l| *l > last).min().expect("made again");
                let lane = two.pair.world.cx.watch.lane(first);
                assert_eq!(lane, Some(0));
            }
            two.come_up(8);
        }
        assert_eq!(two.pair.seen(Seen::OtherLane), 0);
        two.settle();
    }
}

#[test]
fn a_fresh_kernel_takes_no_other_lane_for_its_first() {
    for own in [SMALL, LARGE] {
        let mut two = Two::new(own, true, offer(8));
        two.come_up(8);
        for _ in 0..3 {
            two.restart_kernel(true);
            two.send_to_its_past(200);
            two.come_up(8);
        }
        two.settle();
    }
}

#[test]
fn a_fresh_kernel_that_is_found_by_an_upper_lane_is_told_from_its_past() {
    // The kernel loses power and comes back while only one upper lane notices.
    let mut two = Two::new(SMALL, true, offer(8));
    two.come_up(8);
    two.restart_kernel(true);
    let upper = two.links().into_iter().find(|l| two.pair.world.cx.watch.lane(*l) == Some(3));
    let now = two.pair.world.cx.now;
    two.pair.world.cx.net.inject_rst(now, End { link: upper.expect("it stands here"), side: 0 });
    two.pair.world.settle_calls(SMALL);
    two.pair.world.run_for(SEC / 2);
    assert!(two.pair.seen(Seen::OtherLane) > 0, "the kernel took it for its first");
    two.exchange(100);
    two.come_up(8);
    two.settle();
}

#[test]
fn what_a_kernel_queued_on_lanes_that_are_no_longer_offered_still_arrives() {
    for lanes in [1, 4] {
        let mut two = Two::new(LARGE, true, offer(8));
        two.come_up(8);
        two.pair.world.stop(LARGE, false);
        two.pair.world.run_for(SEC / 10);
        let before: Vec<usize> = PORTS
            .map(|port| two.pair.world.kernel_send(SMALL, port, (LARGE, 5002), 77).expect("room"))
            .collect();
        two.pair.world.run_for(SEC / 10);
        two.restart_own(lanes);
        two.arrive(before);
        assert!(two.pair.seen(Seen::RemembersLanes) > 0, "it is warned of");
        for round in 0..10 {
            two.exchange(30 + round);
        }
        assert_eq!(two.lanes_in_use(), lanes);
        two.settle();
    }
}

#[test]
fn a_kernel_that_is_dialled_and_remembers_more_lanes_learns_the_new_number() {
    for lanes in [1, 3, 4] {
        let mut two = Two::new(SMALL, true, offer(8));
        two.come_up(8);
        two.restart_own(lanes);
        let ids = two.send_from_own(40);
        two.arrive(ids);
        two.pair.world.run_for(SEC);
        for round in 0..10 {
            two.exchange(30 + round);
        }
        assert_eq!(two.lanes_in_use(), lanes);
        two.settle();
    }
}

#[test]
fn waiting_connections_of_a_kernel_are_read_in_the_order_in_which_they_came() {
    for new in [false, true] {
        for lanes in [1, 8] {
            let mut two = Two::new(LARGE, new, offer(lanes));
            two.exchange(20);
            two.pair.world.own(LARGE).temper.reverse = 255;
            for _ in 0..5 {
                // The process stands still while the kernel loses its end and dials again, a few times.
                two.pair.world.own(LARGE).frozen_until = two.pair.world.cx.now + 3 * SEC;
                let mut ids = Vec::new();
                // No more than may wait: twice the lanes that there can be.
                for _ in 0..if lanes == 1 { 3 } else { 1 } {
                    ids.extend(two.send_from_kernel(200));
                    two.pair.world.run_for(SEC / 4);
                    let now = two.pair.world.cx.now;
                    for link in two.links() {
                        two.pair.world.cx.net.inject_rst(now, End { link, side: 0 });
                    }
                    two.pair.world.settle_calls(SMALL);
                    two.pair.world.run_for(SEC / 4);
                }
                two.arrive(ids);
            }
            two.pair.world.run_for(5 * SEC);
            two.settle();
        }
    }
}

#[test]
fn waiting_connections_of_a_kernel_not_seen_before_keep_order_and_content() {
    for new in [false, true] {
        for lanes in [1, 8] {
            let mut two = Two::new(LARGE, new, offer(lanes));
            two.pair.world.own(LARGE).temper.reverse = 255;
            two.pair.world.own(LARGE).frozen_until = two.pair.world.cx.now + 3 * SEC;
            let mut ids = Vec::new();
            for _ in 0..4 {
                ids.extend(two.send_from_kernel(200));
                two.pair.world.run_for(SEC / 4);
                let now = two.pair.world.cx.now;
                for link in two.links() {
                    two.pair.world.cx.net.inject_rst(now, End { link, side: 0 });
                }
                two.pair.world.settle_calls(SMALL);
                two.pair.world.run_for(SEC / 4);
            }
            two.arrive(ids);
            two.exchange(50);
            two.settle();
        }
    }
}

#[test]
fn a_kernel_that_goes_back_to_6_x_and_forth_gets_the_lanes_that_are_right_for_it() {
    for own in [SMALL, LARGE] {
        let mut two = Two::new(own, true, offer(8));
        two.come_up(8);
        for _ in 0..2 {
            two.restart_kernel(false);
            two.send_to_its_past(60);
            two.come_up(1);
            assert_eq!(two.kind(), "kernel <= 6.18");
            two.restart_kernel(true);
            two.send_to_its_past(60);
            two.come_up(8);
            assert_eq!(two.kind(), "kernel >= 7.0");
        }
        two.settle();
    }
}

#[test]
fn a_kernel_that_answers_no_pings_is_sent_to_on_its_first_lane() {
    for new in [false, true] {
        for own in [SMALL, LARGE] {
            let mut two = Two::new(own, new, offer(8));
            let kernel = two.kernel;
            two.pair.world.kernel(kernel).ping_enable = false;
            two.pair.world.cx.facts[kernel].ping_enable = false;
            for round in 0..20 {
                two.exchange(20 + round);
                two.pair.world.run_for(SEC / 5);
            }
            if own == SMALL {
                assert_eq!(two.lanes_in_use(), 1);
                assert_eq!(two.links().len(), 1);
            }
            two.settle();
        }
    }
}
