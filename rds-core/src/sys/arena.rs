//! Slices of memory shared with a process that is trusted not to change them.
//!
//! A program trusts the daemon that serves it, which carries all its messages: the daemon only reads the arena in which the program builds
//! messages, and does not write a part of its own arena while the program holds it. Nobody else has this memory, and these
//! mappings are of their own, so nothing else in this process refers to it: [`SharedMemory`] of the same descriptor must not be used for the same
//! range. The daemon trusts nobody, and has no such slices.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::ranges::Ranges;
use super::shm::{Access, SharedMemory};

/// The arena in which a program builds messages. It stays mapped as long as any of its buffers.
#[derive(Clone, Debug)]
pub struct SendArena(Arc<Building>);

#[derive(Debug)]
struct Building {
    memory: SharedMemory,
    ranges: Mutex<Ranges>,
}

impl SendArena {
    /// Maps the `len` bytes that begin at `at`, a multiple of the page size, of a descriptor that came from the daemon.
    ///
    /// # Errors
    /// As for [`SharedMemory::map`].
    pub(crate) fn map(fd: BorrowedFd<'_>, at: usize, len: usize) -> io::Result<Self> {
        let memory = SharedMemory::map_part(fd, at, len, Access::ReadWrite)?;
        Ok(Self(Arc::new(Building { memory, ranges: Mutex::new(Ranges::new(len)) })))
    }

    /// A buffer of `len` bytes, at a multiple of the page size. None: there is no room for it now. What it holds at first is of earlier messages.
    #[must_use]
    pub fn allocate(&self, len: usize) -> Option<ArenaBuffer> {
        let at = self.0.ranges.lock().unwrap_or_else(PoisonError::into_inner).allocate(len)?;
        Some(ArenaBuffer { arena: Arc::clone(&self.0), at, len })
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.memory.len()
    }

    /// Whether it has no room at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that are out, in whole pages.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.0.ranges.lock().unwrap_or_else(PoisonError::into_inner).used()
    }
}

/// A part of the arena, for one message. Nobody else in this process has it; it must live until the daemon has released the message.
pub struct ArenaBuffer {
    arena: Arc<Building>,
    at: usize,
    len: usize,
}

impl ArenaBuffer {
    /// Where it begins, in bytes from the arena's beginning.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.at as u64
    }

    /// Keeps its first bytes only.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Whether it is part of this arena.
    #[must_use]
    pub fn is_of(&self, arena: &SendArena) -> bool {
        Arc::ptr_eq(&self.arena, &arena.0)
    }
}

impl Deref for ArenaBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: within the mapping, which `arena` keeps, readable, and initialised by the kernel. The ranges that are out are disjoint, the
        // daemon does not write this memory, and only `deref_mut` of this buffer gives its bytes out to be changed.
        unsafe { std::slice::from_raw_parts(self.arena.memory.address().as_ptr().add(self.at), self.len) }
    }
}

impl DerefMut for ArenaBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, writable, and exclusively borrowed. What the daemon may read at the same time are bytes, whatever they are.
        unsafe { std::slice::from_raw_parts_mut(self.arena.memory.address().as_ptr().add(self.at), self.len) }
    }
}

impl AsRef<[u8]> for ArenaBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for ArenaBuffer {
    fn drop(&mut self) {
        self.arena.ranges.lock().unwrap_or_else(PoisonError::into_inner).free(self.at);
    }
}

impl fmt::Debug for ArenaBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArenaBuffer").field("at", &self.at).field("len", &self.len).finish_non_exhaustive()
    }
}

/// The arena in which the daemon puts messages. It stays mapped as long as any of its leases.
#[derive(Clone, Debug)]
pub struct LeaseArena(Arc<SharedMemory>);

/// Hears that a lease is over.
pub trait Returned: Send + Sync {
    /// The `len` bytes of the arena that begin at `offset` are not looked at any more. Called when a lease is dropped, by whatever thread.
    fn returned(&self, offset: u64, len: u64);
}

impl LeaseArena {
    /// Maps the `len` bytes that begin at `at`, a multiple of the page size, of a descriptor that came from the daemon.
    ///
    /// # Errors
    /// As for [`SharedMemory::map`].
    pub(crate) fn map(fd: BorrowedFd<'_>, at: usize, len: usize) -> io::Result<Self> {
        Ok(Self(Arc::new(SharedMemory::map_part(fd, at, len, Access::ReadOnly)?)))
    }

    /// What the daemon lent: `offset` and `len` are those of a message, of which this is the only lease. None: not within the arena.
    pub(crate) fn lease(&self, offset: u64, len: u32, back: Arc<dyn Returned>) -> Option<ArenaLease> {
        let inside = self.0.holds(offset, len.into());
        inside.then(|| ArenaLease {
            memory: Arc::clone(&self.0),
            at: offset as usize,
            len: len as usize,
            back: Some(back),
        })
    }
}

