//! An attached node as a program holds it: attaching, binding, looking, shutting down.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::super::{Hello, Sharing, Status, Submission};
use super::book::Account;
use super::core::{Call, Core, Request};
use super::options::{AttachOptions, Attachment};
use super::seat::{Place, Seat, Unsaid};
use super::shared::Shared;
use super::{Socket, reattach};
use crate::buffer::PoolBuffer;
use crate::engine::mailbox::{Taken, Wakes};
use crate::engine::queue::Queue;
use crate::engine::wait::Waits;
use crate::engine::{OpenError, ShutdownReport};
use crate::info::{Counter, NodeStatus, Snapshot};
use crate::proto::BindError;
use crate::zerocopy::Mode;

/// How long the last handle that goes drains the node. The daemon that tests play answers nothing by itself.
const DROP_DEADLINE: Duration = Duration::from_millis(if cfg!(test) { 10 } else { 1000 });
/// How long the daemon may take to answer to a bind or a snapshot, or be away meanwhile.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a shutdown waits for the ends of what it cancels.
const CANCEL_DEADLINE: Duration = Duration::from_secs(1);
/// Default send and receive buffer of a socket.
const BUFFER: u64 = 1 << 20;

/// An answer of the daemon's.
pub(super) struct Answer {
    pub(super) status: Status,
    pub(super) value: u64,
    pub(super) body: Vec<u8>,
}

