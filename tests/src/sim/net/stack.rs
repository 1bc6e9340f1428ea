//! The hosts' TCP: what is sent, what comes, and what follows.

use rds_core::buffer::Chunk;

use super::{
    End, Event, Failure, Nanos, Net, NetEvent, Notice, PROBE_EVERY, PROBES, Phase, SEC, SYN_ATTEMPTS,
};

impl Net {
    /// Sends what the peer's window allows.
    pub(super) fn pump(&mut self, now: Nanos, end: End) {
        if !self.reachable(end.link) {
            self.watch_over(now, end);
            // What is lost stays in flight until `heal` sends it again.
        }
        loop {
            let tiny = self.rng.u8(..) < 8;
            let most = if tiny { self.rng.u64(1..64) } else { 64 << 10 };
            let half = self.half_mut(end);
            if half.failure.is_some() || !matches!(half.phase, Phase::Open | Phase::Orphan) {
                return;
            }
            let most = most.min(half.edge.saturating_sub(half.sent)) as usize;
            let Some(front) = half.unsent.front_mut() else { break };
            if most == 0 {
                return;
            }
            let piece = front.split_to(front.len().min(most));
            if front.len() == 0 {
                half.unsent.pop_front();
            }
            let start = half.sent;
            half.sent += piece.len() as u64;
            let (bytes, same) = piece.bytes();
            half.flight.push_back((start, piece));
            self.promise(same);
            self.send(now, end.peer(), || NetEvent::Segment(end.peer(), start, bytes));
        }
        let half = self.half_mut(end);
        if half.fin && !half.fin_sent {
            half.fin_sent = true;
            let at = half.sent;
            self.send(now, end.peer(), || NetEvent::Fin(end.peer(), at));
        }
    }

    pub(super) fn reply_rst(&mut self, now: Nanos, from: End) {
        self.send(now, from.peer(), || NetEvent::Rst(from.peer()));
    }

    pub(super) fn on_rst(&mut self, now: Nanos, end: End) {
        let half = self.half_mut(end);
        match half.phase {
            Phase::Gone | Phase::Unconnected => {}
            Phase::Orphan => {
                half.phase = Phase::Gone;
                self.drop_queue(now, end);
            }
            Phase::Queued => half.failure = Some(Failure::Reset),
            Phase::Connecting => {
                self.tell(end, Notice::Failed);
                self.half_mut(end).phase = Phase::Gone;
            }
            Phase::Open => {
                half.failure = Some(Failure::Reset);
                self.met.reset += self.drop_queue(now, end);
                self.tell(end, Notice::Readable);
            }
        }
    }

    /// Does what an event of the network says.
    pub fn happen(&mut self, now: Nanos, event: NetEvent) {
        match event {
            NetEvent::Syn(link, attempt) => self.on_syn(now, link, attempt),
            NetEvent::SynAck(link) => {
                let end = End { link, side: 0 };
                if !self.reachable(link) {
                    self.watch_over(now, end.peer());
                    self.queue.push(now + SEC, Event::Net(NetEvent::SynAck(link)));
                } else if self.half(end).phase == Phase::Connecting {
                    if self.half(end.peer()).established() {
                        self.half_mut(end).phase = Phase::Open;
                        self.tell(end, Notice::Connected);
                    } else {
                        self.on_rst(now, end);
                    }
                } else if self.half(end).phase == Phase::Gone {
                    self.reply_rst(now, end);
                }
            }
            NetEvent::Refusal(link) => {
                let end = End { link, side: 0 };
                if self.half(end).phase == Phase::Connecting {
                    self.tell(end, Notice::Failed);
                    self.half_mut(end).phase = Phase::Gone;
                }
            }
            NetEvent::Segment(end, start, piece) => self.on_segment(now, end, start, piece),
            NetEvent::Fin(end, at) => {
                if self.reachable(end.link) {
                    let half = self.half_mut(end);
                    if half.established() && half.received == at && !half.eof {
                        half.eof = true;
                        self.tell(end, Notice::Readable);
                    }
                }
            }
            NetEvent::Ack(end, received, edge) => {
                if self.reachable(end.link) {
                    self.on_ack(now, end, received, edge);
                }
            }
            NetEvent::Notify(end, call) => self.notify(end, call),
            NetEvent::Rst(end) => {
                if self.reachable(end.link) {
                    self.on_rst(now, end);
                } else {
                    self.watch_over(now, end);
                }
            }
            NetEvent::Probe(end, count) => self.on_probe(now, end, count),
        }
    }

