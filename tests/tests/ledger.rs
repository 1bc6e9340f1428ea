//! Whole processes over real sockets: whatever is killed, cut or stopped, every message keeps what was promised.
//!
//! What is promised, and what a crash may cost, is written in `rds_tests::ledger::check`. By default each test takes some seconds;
//! with `RDS_LEDGER_SECONDS=N` each runs at least N seconds. `RDS_LEDGER_SEED` changes what is sent and when things break.

use std::time::{Duration, Instant};

use rds_tests::address;
use rds_tests::ledger::process::{Plan, Process, Scratch};
use rds_tests::proxy::{Break, Direction, Proxy, Route, Schedule};

const PROGRAM: &str = env!("CARGO_BIN_EXE_rds-ledger");
/// TCP ports on which nodes and proxies listen.
const NODE: u16 = 17401;
const PROXY: u16 = 17402;
/// What a process may keep above what it had, in bytes: the allocator's, and buffers that stay with connections.
const SLACK: u64 = 24 << 20;
const RECEIVE_BUFFER: u64 = 256 << 10;

/// How long a test goes on.
struct Span {
    began: Instant,
    least: Option<Duration>,
    rounds: u32,
}

impl Span {
    /// `rounds` of them, or as many as the environment wants.
    fn new(rounds: u32) -> Self {
        let seconds = environment("RDS_LEDGER_SECONDS");
        Self { began: Instant::now(), least: seconds.map(Duration::from_secs), rounds }
    }

    fn is_long(&self) -> bool {
        self.least.is_some()
    }

    /// Whether there is another round.
    fn next(&mut self) -> bool {
        match self.least {
            Some(least) => self.began.elapsed() < least,
            None => {
                self.rounds = self.rounds.wrapping_sub(1);
                self.rounds != u32::MAX
            }
        }
    }
}

fn environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value}: give a whole number")))
}

fn seed() -> u64 {
    environment("RDS_LEDGER_SEED").unwrap_or(1)
}

/// Two nodes of a test's own, each with three sockets that send to all three of the other.
struct Two {
    scratch: Scratch,
    near: Plan,
    far: Plan,
}

fn two(name: &str, net: u8, dial: u16) -> Two {
    let scratch = Scratch::new(name);
    let plan = |host: u8, ports: &[u16]| {
        let plan = Plan::new(PROGRAM, &scratch, address(net, host), ports);
        let rate = if environment("RDS_LEDGER_SECONDS").is_some() { 1000 } else { 0 };
        plan.with("listen-port", NODE)
            .with("dial-port", dial)
            .with("receive-buffer", RECEIVE_BUFFER)
            .with("seed", seed())
            .with("rate", rate)
    };
    let (near, far) = (plan(1, &[10, 11, 12]), plan(2, &[20, 21, 22]));
    Two { near: near.clone().sending_to(&far), far: far.sending_to(&near), scratch }
}

impl Two {
    /// Both, sending once both have bound their sockets.
    fn start(&mut self) -> [Process; 2] {
        let mut both = [self.near.start(), self.far.start()];
        both.iter_mut().for_each(Process::load);
        both
    }

    /// The routes of a proxy between them.
    fn routes(&self) -> [Route; 2] {
        [&self.near, &self.far].map(|plan| Route::to(plan.address(), NODE, PROXY))
    }
}

/// Ends both in an orderly way, so that every message must have come out right.
fn settle(near: Process, far: Process) {
    let mut both = [near, far];
    both.iter_mut().for_each(Process::drain);
    for process in &mut both {
        process.drained();
    }
    both.into_iter().for_each(Process::exit);
}

#[test]
fn without_incidents_everything_arrives_once_and_in_order() {
    for (net, lanes) in [(1, 1), (2, 4)] {
        let mut two = two(&format!("quiet-{lanes}"), net, NODE);
        two.near = two.near.with("lanes", lanes);
        two.far = two.far.with("lanes", lanes);
        let [mut near, mut far] = two.start();
        let mut span = Span::new(1);
        while span.next() {
            near.receives(3000);
            far.receives(3000);
        }
        assert_eq!((near.now().resets, far.now().resets), (0, 0), "connections were lost");
        settle(near, far);
        let report = two.scratch.check();
        assert!(report.received >= 6000);
        assert_eq!((report.delivered, report.received), (report.accepted, report.accepted));
    }
}

