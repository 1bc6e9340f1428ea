//! What comes in at a kernel's model: the handshake, messages, maps.

use bytes::Bytes;
use rds_core::proto::kernel_lane_of_port;
use rds_core::wire::{CongestionMap, Flags, HandshakeExtensions, Header, PORT_ENGINE, PORT_PROBE};

use super::{KernelHost, LANES, Peer};
use crate::sim::coverage::Seen;
use crate::sim::ctx::Ctx;
use crate::sim::net::{End, Read};
use crate::sim::watch;

impl KernelHost {
    /// `rds_send_ping`.
    pub(super) fn send_ping(&mut self, cx: &mut Ctx, peer: usize) {
        let p = self.peers.entry(peer).or_insert_with(|| Peer::new(self.past_tx));
        if p.ping_triggered {
            return;
        }
        p.ping_triggered = true;
        self.send_probe(cx, peer, 0, PORT_PROBE, PORT_ENGINE);
    }

    /// `rds_send_probe`.
    pub(super) fn send_probe(&mut self, cx: &mut Ctx, peer: usize, index: usize, sport: u16, dport: u16) {
        let handshake = sport == PORT_PROBE || dport == PORT_PROBE;
        let extensions = if handshake { self.extensions() } else { [0; 16] };
        let p = self.peers.entry(peer).or_insert_with(|| Peer::new(self.past_tx));
        if p.map.contains(dport) {
            return;
        }
        p.paths[index].queue(
            Header { sport, dport, extensions, ..Header::default() },
            Bytes::new(),
            None,
            None,
        );
        self.dial(cx, peer, index);
    }

    /// `rds_recv_hs_exthdrs` and `rds_start_mprds`.
    pub(super) fn handshake(&mut self, cx: &mut Ctx, peer: usize, header: &Header) {
        let said = HandshakeExtensions::decode(&header.extensions);
        let smaller = self.is_smaller_than(cx, peer);
        let (index, new) = (self.index, self.new);
        let p = self.peers.get_mut(&peer).expect("it has a path");
        let before = p.npaths;
        if let Some(lanes) = said.lanes {
            p.npaths = u8::try_from(lanes).unwrap_or(u8::MAX).min(LANES);
        }
        // Another number than before is a fan-out, for new kernels, even if it is smaller.
        let fan_out = new && p.npaths > 1 && p.npaths != before;
        if fan_out {
            p.paths[0].begin_catch_up();
        }
        p.npaths = p.npaths.max(1);
        p.source_port_lane = said.source_port_lane;
        if let Some(generation) = said.generation.filter(|g| *g != 0) {
            if p.generation != 0 && p.generation != generation {
                cx.tell(|| format!("kernel {index}: host {peer} shows another generation"));
                for path in &mut p.paths {
                    path.new_generation();
                }
            }
            p.generation = generation;
        }
        p.ping_triggered = false;
        let npaths = p.npaths;
        if npaths > 1 && smaller {
            for i in 0..usize::from(npaths) {
                self.dial(cx, peer, i);
            }
        } else if fan_out && p.source_port_lane {
            // `rds_tcp_conn_slots_available`: a first path that came from another lane's port is dropped.
            let wrong = p.paths[0].end.filter(|e| e.side == 1);
            if let Some(end) = wrong
                && !cx.net.source_port(end.link).is_multiple_of(u16::from(npaths))
            {
                self.begin_shutdown(cx, peer, 0);
            }
        }
        if header.is_handshake_pong() {
            self.release_waiting(cx, peer);
        }
    }

    pub(super) fn release_waiting(&mut self, cx: &mut Ctx, peer: usize) {
        let p = self.peers.get_mut(&peer).expect("it has a path");
        let npaths = p.npaths;
        for m in std::mem::take(&mut p.waiting) {
            let odd = self.sockets.get(&m.header.sport).and_then(|s| s.odd_path).filter(|p| *p < npaths);
            let index = usize::from(odd.unwrap_or_else(|| kernel_lane_of_port(m.header.sport, npaths)));
            let p = self.peers.get_mut(&peer).expect("as above");
            p.paths[index].queue(m.header, m.payload, m.book, m.id);
            self.dial(cx, peer, index);
        }
    }

