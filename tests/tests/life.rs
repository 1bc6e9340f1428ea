//! The daemon as a process: how it ends, what it tells systemd, what it is started with, and who is there already.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use rds_client::{Completion, Node, Received, Socket};
use rds_tests::address;
use rds_tests::daemon::{Daemon, Plan as DaemonPlan};
use rds_tests::ledger::daemons::Daemons;
use rds_tests::ledger::process::{PATIENCE, Plan, Process, Scratch};
use rds_tests::skip::{Unavailable, or_skip};

const PROGRAM: &str = env!("CARGO_BIN_EXE_rds-ledger");
/// TCP port of the daemons' nodes.
const NODE: u16 = 17461;

fn plan(scratch: &Scratch, address: Ipv4Addr) -> DaemonPlan {
    DaemonPlan::new(scratch, address).with("listen-port", NODE).with("dial-port", NODE)
}

/// A client that keeps an account.
fn client(scratch: &Scratch, daemon: &DaemonPlan, ports: &[u16]) -> Plan {
    Plan::new(PROGRAM, scratch, daemon.address(), ports)
        .with("backend", "daemon")
        .with("attach", daemon.socket().display())
}

// ---- what was accepted -----------------------------------------------------------------------------------------------

/// Two daemons, a client of each that sends to the other's, and everything that is to be known to compare their accounts.
struct Two {
    scratch: Scratch,
    plans: [DaemonPlan; 2],
    running: [Option<Daemon>; 2],
    clients: [Process; 2],
    happened: Daemons,
}

impl Two {
    fn start(name: &str, net: u8, longest: usize) -> Self {
        let scratch = Scratch::new(name);
        let mut plans = [1, 2].map(|host| plan(&scratch, address(net, host)).with("drain", 30));
        let running = plans.each_mut().map(|plan| Some(plan.start()));
        let client = |plan, ports| client(&scratch, plan, ports).with("longest", longest);
        let (near, far) = (client(&plans[0], &[10, 11, 12]), client(&plans[1], &[20, 21, 22]));
        let mut clients = [near.clone().sending_to(&far).start(), far.sending_to(&near).start()];
        clients.iter_mut().for_each(Process::load);
        clients.iter_mut().for_each(|client| client.receives(500));
        Self { scratch, plans, running, clients, happened: Daemons::default() }
    }

    /// Tells one to end, does something meanwhile, and starts it again once it has ended.
    fn restart(&mut self, index: usize, meanwhile: impl FnOnce(&mut Self)) -> String {
        let mut daemon = self.running[index].take().expect("it runs");
        let address = self.plans[index].address();
        *self.happened.dropped.entry(address).or_default() += daemon.dropped();
        // Its end explains what is unknown, and a hole: what was cancelled. It explains no loss, see `settle`.
        *self.happened.kills.entry(address).or_default() += 1;
        daemon.signal(Signal::SIGTERM);
        daemon.until("it knows", |daemon| daemon.log().contains("ending: no new programs"));
        meanwhile(self);
        let status = daemon.ended();
        let log = daemon.log();
        assert!(status.success() && log.contains("drained"), "{status}\n{log}");
        self.running[index] = Some(self.plans[index].start());
        log
    }

    /// Ends the clients, then the daemons, and compares the accounts.
    fn settle(mut self) {
        // First all of them: who drains sends nothing any more that another could receive.
        self.clients.iter_mut().for_each(|client| client.receives(100));
        self.clients.iter_mut().for_each(Process::drain);
        self.clients.iter_mut().for_each(|client| _ = client.drained());
        self.clients.into_iter().for_each(Process::exit);
        for (plan, daemon) in self.plans.iter().zip(self.running) {
            let daemon = daemon.expect("it runs");
            let dropped = self.happened.dropped.entry(plan.address()).or_default();
            *dropped += daemon.dropped();
            assert_eq!(*dropped, 0, "a daemon served peers before its programs were back");
            daemon.stop();
        }
        self.happened.write(self.scratch.path()).expect("it can be written");
        let report = self.scratch.check();
        println!("{report:#?}");
        assert_eq!(report.lost_with_daemon, 0, "delivered, and neither received nor reported");
        assert!(report.delivered > 0);
    }
}

