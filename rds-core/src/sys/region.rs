//! Address space into which received pages are mapped, and the leases of what lies there.
//!
//! A region is a mapping of a TCP socket that never was connected, and whose descriptor is closed at once. A mapping of a connection's own
//! socket would keep that socket open: closing it would send no FIN. Each path has a part of a region for itself; parts
//! begin at multiples of 2 MiB, so that two paths never wait for each other at a page table.
//!
//! ```text
//! RegionPool ── take ──► PathRegion ── target ──► MapTarget ── finish ──► MappedPages
//!      ▲ dropped             ▲ collects              │ dropped                │ dropped
//!      └─────────────────────┴──────── held bits ◄───┴────────────────────────┘
//! ```
//!
//! A [`PathRegion`] has one owner, the only one who lends pages, maps and unmaps. Whoever holds a run of pages has set its bits in
//! `held`; dropping the run clears them, from any thread, without a lock. The owner looks at the bits when it needs room. A page
//! whose bit is set is never unmapped, never mapped again and never lent again; [`part`] checks that itself, and does not rely
//! on [`Slots`].

mod part;

use std::fmt;
use std::io;
use std::ops::{Deref, Range};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use part::page_size;
use part::{ALIGN, PartOwner, Run, bits};

use super::zc_receive::Mapped;
use crate::wire::HEADER_LEN;
use crate::zerocopy::slots::Slots;

/// The owner's side of a part, with what it knows of the pages.
struct Owner {
    part: PartOwner,
    slots: Slots,
    /// The pages that `slots` counts as lent.
    lent: Box<[u64]>,
    zap: Vec<Range<u32>>,
    /// Clean pages are not mapped. False once the kernel refused to unmap some.
    clean: bool,
    /// Pages of this part that are counted in [`Shared::pages`].
    counted: u32,
    zaps: u64,
}

impl Owner {
    fn new(part: PartOwner, pages: u32, lap: u32) -> Self {
        let lent = vec![0; pages.div_ceil(64) as usize].into_boxed_slice();
        Self { part, slots: Slots::new(pages, lap), lent, zap: Vec::new(), clean: true, counted: 0, zaps: 0 }
    }

    fn lend(&mut self, pages: u32) -> Option<Run> {
        self.collect();
        let first = self.slots.take(pages, &mut self.zap);
        self.zap();
        let first = first?;
        let run = self.part.lend(first..first + pages);
        for (word, bits) in bits(run.range()) {
            self.lent[word] |= bits;
        }
        Some(run)
    }

    /// Takes pages back at once on which nothing was mapped; those of others go their way.
    fn unused(&mut self, run: Run) {
        if run.pages() > 0 && run.mapped() == 0 && self.part.lent(&run) {
            self.slots.unused(run.range().start, run.pages());
            for (word, bits) in bits(run.range()) {
                self.lent[word] &= !bits;
            }
        }
    }

    /// Takes back what was dropped.
    fn collect(&mut self) {
        for (word, lent) in self.lent.iter_mut().enumerate() {
            if *lent == 0 {
                continue;
            }
            let mut back = *lent & !self.part.held(word);
            *lent &= !back;
            while back != 0 {
                let from = back.trailing_zeros();
                let count = (back >> from).trailing_ones();
                self.slots.give_back(word as u32 * 64 + from, count);
                back &= !((u64::MAX >> (64 - count)) << from);
            }
        }
    }

    fn zap(&mut self) {
        for range in self.zap.drain(..) {
            self.clean &= self.part.zap(range);
            self.zaps += 1;
        }
    }

    fn idle(&mut self) {
        self.collect();
        self.slots.idle(&mut self.zap);
        self.zap();
    }
}

/// Regions of a node, in parts for its paths.
#[derive(Clone)]
pub(crate) struct RegionPool {
    shared: Arc<Shared>,
}

struct Shared {
    paths: usize,
    pages: u32,
    lap: u32,
    page: usize,
    /// Pages that are lent or used, of all parts.
    in_use: AtomicU64,
    limit: u64,
    free: Mutex<Vec<Owner>>,
}

