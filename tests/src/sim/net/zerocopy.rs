//! MSG_ZEROCOPY as a kernel does it: calls that are numbered and notified, limits, and pages that are read where they lie.
//!
//! What a call names is not copied: the queue of the socket refers to it, and reads it each time that it transmits. A call is
//! over when the last of its bytes was acknowledged, or dropped; then its notification lies in the socket's error queue, merged
//! with a neighbour's. What the model draws by chance is what Linux leaves open: when a notification comes and in which order, whether
//! the kernel copied after all, whether calls share a notification.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use rds_core::buffer::Chunk;
use rds_core::zerocopy::charge;

use super::part::{Pages, Part};
use super::{End, Event, Nanos, Net, NetEvent, Notice, Phase};
use crate::sim::memory::Life;

/// Size of a page, in bytes.
pub const PAGE: usize = 4096;
/// Bytes of optmem that a notification takes until it is read (measured on Linux 6.18).
pub const NOTIFICATION: u64 = 832;

/// How a host's kernel deals with MSG_ZEROCOPY.
#[derive(Clone, Copy, Debug)]
pub struct ZeroCopy {
    /// `RLIMIT_MEMLOCK` in bytes, for all sockets of the host; none if it does not bind.
    pub memlock: Option<u64>,
    /// `net.core.optmem_max` in bytes, for each socket.
    pub optmem: u64,
    /// Bytes of optmem that a notification takes until it is read; [`NOTIFICATION`] was measured, other kernels may differ.
    pub notification: u64,
    /// Chance in 256 that the kernel copies what a call pinned.
    pub copies: u8,
    /// Most time by which a notification is late.
    pub late: Nanos,
    /// Chance in 256 that a device keeps a call's pages when its socket is disconnected or reset, ...
    pub keeps: u8,
    /// ... and the most time for which it does; it was sending them.
    pub device: Nanos,
    /// Chance in 256 that a call shares its notification with the one before, while that was not sent.
    pub joins: u8,
    /// Chance in 256 that the peer has acknowledged before the call returns.
    pub prompt: u8,
    /// Chance in 256 that a reset arrives before the call returns.
    pub reset: u8,
    /// Number of a socket's first call. Linux begins at 0; tests need not wait for 2^32 calls.
    pub first_call: u32,
}

impl Default for ZeroCopy {
    fn default() -> Self {
        Self {
            memlock: None,
            optmem: 131_072,
            notification: NOTIFICATION,
            copies: 0,
            late: 0,
            keeps: 0,
            device: 0,
            joins: 0,
            prompt: 0,
            reset: 0,
            first_call: 0,
        }
    }
}

/// Why a call pinned nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// EAGAIN.
    Full,
    /// ENOBUFS, for want of memory that may be locked.
    Memlock,
    /// ENOBUFS, for want of room for notifications.
    Optmem,
    /// EFAULT: the memory cannot be pinned.
    Fault,
    /// EPIPE, ECONNRESET and the like.
    Broken,
}

/// What a socket's error queue says: calls `first` to `last` are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// `ee_info`.
    pub first: u32,
    /// `ee_data`; it may be below `first`, as the numbers wrap.
    pub last: u32,
    /// `SO_EE_CODE_ZEROCOPY_COPIED`.
    pub copied: bool,
}

/// Whether the process has read that a call is over.
#[derive(Debug, Default)]
pub struct Ticket(AtomicBool);

impl Ticket {
    /// Whether it has.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.load(SeqCst)
    }
}

/// Calls that share a notification.
#[derive(Debug)]
struct Call {
    first: u32,
    last: u32,
    /// Bytes that were not acknowledged.
    left: u64,
    /// Charged to the process's limit.
    pages: u64,
    copied: bool,
    due: bool,
    /// A device has its pages after the end of the socket.
    kept: bool,
    pins: Vec<Arc<Life>>,
    tickets: Vec<Arc<Ticket>>,
}