#[test]
fn daemons_that_are_told_to_end_under_load_lose_nothing_that_was_accepted() {
    let mut two = Two::start("life-load", 71, 64 << 10);
    for index in [0, 1, 0, 1] {
        two.restart(index, |_| {});
        two.clients.iter_mut().for_each(|client| client.receives(500));
    }
    two.settle();
}

#[test]
fn what_a_program_has_no_room_for_yet_is_delivered_to_it_before_the_daemon_ends() {
    // Small, so that a ring is full before receive buffers are.
    let mut two = Two::start("life-held", 72, 64);
    two.clients[1].stand_still();
    // Its ring is full, and its daemon holds what comes.
    let held = |daemon: &Daemon| {
        let status = daemon.attach().status().expect("it answers");
        status.clients.iter().any(|client| client.held.records > 0)
    };
    two.running[1].as_mut().expect("it runs").until("something is held", held);
    let log = two.restart(1, |two| two.clients[1].go_on());
    assert!(!log.contains(" untaken=") || log.contains(" untaken=0"), "{log}");
    two.settle();
}

/// Sends so many messages that are not copied, to be told of each.
fn send(socket: &Socket, count: usize, to: SocketAddr) {
    for _ in 0..count {
        socket.send_owned(vec![7; 2000], to).unwrap_or_else(|(e, _)| panic!("{e}"));
    }
}

/// The outcomes of so many.
fn outcomes(socket: &Socket, count: usize) -> Vec<Completion> {
    let since = Instant::now();
    let mut all = Vec::new();
    loop {
        socket.wait_completions(&mut all, Some(Duration::from_millis(100)));
        let ends: Vec<_> =
            all.iter().filter(|c| !matches!(c, Completion::Released { .. })).copied().collect();
        if ends.len() >= count {
            return ends;
        }
        assert!(since.elapsed() < PATIENCE, "of {count} messages only these have ended: {ends:?}");
    }
}

#[test]
fn a_peer_that_never_answers_holds_the_end_up_no_longer_than_the_drain_and_each_message_is_reported() {
    let scratch = Scratch::new("life-deaf");
    let mut daemon = plan(&scratch, address(73, 1)).with("drain", 1).start();
    // It takes connections, in the kernel, and says nothing.
    let deaf = std::net::TcpListener::bind((address(73, 2), NODE)).expect("a free address");
    let node = daemon.attach();
    let socket = node.bind(5).expect("a free port");
    send(&socket, 3, SocketAddr::new(address(73, 2).into(), 6));
    daemon.signal(Signal::SIGTERM);
    let status = daemon.ended();
    let log = daemon.log();
    assert!(status.success(), "{status}\n{log}");
    assert!(log.contains("undelivered=3") && log.contains("overdue=true"), "{log}");
    let lost: Vec<_> = log.lines().filter(|line| line.contains("a program has lost messages")).collect();
    assert!(lost.len() == 1 && lost[0].contains("cancelled=3 waited=0 late=0 unknown=0 untaken=0"), "{log}");
    assert!(lost[0].contains(&format!("pid={} ", std::process::id())), "{log}");
    let ends = outcomes(&socket, 3);
    assert!(ends.iter().all(|end| matches!(end, Completion::Cancelled { .. })), "{ends:?}");
    drop(deaf);
}

#[test]
fn sends_that_wait_for_a_congested_port_are_sent_when_it_is_free_and_else_reported_by_name() {
    for reads in [true, false] {
        let scratch = Scratch::new(&format!("life-congested-{reads}"));
        let drain = if reads { 60 } else { 1 };
        let mut daemon = plan(&scratch, address(74, 1)).with("drain", drain).start();
        let (sender, receiver) = (daemon.attach(), daemon.attach());
        let full = receiver.bind(6).expect("a free port");
        full.set_recv_buffer(4096);
        let socket = sender.bind(5).expect("a free port");
        let to = full.local_addr();
        // A program is told of congestion when the daemon knows of it: what it submits before waits there.
        let sent = 20;
        daemon.signal(Signal::SIGSTOP);
        send(&socket, sent, to);
        daemon.signal(Signal::SIGCONT);
        let waiting = |node: &Node| {
            let status = node.status().expect("it answers");
            status.clients.iter().flat_map(|client| &client.sockets).map(|s| s.waiting).sum::<usize>()
        };
        let waited = waiting(&sender);
        assert!(waited > 0, "of {sent} messages none waits");
        daemon.signal(Signal::SIGTERM);
        daemon.until("it knows", |daemon| daemon.log().contains("ending: no new programs"));
        let mut received = 0;
        if reads {
            full.set_recv_timeout(Some(PATIENCE));
            while received < sent {
                full.recv_from(&mut [0; 4096]).unwrap_or_else(|e| panic!("{received} of {sent}: {e}"));
                received += 1;
            }
        }
        let ends = outcomes(&socket, sent);
        let delivered = ends.iter().filter(|end| matches!(end, Completion::Delivered { .. })).count();
        let cancelled = ends.iter().filter(|end| matches!(end, Completion::Cancelled { .. })).count();
        let status = daemon.ended();
        let log = daemon.log();
        assert!(status.success(), "{status}\n{log}");
        if reads {
            assert_eq!((delivered, log.contains("overdue=false")), (sent, true), "{ends:?}\n{log}");
        } else {
            assert_eq!((delivered, cancelled), (sent - waited, waited), "{log}");
            assert!(log.contains(&format!("cancelled={waited} waited={waited} late=0 ")), "{log}");
        }
    }
}

