//! A run: the parent of the tasks, its clock, its lines, its end.

use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, raise};
use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::clock::{Gate, Phase, Schedule};
use crate::control;
use crate::error::{Failure, failure};
use crate::lives::Watch;
use crate::out::{Out, line};
use crate::perfdata::Perfdata;
use crate::processes::{Crew, Processes};
use crate::report::CpuTime;
use crate::rtt::RoundTrips;
use crate::session::{Role, Session};
use crate::soak::{Soakers, set_realtime};
use crate::stats::{CounterList, Counts, Published, total};
use crate::table;
use crate::task::{Task, TaskFailure};
use crate::zerocopy::{self, Modes, Totals, ZeroCopy};

/// What only this side does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools)]
pub struct Local {
    /// When what begins.
    pub schedule: Schedule,
    /// `-c`.
    pub report_cpu: bool,
    /// `--show-outliers`, in microseconds.
    pub outliers: Option<u64>,
    /// `--show-histogram`.
    pub histogram: bool,
    /// `--cancel-sent-to`.
    pub cancel_sent_to: bool,
    /// `--abort-after`, in seconds; 0 for never.
    pub abort_after: u32,
    /// Whether Ctrl-C ends the run in an orderly way.
    pub interruptible: bool,
    /// Whether the end of the passive side ends the active one, which the reference does not watch.
    pub ends_together: bool,
    /// Zero copy, of the node and of the tasks.
    pub zero_copy: Modes,
}

/// What runs the load.
#[derive(Debug)]
pub enum Tasks<P> {
    /// A thread of this process for each of these.
    Threads(Vec<P>),
    /// Processes.
    Processes(Processes),
}

/// The measured time, as this side saw it.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How long it was.
    pub elapsed: Duration,
    /// What was counted in it.
    pub counts: Counts,
    /// Round trips in it.
    pub rtt: RoundTrips,
    /// CPU time of this process in it, without soakers.
    pub cpu: CpuTime,
    /// Received messages that were not what had to come; each ends its task.
    pub verify_errors: u64,
    /// The backend's counters since it was opened.
    pub counters: CounterList,
    /// Its zero copy in the measured time.
    pub zero_copy: ZeroCopy,
    /// Why the run ended early, if it failed. What the tasks had to say has been printed.
    pub failure: Option<Failure>,
}

/// What may end a run before its time.
enum Event {
    /// Ctrl-C.
    Interrupt,
    /// The other side closed the control connection.
    ControlEnded,
    /// A task has ended, which before the end means that it died.
    TaskEnded,
}

/// Tells the parent when a task ends, however it does.
struct Ending(Sender<Event>);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.send(Event::TaskEnded);
    }
}

/// Runs the tasks, which stand in order, from the moment at which both sides have agreed.
///
/// # Errors
/// The run could not begin. What goes wrong in it is in the summary.
pub fn run<B: Backend>(
    session: &Session,
    local: &Local,
    backend: &B,
    tasks: Tasks<B::Port>,
    control: TcpStream,
    out: Out,
) -> Result<Summary, Failure> {
    let released = Instant::now();
    let (sender, events) = mpsc::channel();
    if local.interruptible {
        handle_interrupts(sender.clone())?;
    }
    if session.rtprio {
        set_realtime()?;
    }
    let gate = Gate::default();
    let published: Vec<_> = (0..session.tasks).map(|_| Published::default()).collect();
    let (ports, (crew, followers)) = match tasks {
        Tasks::Threads(ports) => (ports, (Crew::default(), Vec::new())),
        Tasks::Processes(processes) => (Vec::new(), processes.split()),
    };
    let mut watched = control.try_clone().map_err(|e| failure!("the control connection broke: {e}"))?;
    thread::scope(|scope| {
        let soakers = local.report_cpu.then(Soakers::start).transpose()?;
        let start = released + local.schedule.start_delay;
        let mut tasks = Vec::with_capacity(published.len());
        for (follower, published) in followers.into_iter().zip(&published) {
            let (ending, crew) = (Ending(sender.clone()), &crew);
            tasks.push(scope.spawn(move || {
                let _ending = ending;
                follower.follow(crew, published, out)
            }));
        }
        crew.start(start);
        for ((index, port), published) in (0..).zip(ports).zip(&published) {
            let task = Task {
                session,
                index,
                port,
                gate: &gate,
                published,
                outliers: local.outliers.map(|us| us.saturating_mul(1000)),
                cancel: local.cancel_sent_to.then_some(out),
            };
            let ending = Ending(sender.clone());
            let spawned =
                thread::Builder::new().name(format!("task {index}")).spawn_scoped(scope, move || {
                    let _ending = ending;
                    task.run(start)
                });
            match spawned {
                Ok(task) => tasks.push(task),
                Err(e) => {
                    gate.advance(Phase::Ended);
                    return Err(failure!("cannot start task {index}: {e}: take fewer tasks (-t)"));
                }
            }
        }
        if session.role == Role::Passive || local.ends_together {
            let sender = sender.clone();
            scope.spawn(move || {
                control::wait_end(&mut watched);
                let _ = sender.send(Event::ControlEnded);
            });
        }
        let mut parent = Parent {
            session,
            local,
            backend,
            out,
            gate: &gate,
            crew: &crew,
            published: &published,
            tasks,
            soakers,
            events,
            failed: false,
        };
        Ok(parent.run(released, &control))
    })
}

