//! What the daemon says, and the end of an attachment.

use std::net::SocketAddr;
use std::sync::{Arc, MutexGuard, TryLockError};
use std::time::Instant;

use super::super::{Completion as Said, Record, Setting, Status, Where};
use super::core::{AGAIN, Core, PATIENCE, Request};
use super::link::Link;
use super::seat::{Place, Unsaid};
use super::shared::{After, Inbox, Shared};
use crate::buffer::{Assembled, Memory, Pool};
use crate::engine::Completion;
use crate::engine::mailbox::{Mailbox, Wakes};
use crate::engine::queue::{Queue, SMALL};
use crate::engine::wait::Waits;
use crate::proto::{BindError, Outcome, SocketId, Token};

/// Longest answer in parts, in bytes: nothing that a daemon says takes more memory.
const LONGEST_ANSWER: usize = 64 << 20;
/// Records that are taken in with the core locked once.
const BATCH: usize = 64;
/// Batches before whoever waits looks whether it has come.
const BATCHES: usize = 16;

impl Shared {
    /// Brings in what the daemon has written, within bounds. Whether anything came. Another thread that does so already is enough.
    pub(super) fn drain(&self) -> bool {
        let mut any = false;
        for _ in 0..BATCHES {
            let mut inbox = match self.inbox.try_lock() {
                Ok(inbox) => inbox,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => break,
            };
            let (n, after) = self.drain_batch(&mut inbox);
            drop(inbox);
            after.run(self);
            if n == 0 {
                break;
            }
            any = true;
        }
        any
    }

    /// Brings in a batch: how many records it had, and what is to be done when no lock is held.
    fn drain_batch(&self, inbox: &mut Inbox) -> (usize, After) {
        let Inbox { consumer, link, .. } = inbox;
        let (Some(consumer), Some(link)) = (consumer.as_mut(), link.as_ref()) else {
            return (0, After::default());
        };
        let mut n = 0;
        let mut end = None;
        let mut core: Option<MutexGuard<'_, Core>> = None;
        while n < BATCH {
            let record = match consumer.next() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(fault) => {
                    end = Some(fault.to_string());
                    break;
                }
            };
            n += 1;
            match record.completion() {
                Ok(Said::Goodbye { code, .. }) => {
                    let mut why = vec![0; record.body_len().min(200)];
                    record.copy_to(&mut why);
                    end = Some(format!("it said goodbye ({code}): {}", String::from_utf8_lossy(&why)));
                    break;
                }
                Ok(said) => {
                    let core = core.get_or_insert_with(|| self.core());
                    core.hear(said, &record, link, &self.pool);
                }
                Err(fault) => {
                    end = Some(fault.to_string());
                    break;
                }
            }
        }
        let mut after = After::default();
        if n > 0 {
            after.ring(consumer.release());
        }
        if let Some(mut core) = core {
            // Who waits for room in the ring goes on when half of it is free, as when the daemon rings for that.
            let waiting = core.starved || !core.room.is_empty();
            if waiting
                && core.line.as_mut().is_some_and(|line| line.producer.has_room(line.producer.max_inline()))
            {
                core.room_again();
            }
            after.add(self.prepare(core, true));
        }
        if let Some(why) = end {
            after.add(self.detach(inbox, &why));
        }
        (n, after)
    }

    /// The daemon may have made room in the submission ring.
    pub(super) fn room(&self) {
        let mut core = self.core();
        core.room_again();
        self.settle(core, true);
    }

    /// The control socket's other end is gone: what it wrote before is read, then the attachment ends.
    pub(super) fn hung_up(&self, epoch: u64) {
        loop {
            let mut inbox = self.inbox();
            if inbox.epoch != epoch || inbox.consumer.is_none() {
                return;
            }
            let (n, mut after) = self.drain_batch(&mut inbox);
            if n == 0 {
                after.add(self.detach(&mut inbox, "the connection has ended"));
            }
            drop(inbox);
            after.run(self);
        }
    }

    /// Ends the attachment: everything unfinished is unknown from here on. Another one is looked for.
    #[must_use = "what is to be done when no lock is held"]
    pub(super) fn detach(&self, inbox: &mut Inbox, why: &str) -> After {
        if inbox.consumer.take().is_none() {
            return After::default();
        }
        inbox.link = None;
        inbox.epoch += 1;
        if !self.is_stopped() {
            tracing::warn!(path = %self.path.display(), why, "the daemon is gone; everything unfinished is unknown");
        }
        let mut core = self.core();
        if let Some(link) = core.lose() {
            // The daemon, should it live, and the thread that looks for the next one hear of it.
            let _ = link.socket.shutdown(std::net::Shutdown::Both);
        }
        let after = self.prepare(core, false);
        // Whoever polls has descriptors to forget.
        self.right.kick();
        after
    }
}

