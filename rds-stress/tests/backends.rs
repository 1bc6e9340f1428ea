//! The other backends: plain TCP, and what can be said of the kernel's RDS without having it.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;

use common::{Ended, Program, SHORT, addresses, free_port, passive, run};
use nix::sys::signal::Signal;
use rds_core::kernel::{KernelBindError, KernelInfo};

fn json(ended: &Ended) -> serde_json::Value {
    assert_eq!(ended.status, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    serde_json::from_str(&ended.stdout).unwrap()
}

fn loopback(line: &str) -> serde_json::Value {
    let port = free_port();
    json(&run(&format!("--loopback --backend tcp --rds-port {port} {SHORT} -T 1 --json {line}")))
}

#[test]
fn tcp_carries_the_same_traffic_and_every_byte_is_checked() {
    for line in [
        "-v",
        "-v -t 3 -d 8 -q 4k -a 200",
        "-v -t 2 -d 4 -q 64k -o",
        "-v -t 2 -d 2 -q 1m -a 1m",
        "-t 1 -d 300 -q 63",
        "-v -a 4096 -q 256",
    ] {
        let report = loopback(line);
        assert_eq!((&report["backend"], &report["verify_errors"]), (&"tcp".into(), &0.into()), "{line}");
        assert!(report["requests"].as_u64() > Some(0), "{line}: {report:#}");
        let back = report["requests_received"].as_u64() > Some(0);
        assert_eq!(back, !line.contains("-o"), "{line}: {report:#}");
        assert_eq!(report["counters"], serde_json::json!({}), "TCP counts nothing");
        assert_eq!(report["zerocopy"]["send"]["decision"], "off");
    }
}

#[test]
fn two_processes_over_tcp_verify_each_other() {
    let (at, active_at) = addresses();
    let mut passive = passive(at, "--backend tcp");
    let active = run(&format!("-r {active_at} -s {at} --backend tcp {SHORT} -T 1 -t 2 -d 4 -v --json"));
    let report = json(&active);
    assert_eq!((&report["backend"], &report["verify_errors"]), (&"tcp".into(), &0.into()));
    assert!(report["requests"].as_u64() > Some(0), "{report:#}");
    passive.wait_line(|line| line.contains("(average)"));
    assert_eq!(passive.end().status, Some(0));
}

#[test]
fn a_stranger_at_the_tcp_port_is_sent_away_and_harms_no_run() {
    let (at, active_at) = addresses();
    let passive = passive(at, "--backend tcp");
    // Garbage, and one that goes away; both before the active side has come.
    let mut garbage = TcpStream::connect((at, 16385)).unwrap();
    garbage.write_all(&[0xee; 400]).unwrap();
    drop(TcpStream::connect((at, 16385)).unwrap());
    let active = run(&format!("-r {active_at} -s {at} --backend tcp {SHORT} -T 1 -t 2 -v --json"));
    assert!(json(&active)["requests"].as_u64() > Some(0));
    assert_eq!(passive.end().status, Some(0));
    // Read to its end, which may be a reset.
    let _ = garbage.read_to_end(&mut Vec::new());
}

#[test]
fn a_killed_side_over_tcp_ends_or_leaves_the_other_as_over_rds() {
    for kill_passive in [true, false] {
        let (at, active_at) = addresses();
        let mut passive = passive(at, "--backend tcp");
        let mut active =
            Program::start(&format!("-r {active_at} -s {at} --backend tcp {SHORT} -T 2 -t 2 -d 4"));
        active.wait_line(common::is_row);
        if kill_passive {
            passive.signal(Signal::SIGKILL);
            assert_eq!(active.end().status, Some(0), "it runs to its end");
        } else {
            passive.wait_line(common::is_row);
            active.signal(Signal::SIGKILL);
            let ended = passive.end();
            assert_eq!(ended.status, Some(0));
            assert!(ended.stdout.contains("(average)"), "{ended:?}");
        }
    }
}

#[test]
fn sides_with_different_backends_say_so() {
    let (at, active_at) = addresses();
    let passive = passive(at, "");
    let active = run(&format!("-r {active_at} -s {at} --backend tcp {SHORT} -T 1"));
    assert_eq!(active.status, Some(1), "{active:?}");
    assert!(active.stderr.contains("--backend tcp"), "{active:?}");
    drop(passive);
}

#[test]
fn a_kernel_without_rds_is_said_with_what_to_do() {
    match KernelInfo::open() {
        Err(KernelBindError::NoModule) => {}
        other => {
            // Past the test harness, which swallows what a passing test prints with println!.
            let _ = writeln!(std::io::stderr(), "skipped: this kernel has RDS: {other:?}");
            return;
        }
    }
    let (at, _) = addresses();
    for line in [format!("-r {at}"), "--loopback".into(), format!("-r {at} -s 127.0.0.1")] {
        let ended = run(&format!("{line} --backend kernel"));
        assert_eq!((ended.status, ended.stderr.lines().count()), (Some(1), 1), "{ended:?}");
        for word in ["AF_RDS", "modprobe rds_tcp", "--backend rds"] {
            assert!(ended.stderr.contains(word), "{word}: {ended:?}");
        }
    }
}
