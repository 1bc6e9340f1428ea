//! A received message while it is put together, and when it is whole.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::pool::PoolBuffer;
use crate::attach::ArenaLease;
use crate::sys::region::MappedPages;
use crate::sys::shm::Span;
use crate::sys::vectored::Room;

/// Memory of this process into which a message is received.
pub enum Memory {
    /// On the heap; for small messages.
    Heap(Box<[u8]>),
    /// Of the pool.
    Pool(PoolBuffer),
    /// Pages in which TCP received a whole message.
    Mapped(MappedPages),
    /// A whole message in memory in which a daemon received it.
    Leased(ArenaLease),
}

impl Memory {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pool(buffer) => buffer,
            Self::Mapped(pages) => pages,
            Self::Leased(lease) => lease,
        }
    }

    /// To be written; empty of mapped pages and leases, which cannot be.
    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Pool(buffer) => buffer,
            Self::Mapped(_) | Self::Leased(_) => &mut [],
        }
    }
}

/// Gave shared memory out for messages to come.
pub trait SpanOwner: Send + Sync {
    /// No message came to fill memory that was given out: its connection broke, or its socket was closed. Called once, from any
    /// thread, maybe with a node's lock held: it must not block, call an engine, or panic.
    fn unused(&self, span: Span);
}

/// Shared memory for one message. Goes back to its owner when it is dropped.
pub struct Placed {
    /// `None` once it was taken.
    span: Option<Span>,
    owner: Arc<dyn SpanOwner>,
}

impl Placed {
    /// Memory that `owner` gave out.
    #[must_use]
    pub fn new(span: Span, owner: Arc<dyn SpanOwner>) -> Self {
        Self { span: Some(span), owner }
    }

    /// The memory.
    ///
    /// # Panics
    /// Never: only [`Placed::take`] takes it, and the whole with it.
    #[must_use]
    pub fn span(&self) -> &Span {
        self.span.as_ref().expect("it is taken with the whole")
    }

    /// Whether it is of this owner.
    #[must_use]
    pub fn is_of(&self, owner: &Arc<impl SpanOwner + ?Sized>) -> bool {
        std::ptr::addr_eq(Arc::as_ptr(&self.owner), Arc::as_ptr(owner))
    }

    /// The memory; nobody hears of it any more.
    ///
    /// # Panics
    /// Never, as [`Placed::span`].
    #[must_use]
    pub fn take(mut self) -> Span {
        self.span.take().expect("it is taken with the whole")
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        if let Some(span) = self.span.take() {
            self.owner.unused(span);
        }
    }
}

impl fmt::Debug for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placed").field("span", &self.span).finish_non_exhaustive()
    }
}

/// Where a message's bytes go.
enum Place {
    None,
    Own(Memory),
    Shared(Placed),
}

/// A message of a known length that comes in pieces. It has no memory before the first of them: whoever fills it may choose where.
pub struct Filling {
    place: Place,
    len: usize,
    filled: usize,
}

impl Filling {
    /// A message of `len` bytes, of which none has come.
    #[must_use]
    pub const fn new(len: usize) -> Self {
        Self { place: Place::None, len, filled: 0 }
    }

    /// A whole message in `memory`, which is as long as the message.
    #[must_use]
    pub fn whole(memory: Memory) -> Self {
        let len = memory.as_slice().len();
        Self { place: Place::Own(memory), len, filled: len }
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
        !matches!(self.place, Place::None)
    }

    /// Whether it lies in pages in which TCP received it.
    #[must_use]
    pub const fn is_mapped(&self) -> bool {
        matches!(self.place, Place::Own(Memory::Mapped(_)))
    }

    /// Whether it lies in memory that another process shares.
    #[must_use]
    pub const fn is_shared(&self) -> bool {
        matches!(self.place, Place::Shared(_))
    }

    /// Whether it lies in shared memory of this owner.
    #[must_use]
    pub fn is_of(&self, owner: &Arc<impl SpanOwner + ?Sized>) -> bool {
        matches!(&self.place, Place::Shared(placed) if placed.is_of(owner))
    }

    /// Gives it memory, at least as long as the message; what was there before is dropped. Only before the first byte came. With
    /// [`Memory::Mapped`] it is whole at once.
    ///
    /// # Panics
    /// If `memory` is too short, or bytes have come.
    pub fn place(&mut self, memory: Memory) {
        assert!(memory.as_slice().len() >= self.len && self.filled == 0, "room for the whole message");
        if matches!(memory, Memory::Mapped(_) | Memory::Leased(_)) {
            self.filled = self.len;
        }
        self.place = Place::Own(memory);
    }

    /// Gives it memory that another process shares, as [`Filling::place`] does.
    ///
    /// # Panics
    /// If it is too short, or read-only here, or bytes have come.
    pub fn place_shared(&mut self, placed: Placed) {
        let span = placed.span();
        assert!(
            span.len() >= self.len && self.filled == 0 && span.memory().is_writable(),
            "room for the whole message, to be written"
        );
        self.place = Place::Shared(placed);
    }

    /// Appends bytes, of which no more than are missing are taken. Without memory of its own it gets some of the heap.
    pub fn extend(&mut self, bytes: &[u8]) {
        let n = bytes.len().min(self.missing());
        if n == 0 {
            return;
        }
        if !self.has_memory() {
            self.place = Place::Own(Memory::Heap(vec![0; self.len].into_boxed_slice()));
        }
        match self.unfilled() {
            Room::Bytes(room) => room[..n].copy_from_slice(&bytes[..n]),
            Room::Shared(room) => room.fill(&bytes[..n]),
        }
        self.filled += n;
    }