impl Core {
    fn hear(&mut self, said: Said, record: &Record<'_>, link: &Arc<Link>, pool: &Pool) {
        match said {
            Said::Message { socket, from, payload } => {
                self.message(socket, from, payload, record, link, pool)
            }
            Said::Done { id, outcome, .. } => {
                if let Some((socket, cookie, len)) = self.book.done(id) {
                    if let Some(seat) = self.seat_mut(socket) {
                        seat.account.ended(u64::from(len));
                        if let Some(mailbox) = &seat.mailbox {
                            let mailbox = Arc::clone(mailbox);
                            let completion = Completion::ended(Token(u64::from(cookie.0)), outcome);
                            let waiting = mailbox.completed(&mut mailbox.back(), completion);
                            self.wakes.parkers.extend(waiting);
                        }
                    }
                    self.wake_senders(socket);
                }
            }
            Said::Released { id, copied, .. } => {
                if let Some(held) = self.book.released(id) {
                    if copied {
                        held.0.mark_copied();
                    }
                    // Dropped once no lock is held.
                    self.wakes.released.push(held.0);
                    self.room_again();
                }
            }
            Said::Credit { socket, bytes, messages } => {
                if let Some(seat) = self.seat_mut(socket) {
                    seat.account.credit(bytes, messages);
                    self.wake_senders(socket);
                }
            }
            Said::Congested { socket, to } => {
                if let Some(seat) = self.seat_mut(socket) {
                    seat.congested.insert(to);
                }
            }
            Said::Uncongested { socket, to } => self.uncongested(socket, to),
            Said::Reply { request, status, value, .. } => self.reply(request, status, value, record),
            Said::Goodbye { .. } => {}
        }
    }

    fn message(
        &mut self,
        socket: u32,
        from: SocketAddr,
        payload: Where,
        record: &Record<'_>,
        link: &Arc<Link>,
        pool: &Pool,
    ) {
        let len = payload.len();
        let Self { seats, wakes, .. } = self;
        let seat = seats.get_mut(socket as usize & 0xffff).and_then(Option::as_mut);
        let seat = seat.filter(|seat| seat.number == socket);
        // What comes for a socket that is closed is dropped.
        let seat = seat.filter(|seat| seat.place != Place::Closing);
        let large = match payload {
            Where::Inline(_) if len as usize <= SMALL => None,
            Where::Inline(len) => {
                let mut memory = pool.take(len as usize);
                record.copy_to(&mut memory);
                Some(Assembled::of(Memory::Pool(memory)))
            }
            // Goes back where nobody takes it, when it is dropped.
            Where::Arena { offset, len } => {
                let arena = link.receive_arena.as_ref();
                match arena.and_then(|a| a.lease(offset, len, Arc::clone(link) as _)) {
                    Some(lease) => Some(Assembled::of(Memory::Leased(lease))),
                    None => {
                        tracing::error!(offset, len, "the daemon named memory that there is not");
                        return;
                    }
                }
            }
        };
        let Some(seat) = seat else { return };
        seat.received(u64::from(len));
        let push = |queue: &mut Queue| match large {
            Some(message) => queue.push_large(from, message),
            None => queue.push_small(from, len, |a, b| copy(record, a, b)),
        };
        match &seat.mailbox {
            Some(mailbox) => {
                let mut back = mailbox.back();
                push(&mut back.queue);
                mailbox.appended(&mut back, wakes);
            }
            None => push(&mut seat.early),
        }
    }

