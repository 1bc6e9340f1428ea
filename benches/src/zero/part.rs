//! What the processes of a benchmark do: one has a node and sends, or receives, or both.

use std::io::BufRead;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use rds_client::{Mode, Node, Owned, Socket};
use serde::{Deserialize, Serialize};

use super::traffic::{self, End};
use super::{churn, connections};
use crate::side::say;

/// RDS port of every socket but those of [`connections`].
const PORT: u16 = 5;
/// Socket buffers, in bytes: some of the largest messages.
const BUFFER: u64 = 16 << 20;

/// What a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Both nodes, and one thread that sends a few messages and then receives them, on one CPU.
    Both,
    /// Sends as much as goes.
    Sender,
    /// Receives.
    Receiver,
    /// Sends a message, waits for one back.
    Asker,
    /// Sends back what it gets.
    Answerer,
    /// Asks over some hundred connections at once, and maps and unmaps memory meanwhile if told to.
    Client,
    /// The many nodes that answer it.
    Servers,
}

/// Where the memory of what is sent comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Buffers {
    /// The node's pool, as they are.
    Pool,
    /// The node's pool, every byte written.
    FilledPool,
    /// Allocated for each message, every byte written.
    Fresh,
}

/// Everything that a process must know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) role: Role,
    /// Modes of zero copy, sending and receiving.
    pub(crate) send: String,
    pub(crate) receive: String,
    pub(crate) size: usize,
    pub(crate) buffers: Buffers,
    pub(crate) own: IpAddr,
    pub(crate) peer: IpAddr,
    /// TCP port of all nodes.
    pub(crate) port: u16,
}

/// What a process did in some time.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Slice {
    /// Messages, or round trips.
    pub(crate) messages: u64,
    /// How long it took, in seconds.
    pub(crate) seconds: f64,
    /// CPU time of the process, in seconds.
    pub(crate) cpu: f64,
    /// Median and 99th percentile of the round trip, in microseconds.
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Bytes that were sent pinned; of what the kernel has let go of, the share that it had copied; bytes that were mapped.
    pub(crate) pinned: u64,
    pub(crate) copied: f64,
    pub(crate) mapped: u64,
}

impl Part {
    /// Runs it: says when it is ready, then answers a line for each line of standard input, to its end.
    pub(crate) fn run(&self) -> Result<(), String> {
        match self.role {
            Role::Both => {
                // Before there are other threads, so that they inherit it.
                one_cpu()?;
                let (sender, receiver) = (self.open(self.own)?, self.open(self.peer)?);
                serve(|command| {
                    let before = Told::of(&sender.node, &receiver.node);
                    let slice = command.run(|time| traffic::both(self, &sender, &receiver, time))?;
                    Ok(Told::of(&sender.node, &receiver.node).since(&before, slice))
                })
            }
            Role::Sender => {
                let end = self.open(self.own)?;
                serve(|command| command.run(|time| traffic::send(self, &end, time)))
            }
            Role::Asker => {
                let end = self.open(self.own)?;
                serve(|command| command.run(|time| traffic::ask(self, &end, time)))
            }
            Role::Receiver | Role::Answerer => {
                let end = self.open(self.own)?;
                let answers = self.role == Role::Answerer;
                traffic::in_background(&end, |taken| {
                    if answers { traffic::answer(&end, taken) } else { traffic::take(self, &end, taken) }
                })
            }
            Role::Client => churn::client(self),
            Role::Servers => connections::servers(self),
        }
    }

    fn open(&self, address: IpAddr) -> Result<End, String> {
        let node = open_node(self, address, 1)?;
        let socket = bind(&node, PORT)?;
        let peer = if address == self.own { self.peer } else { self.own };
        Ok(End { node, socket, to: SocketAddr::new(peer, PORT) })
    }

    /// What to send.
    pub(crate) fn payload(&self, node: &Node) -> Owned {
        match self.buffers {
            Buffers::Pool => node.buffer(self.size).into(),
            Buffers::FilledPool => {
                let mut buffer = node.buffer(self.size);
                buffer.fill(7);
                buffer.into()
            }
            Buffers::Fresh => vec![7; self.size].into(),
        }
    }
}

