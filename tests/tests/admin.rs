//! The admin endpoint of a daemon, and its log, with readers that mean well and with those that do not.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rds_client::{Counter, Received, Socket};
use rds_core::info::Status;
use rds_tests::address;
use rds_tests::daemon::{Daemon, Plan};
use rds_tests::http::{Attack, exchange, get, request, send};
use rds_tests::ledger::process::Scratch;

const NODE: u16 = 17419;

/// Connections that the endpoint has at a time, and what is open beside them for moments.
const MOST_FILES: usize = 32 + 8;

fn plan(scratch: &Scratch, host: u8) -> Plan {
    let plan = Plan::new(scratch, address(61, host)).with("listen-port", NODE).with("dial-port", NODE);
    plan.with("admin", "127.0.0.1:0")
}

/// Where it serves its pages.
fn admin(daemon: &mut Daemon) -> SocketAddr {
    let find = |log: String| -> Option<SocketAddr> {
        let (_, rest) = log.split_once("127.0.0.1:")?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().ok().map(|port: u16| ([127, 0, 0, 1], port).into())
    };
    daemon.until("it says where", |daemon| find(daemon.log()).is_some());
    find(daemon.log()).expect("it said so")
}

fn status(at: SocketAddr) -> Status {
    serde_json::from_str(&get(at, "/status").body).expect("a status")
}

fn socket(daemon: &Daemon, port: u16) -> (rds_client::Node, Socket) {
    let node = daemon.attach();
    let socket = node.bind(port).expect("a free port");
    socket.set_recv_timeout(Some(Duration::from_secs(60)));
    (node, socket)
}

/// Sends numbered messages from the one to the other, and sees each of them come, in order.
fn traffic(from: &Socket, to: &Socket, messages: u64) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..messages {
                from.send_to(&n.to_ne_bytes(), to.local_addr()).expect("it is taken");
            }
        });
        let mut room = [0; 8];
        for n in 0..messages {
            match to.recv_from(&mut room) {
                Ok(Received::Message { len: 8, .. }) => assert_eq!(u64::from_ne_bytes(room), n),
                other => panic!("message {n}: {other:?}"),
            }
        }
    });
}

#[test]
fn every_page_is_answered_with_its_type_and_a_policy() {
    let scratch = Scratch::new("admin-pages");
    let mut daemon = plan(&scratch, 1).start();
    let at = admin(&mut daemon);
    for (path, kind) in [
        ("/", "text/html"),
        ("/style.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/data.js", "text/javascript"),
        ("/table.js", "text/javascript"),
        ("/chart.js", "text/javascript"),
        ("/verdict.js", "text/javascript"),
        ("/icon.svg", "image/svg+xml"),
        ("/status", "application/json"),
        ("/metrics", "text/plain; version=0.0.4"),
        ("/healthz", "text/plain"),
        ("/readyz", "text/plain"),
    ] {
        let answer = get(at, path);
        assert_eq!(answer.code, 200, "{path}: {answer:?}");
        assert!(answer.headers["content-type"].starts_with(kind), "{path}: {answer:?}");
        assert!(answer.headers["content-security-policy"].starts_with("default-src 'self';"), "{path}");
        assert_eq!(answer.headers["x-content-type-options"], "nosniff", "{path}");
        assert!(answer.headers.contains_key("cache-control"), "{path}");
        assert!(!answer.headers.keys().any(|name| name.starts_with("access-control")), "{path}");
        let head = send(at, &[b"HEAD", &request(path)[3..]].concat()).unwrap();
        assert_eq!((head.code, head.body.as_str()), (200, ""), "{path}");
        assert_eq!(head.headers["content-type"], answer.headers["content-type"], "{path}");
    }
    assert_eq!(get(at, "/nothing").code, 404);
    assert_eq!(get(at, "/../../etc/passwd").code, 404);
    daemon.stop();
}

