//! Pages that may be pinned at one time: for a node, and what part of that each socket gets.
//!
//! The kernel charges each call with `MSG_ZEROCOPY` to `RLIMIT_MEMLOCK`, which all processes of a user share, until its
//! notification, and refuses with `ENOBUFS` beyond. No event says when there is room again if another process holds it.
//! So the charge is mirrored here, with the kernel's own count ([`super::charge`]), and stays below the limit.
//!
//! Fairness: with `n` sockets that hold something or were refused it, each may hold its equal part, `limit / n`, and in any
//! case one message. Beyond that it may go only while a quarter of the budget, and room for a large message, stay free:
//! whoever comes finds room, and whoever has more than its part drains until there is. Where parts are smaller than
//! messages, sockets take turns: when one that holds nothing is refused, each other leaves room for what was refused, or
//! passes, once. Nothing is remembered longer, as the refused socket may have copied instead and gone idle.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// Pages of a message of 1 MiB with 4 KiB pages.
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
    /// Sockets that hold something or wait. Signed: of two threads the one that gives back may count first.
    sharers: AtomicI64,
    /// Requests refused of sockets that held nothing, and the pages of the last one.
    starved: AtomicU64,
    starved_pages: AtomicU64,
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
            sharers: AtomicI64::new(0),
            starved: AtomicU64::new(0),
            starved_pages: AtomicU64::new(0),
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

/// Takes at most `pages` off `used`.
fn give_back(used: &AtomicU64, pages: u64) {
    // Never `Err`: the closure always has an answer.
    let before = used
        .fetch_update(Relaxed, Relaxed, |used| Some(used.saturating_sub(pages)))
        .unwrap_or_else(|now| now);
    debug_assert!(before >= pages, "{pages} pages given back of {before}");
}

/// One socket's part of a [`Budget`]. What it still holds is given back when it is dropped: at the end of the socket,
/// once the kernel has let everything go.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    /// Twice the pages held; or 1 while it waits: it holds nothing, and was refused. So it counts as one of those who share
    /// the budget exactly while this is not 0.
    state: AtomicU64,
    /// [`Budget::starved`] when this socket last made way.
    starved_seen: AtomicU64,
    /// Most that it held at one time.
    max_used: AtomicU64,
    /// Pages that it may hold, however much room there is.
    limit: AtomicU64,
    /// What it may hold together with others.
    cap: Option<Arc<Cap>>,
}

/// Pages that several shares may hold together, within the node's budget: those of one user, say.
#[derive(Debug)]
pub struct Cap {
    limit: AtomicU64,
    used: AtomicU64,
}

impl Cap {
    /// At most `limit` pages.
    #[must_use]
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { limit: AtomicU64::new(limit), used: AtomicU64::new(0) })
    }

    /// Sets the most pages from now on. What they hold beyond a lower limit they keep until they give it back.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Relaxed);
    }

    /// Pages that they hold.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    fn charge(&self, pages: u64) -> bool {
        let limit = self.limit.load(Relaxed);
        let add = |used: u64| used.checked_add(pages).filter(|after| *after <= limit);
        self.used.fetch_update(Relaxed, Relaxed, add).is_ok()
    }
}

impl Share {
    /// The part of a new socket, which holds nothing.
    #[must_use]
    pub fn new(budget: &Arc<Budget>) -> Self {
        Self::with_limit(budget, u64::MAX)
    }

    /// The same, which never holds more than `limit` pages.
    #[must_use]
    pub fn with_limit(budget: &Arc<Budget>, limit: u64) -> Self {
        Self {
            starved_seen: AtomicU64::new(budget.starved.load(Relaxed)),
            budget: Arc::clone(budget),
            state: AtomicU64::new(0),
            max_used: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
            cap: None,
        }
    }

    /// The same, which holds together with others no more than `cap` has.
    #[must_use]
    pub fn within(mut self, cap: &Arc<Cap>) -> Self {
        self.cap = Some(Arc::clone(cap));
        self
    }

