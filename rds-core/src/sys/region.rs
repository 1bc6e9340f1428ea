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
//! whose bit is set is never unmapped, never mapped again and never lent again; [`Part`] checks that itself, and does not rely
//! on [`Slots`].

use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::ops::{Deref, Range};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use socket2::{Domain, Protocol, Socket, Type};

use super::zc_receive::{self, Mapped};
use crate::wire::HEADER_LEN;
use crate::zerocopy::slots::Slots;

/// What one page of a page table spans where pages have 4 KiB.
const ALIGN: usize = 2 << 20;

/// The size of a page, in bytes.
pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf(3) takes a number and touches no memory of ours.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|s| s.is_power_of_two()).unwrap_or(4096)
}

/// One mapping, unmapped when the last part and the last lease are gone.
struct Space {
    mapping: NonNull<libc::c_void>,
    len: usize,
}

// SAFETY: a `Space` is a range of addresses: nothing of it belongs to a thread. What lies there is reached through `Part`.
unsafe impl Send for Space {}
// SAFETY: as above; through a shared reference only the address can be read.
unsafe impl Sync for Space {}

impl Space {
    /// Maps `len` bytes, beginning at a multiple of [`ALIGN`], and says where they begin.
    fn new(len: usize) -> io::Result<(Self, usize)> {
        let say =
            |e: io::Error| io::Error::new(e.kind(), format!("cannot map a TCP socket to receive into: {e}"));
        // Of any TCP socket: the kernel looks at the kind of mapping, not at the socket.
        let socket = Socket::new(Domain::IPV4, Type::STREAM.cloexec(), Some(Protocol::TCP))
            .or_else(|_| Socket::new(Domain::IPV6, Type::STREAM.cloexec(), Some(Protocol::TCP)))
            .map_err(say)?;
        let len = len.checked_add(ALIGN).ok_or_else(|| say(io::ErrorKind::OutOfMemory.into()))?;
        // SAFETY: a new mapping at an address of the kernel's choice changes no memory that exists; it can only be read.
        let mapping = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ, libc::MAP_SHARED, socket.as_raw_fd(), 0)
        };
        if mapping == libc::MAP_FAILED {
            return Err(say(io::Error::last_os_error()));
        }
        let mapping = NonNull::new(mapping).ok_or_else(|| say(io::ErrorKind::AddrNotAvailable.into()))?;
        let start = mapping.as_ptr() as usize;
        Ok((Self { mapping, len }, start.next_multiple_of(ALIGN) - start))
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and is unmapped once; nothing refers to it, for every `Part`, and with it every run of
        // pages, holds the `Space`.
        let rc = unsafe { libc::munmap(self.mapping.as_ptr(), self.len) };
        debug_assert_eq!(rc, 0);
    }
}

/// One path's part of a region.
struct Part {
    space: Arc<Space>,
    /// Where it begins in the mapping.
    offset: usize,
    page: usize,
    /// A bit for each page: set by the owner when the page is lent, cleared by whoever drops it.
    held: Box<[AtomicU64]>,
}

impl Part {
    /// Address of a page. Dereferencing it is another matter.
    fn address(&self, page: u32) -> *const u8 {
        self.space.mapping.as_ptr().cast::<u8>().wrapping_add(self.offset + page as usize * self.page)
    }

    /// The words of `held` that `range` touches, with the bits in each.
    fn bits(range: Range<u32>) -> impl Iterator<Item = (usize, u64)> {
        let words = if range.is_empty() { 0..0 } else { range.start / 64..range.end.div_ceil(64) };
        words.map(move |word| {
            let from = range.start.saturating_sub(word * 64);
            let to = (range.end - word * 64).min(64);
            (word as usize, (u64::MAX >> (64 - (to - from))) << from)
        })
    }

    /// For the owner only.
    fn lend(self: &Arc<Self>, range: Range<u32>) -> Run {
        for (word, bits) in Self::bits(range.clone()) {
            // Nothing is read through these pages before the kernel maps something, so there is nothing to be ordered.
            let before = self.held[word].fetch_or(bits, Ordering::Relaxed);
            assert_eq!(before & bits, 0, "pages {range:?} are lent twice");
        }
        Run { part: Arc::clone(self), range }
    }

    fn release(&self, range: Range<u32>) {
        for (word, bits) in Self::bits(range) {
            // Reads through the lease come before what the owner does once it has seen the bits cleared.
            self.held[word].fetch_and(!bits, Ordering::Release);
        }
    }

