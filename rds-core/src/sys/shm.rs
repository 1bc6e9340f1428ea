//! Memory shared with another process, which may change it at any moment.
//!
//! No reference to its bytes is ever formed, and nothing that was read is read again: bytes are copied out, or handed to the kernel
//! by address. Index words are atomics, which may be shared by their nature.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use bytes::BytesMut;

/// Who may write, of those to whom the memory's descriptor is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everybody.
    ReadWrite,
    /// The process that made it; all others can only map it for reading (F_SEAL_FUTURE_WRITE, since Linux 5.1).
    ReadOnly,
}

/// A mapping (mmap(2), MAP_SHARED) of a memfd whose size cannot change any more (memfd_create(2), F_SEAL_SHRINK).
pub struct SharedMemory {
    at: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping belongs to the process, and is only unmapped when the last owner goes.
unsafe impl Send for SharedMemory {}
// SAFETY: its bytes are only touched by the copies below, which do not mind that others change them meanwhile, and as atomics.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// New memory, all zero, of `len` bytes rounded up to whole pages, and the descriptor to be passed on: `for_others` tells what those may
    /// do who get it. This process may write.
    ///
    /// # Errors
    /// What memfd_create(2), ftruncate(2), mmap(2) or fcntl(2) say: no memory, too many descriptors, a kernel before 5.1.
    pub fn create(len: usize, for_others: Access) -> io::Result<(OwnedFd, Arc<Self>)> {
        let len = len
            .max(1)
            .checked_next_multiple_of(super::limits::page_size())
            .ok_or(io::ErrorKind::OutOfMemory)?;
        let fd = memfd()?;
        let size = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: a plain system call on a descriptor that is open.
        check(unsafe { libc::ftruncate(fd.as_raw_fd(), size) })?;
        let memory = Self::mapped(fd.as_fd(), 0, len, true)?;
        let mut seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        if for_others == Access::ReadOnly {
            seals |= libc::F_SEAL_FUTURE_WRITE;
        }
        // SAFETY: as above.
        check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) })?;
        Ok((fd, Arc::new(memory)))
    }

    /// Maps memory that another process made with [`SharedMemory::create`], all of it.
    ///
    /// # Errors
    /// It is shorter than `len` bytes, or could be cut (InvalidData); what mmap(2) says.
    pub fn map(fd: BorrowedFd<'_>, len: usize, access: Access) -> io::Result<Arc<Self>> {
        Self::map_part(fd, 0, len, access).map(Arc::new)
    }

    /// The same, for a part of it that begins at a multiple of the page size.
    pub(super) fn map_part(fd: BorrowedFd<'_>, at: usize, len: usize, access: Access) -> io::Result<Self> {
        // SAFETY: a plain system call on a descriptor that is open.
        let seals = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })?;
        let size = nix::sys::stat::fstat(fd)?.st_size;
        // Touching what was cut off would end the process.
        if seals & libc::F_SEAL_SHRINK == 0
            || at.checked_add(len).is_none_or(|end| usize::try_from(size).map_or(true, |size| size < end))
            || len == 0
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "shared memory that is too short, or may be cut",
            ));
        }
        Self::mapped(fd, at, len, access == Access::ReadWrite)
    }

    fn mapped(fd: BorrowedFd<'_>, at: usize, len: usize, writable: bool) -> io::Result<Self> {
        let offset = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd.as_raw_fd(), offset)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let at = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { at, len, writable })
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: it has a page at least.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it is mapped.
    pub(super) fn address(&self) -> NonNull<u8> {
        self.at
    }

    /// Whether this process may write it.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The word at a multiple of 8.
    ///
    /// # Panics
    /// If it is not within the memory, or not aligned; to be written only where [`SharedMemory::create`] or [`Access::ReadWrite`] allow it,
    /// else the process ends.
    #[must_use]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "a word of the memory");
        // SAFETY: within the mapping, which lives as long as `self`, and aligned; an atomic may be shared with whoever changes it,
        // and this program uses these bytes as nothing else at the same time (a copy of them would only be stale).
        unsafe { AtomicU64::from_ptr(self.at.as_ptr().add(at).cast()) }
    }

    /// `count` words from a multiple of 8; as for [`SharedMemory::word`].
    ///
    /// # Panics
    /// If they are not within the memory, or not aligned.
    #[must_use]
    pub fn words(&self, at: usize, count: usize) -> &[AtomicU64] {
        assert!(at.is_multiple_of(8) && self.holds(at as u64, count as u64 * 8), "words of the memory");
        // SAFETY: as above, for each of them; they are next to each other.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr().add(at).cast(), count) }
    }

    /// Whether a range lies within the memory.
    #[must_use]
    pub fn holds(&self, at: u64, len: u64) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len as u64)
    }

    /// Copies `bytes` in.
    ///
    /// # Panics
    /// If the range is not within the memory, or the memory is read-only.
    pub fn copy_in(&self, at: usize, bytes: &[u8]) {
        assert!(
            self.writable && self.holds(at as u64, bytes.len() as u64),
            "a range of the memory, to be written"
        );
        // SAFETY: both ranges are valid for their length, as was checked; they cannot overlap, since no slice refers to this memory.
        unsafe { copy(bytes.as_ptr(), self.at.as_ptr().add(at), bytes.len()) };
    }

    /// Copies bytes out, as they are at that moment.
    ///
    /// # Panics
    /// If the range is not within the memory.
    pub fn copy_out(&self, at: usize, out: &mut [u8]) {
        assert!(self.holds(at as u64, out.len() as u64), "a range of the memory");
        // SAFETY: as above.
        unsafe { copy(self.at.as_ptr().add(at), out.as_mut_ptr(), out.len()) };
    }

    /// Part of the memory; `None` if the range is not within it.
    #[must_use]
    pub fn span(self: &Arc<Self>, at: u64, len: u64) -> Option<Span> {
        self.holds(at, len).then(|| Span { memory: Arc::clone(self), at: at as usize, len: len as usize })
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and the last of those who refer to it drops it.
        let rc = unsafe { libc::munmap(self.at.as_ptr().cast(), self.len) };
        debug_assert_eq!(rc, 0, "{}", io::Error::last_os_error());
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMemory").field("len", &self.len).finish_non_exhaustive()
    }
}

