//! A model of Linux rds_tcp, by its rules and not by its code: kernels up to 6.18 ("old") and from 7.0 on ("new").
//!
//! Each rule cites the function of `net/rds` that it models. The recordings of real kernels hold it to them
//! (`tests/kernel_model.rs`).

mod incoming;
mod path;
mod socket;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use rds_core::proto::is_smaller;
use rds_core::wire::{CongestionMap, HandshakeExtensions, Header, Identity, PORT_ENGINE};

pub use path::{Path, State};
pub use socket::{Refusal, Socket};

use super::coverage::Seen;
use super::ctx::Ctx;
use super::net::{End, MS, Nanos, Notice, SEC};

/// Lanes that a kernel offers (`net/rds/rds.h`, `RDS_MPATH_WORKERS`).
pub const LANES: u8 = 8;
/// How long a new kernel waits for its peer's FIN (`rds_tcp_conn_path_shutdown`).
const SHUTDOWN_WAIT: Nanos = 5 * SEC;
/// The port from which [`KernelHost::nudge`] pings; nobody has it.
const NUDGE_PORT: u16 = 7;

/// A message in a kernel's queues.
#[derive(Clone, Debug)]
pub struct Queued {
    /// The header as it will go out.
    pub header: Header,
    /// The payload.
    pub payload: Bytes,
    /// Sending socket's book, for data.
    pub book: Option<usize>,
    /// Number of the message in the ledger, for data.
    pub id: Option<usize>,
    /// Stream offset behind its last byte on the present connection, once begun.
    pub end: u64,
    /// To be thrown away when it is dequeued next (`rds_conn_peer_gen_update`).
    pub stale: bool,
}

/// What a kernel keeps of one peer address (`struct rds_connection`). Survives every connection.
#[derive(Debug)]
pub struct Peer {
    /// 0 until a handshake message told.
    pub npaths: u8,
    /// A handshake ping is outstanding (`c_ping_triggered`).
    pub ping_triggered: bool,
    /// The peer's generation, 0 if never shown.
    pub generation: u32,
    /// The peer announced lanes by source port.
    pub source_port_lane: bool,
    /// A map waits to be sent (`c_map_queued`, one bit for all lanes).
    pub map_queued: bool,
    /// The peer's congested ports.
    pub map: CongestionMap,
    /// The lanes.
    pub paths: Vec<Path>,
    /// Messages of blocking senders that wait for the handshake pong (old only).
    pub waiting: VecDeque<Queued>,
}

impl Peer {
    fn new(past_tx: u64) -> Self {
        Self {
            npaths: 0,
            ping_triggered: false,
            generation: 0,
            source_port_lane: false,
            map_queued: false,
            map: CongestionMap::new(),
            paths: (0..LANES).map(|_| Path::new(past_tx)).collect(),
            waiting: VecDeque::new(),
        }
    }
}

/// A host with a kernel's RDS.
#[derive(Debug)]
pub struct KernelHost {
    /// Number of the host.
    pub index: usize,
    /// Whether it goes by the rules of kernels from 7.0 on.
    pub new: bool,
    /// Whether it runs.
    pub up: bool,
    /// `rds_gen_num`.
    pub generation: u32,
    /// The sysctl of that name.
    pub ping_enable: bool,
    /// Peers by their host.
    pub peers: BTreeMap<usize, Peer>,
    /// Sockets by port.
    pub sockets: BTreeMap<u16, Socket>,
    /// Notices to be handled.
    pub pending: VecDeque<Notice>,
    /// Chance in 256 that an old kernel drops a connection before it has read it out.
    pub hasty: u8,
    /// Chance in 256 that work is left for later.
    pub skip: u8,
    /// Until when programs and workers stand still.
    pub frozen_until: Nanos,
    map: CongestionMap,
    by_end: BTreeMap<End, (usize, usize)>,
    backlog: VecDeque<End>,
    stash: Option<End>,
    /// Highest number that earlier lives gave.
    past_tx: u64,
}

impl KernelHost {
    /// A kernel without the module.
    #[must_use]
    pub fn new(index: usize, new: bool) -> Self {
        Self {
            index,
            new,
            up: false,
            generation: 0,
            ping_enable: true,
            peers: BTreeMap::new(),
            sockets: BTreeMap::new(),
            pending: VecDeque::new(),
            hasty: 0,
            skip: 0,
            frozen_until: 0,
            map: CongestionMap::new(),
            by_end: BTreeMap::new(),
            backlog: VecDeque::new(),
            stash: None,
            past_tx: 0,
        }
    }

