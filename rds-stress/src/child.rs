//! A task in a process of its own (`--processes`): what it does with what its parent tells it.
//!
//! The parent writes lines of JSON to standard input, [`Order`]s after a first [`Job`]; the task answers with [`Said`] on standard output.
//! Standard error is the parent's.

use std::ffi::OsString;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::backend::kernel::Kernel;
use crate::backend::rds::Rds;
use crate::backend::tcp::Tcp;
use crate::backend::{Backend, Choice};
use crate::clock::{Gate, Phase};
use crate::error::{Failure, failure};
use crate::out::Out;
use crate::report::CpuTime;
use crate::roles::{Settings, start_tracing};
use crate::rtt::Recorded;
use crate::session::Session;
use crate::stats::{Counts, Published};
use crate::task::{Task, TaskFailure};

/// The word on the command line that makes a process one task.
pub const WORD: &str = "task-process";

/// What a task is. The first line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Its number, from 0.
    pub index: u16,
    /// What carries its messages.
    pub backend: Choice,
    /// What both sides agreed on.
    pub session: Session,
    /// What its side was told on the command line.
    pub settings: Settings,
}

/// What a task is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Begin to send after this time.
    Start(Duration),
    /// Go on to this phase.
    Phase(Phase),
    /// Say what was counted.
    Count,
}

/// What a task says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Said {
    /// Its port is bound.
    Bound,
    /// It could not begin, for this reason.
    Refused(String),
    /// What it has counted, and its CPU time.
    Counted(Counts, CpuTime),
    /// Lines for the parent to print.
    Lines(String),
    /// It has ended as told.
    Ended(Counts, Recorded),
    /// It has failed; whether by a check.
    Died(String, bool),
}

/// Whether the command line asks for a task.
#[must_use]
pub fn is_asked(mut args: impl Iterator<Item = OsString>) -> bool {
    args.nth(1).is_some_and(|word| word == WORD)
}

/// Runs the task. A failure is told to the parent, which prints it.
#[must_use]
pub fn main() -> ExitCode {
    // Ctrl-C reaches every process of the terminal; when to end is the parent's decision.
    let done = ctrlc::set_handler(|| {}).map_err(|e| failure!("cannot ignore Ctrl-C: {e}"));
    match done.and_then(|()| read_job()).and_then(|job| match job.backend {
        Choice::Rds => run::<Rds>(job),
        Choice::Kernel => run::<Kernel>(job),
        Choice::Tcp => run::<Tcp>(job),
    }) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            say(&Said::Refused(failure.message));
            ExitCode::FAILURE
        }
    }
}

fn read_job() -> Result<Job, Failure> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).map_err(|e| failure!("cannot read what to do: {e}"))?;
    let unknown = |e| failure!("'{WORD}' is for rds-stress itself, which starts its tasks by it: {e}");
    serde_json::from_str(&line).map_err(unknown)
}

/// Whether the task ended well.
fn run<B: Backend>(job: Job) -> Result<bool, Failure> {
    let Job { index, session, settings, .. } = job;
    start_tracing(session.tracing);
    let backend = B::open(session.own, session.role, &settings)?;
    // The parent has said already what there is to say of buffers.
    let ports = backend.bind(&session, index..index + 1, Out::Nowhere)?;
    let port = ports.into_iter().next().ok_or_else(|| failure!("task {index} has no port"))?;
    say(&Said::Bound);
    let (gate, published) = (Arc::new(Gate::default()), Arc::new(Published::default()));
    let Some(start) = wait_start() else { std::process::exit(1) };
    let obeys = (Arc::clone(&gate), Arc::clone(&published));
    thread::spawn(move || obey(&obeys.0, &obeys.1));
    let local = &settings.local;
    let task = Task {
        session: &session,
        index,
        port,
        gate: &gate,
        published: &published,
        outliers: local.outliers.map(|us| us.saturating_mul(1000)),
        cancel: local.cancel_sent_to.then_some(Out::Parent),
    };
    let ended = task.run(start);
    let well = ended.is_ok();
    say(&match ended {
        Ok(rtt) => Said::Ended(published.read(), rtt.recorded()),
        Err(TaskFailure { report, check }) => Said::Died(report, check),
    });
    Ok(well)
}

fn wait_start() -> Option<Instant> {
    match next_order()? {
        Order::Start(after) => Some(Instant::now() + after),
        // The run ended before it began.
        _ => None,
    }
}

fn next_order() -> Option<Order> {
    let mut line = String::new();
    // No more lines: the parent is gone.
    let len = io::stdin().lock().read_line(&mut line).ok().filter(|len| *len > 0)?;
    serde_json::from_str(&line[..len]).ok()
}

/// Obeys the parent, and ends with it.
fn obey(gate: &Gate, published: &Published) {
    while let Some(order) = next_order() {
        match order {
            Order::Phase(phase) => gate.advance(phase),
            Order::Count => say(&Said::Counted(published.read(), CpuTime::of_process())),
            Order::Start(_) => {}
        }
    }
    // Nobody wants what it would still measure.
    std::process::exit(1);
}

/// Tells the parent something; without a parent the process ends.
pub(crate) fn say(what: &Said) {
    // Numbers and texts alone: nothing that could fail.
    let mut line = serde_json::to_vec(what).expect("plain data");
    line.push(b'\n');
    let mut out = io::stdout().lock();
    if out.write_all(&line).and_then(|()| out.flush()).is_err() {
        std::process::exit(1);
    }
}