/// A message where the daemon put it. The daemon does not touch these bytes until it is told that the lease is over, which dropping it does.
pub struct ArenaLease {
    memory: Arc<SharedMemory>,
    at: usize,
    len: usize,
    back: Option<Arc<dyn Returned>>,
}

impl Deref for ArenaLease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: within the mapping, as was checked, which `memory` keeps, readable, and initialised by the kernel. This process cannot
        // write them, and the daemon, who can, does not while the lease is out.
        unsafe { std::slice::from_raw_parts(self.memory.address().as_ptr().add(self.at), self.len) }
    }
}

impl AsRef<[u8]> for ArenaLease {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for ArenaLease {
    fn drop(&mut self) {
        if let Some(back) = self.back.take() {
            back.returned(self.at as u64, self.len as u64);
        }
    }
}

impl fmt::Debug for ArenaLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArenaLease").field("at", &self.at).field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::super::limits::page_size;
    use super::*;

    #[derive(Default)]
    struct Freed(Mutex<Vec<u64>>);

    impl Returned for Freed {
        fn returned(&self, offset: u64, _len: u64) {
            self.0.lock().unwrap().push(offset);
        }
    }

    #[test]
    fn what_is_built_in_the_arena_the_other_side_sees_there() {
        let page = page_size();
        let (fd, daemon) = SharedMemory::create(10 * page, Access::ReadWrite).unwrap();
        let arena = SendArena::map(fd.as_fd(), 2 * page, 8 * page).unwrap();
        let mut buffers: Vec<_> = (0..4).map(|_| arena.allocate(page + 1).unwrap()).collect();
        assert!(arena.allocate(1).is_none() && arena.used() == 8 * page as u64);
        for (n, buffer) in buffers.iter_mut().enumerate() {
            assert!(buffer.as_ptr().addr().is_multiple_of(page) && buffer.len() == page + 1);
            buffer.fill(n as u8 + 1);
        }
        for (n, buffer) in buffers.iter().enumerate() {
            assert!(buffer.iter().all(|b| *b == n as u8 + 1));
            let mut seen = vec![0; page + 1];
            daemon.copy_out(2 * page + buffer.offset() as usize, &mut seen);
            assert_eq!(&seen[..], &buffer[..]);
        }
        let mut first = buffers.swap_remove(0);
        first.truncate(5);
        assert_eq!((&first[..], first.is_of(&arena)), (&[1; 5][..], true));
        let at = first.offset();
        drop(first);
        assert_eq!(arena.allocate(1).unwrap().offset(), at);
    }

    #[test]
    fn a_buffer_outlives_its_arena_and_other_threads_may_have_it() {
        let (fd, _daemon) = SharedMemory::create(1 << 16, Access::ReadWrite).unwrap();
        let arena = SendArena::map(fd.as_fd(), 0, 1 << 16).unwrap();
        let mut buffer = arena.allocate(100).unwrap();
        drop((fd, arena));
        let buffer = std::thread::spawn(move || {
            buffer.fill(7);
            buffer
        });
        assert_eq!(&buffer.join().unwrap()[..], &[7; 100]);
    }

    #[test]
    fn a_lease_shows_what_the_daemon_wrote_and_tells_when_it_is_over() {
        let page = page_size();
        let (fd, daemon) = SharedMemory::create(4 * page, Access::ReadOnly).unwrap();
        let arena = LeaseArena::map(fd.as_fd(), page, 3 * page).unwrap();
        daemon.copy_in(page + 100, b"hello");
        let freed = Arc::new(Freed::default());
        let lease = arena.lease(100, 5, freed.clone()).unwrap();
        drop((fd, arena.clone()));
        assert_eq!(&lease[..], b"hello");
        assert!(freed.0.lock().unwrap().is_empty());
        drop(lease);
        assert_eq!(*freed.0.lock().unwrap(), [100]);
        let outside = [(3 * page as u64, 1), (u64::MAX, 1), (3 * page as u64 - 4, 5), (0, u32::MAX)];
        for (offset, len) in outside {
            assert!(arena.lease(offset, len, freed.clone()).is_none(), "{offset} {len}");
        }
        assert!(arena.lease(3 * page as u64 - 4, 4, freed).is_some());
    }

    #[test]
    fn an_arena_must_lie_within_its_memory() {
        let page = page_size();
        let (fd, _daemon) = SharedMemory::create(4 * page, Access::ReadWrite).unwrap();
        for (at, len) in
            [(page, 4 * page), (5 * page, page), (usize::MAX - page + 1, page), (1, page), (0, 0)]
        {
            assert!(SendArena::map(fd.as_fd(), at, len).is_err(), "{at} {len}");
        }
    }
}
