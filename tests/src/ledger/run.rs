//! A ledger process: one node, some sockets, commands on standard input, progress on standard output.

use std::io::{self, BufRead, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::time::Duration;

use rds_client::{Counter, Node};
use serde::{Deserialize, Serialize};

use super::endpoint::{Endpoint, Own};
use super::kernel::{self, Kernel};
use super::log::{Log, Owner, Stack};
use super::message::Writer;
use super::worker::{Load, Worker};

/// Whose RDS a process uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backend {
    /// A node in the process.
    Own,
    /// A node in the daemon with this socket.
    Daemon(PathBuf),
    /// The kernel's, by AF_RDS sockets. The module `rds_tcp` must be there, and the address one of this host.
    Kernel,
}

/// What a process does.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whose RDS it uses.
    pub backend: Backend,
    /// The node's address.
    pub address: Ipv4Addr,
    /// TCP port on which it listens.
    pub listen_port: u16,
    /// TCP port to which it connects.
    pub dial_port: u16,
    /// Lanes that it offers.
    pub lanes: u8,
    /// RDS ports of its sockets.
    pub ports: Vec<u16>,
    /// Sockets to which each of its sockets sends; none for a mere receiver.
    pub targets: Vec<SocketAddrV4>,
    /// Directory of the logs.
    pub logs: PathBuf,
    /// Which life of this process, counted from 1.
    pub incarnation: u32,
    /// Seed of lengths and content.
    pub seed: u64,
    /// Longest message in bytes.
    pub longest: usize,
    /// Most messages that a socket sends in a second; 0 for no limit.
    pub rate: u64,
    /// Whether it sends only when told to.
    pub hold: bool,
    /// Send buffer of each socket in bytes.
    pub send_buffer: u64,
    /// Receive buffer of each socket in bytes.
    pub receive_buffer: u64,
    /// Time between two lines of progress.
    pub report_every: Duration,
    /// Whether a node of ours sends from buffers of its pool.
    pub lend: bool,
}

/// How far the sockets of a process are; one line of JSON on standard output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Messages that the library took, by socket.
    pub accepted: Vec<u64>,
    /// Of these, delivered, by socket.
    pub delivered: Vec<u64>,
    /// Of these, unknown.
    pub unknown: u64,
    /// Of these, cancelled.
    pub cancelled: u64,
    /// Of these, without an outcome yet.
    pub unfinished: u64,
    /// Messages received, by socket.
    pub received: Vec<u64>,
    /// Messages received that were not what was sent.
    pub damaged: u64,
    /// No socket makes messages any more.
    pub idle: bool,
    /// Connections lost (`conn_reset`).
    pub resets: u64,
    /// Connections dropped for what the peer sent (`protocol_errors`).
    pub protocol_errors: u64,
    /// Connections refused because of a limit (`conn_refused`).
    pub refused: u64,
    /// Peers seen to have restarted (`peer_restarts`).
    pub peer_restarts: u64,
}

impl Progress {
    /// Messages received by all sockets.
    #[must_use]
    pub fn received_in_all(&self) -> u64 {
        self.received.iter().sum()
    }