impl RegionPool {
    /// Address space for `paths` paths, of `bytes_per_path` each, rounded up to a multiple of 2 MiB. Parts are unmapped `lap`
    /// bytes at a time. When more paths come, there will be more regions, for as many paths each. All paths together have
    /// at most `limit` bytes mapped, whatever programs hold included.
    ///
    /// # Errors
    /// What the kernel says, if it does not map TCP sockets or has no address space.
    pub(crate) fn new(paths: usize, bytes_per_path: usize, lap: usize, limit: u64) -> io::Result<Self> {
        let page = page_size();
        let invalid =
            || io::Error::new(io::ErrorKind::InvalidInput, "a receive region of an impossible size");
        let bytes = bytes_per_path.max(1).checked_next_multiple_of(ALIGN.max(page)).ok_or_else(invalid)?;
        // What is asked of the kernel at once, in 32 bits.
        let bytes = u32::try_from(bytes).map_err(|_| invalid())? as usize;
        let pages = u32::try_from(bytes / page).map_err(|_| invalid())?;
        let lap = u32::try_from(lap / page).unwrap_or(u32::MAX);
        let (paths, limit, free) = (paths.max(1), limit / page as u64, Mutex::new(Vec::new()));
        let pool = Shared { paths, pages, lap, page, in_use: AtomicU64::new(0), limit, free };
        pool.grow(&mut pool.free())?;
        Ok(Self { shared: Arc::new(pool) })
    }

    /// A part for a path. It comes back when it is dropped; pages of it that are still held then stay with their holders.
    ///
    /// # Errors
    /// What the kernel says when one more region is needed.
    pub(crate) fn take(&self) -> io::Result<PathRegion> {
        let mut free = self.shared.free();
        if free.is_empty() {
            self.shared.grow(&mut free)?;
        }
        // One of which the least is held, for a path that has just ended may have left leases.
        let best = (0..free.len()).min_by_key(|i| free[*i].slots.lent_pages());
        let mut owner = best.map(|i| free.swap_remove(i));
        if let Some(owner) = &mut owner {
            owner.zaps = 0;
        }
        Ok(PathRegion { owner, pool: Arc::clone(&self.shared) })
    }
}

impl RegionPool {
    /// Bytes that are lent, or mapped and free, of all parts, as of the last look at each.
    pub(crate) fn bytes_in_use(&self) -> u64 {
        self.shared.in_use.load(Ordering::Relaxed) * self.shared.page as u64
    }

    /// Looks after parts that no path has: unmaps what came back.
    pub(crate) fn idle(&self) {
        for owner in self.shared.free().iter_mut() {
            owner.idle();
            self.shared.count(owner);
        }
    }
}

impl Shared {
    /// Counts the pages of a part that are in use now.
    fn count(&self, owner: &mut Owner) {
        let now = owner.slots.lent_pages() + owner.slots.used_pages();
        // Wraps around where there are fewer than before.
        self.in_use.fetch_add(u64::from(now).wrapping_sub(u64::from(owner.counted)), Ordering::Relaxed);
        owner.counted = now;
    }

    fn free(&self) -> MutexGuard<'_, Vec<Owner>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grow(&self, free: &mut Vec<Owner>) -> io::Result<()> {
        let parts = PartOwner::several(self.paths, self.pages, self.page)?;
        free.extend(parts.into_iter().map(|part| Owner::new(part, self.pages, self.lap)));
        Ok(())
    }
}

/// Why no pages can be lent at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// No run of so many pages is free: programs hold too many.
    Held,
    /// The node has as much mapped as it may.
    Limit,
}

/// A path's part of a region. Whoever has it lends its pages, maps and unmaps.
pub(crate) struct PathRegion {
    /// `None` only while it is dropped.
    owner: Option<Owner>,
    pool: Arc<Shared>,
}

impl PathRegion {
    /// Pages for `pages` pages of payload, and one more, which a call needs whose last bytes cannot be mapped.
    ///
    /// # Errors
    /// [`NoRoom`] at the moment: whoever asks copies instead.
    pub(crate) fn target(&mut self, pages: u32) -> Result<MapTarget, NoRoom> {
        let owner = self.owner.as_mut().ok_or(NoRoom::Held)?;
        let with_spare = pages.checked_add(1).filter(|_| pages > 0).ok_or(NoRoom::Held)?;
        let room = |pool: &Shared| {
            pool.in_use.load(Ordering::Relaxed).saturating_add(u64::from(with_spare)) <= pool.limit
        };
        if !room(&self.pool) {
            owner.idle();
            self.pool.count(owner);
            if !room(&self.pool) {
                return Err(NoRoom::Limit);
            }
        }
        let run = owner.lend(with_spare);
        self.pool.count(owner);
        Ok(MapTarget { run: run.ok_or(NoRoom::Held)?, clean: owner.clean })
    }

