//! Page-aligned memory, zero at first, that goes back to the system as a whole.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::limits::page_size;

/// A huge page of most platforms; slabs start at such an address, so that the kernel can use them.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// A mapping of private anonymous memory.
struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process, not to the thread that made it, and this type only unmaps it, once.
unsafe impl Send for Mapping {}
// SAFETY: as above; there is nothing to be called through a shared reference.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// At least `len` bytes, from an address that is a multiple of `align`, which is a multiple of the page size.
    fn new(len: usize, align: usize) -> io::Result<Self> {
        let len = len.max(1).checked_next_multiple_of(page_size()).ok_or(io::ErrorKind::OutOfMemory)?;
        let total = len.checked_add(align - page_size()).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new private anonymous mapping at an address that the kernel chooses touches no other memory.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                total,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = start.cast::<u8>();
        let before = start.addr().next_multiple_of(align) - start.addr();
        let after = total - before - len;
        let at = start.wrapping_add(before);
        // What is over on either side.
        for (at, len) in [(start, before), (at.wrapping_add(len), after)] {
            if len > 0 {
                // SAFETY: a whole number of pages of the mapping made above, which nothing refers to.
                let rc = unsafe { libc::munmap(at.cast(), len) };
                debug_assert_eq!(rc, 0, "{}", io::Error::last_os_error());
            }
        }
        NonNull::new(at).map(|at| Self { at, len }).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the last of those who refer to it drops it.
        let rc = unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
        debug_assert_eq!(rc, 0, "{}", io::Error::last_os_error());
    }
}

/// Memory to be cut into buffers.
pub(crate) struct Slab(Mapping);

impl Slab {
    /// Maps `bytes`, rounded up to whole huge pages, at a multiple of [`HUGE_PAGE`], and asks for huge pages
    /// (MADV_HUGEPAGE). The memory is zero, and takes none of the machine's before it is touched.
    ///
    /// # Errors
    /// What mmap(2) says: too little address space, or the process's limit of it.
    pub(crate) fn new(bytes: usize) -> io::Result<Self> {
        let len = bytes.max(1).checked_next_multiple_of(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping::new(len, HUGE_PAGE.max(page_size()))?;
        // Advice: a kernel without huge pages refuses it, which does no harm.
        // SAFETY: the range is the mapping's own; the advice changes nothing of what it holds.
        let _ = unsafe { libc::madvise(mapping.at.as_ptr().cast(), mapping.len, libc::MADV_HUGEPAGE) };
        Ok(Self(mapping))
    }

    /// Cuts the slab into as many disjoint buffers as fit, of `buffer_size` bytes each, rounded up to whole pages. None
    /// if not even one fits. The slab is unmapped when the last of them goes.
    pub(crate) fn carve(self, buffer_size: usize) -> Vec<PageBuf> {
        let Some(len) = buffer_size.max(1).checked_next_multiple_of(page_size()) else { return Vec::new() };
        let Mapping { at, len: total } = self.0;
        let slab = Arc::new(self.0);
        let buffer = |n: usize| {
            // SAFETY: `(n + 1) * len` is at most `total`, so the address is within the mapping.
            let at = unsafe { at.add(n * len) };
            PageBuf { at, len, slab: Arc::clone(&slab) }
        };
        (0..total / len).map(buffer).collect()
    }
}

/// A buffer of whole pages at a multiple of the page size; nobody else refers to its bytes.
pub(crate) struct PageBuf {
    at: NonNull<u8>,
    len: usize,
    /// Keeps the memory mapped.
    slab: Arc<Mapping>,
}

// SAFETY: a buffer has its bytes for itself, like a `Box<[u8]>`.
unsafe impl Send for PageBuf {}
// SAFETY: as above; a shared reference only reads.
unsafe impl Sync for PageBuf {}

impl PageBuf {
    /// A buffer in a mapping of its own, of `len` bytes rounded up to whole pages; for sizes of which few are needed.
    ///
    /// # Errors
    /// As for [`Slab::new`].
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let mapping = if len < HUGE_PAGE { Mapping::new(len, page_size())? } else { Slab::new(len)?.0 };
        let len = len.max(1).next_multiple_of(page_size());
        Ok(Self { at: mapping.at, len, slab: Arc::new(mapping) })
    }

