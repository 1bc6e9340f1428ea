//! Every decision of sending: what is pinned, what is copied instead, what a notification gives back.
//!
//! A [`SendPath`] belongs to one TCP socket. The thread that holds the transmit right calls [`SendPath::write`] with the
//! [`Writer`] of the path; that one or any other calls [`SendPath::reap`]. The system calls are those of a [`Wire`].
//!
//! * Whether a message is pinned is decided once, at its first byte, and kept for its rest, unless there is no room.
//! * No room is never waited for: notifications are read, once, and then the message is copied. An event may never come:
//!   another process of the user may hold what `RLIMIT_MEMLOCK` allows.
//! * What a call holds is given back by its notification alone; see [`super::closing`] for the end of a socket.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::calls::{Ending, Held, Refusal, Stop, Wire, Wrote};
use super::controller::ON_MINIMUM;
use super::controllers::Controllers;
use super::counts::{Gauge, SendCounts};
use super::{Budget, Choice, Decision, Full, Mode, Piece, Released, Share, SharedLedger, charge, next_call};
use crate::buffer::Chunk;
use crate::proto::Time;

/// Most pieces of one call (IOV_MAX).
const MAX_PIECES: usize = 1024;
/// Empty vectors kept for the next calls.
const SPARE: usize = 32;

/// Pages that a call was charged.
#[derive(Debug)]
struct Charge {
    share: Arc<Share>,
    pages: u32,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.share.release(self.pages);
    }
}

/// What a call holds: references, and its pages of the budget.
#[derive(Debug)]
struct Call<H> {
    held: H,
    /// Given back when dropped.
    _charge: Charge,
}

/// What was decided for a message whose payload ends at `end` in the stream.
#[derive(Clone, Copy, Debug)]
struct Decided {
    end: u64,
    len: usize,
    pin: bool,
    measure: bool,
    /// Spent on it so far.
    cpu: Duration,
}

/// Where the writing thread stands in a path's stream.
#[derive(Debug, Default)]
pub struct Writer {
    /// Bytes written so far.
    position: u64,
    /// For payloads that are not written to their end, in the order of the stream.
    decided: VecDeque<Decided>,
    pieces: Vec<Piece>,
    /// For each piece its place in `decided`, if it has one.
    which: Vec<Option<usize>>,
    /// The last write pinned something.
    pinned: bool,
}

impl Writer {
    /// Whether the last write pinned something: batches should be larger then, so that the header of the next message
    /// is there to ride along.
    #[must_use]
    pub const fn pinned(&self) -> bool {
        self.pinned
    }
}

/// The settings of a path.
#[derive(Clone, Debug)]
pub struct PathSettings {
    /// Whether it pins, unless a message says something else.
    pub mode: Mode,
    /// The peer is on this host.
    pub local_peer: bool,
    /// Bytes of a page.
    pub page_size: usize,
    /// Calls that may be outstanding ([`super::Limits::notification_limit`]).
    pub calls: u64,
    /// What the node may pin.
    pub budget: Arc<Budget>,
    /// Counts what it does.
    pub gauge: Arc<Gauge>,
}

/// One TCP socket's sending side. See the [module](self).
#[derive(Debug)]
pub struct SendPath<H> {
    settings: PathSettings,
    ledger: SharedLedger<Call<H>>,
    controllers: Mutex<Controllers>,
    /// For payloads of no socket in particular.
    share: Arc<Share>,
    counts: Mutex<SendCounts>,
    spare: Mutex<Vec<Vec<Chunk>>>,
    scratch: Mutex<Vec<Released<Call<H>>>>,
    /// When notifications came last; 0 before.
    notified_at: AtomicU64,
    /// The next reaping is to be measured, for the cost of one call's notification in ns.
    measure_reap: AtomicBool,
    reap_cost: AtomicU64,
}

/// A pinned call to be made.
#[derive(Clone, Debug)]
struct Wanted {
    /// Its pieces of the batch.
    range: std::ops::Range<usize>,
    /// It takes so many bytes of the first of them, and that is all.
    cut: Option<usize>,
    ending: Ending,
}