    /// Loads the module.
    pub fn start(&mut self, cx: &mut Ctx, generation: u32) {
        self.up = true;
        self.generation = generation;
        let fact = &mut cx.facts[self.index];
        fact.incarnation += 1;
        (fact.lanes, fact.old_kernel_lanes) = (LANES, LANES);
        fact.generation = generation;
        fact.ping_enable = self.ping_enable;
        if fact.incarnation > 1 {
            cx.see(Seen::KernelRestart);
        }
    }

    /// Unloads it, or loses it; the net is told by the caller.
    pub fn stop(&mut self, cx: &mut Ctx) {
        self.up = false;
        let given = self.peers.values().flat_map(|p| &p.paths).map(|p| p.next_tx.max(p.lowered_from)).max();
        self.past_tx = self.past_tx.max(given.unwrap_or(0));
        self.peers.clear();
        self.sockets.clear();
        self.pending.clear();
        self.by_end.clear();
        self.backlog.clear();
        self.stash = None;
        self.map = CongestionMap::new();
        cx.ledger.host_died(self.index);
    }

    fn is_smaller_than(&self, cx: &Ctx, peer: usize) -> bool {
        is_smaller(cx.facts[self.index].address, cx.facts[peer].address)
    }

    fn extensions(&self) -> [u8; 16] {
        let said = if self.new {
            HandshakeExtensions {
                lanes: Some(u16::from(LANES)),
                generation: Some(self.generation),
                source_port_lane: true,
            }
        } else {
            // `rds_message_add_extension` of old kernels takes one extension only.
            HandshakeExtensions { lanes: Some(u16::from(LANES)), ..HandshakeExtensions::default() }
        };
        said.encode()
    }

    /// When the host must run next, by itself.
    #[must_use]
    pub fn next_run(&self) -> Option<Nanos> {
        let paths = self.peers.values().flat_map(|p| &p.paths);
        paths.filter_map(|p| p.next_run()).min()
    }

    /// Runs once. Returns whether something was left for a later run.
    pub fn run(&mut self, cx: &mut Ctx) -> bool {
        if !self.up {
            self.pending.clear();
            return false;
        }
        let mut later = VecDeque::new();
        while let Some(notice) = self.pending.pop_front() {
            if cx.broken.is_some() {
                return false;
            }
            if !matches!(notice, Notice::Connected(_)) && cx.chance(self.skip) {
                later.push_back(notice);
                continue;
            }
            match notice {
                Notice::Incoming(end) => self.backlog.push_back(end),
                Notice::Connected(end) => self.connected(cx, end),
                Notice::Failed(end) => {
                    if let Some((peer, index)) = self.by_end.remove(&end) {
                        self.path_down(cx, peer, index);
                    }
                }
                Notice::Readable(end) => self.readable(cx, end),
                Notice::Errors(_) => {}
                Notice::Writable(end) => {
                    if let Some(&(peer, index)) = self.by_end.get(&end) {
                        self.drop_acked(cx, peer, index);
                    }
                }
            }
        }
        self.pending = later;
        self.timers(cx);
        self.accept_all(cx);
        self.transmit_all(cx);
        !self.pending.is_empty()
    }

    fn timers(&mut self, cx: &mut Ctx) {
        let due: Vec<(usize, usize)> = self
            .peers
            .iter()
            .flat_map(|(peer, p)| {
                p.paths.iter().enumerate().map(move |(i, path)| (*peer, i, path.next_run()))
            })
            .filter(|(_, _, at)| at.is_some_and(|at| at <= cx.now))
            .map(|(peer, i, _)| (peer, i))
            .collect();
        for (peer, index) in due {
            let path = &mut self.peers.get_mut(&peer).expect("found above").paths[index];
            if path.reconnect_at.take().is_some() {
                self.dial(cx, peer, index);
            } else {
                self.finish_shutdown(cx, peer, index);
            }
        }
    }

    // ---- connections ------------------------------------------------------------------------------------------------

    /// `rds_conn_path_connect_if_down`, `rds_tcp_conn_path_connect`.
    fn dial(&mut self, cx: &mut Ctx, peer: usize, index: usize) {
        let p = self.peers.entry(peer).or_insert_with(|| Peer::new(self.past_tx));
        let path = &mut p.paths[index];
        if path.state != State::Down || (index > 0 && p.npaths < 2) {
            return;
        }
        path.reconnect_at = None;
        path.state = State::Connecting;
        let end = cx.net.connect(cx.now, self.index, peer, self.new.then_some((index as u8, 8)));
        let lane = self.new.then_some(index as u8);
        cx.watch.open(end, cx.facts[self.index].incarnation, cx.now, lane);
        path.end = Some(end);
        self.by_end.insert(end, (peer, index));
    }