/// A record of an error queue, and what it ends.
type Told = (Record, Vec<Arc<Life>>, Vec<Arc<Ticket>>);

/// A socket's side of it.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// The number of the next call, once there was one.
    next: Option<u32>,
    serial: u64,
    open: BTreeMap<u64, Call>,
    errors: VecDeque<Told>,
}

impl Calls {
    /// Nobody will read the error queue any more.
    pub(super) fn forget_errors(&mut self) {
        self.errors.clear();
    }
}

/// How often the models met what Linux may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// Calls that pinned something.
    pub calls: u64,
    /// ... and only a part of what was offered.
    pub partial: u64,
    /// Notifications merged with their neighbours.
    pub merged: u64,
    /// Calls that shared a notification from the start.
    pub joined: u64,
    /// Notifications out of order.
    pub unordered: u64,
    /// Notifications later than the acknowledgement.
    pub late: u64,
    /// Records that cross 2^32.
    pub wrapped: u64,
    /// Notifications with COPIED, and without although bytes arrived.
    pub copied: u64,
    /// See there.
    pub uncopied: u64,
    /// Notifications before the call returned.
    pub early: u64,
    /// Calls ended by a reset, or by a peer that is gone.
    pub reset: u64,
    /// Calls that a device kept after a disconnect or a reset.
    pub device: u64,
    /// Calls ended by a disconnect.
    pub disconnected: u64,
    /// Refusals for want of locked memory.
    pub memlock: u64,
    /// Refusals for want of room for notifications.
    pub optmem: u64,
    /// Refusals of memory that cannot be pinned.
    pub foreign: u64,
    /// Pinned bytes that were transmitted again.
    pub again: u64,
    /// Calls that went on after their process had died.
    pub orphaned: u64,
}

impl Net {
    /// How a host's kernel deals with MSG_ZEROCOPY from now on.
    pub fn set_zero_copy(&mut self, host: usize, settings: ZeroCopy) {
        self.hosts[host].zero_copy = settings;
    }

    /// Another process of the same user locks so many pages, or none.
    pub fn lock_elsewhere(&mut self, host: usize, pages: u64) {
        self.hosts[host].locked_elsewhere = pages;
    }

    /// Pages that a host's calls have pinned.
    #[must_use]
    pub fn pinned(&self, host: usize) -> u64 {
        self.hosts[host].pinned
    }

    /// Calls of a socket that are not over, or of whose end its owner has not read.
    #[must_use]
    pub fn calls(&self, end: End) -> usize {
        let calls = &self.half(end).calls;
        calls.open.len() + calls.errors.len()
    }

    /// Sends `pieces` with MSG_ZEROCOPY, at most `most` bytes and what fits, without copying them. Returns how many, and what tells
    /// whether the owner has read of the call's end.
    ///
    /// # Errors
    /// Nothing was sent, and the call has no number.
    pub fn pin(
        &mut self,
        now: Nanos,
        end: End,
        pieces: &[Chunk],
        most: usize,
    ) -> Result<(usize, Arc<Ticket>), Refused> {
        let total: usize = pieces.iter().map(Chunk::len).sum();
        let host = self.half(end).host;
        let settings = self.hosts[host].zero_copy;
        let half = self.half(end);
        if half.phase != Phase::Open || half.failure.is_some() || half.fin {
            return Err(Refused::Broken);
        }
        let foreign = |piece| self.memory.find(piece).is_some_and(|(life, _)| life.is_foreign());
        if pieces.iter().any(foreign) {
            self.met.foreign += 1;
            return Err(Refused::Fault);
        }
        // A short call is charged for all that it was offered.
        let pages = u64::from(charge(total, PAGE));
        let limit = settings.memlock.map_or(u64::MAX, |bytes| bytes / PAGE as u64);
        let joins = self.rng.u8(..) < settings.joins;
        let half = self.half(end);
        let joined = half.unsent.back().and_then(Part::call).filter(|_| joins);
        if joined.is_none() && (self.calls(end) as u64 + 1) * settings.notification > settings.optmem {
            self.met.optmem += 1;
            return Err(Refused::Optmem);
        }
        if self.hosts[host].pinned + self.hosts[host].locked_elsewhere + pages > limit {
            self.met.memlock += 1;
            return Err(Refused::Memlock);
        }
        let n = half.room().min(most).min(total);
        if n == 0 {
            return Err(Refused::Full);
        }
        self.met.calls += 1;
        self.met.partial += u64::from(n < total);
        self.hosts[host].pinned += pages;
        let copied = self.rng.u8(..) < settings.copies;
        let ticket = self.enqueue(end, pieces, n, pages, copied, settings.first_call, joined);
        self.pump(now, end);
        if self.rng.u8(..) < settings.prompt {
            self.arrive_at_once(now, end);
        }
        if self.rng.u8(..) < settings.reset {
            self.inject_rst(now, end);
        }
        if !self.half(end).calls.open.values().any(|c| c.tickets.iter().any(|t| Arc::ptr_eq(t, &ticket))) {
            self.met.early += 1;
        }
        Ok((n, ticket))
    }

