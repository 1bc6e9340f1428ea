//! The completion side of one client: what the daemon tells it.
//!
//! Written by whichever thread delivers (with the node's lock held) and by the service thread. Its lock comes last of all; nothing blocks
//! under it. What has no room is held here, in order; who holds back bounds it: a socket's messages its receive buffer and the node's hard
//! limit, all else [`RECORDS`] and, of sends that were taken before, the send buffers.

use std::collections::{HashSet, VecDeque};
use std::mem;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rds_core::attach::{Completion, Producer, ReceiveArena, Span, Status, Violation};
use rds_core::buffer::OnRelease;
use rds_core::engine::{Delivered, Wake};
use rds_core::info::HeldInfo;
use rds_core::proto::Outcome;

use super::pipe::{Body, Pipe};
use super::sends::{Sends, Sent};
use super::state::{Held, Socket, State};
use crate::broker::Count;
use crate::service::Calls;

/// Replies that may be held before the client's requests are left where they are.
pub(super) const REPLIES: usize = 256;
/// Records of any kind but messages that may be held before the client's submissions are left where they are: each of them may bring one or two
/// more, and its send buffer is free again when a send has ended, not when it has read that.
pub(super) const RECORDS: usize = 16 << 10;

/// A socket of a client, by its place in the outlet's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(pub(super) u32);

/// What the service thread is to do for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// Try again what waits for this destination.
    Uncongested(Slot, SocketAddr),
    /// Try again everything of this socket.
    Writable(Slot),
}

/// How sends ended, in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ends {
    /// They arrived.
    pub delivered: u64,
    /// They were cancelled, by the program or because they could not be delivered.
    pub cancelled: u64,
    /// Nobody knows whether they arrived.
    pub unknown: u64,
}

impl Ends {
    pub(super) fn add(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Delivered(_) => &mut self.delivered,
            Outcome::Cancelled => &mut self.cancelled,
            Outcome::Unknown => &mut self.unknown,
        } += 1;
    }

    /// Adds others.
    pub fn add_all(&mut self, others: Self) {
        self.delivered += others.delivered;
        self.cancelled += others.cancelled;
        self.unknown += others.unknown;
    }

    /// Those that came since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            delivered: self.delivered - before.delivered,
            cancelled: self.cancelled - before.cancelled,
            unknown: self.unknown - before.unknown,
        }
    }
}

/// One client's completion side.
pub struct Outlet {
    client: u64,
    calls: Arc<Calls>,
    state: Mutex<State>,
}