    /// `rds_tcp_state_change`: established.
    fn connected(&mut self, cx: &mut Ctx, end: End) {
        let Some(&(peer, index)) = self.by_end.get(&end) else { return };
        if !self.is_smaller_than(cx, peer) {
            // Only a poke: the smaller address connects back.
            cx.see(Seen::Knock);
            self.by_end.remove(&end);
            cx.net.close(cx.now, end);
            self.path_down(cx, peer, index);
            return;
        }
        self.path_up(cx, peer, index, end);
    }

    /// `rds_connect_path_complete`.
    fn path_up(&mut self, cx: &mut Ctx, peer: usize, index: usize, end: End) {
        cx.tell(|| {
            format!("kernel {}: path {index} to host {peer} is up, connection {}", self.index, end.link)
        });
        let p = self.peers.entry(peer).or_insert_with(|| Peer::new(self.past_tx));
        p.map_queued = true;
        p.paths[index].up(end);
        self.by_end.insert(end, (peer, index));
        if cx.net.is_readable(end) {
            self.pending.push_back(Notice::Readable(end));
        }
    }

    /// The path has no connection any more: what comes next.
    fn path_down(&mut self, cx: &mut Ctx, peer: usize, index: usize) {
        let smaller = self.is_smaller_than(cx, peer);
        let p = self.peers.get_mut(&peer).expect("a path has its peer");
        let was_up = p.paths[index].state != State::Connecting;
        p.paths[index].reset();
        if smaller {
            // `rds_queue_reconnect`: at once, then a random delay below a doubling bound.
            let path = &mut p.paths[index];
            let delay = if path.delay == 0 { 0 } else { cx.rng.u64(0..path.delay) };
            path.delay = (path.delay * 2).clamp(4 * MS, SEC);
            path.reconnect_at = Some(cx.now + delay);
        }
        if self.new && index == 0 && was_up {
            // `rds_conn_shutdown`: the handshake is repeated, which makes a larger address poke once.
            self.send_ping(cx, peer);
        }
    }

    /// `rds_tcp_accept_one`, for everything that waits.
    fn accept_all(&mut self, cx: &mut Ctx) {
        loop {
            let Some(end) = self.stash.take().or_else(|| self.backlog.pop_front()) else { return };
            let peer = cx.net.host_of(end.peer());
            let waits = cx.net.phase(end) == super::net::Phase::Queued;
            if !waits && !self.new {
                continue;
            }
            if self.is_smaller_than(cx, peer) {
                cx.net.accept(end);
                cx.see(Seen::Knock);
                let npaths = self.peers.entry(peer).or_insert_with(|| Peer::new(self.past_tx)).npaths;
                self.give_up(cx, end);
                if npaths <= 1 {
                    self.dial(cx, peer, 0);
                }
                continue;
            }
            let p = self.peers.entry(peer).or_insert_with(|| Peer::new(self.past_tx));
            let count = usize::from(p.npaths.max(1));
            let free = if self.new && p.source_port_lane {
                let index = usize::from(cx.net.source_port(end.link)) % count;
                (p.paths[index].state == State::Down).then_some(index)
            } else {
                (0..count).find(|i| p.paths[*i].state == State::Down)
            };
            match free {
                Some(index) => {
                    cx.net.accept(end);
                    cx.watch.open(end, cx.facts[self.index].incarnation, cx.now, None);
                    self.path_up(cx, peer, index, end);
                    if self.peers[&peer].npaths == 0 {
                        self.send_ping(cx, peer);
                    }
                }
                None if self.new => {
                    // `rds_tcp_accepted_sock`: it waits, and everybody behind it.
                    cx.see(Seen::KernelStashed);
                    self.stash = Some(end);
                    return;
                }
                None => {
                    cx.net.accept(end);
                    cx.see(Seen::KernelRejected);
                    self.give_up(cx, end);
                }
            }
        }
    }

    /// Closes a connection without reading it: what TCP had acknowledged is lost.
    fn give_up(&mut self, cx: &mut Ctx, end: End) {
        let lost = cx.watch.unread_messages(end.peer(), cx.net.received_offset(end));
        for id in lost {
            cx.tell(|| format!("kernel {}: message {id} is lost with connection {}", self.index, end.link));
            cx.see(Seen::KernelLost);
            cx.ledger.messages[id].may_be_lost = true;
        }
        cx.net.close(cx.now, end);
    }

    fn readable(&mut self, cx: &mut Ctx, end: End) {
        let Some(&(peer, index)) = self.by_end.get(&end) else { return };
        let ended = cx.net.has_ended(end);
        // Only an old kernel drops a path without reading it out; its worker usually was faster.
        if !(ended && !self.new && cx.chance(self.hasty)) {
            self.receive(cx, peer, index, end);
        }
        if ended && self.by_end.contains_key(&end) {
            self.shutdown(cx, peer, index, end);
        }
    }

