//! One attachment's memory: what is lent from it, and comes back to it.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::{LeaseArena, Returned, SendArena, Welcome};
use crate::buffer::{OnFree, PoolBuffer};
use crate::engine::parker::Parker;
use crate::engine::tasks::Tasks;

/// Outlives the attachment while anything of its memory is in use.
pub(super) struct Link {
    pub(super) welcome: Welcome,
    /// The control socket.
    pub(super) socket: Arc<UnixStream>,
    /// `None` without shared memory.
    pub(super) send_arena: Option<SendArena>,
    pub(super) receive_arena: Option<LeaseArena>,
    /// Parts of the receive arena that the daemon is to be told are free.
    returns: Mutex<VecDeque<(u64, u64)>>,
    has_returns: AtomicBool,
    /// Threads that wait for room in the send arena.
    waiters: Mutex<Vec<Arc<Parker>>>,
    has_waiters: AtomicBool,
    /// And tasks.
    pub(super) tasks: Tasks,
}

impl Link {
    pub(super) fn new(
        welcome: Welcome,
        socket: Arc<UnixStream>,
        send_arena: Option<SendArena>,
        receive_arena: Option<LeaseArena>,
    ) -> Self {
        Self {
            welcome,
            socket,
            send_arena,
            receive_arena,
            returns: Mutex::default(),
            has_returns: AtomicBool::new(false),
            waiters: Mutex::default(),
            has_waiters: AtomicBool::new(false),
            tasks: Tasks::default(),
        }
    }

    fn returns(&self) -> MutexGuard<'_, VecDeque<(u64, u64)>> {
        self.returns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether something has come back that the daemon does not know of.
    pub(super) fn has_returns(&self) -> bool {
        self.has_returns.load(SeqCst)
    }

    /// The next part of the receive arena that has come back: where it begins, and its length.
    pub(super) fn next_return(&self) -> Option<(u64, u64)> {
        if !self.has_returns() {
            return None;
        }
        let mut returns = self.returns();
        let next = returns.pop_front();
        self.has_returns.store(!returns.is_empty(), SeqCst);
        next
    }

    /// The daemon cannot be told now.
    pub(super) fn keep_return(&self, offset: u64, len: u64) {
        self.returns().push_front((offset, len));
        self.has_returns.store(true, SeqCst);
    }

    /// A buffer of the send arena, to be filled in place; `None` if there is no room, or no shared memory.
    pub(super) fn buffer(self: &Arc<Self>, len: usize) -> Option<PoolBuffer> {
        let buffer = self.send_arena.as_ref()?.allocate(len)?;
        Some(PoolBuffer::arena(buffer, Arc::clone(self) as Arc<dyn OnFree>))
    }

    /// Registers a thread that waits for room in the send arena.
    pub(super) fn wait(&self, parker: &Arc<Parker>) {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiters.iter().any(|p| Arc::ptr_eq(p, parker)) {
            waiters.push(Arc::clone(parker));
        }
        self.has_waiters.store(true, SeqCst);
    }

    pub(super) fn forget(&self, parker: &Arc<Parker>) {
        if self.has_waiters.load(SeqCst) {
            let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
            waiters.retain(|p| !Arc::ptr_eq(p, parker));
            self.has_waiters.store(!waiters.is_empty(), SeqCst);
        }
    }
}

impl Returned for Link {
    fn returned(&self, offset: u64, len: u64) {
        self.returns().push_back((offset, len));
        self.has_returns.store(true, SeqCst);
    }
}

impl OnFree for Link {
    fn freed(&self) {
        if self.has_waiters.load(SeqCst) {
            let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
            self.has_waiters.store(false, SeqCst);
            let waiting = std::mem::take(&mut *waiters);
            drop(waiters);
            waiting.iter().for_each(|parker| parker.unpark());
        }
        self.tasks.wake();
    }
}