#[test]
fn the_largest_messages_arrive_whole() {
    let mut two = two("largest", 3, NODE);
    two.near = two.near.with("longest", 1 << 20);
    two.far = two.far.with("longest", 1 << 20);
    let [mut near, mut far] = two.start();
    let mut span = Span::new(1);
    while span.next() {
        near.receives(500);
        far.receives(500);
    }
    settle(near, far);
    let report = two.scratch.check();
    assert_eq!((report.delivered, report.received), (report.accepted, report.accepted));
}

/// Kills the processes that `pick` picks, round after round, under load in both directions. Returns how often each was killed,
/// and how many restarts the other saw since its own last one.
fn kills(name: &str, net: u8, pick: impl Fn(&mut fastrand::Rng) -> [bool; 2]) -> [(u64, u64); 2] {
    let mut two = two(name, net, NODE);
    let mut running = two.start().map(Some);
    let mut plans = [two.near, two.far];
    let mut random = fastrand::Rng::with_seed(seed());
    let mut killed = [0; 2];
    let mut span = Span::new(4);
    while span.next() {
        for process in running.iter_mut().flatten() {
            process.receives(random.u64(200..2000));
        }
        let victims = pick(&mut random);
        for (process, _) in running.iter_mut().zip(victims).filter(|(_, victim)| *victim) {
            process.take().expect("it runs").kill();
        }
        for index in (0..2).filter(|index| victims[*index]) {
            running[index].insert(plans[index].start()).load();
            killed[index] += 1;
        }
    }
    let [near, far] = running.map(|process| process.expect("it runs"));
    let mut both = [near, far];
    // Traffic goes on in both directions after the last kill.
    both.iter_mut().for_each(|process| process.receives(200));
    let [near_saw, far_saw] = both.each_mut().map(|process| process.now().peer_restarts);
    let [near, far] = both;
    settle(near, far);
    two.scratch.check();
    [(killed[0], far_saw), (killed[1], near_saw)]
}

#[test]
fn a_killed_receiver_costs_only_what_it_held_and_every_sender_learns_what_is_unknown() {
    let [_, (killed, seen)] = kills("kill-far", 4, |_| [false, true]);
    assert!(killed > 0);
    assert_eq!(seen, killed, "each restart is seen");
}

#[test]
fn a_killed_sender_costs_nothing_that_was_delivered_and_its_next_life_is_heard() {
    let [(killed, seen), _] = kills("kill-near", 5, |_| [true, false]);
    assert!(killed > 0);
    assert_eq!(seen, killed, "each restart is seen");
}

#[test]
fn either_side_or_both_may_be_killed_again_and_again() {
    let [near, far] = kills("kill-any", 6, |random| {
        *random.choice([[true, false], [false, true], [true, true]].iter()).expect("three")
    });
    assert!(near.0 + far.0 > 0);
}

/// Runs both through a proxy, lets `disturb` do its worst, and ends them. Without a restart nothing is unknown, so all must come.
fn through_proxy(
    name: &str,
    net: u8,
    lanes: u8,
    mut disturb: impl FnMut(&mut Proxy, &mut [Process; 2]),
) -> (u64, [u64; 2]) {
    let mut two = two(name, net, PROXY);
    let mut proxy = Proxy::start(&two.routes()).expect("the proxy listens");
    two.near = two.near.with("lanes", lanes);
    two.far = two.far.with("lanes", lanes);
    let mut both = two.start();
    both.iter_mut().for_each(|process| process.receives(200));
    disturb(&mut proxy, &mut both);
    proxy.schedule(None);
    let resets = both.each_mut().map(|process| {
        process.receives(200);
        process.now().resets
    });
    let [near, far] = both;
    settle(near, far);
    let report = two.scratch.check();
    assert_eq!((report.delivered, report.received), (report.accepted, report.accepted), "nothing restarted");
    (proxy.broken(), resets)
}

const WAYS: [Break; 4] = [Break::Cut, Break::Reset, Break::ResetDialer, Break::ResetTarget];

