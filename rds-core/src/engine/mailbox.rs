//! What one socket has received and who waits for it, outside the core's lock.
//!
//! Two queues: the poll loop appends to `back`, programs take from `front` and exchange the two when it is empty, so the two
//! sides meet once a batch. Locks are taken in the order core, front, back.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use bytes::BytesMut;
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::completion::{self, Completion, Cookie};
use super::parker::Parker;
use super::queue::Queue;
use super::sink::Wake;
use super::tasks::{self, Tasks};
use crate::buffer::{Chunk, OnRelease};
use crate::proto::SocketId;
use crate::zerocopy::Mode;
use crate::zerocopy::Share;

/// What a queued message costs the node beside its payload; as the receive budget counts it.
const OVERHEAD: u64 = 48;

/// Payload bytes and messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) bytes: u64,
    pub(crate) messages: u64,
}

/// Counters of one socket, under the front lock so that they cost no atomic operation a message.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) delivered: u64,
    pub(crate) copied: u64,
    pub(crate) freed: u64,
}

/// The taking side.
pub(crate) struct Front {
    pub(crate) queue: Queue,
    /// Small owned messages are cut from this.
    pub(crate) store: BytesMut,
    pub(crate) tally: Tally,
    unreported: Taken,
    /// Report everything at once (the port is congested).
    congested: bool,
    /// Report when this much is unreported: a quarter of the receive buffer.
    report_at: u64,
}

impl Front {
    /// Counts a message's memory as free. Returns what is to be reported to the node now, if anything.
    fn freed(&mut self, len: usize, pressed: bool) -> Option<Taken> {
        self.tally.freed += len as u64;
        self.unreported.bytes += len as u64;
        self.unreported.messages += 1;
        let weight = self.unreported.bytes + OVERHEAD * self.unreported.messages;
        (self.congested || pressed || weight > self.report_at).then(|| std::mem::take(&mut self.unreported))
    }
}

/// What [`Mailbox::refill`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refill {
    /// The front has a message.
    Messages,
    /// No message, but congestion has cleared.
    Notice,
    /// Nothing.
    Empty,
    /// Nothing, and nothing will come.
    Closed,
}

/// The filling side, and everything that is not a message.
#[derive(Default)]
pub(crate) struct Back {
    pub(crate) queue: Queue,
    /// Threads that wait until something can be received.
    receivers: Vec<Arc<Parker>>,
    /// Threads that wait until something can be sent, or all is sent.
    senders: Vec<Arc<Parker>>,
    completions: VecDeque<Completion>,
    /// Threads that wait for completions.
    completers: Vec<Arc<Parker>>,
    pub(crate) monitor: bool,
    pub(crate) armed: u64,
    pub(crate) cleared: u64,
    pub(crate) closed: bool,
    readable_set: bool,
    writable_set: bool,
    completions_set: bool,
}

impl Back {
    fn anything(&self) -> bool {
        !self.queue.is_empty() || self.cleared != 0 || self.closed
    }

    /// Registers a thread that waits for something to receive.
    pub(crate) fn wait_receive(&mut self, parker: &Arc<Parker>) {
        add(&mut self.receivers, parker);
    }

    /// Registers a thread that waits for room, for a port, or for the end of its messages.
    pub(crate) fn wait_send(&mut self, parker: &Arc<Parker>) {
        add(&mut self.senders, parker);
    }
}

fn add(list: &mut Vec<Arc<Parker>>, parker: &Arc<Parker>) {
    if !list.iter().any(|p| Arc::ptr_eq(p, parker)) {
        list.push(Arc::clone(parker));
    }
}

