//! Ledger processes as a test holds them: started, commanded, watched, killed.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::check::{Limits, Report, check_with};
use super::daemons::Daemons;
use super::log;
use super::run::Progress;

/// How long a test waits for something that must come. Only to end a test that has failed already.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A directory that is removed with its value, unless the test panics: then it is kept, for its logs.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new directory below the system's one for temporary files.
    ///
    /// # Panics
    /// It cannot be made.
    #[must_use]
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("rds-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap_or_else(|e| panic!("cannot make {}: {e}", path.display()));
        Self(path)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Compares the logs in it.
    ///
    /// # Panics
    /// If a rule was broken, with what was broken and where the logs are.
    #[track_caller]
    pub fn check(&self) -> Report {
        let logs = log::read_all(&self.0).unwrap_or_else(|e| panic!("{e}"));
        let daemons = Daemons::read(&self.0).unwrap_or_else(|e| panic!("{e}"));
        let report = check_with(&logs, Limits::default(), daemons);
        assert!(report.broken == 0, "logs in {}: {report:#?}", self.0.display());
        report
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("logs are kept in {}", self.0.display());
        } else {
            // A leftover directory harms nobody.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// How to start a process.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The program, or the words that run it elsewhere.
    words: Vec<String>,
    logs: PathBuf,
    /// Where the process sees its directory of logs.
    logs_there: PathBuf,
    address: Ipv4Addr,
    ports: Vec<u16>,
    targets: Vec<SocketAddrV4>,
    more: Vec<String>,
    incarnation: u32,
}

impl Plan {
    /// A receiver at `address` with sockets at `ports`. `program`: where `rds-ledger` is.
    #[must_use]
    pub fn new(program: &str, scratch: &Scratch, address: Ipv4Addr, ports: &[u16]) -> Self {
        Self {
            words: vec![program.to_owned()],
            logs: scratch.path().to_owned(),
            logs_there: scratch.path().to_owned(),
            address,
            ports: ports.to_vec(),
            targets: Vec::new(),
            more: Vec::new(),
            incarnation: 0,
        }
    }

    /// The node's address.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Runs it elsewhere: `words` run the program, which puts its logs into `logs` there. Somebody must bring them back.
    #[must_use]
    pub fn elsewhere(self, words: Vec<String>, logs: &str) -> Self {
        Self { words, logs_there: logs.into(), ..self }
    }

    /// Makes it send to every socket of `other`.
    #[must_use]
    pub fn sending_to(mut self, other: &Self) -> Self {
        self.targets.extend(other.ports.iter().map(|port| SocketAddrV4::new(other.address, *port)));
        self
    }

    /// Another option of `rds-ledger`.
    #[must_use]
    pub fn with(mut self, option: &str, value: impl ToString) -> Self {
        self.more.extend([format!("--{option}"), value.to_string()]);
        self
    }

    /// Another option of `rds-ledger` that takes no value.
    #[must_use]
    pub fn flag(mut self, option: &str) -> Self {
        self.more.push(format!("--{option}"));
        self
    }

    /// Starts the next incarnation, and waits until its sockets are bound. It sends nothing before [`Process::load`], so that a peer
    /// that is started meanwhile has its sockets bound, too.
    ///
    /// # Panics
    /// It does not start.
    #[track_caller]
    pub fn start(&mut self) -> Process {
        self.incarnation += 1;
        let name = format!("{}-{}", self.address, self.incarnation);
        let errors = self.logs.join(format!("{name}.stderr"));
        let list = |items: &[String]| items.join(",");
        let (program, before) = self.words.split_first().expect("there is a program");
        let mut command = Command::new(program);
        command.args(before);
        command.arg(if self.targets.is_empty() { "recv" } else { "both" });
        command.args(["--address", &self.address.to_string()]);
        command.args(["--ports", &list(&self.ports.iter().map(u16::to_string).collect::<Vec<_>>())]);
        command.arg("--logs").arg(&self.logs_there).args(["--incarnation", &self.incarnation.to_string()]);
        if !self.targets.is_empty() {
            command.args([
                "--hold",
                "--to",
                &list(&self.targets.iter().map(SocketAddrV4::to_string).collect::<Vec<_>>()),
            ]);
        }
        command.args(&self.more).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(File::create(&errors).unwrap_or_else(|e| panic!("{}: {e}", errors.display())));
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{program}: {e}"));
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (lines, progress) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let Ok(line) = serde_json::from_str(&line) else { break };
                if lines.send(line).is_err() {
                    break;
                }
            }
        });
        let mut process = Process { child, progress, last: Progress::default(), name, errors };
        process.wait("it is ready", |p| !p.received.is_empty());
        process
    }
}

/// A running process. Killed with its value.
#[derive(Debug)]
pub struct Process {
    child: Child,
    progress: Receiver<Progress>,
    last: Progress,
    name: String,
    errors: PathBuf,
}

