//! A peer: the other end of all lanes between two nodes.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use super::kernel::Pairing;
use super::lane::Lane;
use super::order::lane_of_port;
use super::{Guarantee, SocketId, Time};
use crate::wire::{Capabilities, CongestionMap, Identity};

/// One life of a peer, as it showed itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Incarnation {
    pub(super) identity: Identity,
    /// The generation of its handshake; the outer `None` while no handshake was seen.
    pub(super) generation: Option<Option<u32>>,
}

impl Incarnation {
    /// Whether `newer` is another life. What one of them has not shown does not tell.
    pub(super) fn differs(&self, newer: &Self) -> bool {
        self.identity.of_life() != newer.identity.of_life()
            || matches!((self.generation, newer.generation), (Some(a), Some(b)) if a != b)
    }
}

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) address: IpAddr,
    /// We are the smaller address: we dial.
    pub(super) we_dial: bool,
    pub(super) lanes: Vec<Lane>,
    /// Lanes in use, as negotiated.
    pub(super) count: u8,
    /// How it pairs connections with lanes, once that is known, if it is a kernel.
    pub(super) pairing: Option<Pairing>,
    /// The kernel's present life has shown that it knows how many lanes we offer it.
    pub(super) agreed: bool,
    /// It was logged that the kernel uses lanes that we do not offer.
    pub(super) warned: bool,
    /// The number that a kernel's first lane will use next, when it was last used on misplaced connections; otherwise 0.
    pub(super) misplaced_rx: u64,
    /// Connections of a kernel that pairs by arrival, for the lane that loses its connection next.
    pub(super) spare: VecDeque<u32>,
    pub(super) incarnation: Option<Incarnation>,
    /// Which connection showed that last, by the order in which they were established.
    pub(super) shown: u64,
    /// Which of its ports are congested.
    pub(super) map: CongestionMap,
    /// The connection that told so.
    pub(super) map_from: Option<super::ConnId>,
    /// Senders that wait for one of its ports.
    pub(super) waiters: BTreeSet<(SocketId, u16)>,
    /// Pairs of ports whose messages are still on another lane than their own, with their number.
    pub(super) pins: BTreeMap<(u16, u16), (u8, u64)>,
    /// A larger node's knocking: the attempt, when to try next, and after how long again.
    pub(super) knocking: Option<u32>,
    pub(super) knock_at: Option<Time>,
    pub(super) knock_delay: Duration,
    /// When a knock last made us test connections that seemed alive.
    pub(super) tested_at: Option<Time>,
    /// Reconnect without a reason of our own until then.
    pub(super) keep_until: Option<Time>,
    /// When it last lost a connection.
    pub(super) idle_since: Time,
    /// Whether it was reported up.
    pub(super) up: bool,
    /// What was reported last.
    pub(super) told: Option<(Guarantee, Option<u32>, u8)>,
}

impl Peer {
    pub(super) fn new(address: IpAddr, we_dial: bool, first_sequence: u64) -> Self {
        Self {
            address,
            we_dial,
            lanes: vec![Lane::new(first_sequence)],
            count: 1,
            pairing: None,
            agreed: false,
            warned: false,
            misplaced_rx: 0,
            spare: VecDeque::new(),
            incarnation: None,
            shown: 0,
            map: CongestionMap::new(),
            map_from: None,
            waiters: BTreeSet::new(),
            pins: BTreeMap::new(),
            knocking: None,
            knock_at: None,
            knock_delay: Duration::ZERO,
            tested_at: None,
            keep_until: None,
            idle_since: Time::ZERO,
            up: false,
            told: None,
        }
    }

    /// Whether it was a kernel when it showed itself last.
    pub(super) fn is_kernel(&self) -> bool {
        self.incarnation.is_some_and(|i| !i.identity.is_own())
    }

    /// What it is, in words.
    pub(super) fn kind(&self) -> &'static str {
        match (self.incarnation, self.pairing) {
            (None, _) => "unknown",
            (Some(i), _) if i.identity.is_own() => "own",
            (Some(_), Some(Pairing::SourcePort)) => "kernel >= 7.0",
            (Some(_), Some(Pairing::Arrival)) => "kernel <= 6.18",
            (Some(_), None) => "kernel",
        }
    }

    /// What "delivered" means towards it.
    pub(super) fn guarantee(&self, ours: Capabilities) -> Option<Guarantee> {
        self.incarnation.map(|i| match i.identity {
            Identity::Own { capabilities, .. } if capabilities.common(ours).contains(Capabilities::ACKS) => {
                Guarantee::Application
            }
            _ => Guarantee::Transport,
        })
    }

    /// The lane of a new message, which counts for its pair from now on.
    pub(super) fn choose_lane(&mut self, sport: u16, dport: u16) -> u8 {
        if let Some((lane, messages)) = self.pins.get_mut(&(sport, dport)) {
            *messages += 1;
            return *lane;
        }
        lane_of_port(sport, self.count)
    }

    /// A message of the pair has ended.
    pub(super) fn unpin(&mut self, sport: u16, dport: u16) {
        if let Some((_, messages)) = self.pins.get_mut(&(sport, dport)) {
            *messages -= 1;
            if *messages == 0 {
                self.pins.remove(&(sport, dport));
            }
        }
    }

    /// Makes sure that there is a lane of that number.
    pub(super) fn grow(&mut self, lane: u8, first_sequence: u64) {
        while self.lanes.len() <= usize::from(lane) {
            self.lanes.push(Lane::new(first_sequence));
        }
    }

    /// Uses `count` lanes from now on. A pair of sockets that has messages on another lane than its new one stays there
    /// until the last of them has ended.
    pub(super) fn set_count(&mut self, count: u8, first_sequence: u64) -> bool {
        if self.count == count {
            return false;
        }
        self.count = count;
        self.grow(count - 1, first_sequence);
        self.pins.clear();
        for (index, lane) in self.lanes.iter().enumerate() {
            for (sport, dport) in lane.pairs() {
                if usize::from(lane_of_port(sport, count)) != index {
                    self.pins.entry((sport, dport)).or_insert((index as u8, 0)).1 += 1;
                }
            }
        }
        true
    }

    /// Whether there is a reason to have a connection.
    pub(super) fn is_wanted(&self, now: Time) -> bool {
        !self.waiters.is_empty()
            || self.keep_until.is_some_and(|t| now < t)
            || self.lanes.iter().any(Lane::has_messages)
    }
}