    /// For the owner only: unmaps pages that nobody holds. False if the kernel did not.
    fn zap(&self, range: Range<u32>) -> bool {
        for (word, bits) in Self::bits(range.clone()) {
            assert_eq!(self.held[word].load(Ordering::Acquire) & bits, 0, "pages {range:?} are held");
        }
        let len = (range.end - range.start) as usize * self.page;
        // SAFETY: the range lies in this part of the mapping, which stands as long as `space`. No reference into it exists:
        // references come from a `Run` of its pages, none of which is held, and only the owner, who is here, makes new ones.
        let rc =
            unsafe { libc::madvise(self.address(range.start).cast_mut().cast(), len, libc::MADV_DONTNEED) };
        rc == 0
    }
}

/// Pages that are held. They are given back when this is dropped.
struct Run {
    part: Arc<Part>,
    range: Range<u32>,
}

impl Run {
    fn pages(&self) -> u32 {
        self.range.end - self.range.start
    }

    /// Keeps the first `pages` pages and returns the others.
    fn split_off(&mut self, pages: u32) -> Self {
        let at = (self.range.start + pages).min(self.range.end);
        let rest = Self { part: Arc::clone(&self.part), range: at..self.range.end };
        self.range.end = at;
        rest
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.range.is_empty() {
            self.part.release(self.range.clone());
        }
    }
}

/// The owner's side of a part.
struct Owner {
    part: Arc<Part>,
    slots: Slots,
    /// The pages that `slots` counts as lent.
    lent: Box<[u64]>,
    zap: Vec<Range<u32>>,
    /// Clean pages are not mapped. False once the kernel refused to unmap some.
    clean: bool,
}

impl Owner {
    fn new(part: Part, pages: u32, lap: u32) -> Self {
        let lent = vec![0; part.held.len()].into_boxed_slice();
        Self { part: Arc::new(part), slots: Slots::new(pages, lap), lent, zap: Vec::new(), clean: true }
    }

    /// Takes back what was dropped.
    fn collect(&mut self) {
        for (word, lent) in self.lent.iter_mut().enumerate() {
            if *lent == 0 {
                continue;
            }
            let mut back = *lent & !self.part.held[word].load(Ordering::Acquire);
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
    free: Mutex<Vec<Owner>>,
}

impl RegionPool {
    /// Address space for `paths` paths, of `bytes_per_path` each, rounded up to a multiple of 2 MiB. Parts are unmapped `lap`
    /// bytes at a time. When more paths come, there will be more regions, for as many paths each.
    ///
    /// # Errors
    /// What the kernel says, if it does not map TCP sockets or has no address space.
    pub(crate) fn new(paths: usize, bytes_per_path: usize, lap: usize) -> io::Result<Self> {
        let page = page_size();
        let invalid =
            || io::Error::new(io::ErrorKind::InvalidInput, "a receive region of an impossible size");
        let bytes = bytes_per_path.max(1).checked_next_multiple_of(ALIGN.max(page)).ok_or_else(invalid)?;
        // What is asked of the kernel at once, in 32 bits.
        let bytes = u32::try_from(bytes).map_err(|_| invalid())? as usize;
        let pages = u32::try_from(bytes / page).map_err(|_| invalid())?;
        let lap = u32::try_from(lap / page).unwrap_or(u32::MAX);
        let pool = Shared { paths: paths.max(1), pages, lap, page, free: Mutex::new(Vec::new()) };
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
        let owner = best.map(|i| free.swap_remove(i));
        Ok(PathRegion { owner, pool: Arc::clone(&self.shared) })
    }
}

impl Shared {
    fn free(&self) -> MutexGuard<'_, Vec<Owner>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn grow(&self, free: &mut Vec<Owner>) -> io::Result<()> {
        let bytes = self.pages as usize * self.page;
        let len = bytes.checked_mul(self.paths).ok_or(io::ErrorKind::OutOfMemory)?;
        let (space, start) = Space::new(len)?;
        let space = Arc::new(space);
        for i in 0..self.paths {
            let held = (0..self.pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
            let part = Part { space: Arc::clone(&space), offset: start + i * bytes, page: self.page, held };
            free.push(Owner::new(part, self.pages, self.lap));
        }
        Ok(())
    }
}

/// A path's part of a region. Whoever has it lends its pages, maps and unmaps.
pub(crate) struct PathRegion {
    /// `None` only while it is dropped.
    owner: Option<Owner>,
    pool: Arc<Shared>,
}

impl PathRegion {
    /// Pages for `pages` pages of payload, and one more, which a call needs whose last bytes cannot be mapped. `None` while
    /// no such run is free: whoever asks copies instead.
    pub(crate) fn target(&mut self, pages: u32) -> Option<MapTarget> {
        let owner = self.owner.as_mut()?;
        owner.collect();
        let with_spare = pages.checked_add(1).filter(|_| pages > 0)?;
        let first = owner.slots.take(with_spare, &mut owner.zap);
        owner.zap();
        let first = first?;
        let run = owner.part.lend(first..first + with_spare);
        for (word, bits) in Part::bits(run.range.clone()) {
            owner.lent[word] |= bits;
        }
        Some(MapTarget { run, mapped: 0, clean: owner.clean })
    }

    /// Hands out what was mapped: the payload, complete or not, and, where the stream went on in a page that could be
    /// mapped, that page, whose bytes follow the payload.
    pub(crate) fn finish(&mut self, target: MapTarget) -> (MappedPages, Option<MappedPages>) {
        let (payload, mapped) = (target.pages(), target.mapped);
        let mut run = target.run;
        let unused = run.split_off(mapped);
        if let Some(owner) = &mut self.owner
            && Arc::ptr_eq(&owner.part, &unused.part)
            && unused.pages() > 0
        {
            // Known to be clean: the next run begins there.
            owner.slots.unused(unused.range.start, unused.pages());
            for (word, bits) in Part::bits(unused.range.clone()) {
                owner.lent[word] &= !bits;
            }
        }
        drop(unused);
        let surplus = (mapped > payload).then(|| MappedPages { run: run.split_off(payload) });
        (MappedPages { run }, surplus)
    }

    /// Unmaps whatever nobody holds, so that a path without traffic keeps no memory.
    pub(crate) fn idle(&mut self) {
        if let Some(owner) = &mut self.owner {
            owner.idle();
        }
    }

    /// The addresses of the part.
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.owner.as_ref().map_or(0..0, |o| {
            let start = o.part.address(0) as usize;
            start..start + o.slots.total() as usize * o.part.page
        })
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
            self.pool.free().push(owner);
        }
    }
}