/// One socket's receive queue, notifications, waiters and descriptors.
pub(crate) struct Mailbox {
    pub(crate) id: SocketId,
    pub(crate) local: SocketAddr,
    /// What the kernel may have pinned of its payloads.
    pub(crate) share: Arc<Share>,
    front: Mutex<Front>,
    back: Mutex<Back>,
    /// Tasks that wait until something can be sent, or all is sent; and for the end of it all.
    pub(crate) sending: Tasks,
    pub(crate) ending: Tasks,
    /// Something other than a message is in `back`.
    notices: AtomicBool,
    /// Taken by the program and neither reported nor asked for.
    consumed_bytes: AtomicU64,
    consumed_messages: AtomicU64,
    /// As [`Core::pressed`](super::core::Core::pressed).
    pressed: Arc<AtomicBool>,
    readable: OnceLock<EventFd>,
    writable: OnceLock<EventFd>,
    completion: OnceLock<EventFd>,
    /// Completions that are not taken, or still to come.
    expected: AtomicU64,
    /// Stands in a list of [`Wakes`].
    listed: AtomicBool,
    /// Whether large messages are mapped; see [`Mailbox::receive_mode`].
    receive_mode: AtomicU8,
}

impl Mailbox {
    pub(crate) fn new(
        id: SocketId,
        local: SocketAddr,
        receive_buffer: u64,
        pressed: Arc<AtomicBool>,
        share: Arc<Share>,
    ) -> Self {
        Self {
            id,
            local,
            share,
            front: Mutex::new(Front {
                queue: Queue::default(),
                store: BytesMut::new(),
                tally: Tally::default(),
                unreported: Taken::default(),
                congested: false,
                report_at: receive_buffer / 4,
            }),
            back: Mutex::new(Back::default()),
            sending: Tasks::default(),
            ending: Tasks::default(),
            notices: AtomicBool::new(false),
            consumed_bytes: AtomicU64::new(0),
            consumed_messages: AtomicU64::new(0),
            pressed,
            readable: OnceLock::new(),
            writable: OnceLock::new(),
            completion: OnceLock::new(),
            expected: AtomicU64::new(0),
            listed: AtomicBool::new(false),
            receive_mode: AtomicU8::new(0),
        }
    }

    /// Whether large messages to this socket are mapped; `None`: as their path says.
    pub(crate) fn receive_mode(&self) -> Option<Mode> {
        [None, Some(Mode::Off), Some(Mode::On), Some(Mode::Auto)]
            [usize::from(self.receive_mode.load(Relaxed) & 3)]
    }

    pub(crate) fn set_receive_mode(&self, mode: Option<Mode>) {
        let number = match mode {
            None => 0,
            Some(Mode::Off) => 1,
            Some(Mode::On) => 2,
            Some(Mode::Auto) => 3,
        };
        self.receive_mode.store(number, Relaxed);
    }

    pub(crate) fn front(&self) -> MutexGuard<'_, Front> {
        self.front.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn back(&self) -> MutexGuard<'_, Back> {
        self.back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- taking --------------------------------------------------------------------------------------------------

    /// Whether a notification may be pending.
    pub(crate) fn has_notices(&self) -> bool {
        self.notices.load(SeqCst)
    }

    /// Says again whether a notification is pending; to be called after taking one.
    pub(crate) fn settle_notices(&self, back: &Back) {
        self.notices.store(back.cleared != 0, SeqCst);
    }

    /// Fills an empty front from the back. If nothing at all is there, `parker`, if any, is registered.
    pub(crate) fn refill(&self, front: &mut Front, parker: Option<&Arc<Parker>>) -> Refill {
        if !front.queue.is_empty() {
            return Refill::Messages;
        }
        // What was taken from the last batch; once a batch is often enough for the node to ask for it.
        let taken = std::mem::take(&mut front.unreported);
        if taken.messages > 0 {
            self.consumed_bytes.fetch_add(taken.bytes, SeqCst);
            self.consumed_messages.fetch_add(taken.messages, SeqCst);
        }
        let mut back = self.back();
        if !back.queue.is_empty() {
            std::mem::swap(&mut front.queue, &mut back.queue);
            return Refill::Messages;
        }
        if back.cleared != 0 {
            return Refill::Notice;
        }
        if back.closed {
            return Refill::Closed;
        }
        if let Some(parker) = parker {
            back.wait_receive(parker);
        }
        self.clear_readable(&mut back);
        Refill::Empty
    }

