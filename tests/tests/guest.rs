//! Between this machine and a virtual one, over a virtio network card.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;

use rds_tests::copied;
use rds_tests::guest::Guest;
use rds_tests::program::rds_stress;
use rds_tests::skip::or_skip;
use rds_tests::stress::Stress;

/// TCP ports of control connections and nodes. The guest's kernel has 16385.
const CONTROL: &str = "4000";
const NODE: &str = "17485";

fn options(mut command: Command, address: Ipv4Addr) -> Command {
    command.args(["-r", &address.to_string(), "-p", CONTROL, "--listen-port", NODE, "--dial-port", NODE]);
    command
}

/// A passive side here and an active one in the guest. Both check every byte of the other.
fn verified(guest: &Guest, program: &str, here: Ipv4Addr) {
    let passive = || Stress::start(options(Command::new(rds_stress()), here));
    let mut passive = guest.host().run(passive);
    passive.waits();
    let mut active = options(guest.command(program), Guest::ADDRESS);
    active.args(["-s", &here.to_string(), "-t", "2", "-d", "4", "-q", "64K", "-T", "2", "-v"]);
    let active = Stress::start(active).end();
    for report in [&active, &passive.end()] {
        assert_eq!((&report["verify_errors"], &report["verify"]), (&0.into(), &true.into()), "{report:#}");
    }
    assert!(active["requests"].as_u64() > Some(0), "{active:#}");
}

#[test]
fn a_guest_runs_our_programs_and_exchanges_verified_messages_with_this_machine() {
    let Some(guest) = or_skip(Guest::start()) else { return };
    let program = guest.put(rds_stress());
    let version = guest.command(&program).arg("--version").output().expect("the rig runs");
    assert!(version.stdout.starts_with(b"rds-stress "), "{version:?}");
    let failed = guest.command(&program).arg("--no-such-option").output().expect("the rig runs");
    assert_eq!(failed.status.code(), Some(2), "the exit status comes through: {failed:?}");
    // The lower address connects.
    for here in [Guest::HOST_BELOW, Guest::HOST_ABOVE] {
        verified(&guest, &program, here);
    }
}

#[test]
fn the_network_card_of_a_guest_does_not_copy_what_is_sent_with_zero_copy() {
    let Some(guest) = or_skip(Guest::start()) else { return };
    let program = guest.put(Path::new(env!("CARGO_BIN_EXE_rds-copied")));
    let listener = guest.host().run(|| TcpListener::bind((Guest::HOST_BELOW, 0))).expect("a free port");
    let to = listener.local_addr().expect("it listens").to_string();
    let sink = copied::sink(listener);
    let asked = guest.command(&program).args([&to, "--calls", "100"]).output().expect("the rig runs");
    let calls: serde_json::Value =
        serde_json::from_slice(&asked.stdout).unwrap_or_else(|e| panic!("{e}: {asked:?}"));
    assert!(calls["copied"] == 0 && calls["not_copied"].as_u64() >= Some(100), "{calls}");
    assert_eq!(sink.join().expect("no panic").expect("an orderly end"), 100 * (64 << 10));
}
