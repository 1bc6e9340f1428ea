//! Whole processes of `rds-stress` with zero copy on, where the kernel copies, where it does not, and where it may not pin.

use std::net::Ipv4Addr;
use std::num::NonZeroUsize;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::Command;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rds_tests::address;
use rds_tests::guest::Guest;
use rds_tests::netns::Namespace;
use rds_tests::program::rds_stress;
use rds_tests::proxy::{Break, Direction, Proxy, Route, Schedule, Split};
use rds_tests::skip::or_skip;
use rds_tests::stress::{Ended, Stress};
use rds_tests::unprivileged::{NOBODY, Unprivileged};
use rds_tests::xdp::XdpPass;
use serde_json::Value;

/// TCP ports of control connections, nodes and proxies.
const CONTROL: u16 = 4000;
const NODE: u16 = 17425;
const PROXY: u16 = 17426;

/// Options of a node at `address` that dials `dial`.
fn at(mut command: Command, address: Ipv4Addr, dial: u16) -> Command {
    command.args(["-r", &address.to_string(), "-p", &CONTROL.to_string()]);
    command.args(["--listen-port", &NODE.to_string(), "--dial-port", &dial.to_string()]);
    command
}

fn here(program: &Path) -> Command {
    Command::new(program)
}

/// Both sides, started by `program`, the active one with the options `load`, with zero copy on in both directions. All that they say in
/// the end; no byte was wrong.
#[track_caller]
fn verified(program: impl Fn() -> Command, net: u8, dial: u16, load: &str) -> [Ended; 2] {
    let (passive_at, active_at) = (address(net, 1), address(net, 2));
    let start = |own, more: &str| {
        let mut command = at(program(), own, dial);
        command.args(["--zcopy", "on"]).args(more.split_whitespace());
        Stress::start_after(command, "1.5")
    };
    let mut passive = start(passive_at, "");
    passive.waits();
    let active = start(active_at, &format!("-s {passive_at} -v -T {} {load}", seconds()));
    let ended = [active.end_saying(), passive.end_saying()];
    ended.iter().for_each(|e| all_right(&e.report));
    assert!(number(&ended[0].report, "/requests") > 0.0, "{:#}", ended[0].report);
    ended
}

fn seconds() -> String {
    std::env::var("RDS_ZERO_COPY_SECONDS").unwrap_or_else(|_| "2".to_owned())
}

#[track_caller]
fn all_right(report: &Value) {
    assert_eq!((&report["verify_errors"], &report["verify"]), (&0.into(), &true.into()), "{report:#}");
}

