//! Buffers of large payloads, used again while they are warm.
//!
//! A fresh buffer of a megabyte costs a page fault for every 4 KiB, which takes longer than the copy into it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};

/// Smallest and largest buffers that are kept, as powers of two.
const SMALLEST: u32 = 16;
const LARGEST: u32 = 20;
const CLASSES: usize = (LARGEST - SMALLEST + 1) as usize;
/// Bytes of buffers of each size that are kept.
const KEEP: usize = 4 << 20;

/// Free buffers by size, the one used last on top.
#[derive(Default)]
pub(crate) struct Pool {
    classes: [Mutex<Vec<BytesMut>>; CLASSES],
}

impl Pool {
    /// An empty buffer with room for `len` bytes; at most twice as much.
    pub(crate) fn take(&self, len: usize) -> BytesMut {
        // Below half of the smallest, more than half would be wasted.
        match class_above(len).filter(|_| len > 1 << (SMALLEST - 1)) {
            Some(class) => {
                let kept = self.class(class).pop();
                kept.unwrap_or_else(|| BytesMut::with_capacity(1 << (SMALLEST as usize + class)))
            }
            None => BytesMut::with_capacity(len),
        }
    }

    /// Takes a buffer back that nobody else refers to; others are dropped.
    pub(crate) fn give(&self, mut buffer: BytesMut) {
        buffer.clear();
        // Of a buffer that was cut only what is left counts.
        if let Some(class) = class_below(buffer.capacity()) {
            let mut kept = self.class(class);
            if (kept.len() + 1) << (SMALLEST as usize + class) <= KEEP {
                kept.push(buffer);
            }
        }
    }

    /// A copy of `parts`, one after the other, whose buffer comes back when the last reference to it goes.
    pub(crate) fn copy<'a>(self: &Arc<Self>, len: usize, parts: impl Iterator<Item = &'a [u8]>) -> Bytes {
        let mut buffer = self.take(len);
        parts.for_each(|part| buffer.extend_from_slice(part));
        Bytes::from_owner(Lent { buffer, pool: Arc::clone(self) })
    }

    fn class(&self, class: usize) -> MutexGuard<'_, Vec<BytesMut>> {
        self.classes[class].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The class whose buffers hold `len` bytes.
fn class_above(len: usize) -> Option<usize> {
    let power = len.checked_next_power_of_two()?.trailing_zeros().max(SMALLEST);
    (power <= LARGEST).then(|| (power - SMALLEST) as usize)
}

/// The class whose buffers are no larger than `capacity`.
fn class_below(capacity: usize) -> Option<usize> {
    let power = capacity.checked_ilog2()?;
    (power >= SMALLEST && capacity < 2 << LARGEST).then(|| (power.min(LARGEST) - SMALLEST) as usize)
}

struct Lent {
    buffer: BytesMut,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.give(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_came_back_is_used_again() {
        let pool = Arc::new(Pool::default());
        let copy = pool.copy(100_000, [&[1; 60_000][..], &[2; 40_000]].into_iter());
        let at = copy.as_ptr();
        assert_eq!((copy.len(), copy[59_999], copy[60_000]), (100_000, 1, 2));
        let clone = copy.slice(10..20);
        drop(copy);
        assert_ne!(pool.take(131_072).as_ptr(), at, "a slice still refers to it");
        drop(clone);
        assert_eq!(pool.take(131_072).as_ptr(), at);
    }

    #[test]
    fn every_buffer_is_large_enough_and_not_twice_too_large() {
        let pool = Pool::default();
        for len in [0, 1, 32_768, 32_769, 65_536, 65_537, 1 << 20, (1 << 20) + 1, 3 << 20] {
            for _ in 0..3 {
                let buffer = pool.take(len);
                assert!(
                    buffer.is_empty() && buffer.capacity() >= len && buffer.capacity() <= 2 * len.max(1),
                    "{len}"
                );
                pool.give(buffer);
            }
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = Pool::default();
        (0..100).for_each(|_| pool.give(BytesMut::with_capacity(1 << 20)));
        (0..100).for_each(|_| pool.give(BytesMut::with_capacity(100)));
        pool.give(BytesMut::with_capacity(64 << 20));
        let kept: usize =
            (0..CLASSES).map(|c| pool.class(c).iter().map(BytesMut::capacity).sum::<usize>()).sum();
        assert!(kept <= 5 << 20, "{kept}");
    }
}
