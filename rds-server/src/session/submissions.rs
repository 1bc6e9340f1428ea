//! What a client submits, record by record. Nothing that it wrote is believed: each record's header was copied out once, and is checked here.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rds_core::attach::{
    Completion, Consumer, Fault, Record, Setting, Status, Submission, SubmittedArena, Violation, Where,
};
use rds_core::engine::Batch;
use rds_core::events::note;
use rds_core::proto::{Outcome, Payload};
use rds_core::zerocopy::{Mode, Share};

use super::outlet::Outlet;
use super::requests::Request;
use super::sends::Sent;
use super::socket::{Socket, Sockets};
use super::waiting::{Bytes, Send};
use crate::access::{Client, Grant, Kind, Ports, Who};
use crate::broker::Count;
use crate::host::{Bound, Host};

/// Payload bytes for which the node's lock is held at one time: they may have to be copied under it. One message may go beyond.
const BATCH_BYTES: u32 = 256 << 10;
/// Times that the node's lock is taken in one turn.
const BATCHES: usize = 8;

/// Why a client is not served any longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum End {
    /// It closed the connection, or died.
    #[error("it is gone")]
    Gone,
    /// It broke the rules.
    #[error("it broke the rules: {0}")]
    Violation(#[from] Violation),
    /// Its connection failed.
    #[error("its connection failed: {0}")]
    Io(std::io::ErrorKind),
    /// It broke a rule that the channel knows nothing of.
    #[error("it broke the rules: {0}")]
    Rule(&'static str),
    /// The daemon ends.
    #[error("the daemon ends")]
    Shutdown,
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Closed => Self::Gone,
            Fault::Io(kind) => Self::Io(kind),
            Fault::Violation(violation) => Self::Violation(violation),
        }
    }
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// So many records were read.
    Read(usize),
    /// A snapshot is to be told ([`Outlet::reply_long`]), before the next turn.
    Snapshot {
        /// The request.
        request: u32,
        /// With the messages in the queues.
        queues: bool,
    },
}

/// What a client is allowed, and where it reads and writes.
pub struct Setup {
    /// Its number.
    pub id: u64,
    /// Who it is.
    pub who: Who,
    /// The program, as it calls itself.
    pub program: String,
    /// What it has.
    pub quota: Arc<Client>,
    /// Its shared memory, as it counts.
    pub memory: Option<Grant>,
    /// Ports that it may bind.
    pub ports: Ports,
    /// Its part of what may be pinned.
    pub share: Arc<Share>,
    /// Whether it may change what concerns all clients.
    pub privileged: bool,
    /// Where it submits.
    pub consumer: Consumer,
    /// Where it builds messages.
    pub arena: Option<SubmittedArena>,
    /// Where it is told.
    pub outlet: Arc<Outlet>,
}

/// One attached client. The service thread's.
pub struct Session {
    consumer: Consumer,
    rest: Rest,
}

pub(super) struct Rest {
    pub(super) id: u64,
    since: Instant,
    pub(super) who: Who,
    pub(super) program: String,
    pub(super) quota: Arc<Client>,
    pub(super) _memory: Option<Grant>,
    pub(super) ports: Ports,
    pub(super) share: Arc<Share>,
    pub(super) privileged: bool,
    pub(super) arena: Option<SubmittedArena>,
    pub(super) outlet: Arc<Outlet>,
    pub(super) sockets: Sockets,
    pub(super) lingering: Vec<Socket>,
    /// Addresses that it has sent to.
    peers: HashMap<IpAddr, Grant>,
    /// The one that it sent to last.
    last_peer: Option<IpAddr>,
    /// The node waits for ports to be bound again.
    pub(super) paused: bool,
    /// The daemon ends: what is sent from now on is not.
    pub(super) draining: bool,
}

