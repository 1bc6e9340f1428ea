//! Other lists of peers while the node runs.

use super::local::NO_SOCKET;
use super::{Action, CloseMode, ConnId, DropReason, Node, Outcome, PeerFilter, Time};

impl Node {
    /// Has other lists of peers from now on, as if the node had been opened with them. Connections that could not be made any more are closed at
    /// once; messages to peers that are not sent to any more are cancelled; who waits for one of their ports is told that it is free, and
    /// hears the truth when it sends. Whoever is still allowed notices nothing. What a refused peer has sent and was accepted stays.
    pub fn set_peers(&mut self, now: Time, peers: PeerFilter) {
        self.clock = self.clock.max(now);
        self.config.peers = peers;
        let mut known: Vec<_> = self.by_address.iter().map(|(address, index)| (*address, *index)).collect();
        known.sort_unstable();
        for (address, index) in known {
            let (inbound, outbound) =
                (self.config.peers.inbound.allows(address), self.config.peers.outbound.allows(address));
            let we_dial = self.peers[index as usize].we_dial;
            if !outbound {
                self.forsake(index);
            }
            // Between two nodes it is the smaller that connects, and its connection is for both directions.
            if (we_dial && !outbound) || (!we_dial && !inbound) {
                self.disconnect(now, index);
            }
        }
    }

    /// Nothing is sent to the peer any more.
    fn forsake(&mut self, index: u32) {
        let peer = &mut self.peers[index as usize];
        peer.keep_until = None;
        let address = peer.address;
        for (socket, port) in std::mem::take(&mut peer.waiters) {
            self.actions.push_back(Action::Uncongested { socket, destination: (address, port).into() });
        }
        for lane in 0..self.peers[index as usize].lanes.len() {
            let gone = self.peers[index as usize].lanes[lane]
                .cancel(|socket, _, _| socket != NO_SOCKET, &mut self.released);
            for (socket, sport, dport, len, token) in gone {
                self.peers[index as usize].unpin(sport, dport);
                self.finish(socket, u64::from(len), token, Outcome::Cancelled);
            }
        }
    }

    fn disconnect(&mut self, now: Time, index: u32) {
        let conns: Vec<u32> = self.conns.of_peer(index).map(|(conn, _)| conn).collect();
        let conns: Vec<ConnId> = conns.into_iter().filter_map(|conn| self.conns.id(conn)).collect();
        for conn in conns {
            self.end(now, conn, Some((CloseMode::Now, DropReason::NotAllowed)));
        }
        self.peers[index as usize].keep_until = None;
        self.forget_stranger(now, index);
    }
}
