//! What the lock of an [`Outlet`](super::Outlet) protects.

use std::collections::{HashSet, VecDeque};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;

use rds_core::attach::{Completion, Doorbell};
use rds_core::engine::Delivered;
use rds_core::info::HeldInfo;
use rds_core::proto::Outcome;

use super::outlet::{Ends, Slot, Wanted};
use super::pipe::{Body, INLINE, Pipe};
use super::sends::Sends;
use crate::broker::Count;

pub(super) struct State {
    /// `None`: the client is gone.
    pub(super) pipe: Option<Pipe>,
    pub(super) sockets: Vec<Option<Socket>>,
    /// Sockets with a credit that was not told.
    pub(super) credits: Vec<Slot>,
    /// What is told besides messages, and has no room in the ring. It overtakes messages: those may wait for room in the arena, which only comes
    /// when the client does something, for which it may need what it is told.
    pub(super) told: VecDeque<(Completion, Box<[u8]>)>,
    /// Messages that have no room in the ring or the arena, and the goodbye behind them.
    pub(super) held: VecDeque<Held>,
    pub(super) figures: HeldInfo,
    /// How sends have ended.
    pub(super) ends: Ends,
    pub(super) replies: usize,
    pub(super) bell: Option<Arc<Doorbell>>,
    pub(super) wanted: Vec<Wanted>,
    /// What is in `wanted`: a peer that frees all of its ports at once is not to cost a comparison of each with each.
    pub(super) known: HashSet<Wanted>,
    /// The service thread is to look at this client.
    pub(super) look: bool,
    /// It was called, and has not looked yet.
    pub(super) called: bool,
    /// Ports at which the client is to tell at once what it consumed.
    pub(super) pressed: u32,
}

pub(super) struct Socket {
    pub(super) number: u32,
    /// Shown to the client, and not reported as consumed by it.
    pub(super) shown: Count,
    pub(super) sends: Sends,
    pub(super) credit: Count,
}

pub(super) enum Held {
    Message { slot: Slot, number: u32, from: SocketAddr, body: Body },
    Record(Completion, Box<[u8]>),
}

impl State {
    pub(super) fn socket(&mut self, slot: Slot) -> Option<&mut Socket> {
        self.sockets.get_mut(slot.0 as usize)?.as_mut()
    }

    pub(super) fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    pub(super) fn deliver(&mut self, slot: Slot, from: SocketAddr, body: Delivered<'_>) {
        let Some(number) = self.socket(slot).map(|s| s.number) else { return };
        let len = body.len() as u64;
        let Some(pipe) = &mut self.pipe else { return };
        if let Delivered::Placed(span) = &body {
            pipe.settle(span);
        }
        let first = self.held.is_empty() && self.told.is_empty();
        let body = if first { pipe.message(number, from, body) } else { Err(body) };
        match body {
            Ok(()) => self.shown(slot, len),
            Err(body) => {
                let body = match body {
                    Delivered::Bytes(bytes) => Body::Bytes(bytes.into()),
                    Delivered::Shared(span) => Body::Bytes(span.to_vec().into()),
                    Delivered::Placed(span) => Body::Placed(span),
                    Delivered::Owned(bytes) => Body::Assembled(bytes),
                };
                self.figures.ever += 1;
                self.hold(Held::Message { slot, number, from, body });
            }
        }
    }

    pub(super) fn shown(&mut self, slot: Slot, len: u64) {
        if let Some(socket) = self.socket(slot) {
            socket.shown.add(Count { bytes: len, messages: 1 });
        }
    }

    pub(super) fn hold(&mut self, held: Held) {
        if let Held::Message { body, .. } = &held {
            self.figures.bytes += body.len() as u64;
        }
        self.held.push_back(held);
        self.count_held();
        // The client may have made room that nobody has looked at.
        self.look = true;
    }

    /// Whether everything was written.
    pub(super) fn is_drained(&self) -> bool {
        self.held.is_empty() && self.told.is_empty()
    }

    pub(super) fn count_held(&mut self) {
        self.figures.records = (self.held.len() + self.told.len()) as u64;
    }