#[test]
fn the_metrics_say_what_the_status_says() {
    let scratch = Scratch::new("admin-metrics");
    let (mut one, mut two) = (plan(&scratch, 2).start(), plan(&scratch, 3).start());
    let (_a, from) = socket(&one, 7);
    let (_b, to) = socket(&two, 8);
    traffic(&from, &to, 100);
    for daemon in [&mut one, &mut two] {
        let at = admin(daemon);
        // Of one moment: asked for together until nothing came between.
        let (status, text) = loop {
            let (before, text) = (get(at, "/status").body, get(at, "/metrics").body);
            if get(at, "/status").body == before {
                break (serde_json::from_str::<Status>(&before).unwrap(), text);
            }
        };
        let samples = parse(&text);
        assert_eq!(samples["rds_uptime_seconds"].to_string(), (status.uptime_ms as f64 / 1e3).to_string());
        assert!(
            samples["rds_state{state=\"ready\"}"] == 1.0 && samples["rds_state{state=\"failed\"}"] == 0.0
        );
        for (event, times) in &status.events {
            assert_eq!(samples[&format!("rds_events_total{{event=\"{event}\"}}")], *times as f64, "{event}");
        }
        assert_eq!(status.events["peer_up"], 1, "{:?}", status.events);
        let node = &status.nodes[0];
        let at = node.node.address;
        for counter in Counter::ALL {
            let name = format!("rds_{}_total{{node=\"{at}\"}}", counter.name());
            assert_eq!(samples[&name], node.node.counters.get(*counter) as f64, "{name}");
        }
        assert_eq!(samples[&format!("rds_clients{{node=\"{at}\"}}")], node.clients.len() as f64);
        let client = &node.clients[0];
        let name = format!("rds_client_arena_bytes{{node=\"{at}\",client=\"{}\"}}", client.session);
        assert_eq!(samples[&name], client.arena as f64);
        let peer = &node.node.peers[0];
        let lane = format!("{{node=\"{at}\",peer=\"{}\",lane=\"0\"}}", peer.address);
        assert_eq!(samples[&format!("rds_lane_next_tx{lane}")], peer.connections[0].next_tx as f64);
        assert_eq!(samples[&format!("rds_lane_up{lane}")], 1.0);
        assert!(samples[&format!("rds_lane_rtt_seconds{lane}")] > 0.0);
        // And nothing else than what the catalogue makes of the same status.
        assert_eq!(rds_server::observe::metrics::render(&status), text);
    }
    let at = address(61, 3);
    let queued =
        &parse(&get(admin(&mut two), "/metrics").body)[&format!("rds_recv_queued_total{{node=\"{at}\"}}")];
    assert!(*queued >= 100.0, "{queued}");
    one.stop();
    two.stop();
}

/// Samples by name and labels; every line has the form that the format has, and every sample a type before it.
fn parse(text: &str) -> BTreeMap<String, f64> {
    let mut family = "";
    let mut samples = BTreeMap::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            assert!(help.split_once(' ').is_some_and(|(_, help)| !help.is_empty()), "{line}");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').expect("a type");
            assert!(["counter", "gauge"].contains(&kind), "{line}");
            family = name;
        } else {
            let (sample, value) = line.rsplit_once(' ').expect("a value");
            assert_eq!(sample.split('{').next(), Some(family), "{line}");
            assert!(!sample.contains('{') || sample.ends_with("\"}"), "{line}");
            let value = value.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
            assert!(samples.insert(sample.to_owned(), value).is_none(), "twice: {line}");
        }
    }
    samples
}

#[test]
fn what_is_no_plain_question_of_this_host_is_refused() {
    let scratch = Scratch::new("admin-refused");
    let mut daemon = plan(&scratch, 4).start();
    let at = admin(&mut daemon);
    let head = |line: &str, headers: &str| format!("{line} HTTP/1.1\r\n{headers}\r\n").into_bytes();
    for (code, bytes) in [
        (405, head("POST /status", "Host: localhost\r\nContent-Length: 0\r\n")),
        (405, head("DELETE /", "Host: localhost\r\n")),
        (405, head("OPTIONS /status", "Host: localhost\r\nOrigin: http://evil.example\r\n")),
        (421, head("GET /status", "Host: evil.example\r\n")),
        (421, head("GET /status", &format!("Host: evil.example:{}\r\n", at.port()))),
        (421, head("GET /status", "Host: localhost\r\nHost: evil.example\r\n")),
        (421, head("GET http://evil.example/status", "Host: localhost\r\n")),
        (421, head("GET /status", "")),
        (413, head("GET /status", "Host: localhost\r\nContent-Length: 5\r\n")),
        (413, head("GET /status", "Host: localhost\r\nTransfer-Encoding: chunked\r\n")),
        (431, head("GET /", &format!("Host: localhost\r\nX: {}\r\n", "a".repeat(7 << 10)).repeat(2))),
        (431, head("GET /", &"X: y\r\n".repeat(65))),
        (400, b"\x00\xff\x16\x03\x01 nonsense\r\n\r\n".to_vec()),
    ] {
        let answer = send(at, &bytes);
        let answer = answer.unwrap_or_else(|e| panic!("{code}: {e}"));
        assert_eq!(answer.code, code, "{}\n{answer:?}", String::from_utf8_lossy(&bytes));
        assert!(!answer.body.contains("nodes"), "{answer:?}");
    }
    for host in ["localhost", "127.0.0.1", &at.to_string(), "[::1]:1"] {
        assert_eq!(send(at, &head("GET /status", &format!("Host: {host}\r\n"))).unwrap().code, 200, "{host}");
    }
    daemon.stop();
}

