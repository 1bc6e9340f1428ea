//! Sockets whose owner is a [`Sink`], and sending for many of them at once.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use super::core::Core;
use super::shared::Shared;
use super::sink::Sink;
use super::{Engine, send};
use crate::buffer::{Chunk, Owned, Terms};
use crate::proto::{BindError, Payload, Rejected, SocketId, Token};
use crate::zerocopy::{Cap, Share};

/// A socket, bound to a port of a node, of which a [`Sink`] gets what others queue. Keeps the node open.
///
/// Dropping it unbinds the port, and cancels what it has queued, as [`Port::close`] without draining.
pub struct Port {
    id: SocketId,
    local: SocketAddr,
    share: Arc<Share>,
    drain: bool,
    engine: Engine,
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("local", &self.local).finish_non_exhaustive()
    }
}

impl Port {
    /// Where it is bound.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// The node to which it belongs.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Its own part of what may be pinned, for payloads that are sent on nobody else's ([`Terms::share`]).
    #[must_use]
    pub fn share(&self) -> &Arc<Share> {
        &self.share
    }

    /// Unbinds the port. With `drain`, what is queued is still delivered. The sink is told nothing from here on; payloads that were lent are
    /// released when nobody reads them any more ([`OnRelease`](crate::buffer::OnRelease)).
    pub fn close(mut self, drain: bool) {
        self.drain = drain;
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let shared = self.engine.shared();
        let mut core = shared.core();
        core.node.close(self.id, self.drain);
        let bound = core.sinks.remove(self.id);
        shared.settle(core);
        drop(bound);
    }
}

impl Engine {
    /// Binds a port, 0 for any free one, to a sink: it gets what comes for the port, and how its messages end.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind_sink(&self, port: u16, sink: Arc<dyn Sink>) -> Result<Port, BindError> {
        let mut core = self.shared().core();
        let (id, port) = core.node.bind(port)?;
        let local = SocketAddr::new(self.address(), port);
        let share = self.pin_share(None);
        core.sinks.add(id, local, Arc::clone(&share), sink);
        drop(core);
        Ok(Port { id, local, share, drain: false, engine: self.clone() })
    }

    /// A part of what may be pinned for the node, to be shared by the payloads that name it ([`Terms::share`]): those of one client, say.
    /// `limit`: most bytes that it may have, as the kernel counts them, in whole pages; `None`: what is fair.
    #[must_use]
    pub fn pin_share(&self, limit: Option<u64>) -> Arc<Share> {
        let pins = &self.shared().pins;
        Arc::new(Share::with_limit(&pins.budget, pages(limit)))
    }

    /// As [`Engine::pin_share`], which together with all others within `cap` holds no more than that.
    #[must_use]
    pub fn pin_share_within(&self, limit: Option<u64>, cap: &Arc<Cap>) -> Arc<Share> {
        Arc::new(Share::with_limit(&self.shared().pins.budget, pages(limit)).within(cap))
    }

    /// What a part holds now, and the most that it may, in bytes as the kernel counts them; `None`: what the node may.
    #[must_use]
    pub fn pinned(&self, share: &Share) -> (u64, Option<u64>) {
        let pins = &self.shared().pins;
        (pins.bytes(share.used()), share.limit().map(|pages| pins.bytes(pages)))
    }

    /// What several parts of what may be pinned may have together: those of one user's clients, say. `limit` in bytes, as the kernel counts
    /// them; `None`: what the node may.
    #[must_use]
    pub fn pin_cap(&self, limit: Option<u64>) -> Arc<Cap> {
        Cap::new(pages(limit))
    }

    /// Gives a part of what may be pinned another limit, in bytes as the kernel counts them; `None`: what is fair. What it has beyond a lower one it
    /// keeps until the kernel lets it go.
    pub fn set_pin_share(&self, share: &Share, limit: Option<u64>) {
        share.set_limit(pages(limit));
        self.shared().pins.wake();
    }

    /// The same, of several parts together.
    pub fn set_pin_cap(&self, cap: &Cap, limit: Option<u64>) {
        cap.set_limit(pages(limit));
        self.shared().pins.wake();
    }

    /// Bytes that the kernel may have pinned for the node; `None` without a limit.
    #[must_use]
    pub fn pin_limit(&self) -> Option<u64> {
        self.shared().pins.info(std::iter::empty()).pin_limit
    }

    /// Runs `f` with the node's lock held, and then transmits: many sends cost one lock and few writes. `f` must be short, and must not call the
    /// engine, a socket or a port.
    pub fn batch<R>(&self, f: impl FnOnce(&mut Batch<'_>) -> R) -> R {
        let shared = self.shared();
        let mut core = shared.core();
        let result = f(&mut Batch { core: &mut core, shared });
        core.flush_sinks();
        shared.settle(core);
        result
    }
}

