//! Runs the program, and finds addresses and ports that no other test uses.
#![allow(dead_code)]

use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::{self, JoinHandle};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Makes runs short; what they measure is not looked at.
pub(crate) const SHORT: &str = "--start-delay 0 --warmup 0.1 --drain 0.1";

static NEXT: AtomicU16 = AtomicU16::new(0);

/// Two loopback addresses that only this test of this process uses: passive, active.
pub(crate) fn addresses() -> (IpAddr, IpAddr) {
    let n = NEXT.fetch_add(1, Ordering::Relaxed) as u8;
    let process = (std::process::id() % 0x3f00) as u16;
    let address = |last| IpAddr::V4(Ipv4Addr::new(127, 64 + (process >> 8) as u8, process as u8, last));
    (address(2 * n + 1), address(2 * n + 2))
}

/// A TCP port that is free on 127.0.0.1 and 127.0.0.2 and is not given out by the kernel.
pub(crate) fn free_port() -> u16 {
    loop {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 17000 + (std::process::id() as u16 % 700) * 20 + n % 20;
        if (1..3).all(|last| TcpListener::bind((Ipv4Addr::new(127, 0, 0, last), port)).is_ok()) {
            return port;
        }
    }
}

/// A running rds-stress.
pub(crate) struct Program {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: Option<JoinHandle<String>>,
}

/// What was left of it.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: Option<i32>,
    /// What was not read before.
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Program {
    pub(crate) fn start(line: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_rds-stress"))
            .args(line.split_whitespace())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut stderr = child.stderr.take().unwrap();
        let stderr = thread::spawn(move || {
            let mut text = String::new();
            stderr.read_to_string(&mut text).unwrap();
            text
        });
        Self { child, stdout, stderr: Some(stderr) }
    }

    /// Reads lines up to one that `wanted` takes.
    pub(crate) fn wait_line(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line).unwrap() == 0 {
                let stderr = self.stderr.take().unwrap().join().unwrap();
                panic!("the program ended without the line; it said:\n{seen}{stderr}");
            }
            if wanted(&line) {
                return line;
            }
            seen.push_str(&line);
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().try_into().unwrap()), signal).unwrap();
    }

    pub(crate) fn end(mut self) -> Ended {
        let mut stdout = String::new();
        self.stdout.read_to_string(&mut stdout).unwrap();
        let status = self.child.wait().unwrap().code();
        Ended { status, stdout, stderr: self.stderr.take().unwrap().join().unwrap() }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Only if the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs it to its end.
pub(crate) fn run(line: &str) -> Ended {
    Program::start(line).end()
}

/// A passive side at `at` that is ready for its active side.
pub(crate) fn passive(at: IpAddr, more: &str) -> Program {
    let mut passive = Program::start(&format!("-r {at} {SHORT} {more}"));
    passive.wait_line(|l| l.starts_with("waiting for incoming connection"));
    passive
}

/// Whether a line is one of the table's.
pub(crate) fn is_row(line: &str) -> bool {
    let words: Vec<_> = line.split_whitespace().collect();
    words.len() >= 9 && words[..9].iter().all(|w| w.parse::<f64>().is_ok())
}