    /// A message was taken from the front. Returns what is to be reported to the node now, if anything.
    pub(crate) fn taken(&self, front: &mut Front, len: usize) -> Option<Taken> {
        self.leased(front);
        self.freed(front, len)
    }

    /// A message was taken from the front, and its memory is still in use.
    pub(crate) fn leased(&self, front: &mut Front) {
        self.after_take(front);
        front.tally.delivered += 1;
    }

    /// The memory of a message that was taken is free. Returns what is to be reported to the node now, if anything.
    pub(crate) fn freed(&self, front: &mut Front, len: usize) -> Option<Taken> {
        front.freed(len, self.pressed.load(Relaxed))
    }

    /// After taking: the descriptor must not stay readable when nothing is left.
    pub(crate) fn after_take(&self, front: &Front) {
        if front.queue.is_empty() && self.readable.get().is_some() {
            self.clear_readable(&mut self.back());
        }
    }

    fn clear_readable(&self, back: &mut Back) {
        if back.readable_set
            && !back.anything()
            && let Some(fd) = self.readable.get()
        {
            let _ = fd.read();
            back.readable_set = false;
        }
    }

    /// Whether something could be received; otherwise `parker` is registered.
    pub(crate) fn poll_receive(&self, parker: Option<&Arc<Parker>>) -> bool {
        let front = self.front();
        if !front.queue.is_empty() {
            return true;
        }
        let mut back = self.back();
        let ready = back.anything();
        if let (false, Some(parker)) = (ready, parker) {
            back.wait_receive(parker);
        }
        ready
    }

    /// Removes a thread that waits no longer. If it was told of a message that it did not take, another one is told.
    pub(crate) fn forget(&self, parker: &Arc<Parker>) {
        let front = self.front();
        let mut back = self.back();
        back.receivers.retain(|p| !Arc::ptr_eq(p, parker));
        back.senders.retain(|p| !Arc::ptr_eq(p, parker));
        back.completers.retain(|p| !Arc::ptr_eq(p, parker));
        let again = if back.completions.is_empty() { None } else { back.completers.pop() };
        let next = if front.queue.is_empty() && !back.anything() { None } else { back.receivers.pop() };
        drop(back);
        drop(front);
        for next in [next, again].into_iter().flatten() {
            next.unpark();
        }
    }

    // ---- accounting ----------------------------------------------------------------------------------------------

    /// What was taken and not reported, as far as it was published; it counts as reported afterwards.
    pub(crate) fn take_published(&self) -> Taken {
        if self.consumed_messages.load(Relaxed) == 0 {
            return Taken::default();
        }
        // Both are added under the front lock in this order, so bytes never lag behind their messages for long; each is
        // reported once whatever the interleaving.
        Taken { messages: self.consumed_messages.swap(0, SeqCst), bytes: self.consumed_bytes.swap(0, SeqCst) }
    }

    /// The same, with what is not published yet. Takes the front lock.
    pub(crate) fn take_all(&self, front: &mut Front) -> Taken {
        let published = self.take_published();
        let own = std::mem::take(&mut front.unreported);
        Taken { bytes: published.bytes + own.bytes, messages: published.messages + own.messages }
    }

    /// Whether what is taken must be reported at once. Returns what is unreported at the moment of the change.
    pub(crate) fn set_congested(&self, congested: bool) -> Taken {
        let mut front = self.front();
        front.congested = congested;
        self.take_all(&mut front)
    }

    /// Changes the receive buffer.
    pub(crate) fn set_receive_buffer(&self, bytes: u64) {
        self.front().report_at = bytes / 4;
    }

    // ---- notifying -----------------------------------------------------------------------------------------------

    /// Messages were appended: sets the descriptor, and lists the mailbox if somebody waits.
    pub(crate) fn appended(self: &Arc<Self>, back: &mut Back, wakes: &mut Wakes) {
        self.set_readable(back);
        if !back.receivers.is_empty() && !self.listed.swap(true, SeqCst) {
            wakes.mailboxes.push(Arc::clone(self));
        }
    }

