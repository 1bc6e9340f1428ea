//! Sockets whose owner takes what concerns them at once, instead of having it queued: a daemon passes it on to its clients.

use std::net::SocketAddr;
use std::sync::Arc;

use super::mailbox::{Tally, Wakes};
use crate::buffer::{Assembled, Filling, Placed, Span, SpanOwner};
use crate::proto::{Body, Outcome, SocketId, Token};
use crate::zerocopy::Share;

/// Payloads of this many bytes and more are read straight into a sink's memory, one by one, wherever its [`Sink::memory`] has some.
pub const EXACT_READS: usize = 16 << 10;

/// Is to be told when no lock is held.
pub trait Wake: Send + Sync {
    /// Wakes whoever reads what a sink has published.
    fn wake(&self);
}

/// A message's payload.
// Not `non_exhaustive`: a sink that does not know a form would lose messages, so it must not compile.
#[derive(Debug)]
pub enum Delivered<'a> {
    /// Lies in a buffer of the node's: copy it.
    Bytes(&'a [u8]),
    /// Lies in memory that its sender, another process, may change at any moment: copy it.
    Shared(&'a Span),
    /// Lies in memory that this sink's [`Sink::memory`] gave for it, cut to its length, and belongs to the sink again.
    Placed(Span),
    /// Lies in memory of the node's pool, and may be kept.
    Owned(Assembled),
}

impl Delivered<'_> {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Shared(span) => span.len(),
            Self::Placed(span) => span.len(),
            Self::Owned(bytes) => bytes.len(),
        }
    }

    /// Whether it is empty; an empty message is a message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where what concerns a [`Port`](super::Port) goes, instead of a queue.
///
/// All of it is called with the node's lock held, from whichever thread delivers: it must not block, call the engine or a
/// port, or panic. What memory it gives and does not get a message in comes back with [`SpanOwner::unused`].
pub trait Sink: SpanOwner {
    /// Memory of the owner's, writable here, for a message of `len` bytes that comes in pieces: TCP is read straight into it. `None`: the
    /// node's pool. At least `len` bytes, or it is not used.
    fn memory(&self, len: usize) -> Option<Span>;

    /// Takes a message. It counts as accepted, and is acknowledged to the peer, once the [`Sink::flush`] after it has returned; it fills the
    /// port's receive buffer until [`Batch::consumed`](super::Batch::consumed) says otherwise.
    fn deliver(&self, from: SocketAddr, body: Delivered<'_>);

    /// A message that was sent with a token has ended. Not told of a port that is closed.
    fn ended(&self, token: Token, outcome: Outcome);

    /// A destination that was refused, or asked about, while it was congested is free. Told once.
    fn uncongested(&self, destination: SocketAddr);

    /// The send buffer has room again after a send was refused for want of it. Told once.
    fn writable(&self);

    /// All of a batch was handed over, and is to be published. Returns who is to be woken once no lock is held. Called after all of the above,
    /// maybe more often than there is something to publish.
    fn flush(&self) -> Option<Arc<dyn Wake>>;

    /// Payload bytes and messages that were consumed and not reported yet. Each is reported once.
    fn take_consumed(&self) -> (u64, u64) {
        (0, 0)
    }

    /// Whether room is short, at this port or in the whole node: as long as it is, everything that is consumed is to be reported at once.
    fn pressed(&self, on: bool) {
        let _ = on;
    }

    /// The node is shut down: nothing will come any more.
    fn closed(&self) {}
}

/// A bound sink.
pub(crate) struct Bound {
    pub(crate) id: SocketId,
    pub(crate) local: SocketAddr,
    pub(crate) share: Arc<Share>,
    pub(crate) sink: Arc<dyn Sink>,
    congested: bool,
    /// Stands in the list of those to be flushed.
    touched: bool,
}

/// All sinks of a node.
#[derive(Default)]
pub(crate) struct Sinks {
    /// By [`SocketId::index`].
    table: Vec<Option<Bound>>,
    touched: Vec<SocketId>,
    /// Room is short in the whole node.
    pressure: bool,
    pub(crate) tally: Tally,
}

impl Sinks {
    pub(crate) fn add(&mut self, id: SocketId, local: SocketAddr, share: Arc<Share>, sink: Arc<dyn Sink>) {
        if self.pressure {
            sink.pressed(true);
        }
        let bound = Bound { id, local, share, sink, congested: false, touched: false };
        super::core::put(&mut self.table, id.index(), bound);
    }

