//! Tasks in processes of their own (`--processes`), as their parent sees them: as the reference's tasks are.
//!
//! Each is this program again ([`crate::child`]). A thread of the parent follows each: to the rest of the program it is the task.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::backend::Choice;
use crate::child::{Job, Order, Said, WORD};
use crate::clock::Phase;
use crate::error::{Failure, failure};
use crate::out::Out;
use crate::report::CpuTime;
use crate::roles::Settings;
use crate::rtt::RoundTrips;
use crate::session::Session;
use crate::stats::Published;
use crate::task::TaskFailure;

/// How long the counts of a process are waited for before those from before are taken for them.
const ANSWER: Duration = Duration::from_millis(500);
/// How long a process may take to end when told to.
const END: Duration = Duration::from_secs(10);

/// Processes whose ports are bound. They are killed with this value.
#[derive(Debug)]
pub struct Processes {
    crew: Crew,
    followers: Vec<Follower>,
}

/// The processes as all of the parent's threads see them; none where tasks are threads.
#[derive(Debug, Default)]
pub struct Crew {
    members: Vec<Member>,
    state: Mutex<Vec<State>>,
    changed: Condvar,
}

#[derive(Debug)]
struct Member {
    orders: Mutex<ChildStdin>,
    pid: Pid,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Asked for counts, and not answered.
    asked: bool,
    gone: bool,
    cpu: CpuTime,
}

/// Hears one process to its end.
#[derive(Debug)]
pub struct Follower {
    index: usize,
    process: Process,
}

/// Killed with its value.
#[derive(Debug)]
struct Process {
    child: Child,
    says: BufReader<ChildStdout>,
}

impl Processes {
    /// Starts a process for each task, and waits until all have bound their ports.
    ///
    /// # Errors
    /// One could not; in words of the command line.
    pub fn start(backend: Choice, session: &Session, settings: &Settings, out: Out) -> Result<Self, Failure> {
        let program = std::env::current_exe()
            .map_err(|e| failure!("cannot find this program to start it as a task: {e}"))?;
        let (mut members, mut followers) = (Vec::new(), Vec::new());
        for index in 0..session.tasks {
            let mut child = Command::new(&program)
                .arg(WORD)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .map_err(|e| {
                    failure!("cannot start a process for task {index}: {e}: take fewer tasks (-t)")
                })?;
            let (orders, says) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
            let pid = Pid::from_raw(child.id().cast_signed());
            let process = Process { child, says: BufReader::new(says) };
            followers.push(Follower { index: index.into(), process });
            let member = Member { orders: Mutex::new(orders), pid };
            // A process that is gone shows when it is listened to.
            let _ =
                member.tell(&Job { index, backend, session: session.clone(), settings: settings.clone() });
            members.push(member);
        }
        for follower in &mut followers {
            follower.wait_bound(out)?;
        }
        let state = Mutex::new(vec![State::default(); members.len()]);
        Ok(Self { crew: Crew { members, state, changed: Condvar::new() }, followers })
    }

    /// What all threads share, and who follows each process.
    #[must_use]
    pub fn split(self) -> (Crew, Vec<Follower>) {
        (self.crew, self.followers)
    }
}

impl Member {
    fn tell(&self, what: &impl serde::Serialize) -> std::io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        self.orders.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line)
    }
}