impl Process {
    /// Waits until its progress is so, and returns it.
    ///
    /// # Panics
    /// The process dies, or it takes longer than [`PATIENCE`].
    #[track_caller]
    pub fn wait(&mut self, what: &str, mut so: impl FnMut(&Progress) -> bool) -> Progress {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.progress.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(progress) => self.last = progress,
                Err(RecvTimeoutError::Timeout) => {
                    panic!(
                        "{}: waited in vain until {what}; last {:?}\n{}",
                        self.name,
                        self.last,
                        self.errors()
                    )
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!(
                        "{}: died while waiting until {what}; last {:?}\n{}",
                        self.name,
                        self.last,
                        self.errors()
                    )
                }
            }
            if so(&self.last) {
                return self.last.clone();
            }
        }
    }

    /// Its progress now.
    ///
    /// # Panics
    /// The process has died.
    #[track_caller]
    pub fn now(&mut self) -> Progress {
        while self.progress.try_recv().is_ok() {}
        // What is printed from now on was read after the call.
        self.wait("it reports", |_| true)
    }

    /// Waits until it has received `more` messages than now.
    ///
    /// # Panics
    /// As [`Process::wait`].
    #[track_caller]
    pub fn receives(&mut self, more: u64) {
        let goal = self.now().received_in_all() + more;
        self.wait(&format!("{more} more messages are received"), |p| p.received_in_all() >= goal);
    }

    /// Waits until `more` messages than now are delivered.
    ///
    /// # Panics
    /// As [`Process::wait`].
    #[track_caller]
    pub fn delivers(&mut self, more: u64) {
        let goal = self.now().delivered_in_all() + more;
        self.wait(&format!("{more} more messages are delivered"), |p| p.delivered_in_all() >= goal);
    }

    /// Writes a command to its standard input.
    ///
    /// # Panics
    /// The process has died.
    #[track_caller]
    pub fn command(&mut self, command: &str) {
        let input = self.child.stdin.as_mut().expect("piped");
        writeln!(input, "{command}").unwrap_or_else(|e| panic!("{}: {e}\n{}", self.name, self.errors()));
    }

    /// Makes it send.
    ///
    /// # Panics
    /// The process has died.
    #[track_caller]
    pub fn load(&mut self) {
        self.command("load");
    }

    /// Makes it send nothing new.
    ///
    /// # Panics
    /// The process has died.
    #[track_caller]
    pub fn drain(&mut self) {
        self.command("drain");
    }

    /// Waits until each of its messages has ended; after [`Process::drain`].
    ///
    /// # Panics
    /// As [`Process::wait`].
    #[track_caller]
    pub fn drained(&mut self) -> Progress {
        self.wait("every message has ended", |p| p.idle && p.unfinished == 0)
    }

    /// Makes it take what is queued and go.
    ///
    /// # Panics
    /// It does not, or fails.
    #[track_caller]
    pub fn exit(mut self) {
        self.command("exit");
        let end = Instant::now() + PATIENCE;
        loop {
            match self.progress.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(progress) => self.last = progress,
                Err(RecvTimeoutError::Timeout) => panic!("{}: does not exit\n{}", self.name, self.errors()),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = self.child.wait().unwrap_or_else(|e| panic!("{}: {e}", self.name));
        assert!(status.success(), "{}: {status}\n{}", self.name, self.errors());
    }

    /// `kill -9`.
    ///
    /// # Panics
    /// It had died before by itself.
    #[track_caller]
    pub fn kill(mut self) -> ExitStatus {
        if let Some(status) = self.child.try_wait().expect("a child can be asked") {
            panic!("{}: died by itself: {status}\n{}", self.name, self.errors());
        }
        self.child.kill().and_then(|()| self.child.wait()).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    /// Stops it where it is (SIGSTOP): its connections stand, and nobody reads them.
    ///
    /// # Panics
    /// It cannot be stopped.
    #[track_caller]
    pub fn stand_still(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on after [`Process::stand_still`].
    ///
    /// # Panics
    /// It cannot be let go on.
    #[track_caller]
    pub fn go_on(&self) {
        self.signal("-CONT");
    }

    #[track_caller]
    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.as_ref().is_ok_and(ExitStatus::success), "{}: kill {signal}: {status:?}", self.name);
    }

    /// What it wrote to standard error: its log.
    #[must_use]
    pub fn errors(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_else(|e| format!("{}: {e}", self.errors.display()))
    }

    /// Waits until its log has a line that is so, and returns all that are.
    ///
    /// # Panics
    /// As [`Process::wait`].
    #[track_caller]
    pub fn logs(&mut self, what: &str, so: impl Fn(&str) -> bool) -> Vec<String> {
        let errors = self.errors.clone();
        let lines = move || -> Vec<String> {
            let log = std::fs::read_to_string(&errors).unwrap_or_default();
            log.lines().filter(|l| so(l)).map(str::to_owned).collect()
        };
        self.wait(&format!("its log says {what}"), |_| !lines().is_empty());
        lines()
    }

    /// Its resident memory in bytes (`VmRSS`).
    ///
    /// # Panics
    /// The process has died.
    #[must_use]
    #[track_caller]
    pub fn memory(&self) -> u64 {
        resident(self.child.id()).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }
}

/// Resident memory of a process in bytes (`VmRSS`).
///
/// # Errors
/// There is no such process, or it has ended and has no memory.
pub fn resident(process: u32) -> Result<u64, String> {
    let path = format!("/proc/{process}/status");
    let status = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:")).ok_or("no VmRSS: it has ended")?;
    let kilobytes = line.trim().trim_end_matches(" kB").parse::<u64>().map_err(|e| format!("{line}: {e}"))?;
    Ok(kilobytes * 1024)
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