/// Pages that are being filled with one message's payload. Dropped, it gives them back.
pub(crate) struct MapTarget {
    /// The payload's pages, and one more.
    run: Run,
    mapped: u32,
    clean: bool,
}

impl MapTarget {
    /// Pages of the payload.
    pub(crate) fn pages(&self) -> u32 {
        self.run.pages() - 1
    }

    /// Bytes of payload that are not mapped yet.
    pub(crate) fn missing(&self) -> usize {
        self.pages().saturating_sub(self.mapped) as usize * self.run.part.page
    }

    /// What is mapped so far; more than the payload if the stream went on in a page that could be mapped.
    pub(crate) fn mapped(&self) -> &[u8] {
        self.run.bytes(self.mapped)
    }

    /// Maps what is there of the missing pages; see [`Mapped`].
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
        let pages = self.pages().saturating_sub(self.mapped);
        if pages == 0 {
            return Ok(Mapped::default());
        }
        let part = &self.run.part;
        let length = (pages + u32::from(header.is_some())) * part.page as u32;
        let address = part.address(self.run.range.start + self.mapped);
        // SAFETY: the pages from `mapped` to the end of the run are held by this target alone, which is exclusively borrowed; they
        // lie in one mapping of a TCP socket, which stands as long as the run. References that `mapped` gave out are over,
        // and were to pages before these.
        let mapped = unsafe { zc_receive::map(socket, address, length, self.clean, header)? };
        let new = u32::try_from(mapped.bytes / part.page).unwrap_or(u32::MAX);
        assert!(new <= self.run.pages() - self.mapped, "the kernel mapped more than it was asked to");
        self.mapped += new;
        Ok(mapped)
    }
}

impl Run {
    /// The bytes of the first `pages` pages, which must be mapped.
    fn bytes(&self, pages: u32) -> &[u8] {
        let pages = pages.min(self.pages());
        if pages == 0 {
            return &[];
        }
        let (address, len) = (self.part.address(self.range.start), pages as usize * self.part.page);
        // SAFETY: the callers (both in this file) name pages that the kernel reported as mapped, in the address space that
        // `part` keeps. They stay mapped: the run holds their bits, so the owner neither unmaps nor maps there, and nobody else can.
        // They are read-only here, and the kernel does not write to what TCP has delivered. (A privileged process of this host could
        // have sent pages that it still writes to; from peers on the same host the engine maps only if it was told to trust.)
        unsafe { std::slice::from_raw_parts(address, len) }
    }
}

/// Pages of a message's payload as TCP received them: a lease. They stay where they are, with the bytes that they have, until this is
/// dropped, whatever becomes of connection and region. Begins at a multiple of the page size.
pub(crate) struct MappedPages {
    /// All mapped.
    run: Run,
}

impl Deref for MappedPages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.run.bytes(self.run.pages())
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
