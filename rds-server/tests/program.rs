//! The program itself: what it says when it cannot start, and how it ends.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const LONG: Duration = Duration::from_secs(30);

struct Running(Child);

impl Running {
    fn start(socket: &Path, args: &[&str]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_rds-server"))
            .arg("--socket")
            .arg(socket)
            .args(args)
            .env_remove("RUST_LOG")
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program is built");
        Self(child)
    }

    /// Waits until programs can attach.
    fn ready(self, socket: &Path) -> Self {
        let deadline = Instant::now() + LONG;
        while UnixStream::connect(socket).is_err() {
            assert!(Instant::now() < deadline, "it never listens");
            std::thread::yield_now();
        }
        self
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).expect("it lives");
    }

    /// Its exit status, and what it said.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.0.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        let status = self.0.wait().expect("it ends");
        (status.code(), said)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_signal_ends_it_in_an_orderly_way_and_its_socket_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("rds.sock");
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let running =
            Running::start(&socket, &["--address", "127.43.4.1", "--listen-port", "26744"]).ready(&socket);
        running.signal(signal);
        let (status, said) = running.end();
        assert_eq!(status, Some(0), "{said}");
        assert!(!socket.exists());
    }
}

#[test]
fn a_socket_left_by_a_daemon_that_was_killed_is_replaced_and_a_live_ones_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("rds.sock");
    let args = ["--address", "127.43.4.2", "--listen-port", "26744"];
    let first = Running::start(&socket, &args).ready(&socket);
    let (status, said) =
        Running::start(&socket, &["--address", "127.43.4.3", "--listen-port", "26744"]).end();
    assert_eq!(status, Some(1));
    assert!(said.contains("another rds-server (pid "), "{said}");
    first.signal(Signal::SIGKILL);
    assert_eq!(first.end().0, None);
    assert!(socket.exists(), "it could not remove it");
    let again = Running::start(&socket, &args).ready(&socket);
    again.signal(Signal::SIGTERM);
    assert_eq!(again.end().0, Some(0));
}

#[test]
fn what_keeps_it_from_starting_is_said_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("rds.sock");
    let taken = TcpListener::bind("127.43.4.4:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (args, status, says) in [
        (vec!["--address", "127.43.4.4", "--listen-port", &port], 1, "choose another listen port or stop it"),
        (vec!["--address", "198.51.100.1"], 1, "is not an address of this host"),
        (vec!["--address", "127.43.4.5", "--address", "127.43.4.5"], 1, "is given twice"),
        (vec!["--address", "0.0.0.0"], 1, "cannot be a node's address"),
        (vec![], 2, "--address"),
    ] {
        let (ended, said) = Running::start(&socket, &args).end();
        assert_eq!(ended, Some(status), "{said}");
        assert!(said.contains(says), "{said}");
        assert!(!socket.exists(), "nothing is left");
    }
}

#[test]
fn a_second_signal_ends_it_although_nobody_reads_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("rds.sock");
    let mut running =
        Running::start(&socket, &["--address", "127.43.4.5", "--listen-port", "26744"]).ready(&socket);
    let deadline = Instant::now() + LONG;
    let process = format!("/proc/{}", running.0.id());
    // Its last thread: it has said all that it says at its start.
    let runs = || {
        let tasks = std::fs::read_dir(format!("{process}/task")).unwrap().flatten();
        let names = tasks.map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default());
        names.into_iter().any(|name| name.trim_end() == "rds reload")
    };
    while !runs() {
        assert!(Instant::now() < deadline, "it never runs");
        std::thread::sleep(Duration::from_millis(5));
    }
    // Opened anew, so that the flag is not the daemon's.
    let mut log = std::fs::OpenOptions::new()
        .write(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(format!("{process}/fd/2"))
        .unwrap();
    for size in [4096, 1] {
        while log.write(&vec![b'\n'; size]).is_ok() {}
    }
    running.signal(Signal::SIGTERM);
    running.signal(Signal::SIGINT);
    let status = loop {
        match running.0.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(Instant::now() < deadline, "it waits for its log to be read"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(1));
}
