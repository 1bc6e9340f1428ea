//! Many clients of one daemon, of which some are killed or stand still: the others go on, and nothing stays behind.
//!
//! `RDS_KILL_SECONDS=N` kills for N seconds instead of a few.

use std::path::Path;
use std::time::{Duration, Instant};

use rds_client::Snapshot;
use rds_tests::address;
use rds_tests::crowd::{Member, Plan, at, say_all};
use rds_tests::daemon::{Daemon, Plan as DaemonPlan};
use rds_tests::ledger::process::{PATIENCE, Scratch};

const CROWD: &str = env!("CARGO_BIN_EXE_rds-crowd");
/// TCP port of the daemons' nodes.
const NODE: u16 = 17412;
/// What the allocator may keep of a daemon's memory, in bytes.
const SLACK: u64 = 24 << 20;

fn daemon(scratch: &Scratch, net: u8, host: u8) -> DaemonPlan {
    DaemonPlan::new(scratch, address(net, host)).with("listen-port", NODE).with("dial-port", NODE)
}

/// What there should not be of a daemon whose clients have nothing to do.
fn restless(now: &Snapshot) -> Vec<String> {
    rds_tests::interop::ours::restless(now)
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < PATIENCE, "never: {what}");
    }
}

#[test]
fn clients_killed_at_any_moment_leave_nothing_behind_and_cost_nobody_else_a_message() {
    let scratch = Scratch::new("killed-clients");
    let mut plans = [daemon(&scratch, 41, 1), daemon(&scratch, 41, 2)];
    let mut daemons = plans.each_mut().map(DaemonPlan::start);
    let places: Vec<(usize, u16)> = (0..8).map(|n| (usize::from(n % 2), 100 + n)).collect();
    let plan = |(index, port): (usize, u16)| {
        let plan = &plans[index];
        Plan::new(Path::new(CROWD), plan.socket(), at(plan.address(), port))
            .with("sizes", "64,5000,100,70000,4096,900,262144")
    };
    let mut crowd: Vec<Plan> = places.iter().map(|place| plan(*place)).collect();
    let all: Vec<_> = crowd.iter().map(Plan::at).collect();
    for plan in &mut crowd {
        let own = plan.at();
        all.iter().filter(|other| **other != own).for_each(|other| plan.to(*other));
    }
    let mut victims = crowd.split_off(4);
    let mut survivors: Vec<Member> = crowd.iter_mut().map(Plan::start).collect();
    survivors.iter_mut().for_each(Member::bound);
    // What the daemons need for those that stay, at rest.
    let before = daemons.each_ref().map(Daemon::files);
    let memory = daemons.each_ref().map(Daemon::memory);
    let mut dying: Vec<Member> = victims.iter_mut().map(Plan::start).collect();
    dying.iter_mut().for_each(Member::bound);
    survivors.iter_mut().chain(&mut dying).for_each(Member::go);

    let seconds = std::env::var("RDS_KILL_SECONDS").ok().map(|n| n.parse().expect("a whole number"));
    let (began, limit) = (Instant::now(), Duration::from_secs(seconds.unwrap_or(4)));
    let mut random = fastrand::Rng::with_seed(7);
    let mut killed = 0;
    while began.elapsed() < limit || killed < 8 {
        let index = random.usize(0..dying.len());
        // Anywhere between its first instruction and full load.
        for _ in 0..random.u32(0..4) {
            say_all(&mut survivors);
        }
        dying.swap_remove(index).kill();
        let mut plan = victims.swap_remove(index);
        let mut next = plan.start();
        victims.push(plan);
        if random.bool() {
            next.bound();
            next.go();
        }
        dying.push(next);
        killed += 1;
    }
    let answered = |said: &[rds_tests::crowd::Said]| said.iter().flat_map(|s| &s.answered).sum::<u64>();
    let so_far = answered(&say_all(&mut survivors));
    dying.into_iter().for_each(Member::kill);
    until("the others go on", || answered(&say_all(&mut survivors)) >= so_far + 500);
    survivors.iter_mut().for_each(Member::rest);
    // Each has an answer to all that it asked of those that live: its first three targets, for itself is none of them.
    until("every request is answered", || {
        say_all(&mut survivors).iter().all(|said| said.outstanding[..3].iter().all(|n| *n == 0))
    });
    for ((daemon, files), memory) in daemons.iter_mut().zip(before).zip(memory) {
        // And the connection with the other daemon, or two while one takes the other's place.
        daemon.until("it has closed what it had for the dead", |daemon| daemon.files() <= files + 2);
        daemon.until("it holds and pins nothing", |daemon| restless(&daemon.snapshot()).is_empty());
        daemon.until("its memory is as before", |daemon| daemon.memory() <= memory + SLACK);
    }
    survivors.into_iter().for_each(Member::end);
    daemons.into_iter().for_each(Daemon::stop);
    eprintln!("{killed} clients were killed");
}

