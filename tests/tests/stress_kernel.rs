//! Whole sessions of `rds-stress` between a node of ours on this machine and the kernel's RDS in a guest, and between two kernels.
//!
//! The program is the same on both sides, with `--backend kernel` in the guest: every message of either stack is checked by the
//! other, its number, its order and each of its bytes.

use std::net::IpAddr;
use std::process::Command;

use nix::sys::signal::Signal;
use rds_tests::guest::{Guest, Kernel};
use rds_tests::program::{rds_stress, static_rds_stress};
use rds_tests::skip::or_skip;
use rds_tests::stress::{Ended, Stress};

/// Loads: options of the active side, and whether the passive one asks, too.
const LOADS: [(&str, bool); 6] = [
    ("-t 1 -d 1 -v", true),
    ("-t 4 -d 8 -q 4096 -v", true),
    ("-t 2 -d 4 -q 64K -v -o", false),
    ("-t 1 -d 2 -q 1M -v", true),
    ("-a 4096 -q 256 -v", true),
    ("-t 2 -d 8 -q 4096 -v --use-cong-monitor 0", true),
];

/// Pages, both ways.
const PAGES: &str = "-t 2 -d 4 -q 4096 -v";

/// A guest with the program in it.
struct Rig {
    guest: Guest,
    program: String,
    /// A control port, and RDS ports, for each session: what one leaves behind must not reach the next.
    port: u16,
}

impl Rig {
    fn start(kernel: Kernel) -> Option<Self> {
        let guest = or_skip(Guest::with_kernel(kernel))?;
        let program = guest.put(static_rds_stress());
        Some(Self { guest, program, port: 4000 })
    }

    fn next(&mut self) {
        self.port += 20;
    }

    fn with(&self, mut command: Command, at: IpAddr, options: &str) -> Command {
        let port = self.port.to_string();
        command.args(["-r", &at.to_string(), "-p", &port]).args(options.split_whitespace());
        command
    }

    /// A side on this machine, at `at`.
    fn ours(&self, at: IpAddr, options: &str) -> Stress {
        self.guest.host().run(|| Stress::start(self.with(Command::new(rds_stress()), at, options)))
    }

    /// A side in the guest, at `at`.
    fn theirs(&self, at: IpAddr, options: &str) -> Stress {
        let options = format!("--backend kernel {options}");
        Stress::start(self.with(self.guest.command(&self.program), at, &options))
    }

    /// A session with the active side in the guest or on this machine, both with `options`, until each side has seen what it should;
    /// both reports, the active one's first.
    fn session(
        &mut self,
        [here, there]: [IpAddr; 2],
        guest_is_active: bool,
        options: &str,
        (load, both_ask): (&str, bool),
    ) -> [Ended; 2] {
        self.next();
        let (active, passive) = if guest_is_active { (there, here) } else { (here, there) };
        let side = |is_guest: bool, at, more: &str| {
            let options = format!("--drain 0.3 {options} {more}");
            if is_guest { self.theirs(at, &options) } else { self.ours(at, &options) }
        };
        let mut waiting = side(!guest_is_active, passive, "");
        waiting.waits();
        let mut active = side(guest_is_active, active, &format!("-s {passive} --connect-retries 2 {load}"));
        exchanged(&mut active, &mut waiting, both_ask);
        if guest_is_active {
            self.guest.shell("kill -INT $(pidof rds-stress)");
        } else {
            active.signal(Signal::SIGINT);
        }
        [active.end_saying(), waiting.end_saying()]
    }
}

/// The numbers of a line of the table: requests sent, received, and the mean round trip.
fn row(line: &str) -> Option<[f64; 3]> {
    let numbers: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    (numbers.len() >= 9).then(|| [numbers[1], numbers[2], numbers[7]])
}

/// Returns when each side has shown what it has to do. An emulated machine may need its time for that.
fn exchanged(active: &mut Stress, passive: &mut Stress, both_ask: bool) {
    let answered = |line: &str| row(line).is_some_and(|[_, _, rtt]| rtt > 0.0);
    let asked = |line: &str| row(line).is_some_and(|[_, received, _]| received > 0.0);
    active.says(answered);
    passive.says(asked);
    if both_ask {
        passive.says(answered);
        active.says(asked);
    }
}