#[test]
fn slow_broken_and_many_readers_are_bounded_and_traffic_goes_on() {
    let scratch = Scratch::new("admin-attack");
    let (mut one, two) = (plan(&scratch, 5).start(), plan(&scratch, 6).start());
    let at = admin(&mut one);
    let (_a, from) = socket(&one, 7);
    let (_b, to) = socket(&two, 8);
    traffic(&from, &to, 100);
    let (files, memory) = (one.files(), one.memory());
    let attack = Attack::start(at);
    let done = std::sync::Arc::clone(&attack.done);
    let (mut rounds, mut most) = (0, 0);
    // Until each kind has had its way.
    while done.answered.load(Relaxed) < 100
        || done.broken.load(Relaxed) < 1000
        || done.slow.load(Relaxed) < 64
    {
        traffic(&from, &to, 1000);
        traffic(&to, &from, 1000);
        most = most.max(one.files());
        rounds += 1;
    }
    assert!(rounds > 0 && most <= files + MOST_FILES, "{files} files before, {most} under attack");
    assert_eq!(get(at, "/healthz").code, 200);
    drop(attack);
    // Those that were slow are gone at last, without a word from them.
    one.until("no connection of the attackers is left", |daemon| daemon.files() <= files);
    let grown = one.memory().saturating_sub(memory);
    assert!(grown < 64 << 20, "{grown} bytes more");
    let status = status(at);
    assert_eq!(status.nodes[0].node.counters.get(Counter::ConnReset), 0, "{:?}", status.events);
    one.stop();
    two.stop();
}

#[test]
fn a_unix_socket_serves_the_same_under_any_name_and_goes_with_the_daemon() {
    let scratch = Scratch::new("admin-unix");
    let path = scratch.path().join("admin.sock");
    let daemon = Plan::new(&scratch, address(61, 7))
        .with("listen-port", NODE)
        .with("admin", format!("unix:{}", path.display()))
        .start();
    let ask = |bytes: &[u8]| exchange(&mut UnixStream::connect(&path).unwrap(), bytes).unwrap();
    assert_eq!(ask(&request("/healthz")).code, 200);
    let status: Status =
        serde_json::from_str(&ask(b"GET /status HTTP/1.1\r\nHost: rds\r\n\r\n").body).unwrap();
    assert_eq!(status.pid, daemon.id());
    assert_eq!(ask(b"POST /status HTTP/1.1\r\nHost: rds\r\n\r\n").code, 405);
    daemon.stop();
    assert!(!path.exists());
}

#[test]
fn a_flood_of_refused_programs_is_counted_and_does_not_fill_the_log() {
    const FLOOD: u64 = 2000;
    let scratch = Scratch::new("admin-flood");
    let mut daemon = plan(&scratch, 8).with("log-format", "json").start();
    let at = admin(&mut daemon);
    for _ in 0..FLOOD {
        // No hello is like that.
        let mut stream = UnixStream::connect(daemon.socket()).expect("it listens");
        stream.write_all(&[0xff; 64]).expect("it has room");
    }
    daemon.until("all were refused", |_| status(at).events["attach_refused"] >= FLOOD);
    let status = status(at);
    let log = daemon.log();
    let lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect();
    let refused = lines.iter().filter(|line| line["fields"]["event"] == "attach_refused");
    let (left_out, refused): (Vec<_>, Vec<_>) =
        refused.partition(|line| line["fields"].get("lines").is_some());
    for line in &refused {
        assert_eq!(line["fields"]["uid"], nix::unistd::getuid().as_raw(), "{line}");
        assert!(line["fields"]["reason"].is_string() && line["level"] == "INFO", "{line}");
    }
    assert!(status.suppressed_log_lines > 0, "{} lines", refused.len());
    assert_eq!(refused.len() as u64 + status.suppressed_log_lines, status.events["attach_refused"]);
    let told: u64 = left_out.iter().filter_map(|line| line["fields"]["lines"].as_u64()).sum();
    assert!(told <= status.suppressed_log_lines, "{told}");
    daemon.stop();
}
