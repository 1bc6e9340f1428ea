//! Our node in the test's process, and whether it is at rest.

use std::process::Command;
use std::time::{Duration, Instant};

use rds_client::{Counter, Event, Lease, Node, NodeBuilder, OpenError, Snapshot, Socket};

use super::{Case, PATIENCE, pattern};
use crate::daemon::Daemon;
use crate::guest::Guest;
use crate::ledger::process::Scratch;

/// Our node. Everything it does stays in the guest's network namespace: so must the thread that uses it.
#[derive(Debug)]
pub struct Ours {
    /// The node.
    pub node: Node,
    /// The daemon whose node it is, and where that has its files.
    daemon: Option<(Daemon, Scratch)>,
}

impl Ours {
    /// Opens it at the case's address, in this process or in a daemon, as the case says.
    ///
    /// # Panics
    /// It does not open.
    #[track_caller]
    #[must_use]
    pub fn open(case: &Case<'_>) -> Self {
        Self::open_with(case, |settings| settings)
    }

    /// The same with other settings than the defaults.
    ///
    /// # Panics
    /// It does not open.
    #[track_caller]
    #[must_use]
    pub fn open_with(case: &Case<'_>, settings: impl FnOnce(NodeBuilder) -> NodeBuilder) -> Self {
        let builder = settings(Node::builder(case.ours()));
        let daemon = case.daemon.then(|| {
            let scratch = case.scratch();
            (case.daemon_plan(&scratch).start(), scratch)
        });
        let builder = match &daemon {
            Some((daemon, _)) => builder.attach(daemon.socket()),
            None => builder.embedded(),
        };
        let since = Instant::now();
        let node = loop {
            match builder.clone().open() {
                // A process that another thread starts has the last node's listener until it becomes another program.
                Err(OpenError::PortInUse(_)) if since.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                opened => break opened.unwrap_or_else(|e| panic!("no node at {}: {e}", case.ours())),
            }
        };
        Self { node, daemon }
    }

    /// A socket at [`Case::port`] whose calls end after a while.
    ///
    /// # Panics
    /// The port is taken.
    #[track_caller]
    #[must_use]
    pub fn bind(&self, case: &Case<'_>, base: u16) -> Socket {
        let socket = self.node.bind(case.port(base)).expect("a free port");
        socket.set_send_timeout(Some(PATIENCE));
        socket.set_recv_timeout(Some(PATIENCE));
        socket
    }

    /// A counter's value.
    #[must_use]
    pub fn counter(&self, counter: Counter) -> u64 {
        self.node.snapshot().counters.get(counter)
    }

