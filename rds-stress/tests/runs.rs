//! Whole runs: one process, two processes, and one with a peer that misbehaves.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use common::{Ended, Program, SHORT, addresses, free_port, is_row, passive, run};
use nix::sys::signal::Signal;
use rds_client::{Node, Received};
use rds_stress::block::{Block, Form, V1_LEN};
use rds_stress::message::{HEADER_V4, Header, Op};
use socket2::{Domain, Socket, Type};

fn loopback(line: &str) -> Ended {
    run(&format!("--loopback --rds-port {} {SHORT} -T 1 {line}", free_port()))
}

/// Ended with 0, having said nothing on stderr but what goes there with `--json`.
fn fine(ended: &Ended) {
    assert_eq!(ended.status, Some(0), "{}\n{}", ended.stdout, ended.stderr);
}

fn json(ended: &Ended) -> serde_json::Value {
    assert_eq!(ended.stdout.lines().count(), 1, "{}", ended.stdout);
    serde_json::from_str(&ended.stdout).unwrap()
}

/// The numbers of a row of the table.
fn row(line: &str) -> Vec<f64> {
    line.split_whitespace().take(9).map(|w| w.parse().unwrap()).collect()
}

#[test]
fn loopback_prints_one_table_with_average_and_quantiles() {
    let ended = loopback("-T 2");
    fine(&ended);
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert!(lines[0].starts_with("connecting to 127.0.0.1:"));
    assert_eq!(lines[1..3], ["negotiated options, tasks will start in 0 seconds", "Starting up...."]);
    assert_eq!(lines[3], "tsks   tx/s   rx/s  tx+rx K/s    mbi K/s    mbo K/s tx us/c   rtt us cpu %");
    assert!(is_row(lines[4]) && is_row(lines[5]), "{lines:?}");
    assert_eq!(lines[6], "-".repeat(45));
    assert!(is_row(lines[7]) && lines[7].ends_with("  (average)"), "{lines:?}");
    assert!(lines[8].starts_with("rtt us: p50 "), "{lines:?}");
    assert_eq!(lines.len(), 9, "{lines:?}");
    assert_eq!(ended.stderr, "");
    for line in [lines[4], lines[5], lines[7]] {
        let row = row(line);
        assert!(row[1] > 0.0 && row[2] > 0.0 && row[3] > 0.0 && row[7] > 0.0, "{line}");
    }
}

#[test]
fn a_run_in_which_nothing_came_back_says_what_to_look_at() {
    let (listen, dial) = (free_port(), free_port());
    let ended = run(&format!("--loopback --listen-port {listen} --dial-port {dial} {SHORT} -T 1"));
    assert_eq!(ended.status, Some(0), "as in the reference: {ended:?}");
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    for word in
        ["nothing came back", &format!("port {dial} of 127.0.0.1"), &format!("port {listen} of 127.0.0.2")]
    {
        assert!(ended.stderr.contains(word), "{word}: {ended:?}");
    }
}

#[test]
fn a_stranger_at_the_rds_port_harms_no_run_and_is_named_on_stderr() {
    let (at, active_at) = addresses();
    let mut passive = passive(at, "");
    let active = Program::start(&format!("-r {active_at} -s {at} {SHORT} -T 2 -v"));
    passive.wait_line(|l| l.starts_with("negotiated options"));
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // Smaller than the other's address, and so one that may speak.
    socket.bind(&SocketAddr::from(([127, 1, 1, 1], 0)).into()).unwrap();
    socket.connect(&SocketAddr::new(at, 16385).into()).unwrap();
    let mut stranger = TcpStream::from(socket);
    // It may hang up before it has read all, and reset the connection.
    let _ = stranger.write_all(&[0xee; 4096]);
    let _ = stranger.read_to_end(&mut Vec::new());
    fine(&active.end());
    let ended = passive.end();
    fine(&ended);
    assert_eq!(ended.stderr.lines().count(), 1, "{ended:?}");
    assert!(ended.stderr.contains("127.1.1.1") && ended.stderr.contains("framing lost"), "{ended:?}");
}

