//! Pages that may be pinned at one time: for a node, and what part of that each socket gets.
//!
//! The kernel charges each call with `MSG_ZEROCOPY` to `RLIMIT_MEMLOCK`, which all processes of a user share, until its
//! notification, and refuses with `ENOBUFS` beyond. No event says when there is room again if another process holds it.
//! So the charge is mirrored here, with the kernel's own count ([`super::charge`]), and stays below the limit.
//!
//! Fairness: with `n` sockets that hold something, each may hold its equal part, `limit / n`, but at least one large
//! message. Beyond that it may go only while a quarter of the budget, and room for a large message, stay free: whoever
//! comes finds room, and whoever has more than its part drains until there is. Where the budget is too small even for a
//! large message each, sockets take turns: one that was granted passes once if another was refused meanwhile.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// Pages of a message of 1 MiB with 4 KiB pages: what a socket may hold however many others there are.
pub const LARGE_MESSAGE: u64 = 258;

/// Bytes of a socket's `optmem` that an outstanding notification takes (measured on Linux 6.18).
const NOTIFICATION: u64 = 832;

/// What to do with a message that the budget has no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WhenFull {
    /// Send it by copying.
    #[default]
    Copy,
    /// Wait until there is room. A message that can [never](Full::Never) be pinned is copied.
    Wait,
    /// Refuse it.
    Error,
}

impl fmt::Display for WhenFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Copy => "copy",
            Self::Wait => "wait",
            Self::Error => "error",
        })
    }
}

impl FromStr for WhenFull {
    type Err = UnknownWhenFull;

    fn from_str(s: &str) -> Result<Self, UnknownWhenFull> {
        match s {
            "copy" => Ok(Self::Copy),
            "wait" => Ok(Self::Wait),
            "error" => Ok(Self::Error),
            _ => Err(UnknownWhenFull),
        }
    }
}

/// Neither `copy`, `wait` nor `error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("what to do when the pin budget is full is one of copy, wait, error")]
pub struct UnknownWhenFull;

/// Why pages were not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Full {
    /// More than the whole budget: no waiting helps.
    #[error("the message is larger than all that may be pinned")]
    Never,
    /// The node's budget has no room now.
    #[error("the node's pin budget is used up")]
    Node,
    /// The socket has its part, and others need the rest.
    #[error("the socket has its part of the pin budget")]
    Share,
}

/// What the system allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// `RLIMIT_MEMLOCK` in bytes; `None` if it does not bind (infinite, or the process has `CAP_IPC_LOCK`).
    pub memlock: Option<u64>,
    /// `net.core.optmem_max` in bytes.
    pub optmem: u64,
}

impl Limits {
    /// Pages that a node may pin: 75 % of `RLIMIT_MEMLOCK`, as the user's other processes share it. `u64::MAX` if it does
    /// not bind. `page_size` is that of the system, in bytes.
    #[must_use]
    pub const fn limit_pages(&self, page_size: usize) -> u64 {
        let page_size = if page_size == 0 { 1 } else { page_size as u64 };
        match self.memlock {
            None => u64::MAX,
            // The kernel rounds down to pages as well.
            Some(bytes) => {
                let pages = bytes / page_size;
                pages - pages.div_ceil(4)
            }
        }
    }

    /// Calls of one TCP socket that may be outstanding: what 80 % of `optmem` holds. At 0 nothing may be pinned.
    #[must_use]
    pub const fn notification_limit(&self) -> u64 {
        (self.optmem - self.optmem.div_ceil(5)) / NOTIFICATION
    }
}

/// Pages that a node may pin, shared by its threads. No call blocks.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    used: AtomicU64,
    max_used: AtomicU64,
    /// Sockets that hold something. Signed: of two threads the one that gives back may count first.
    holders: AtomicI64,
    refused_node: AtomicU64,
    refused_share: AtomicU64,
    refused_never: AtomicU64,
}

impl Budget {
    /// A budget of `limit_pages` pages; with 0 nothing may be pinned.
    #[must_use]
    pub const fn new(limit_pages: u64) -> Self {
        Self {
            limit: limit_pages,
            used: AtomicU64::new(0),
            max_used: AtomicU64::new(0),
            holders: AtomicI64::new(0),
            refused_node: AtomicU64::new(0),
            refused_share: AtomicU64::new(0),
            refused_never: AtomicU64::new(0),
        }
    }

    /// Pages that may be pinned at one time.
    #[must_use]
    pub const fn limit_pages(&self) -> u64 {
        self.limit
    }

    /// Pages pinned now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Most pages that were pinned at one time.
    #[must_use]
    pub fn max_used(&self) -> u64 {
        self.max_used.load(Relaxed)
    }

    /// Requests refused because the budget was used up.
    #[must_use]
    pub fn refused_node(&self) -> u64 {
        self.refused_node.load(Relaxed)
    }

    /// Requests refused because the socket had its part.
    #[must_use]
    pub fn refused_share(&self) -> u64 {
        self.refused_share.load(Relaxed)
    }

    /// Requests refused because they were larger than the whole budget.
    #[must_use]
    pub fn refused_never(&self) -> u64 {
        self.refused_never.load(Relaxed)
    }

