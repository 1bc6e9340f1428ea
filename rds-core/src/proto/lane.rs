//! One lane: the messages between two nodes that travel one TCP connection after another.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::ErrorKind;

use bytes::BytesMut;

use super::{DropReason, SocketId, Time, Token};
use crate::buffer::Chunk;
use crate::wire::{CongestionMap, HEADER_LEN};

/// Most pongs that may wait on a lane, and most that may be without acknowledgement; further pings go unanswered.
const MAX_PONGS: u32 = 1024;
const MAX_UNACKED_PONGS: u32 = 16 << 10;
/// First and largest size of the buffers into which small messages are encoded, in bytes.
const CHUNK_MIN: usize = 4 << 10;
const CHUNK_MAX: usize = 128 << 10;

/// Where a queued message's payload is.
#[derive(Debug)]
pub(super) enum Stored {
    /// Next in [`Lane::open`], after room for its header.
    Inline,
    /// In a buffer of its own.
    Apart(Chunk),
}

/// A message that has no number yet: its transmission has not begun.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) socket: SocketId,
    pub(super) token: Option<Token>,
    pub(super) len: u32,
    pub(super) sport: u16,
    pub(super) dport: u16,
    /// Cancelled; its inline bytes are passed over.
    pub(super) dead: bool,
    pub(super) stored: Stored,
}

/// A message whose transmission has begun and which is not acknowledged.
#[derive(Debug)]
pub(super) struct Unacked {
    pub(super) sequence: u64,
    /// End of the message in the byte stream of the connection that carries the lane; valid below [`Lane::resend`].
    pub(super) end: u64,
    pub(super) socket: SocketId,
    pub(super) token: Option<Token>,
    pub(super) len: u32,
    pub(super) sport: u16,
    pub(super) dport: u16,
    /// Cancelled: not sent again.
    pub(super) dead: bool,
    batch: u64,
    offset: u32,
}

#[derive(Debug)]
struct Batch {
    bytes: Chunk,
    live: u32,
}

/// What has become of a lane's connections, for tools.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct History {
    /// Connections that we tried to make, knocks included.
    pub(super) attempts: u64,
    /// When the last of them was begun.
    pub(super) attempted_at: Option<Time>,
    /// Connections that carried the lane and were lost.
    pub(super) resets: u64,
    /// When the last of them was lost.
    pub(super) reset_at: Option<Time>,
    /// Why the last connection or attempt ended.
    pub(super) reason: Option<Ended>,
}

impl History {
    pub(super) fn attempted(&mut self, now: Time) {
        self.attempts += 1;
        self.attempted_at = Some(now);
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ended {
    /// We dropped it.
    Dropped(DropReason),
    /// It failed, or could not be made.
    Failed(ErrorKind),
    /// The stream came to its end.
    Closed,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dropped(reason) => reason.fmt(f),
            Self::Failed(kind) => kind.fmt(f),
            Self::Closed => f.write_str("closed by the peer"),
        }
    }
}

/// A connection that carries the lane, by index.
pub(super) type ConnIndex = u32;

#[derive(Debug)]
pub(super) struct Lane {
    /// The connection that carries the lane.
    pub(super) conn: Option<ConnIndex>,
    /// Our attempt to connect, or the connection it made, until that carries the lane.
    pub(super) dialing: Option<ConnIndex>,
    /// When to dial next.
    pub(super) dial_at: Option<Time>,
    /// Upper bound of the next delay; zero: at once.
    pub(super) backoff: std::time::Duration,
    /// Accepted connections that wait until the present one is read out.
    pub(super) parked: VecDeque<ConnIndex>,
    /// Belongs to a dead incarnation of the peer: what it has not acknowledged when its connection was read out is unknown.
    pub(super) stale: bool,
    /// For tools alone.
    pub(super) history: History,
    /// Number that the next message will get.
    pub(super) next_tx: u64,
    /// From an own peer: the number accepted last. From a kernel: one more than that.
    pub(super) rx: u64,
    pub(super) queue: VecDeque<Queued>,
    /// Messages for congested ports, in order for each port.
    pub(super) held: BTreeMap<u16, VecDeque<Queued>>,
    pub(super) unacked: VecDeque<Unacked>,
    /// Entries of `unacked` before this one were sent on the present connection.
    pub(super) resend: usize,
    /// Bytes of `unacked`, headers included.
    pub(super) unacked_bytes: u64,
    pongs: u32,
    unacked_pongs: u32,
    open: BytesMut,
    chunk: usize,
    batches: VecDeque<Batch>,
    batch_base: u64,
}