    /// A destination is free again.
    pub(crate) fn notice(self: &Arc<Self>, back: &mut Back, wakes: &mut Wakes) {
        self.notices.store(true, SeqCst);
        self.set_readable(back);
        wakes.parkers.extend(back.receivers.pop());
    }

    /// Wakes every thread and task that waits to send.
    pub(crate) fn wake_senders(&self, back: &mut Back, wakes: &mut Wakes) {
        wakes.parkers.append(&mut back.senders);
        self.sending.take(&mut wakes.tasks);
    }

    /// Wakes everybody for good: the node is shut down, or the socket closed.
    pub(crate) fn close(&self, wakes: &mut Wakes) {
        let mut back = self.back();
        back.closed = true;
        self.set_readable(&mut back);
        let back = &mut *back;
        wakes.parkers.append(&mut back.receivers);
        wakes.parkers.append(&mut back.senders);
        wakes.parkers.append(&mut back.completers);
        self.sending.take(&mut wakes.tasks);
        self.ending.take(&mut wakes.tasks);
    }

    fn set_readable(&self, back: &mut Back) {
        if !back.readable_set
            && let Some(fd) = self.readable.get()
        {
            back.readable_set = fd.write(1).is_ok();
        }
    }

    /// Whether the writable descriptor exists, so that it must be kept up to date.
    pub(crate) fn has_writable(&self) -> bool {
        self.writable.get().is_some()
    }

    /// Brings the writable descriptor up to date.
    pub(crate) fn set_writable(&self, back: &mut Back, writable: bool) {
        if let Some(fd) = self.writable.get()
            && back.writable_set != writable
        {
            let done = if writable { fd.write(1).is_ok() } else { fd.read().is_ok() };
            back.writable_set = if done { writable } else { back.writable_set };
        }
    }

    /// The descriptor that is readable while something can be received.
    pub(crate) fn readable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        let fd = descriptor(&self.readable)?;
        let front = self.front();
        let mut back = self.back();
        if !front.queue.is_empty() || back.anything() {
            self.set_readable(&mut back);
        }
        Ok(fd)
    }

    // ---- completions ---------------------------------------------------------------------------------------------

    /// Makes room for the two completions of a message; false if the program has left too many untaken.
    pub(crate) fn expect_completions(&self) -> bool {
        let before = self.expected.fetch_add(2, Relaxed);
        let room = before < completion::LIMIT;
        if !room {
            self.expected.fetch_sub(2, Relaxed);
        }
        room
    }

    /// The message was refused.
    pub(crate) fn unexpect_completions(&self) {
        self.expected.fetch_sub(2, Relaxed);
    }

    /// Adds a completion. Returns whom to wake.
    pub(crate) fn completed(&self, back: &mut Back, completion: Completion) -> Option<Arc<Parker>> {
        back.completions.push_back(completion);
        if !back.completions_set
            && let Some(fd) = self.completion.get()
        {
            back.completions_set = fd.write(1).is_ok();
        }
        back.completers.pop()
    }

    /// Takes all completions; if there is none, `parker`, if any, is registered.
    pub(crate) fn take_completions(&self, out: &mut Vec<Completion>, parker: Option<&Arc<Parker>>) -> usize {
        let mut back = self.back();
        let n = back.completions.len();
        if n == 0 {
            if let Some(parker) = parker {
                add(&mut back.completers, parker);
            }
            return 0;
        }
        out.extend(back.completions.drain(..));
        self.expected.fetch_sub(n as u64, Relaxed);
        if back.completions_set
            && let Some(fd) = self.completion.get()
        {
            let _ = fd.read();
            back.completions_set = false;
        }
        n
    }

    /// Whether there are completions; otherwise `parker` is registered.
    pub(crate) fn poll_completions(&self, parker: Option<&Arc<Parker>>) -> bool {
        let mut back = self.back();
        let ready = !back.completions.is_empty() || back.closed;
        if let (false, Some(parker)) = (ready, parker) {
            add(&mut back.completers, parker);
        }
        ready
    }

    /// The descriptor that is readable while there are completions.
    pub(crate) fn completion_fd(&self) -> io::Result<BorrowedFd<'_>> {
        let fd = descriptor(&self.completion)?;
        let mut back = self.back();
        if !back.completions.is_empty() && !back.completions_set {
            back.completions_set = self.completion.get().is_some_and(|fd| fd.write(1).is_ok());
        }
        Ok(fd)
    }

    /// The descriptor for [`Mailbox::set_writable`].
    pub(crate) fn writable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        descriptor(&self.writable)
    }
}

