//! `rds-stress` over daemons, its tasks as processes: what README.md shows, with addresses of this test's own.

use std::net::Ipv4Addr;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rds_tests::address;
use rds_tests::daemon::{Daemon, Plan};
use rds_tests::ledger::process::Scratch;
use rds_tests::program::rds_stress;
use rds_tests::stress::Stress;

const CONTROL: u16 = 4000;
const NODE: u16 = 17413;

fn plan(scratch: &Scratch, address: Ipv4Addr) -> Plan {
    Plan::new(scratch, address).with("listen-port", NODE).with("dial-port", NODE)
}

/// A side that is a client of the daemon of `plan`.
fn side(plan: &Plan, more: &[&str]) -> Stress {
    let mut command = Command::new(rds_stress());
    command.args(["-r", &plan.address().to_string(), "-p", &CONTROL.to_string(), "--attach"]);
    command.arg(plan.socket()).args(more);
    Stress::start(command)
}

fn verified(net: u8, more: &[&str], load: &[&str]) -> [serde_json::Value; 2] {
    let scratch = Scratch::new(&format!("stress-{net}"));
    let mut plans = [plan(&scratch, address(net, 1)), plan(&scratch, address(net, 2))];
    let daemons = plans.each_mut().map(Plan::start);
    let mut passive = side(&plans[0], more);
    passive.waits();
    let host = plans[0].address().to_string();
    let active = side(&plans[1], &[&["-s", &host, "-T", "1", "-v"], more, load].concat());
    let reports = [active.end(), passive.end()];
    for report in &reports {
        assert_eq!(report["verify_errors"], 0, "{report:#}");
        assert!(report["requests"].as_u64() > Some(0), "{report:#}");
        assert!(report["cpu_s"]["user"].as_f64() > Some(0.0), "the tasks' processes count: {report:#}");
    }
    daemons.into_iter().for_each(Daemon::stop);
    reports
}

#[test]
fn four_processes_a_side_with_eight_requests_of_a_page_verify_each_other_through_two_daemons() {
    verified(51, &["--processes"], &["-t", "4", "-d", "8", "-q", "4096"]);
}

#[test]
fn tasks_as_threads_share_one_attachment() {
    verified(52, &[], &["-t", "4", "-d", "8", "-q", "4096"]);
}

#[test]
fn large_messages_go_straight_out_of_the_shared_memory() {
    verified(53, &["--processes"], &["-t", "2", "-d", "4", "-q", "1M", "--zcopy-send", "on"]);
}

/// Processes of a program's tasks.
fn tasks(parent: &Stress) -> Vec<i32> {
    let listed = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", parent.id()));
    let listed = listed.expect("the program runs, on a kernel that lists children");
    listed.split_whitespace().map(|id| id.parse().expect("a number")).collect()
}

#[test]
fn a_killed_task_ends_the_run_with_an_error_that_says_which_and_why() {
    let scratch = Scratch::new("stress-killed");
    let mut plans = [plan(&scratch, address(54, 1)), plan(&scratch, address(54, 2))];
    let _daemons = plans.each_mut().map(Plan::start);
    let mut passive = side(&plans[0], &["--processes"]);
    passive.waits();
    let host = plans[0].address().to_string();
    let mut active = side(&plans[1], &["-s", &host, "-T", "30", "-t", "3", "--processes"]);
    active.says(|line| line.starts_with("tsks"));
    let victim = tasks(&active)[1];
    kill(Pid::from_raw(victim), Signal::SIGKILL).expect("it runs");
    let (status, lines) = active.fails();
    assert_eq!(status, Some(1), "{lines:#?}");
    let all = lines.join("\n");
    assert!(all.contains(&format!("task 1: its process ({victim}) was killed by SIGKILL")), "{all}");
    assert!(all.contains("1 of 3 tasks died"), "{all}");
    // The end of the active side is the end of the passive one, which has no complaint.
    let _ = passive.end();
}

#[test]
fn tasks_end_with_a_parent_that_is_killed() {
    let scratch = Scratch::new("stress-orphans");
    let mut plans = [plan(&scratch, address(55, 1)), plan(&scratch, address(55, 2))];
    let mut daemons = plans.each_mut().map(Plan::start);
    let before = daemons[1].files();
    let mut passive = side(&plans[0], &["--processes"]);
    passive.waits();
    let host = plans[0].address().to_string();
    let mut active = side(&plans[1], &["-s", &host, "-T", "30", "-t", "3", "--processes"]);
    active.says(|line| line.starts_with("tsks"));
    active.signal(Signal::SIGKILL);
    daemons[1].until("all its clients are gone", |daemon| daemon.files() <= before + 2);
    let _ = passive.end();
}