    /// Gives the memory back to the system, to be had again, zero, when it is touched (MADV_DONTNEED). For buffers that are
    /// idle: touching them again costs a page fault for each page, and huge pages are split.
    ///
    /// # Errors
    /// What madvise(2) says: memory that is locked, for one. The bytes are as before then.
    pub(crate) fn discard(&mut self) -> io::Result<()> {
        // SAFETY: whole pages of a private anonymous mapping that is alive, exclusively borrowed; they read as zeroes
        // afterwards, which are valid bytes.
        let rc = unsafe { libc::madvise(self.at.as_ptr().cast(), self.len, libc::MADV_DONTNEED) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Deref for PageBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        debug_assert!(self.at >= self.slab.at);
        // SAFETY: the bytes are mapped, readable and initialised by the kernel, within one mapping that `slab` keeps; only
        // `deref_mut` gives them out to be changed, and it borrows the buffer exclusively.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl DerefMut for PageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and writable; buffers of a slab are disjoint, and this one is exclusively borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for PageBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for PageBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageBuf").field("at", &self.at).field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether a mapping of this process holds the address.
    fn is_mapped(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| {
            let (range, _) = line.split_once(' ').unwrap();
            let (start, end) = range.split_once('-').unwrap();
            let hex = |s| usize::from_str_radix(s, 16).unwrap();
            (hex(start)..hex(end)).contains(&address)
        })
    }

    /// Bytes of a buffer that are in memory.
    fn resident(buffer: &PageBuf) -> usize {
        let mut pages = vec![0_u8; buffer.len().div_ceil(page_size())];
        // SAFETY: mincore(2) writes one byte for each page of the range, for which `pages` has room; the range is mapped.
        let rc = unsafe { libc::mincore(buffer.at.as_ptr().cast(), buffer.len(), pages.as_mut_ptr().cast()) };
        assert_eq!(rc, 0);
        pages.iter().filter(|&&p| p & 1 == 1).count() * page_size()
    }

    fn check(slab: usize, size: usize) {
        let made = Slab::new(slab).unwrap();
        let total = made.0.len;
        assert!(total >= slab && total.is_multiple_of(HUGE_PAGE) && total < slab + HUGE_PAGE + 1);
        let mut buffers = made.carve(size);
        let len = size.max(1).next_multiple_of(page_size());
        assert_eq!(buffers.len(), total / len);
        for buffer in &buffers {
            assert!(buffer.as_ptr().addr().is_multiple_of(page_size()) && buffer.len() == len);
        }
        if let Some(first) = buffers.first() {
            assert!(first.as_ptr().addr().is_multiple_of(HUGE_PAGE));
        }
        // Ends only: touching all would take long.
        for (i, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!((buffer[0], buffer[len - 1]), (0, 0));
            buffer[0] = u8::try_from(i % 255).unwrap() + 1;
            buffer[len - 1] = u8::try_from(i % 255).unwrap() + 1;
        }
        for (i, buffer) in buffers.iter().enumerate() {
            let mark = u8::try_from(i % 255).unwrap() + 1;
            assert_eq!((buffer[0], buffer[len - 1]), (mark, mark));
        }
        let mut at: Vec<_> = buffers.iter().map(|b| b.as_ptr().addr()).collect();
        at.sort_unstable();
        assert!(at.windows(2).all(|w| w[0] + len <= w[1]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn buffers_of_a_slab_are_aligned_disjoint_and_zero(slab in 0..9_usize << 20, size in 0..3_usize << 20) {
            check(slab, size);
        }
    }

    #[test]
    fn sizes_at_the_edges() {
        for size in [0, 1, 4095, 4096, 4097, 65536, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1] {
            check(1, size);
            check(HUGE_PAGE, size);
            check(3 * HUGE_PAGE, size);
        }
        assert!(Slab::new(1).unwrap().carve(usize::MAX).is_empty());
        assert!(Slab::new(usize::MAX).is_err());
        assert!(Slab::new(usize::MAX / 2).is_err());
        assert!(PageBuf::new(usize::MAX).is_err());
    }

    #[test]
    fn a_slab_is_unmapped_with_its_last_buffer() {
        let mut buffers = Slab::new(8 << 20).unwrap().carve(1 << 20);
        let at: Vec<_> = buffers.iter().map(|b| b.as_ptr().addr()).collect();
        let last = buffers.swap_remove(3);
        drop(buffers);
        assert!(at.iter().all(|&a| is_mapped(a)));
        assert!(last.iter().all(|&b| b == 0));
        // The addresses may be given to others at once, so the count of references is what shows it.
        let slab = Arc::downgrade(&last.slab);
        drop(last);
        assert!(slab.upgrade().is_none());
    }

    #[test]
    fn a_buffer_of_its_own_has_whole_pages() {
        for len in [0, 1, 4096, 5000, 1 << 20, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1, 5 << 20] {
            let mut buffer = PageBuf::new(len).unwrap();
            assert_eq!(buffer.len(), len.max(1).next_multiple_of(page_size()));
            assert!(buffer.as_ptr().addr().is_multiple_of(page_size()));
            assert!(len < HUGE_PAGE || buffer.as_ptr().addr().is_multiple_of(HUGE_PAGE));
            assert!(buffer.iter().all(|&b| b == 0));
            buffer.fill(1);
        }
    }

    #[test]
    fn what_is_discarded_takes_no_memory_and_is_zero_again() {
        let mut buffers = Slab::new(4 << 20).unwrap().carve(256 << 10);
        buffers.iter_mut().for_each(|b| b.fill(9));
        let before = resident(&buffers[5]);
        buffers[5].discard().unwrap();
        assert_eq!((before, resident(&buffers[5])), (256 << 10, 0));
        assert!(buffers[5].iter().all(|&b| b == 0));
        assert!(buffers[4].iter().chain(&buffers[6][..]).all(|&b| b == 9), "neighbours stay");
        buffers[5].fill(3);
    }

    #[test]
    fn buffers_are_written_and_dropped_by_other_threads() {
        let buffers = Slab::new(8 << 20).unwrap().carve(64 << 10);
        let threads: Vec<_> = buffers
            .into_iter()
            .enumerate()
            .map(|(i, mut buffer)| {
                let mark = u8::try_from(i).unwrap();
                std::thread::spawn(move || {
                    buffer.fill(mark);
                    std::thread::yield_now();
                    assert!(buffer.iter().all(|&b| b == mark));
                    buffer
                })
            })
            .collect();
        for (i, thread) in threads.into_iter().enumerate() {
            let buffer = thread.join().unwrap();
            let sum =
                std::thread::scope(|s| s.spawn(|| buffer.iter().map(|&b| u64::from(b)).sum::<u64>()).join());
            assert_eq!(sum.unwrap(), u64::try_from(i * buffer.len()).unwrap());
        }
    }

    #[test]
    fn a_buffer_serves_as_an_owner_of_bytes() {
        let mut buffer = PageBuf::new(8192).unwrap();
        buffer[..5].copy_from_slice(b"hello");
        let bytes = bytes::Bytes::from_owner(buffer);
        assert_eq!((&bytes[..5], bytes.len()), (&b"hello"[..], 8192));
        assert!(bytes.as_ptr().addr().is_multiple_of(page_size()));
    }
}
