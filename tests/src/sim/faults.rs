//! Doing and undoing the faults that a plan has drawn.

use bytes::Bytes;
use rds_core::zerocopy::Mode;

use super::batch::Run;
use super::coverage::Fault;
use super::net::{End, MS, SEC, Wire};
use super::plan::FaultPlan;
use super::stranger::Manner;
use super::world::Host;

impl Run {
    /// Begins fault `i`. Returns whether it has an end of its own.
    pub(super) fn begin_fault(&mut self, i: usize) -> bool {
        let f = self.plan.faults[i];
        let now = self.world.cx.now;
        self.world.cx.tell(|| format!("FAULT {:?} at hosts {} and {}", f.kind, f.host, f.other));
        let done = match f.kind {
            Fault::CutShort | Fault::CutLong => {
                self.world.cx.net.cut(now, f.host, f.other);
                true
            }
            Fault::HalfOpen => self.reset_one(f, None),
            Fault::Crossing => {
                let cx = &self.world.cx;
                let smaller =
                    rds_core::proto::is_smaller(cx.facts[f.host].address, cx.facts[f.other].address);
                self.reset_one(f, Some(if smaller { f.host } else { f.other }))
            }
            Fault::Reset => self.reset_both(f),
            Fault::ResetWithData => {
                // Both processes stand still while their programs' last bursts arrive; then the reset.
                for host in [f.host, f.other] {
                    self.freeze(host, now + 30 * MS);
                }
                self.defer_reset(f, now + 20 * MS);
                true
            }
            Fault::Restart | Fault::PowerLoss | Fault::ClockBack => {
                let up = self.world.is_up(f.host);
                if up {
                    self.world.stop(f.host, f.kind == Fault::PowerLoss);
                    self.down_for[f.host] = Some(i);
                }
                up
            }
            Fault::Goodbye => match &mut self.world.hosts[f.host] {
                Host::Own(own) if own.node.is_some() => {
                    own.say_goodbye(&mut self.world.cx);
                    self.world.settle_calls(f.host);
                    true
                }
                _ => false,
            },
            Fault::StopReading => {
                self.traffic[f.host].deaf_until = f.until;
                true
            }
            Fault::Freeze | Fault::NeverReads => {
                self.freeze(f.host, f.until);
                true
            }
            Fault::Memlock => {
                let own = matches!(self.world.hosts[f.host], Host::Own(_));
                if own {
                    // All of it, or a large part.
                    let pages =
                        if self.world.cx.rng.bool() { 1 << 40 } else { self.world.cx.rng.u64(1..1000) };
                    self.world.cx.net.lock_elsewhere(f.host, pages);
                }
                own
            }
            Fault::ModeChange => match &mut self.world.hosts[f.host] {
                Host::Own(own) if own.node.is_some() => {
                    let mode = [Mode::Off, Mode::On, Mode::Auto][self.world.cx.rng.usize(..3)];
                    own.set_mode(mode);
                    true
                }
                _ => false,
            },
            Fault::Cancel => self.cancel(f.host),
            Fault::Rebind => self.rebind(f.host),
            Fault::Buffers => self.shrink(f.host),
            Fault::SlowNet => {
                self.world.cx.net.wire =
                    Wire { latency: 30 * MS, jitter: 100 * MS, send_buffer: 600, receive_buffer: 900 };
                // Only new connections have the tiny buffers.
                self.reset_both(f);
                true
            }
            Fault::AckStarvation => {
                if let Host::Own(own) = &mut self.world.hosts[f.host] {
                    own.starve_until = f.until;
                    true
                } else {
                    false
                }
            }
            Fault::Refuse => {
                self.world.cx.net.listen(f.host, false);
                self.reset_both(f);
                true
            }
            Fault::SilentStranger => self.strangers(f, 3, &Manner::Silent),
            Fault::Flood => self.strangers(f, 40, &Manner::Silent),
            Fault::Garbage => {
                let mut noise = vec![0; 200];
                self.world.cx.rng.fill(&mut noise);
                // A length that cannot be.
                noise[16] |= 0x80;
                self.strangers(f, 2, &Manner::Says(Bytes::from(noise)))
            }
        };
        if done {
            self.world.cx.seen.fault(f.kind);
        }
        done && f.until > f.at
    }

    /// Ends fault `i`.
    pub(super) fn end_fault(&mut self, i: usize) {
        let f = self.plan.faults[i];
        self.world.cx.tell(|| format!("FAULT {:?} ends", f.kind));
        match f.kind {
            Fault::CutShort | Fault::CutLong => {
                let now = self.world.cx.now;
                self.world.cx.net.heal(now, f.host, f.other);
            }
            Fault::Restart | Fault::PowerLoss | Fault::ClockBack if self.down_for[f.host] == Some(i) => {
                self.down_for[f.host] = None;
                let back = if f.kind == Fault::ClockBack { 3_600_000 } else { 0 };
                self.start_host(f.host, back);
            }
            Fault::Goodbye if self.down_for[f.host].is_none() => {
                self.world.stop(f.host, false);
                self.start_host(f.host, 0);
            }
            Fault::Memlock => self.world.cx.net.lock_elsewhere(f.host, 0),
            Fault::SlowNet => self.world.cx.net.wire = self.plan.wire,
            Fault::Refuse if self.world.is_up(f.host) => self.world.cx.net.listen(f.host, true),
            Fault::SilentStranger | Fault::Flood => {
                let world = &mut self.world;
                if let Some(Host::Stranger(s)) = world.hosts.last_mut() {
                    s.hang_up(&mut world.cx);
                }
            }
            _ => {}
        }
    }

