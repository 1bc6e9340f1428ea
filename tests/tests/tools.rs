//! `rds-info` and `rds-ping` against daemons, against nodes of programs, and against those who only pretend to be either.

use std::cell::Cell;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rds_client::{Node, Sharing};
use rds_tests::address;
use rds_tests::daemon::{Daemon, Plan};
use rds_tests::ledger::process::{PATIENCE, Scratch};
use rds_tests::program::{rds_info, rds_ping, rds_stress};
use rds_tests::stress::Stress;
use serde_json::Value;

/// TCP port of the nodes.
const NODE: u16 = 17414;

fn plan(scratch: &Scratch, address: Ipv4Addr) -> Plan {
    Plan::new(scratch, address).with("listen-port", NODE).with("dial-port", NODE)
}

/// Runs a program of the tools, which must end by itself, and within a minute.
#[track_caller]
fn run(program: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).env_remove("RDS_ATTACH").env_remove("RDS_INFO_SOCKET");
    let since = Instant::now();
    let output = command.output().expect("it runs");
    assert!(since.elapsed() < PATIENCE, "{args:?} takes for ever");
    output
}

#[track_caller]
fn info(args: &[&str]) -> String {
    let output = run(rds_info(), args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "rds-info {args:?}: {} {errors}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

#[track_caller]
fn refused(program: &Path, args: &[&str]) -> String {
    let output = run(program, args);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {output:?}");
    let error = String::from_utf8(output.stderr).expect("text");
    assert!(error.bytes().all(|b| b == b'\n' || (0x20..0x7f).contains(&b)), "only text: {error:?}");
    assert_eq!(error.lines().count(), 1, "one line: {error}");
    error
}

/// The rows of a table, cut at blanks.
fn rows<'t>(text: &'t str, title: &str) -> Vec<Vec<&'t str>> {
    let mut lines = text.lines().skip_while(|line| *line != format!("{title}:"));
    assert!(lines.next().is_some(), "there is no {title} in {text}");
    lines.skip(1).take_while(|line| !line.is_empty()).map(|line| line.split_whitespace().collect()).collect()
}

fn own(address: Ipv4Addr) -> Node {
    Node::builder(address.into())
        .embedded()
        .listen_port(NODE)
        .dial_port(NODE)
        .open()
        .expect("a node of our own")
}