impl Crew {
    fn state(&self) -> MutexGuard<'_, Vec<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_all(&self, order: Order) {
        for member in &self.members {
            // One that is gone has its follower say so.
            let _ = member.tell(&order);
        }
    }

    /// Has all begin at `start`.
    pub fn start(&self, start: Instant) {
        self.tell_all(Order::Start(start.saturating_duration_since(Instant::now())));
    }

    /// Goes on to `phase`.
    pub fn advance(&self, phase: Phase) {
        self.tell_all(Order::Phase(phase));
        if phase == Phase::Ended {
            self.end();
        }
    }

    /// Has all say what they have counted, which their followers publish. Returns their CPU time, all together.
    pub fn ask(&self) -> CpuTime {
        let mut state = self.state();
        for (member, state) in self.members.iter().zip(state.iter_mut()) {
            // One that stands still is asked once.
            if !state.gone && !std::mem::replace(&mut state.asked, true) {
                let _ = member.tell(&Order::Count);
            }
        }
        let waiting = |state: &mut Vec<State>| state.iter().any(|s| s.asked && !s.gone);
        let (state, _) =
            self.changed.wait_timeout_while(state, ANSWER, waiting).unwrap_or_else(PoisonError::into_inner);
        state.iter().fold(CpuTime::default(), |sum, s| sum.plus(s.cpu))
    }

    /// Waits until all have gone, and kills those that do not go.
    fn end(&self) {
        let state = self.state();
        let running = |state: &mut Vec<State>| state.iter().any(|s| !s.gone);
        let (state, _) =
            self.changed.wait_timeout_while(state, END, running).unwrap_or_else(PoisonError::into_inner);
        for (member, _) in self.members.iter().zip(state.iter()).filter(|(_, s)| !s.gone) {
            // Not reaped before its follower sees its end, so the number is still its own.
            let _ = kill(member.pid, Signal::SIGKILL);
        }
    }

    fn change(&self, index: usize, change: impl FnOnce(&mut State)) {
        change(&mut self.state()[index]);
        self.changed.notify_all();
    }
}

/// Marks a process as gone, however its follower ends.
struct Going<'a>(&'a Crew, usize);

impl Drop for Going<'_> {
    fn drop(&mut self) {
        self.0.change(self.1, |state| state.gone = true);
    }
}

impl Follower {
    fn wait_bound(&mut self, out: Out) -> Result<(), Failure> {
        loop {
            match self.process.next() {
                Some(Said::Bound) => return Ok(()),
                Some(Said::Lines(lines)) => out.write(format_args!("{lines}")),
                Some(Said::Refused(why)) => return Err(Failure::new(why)),
                _ => return Err(Failure::new(self.process.how_it_ended(self.index))),
            }
        }
    }

    /// Publishes what the process counts, until it ends. Returns its round trips.
    ///
    /// # Errors
    /// The task failed, or its process died.
    pub fn follow(mut self, crew: &Crew, published: &Published, out: Out) -> Result<RoundTrips, TaskFailure> {
        let _going = Going(crew, self.index);
        loop {
            match self.process.next() {
                Some(Said::Counted(counts, cpu)) => {
                    published.publish(&counts);
                    crew.change(self.index, |state| (state.asked, state.cpu) = (false, cpu));
                }
                Some(Said::Lines(lines)) => out.write(format_args!("{lines}")),
                Some(Said::Ended(counts, recorded)) => {
                    published.publish(&counts);
                    let mut rtt = RoundTrips::default();
                    rtt.add_recorded(&recorded);
                    return Ok(rtt);
                }
                Some(Said::Died(report, check)) => return Err(TaskFailure { report, check }),
                Some(Said::Bound | Said::Refused(_)) => {}
                None => {
                    let report = self.process.how_it_ended(self.index);
                    return Err(TaskFailure { report, check: false });
                }
            }
        }
    }
}

impl Process {
    /// The next thing that it says; nothing once it is gone, or if it says what no task says.
    fn next(&mut self) -> Option<Said> {
        let mut line = String::new();
        self.says.read_line(&mut line).ok().filter(|len| *len > 0)?;
        let said = serde_json::from_str(&line).ok();
        if said.is_none() {
            // Whatever it is by now, it is no task.
            let _ = self.child.kill();
        }
        said
    }

    fn how_it_ended(&mut self, index: usize) -> String {
        // It has closed its output, so it has ended or is about to.
        let pid = self.child.id();
        let how = self.child.wait().map_or_else(|e| format!("is lost: {e}"), described);
        format!("task {index}: its process ({pid}) {how}")
    }
}

fn described(status: ExitStatus) -> String {
    match (status.signal().map(Signal::try_from), status.code()) {
        (Some(Ok(signal)), _) => format!("was killed by {signal}"),
        (_, Some(code)) => format!("ended by itself with status {code}, which is a fault of rds-stress"),
        _ => format!("ended: {status}"),
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It has ended, unless the run failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_process_is_told_by_its_signal_or_its_status() {
        for (raw, words) in
            [(9, "killed by SIGKILL"), (11, "killed by SIGSEGV"), (256, "status 1"), (99 << 8, "status 99")]
        {
            let text = described(ExitStatus::from_raw(raw));
            assert!(text.contains(words), "{text}");
        }
    }
}