/// One node of a daemon, as this program is attached to it. Cheap to clone; the last clone that goes, sockets included, drains it
/// ([`Client::shutdown`] with 1 s).
///
/// When the daemon goes away, everything unfinished is unknown; the node attaches again by itself, at once and then after pauses that grow from 10 ms to
/// 1 s, and binds its ports again. Blocking calls go on waiting, up to their timeouts.
///
/// A process that was forked has none of the threads, and must leave what it inherited alone: replace itself (execve), or exit.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client")
            .field("path", &self.0.shared.path)
            .field("address", &self.address())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Attaches to a daemon. Blocks until it has answered, up to 5 s.
    ///
    /// # Errors
    /// [`OpenError::Attach`]: no daemon there, or it refuses. [`OpenError::Io`]: no descriptors or threads.
    pub fn open(options: AttachOptions) -> Result<Self, OpenError> {
        let path = options.path.clone();
        let hello = Hello {
            address: options.address.map(Into::into),
            stream: options.without_shared_memory,
            submission_ring: options.rings,
            completion_ring: options.rings,
            send_arena: options.send_arena,
            receive_arena: options.receive_arena,
            program: options.program,
        };
        let attached = reattach::attach(&path, &hello)
            .map_err(|source| OpenError::Attach { path: path.clone(), source })?;
        let address = attached.welcome.address.ip;
        let hello = Hello { address: Some(attached.welcome.address), ..hello };
        let io = |source| OpenError::Io { address: SocketAddr::new(address, 0), source };
        let shared = Shared::new(path, hello, address, options.busy_poll).map_err(io)?;
        reattach::install(&shared, attached);
        let keeper = reattach::keep(&shared).map_err(io)?;
        Ok(Self(Arc::new(Inner { shared, keeper: Mutex::new(Some(keeper)) })))
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.0.shared
    }

    /// The node's address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.0.shared.core().address
    }

    /// How it stands with its daemon.
    #[must_use]
    pub fn attachment(&self) -> Attachment {
        let core = self.0.shared.core();
        Attachment {
            attached: core.is_attached(),
            reattachments: core.reattachments,
            unknown: core.unknown,
            shares_memory: core.line.as_ref().is_some_and(|line| line.link.send_arena.is_some()),
        }
    }

    /// A page-aligned buffer of `len` bytes of the memory that is shared with the daemon, to be filled and sent ([`Socket::send_owned`])
    /// without a copy. Its contents are unspecified. While that memory is full, or there is none, it is of this process alone, and what is sent from it
    /// is copied. Does not block.
    #[must_use]
    pub fn buffer(&self, len: usize) -> PoolBuffer {
        let shared = &self.0.shared;
        let link = shared.core().line.as_ref().map(|line| Arc::clone(&line.link));
        let lent = link.and_then(|link| {
            let first = link.buffer(len);
            // What is free again may not have been looked at.
            first.or_else(|| if shared.drain() { link.buffer(len) } else { None })
        });
        lent.unwrap_or_else(|| shared.pool.take(len))
    }

    /// Binds a socket to `port` of the node's address; 0 for any free one. Blocks until the daemon has answered, up to 10 s.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(&self, port: u16) -> Result<Socket, BindError> {
        self.bind_shared(port, Sharing::Exclusive)
    }

    /// As [`Client::bind`], a port that others may have too. All of them say the same `sharing`.
    ///
    /// # Errors
    /// [`BindError`]; `InUse` also when somebody has the port and shares it otherwise.
    pub fn bind_shared(&self, port: u16, sharing: Sharing) -> Result<Socket, BindError> {
        let shared = &self.0.shared;
        let mut core = shared.core();
        if core.shutting_down {
            return Err(BindError::ShuttingDown);
        }
        let number = core.free_number()?;
        core.add_seat(Seat {
            number,
            port,
            sharing,
            place: Place::Wanted,
            mailbox: None,
            account: Account::new(BUFFER),
            send_buffer: BUFFER,
            receive_buffer: BUFFER,
            congested: HashSet::new(),
            unsaid: Unsaid { bind: true, ..Unsaid::default() },
            taken: Taken::default(),
            owed: Taken::default(),
            stale: Taken::default(),
            starved: false,
            early: Queue::default(),
            waiters: Vec::new(),
        });
        if core.is_attached() {
            core.say(number);
        }
        shared.settle(core, true);
        let result = shared.block(
            Instant::now().checked_add(ANSWER),
            true,
            |parker| {
                let mut core = shared.core();
                let seat = core.seat_mut(number)?;
                match seat.place {
                    Place::Wanted => {
                        if !seat.waiters.iter().any(|p| Arc::ptr_eq(p, parker)) {
                            seat.waiters.push(Arc::clone(parker));
                        }
                        None
                    }
                    Place::Refused(error) => Some(Err(error)),
                    _ => seat.mailbox.clone().map(Ok),
                }
            },
            |parker| {
                if let Some(seat) = shared.core().seat_mut(number) {
                    seat.waiters.retain(|p| !Arc::ptr_eq(p, parker));
                }
            },
        );
        let mut core = shared.core();
        let error = match result {
            Some(Ok(mailbox)) => {
                drop(core);
                return Ok(Socket::new(self.clone(), mailbox, number));
            }
            Some(Err(error)) => error,
            None if shared.is_stopped() => BindError::ShuttingDown,
            None => BindError::Unreachable,
        };
        core.abandon(number);
        shared.settle(core, true);
        Err(error)
    }

    /// The daemon's node at this moment, with what this program alone counts: its copies, and sends that were refused here. With `queues`, every queued
    /// message is listed. Blocks until the daemon has answered, up to 10 s.
    ///
    /// # Errors
    /// What came of it: no answer in time, or none that this version understands.
    pub fn snapshot(&self, queues: bool) -> std::io::Result<Snapshot> {
        self.status(queues).map(|status| status.node)
    }

    /// The same, with the programs that are attached and the ports that are bound.
    ///
    /// # Errors
    /// As [`Client::snapshot`].
    pub fn status(&self, queues: bool) -> std::io::Result<NodeStatus> {
        let call = Call { partial: true, ..Call::default() };
        let deadline = Instant::now().checked_add(ANSWER);
        self.0.shared.report_all();
        let answer = self.0.shared.ask(deadline, call, |request| Submission::Snapshot { request, queues });
        let answer = answer.ok_or(std::io::ErrorKind::TimedOut)?;
        if answer.status != Status::Ok {
            let why = String::from_utf8_lossy(&answer.body).into_owned();
            return Err(std::io::Error::other(why));
        }
        let mut status: NodeStatus = serde_json::from_slice(&answer.body).map_err(std::io::Error::other)?;
        let core = self.0.shared.core();
        let sockets = core.seats.iter().flatten().filter_map(|seat| seat.mailbox.as_ref());
        let copied_out: u64 = sockets.map(|mailbox| mailbox.front().tally.copied).sum();
        let (own, counters) = (core.counts, &mut status.node.counters);
        counters.add(Counter::CopyFromUser, own.copied_in);
        counters.add(Counter::CopyToUser, own.copied_out + copied_out);
        counters.add(Counter::SendQueueFull, own.full);
        counters.add(Counter::CongSendError, own.congested);
        counters.add(Counter::CongSendBlocked, own.waits);
        Ok(status)
    }

    /// What is known without the daemon: the address, and the program's own sockets.
    #[must_use]
    pub fn own_snapshot(&self) -> Snapshot {
        let core = self.0.shared.core();
        let sockets = core.seats.iter().flatten().filter(|seat| seat.mailbox.is_some());
        let mut sockets: Vec<_> = sockets.map(|seat| seat.info(core.address)).collect();
        sockets.sort_by_key(|socket| socket.bound.port());
        Snapshot::of_sockets(core.address, sockets)
    }

    /// Sets whether large payloads to and from a peer are sent and received without a copy, instead of as the daemon's settings say, for as long as the
    /// daemon lives; `None` for as they say. A daemon may refuse it to users that are not its own.
    pub fn set_zero_copy(&self, peer: IpAddr, send: Option<Mode>, receive: Option<Mode>) {
        let modes = |request| Submission::SetPeerModes { request, peer, send, receive };
        let deadline = Instant::now().checked_add(ANSWER);
        let answer = self.0.shared.ask(deadline, Call::default(), modes);
        if answer.is_none_or(|answer| answer.status != Status::Ok) {
            tracing::warn!(%peer, "the daemon did not take the modes of zero copy");
        }
    }

    /// Refuses new sends, waits up to `deadline` until what was sent has ended, cancels the rest, and lets the daemon go: its connections
    /// stay, as other programs use them. When this returns, every message has all its [completions](crate::engine::Completion). Afterwards
    /// receives return what is queued, then [`Shutdown`](crate::engine::RecvError::Shutdown).
    pub fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        self.0.shutdown(deadline)
    }
}

