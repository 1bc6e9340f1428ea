//! A node of ours in a process of its own, program `rds-interop-peer`, so that it can be killed.

use std::io::{self, BufRead, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use rds_client::{Event, Node, Socket};

use super::ours::restless;
use super::said::Said;
use super::{Case, PATIENCE, pattern};

/// The running program. It sends all the time, and says what it receives.
#[derive(Debug)]
pub struct Process {
    said: Said,
}

impl Process {
    /// Starts it; what it sends to `to` is numbered from `first`. Returns when it can receive.
    ///
    /// # Panics
    /// It does not start.
    #[must_use]
    #[track_caller]
    pub fn start(case: &Case<'_>, at: SocketAddr, to: SocketAddr, first: u64) -> Self {
        Self::start_with(case, at, to, first, None)
    }

    /// The same as a client of the daemon with this socket.
    ///
    /// # Panics
    /// It does not start.
    #[must_use]
    #[track_caller]
    pub fn attached(case: &Case<'_>, at: SocketAddr, to: SocketAddr, daemon: &Path) -> Self {
        Self::start_with(case, at, to, 0, Some(daemon))
    }

    #[track_caller]
    fn start_with(
        case: &Case<'_>,
        at: SocketAddr,
        to: SocketAddr,
        first: u64,
        daemon: Option<&Path>,
    ) -> Self {
        let mut command = Command::new(case.program);
        command.args([&at.to_string(), &to.to_string(), &first.to_string()]).stdin(Stdio::piped());
        if let Some(daemon) = daemon {
            command.arg("--attach").arg(daemon);
        }
        let mut said = Said::start(format!("our process at {at}, from message {first}"), &mut command);
        said.says("that it is ready", |line| line == "ready");
        Self { said }
    }

    /// Waits until message `number` from port `from`, or a later one, has arrived.
    ///
    /// # Panics
    /// It does not.
    #[track_caller]
    pub fn receives(&mut self, from: u16, number: u64) {
        self.said.receives(from, number);
    }

    /// Numbers of the messages from a port, as far as they have been waited for.
    #[must_use]
    pub fn numbers(&self, from: u16) -> Vec<u64> {
        self.said.numbers(from)
    }

    /// Kills it.
    ///
    /// # Panics
    /// What it had received was damaged.
    #[track_caller]
    pub fn kill(&mut self) {
        self.said.child.kill().expect("it is our child");
        self.said.was_killed();
    }

    /// Has it stop sending and come to rest. Returns the number of the last message that it sent.
    ///
    /// # Panics
    /// It does not.
    #[track_caller]
    pub fn end(&mut self) -> u64 {
        drop(self.said.child.stdin.take());
        let last = self.said.says("its last number", |line| line.starts_with("last="));
        self.said.ends_well();
        last["last=".len()..].parse().expect("a number")
    }
}

/// The program, with a node of its own or as a client of a daemon: sends to `to` and prints what it receives until standard input ends; then sends no more, waits until all is delivered, and
/// prints the last number.
///
/// # Errors
/// Something failed, which the text says.
pub fn peer(
    at: SocketAddr,
    to: SocketAddr,
    first: u64,
    daemon: Option<&Path>,
) -> Result<(), Box<dyn std::error::Error>> {
    let builder = Node::builder(at.ip());
    let builder = match daemon {
        Some(socket) => builder.attach(socket),
        None => builder.embedded(),
    };
    let (node, sockets) = builder.open_bound(&[at.port()])?;
    let socket = &sockets[0];
    say("ready")?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Its end is what is waited for.
            io::stdin().lock().lines().map_while(Result::ok).for_each(drop);
            over.store(true, Relaxed);
        });
        let sender = scope.spawn(|| {
            let mut number = first;
            while !over.load(Relaxed) {
                let len = [16, 700, 100, 9000][number as usize % 4];
                if let Err(why) = socket.send_to(&pattern::payload(number, len), to) {
                    return Err(why.to_string());
                }
                number += 1;
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(number)
        });
        while !sender.is_finished() {
            print_received(socket)?;
        }
        let next = sender.join().expect("it does not panic")?;
        if !socket.flush(PATIENCE) {
            return Err(format!("not all was delivered: {:?}", node.snapshot_with_queues()).into());
        }
        print_received(socket)?;
        let left = restless(&node.snapshot_with_queues());
        if !left.is_empty() {
            return Err(format!("left over: {left:?}").into());
        }
        say(&format!("last={}", next - 1))?;
        Ok(())
    })
}

/// Prints what there is, as kpeer does, and returns after some time without anything.
fn print_received(socket: &Socket) -> io::Result<()> {
    socket.set_recv_timeout(Some(Duration::from_millis(50)));
    while let Ok(Event::Message(message)) = socket.recv_lease() {
        let (from, payload) = (message.from, message.payload);
        let number = pattern::number(&payload).unwrap_or(u64::MAX);
        if let Err(why) = pattern::check(&payload, number) {
            say(&format!("corrupt from={from} {why}"))?;
        }
        say(&format!("recv from={from} seq={number} size={}", payload.len()))?;
    }
    Ok(())
}

/// A line that is out when this returns, whatever becomes of the process.
fn say(line: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush()
}