    /// Takes a sink out; it is to be dropped where its owner's code may run.
    pub(crate) fn remove(&mut self, id: SocketId) -> Option<Bound> {
        self.get_mut(id)?;
        self.table[id.index()].take()
    }

    pub(crate) fn get(&self, id: SocketId) -> Option<&Bound> {
        self.table.get(id.index())?.as_ref().filter(|bound| bound.id == id)
    }

    fn get_mut(&mut self, id: SocketId) -> Option<&mut Bound> {
        self.table.get_mut(id.index())?.as_mut().filter(|bound| bound.id == id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Bound> {
        self.table.iter().flatten()
    }

    /// Hands something over; [`Sinks::flush`] must follow.
    pub(crate) fn tell(&mut self, id: SocketId, what: impl FnOnce(&dyn Sink)) {
        let Some(bound) = self.table.get_mut(id.index()).and_then(Option::as_mut).filter(|b| b.id == id)
        else {
            return;
        };
        if !std::mem::replace(&mut bound.touched, true) {
            self.touched.push(id);
        }
        what(&*bound.sink);
    }

    /// Has everything published that was handed over.
    pub(crate) fn flush(&mut self, wakes: &mut Wakes) {
        while let Some(id) = self.touched.pop() {
            let Some(bound) = self.get_mut(id) else { continue };
            bound.touched = false;
            if let Some(wake) = bound.sink.flush()
                && !wakes.doorbells.last().is_some_and(|last| Arc::ptr_eq(last, &wake))
            {
                wakes.doorbells.push(wake);
            }
        }
    }

    /// What a sink says was consumed.
    pub(crate) fn take_consumed(&mut self, id: SocketId) -> (u64, u64) {
        let (bytes, messages) = self.get(id).map(|bound| bound.sink.take_consumed()).unwrap_or_default();
        self.tally.freed += bytes;
        self.tally.delivered += messages;
        (bytes, messages)
    }

    /// The port's congestion has changed.
    pub(crate) fn set_congested(&mut self, id: SocketId, congested: bool) {
        let pressure = self.pressure;
        if let Some(bound) = self.get_mut(id) {
            bound.congested = congested;
            // Flushed as all else: what was consumed quietly until now is to be looked at, maybe nothing else comes.
            self.tell(id, |sink| sink.pressed(congested || pressure));
        }
    }

    /// Room in the node is short, or no longer.
    pub(crate) fn set_pressure(&mut self, on: bool) {
        self.pressure = on;
        let all: Vec<_> = self.iter().map(|bound| (bound.id, on || bound.congested)).collect();
        for (id, pressed) in all {
            self.tell(id, |sink| sink.pressed(pressed));
        }
    }

    /// Gives memory to a message that comes in pieces; false: it is to have some of the node's.
    pub(crate) fn place(&self, id: SocketId, message: &mut Filling) -> bool {
        let Some(bound) = self.get(id) else { return false };
        let Some(span) = bound.sink.memory(message.capacity()) else { return false };
        let owner = Arc::clone(&bound.sink);
        let fits = span.len() >= message.capacity() && span.memory().is_writable();
        let placed = Placed::new(span, owner);
        if fits {
            message.place_shared(placed);
        }
        fits
    }

    /// Delivers a message. Returns whether it is one that had better be read straight into the sink's memory.
    pub(crate) fn deliver(&mut self, id: SocketId, from: SocketAddr, body: Body<'_>) -> bool {
        let len = body.len();
        let mut copied = true;
        let own = match (&body, self.get(id)) {
            (_, None) => return false,
            (Body::Owned(message), Some(bound)) => message.is_of(&bound.sink),
            _ => false,
        };
        self.tell(id, |sink| match body {
            Body::Borrowed(bytes) => sink.deliver(from, Delivered::Bytes(bytes)),
            Body::Shared(span) => sink.deliver(from, Delivered::Shared(span)),
            Body::Owned(message) => match message.finish() {
                Ok(message) => {
                    copied = false;
                    sink.deliver(from, Delivered::Owned(message));
                }
                Err(placed) if own => {
                    copied = false;
                    sink.deliver(from, Delivered::Placed(placed.take()));
                }
                // The port was another's when the message began.
                Err(placed) => sink.deliver(from, Delivered::Shared(placed.span())),
            },
        });
        if copied {
            self.tally.copied += len as u64;
        }
        copied && len >= EXACT_READS
    }
}
