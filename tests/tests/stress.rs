//! Two processes of `rds-stress` that check every byte of each other, over whole and over broken connections.

use std::io::{BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use rds_tests::address;
use rds_tests::ledger::process::PATIENCE;
use rds_tests::program::rds_stress;
use rds_tests::proxy::{Break, Proxy, Route, Schedule};

/// TCP ports of control connections, nodes and proxies.
const CONTROL: u16 = 4000;
const NODE: u16 = 17405;
const PROXY: u16 = 17406;

struct Stress {
    child: Child,
    /// Lines of standard error, where all goes but the JSON object.
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Stress {
    fn start(address: Ipv4Addr, dial: u16, more: &[&str]) -> Self {
        let mut command = Command::new(rds_stress());
        command.args(["-r", &address.to_string(), "-p", &CONTROL.to_string(), "--json"]);
        command.args(["--listen-port", &NODE.to_string(), "--dial-port", &dial.to_string()]);
        command.args(["--start-delay", "0.2", "--warmup", "0.3"]).args(more);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let errors = BufReader::new(child.stderr.take().expect("piped"));
        let (sink, lines) = channel();
        std::thread::spawn(move || errors.lines().map_while(Result::ok).try_for_each(|line| sink.send(line)));
        Self { child, lines, said: Vec::new() }
    }

    #[track_caller]
    fn says(&mut self, what: &str) {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.said.push(line),
                Err(e) => panic!("rds-stress does not say {what:?} ({e}) but {:#?}", self.said),
            }
            if self.said.last().is_some_and(|line| line.contains(what)) {
                return;
            }
        }
    }

    /// Waits for its end, and returns its report.
    #[track_caller]
    fn end(mut self) -> serde_json::Value {
        let mut report = String::new();
        self.child.stdout.take().expect("piped").read_to_string(&mut report).expect("text");
        let status = self.child.wait().expect("it is our child");
        self.said.extend(self.lines.iter());
        assert!(status.success(), "{status}: {:#?}", self.said);
        serde_json::from_str(&report).unwrap_or_else(|e| panic!("{e} in {report:?}: {:#?}", self.said))
    }
}

impl Drop for Stress {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
    let mut passive = Stress::start(passive_at, dial, &[]);
    passive.says("waiting for incoming connection");
    let seconds = seconds();
    let host = passive_at.to_string();
    let options = [&["-s", &host, "-T", &seconds, "-v"], load].concat();
    let active = Stress::start(active_at, dial, &options);
    let reports = [active.end(), passive.end()];
    for report in &reports {
        assert_eq!(report["verify_errors"], 0, "{report:#}");
        assert_eq!(report["verify"], true, "{report:#}");
    }
    assert!(reports[0]["requests"].as_u64() > Some(0), "{:#}", reports[0]);
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