    /// Messages delivered, of all sockets.
    #[must_use]
    pub fn delivered_in_all(&self) -> u64 {
        self.delivered.iter().sum()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum Phase {
    /// Receives, and waits to be told to send.
    Hold,
    /// Makes messages.
    Load,
    /// Makes no more, receives.
    Drain,
    /// Takes what is queued and goes.
    Exit,
}

/// Counts of one socket.
#[derive(Default)]
pub(super) struct Tally {
    pub(super) accepted: AtomicU64,
    pub(super) delivered: AtomicU64,
    pub(super) unknown: AtomicU64,
    pub(super) cancelled: AtomicU64,
    pub(super) unfinished: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) damaged: AtomicU64,
    pub(super) idle: AtomicBool,
    cancel: AtomicBool,
}

/// What the sockets' threads and the main thread share.
pub(super) struct Shared {
    pub(super) seed: u64,
    pub(super) writer: Writer,
    phase: AtomicU8,
    tallies: Vec<Tally>,
    paused: Mutex<Vec<bool>>,
    changed: Condvar,
}

impl Shared {
    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Acquire) {
            0 => Phase::Hold,
            1 => Phase::Load,
            2 => Phase::Drain,
            _ => Phase::Exit,
        }
    }

    pub(super) fn tally(&self, socket: usize) -> &Tally {
        &self.tallies[socket]
    }

    pub(super) fn take_cancel(&self, socket: usize) -> bool {
        let cancel = &self.tallies[socket].cancel;
        cancel.load(Relaxed) && cancel.swap(false, Relaxed)
    }

    /// Blocks while the socket is paused; whether it was.
    pub(super) fn wait_while_paused(&self, socket: usize) -> bool {
        let mut paused = self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        let was = paused[socket];
        while paused[socket] {
            paused = self.changed.wait(paused).unwrap_or_else(PoisonError::into_inner);
        }
        was
    }

    fn set_paused(&self, sockets: std::ops::Range<usize>, to: bool) {
        self.paused.lock().unwrap_or_else(PoisonError::into_inner)[sockets].fill(to);
        self.changed.notify_all();
    }

    fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Release);
        if phase == Phase::Exit {
            self.set_paused(0..self.tallies.len(), false);
        }
    }

    fn progress(&self, node: Option<&Node>) -> Progress {
        let each = |of: fn(&Tally) -> &AtomicU64| {
            self.tallies.iter().map(|t| of(t).load(Relaxed)).collect::<Vec<_>>()
        };
        let counters = node.map(|node| node.snapshot().counters).unwrap_or_default();
        Progress {
            accepted: each(|t| &t.accepted),
            delivered: each(|t| &t.delivered),
            unknown: each(|t| &t.unknown).iter().sum(),
            cancelled: each(|t| &t.cancelled).iter().sum(),
            // Before `unfinished`, so that an idle socket's count is the last one.
            idle: self.tallies.iter().all(|t| t.idle.load(Relaxed)),
            unfinished: each(|t| &t.unfinished).iter().sum(),
            received: each(|t| &t.received),
            damaged: each(|t| &t.damaged).iter().sum(),
            resets: counters.get(Counter::ConnReset),
            protocol_errors: counters.get(Counter::ProtocolErrors),
            refused: counters.get(Counter::ConnRefused),
            peer_restarts: counters.get(Counter::PeerRestarts),
        }
    }

    /// Obeys a line of standard input.
    fn obey(&self, command: &str) -> Result<(), String> {
        let (word, argument) = command.split_once(' ').unwrap_or((command, ""));
        let one = || match argument.parse::<usize>() {
            Ok(index) if index < self.tallies.len() => Ok(index..index + 1),
            _ => Err(format!("{command:?}: give the number of a socket, below {}", self.tallies.len())),
        };
        match word {
            "pause" => self.set_paused(one()?, true),
            "resume" => self.set_paused(one()?, false),
            "cancel" => self.tallies[one()?.start].cancel.store(true, Relaxed),
            "load" => self.set_phase(Phase::Load),
            "drain" => self.set_phase(Phase::Drain),
            "exit" => self.set_phase(Phase::Exit),
            _ => {
                return Err(format!(
                    "{command:?}: not one of pause N, resume N, cancel N, load, drain, exit"
                ));
            }
        }
        Ok(())
    }
}

