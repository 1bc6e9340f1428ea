//! Page-aligned buffers of large payloads, used again while they are warm.
//!
//! A fresh buffer of a megabyte costs a page fault for every 4 KiB, which takes longer than the copy into it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::filling::Memory;
use super::lent::{Data, Inner};
use crate::attach::ArenaBuffer;
use crate::sys::pages::{PageBuf, Slab};

/// Page-aligned memory; from the heap, and maybe not aligned, where the system has no more mappings for us.
pub(super) enum Pages {
    Mapped(PageBuf),
    Heap(Box<[u8]>),
    Arena(ArenaPages),
}

/// Hears that memory of an arena is free again.
pub(crate) trait OnFree: Send + Sync {
    /// There is room for who waits for it. Called from any thread, with no lock of the caller's that this may take.
    fn freed(&self);
}

/// Pages of an arena that is shared with a daemon.
pub(super) struct ArenaPages {
    /// `None` only while it goes.
    buffer: Option<ArenaBuffer>,
    arena: Arc<dyn OnFree>,
}

impl Drop for ArenaPages {
    fn drop(&mut self) {
        self.buffer = None;
        self.arena.freed();
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(pages) => pages,
            Self::Heap(bytes) => bytes,
            Self::Arena(pages) => pages.buffer.as_deref().unwrap_or_default(),
        }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Mapped(pages) => pages,
            Self::Heap(bytes) => bytes,
            Self::Arena(pages) => pages.buffer.as_deref_mut().unwrap_or_default(),
        }
    }
}

/// Smallest and largest buffers that are kept, as powers of two.
const SMALLEST: u32 = 12;
const LARGEST: u32 = 20;
const CLASSES: usize = (LARGEST - SMALLEST + 1) as usize;
/// Bytes that a class grows by: a huge page.
const SLAB: usize = 2 << 20;

/// Buffers of one size.
#[derive(Default)]
struct Class {
    /// Free, the one used last on top.
    free: Vec<Arc<Inner>>,
    /// Never used, so that they take no memory yet.
    fresh: Vec<PageBuf>,
    /// Fewest that there were since the last trimming: so many nobody needed.
    least: usize,
}

impl Class {
    fn len(&self) -> usize {
        self.free.len() + self.fresh.len()
    }

    fn taken(&mut self) {
        self.least = self.least.min(self.len());
    }
}

/// Free buffers by size.
pub struct Pool {
    classes: [Mutex<Class>; CLASSES],
    /// Bytes of all free buffers, and the limit of that.
    free: AtomicU64,
    limit: u64,
    this: Weak<Self>,
}

impl Pool {
    /// An empty pool, which keeps at most 64 MiB of free buffers.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Self::with_limit(64 << 20)
    }

    /// An empty pool, which keeps at most `limit` bytes of free buffers.
    #[must_use]
    pub fn with_limit(limit: u64) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            classes: Default::default(),
            free: AtomicU64::new(0),
            limit,
            this: this.clone(),
        })
    }

    /// A buffer of `len` bytes, page-aligned, with unspecified contents (what the pool's buffers held before, or zero).
    #[must_use]
    pub fn take(&self, len: usize) -> PoolBuffer {
        let mut arc = match class_above(len) {
            Some(class) => self.take_class(class),
            None => self.wrap(PageBuf::new(len).map_or_else(|_| heap(len), Pages::Mapped)),
        };
        Arc::get_mut(&mut arc).expect("what the pool holds is held by nobody else").len = len;
        PoolBuffer::new(arc)
    }

    fn take_class(&self, class: usize) -> Arc<Inner> {
        let size = size_of_class(class);
        let mut buffers = self.class(class);
        if let Some(arc) = buffers.free.pop() {
            buffers.taken();
            drop(buffers);
            self.free.fetch_sub(size as u64, Relaxed);
            return arc;
        }
        if let Some(pages) = buffers.fresh.pop() {
            buffers.taken();
            drop(buffers);
            self.free.fetch_sub(size as u64, Relaxed);
            return self.wrap(Pages::Mapped(pages));
        }
        buffers.least = 0;
        // A whole slab only if the rest of it may be kept.
        let spare = (SLAB - size) as u64;
        if self.free.load(Relaxed) + spare > self.limit {
            drop(buffers);
            return self.wrap(PageBuf::new(size).map_or_else(|_| heap(size), Pages::Mapped));
        }
        let mut fresh = Slab::new(SLAB).map(|slab| slab.carve(size)).unwrap_or_default();
        let first = fresh.pop();
        self.free.fetch_add((fresh.len() * size) as u64, Relaxed);
        buffers.fresh = fresh;
        // Counts from the next trimming on.
        drop(buffers);
        self.wrap(first.map_or_else(|| heap(size), Pages::Mapped))
    }

    fn wrap(&self, pages: Pages) -> Arc<Inner> {
        Arc::new(Inner::new(Data::Pages(pages), self.this.clone()))
    }

    /// Memory for a message of `len` bytes: of the pool, if it is large.
    #[must_use]
    pub fn memory(&self, len: usize) -> Memory {
        if len >= 1 << SMALLEST {
            Memory::Pool(self.take(len))
        } else {
            Memory::Heap(vec![0; len].into_boxed_slice())
        }
    }

    /// Takes a buffer back that nobody else refers to.
    pub(super) fn give(&self, arc: Arc<Inner>) {
        let Data::Pages(pages) = &arc.data else { return };
        let Some(class) = class_of(pages.len()) else { return retire(arc) };
        let size = size_of_class(class) as u64;
        if self.free.fetch_add(size, Relaxed) + size > self.limit {
            self.free.fetch_sub(size, Relaxed);
            return retire(arc);
        }
        self.class(class).free.push(arc);
    }

    pub(super) fn give_pages(&self, pages: Pages) {
        self.give(self.wrap(pages));
    }

    /// Bytes of all free buffers.
    #[must_use]
    pub fn free_bytes(&self) -> u64 {
        self.free.load(Relaxed)
    }

    /// Gives back to the system half of the buffers that nobody needed since this was called last. To be called about once a
    /// second, as long as there are free buffers.
    pub fn trim(&self) {
        for class in 0..CLASSES {
            let mut buffers = self.class(class);
            let mut n = buffers.least.min(buffers.len()).div_ceil(2);
            let total = n;
            let fresh = buffers.fresh.len().saturating_sub(n);
            let unused = buffers.fresh.split_off(fresh);
            n -= unused.len();
            // The ones at the bottom were used the longest time ago.
            let old: Vec<_> = buffers.free.drain(..n).collect();
            buffers.least = buffers.len();
            drop(buffers);
            self.free.fetch_sub((total * size_of_class(class)) as u64, Relaxed);
            drop(unused);
            old.into_iter().for_each(retire);
        }
    }

    fn class(&self, class: usize) -> MutexGuard<'_, Class> {
        self.classes[class].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("free", &self.free).field("limit", &self.limit).finish_non_exhaustive()
    }
}

