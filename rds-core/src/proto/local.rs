//! The node's own side: sockets, ports, their congestion map, and what they hold of received messages.

use std::collections::BTreeSet;

use super::{Action, BindError, Config, Inbox, Outcome, SocketId, Token};
use crate::info::{Counter, Counters};
use crate::wire::{CongestionMap, HEADER_LEN, PORT_PROBE};

/// What a queued message costs beyond its payload, in bytes, against the node's budget.
pub(super) const MESSAGE_COST: u64 = HEADER_LEN as u64;
/// Default of a socket's send and receive buffer, in payload bytes.
const DEFAULT_BUFFER: u64 = 1 << 20;
/// A send buffer of `n` bytes holds at most `n / SMALLEST_SHARE` messages, so that empty ones are bounded too.
const SMALLEST_SHARE: u64 = 16;
/// ... but always this many.
const LEAST_MESSAGES: u64 = 1024;

/// What a kernel may have on its way to one port when it learns that the port is congested, in bytes: TCP's buffers of both
/// ends, as they are at most by default (`tcp_wmem`, `tcp_rmem`), and some more.
const IN_FLIGHT: u64 = 16 << 20;

/// Nobody's socket: sender of pongs and of cancelled messages.
pub(super) const NO_SOCKET: SocketId = SocketId { index: u32::MAX, serial: 0 };

#[derive(Debug)]
pub(super) struct Socket {
    pub(super) serial: u32,
    pub(super) port: u16,
    /// Unbound, but its messages are still on their way.
    pub(super) zombie: bool,
    pub(super) send_limit: u64,
    pub(super) send_used: u64,
    pub(super) send_messages: u64,
    pub(super) receive_limit: u64,
    pub(super) receive_used: u64,
    pub(super) receive_messages: u64,
    pub(super) congested: bool,
    pub(super) want_writable: bool,
    pub(super) want_drained: bool,
}

impl Socket {
    /// The kernel's rule: room is what was free before this message (`rds_send_queue_rm`, `rds_sendmsg`).
    pub(super) fn has_room(&self) -> bool {
        self.send_used < self.send_limit
            && self.send_messages < (self.send_limit / SMALLEST_SHARE).max(LEAST_MESSAGES)
    }

    /// What its queue takes of the node's budget.
    fn cost(&self) -> u64 {
        self.receive_used + MESSAGE_COST * self.receive_messages
    }

    /// Half of the budget, unless its own buffer is larger: small messages to one port must leave the others some.
    fn cost_limit(&self, config: &Config) -> u64 {
        (config.receive_budget / 2).max(self.receive_limit)
    }

    /// Whether the port is to be congested: the kernel's rule, and a bound for small and empty messages.
    fn is_full(&self, config: &Config) -> bool {
        self.receive_used > self.receive_limit || self.cost() > self.cost_limit(config)
    }
}

/// RDS ports to sockets: two levels, so that an idle node is small and a lookup is two loads.
struct Ports(Vec<Option<Box<[u32; 256]>>>);

const UNBOUND: u32 = u32::MAX;

impl Ports {
    fn get(&self, port: u16) -> Option<u32> {
        let index = self.0[usize::from(port >> 8)].as_ref()?[usize::from(port & 0xff)];
        (index != UNBOUND).then_some(index)
    }

    fn set(&mut self, port: u16, index: u32) {
        let page = self.0[usize::from(port >> 8)].get_or_insert_with(|| Box::new([UNBOUND; 256]));
        page[usize::from(port & 0xff)] = index;
    }
}

pub(super) struct Local {
    sockets: Vec<Option<Socket>>,
    free: Vec<u32>,
    serial: u32,
    ports: Ports,
    bound: usize,
    /// Which of our ports are congested.
    pub(super) map: CongestionMap,
    /// The map changed and has not been given to the connections yet.
    pub(super) map_changed: bool,
    /// Bytes that received messages hold, with [`MESSAGE_COST`] each.
    pub(super) queued: u64,
    /// Connections that carry a lane.
    pub(super) connections: u64,
    /// Messages of all sockets that have not ended.
    pub(super) unfinished: u64,
    /// Senders on this node that wait for one of its own ports.
    waiters: BTreeSet<(SocketId, u16)>,
}

impl Local {
    pub(super) fn new() -> Self {
        Self {
            sockets: Vec::new(),
            free: Vec::new(),
            serial: 0,
            ports: Ports(vec![None; 256]),
            bound: 0,
            map: CongestionMap::new(),
            map_changed: false,
            queued: 0,
            connections: 0,
            unfinished: 0,
            waiters: BTreeSet::new(),
        }
    }

