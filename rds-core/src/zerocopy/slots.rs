//! Which pages of a region are filled next, and when what lies there is unmapped.
//!
//! A page is *clean* (nothing is mapped there), *lent* (being filled, or held by whoever reads it) or *used* (given back, and
//! still mapped). Unmapping interrupts the processors on which the process runs, so used pages are not unmapped one message at
//! a time but when the cursor enters another *lap*: then all used pages are unmapped together, while they are still warm, and a path
//! keeps little more than a lap of them. Lent pages are passed over, and never unmapped.

use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Clean,
    Lent,
    Used,
}

/// The pages of one path's part of a region, lent in contiguous runs.
#[derive(Debug)]
pub struct Slots {
    pages: Box<[Page]>,
    lap: u32,
    /// Where the next run is looked for. At the first page of a lap, the lap has not been entered.
    cursor: u32,
    lent: u32,
    used: u32,
    /// No run of so many pages is free, nor of more, until something comes back.
    too_many: u32,
}

impl Slots {
    /// `pages` clean pages in laps of `lap` pages. A lap of 0 is taken for 1.
    pub fn new(pages: u32, lap: u32) -> Self {
        let states = vec![Page::Clean; pages as usize].into_boxed_slice();
        Self { pages: states, lap: lap.max(1), cursor: 0, lent: 0, used: 0, too_many: u32::MAX }
    }

    /// Lends `pages` pages in a row and returns the first; `None` for none at all, or while no such run is free.
    ///
    /// Adds to `zap` the ranges that must be unmapped, before the run is filled, and also when there is none: they
    /// count as clean from now on.
    pub fn take(&mut self, pages: u32, zap: &mut Vec<Range<u32>>) -> Option<u32> {
        let total = self.total();
        if pages == 0 || pages >= self.too_many || pages > total - self.lent {
            return None;
        }
        // The second search enters every lap, so after it no used page is left and every free one was looked at.
        let found = self.search(self.cursor..total, pages, zap).or_else(|| self.search(0..total, pages, zap));
        let Some(first) = found else {
            self.too_many = pages;
            return None;
        };
        let end = first + pages;
        self.pages[first as usize..end as usize].fill(Page::Lent);
        self.lent += pages;
        self.cursor = if end == total { 0 } else { end };
        Some(first)
    }

    /// Takes back lent pages where nothing was mapped.
    ///
    /// # Panics
    /// If one of them is not lent.
    pub fn unused(&mut self, first: u32, pages: u32) {
        self.change(first, pages, Page::Clean);
        let end = first + pages;
        if pages > 0 && (end == self.cursor || end == self.total() && self.cursor == 0) {
            self.cursor = first;
        }
    }

    /// Takes back lent pages that are, or may be, mapped.
    ///
    /// # Panics
    /// If one of them is not lent.
    pub fn give_back(&mut self, first: u32, pages: u32) {
        self.change(first, pages, Page::Used);
        self.used += pages;
    }

    /// Adds to `zap` all used pages, which count as clean from now on: for a path that is idle, so that it keeps no
    /// memory.
    pub fn idle(&mut self, zap: &mut Vec<Range<u32>>) {
        self.clean(zap);
        self.cursor = 0;
    }

    /// Pages in all.
    pub fn total(&self) -> u32 {
        u32::try_from(self.pages.len()).expect("as many as `new` was given")
    }

    /// Pages that are free and still mapped: memory that serves nobody.
    pub fn used_pages(&self) -> u32 {
        self.used
    }

    /// Pages that are lent.
    pub fn lent_pages(&self) -> u32 {
        self.lent
    }

    /// The first run of `pages` clean pages within `within`. Entering a lap cleans all there are.
    fn search(&mut self, within: Range<u32>, pages: u32, zap: &mut Vec<Range<u32>>) -> Option<u32> {
        let mut run = 0;
        for at in within {
            if at % self.lap == 0 {
                self.clean(zap);
            }
            run = if self.pages[at as usize] == Page::Clean { run + 1 } else { 0 };
            if run == pages {
                return Some(at + 1 - pages);
            }
        }
        None
    }