/// Runs the process until it is told to exit, or standard input ends.
///
/// # Errors
/// What went wrong, in a sentence.
pub fn run(settings: &Settings) -> Result<(), String> {
    let (node, sockets) = open(settings)?;
    let mut dropped = node.as_ref().map_or(0, |n| n.snapshot().counters.get(Counter::RecvDropNoSock));
    let stack = match settings.backend {
        Backend::Own => Stack::Own,
        Backend::Daemon(_) => Stack::Daemon,
        Backend::Kernel => kernel::stack()?,
    };
    let shared = Arc::new(Shared {
        seed: settings.seed,
        writer: Writer::new(settings.seed),
        phase: AtomicU8::new(if settings.hold { Phase::Hold } else { Phase::Load } as u8),
        tallies: settings.ports.iter().map(|_| Tally::default()).collect(),
        paused: Mutex::new(vec![false; settings.ports.len()]),
        changed: Condvar::new(),
    });
    let (ended, ends) = mpsc::channel();
    for (index, socket) in sockets.into_iter().enumerate() {
        let owner = Owner {
            socket: SocketAddrV4::new(settings.address, settings.ports[index]),
            incarnation: settings.incarnation,
            receive_buffer: settings.receive_buffer,
            stack,
        };
        let mut log = Log::create(&settings.logs, owner)
            .map_err(|e| format!("cannot make the log of {}: {e}", owner.socket))?;
        log.bound(std::mem::take(&mut dropped)).map_err(|e| format!("cannot write the log: {e}"))?;
        let load = Load { longest: settings.longest, rate: settings.rate };
        let worker = Worker::new(socket, owner, index, &settings.targets, load, log, Arc::clone(&shared));
        let ended = ended.clone();
        std::thread::spawn(move || ended.send(worker.work()));
    }
    let commands = Arc::clone(&shared);
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let obeyed = line.map_err(|e| e.to_string()).and_then(|line| commands.obey(line.trim()));
            if let Err(e) = obeyed {
                eprintln!("standard input: {e}");
            }
        }
        commands.set_phase(Phase::Exit);
    });
    let mut left = settings.ports.len();
    while left > 0 {
        report(&shared.progress(node.as_ref()))?;
        match ends.recv_timeout(settings.report_every) {
            Ok(end) => {
                end?;
                left -= 1;
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(e @ mpsc::RecvTimeoutError::Disconnected) => {
                return Err(format!("a socket's thread died: {e}"));
            }
        }
    }
    report(&shared.progress(node.as_ref()))?;
    if let Some(node) = node {
        let shutdown = node.shutdown(Duration::from_secs(10));
        if shutdown.undelivered > 0 {
            return Err(format!("{} messages were not delivered at shutdown", shutdown.undelivered));
        }
    }
    Ok(())
}

/// The node, if it is one of ours, and the sockets.
type Opened = (Option<Node>, Vec<Box<dyn Endpoint>>);

fn open(settings: &Settings) -> Result<Opened, String> {
    let mut sockets: Vec<Box<dyn Endpoint>> = Vec::new();
    if settings.backend == Backend::Kernel {
        for port in &settings.ports {
            let at = SocketAddrV4::new(settings.address, *port);
            sockets.push(Box::new(Kernel::open(at, settings.send_buffer, settings.receive_buffer)?));
        }
        return Ok((None, sockets));
    }
    let builder = Node::builder(IpAddr::V4(settings.address));
    let builder = match &settings.backend {
        Backend::Daemon(path) => builder.attach(path),
        _ => builder.listen_port(settings.listen_port).dial_port(settings.dial_port).lanes(settings.lanes),
    };
    let node = builder.open().map_err(|e| e.to_string())?;
    for port in &settings.ports {
        let socket = node.bind(*port).map_err(|e| format!("port {port}: {e}"))?;
        socket.set_send_buffer(settings.send_buffer);
        socket.set_recv_buffer(settings.receive_buffer);
        sockets.push(Box::new(Own::new(&node, socket, settings.lend)));
    }
    Ok((Some(node), sockets))
}

fn report(progress: &Progress) -> Result<(), String> {
    let line = serde_json::to_string(progress).map_err(|e| e.to_string())?;
    writeln!(io::stdout().lock(), "{line}").map_err(|e| format!("standard output: {e}"))
}