    /// Waits until `what` is so.
    ///
    /// # Panics
    /// It never is.
    #[track_caller]
    pub fn until(&self, what: &str, is_so: impl Fn(&Snapshot) -> bool) {
        let since = Instant::now();
        loop {
            let now = self.node.snapshot_with_queues();
            if is_so(&now) {
                return;
            }
            assert!(since.elapsed() < PATIENCE, "never: {what}: {now:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until nothing is queued, held or pinned any more, and closes the node.
    ///
    /// # Panics
    /// Something stays, or the peer was found to break the protocol.
    #[track_caller]
    pub fn comes_to_rest(self) {
        self.until("nothing is queued, held or pinned", |now| restless(now).is_empty());
        let now = self.node.snapshot();
        let errors =
            [Counter::ProtocolErrors, Counter::RecvDropBadChecksum].map(|c| (c.name(), now.counters.get(c)));
        assert!(errors.iter().all(|(_, count)| *count == 0), "a kernel keeps to the protocol: {errors:?}");
        let left = self.node.shutdown(PATIENCE).undelivered;
        assert_eq!(left, 0, "messages left over");
        if let Some((daemon, scratch)) = self.daemon {
            daemon.stop();
            drop(scratch);
        }
    }
}

/// What there should not be of a node that has nothing to do.
#[must_use]
pub fn restless(now: &Snapshot) -> Vec<String> {
    let mut found = Vec::new();
    let mut zero = |what: String, count: u64| {
        if count != 0 {
            found.push(format!("{what}: {count}"));
        }
    };
    zero("bytes received and not taken".into(), now.receive_queued);
    zero("bytes pinned".into(), now.zero_copy.pinned_bytes);
    zero("calls leaked".into(), now.zero_copy.leaked_calls);
    for lane in now.peers.iter().flat_map(|peer| &peer.connections) {
        zero(format!("queued on lane {}", lane.lane), lane.send_queue.len() as u64);
        zero(format!("unacknowledged on lane {}", lane.lane), lane.retransmit_queue.len() as u64);
    }
    for socket in &now.sockets {
        zero(format!("bytes queued of {}", socket.bound), socket.send_queued);
        zero(format!("bytes not taken of {}", socket.bound), socket.receive_queued);
        zero(format!("congestion of {}", socket.bound), socket.congested.into());
    }
    found
}

/// The next message, which must come, and be from `port` of the kernel's.
///
/// # Panics
/// It does not come, or is from somebody else.
#[track_caller]
#[must_use]
pub fn receive(case: &Case<'_>, socket: &Socket, port: u16) -> Lease {
    match socket.recv_lease() {
        Ok(Event::Message(message)) => {
            assert_eq!(message.from, case.kernel_at(port));
            message.payload
        }
        other => panic!("no message from port {port} of the kernel's, but {other:?}"),
    }
}

/// Receives message `number`, and checks every byte.
///
/// # Panics
/// Another comes, or it is damaged.
#[track_caller]
pub fn receive_numbered(case: &Case<'_>, socket: &Socket, port: u16, number: u64) -> Lease {
    let payload = receive(case, socket, port);
    if let Some(said) = pattern::number(&payload) {
        assert_eq!(said, number, "from port {port} of the kernel's: the wrong message");
    }
    pattern::check(&payload, number).unwrap_or_else(|why| panic!("from port {port} of the kernel's: {why}"));
    payload
}

/// Resets our node's connections with the kernel: both ends' TCP gets a reset. Returns when at least one was.
///
/// # Panics
/// There is none for a long time.
pub fn reset(case: &Case<'_>) {
    sockets(case, &["-K"], "( sport = :16385 or dport = :16385 )");
}

/// Resets one of several.
///
/// # Panics
/// As [`reset`].
pub fn reset_one(case: &Case<'_>) {
    let (ours, theirs) = *connections(case).last().expect("there is one");
    sockets(case, &["-K"], &format!("sport = :{ours} and dport = :{theirs}"));
}

/// TCP ports of our node's connections with the kernel: ours, and the kernel's.
///
/// # Panics
/// As [`reset`].
#[must_use]
pub fn connections(case: &Case<'_>) -> Vec<(u16, u16)> {
    let found = sockets(case, &[], "( sport = :16385 or dport = :16385 )");
    let port = |end: &str| end.rsplit(':').next()?.parse().ok();
    // "0 0 10.77.0.1:32776 10.77.0.2:16385"
    let ends = found.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(2);
        Some((port(words.next()?)?, port(words.next()?)?))
    });
    ends.collect()
}

/// What ss(8) lists of our node's connections, when there are any, with more options and a filter more.
fn sockets(case: &Case<'_>, options: &[&str], filter: &str) -> String {
    let us = case.ours().to_string();
    let us = if case.v6 { format!("[{us}]") } else { us };
    let filter = format!("src {us} and {filter}");
    let since = Instant::now();
    loop {
        let mut command = Command::new("ss");
        command.args(options).args(["-H", "-t", "-n", "state", "established"]).args(filter.split(' '));
        let listed = command.output().expect("ss(8), of the package that has ip(8)");
        if !listed.stdout.is_empty() {
            return String::from_utf8_lossy(&listed.stdout).into_owned();
        }
        assert!(since.elapsed() < PATIENCE, "there is no such connection: {filter}: {listed:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Takes this side's network down, or up again.
///
/// # Panics
/// ip(8) fails.
pub fn our_link(guest: &Guest, up: bool) {
    let state = if up { "up" } else { "down" };
    let done = guest.host().ip(&["link", "set", Guest::HOST_INTERFACE, state]).expect("ip(8)");
    assert!(done.status.success(), "{done:?}");
}

/// Takes the guest's network down, or up again.
///
/// # Panics
/// ip(8) fails there.
pub fn guest_link(guest: &Guest, up: bool) {
    guest.shell(&format!("ip link set eth0 {}", if up { "up" } else { "down" }));
}
