//! Runs a case once: starts both sides, waits for the measure, stops them.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::case::{Case, Found, Kind, Transport};

/// What a run found.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Messages a second, or the median round trip in microseconds.
    pub(crate) value: f64,
    /// Payload bytes a second.
    pub(crate) bytes_per_second: f64,
    /// The 99th percentile of the round trip in microseconds.
    pub(crate) p99_us: f64,
    /// Processor time of the sender, or of the one that asks, for each message, in nanoseconds.
    pub(crate) sender_cpu_ns: f64,
    /// The same of the receiver, or of the one that answers.
    pub(crate) receiver_cpu_ns: f64,
    /// Messages of the whole run.
    #[serde(default)]
    pub(crate) messages: u64,
    /// Messages that were sent and did not come, as far as later ones show.
    #[serde(default)]
    pub(crate) lost: u64,
}

impl Run {
    pub(crate) fn show(&self, kind: Kind) -> String {
        match kind {
            Kind::RoundTrip => format!("{:.1} us", self.value),
            _ => format!("{:.0} messages/s, {:.2} GB/s", self.value, self.bytes_per_second / 1e9),
        }
    }
}

/// How both sides of every run are set.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Setup {
    /// Measured time of a run in seconds, and time before it.
    pub(crate) seconds: f64,
    /// The same.
    pub(crate) warmup: f64,
    /// TCP port of RDS nodes.
    pub(crate) port: u16,
    /// Buffers of RDS sockets in bytes.
    pub(crate) send_buffer: u64,
    /// The same.
    pub(crate) receive_buffer: u64,
    /// Of TCP, or `system`.
    pub(crate) congestion_control: String,
}

/// Over what a run goes, and what else the sender and the receiver are told.
pub(crate) struct Way<'a> {
    pub(crate) transport: Transport,
    pub(crate) sender: &'a [String],
    pub(crate) receiver: &'a [String],
}

struct Started {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Started {
    fn new(
        cli: &Setup,
        case: Case,
        transport: Transport,
        role: &str,
        more: &[String],
        to: Option<&str>,
    ) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        let mut command = Command::new(program);
        command.args(["side", "--role", role, "--transport", &name(&transport), "--kind", &name(&case.kind)]);
        for (option, value) in [
            ("--size", case.size.to_string()),
            ("--seconds", cli.seconds.to_string()),
            ("--warmup", cli.warmup.to_string()),
            ("--port", cli.port.to_string()),
            ("--send-buffer", cli.send_buffer.to_string()),
            ("--receive-buffer", cli.receive_buffer.to_string()),
            ("--congestion-control", cli.congestion_control.clone()),
        ] {
            command.args([option, &value]);
        }
        command.args(more);
        if let Some(to) = to {
            command.args(["--to", to]);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("cannot start the {role}: {e}"))?;
        let lines = BufReader::new(child.stdout.take().expect("piped"));
        Ok(Self { child, lines })
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.lines.read_line(&mut line).map_err(|e| e.to_string())? {
            0 => Err("a side ended too early; its error is above".to_owned()),
            _ => Ok(line.trim().to_owned()),
        }
    }

    fn found(&mut self) -> Result<Found, String> {
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|e| format!("a side said {line:?}: {e}"))
    }

    /// Ends its standard input, and takes what it says last.
    fn stop(&mut self) -> Result<Found, String> {
        drop(self.child.stdin.take());
        let found = self.found()?;
        let status = self.child.wait().map_err(|e| e.to_string())?;
        if status.success() { Ok(found) } else { Err(format!("a side failed: {status}")) }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // It has ended, unless the other side failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As the command line has it.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned())
}

pub(crate) fn run(cli: &Setup, case: Case, way: &Way<'_>) -> Result<Run, String> {
    let transport = way.transport;
    let mut receiver = Started::new(cli, case, transport, "receiver", way.receiver, None)?;
    let ready = receiver.line()?;
    let to = ready.strip_prefix("ready ").ok_or_else(|| format!("the receiver said {ready:?}"))?;
    let mut sender = Started::new(cli, case, transport, "sender", way.sender, Some(to))?;
    let found = if case.kind == Kind::RoundTrip { sender.found()? } else { receiver.found()? };
    let sent = sender.stop()?;
    let taken = receiver.stop()?;
    let rate = found.messages as f64 / found.seconds;
    let each = |cost: &Found| cost.cpu_seconds * 1e9 / cost.messages_in_all.max(1) as f64;
    Ok(Run {
        value: if case.kind == Kind::RoundTrip { found.p50_us } else { rate },
        bytes_per_second: rate * case.size as f64,
        p99_us: found.p99_us,
        sender_cpu_ns: each(&sent),
        receiver_cpu_ns: each(&taken),
        messages: taken.messages_in_all,
        lost: taken.lost,
    })
}