#[test]
fn a_second_signal_ends_it_at_once_and_says_what_is_left() {
    let scratch = Scratch::new("life-second");
    for (first, second) in [(Signal::SIGTERM, Signal::SIGTERM), (Signal::SIGINT, Signal::SIGTERM)] {
        // Longer than this test lasts.
        let mut daemon = plan(&scratch, address(75, 1)).with("drain", 10_000).start();
        let node = daemon.attach();
        let socket = node.bind(5).expect("a free port");
        send(&socket, 3, SocketAddr::new(address(75, 2).into(), 6));
        daemon.signal(first);
        daemon.until("it drains", |daemon| daemon.log().contains("ending: no new programs"));
        // What was submitted is in the node.
        daemon.until("the node has it", |_| node.status().is_ok_and(|status| status.node.sockets.len() == 1));
        daemon.signal(second);
        let status = daemon.ended();
        let log = daemon.log();
        assert_eq!(status.code(), Some(1), "{log}");
        assert!(log.contains("messages are left") && log.contains("unfinished=3"), "{log}");
        assert!(log.contains("a second signal while it drained"), "{log}");
        std::fs::remove_file(daemon.socket()).expect("it had no time to do that");
    }
}

// ---- systemd ---------------------------------------------------------------------------------------------------------

/// Where a daemon tells how it is.
struct Told(UnixDatagram);

impl Told {
    fn new(scratch: &Scratch) -> (Self, std::path::PathBuf) {
        let path = scratch.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a new path");
        socket.set_read_timeout(Some(PATIENCE)).expect("a socket can wait");
        (Self(socket), path)
    }

    /// The next message: its lines.
    #[track_caller]
    fn next(&self) -> Vec<String> {
        let mut text = [0; 4096];
        let read = self.0.recv(&mut text).unwrap_or_else(|e| panic!("nothing is told: {e}"));
        let text = String::from_utf8(text[..read].to_vec()).expect("text");
        text.lines().map(str::to_owned).collect()
    }

    /// The next message that has this line.
    #[track_caller]
    fn until(&self, line: &str) {
        while !self.next().iter().any(|l| l == line) {}
    }
}

fn has(message: &[String], start: &str) -> bool {
    message.iter().any(|line| line.starts_with(start))
}

#[test]
fn systemd_is_told_of_the_start_of_each_reload_and_of_the_end_in_this_order() {
    let scratch = Scratch::new("life-notify");
    let (told, path) = Told::new(&scratch);
    let mut daemon = plan(&scratch, address(76, 1)).with("drain", 7).env("NOTIFY_SOCKET", path).start();
    let ready = told.next();
    let address = address(76, 1);
    assert!(has(&ready, "READY=1") && has(&ready, &format!("STATUS=serves {address} at ")), "{ready:?}");
    for _ in 0..2 {
        daemon.signal(Signal::SIGHUP);
        let reloading = told.next();
        assert!(has(&reloading, "RELOADING=1") && has(&reloading, "MONOTONIC_USEC="), "{reloading:?}");
        let ready = told.next();
        assert!(has(&ready, "READY=1") && has(&ready, "STATUS=serves "), "{ready:?}");
    }
    daemon.signal(Signal::SIGTERM);
    let stopping = told.next();
    // The drain, and ten seconds more.
    assert!(has(&stopping, "STOPPING=1") && has(&stopping, "EXTEND_TIMEOUT_USEC=17000000"), "{stopping:?}");
    assert!(daemon.ended().success());
    told.0.set_nonblocking(true).expect("a socket can be told not to wait");
    assert!(told.0.recv(&mut [0; 4096]).is_err(), "no watchdog was asked for");
}

