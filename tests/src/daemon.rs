//! `rds-server` as a test holds it: started, watched, killed, started again.

use std::ffi::OsString;
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rds_client::{Counter, Node, Snapshot};

use crate::ledger::process::{PATIENCE, Scratch};
use crate::program::rds_server;

/// How to start a daemon.
#[derive(Debug)]
pub struct Plan {
    address: Ipv4Addr,
    socket: PathBuf,
    errors: PathBuf,
    options: Vec<String>,
    environment: Vec<(String, OsString)>,
    passed: Option<UnixListener>,
    lives: u32,
}

impl Plan {
    /// A daemon with a node at `address`, whose socket is in `scratch`.
    #[must_use]
    pub fn new(scratch: &Scratch, address: Ipv4Addr) -> Self {
        let (socket, errors) = (format!("{address}.sock"), format!("{address}.daemon"));
        let at = |name: String| scratch.path().join(name);
        Self {
            address,
            socket: at(socket),
            errors: at(errors),
            options: Vec::new(),
            environment: Vec::new(),
            passed: None,
            lives: 0,
        }
    }

    /// A variable of its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((name.to_owned(), value.into()));
        self
    }

    /// Passes it this socket for programs, as systemd would (LISTEN_FDS).
    #[must_use]
    pub fn passing(mut self, listener: &UnixListener) -> Self {
        self.passed = Some(listener.try_clone().expect("a descriptor is left"));
        self.env("LISTEN_FDS", "1")
    }

    /// Another option of `rds-server`.
    #[must_use]
    pub fn with(mut self, option: &str, value: impl ToString) -> Self {
        self.options.extend([format!("--{option}"), value.to_string()]);
        self
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its node's address.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The command that starts it.
    ///
    /// # Panics
    /// No descriptor is left for what is passed.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = match &self.passed {
            None => {
                let mut command = Command::new(rds_server());
                command.stdin(Stdio::null());
                command
            }
            // Number 3 is the first of those that are passed.
            Some(listener) => {
                let mut command = Command::new("sh");
                command.args(["-c", "exec \"$@\" 3<&0 </dev/null", "sh"]).arg(rds_server());
                command.stdin(OwnedFd::from(listener.try_clone().expect("a descriptor is left")));
                command
            }
        };
        command.args(["--address", &self.address.to_string(), "--socket"]).arg(&self.socket);
        command.args(&self.options).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts it, and waits until clients can attach.
    ///
    /// # Panics
    /// It does not start.
    #[track_caller]
    #[must_use]
    pub fn start(&mut self) -> Daemon {
        self.lives += 1;
        let errors = self.errors.with_extension(format!("daemon-{}", self.lives));
        let mut command = self.command();
        command.stdout(Stdio::null());
        command.stderr(File::create(&errors).unwrap_or_else(|e| panic!("{}: {e}", errors.display())));
        let child = command.spawn().unwrap_or_else(|e| panic!("the daemon at {}: {e}", self.address));
        let mut daemon = Daemon { child, address: self.address.into(), socket: self.socket.clone(), errors };
        // It listens before it has all that it needs: who only connected would count too few files.
        daemon.until("it serves", |daemon| {
            [" serving ", r#""serving""#].iter().any(|said| daemon.log().contains(said))
        });
        daemon
    }
}

/// A running daemon, killed with its value.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    address: IpAddr,
    socket: PathBuf,
    errors: PathBuf,
}

impl Daemon {
    /// Waits until something is so, which nothing announces.
    ///
    /// # Panics
    /// It never is, or the daemon dies.
    #[track_caller]
    pub fn until(&mut self, what: &str, mut is_so: impl FnMut(&Self) -> bool) {
        let since = Instant::now();
        while !is_so(self) {
            let ended = self.child.try_wait().expect("a child can be asked");
            assert!(ended.is_none(), "the daemon at {} ended: {ended:?}\n{}", self.address, self.log());
            assert!(since.elapsed() < PATIENCE, "never: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A client's node.
    ///
    /// # Panics
    /// It cannot attach.
    #[track_caller]
    #[must_use]
    pub fn attach(&self) -> Node {
        let node = Node::builder(self.address).attach(&self.socket).open();
        node.unwrap_or_else(|e| {
            panic!("cannot attach to the daemon at {}: {e}\n{}", self.address, self.log())
        })
    }

    /// What its node counts and holds, as a client sees it that comes for that alone.
    #[track_caller]
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.attach().snapshot_with_queues()
    }

    /// Messages that its node has dropped because nobody had bound their port.
    #[track_caller]
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.snapshot().counters.get(Counter::RecvDropNoSock)
    }

    /// Its socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Its open files.
    ///
    /// # Panics
    /// It has died.
    #[track_caller]
    #[must_use]
    pub fn files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.id())).expect("it runs").count()
    }

    /// Its resident memory in bytes.
    ///
    /// # Panics
    /// It has died.
    #[track_caller]
    #[must_use]
    pub fn memory(&self) -> u64 {
        crate::ledger::process::resident(self.id()).unwrap_or_else(|e| panic!("{e}\n{}", self.log()))
    }

    /// Has it read its configuration again (SIGHUP), and waits until it has. Returns what it logged meanwhile; the last line of it begins
    /// with `SIGHUP: ` behind its time and level, and says what came of it.
    ///
    /// # Panics
    /// It dies.
    #[track_caller]
    pub fn reload(&mut self) -> String {
        let before = self.log();
        let lines = |log: &str| log.lines().filter(|line| line.contains("SIGHUP: ")).count();
        let said = lines(&before);
        kill(Pid::from_raw(self.id().cast_signed()), Signal::SIGHUP).expect("it is our child");
        self.until("it says what came of SIGHUP", |daemon| lines(&daemon.log()) > said);
        self.log().split_off(before.len())
    }

    /// What it has written to standard error.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_else(|e| format!("{}: {e}", self.errors.display()))
    }

    /// `kill -9`.
    ///
    /// # Panics
    /// It had died before by itself.
    #[track_caller]
    pub fn kill(mut self) {
        let ended = self.child.try_wait().expect("a child can be asked");
        assert!(ended.is_none(), "the daemon at {} had ended: {ended:?}\n{}", self.address, self.log());
        self.child.kill().and_then(|()| self.child.wait()).expect("it is our child");
    }

    /// Ends it in an orderly way (SIGTERM).
    ///
    /// # Panics
    /// It does not end, or says that it failed.
    #[track_caller]
    pub fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.ended();
        assert!(status.success(), "{status}\n{}", self.log());
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// It is gone.
    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.id().cast_signed()), signal).expect("it is our child");
    }

    /// Waits until it has ended.
    ///
    /// # Panics
    /// It does not end.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                return status;
            }
            assert!(since.elapsed() < PATIENCE, "the daemon does not end\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