    #[allow(clippy::too_many_arguments)]
    fn enqueue(
        &mut self,
        end: End,
        pieces: &[Chunk],
        n: usize,
        pages: u64,
        copied: bool,
        first_call: u32,
        joined: Option<u64>,
    ) -> Arc<Ticket> {
        let ticket = Arc::new(Ticket::default());
        let half = &mut self.links[end.link].ends[end.side];
        let number = half.calls.next.unwrap_or(first_call);
        half.calls.next = Some(number.wrapping_add(1));
        let serial = joined.unwrap_or(half.calls.serial + 1);
        half.calls.serial = half.calls.serial.max(serial);
        self.met.joined += u64::from(joined.is_some());
        let call = half.calls.open.entry(serial).or_insert_with(|| Call {
            first: number,
            last: number,
            left: 0,
            pages: 0,
            copied: false,
            due: false,
            kept: false,
            pins: Vec::new(),
            tickets: Vec::new(),
        });
        call.last = number;
        call.left += n as u64;
        call.pages += pages;
        call.copied |= copied;
        call.tickets.push(Arc::clone(&ticket));
        let mut left = n;
        for piece in pieces {
            let len = piece.len().min(left);
            left -= len;
            if len == 0 {
                continue;
            }
            let (pages, at) = match self.memory.find(piece) {
                Some((life, at)) => {
                    life.pin();
                    call.pins.push(Arc::clone(life));
                    (Pages::Lent(Arc::clone(life)), at)
                }
                None => (Pages::Own { chunk: piece.clone(), then: piece.to_vec().into() }, 0),
            };
            half.unsent.push_back(Part::Pinned { pages, at, end: at + len, call: serial });
        }
        half.written += n as u64;
        ticket
    }

    /// All that was written has been received and acknowledged by now.
    fn arrive_at_once(&mut self, now: Nanos, end: End) {
        if !self.reachable(end.link) || !self.half(end.peer()).established() {
            return;
        }
        if self.half(end.peer()).phase == Phase::Orphan {
            return;
        }
        let flight: Vec<(u64, Part)> = self.half(end).flight.iter().cloned().collect();
        for (start, part) in flight {
            let (bytes, same) = part.bytes();
            self.promise(same);
            self.on_segment(now, end.peer(), start, bytes);
        }
        let there = self.half(end.peer());
        let (received, edge) = (there.received, there.advertised);
        self.prompt = true;
        self.on_ack(now, end, received, edge);
        self.prompt = false;
    }