/// A range of shared memory, which stays mapped meanwhile. Whoever else has the memory may change its bytes at any moment.
#[derive(Clone)]
pub struct Span {
    memory: Arc<SharedMemory>,
    at: usize,
    len: usize,
}

impl Span {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it begins within its memory.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.at
    }

    /// The memory of which it is part.
    #[must_use]
    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// Part of it.
    ///
    /// # Panics
    /// If the range is not within it.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "a range within the span");
        Self { memory: Arc::clone(&self.memory), at: self.at + range.start, len: range.end - range.start }
    }

    /// Copies its first bytes, as many as `out` has.
    ///
    /// # Panics
    /// If `out` is longer than the span.
    pub fn copy_to(&self, out: &mut [u8]) {
        assert!(out.len() <= self.len, "no more than there is");
        self.memory.copy_out(self.at, out);
    }

    /// A copy of all of it.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_to(&mut bytes);
        bytes
    }

    /// Appends all of it to a buffer.
    pub fn append_to(&self, out: &mut BytesMut) {
        out.reserve(self.len);
        // SAFETY: the spare capacity holds `len` bytes, as was just seen to, all of which are written before they count.
        unsafe {
            copy(
                self.memory.at.as_ptr().add(self.at),
                out.spare_capacity_mut().as_mut_ptr().cast(),
                self.len,
            );
            out.set_len(out.len() + self.len);
        }
    }

    /// Copies `bytes` to its beginning.
    ///
    /// # Panics
    /// If they are more than the span has, or the memory is read-only.
    pub fn fill(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len, "no more than there is room for");
        self.memory.copy_in(self.at, bytes);
    }

    /// Copies the bytes of another span to the beginning of this one.
    ///
    /// # Panics
    /// If those are more than this one has, or its memory is read-only.
    pub fn fill_from(&self, other: &Self) {
        assert!(
            other.len <= self.len && self.memory.writable,
            "no more than there is room for, to be written"
        );
        // SAFETY: both ranges are within mappings that are alive. Should they overlap, bytes are mixed up, which their owner asked for.
        unsafe { copy(other.address(), self.memory.at.as_ptr().add(self.at), other.len) };
    }

    /// Where its bytes are, for system calls alone.
    pub(crate) fn address(&self) -> *const u8 {
        // SAFETY: within the mapping, as was checked when the span was made.
        unsafe { self.memory.at.as_ptr().add(self.at) }
    }

    /// The same, to be written by the kernel; `None` where the memory is read-only.
    pub(crate) fn address_mut(&self) -> Option<*mut u8> {
        self.memory.writable.then(|| self.address().cast_mut())
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Span").field("at", &self.at).field("len", &self.len).finish_non_exhaustive()
    }
}

