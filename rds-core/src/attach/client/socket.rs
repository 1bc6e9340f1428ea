//! A socket of an attached node: its settings and its ends.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::super::{Status, Submission};
use super::core::{Call, Core, Request};
use super::handle::Client;
use super::seat::{Place, Seat};
use super::shared::{Shared, is_finishing};
use crate::engine::inlet::{Fills, Inlet};
use crate::engine::mailbox::Mailbox;
use crate::engine::parker::Parker;
use crate::engine::settings::Settings;
use crate::engine::wait::Waits;
use crate::engine::{Completion, Event, Readiness, Received, RecvError, SendError};
use crate::zerocopy::Mode;

/// How long a close may take to be answered. The daemon that tests play answers nothing by itself.
const CLOSING: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });
/// How long a setting may take to be answered.
const SETTING: Duration = Duration::from_secs(1);

/// A socket of an attached node, bound to a port of the daemon's. All calls take `&self` and may come from many threads. They do what those of
/// [`engine::Socket`](crate::engine::Socket) do; where the daemon comes in, it is said.
///
/// Dropping it unbinds the port, which waits up to 1 s for the daemon's answer; what it has handed over is still delivered. [`Socket::close`] cancels that, as the kernel does.
pub struct Socket {
    pub(super) mailbox: Arc<Mailbox>,
    pub(super) number: u32,
    pub(super) settings: Settings,
    cancel_on_close: AtomicBool,
    pub(super) shared: Arc<Shared>,
    /// Keeps the node attached, and is declared last so that it goes last.
    client: Client,
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("local", &self.mailbox.local).finish_non_exhaustive()
    }
}

impl Socket {
    pub(super) fn new(client: Client, mailbox: Arc<Mailbox>, number: u32) -> Self {
        Self {
            mailbox,
            number,
            settings: Settings::default(),
            cancel_on_close: AtomicBool::new(false),
            shared: Arc::clone(client.shared()),
            client,
        }
    }

    /// The node to which it belongs.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
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

    // ---- receiving -----------------------------------------------------------------------------------------------

