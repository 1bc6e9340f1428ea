//! What other threads want of the service thread.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use mio::{Registry, Token, Waker};
use rds_core::info::{ConfigInfo, Status};

use crate::settings::Settings;

/// What is done with a status.
pub(crate) type Tell = Box<dyn FnOnce(Status) + Send>;

/// Something for which another thread waits, or nobody any more.
pub(crate) enum Task {
    /// How the daemon is.
    Status(Tell),
    /// Whether the service thread lives.
    Pulse(SyncSender<()>),
    /// Other settings from now on.
    Reload(Box<Settings>, SyncSender<()>),
}

/// Most tasks that wait at a time: who asks for more gets nothing.
const TASKS: usize = 64;

/// Clients that are to be looked at, what else is to be done, and whether the daemon is to end.
#[derive(Debug)]
pub struct Calls {
    waker: Waker,
    /// The service thread sleeps, or is about to: it is to be woken.
    sleeps: AtomicBool,
    stop: AtomicBool,
    failed: AtomicBool,
    /// How long it may take to end, in milliseconds.
    drain: AtomicU64,
    clients: Mutex<Vec<u64>>,
    /// Whether there are tasks, so that the lock is not taken to find none.
    asked: AtomicBool,
    tasks: Mutex<Vec<Task>>,
    config: Mutex<ConfigInfo>,
}

impl std::fmt::Debug for Task {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Status(_) => "Status",
            Self::Pulse(_) => "Pulse",
            Self::Reload(..) => "Reload",
        })
    }
}

impl Calls {
    pub(crate) fn new(registry: &Registry, token: Token, config: ConfigInfo) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            waker: Waker::new(registry, token)?,
            sleeps: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            drain: AtomicU64::new(0),
            clients: Mutex::default(),
            asked: AtomicBool::new(false),
            tasks: Mutex::default(),
            config: Mutex::new(config),
        }))
    }

    fn clients(&self) -> std::sync::MutexGuard<'_, Vec<u64>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a client looked at; to be called once for each look. A system call only if the service thread sleeps.
    pub fn call(&self, client: u64) {
        self.clients().push(client);
        self.wake();
    }

    /// How the daemon is, without the queues' messages: of the service thread, between two of its turns. Blocks up to `timeout`; `None` if it
    /// has not answered then, or has ended. Whoever has many readers asks once for all of them: each call takes a snapshot of every node.
    #[must_use]
    pub fn status(&self, timeout: Duration) -> Option<Status> {
        let (to, answer) = sync_channel(1);
        // Who has given up waiting needs nothing.
        self.ask_status(move |status| _ = to.send(status)).then(|| answer.recv_timeout(timeout).ok())?
    }

    /// The same for who does something else meanwhile: `tell` is called on the service thread, or dropped where it does not answer any more. False
    /// if too much waits for it already.
    pub(crate) fn ask_status(&self, tell: impl FnOnce(Status) + Send + 'static) -> bool {
        self.ask(Task::Status(Box::new(tell)))
    }

    /// Whether the service thread lives: it has answered, between two of its turns, within `timeout`. Blocks until then.
    #[must_use]
    pub fn has_pulse(&self, timeout: Duration) -> bool {
        let (to, answer) = sync_channel(1);
        self.ask(Task::Pulse(to)) && answer.recv_timeout(timeout).is_ok()
    }

    /// Has the daemon use these settings from now on, as far as they can be changed while it runs: the service thread changes over between two
    /// of its turns. No message is touched by that, and programs keep what they have. Blocks up to `timeout`.
    ///
    /// # Errors
    /// The service thread has not answered then, or has ended: why, for people. It may still change over.
    pub fn reload(&self, settings: Settings, timeout: Duration) -> Result<(), String> {
        let (to, done) = sync_channel(1);
        if self.stopped() {
            return Err("the daemon is ending".to_owned());
        }
        if !self.ask(Task::Reload(settings.into(), to)) {
            return Err("the daemon has too much to do already: try again".to_owned());
        }
        done.recv_timeout(timeout).map_err(|error| match error {
            RecvTimeoutError::Disconnected => "the daemon is ending".to_owned(),
            RecvTimeoutError::Timeout => {
                format!("the service thread has not answered for {} s", timeout.as_secs())
            }
        })
    }

    /// The configuration was read again; or could not be, for this reason.
    pub fn configured(&self, error: Option<String>) {
        let mut config = self.config.lock().unwrap_or_else(PoisonError::into_inner);
        if error.is_some() {
            config.failed_reloads += 1;
        } else {
            config.reloads += 1;
            config.loaded_ms = super::since_1970(SystemTime::now());
        }
        config.last_error = error;
    }

    /// Where the configuration is from.
    #[must_use]
    pub fn config(&self) -> ConfigInfo {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn ask(&self, task: Task) -> bool {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let room = tasks.len() < TASKS;
        if room {
            tasks.push(task);
            self.asked.store(true, SeqCst);
        }
        drop(tasks);
        self.wake();
        room
    }

    /// Takes what was asked for.
    pub(crate) fn tasks(&self) -> Vec<Task> {
        if !self.asked.load(SeqCst) {
            return Vec::new();
        }
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        self.asked.store(false, SeqCst);
        std::mem::take(&mut tasks)
    }

    /// How long it may take to end, once it is told to.
    #[must_use]
    pub fn drain(&self) -> Duration {
        Duration::from_millis(self.drain.load(SeqCst))
    }

    pub(crate) fn set_drain(&self, drain: Duration) {
        self.drain.store(super::ms(drain), SeqCst);
    }

    /// Has the service end.
    pub fn stop(&self) {
        self.stop.store(true, SeqCst);
        self.wake();
    }

    /// A node has stopped: without it, its clients would wait for ever.
    pub(crate) fn fail(&self) {
        self.failed.store(true, SeqCst);
        self.stop();
    }

    /// Whether a node has stopped.
    pub(crate) fn failed(&self) -> bool {
        self.failed.load(SeqCst)
    }

    pub(crate) fn stopped(&self) -> bool {
        self.stop.load(SeqCst)
    }

    fn wake(&self) {
        if self.sleeps.swap(false, SeqCst) {
            // It fails only without memory, and then the next look is by the timeout.
            let _ = self.waker.wake();
        }
    }

    /// Moves those that are to be looked at to `out`.
    pub(crate) fn take(&self, out: &mut Vec<u64>) {
        out.append(&mut self.clients());
    }

    /// Announces that the service thread will sleep; false if there is something to do. `ending`: it knows that it is to stop.
    pub(crate) fn sleep(&self, ending: bool) -> bool {
        self.sleeps.store(true, SeqCst);
        // Whoever calls after this look sees the flag.
        let may = self.clients().is_empty() && (ending || !self.stopped()) && !self.asked.load(SeqCst);
        if !may {
            self.awake();
        }
        may
    }

    /// It is awake.
    pub(crate) fn awake(&self) {
        self.sleeps.store(false, SeqCst);
    }
}