/// Stops one thread of another process where it is, as if it hung, until this is dropped. Only the test's own thread may hold it.
struct Hung(Pid);

impl Hung {
    /// The thread of this name, or of several the one that was started as number `nth`.
    fn new(daemon: &Daemon, name: &str, nth: usize) -> Result<Self, Unavailable> {
        let tasks = format!("/proc/{}/task", daemon.id());
        let is = |id: &i32| {
            let name_of = std::fs::read_to_string(format!("{tasks}/{id}/comm")).unwrap_or_default();
            // The kernel keeps 15 bytes of it.
            name_of.trim_end() == name.get(..15).unwrap_or(name)
        };
        let ids = std::fs::read_dir(&tasks).expect("it runs").flatten();
        let ids = ids.map(|entry| entry.file_name().to_string_lossy().parse().expect("a number"));
        let mut ids: Vec<i32> = ids.filter(is).collect();
        ids.sort_unstable();
        let id = Pid::from_raw(*ids.get(nth).unwrap_or_else(|| panic!("no thread {name}: {ids:?}")));
        ptrace::seize(id, ptrace::Options::empty())
            .map_err(|e| Unavailable::because(format!("threads cannot be stopped one by one here: {e}")))?;
        ptrace::interrupt(id).expect("it is ours");
        waitpid(id, Some(WaitPidFlag::__WALL)).expect("it stops");
        Ok(Self(id))
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // It has died, if the test failed.
        let _ = ptrace::detach(self.0, None);
    }
}

#[test]
fn the_watchdog_is_fed_only_while_the_service_thread_and_every_nodes_poll_loop_live() {
    const PERIOD: Duration = Duration::from_millis(400);
    let scratch = Scratch::new("life-watchdog");
    let (told, path) = Told::new(&scratch);
    let mut plan = plan(&scratch, address(77, 1))
        .with("address", address(77, 2))
        .env("NOTIFY_SOCKET", path)
        .env("WATCHDOG_USEC", PERIOD.as_micros().to_string());
    let mut daemon = plan.start();
    assert!(has(&told.next(), "READY=1"));
    // As far as the kernel keeps names, both nodes' threads have the same.
    let nodes = [0, 1].map(|n| (format!("rds {}", address(77, 1)), n));
    let threads = [("rds service".to_owned(), 0)].into_iter().chain(nodes);
    for (times, (thread, nth)) in (1..).zip(threads) {
        told.until("WATCHDOG=1");
        let Some(hung) = or_skip(Hung::new(&daemon, &thread, nth)) else { return };
        daemon.until("it notices", |daemon| daemon.log().matches("shows no sign of life").count() == times);
        while !has(&told.next(), "STATUS=hangs: ") {}
        told.0.set_read_timeout(Some(3 * PERIOD)).expect("a socket can wait");
        assert!(told.0.recv(&mut [0; 4096]).is_err(), "{thread} hangs, and something was told");
        told.0.set_read_timeout(Some(PATIENCE)).expect("a socket can wait");
        drop(hung);
    }
    told.until("WATCHDOG=1");
    let log = daemon.log();
    assert!(log.contains("the thread that serves programs shows no sign of life"), "{log}");
    assert!(log.contains(&format!("the node at {} shows no sign of life", address(77, 2))), "{log}");
    // While it drains it proves to live as before.
    let node = daemon.attach();
    let socket = node.bind(5).expect("a free port");
    send(&socket, 1, SocketAddr::new(address(77, 9).into(), 6));
    daemon.signal(Signal::SIGTERM);
    while !has(&told.next(), "STOPPING=1") {}
    told.until("WATCHDOG=1");
    assert!(daemon.ended().success());
}

