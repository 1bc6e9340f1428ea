//! What sending without a copy did, and what is pinned.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why messages that were to be pinned were copied, and how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Fallbacks {
    /// The budget of pages had no room.
    pub budget: u64,
    /// Too many notifications were outstanding for `optmem_max`.
    pub notifications: u64,
    /// The kernel refused (ENOBUFS).
    pub refused: u64,
    /// The payload's pages cannot be pinned.
    pub unpinnable: u64,
}

/// What a path did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SendCounts {
    /// Calls that pinned.
    pub calls: u64,
    /// Bytes that they took.
    pub bytes: u64,
    /// Calls that were notified.
    pub notified: u64,
    /// Of these, calls of which the kernel said that it copied.
    pub copied: u64,
    /// Times that notifications were looked for.
    pub reaps: u64,
    /// Records that were found.
    pub records: u64,
    /// Numbers in records that no call had: 0, unless the kernel is at fault.
    pub unknown: u64,
    /// Messages copied for want of room.
    pub fallbacks: Fallbacks,
}

impl SendCounts {
    /// Adds another path's.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.bytes += other.bytes;
        self.notified += other.notified;
        self.copied += other.copied;
        self.reaps += other.reaps;
        self.records += other.records;
        self.unknown += other.unknown;
        self.fallbacks.budget += other.fallbacks.budget;
        self.fallbacks.notifications += other.fallbacks.notifications;
        self.fallbacks.refused += other.fallbacks.refused;
        self.fallbacks.unpinnable += other.fallbacks.unpinnable;
    }
}

/// Pages pinned by all paths of a node.
#[derive(Debug, Default)]
pub struct Gauge {
    now: AtomicU64,
    max: AtomicU64,
}

impl Gauge {
    /// Pages pinned now.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now.load(Relaxed)
    }

    /// Most pages pinned at one time.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    pub(super) fn add(&self, pages: u32) {
        let now = self.now.fetch_add(u64::from(pages), Relaxed) + u64::from(pages);
        self.max.fetch_max(now, Relaxed);
    }

    pub(super) fn sub(&self, pages: u32) {
        self.now.fetch_sub(u64::from(pages), Relaxed);
    }
}