impl Lane {
    pub(super) fn new(first_sequence: u64) -> Self {
        Self {
            conn: None,
            dialing: None,
            dial_at: None,
            backoff: std::time::Duration::ZERO,
            parked: VecDeque::new(),
            stale: false,
            history: History::default(),
            next_tx: first_sequence + 1,
            rx: 0,
            queue: VecDeque::new(),
            held: BTreeMap::new(),
            unacked: VecDeque::new(),
            resend: 0,
            unacked_bytes: 0,
            pongs: 0,
            unacked_pongs: 0,
            open: BytesMut::new(),
            chunk: CHUNK_MIN,
            batches: VecDeque::new(),
            batch_base: 0,
        }
    }

    /// Whether there is any message to deliver.
    pub(super) fn has_messages(&self) -> bool {
        !self.queue.is_empty() || !self.held.is_empty() || self.unacked.iter().any(|u| !u.dead)
    }

    /// The number just below all that are unacknowledged or not given yet: a handshake ping with it, flagged if
    /// anything is unacknowledged, cannot disturb the peer's expectation (docs/protocol.md, part 1).
    pub(super) fn ping_number(&self) -> (u64, bool) {
        match self.unacked.front() {
            Some(first) => (first.sequence.wrapping_sub(1), true),
            None => (self.next_tx.wrapping_sub(1), false),
        }
    }

    /// Queues a message whose payload `write` puts behind its header's place.
    pub(super) fn push_inline(&mut self, message: Queued, write: impl FnOnce(&mut BytesMut)) {
        let size = HEADER_LEN + message.len as usize;
        if self.open.capacity() - self.open.len() < size {
            self.open.reserve(size.max(self.chunk));
            self.chunk = (self.chunk * 2).min(CHUNK_MAX);
        }
        self.open.extend_from_slice(&[0; HEADER_LEN]);
        write(&mut self.open);
        self.queue.push_back(message);
    }

    /// Queues a message whose payload is in a buffer of its own.
    pub(super) fn push_apart(&mut self, message: Queued) {
        self.queue.push_back(message);
    }

    /// Queues a pong before everything else, unless too many wait: pongs do not wait for the peer's window.
    pub(super) fn push_pong(&mut self, dport: u16) -> bool {
        if self.pongs >= MAX_PONGS || self.pongs + self.unacked_pongs >= MAX_UNACKED_PONGS {
            return false;
        }
        self.pongs += 1;
        self.queue.push_front(Queued {
            socket: super::local::NO_SOCKET,
            token: None,
            len: 0,
            sport: crate::wire::PORT_ENGINE,
            dport,
            dead: false,
            stored: Stored::Apart(Chunk::empty()),
        });
        true
    }

    /// Bytes into which inline messages at the front of the queue are encoded, headers' places included.
    pub(super) fn open_mut(&mut self) -> &mut BytesMut {
        &mut self.open
    }

    /// Starts the batch that the next entries of `unacked` refer to; returns its number.
    pub(super) fn next_batch(&self) -> u64 {
        self.batch_base + self.batches.len() as u64
    }

    /// Adds the bytes of the batch begun by [`Lane::next_batch`], to which `live` entries refer.
    pub(super) fn add_batch(&mut self, bytes: Chunk, live: u32) {
        self.batches.push_back(Batch { bytes, live });
    }