    pub(super) fn bind(&mut self, port: u16, rng: &mut fastrand::Rng) -> Result<(SocketId, u16), BindError> {
        let port = match port {
            PORT_PROBE => return Err(BindError::Reserved),
            0 => self.free_port(rng)?,
            port if self.ports.get(port).is_some() => return Err(BindError::InUse(port)),
            port => port,
        };
        self.serial = self.serial.wrapping_add(1);
        let socket = Socket {
            serial: self.serial,
            port,
            zombie: false,
            send_limit: DEFAULT_BUFFER,
            send_used: 0,
            send_messages: 0,
            receive_limit: DEFAULT_BUFFER,
            receive_used: 0,
            receive_messages: 0,
            congested: false,
            want_writable: false,
            want_drained: false,
        };
        let index = self.free.pop().unwrap_or_else(|| {
            self.sockets.push(None);
            u32::try_from(self.sockets.len() - 1).expect("fewer sockets than ports and messages")
        });
        self.sockets[index as usize] = Some(socket);
        self.ports.set(port, index);
        self.bound += 1;
        Ok((SocketId { index, serial: self.serial }, port))
    }

    fn free_port(&self, rng: &mut fastrand::Rng) -> Result<u16, BindError> {
        const FIRST: u16 = PORT_PROBE + 1;
        let start = rng.u16(FIRST..=u16::MAX);
        (start..=u16::MAX)
            .chain(FIRST..start)
            .find(|p| self.ports.get(*p).is_none())
            .ok_or(BindError::Exhausted)
    }

    pub(super) fn get(&self, id: SocketId) -> Option<&Socket> {
        self.sockets.get(id.index as usize)?.as_ref().filter(|s| s.serial == id.serial)
    }

    pub(super) fn get_mut(&mut self, id: SocketId) -> Option<&mut Socket> {
        self.sockets.get_mut(id.index as usize)?.as_mut().filter(|s| s.serial == id.serial)
    }

    /// A socket that a program still holds.
    pub(super) fn live(&mut self, id: SocketId) -> Option<&mut Socket> {
        self.get_mut(id).filter(|s| !s.zombie)
    }

    /// The socket bound to `port`.
    pub(super) fn by_port(&self, port: u16) -> Option<SocketId> {
        let index = self.ports.get(port)?;
        let socket = self.sockets[index as usize].as_ref()?;
        Some(SocketId { index, serial: socket.serial })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SocketId, &Socket)> {
        self.sockets.iter().enumerate().filter_map(|(i, s)| {
            let s = s.as_ref()?;
            Some((SocketId { index: i as u32, serial: s.serial }, s))
        })
    }

    /// Charges a message to the socket's send buffer.
    pub(super) fn charge_send(&mut self, id: SocketId, len: u64) {
        if let Some(s) = self.get_mut(id) {
            s.send_used += len;
            s.send_messages += 1;
            self.unfinished += 1;
        }
    }

    /// A message has ended: gives its room back and tells who wants to know.
    pub(super) fn finish_send(
        &mut self,
        id: SocketId,
        len: u64,
        token: Option<Token>,
        outcome: Outcome,
        counters: &mut Counters,
        actions: &mut std::collections::VecDeque<Action>,
    ) {
        let Some(s) = self.get_mut(id) else { return };
        s.send_used -= len;
        s.send_messages -= 1;
        match outcome {
            Outcome::Delivered(_) => {}
            Outcome::Unknown => counters.add(Counter::SendUnknown, 1),
            Outcome::Cancelled => counters.add(Counter::SendCancelled, 1),
        }
        if let Some(token) = token.filter(|_| !s.zombie) {
            actions.push_back(Action::Completed { socket: id, token, outcome });
        }
        if s.want_writable && s.has_room() {
            s.want_writable = false;
            actions.push_back(Action::Writable { socket: id });
        }
        let mut gone = false;
        if s.send_messages == 0 {
            counters.add(Counter::SendQueueEmpty, 1);
            if std::mem::take(&mut s.want_drained) {
                actions.push_back(Action::Drained { socket: id });
            }
            gone = s.zombie;
        }
        self.unfinished -= 1;
        if gone {
            self.release(id);
        }
    }

    fn release(&mut self, id: SocketId) {
        self.sockets[id.index as usize] = None;
        self.free.push(id.index);
    }

    /// Unbinds the socket and drops what it holds. It stays as a zombie while messages of it are on their way.
    pub(super) fn unbind(
        &mut self,
        id: SocketId,
        actions: &mut std::collections::VecDeque<Action>,
        address: std::net::IpAddr,
    ) {
        let Some(s) = self.live(id) else { return };
        let (port, was_congested) = (s.port, std::mem::take(&mut s.congested));
        let held =
            std::mem::take(&mut s.receive_used) + MESSAGE_COST * std::mem::take(&mut s.receive_messages);
        s.zombie = true;
        s.want_writable = false;
        s.want_drained = false;
        let idle = s.send_messages == 0;
        self.queued -= held;
        self.ports.set(port, UNBOUND);
        self.bound -= 1;
        self.waiters.retain(|(socket, _)| *socket != id);
        if was_congested {
            self.clear_congestion(port, actions, address);
        }
        if idle {
            self.release(id);
        }
    }

