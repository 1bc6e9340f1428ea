//! `rds-server doctor` as a program: what it finds on hosts that lack something, what it says to do, and its exit code.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Command, Output};

use rds_server::doctor::files::PROGRAM;
use rds_server::doctor::{Finding, Report, Status};
use rds_tests::address;
use rds_tests::daemon::Plan;
use rds_tests::ledger::process::Scratch;
use rds_tests::netns::Namespace;
use rds_tests::program::rds_server;
use rds_tests::skip::or_skip;
use rds_tests::unprivileged::Unprivileged;
use serde_json::Value;

/// A command that looks, and prints JSON.
fn doctor(program: &Path) -> Command {
    looks(Command::new(program))
}

fn looks(mut command: Command) -> Command {
    command.args(["doctor", "--json"]);
    // Whatever this host is set up for.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RDS_SERVER_") {
            command.env_remove(name);
        }
    }
    command
}

/// What it found. Its exit code must agree.
#[track_caller]
fn report(output: &Output) -> Report {
    let errors = String::from_utf8_lossy(&output.stderr);
    let report: Report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{errors}", String::from_utf8_lossy(&output.stdout)));
    let failed = report.checks.iter().any(|check| check.status == Status::Fail);
    assert_eq!(output.status.code(), Some(i32::from(failed)), "{report:?}");
    report
}

#[track_caller]
fn run(mut command: Command) -> Report {
    report(&command.output().expect("it runs"))
}

/// The only finding of this name.
#[track_caller]
fn only<'r>(report: &'r Report, name: &str) -> &'r Finding {
    let mut found = report.checks.iter().filter(|check| check.name == name);
    let first = found.next().unwrap_or_else(|| panic!("no check {name}: {report:?}"));
    assert!(found.next().is_none(), "{name} is there twice: {report:?}");
    first
}

/// Whether there is something to be done, and it is said for a shell, for systemd and for a container.
#[track_caller]
fn advised(finding: &Finding, shell: &str) {
    let todo = finding.todo.as_ref().unwrap_or_else(|| panic!("nothing to do: {finding:?}"));
    assert!(todo.shell.contains(shell), "{finding:?}");
    assert!(!todo.systemd.is_empty() && !todo.container.is_empty() && !finding.why.is_empty(), "{finding:?}");
}

/// Options of a daemon that nothing keeps from starting.
fn fit(command: &mut Command, scratch: &Scratch, at: Ipv4Addr) {
    command.args(["--address", &at.to_string(), "--listen-port", "17385", "--socket"]);
    command.arg(scratch.path().join("rds.sock"));
}