/// The node under its lock, for calls on many ports; see [`Engine::batch`].
pub struct Batch<'a> {
    core: &'a mut Core,
    shared: &'a Shared,
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").finish_non_exhaustive()
    }
}

impl Batch<'_> {
    fn id(&self, port: &Port) -> SocketId {
        assert!(std::ptr::eq(port.engine.shared(), self.shared), "a port of this very node");
        port.id
    }

    /// Queues a message. A payload that is copied is so before this returns; one that is lent ([`Chunk::shared`]) is sent from where it
    /// lies. A destination on this node gets it at once. What the kernel may not pin for want of room is copied, whatever the node's settings
    /// say of that.
    ///
    /// # Errors
    /// Nothing was queued: the reason, and the payload ([`Chunk::withdraw`] takes one back of which nobody is to be told). After
    /// `Congested`, [`Sink::uncongested`] follows; after `Full`, [`Sink::writable`].
    ///
    /// # Panics
    /// If the port belongs to another node; as do the other calls.
    pub fn send<'p>(
        &mut self,
        port: &Port,
        destination: SocketAddr,
        payload: Payload<'p>,
        token: Option<Token>,
    ) -> Result<(), Rejected<'p>> {
        let (id, len) = (self.id(port), payload.len());
        let copies = !matches!(payload, Payload::Owned(_));
        // A large one gets page-aligned memory that is used again.
        let pooled = match &payload {
            Payload::Shared(span)
                if len > send::COPY_OUTSIDE
                    && len <= self.shared.options.config.max_message as usize
                    && destination.ip() != port.local.ip()
                    && self.core.node.may_send(id, destination) =>
            {
                let mut buffer = self.shared.pool.take(len);
                span.copy_to(&mut buffer);
                Some(Chunk::of(Owned::from(buffer).lend_on(None, Terms::default(), 0)))
            }
            _ => None,
        };
        let (node, mut inbox) = self.core.with_batch_inbox();
        let result = match pooled {
            Some(chunk) => node
                .send(id, destination, Payload::Owned(chunk), token, &mut inbox)
                .map_err(|rejected| Rejected { error: rejected.error, payload }),
            None => node.send(id, destination, payload, token, &mut inbox),
        };
        drop(inbox);
        if copies && result.is_ok() {
            self.core.copied_in += len as u64;
        }
        result
    }

    /// Reports what was taken of what the port's sink got: so much of its receive buffer is free again.
    pub fn consumed(&mut self, port: &Port, bytes: u64, messages: u64) {
        let id = self.id(port);
        self.core.sinks.tally.freed += bytes;
        self.core.sinks.tally.delivered += messages;
        self.core.node.consumed(id, bytes, messages);
    }

    /// Cancels messages to `destination`, or to all, of which `mine` says so by their tokens. Returns how many.
    pub fn cancel(
        &mut self,
        port: &Port,
        destination: Option<SocketAddr>,
        mine: impl FnMut(Option<Token>) -> bool,
    ) -> usize {
        let id = self.id(port);
        self.core.node.cancel_if(id, destination, mine)
    }

    /// Whether `destination` is congested; if so, [`Sink::uncongested`] follows, once.
    pub fn watch_congestion(&mut self, port: &Port, destination: SocketAddr) -> bool {
        let id = self.id(port);
        self.core.node.watch_congestion(id, destination)
    }

    /// Whether the port's send buffer has room; if not, [`Sink::writable`] follows, once.
    pub fn watch_writable(&mut self, port: &Port) -> bool {
        let id = self.id(port);
        self.core.node.watch_writable(id)
    }

    /// Send buffer in payload bytes. Default 1 MiB; at least 1.
    pub fn set_send_buffer(&mut self, port: &Port, bytes: u64) {
        let id = self.id(port);
        self.core.node.set_send_buffer(id, bytes);
    }

    /// Receive buffer in payload bytes. Default 1 MiB; at least 1. A larger one may end the port's congestion at once.
    pub fn set_receive_buffer(&mut self, port: &Port, bytes: u64) {
        let id = self.id(port);
        self.core.node.set_receive_buffer(id, bytes);
    }
}

/// Whole pages of a limit in bytes.
fn pages(limit: Option<u64>) -> u64 {
    limit.map_or(u64::MAX, |bytes| bytes / crate::sys::limits::page_size() as u64)
}
