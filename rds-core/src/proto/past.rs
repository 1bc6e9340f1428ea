//! Peers that make room for others: what was accepted from them stays known, so that nothing is delivered twice when they come back.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use super::Node;
use super::kernel::Pairing;
use super::lane::Lane;
use super::peer::{Incarnation, Peer};

/// Of so many peers more than [`Config::max_peers`](super::Config::max_peers), in times that, it stays known what was accepted.
const TIMES: usize = 16;

/// What is left of a peer: its last life, and of each lane which number was accepted from it last.
#[derive(Debug)]
struct Rest {
    incarnation: Option<Incarnation>,
    pairing: Option<Pairing>,
    rx: Box<[u64]>,
    serial: u64,
}

/// What is left of peers that made room, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Past {
    rests: HashMap<IpAddr, Rest>,
    order: BTreeMap<u64, IpAddr>,
    serial: u64,
}

impl Past {
    fn remember(&mut self, peer: &Peer, most: usize) {
        if peer.incarnation.is_none() {
            return;
        }
        self.serial += 1;
        let rx = peer.lanes.iter().map(|l| l.rx).collect();
        let rest = Rest { incarnation: peer.incarnation, pairing: peer.pairing, rx, serial: self.serial };
        self.order.insert(rest.serial, peer.address);
        if let Some(older) = self.rests.insert(peer.address, rest) {
            self.order.remove(&older.serial);
        }
        while self.rests.len() > most {
            let Some((_, address)) = self.order.pop_first() else { return };
            self.rests.remove(&address);
        }
    }

    /// Gives a peer that comes back what is known of it.
    pub(super) fn recall(&mut self, peer: &mut Peer, first_sequence: u64) {
        let Some(rest) = self.rests.remove(&peer.address) else { return };
        self.order.remove(&rest.serial);
        (peer.incarnation, peer.pairing) = (rest.incarnation, rest.pairing);
        while peer.lanes.len() < rest.rx.len() {
            peer.lanes.push(Lane::new(first_sequence));
        }
        for (lane, rx) in peer.lanes.iter_mut().zip(rest.rx) {
            lane.rx = rx;
        }
    }
}

impl Node {
    /// Whether another peer can be known: the one that has been idle for the longest time makes room.
    pub(super) fn make_room(&mut self) -> bool {
        if self.by_address.len() < self.config.max_peers {
            return true;
        }
        let mut busy = vec![false; self.peers.len()];
        self.conns.peers().for_each(|peer| busy[peer as usize] = true);
        let idle = |p: &Peer| {
            let rests = |l: &Lane| l.queue.is_empty() && l.held.is_empty() && l.unacked.is_empty();
            // On which of several lanes a kernel's next connection belongs would not be known any more.
            let lanes = p.count == 1 || p.incarnation.is_some_and(|i| i.identity.is_own());
            lanes && !p.is_wanted(self.clock) && p.knocking.is_none() && p.lanes.iter().all(rests)
        };
        let idle =
            self.by_address.values().copied().filter(|&i| !busy[i as usize] && idle(&self.peers[i as usize]));
        let Some(index) = idle.min_by_key(|&i| (self.peers[i as usize].idle_since, i)) else { return false };
        let peer = &self.peers[index as usize];
        // Numbers go on for whoever comes back, and for everybody new: no peer may take them for those of before.
        let given = peer.lanes.iter().map(|l| l.next_tx.wrapping_sub(1)).max().unwrap_or(0);
        self.past.remember(peer, self.config.max_peers.saturating_mul(TIMES));
        self.config.first_sequence = self.config.first_sequence.max(given);
        self.by_address.remove(&peer.address);
        self.last_peer = None;
        // Timers that still name the slot find nothing to do in a fresh peer.
        self.peers[index as usize] = Peer::new(peer.address, peer.we_dial, self.config.first_sequence);
        self.vacant.push(index);
        true
    }
}
