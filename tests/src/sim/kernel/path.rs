//! One lane of a kernel's peer (`struct rds_conn_path`): its queues, numbers and framing.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use rds_core::wire::{Decoder, Flags, HEADER_LEN, Header, Item};

use super::Queued;
use crate::sim::coverage::Seen;
use crate::sim::ctx::Ctx;
use crate::sim::net::{End, Nanos};
use crate::sim::watch;

/// How a path stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No connection.
    Down,
    /// Dialling.
    Connecting,
    /// In use.
    Up,
    /// Waits for the peer's FIN until then.
    Closing(Nanos),
}

/// One lane. Numbers and queues survive its connections.
#[derive(Debug)]
pub struct Path {
    /// How it stands.
    pub state: State,
    /// Its connection.
    pub end: Option<End>,
    /// Messages not begun on the present connection.
    pub send: VecDeque<Queued>,
    /// Messages begun and not acknowledged.
    pub retransmit: VecDeque<Queued>,
    /// Number of the next message sent.
    pub next_tx: u64,
    /// One more than the number accepted last.
    pub next_rx: u64,
    /// Upper bound of the next reconnect delay.
    pub delay: Nanos,
    /// When to dial again.
    pub reconnect_at: Option<Nanos>,
    current: Option<BytesMut>,
    written: u64,
    catch_up: u64,
    /// Numbers below this were given before, by an earlier life or count: the peer may take repeats for old ones.
    pub lowered_from: u64,
    /// Messages that were thrown away and whose socket has not been told.
    pub thrown_away: Vec<Queued>,
    decoder: Decoder,
    partial: Option<(Header, Vec<u8>)>,
}

impl Path {
    /// A path without a connection; numbers below `past` were given by earlier lives.
    #[must_use]
    pub fn new(past: u64) -> Self {
        Self {
            state: State::Down,
            end: None,
            send: VecDeque::new(),
            retransmit: VecDeque::new(),
            next_tx: 1,
            next_rx: 0,
            delay: 0,
            reconnect_at: None,
            current: None,
            written: 0,
            catch_up: 0,
            lowered_from: past,
            thrown_away: Vec::new(),
            decoder: Decoder::new(),
            partial: None,
        }
    }

    /// When something is due here.
    #[must_use]
    pub fn next_run(&self) -> Option<Nanos> {
        match self.state {
            State::Closing(at) => Some(at),
            State::Down => self.reconnect_at,
            _ => None,
        }
    }

    /// A connection stands.
    pub fn up(&mut self, end: End) {
        self.state = State::Up;
        self.end = Some(end);
        self.delay = 0;
        self.reconnect_at = None;
        self.written = 0;
        self.current = None;
        self.decoder = Decoder::new();
        self.partial = None;
    }

    /// The connection is gone (`rds_send_path_reset`): what was begun and not acknowledged goes to the front, flagged.
    pub fn reset(&mut self) {
        self.state = State::Down;
        self.end = None;
        self.current = None;
        self.partial = None;
        self.decoder = Decoder::new();
        while let Some(mut m) = self.retransmit.pop_back() {
            m.header.flags = m.header.flags.with(Flags::RETRANSMITTED);
            m.end = 0;
            self.send.push_front(m);
        }
    }

    /// The peer restarted (`rds_conn_peer_gen_update`).
    pub fn new_generation(&mut self) {
        self.lowered_from = self.lowered_from.max(self.next_tx);
        self.next_tx = 1;
        self.next_rx = 0;
        for m in &mut self.retransmit {
            m.stale = true;
        }
    }

    /// Queues a message under the next number.
    pub fn queue(&mut self, header: Header, payload: Bytes, book: Option<usize>, id: Option<usize>) {
        let header = Header { sequence: self.next_tx, len: payload.len() as u32, ..header };
        self.next_tx = self.next_tx.wrapping_add(1);
        self.send.push_back(Queued { header, payload, book, id, end: 0, stale: false });
    }

    /// The number of lanes changes: the others wait until what was queued here by now is acknowledged.
    pub fn begin_catch_up(&mut self) {
        self.catch_up = self.next_tx;
    }

    /// Whether messages from before fan-out are unacknowledged.
    #[must_use]
    pub fn is_catching_up(&self) -> bool {
        let first = self.retransmit.front().or_else(|| self.send.front());
        first.is_some_and(|m| m.header.sequence < self.catch_up)
    }

    /// Writes what TCP takes (`rds_send_xmit`): a map first if one is due, then messages in order.
    pub fn transmit(
        &mut self,
        cx: &mut Ctx,
        map_queued: &mut bool,
        map: &Bytes,
        held: bool,
    ) -> Result<(), String> {
        let (State::Up, Some(end)) = (self.state, self.end) else { return Ok(()) };
        loop {
            if self.current.is_none() {
                if *map_queued {
                    *map_queued = false;
                    self.current = Some(BytesMut::from(&map[..]));
                    self.written += map.len() as u64;
                } else if held {
                    return Ok(());
                } else {
                    let Some(mut m) = self.send.pop_front() else { return Ok(()) };
                    if m.stale {
                        // Begun before the peer's generation changed, perhaps for the new one: thrown away either way.
                        if let Some(id) = m.id {
                            cx.ledger.messages[id].may_be_lost = true;
                        }
                        cx.see(Seen::KernelDroppedStale);
                        self.thrown_away.push(m);
                        continue;
                    }
                    if m.header.flags.contains(Flags::RETRANSMITTED)
                        && m.header.sequence < self.lowered_from
                        && let Some(id) = m.id
                    {
                        cx.ledger.messages[id].may_be_lost = true;
                    }
                    let mut bytes = BytesMut::with_capacity(HEADER_LEN + m.payload.len());
                    bytes.extend_from_slice(&m.header.encode());
                    bytes.extend_from_slice(&m.payload);
                    self.written += bytes.len() as u64;
                    m.end = self.written;
                    self.retransmit.push_back(m);
                    self.current = Some(bytes);
                }
            }
            let current = self.current.as_mut().expect("filled above");
            let n = cx.net.write(cx.now, end, &[current.clone().freeze().into()], current.len());
            let sent = current.split_to(n);
            if current.is_empty() {
                self.current = None;
            }
            watch::written(cx, end, &sent)?;
            if self.current.is_some() {
                return Ok(());
            }
        }
    }

    /// Cuts bytes into messages.
    pub fn cut(&mut self, mut input: &[u8]) -> Result<Vec<(Header, Vec<u8>)>, String> {
        let mut whole = Vec::new();
        loop {
            match self.decoder.next(&mut input, u32::MAX).map_err(|e| e.to_string())? {
                Item::NeedMore => return Ok(whole),
                Item::Message { header, payload } => whole.push((header, payload.to_vec())),
                Item::Begin { header } => self.partial = Some((header, Vec::new())),
                Item::Chunk { data, last } => {
                    let (_, payload) = self.partial.as_mut().expect("a chunk follows its header");
                    payload.extend_from_slice(data);
                    if last {
                        whole.extend(self.partial.take());
                    }
                }
            }
        }
    }
}