/// Breaks connections after so many bytes until enough of them broke.
fn breaks(name: &str, net: u8, lanes: u8, bytes: std::ops::Range<u64>, ways: &[Break]) {
    let (broken, _) = through_proxy(name, net, lanes, |proxy, both| {
        proxy.schedule(Some(Schedule { seed: seed(), bytes: bytes.clone(), ways: ways.to_vec() }));
        let mut span = Span::new(3);
        while span.next() {
            let goal = proxy.broken() + 10;
            both[0].wait("connections break", |_| proxy.broken() >= goal);
        }
    });
    assert!(broken >= 10, "only {broken} connections broke");
}

#[test]
fn cut_connections_cost_nothing_though_tcp_had_acknowledged_what_was_lost() {
    breaks("cut", 7, 1, 100_000..5_000_000, &[Break::Cut]);
}

#[test]
fn reset_connections_cost_nothing() {
    breaks("reset", 8, 1, 100_000..5_000_000, &WAYS[1..]);
}

#[test]
fn connections_that_break_in_their_first_messages_cost_nothing() {
    breaks("early", 9, 1, 1..60_000, &WAYS);
}

#[test]
fn lanes_that_break_one_by_one_cost_nothing() {
    breaks("lanes", 10, 4, 100_000..2_000_000, &WAYS);
}

#[test]
fn all_connections_broken_at_once_cost_nothing() {
    let (broken, _) = through_proxy("at-once", 11, 2, |proxy, both| {
        let mut random = fastrand::Rng::with_seed(seed());
        let mut span = Span::new(12);
        while span.next() {
            both[random.usize(0..2)].receives(random.u64(1..1500));
            proxy.break_all(WAYS[random.usize(0..WAYS.len())]);
        }
    });
    assert!(broken >= 12, "only {broken} connections broke");
}

#[test]
fn a_peer_that_cannot_be_reached_for_a_while_costs_nothing() {
    through_proxy("unreachable", 12, 1, |proxy, both| {
        let mut span = Span::new(2);
        while span.next() {
            proxy.refuse(true);
            proxy.break_all(Break::Reset);
            let goal = proxy.refused() + 5;
            both[0].wait("it tries to connect", |_| proxy.refused() >= goal);
            proxy.refuse(false);
            both.iter_mut().for_each(|process| process.delivers(500));
        }
    });
}

#[test]
fn a_direction_that_stalls_costs_neither_messages_nor_the_connection() {
    let (_, resets) = through_proxy("stall", 13, 1, |proxy, both| {
        let mut span = Span::new(1);
        while span.next() {
            for direction in [Direction::FromDialer, Direction::FromTarget] {
                proxy.stall(direction, true);
                stands_still(both);
                proxy.stall(direction, false);
                both.iter_mut().for_each(|process| process.delivers(500));
            }
        }
    });
    assert_eq!(resets, [0, 0], "connections were lost");
}

/// Waits until no message is accepted or delivered any more.
fn stands_still(both: &mut [Process; 2]) {
    for process in both {
        let (mut before, mut same) = (process.now(), 0);
        while same < 10 {
            let now = process.now();
            same = if (&now.accepted, &now.delivered) == (&before.accepted, &before.delivered) {
                same + 1
            } else {
                0
            };
            before = now;
        }
    }
}

#[test]
fn a_long_and_narrow_way_costs_nothing() {
    through_proxy("narrow", 14, 1, |proxy, both| {
        proxy.delay(Direction::FromDialer, Duration::from_millis(20));
        proxy.delay(Direction::FromTarget, Duration::from_millis(5));
        proxy.limit_rate(Direction::FromDialer, 8 << 20);
        let mut span = Span::new(1);
        while span.next() {
            both.iter_mut().for_each(|process| process.delivers(300));
        }
        for direction in [Direction::FromDialer, Direction::FromTarget] {
            proxy.delay(direction, Duration::ZERO);
            proxy.limit_rate(direction, 0);
        }
    });
}