/// How many clients, and how many of them stand still or die.
const MANY: u16 = 200;
const LAME: u16 = 10;

#[test]
fn ten_lame_clients_of_two_hundred_hold_up_none_of_the_others() {
    let scratch = Scratch::new("lame-clients");
    let mut plan = daemon(&scratch, 42, 1);
    let daemon = plan.start();
    let place = |n: u16| at(plan.address(), 1000 + n);
    let mut crowd: Vec<Plan> = (0..MANY)
        .map(|n| {
            let mut plan = Plan::new(Path::new(CROWD), plan.socket(), place(n)).with("depth", 2);
            // Two by two, and each in twenty asks one that will be lame as well.
            plan.to(place(n ^ 1));
            if n % 20 >= 18 {
                plan.also_to(place(n / 20));
            }
            plan
        })
        .collect();
    let mut members: Vec<Member> = crowd.iter_mut().map(Plan::start).collect();
    members.iter_mut().for_each(Member::bound);
    members.iter_mut().for_each(Member::go);
    until("everybody is answered", || say_all(&mut members).iter().all(|said| said.answered[0] >= 5));
    let mut lame: Vec<Member> = members.drain(..usize::from(LAME)).collect();
    let mut random = fastrand::Rng::with_seed(3);
    let mut still = Vec::new();
    while let Some(member) = lame.pop() {
        if random.bool() {
            member.kill();
        } else {
            member.stand_still(true);
            still.push(member);
        }
    }
    let before: Vec<u64> = say_all(&mut members).iter().map(|said| said.answered[0]).collect();
    until("all the others go on", || {
        let now = say_all(&mut members);
        now.iter().zip(&before).all(|(said, before)| said.answered[0] >= before + 10)
    });
    for member in &still {
        member.stand_still(false);
    }
    members.iter_mut().for_each(Member::rest);
    until("nothing of theirs is lost", || say_all(&mut members).iter().all(|said| said.outstanding[0] == 0));
    // Those that stood still have lost nothing either, but what they asked of the dead.
    until("they have caught up", || say_all(&mut still).iter().all(|said| said.asked > 0));
    members.into_iter().chain(still).for_each(Member::end);
    daemon.stop();
}

#[test]
fn a_setting_waits_for_the_daemons_answer_and_no_longer() {
    let scratch = Scratch::new("settings");
    let daemon = daemon(&scratch, 43, 1).start();
    let node = daemon.attach();
    let socket = node.bind(5).expect("a free port");
    let since = Instant::now();
    // Each would take a second if nobody told that the answer has come: far more than there is patience for.
    for n in 1..=100 {
        socket.set_recv_buffer(n << 16);
        socket.set_send_buffer(n << 16);
    }
    assert!(since.elapsed() < PATIENCE, "{:?}", since.elapsed());
    drop((socket, node));
    daemon.stop();
}