impl Session {
    /// A client that has just attached.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let Setup { id, who, program, quota, memory, ports, share, privileged, consumer, arena, outlet } =
            setup;
        let (sockets, lingering) = (Sockets::default(), Vec::new());
        let rest = Rest {
            id,
            since: Instant::now(),
            who,
            program,
            quota,
            _memory: memory,
            ports,
            share,
            privileged,
            arena,
            outlet,
            sockets,
            lingering,
            peers: HashMap::new(),
            last_peer: None,
            paused: false,
            draining: false,
        };
        Self { consumer, rest }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.rest.id
    }

    /// Who it is.
    #[must_use]
    pub fn who(&self) -> &Who {
        &self.rest.who
    }

    /// The program, as it calls itself.
    #[must_use]
    pub fn program(&self) -> &str {
        &self.rest.program
    }

    /// Its completion side.
    #[must_use]
    pub fn outlet(&self) -> &Arc<Outlet> {
        &self.rest.outlet
    }

    /// What it has.
    #[must_use]
    pub fn quota(&self) -> &Client {
        &self.rest.quota
    }

    /// Its part of what may be pinned.
    #[must_use]
    pub fn share(&self) -> &Share {
        &self.rest.share
    }

    /// Ports that it may bind from now on; what it has bound stays so.
    pub fn set_ports(&mut self, ports: Ports) {
        self.rest.ports = ports;
    }

    /// How long it has been attached.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.rest.since.elapsed()
    }

    /// Its sockets: where, and how many sends wait for congested ports.
    pub fn sockets(&self) -> impl Iterator<Item = (SocketAddr, usize)> + '_ {
        self.rest.sockets.values().map(|socket| (socket.bound.local, socket.waiting.len()))
    }

    /// Reads up to `most` records and does what they say.
    ///
    /// # Errors
    /// The client is to be ended.
    pub fn turn(&mut self, host: &mut Host, most: usize) -> Result<Turn, End> {
        let mut read = 0;
        self.rest.paused = host.paused_until().is_some();
        let mut batches = 0;
        while read < most && batches < BATCHES && !self.rest.outlet.is_choked() && self.consumer.has_next()? {
            batches += 1;
            let (consumer, rest) = (&mut self.consumer, &mut self.rest);
            // One lock of the node, and one write, for all that is there.
            let request = host.engine.batch(|batch| {
                let mut bytes = 0;
                while read < most && bytes < BATCH_BYTES {
                    let Some(record) = consumer.next()? else { break };
                    read += 1;
                    let said = record.submission()?;
                    if let Submission::Send { payload, .. } = said {
                        // The length is not checked yet.
                        bytes = payload.len().saturating_add(bytes);
                    }
                    let request = rest.inside(batch, said, &record)?;
                    if request.is_some() {
                        return Ok(request);
                    }
                }
                Ok::<_, End>(None)
            })?;
            match request {
                Some(Request::Snapshot { request, queues }) => return Ok(Turn::Snapshot { request, queues }),
                Some(request) => self.rest.request(host, request),
                None => {}
            }
        }
        Ok(Turn::Read(read))
    }

    /// Shows what was done: room in the client's ring, and what it is told. Returns whether something is held for want of room.
    ///
    /// # Errors
    /// The client is to be ended.
    pub fn settle(&mut self, host: &mut Host) -> Result<bool, End> {
        self.rest.retry(host);
        if let Some(bell) = self.consumer.release() {
            bell.ring();
        }
        let held = self.rest.outlet.advance();
        match self.rest.outlet.fault() {
            Some(fault) => Err(fault.into()),
            None => Ok(held),
        }
    }

    /// The node serves peers again: what waited for that is sent.
    pub fn resumed(&mut self, host: &mut Host) {
        self.rest.retry_all(host);
    }

    /// Announces that nobody will look until the doorbell rings; false if there is something to look at.
    ///
    /// # Errors
    /// The client is to be ended.
    pub fn arm(&mut self) -> Result<bool, End> {
        Ok(self.consumer.arm()?)
    }

    /// Takes that back.
    pub fn disarm(&mut self) {
        self.consumer.disarm();
    }

    /// The daemon ends: what the client sends from now on waits for [`Session::give_up`].
    pub fn drain(&mut self) {
        self.rest.draining = true;
    }

    /// Whether something waits for a congested port, or for the node's room.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.rest.sockets.values().chain(&self.rest.lingering).any(|socket| !socket.waiting.is_empty())
    }

    /// Cancels what was never handed to the node: how many sends that waited for congested ports, and how many that came too late.
    pub fn give_up(&mut self) -> (u64, u64) {
        let mut counts = (0, 0);
        for socket in self.rest.sockets.values_mut().chain(&mut self.rest.lingering) {
            counts.0 += socket.cancel_waiting(None) as u64;
            counts.1 += socket.cancel_late(None) as u64;
        }
        counts
    }

    /// The client is gone, or is to be: its ports are closed, what it has queued is cancelled, and everything of it goes.
    pub fn end(mut self, host: &mut Host) {
        for (_, socket) in self.rest.sockets.drain() {
            host.leave(socket.bound, socket.member, socket.send_buffer.amount(), false, false);
        }
        for socket in self.rest.lingering.drain(..) {
            host.forget(socket.bound, socket.member, socket.send_buffer.amount());
        }
        self.rest.outlet.close();
    }
}

