//! Many clients of a daemon, a process each, that ask and answer each other; some of them may be stopped or killed.
//!
//! Each sends numbered requests to its targets, so many at a time to each, and answers those that come. Every message has a checksum, the
//! number of its author's life, and its place in the order: whatever is lost, doubled, damaged or out of order shows.

pub mod client;
mod message;

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// What a client has done so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// Answers that came, by target.
    pub answered: Vec<u64>,
    /// Requests without an answer, by target.
    pub outstanding: Vec<u64>,
    /// Requests that came.
    pub asked: u64,
    /// What should not be: lost, doubled, damaged messages, failed calls. The first few.
    pub faults: Vec<String>,
    /// Since `measure`: answers from measured targets, and their round trips in microseconds.
    pub measured: u64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// Seconds since `measure`.
    pub seconds: f64,
}

/// How to start a client.
#[derive(Clone, Debug)]
pub struct Plan {
    program: PathBuf,
    word: Option<&'static str>,
    socket: PathBuf,
    at: SocketAddrV4,
    to: Vec<SocketAddrV4>,
    also: Vec<SocketAddrV4>,
    more: Vec<String>,
    lives: u32,
}

impl Plan {
    /// A client at `at` of the daemon whose socket is `socket`. `program`: where `rds-crowd` is.
    #[must_use]
    pub fn new(program: &Path, socket: &Path, at: SocketAddrV4) -> Self {
        let (program, socket) = (program.to_owned(), socket.to_owned());
        Self { program, word: None, socket, at, to: Vec::new(), also: Vec::new(), more: Vec::new(), lives: 0 }
    }

    /// Gives the program this word first, for one that is a client only when asked for it.
    #[must_use]
    pub fn by_word(self, word: &'static str) -> Self {
        Self { word: Some(word), ..self }
    }

    /// Another target, whose round trips are measured.
    pub fn to(&mut self, target: SocketAddrV4) {
        self.to.push(target);
    }

    /// Another target, one request at a time, whose round trips are not measured.
    pub fn also_to(&mut self, target: SocketAddrV4) {
        self.also.push(target);
    }

    /// Another option of `rds-crowd`.
    #[must_use]
    pub fn with(mut self, option: &str, value: impl ToString) -> Self {
        self.more.extend([format!("--{option}"), value.to_string()]);
        self
    }

    /// Where it is bound.
    #[must_use]
    pub fn at(&self) -> SocketAddrV4 {
        self.at
    }

    /// Starts its next life. It sends nothing before [`Member::go`].
    ///
    /// # Panics
    /// It cannot be started.
    #[must_use]
    #[track_caller]
    pub fn start(&mut self) -> Member {
        self.lives += 1;
        let mut command = Command::new(&self.program);
        command.args(self.word).arg("--attach").arg(&self.socket);
        command.args(["--at", &self.at.to_string(), "--life", &self.lives.to_string()]);
        for (option, targets) in [("--to", &self.to), ("--also", &self.also)] {
            for target in targets {
                command.args([option, &target.to_string()]);
            }
        }
        command.args(&self.more).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("rds-crowd: {e}"));
        let (orders, says) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Member { child, orders, says: BufReader::new(says), at: self.at }
    }
}

/// A running client. Killed with its value.
#[derive(Debug)]
pub struct Member {
    child: Child,
    orders: ChildStdin,
    says: BufReader<ChildStdout>,
    at: SocketAddrV4,
}

impl Member {
    /// Waits until its socket is bound.
    ///
    /// # Panics
    /// It has failed.
    #[track_caller]
    pub fn bound(&mut self) {
        assert_eq!(self.line().as_deref(), Some("bound"), "client at {} does not begin", self.at);
    }

    /// Has it send.
    #[track_caller]
    pub fn go(&mut self) {
        self.order("go");
    }

    /// Has it send no more requests; it goes on answering.
    #[track_caller]
    pub fn rest(&mut self) {
        self.order("rest");
    }

    /// Begins to measure.
    #[track_caller]
    pub fn measure(&mut self) {
        self.order("measure");
    }

    /// Asks for its account. Take the answer with [`Member::answer`].
    #[track_caller]
    pub fn ask(&mut self) {
        self.order("say");
    }

    /// The answer to [`Member::ask`].
    ///
    /// # Panics
    /// It has died, or found that something is wrong.
    #[track_caller]
    pub fn answer(&mut self) -> Said {
        let line = self.line().unwrap_or_else(|| panic!("client at {} died", self.at));
        let said: Said = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
        assert!(said.faults.is_empty(), "client at {}: {:#?}", self.at, said.faults);
        said
    }

    /// Its account.
    ///
    /// # Panics
    /// As [`Member::answer`].
    #[track_caller]
    pub fn say(&mut self) -> Said {
        self.ask();
        self.answer()
    }

    /// Ends it.
    ///
    /// # Panics
    /// It fails.
    #[track_caller]
    pub fn end(mut self) {
        self.order("end");
        let status = self.child.wait().expect("it is our child");
        assert!(status.success(), "client at {}: {status}", self.at);
    }

    /// `kill -9`.
    #[track_caller]
    pub fn kill(mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("it is our child");
    }

    /// Stops it where it is, or lets it go on.
    #[track_caller]
    pub fn stand_still(&self, still: bool) {
        let signal = if still { Signal::SIGSTOP } else { Signal::SIGCONT };
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).expect("it is our child");
    }

    #[track_caller]
    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap_or_else(|e| panic!("client at {} is gone: {e}", self.at));
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let len = self.says.read_line(&mut line).ok()?;
        (len > 0).then(|| line.trim_end().to_owned())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // It has ended, unless the test failed or killed it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks all of them at once, which is faster than one after the other.
#[track_caller]
pub fn say_all<'a>(members: impl IntoIterator<Item = &'a mut Member>) -> Vec<Said> {
    let mut asked: Vec<&mut Member> = members.into_iter().collect();
    asked.iter_mut().for_each(|member| member.ask());
    asked.into_iter().map(Member::answer).collect()
}

/// An address with a port.
#[must_use]
pub fn at(address: Ipv4Addr, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(address, port)
}