impl Core {
    /// A bind that nobody waits for any more.
    fn abandon(&mut self, number: u32) {
        let attached = self.is_attached();
        if let Some(seat) = self.seat_mut(number) {
            if attached && !matches!(seat.place, Place::Refused(_)) && !seat.unsaid.bind {
                seat.place = Place::Closing;
                seat.unsaid.close = Some(false);
                self.say(number);
            } else {
                self.remove_seat(number);
            }
        }
    }

    /// Messages that have not ended.
    fn unfinished(&self) -> u64 {
        self.seats.iter().flatten().map(|seat| seat.account.messages()).sum()
    }
}

impl Shared {
    /// Reports what was taken until now, of every socket.
    fn report_all(&self) {
        let mut core = self.core();
        let seats = core.seats.iter().flatten();
        let mailboxes: Vec<_> = seats.filter_map(|seat| Some((seat.number, seat.mailbox.clone()?))).collect();
        for (number, mailbox) in mailboxes {
            let taken = mailbox.take_all(&mut mailbox.front());
            if taken.messages > 0
                && let Some(seat) = core.seat_mut(number)
            {
                seat.took(taken);
                core.say(number);
            }
        }
        self.settle(core, false);
    }

    /// Asks the daemon something, and waits for the answer until the deadline. `None`: none came, or none can.
    pub(super) fn ask(
        &self,
        deadline: Option<Instant>,
        call: Call,
        record: impl Fn(u32) -> Submission,
    ) -> Option<Answer> {
        let mut number = None;
        let mut call = Some(call);
        let answer = self.block(
            deadline,
            true,
            |parker| {
                let mut core = self.core();
                let Some(request) = number else {
                    if !core.is_attached() {
                        if call.as_ref().is_some_and(|call| call.at_once) {
                            return Some(None);
                        }
                        core.room.push(Arc::clone(parker));
                        return None;
                    }
                    let mut new = call.take()?;
                    new.waiter = Some(Arc::clone(parker));
                    let request = core.request(Request::Call(new));
                    if core.push(&record(request)) {
                        number = Some(request);
                    } else {
                        if let Some(Request::Call(back)) = core.requests.remove(&request) {
                            call = Some(back);
                        }
                        core.room.push(Arc::clone(parker));
                        if let Some(line) = &mut core.line {
                            line.producer.want_room(0);
                        }
                    }
                    self.settle(core, true);
                    return None;
                };
                match core.requests.get_mut(&request) {
                    // The daemon it was asked of is gone.
                    None => Some(None),
                    Some(Request::Call(call)) => match call.answer.take() {
                        Some((status, value)) => {
                            let body = std::mem::take(&mut call.body);
                            Some(Some(Answer { status, value, body }))
                        }
                        None => {
                            call.waiter = Some(Arc::clone(parker));
                            None
                        }
                    },
                    Some(_) => None,
                }
            },
            |parker| self.core().room.retain(|p| !Arc::ptr_eq(p, parker)),
        );
        if let Some(request) = number {
            self.core().requests.remove(&request);
        }
        answer.flatten()
    }

