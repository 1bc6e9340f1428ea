//! `rds-stress` as a test holds it: started somewhere, listened to, ended.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

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
    pub fn start(mut command: Command) -> Self {
        command.args(["--json", "--start-delay", "0.2", "--warmup", "0.3"]);
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
        let what = "waiting for incoming connection";
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) => self.said.push(line),
                Err(e) => panic!("rds-stress does not say {what:?} ({e}) but {:#?}", self.said),
            }
            if self.said.last().is_some_and(|line| line.contains(what)) {
                return;
            }
        }
    }

    /// Waits for its end, and returns its report.
    ///
    /// # Panics
    /// It fails.
    #[track_caller]
    #[must_use]
    pub fn end(mut self) -> serde_json::Value {
        let mut report = String::new();
        self.child.stdout.take().expect("piped").read_to_string(&mut report).expect("text");
        let status = self.child.wait().expect("it is our child");
        self.said.extend(self.lines.iter());
        assert!(status.success(), "{status}: {:#?}", self.said);
        serde_json::from_str(&report).unwrap_or_else(|e| panic!("{e} in {report:?}: {:#?}", self.said))
    }
}

impl Drop for Stress {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