enum Pinned {
    Took(usize),
    CopyInstead,
    Stop(Stop),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<H: Held> SendPath<H> {
    /// The path of a new socket.
    #[must_use]
    pub fn new(settings: PathSettings) -> Self {
        Self::starting_at(settings, 0)
    }

    /// The path of a socket whose next call has the number `id`.
    #[must_use]
    pub fn starting_at(settings: PathSettings, id: u32) -> Self {
        Self {
            ledger: SharedLedger::starting_at(id),
            controllers: Mutex::new(Controllers::new(settings.mode, settings.local_peer)),
            share: Arc::new(Share::new(&settings.budget)),
            counts: Mutex::default(),
            spare: Mutex::default(),
            scratch: Mutex::default(),
            notified_at: AtomicU64::new(0),
            measure_reap: AtomicBool::new(false),
            reap_cost: AtomicU64::new(0),
            settings,
        }
    }

    /// Changes the mode, for messages that begin from now on.
    pub fn set_mode(&self, mode: Mode) {
        lock(&self.controllers).set_mode(mode);
    }

    // ---- writing -------------------------------------------------------------------------------------------------

    /// Writes `batch`, the next bytes of the stream, until TCP takes no more. What pinned calls hold is taken out of the
    /// batch; what notifications gave back is appended to `released`, to be dropped where a program's code may run.
    pub fn write<W: Wire<Held = H>>(
        &self,
        writer: &mut Writer,
        wire: &mut W,
        batch: &mut [Chunk],
        released: &mut Vec<Chunk>,
    ) -> Wrote {
        if self.ledger.outstanding() as u64 * 2 > self.settings.calls {
            self.reap(wire, released);
        }
        self.decide(writer, wire.now(), batch);
        writer.pinned = false;
        let (mut at, mut bytes) = (0, 0);
        let stop = loop {
            let call = next_call(&writer.pieces[at..], MAX_PIECES);
            let mut end = at + call.pieces;
            if at == end {
                break None;
            }
            let ending = Ending { record: call.end_record, more: call.more };
            let len = writer.pieces[at].len;
            let cut = if call.pinned { wire.cut().filter(|cut| (1..len).contains(cut)) } else { None };
            let took = if call.pinned {
                let range = if cut.is_some() { at..at + 1 } else { at..end };
                match self.pin(writer, wire, batch, &Wanted { range, cut, ending }, released) {
                    Pinned::Took(n) => n,
                    Pinned::CopyInstead => {
                        writer.pieces[at].pinnable = false;
                        if let Some(decided) = writer.which[at].and_then(|d| writer.decided.get_mut(d)) {
                            (decided.pin, decided.measure) = (false, false);
                        }
                        continue;
                    }
                    Pinned::Stop(stop) => break Some(stop),
                }
            } else {
                let whole = end;
                end = isolate(writer, at, end);
                let ending = if end < whole { Ending::default() } else { ending };
                let measured = writer.which[end - 1].filter(|&d| writer.decided[d].measure);
                let start = measured.map(|_| wire.cpu_time());
                let result = wire.copy(&batch[at..end], ending);
                if let (Some(start), Some(d)) = (start, measured) {
                    writer.decided[d].cpu += wire.cpu_time().saturating_sub(start);
                }
                match result {
                    Ok(n) => {
                        mark_copied(&batch[at..end], n);
                        n
                    }
                    Err(Refusal::Full) => break Some(Stop::Full),
                    Err(Refusal::NoMemory) => break Some(Stop::NoMemory),
                    Err(Refusal::Unpinnable | Refusal::Failed) => break Some(Stop::Failed),
                }
            };
            bytes += took;
            if let Some(cut) = cut {
                if took < cut {
                    break Some(Stop::Full);
                }
                batch[at].advance(took);
                writer.pieces[at].len -= took;
                continue;
            }
            if took < writer.pieces[at..end].iter().map(|p| p.len).sum() {
                break Some(Stop::Full);
            }
            at = end;
        };
        self.advance(writer, wire.now(), bytes as u64);
        Wrote { bytes, stop }
    }

    /// Decides for each payload of the batch that has not been decided for.
    fn decide(&self, writer: &mut Writer, now: Time, batch: &[Chunk]) {
        writer.pieces.clear();
        writer.which.clear();
        let (mut end, mut d) = (writer.position, 0);
        let mut controllers = None;
        for chunk in batch {
            let len = chunk.len();
            end += len as u64;
            while writer.decided.get(d).is_some_and(|decided| decided.end < end) {
                d += 1;
            }
            let mut found = writer.decided.get(d).filter(|decided| decided.end == end).map(|_| d);
            if found.is_none() && chunk.is_payload() && len >= ON_MINIMUM {
                let controllers = controllers.get_or_insert_with(|| lock(&self.controllers));
                let wanted = chunk.lent().and_then(|lent| lent.terms().mode);
                if !controllers.copies(wanted, len) {
                    let Choice { pin, measure } =
                        controllers.choose(now, wanted, len, self.settings.local_peer);
                    found = Some(writer.decided.len());
                    writer.decided.push_back(Decided { end, len, pin, measure, cpu: Duration::ZERO });
                }
            }
            writer.pieces.push(Piece { len, pinnable: found.is_some_and(|d| writer.decided[d].pin) });
            writer.which.push(found);
        }
    }

    /// One pinned call, with what it takes to make it possible.
    fn pin<W: Wire<Held = H>>(
        &self,
        writer: &mut Writer,
        wire: &mut W,
        batch: &mut [Chunk],
        wanted: &Wanted,
        released: &mut Vec<Chunk>,
    ) -> Pinned {
        let Wanted { range, cut, ending } = wanted.clone();
        let len = cut.unwrap_or_else(|| writer.pieces[range.clone()].iter().map(|p| p.len).sum());
        let measured = writer.which[range.start].filter(|&d| writer.decided[d].measure);
        let start = measured.map(|_| wire.cpu_time());
        let full = |path: &Self| path.ledger.outstanding() as u64 >= path.settings.calls;
        if full(self) {
            self.reap(wire, released);
            if full(self) {
                lock(&self.counts).fallbacks.notifications += 1;
                return Pinned::CopyInstead;
            }
        }
        let pages = charge(len, self.settings.page_size);
        let Ok(charge) = self.reserve(&batch[range.start], pages) else {
            lock(&self.counts).fallbacks.budget += 1;
            return Pinned::CopyInstead;
        };
        let mut pieces = lock(&self.spare).pop().unwrap_or_default();
        match cut {
            Some(cut) => pieces.push(batch[range.start].slice(0..cut)),
            None => {
                let taken =
                    batch[range.clone()].iter_mut().map(|chunk| std::mem::replace(chunk, Chunk::empty()));
                pieces.extend(taken);
            }
        }
        let mut again = true;
        let refusal = loop {
            if !self.ledger.begin(wire.now(), pages) {
                break Refusal::Failed;
            }
            match wire.pin(pieces, ending) {
                Ok((n, held)) => {
                    self.settings.gauge.add(pages);
                    if let Some(early) = self.ledger.commit(Call { held, _charge: charge }) {
                        self.let_go(early, released);
                    }
                    let mut counts = lock(&self.counts);
                    counts.calls += 1;
                    counts.bytes += n as u64;
                    drop(counts);
                    if let (Some(start), Some(d)) = (start, measured) {
                        writer.decided[d].cpu += wire.cpu_time().saturating_sub(start);
                        self.measure_reap.store(true, Relaxed);
                    }
                    writer.pinned = true;
                    return Pinned::Took(n);
                }
                Err((refusal, back)) => {
                    self.ledger.failed();
                    pieces = back;
                    // What came back may be what was missing. With nothing outstanding no wait helps.
                    if refusal == Refusal::NoMemory
                        && std::mem::take(&mut again)
                        && self.reap(wire, released) > 0
                    {
                        continue;
                    }
                    break refusal;
                }
            }
        };
        if cut.is_none() {
            batch[range].iter_mut().zip(pieces.drain(..)).for_each(|(place, piece)| *place = piece);
        }
        // Of a cut the batch has the whole.
        pieces.clear();
        self.keep(pieces);
        match refusal {
            Refusal::Full => Pinned::Stop(Stop::Full),
            Refusal::Failed => Pinned::Stop(Stop::Failed),
            Refusal::NoMemory => {
                lock(&self.counts).fallbacks.refused += 1;
                Pinned::CopyInstead
            }
            Refusal::Unpinnable => {
                lock(&self.counts).fallbacks.unpinnable += 1;
                Pinned::CopyInstead
            }
        }
    }

    /// Pages for a call that begins with `chunk`: first those that were reserved when the payload was handed in.
    fn reserve(&self, chunk: &Chunk, pages: u32) -> Result<Charge, Full> {
        let terms = chunk.lent().map(crate::buffer::Lent::terms);
        let share = terms.and_then(|t| t.share.as_ref()).unwrap_or(&self.share);
        let had = chunk.lent().map_or(0, crate::buffer::Lent::take_reserved);
        if had >= pages {
            share.release(had - pages);
        } else if let Err(full) = share.try_reserve(pages - had) {
            share.release(had);
            return Err(full);
        }
        Ok(Charge { share: Arc::clone(share), pages })
    }

    /// TCP took so many bytes.
    fn advance(&self, writer: &mut Writer, now: Time, bytes: u64) {
        writer.position += bytes;
        while let Some(done) = writer.decided.front().filter(|d| d.end <= writer.position).copied() {
            writer.decided.pop_front();
            if done.measure {
                let reaping = Duration::from_nanos(self.reap_cost.load(Relaxed));
                let cpu = if done.pin { done.cpu + reaping } else { done.cpu };
                lock(&self.controllers).each(|c| c.sample(now, done.len, done.pin, cpu));
            }
        }
    }

    // ---- reaping -------------------------------------------------------------------------------------------------

    /// Reads all notifications that are there; what they give back is appended to `released`. Returns how many calls they
    /// ended. To be called whenever the socket has something in its error queue.
    pub fn reap<W: Wire<Held = H>>(&self, wire: &mut W, released: &mut Vec<Chunk>) -> u64 {
        let now = wire.now();
        let start = self.measure_reap.swap(false, Relaxed).then(|| wire.cpu_time());
        let mut out = std::mem::take(&mut *lock(&self.scratch));
        let mut counts = SendCounts { reaps: 1, ..SendCounts::default() };
        wire.reap(&mut |first, last, copied| {
            let notified = self.ledger.notified(now, first, last, copied, &mut out);
            counts.records += 1;
            counts.notified += notified.ids;
            counts.copied += if copied { notified.ids } else { 0 };
            counts.unknown += notified.unknown;
            // No more calls than that are ever outstanding.
            let ids = u32::try_from(notified.ids).unwrap_or(u32::MAX);
            lock(&self.controllers).each(|c| c.completed(now, ids, copied, notified.oldest_lag));
        });
        for notified in out.drain(..) {
            self.let_go(notified, released);
        }
        *lock(&self.scratch) = out;
        if counts.notified > 0 {
            self.notified_at.store(now.as_nanos(), Relaxed);
            if let Some(start) = start {
                let spent = wire.cpu_time().saturating_sub(start);
                let each = spent.as_nanos() as u64 / counts.notified.max(1);
                let before = self.reap_cost.load(Relaxed);
                self.reap_cost.store(if before == 0 { each } else { (before * 7 + each) / 8 }, Relaxed);
            }
        }
        lock(&self.counts).add(&counts);
        counts.notified
    }

    /// The kernel reads it no more.
    fn let_go(&self, notified: Released<Call<H>>, released: &mut Vec<Chunk>) {
        let Released { held: Call { held, _charge: charge }, copied, pages } = notified;
        if copied {
            held.pieces().iter().for_each(Chunk::mark_copied);
        }
        let mut pieces = held.release();
        released.append(&mut pieces);
        self.keep(pieces);
        self.settings.gauge.sub(pages);
        drop(charge);
    }

    fn keep(&self, pieces: Vec<Chunk>) {
        let mut spare = lock(&self.spare);
        if spare.len() < SPARE {
            spare.push(pieces);
        }
    }

    // ---- the end -------------------------------------------------------------------------------------------------

    /// After the socket was disconnected: reads what notifications there are. True once the kernel reads nothing any more;
    /// then no call is made on the path again.
    pub fn finish<W: Wire<Held = H>>(&self, wire: &mut W, released: &mut Vec<Chunk>) -> bool {
        self.reap(wire, released);
        self.ledger.finish()
    }

    /// The end of the socket: `disconnect` is called if the kernel may still read for a call, or a thread is in one. True once the kernel
    /// reads nothing any more, and then no call is made on the path again; otherwise [`SendPath::finish`] says when it is.
    pub fn end<W: Wire<Held = H>>(
        &self,
        wire: &mut W,
        released: &mut Vec<Chunk>,
        disconnect: impl FnOnce(&mut W),
    ) -> bool {
        // To ask first what is outstanding would let a call begin in between, on a socket that stays connected.
        if self.finish(wire, released) {
            return true;
        }
        disconnect(wire);
        self.finish(wire, released)
    }

    // ---- looking -------------------------------------------------------------------------------------------------

    /// Calls that the kernel may still read for.
    pub fn outstanding(&self) -> usize {
        self.ledger.outstanding()
    }

    /// Pages that they are charged.
    pub fn pages(&self) -> u64 {
        self.ledger.pages()
    }

    /// When the oldest of them was begun.
    pub fn oldest(&self) -> Option<Time> {
        self.ledger.oldest()
    }

    /// Whether the kernel has held the oldest call for `limit`, and notified none meanwhile: the peer takes nothing.
    pub fn is_overdue(&self, now: Time, limit: Duration) -> bool {
        let notified = Time::from_nanos(self.notified_at.load(Relaxed));
        self.oldest().is_some_and(|oldest| now.since(oldest.max(notified)) >= limit)
    }

    /// What it did so far.
    pub fn counts(&self) -> SendCounts {
        *lock(&self.counts)
    }

    /// What its controller does, and why.
    pub fn decision(&self) -> Decision {
        lock(&self.controllers).state()
    }
}

/// Where a copying call that was to go from `at` to `end` must end so that a message to be measured is alone in its call, but for its header.
fn isolate(writer: &Writer, at: usize, end: usize) -> usize {
    let measured = |i: usize| writer.which[i].is_some_and(|d| writer.decided[d].measure);
    let Some(first) = (at..end).find(|&i| measured(i)) else { return end };
    if first <= at + 1 { first + 1 } else { first - 1 }
}

/// The first `n` bytes of `pieces` were copied.
fn mark_copied(pieces: &[Chunk], mut n: usize) {
    for piece in pieces {
        if n == 0 {
            break;
        }
        piece.mark_copied();
        n = n.saturating_sub(piece.len());
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