    fn reply(&mut self, request: u32, status: Status, value: u64, record: &Record<'_>) {
        let Some(asked) = self.requests.get_mut(&request) else { return };
        match asked {
            Request::Call(call) => {
                if call.answer.is_some() {
                    // More than was asked for.
                    return;
                }
                let before = call.body.len();
                if before + record.body_len() > LONGEST_ANSWER {
                    (call.partial, call.body) = (false, b"the answer is too long".to_vec());
                    call.answer = Some((Status::Unsupported, 0));
                    self.wakes.parkers.extend(call.waiter.take());
                    return;
                }
                call.body.resize(before + record.body_len(), 0);
                record.copy_to(&mut call.body[before..]);
                // A long answer comes in parts; the value is what is still to come.
                if call.partial && value > 0 && status == Status::Ok {
                    return;
                }
                call.answer = Some((status, value));
                self.wakes.parkers.extend(call.waiter.take());
                // At once: that it is not so any more may be the next record.
                if let (Some((socket, to)), Status::Ok, 1) = (call.watched, status, value)
                    && let Some(seat) = self.seat_mut(socket)
                {
                    seat.congested.insert(to);
                }
            }
            Request::Bind(socket) => {
                let (socket, mut granted) = (*socket, [0; 16]);
                if record.body_len() == granted.len() {
                    record.copy_to(&mut granted);
                }
                self.requests.remove(&request);
                let half = |at: usize| {
                    let mut bytes = [0; 8];
                    bytes.copy_from_slice(&granted[at..at + 8]);
                    u64::from_ne_bytes(bytes)
                };
                self.bound(socket, status, value, half(0), Instant::now());
            }
            Request::Close(socket) => {
                let socket = *socket;
                self.requests.remove(&request);
                self.book.forget(socket);
                self.remove_seat(socket);
            }
            Request::Set { socket, what } => {
                let (socket, what) = (*socket, *what);
                self.requests.remove(&request);
                if let (Status::Ok, Setting::SendBuffer, Some(seat)) = (status, what, self.seat_mut(socket)) {
                    seat.account.limit = value.min(seat.send_buffer);
                }
                // Whoever set it waits for the answer, whichever it is.
                self.wake_senders(socket);
            }
        }
    }

    fn bound(&mut self, socket: u32, status: Status, port: u64, send_buffer: u64, now: Instant) {
        let (address, share) = (self.address, Arc::clone(&self.share));
        let Some(seat) = self.seat_mut(socket) else { return };
        let before = seat.place;
        let first = seat.mailbox.is_none();
        let error = match status {
            Status::Ok => {
                if before != Place::Closing {
                    seat.place = Place::Bound;
                    seat.port = port as u16;
                    // At once: messages may follow.
                    seat.mailbox.get_or_insert_with(|| {
                        let local = SocketAddr::new(address, port as u16);
                        let id = SocketId::attached(socket);
                        let mailbox = Mailbox::new(id, local, seat.receive_buffer, Arc::default(), share);
                        mailbox.back().queue = std::mem::take(&mut seat.early);
                        Arc::new(mailbox)
                    });
                    let granted = if send_buffer == 0 { seat.send_buffer } else { send_buffer };
                    seat.account.limit = granted.min(seat.send_buffer);
                }
                None
            }
            Status::Reserved => Some(BindError::Reserved),
            Status::InUse => Some(BindError::InUse(seat.port)),
            Status::Exhausted => Some(BindError::Exhausted),
            Status::ShuttingDown => Some(BindError::ShuttingDown),
            Status::Quota => Some(BindError::Quota),
            Status::NotAllowed => Some(BindError::NotAllowed(seat.port)),
            _ => Some(BindError::Unreachable),
        };
        let mut close = None;
        if let Some(error) = error {
            let since = if let Place::Taken { since, .. } = before { since } else { now };
            seat.place = match error {
                _ if first => Place::Refused(error),
                _ if before == Place::Closing => Place::Closing,
                // What the daemon has of us from before may still have to end.
                BindError::InUse(_) | BindError::Quota if now < since + PATIENCE => {
                    Place::Taken { since, again: now + AGAIN }
                }
                error => {
                    tracing::error!(port = seat.port, %error, "a port could not be bound again");
                    close = seat.mailbox.clone();
                    Place::Lost(error)
                }
            };
        }
        let mut waiting = std::mem::take(&mut seat.waiters);
        self.wakes.parkers.append(&mut waiting);
        if let Some(mailbox) = close {
            mailbox.close(&mut self.wakes);
        }
        self.wake_senders(socket);
        self.say(socket);
    }