    pub(super) fn record(&mut self, record: Completion, body: &[u8]) {
        let last = matches!(record, Completion::Goodbye { .. });
        let first = self.told.is_empty() && (!last || self.held.is_empty());
        let Some(pipe) = &mut self.pipe else { return };
        if first && pipe.producer.push(&record, body) {
            return;
        }
        if last {
            self.hold(Held::Record(record, body.into()));
            return;
        }
        self.replies += usize::from(matches!(record, Completion::Reply { .. }));
        self.told.push_back((record, body.into()));
        self.count_held();
        self.look = true;
    }

    /// Writes what is held, as far as there is room.
    pub(super) fn drain(&mut self) {
        while let (Some((record, body)), Some(pipe)) = (self.told.front(), &mut self.pipe) {
            if !pipe.producer.push(record, body) {
                break;
            }
            self.replies -= usize::from(matches!(record, Completion::Reply { .. }));
            self.told.pop_front();
        }
        self.count_held();
        if !self.told.is_empty() {
            return;
        }
        while let Some(held) = self.held.pop_front() {
            self.count_held();
            let Some(pipe) = &mut self.pipe else { return };
            match held {
                Held::Record(record, body) => {
                    if !pipe.producer.push(&record, &body) {
                        self.held.push_front(Held::Record(record, body));
                        break;
                    }
                }
                Held::Message { slot, number, from, body } => {
                    let len = body.len() as u64;
                    let delivered = match &body {
                        Body::Bytes(bytes) => Delivered::Bytes(bytes),
                        Body::Assembled(bytes) => Delivered::Bytes(bytes),
                        Body::Placed(span) => Delivered::Placed(span.clone()),
                    };
                    if pipe.message(number, from, delivered).is_err() {
                        self.held.push_front(Held::Message { slot, number, from, body });
                        break;
                    }
                    self.figures.bytes -= len;
                    self.shown(slot, len);
                }
            }
        }
        self.count_held();
    }

    /// Asks the client for what the first of those that are held needs; true if there is room already.
    pub(super) fn wants(&mut self) -> bool {
        self.flush();
        let Some(pipe) = &mut self.pipe else { return false };
        if let Some((_, body)) = self.told.front() {
            return pipe.producer.want_room(body.len());
        }
        match self.held.front() {
            None => false,
            Some(Held::Record(_, body)) => pipe.producer.want_room(body.len()),
            Some(Held::Message { body: Body::Placed(_), .. }) => pipe.producer.want_room(0),
            Some(Held::Message { body, .. }) if body.len() <= INLINE || pipe.arena.is_none() => {
                pipe.producer.want_room(body.len())
            }
            Some(Held::Message { .. }) => {
                // The ring has no room to name it, or the arena none for it: then the client is to tell at once what it gives back. What it gave
                // back before that is seen when its ring is looked at before the daemon sleeps.
                if pipe.producer.want_room(0) {
                    pipe.producer.want_attention();
                }
                false
            }
        }
    }

    /// Tells the credits, and shows the client all that was written. Returns whether somebody is to be woken.
    pub(super) fn flush(&mut self) -> bool {
        for slot in mem::take(&mut self.credits) {
            let Some(socket) = self.socket(slot) else { continue };
            let Count { bytes, messages } = mem::take(&mut socket.credit);
            if messages > 0 {
                let socket = socket.number;
                self.record(Completion::Credit { socket, bytes, messages }, &[]);
            }
        }
        if let Some(pipe) = &mut self.pipe
            && let Some(bell) = pipe.producer.publish()
        {
            self.bell = Some(bell);
        }
        self.bell.is_some() || self.look
    }

    pub(super) fn end(&mut self, slot: Slot, number: u32, outcome: Outcome) {
        let Some(socket) = self.socket(slot) else { return };
        let Some(sent) = socket.sends.end(number) else { return };
        let (at, first) = (socket.number, socket.credit.is_none());
        if !sent.wants_end {
            socket.credit.add(Count { bytes: sent.len.into(), messages: 1 });
        }
        self.ends.add(outcome);
        if sent.wants_end {
            self.record(Completion::Done { socket: at, id: sent.id, outcome }, &[]);
        } else if first {
            self.credits.push(slot);
        }
    }
}
