//! Tasks of an executor that wait, beside the threads that do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Whoever waits, under a key of its own: several waits of one task have the same waker, and the end of one must not be that of the others.
#[derive(Default)]
pub(crate) struct Tasks {
    any: AtomicBool,
    list: Mutex<Vec<(u64, Waker)>>,
}

/// A key that nobody else has.
#[must_use]
pub fn task_key() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

impl Tasks {
    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Waker)>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the task woken at the next change; once. An attempt after this sees what changed before.
    pub(crate) fn add(&self, key: u64, waker: &Waker) {
        // A waker's clone and drop are the executor's code, and may come back here: never under the lock.
        let waker = waker.clone();
        let mut list = self.lock();
        let before = match list.iter_mut().find(|(k, _)| *k == key) {
            Some((_, there)) => Some(std::mem::replace(there, waker)),
            None => {
                list.push((key, waker));
                None
            }
        };
        self.any.store(true, SeqCst);
        drop(list);
        // Either this task sees the change, or whoever made it sees this task.
        fence(SeqCst);
        drop(before);
    }

    /// The task waits no longer under this key.
    pub(crate) fn remove(&self, key: u64) {
        if !self.any.load(SeqCst) {
            return;
        }
        let mut list = self.lock();
        let gone = list.iter().position(|(k, _)| *k == key).map(|at| list.swap_remove(at));
        self.any.store(!list.is_empty(), SeqCst);
        drop(list);
        drop(gone);
    }

    /// Takes all, to be woken once no lock is held.
    pub(crate) fn take(&self, into: &mut Vec<Waker>) {
        if self.any.load(SeqCst) {
            let mut list = self.lock();
            self.any.store(false, SeqCst);
            into.extend(list.drain(..).map(|(_, waker)| waker));
        }
    }

    /// Wakes all. With no lock held.
    pub(crate) fn wake(&self) {
        let mut woken = Vec::new();
        self.take(&mut woken);
        wake(woken.drain(..));
    }
}

/// Wakes them. A waker is the executor's code: its panic must not end whoever happens to poll.
pub(crate) fn wake(tasks: impl Iterator<Item = Waker>) {
    for task in tasks {
        if catch_unwind(AssertUnwindSafe(|| task.wake())).is_err() {
            tracing::error!("the waker of a task panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }

    #[test]
    fn a_wait_that_ends_leaves_the_others_of_its_task() {
        let (tasks, count) = (Tasks::default(), Arc::new(Count::default()));
        let waker = Waker::from(Arc::clone(&count));
        let keys = [task_key(), task_key()];
        keys.iter().for_each(|key| tasks.add(*key, &waker));
        tasks.add(keys[0], &waker);
        tasks.remove(keys[0]);
        tasks.wake();
        assert_eq!(count.0.load(SeqCst), 1, "the other is woken, and once");
        tasks.wake();
        assert_eq!(count.0.load(SeqCst), 1, "until it waits again");
        tasks.remove(keys[1]);
    }

    #[test]
    fn a_waker_that_panics_keeps_nobody_else_asleep() {
        let (tasks, count) = (Tasks::default(), Arc::new(Count::default()));
        tasks.add(task_key(), &Waker::from(Arc::new(Panics)));
        tasks.add(task_key(), &Waker::from(Arc::clone(&count)));
        tasks.wake();
        assert_eq!(count.0.load(SeqCst), 1);
    }
}
