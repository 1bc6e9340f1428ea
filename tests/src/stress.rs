//! `rds-stress` as a test holds it: started somewhere, listened to, ended.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::ledger::process::PATIENCE;

/// A running `rds-stress`, which is killed with its value.
#[derive(Debug)]
pub struct Stress {
    child: Child,
    /// Lines of standard error, where all goes but the JSON object.
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Stress {
    /// Runs `command`, which names the program, however it is started, and its options but for those of a short run with a report.
    ///
    /// # Panics
    /// It cannot be started.
    #[must_use]
    pub fn start(command: Command) -> Self {
        Self::start_after(command, "0.3")
    }

    /// As [`Stress::start`], measuring after `warm_up` seconds.
    ///
    /// # Panics
    /// It cannot be started.
    #[must_use]
    pub fn start_after(mut command: Command, warm_up: &str) -> Self {
        command.args(["--json", "--start-delay", "0.2", "--warmup", warm_up]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let errors = BufReader::new(child.stderr.take().expect("piped"));
        let (sink, lines) = channel();
        std::thread::spawn(move || errors.lines().map_while(Result::ok).try_for_each(|line| sink.send(line)));
        Self { child, lines, said: Vec::new() }
    }

    /// Returns when a passive side can be connected to.
    ///
    /// # Panics
    /// It does not come to that.
    #[track_caller]
    pub fn waits(&mut self) {
        self.says(|line| line.contains("waiting for incoming connection"));
    }

    /// Returns when it says a line of standard error that is `wanted`, after those that were returned before.
    ///
    /// # Panics
    /// It does not say one within a minute.
    #[track_caller]
    pub fn says(&mut self, wanted: impl Fn(&str) -> bool) {
        let since = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(since.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.said.push(line),
                Err(e) => panic!("rds-stress does not say what it should ({e}) but {:#?}", self.said),
            }
            if self.said.last().is_some_and(|line| wanted(line)) {
                return;
            }
        }
    }

    /// Its process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, which must be a failure. Returns its status and the lines of standard error.
    ///
    /// # Panics
    /// It ends well, or not at all.
    #[track_caller]
    #[must_use]
    pub fn fails(mut self) -> (Option<i32>, Vec<String>) {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.said.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("rds-stress does not end, after {:#?}", self.said),
            }
        }
        let status = self.child.wait().expect("it is our child");
        assert!(!status.success(), "it ended well: {:#?}", self.said);
        (status.code(), std::mem::take(&mut self.said))
    }

    /// Sends it a signal.
    ///
    /// # Panics
    /// It has ended.
    pub fn signal(&self, signal: Signal) {
        let process = Pid::from_raw(self.child.id().try_into().expect("a process number"));
        kill(process, signal).expect("it is our child");
    }

    /// Waits for its end, and returns its report.
    ///
    /// # Panics
    /// It fails.
    #[track_caller]
    #[must_use]
    pub fn end(self) -> serde_json::Value {
        self.end_saying().report
    }

    /// Waits for its end, and returns all that it said.
    ///
    /// # Panics
    /// It fails, or says nothing for a minute and does not end.
    #[track_caller]
    #[must_use]
    pub fn end_saying(mut self) -> Ended {
        // Its standard error ends when it does.
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.said.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("rds-stress does not end, after {:#?}", self.said),
            }
        }
        let mut report = String::new();
        self.child.stdout.take().expect("piped").read_to_string(&mut report).expect("text");
        let status = self.child.wait().expect("it is our child");
        assert!(status.success(), "{status}: {:#?}", self.said);
        let report = serde_json::from_str(&report);
        let report = report.unwrap_or_else(|e| panic!("no report ({e}) but {:#?}", self.said));
        Ended { report, lines: std::mem::take(&mut self.said) }
    }
}

/// What it has left.
#[derive(Debug)]
pub struct Ended {
    /// The JSON object.
    pub report: serde_json::Value,
    /// The lines of standard error.
    pub lines: Vec<String>,
}

impl Drop for Stress {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