fn verified(reports: &[Ended; 2], both_ask: bool, what: &str) {
    let [active, passive] = reports.each_ref().map(|ended| &ended.report);
    for report in [active, passive] {
        assert_eq!(
            (&report["verify_errors"], &report["verify"]),
            (&0.into(), &true.into()),
            "{what}: {report:#}"
        );
    }
    let count = |report: &serde_json::Value, key: &str| report[key].as_u64().expect("a number");
    assert!(
        count(active, "requests") > 0 && count(passive, "requests_received") > 0,
        "{what}: {active:#}{passive:#}"
    );
    assert_eq!(count(passive, "requests") > 0, both_ask, "{what}: {passive:#}");
    assert_eq!(count(active, "requests_received") > 0, both_ask, "{what}: {active:#}");
}

/// Each load with either side active; each of those as the smaller and as the larger address, with half of the loads: emulated sessions
/// take their time.
fn all_loads(rig: &mut Rig) {
    for (number, (load, both_ask)) in LOADS.into_iter().enumerate() {
        for guest_is_active in [false, true] {
            let here = [Guest::HOST_BELOW, Guest::HOST_ABOVE][(number + usize::from(guest_is_active)) % 2];
            let what = format!("{here}, guest active: {guest_is_active}, {load}");
            println!("{what}");
            let at = [here.into(), Guest::ADDRESS.into()];
            let ended = rig.session(at, guest_is_active, "", (load, both_ask));
            verified(&ended, both_ask, &what);
            let guest = &ended[usize::from(!guest_is_active)].report;
            assert_eq!(guest["backend"], "kernel");
            assert!(guest["counters"]["copy_to_user"].as_u64() > Some(0), "the kernel carried it: {guest:#}");
        }
    }
}

/// 96-byte headers, and options in a V3 block.
fn over_ipv6(rig: &mut Rig) {
    for here in [Guest::HOST_BELOW_V6, Guest::HOST_ABOVE_V6] {
        for guest_is_active in [false, true] {
            let at = [here.into(), Guest::ADDRESS_V6.into()];
            let ended = rig.session(at, guest_is_active, "", (PAGES, true));
            verified(&ended, true, &format!("{here}, guest active: {guest_is_active}"));
            assert_eq!(ended[0].report["ack_bytes"], 96);
        }
    }
}

/// A side that is killed (as by SIGKILL of its parent) ends the other one as the reference does, and the next session works.
fn killed(rig: &mut Rig) {
    let (here, there) = (IpAddr::from(Guest::HOST_BELOW), IpAddr::from(Guest::ADDRESS));
    for guest_is_active in [false, true] {
        for kill_guest in [false, true] {
            rig.next();
            let (active, passive) = if guest_is_active { (there, here) } else { (here, there) };
            let load = format!("-s {passive} -T 4 {PAGES}");
            let mut waiting = if guest_is_active { rig.ours(passive, "") } else { rig.theirs(passive, "") };
            waiting.waits();
            let mut active =
                if guest_is_active { rig.theirs(active, &load) } else { rig.ours(active, &load) };
            active.says(|line| line.trim_start().starts_with("2 "));
            let (ours, theirs) = if guest_is_active { (waiting, active) } else { (active, waiting) };
            let left = if kill_guest {
                rig.guest.shell("kill -KILL $(pidof rds-stress)");
                drop(theirs);
                ours
            } else {
                ours.signal(Signal::SIGKILL);
                drop(ours);
                theirs
            };
            // Status 0, and a report, whichever side is left.
            let report = left.end();
            assert_eq!(report["verify_errors"], 0, "{report:#}");
            let ended = rig.session([here, there], guest_is_active, "", (PAGES, true));
            verified(
                &ended,
                true,
                &format!("after a kill, guest active: {guest_is_active}, killed: {kill_guest}"),
            );
        }
    }
}