#[test]
fn every_check_is_in_the_report_with_the_same_keys() {
    let scratch = Scratch::new("doctor-schema");
    let mut command = doctor(rds_server());
    fit(&mut command, &scratch, address(81, 1));
    let output = command.output().expect("it runs");
    report(&output);
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let keys = |value: &Value| value.as_object().expect("an object").keys().cloned().collect::<BTreeSet<_>>();
    let set = |keys: &[&str]| keys.iter().map(|key| (*key).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(keys(&json), set(&["version", "status", "checks"]));
    let mut names = BTreeSet::new();
    for check in json["checks"].as_array().expect("a list") {
        assert_eq!(keys(check), set(&["name", "status", "found", "why", "todo"]), "{check}");
        assert!(["ok", "note", "warning", "fail"].contains(&check["status"].as_str().expect("a word")));
        assert_ne!(check["found"], "");
        let bad = ["warning", "fail"].contains(&check["status"].as_str().expect("a word"));
        assert_eq!(check["todo"].is_object(), bad, "{check}");
        if bad {
            assert_eq!(keys(&check["todo"]), set(&["shell", "systemd", "container"]));
        }
        names.insert(check["name"].as_str().expect("a name").to_owned());
    }
    let all = [
        "kernel",
        "kernel-rds",
        "address",
        "port",
        "socket",
        "shared-memory",
        "memory",
        "memlock",
        "optmem",
        "open-files",
        "processors",
        "congestion-control",
        "tcp-receive-buffer",
        "tcp-send-buffer",
        "backlog",
        "zero-copy-send",
        "zero-copy-receive",
    ];
    assert_eq!(names, set(&all));
}

#[test]
fn a_port_that_is_held_fails_and_names_who_holds_it() {
    let scratch = Scratch::new("doctor-port");
    let at = address(81, 2);
    let holder = TcpListener::bind((at, 17385)).expect("a free port");
    let mut command = doctor(rds_server());
    fit(&mut command, &scratch, at);
    let found = run(command);
    let port = only(&found, "port");
    assert_eq!(port.status, Status::Fail);
    assert!(port.found.contains(&format!("(pid {})", std::process::id())), "{port:?}");
    advised(port, &format!("kill {}", std::process::id()));
    drop(holder);
    let mut command = doctor(rds_server());
    fit(&mut command, &scratch, at);
    assert_eq!(only(&run(command), "port").status, Status::Ok);
}

#[test]
fn an_address_that_is_not_this_hosts_fails_and_the_others_are_looked_at_all_the_same() {
    let scratch = Scratch::new("doctor-address");
    let mut command = doctor(rds_server());
    fit(&mut command, &scratch, address(81, 3));
    let found = run({
        command.args(["--address", "192.0.2.177"]);
        command
    });
    let [here, there] = &found.checks.iter().filter(|c| c.name == "address").collect::<Vec<_>>()[..] else {
        panic!("two addresses: {found:?}")
    };
    assert_eq!((here.status, there.status), (Status::Note, Status::Fail), "{found:?}");
    advised(there, "ip address add 192.0.2.177/32 dev");
    assert_eq!(only(&found, "port").status, Status::Ok, "of the one that is here");
    assert_eq!(found.status, Status::Fail);
}

#[test]
fn a_low_limit_of_locked_memory_is_found_and_felt() {
    let Some(server) = or_skip(Unprivileged::new(rds_server())) else { return };
    // A user of its own: what others have locked counts as well.
    let server = server.with_user(61_000 - std::process::id() % 1000);
    // Not even one message of 1 MiB; and nothing at all.
    for limit in [64 << 10, 0] {
        let mut command = looks(server.command(limit));
        let socket = std::env::temp_dir().join(format!("rds-doctor-{}.sock", std::process::id()));
        command.arg("--socket").arg(socket);
        let found = run(command);
        let memlock = only(&found, "memlock");
        assert_eq!(memlock.status, Status::Warning);
        assert!(memlock.why.contains("not even one message"), "{memlock:?}");
        advised(memlock, "memlock");
        let sending = only(&found, "zero-copy-send");
        assert_eq!(sending.status, Status::Warning, "{sending:?}");
        assert!(sending.why.contains("see memlock"), "{sending:?}");
        assert_eq!(found.status, Status::Warning, "it runs all the same: {found:?}");
    }
}

#[test]
fn few_open_files_are_found_and_how_to_have_more() {
    let scratch = Scratch::new("doctor-files");
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -S -n 100 && exec \"$0\" \"$@\""]).arg(rds_server());
    let mut command = looks(command);
    fit(&mut command, &scratch, address(81, 4));
    let found = run(command);
    let files = only(&found, "open-files");
    assert_eq!(files.status, Status::Warning, "{files:?}");
    assert!(files.found.starts_with("100 "), "{files:?}");
    assert!(files.todo.as_ref().is_some_and(|todo| todo.systemd.starts_with("LimitNOFILE=")), "{files:?}");
}