    // ---- receiving --------------------------------------------------------------------------------------------------

    /// `rds_tcp_data_recv`, `rds_recv_incoming`.
    pub(super) fn receive(&mut self, cx: &mut Ctx, peer: usize, index: usize, end: End) {
        loop {
            let mut bytes = Vec::new();
            let most = if cx.chance(20) { cx.rng.usize(1..200) } else { 1 << 20 };
            let Read::Data(_) = cx.net.read(cx.now, end, most, &mut bytes) else { return };
            cx.digest((end.link as u64) << 32 | bytes.len() as u64);
            if let Err(text) = watch::consumed(cx, end, &bytes, false).map(|_| ()) {
                cx.fail(text);
                return;
            }
            let path = &mut self.peers.get_mut(&peer).expect("it has a path").paths[index];
            match path.cut(&bytes) {
                Ok(messages) => {
                    for (header, payload) in messages {
                        self.incoming(cx, peer, index, &header, &payload);
                        if !self.by_end.contains_key(&end) {
                            return;
                        }
                    }
                }
                Err(text) => {
                    cx.fail(format!(
                        "kernel {} loses the framing of connection {}: {text}",
                        self.index, end.link
                    ));
                    return;
                }
            }
        }
    }

    pub(super) fn incoming(&mut self, cx: &mut Ctx, peer: usize, index: usize, h: &Header, payload: &[u8]) {
        let p = self.peers.get_mut(&peer).expect("it has a path");
        if h.is_congestion_map() {
            if let Some(map) = CongestionMap::decode(payload) {
                p.map = map;
            }
            return;
        }
        let path = &mut p.paths[index];
        if h.sequence < path.next_rx && h.flags.contains(Flags::RETRANSMITTED) {
            cx.see(Seen::KernelDroppedOld);
            if cx.facts[peer].clock_back
                && let Some(id) = cx.ledger.find(peer, h.sport, self.index, h.dport, payload.len(), payload)
            {
                // It may never have come: a clock that went back gives numbers that an earlier life has used.
                cx.ledger.messages[id].may_be_lost = true;
            }
            return;
        }
        path.next_rx = h.sequence.wrapping_add(1);
        if h.dport == PORT_ENGINE && self.ping_enable {
            if h.sport != PORT_ENGINE {
                self.send_probe(cx, peer, index, PORT_ENGINE, h.sport);
                if h.sport == PORT_PROBE {
                    self.handshake(cx, peer, h);
                } else {
                    self.mark_dropped(cx, peer, h, payload, Seen::Pong);
                }
            }
            return;
        }
        if h.dport == PORT_PROBE && h.sport == PORT_ENGINE {
            self.handshake(cx, peer, h);
            return;
        }
        let Some(socket) = self.sockets.get_mut(&h.dport) else {
            self.mark_dropped(cx, peer, h, payload, Seen::NoSocket);
            return;
        };
        let port = h.dport;
        if socket.push(payload.len()) {
            self.set_congested(port, true);
        }
        match cx.ledger.delivered(&cx.facts, peer, h.sport, self.index, port, payload) {
            Ok(_) => {}
            Err(promise) => cx.fail(promise),
        }
    }

    pub(super) fn mark_dropped(&mut self, cx: &mut Ctx, peer: usize, h: &Header, payload: &[u8], seen: Seen) {
        if let Some(id) = cx.ledger.find(peer, h.sport, self.index, h.dport, payload.len(), payload) {
            cx.ledger.messages[id].dropped = true;
            cx.see(seen);
        }
    }

    /// A port's bit changes: the map goes to everybody (`rds_cong_queue_updates`).
    pub(super) fn set_congested(&mut self, port: u16, congested: bool) {
        if self.map.set(port, congested) {
            for p in self.peers.values_mut() {
                p.map_queued = true;
            }
        }
    }
}
