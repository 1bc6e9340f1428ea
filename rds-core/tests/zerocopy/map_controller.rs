//! Whether messages are mapped, and what that costs against the better fixed mode.

use std::time::Duration;

use rds_core::proto::Time;
use rds_core::zerocopy::{MapController, Mode, Reason};

use super::path::{COLD, Controller, DEAR, NO_COPY, Noise, Path, Run};

const NOW: Time = Time::ZERO;
const LEN: usize = 65536;

struct Receiver {
    controller: MapController,
    /// Of 100 messages so many cannot be mapped whole.
    unmappable: u32,
    rng: fastrand::Rng,
}

impl Receiver {
    fn new(unmappable: u32) -> Self {
        let controller = MapController::new(Mode::Auto, false);
        Self { controller, unmappable, rng: fastrand::Rng::with_seed(1) }
    }

    fn run(&mut self, seed: u64) -> Run<'_, Self> {
        Run { controller: self, noise: Noise::new(seed), now: NOW, step: Duration::from_micros(100) }
    }
}

impl Controller for Receiver {
    fn choose(&mut self, now: Time, len: usize) -> (bool, bool) {
        (self.controller.choose(now, len, true), self.controller.measure())
    }

    fn moved(&mut self, now: Time, len: usize, mapped: bool, cpu: Option<Duration>, _: &Path) {
        if mapped {
            let whole = self.rng.u32(..100) >= self.unmappable;
            self.controller.mapped(now, len, whole, cpu);
        } else {
            self.controller.copied(now, len, cpu);
        }
    }

    fn pump(&mut self, _: Time) {}
}

#[test]
fn auto_costs_at_most_3_percent_more_than_the_better_mode() {
    for (name, path) in [("no copy", NO_COPY), ("dear", DEAR), ("cold", COLD)] {
        for kib in [64, 128, 256, 512, 1024] {
            for seed in 0..5 {
                let mut receiver = Receiver::new(4);
                let mut run = receiver.run(seed);
                run.messages(500, &path, |_| kib << 10);
                let cost = run.messages(30_000, &path, |_| kib << 10);
                assert!(cost.ratio() < 1.03, "{name}, {kib} KiB, seed {seed}: {:.4} {cost:?}", cost.ratio());
                let state = receiver.controller.state(true);
                assert!(state.explored_bytes * 100 <= state.eligible_bytes, "{state:?}");
            }
        }
    }
}

#[test]
fn too_many_unmapped_messages_end_it_until_a_probe_finds_them_mapped() {
    let mut receiver = Receiver::new(50);
    let mut run = receiver.run(1);
    let cost = run.messages(1000, &NO_COPY, |_| LEN);
    assert!(cost.zero_copy_bytes <= 24 * LEN as u64, "{cost:?}");
    let state = run.controller.controller.state(true);
    assert_eq!((state.zero_copy, state.reason), (false, Reason::Unmapped));
    assert!(state.next_probe.is_some() && state.failed_share > 0.0);
    run.controller.unmappable = 0;
    run.messages(30_000, &NO_COPY, |_| LEN);
    let cost = run.messages(10_000, &NO_COPY, |_| LEN);
    assert!(cost.zero_copy_bytes * 100 >= cost.bytes * 99, "mapped again: {cost:?}");
    let state = run.controller.controller.state(true);
    assert_eq!((state.zero_copy, state.reason), (true, Reason::Measured));
}

#[test]
fn alignment_that_breaks_in_mid_run_ends_mapping_after_a_few_messages() {
    let mut receiver = Receiver::new(0);
    let mut run = receiver.run(2);
    run.messages(5000, &NO_COPY, |_| LEN);
    assert!(run.controller.controller.state(true).zero_copy);
    run.controller.unmappable = 100;
    let cost = run.messages(100, &NO_COPY, |_| LEN);
    assert!(cost.zero_copy_bytes <= 16 * LEN as u64, "{cost:?}");
    assert_eq!(receiver.controller.state(true).reason, Reason::Unmapped);
}

#[test]
fn a_twentieth_that_is_not_mapped_is_accepted() {
    let mut receiver = Receiver::new(0);
    let mut run = receiver.run(2);
    run.messages(1000, &NO_COPY, |_| LEN);
    for i in 0..640 {
        run.controller.unmappable = if i % 20 == 0 { 100 } else { 0 };
        run.messages(1, &NO_COPY, |_| LEN);
    }
    let state = receiver.controller.state(true);
    assert_eq!((state.zero_copy, state.reason), (true, Reason::Measured));
}

#[test]
fn without_the_announced_pattern_nothing_is_mapped() {
    for mode in [Mode::On, Mode::Auto] {
        let mut c = MapController::new(mode, false);
        assert!((0..100).all(|_| !c.choose(NOW, LEN, false) && !c.measure()));
        assert_eq!(c.state(false).reason, Reason::NotAnnounced);
        assert_ne!(c.state(true).reason, Reason::NotAnnounced);
        assert!((0..100).any(|_| c.choose(NOW, LEN, true)));
    }
}

#[test]
fn a_local_peer_is_trusted_by_opt_in_only() {
    let mut c = MapController::new(Mode::Auto, true);
    assert!((0..100_000).all(|_| !c.choose(NOW, 1 << 20, true)));
    assert_eq!(c.state(true).reason, Reason::LocalPeer);
    c.set_mode(Mode::On);
    assert!(c.choose(NOW, 1 << 20, true));
    assert_eq!(c.state(true).reason, Reason::Setting);
    c.set_mode(Mode::Off);
    assert!(!c.choose(NOW, 1 << 20, true));
}

#[test]
fn auto_maps_large_messages_of_whole_pages_and_on_a_page_or_more() {
    let mut c = MapController::new(Mode::Auto, false);
    for len in [LEN - 4096, LEN + 1, 4096, 0] {
        assert!((0..100).all(|_| !c.choose(NOW, len, true)), "{len} bytes");
    }
    assert!((0..24).any(|_| c.choose(NOW, LEN + 4096, true)));
    let mut c = MapController::new(Mode::On, false).with_page_size(16384);
    assert!(c.choose(NOW, 16385, true) && !c.choose(NOW, 16383, true));
}