    /// Moves a message to the unacknowledged ones, under the next number.
    pub(super) fn begin(&mut self, message: &Queued, end: u64, batch: u64, offset: u32) {
        self.unacked_bytes += HEADER_LEN as u64 + u64::from(message.len);
        if message.sport == crate::wire::PORT_ENGINE {
            self.pongs -= 1;
            self.unacked_pongs += 1;
        }
        self.unacked.push_back(Unacked {
            sequence: self.next_tx,
            end,
            socket: message.socket,
            token: message.token,
            len: message.len,
            sport: message.sport,
            dport: message.dport,
            dead: false,
            batch,
            offset,
        });
        self.next_tx = self.next_tx.wrapping_add(1);
        self.resend = self.unacked.len();
    }

    /// Where in the present connection's stream the last message ends that was sent on it and is not acknowledged.
    pub(super) fn last_end(&self) -> Option<u64> {
        self.unacked.range(..self.resend).next_back().map(|u| u.end)
    }

    /// The payload of an unacknowledged message.
    pub(super) fn payload(&self, index: usize) -> Chunk {
        let u = &self.unacked[index];
        let batch = &self.batches[(u.batch - self.batch_base) as usize];
        batch.bytes.slice(u.offset as usize..u.offset as usize + u.len as usize)
    }

    /// Takes the oldest unacknowledged message out.
    pub(super) fn pop_unacked(&mut self, released: &mut Vec<Chunk>) -> Option<Unacked> {
        let u = self.unacked.pop_front()?;
        self.resend = self.resend.saturating_sub(1);
        self.forget(&u, released);
        Some(u)
    }

    /// Takes a message that left `unacked` out of every count.
    fn forget(&mut self, u: &Unacked, released: &mut Vec<Chunk>) {
        self.unacked_bytes -= HEADER_LEN as u64 + u64::from(u.len);
        if u.sport == crate::wire::PORT_ENGINE {
            self.unacked_pongs -= 1;
        }
        self.unref(u.batch, released);
    }

    fn unref(&mut self, batch: u64, released: &mut Vec<Chunk>) {
        if let Some(batch) = self.batches.get_mut((batch - self.batch_base) as usize) {
            batch.live -= 1;
        }
        while self.batches.front().is_some_and(|b| b.live == 0) {
            released.extend(self.batches.pop_front().map(|b| b.bytes));
            self.batch_base += 1;
        }
    }

    /// Takes the unacknowledged messages from `index` on out.
    pub(super) fn drop_unacked_from(&mut self, index: usize, released: &mut Vec<Chunk>) -> VecDeque<Unacked> {
        let gone = self.unacked.split_off(index.min(self.unacked.len()));
        for u in &gone {
            self.forget(u, released);
        }
        self.resend = self.resend.min(self.unacked.len());
        gone
    }

    /// Takes cancelled messages out that the present connection has not sent: nobody will ever acknowledge them.
    pub(super) fn drop_unsent_dead(&mut self, released: &mut Vec<Chunk>) {
        if !self.unacked.range(self.resend..).any(|u| u.dead) {
            return;
        }
        for u in self.unacked.split_off(self.resend) {
            if u.dead {
                self.forget(&u, released);
            } else {
                self.unacked.push_back(u);
            }
        }
    }

    /// Puts every inline message of the queue into a buffer of its own, so that the queue can be reordered.
    fn set_apart(&mut self) {
        let bytes = Chunk::from(self.open.split().freeze());
        let mut at = 0;
        for q in &mut self.queue {
            if matches!(q.stored, Stored::Inline) {
                let start = at + HEADER_LEN;
                at = start + q.len as usize;
                q.stored = Stored::Apart(bytes.slice(start..at));
            }
        }
        self.queue.retain(|q| !q.dead);
    }

