//! A client as a daemon sees it: memory from which it sends, memory in which it receives, and a sink for what concerns it.
#![allow(dead_code)]

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rds_core::attach::{Access, SharedMemory};
use rds_core::buffer::{Chunk, OnRelease, Span, SpanOwner, Terms};
use rds_core::engine::{Delivered, Engine, Options, Port, Sink, Wake, ZeroCopy};
use rds_core::info::Counter;
use rds_core::proto::{Outcome, Payload, SendError, Token};
use rds_core::zerocopy::{Mode, Share};

/// Room for one message in the receive arena.
pub(crate) const SLOT: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(60);

/// How a message came.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) enum Way {
    Copied,
    Placed,
    Owned,
}

#[derive(Debug)]
pub(crate) struct Got {
    pub(crate) from: SocketAddr,
    pub(crate) way: Way,
    pub(crate) span: Option<Span>,
    pub(crate) bytes: Vec<u8>,
}

impl Got {
    pub(crate) fn len(&self) -> usize {
        self.span.as_ref().map_or(self.bytes.len(), Span::len)
    }
}

#[derive(Default)]
pub(crate) struct State {
    /// Offsets of free slots.
    pub(crate) free: Vec<usize>,
    /// Delivered and not flushed.
    pending: Vec<Got>,
    pub(crate) got: VecDeque<Got>,
    pub(crate) published: usize,
    pub(crate) ended: Vec<(u64, Outcome)>,
    /// How many messages the other side had published when the send ended.
    pub(crate) published_then: Vec<usize>,
    pub(crate) released: BTreeMap<u32, bool>,
    pub(crate) uncongested: Vec<SocketAddr>,
    pub(crate) writable: usize,
    pub(crate) unused: usize,
    pub(crate) asked: usize,
    pub(crate) pressed: Vec<bool>,
    /// How many of those a flush has followed.
    pub(crate) pressed_flushed: usize,
    pub(crate) closed: bool,
}

pub(crate) struct Client {
    /// From which it sends; it may write it at any moment.
    pub(crate) sends: Arc<SharedMemory>,
    receives: Arc<SharedMemory>,
    slots: usize,
    state: Mutex<State>,
    changed: Condvar,
    this: std::sync::Weak<Self>,
    /// Whose published messages are noted when a send of ours ends.
    pub(crate) other: Mutex<Option<Arc<Client>>>,
}

impl Client {
    pub(crate) fn new(slots: usize) -> Arc<Self> {
        let (_, sends) = SharedMemory::create(8 << 20, Access::ReadWrite).unwrap();
        let (_, receives) = SharedMemory::create(slots.max(1) * SLOT, Access::ReadOnly).unwrap();
        let free = (0..slots).map(|slot| slot * SLOT).collect();
        Arc::new_cyclic(|this| Self {
            sends,
            receives,
            slots,
            state: Mutex::new(State { free, ..State::default() }),
            changed: Condvar::new(),
            this: this.clone(),
            other: Mutex::new(None),
        })
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Waits until something is so.
    pub(crate) fn wait(&self, what: &str, so: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let end = Instant::now() + LONG;
        let mut state = self.state();
        while !so(&state) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "waiting for: {what}; {} got, {} ended",
                state.got.len(),
                state.ended.len()
            );
            state = self.changed.wait_timeout(state, left).unwrap().0;
        }
        state
    }

    /// Every slot of the receive arena is free, or in the hands of the test.
    pub(crate) fn has_all(&self) -> bool {
        self.state().free.len() == self.slots
    }

    /// Takes the oldest message, as it lies.
    pub(crate) fn take_lease(&self) -> Got {
        self.wait("a message", |s| !s.got.is_empty()).got.pop_front().unwrap()
    }

    /// Gives its memory back.
    pub(crate) fn give(&self, got: Got) {
        if let Some(span) = got.span {
            self.state().free.push(span.offset() / SLOT * SLOT);
        }
    }

    /// Takes the oldest message, copies it, and gives its memory back.
    pub(crate) fn take(&self) -> Got {
        let mut got = self.take_lease();
        if let Some(span) = got.span.take() {
            got.bytes = span.to_vec();
            self.state().free.push(span.offset() / SLOT * SLOT);
        }
        got
    }

    /// Part of the memory from which it sends, filled with a pattern.
    pub(crate) fn payload(&self, at: usize, len: usize, seed: u8) -> Span {
        self.sends.copy_in(at, &pattern(len, seed));
        self.sends.span(at as u64, len as u64).unwrap()
    }

    /// Lends part of the memory.
    pub(crate) fn lend(
        self: &Arc<Self>,
        span: &Span,
        cookie: u32,
        share: Option<&Arc<Share>>,
    ) -> Payload<'static> {
        let hook = (Arc::clone(self) as Arc<dyn OnRelease>, cookie);
        let terms = Terms { mode: None, share: share.cloned() };
        Payload::Owned(Chunk::shared(span.clone(), Some(hook), terms))
    }

    fn notify(&self) {
        self.changed.notify_all();
    }
}