    pub(super) fn on_syn(&mut self, now: Nanos, link: usize, attempt: u32) {
        let dialler = End { link, side: 0 };
        if self.half(dialler).phase != Phase::Connecting {
            return;
        }
        if !self.reachable(link) {
            if attempt >= SYN_ATTEMPTS {
                self.queue.push(now, Event::Net(NetEvent::Refusal(link)));
            } else {
                self.queue.push(now + (SEC << (attempt - 1)), Event::Net(NetEvent::Syn(link, attempt + 1)));
            }
            return;
        }
        let there = dialler.peer();
        if self.hosts[self.half(there).host].listening {
            self.half_mut(there).phase = Phase::Queued;
            self.tell(there, Notice::Incoming);
            self.send(now, dialler, || NetEvent::SynAck(link));
        } else {
            self.send(now, dialler, || NetEvent::Refusal(link));
        }
    }

    pub(super) fn on_segment(&mut self, now: Nanos, end: End, start: u64, piece: Chunk) {
        if !self.reachable(end.link) {
            self.watch_over(now, end.peer());
            return;
        }
        let half = self.half_mut(end);
        if !half.established() || half.phase == Phase::Orphan {
            // Nobody will read it: the stack says so.
            if half.phase == Phase::Orphan {
                half.phase = Phase::Gone;
                self.drop_queue(now, end);
            }
            self.reply_rst(now, end);
            return;
        }
        if start > half.received {
            return; // behind a hole: TCP sends it again
        }
        let skip = (half.received - start) as usize;
        if skip < piece.len() {
            let fresh = piece.slice(skip..piece.len());
            half.received += fresh.len() as u64;
            half.buffer.push_back(fresh);
            self.tell(end, Notice::Readable);
        }
        let half = self.half_mut(end);
        let (received, edge) = (half.received, half.read + half.receive_buffer);
        half.advertised = edge;
        self.send(now, end.peer(), || NetEvent::Ack(end.peer(), received, edge));
    }

    pub(super) fn on_ack(&mut self, now: Nanos, end: End, received: u64, edge: u64) {
        let half = self.half_mut(end);
        if !half.established() {
            return;
        }
        half.edge = half.edge.max(edge);
        if received > half.acked {
            half.acked = received;
            loop {
                let half = self.half_mut(end);
                match half.flight.front() {
                    Some((start, part)) if start + part.len() as u64 <= received => {
                        let (call, len) = (part.call(), part.len());
                        half.flight.pop_front();
                        if let Some(call) = call {
                            self.acknowledged(now, end, call, len);
                        }
                    }
                    _ => break,
                }
            }
            self.tell(end, Notice::Writable);
        }
        self.pump(now, end);
    }

    pub(super) fn on_probe(&mut self, now: Nanos, end: End, count: u32) {
        let reachable = self.reachable(end.link);
        let peer_alive = self.half(end.peer()).established();
        let half = self.half_mut(end);
        if !half.established() || (reachable && peer_alive) {
            half.probing = false;
        } else if reachable {
            half.probing = false;
            self.on_rst(now, end);
        } else if count >= PROBES {
            half.probing = false;
            if half.phase == Phase::Open {
                half.failure = Some(Failure::TimedOut);
                self.met.reset += self.drop_queue(now, end);
                self.tell(end, Notice::Readable);
            } else {
                half.phase = Phase::Gone;
                self.drop_queue(now, end);
            }
        } else {
            self.queue.push(now + PROBE_EVERY, Event::Net(NetEvent::Probe(end, count + 1)));
        }
    }
}