fn handle_interrupts(sender: Sender<Event>) -> Result<(), Failure> {
    let mut interrupted = false;
    ctrlc::set_handler(move || {
        if interrupted || sender.send(Event::Interrupt).is_err() {
            std::process::exit(130);
        }
        interrupted = true;
    })
    .map_err(|e| failure!("cannot handle Ctrl-C: {e}"))
}

struct Parent<'s, 'a, B> {
    session: &'a Session,
    local: &'a Local,
    backend: &'a B,
    out: Out,
    gate: &'a Gate,
    crew: &'a Crew,
    published: &'a [Published],
    tasks: Vec<ScopedJoinHandle<'s, Result<RoundTrips, TaskFailure>>>,
    soakers: Option<Soakers>,
    events: Receiver<Event>,
    failed: bool,
}

/// What was so at one moment.
#[derive(Clone, Copy)]
struct Moment {
    at: Instant,
    counts: Counts,
    cpu: CpuTime,
    zero_copy: Totals,
}

impl<B: Backend> Parent<'_, '_, B> {
    fn run(&mut self, released: Instant, control: &TcpStream) -> Summary {
        let out = self.out;
        let peer = self.session.peer;
        let mut watch = Watch::new(peer, self.backend.lives(Some(peer)));
        let begun = self.warm_up(released);
        let before = self.backend.mark();
        let begin = self.moment();
        let mut percents = Vec::new();
        if begun {
            self.advance(Phase::Measuring);
            self.measure(begin, &mut percents, &mut watch);
        }
        let end = self.moment();
        // While there are connections to tell about.
        let zero_copy = self.backend.zero_copy(self.local.zero_copy, &before);
        self.advance(Phase::Stopping);
        // The end of the connection is the end of the passive side's run, too.
        let _ = control.shutdown(Shutdown::Both);
        if !self.failed {
            self.sleep_until(Instant::now() + self.local.schedule.drain, |e| matches!(e, Event::TaskEnded));
        }
        self.advance(Phase::Ended);
        let mut summary = Summary {
            elapsed: if begun { end.at - begin.at } else { Duration::ZERO },
            counts: if begun { end.counts - begin.counts } else { Counts::default() },
            rtt: RoundTrips::default(),
            cpu: end.cpu.since(begin.cpu),
            verify_errors: 0,
            zero_copy,
            counters: self.backend.counters(),
            failure: None,
        };
        self.soakers = None;
        self.join(&mut summary);
        if begun && summary.failure.is_none() {
            let cpu = if percents.is_empty() {
                table::NO_CPU
            } else {
                percents.iter().sum::<f64>() / percents.len() as f64
            };
            let tasks = usize::from(self.session.tasks);
            if self.session.summary_only && !self.session.perfdata {
                line!(out, "{}", self.heading());
            }
            let zero_copy = self.columns(&begin, &end);
            let row = table::average(tasks, &summary.counts, summary.elapsed, cpu, &zero_copy);
            table::print_average(out, &row, !self.session.summary_only);
            summary.rtt.print_quantiles(out);
            if self.local.zero_copy.shown {
                summary.zero_copy.print(out);
            }
            if self.local.histogram {
                summary.rtt.print_histogram(out);
            }
            summary.failure = watch.verdict().map(Failure::new);
        }
        summary
    }

    /// Four dots; whether measuring may begin.
    fn warm_up(&mut self, released: Instant) -> bool {
        let all = self.local.schedule.measure_after();
        self.out.write(format_args!("Starting up"));
        for quarter in 1..=4 {
            if !self.sleep_until(released + all * quarter / 4, |_| true) {
                line!(self.out, "");
                return false;
            }
            self.out.write(format_args!("."));
            // Soakers show what an idle host can do before tasks start.
            self.cpu_percent();
        }
        line!(self.out, "");
        true
    }

