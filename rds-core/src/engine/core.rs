//! The node under its lock, and the tables that go with it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, MutexGuard};

use super::completion::Completion;
use super::link::{Batch, Link};
use super::mailbox::{Back, Mailbox, Wakes};
use super::parker::Parker;
use super::sink::Sinks;
use crate::buffer::{Filling, Pool};
use crate::proto::{Action, Body, ConnId, Inbox, Node, SocketId, Time};

/// What a shutdown waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Every message has ended.
    Messages,
    /// Every connection is closed.
    Connections,
}

/// What the core's lock protects. Held briefly; never across a system call that can take long.
pub(crate) struct Core {
    pub(crate) node: Node,
    /// By [`SocketId::index`].
    pub(crate) mailboxes: Vec<Option<Arc<Mailbox>>>,
    /// Sockets that have a sink instead.
    pub(crate) sinks: Sinks,
    /// By [`ConnId::index`].
    links: Vec<Option<(ConnId, Arc<Link>)>>,
    /// Actions that only the poll loop performs.
    pub(crate) io: VecDeque<Action>,
    /// Connections to which the kernel had no memory to write; the poll loop tries again soon.
    pub(crate) retry: Vec<ConnId>,
    /// Buffers for large messages.
    pub(crate) pool: Arc<Pool>,
    /// Messages that the end of the node has cancelled.
    pub(crate) cancelled: u64,
    /// Bytes that send calls have taken, and that read calls have brought.
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Payload bytes that the node copied in.
    pub(crate) copied_in: u64,
    /// Receive queues are short of room: programs report at once what they take.
    pub(crate) pressed: Arc<AtomicBool>,
    /// Threads to wake after unlocking.
    pub(crate) wakes: Wakes,
    /// Threads that wait for the end of all messages or connections.
    ends: Vec<(End, Arc<Parker>)>,
    /// When the poll loop means to call [`Node::handle_timeout`] next.
    pub(crate) planned: Option<Time>,
    spare: Vec<Batch>,
}

impl Core {
    pub(crate) fn new(node: Node, pool_limit: u64) -> Self {
        Self {
            node,
            mailboxes: Vec::new(),
            sinks: Sinks::default(),
            links: Vec::new(),
            io: VecDeque::new(),
            retry: Vec::new(),
            pool: Pool::with_limit(pool_limit),
            cancelled: 0,
            sent: 0,
            received: 0,
            copied_in: 0,
            pressed: Arc::default(),
            wakes: Wakes::default(),
            ends: Vec::new(),
            planned: None,
            spare: Vec::new(),
        }
    }

    /// The node, and an inbox for the calls that may deliver.
    pub(crate) fn with_inbox(&mut self) -> (&mut Node, Delivery<'_>) {
        let delivery = Delivery {
            mailboxes: &self.mailboxes,
            sinks: &mut self.sinks,
            pool: &self.pool,
            wakes: &mut self.wakes,
            open: None,
            flushes: true,
            exactly: false,
        };
        (&mut self.node, delivery)
    }

    /// The same, where more follows before anything is acknowledged: [`Core::flush_sinks`] must end it.
    pub(crate) fn with_batch_inbox(&mut self) -> (&mut Node, Delivery<'_>) {
        let (node, mut delivery) = self.with_inbox();
        delivery.flushes = false;
        (node, delivery)
    }

    /// Has sinks publish what they were handed.
    pub(crate) fn flush_sinks(&mut self) {
        self.sinks.flush(&mut self.wakes);
    }

    /// Gives memory to a message to `socket`, of which nothing has come.
    pub(crate) fn place(&self, socket: SocketId, message: &mut Filling) {
        if !self.sinks.place(socket, message) {
            message.place(self.pool.memory(message.capacity()));
        }
    }

    pub(crate) fn mailbox(&self, socket: SocketId) -> Option<&Arc<Mailbox>> {
        find(&self.mailboxes, socket)
    }

    pub(crate) fn add_mailbox(&mut self, mailbox: Arc<Mailbox>) {
        put(&mut self.mailboxes, mailbox.id.index(), mailbox);
    }

    pub(crate) fn remove_mailbox(&mut self, socket: SocketId) {
        if self.mailbox(socket).is_some() {
            self.mailboxes[socket.index()] = None;
        }
    }

