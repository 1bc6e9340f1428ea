//! The arenas as the daemon has them: it refers to memory that a program can write by ranges alone.

use std::sync::Arc;

use super::fault::Violation;
use crate::sys::ranges::Ranges;
use crate::sys::shm::{SharedMemory, Span};

/// The arena in which a program builds messages.
#[derive(Clone, Debug)]
pub struct SubmittedArena {
    memory: Arc<SharedMemory>,
    start: u64,
    len: u64,
}

impl SubmittedArena {
    pub(super) fn new(memory: Arc<SharedMemory>, start: usize, len: usize) -> Self {
        Self { memory, start: start as u64, len: len as u64 }
    }

    /// What a send says that its payload is. The program may change it at any moment.
    ///
    /// # Errors
    /// It is not within the arena.
    pub fn span(&self, offset: u64, len: u32) -> Result<Span, Violation> {
        let inside = offset.checked_add(len.into()).is_some_and(|end| end <= self.len);
        inside
            .then(|| self.memory.span(self.start + offset, len.into()))
            .flatten()
            .ok_or(Violation::OutsideArena { offset, len: len.into(), arena: self.len })
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no room at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// The arena in which the daemon puts messages for one program.
#[derive(Debug)]
pub struct ReceiveArena {
    memory: Arc<SharedMemory>,
    start: usize,
    len: usize,
    ranges: Ranges,
}

impl ReceiveArena {
    pub(super) fn new(memory: Arc<SharedMemory>, start: usize, len: usize) -> Self {
        Self { memory, start, len, ranges: Ranges::new(len) }
    }

    /// Room for `len` bytes, at a multiple of the page size. None: there is none now.
    pub fn allocate(&mut self, len: usize) -> Option<Span> {
        let at = self.ranges.allocate(len)?;
        self.memory.span((self.start + at) as u64, len as u64)
    }

    /// What the program is told of a span of this arena: bytes from the arena's beginning.
    pub fn offset_of(&self, span: &Span) -> u64 {
        (span.offset() - self.start) as u64
    }

    /// Takes back what begins at `offset`: its length in bytes, in whole pages.
    ///
    /// # Errors
    /// Nothing that is out begins there.
    pub fn free(&mut self, offset: u64) -> Result<u64, Violation> {
        let at = usize::try_from(offset).ok();
        at.and_then(|at| self.ranges.free(at)).map(|len| len as u64).ok_or(Violation::NotOut(offset))
    }

    /// Bytes that are out, in whole pages.
    pub fn used(&self) -> u64 {
        self.ranges.used()
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no room at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
