//! A bound socket: its settings and its ends.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::core::Core;
use super::mailbox::Mailbox;
use super::settings::Settings;
use super::shared::Shared;
use super::wait::Waits;
use super::{Engine, SendError};
use crate::buffer::Terms;
use crate::proto::SocketId;
use crate::zerocopy::{Mode, WhenFull};

/// A socket, bound to a port of a node. All calls take `&self` and may come from many threads.
///
/// Dropping it unbinds the port; what it has queued is still delivered. [`Socket::close`] cancels that, as the kernel does.
pub struct Socket {
    /// Keeps the node open, and is declared last so that it goes last.
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) settings: Settings,
    cancel_on_close: AtomicBool,
    engine: Engine,
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("local", &self.mailbox.local).finish_non_exhaustive()
    }
}

impl Socket {
    pub(super) fn new(engine: Engine, mailbox: Arc<Mailbox>) -> Self {
        Self { mailbox, settings: Settings::default(), cancel_on_close: AtomicBool::new(false), engine }
    }

    pub(super) fn shared(&self) -> &Shared {
        self.engine.shared()
    }

    pub(super) fn id(&self) -> SocketId {
        self.mailbox.id
    }

    /// The node to which it belongs.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Where it is bound.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.mailbox.local
    }

    /// Sets the default destination of [`Socket::send`]; sends nothing and filters nothing.
    ///
    /// # Errors
    /// `Refused`: not a unicast address of the node's family.
    pub fn connect(&self, destination: SocketAddr) -> Result<(), SendError> {
        self.settings.connect(self.mailbox.local.ip(), destination)
    }

    /// The default destination.
    #[must_use]
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.settings.peer()
    }

    /// Keeps the writable descriptor, if there is one, in step with the send buffer.
    pub(super) fn update_writable(&self, core: &mut Core) {
        if self.mailbox.has_writable() {
            let writable = core.node.watch_writable(self.id());
            self.mailbox.set_writable(&mut self.mailbox.back(), writable);
        }
    }

    /// Sets whether large messages to this socket are mapped when they are received, whatever the node and the path say; `None` for as they
    /// say. `On` maps what can be, also where it costs more and from peers on this host, which could change what they sent; `Off` copies. Applies
    /// to messages that come from now on.
    pub fn set_zero_copy_receive(&self, mode: impl Into<Option<Mode>>) {
        self.mailbox.set_receive_mode(mode.into());
    }

    /// Sets whether large payloads are sent without a copy, whatever the node and the path say; `None` for as they say. Applies to messages
    /// that are sent from now on.
    pub fn set_zero_copy_send(&self, mode: impl Into<Option<Mode>>) {
        self.settings.set_send_mode(mode.into());
    }

    /// How payloads of this socket are sent.
    pub(super) fn terms(&self) -> Terms {
        Terms { mode: self.settings.send_mode(), share: Some(Arc::clone(&self.mailbox.share)) }
    }

    /// Limits how long sends block; `None` (default) for ever.
    pub fn set_send_timeout(&self, timeout: Option<Duration>) {
        self.settings.set_send_timeout(timeout);
    }

    /// Limits how long receives block; `None` (default) for ever.
    pub fn set_recv_timeout(&self, timeout: Option<Duration>) {
        self.settings.set_recv_timeout(timeout);
    }

    /// Send buffer in payload bytes, not doubled. Default 1 MiB.
    pub fn set_send_buffer(&self, bytes: u64) {
        let mut core = self.shared().core();
        core.node.set_send_buffer(self.id(), bytes);
        self.update_writable(&mut core);
        self.shared().settle(core);
    }

    /// Receive buffer in payload bytes, not doubled. Default 1 MiB.
    pub fn set_recv_buffer(&self, bytes: u64) {
        let shared = self.shared();
        let mut core = shared.core();
        self.mailbox.set_receive_buffer(bytes);
        core.node.set_receive_buffer(self.id(), bytes);
        shared.settle(core);
    }

    /// Whether destinations that were refused as congested are reported when free
    /// ([`Received::CongestionCleared`](super::Received::CongestionCleared)). Only refusals of non-blocking sends count, as in
    /// the kernel.
    pub fn set_congestion_monitor(&self, on: bool) {
        let mut back = self.mailbox.back();
        back.monitor = on;
        if !on {
            back.armed = 0;
            back.cleared = 0;
            self.mailbox.settle_notices(&back);
        }
    }

    /// Accepted and without effect on TCP, as in the kernel.
    pub fn set_tos(&self, tos: u8) {
        let _ = tos;
    }

    /// Forgets this socket's messages to `destination`; what TCP has may still arrive. Returns how many.
    pub fn cancel_sent_to(&self, destination: SocketAddr) -> usize {
        self.cancel(Some(destination))
    }

    /// As [`Socket::cancel_sent_to`], for every destination.
    pub fn cancel_all(&self) -> usize {
        self.cancel(None)
    }

    fn cancel(&self, destination: Option<SocketAddr>) -> usize {
        let mut core = self.shared().core();
        let count = core.node.cancel(self.id(), destination);
        self.shared().settle(core);
        count
    }

    /// Blocks until nothing of this socket is queued or unacknowledged, or `deadline` has passed; whether it is so.
    pub fn flush(&self, deadline: Duration) -> bool {
        let shared = self.shared();
        shared
            .block(
                Instant::now().checked_add(deadline),
                true,
                |parker| {
                    let mut core = shared.core();
                    let drained = core.node.watch_drained(self.id());
                    if !drained {
                        self.mailbox.back().wait_send(parker);
                    }
                    drained.then_some(())
                },
                |parker| self.mailbox.forget(parker),
            )
            .is_some()
    }

    /// Blocks until `destination` is not congested or the timeout has passed; whether it is so.
    pub fn wait_uncongested(&self, destination: SocketAddr, timeout: Option<Duration>) -> bool {
        let shared = self.shared();
        shared
            .block(
                timeout.and_then(|t| Instant::now().checked_add(t)),
                true,
                |parker| {
                    let mut core = shared.core();
                    let congested = core.node.watch_congestion(self.id(), destination);
                    if congested {
                        self.mailbox.back().wait_send(parker);
                    }
                    shared.settle(core);
                    (!congested).then_some(())
                },
                |parker| self.mailbox.forget(parker),
            )
            .is_some()
    }

    /// Has a task woken, once, when something may have changed of what keeps sends from being taken, or all is sent, or the node has ended. An attempt
    /// after this that is refused has been heard of. `key`: one of [`task_key`](super::task_key), for [`Socket::unwatch`].
    #[doc(hidden)]
    pub fn watch_send(&self, key: u64, waker: &Waker) {
        let pins = &self.shared().pins;
        if pins.settings.when_full == WhenFull::Wait {
            pins.watch(key, waker);
        }
        self.mailbox.sending.add(key, waker);
    }

    /// Has a task woken, once, when the node has ended.
    #[doc(hidden)]
    pub fn watch_end(&self, key: u64, waker: &Waker) {
        self.mailbox.ending.add(key, waker);
    }

    /// Whether the node has ended, or the port is lost: nothing comes any more that is not there.
    #[doc(hidden)]
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.mailbox.back().closed
    }

    /// Ends what was asked for under the key.
    #[doc(hidden)]
    pub fn unwatch(&self, key: u64) {
        self.shared().pins.unwatch(key);
        self.mailbox.sending.remove(key);
        self.mailbox.ending.remove(key);
    }

    /// A descriptor that polls readable while a receive would return something. Level triggered; never read it.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn readable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.mailbox.readable_fd()
    }

    /// A descriptor that polls readable (POLLIN) while the send buffer has room. Level triggered; never read it.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn writable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        let mut core = self.shared().core();
        let fd = self.mailbox.writable_fd()?;
        self.update_writable(&mut core);
        Ok(fd)
    }

    /// Unbinds the port and cancels what is queued, as the kernel's close does.
    pub fn close(self) {
        self.cancel_on_close.store(true, Relaxed);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let drain = !self.cancel_on_close.load(Relaxed);
        let shared = self.engine.shared();
        let mut core = shared.core();
        core.node.close(self.mailbox.id, drain);
        core.remove_mailbox(self.mailbox.id);
        let tally = self.mailbox.front().tally;
        shared.stats.add_closed(tally);
        shared.settle(core);
    }
}