#[test]
fn two_daemons_and_a_programs_node_are_shown_and_answer_pings() {
    let scratch = Scratch::new("tools-shown");
    let (a, b, c, a2) = (address(61, 1), address(61, 2), address(61, 3), address(61, 4));
    let mut plans = [plan(&scratch, a).with("address", a2), plan(&scratch, b)];
    let daemons = plans.each_mut().map(Plan::start);
    let shown = scratch.path().join("program.sock");
    let builder = Node::builder(c.into()).embedded().listen_port(NODE).dial_port(NODE);
    let node = builder.info_socket(&shown).open().expect("a node that is shown");
    let socket = node.bind(5000).expect("a port");
    let client = daemons[0].attach();
    let inbox = client.bind(6000).expect("a port");
    let shared = [client.bind_shared(7000, Sharing::Balance), client.bind_shared(7000, Sharing::Balance)];
    socket.send_to(&[9; 300], inbox.local_addr()).expect("it is sent");
    assert!(socket.flush(PATIENCE));

    let [first, second] = daemons.each_ref().map(|daemon| daemon.socket().to_str().expect("text").to_owned());
    for (from, to) in [(&first, b), (&second, a), (&second, a2), (&first, c), (&second, c)] {
        let output = run(rds_ping(), &["-c", "3", "-i", "10ms", "--attach", from, &to.to_string()]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{output:?}");
        let lines: Vec<&str> = said.lines().collect();
        for (i, line) in lines[..3].iter().enumerate() {
            let micros =
                line.strip_prefix(&format!(" {:3}: ", i + 1)).and_then(|rest| rest.strip_suffix(" usec"));
            assert!(micros.is_some_and(|us| us.parse::<u64>().is_ok()), "{said}");
        }
        assert!(lines[3].is_empty() && lines[4].starts_with(&format!("--- rds-ping {to} from ")), "{said}");
        assert_eq!(lines[5], "3 sent, 3 received, 0.0% lost");
        assert!(lines[6].starts_with("min/avg/p99/max = ") && lines.len() == 7, "{said}");
    }

    let of_daemon = info(&["--attach", &first]);
    let connections = rows(&of_daemon, "RDS Connections");
    let has = |local: Ipv4Addr, remote: Ipv4Addr| {
        connections
            .iter()
            .any(|row| row[..2] == [local.to_string(), remote.to_string()] && row[5].contains('C'))
    };
    assert!(has(a, b) && has(a, c) && has(a2, b), "both nodes of the daemon: {of_daemon}");
    let sockets = rows(&of_daemon, "RDS Sockets");
    let pid = std::process::id().to_string();
    let of_6000: Vec<_> = sockets.iter().filter(|row| row[1] == "6000").collect();
    assert!(of_6000.len() == 1 && of_6000[0][8] == pid, "{of_daemon}");
    let ports = rows(&of_daemon, "Ports");
    assert!(ports.iter().any(|row| row[1..4] == ["7000", "balance", "2"]), "{of_daemon}");
    assert!(rows(&of_daemon, "Clients").iter().any(|row| row[2] == pid), "{of_daemon}");
    assert!(rows(&of_daemon, "Pinned By").iter().any(|row| row.contains(&"program")), "{of_daemon}");

    let at = shown.to_str().expect("text");
    let of_program = info(&["--node", at]);
    let sockets = rows(&of_program, "RDS Sockets");
    assert_eq!((sockets[0][0], sockets[0][1], sockets[0][8]), (c.to_string().as_str(), "5000", pid.as_str()));
    let peers = rows(&of_program, "Peers");
    assert!(peers.iter().all(|row| row[2..4] == ["own", "application"] && row[5] == "up"), "{of_program}");
    drop((shared, inbox, client));
    daemons.into_iter().for_each(Daemon::stop);
}

#[test]
fn json_has_what_the_tables_show() {
    let scratch = Scratch::new("tools-json");
    let (here, nowhere) = (address(62, 1), address(62, 9));
    let shown = scratch.path().join("program.sock");
    let builder = Node::builder(here.into()).embedded().listen_port(NODE).dial_port(NODE);
    let node = builder.info_socket(&shown).open().expect("a node that is shown");
    let peer = own(address(62, 2));
    let (socket, inbox) = (node.bind(5000).expect("a port"), peer.bind(6000).expect("a port"));
    inbox.send_to(&[1; 77], socket.local_addr()).expect("it is sent");
    assert!(inbox.flush(PATIENCE));
    for len in [10, 20] {
        socket.send_to(&vec![0; len], SocketAddr::new(nowhere.into(), 9000)).expect("it waits");
    }
    let at = shown.to_str().expect("text");
    let (text, json) = (info(&["--node", at]), info(&["--node", at, "--json"]));
    assert_eq!(json.lines().count(), 1);
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let status = &json["nodes"][0];

    let queue = rows(&text, "Send Message Queue");
    let peers = status["peers"].as_array().expect("a list");
    let of = |ip: Ipv4Addr| peers.iter().find(|p| p["address"] == ip.to_string()).expect("the peer is there");
    let waits = of(nowhere)["connections"][0]["send_queue"].as_array().expect("a list");
    let lens: Vec<_> = waits.iter().map(|message| message["len"].to_string()).collect();
    assert_eq!(queue.iter().map(|row| row[6]).collect::<Vec<_>>(), lens);
    assert_eq!(lens, ["10", "20"]);
    let received = rows(&text, "Receive Message Queue");
    assert_eq!((received[0][2], received[0][6]), (address(62, 2).to_string().as_str(), "77"));
    assert_eq!(status["received"][0]["len"], 77);
    for row in rows(&text, "Counters") {
        // What connecting goes on counting is not the same at two moments.
        if !row[0].starts_with("tcp_") && !row[0].starts_with("conn_") {
            assert_eq!(status["counters"][row[0]].to_string(), row[1], "{}", row[0]);
        }
    }
    for row in rows(&text, "RDS Connections") {
        let lane = &of(row[1].parse().expect("an address"))["connections"][0];
        assert_eq!(
            (lane["next_tx"].to_string(), lane["next_rx"].to_string()),
            (row[3].to_owned(), row[4].to_owned())
        );
    }
    for row in rows(&text, "TCP Connections") {
        let lane = &of(row[2].parse().expect("an address"))["connections"][0];
        assert_eq!(lane["local"], format!("{}:{}", row[0], row[1]));
        assert_eq!(lane["last_sent"].to_string(), row[6]);
    }
    let sockets = rows(&text, "RDS Sockets");
    assert_eq!(sockets.len(), status["sockets"].as_array().expect("a list").len());
    assert_eq!(status["sockets"][0]["send_buffer"].to_string(), sockets[0][4]);
    // A peer that is not there shows why.
    let peers = rows(&text, "Peers");
    let dead = peers.iter().find(|row| row[1] == nowhere.to_string()).expect("the peer is there");
    assert!(dead[8] == "2" && dead[5] != "up", "{text}");
    socket.cancel_all();
}

#[test]
fn watching_shows_rates_and_goes_on_while_the_daemon_is_started_anew() {
    let scratch = Scratch::new("tools-watch");
    let mut plan = plan(&scratch, address(63, 1));
    let daemon = plan.start();
    let path = plan.socket().to_str().expect("text").to_owned();
    let text = info(&["-c", "--peers", "--watch", "0.1", "--rounds", "2", "--attach", &path]);
    assert_eq!(text.matches("Counters:").count(), 2);
    assert_eq!(text.matches("Rate/s").count(), 1, "the first has nothing to compare with: {text}");
    assert!(!text.contains('\u{1b}'), "no terminal, no escapes");
    let json = info(&["--json", "--watch", "0.1", "--rounds", "3", "--attach", &path]);
    assert_eq!(json.lines().filter(|line| serde_json::from_str::<Value>(line).is_ok()).count(), 3);

    let mut watching = Command::new(rds_info())
        .args(["--json", "--watch", "0.1", "--attach", &path])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut lines = BufReader::new(watching.stdout.take().expect("piped")).lines();
    let mut next = || -> Value {
        let line = lines.next().expect("it goes on").expect("text");
        serde_json::from_str(&line).expect("JSON")
    };
    next();
    daemon.kill();
    let mut errors = watching.stderr.take().expect("piped");
    errors.read_exact(&mut [0; 1]).expect("it says that the daemon is gone");
    let _daemon = plan.start();
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("it is later");
    while u128::from(next()["at_ms"].as_u64().expect("a time")) < since_1970.as_millis() {}
    watching.kill().and_then(|()| watching.wait()).expect("it is our child");
}

#[test]
fn a_ping_ends_with_a_summary_also_where_nobody_is() {
    let scratch = Scratch::new("tools-dead");
    let plan = &mut plan(&scratch, address(64, 1));
    let _daemon = plan.start();
    let path = plan.socket().to_str().expect("text");
    let dead = address(64, 9).to_string();
    let ping = |args: &[&str]| {
        let args = [args, &["--attach", path, &dead]].concat();
        let output = run(rds_ping(), &args);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let few = ping(&["-c", "3", "-i", "0.05"]);
    assert!(few.ends_with("3 sent, 0 received, 100.0% lost\n"), "{few}");
    // More than there are sockets: the reference waits for ever.
    let many = ping(&["-c", "6", "-n", "2", "-i", "0.05"]);
    assert!(many.ends_with("6 sent, 0 received, 100.0% lost\n"), "{many}");
    let output = run(rds_ping(), &["-c", "2", "-i", "10ms", "--json", "--attach", path, &dead]);
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON alone");
    assert_eq!((&json["sent"], &json["received"], &json["lost"]), (&2.into(), &0.into(), &2.into()));
    assert_eq!(json["avg_us"], Value::Null);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("no answer from"), "a short one says why as well: {errors}");
    let left = info(&["-s", "-t", "--attach", path]);
    assert!(rows(&left, "Send Message Queue").is_empty(), "the daemon keeps none of the pings: {left}");
    assert!(rows(&left, "Retransmit Message Queue").is_empty(), "{left}");
    // An address of the network that is not there is told of when it lasts.
    let output = run(rds_ping(), &["-c", "5", "-n", "1", "-i", "1", "--attach", path, &dead]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(errors.contains("no answer from") && errors.contains("connection refused"), "{errors}");
}

#[test]
fn an_endless_ping_ends_with_its_summary_when_it_is_interrupted() {
    let scratch = Scratch::new("tools-interrupt");
    let plan = &mut plan(&scratch, address(65, 1));
    let daemon = plan.start();
    let mut ping = Command::new(rds_ping())
        .args(["-i", "0.05", "--attach"])
        .arg(daemon.socket())
        .arg(address(65, 1).to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut out = ping.stdout.take().expect("piped");
    let mut said = vec![0; 8];
    out.read_exact(&mut said).expect("the first reply");
    kill(Pid::from_raw(ping.id().cast_signed()), Signal::SIGINT).expect("it runs");
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("text");
    assert!(ping.wait().expect("it ends").success());
    assert!(rest.contains(" received, ") && rest.contains("min/avg/p99/max"), "{rest}");
}

#[test]
fn counts_and_intervals_are_kept_to() {
    let scratch = Scratch::new("tools-counts");
    let plan = &mut plan(&scratch, address(66, 1));
    let _daemon = plan.start();
    let (path, to) = (plan.socket().to_str().expect("text"), plan.address().to_string());
    // More pings than sockets, as fast as they go: each is answered.
    for (count, sockets) in [("40", "1"), ("200", "32"), ("1", "8")] {
        let output = run(rds_ping(), &["-c", count, "-n", sockets, "-i", "0", "--attach", path, &to]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains(&format!("{count} sent, {count} received, 0.0% lost")), "{said}");
    }
    // Not before their time.
    let since = Instant::now();
    let output = run(rds_ping(), &["-c", "4", "-i", "100msec", "--attach", path, &to]);
    assert!(output.status.success() && since.elapsed() >= Duration::from_millis(300));
    for wrong in
        [&["-c", "x"][..], &["-n", "33"], &["-i", "soon"], &["-Q", "256"], &["--embedded", "--kernel"], &[]]
    {
        let output = run(rds_ping(), &[wrong, &[to.as_str()][..usize::from(!wrong.is_empty())]].concat());
        assert_eq!(output.status.code(), Some(1), "{wrong:?}: {output:?}");
        assert!(!output.stderr.is_empty());
    }
}

#[test]
fn a_ping_from_a_node_of_its_own_needs_no_daemon() {
    let there = own(address(67, 2));
    let port = NODE.to_string();
    // From a smaller address and from a larger one, which can but knock.
    for host in [1, 3] {
        let source = address(67, host).to_string();
        let args = [
            "-c",
            "2",
            "-i",
            "0.05",
            "--embedded",
            "--listen-port",
            &port,
            "--dial-port",
            &port,
            "-I",
            &source,
        ];
        let to = there.address().to_string();
        let output = run(rds_ping(), &[&args[..], &[to.as_str()]].concat());
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            said.contains("2 sent, 2 received") && said.contains(&format!("from {source}")),
            "{output:?}"
        );
    }
    // What only shows the node must not keep it from being.
    let to = there.address().to_string();
    let own = address(67, 4).to_string();
    let output = Command::new(rds_ping())
        .args(["-c", "1", "--embedded", "--listen-port", &port, "--dial-port", &port, "-I", &own, &to])
        .env("RDS_INFO_SOCKET", "/nowhere/%p.sock")
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let taken = there.address().to_string();
    let error = refused(
        rds_ping(),
        &["-c", "1", "--embedded", "--listen-port", &port, "--dial-port", &port, "-I", &taken, &taken],
    );
    assert!(error.contains("is in use") && error.contains("--attach"), "{error}");
    let strange = refused(rds_ping(), &["-c", "1", "--embedded", "-I", "192.0.2.1", &taken]);
    assert!(strange.contains("not an address of this host"), "{strange}");
}

#[test]
fn a_program_is_shown_by_its_environment_alone() {
    let scratch = Scratch::new("tools-environment");
    let shown = scratch.path().join("stress.sock");
    let mut command = Command::new(rds_stress());
    command.args(["--loopback", "-T", "0", "-t", "2", "--rds-port", "17415", "-p", "17416"]);
    let mut stress = Stress::start({
        command.env("RDS_INFO_SOCKET", &shown);
        command
    });
    stress.says(|line| line.starts_with("tsks"));
    let text = info(&["--node", shown.to_str().expect("text"), "-k", "-n"]);
    let sockets = rows(&text, "RDS Sockets");
    assert_eq!(sockets.len(), 4, "two tasks at each of two nodes: {text}");
    assert!(sockets.iter().all(|row| row[8] == stress.id().to_string() && row[9] == "rds-stress"), "{text}");
    assert_eq!(rows(&text, "RDS Connections").len(), 2);
    stress.signal(Signal::SIGINT);
    let _ = stress.end();
    assert!(!shown.exists(), "it goes with its nodes");
}

/// Something at a socket that answers each connection as `answer` does.
fn pretender(path: &Path, answer: impl Fn(UnixStream) + Send + Sync + 'static) {
    let listener = UnixListener::bind(path).expect("a socket");
    thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(answer));
}

#[test]
fn who_only_pretends_to_be_a_node_or_a_daemon_costs_an_error_and_no_memory() {
    let scratch = Scratch::new("tools-hostile");
    let at = |name: &str| scratch.path().join(name);
    let say = |name: &str, what: &'static [u8], times: usize| {
        pretender(&at(name), move |mut stream| {
            for _ in 0..times {
                if stream.write_all(what).is_err() {
                    return;
                }
            }
        });
        at(name).to_str().expect("text").to_owned()
    };
    let nothing = say("nothing", b"", 0);
    assert!(refused(rds_info(), &["--node", &nothing]).contains("no node any more"));
    let garbage = say("garbage", b"\x1b[2J\x1b]0;owned\x07\xff\xfe\n", 3);
    assert!(refused(rds_info(), &["--node", &garbage]).contains("no RDS node that this program understands"));
    let nested = say("nested", b"[[[[[[[[[[[[[[[[", 100_000);
    refused(rds_info(), &["--node", &nested]);
    let word = say("word", b"{\"address\":\"\\u001b[31mred\"}\n", 1);
    refused(rds_info(), &["--node", &word]);
    // Far more than it takes in.
    let flood = say("flood", &[b' '; 65536], 1 << 20);
    let mut command = Command::new("sh");
    // 400 MB of address space are enough for all that it may need, and far too little for all that is said.
    command.args(["-c", "ulimit -v 400000; exec \"$0\" --node \"$1\""]).arg(rds_info()).arg(&flood);
    let output = command.output().expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && error.contains("too long"), "{output:?}");
    // Who says nothing.
    pretender(&at("silent"), |stream| {
        let _ = (&stream).read(&mut [0; 1]);
        thread::sleep(Duration::from_secs(60));
        drop(stream);
    });
    let silent = at("silent").to_str().expect("text").to_owned();
    for args in [["--node", &silent], ["--attach", &garbage], ["--attach", &flood]] {
        refused(rds_info(), &args);
    }
    assert!(refused(rds_info(), &["--attach", &silent]).contains("does not answer"));
    assert!(refused(rds_ping(), &["-c", "1", "--attach", &silent, "127.0.0.1"]).contains("does not answer"));
    refused(rds_ping(), &["-c", "1", "--attach", &garbage, "127.0.0.1"]);
    let absent = at("absent").to_str().expect("text").to_owned();
    assert!(refused(rds_info(), &["--node", &absent]).contains("RDS_INFO_SOCKET="));
    assert!(refused(rds_info(), &["--attach", &absent]).contains("start rds-server"));
}