    /// Holds back queued messages for ports that `map` shows as congested, and queues those again whose port is free.
    /// Returns how many were held back.
    pub(super) fn hold(&mut self, map: &CongestionMap) -> usize {
        let mut count = 0;
        if !map.is_empty() && self.queue.iter().any(|q| map.contains(q.dport)) {
            self.set_apart();
            for q in std::mem::take(&mut self.queue) {
                if map.contains(q.dport) {
                    count += 1;
                    self.held.entry(q.dport).or_default().push_back(q);
                } else {
                    self.queue.push_back(q);
                }
            }
        }
        if !self.held.is_empty() {
            let free: Vec<u16> = self.held.keys().copied().filter(|p| !map.contains(*p)).collect();
            for port in free {
                self.queue.extend(self.held.remove(&port).into_iter().flatten());
            }
        }
        count
    }

    /// Takes everything that has not begun, in order for each pair of sockets.
    pub(super) fn take_queued(&mut self) -> Vec<Queued> {
        self.set_apart();
        let mut all: Vec<Queued> = std::mem::take(&mut self.held).into_values().flatten().collect();
        all.extend(std::mem::take(&mut self.queue));
        self.pongs = 0;
        all
    }

    /// Closes the holes that cancelled inline messages left.
    fn compact(&mut self) {
        let (old, mut at) = (std::mem::take(&mut self.open), 0);
        let open = &mut self.open;
        self.queue.retain(|q| {
            if matches!(q.stored, Stored::Inline) {
                let end = at + HEADER_LEN + q.len as usize;
                if !q.dead {
                    open.extend_from_slice(&old[at..end]);
                }
                at = end;
            }
            !q.dead
        });
    }

    /// Takes cancelled messages out of the queue; `victim` chooses. Inline ones stay as holes while those are the smaller part.
    pub(super) fn cancel(
        &mut self,
        mut victim: impl FnMut(SocketId, u16, Option<Token>) -> bool,
        released: &mut Vec<Chunk>,
    ) -> Vec<(SocketId, u16, u16, u32, Option<Token>)> {
        let mut gone = Vec::new();
        for q in &mut self.queue {
            if !q.dead && victim(q.socket, q.dport, q.token) {
                q.dead = true;
                gone.push((q.socket, q.sport, q.dport, q.len, q.token));
            }
        }
        let mut holes = 0;
        self.queue.retain_mut(|q| match &mut q.stored {
            Stored::Apart(bytes) if q.dead => {
                released.push(std::mem::replace(bytes, Chunk::empty()));
                false
            }
            Stored::Inline if q.dead => {
                holes += HEADER_LEN + q.len as usize;
                true
            }
            _ => true,
        });
        if holes > self.open.len() / 2 {
            self.compact();
        }
        self.held.retain(|_, held| {
            held.retain_mut(|q| {
                let hit = victim(q.socket, q.dport, q.token);
                if hit {
                    if let Stored::Apart(bytes) = &mut q.stored {
                        released.push(std::mem::replace(bytes, Chunk::empty()));
                    }
                    gone.push((q.socket, q.sport, q.dport, q.len, q.token));
                }
                !hit
            });
            !held.is_empty()
        });
        for u in &mut self.unacked {
            if !u.dead && victim(u.socket, u.dport, u.token) {
                u.dead = true;
                gone.push((u.socket, u.sport, u.dport, u.len, u.token.take()));
                u.socket = super::local::NO_SOCKET;
            }
        }
        self.drop_unsent_dead(released);
        gone
    }

    /// Every message that has not ended, as (source port, destination port).
    pub(super) fn pairs(&self) -> impl Iterator<Item = (u16, u16)> + '_ {
        let queued = self.queue.iter().chain(self.held.values().flatten()).filter(|q| !q.dead);
        let unacked = self.unacked.iter().filter(|u| !u.dead);
        queued.map(|q| (q.sport, q.dport)).chain(unacked.map(|u| (u.sport, u.dport))).filter(|(s, _)| *s != 0)
    }
}