/// Messages that the guest's kernel sends from where they lie, and ours towards it.
fn zero_copy(rig: &mut Rig) {
    for guest_is_active in [false, true] {
        let at = [Guest::HOST_ABOVE.into(), Guest::ADDRESS.into()];
        let load = ("-t 2 -d 4 -q 64K -v", true);
        let ended = rig.session(at, guest_is_active, "--zcopy-send on", load);
        verified(&ended, true, "zero copy");
        let guest = &ended[usize::from(!guest_is_active)].report["zerocopy"]["send"];
        assert!(guest["calls"].as_u64() > Some(0), "{guest:#}");
        assert!(guest["completions_per_reap"].as_f64() >= Some(1.0), "cookies come back: {guest:#}");
    }
}

/// Cancelling what is on its way, which the kernel and we do each in their own way.
fn cancelled(rig: &mut Rig) {
    let (here, there) = (IpAddr::from(Guest::HOST_BELOW), IpAddr::from(Guest::ADDRESS));
    for guest_is_active in [false, true] {
        let load = format!("{PAGES} --cancel-sent-to");
        let ended = rig.session([here, there], guest_is_active, "", (&load, true));
        verified(&ended, true, "cancelling");
        let lines = ended[0].lines.iter().filter(|line| line.contains("cancelled")).count();
        assert_eq!(lines, 4, "one for each pair of tasks: {:#?}", ended[0].lines);
    }
}

#[test]
fn full_sessions_with_kernel_6_1_verify_in_both_roles_as_the_smaller_and_the_larger_address() {
    let Some(mut rig) = Rig::start(Kernel::V6_1) else { return };
    all_loads(&mut rig);
    over_ipv6(&mut rig);
}

#[test]
fn full_sessions_with_kernel_6_12_verify_in_both_roles_as_the_smaller_and_the_larger_address() {
    let Some(mut rig) = Rig::start(Kernel::V6_12) else { return };
    all_loads(&mut rig);
    over_ipv6(&mut rig);
}

#[test]
fn full_sessions_with_the_newest_kernel_verify_in_both_roles_as_the_smaller_and_the_larger_address() {
    let Some(mut rig) = Rig::start(Kernel::Newest) else { return };
    all_loads(&mut rig);
    over_ipv6(&mut rig);
}

#[test]
fn a_killed_side_leaves_the_other_as_the_reference_does_and_zero_copy_and_cancelling_work_with_a_kernel() {
    let Some(mut rig) = Rig::start(Kernel::V6_12) else { return };
    killed(&mut rig);
    zero_copy(&mut rig);
    cancelled(&mut rig);
}

#[test]
fn two_kernels_exchange_verified_messages_without_a_copy() {
    let Some(guests) = or_skip(Guest::several(Kernel::V6_12, 2)) else { return };
    let [program, _] = [0, 1].map(|i| guests[i].put(static_rds_stress()));
    let side = |mut command: Command, at: IpAddr, more: &str| {
        command.args(["-r", &at.to_string()]).args("--backend kernel --zcopy on".split(' '));
        command.args(more.split_whitespace());
        Stress::start(command)
    };
    let session = |port: u16, load: &str, both_ask: bool| {
        let mut passive = side(guests[0].command(&program), Guest::ADDRESS.into(), &format!("-p {port}"));
        passive.waits();
        let load = format!("-p {port} -s {} {load}", Guest::ADDRESS);
        let mut active = side(guests[1].command(&program), Guest::SECOND.into(), &load);
        exchanged(&mut active, &mut passive, both_ask);
        guests[1].shell("kill -INT $(pidof rds-stress)");
        [active.end_saying(), passive.end_saying()]
    };
    // Kernels up to 6.18 let messages overtake each other while two of them find out how many connections they share. Here no
    // message is sent before the one before has come.
    verified(&session(4000, "-t 1 -d 1 -q 64K -v -o", false), false, "one message at a time");
    let ended = session(4100, "-t 2 -d 4 -q 64K -v", true);
    verified(&ended, true, "two kernels");
    for ended in &ended {
        let send = &ended.report["zerocopy"]["send"];
        assert!(send["calls"].as_u64() > Some(0) && send["decision"] == "on", "{send:#}");
    }
}