impl OnRelease for Mailbox {
    fn released(&self, cookie: u32, copied: bool) {
        let completion = Completion::Released { cookie: Cookie(cookie), copied };
        let waiting = self.completed(&mut self.back(), completion);
        if let Some(parker) = waiting {
            parker.unpark();
        }
    }
}

fn descriptor(cell: &OnceLock<EventFd>) -> io::Result<BorrowedFd<'_>> {
    if cell.get().is_none() {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        // Another thread may have been faster: then this one is closed again.
        let _ = cell.set(EventFd::from_flags(flags)?);
    }
    cell.get().map(AsFd::as_fd).ok_or_else(|| io::Error::other("no descriptor"))
}

/// Entries for which a list keeps memory.
const KEEP: usize = 1024;

thread_local! {
    static SPARE: Cell<Wakes> = const { Cell::new(Wakes::NONE) };
}

/// Threads and tasks to be woken, and payloads to be dropped, once no lock is held.
#[derive(Default)]
pub(crate) struct Wakes {
    /// Programs' payloads among them, whose drop may call the engine.
    pub(crate) released: Vec<Chunk>,
    mailboxes: Vec<Arc<Mailbox>>,
    pub(crate) parkers: Vec<Arc<Parker>>,
    tasks: Vec<Waker>,
    /// Of sinks that have published something.
    pub(crate) doorbells: Vec<Arc<dyn Wake>>,
}

impl Wakes {
    const NONE: Self = Self {
        released: Vec::new(),
        mailboxes: Vec::new(),
        parkers: Vec::new(),
        tasks: Vec::new(),
        doorbells: Vec::new(),
    };

    /// Takes the list, if anybody is on it, and leaves memory for the next one. To be ended with [`Wakes::finish`].
    pub(crate) fn take(&mut self) -> Option<Self> {
        let none = self.mailboxes.is_empty()
            && self.parkers.is_empty()
            && self.tasks.is_empty()
            && self.released.is_empty()
            && self.doorbells.is_empty();
        (!none).then(|| std::mem::replace(self, SPARE.try_with(Cell::take).unwrap_or_default()))
    }

    /// Wakes them, and keeps the memory for the next list that this thread takes.
    pub(crate) fn finish(mut self) {
        self.fire();
        self.released.shrink_to(KEEP);
        self.parkers.shrink_to(KEEP);
        self.tasks.shrink_to(KEEP);
        self.doorbells.shrink_to(KEEP);
        let _ = SPARE.try_with(|spare| spare.set(self));
    }

    /// Wakes them: of those that wait for messages, as many as there are messages. Keeps its own memory.
    pub(crate) fn fire(&mut self) {
        for mailbox in self.mailboxes.drain(..) {
            mailbox.listed.store(false, SeqCst);
            let front = mailbox.front();
            let mut back = mailbox.back();
            let n = back.receivers.len().min(front.queue.len() + back.queue.len());
            let rest = back.receivers.len() - n;
            self.parkers.extend(back.receivers.drain(rest..));
        }
        for parker in self.parkers.drain(..) {
            parker.unpark();
        }
        tasks::wake(self.tasks.drain(..));
        for doorbell in self.doorbells.drain(..) {
            doorbell.wake();
        }
        // A payload's drop may come back here, and its panic must not end whoever happens to poll.
        while let Some(payload) = self.released.pop() {
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(payload))).is_err() {
                tracing::error!("the drop of a payload panicked; its message was not affected");
            }
        }
    }
}

impl Drop for Wakes {
    /// Nobody is left asleep because a list was dropped.
    fn drop(&mut self) {
        self.fire();
    }
}
