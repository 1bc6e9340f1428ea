//! What a net does to connections that nobody asked for.

use super::{End, Event, Nanos, Net, NetEvent, PROBE_EVERY, Phase};

impl Net {
    /// A host loses power: nothing of its sockets is left, and nobody is told.
    pub fn power_off(&mut self, now: Nanos, host: usize) {
        self.hosts[host].powered = false;
        for link in 0..self.links.len() {
            for side in 0..2 {
                let end = End { link, side };
                if self.half(end).host == host && self.half(end).phase != Phase::Gone {
                    let half = self.half_mut(end);
                    half.phase = Phase::Gone;
                    half.buffer.clear();
                    self.drop_queue(now, end);
                    self.watch_over(now, end.peer());
                }
            }
        }
    }

    /// Power is back.
    pub fn power_on(&mut self, host: usize) {
        self.hosts[host].powered = true;
    }

    /// A process dies: the host closes its sockets as `close` does.
    pub fn kill(&mut self, now: Nanos, host: usize) {
        for link in 0..self.links.len() {
            for side in 0..2 {
                let end = End { link, side };
                if self.half(end).host == host {
                    if self.half(end).phase == Phase::Queued {
                        self.abort(now, end)
                    } else {
                        self.let_close(now, end)
                    }
                }
            }
        }
    }

    /// Opens or closes the listener: without one, SYNs are refused.
    pub fn listen(&mut self, host: usize, on: bool) {
        self.hosts[host].listening = on;
    }

    /// Nothing passes between two hosts any more.
    pub fn cut(&mut self, now: Nanos, a: usize, b: usize) {
        self.cuts.insert((a.min(b), a.max(b)));
        for link in self.live_links(a, b).collect::<Vec<_>>() {
            for side in 0..2 {
                self.watch_over(now, End { link, side });
            }
        }
    }

    /// Undoes [`Net::cut`]: TCP sends again what was lost.
    pub fn heal(&mut self, now: Nanos, a: usize, b: usize) {
        self.cuts.remove(&(a.min(b), a.max(b)));
        for link in 0..self.links.len() {
            let hosts = [self.links[link].ends[0].host, self.links[link].ends[1].host];
            if hosts == [a, b] || hosts == [b, a] {
                for side in 0..2 {
                    self.resend(now, End { link, side });
                }
            }
        }
    }

    /// A RST appears out of nowhere at one end; the other is not told.
    pub fn inject_rst(&mut self, now: Nanos, end: End) {
        self.on_rst(now, end);
        self.watch_over(now, end.peer());
    }

    pub(super) fn resend(&mut self, now: Nanos, end: End) {
        let half = self.half_mut(end);
        if !half.established() {
            return;
        }
        let (received, edge) = (half.received, half.read + half.receive_buffer);
        let mut again = 0;
        while let Some((start, piece)) = half.flight.pop_back() {
            again += if piece.call().is_some() { piece.len() as u64 } else { 0 };
            half.unsent.push_front(piece);
            half.sent = start;
        }
        half.fin_sent = false;
        self.met.again += again;
        self.send(now, end.peer(), || NetEvent::Ack(end.peer(), received, edge));
        self.pump(now, end);
    }

    /// Begins to probe at an end whose peer may be gone.
    pub(super) fn watch_over(&mut self, now: Nanos, end: End) {
        let half = self.half_mut(end);
        if half.established() && !half.probing {
            half.probing = true;
            self.queue.push(now + PROBE_EVERY, Event::Net(NetEvent::Probe(end, 1)));
        }
    }
}