#[test]
fn a_socket_that_is_passed_is_served_and_outlives_the_daemon() {
    let scratch = Scratch::new("life-passed");
    let path = scratch.path().join("passed.sock");
    let listener = UnixListener::bind(&path).expect("a new path");
    let at = address(78, 1);
    // Who comes before the daemon waits for it.
    let early = {
        let path = path.clone();
        std::thread::spawn(move || Node::builder(at.into()).attach(path).open())
    };
    let mut plan = plan(&scratch, at).passing(&listener);
    let mut daemon = plan.start();
    let node = early.join().expect("it does not panic").expect("it attaches");
    let socket = node.bind(5).expect("a free port");
    assert_eq!(node.status().expect("it answers").clients.len(), 1);
    assert!(!daemon.socket().exists(), "the path of --socket is not used");
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.ended().success());
    assert!(UnixStream::connect(&path).is_ok(), "it listens on");
    let next = plan.start();
    // The program has its port again.
    socket.send_to(b"again", socket.local_addr()).expect("it is there again");
    let came = socket.recv_from(&mut [0; 10]).expect("it comes");
    assert!(matches!(came, Received::Message { len: 5, .. }), "{came:?}");
    next.stop();
}

#[test]
fn what_cannot_be_served_is_refused_when_it_is_passed() {
    let scratch = Scratch::new("life-refused");
    let datagrams = UnixDatagram::bind(scratch.path().join("wrong")).expect("a new path");
    let listener = UnixListener::from(std::os::fd::OwnedFd::from(datagrams));
    let mut command = plan(&scratch, address(79, 1)).passing(&listener).command();
    let ended = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("the socket unit passed no Unix stream socket"), "{said}");
}

// ---- who is there already --------------------------------------------------------------------------------------------

#[test]
fn a_second_daemon_is_told_who_has_the_socket_and_who_has_the_port() {
    let scratch = Scratch::new("life-twice");
    let mut first = plan(&scratch, address(80, 1)).with("address", address(80, 2));
    let daemon = first.start();
    let says = |command: &mut std::process::Command| {
        let ended = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(1), "{said}");
        said
    };
    let said = says(&mut first.command());
    assert!(said.contains(&format!("another rds-server (pid {}, since 2", daemon.id())), "{said}");
    let addresses =
        format!("addresses {}, {}) serves {}", address(80, 1), address(80, 2), first.socket().display());
    assert!(said.contains(&addresses), "{said}");
    // Another socket, but an address that is taken.
    let said = says(&mut plan(&scratch, address(80, 3)).with("address", address(80, 2)).command());
    assert!(said.contains(&format!("rds-server (pid {}) has it", daemon.id())), "{said}");
    daemon.stop();
}

// ---- the units ------------------------------------------------------------------------------------------------------

/// What `systemd-analyze` says with these arguments, and whether it is content.
fn analyze(arguments: &[&std::ffi::OsStr]) -> Result<(bool, String), Unavailable> {
    let ended = std::process::Command::new("systemd-analyze").args(arguments).output();
    let ended = ended.map_err(|e| Unavailable::because(format!("no systemd-analyze here ({e})")))?;
    let said = [ended.stdout, ended.stderr].concat();
    Ok((ended.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

#[test]
fn the_units_are_without_fault_and_leave_the_daemon_little_to_do_harm_with() {
    let scratch = Scratch::new("life-units");
    let units = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
    let mut paths = Vec::new();
    for name in ["rds-server.service", "rds-server.socket"] {
        let text = std::fs::read_to_string(units.join(name)).expect("it is there");
        // The program is where this build put it.
        let text =
            text.replace("/usr/bin/rds-server", &rds_tests::program::rds_server().display().to_string());
        let path = scratch.path().join(name);
        std::fs::write(&path, text).expect("it can be written");
        paths.push(path);
    }
    let verify = ["verify", "--man=no"].map(std::ffi::OsStr::new);
    let both = paths.iter().map(|path| path.as_os_str());
    let Some((content, said)) = or_skip(analyze(&verify.into_iter().chain(both).collect::<Vec<_>>())) else {
        return;
    };
    let ours: Vec<_> = said.lines().filter(|line| line.contains("rds-server")).collect();
    assert!(content && ours.is_empty(), "{said}");
    let rated = ["security", "--offline=true", "--threshold=20"].map(std::ffi::OsStr::new);
    let rated = analyze(&rated.into_iter().chain([paths[0].as_os_str()]).collect::<Vec<_>>());
    let (content, said) = rated.expect("it was there a moment ago");
    let last = said.lines().last().unwrap_or_default();
    println!("{last}");
    assert!(content, "more than 2.0: {last}");
}
