//! Which parts of an arena are out.

use std::fmt;

use offset_allocator::{Allocation, Allocator};

use super::limits::page_size;

/// Most parts that an arena is in, free ones included; bounds the bookkeeping to a few MiB.
const MOST_PARTS: u32 = 1 << 16;

/// Hands out whole pages of an arena, and takes them back; in constant time, besides a bit a page.
pub(crate) struct Ranges {
    pages: u32,
    page: usize,
    books: Option<Books>,
    used: u32,
}

/// Made with the first allocation: many clients never need an arena.
struct Books {
    allocator: Allocator,
    /// What is out, by its first page.
    out: Vec<Option<(Allocation, u32)>>,
    /// A bit for each page that is out. What is handed out must be nobody else's, whatever the allocator says.
    taken: Vec<u64>,
}

impl Ranges {
    /// Of an arena of `len` bytes, of which whole pages count.
    pub(crate) fn new(len: usize) -> Self {
        let page = page_size();
        Self { pages: u32::try_from(len / page).unwrap_or(u32::MAX / 2), page, books: None, used: 0 }
    }

    /// Whole pages with room for `len` bytes: where they begin. None: no such part is free.
    pub(crate) fn allocate(&mut self, len: usize) -> Option<usize> {
        let pages = u32::try_from(len.max(1).div_ceil(self.page)).ok().filter(|n| *n <= self.pages)?;
        let all = self.pages;
        let books = self.books.get_or_insert_with(|| Books::new(all));
        let part = books.allocator.allocate(pages)?;
        books.mark(part.offset, pages, true);
        *books.out.get_mut(part.offset as usize)? = Some((part, pages));
        self.used += pages;
        Some(part.offset as usize * self.page)
    }

    /// Takes back what begins at `at`: its length in bytes. None: nothing that is out begins there.
    pub(crate) fn free(&mut self, at: usize) -> Option<usize> {
        if !at.is_multiple_of(self.page) {
            return None;
        }
        let books = self.books.as_mut()?;
        let (part, pages) = books.out.get_mut(at / self.page)?.take()?;
        books.mark(part.offset, pages, false);
        books.allocator.free(part);
        self.used -= pages;
        Some(pages as usize * self.page)
    }

    /// Bytes that are out.
    pub(crate) fn used(&self) -> u64 {
        u64::from(self.used) * self.page as u64
    }
}

impl Books {
    fn new(pages: u32) -> Self {
        Self {
            allocator: Allocator::with_max_allocs(pages, pages.saturating_add(2).min(MOST_PARTS)),
            out: vec![None; pages as usize],
            taken: vec![0; (pages as usize).div_ceil(64)],
        }
    }

    /// # Panics
    /// If one of the pages is marked so already.
    fn mark(&mut self, first: u32, pages: u32, taken: bool) {
        let (mut page, end) = (first as usize, first as usize + pages as usize);
        while page < end {
            let bits = (64 - page % 64).min(end - page);
            let mask = (u64::MAX >> (64 - bits)) << (page % 64);
            let word = &mut self.taken[page / 64];
            assert!(*word & mask == if taken { 0 } else { mask }, "each page has one owner");
            *word ^= mask;
            page += bits;
        }
    }
}

impl fmt::Debug for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranges").field("pages", &self.pages).field("used", &self.used).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_never_overlap_and_all_of_the_arena_comes_back(
            pages in 1..300_usize,
            steps in prop::collection::vec((any::<bool>(), 0..40_000_usize, any::<prop::sample::Index>()), 1..200),
        ) {
            let page = page_size();
            let mut ranges = Ranges::new(pages * page);
            let mut out: Vec<(usize, usize)> = Vec::new();
            for (give, len, which) in steps {
                if give && !out.is_empty() {
                    let (at, len) = out.swap_remove(which.index(out.len()));
                    prop_assert_eq!(ranges.free(at), Some(len));
                    prop_assert_eq!(ranges.free(at), None, "only once");
                } else if let Some(at) = ranges.allocate(len) {
                    let len = len.max(1).next_multiple_of(page);
                    prop_assert!(at % page == 0 && at + len <= pages * page);
                    prop_assert!(out.iter().all(|&(a, l)| at + len <= a || a + l <= at));
                    out.push((at, len));
                }
                prop_assert_eq!(ranges.used(), out.iter().map(|p| p.1 as u64).sum::<u64>());
            }
            for (at, _) in out.drain(..) {
                prop_assert!(ranges.free(at).is_some());
            }
            for (at, len) in [(1, 1), (page - 1, 1), (pages * page, 1), (usize::MAX, 1)] {
                prop_assert_eq!(ranges.free(at), None, "{} {}", at, len);
            }
            // The largest that an allocator with size classes can find in one free part.
            let all: Vec<_> = std::iter::from_fn(|| ranges.allocate(1)).collect();
            prop_assert_eq!(all.len(), pages, "every page can be had again");
        }
    }

    #[test]
    fn the_bookkeeping_of_a_large_arena_is_bounded() {
        let page = page_size();
        let mut ranges = Ranges::new(200_000 * page);
        let count = std::iter::from_fn(|| ranges.allocate(1)).count();
        assert!((60_000..70_000).contains(&count), "{count}");
        // What is freed can be had again once two neighbours are one part.
        let neighbours: Vec<_> = (0..count).filter_map(|n| ranges.free(n * page)).take(2).collect();
        assert_eq!(neighbours, [page, page]);
        assert!(ranges.allocate(2 * page).is_some());
    }
}
