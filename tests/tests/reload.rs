//! SIGHUP: the daemon reads its configuration again, under load, and no message notices.

use std::net::SocketAddr;
use std::path::PathBuf;

use rds_client::{BindError, Completion, Counter, Node, Received, Socket};
use rds_tests::address;
use rds_tests::daemon::{Daemon, Plan as DaemonPlan};
use rds_tests::ledger::daemons::Daemons;
use rds_tests::ledger::process::{PATIENCE, Plan, Process, Scratch};

const PROGRAM: &str = env!("CARGO_BIN_EXE_rds-ledger");
/// TCP port of the daemons' nodes.
const NODE: u16 = 17419;

/// A daemon with a file.
struct Configured {
    daemon: Daemon,
    plan: DaemonPlan,
    file: PathBuf,
}

impl Configured {
    fn start(scratch: &Scratch, net: u8, host: u8, text: &str) -> Self {
        let file = scratch.path().join(format!("{net}-{host}.toml"));
        std::fs::write(&file, text).expect("it can be written");
        let mut plan = DaemonPlan::new(scratch, address(net, host))
            .with("listen-port", NODE)
            .with("dial-port", NODE)
            .with("config", file.display());
        Self { daemon: plan.start(), plan, file }
    }

    /// Has it read that, and returns what it says of it.
    #[track_caller]
    fn reload(&mut self, text: &str) -> String {
        std::fs::write(&self.file, text).expect("it can be written");
        self.daemon.reload()
    }

    /// A node of its, and a socket there.
    fn client(&self, port: u16) -> (Node, Socket) {
        let node = self.daemon.attach();
        let socket = node.bind(port).expect("it is free");
        socket.set_recv_timeout(Some(PATIENCE));
        socket.set_send_timeout(Some(PATIENCE));
        (node, socket)
    }
}

#[track_caller]
fn receives(socket: &Socket) -> Vec<u8> {
    let mut buffer = [0; 64];
    match socket.recv_from(&mut buffer) {
        Ok(Received::Message { len, .. }) => buffer[..len].to_vec(),
        other => panic!("only a message can come: {other:?}"),
    }
}

#[track_caller]
fn passes(from: &Socket, to: &Socket, text: &[u8]) {
    from.send_to(text, to.local_addr()).expect("it is accepted");
    assert_eq!(receives(to), text);
}

/// How a message to there ends.
#[track_caller]
fn cancelled(from: &Socket, to: SocketAddr) {
    let cookie = from.send_owned(vec![1; 100], to).expect("it is accepted");
    let mut ends = Vec::new();
    while !ends.contains(&Completion::Cancelled { cookie }) {
        assert!(from.wait_completions(&mut ends, Some(PATIENCE)) > 0, "it does not end: {ends:?}");
    }
}

#[test]
fn a_broken_file_changes_nothing_and_says_why() {
    let scratch = Scratch::new("reload-broken");
    let mut one = Configured::start(&scratch, 46, 1, "[quotas]\nsockets-per-client = 2\n");
    let (node, a) = one.client(0);
    let b = one.daemon.attach().bind(0).expect("a program of its own");
    b.set_recv_timeout(Some(PATIENCE));
    let _second = node.bind(0).expect("the second of two");
    let file = one.file.display().to_string();
    for (text, says) in [
        (
            "[quotas]\nsockets-per-client = 9\nsocket-per-uid = 1\n",
            ":3: unknown key 'quotas.socket-per-uid': did you mean 'quotas.sockets-per-uid'?",
        ),
        (
            "[quotas]\nsockets-per-client = 9\n[life]\ndrain = 'long'\n",
            ":4: life.drain: write a whole number",
        ),
        ("[quotas]\nsockets-per-client = 9\n[quotas]\n", ":3: this is no TOML:"),
        ("[quotas]\nsockets-per-client = 9\n[access]\nbind = ['allow', 'may']\n", ":4: access.bind = 'may'"),
    ] {
        let said = one.reload(text);
        assert!(said.contains(&format!("{file}{says}")), "{said}");
        assert!(said.contains("the configuration stays as it was"), "{said}");
        assert!(matches!(node.bind(0), Err(BindError::Quota)), "it has not stayed");
        passes(&a, &b, b"as before");
    }
    std::fs::remove_file(&one.file).expect("it is there");
    let said = one.daemon.reload();
    assert!(said.contains("cannot be read") && said.contains("stays as it was"), "{said}");
    let said = one.reload("[quotas]\nsockets-per-client = 3\n");
    assert!(said.contains("changed: quotas.sockets-per-client"), "{said}");
    drop(node.bind(0).expect("the third of three"));
    drop((a, b, node));
    one.daemon.stop();
}

#[test]
fn keys_that_need_a_restart_are_named_with_both_values_and_all_others_change() {
    let scratch = Scratch::new("reload-restart");
    let mut one = Configured::start(&scratch, 46, 2, "");
    let said = one
        .reload("[node]\nlanes = 4\n[log]\nformat = 'json'\n[life]\ndrain = 1\n[quotas]\nmax-clients = 9\n");
    assert!(
        said.contains("changed: quotas.max-clients, life.drain; needs a restart: node.lanes, log.format"),
        "{said}"
    );
    let line = |key: &str| said.lines().find(|line| line.contains(&format!("{key:?}"))).unwrap_or_default();
    let (lanes, clients) = (line("node.lanes"), line("quotas.max-clients"));
    assert!(lanes.contains("\"1\"") && lanes.contains("\"4\"") && lanes.contains("restart"), "{said}");
    assert!(clients.contains("\"1024\"") && clients.contains("\"9\""), "{said}");
    // An option of the command line counts more than the file: nothing changes.
    let said = one.reload(&format!("[node]\nlisten-port = {}\n", NODE + 1));
    assert!(said.contains("changed: quotas.max-clients, life.drain\n"), "{said}");
    assert!(one.daemon.reload().contains("nothing has changed\n"));
    one.daemon.stop();
}