fn heap(len: usize) -> Pages {
    Pages::Heap(vec![0; len].into_boxed_slice())
}

/// Gives a buffer's memory back to the system.
fn retire(arc: Arc<Inner>) {
    // The pool holds it alone, so this succeeds.
    let Ok(mut inner) = Arc::try_unwrap(arc) else { return };
    // It must not come back to the pool when it goes.
    inner.pool = Weak::new();
    if let Some(Pages::Mapped(pages)) = inner.pages_mut() {
        // The slab as a whole may stay for others of its buffers.
        if let Err(error) = pages.discard() {
            tracing::debug!(%error, "discarding a buffer");
        }
    }
}

fn size_of_class(class: usize) -> usize {
    1 << (SMALLEST as usize + class)
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

    /// Of memory that is shared with a daemon; `arena` hears when it is free.
    pub(crate) fn arena(buffer: ArenaBuffer, arena: Arc<dyn OnFree>) -> Self {
        let pages = Pages::Arena(ArenaPages { buffer: Some(buffer), arena });
        Self(Some(Arc::new(Inner::new(Data::Pages(pages), Weak::new()))))
    }

    /// Where it begins in `arena`, if it is of that one.
    pub(crate) fn offset_in(&self, arena: &Arc<impl OnFree>) -> Option<u64> {
        match &self.inner().data {
            Data::Pages(Pages::Arena(pages))
                if std::ptr::addr_eq(Arc::as_ptr(&pages.arena), Arc::as_ptr(arena)) =>
            {
                pages.buffer.as_ref().map(ArenaBuffer::offset)
            }
            _ => None,
        }
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
        self.inner().as_slice().unwrap_or_default()
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

    const LIMIT: u64 = 64 << 20;

    #[test]
    fn a_buffer_that_came_back_is_used_again() {
        let pool = Pool::with_limit(LIMIT);
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
        let pool = Pool::with_limit(LIMIT);
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
    fn every_buffer_is_page_aligned_and_nobody_elses() {
        let pool = Pool::with_limit(LIMIT);
        let page = crate::sys::limits::page_size();
        let mut all: Vec<_> = (0..200).map(|i| pool.take(1 + i * 5000)).collect();
        for (i, buffer) in all.iter_mut().enumerate() {
            assert!(buffer.as_ptr().addr().is_multiple_of(page));
            buffer.fill(i as u8);
        }
        assert!(all.iter().enumerate().all(|(i, b)| b.iter().all(|x| *x == i as u8)));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = Pool::with_limit(LIMIT);
        let all: Vec<_> = (0..200).map(|_| pool.take(1 << 20)).collect();
        drop(all);
        drop(pool.take(64 << 20));
        assert_eq!(pool.free_bytes(), LIMIT);
        // What it counts is there.
        let there: usize = (0..CLASSES).map(|c| pool.class(c).len() << (SMALLEST as usize + c)).sum();
        assert_eq!(there as u64, LIMIT);
        let none = Pool::with_limit(0);
        for _ in 0..3 {
            drop(none.take(65_536));
            assert_eq!(none.free_bytes(), 0);
        }
    }

    #[test]
    fn an_idle_pool_gives_everything_back_and_a_busy_one_keeps_what_it_needs() {
        let pool = Pool::with_limit(LIMIT);
        for len in [4096, 65_536, 1 << 20] {
            let all: Vec<_> = (0..20).map(|_| pool.take(len)).collect();
            drop(all);
        }
        pool.trim();
        // Ten large ones are in use now and then.
        for _ in 0..20 {
            let busy: Vec<_> = (0..10).map(|_| pool.take(1 << 20)).collect();
            drop(busy);
            pool.trim();
        }
        assert_eq!(pool.free_bytes(), 10 << 20, "the others are gone");
        let at = pool.take(1 << 20).as_ptr();
        assert_eq!(pool.take(1 << 20).as_ptr(), at, "the one used last is used next");
        for _ in 0..20 {
            pool.trim();
        }
        assert_eq!(pool.free_bytes(), 0);
    }

    #[test]
    fn a_buffer_may_outlive_its_pool() {
        let pool = Pool::with_limit(LIMIT);
        let mut buffer = pool.take(4096);
        drop(pool);
        buffer[0] = 1;
        drop(Owned::from(buffer).lend(None));
    }
}
