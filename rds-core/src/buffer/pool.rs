//! Page-aligned buffers of large payloads, used again while they are warm.
//!
//! A fresh buffer of a megabyte costs a page fault for every 4 KiB, which takes longer than the copy into it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::filling::Memory;
use super::lent::{Data, Inner};

/// Page-aligned memory.
pub(super) type Pages = Box<[u8]>;

/// Smallest and largest buffers that are kept, as powers of two.
const SMALLEST: u32 = 12;
const LARGEST: u32 = 20;
const CLASSES: usize = (LARGEST - SMALLEST + 1) as usize;
/// Bytes of buffers of each size that are kept.
const KEEP: usize = 4 << 20;

/// Free buffers by size, the one used last on top.
pub struct Pool {
    classes: [Mutex<Vec<Arc<Inner>>>; CLASSES],
    this: Weak<Self>,
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new_cyclic(|this| Self { classes: Default::default(), this: this.clone() })
    }

    /// A buffer of `len` bytes, page-aligned, with unspecified contents (what the pool's buffers held before, or zero).
    #[must_use]
    pub fn take(&self, len: usize) -> PoolBuffer {
        let kept = class_above(len).and_then(|class| self.class(class).pop());
        let mut arc = kept.unwrap_or_else(|| {
            let capacity = class_above(len).map_or(len, |class| 1 << (SMALLEST as usize + class));
            Arc::new(Inner::new(Data::Pages(vec![0; capacity].into_boxed_slice()), self.this.clone()))
        });
        Arc::get_mut(&mut arc).expect("what the pool holds is held by nobody else").len = len;
        PoolBuffer::new(arc)
    }

    /// Memory for a message of `len` bytes: of the pool, unless most of a page would be wasted.
    #[must_use]
    pub fn memory(&self, len: usize) -> Memory {
        if len > 1 << (SMALLEST - 2) {
            Memory::Pool(self.take(len))
        } else {
            Memory::Heap(vec![0; len].into_boxed_slice())
        }
    }

    /// Takes a buffer back that nobody else refers to.
    pub(super) fn give(&self, arc: Arc<Inner>) {
        let Data::Pages(pages) = &arc.data else { return };
        if let Some(class) = class_of(pages.len()) {
            let mut kept = self.class(class);
            if (kept.len() + 1) << (SMALLEST as usize + class) <= KEEP {
                kept.push(arc);
                return;
            }
        }
        // One too many. It must not come back here when it goes.
        if let Ok(mut inner) = Arc::try_unwrap(arc) {
            inner.pool = Weak::new();
        }
    }

    pub(super) fn give_pages(&self, pages: Pages) {
        self.give(Arc::new(Inner::new(Data::Pages(pages), self.this.clone())));
    }

    fn class(&self, class: usize) -> MutexGuard<'_, Vec<Arc<Inner>>> {
        self.classes[class].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

/// The class whose buffers hold `len` bytes.
fn class_above(len: usize) -> Option<usize> {
    let power = len.checked_next_power_of_two()?.trailing_zeros().max(SMALLEST);
    (power <= LARGEST).then(|| (power - SMALLEST) as usize)
}

/// The class of a buffer of exactly `capacity` bytes.
fn class_of(capacity: usize) -> Option<usize> {
    let power = capacity.is_power_of_two().then(|| capacity.trailing_zeros())?;
    (SMALLEST..=LARGEST).contains(&power).then(|| (power - SMALLEST) as usize)
}

/// A buffer of a pool. Returns there when it is dropped, or when a message that was sent from it has ended.
pub struct PoolBuffer(Option<Arc<Inner>>);

impl PoolBuffer {
    /// Of an `Inner` with pages that nobody else refers to.
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        Self(Some(inner))
    }

    pub(super) fn into_inner(mut self) -> Arc<Inner> {
        self.0.take().expect("only this and a drop take it")
    }

    fn inner(&self) -> &Inner {
        self.0.as_ref().expect("only a drop takes it")
    }

    /// Shortens it to `len` bytes; without effect if it is not longer.
    pub fn truncate(&mut self, len: usize) {
        if let Some(inner) = self.0.as_mut().and_then(Arc::get_mut) {
            inner.len = inner.len.min(len);
        }
    }
}

impl Deref for PoolBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.inner().as_slice()
    }
}

impl DerefMut for PoolBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let inner = self.0.as_mut().and_then(Arc::get_mut).expect("a buffer has one owner");
        let len = inner.len;
        &mut inner.pages_mut().expect("a pool's buffer has pages")[..len]
    }
}

impl AsRef<[u8]> for PoolBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for PoolBuffer {
    fn drop(&mut self) {
        if let Some(arc) = self.0.take()
            && let Some(pool) = arc.pool.upgrade()
        {
            pool.give(arc);
        }
    }
}

impl fmt::Debug for PoolBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolBuffer").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Owned;
    use super::*;

    #[test]
    fn a_buffer_that_came_back_is_used_again() {
        let pool = Pool::new();
        let buffer = pool.take(100_000);
        let at = buffer.as_ptr();
        assert_eq!(buffer.len(), 100_000);
        let lent = Owned::from(buffer).lend(None);
        let other = lent.clone();
        drop(lent);
        assert_ne!(pool.take(131_072).as_ptr(), at, "somebody still refers to it");
        drop(other);
        assert_eq!(pool.take(131_072).as_ptr(), at);
    }

    #[test]
    fn every_buffer_has_the_length_that_was_asked_for() {
        let pool = Pool::new();
        for len in [0, 1, 4096, 4097, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 3 << 20] {
            for _ in 0..3 {
                let mut buffer = pool.take(len);
                assert_eq!(buffer.len(), len);
                buffer.fill(1);
                buffer.truncate(len / 2);
                assert_eq!(buffer.len(), len / 2);
            }
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = Pool::new();
        let all: Vec<_> = (0..100).map(|_| pool.take(1 << 20)).collect();
        drop(all);
        drop(pool.take(64 << 20));
        let kept: usize = (0..CLASSES).map(|c| pool.class(c).len() << (SMALLEST as usize + c)).sum();
        assert!(kept <= KEEP, "{kept}");
    }

    #[test]
    fn a_buffer_may_outlive_its_pool() {
        let pool = Pool::new();
        let mut buffer = pool.take(4096);
        drop(pool);
        buffer[0] = 1;
        drop(Owned::from(buffer).lend(None));
    }
}