    fn inlet(&self) -> Inlet<'_, Shared> {
        Inlet { host: &self.shared, mailbox: &self.mailbox }
    }

    /// Receives into `buffer`, blocking up to the receive timeout. Cleared congestion comes before messages.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn recv_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        self.inlet().recv_from(buffer, || self.settings.recv_deadline())
    }

    /// As [`Socket::recv_from`], without blocking.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn try_recv_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        self.inlet().try_recv_from(buffer)
    }

    /// Receives a message in the memory into which the daemon received it; blocks up to the receive timeout.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn recv_lease(&self) -> Result<Event, RecvError> {
        self.inlet().recv_lease(|| self.settings.recv_deadline())
    }

    /// As [`Socket::recv_lease`], without blocking.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn try_recv_lease(&self) -> Result<Event, RecvError> {
        self.inlet().try_recv_lease()
    }

    /// Copies the oldest message and leaves it queued (kernel: MSG_PEEK). Does not block.
    ///
    /// # Errors
    /// [`RecvError`].
    pub fn peek_from(&self, buffer: &mut [u8]) -> Result<Received, RecvError> {
        self.inlet().peek_from(buffer)
    }

    /// Length of the oldest message in bytes, if any has come.
    #[must_use]
    pub fn next_len(&self) -> Option<usize> {
        self.inlet().next_len()
    }

    /// Blocks until one of the `interest` is there or the timeout has passed.
    pub fn wait(&self, interest: Readiness, timeout: Option<Duration>) -> Readiness {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        self.inlet().wait(interest, deadline, |parker| {
            let core = self.shared.core();
            let writable = core.seat(self.number).is_none_or(Seat::is_writable);
            if !writable {
                self.mailbox.back().wait_send(parker);
            }
            writable
        })
    }

    /// Appends all completions that are there to `out`, oldest first, and returns how many. Does not block.
    pub fn completions(&self, out: &mut Vec<Completion>) -> usize {
        self.inlet().completions(out)
    }

    /// As [`Socket::completions`], blocking until there is one, the timeout has passed (`None`: never), or the node is shut down; 0 in
    /// the latter two cases.
    pub fn wait_completions(&self, out: &mut Vec<Completion>, timeout: Option<Duration>) -> usize {
        self.inlet().wait_completions(out, timeout.and_then(|t| Instant::now().checked_add(t)))
    }

    // ---- settings ------------------------------------------------------------------------------------------------

    /// Sets whether large payloads are sent without a copy, whatever the daemon's paths say; `None` for as they say. Applies to messages
    /// that are sent from now on.
    pub fn set_zero_copy_send(&self, mode: impl Into<Option<Mode>>) {
        self.settings.set_send_mode(mode.into());
    }

    /// Without effect: messages lie where the daemon received them in any case.
    pub fn set_zero_copy_receive(&self, mode: impl Into<Option<Mode>>) {
        let _ = mode.into();
    }

    /// Limits how long sends block; `None` (default) for ever.
    pub fn set_send_timeout(&self, timeout: Option<Duration>) {
        self.settings.set_send_timeout(timeout);
    }

    /// Limits how long receives block; `None` (default) for ever.
    pub fn set_recv_timeout(&self, timeout: Option<Duration>) {
        self.settings.set_recv_timeout(timeout);
    }

    /// Send buffer in payload bytes, not doubled. Default 1 MiB. The daemon may grant less than is asked for, as the kernel does. Waits for its
    /// answer, up to 1 s.
    pub fn set_send_buffer(&self, bytes: u64) {
        self.set(|seat| {
            seat.send_buffer = bytes;
            // Until more is granted.
            seat.account.limit = seat.account.limit.min(bytes);
            seat.unsaid.send_buffer = true;
        });
    }

    /// Receive buffer in payload bytes, not doubled. Default 1 MiB. Granted as the send buffer is.
    pub fn set_recv_buffer(&self, bytes: u64) {
        self.mailbox.set_receive_buffer(bytes);
        self.set(|seat| {
            seat.receive_buffer = bytes;
            seat.unsaid.receive_buffer = true;
        });
    }

    fn set(&self, change: impl FnOnce(&mut Seat)) {
        let mut core = self.shared.core();
        if let Some(seat) = core.seat_mut(self.number) {
            change(seat);
        }
        core.say(self.number);
        core.update_writable(self.number);
        self.shared.settle(core, true);
        // A call after it finds it done, at the daemon too.
        let asked = |core: &Core| {
            core.is_attached()
                && core
                    .requests
                    .values()
                    .any(|r| matches!(r, Request::Set { socket, .. } if *socket == self.number))
        };
        self.shared.block(
            Instant::now().checked_add(SETTING),
            true,
            |parker| {
                let core = self.shared.core();
                let asked = asked(&core);
                if asked {
                    self.mailbox.back().wait_send(parker);
                }
                (!asked).then_some(())
            },
            |parker| self.mailbox.forget(parker),
        );
    }

    /// Whether destinations that were refused as congested are reported when free
    /// ([`Received::CongestionCleared`]). Only refusals of non-blocking sends count, as in the kernel. A daemon that goes away clears all.
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

    // ---- ends ----------------------------------------------------------------------------------------------------

    /// Forgets this socket's messages to `destination`; what TCP has may still arrive. Returns how many. Blocks until the daemon has
    /// answered; 0 if it goes away meanwhile.
    pub fn cancel_sent_to(&self, destination: SocketAddr) -> usize {
        self.cancel(Some(destination))
    }

    /// As [`Socket::cancel_sent_to`], for every destination.
    pub fn cancel_all(&self) -> usize {
        self.cancel(None)
    }

    fn cancel(&self, to: Option<SocketAddr>) -> usize {
        // Without a daemon all of it has ended.
        let call = Call { at_once: true, ..Call::default() };
        let socket = self.number;
        let answer = self.shared.ask(None, call, |request| Submission::Cancel { request, socket, to });
        answer.map_or(0, |answer| usize::try_from(answer.value).unwrap_or(usize::MAX))
    }

    /// Blocks until nothing of this socket is queued or unacknowledged, or `deadline` has passed; whether it is so. What a daemon that went
    /// away left unfinished has ended.
    pub fn flush(&self, deadline: Duration) -> bool {
        self.shared
            .block(
                Instant::now().checked_add(deadline),
                true,
                |parker| {
                    let core = self.shared.core();
                    let drained = core.seat(self.number).is_none_or(|seat| seat.account.is_drained());
                    if !drained {
                        self.mailbox.back().wait_send(parker);
                    }
                    drained.then_some(())
                },
                |parker| self.mailbox.forget(parker),
            )
            .is_some()
    }

    /// Blocks until `destination` is not congested or the timeout has passed; whether it is so. Asks the daemon; false while there is none.
    pub fn wait_uncongested(&self, destination: SocketAddr, timeout: Option<Duration>) -> bool {
        let deadline = timeout.and_then(|t| Instant::now().checked_add(t));
        loop {
            if !self.wait_told(destination, deadline) {
                return false;
            }
            let socket = self.number;
            let watch = |request| Submission::Watch { request, socket, to: destination };
            let call = Call { watched: Some((socket, destination)), ..Call::default() };
            match self.shared.ask(deadline, call, watch) {
                // It will be told.
                Some(answer) if answer.status == Status::Ok && answer.value == 1 => {}
                Some(_) => return true,
                // A new daemon is asked again.
                None if deadline.is_some_and(|at| Instant::now() >= at) || self.shared.is_stopped() => {
                    return false;
                }
                None => {}
            }
        }
    }

    /// Blocks until nothing is known that keeps messages from `destination`.
    fn wait_told(&self, destination: SocketAddr, deadline: Option<Instant>) -> bool {
        self.shared
            .block(
                deadline,
                true,
                |parker| {
                    let core = self.shared.core();
                    let ready = match core.seat(self.number) {
                        Some(seat) if seat.place == Place::Bound && core.is_attached() => {
                            !seat.congested.contains(&destination)
                        }
                        Some(seat) => matches!(seat.place, Place::Lost(_)),
                        None => true,
                    };
                    if !ready {
                        self.mailbox.back().wait_send(parker);
                    }
                    ready.then_some(())
                },
                |parker| self.mailbox.forget(parker),
            )
            .is_some()
    }

    /// Has a task woken, once, when something may have changed of what keeps sends from being taken, or all is sent, or the node has ended. An attempt
    /// after this that is refused has been heard of. `key`: one of [`task_key`](crate::engine::task_key), for [`Socket::unwatch`].
    #[doc(hidden)]
    pub fn watch_send(&self, key: u64, waker: &Waker) {
        // Somebody has to hear of it while no caller does.
        self.shared.listen();
        self.mailbox.sending.add(key, waker);
        let link = self.shared.core().line.as_ref().map(|line| Arc::clone(&line.link));
        if let Some(link) = link {
            link.tasks.add(key, waker);
        }
    }

    /// Has a task woken, once, when the node has ended.
    #[doc(hidden)]
    pub fn watch_end(&self, key: u64, waker: &Waker) {
        self.shared.listen();
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
        self.mailbox.sending.remove(key);
        self.mailbox.ending.remove(key);
        let link = self.shared.core().line.as_ref().map(|line| Arc::clone(&line.link));
        if let Some(link) = link {
            link.tasks.remove(key);
        }
    }

    /// A descriptor that polls readable while a receive would return something. Level triggered; never read it. From the first one on, a
    /// thread of the node brings in what comes while no caller does.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn readable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        let fd = self.mailbox.readable_fd()?;
        self.shared.listen();
        // What has come already.
        self.shared.fetch(&self.mailbox);
        Ok(fd)
    }

    /// A descriptor that polls readable (POLLIN) while a send might be taken: the send buffer and the ring have room, and there is a daemon.
    /// Level triggered; never read it.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn writable_fd(&self) -> io::Result<BorrowedFd<'_>> {
        let mut core = self.shared.core();
        let fd = self.mailbox.writable_fd()?;
        core.update_writable(self.number);
        drop(core);
        self.shared.listen();
        Ok(fd)
    }

    /// A descriptor that polls readable while there are completions. Level triggered; never read it.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn completion_fd(&self) -> io::Result<BorrowedFd<'_>> {
        let fd = self.mailbox.completion_fd()?;
        self.shared.listen();
        self.shared.fetch(&self.mailbox);
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
        let copied = self.mailbox.front().tally.copied;
        let mut core = self.shared.core();
        core.counts.copied_out += copied;
        let attached = core.is_attached() && !self.shared.is_forked();
        if let Some(seat) = core.seat_mut(self.number) {
            seat.mailbox = None;
            let known = attached && !matches!(seat.place, Place::Lost(_) | Place::Refused(_));
            if known {
                seat.place = Place::Closing;
                seat.unsaid.close = Some(drain);
                core.say(self.number);
            } else {
                core.book.forget(self.number);
                core.remove_seat(self.number);
            }
        }
        let closing = core.seat(self.number).is_some();
        self.shared.settle(core, true);
        if !closing || is_finishing() {
            return;
        }
        // The port is free afterwards, also for others; unless the daemon does not answer.
        let gone = |parker: &Arc<Parker>| {
            let mut core = self.shared.core();
            let Some(seat) = core.seat_mut(self.number) else { return Some(()) };
            if !seat.waiters.iter().any(|p| Arc::ptr_eq(p, parker)) {
                seat.waiters.push(Arc::clone(parker));
            }
            None
        };
        let forget = |parker: &Arc<Parker>| {
            if let Some(seat) = self.shared.core().seat_mut(self.number) {
                seat.waiters.retain(|p| !Arc::ptr_eq(p, parker));
            }
        };
        self.shared.block(Instant::now().checked_add(CLOSING), true, gone, forget);
    }
}