fn memfd() -> io::Result<OwnedFd> {
    // Linux 6.3: such memory can never be executed; a system may insist on it (vm.memfd_noexec).
    const NOEXEC_SEAL: libc::c_uint = 8;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    let make = |flags| {
        // SAFETY: a constant name that ends with a zero.
        check(unsafe { libc::memfd_create(c"rds".as_ptr(), flags) })
    };
    let fd = make(flags | NOEXEC_SEAL).or_else(|_| make(flags))?;
    // SAFETY: just made, and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn check(rc: libc::c_int) -> io::Result<libc::c_int> {
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(rc) }
}

// ---- the one user-space copy ---------------------------------------------------------------------------------------

static COUNTING: AtomicBool = AtomicBool::new(false);
static COPIED: AtomicU64 = AtomicU64::new(0);

/// Counts the bytes of all copies from and to shared memory from now on, in this process.
pub fn count_copies() {
    COUNTING.store(true, Relaxed);
}

/// Bytes copied from and to shared memory since [`count_copies`].
pub fn copied() -> u64 {
    COPIED.load(Relaxed)
}

/// Counts a copy between memory of the program's own and an arena that safe code has made, by slices, with the others.
pub(crate) fn count_copy(len: usize) {
    if COUNTING.load(Relaxed) {
        COPIED.fetch_add(len as u64, Relaxed);
    }
}

/// Copies bytes of which some may change meanwhile. Unlike with `memcpy`, the compiler assumes nothing of them: it can neither read twice nor
/// leave the copy out.
///
/// # Safety
/// `from` is valid to be read and `to` to be written for `len` bytes.
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    count_copy(len);
    #[cfg(target_arch = "x86_64")]
    if len >= 256 {
        // SAFETY: copies `len` bytes between ranges that the caller vouches for; the direction flag is clear by the ABI.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags)
            );
        }
        return;
    }
    // SAFETY: as above.
    unsafe { copy_short(from, to, len) };
}

/// The same for few bytes. The last piece overlaps the one before it where the length is odd.
///
/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    /// Moves a piece through a register, which the compiler knows nothing of.
    macro_rules! piece {
        ($class:ident, $load:literal, $store:literal, $at:expr) => {{
            let at = $at;
            // SAFETY: the piece lies within both ranges, since `at` is at most their length less its own; nothing else is touched.
            unsafe {
                std::arch::asm!(
                    $load,
                    $store,
                    from = in(reg) from.add(at),
                    to = in(reg) to.add(at),
                    piece = out($class) _,
                    options(nostack, preserves_flags)
                );
            }
        }};
    }
    if len >= 16 {
        let mut at = 0;
        while at + 16 <= len {
            piece!(xmm_reg, "movups {piece}, [{from}]", "movups [{to}], {piece}", at);
            at += 16;
        }
        if at < len {
            piece!(xmm_reg, "movups {piece}, [{from}]", "movups [{to}], {piece}", len - 16);
        }
    } else if len >= 8 {
        piece!(reg, "mov {piece:r}, [{from}]", "mov [{to}], {piece:r}", 0);
        piece!(reg, "mov {piece:r}, [{from}]", "mov [{to}], {piece:r}", len - 8);
    } else {
        for at in 0..len {
            piece!(reg_byte, "mov {piece}, [{from}]", "mov [{to}], {piece}", at);
        }
    }
}