pub(crate) fn open_node(part: &Part, address: IpAddr, lanes: u8) -> Result<Node, String> {
    let mode = |text: &str| text.parse::<Mode>().map_err(|e| e.to_string());
    // The default of some systems paces loopback.
    let builder = Node::builder(address).congestion_control("cubic").lanes(lanes);
    let builder = builder.listen_port(part.port).dial_port(part.port);
    let builder = builder.zero_copy_send(mode(&part.send)?).zero_copy_receive(mode(&part.receive)?);
    builder.open().map_err(|e| e.to_string())
}

pub(crate) fn bind(node: &Node, port: u16) -> Result<Socket, String> {
    let socket = node.bind(port).map_err(|e| e.to_string())?;
    socket.set_send_buffer(BUFFER);
    socket.set_recv_buffer(BUFFER);
    Ok(socket)
}

/// What nodes tell of zero copy.
struct Told {
    pinned: u64,
    notified: u64,
    copied: u64,
    mapped: u64,
}

impl Told {
    fn of(sender: &Node, receiver: &Node) -> Self {
        let send = sender.snapshot().zero_copy.send;
        let mapped = receiver.snapshot().zero_copy.recv.counts.bytes;
        Self { pinned: send.bytes, notified: send.notified, copied: send.copied, mapped }
    }

    fn since(&self, before: &Self, slice: Slice) -> Slice {
        let notified = self.notified - before.notified;
        Slice {
            pinned: self.pinned - before.pinned,
            copied: (self.copied - before.copied) as f64 / notified.max(1) as f64,
            mapped: self.mapped - before.mapped,
            ..slice
        }
    }
}

/// Confines this thread, and those that it starts, to one CPU, the last it may use.
pub(crate) fn one_cpu() -> Result<(), String> {
    let allowed = nix::sched::sched_getaffinity(Pid::from_raw(0)).map_err(|e| e.to_string())?;
    let last = (0..CpuSet::count()).rev().find(|cpu| allowed.is_set(*cpu) == Ok(true));
    let mut one = CpuSet::new();
    one.set(last.ok_or("no CPU may be used")?).map_err(|e| e.to_string())?;
    sched_setaffinity(Pid::from_raw(0), &one).map_err(|e| format!("cannot keep to one CPU: {e}"))
}

/// A line of standard input.
pub(crate) struct Command<'a>(pub(crate) &'a str);

impl Command<'_> {
    /// `run SECONDS`: lets `work` do so, a tenth of it before anything is measured.
    pub(crate) fn run(
        &self,
        mut work: impl FnMut(Duration) -> Result<Slice, String>,
    ) -> Result<Slice, String> {
        let seconds = self.0.strip_prefix("run ").and_then(|s| s.parse().ok());
        let time = Duration::from_secs_f64(seconds.ok_or_else(|| format!("told {:?}", self.0))?);
        work(time / 10)?;
        let (begun, cpu) = (Instant::now(), process_cpu());
        let slice = work(time)?;
        Ok(Slice { seconds: begun.elapsed().as_secs_f64(), cpu: process_cpu() - cpu, ..slice })
    }
}

/// Says that this process is ready, and answers each line of standard input.
pub(crate) fn serve<T: Serialize>(
    mut answer: impl FnMut(&Command<'_>) -> Result<T, String>,
) -> Result<(), String> {
    say("\"ready\"")?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| format!("standard input: {e}"))?;
        let answer = answer(&Command(line.trim()))?;
        say(&serde_json::to_string(&answer).map_err(|e| e.to_string())?)?;
    }
    Ok(())
}

/// CPU time of this process, in seconds.
pub(crate) fn process_cpu() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).expect("Linux has this clock");
    Duration::from(time).as_secs_f64()
}

/// Counts for `cost`: since it was asked last.
#[derive(Default)]
pub(crate) struct Since {
    messages: u64,
    cpu: f64,
}

impl Since {
    pub(crate) fn cost(&mut self, taken: &std::sync::atomic::AtomicU64) -> Slice {
        let (messages, cpu) = (taken.load(Relaxed), process_cpu());
        let slice = Slice { messages: messages - self.messages, cpu: cpu - self.cpu, ..Slice::default() };
        *self = Self { messages, cpu };
        slice
    }
}