    /// `len` bytes of a call were acknowledged.
    pub(super) fn acknowledged(&mut self, now: Nanos, end: End, serial: u64, len: usize) {
        let late = self.hosts[self.half(end).host].zero_copy.late;
        let Some(call) = self.half_mut(end).calls.open.get_mut(&serial) else { return };
        call.left -= len as u64;
        if call.left > 0 || call.due {
            return;
        }
        call.due = true;
        if call.copied {
            self.met.copied += 1;
        } else {
            self.met.uncopied += 1;
        }
        let after = if self.prompt || late == 0 { 0 } else { self.rng.u64(0..=late) };
        if after == 0 {
            self.notify(end, serial);
        } else {
            self.met.late += 1;
            self.queue.push(now + after, Event::Net(NetEvent::Notify(end, serial)));
        }
    }

    /// A call's notification reaches the error queue.
    pub(super) fn notify(&mut self, end: End, serial: u64) {
        let half = &mut self.links[end.link].ends[end.side];
        let Some(call) = half.calls.open.remove(&serial) else { return };
        let host = &mut self.hosts[half.host];
        host.pinned = host.pinned.saturating_sub(call.pages);
        if !matches!(half.phase, Phase::Open | Phase::Unconnected) {
            self.met.orphaned += u64::from(half.phase == Phase::Orphan);
            return;
        }
        let copied = call.copied;
        if half.calls.open.keys().next().is_some_and(|older| *older < serial) {
            self.met.unordered += 1;
        }
        match half.calls.errors.back_mut() {
            Some((record, pins, tickets))
                if record.copied == copied && record.last.wrapping_add(1) == call.first =>
            {
                record.last = call.last;
                pins.extend(call.pins);
                tickets.extend(call.tickets);
                self.met.merged += 1;
            }
            _ => {
                let record = Record { first: call.first, last: call.last, copied };
                half.calls.errors.push_back((record, call.pins, call.tickets));
            }
        }
        self.tell(end, Notice::Errors);
    }

    /// Drops what a socket has queued: its calls are over at once.
    pub(super) fn drop_queue(&mut self, now: Nanos, end: End) -> u64 {
        let half = self.half_mut(end);
        half.unsent.clear();
        half.flight.clear();
        let mut serials: Vec<u64> = half.calls.open.keys().copied().collect();
        self.rng.shuffle(&mut serials);
        let ZeroCopy { keeps, device, .. } = self.hosts[self.half(end).host].zero_copy;
        for serial in &serials {
            let keeps = device > 0 && self.rng.u8(..) < keeps;
            let Some(call) = self.half_mut(end).calls.open.get_mut(serial) else { continue };
            if call.kept {
                continue;
            }
            // What had been acknowledged says what was drawn for it, and comes now.
            if !std::mem::replace(&mut call.due, true) {
                call.copied = false;
                if keeps {
                    call.kept = true;
                    self.met.device += 1;
                    let at = now + self.rng.u64(1..=device);
                    self.queue.push(at, Event::Net(NetEvent::Notify(end, *serial)));
                    continue;
                }
            }
            self.notify(end, *serial);
        }
        serials.len() as u64
    }

    /// Reads one record of the error queue.
    pub fn reap(&mut self, end: End) -> Option<Record> {
        let (record, pins, tickets) = self.half_mut(end).calls.errors.pop_front()?;
        for life in pins {
            if record.copied {
                life.mark_copied();
            }
            life.unpin();
        }
        tickets.iter().for_each(|t| t.0.store(true, SeqCst));
        self.met.wrapped += u64::from(record.last < record.first);
        Some(record)
    }

    /// `connect` to AF_UNSPEC: drops what is queued and what was not read, and resets the peer. The descriptor and its error queue stay.
    pub fn disconnect(&mut self, now: Nanos, end: End) {
        let was_up = self.half(end).established();
        let half = self.half_mut(end);
        if half.phase == Phase::Gone {
            return;
        }
        half.phase = Phase::Unconnected;
        half.buffer.clear();
        self.met.disconnected += self.drop_queue(now, end);
        if was_up {
            self.reply_rst(now, end);
        }
    }

    /// Keeps the first broken promise.
    pub(super) fn promise(&mut self, kept: Result<(), String>) {
        if let Err(broken) = kept {
            self.broken.get_or_insert(broken);
        }
    }
}