    /// Where the missing bytes go; empty without memory.
    pub(crate) fn unfilled(&mut self) -> Room<'_> {
        let range = self.filled..self.len;
        match &mut self.place {
            Place::Own(Memory::Heap(bytes)) => Room::Bytes(&mut bytes[range]),
            Place::Own(Memory::Pool(buffer)) => Room::Bytes(&mut buffer[range]),
            // What is mapped is whole, and cannot be written.
            Place::Own(Memory::Mapped(_) | Memory::Leased(_)) | Place::None => Room::Bytes(&mut []),
            Place::Shared(placed) => Room::Shared(placed.span().slice(range)),
        }
    }

    /// Says that `n` bytes were written into [`Filling::unfilled`].
    ///
    /// # Panics
    /// If it is more than were missing.
    pub(crate) fn advance(&mut self, n: usize) {
        assert!(n <= self.missing(), "no more than were missing");
        self.filled += n;
    }

    /// The bytes that have come, unless they lie in memory that another process shares.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match &self.place {
            Place::None => Some(&[]),
            Place::Own(memory) => Some(&memory.as_slice()[..self.filled]),
            Place::Shared(_) => None,
        }
    }

    /// A copy of the bytes that have come.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        match &self.place {
            Place::None => Vec::new(),
            Place::Own(memory) => memory.as_slice()[..self.filled].to_vec(),
            Place::Shared(placed) => placed.span().slice(0..self.filled).to_vec(),
        }
    }

    /// The bytes that have come.
    ///
    /// # Errors
    /// They lie in memory that another process shares, cut to their length.
    pub fn finish(self) -> Result<Assembled, Placed> {
        match self.place {
            Place::None => Ok(Assembled { memory: Memory::Heap(Box::default()), len: 0 }),
            Place::Own(memory) => Ok(Assembled { memory, len: self.filled }),
            Place::Shared(mut placed) => {
                placed.span = placed.span.take().map(|span| span.slice(0..self.filled));
                Err(placed)
            }
        }
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

/// A received message in memory of this process alone.
pub struct Assembled {
    memory: Memory,
    len: usize,
}

impl Assembled {
    /// A whole message in `memory`, which is as long as the message.
    #[must_use]
    pub fn of(memory: Memory) -> Self {
        let len = memory.as_slice().len();
        Self { memory, len }
    }

    /// Whether it lies in pages in which TCP received it.
    #[must_use]
    pub const fn is_mapped(&self) -> bool {
        matches!(self.memory, Memory::Mapped(_))
    }
}

impl Deref for Assembled {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory.as_slice()[..self.len]
    }
}

impl fmt::Debug for Assembled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Assembled").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::Pool;
    use super::*;
    use crate::sys::shm::{Access, SharedMemory};

    #[derive(Default)]
    struct Owner(Mutex<Vec<(usize, usize)>>);

    impl SpanOwner for Owner {
        fn unused(&self, span: Span) {
            self.0.lock().unwrap().push((span.offset(), span.len()));
        }
    }

    fn put(filling: &mut Filling, bytes: &[u8]) {
        match filling.unfilled() {
            Room::Bytes(room) => room[..bytes.len()].copy_from_slice(bytes),
            Room::Shared(room) => room.fill(bytes),
        }
        filling.advance(bytes.len());
    }

    #[test]
    fn pieces_come_together_wherever_they_are_put() {
        let (_, memory) = SharedMemory::create(4096, Access::ReadOnly).unwrap();
        let (pool, owner) = (Pool::new(), Arc::new(Owner::default()));
        let mut heap = Filling::new(5);
        let mut pooled = Filling::new(5);
        let mut shared = Filling::new(5);
        pooled.place(Memory::Pool(pool.take(5)));
        shared.place_shared(Placed::new(memory.span(64, 8).unwrap(), Arc::clone(&owner) as _));
        assert!(!heap.has_memory() && shared.is_shared());
        for filling in [&mut heap, &mut pooled, &mut shared] {
            filling.extend(b"he");
            put(filling, b"ll");
            assert_eq!(filling.missing(), 1);
            filling.extend(b"o and more");
            assert_eq!(filling.missing(), 0);
        }
        assert_eq!((heap.as_slice(), pooled.as_slice()), (Some(&b"hello"[..]), Some(&b"hello"[..])));
        assert_eq!(&*pooled.finish().unwrap(), b"hello");
        assert!(shared.as_slice().is_none(), "no reference to what others change");
        let placed = shared.finish().unwrap_err();
        assert!(placed.is_of(&owner) && !placed.is_of(&Arc::new(Owner::default())));
        let span = placed.take();
        let mut bytes = [0; 5];
        span.copy_to(&mut bytes);
        assert_eq!((&bytes, span.offset(), span.len()), (b"hello", 64, 5));
        assert!(owner.0.lock().unwrap().is_empty(), "it was used");
    }

    #[test]
    fn memory_to_which_no_message_came_goes_back_whole() {
        let (_, memory) = SharedMemory::create(4096, Access::ReadOnly).unwrap();
        let owner = Arc::new(Owner::default());
        let mut filling = Filling::new(100);
        filling.place_shared(Placed::new(memory.span(0, 128).unwrap(), Arc::clone(&owner) as _));
        filling.extend(&[1; 60]);
        drop(filling);
        assert_eq!(*owner.0.lock().unwrap(), [(0, 128)]);
    }
}
