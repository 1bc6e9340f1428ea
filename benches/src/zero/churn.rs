//! Does it matter to 100 connections that map what they receive whether another thread maps and unmaps memory all the time?
//!
//! Both need the lock of the process's address space, which is why nodes map their regions once and for all. On a machine with few CPUs
//! the thread also takes time away, mapping or not; so it is compared with one that only computes as well.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use rds_client::{Completion, Event, Node, Socket};
use rds_core::bench;
use serde::{Deserialize, Serialize};

use super::child::Child;
use super::connections::{LANES, PEERS, destinations, sockets};
use super::figures::{Spread, table};
use super::part::{Buffers, Command, Part, Role, Slice, open_node, serve};
use super::place::{Path, Place};
use super::{Bench, Common};

/// Bytes that the other thread maps, touches and unmaps at a time.
const CHURN: usize = 1 << 20;
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the other thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Other {
    Nothing,
    Computes,
    Maps,
}

/// The process whose nodes' connections are mapped.
pub(crate) fn client(part: &Part) -> Result<(), String> {
    let node = open_node(part, part.own, LANES)?;
    let sockets = sockets(&node)?;
    let stop = AtomicBool::new(false);
    let stop = &stop;
    thread::scope(|scope| {
        let served = serve(|command| {
            let Some((what, run)) = command.0.split_once(' ') else {
                return Err(format!("told {:?}", command.0));
            };
            let what = match what {
                "nothing" => Other::Nothing,
                "computes" => Other::Computes,
                _ => Other::Maps,
            };
            stop.store(false, Relaxed);
            let other = (what != Other::Nothing).then(|| scope.spawn(move || disturb(what, stop)));
            let slice = Command(run).run(|time| ask_all(part, &node, &sockets, time));
            stop.store(true, Relaxed);
            if let Some(thread) = other {
                thread.join().map_err(|_| "a thread panicked".to_owned())?;
            }
            slice
        });
        // It ended early if something failed.
        stop.store(true, Relaxed);
        served
    })
}

fn disturb(what: Other, stop: &AtomicBool) {
    let mut sum = 0_u64;
    while !stop.load(Relaxed) {
        if what == Other::Maps {
            bench::map_touch_unmap(CHURN);
        } else {
            // As long as mapping takes, more or less.
            sum = std::hint::black_box((0..100_000).fold(sum, |a, b| a.rotate_left(5) ^ b));
        }
    }
}

/// One request outstanding on each connection.
fn ask_all(part: &Part, node: &Node, sockets: &[Socket], time: Duration) -> Result<Slice, String> {
    let end = Instant::now() + time;
    thread::scope(|scope| {
        let threads: Vec<_> =
            sockets.iter().map(|socket| scope.spawn(|| ask(part, node, socket, end))).collect();
        threads.into_iter().try_fold(Slice::default(), |sum, thread| {
            let messages = thread.join().unwrap_or_else(|_| Err("a thread panicked".to_owned()))?;
            Ok(Slice { messages: sum.messages + messages, ..sum })
        })
    })
}

fn ask(part: &Part, node: &Node, socket: &Socket, end: Instant) -> Result<u64, String> {
    let mut batch: Vec<Completion> = Vec::new();
    let send = |to: SocketAddr| {
        socket.send_owned(node.buffer(part.size), to).map_err(|(e, _)| format!("cannot send: {e}"))
    };
    socket.set_recv_timeout(Some(PATIENCE));
    let mut open = 0;
    for to in destinations(part, socket) {
        send(to)?;
        open += 1;
    }
    let mut answers = 0;
    while open > 0 {
        if let Event::Message(message) = socket.recv_lease().map_err(|e| format!("cannot receive: {e}"))? {
            answers += 1;
            open -= 1;
            if Instant::now() < end {
                send(message.from)?;
                open += 1;
            }
        }
        if answers % 32 == 0 {
            batch.clear();
            socket.completions(&mut batch);
        }
    }
    Ok(answers)
}

/// The benchmark.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Churn {
    #[command(flatten)]
    common: Common,
    /// Size of requests and answers, in bytes.
    #[arg(long, default_value_t = 4096)]
    size: usize,
}

impl Bench for Churn {
    fn run(&self) -> Result<(), String> {
        let place = Place::open(Path::Loopback)?;
        let address = |last| IpAddr::from([127, 55, 30, last]);
        let part = |role, mode: &str, own, peer| Part {
            role,
            send: mode.to_owned(),
            receive: mode.to_owned(),
            size: self.size,
            buffers: Buffers::Pool,
            own,
            peer,
            port: self.common.port,
        };
        let mut rows = Vec::new();
        for mode in ["on", "off"] {
            let _servers = Child::start(&place, &part(Role::Servers, mode, address(10), address(1)))?;
            let mut client = Child::start(&place, &part(Role::Client, mode, address(1), address(10)))?;
            let mut work = |what: &str, seconds| client.ask::<Slice>(&format!("{what} run {seconds}"));
            work("nothing", self.common.warmup)?;
            let mut found: [Vec<Slice>; 3] = Default::default();
            for _ in 0..self.common.rounds {
                for (what, found) in ["nothing", "computes", "maps"].iter().zip(&mut found) {
                    found.push(work(what, self.common.seconds)?);
                }
            }
            let rate = |s: &Slice| s.messages as f64 / s.seconds;
            let ratio = |i: usize| Spread::of_ratios(&found[2], &found[i], rate);
            for (name, found) in ["nothing", "computes", "maps and unmaps"].iter().zip(&found) {
                let cpu = Spread::of(found, |s| s.cpu * 1e6 / s.messages as f64);
                rows.push(vec![
                    mode.to_owned(),
                    (*name).to_owned(),
                    Spread::of(found, rate).show(0),
                    cpu.show(1),
                ]);
            }
            rows.push(vec![
                mode.to_owned(),
                "ratio to nothing, to computing".to_owned(),
                ratio(0).show(3),
                ratio(1).show(3),
            ]);
        }
        println!(
            "{} connections of {} byte requests and answers, by what another thread of the receiving process does",
            usize::from(PEERS) * usize::from(LANES),
            self.size
        );
        println!(
            "{}",
            table(&["zero copy", "other thread", "round trips/s", "CPU us of the process"], &rows)
        );
        Ok(())
    }
}
