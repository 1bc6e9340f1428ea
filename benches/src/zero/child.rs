//! Processes that a benchmark starts, tells what to do a line at a time, and hears from.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child as Process, ChildStdout, Command, Stdio};

use serde::de::DeserializeOwned;

use super::part::{Part, Slice};
use super::place::Place;

/// A running part of a benchmark.
pub(crate) struct Child {
    process: Process,
    lines: BufReader<ChildStdout>,
}

impl Child {
    /// Starts it at `place`, and waits until it is ready.
    pub(crate) fn start(place: &Place, part: &Part) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        let text = serde_json::to_string(part).map_err(|e| e.to_string())?;
        let mut process = place
            .run(|| {
                let mut command = Command::new(program);
                command.args(["part", &text]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
            })
            .map_err(|e| format!("cannot start a part: {e}"))?;
        let lines = BufReader::new(process.stdout.take().expect("piped"));
        let mut child = Self { process, lines };
        match child.line()?.as_str() {
            "\"ready\"" => Ok(child),
            other => Err(format!("a part said {other:?} instead of being ready")),
        }
    }

    /// Lets it work for `seconds`, and returns what it did.
    pub(crate) fn work(&mut self, seconds: f64) -> Result<Slice, String> {
        self.ask(&format!("run {seconds}"))
    }

    /// What it did since it was asked last.
    pub(crate) fn cost(&mut self) -> Result<Slice, String> {
        self.ask("cost")
    }

    /// Tells it `what`, and returns its answer.
    pub(crate) fn ask<T: DeserializeOwned>(&mut self, what: &str) -> Result<T, String> {
        let input = self.process.stdin.as_mut().expect("piped");
        writeln!(input, "{what}").map_err(|_| "a part ended too early; its error is above".to_owned())?;
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|e| format!("a part said {line:?}: {e}"))
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.lines.read_line(&mut line).map_err(|e| e.to_string())? {
            0 => Err("a part ended too early; its error is above".to_owned()),
            _ => Ok(line.trim().to_owned()),
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It ends with its input. One that does not is not waited for.
        drop(self.process.stdin.take());
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