/// As above.
///
/// # Safety
/// As for [`copy`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    // Words where both sides are aligned, as the index words and records are.
    let aligned = from.addr() % 8 == 0 && to.addr() % 8 == 0;
    let words = if aligned { len / 8 } else { 0 };
    for i in 0..words {
        // SAFETY: within the ranges, and aligned; bytes are valid whatever they hold.
        unsafe { to.cast::<u64>().add(i).write_volatile(from.cast::<u64>().add(i).read_volatile()) };
    }
    for i in words * 8..len {
        // SAFETY: within the ranges.
        unsafe { to.add(i).write_volatile(from.add(i).read_volatile()) };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
        let (fd, mine) = SharedMemory::create(5000, Access::ReadWrite).unwrap();
        let theirs = SharedMemory::map(fd.as_fd(), mine.len(), Access::ReadWrite).unwrap();
        mine.copy_in(4090, b"hello");
        let mut out = [0; 5];
        theirs.copy_out(4090, &mut out);
        assert_eq!(&out, b"hello");
        theirs.word(8).store(7, Relaxed);
        assert_eq!(mine.word(8).load(Relaxed), 7);
    }

    #[test]
    fn what_is_for_reading_cannot_be_mapped_for_writing_nor_cut_nor_punched() {
        let (fd, mine) = SharedMemory::create(8192, Access::ReadOnly).unwrap();
        mine.copy_in(0, b"x");
        assert!(SharedMemory::map(fd.as_fd(), 8192, Access::ReadWrite).is_err());
        assert!(SharedMemory::map(fd.as_fd(), 8192, Access::ReadOnly).is_ok());
        assert!(SharedMemory::map(fd.as_fd(), 8193 + 4096, Access::ReadOnly).is_err(), "longer than it is");
        let file = std::fs::File::from(fd);
        assert!(file.set_len(100).is_err());
        // SAFETY: a plain system call on a descriptor that is open.
        let rc = unsafe {
            libc::fallocate(file.as_raw_fd(), libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, 0, 4096)
        };
        assert_eq!(rc, -1);
    }

    #[test]
    fn memory_that_can_be_cut_is_not_mapped() {
        let fd = memfd().unwrap();
        let file = std::fs::File::from(fd);
        file.set_len(8192).unwrap();
        assert!(SharedMemory::map(file.as_fd(), 8192, Access::ReadWrite).is_err());
    }

    #[test]
    fn spans_stay_within_their_memory() {
        let (_fd, memory) = SharedMemory::create(4096, Access::ReadWrite).unwrap();
        for (at, len) in [(0, 4097), (4096, 1), (u64::MAX, 1), (1, u64::MAX), (5000, 0)] {
            assert!(memory.span(at, len).is_none(), "{at} {len}");
        }
        let span = memory.span(4000, 96).unwrap();
        span.fill(b"abc");
        let mut out = BytesMut::from(&b"-"[..]);
        span.slice(0..3).append_to(&mut out);
        assert_eq!(&out[..], b"-abc");
        let other = memory.span(0, 10).unwrap();
        other.fill_from(&span.slice(1..3));
        let mut two = [0; 2];
        other.copy_to(&mut two);
        assert_eq!(&two, b"bc");
    }

    proptest! {
        #[test]
        fn copies_of_any_length_and_alignment_are_exact(len in 0..700_usize, a in 0..16_usize, b in 0..16_usize) {
            let (_fd, memory) = SharedMemory::create(4096, Access::ReadWrite).unwrap();
            let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + 1) as u8).collect();
            memory.copy_in(a, &bytes);
            memory.span(1024 + b as u64, len as u64).unwrap().fill_from(&memory.span(a as u64, len as u64).unwrap());
            let mut out = vec![0; len + 2];
            memory.copy_out(1023 + b, &mut out);
            prop_assert_eq!(&out[1..=len], &bytes[..]);
            prop_assert_eq!((out[0], out[len + 1]), (0, 0));
        }
    }
}
