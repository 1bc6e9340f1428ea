//! What other threads want of the service thread.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use mio::{Registry, Token, Waker};

/// Clients that are to be looked at, and whether the daemon is to end.
#[derive(Debug)]
pub struct Calls {
    waker: Waker,
    /// The service thread sleeps, or is about to: it is to be woken.
    sleeps: AtomicBool,
    stop: AtomicBool,
    failed: AtomicBool,
    clients: Mutex<Vec<u64>>,
}

impl Calls {
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            waker: Waker::new(registry, token)?,
            sleeps: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            clients: Mutex::default(),
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

    /// Announces that the service thread will sleep; false if there is something to do.
    pub(crate) fn sleep(&self) -> bool {
        self.sleeps.store(true, SeqCst);
        // Whoever calls after this look sees the flag.
        let may = self.clients().is_empty() && !self.stopped();
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
