//! The node at one moment, as tools want it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::core::Core;
use super::link::Link;
use super::shared::Shared;
use super::tcp;
use crate::info::{Counter, ReceivedInfo, Snapshot};

impl Shared {
    /// The node at this moment. With `queues`, every queued message is listed.
    pub(super) fn snapshot(&self, queues: bool) -> Snapshot {
        let mut core = self.core();
        // What programs took since they reported last.
        let mailboxes: Vec<_> = core.mailboxes.iter().flatten().cloned().collect();
        let mut tally = self.stats.closed();
        let mut received = Vec::new();
        for mailbox in mailboxes {
            let mut front = mailbox.front();
            tally.add(front.tally);
            let taken = mailbox.take_all(&mut front);
            let info = |(from, len)| ReceivedInfo { local: mailbox.local, remote: from, len };
            if queues {
                received.extend(front.queue.messages().map(info));
            }
            drop(front);
            if queues {
                received.extend(mailbox.back().queue.messages().map(info));
            }
            if taken.messages > 0 {
                core.node.consumed(mailbox.id, taken.bytes, taken.messages);
            }
        }
        let mut snapshot = core.node.snapshot_at(self.now(), queues);
        snapshot.received = received;
        self.add_zero_copy(&core, &mut snapshot);
        let links = links_of(&core, &snapshot);
        let (copied_in, sent, received) = (core.copied_in, core.sent, core.received);
        tally.add(core.sinks.tally);
        self.settle(core);
        // Without the lock: the traffic does not wait for the kernel's answers.
        let connections = snapshot.peers.iter_mut().flat_map(|peer| &mut peer.connections);
        for (connection, link) in connections.zip(links) {
            if let Some(link) = link {
                connection.tcp = tcp::info(&link.stream, connection.last_sent);
            }
        }
        let counters = &mut snapshot.counters;
        counters.add(Counter::RecvDelivered, tally.delivered);
        counters.add(Counter::CopyToUser, tally.copied);
        counters.add(Counter::RecvBytesFreedFromSock, tally.freed);
        counters.add(Counter::TcpDataReadyCalls, self.stats.reads.load(Relaxed));
        counters.add(Counter::TcpBytesSent, sent);
        counters.add(Counter::TcpBytesReceived, received);
        counters.add(Counter::CopyFromUser, copied_in);
        // The node counts every refusal; those of blocking sends are waits, as in `rds_cong_wait`.
        let waits = self.stats.congestion_waits.load(Relaxed);
        counters.add(Counter::CongSendBlocked, waits);
        counters.add(Counter::CongSendError, waits.wrapping_neg());
        snapshot
    }

    fn add_zero_copy(&self, core: &Core, snapshot: &mut Snapshot) {
        let (pins, maps) = (&self.pins, &self.maps);
        snapshot.zero_copy = pins.info(core.links().map(|link| link.path().counts()));
        snapshot.zero_copy.pool_bytes = self.pool.free_bytes();
        snapshot.zero_copy.recv = maps.info();
        for socket in &mut snapshot.sockets {
            let mailbox = core.mailboxes.iter().flatten().find(|mailbox| mailbox.local == socket.bound);
            let share = mailbox.map(|mailbox| &mailbox.share).or_else(|| {
                core.sinks.iter().find(|bound| bound.local == socket.bound).map(|bound| &bound.share)
            });
            socket.pinned_bytes = share.map_or(0, |share| pins.bytes(share.used()));
        }
        for connection in snapshot.peers.iter_mut().flat_map(|peer| &mut peer.connections) {
            if let Some(link) = connection.conn.and_then(|conn| core.link(conn)) {
                connection.zero_copy.send = Some(link.info(pins.now()));
            }
            connection.zero_copy.recv =
                connection.conn.and_then(|conn| maps.path_info(conn, core.node.peer_segments(conn)));
        }
    }
}

/// The writing end of each connection of a snapshot, in its order.
fn links_of(core: &Core, snapshot: &Snapshot) -> Vec<Option<Arc<Link>>> {
    let connections = snapshot.peers.iter().flat_map(|peer| &peer.connections);
    connections.map(|connection| connection.conn.and_then(|conn| core.link(conn))).collect()
}
