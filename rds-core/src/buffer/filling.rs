//! A received message while it is put together.

use std::fmt;
use std::ops::Deref;

use super::pool::PoolBuffer;
use crate::sys::region::MappedPages;

/// Memory into which a message is received.
pub enum Memory {
    /// On the heap; for small messages.
    Heap(Box<[u8]>),
    /// Of the pool.
    Pool(PoolBuffer),
    /// Pages in which TCP received a whole message.
    Mapped(MappedPages),
}

impl Memory {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pool(buffer) => buffer,
            Self::Mapped(pages) => pages,
        }
    }
}

/// A message of a known length that comes in pieces. It has no memory before the first of them: whoever fills it may choose where.
pub struct Filling {
    memory: Option<Memory>,
    len: usize,
    filled: usize,
}

impl Filling {
    /// A message of `len` bytes, of which none has come.
    #[must_use]
    pub const fn new(len: usize) -> Self {
        Self { memory: None, len, filled: 0 }
    }

    /// A whole message in `memory`, which is as long as the message.
    #[must_use]
    pub fn whole(memory: Memory) -> Self {
        let len = memory.as_slice().len();
        Self { memory: Some(memory), len, filled: len }
    }

    /// The message's length in bytes.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.len
    }

    /// Bytes that have come.
    #[must_use]
    pub const fn filled(&self) -> usize {
        self.filled
    }

    /// Bytes that are missing.
    #[must_use]
    pub const fn missing(&self) -> usize {
        self.len - self.filled
    }

    /// Whether it has memory.
    #[must_use]
    pub const fn has_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// Whether it lies in pages in which TCP received it.
    #[must_use]
    pub const fn is_mapped(&self) -> bool {
        matches!(self.memory, Some(Memory::Mapped(_)))
    }

    /// Gives it memory, at least as long as the message; what was there before is dropped. Only before the first byte came. With
    /// [`Memory::Mapped`] it is whole at once.
    ///
    /// # Panics
    /// If `memory` is too short, or bytes have come.
    pub fn place(&mut self, memory: Memory) {
        assert!(memory.as_slice().len() >= self.len && self.filled == 0, "room for the whole message");
        if matches!(memory, Memory::Mapped(_)) {
            self.filled = self.len;
        }
        self.memory = Some(memory);
    }

    /// Appends bytes, of which no more than are missing are taken. Without memory of its own it gets some of the heap.
    pub fn extend(&mut self, bytes: &[u8]) {
        let n = bytes.len().min(self.missing());
        if n > 0 {
            let len = self.len;
            self.memory.get_or_insert_with(|| Memory::Heap(vec![0; len].into_boxed_slice()));
            self.unfilled()[..n].copy_from_slice(&bytes[..n]);
            self.filled += n;
        }
    }

    /// Where the missing bytes go; empty without memory.
    pub fn unfilled(&mut self) -> &mut [u8] {
        let range = self.filled..self.len;
        match &mut self.memory {
            Some(Memory::Heap(bytes)) => &mut bytes[range],
            Some(Memory::Pool(buffer)) => &mut buffer[range],
            // What is mapped is whole, and cannot be written.
            Some(Memory::Mapped(_)) | None => &mut [],
        }
    }

    /// Says that `n` bytes were written into [`Filling::unfilled`].
    ///
    /// # Panics
    /// If it is more than were missing.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.missing(), "no more than were missing");
        self.filled += n;
    }
}

impl Deref for Filling {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.as_ref().map_or(&[], |memory| &memory.as_slice()[..self.filled])
    }
}

impl fmt::Debug for Filling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filling")
            .field("len", &self.len)
            .field("filled", &self.filled)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Pool;
    use super::*;

    #[test]
    fn pieces_come_together_wherever_they_are_put() {
        let pool = Pool::new();
        let mut heap = Filling::new(5);
        let mut pooled = Filling::new(5);
        pooled.place(Memory::Pool(pool.take(5)));
        assert!(heap.unfilled().is_empty() && !heap.has_memory());
        for filling in [&mut heap, &mut pooled] {
            filling.extend(b"he");
            filling.unfilled()[..2].copy_from_slice(b"ll");
            filling.advance(2);
            assert_eq!(filling.missing(), 1);
            filling.extend(b"o and more");
            assert_eq!((&**filling, filling.missing()), (&b"hello"[..], 0));
        }
    }
}