    fn freeze(&mut self, host: usize, until: u64) {
        match &mut self.world.hosts[host] {
            Host::Own(h) => h.frozen_until = until,
            Host::Kernel(h) => h.frozen_until = until,
            Host::Stranger(_) => {}
        }
    }

    /// A connection between the two, by chance.
    fn some_link(&mut self, f: FaultPlan) -> Option<usize> {
        let links: Vec<usize> = self.world.cx.net.live_links(f.host, f.other).collect();
        if links.is_empty() { None } else { Some(links[self.world.cx.rng.usize(..links.len())]) }
    }

    fn reset_one(&mut self, f: FaultPlan, at: Option<usize>) -> bool {
        let Some(link) = self.some_link(f) else { return false };
        let (now, rng) = (self.world.cx.now, &mut self.world.cx.rng);
        let mut end = End { link, side: rng.usize(0..2) };
        if at.is_some_and(|host| self.world.cx.net.host_of(end) != host) {
            end = end.peer();
        }
        self.world.cx.net.inject_rst(now, end);
        true
    }

    pub(super) fn reset_both(&mut self, f: FaultPlan) -> bool {
        let Some(link) = self.some_link(f) else { return false };
        let now = self.world.cx.now;
        for side in 0..2 {
            self.world.cx.net.inject_rst(now, End { link, side });
        }
        true
    }

    fn cancel(&mut self, host: usize) -> bool {
        let all = self.world.cx.rng.bool();
        let targets = &self.traffic[host].targets;
        let to = (!targets.is_empty()).then(|| targets[self.world.cx.rng.usize(..targets.len())]);
        let to = if all { None } else { to };
        let world = &mut self.world;
        match &mut world.hosts[host] {
            Host::Own(h) => {
                let ids: Vec<_> = h.sockets.map.keys().copied().collect();
                for id in ids {
                    h.cancel(&mut world.cx, id, to);
                }
            }
            Host::Kernel(h) => {
                let ports: Vec<u16> = h.sockets.keys().copied().collect();
                for port in ports {
                    h.cancel(&mut world.cx, port, to);
                }
            }
            Host::Stranger(_) => return false,
        }
        world.settle_calls(host);
        true
    }

    fn rebind(&mut self, host: usize) -> bool {
        let plan = self.plan.hosts[host].sockets.clone();
        let world = &mut self.world;
        let (port, send, receive, exact) = plan[world.cx.rng.usize(..plan.len())];
        match &mut world.hosts[host] {
            Host::Own(h) if h.node.is_some() => {
                let Some(id) = h.sockets.map.iter().find(|(_, s)| s.port == port).map(|(id, _)| *id) else {
                    return false;
                };
                let drain = world.cx.rng.bool();
                h.close_socket(&mut world.cx, id, drain);
                if let Some(id) = h.bind(&mut world.cx, port, exact) {
                    h.set_buffers(&mut world.cx, id, send, receive);
                }
            }
            Host::Kernel(h) if h.up => {
                h.close_socket(&mut world.cx, port);
                h.bind(&mut world.cx, port, send, receive);
            }
            _ => return false,
        }
        world.settle_calls(host);
        true
    }

    fn shrink(&mut self, host: usize) -> bool {
        let world = &mut self.world;
        let Host::Own(h) = &mut world.hosts[host] else { return false };
        let ids: Vec<_> = h.sockets.map.keys().copied().collect();
        for id in ids {
            let (send, receive) = (world.cx.rng.u64(64..20_000), world.cx.rng.u64(1..4_000));
            h.set_buffers(&mut world.cx, id, send, receive);
        }
        world.settle_calls(host);
        true
    }

    fn strangers(&mut self, f: FaultPlan, count: usize, manner: &Manner) -> bool {
        let world = &mut self.world;
        let last = world.hosts.len() - 1;
        let same_family = world.cx.facts[last].address.is_ipv4() == world.cx.facts[f.host].address.is_ipv4();
        if !same_family || !matches!(world.hosts[f.host], Host::Own(_)) {
            return false;
        }
        let Host::Stranger(s) = &mut world.hosts[last] else { return false };
        for _ in 0..count {
            s.dial(&mut world.cx, f.host, manner.clone());
        }
        true
    }

    /// Everything that lasts is over.
    pub(super) fn end_all_faults(&mut self) {
        for i in 0..self.plan.faults.len() {
            if self.lasting[i] {
                self.lasting[i] = false;
                self.end_fault(i);
            }
        }
        for host in 0..self.world.hosts.len() {
            self.freeze(host, 0);
            if let Host::Own(own) = &mut self.world.hosts[host] {
                own.starve_until = 0;
            }
            self.world.kick(host);
        }
    }

    /// Longest that everything may take to come to rest once nothing disturbs: a dead peer is noticed after 30 s, a silent
    /// connection after the handshake's timeout, and each may happen a few times in a row.
    pub(super) const PATIENCE: u64 = 240 * SEC;
}
