//! SIGTERM and SIGINT end the daemon in an orderly way, a second one at once; SIGHUP has it read its configuration again.

use std::io;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rds_core::engine::Engine;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals as Caught;

use crate::service::Calls;

use super::notify;

/// How long a signal lets itself be held up by saying what it does, and what is left.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What signals are for.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// To have it stop.
    pub(super) calls: Arc<Calls>,
    /// Its nodes, to ask what is left.
    pub(super) engines: Vec<Engine>,
}

impl Target {
    fn stop(&self, signal: i32) {
        let drain = self.calls.drain();
        say(move || {
            notify::stopping(drain);
            tracing::info!(
                signal = name(signal),
                drain_s = drain.as_secs(),
                "ending: no new programs, delivering what was accepted; a second signal ends it at once"
            );
        });
        self.calls.stop();
    }
}

#[derive(Debug, Default)]
struct State {
    /// `None` while the daemon starts.
    target: Option<Target>,
    /// The signal that told it to end.
    stop: Option<i32>,
}

/// Signals, as they are caught from now on.
#[derive(Debug)]
pub(super) struct Signals {
    state: Arc<Mutex<State>>,
    hangups: Receiver<()>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Signals {
    /// Catches signals, in a thread of its own that ends with the process. What comes before [`Signals::aim`] is kept.
    ///
    /// # Errors
    /// The system does not let it.
    pub(super) fn catch() -> io::Result<Self> {
        let caught = Caught::new([SIGTERM, SIGINT, SIGHUP])?;
        let state = Arc::new(Mutex::new(State::default()));
        // One that waits stands for all: it reads what is there when its turn comes.
        let (hangup, hangups) = mpsc::sync_channel(1);
        let its = Arc::clone(&state);
        std::thread::Builder::new()
            .name("rds signals".to_owned())
            .spawn(move || serve(caught, &its, &hangup))?;
        Ok(Self { state, hangups })
    }

    /// The daemon runs: signals concern it, those that came before included. Returns where each SIGHUP is told.
    pub(super) fn aim(self, target: Target) -> Receiver<()> {
        let mut state = lock(&self.state);
        if let Some(signal) = state.stop {
            target.stop(signal);
        }
        state.target = Some(target);
        drop(state);
        self.hangups
    }
}

fn serve(mut caught: Caught, state: &Mutex<State>, hangup: &SyncSender<()>) {
    for signal in caught.forever() {
        if signal == SIGHUP {
            // Full: one waits already. Gone: the daemon ends.
            let _ = hangup.try_send(());
            continue;
        }
        let mut state = lock(state);
        if state.stop.replace(signal).is_some() {
            end_at_once(signal, state.target.take());
        }
        if let Some(target) = &state.target {
            target.stop(signal);
        }
    }
}

/// Ends the process, whatever else hangs.
fn end_at_once(signal: i32, target: Option<Target>) -> ! {
    // A node's lock may be held.
    say(move || {
        let left: Vec<_> = target.iter().flat_map(|target| &target.engines).collect();
        for engine in &left {
            tracing::error!(node = %engine.address(), unfinished = engine.unfinished(), "messages are left");
        }
        let during = if target.is_some() { "drained" } else { "started" };
        tracing::error!(signal = name(signal), "a second signal while it {during}: it ends at once");
    });
    std::process::exit(1)
}

/// Says something, but does not wait for long: standard error, or NOTIFY_SOCKET, may be read by nobody, and the next signal is to be heard.
fn say(what: impl FnOnce() + Send + 'static) {
    let (said, done) = mpsc::channel();
    let saying = move || {
        what();
        let _ = said.send(());
    };
    if std::thread::Builder::new().name("rds says".to_owned()).spawn(saying).is_ok() {
        let _ = done.recv_timeout(LAST_WORDS);
    }
}

fn name(signal: i32) -> &'static str {
    match signal {
        SIGTERM => "SIGTERM",
        SIGINT => "SIGINT",
        _ => "a signal",
    }
}
