//! The address space itself: one mapping, the parts of it, and runs of pages that are held.
//!
//! Whatever is unsafe about mapped pages is in this file, and rests on nothing outside of it: a page is reached through the
//! [`Run`] that holds it; the [`PartOwner`], of which there is one for each part, lends and unmaps only pages that no run holds.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use socket2::{Domain, Protocol, Socket, Type};

use crate::sys::zc_receive::{self, Mapped};
use crate::wire::HEADER_LEN;

/// What one page of a page table spans where pages have 4 KiB.
pub(super) const ALIGN: usize = 2 << 20;

/// The size of a page, in bytes.
pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf(3) takes a number and touches no memory of ours.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).ok().filter(|s| s.is_power_of_two()).unwrap_or(4096)
}

/// One mapping, unmapped when the last part and the last lease are gone.
pub(super) struct Space {
    mapping: NonNull<libc::c_void>,
    len: usize,
}

// SAFETY: a `Space` is a range of addresses: nothing of it belongs to a thread. What lies there is reached through `Part`.
unsafe impl Send for Space {}
// SAFETY: as above; through a shared reference only the address can be read.
unsafe impl Sync for Space {}

impl Space {
    /// Maps `len` bytes, beginning at a multiple of [`ALIGN`], and says where they begin.
    pub(super) fn new(len: usize) -> io::Result<(Self, usize)> {
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

/// One path's part of a region, as all who hold pages of it know it.
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
}

/// The words of a bitmap of pages that `range` touches, with the bits in each.
pub(super) fn bits(range: Range<u32>) -> impl Iterator<Item = (usize, u64)> {
    let words = if range.is_empty() { 0..0 } else { range.start / 64..range.end.div_ceil(64) };
    words.map(move |word| {
        let from = range.start.saturating_sub(word * 64);
        let to = (range.end - word * 64).min(64);
        (word as usize, (u64::MAX >> (64 - (to - from))) << from)
    })
}

/// The only one who lends pages of a part and unmaps them.
pub(super) struct PartOwner {
    part: Arc<Part>,
    pages: u32,
}

impl PartOwner {
    /// Owners of `count` parts of `pages` pages each, in a mapping of their own.
    pub(super) fn several(count: usize, pages: u32, page: usize) -> io::Result<Vec<Self>> {
        let bytes = pages as usize * page;
        let (space, start) = Space::new(bytes.checked_mul(count).ok_or(io::ErrorKind::OutOfMemory)?)?;
        let space = Arc::new(space);
        let part = |i| {
            let held = (0..pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
            let part = Part { space: Arc::clone(&space), offset: start + i * bytes, page, held };
            Self { part: Arc::new(part), pages }
        };
        Ok((0..count).map(part).collect())
    }

    /// Lends pages on which nothing is mapped, as far as the owner knows.
    ///
    /// # Panics
    /// If one of them is lent, or not of this part.
    pub(super) fn lend(&mut self, range: Range<u32>) -> Run {
        assert!(range.start <= range.end && range.end <= self.pages, "{range:?} of {} pages", self.pages);
        for (word, bits) in bits(range.clone()) {
            // Nothing is read through these pages before the kernel maps something, so there is nothing to be ordered.
            let before = self.part.held[word].fetch_or(bits, Ordering::Relaxed);
            assert_eq!(before & bits, 0, "pages {range:?} are lent twice");
        }
        Run { part: Arc::clone(&self.part), range, mapped: 0 }
    }

    /// Unmaps pages. False if the kernel did not.
    ///
    /// # Panics
    /// If one of them is lent, or not of this part.
    pub(super) fn zap(&mut self, range: Range<u32>) -> bool {
        assert!(range.start <= range.end && range.end <= self.pages, "{range:?} of {} pages", self.pages);
        for (word, bits) in bits(range.clone()) {
            assert_eq!(self.held(word) & bits, 0, "pages {range:?} are held");
        }
        let address = self.part.address(range.start).cast_mut();
        let len = (range.end - range.start) as usize * self.part.page;
        // SAFETY: the range lies in this part of the mapping, which stands as long as `space`. No reference into it exists:
        // references come from a `Run` of its pages, none of which is held, and only this owner, exclusively borrowed,
        // makes new ones.
        let rc = unsafe { libc::madvise(address.cast(), len, libc::MADV_DONTNEED) };
        rc == 0
    }

    /// The bits of the pages that are held, of 64 pages from `64 * word` on. What holders of the others did with them is over.
    pub(super) fn held(&self, word: usize) -> u64 {
        self.part.held[word].load(Ordering::Acquire)
    }

    pub(super) fn lent(&self, run: &Run) -> bool {
        Arc::ptr_eq(&self.part, &run.part)
    }

    #[cfg(test)]
    pub(super) fn addresses(&self) -> Range<usize> {
        self.part.address(0) as usize..self.part.address(self.pages) as usize
    }
}

/// Pages that are held, of which the first few are mapped. They are given back when this is dropped.
pub(super) struct Run {
    part: Arc<Part>,
    range: Range<u32>,
    /// Never more than there are.
    mapped: u32,
}

impl Run {
    pub(super) fn range(&self) -> Range<u32> {
        self.range.clone()
    }