impl std::fmt::Debug for Outlet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outlet").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Outlet {
    /// Of client `client`, which is told through `producer`; large messages lie in `arena`, if there is one.
    #[must_use]
    pub fn new(client: u64, producer: Producer, arena: Option<ReceiveArena>, calls: Arc<Calls>) -> Arc<Self> {
        Arc::new(Self {
            client,
            calls,
            state: Mutex::new(State {
                pipe: Some(Pipe { producer, arena, lent: Vec::new() }),
                sockets: Vec::new(),
                credits: Vec::new(),
                told: VecDeque::new(),
                held: VecDeque::new(),
                figures: HeldInfo::default(),
                ends: Ends::default(),
                replies: 0,
                bell: None,
                wanted: Vec::new(),
                known: HashSet::new(),
                look: false,
                called: false,
                pressed: 0,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a socket, with the number that the client gave it and a send buffer of so many bytes.
    pub fn add(&self, number: u32, send_buffer: u64) -> Slot {
        let mut state = self.state();
        let socket =
            Socket { number, shown: Count::NONE, sends: Sends::new(send_buffer), credit: Count::NONE };
        // Places are used again, as nothing refers to a socket that was removed.
        let free = state.sockets.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            state.sockets.push(None);
            state.sockets.len() - 1
        });
        state.sockets[place] = Some(socket);
        Slot(place as u32)
    }

    /// Removes a socket that is in no group any more. Nothing of it is told from here on but what of the arena is released.
    pub fn remove(&self, slot: Slot) {
        self.forget_messages(slot);
        let mut state = self.state();
        state.credits.retain(|of| *of != slot);
        let is_other = |wanted: &Wanted| match wanted {
            Wanted::Uncongested(of, _) | Wanted::Writable(of) => *of != slot,
        };
        state.wanted.retain(is_other);
        state.known.retain(is_other);
        if let Some(place) = state.sockets.get_mut(slot.0 as usize) {
            *place = None;
        }
    }

    /// Drops the messages that a socket has not been told of: it is closed.
    pub fn forget_messages(&self, slot: Slot) {
        let mut state = self.state();
        let mut freed = Vec::new();
        state.held.retain(|held| match held {
            Held::Message { slot: of, body, .. } if *of == slot => {
                if let Body::Placed(span) = body {
                    freed.push(span.clone());
                }
                false
            }
            _ => true,
        });
        let bytes = state.held.iter().map(|held| match held {
            Held::Message { body, .. } => body.len() as u64,
            Held::Record(..) => 0,
        });
        state.figures.bytes = bytes.sum();
        state.count_held();
        if let Some(pipe) = &mut state.pipe {
            freed.iter().for_each(|span| pipe.give_back(span));
        }
    }

    /// Memory of the client's arena for a message; `None` if there is none.
    pub fn memory(&self, len: usize) -> Option<Span> {
        let mut state = self.state();
        let span = state.pipe.as_mut()?.lend(len);
        state.look |= span.is_none();
        span
    }

    /// Memory that was given out is not needed.
    pub fn give_back(&self, span: &Span) {
        if let Some(pipe) = &mut self.state().pipe {
            pipe.give_back(span);
        }
    }

    /// A message for a socket.
    pub fn deliver(&self, slot: Slot, from: SocketAddr, body: Delivered<'_>) {
        self.state().deliver(slot, from, body);
    }

    /// Charges a send to a socket's send buffer. Returns its number here; `None`: the client may not send so much.
    pub(super) fn charge(&self, slot: Slot, sent: Sent) -> Option<u32> {
        self.state().socket(slot)?.sends.begin(sent)
    }

    /// A send has ended.
    pub fn ended(&self, slot: Slot, number: u32, outcome: Outcome) {
        self.state().end(slot, number, outcome);
    }

    /// Changes a socket's send buffer.
    pub fn set_send_buffer(&self, slot: Slot, bytes: u64) {
        if let Some(socket) = self.state().socket(slot) {
            socket.sends.set_limit(bytes);
        }
    }

    /// The client says that it has consumed messages of a socket; false if it never got so many.
    pub fn consumed(&self, slot: Slot, count: Count) -> bool {
        let mut state = self.state();
        let Some(socket) = state.socket(slot) else { return true };
        let may = socket.shown.covers(count);
        socket.shown.subtract(count);
        may
    }

    /// The client says that it needs a part of the arena no more.
    ///
    /// # Errors
    /// It had none there.
    pub fn free(&self, offset: u64) -> Result<(), Violation> {
        match &mut self.state().pipe {
            Some(pipe) => pipe.free(offset),
            None => Err(Violation::NotOut(offset)),
        }
    }

    /// A destination is free again.
    pub fn uncongested(&self, slot: Slot, destination: SocketAddr) {
        self.want(Wanted::Uncongested(slot, destination));
    }

    /// The port of a socket has room again.
    pub fn writable(&self, slot: Slot) {
        self.want(Wanted::Writable(slot));
    }

    fn want(&self, wanted: Wanted) {
        let mut state = self.state();
        if state.is_open() && state.known.insert(wanted) {
            state.wanted.push(wanted);
        }
        state.look = true;
    }

    /// Room is short at one more port, or at one less: while it is, the client is to tell at once what it has consumed.
    pub fn press(&self, on: bool) {
        let mut state = self.state();
        state.pressed = if on { state.pressed + 1 } else { state.pressed.saturating_sub(1) };
        // What it has told without ringing counts now.
        state.look = true;
    }

    /// The node has stopped. While the daemon ends, that is what it should; otherwise it is a defect, and the daemon ends with it, so that
    /// whoever watches it starts another.
    pub fn node_closed(&self) {
        self.calls.fail();
    }

    /// Tells the client something.
    pub fn tell(&self, record: Completion, body: &[u8]) {
        self.state().record(record, body);
    }

    /// Answers a request.
    pub fn reply(&self, request: u32, status: Status, value: u64, body: &[u8]) {
        let body_len = body.len() as u32;
        self.tell(Completion::Reply { request, status, value, body_len }, body);
    }

    /// Answers a request with a long text, in as many replies as it takes; the value of each is how much is still to come.
    pub fn reply_long(&self, request: u32, text: &[u8]) {
        let most = (self.state().pipe.as_ref().map_or(0, |pipe| pipe.producer.max_inline()) / 4).max(1024);
        let mut rest = text;
        loop {
            let (now, later) = rest.split_at(rest.len().min(most));
            self.reply(request, Status::Ok, later.len() as u64, now);
            rest = later;
            if rest.is_empty() {
                return;
            }
        }
    }

    /// Whether so much is held that nothing more is taken from the client, until it reads what it was told.
    pub fn is_choked(&self) -> bool {
        let state = self.state();
        state.replies >= REPLIES || state.told.len() >= RECORDS
    }

    /// Shows the client all that was written. Returns whether [`Outlet::wake`] is to be called once no lock is held.
    pub fn flush(&self) -> bool {
        self.state().flush()
    }

    /// Writes what is held, shows it, and asks for room for what is left. For the service thread, which wakes the client itself. Returns whether
    /// something is still held.
    pub fn advance(&self) -> bool {
        let (bell, held) = {
            let mut state = self.state();
            state.drain();
            while !state.is_drained() && state.wants() {
                state.drain();
            }
            let pressed = state.pressed > 0;
            if let (true, Some(pipe)) = (state.is_drained(), &mut state.pipe) {
                if pressed {
                    pipe.producer.want_attention();
                } else {
                    pipe.producer.stop_wanting();
                }
            }
            state.flush();
            (state.bell.take(), !state.is_drained())
        };
        if let Some(bell) = bell {
            bell.ring();
        }
        held
    }

    /// What the service thread is to do. Whatever comes after this calls it again.
    pub fn take_wanted(&self) -> Vec<Wanted> {
        let mut state = self.state();
        (state.look, state.called) = (false, false);
        state.known.clear();
        mem::take(&mut state.wanted)
    }

    /// What is held.
    pub fn held(&self) -> HeldInfo {
        self.state().figures
    }

    /// How the client's sends have ended, since it attached.
    pub fn ends(&self) -> Ends {
        self.state().ends
    }

    /// Messages that are held: delivered, as their senders know, and not in the client's ring.
    pub fn held_messages(&self) -> u64 {
        self.state().held.iter().filter(|held| matches!(held, Held::Message { .. })).count() as u64
    }

    /// What the client did wrong as a reader, if it did.
    pub fn fault(&self) -> Option<rds_core::attach::Fault> {
        self.state().pipe.as_ref().and_then(|pipe| pipe.producer.fault())
    }

    /// The stream form: writes what the socket did not take.
    pub fn socket_is_writable(&self) {
        if let Some(pipe) = &mut self.state().pipe {
            // A failure is found by the next look for a fault.
            let _ = pipe.producer.flush();
        }
    }

    /// The client is gone: nothing is told any more, and what was held for it goes.
    pub fn close(&self) {
        let (pipe, held) = {
            let mut state = self.state();
            state.wanted.clear();
            state.known.clear();
            state.told.clear();
            state.sockets.clear();
            state.credits.clear();
            state.figures.records = 0;
            state.figures.bytes = 0;
            (state.pipe.take(), mem::take(&mut state.held))
        };
        drop((held, pipe));
    }
}

impl Wake for Outlet {
    fn wake(&self) {
        let (bell, look) = {
            let mut state = self.state();
            let look = mem::take(&mut state.look) && !mem::replace(&mut state.called, true);
            (state.bell.take(), look)
        };
        if let Some(bell) = bell {
            bell.ring();
        }
        if look {
            self.calls.call(self.client);
        }
    }
}

/// Hears that parts of the send arena are free, for one socket.
#[derive(Debug)]
pub(super) struct Releases {
    /// Whose.
    pub(super) outlet: Arc<Outlet>,
    /// The socket's number.
    pub(super) socket: u32,
}

impl OnRelease for Releases {
    fn released(&self, cookie: u32, copied: bool) {
        let released = Completion::Released { socket: self.socket, id: cookie, copied };
        let wake = {
            let mut state = self.outlet.state();
            state.record(released, &[]);
            state.flush()
        };
        if wake {
            self.outlet.wake();
        }
    }
}