    /// Blocks until every message has ended.
    fn wait_drained(&self, limit: Duration) {
        let forget = |parker: &Arc<_>| {
            let core = self.core();
            core.seats
                .iter()
                .flatten()
                .filter_map(|seat| seat.mailbox.as_ref())
                .for_each(|m| m.forget(parker));
        };
        self.block(
            Instant::now().checked_add(limit),
            true,
            |parker| {
                let core = self.core();
                let seats = core.seats.iter().flatten();
                seats.filter_map(|seat| seat.mailbox.as_ref()).for_each(|m| m.back().wait_send(parker));
                (core.unfinished() == 0).then_some(())
            },
            forget,
        );
    }
}

impl Inner {
    fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        let shared = &*self.shared;
        if shared.is_forked() {
            // The threads are not here, and the memory is the parent's.
            shared.stopped.store(true, SeqCst);
            return ShutdownReport { undelivered: 0 };
        }
        {
            let mut core = shared.core();
            core.shutting_down = true;
        }
        shared.wait_drained(deadline);
        let (unfinished, undelivered) = {
            let mut core = shared.core();
            let unfinished = core.unfinished();
            core.cancelled += unfinished;
            // What another shutdown has cancelled meanwhile, too.
            (unfinished, core.cancelled)
        };
        if unfinished > 0 {
            let numbers: Vec<_> = shared.core().seats.iter().flatten().map(|seat| seat.number).collect();
            let until = Instant::now().checked_add(CANCEL_DEADLINE);
            for socket in numbers {
                let cancel = |request| Submission::Cancel { request, socket, to: None };
                let attached = shared.core().is_attached();
                if !attached || shared.ask(until, Call::default(), cancel).is_none() {
                    break;
                }
            }
            let left = until.map_or(CANCEL_DEADLINE, |at| at.saturating_duration_since(Instant::now()));
            shared.wait_drained(left);
        }
        shared.halt();
        // It ends by itself, at once or when a daemon that it asks has answered; nobody waits for that.
        drop(self.keeper.lock().unwrap_or_else(PoisonError::into_inner).take());
        let background = shared.background.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(background) = background
            && background.thread().id() != std::thread::current().id()
        {
            // It ends with the flag that was set; if it panicked, that was reported where it happened.
            let _ = background.join();
        }
        ShutdownReport { undelivered }
    }
}

impl Shared {
    /// Ends the attachment and every wait, for good.
    fn halt(&self) {
        let mut inbox = self.inbox();
        self.stopped.store(true, SeqCst);
        let after = self.detach(&mut inbox, "the node is shut down");
        drop(inbox);
        after.run(self);
        let (halted, changed) = &self.halt;
        *halted.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
        self.right.stop();
        let core = self.core();
        let mailboxes: Vec<_> = core.seats.iter().flatten().filter_map(|seat| seat.mailbox.clone()).collect();
        drop(core);
        let mut wakes = Wakes::default();
        mailboxes.iter().for_each(|mailbox| mailbox.close(&mut wakes));
        wakes.fire();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.shared.is_stopped() {
            // A payload that held the last handle may go while the library works.
            let _ = catch_unwind(AssertUnwindSafe(|| self.shutdown(DROP_DEADLINE)));
        }
    }
}