    /// The daemon is gone.
    pub(super) fn lose(&mut self) -> Option<Arc<Link>> {
        let link = self.line.take()?.link;
        for send in self.book.take_all() {
            let seat = self.seats.get(send.socket as usize & 0xffff).and_then(Option::as_ref);
            let mailbox = seat.filter(|s| s.number == send.socket).and_then(|s| s.mailbox.as_ref());
            if let (Some(cookie), Some(mailbox)) = (send.cookie, mailbox) {
                let outcome = if self.shutting_down { Outcome::Cancelled } else { Outcome::Unknown };
                let completion = Completion::ended(Token(u64::from(cookie.0)), outcome);
                self.wakes.parkers.extend(mailbox.completed(&mut mailbox.back(), completion));
            }
            if let Some(held) = send.held {
                // Nobody can say whether it was.
                held.0.mark_copied();
                self.wakes.released.push(held.0);
            }
        }
        for (_, request) in self.requests.drain() {
            if let Request::Call(call) = request {
                self.wakes.parkers.extend(call.waiter);
            }
        }
        self.unsaid.clear();
        let mut gone = Vec::new();
        for place in 0..self.seats.len() {
            let Some(seat) = self.seats[place].as_mut() else { continue };
            seat.unsaid = Unsaid::default();
            let number = seat.number;
            if seat.place == Place::Closing {
                gone.push(number);
                continue;
            }
            let unknown = seat.detached();
            self.unknown += unknown;
            let congested: Vec<_> = seat.congested.drain().collect();
            if let Some(mailbox) = &seat.mailbox {
                let mut back = mailbox.back();
                mailbox.set_writable(&mut back, false);
            }
            for destination in congested {
                self.uncongested(number, destination);
            }
            // Whoever waits for the end of what it has sent: it has ended.
            if let Some(mailbox) = self.seat(number).and_then(|seat| seat.mailbox.clone()) {
                mailbox.wake_senders(&mut mailbox.back(), &mut self.wakes);
            }
        }
        gone.into_iter().for_each(|number| self.remove_seat(number));
        self.given_back = 0;
        let wakes: &mut Wakes = &mut self.wakes;
        wakes.parkers.append(&mut self.room);
        Some(link)
    }
}

/// Copies a record's body into two pieces.
fn copy(record: &Record<'_>, a: &mut [u8], b: &mut [u8]) {
    if b.is_empty() {
        record.copy_to(a);
    } else if let Some(bytes) = record.bytes() {
        a.copy_from_slice(&bytes[..a.len()]);
        b.copy_from_slice(&bytes[a.len()..]);
    } else if let Some(span) = record.span() {
        span.copy_to(a);
        span.slice(a.len()..span.len()).copy_to(b);
    }
}