#[test]
fn json_is_all_that_stdout_has() {
    let ended = loopback("--json -t 2 -d 3 -q 2000 -a 100 -v");
    fine(&ended);
    let json = json(&ended);
    for (key, value) in
        [("tasks", 2), ("depth", 3), ("req_bytes", 2000), ("ack_bytes", 100), ("verify_errors", 0)]
    {
        assert_eq!(json[key], value, "{key}");
    }
    assert_eq!(json["role"], "loopback");
    let of = |key: &str| json[key].as_f64().unwrap();
    assert!(of("requests") > 0.0 && of("requests_received") > 0.0);
    // Each request that ended brought 2100 bytes; some are on their way at either end.
    let whole = (of("requests") + of("requests_received")) * 2100.0;
    assert!((of("bytes") - whole).abs() <= 4.0 * 2.0 * 3.0 * 2.0 * 2100.0, "{} {whole}", of("bytes"));
    assert!(json["rtt_us"]["p50"].as_f64() > Some(0.0));
    assert!(json["rtt_us"]["max"].as_f64() >= json["rtt_us"]["p99_9"].as_f64());
    assert!(json["counters"]["send_queued"].as_u64() > Some(0));
    assert!(ended.stderr.contains("(average)"), "{}", ended.stderr);
}

/// The keys of an object, in order.
fn keys(value: &serde_json::Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn zero_copy_on_verifies_and_is_reported_with_every_documented_key() {
    let ended = loopback("--json --zcopy on -d 4 -q 64k -v");
    fine(&ended);
    let json = json(&ended);
    assert_eq!(json["verify_errors"], 0);
    let zero = &json["zerocopy"];
    assert_eq!(keys(zero), ["pinned_bytes", "pinned_bytes_max", "recv", "send"]);
    let (send, recv) = (&zero["send"], &zero["recv"]);
    assert_eq!(
        keys(send),
        ["bytes", "calls", "completions_per_reap", "copied_ratio", "decision", "fallbacks", "mode", "reason"]
    );
    assert_eq!(keys(recv), ["decision", "fallbacks", "mapped_ratio", "mode", "pages_per_call", "reason"]);
    assert_eq!(
        (&send["mode"], &send["decision"], &send["reason"]),
        (&"on".into(), &"on".into(), &"setting".into())
    );
    assert_eq!(
        (&recv["mode"], &recv["decision"], &recv["reason"]),
        (&"on".into(), &"on".into(), &"setting".into())
    );
    // More calls may be needed for a request, never fewer.
    assert!(send["calls"].as_u64() >= json["requests"].as_u64(), "{json:#}");
    assert_eq!(send["copied_ratio"], 1.0, "loopback always copies: {json:#}");
    assert!(send["completions_per_reap"].as_f64() > Some(0.0), "{json:#}");
    assert!(
        recv["mapped_ratio"].as_f64() > Some(0.9) && recv["pages_per_call"].as_f64() > Some(1.0),
        "{json:#}"
    );
    assert!(zero["pinned_bytes_max"].as_u64() >= Some(64 << 10), "{json:#}");
    // A line for each second and the average, with columns of zero copy behind those of the reference.
    let rows: Vec<_> = ended.stderr.lines().filter(|l| is_row(l)).collect();
    assert!(
        ended.stderr.lines().any(|l| l.ends_with("zc tx/s copd% c/reap mapd% pg/cl pinned K")),
        "{ended:?}"
    );
    assert!(
        rows.len() == 2
            && rows.iter().all(|r| r.trim_end_matches("(average)").split_whitespace().count() == 15),
        "{ended:?}"
    );
    assert!(ended.stderr.contains("zero copy sending (on): on (the mode says so)"), "{ended:?}");
    assert!(ended.stderr.contains("zero copy receiving (on): on (the mode says so)"), "{ended:?}");
}

#[test]
fn zero_copy_off_makes_no_call_and_maps_nothing() {
    let ended = loopback("--json --zcopy off -d 4 -q 64k -v");
    fine(&ended);
    let json = json(&ended);
    assert!(json["requests"].as_u64() > Some(0), "{json:#}");
    let zero = &json["zerocopy"];
    assert_eq!((&zero["send"]["calls"], &zero["send"]["bytes"]), (&0.into(), &0.into()), "{json:#}");
    assert_eq!(
        (&zero["recv"]["mapped_ratio"], &zero["pinned_bytes_max"]),
        (&0.0.into(), &0.into()),
        "{json:#}"
    );
    assert_eq!(
        (&zero["send"]["decision"], &zero["recv"]["decision"]),
        (&"off".into(), &"off".into()),
        "{json:#}"
    );
}

#[test]
fn one_direction_of_zero_copy_goes_without_the_other() {
    for (options, sends, maps) in [
        ("--zcopy-send on --zcopy-recv off", true, false),
        ("--zcopy-send off --zcopy-recv on", false, false),
    ] {
        let ended = loopback(&format!("--json {options} -d 4 -q 64k -v"));
        fine(&ended);
        let zero = &json(&ended)["zerocopy"];
        assert_eq!(zero["send"]["calls"].as_u64() > Some(0), sends, "{options}: {zero:#}");
        // Mapping needs the sender's pattern, which only one that pins makes.
        assert_eq!(zero["recv"]["mapped_ratio"].as_f64() > Some(0.0), maps, "{options}: {zero:#}");
    }
}

#[test]
fn small_messages_are_copied_whatever_the_mode() {
    let ended = loopback("--json --zcopy on -d 4 -q 1k -v");
    fine(&ended);
    let json = json(&ended);
    assert!(json["requests"].as_u64() > Some(0), "{json:#}");
    assert_eq!(json["zerocopy"]["send"]["calls"], 0, "{json:#}");
}

#[test]
fn summary_only_leaves_out_the_seconds() {
    let ended = loopback("-z --show-histogram");
    fine(&ended);
    assert_eq!(ended.stdout.lines().filter(|l| is_row(l)).count(), 1, "{}", ended.stdout);
    assert!(!ended.stdout.contains("-----"), "{}", ended.stdout);
    assert!(ended.stdout.contains("\n\nRTT histogram\n"), "{}", ended.stdout);
    assert_eq!(ended.stdout.lines().filter(|l| l.trim_start().starts_with('[')).count(), 16);
}

#[test]
fn perfdata_lines_have_as_many_columns_as_their_heading() {
    let ended = loopback("--show-perfdata");
    fine(&ended);
    let lines: Vec<_> = ended.stdout.lines().filter(|l| l.starts_with("::")).collect();
    assert_eq!(lines.len(), 2, "{}", ended.stdout);
    assert_eq!(lines[0].split(',').count(), lines[1].split(',').count());
    assert!(lines[0].contains(",send_queued:count,"), "{}", lines[0]);
}

#[test]
fn soakers_fill_the_cpu_column() {
    let ended = loopback("-c -z");
    fine(&ended);
    let line = ended.stdout.lines().find(|l| is_row(l)).unwrap();
    assert!((0.0..=100.0).contains(&row(line)[8]), "{line}");
}

#[test]
fn two_processes_exchange_and_verify_every_byte() {
    for options in [
        "-t 4 -d 8 -q 4096 -v",
        "-a 4096 -q 256 -v",
        "-d 64 -q 64k -v --use-cong-monitor 0",
        "-q 60 -a 60 -v",
        "-Q 5",
    ] {
        let (at, from) = addresses();
        let passive = passive(at, "");
        let active = run(&format!("-r {from} -s {at} {SHORT} -T 1 {options}"));
        fine(&active);
        let passive = passive.end();
        fine(&passive);
        for ended in [&active, &passive] {
            let line = ended.stdout.lines().find(|l| l.ends_with("(average)")).unwrap();
            assert!(row(line)[1] > 0.0 && row(line)[2] > 0.0, "{options}: {line}");
        }
    }
}

#[test]
fn one_way_only_the_active_side_asks() {
    let (at, from) = addresses();
    let passive = passive(at, "");
    let active = run(&format!("-r {from} -s {at} {SHORT} -T 1 --json -o -t 2 -d 4"));
    fine(&active);
    let active = json(&active);
    assert_eq!(active["requests_received"], 0);
    assert!(active["requests"].as_u64() > Some(0));
    let ended = passive.end();
    fine(&ended);
    let average = ended.stdout.lines().find(|l| l.ends_with("(average)")).unwrap();
    assert!(row(average)[1] == 0.0 && row(average)[2] > 0.0, "{average}");
    assert!(!ended.stdout.contains("rtt us: p50"), "{}", ended.stdout);
}

#[test]
fn ctrl_c_on_the_active_side_ends_both_with_their_summaries() {
    let (at, from) = addresses();
    let passive = passive(at, "");
    let mut active = Program::start(&format!("-r {from} -s {at} {SHORT} -T 0"));
    active.wait_line(is_row);
    active.signal(Signal::SIGINT);
    for ended in [active.end(), passive.end()] {
        fine(&ended);
        assert!(ended.stdout.contains("(average)"), "{}", ended.stdout);
    }
}

#[test]
fn a_killed_active_side_ends_the_passive_one_in_an_orderly_way() {
    let (at, from) = addresses();
    let mut passive = passive(at, "");
    let mut active = Program::start(&format!("-r {from} -s {at} {SHORT} -T 0"));
    passive.wait_line(is_row);
    active.wait_line(is_row);
    active.signal(Signal::SIGKILL);
    assert_eq!(active.end().status, None);
    let ended = passive.end();
    fine(&ended);
    assert!(ended.stdout.contains("(average)"), "{}", ended.stdout);
}

#[test]
fn a_killed_passive_side_leaves_the_active_one_running_to_its_end() {
    let (at, from) = addresses();
    let passive = passive(at, "");
    let mut active = Program::start(&format!("-r {from} -s {at} {SHORT} -T 3"));
    active.wait_line(is_row);
    passive.signal(Signal::SIGKILL);
    active.wait_line(|l| is_row(l) && row(l)[1] == 0.0 && row(l)[2] == 0.0);
    let ended = active.end();
    fine(&ended);
    assert!(ended.stdout.contains("(average)"), "{}", ended.stdout);
}

#[test]
fn abort_after_kills_by_sigalrm_once_the_tasks_have_cancelled() {
    let port = free_port();
    let ended = run(&format!("--loopback --rds-port {port} {SHORT} --abort-after 1 --cancel-sent-to -t 2"));
    assert_eq!(ended.status, None, "{ended:?}");
    assert_eq!(ended.stdout.matches(": cancelled ").count(), 4, "{}", ended.stdout);
    assert!(!ended.stdout.contains("(average)"), "{}", ended.stdout);
}

/// A passive side whose first ack is `wrong`, seen by the active side.
fn met_with(wrong: impl Fn(&mut Header, &mut Vec<u8>), options: &str) -> Ended {
    let (at, from) = addresses();
    let node = Node::open(at).unwrap();
    let socket = node.bind(4001).unwrap();
    let listener = TcpListener::bind((at, 4000)).unwrap();
    let active = Program::start(&format!("-r {from} -s {at} {SHORT} -T 0 --json {options}"));
    let (mut control, _) = listener.accept().unwrap();
    let mut bytes = [0; V1_LEN + 1];
    control.read_exact(&mut bytes).unwrap();
    let block = Block::decode(Form::V1, &bytes[..V1_LEN]);
    assert_eq!((block.send_addr, block.receive_addr), (at, from));
    assert_eq!(bytes[V1_LEN], 0);
    control.write_all(&[0]).unwrap();
    let mut request = [0; 1024];
    socket.set_recv_timeout(Some(Duration::from_secs(60)));
    let Ok(Received::Message { full_len: 1024, from: sender, .. }) = socket.recv_from(&mut request) else {
        panic!("a request of 1024 bytes had to come")
    };
    let seen = Header::read(&request[..HEADER_V4]);
    assert_eq!((seen.seq, seen.from, seen.to, seen.index, seen.op), (0, sender, socket.local_addr(), 0, 1));
    let mut header =
        Header { seq: 0, from: socket.local_addr(), to: sender, index: 0, op: Op::Ack.code(), retry: false };
    let mut ack = vec![0; block.ack_size as usize];
    wrong(&mut header, &mut ack);
    if ack.len() >= HEADER_V4 {
        header.write(&mut ack[..HEADER_V4]);
    }
    socket.send_to(&ack, sender).unwrap();
    active.end()
}

#[test]
fn a_message_that_is_not_what_had_to_come_ends_the_run_with_a_report() {
    type Wrong = fn(&mut Header, &mut Vec<u8>);
    let cases: [(Wrong, &str, &[&str]); 7] = [
        (|h, _| h.seq = 5, "", &["wrong header", "seq", "*"]),
        (|h, _| h.index = 1, "", &["wrong header", "index", "*"]),
        (|h, _| h.to.set_port(9), "", &["wrong header", "to_port", "*"]),
        (|h, _| h.op = 3, "", &["operation 3"]),
        (|_, ack| ack.push(0), "", &["Ack of 64 bytes where 63"]),
        (|_, ack| ack.truncate(10), "", &["10 bytes", "header"]),
        (|_, ack| ack[70] = 1, "-v -a 80", &["differs from the pattern", "bad bytes of 17", "offset 0"]),
    ];
    for (wrong, options, words) in cases {
        let ended = met_with(wrong, options);
        assert_eq!(ended.status, Some(1), "{ended:?}");
        for word in words {
            assert!(ended.stderr.contains(word), "{word} in {}", ended.stderr);
        }
        assert_eq!(json(&ended)["verify_errors"], 1, "{}", ended.stdout);
    }
}
