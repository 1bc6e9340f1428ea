//! What a path counts while it receives large payloads.

use serde::{Deserialize, Serialize};

/// Why a payload of a page or more was copied when it was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopyReason {
    /// The mode of the node, the path or the socket is off.
    Setting,
    /// The peer did not announce that payloads begin segments of their own.
    NotAnnounced,
    /// Its length is no whole number of pages, or below what the mode maps.
    Length,
    /// The controller found that copying costs less, or wanted to measure it.
    Controller,
    /// The first of several: a part of it came with what was before.
    Late,
    /// A part of it could not be mapped.
    Unaligned,
    /// Programs hold so many pages of the path that no run is free.
    Held,
    /// The node has as much mapped as it may.
    Limit,
    /// The kernel does not map.
    Unavailable,
}

/// Payload bytes that were copied, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiedBytes {
    /// [`CopyReason::Setting`].
    pub setting: u64,
    /// [`CopyReason::NotAnnounced`].
    pub not_announced: u64,
    /// [`CopyReason::Length`].
    pub length: u64,
    /// [`CopyReason::Controller`].
    pub controller: u64,
    /// [`CopyReason::Late`].
    pub late: u64,
    /// [`CopyReason::Unaligned`].
    pub unaligned: u64,
    /// [`CopyReason::Held`].
    pub held: u64,
    /// [`CopyReason::Limit`].
    pub limit: u64,
    /// [`CopyReason::Unavailable`].
    pub unavailable: u64,
}

impl CopiedBytes {
    fn of(&mut self, reason: CopyReason) -> &mut u64 {
        match reason {
            CopyReason::Setting => &mut self.setting,
            CopyReason::NotAnnounced => &mut self.not_announced,
            CopyReason::Length => &mut self.length,
            CopyReason::Controller => &mut self.controller,
            CopyReason::Late => &mut self.late,
            CopyReason::Unaligned => &mut self.unaligned,
            CopyReason::Held => &mut self.held,
            CopyReason::Limit => &mut self.limit,
            CopyReason::Unavailable => &mut self.unavailable,
        }
    }

    /// All of them.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.setting
            + self.not_announced
            + self.length
            + self.controller
            + self.late
            + self.unaligned
            + self.held
            + self.limit
            + self.unavailable
    }
}

/// What a path did with payloads of a page and more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiveCounts {
    /// Messages that were handed out in the pages in which they came.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that the kernel mapped, as it said; those among them that had to be copied afterwards are also in `copied`.
    pub mapped_bytes: u64,
    /// Pages that it mapped.
    pub pages: u64,
    /// Calls that mapped pages.
    pub calls: u64,
    /// Calls that looked for headers between messages, without mapping.
    pub probes: u64,
    /// Headers that came with the payload before them.
    pub headers: u64,
    /// Calls that unmapped pages.
    pub zaps: u64,
    /// Payload bytes that were copied.
    pub copied: CopiedBytes,
}

impl ReceiveCounts {
    /// Counts payload bytes that were copied.
    pub fn copied(&mut self, reason: CopyReason, bytes: usize) {
        *self.copied.of(reason) += bytes as u64;
    }

    /// Adds those of another path.
    pub fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.mapped_bytes += other.mapped_bytes;
        self.pages += other.pages;
        self.calls += other.calls;
        self.probes += other.probes;
        self.headers += other.headers;
        self.zaps += other.zaps;
        let (to, from) = (&mut self.copied, &other.copied);
        to.setting += from.setting;
        to.not_announced += from.not_announced;
        to.length += from.length;
        to.controller += from.controller;
        to.late += from.late;
        to.unaligned += from.unaligned;
        to.held += from.held;
        to.limit += from.limit;
        to.unavailable += from.unavailable;
    }

    /// Share of the payload bytes that came in pages of their own and stayed there, 0 to 1; `None` before any came.
    #[must_use]
    pub fn mapped_ratio(&self) -> Option<f64> {
        let all = self.bytes + self.copied.total();
        (all > 0).then(|| self.bytes as f64 / all as f64)
    }
}