    /// The node's budget.
    #[must_use]
    pub const fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Pages that the socket holds.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.state.load(Relaxed) / 2
    }

    /// Most pages that it may hold; `None` if only the budget limits it.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        let most = self.most();
        (most < u64::MAX).then_some(most)
    }

    /// Sets the most pages that it may hold from now on. What it holds beyond a lower limit it keeps until it gives it back.
    pub fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Relaxed);
    }

    fn most(&self) -> u64 {
        let cap = self.cap.as_ref().map_or(u64::MAX, |cap| cap.limit.load(Relaxed));
        self.limit.load(Relaxed).min(cap)
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
        let possible = u64::from(pages) <= self.most();
        let charged = possible && self.cap.as_ref().is_none_or(|cap| cap.charge(pages.into()));
        let reserved = match (possible, charged) {
            (false, _) => Err(Full::Never),
            (true, false) => Err(Full::Share),
            (true, true) => self.reserve(pages),
        };
        if charged
            && reserved.is_err()
            && let Some(cap) = &self.cap
        {
            give_back(&cap.used, pages.into());
        }
        match reserved {
            Ok(()) => {
                let used = self.update(|state| state / 2 * 2 + u64::from(pages) * 2) / 2;
                if used + u64::from(pages) > self.most() {
                    // Another thread was faster.
                    self.release(pages);
                    self.budget.count(Full::Share);
                    return Err(Full::Share);
                }
                self.max_used.fetch_max(used + u64::from(pages), Relaxed);
                Ok(())
            }
            Err(full) => {
                if full != Full::Never {
                    self.update(|state| state.max(1));
                }
                self.budget.count(full);
                Err(full)
            }
        }
    }

    fn reserve(&self, pages: u32) -> Result<(), Full> {
        let budget = &*self.budget;
        let state = self.state.load(Relaxed);
        let (used, pages64) = (state / 2, u64::from(pages));
        if used + pages64 > self.most() {
            return Err(Full::Share);
        }
        let others = budget.sharers.load(Relaxed) - i64::from(state != 0);
        let equal = budget.limit / (u64::try_from(others).unwrap_or(0) + 1);
        let beyond = used + pages64 > equal;
        let starved = budget.starved.load(Relaxed);
        let mut leave = 0;
        // One that waits itself, with nothing, need not make way.
        if (used > 0 || (beyond && state == 0)) && self.starved_seen.swap(starved, Relaxed) != starved {
            leave = budget.starved_pages.load(Relaxed);
        }
        if beyond && used > 0 {
            leave = leave.max(budget.limit / 4);
            // Less than two large messages: there is no keeping room for one.
            if budget.limit >= 2 * LARGE_MESSAGE {
                leave = leave.max(LARGE_MESSAGE);
            }
        }
        match budget.charge_leaving(pages, leave) {
            // There would be room if it were not for others.
            Err(Full::Node) if leave > 0 => Err(Full::Share),
            Err(Full::Node) if used == 0 => {
                budget.starved_pages.store(pages64, Relaxed);
                budget.starved.fetch_add(1, Relaxed);
                // Its own refusal is none to make way for.
                let _ = self.starved_seen.compare_exchange(starved, starved + 1, Relaxed, Relaxed);
                Err(Full::Node)
            }
            result => result,
        }
    }

    /// Changes the state, and keeps count of those who share. Returns what it was.
    fn update(&self, change: impl Fn(u64) -> u64) -> u64 {
        // Never `Err`: the closure always has an answer.
        let before =
            self.state.fetch_update(Relaxed, Relaxed, |state| Some(change(state))).unwrap_or_else(|now| now);
        let counted = i64::from(change(before) != 0) - i64::from(before != 0);
        if counted != 0 {
            self.budget.sharers.fetch_add(counted, Relaxed);
        }
        before
    }

    /// Gives back `pages` that [`try_reserve`](Self::try_reserve) granted.
    pub fn release(&self, pages: u32) {
        let pages = u64::from(pages);
        let before = self.update(|state| (state / 2).saturating_sub(pages) * 2) / 2;
        debug_assert!(before >= pages, "{pages} pages given back of {before}");
        self.give_back(pages.min(before));
    }

    fn give_back(&self, pages: u64) {
        give_back(&self.budget.used, pages);
        if let Some(cap) = &self.cap {
            give_back(&cap.used, pages);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let held = self.update(|_| 0) / 2;
        self.give_back(held);
    }
}