#[track_caller]
fn number(report: &Value, at: &str) -> f64 {
    report.pointer(at).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {at} in {report:#}"))
}

/// Messages that were copied although they should have been pinned.
fn fallbacks(report: &Value) -> f64 {
    let reasons = report.pointer("/zerocopy/send/fallbacks").and_then(Value::as_object);
    reasons.expect("an object").values().filter_map(Value::as_f64).sum()
}

/// Runs `inside` in a thread that keeps to one CPU, as do the processes that it starts.
fn on_one_cpu<T: Send>(inside: impl FnOnce() -> T + Send) -> T {
    let body = || {
        let this = Pid::from_raw(0);
        let allowed = sched_getaffinity(this).expect("every thread has some");
        let last = (0..CpuSet::count()).rev().find(|cpu| allowed.is_set(*cpu) == Ok(true));
        let mut one = CpuSet::new();
        one.set(last.expect("every thread has some")).expect("it exists");
        sched_setaffinity(this, &one).expect("one that it has");
        inside()
    };
    std::thread::scope(|scope| scope.spawn(body).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// With receive buffers that are large from the first, where that can be had: until TCP has made them large it cuts messages where the peer's
/// window ends. And on one CPU: with data both ways between several, loopback reorders segments, and those that report it are no whole
/// pages. Both cost some messages, which are copied.
#[test]
fn nearly_all_of_what_is_received_on_loopback_is_mapped_with_small_messages_in_between() {
    let large_buffers = Namespace::new().ok();
    if let Some(namespace) = &large_buffers {
        namespace.set_sysctl("ipv4/tcp_rmem", "4096 16777216 33554432").expect("root may");
    }
    let loads =
        ["-q 64K -t 2 -d 8", "-q 64K -a 1000 -t 4 -d 4", "-q 1M -t 2 -d 2", "-q 1M -a 1000 -t 2 -d 2"];
    for (net, load) in (50..).zip(loads) {
        let run = || on_one_cpu(|| verified(|| here(rds_stress()), net, NODE, load));
        let ended = large_buffers.as_ref().map_or_else(run, |namespace| namespace.run(run));
        for Ended { report, .. } in ended {
            assert!(number(&report, "/zerocopy/recv/mapped_ratio") >= 0.95, "{load}: {report:#}");
            assert!(number(&report, "/zerocopy/recv/pages_per_call") > 2.0, "{load}: {report:#}");
            // What is said of the path: loopback copies whatever was pinned.
            assert!(number(&report, "/zerocopy/send/calls") > 0.0, "{load}: {report:#}");
            assert_eq!(number(&report, "/zerocopy/send/copied_ratio"), 1.0, "{load}: {report:#}");
        }
    }
}

#[test]
fn connections_that_break_under_zero_copy_show_in_no_byte_and_in_no_order() {
    let routes = [1, 2].map(|host| Route::to(address(55, host), NODE, PROXY));
    let proxy = Proxy::start(&routes).expect("the proxy listens");
    let ways = vec![Break::Cut, Break::Reset, Break::ResetDialer, Break::ResetTarget];
    proxy.schedule(Some(Schedule { seed: 55, bytes: 1_000_000..30_000_000, ways }));
    let [active, _] = verified(|| here(rds_stress()), 55, PROXY, "-t 2 -d 4 -q 64K -a 16K");
    assert!(proxy.broken() >= 3, "only {} connections broke", proxy.broken());
    assert!(number(&active.report, "/zerocopy/send/calls") > 0.0, "{:#}", active.report);
}

/// The middle of the way cuts the streams. With one more byte than a message and its header to each piece, so many messages have been
/// cut at every place.
#[test]
fn messages_are_whole_wherever_streams_are_cut_on_their_way() {
    const EVERY: usize = 48 + 4096 + 1;
    let size = |n| NonZeroUsize::new(n).expect("not 0");
    let cuts = [
        ("-q 4096 -t 1 -d 16", Split::every(size(EVERY))),
        ("-q 64K -t 1 -d 4", Split::random(7, size(9000))),
    ];
    for (net, (load, split)) in (70..).zip(cuts) {
        let routes = [1, 2].map(|host| Route::to(address(net, host), NODE, PROXY));
        let mut proxy = Proxy::start(&routes).expect("the proxy listens");
        for direction in [Direction::FromDialer, Direction::FromTarget] {
            proxy.split(direction, Some(split));
        }
        let [active, _] = verified(|| here(rds_stress()), net, PROXY, load);
        assert!(number(&active.report, "/zerocopy/send/calls") > 0.0, "{:#}", active.report);
        assert!(proxy.bytes() as usize > EVERY * EVERY, "{load}: only {} bytes were cut", proxy.bytes());
    }
}

/// Locked memory that ends before a message of 1 MiB does, and even before one of 64 KiB.
#[test]
fn where_next_to_nothing_may_be_pinned_messages_of_1_mib_flow_and_a_line_names_the_limit() {
    let Some(program) = or_skip(Unprivileged::new(rds_stress())) else { return };
    // A user of its own: what others have locked counts as well.
    let program = program.with_user(NOBODY - 2000 - std::process::id() % 1000);
    for (net, limit) in (60..).zip([0, 64 << 10, 256 << 10]) {
        let [active, passive] = verified(|| program.command(limit), net, NODE, "-q 1M -t 2 -d 4");
        for Ended { report, lines } in [&active, &passive] {
            assert!(fallbacks(report) > 0.0, "{limit}: {report:#}");
            assert!(number(report, "/zerocopy/pinned_bytes_max") <= limit as f64, "{limit}: {report:#}");
            let named: Vec<_> = lines.iter().filter(|l| l.contains("RLIMIT_MEMLOCK")).collect();
            // Once a minute at most, with the value and the remedy.
            assert_eq!(named.len(), 1, "{limit}: {lines:#?}");
            assert!(named[0].contains(&limit.to_string()) && named[0].contains("ulimit -l"), "{named:?}");
        }
    }
}

#[test]
fn where_some_may_be_pinned_as_much_is_and_no_more() {
    let Some(program) = or_skip(Unprivileged::new(rds_stress())) else { return };
    let program = program.with_user(NOBODY - 3000 - std::process::id() % 1000);
    let limit = 1 << 20;
    let [active, _] = verified(|| program.command(limit), 63, NODE, "-q 64K -t 2 -d 8");
    let report = &active.report;
    assert!(number(report, "/zerocopy/send/calls") > 0.0, "{report:#}");
    let most = number(report, "/zerocopy/pinned_bytes_max");
    assert!(most > 0.0 && most <= limit as f64, "{report:#}");
}

#[test]
fn a_path_that_does_not_copy_is_seen_as_one_and_every_byte_arrives() {
    let Some(namespace) = or_skip(Namespace::new()) else { return };
    let Some(pass) = or_skip(XdpPass::attach(&namespace)) else { return };
    for (net, load) in (64..).zip(["-q 64K -t 2 -d 8", "-q 1M -t 2 -d 4", "-q 16K -a 8K -t 2 -d 8"]) {
        for Ended { report, .. } in namespace.run(|| verified(|| here(rds_stress()), net, NODE, load)) {
            assert!(number(&report, "/zerocopy/send/calls") > 0.0, "{load}: {report:#}");
            assert!(number(&report, "/zerocopy/send/completions_per_reap") > 0.0, "{load}: {report:#}");
            assert_eq!(number(&report, "/zerocopy/send/copied_ratio"), 0.0, "{load}: {report:#}");
        }
    }
    pass.detach();
}

#[test]
fn the_network_card_of_a_guest_takes_payloads_without_a_copy() {
    let Some(guest) = or_skip(Guest::start()) else { return };
    let program = guest.put(rds_stress());
    let passive = || {
        let mut command = at(here(rds_stress()), Guest::HOST_BELOW, NODE);
        command.args(["--zcopy", "on"]);
        Stress::start(command)
    };
    let mut passive = guest.host().run(passive);
    passive.waits();
    let mut active = at(guest.command(&program), Guest::ADDRESS, NODE);
    active.args(["-s", &Guest::HOST_BELOW.to_string(), "-t", "2", "-d", "4", "-q", "64K", "-T", "3", "-v"]);
    active.args(["--zcopy", "on"]);
    let active = Stress::start(active).end();
    for report in [&active, &passive.end()] {
        all_right(report);
        assert!(number(report, "/zerocopy/send/calls") > 0.0, "{report:#}");
    }
    assert!(number(&active, "/requests") > 0.0, "{active:#}");
    assert_eq!(number(&active, "/zerocopy/send/copied_ratio"), 0.0, "{active:#}");
}

/// One of the columns of a line of the table, counted from 0; `None` if it is none.
fn column(line: &str, index: usize) -> Option<f64> {
    let numbers: Option<Vec<f64>> = line.split_whitespace().map(|w| w.parse().ok()).collect();
    numbers.filter(|n| n.len() == 15).map(|n| n[index])
}

/// Requests sent in a second, and KiB pinned at its end.
fn sent_and_pinned(line: &str) -> Option<(f64, f64)> {
    Some((column(line, 1)?, column(line, 14)?))
}

/// The peer is stopped, and its TCP has no room for what a node sends ahead. For so many seconds as `RDS_CLOSED_WINDOW_SECONDS` says (60
/// is what the promise names), with the default limit of 30 s; without it for a few, with a short limit.
#[test]
fn a_peer_whose_window_stays_closed_holds_no_pinned_memory_and_nothing_is_lost() {
    let Some(namespace) = or_skip(Namespace::new()) else { return };
    namespace.set_sysctl("ipv4/tcp_rmem", "4096 65536 262144").expect("root may");
    let (passive_at, active_at) = (address(67, 1), address(67, 2));
    let long: Option<u64> = std::env::var("RDS_CLOSED_WINDOW_SECONDS").ok().and_then(|s| s.parse().ok());
    let start = |own, more: &str| {
        let mut command = at(here(rds_stress()), own, NODE);
        command.args(["--zcopy", "on"]).args(more.split_whitespace());
        namespace.run(|| Stress::start(command))
    };
    let mut passive = start(passive_at, "");
    passive.waits();
    let hold = if long.is_some() { "" } else { "--pin-hold 3" };
    let mut active = start(active_at, &format!("-s {passive_at} -v -T 0 -q 256K -d 32 {hold}"));
    active.says(|line| sent_and_pinned(line).is_some_and(|(sent, _)| sent > 0.0));
    passive.signal(Signal::SIGSTOP);
    active.says(|line| sent_and_pinned(line).is_some_and(|(sent, pinned)| sent == 0.0 && pinned > 0.0));
    for _ in 0..long.unwrap_or(0) {
        active.says(|line| sent_and_pinned(line).is_some());
    }
    active.says(|line| sent_and_pinned(line).is_some_and(|(sent, pinned)| sent == 0.0 && pinned == 0.0));
    passive.signal(Signal::SIGCONT);
    for _ in 0..2 {
        active.says(|line| sent_and_pinned(line).is_some_and(|(sent, _)| sent > 0.0));
    }
    active.signal(Signal::SIGINT);
    // A message that was lost, repeated or changed would have ended them with an error.
    for report in [active.end(), passive.end()] {
        all_right(&report);
        assert!(number(&report, "/requests") > 0.0, "{report:#}");
    }
}