    fn clean(&mut self, zap: &mut Vec<Range<u32>>) {
        if self.used == 0 {
            return;
        }
        for at in 0..self.total() {
            let page = &mut self.pages[at as usize];
            if *page == Page::Used {
                *page = Page::Clean;
                self.used -= 1;
                match zap.last_mut() {
                    Some(last) if last.end == at => last.end += 1,
                    _ => zap.push(at..at + 1),
                }
            }
        }
    }

    fn change(&mut self, first: u32, pages: u32, to: Page) {
        let range = first as usize..first as usize + pages as usize;
        assert!(self.pages[range.clone()].iter().all(|p| *p == Page::Lent), "{range:?} is not lent");
        self.pages[range].fill(to);
        self.lent -= pages;
        self.too_many = u32::MAX;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn take(slots: &mut Slots, pages: u32) -> (Option<u32>, Vec<Range<u32>>) {
        let mut zap = Vec::new();
        (slots.take(pages, &mut zap), zap)
    }

    #[test]
    fn used_pages_are_zapped_a_lap_at_a_time() {
        let mut slots = Slots::new(64, 32);
        let mut zaps = Vec::new();
        for _ in 0..16 {
            let mut zap = Vec::new();
            let first = slots.take(8, &mut zap).unwrap();
            slots.give_back(first, 8);
            zaps.push(zap);
        }
        let zapped: Vec<_> =
            zaps.into_iter().enumerate().flat_map(|(i, z)| z.into_iter().map(move |z| (i, z))).collect();
        assert_eq!(zapped, [(4, 0..32), (8, 32..64), (12, 0..32)]);
    }

    #[test]
    fn a_held_run_is_passed_over_lap_after_lap() {
        let mut slots = Slots::new(32, 16);
        let (held, _) = take(&mut slots, 4);
        assert_eq!(held, Some(0));
        for _ in 0..100 {
            let (first, zap) = take(&mut slots, 4);
            assert!(first.unwrap() >= 4 && zap.iter().all(|z| z.start >= 4));
            slots.give_back(first.unwrap(), 4);
        }
        slots.give_back(0, 4);
        assert_eq!(take(&mut slots, 32).0, Some(0), "nothing is lost once it came back");
    }

    #[test]
    fn there_is_no_run_while_all_are_held() {
        let mut slots = Slots::new(16, 8);
        let runs: Vec<_> = std::iter::from_fn(|| take(&mut slots, 4).0).collect();
        assert_eq!(runs, [0, 4, 8, 12]);
        assert_eq!(take(&mut slots, 1), (None, vec![]));
        slots.give_back(8, 4);
        assert_eq!(take(&mut slots, 5).0, None);
        assert_eq!(take(&mut slots, 4).0, Some(8));
    }

    #[test]
    fn what_was_not_filled_is_used_next() {
        let mut slots = Slots::new(16, 8);
        assert_eq!(take(&mut slots, 5).0, Some(0));
        slots.unused(4, 1);
        assert_eq!(take(&mut slots, 12).0, Some(4));
        slots.unused(15, 1);
        assert_eq!(take(&mut slots, 1), (Some(15), vec![]));
    }

    #[test]
    fn an_idle_path_keeps_nothing_mapped_but_leases() {
        let mut slots = Slots::new(16, 4);
        for _ in 0..4 {
            take(&mut slots, 4).0.unwrap();
        }
        slots.give_back(0, 4);
        slots.give_back(12, 4);
        let mut zap = Vec::new();
        slots.idle(&mut zap);
        assert_eq!(zap, [0..4, 12..16]);
        assert_eq!((slots.used_pages(), slots.lent_pages()), (0, 8));
        zap.clear();
        slots.idle(&mut zap);
        assert_eq!(zap, []);
    }

    #[test]
    fn sizes_that_can_never_be_are_refused() {
        let mut slots = Slots::new(8, 0);
        assert_eq!(take(&mut slots, 0).0, None);
        assert_eq!(take(&mut slots, 9).0, None);
        assert_eq!(take(&mut slots, u32::MAX).0, None);
        assert_eq!(take(&mut Slots::new(0, 8), 1).0, None);
        assert_eq!(take(&mut slots, 8).0, Some(0));
    }

    /// What the kernel and the holders know about each page.
    struct Model {
        mapped: Vec<bool>,
        lent: Vec<bool>,
        runs: Vec<Range<u32>>,
    }

    impl Model {
        fn zap(&mut self, zap: &[Range<u32>]) {
            for page in zap.iter().cloned().flatten() {
                assert!(!self.lent[page as usize], "page {page} was zapped while it was lent");
                self.mapped[page as usize] = false;
            }
        }

        fn has_run(&self, pages: u32) -> bool {
            self.lent.split(|l| *l).any(|free| free.len() >= pages as usize)
        }

        fn give_back(&mut self, slots: &mut Slots, index: usize) {
            let run = self.runs.swap_remove(index);
            slots.give_back(run.start, run.end - run.start);
            self.lent[run.start as usize..run.end as usize].fill(false);
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// So many pages, of which so many (modulo) are filled.
        Take(u32, u32),
        GiveBack(usize),
        Idle,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            8 => (1..12u32, 0..24u32).prop_map(|(pages, filled)| Step::Take(pages, filled)),
            2 => (1..60u32, 0..99u32).prop_map(|(pages, filled)| Step::Take(pages, filled)),
            8 => any::<usize>().prop_map(Step::GiveBack),
            1 => Just(Step::Idle),
        ];
        prop::collection::vec(step, 0..400)
    }

    proptest! {
        #[test]
        fn runs_are_free_and_clean_and_nothing_leaks(total in 1..80u32, lap in 0..90u32, steps in steps()) {
            let mut slots = Slots::new(total, lap);
            let size = total as usize;
            let mut model = Model { mapped: vec![false; size], lent: vec![false; size], runs: Vec::new() };
            for step in steps {
                match step {
                    Step::Take(pages, filled) => {
                        let could = model.has_run(pages);
                        let (first, zap) = take(&mut slots, pages);
                        model.zap(&zap);
                        prop_assert_eq!(first.is_some(), could, "a run is found exactly if there is one");
                        let Some(first) = first else { continue };
                        prop_assert!(first + pages <= total);
                        for page in first..first + pages {
                            prop_assert!(!model.lent[page as usize], "page {} was lent twice", page);
                            prop_assert!(!model.mapped[page as usize], "page {} was not zapped", page);
                        }
                        let filled = filled % (pages + 1);
                        slots.unused(first + filled, pages - filled);
                        model.mapped[first as usize..(first + filled) as usize].fill(true);
                        model.lent[first as usize..(first + filled) as usize].fill(true);
                        if filled > 0 {
                            model.runs.push(first..first + filled);
                        }
                    }
                    Step::GiveBack(which) if !model.runs.is_empty() => {
                        let index = which % model.runs.len();
                        model.give_back(&mut slots, index);
                    }
                    Step::GiveBack(_) => {}
                    Step::Idle => {
                        let mut zap = Vec::new();
                        slots.idle(&mut zap);
                        model.zap(&zap);
                        let kept = model.mapped.iter().zip(&model.lent).filter(|(m, l)| **m && !**l);
                        prop_assert_eq!(kept.count(), 0, "memory is kept for nobody");
                    }
                }
                let lent = model.lent.iter().filter(|l| **l).count();
                prop_assert_eq!(slots.lent_pages() as usize, lent);
                let used = model.mapped.iter().zip(&model.lent).filter(|(m, l)| **m && !**l);
                prop_assert_eq!(slots.used_pages() as usize, used.count());
            }
            while !model.runs.is_empty() {
                model.give_back(&mut slots, 0);
            }
            let (first, zap) = take(&mut slots, total);
            model.zap(&zap);
            prop_assert_eq!(first, Some(0), "everything came back");
            prop_assert!(model.mapped.iter().all(|m| !m));
        }
    }
}