/// What the daemons under load are told, in turn.
fn changes(net: u8) -> Vec<String> {
    let small =
        "[quotas]\nsockets-per-client = 3\nsend-bytes-per-client = '8m'\nreceive-bytes-per-client = '8m'\n";
    let large =
        "[quotas]\nsockets-per-client = 4\nsend-bytes-per-client = '64m'\nreceive-bytes-per-client = '64m'\n";
    // They concern peers, users and ports that are not there, and how messages go.
    let others = format!(
        "[peers]\nin-refuse = ['10.0.0.0/8']\nout-refuse = ['10.0.0.0/8', 'fd00::/8']\nin-allow = ['127.0.0.0/8']\n\
         [access]\nbind = ['deny,port=900-999', 'allow']\n[data]\nzero-copy-send = 'off'\nbusy-poll = 20\narena = '16m'\n{small}\
         pinned-per-client = '1m'\npinned-per-uid = '2m'\npeers-per-client = 1\nmax-clients = 3\n"
    );
    let far = format!("[peers]\nout-allow = ['{}', '{}']\n{large}", address(net, 1), address(net, 2));
    vec![small.into(), others, large.into(), far]
}

#[test]
fn changed_quotas_lists_and_modes_take_effect_under_load_without_a_message_lost_doubled_or_reordered() {
    const NET: u8 = 47;
    let scratch = Scratch::new("reload-load");
    let changes = changes(NET);
    let mut daemons = [1, 2].map(|host| Configured::start(&scratch, NET, host, &changes[2]));
    let client = |daemon: &Configured, ports: &[u16]| {
        Plan::new(PROGRAM, &scratch, daemon.plan.address(), ports)
            .with("backend", "daemon")
            .with("attach", daemon.plan.socket().display())
            .flag("lend")
            .with("longest", 128 << 10)
    };
    let (near, far) = (client(&daemons[0], &[10, 11, 12]), client(&daemons[1], &[20, 21, 22]));
    let mut clients = [near.clone().sending_to(&far).start(), far.sending_to(&near).start()];
    clients.iter_mut().for_each(Process::load);
    // A program that looks what counts, beside those that work.
    let watchers = daemons.each_ref().map(|daemon| daemon.client(0));
    for round in 0..3 {
        for text in &changes {
            for client in &mut clients {
                client.receives(150);
            }
            for (daemon, (node, _)) in daemons.iter_mut().zip(&watchers) {
                let said = daemon.reload(text);
                assert!(said.contains("changed: "), "{said}");
                let lowered = text.contains("sockets-per-client = 3");
                let more: Vec<_> = (0..2).map(|_| node.bind(0)).collect();
                assert!(more.iter().all(Result::is_ok), "of its three it has one: {more:?}");
                let fourth = node.bind(0);
                match (&fourth, lowered) {
                    (Ok(_), false) | (Err(BindError::Quota), true) => {}
                    (other, _) => panic!("round {round}, after {text}: {other:?}"),
                }
            }
        }
    }
    clients.iter_mut().for_each(|client| client.receives(500));
    drop(watchers);
    clients.iter_mut().for_each(Process::drain);
    for client in &mut clients {
        client.drained();
    }
    clients.into_iter().for_each(Process::exit);
    for Configured { daemon, .. } in &daemons {
        let resets = daemon.snapshot().counters.get(Counter::ConnReset);
        assert_eq!((daemon.dropped(), resets), (0, 0), "{}", daemon.log());
    }
    daemons.into_iter().for_each(|one| one.daemon.stop());
    Daemons::default().write(scratch.path()).expect("it can be written");
    let report = scratch.check();
    assert!(report.accepted >= 3000, "{report:?}");
    assert_eq!((report.delivered, report.received), (report.accepted, report.accepted), "{report:?}");
}

#[test]
fn peers_that_a_reload_refuses_are_cut_off_until_another_allows_them_and_nobody_else_is() {
    let scratch = Scratch::new("reload-peers");
    let mut near = Configured::start(&scratch, 48, 1, "");
    let (far, other) = (Configured::start(&scratch, 48, 2, ""), Configured::start(&scratch, 48, 3, ""));
    let ((_a, a), (_b, b), (_c, c)) = (near.client(5), far.client(5), other.client(5));
    passes(&a, &b, b"1");
    passes(&a, &c, b"1");
    let refused = format!("in-refuse = ['{0}']\nout-refuse = ['{0}']\n", far.plan.address());
    let said = near.reload(&format!("[peers]\n{refused}"));
    assert!(said.contains("changed: peers.in-refuse, peers.out-refuse\n"), "{said}");
    cancelled(&a, b.local_addr());
    b.send_to(b"2", a.local_addr()).expect("it waits at its own node");
    passes(&c, &a, b"2");
    passes(&a, &c, b"3");
    let said = near.reload("");
    assert!(said.contains("changed: peers.in-refuse, peers.out-refuse\n"), "{said}");
    assert_eq!(receives(&a), b"2", "it has waited");
    passes(&a, &b, b"3");
    assert_eq!(other.daemon.snapshot().counters.get(Counter::ConnReset), 0);
    assert_eq!(far.daemon.snapshot().counters.get(Counter::ConnReset), 1);
    drop((a, b, c, _a, _b, _c));
    for one in [near, far, other] {
        one.daemon.stop();
    }
}