    pub(crate) fn link(&self, conn: ConnId) -> Option<Arc<Link>> {
        let (id, link) = self.links.get(conn.index())?.as_ref()?;
        (*id == conn).then(|| Arc::clone(link))
    }

    pub(crate) fn add_link(&mut self, conn: ConnId, link: Arc<Link>) {
        put(&mut self.links, conn.index(), (conn, link));
    }

    /// Forgets the writing end of a connection, which is to be retired once the lock is not held.
    #[must_use]
    pub(crate) fn remove_link(&mut self, conn: ConnId) -> Option<Arc<Link>> {
        let link = self.link(conn)?;
        self.links[conn.index()] = None;
        Some(link)
    }

    /// Forgets all writing ends, at the end of the node; they are to be retired.
    #[must_use]
    pub(crate) fn remove_links(&mut self) -> Vec<Arc<Link>> {
        self.links.drain(..).flatten().map(|(_, link)| link).collect()
    }

    /// All writing ends.
    pub(crate) fn links(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.links.iter().flatten().map(|(_, link)| link)
    }

    pub(crate) fn take_batch(&mut self) -> Batch {
        self.spare.pop().unwrap_or_default()
    }

    pub(crate) fn give_batch(&mut self, mut batch: Batch) {
        debug_assert!(batch.slices.is_empty() && batch.released.is_empty(), "dropped outside the lock");
        batch.slices.clear();
        self.spare.push(batch);
    }

    /// Whether a deadline came nearer than the poll loop knows.
    pub(crate) fn deadline_is_nearer(&self) -> bool {
        self.node.next_timeout().is_some_and(|at| self.planned.is_none_or(|planned| at < planned))
    }

    /// Whether there is something for the poll loop to do.
    pub(crate) fn is_unsettled(&mut self) -> bool {
        !self.io.is_empty()
            || !self.retry.is_empty()
            || self.deadline_is_nearer()
            || self.node.poll_transmit().is_some()
    }

    /// Has programs report at once what they take, while the node is short of room. On the way there, what they took before
    /// is asked for; whoever takes something after that sees the flag, because the front's lock orders the two.
    fn set_pressure(&mut self, on: bool) {
        self.pressed.store(on, SeqCst);
        self.sinks.set_pressure(on);
        if !on {
            return;
        }
        for mailbox in self.mailboxes.iter().flatten() {
            let taken = mailbox.take_all(&mut mailbox.front());
            if taken.messages > 0 {
                self.node.consumed(mailbox.id, taken.bytes, taken.messages);
            }
        }
    }

    /// Performs the actions that concern sockets and queues the others for the poll loop.
    pub(crate) fn dispatch(&mut self, now: Time) {
        while let Some(action) = self.node.poll_action(now) {
            match action {
                Action::Writable { socket } => {
                    let queued = self.for_socket(socket, |mailbox, back, wakes| {
                        mailbox.set_writable(back, true);
                        mailbox.wake_senders(back, wakes);
                    });
                    if !queued {
                        self.sinks.tell(socket, |sink| sink.writable());
                    }
                }
                Action::Drained { socket } => {
                    self.for_socket(socket, |mailbox, back, wakes| mailbox.wake_senders(back, wakes));
                }
                Action::Uncongested { socket, destination } => {
                    let queued = self.for_socket(socket, |mailbox, back, wakes| {
                        mailbox.wake_senders(back, wakes);
                        let bit = 1 << (destination.port() % 64);
                        if back.armed & bit != 0 {
                            back.armed &= !bit;
                            back.cleared |= bit;
                            mailbox.notice(back, wakes);
                        }
                    });
                    if !queued {
                        self.sinks.tell(socket, |sink| sink.uncongested(destination));
                    }
                }
                Action::Completed { socket, token, outcome } => {
                    let queued = self.for_socket(socket, |mailbox, back, wakes| {
                        wakes.parkers.extend(mailbox.completed(back, Completion::ended(token, outcome)));
                    });
                    if !queued {
                        self.sinks.tell(socket, |sink| sink.ended(token, outcome));
                    }
                }
                Action::Congestion { socket, congested } => {
                    self.sinks.set_congested(socket, congested);
                    let taken = self.mailbox(socket).map(|m| m.set_congested(congested)).unwrap_or_default();
                    if taken.messages > 0 {
                        self.node.consumed(socket, taken.bytes, taken.messages);
                    }
                }
                Action::Pressure { on } => self.set_pressure(on),
                other => self.io.push_back(other),
            }
        }
        self.flush_sinks();
        self.node.take_released(&mut self.wakes.released);
        self.notify_ends();
    }