    /// Hands out what was mapped: the payload, complete or not, and, where the stream went on in a page that could be
    /// mapped, that page, whose bytes follow the payload.
    pub(crate) fn finish(&mut self, target: MapTarget) -> (MappedPages, Option<MappedPages>) {
        let payload = target.pages();
        let mut run = target.run;
        let unused = run.split_off(run.mapped());
        if let Some(owner) = &mut self.owner {
            owner.unused(unused);
            self.pool.count(owner);
        }
        let surplus = run.split_off(payload);
        (MappedPages { run }, (surplus.pages() > 0).then_some(MappedPages { run: surplus }))
    }

    /// Unmaps whatever nobody holds, so that a path without traffic keeps no memory.
    pub(crate) fn idle(&mut self) {
        if let Some(owner) = &mut self.owner {
            owner.idle();
            self.pool.count(owner);
        }
    }

    /// The addresses of the part.
    #[cfg(test)]
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.owner.as_ref().map_or(0..0, |o| o.part.addresses())
    }

    /// Calls that unmapped pages, since the path has the part.
    pub(crate) fn zaps(&self) -> u64 {
        self.owner.as_ref().map_or(0, |o| o.zaps)
    }

    /// Pages that are held, as of the last look.
    pub(crate) fn lent_pages(&self) -> u32 {
        self.owner.as_ref().map_or(0, |l| l.slots.lent_pages())
    }

    /// Pages that nobody holds and that are still mapped, as of the last look.
    pub(crate) fn used_pages(&self) -> u32 {
        self.owner.as_ref().map_or(0, |l| l.slots.used_pages())
    }
}

impl Drop for PathRegion {
    fn drop(&mut self) {
        if let Some(mut owner) = self.owner.take() {
            owner.idle();
            self.pool.count(&mut owner);
            self.pool.free().push(owner);
        }
    }
}

/// Pages that are being filled with one message's payload. Dropped, it gives them back.
pub(crate) struct MapTarget {
    /// The payload's pages, and one more.
    run: Run,
    clean: bool,
}

impl MapTarget {
    /// Pages of the payload.
    pub(crate) fn pages(&self) -> u32 {
        self.run.pages() - 1
    }

    fn missing_pages(&self) -> u32 {
        self.pages().saturating_sub(self.run.mapped())
    }

    /// Bytes of payload that are not mapped yet.
    pub(crate) fn missing(&self) -> usize {
        self.missing_pages() as usize * self.run.page()
    }

    /// What is mapped so far; more than the payload if the stream went on in a page that could be mapped.
    pub(crate) fn mapped(&self) -> &[u8] {
        self.run.bytes()
    }

    /// Maps what is there of the missing pages; see [`Mapped`]. Does nothing when none is missing.
    ///
    /// With `header`, bytes that follow the payload come with it, at most a header. Only for a position in the stream that is a
    /// page boundary of the sender's: elsewhere the payload's end and what follows may share a page, and then that page is mapped
    /// whole, as [`PathRegion::finish`] says.
    ///
    /// # Errors
    /// What the kernel says: nothing was taken from the stream then, and whoever asks copies instead.
    pub(crate) fn receive(
        &mut self,
        socket: BorrowedFd<'_>,
        header: Option<&mut [u8; HEADER_LEN]>,
    ) -> io::Result<Mapped> {
        match self.missing_pages() {
            0 => Ok(Mapped::default()),
            pages => self.run.map(socket, pages + u32::from(header.is_some()), self.clean, header),
        }
    }
}

/// Pages of a message's payload as TCP received them: a lease. They stay where they are, with the bytes that they have, until this is
/// dropped, whatever becomes of connection and region. Begins at a multiple of the page size.
pub struct MappedPages {
    /// All mapped.
    run: Run,
}

impl Deref for MappedPages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.run.bytes()
    }
}

impl AsRef<[u8]> for MappedPages {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for MappedPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedPages").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
