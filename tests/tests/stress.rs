//! Two processes of `rds-stress` that check every byte of each other, over whole and over broken connections.

use std::net::Ipv4Addr;
use std::num::NonZeroUsize;
use std::process::Command;

use rds_tests::address;
use rds_tests::program::rds_stress;
use rds_tests::proxy::{Break, Direction, Proxy, Route, Schedule, Split};
use rds_tests::stress::Stress;

/// TCP ports of control connections, nodes and proxies.
const CONTROL: u16 = 4000;
const NODE: u16 = 17405;
const PROXY: u16 = 17406;

/// A node at `address` that dials `dial`, with `more` options.
fn start(address: Ipv4Addr, dial: u16, more: &[&str]) -> Stress {
    let mut command = Command::new(rds_stress());
    command.args(["-r", &address.to_string(), "-p", &CONTROL.to_string()]);
    command.args(["--listen-port", &NODE.to_string(), "--dial-port", &dial.to_string()]).args(more);
    Stress::start(command)
}

fn seconds() -> String {
    std::env::var("RDS_LEDGER_SECONDS").unwrap_or_else(|_| "2".to_owned())
}

/// Runs both sides with the active one's `load`, the larger or the smaller address being active. Both must find no error.
#[track_caller]
fn verified(net: u8, active_is_smaller: bool, dial: u16, load: &[&str]) -> [serde_json::Value; 2] {
    let mut hosts = [address(net, 1), address(net, 2)];
    if active_is_smaller {
        hosts.reverse();
    }
    let [passive_at, active_at] = hosts;
    let mut passive = start(passive_at, dial, &[]);
    passive.waits();
    let seconds = seconds();
    let host = passive_at.to_string();
    let options = [&["-s", &host, "-T", &seconds, "-v"], load].concat();
    let active = start(active_at, dial, &options);
    let reports = [active.end(), passive.end()];
    for report in &reports {
        assert_eq!(report["verify_errors"], 0, "{report:#}");
        assert_eq!(report["verify"], true, "{report:#}");
    }
    // On a slow machine no request of the largest size need be answered in the measured time; but some must have come.
    assert!(reports[1]["bytes"].as_u64() > Some(0), "{:#}", reports[1]);
    reports
}

#[test]
fn four_tasks_with_eight_requests_of_a_page_verify_each_other() {
    verified(1, true, NODE, &["-t", "4", "-d", "8", "-q", "4096"]);
    let [active, passive] = verified(2, false, NODE, &["-t", "4", "-d", "8", "-q", "4096"]);
    assert!(active["requests_received"].as_u64() > Some(0) && passive["requests"].as_u64() > Some(0));
}

#[test]
fn sixteen_requests_of_the_largest_size_one_way_verify() {
    verified(3, true, NODE, &["-t", "4", "-d", "16", "-q", "1M", "-o"]);
}

#[test]
fn connections_that_break_show_in_no_byte_and_in_no_order() {
    let routes = [1, 2].map(|host| Route::to(address(4, host), NODE, PROXY));
    let proxy = Proxy::start(&routes).expect("the proxy listens");
    let ways = vec![Break::Cut, Break::Reset, Break::ResetDialer, Break::ResetTarget];
    proxy.schedule(Some(Schedule { seed: 4, bytes: 200_000..6_000_000, ways }));
    verified(4, true, PROXY, &["-t", "4", "-d", "8", "-q", "4096"]);
    assert!(proxy.broken() >= 3, "only {} connections broke", proxy.broken());
}

#[test]
fn streams_cut_into_pieces_of_any_size_verify() {
    let routes = [1, 2].map(|host| Route::to(address(5, host), NODE, PROXY));
    let mut proxy = Proxy::start(&routes).expect("the proxy listens");
    let most = NonZeroUsize::new(9000).expect("not 0");
    for direction in [Direction::FromDialer, Direction::FromTarget] {
        proxy.split(direction, Some(Split::random(5, most)));
    }
    verified(5, true, PROXY, &["-t", "4", "-d", "8", "-q", "4096"]);
    // It was the split streams that carried the messages.
    assert!(proxy.bytes() > 100 * 4096, "only {} bytes went through the proxy", proxy.bytes());
}