    pub(crate) fn notify_ends(&mut self) {
        if self.ends.is_empty() {
            return;
        }
        for (end, parker) in std::mem::take(&mut self.ends) {
            if self.has_come(end) {
                self.wakes.parkers.push(parker);
            } else {
                self.ends.push((end, parker));
            }
        }
    }

    /// Whether an end has come; otherwise the thread is told when it has.
    pub(crate) fn wait_for(&mut self, end: End, parker: &Arc<Parker>) -> bool {
        let come = self.has_come(end);
        if !come && !self.ends.iter().any(|(_, p)| Arc::ptr_eq(p, parker)) {
            self.ends.push((end, Arc::clone(parker)));
        }
        come
    }

    /// A thread waits no longer for an end.
    pub(crate) fn forget(&mut self, parker: &Arc<Parker>) {
        self.ends.retain(|(_, p)| !Arc::ptr_eq(p, parker));
    }

    fn has_come(&self, end: End) -> bool {
        match end {
            End::Messages => self.node.is_drained(),
            End::Connections => self.links.iter().all(Option::is_none),
        }
    }

    /// Does something with a socket's mailbox; false if it has none.
    fn for_socket(
        &mut self,
        socket: SocketId,
        act: impl FnOnce(&Arc<Mailbox>, &mut Back, &mut Wakes),
    ) -> bool {
        let Some(mailbox) = find(&self.mailboxes, socket) else { return false };
        act(mailbox, &mut mailbox.back(), &mut self.wakes);
        true
    }
}

fn find(mailboxes: &[Option<Arc<Mailbox>>], socket: SocketId) -> Option<&Arc<Mailbox>> {
    mailboxes.get(socket.index())?.as_ref().filter(|m| m.id == socket)
}

pub(super) fn put<T>(table: &mut Vec<Option<T>>, index: usize, value: T) {
    if table.len() <= index {
        table.resize_with(index + 1, || None);
    }
    table[index] = Some(value);
}

/// The inbox: appends to mailboxes and keeps the lock of one while consecutive messages go to it.
pub(crate) struct Delivery<'a> {
    mailboxes: &'a [Option<Arc<Mailbox>>],
    sinks: &'a mut Sinks,
    pool: &'a Pool,
    wakes: &'a mut Wakes,
    open: Option<(&'a Arc<Mailbox>, MutexGuard<'a, Back>)>,
    /// Sinks publish at its end what they got.
    flushes: bool,
    /// A sink had to copy a message that had better been read straight into its memory.
    pub(crate) exactly: bool,
}

impl Delivery<'_> {
    fn finish(&mut self) {
        if let Some((mailbox, mut back)) = self.open.take() {
            mailbox.appended(&mut back, self.wakes);
        }
    }
}

impl Inbox for Delivery<'_> {
    fn place(&mut self, socket: Option<SocketId>, message: &mut Filling) {
        if !socket.is_some_and(|socket| self.sinks.place(socket, message)) {
            message.place(self.pool.memory(message.capacity()));
        }
    }

    fn deliver(&mut self, socket: SocketId, from: SocketAddr, body: Body<'_>) {
        if self.open.as_ref().is_none_or(|(mailbox, _)| mailbox.id != socket) {
            self.finish();
            self.open = find(self.mailboxes, socket).map(|m| (m, m.back()));
        }
        if let Some((_, back)) = &mut self.open {
            back.queue.push(from, body, self.pool);
        } else {
            self.exactly |= self.sinks.deliver(socket, from, body);
        }
    }

    fn take_consumed(&mut self, socket: SocketId) -> (u64, u64) {
        let Some(mailbox) = find(self.mailboxes, socket) else { return self.sinks.take_consumed(socket) };
        let taken = mailbox.take_published();
        (taken.bytes, taken.messages)
    }
}

impl Drop for Delivery<'_> {
    fn drop(&mut self) {
        self.finish();
        if self.flushes {
            self.sinks.flush(self.wakes);
        }
    }
}