#[test]
fn a_receiver_that_stops_reading_stops_only_its_own_messages_and_memory_returns() {
    let mut two = two("stopped", 15, NODE);
    let [mut near, mut far] = two.start();
    near.receives(3000);
    far.receives(3000);
    let before = [near.memory(), far.memory()];
    far.command("pause 0");
    // In the long form the socket is stopped all the time, 60 s for instance.
    let mut span = Span::new(1);
    let mut most = 0;
    while span.next() {
        let goal: Vec<u64> = far.now().received.iter().map(|n| n + 3000).collect();
        far.wait("the other sockets receive", |p| (1..3).all(|i| p.received[i] >= goal[i]));
        most = far.memory().max(most);
    }
    assert!(span.is_long() || most > 0);
    let held = rds_tests::ledger::check::Limits::default().queue(RECEIVE_BUFFER);
    let grown = most.saturating_sub(before[1]);
    assert!(
        grown <= held + SLACK,
        "a stopped socket made the node grow by {grown} bytes; it may hold {held}"
    );
    far.command("resume 0");
    let goal = far.now().received[0] + 3000;
    far.wait("the stopped socket receives again", |p| p.received[0] >= goal);
    let resets = near.now().resets.max(far.now().resets);
    assert!(resets <= 1, "{resets} connections were lost");
    near.drain();
    far.drain();
    near.drained();
    far.drained();
    for (process, before) in [&near, &far].into_iter().zip(before) {
        let grown = process.memory().saturating_sub(before);
        assert!(grown <= SLACK, "a process keeps {grown} bytes more than before");
    }
    near.exit();
    far.exit();
    let report = two.scratch.check();
    assert_eq!((report.delivered, report.received), (report.accepted, report.accepted), "nothing restarted");
}

#[test]
fn a_process_that_stands_still_loses_no_message_and_at_most_one_connection() {
    let mut two = two("still", 18, NODE);
    let [mut near, mut far] = two.start();
    near.receives(1000);
    far.receives(1000);
    let before = near.memory();
    far.stand_still();
    // The sender goes on until its buffers are full; in the long form TCP gives up on the other meanwhile.
    let mut span = Span::new(20);
    while span.next() {
        near.now();
    }
    far.go_on();
    near.delivers(1000);
    far.receives(1000);
    let resets = near.now().resets.max(far.now().resets);
    assert!(resets <= 1, "{resets} connections were lost");
    near.drain();
    far.drain();
    near.drained();
    far.drained();
    let grown = near.memory().saturating_sub(before);
    assert!(grown <= SLACK, "the sender keeps {grown} bytes more than before");
    near.exit();
    far.exit();
    let report = two.scratch.check();
    assert_eq!((report.delivered, report.received), (report.accepted, report.accepted), "nothing restarted");
}

#[test]
fn cancelled_messages_end_as_such_and_leave_the_others_alone() {
    let mut two = two("cancel", 16, NODE);
    let [mut near, mut far] = two.start();
    near.receives(500);
    let mut span = Span::new(5);
    while span.next() {
        far.command("pause 1");
        near.delivers(300);
        for socket in 0..3 {
            near.command(&format!("cancel {socket}"));
        }
        far.command("resume 1");
        far.receives(300);
    }
    near.wait("something is cancelled", |p| p.cancelled > 0);
    settle(near, far);
    let report = two.scratch.check();
    assert_eq!(report.delivered + report.cancelled, report.accepted);
}

#[test]
fn memory_returns_after_restarts_and_breaks() {
    let mut two = two("memory", 17, PROXY);
    let proxy = Proxy::start(&two.routes()).expect("the proxy listens");
    let [mut near, far] = two.start();
    let mut far = Some(far);
    near.receives(5000);
    let before = near.memory();
    let mut span = Span::new(3);
    while span.next() {
        near.receives(1000);
        proxy.break_all(Break::Reset);
        near.receives(1000);
        far.take().expect("it runs").kill();
        far.insert(two.far.start()).load();
    }
    near.receives(1000);
    let mut far = far.expect("it runs");
    far.drain();
    near.drain();
    near.drained();
    far.drained();
    let grown = near.memory().saturating_sub(before);
    assert!(grown <= SLACK, "the process keeps {grown} bytes more than before");
    near.exit();
    far.exit();
    two.scratch.check();
}