pub(crate) fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 8) as u8).wrapping_add(seed)).collect()
}

impl SpanOwner for Client {
    fn unused(&self, span: Span) {
        let mut state = self.state();
        state.unused += 1;
        state.free.push(span.offset() / SLOT * SLOT);
        self.notify();
    }
}

impl Wake for Client {
    fn wake(&self) {
        // Taken in `flush` as well, so it must be free now.
        drop(self.state());
        self.notify();
    }
}

impl OnRelease for Client {
    fn released(&self, cookie: u32, copied: bool) {
        assert!(self.state().released.insert(cookie, copied).is_none(), "told once");
        self.notify();
    }
}

impl Sink for Client {
    fn memory(&self, len: usize) -> Option<Span> {
        let mut state = self.state();
        state.asked += 1;
        self.notify();
        if len < 4096 {
            return None;
        }
        let at = state.free.pop()?;
        self.receives.span(at as u64, SLOT as u64)
    }

    fn deliver(&self, from: SocketAddr, body: Delivered<'_>) {
        let mut state = self.state();
        let mut got = Got { from, way: Way::Copied, span: None, bytes: Vec::new() };
        match body {
            Delivered::Placed(span) => {
                assert!(Arc::ptr_eq(span.memory(), &self.receives), "its own memory");
                (got.way, got.span) = (Way::Placed, Some(span));
            }
            Delivered::Owned(bytes) => (got.way, got.bytes) = (Way::Owned, bytes.to_vec()),
            Delivered::Bytes(bytes) => match if bytes.len() < 4096 { None } else { state.free.pop() } {
                Some(at) => {
                    let span = self.receives.span(at as u64, bytes.len() as u64).unwrap();
                    span.fill(bytes);
                    got.span = Some(span);
                }
                None => got.bytes = bytes.to_vec(),
            },
            Delivered::Shared(span) => match state.free.pop() {
                Some(at) => {
                    let room = self.receives.span(at as u64, span.len() as u64).unwrap();
                    room.fill_from(span);
                    got.span = Some(room);
                }
                None => got.bytes = span.to_vec(),
            },
        }
        state.pending.push(got);
    }

    fn ended(&self, token: Token, outcome: Outcome) {
        let published = self.other.lock().unwrap().as_ref().map(|other| other.state().published);
        let mut state = self.state();
        state.published_then.extend(published);
        state.ended.push((token.0, outcome));
    }

    fn uncongested(&self, destination: SocketAddr) {
        self.state().uncongested.push(destination);
    }

    fn writable(&self) {
        self.state().writable += 1;
    }

    fn flush(&self) -> Option<Arc<dyn Wake>> {
        let mut state = self.state();
        let state = &mut *state;
        state.published += state.pending.len();
        state.pressed_flushed = state.pressed.len();
        state.got.extend(state.pending.drain(..));
        self.this.upgrade().map(|this| this as Arc<dyn Wake>)
    }

    fn pressed(&self, on: bool) {
        self.state().pressed.push(on);
    }

    fn closed(&self) {
        self.state().closed = true;
        self.notify();
    }
}

/// A node at 127.41.`net`.`host`.
pub(crate) fn engine(net: u8, host: u8, send: Mode, change: impl FnOnce(&mut Options)) -> Engine {
    let mut options = Options::new(IpAddr::from([127, 41, net, host]));
    options.zero_copy = ZeroCopy::default();
    options.zero_copy.send = send;
    change(&mut options);
    Engine::open(options).unwrap()
}

/// Two nodes, a client on each, and the port of each.
pub(crate) struct Pair {
    pub(crate) a: Arc<Client>,
    pub(crate) b: Arc<Client>,
    pub(crate) from: Port,
    pub(crate) to: Port,
}

impl Pair {
    pub(crate) fn new(net: u8, send: Mode) -> Self {
        let (a, b) = (Client::new(4), Client::new(8));
        let from = engine(net, 1, send, |_| ()).bind_sink(4000, Arc::clone(&a) as _).unwrap();
        let to = engine(net, 2, send, |_| ()).bind_sink(4000, Arc::clone(&b) as _).unwrap();
        for port in [&from, &to] {
            port.engine().batch(|batch| {
                batch.set_send_buffer(port, 64 << 20);
                batch.set_receive_buffer(port, 64 << 20);
            });
        }
        Self { a, b, from, to }
    }

    pub(crate) fn send(&self, payload: Payload<'_>, token: u64) -> Result<(), SendError> {
        let to = self.to.local_addr();
        self.from
            .engine()
            .batch(|batch| batch.send(&self.from, to, payload, Some(Token(token))))
            .map_err(|rejected| rejected.error)
    }

    pub(crate) fn consumed(&self, bytes: usize, messages: u64) {
        self.to.engine().batch(|batch| batch.consumed(&self.to, bytes as u64, messages));
    }
}

/// A counter of a node.
pub(crate) fn counter(engine: &Engine, counter: Counter) -> u64 {
    engine.snapshot(false).counters.get(counter)
}