    /// Charges `pages` to no socket in particular. False, and nothing charged, if there is no room.
    #[must_use]
    pub fn try_charge(&self, pages: u32) -> bool {
        match self.charge_leaving(pages, 0) {
            Ok(()) => true,
            Err(full) => {
                self.count(full);
                false
            }
        }
    }

    /// Gives back `pages` that [`try_charge`](Self::try_charge) granted.
    pub fn release(&self, pages: u32) {
        give_back(&self.used, u64::from(pages));
    }

    /// Charges `pages` if at least `leave` pages stay free.
    fn charge_leaving(&self, pages: u32, leave: u64) -> Result<(), Full> {
        let pages = u64::from(pages);
        if pages > self.limit || self.limit == 0 {
            return Err(Full::Never);
        }
        let most = self.limit.saturating_sub(leave);
        let before = self
            .used
            .fetch_update(Relaxed, Relaxed, |used| used.checked_add(pages).filter(|after| *after <= most))
            .map_err(|_| Full::Node)?;
        self.max_used.fetch_max(before + pages, Relaxed);
        Ok(())
    }

    fn count(&self, full: Full) {
        let counter = match full {
            Full::Never => &self.refused_never,
            Full::Node => &self.refused_node,
            Full::Share => &self.refused_share,
        };
        counter.fetch_add(1, Relaxed);
    }
}

/// Takes at most `pages` off `used`, and returns what was there.
fn give_back(used: &AtomicU64, pages: u64) -> u64 {
    // Never `Err`: the closure always has an answer.
    let before = used
        .fetch_update(Relaxed, Relaxed, |used| Some(used.saturating_sub(pages)))
        .unwrap_or_else(|now| now);
    debug_assert!(before >= pages, "{pages} pages given back of {before}");
    before
}

/// One socket's part of a [`Budget`]. What it still holds is given back when it is dropped: at the end of the socket,
/// once the kernel has let everything go.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    used: AtomicU64,
    /// The node's refusals when this socket was last granted something, or passed.
    refusals_seen: AtomicU64,
    /// Most that it held at one time.
    max_used: AtomicU64,
}

impl Share {
    /// The part of a new socket, which holds nothing.
    #[must_use]
    pub fn new(budget: &Arc<Budget>) -> Self {
        let seen = AtomicU64::new(budget.refused_node());
        Self {
            budget: Arc::clone(budget),
            used: AtomicU64::new(0),
            refusals_seen: seen,
            max_used: AtomicU64::new(0),
        }
    }

    /// The node's budget.
    #[must_use]
    pub const fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Pages that the socket holds.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    /// Most pages that the socket held at one time.
    #[must_use]
    pub fn max_used(&self) -> u64 {
        self.max_used.load(Relaxed)
    }

    /// Charges `pages` to the socket and the node.
    ///
    /// # Errors
    ///
    /// Nothing was charged: the message is to be copied, to wait or to fail, as [`WhenFull`] says.
    pub fn try_reserve(&self, pages: u32) -> Result<(), Full> {
        let result = self.reserve(pages);
        if let Err(full) = result {
            self.budget.count(full);
        }
        result
    }

    fn reserve(&self, pages: u32) -> Result<(), Full> {
        let budget = &*self.budget;
        let used = self.used();
        let would_be = used + u64::from(pages);
        let others = budget.holders.load(Relaxed) - i64::from(used > 0);
        let equal = budget.limit / (u64::try_from(others).unwrap_or(0) + 1);
        let refusals = budget.refused_node();
        if would_be > equal.max(LARGE_MESSAGE) {
            let quarter = budget.limit / 4;
            // Less than two large messages: there is no keeping room for one.
            let leave = if budget.limit < 2 * LARGE_MESSAGE { quarter } else { quarter.max(LARGE_MESSAGE) };
            budget.charge_leaving(pages, leave).map_err(|full| match full {
                Full::Node => Full::Share,
                other => other,
            })?;
        } else {
            // More than its equal part, because that is less than a large message: another one's turn, if one was refused.
            if would_be > equal && self.refusals_seen.swap(refusals, Relaxed) != refusals {
                return Err(Full::Share);
            }
            if let Err(full) = budget.charge_leaving(pages, 0) {
                // Its own refusal is none to make way for.
                let _ = self.refusals_seen.compare_exchange(refusals, refusals + 1, Relaxed, Relaxed);
                return Err(full);
            }
        }
        if self.used.fetch_add(u64::from(pages), Relaxed) == 0 && pages > 0 {
            budget.holders.fetch_add(1, Relaxed);
        }
        self.max_used.fetch_max(would_be, Relaxed);
        Ok(())
    }

    /// Gives back `pages` that [`try_reserve`](Self::try_reserve) granted.
    pub fn release(&self, pages: u32) {
        self.release_pages(u64::from(pages));
    }

    fn release_pages(&self, pages: u64) {
        let before = give_back(&self.used, pages);
        if before > 0 && before <= pages {
            self.budget.holders.fetch_sub(1, Relaxed);
        }
        give_back(&self.budget.used, pages.min(before));
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.release_pages(self.used());
    }
}