    /// `rds_conn_shutdown` after the peer's FIN or a RST.
    fn shutdown(&mut self, cx: &mut Ctx, peer: usize, index: usize, end: End) {
        cx.tell(|| {
            format!("kernel {}: path {index} to host {peer} ends, connection {}", self.index, end.link)
        });
        if self.new {
            self.drop_acked(cx, peer, index);
        }
        self.by_end.remove(&end);
        self.give_up(cx, end);
        self.path_down(cx, peer, index);
    }

    /// A path that this side ends (new only): FIN, and reading on until the peer's.
    fn begin_shutdown(&mut self, cx: &mut Ctx, peer: usize, index: usize) {
        let path = &mut self.peers.get_mut(&peer).expect("a path has its peer").paths[index];
        if let (State::Up, Some(end)) = (path.state, path.end) {
            path.state = State::Closing(cx.now + SHUTDOWN_WAIT);
            cx.net.shutdown(cx.now, end);
        }
    }

    fn finish_shutdown(&mut self, cx: &mut Ctx, peer: usize, index: usize) {
        if let Some(end) = self.peers[&peer].paths[index].end {
            self.shutdown(cx, peer, index, end);
        }
    }

    /// `rds_send_path_drop_acked`.
    fn drop_acked(&mut self, cx: &Ctx, peer: usize, index: usize) {
        let path = &mut self.peers.get_mut(&peer).expect("a path has its peer").paths[index];
        let Some(end) = path.end else { return };
        let acked = cx.net.acked(end);
        while path.retransmit.front().is_some_and(|m| m.end <= acked && m.end > 0) {
            let done = path.retransmit.pop_front().expect("looked at");
            Self::release(&mut self.sockets, &done);
        }
    }

    fn release(sockets: &mut BTreeMap<u16, Socket>, m: &Queued) {
        if let Some(book) = m.book
            && let Some(s) = sockets.get_mut(&m.header.sport).filter(|s| s.book == book)
        {
            s.send_queued -= m.payload.len() as u64;
        }
    }

    fn transmit_all(&mut self, cx: &mut Ctx) {
        let map = self.map.to_message(Identity::Kernel);
        for p in self.peers.values_mut() {
            // `rds_mprds_cp0_catchup`: on fan-out the other paths wait for the first one's earlier messages.
            let first_busy = self.new && p.paths[0].is_catching_up();
            for index in 0..p.paths.len() {
                let held = first_busy && index > 0;
                let path = &mut p.paths[index];
                let result = path.transmit(cx, &mut p.map_queued, &map, held);
                cx.check(result);
                for m in std::mem::take(&mut path.thrown_away) {
                    Self::release(&mut self.sockets, &m);
                }
            }
        }
    }

    /// Whether someone should ping: messages wait, or a peer seems congested.
    #[must_use]
    pub fn needs_nudge(&self) -> bool {
        !self.is_drained() || self.peers.values().any(|p| !p.map.is_empty() || p.npaths > 1)
    }

    /// Whether every message was sent and acknowledged.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.peers.values().all(|p| {
            p.waiting.is_empty()
                && p.paths.iter().all(|path| path.send.is_empty() && path.retransmit.is_empty())
        })
    }

    /// Someone pings every peer for which something waits, or which seems congested (`rds-ping`).
    pub fn nudge(&mut self, cx: &mut Ctx) {
        let waiting = |p: &Peer| {
            !p.map.is_empty()
                || p.paths.iter().any(|path| !(path.send.is_empty() && path.retransmit.is_empty()))
        };
        let peers: Vec<usize> = self.peers.iter().filter(|(_, p)| waiting(p)).map(|(i, _)| *i).collect();
        for peer in peers {
            self.send_probe(cx, peer, 0, NUDGE_PORT, PORT_ENGINE);
        }
        // With several lanes an old map may overtake a newer one, and stays in force until the next change.
        for p in self.peers.values_mut() {
            p.map_queued = true;
        }
    }

    /// Its peers and queues in words.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = format!("kernel {}:", self.index);
        for (peer, p) in &self.peers {
            text += &format!(" [host {peer}, {} lanes, congested {:?}:", p.npaths, p.map);
            for (i, path) in p.paths.iter().enumerate().filter(|(i, path)| *i == 0 || path.next_tx > 1) {
                let (send, again) = (path.send.len(), path.retransmit.len());
                text += &format!(" {i} {:?} {send}+{again} queued, rx {:#x}", path.state, path.next_rx);
            }
            text += "]";
        }
        text
    }
}