    pub(super) fn pages(&self) -> u32 {
        self.range.end - self.range.start
    }

    pub(super) fn mapped(&self) -> u32 {
        self.mapped
    }

    pub(super) fn page(&self) -> usize {
        self.part.page
    }

    /// Keeps the first `pages` pages and returns the others.
    pub(super) fn split_off(&mut self, pages: u32) -> Self {
        let pages = pages.min(self.pages());
        let at = self.range.start + pages;
        let mapped = self.mapped.saturating_sub(pages);
        let rest = Self { part: Arc::clone(&self.part), range: at..self.range.end, mapped };
        self.range.end = at;
        self.mapped -= mapped;
        rest
    }

    /// Maps up to `pages` more pages of what a connection received; see [`Mapped`].
    pub(super) fn map(
        &mut self,
        socket: BorrowedFd<'_>,
        pages: u32,
        clean: bool,
        header: Option<&mut [u8; HEADER_LEN]>,
    ) -> io::Result<Mapped> {
        let pages = pages.min(self.pages() - self.mapped);
        let address = self.part.address(self.range.start + self.mapped);
        let length =
            u32::try_from(pages as usize * self.part.page).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the pages from `mapped` to the end of the run are held by this run alone, which is exclusively borrowed; they
        // lie in one mapping of a TCP socket, which stands as long as `part`. No reference to them exists: `bytes` gives
        // out those before.
        let mapped = unsafe { zc_receive::map(socket, address, length, clean, header)? };
        let new = u32::try_from(mapped.bytes / self.part.page).unwrap_or(u32::MAX);
        assert!(new <= pages, "the kernel mapped more than it was asked to");
        self.mapped += new;
        Ok(mapped)
    }

    /// What is mapped.
    pub(super) fn bytes(&self) -> &[u8] {
        if self.mapped == 0 {
            return &[];
        }
        let (address, len) = (self.part.address(self.range.start), self.mapped as usize * self.part.page);
        // SAFETY: the kernel has mapped these pages, in the address space that `part` keeps. They stay mapped: this run holds
        // their bits, so the owner does not unmap them, and `map` leaves them alone. They cannot be written to through
        // the mapping, and the kernel does not change what TCP has delivered. (A process of this host
        // with CAP_NET_RAW could have sent pages to which it still writes, those of a packet ring, in a container too: from
        // addresses of this host the engine maps only when it is told to trust them, and docs/security.md tells of the others.)
        unsafe { std::slice::from_raw_parts(address, len) }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        for (word, bits) in bits(self.range.clone()) {
            // Reads through the run come before what the owner does once it has seen the bits cleared.
            self.part.held[word].fetch_and(!bits, Ordering::Release);
        }
    }
}