    /// A line a second, to the end of the time or an earlier end.
    fn measure(&mut self, begin: Moment, percents: &mut Vec<f64>, watch: &mut Watch) {
        let session = self.session;
        let abort = (self.local.abort_after > 0)
            .then(|| begin.at + Duration::from_secs(self.local.abort_after.into()));
        let mut perfdata = None;
        if !session.summary_only {
            if session.perfdata {
                perfdata = Some(Perfdata::begin(self.out, self.backend.counters()));
            } else {
                line!(self.out, "{}", self.heading());
            }
        }
        let mut last = begin;
        for second in 1u64.. {
            let next = begin.at + Duration::from_secs(second);
            if let Some(abort) = abort.filter(|a| *a <= next) {
                if self.sleep_until(abort, |_| true) {
                    self.abort();
                }
                return;
            }
            if !self.sleep_until(next, |_| true) {
                return;
            }
            let now = self.moment();
            let percent = self.cpu_percent();
            percents.extend(self.soakers.as_ref().map(|_| percent));
            let (counts, elapsed) = (now.counts - last.counts, now.at - last.at);
            if let Some(perfdata) = &mut perfdata {
                perfdata.print(session, &counts, elapsed, percent, self.backend.counters());
            } else if !session.summary_only {
                let running = self.tasks.iter().filter(|t| !t.is_finished()).count();
                let zero_copy = self.columns(&last, &now);
                line!(self.out, "{}{zero_copy}", table::interval(running, &counts, elapsed, percent));
            }
            last = now;
            // What went out may have gone nowhere.
            let moved = counts.rx + counts.acked > 0;
            let asked = watch.wants(moved).then_some(session.peer);
            if let Some(line) = watch.look(moved, self.backend.lives(asked)) {
                line!(Out::Stderr, "rds-stress: {line}");
            }
            if watch.is_hopeless() {
                return;
            }
            if session.run_time != 0 && second >= session.run_time.into() {
                return;
            }
        }
    }

    /// `--abort-after`: dies as the reference's parent, whom SIGALRM kills; with `--cancel-sent-to` after the tasks have cancelled.
    fn abort(&mut self) {
        if self.local.cancel_sent_to {
            self.advance(Phase::Ended);
            for task in self.tasks.drain(..) {
                let _ = task.join();
            }
        }
        let _ = raise(Signal::SIGALRM);
        // Only if somebody has made us ignore the signal.
        std::process::exit(1);
    }

    /// Joins all tasks; prints why some died.
    fn join(&mut self, summary: &mut Summary) {
        let mut died = 0;
        for (index, task) in self.tasks.drain(..).enumerate() {
            match task.join() {
                Ok(Ok(rtt)) => summary.rtt.add(&rtt),
                Ok(Err(failure)) => {
                    died += 1;
                    summary.verify_errors += u64::from(failure.check);
                    self.out.report(&failure.report);
                }
                Err(_) => {
                    died += 1;
                    self.out.report(&format!("task {index} panicked: this is a fault of rds-stress"));
                }
            }
        }
        if died > 0 {
            let all = self.session.tasks;
            summary.failure = Some(failure!("{died} of {all} tasks died: their reports are above"));
        }
    }

    /// Waits until `until`, or for an event that `ends` says ends the wait; whether the time came.
    fn sleep_until(&mut self, until: Instant, ends: fn(&Event) -> bool) -> bool {
        loop {
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Err(RecvTimeoutError::Timeout) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
                Ok(event) => {
                    self.failed |= matches!(event, Event::TaskEnded);
                    if ends(&event) {
                        return false;
                    }
                }
            }
        }
    }

    /// Tells all tasks, wherever they are.
    fn advance(&self, phase: Phase) {
        self.gate.advance(phase);
        self.crew.advance(phase);
    }

    fn moment(&self) -> Moment {
        let others = self.crew.ask();
        let soaked = self.soakers.as_ref().map(Soakers::used).unwrap_or_default();
        let shown = self.local.zero_copy.shown;
        Moment {
            at: Instant::now(),
            counts: total(self.published),
            cpu: CpuTime::of_process().since(soaked).plus(others),
            zero_copy: if shown { self.backend.totals() } else { Totals::default() },
        }
    }

    fn heading(&self) -> String {
        let more = if self.local.zero_copy.shown { zerocopy::HEADING } else { "" };
        format!("{}{more}", table::HEADING)
    }

    /// The columns of zero copy of the time between two moments.
    fn columns(&self, begin: &Moment, end: &Moment) -> String {
        if self.local.zero_copy.shown {
            end.zero_copy.since(&begin.zero_copy).columns(end.at - begin.at)
        } else {
            String::new()
        }
    }

    fn cpu_percent(&mut self) -> f64 {
        self.soakers.as_mut().map_or(table::NO_CPU, Soakers::cpu_percent)
    }
}