#[test]
fn what_a_program_calls_itself_is_text_and_nothing_else() {
    let scratch = Scratch::new("tools-names");
    let plan = &mut plan(&scratch, address(68, 1));
    let daemon = plan.start();
    let nasty = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{202e}evil\n\r";
    let node = Node::attach_builder(daemon.socket()).program(nasty).open().expect("it may be called so");
    let _socket = node.bind(5000).expect("a port");
    let path = daemon.socket().to_str().expect("text");
    for args in [
        &["--attach", path][..],
        &["--attach", path, "--json"],
        &["--attach", path, "-k", "--clients", "--pins", "--ports"],
    ] {
        let text = info(args);
        assert!(text.bytes().all(|b| b == b'\n' || (0x20..0x7f).contains(&b)), "{text:?}");
        assert!(text.contains("evil"), "{text}");
    }
}

#[test]
fn a_load_over_a_daemon_that_is_started_anew_says_so_and_fails() {
    let scratch = Scratch::new("tools-anew");
    let mut plans = [plan(&scratch, address(69, 1)), plan(&scratch, address(69, 2))];
    let [first, second] = plans.each_mut().map(Plan::start);
    let side = |plan: &Plan, more: &[&str]| {
        let mut command = Command::new(rds_stress());
        command
            .args(["-r", &plan.address().to_string(), "-p", "17417", "--attach"])
            .arg(plan.socket())
            .args(more);
        Stress::start(command)
    };
    let mut passive = side(&plans[0], &[]);
    passive.waits();
    let host = plans[0].address().to_string();
    // One request at a time, of this side alone.
    let mut active = side(&plans[1], &["-s", &host, "-T", "0", "-o", "-t", "1", "-d", "1"]);
    active.says(|line| line.starts_with("tsks"));
    // What is in the daemon or on the wire then is lost; what a program has in its ring is not, and the run goes on.
    let mut second = second;
    loop {
        second.kill();
        second = plans[1].start();
        active.says(|line| line.contains("the daemon was started anew"));
        let (rows, lost) = (Cell::new(0), Cell::new(false));
        active.says(|line| {
            rows.set(rows.get() + 1);
            lost.set(line.contains("all requests were lost with it"));
            lost.get() || rows.get() > 8
        });
        if lost.get() {
            break;
        }
    }
    let (status, lines) = active.fails();
    assert_eq!(status, Some(1));
    assert!(lines.join("\n").contains("all requests were lost with it"), "{lines:#?}");
    // The end of the active side is an end like any other to the passive one, if that has not found out by itself.
    passive.says(|line| line.contains("was started anew") || line.ends_with("(average)"));
    drop(passive);
    first.stop();
}