impl Rest {
    /// Does what can be done with the node's lock; returns what cannot.
    fn inside(
        &mut self,
        batch: &mut Batch<'_>,
        said: Submission,
        record: &Record<'_>,
    ) -> Result<Option<Request>, End> {
        match said {
            Submission::Send { socket, id, to, wants_end, mode, payload } => {
                self.send(
                    batch,
                    socket,
                    to,
                    Sent { id, len: payload.len(), wants_end },
                    mode,
                    payload,
                    record,
                )?;
            }
            Submission::Consumed { socket, bytes, messages } => {
                let count = Count { bytes, messages };
                if let Some(socket) = self.sockets.get(&socket) {
                    if !self.outlet.consumed(socket.slot, count) {
                        return Err(End::Rule("it consumed more than it was given"));
                    }
                    let report = socket.bound.group.consume(socket.member, count);
                    socket.bound.apply(batch, report);
                }
            }
            Submission::Free { offset } => self.outlet.free(offset)?,
            Submission::Set { request, socket, what, value } => self.set(batch, request, socket, what, value),
            Submission::Watch { request, socket, to } => {
                let Some(socket) = self.sockets.get_mut(&socket) else {
                    self.outlet.reply(request, Status::NoSuchSocket, 0, &[]);
                    return Ok(None);
                };
                let congested =
                    socket.waiting.is_waiting(to) || batch.watch_congestion(socket.bound.port(), to);
                if congested {
                    socket.told.insert(to);
                }
                self.outlet.reply(request, Status::Ok, congested.into(), &[]);
            }
            Submission::Cancel { request, socket, to } => {
                let Some(socket) = self.sockets.get_mut(&socket) else {
                    self.outlet.reply(request, Status::NoSuchSocket, 0, &[]);
                    return Ok(None);
                };
                let member = socket.member;
                let mine =
                    |token: Option<_>| token.is_some_and(|token| crate::broker::Group::is_of(token, member));
                let waited = socket.waited_for(to);
                let waiting = socket.cancel_waiting(to) + socket.cancel_late(to);
                let count = waiting + batch.cancel(socket.bound.port(), to, mine);
                socket.settle_told(batch, waited);
                return Ok(Some(Request::Cancelled { request, count }));
            }
            Submission::Bind { request, socket, port, sharing, send_buffer, receive_buffer } => {
                let bind = Request::Bind { request, socket, port, sharing, send_buffer, receive_buffer };
                return Ok(Some(bind));
            }
            Submission::Close { request, socket, drain } => {
                return Ok(Some(Request::Close { request, socket, drain }));
            }
            Submission::Snapshot { request, queues } => {
                return Ok(Some(Request::Snapshot { request, queues }));
            }
            Submission::SetPeerModes { request, peer, send, receive } => {
                return Ok(Some(Request::Modes { request, peer, send, receive }));
            }
        }
        Ok(None)
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one record")]
    fn send(
        &mut self,
        batch: &mut Batch<'_>,
        socket: u32,
        to: SocketAddr,
        sent: Sent,
        mode: Option<Mode>,
        payload: Where,
        record: &Record<'_>,
    ) -> Result<(), End> {
        let span = match (payload, &self.arena) {
            (Where::Arena { offset, len }, Some(arena)) => Some(arena.span(offset, len)?),
            (Where::Arena { .. }, None) => return Err(End::Rule("it has no arena")),
            (Where::Inline(_), _) => record.span(),
        };
        let Some(socket) = self.sockets.get_mut(&socket) else {
            self.stray(socket, sent, payload);
            return Ok(());
        };
        let Some(number) = self.outlet.charge(socket.slot, sent) else {
            return Err(End::Rule("it sent more than its send buffer holds"));
        };
        if self.draining {
            // Its bytes are of no use, but its memory is the client's again only when it has ended.
            let bytes = span.filter(|_| matches!(payload, Where::Arena { .. }));
            let bytes = bytes.map_or_else(|| Bytes::Own(Box::default()), Bytes::Arena);
            socket.late.push((to, Send { number, id: sent.id, mode, bytes }));
            return Ok(());
        }
        let ip = to.ip();
        if self.last_peer != Some(ip) && ip != socket.bound.local.ip() {
            // The node keeps what it knows of a peer, and all clients share its table of them.
            if let Entry::Vacant(peer) = self.peers.entry(ip) {
                match self.quota.take(Kind::Peers, 1) {
                    Ok(grant) => _ = peer.insert(grant),
                    Err(over) => {
                        note!(MessageRefused, client = self.id, peer = %to, reason = %over, "a message was refused");
                        self.outlet.ended(socket.slot, number, Outcome::Cancelled);
                        if let Where::Arena { .. } = payload {
                            let (socket, id) = (socket.number, sent.id);
                            self.outlet.tell(Completion::Released { socket, id, copied: false }, &[]);
                        }
                        return Ok(());
                    }
                }
            }
            self.last_peer = Some(ip);
        }
        let (bytes, inline) = match (payload, span) {
            (Where::Arena { .. }, Some(span)) => (Bytes::Arena(span), None),
            (_, Some(span)) => {
                let send = Send { number, id: sent.id, mode, bytes: Bytes::Own(Box::default()) };
                socket.send(batch, to, send, &self.share, Some(Payload::Shared(&span)), self.paused);
                return Ok(());
            }
            (_, None) => {
                (Bytes::Own(Box::default()), Some(Payload::Copy(record.bytes().unwrap_or_default())))
            }
        };
        let send = Send { number, id: sent.id, mode, bytes };
        socket.send(batch, to, send, &self.share, inline, self.paused);
        Ok(())
    }

    /// A send of a socket that is closed: it ends, so that the client does not wait for it.
    fn stray(&self, socket: u32, sent: Sent, payload: Where) {
        if sent.wants_end {
            let done = Completion::Done { socket, id: sent.id, outcome: Outcome::Cancelled };
            self.outlet.tell(done, &[]);
        }
        if let Where::Arena { .. } = payload {
            self.outlet.tell(Completion::Released { socket, id: sent.id, copied: false }, &[]);
        }
    }

    fn set(&mut self, batch: &mut Batch<'_>, request: u32, socket: u32, what: Setting, value: u64) {
        let Some(socket) = self.sockets.get_mut(&socket) else {
            self.outlet.reply(request, Status::NoSuchSocket, 0, &[]);
            return;
        };
        let granted = match what {
            Setting::SendBuffer => {
                let before = socket.send_buffer.amount();
                let granted = socket.send_buffer.change(value.max(1), 0);
                self.outlet.set_send_buffer(socket.slot, granted);
                socket.bound.change_send_buffer(batch, Bound::at_node(before), Bound::at_node(granted));
                granted
            }
            Setting::ReceiveBuffer => {
                let granted = socket.receive_buffer.change(value.max(1), 0);
                let report = socket.bound.group.set_limit(socket.member, granted);
                socket.bound.apply(batch, report);
                granted
            }
            Setting::ZeroCopySend => {
                socket.mode = match value {
                    1 => Some(Mode::Off),
                    2 => Some(Mode::On),
                    3 => Some(Mode::Auto),
                    _ => None,
                };
                value
            }
            // Pages are mapped only within a process that has its node to itself.
            Setting::ZeroCopyReceive => value,
        };
        self.outlet.reply(request, Status::Ok, granted, &[]);
    }
}