#[test]
fn a_daemon_that_runs_is_no_failure_and_its_own_limits_can_be_looked_at() {
    let scratch = Scratch::new("doctor-daemon");
    let mut plan = Plan::new(&scratch, address(81, 5)).with("listen-port", 17385);
    let daemon = plan.start();
    let look = |pid: &str| {
        let mut command = doctor(rds_server());
        command.args(["--address", &plan.address().to_string(), "--listen-port", "17385", "--socket"]);
        command.arg(plan.socket()).args(["--pid", pid]);
        run(command)
    };
    let found = look(&daemon.id().to_string());
    let port = only(&found, "port");
    assert_eq!(port.status, Status::Ok, "{port:?}");
    assert!(port.found.contains(&format!("pid {}", daemon.id())), "{port:?}");
    assert_eq!(only(&found, "socket").status, Status::Note);
    assert_ne!(only(&found, "open-files").status, Status::Note, "its limits can be read: {found:?}");
    let before = daemon.files();
    let attached: Vec<_> = (0..8).map(|_| daemon.attach()).collect();
    let each = (daemon.files() - before) as u64;
    assert!(each <= 8 * PROGRAM, "it counts on {PROGRAM} files of each program, and 8 took {each}");
    drop(attached);
    let nobody = look("4194305");
    assert_eq!(only(&nobody, "open-files").status, Status::Note, "no process has that number: {nobody:?}");
    daemon.stop();
}

#[test]
fn settings_of_the_kernel_are_those_of_the_namespace_in_which_it_looks() {
    let Some(namespace) = or_skip(Namespace::new()) else { return };
    let scratch = Scratch::new("doctor-namespace");
    let at = IpAddr::from([192, 0, 2, 1]);
    namespace.add_address(at);
    for (name, value) in [
        ("core/optmem_max", "4096"),
        ("core/somaxconn", "16"),
        ("ipv4/tcp_rmem", "4096 65536 65536"),
        ("ipv4/tcp_wmem", "4096 16384 65536"),
    ] {
        if namespace.set_sysctl(name, value).is_err() {
            return println!("skipped: this kernel has no {name} of each namespace");
        }
    }
    let found = namespace.run(|| {
        let mut command = doctor(rds_server());
        command.args(["--address", &at.to_string(), "--socket"]).arg(scratch.path().join("rds.sock"));
        run(command)
    });
    assert_eq!(only(&found, "address").status, Status::Ok, "{found:?}");
    assert_eq!(only(&found, "port").status, Status::Ok, "nobody else is there: {found:?}");
    for (name, setting) in [
        ("optmem", "net.core.optmem_max"),
        ("backlog", "net.core.somaxconn"),
        ("tcp-receive-buffer", "net.ipv4.tcp_rmem"),
        ("tcp-send-buffer", "net.ipv4.tcp_wmem"),
    ] {
        let finding = only(&found, name);
        assert_eq!(finding.status, Status::Warning, "{finding:?}");
        advised(finding, &format!("sysctl -w '{setting}="));
    }
}

#[test]
fn a_host_without_loopback_cannot_exchange_messages() {
    let Some(namespace) = or_skip(Namespace::new()) else { return };
    let down = namespace.ip(&["link", "set", "dev", "lo", "down"]).expect("ip(8) ran before");
    assert!(down.status.success());
    let scratch = Scratch::new("doctor-loopback");
    let found = namespace.run(|| {
        let mut command = doctor(rds_server());
        command.arg("--socket").arg(scratch.path().join("rds.sock"));
        run(command)
    });
    for name in ["zero-copy-send", "zero-copy-receive"] {
        let finding = only(&found, name);
        assert_eq!(finding.status, Status::Fail, "{finding:?}");
        advised(finding, "ip link set lo up");
    }
}

#[test]
fn people_get_a_line_for_each_check_and_three_for_what_to_do() {
    let mut command = Command::new(rds_server());
    let output = command.args(["doctor", "--address", "192.0.2.177"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).expect("text");
    let mut lines = text.lines().skip_while(|line| !line.starts_with("FAIL     address"));
    for part in ["192.0.2.177 is not this host's", "why:", "shell:", "systemd:", "container:"] {
        let line = lines.next().unwrap_or_else(|| panic!("no {part} in {text}"));
        assert!(line.contains(part), "{line}");
    }
    assert!(text.lines().last().is_some_and(|line| line.contains("failures: ")), "{text}");
}

#[test]
fn a_wrong_command_line_is_neither_well_nor_ill() {
    for wrong in [&["--address", "nowhere"][..], &["--pid", "x"], &["--no-such-option"]] {
        let output = Command::new(rds_server()).arg("doctor").args(wrong).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(output.stdout.is_empty());
    }
}