    fn clear_congestion(
        &mut self,
        port: u16,
        actions: &mut std::collections::VecDeque<Action>,
        address: std::net::IpAddr,
    ) {
        if !self.map.set(port, false) {
            return;
        }
        self.map_changed = true;
        self.waiters.retain(|(socket, p)| {
            if *p == port {
                actions
                    .push_back(Action::Uncongested { socket: *socket, destination: (address, port).into() });
            }
            *p != port
        });
    }

    /// A sender on this node waits for one of its own ports.
    pub(super) fn watch_own_port(&mut self, socket: SocketId, port: u16) {
        self.waiters.insert((socket, port));
    }

    /// Counts a message that is about to be queued for `id`.
    pub(super) fn charge_receive(&mut self, id: SocketId, len: u64) {
        if let Some(s) = self.get_mut(id) {
            s.receive_used += len;
            s.receive_messages += 1;
            self.queued += len + MESSAGE_COST;
        }
    }

    /// Marks the port congested when its queue is above its buffer; returns whether it is past its hard limit.
    pub(super) fn check_receive(
        &mut self,
        id: SocketId,
        config: &Config,
        inbox: &mut impl Inbox,
        counters: &mut Counters,
        actions: &mut std::collections::VecDeque<Action>,
    ) -> bool {
        let Some(s) = self.get(id) else { return false };
        if !s.is_full(config) {
            return false;
        }
        if !s.congested {
            // Programs report lazily: ask before believing the worst.
            let (bytes, messages) = inbox.take_consumed(id);
            self.consumed(id, bytes, messages, actions, config);
        }
        let Some(s) = self.get_mut(id) else { return false };
        if !s.is_full(config) {
            return false;
        }
        if !s.congested {
            s.congested = true;
            let port = s.port;
            self.map_changed |= self.map.set(port, true);
            counters.add(Counter::CongUpdateQueued, 1);
            actions.push_back(Action::Congestion { socket: id, congested: true });
        }
        self.past_hard_limit(id, config)
    }

    /// Whether the socket holds more than its hard limit.
    pub(super) fn past_hard_limit(&self, id: SocketId, config: &Config) -> bool {
        self.get(id).is_some_and(|s| {
            // What well-behaved peers had sent before they could learn of the congestion must fit, or one stopped socket
            // would stop all others of its node.
            let on_the_way = self.connections.saturating_mul(config.window.max(IN_FLIGHT));
            let times = s.receive_limit.saturating_mul(u64::from(config.port_hard_limit));
            let limit = times.max(s.receive_limit.saturating_add(on_the_way)).min(config.receive_budget / 2);
            s.receive_used > limit.max(s.receive_limit) || s.cost() > s.cost_limit(config)
        })
    }

    /// A program took messages from the socket's queue.
    pub(super) fn consumed(
        &mut self,
        id: SocketId,
        bytes: u64,
        messages: u64,
        actions: &mut std::collections::VecDeque<Action>,
        config: &Config,
    ) {
        let Some(s) = self.live(id) else { return };
        let bytes = bytes.min(s.receive_used);
        let messages = messages.min(s.receive_messages);
        s.receive_used -= bytes;
        s.receive_messages -= messages;
        let cleared = s.congested
            && (s.receive_used < s.receive_limit / 2 || s.receive_used == 0)
            && s.cost() <= s.cost_limit(config) / 2;
        if cleared {
            s.congested = false;
        }
        let port = s.port;
        self.queued -= bytes + MESSAGE_COST * messages;
        if cleared {
            self.clear_congestion(port, actions, config.address);
            actions.push_back(Action::Congestion { socket: id, congested: false });
        }
    }

    /// Asks every queue what was consumed: the budget is short.
    pub(super) fn sync_all(
        &mut self,
        inbox: &mut impl Inbox,
        actions: &mut std::collections::VecDeque<Action>,
        config: &Config,
    ) {
        for index in 0..self.sockets.len() {
            let Some(s) = self.sockets[index].as_ref().filter(|s| !s.zombie && s.receive_messages > 0) else {
                continue;
            };
            let id = SocketId { index: index as u32, serial: s.serial };
            let (bytes, messages) = inbox.take_consumed(id);
            self.consumed(id, bytes, messages, actions, config);
        }
    }
}
