//! What programs do on the hosts of a seed: send, take, now and then ping.

use rds_core::proto::{SendError, SocketId};

use super::ctx::Ctx;
use super::kernel::{KernelHost, Refusal};
use super::net::{MS, Nanos};
use super::own::OwnHost;
use super::plan::HostPlan;

/// The programs of one host.
#[derive(Debug)]
pub struct Traffic {
    /// Messages still to be sent.
    pub quota: u32,
    /// Where they may go: host and port.
    pub targets: Vec<(usize, u16)>,
    /// Ports of its own.
    pub ports: Vec<u16>,
    /// Largest message.
    pub max_message: usize,
    /// Whether nothing disturbs any more: everything is taken at once.
    pub calm: bool,
    /// Final messages: each pair gets one more once it is calm.
    pub last_words: Vec<(u16, (usize, u16))>,
    /// Until when programs take nothing.
    pub deaf_until: Nanos,
    /// Usual time between two steps.
    pub pace: Nanos,
}

impl Traffic {
    /// The programs of a plan's host.
    #[must_use]
    pub fn new(plan: &HostPlan, targets: Vec<(usize, u16)>, calm_at: Nanos) -> Self {
        let ports: Vec<u16> = plan.sockets.iter().map(|s| s.0).collect();
        Self {
            quota: if targets.is_empty() { 0 } else { plan.quota },
            targets,
            ports,
            max_message: plan.spec.max_message as usize,
            calm: false,
            last_words: Vec::new(),
            deaf_until: 0,
            pace: calm_at / u64::from(plan.quota / 5 + 20),
        }
    }

    fn size(&self, cx: &mut Ctx) -> usize {
        match cx.rng.u8(0..100) {
            0..10 => cx.rng.usize(0..9),
            10..70 => cx.rng.usize(8..500),
            70..92 => cx.rng.usize(500..8 << 10),
            92..99 => cx.rng.usize(8 << 10..64 << 10),
            _ => cx.rng.usize(64 << 10..=self.max_message.max(65 << 10)),
        }
    }

    /// When the programs do something again.
    pub fn next(&self, cx: &mut Ctx, busy: bool) -> Nanos {
        let pace = if self.calm { if busy { 20 * MS } else { 300 * MS } } else { self.pace };
        cx.now + cx.rng.u64(pace / 2..pace * 3 / 2)
    }

    /// A step of an own host's programs. Returns whether there is more to do at once.
    pub fn step_own(&mut self, cx: &mut Ctx, host: &mut OwnHost) -> bool {
        let sockets: Vec<(SocketId, u16)> = host.sockets.map.iter().map(|(id, s)| (*id, s.port)).collect();
        let mut busy = false;
        if cx.now >= self.deaf_until {
            for (id, _) in &sockets {
                let most = if self.calm { 100_000 } else { cx.rng.usize(0..60) };
                busy |= host.sockets.map.get(id).is_some_and(|s| !s.queue.is_empty());
                host.take(cx, *id, most);
            }
        }
        if sockets.is_empty() || cx.broken.is_some() {
            return busy;
        }
        if self.calm {
            self.last_words.retain(|(port, to)| {
                let Some((id, _)) = sockets.iter().find(|(_, p)| p == port) else { return false };
                host.send(cx, *id, to.0, to.1, 8 + cx.now as usize % 50).is_err()
            });
            if self.quota == 0 {
                return busy || !self.last_words.is_empty();
            }
        }
        let burst = if cx.chance(20) { cx.rng.u32(1..80) } else { cx.rng.u32(0..10) };
        let (id, port) = sockets[cx.rng.usize(..sockets.len())];
        let mut to = self.targets.get(cx.rng.usize(..self.targets.len().max(1))).copied();
        for _ in 0..burst.min(self.quota) {
            if cx.chance(60) {
                to = self.targets.get(cx.rng.usize(..self.targets.len().max(1))).copied();
            }
            let Some(to) = to else { break };
            let mut len = self.size(cx);
            let mut target = to;
            if cx.chance(3) && to.0 != host.index {
                (target, len) = ((to.0, 0), 0);
            }
            if !cx.ledger.is_distinct(host.index, port, target.0, target.1, len) {
                if target.1 == 0 {
                    continue;
                }
                len += 8;
            }
            match host.send(cx, id, target.0, target.1, len) {
                Ok(_) => self.quota -= 1,
                Err(Some(SendError::TooLarge { .. })) => {}
                Err(Some(SendError::Congested)) if cx.rng.bool() => {}
                Err(_) => break,
            }
            if cx.broken.is_some() {
                return false;
            }
        }
        if cx.chance(10) {
            host.watch_drained(cx, id);
        }
        busy || self.calm
    }

    /// A step of a kernel's programs.
    pub fn step_kernel(&mut self, cx: &mut Ctx, host: &mut KernelHost) -> bool {
        let ports: Vec<u16> = host.sockets.keys().copied().collect();
        let mut busy = false;
        if cx.now >= self.deaf_until {
            for port in &ports {
                let most = if self.calm { 100_000 } else { cx.rng.usize(0..60) };
                busy |= host.sockets.get(port).is_some_and(|s| !s.queue.is_empty());
                host.take(*port, most);
            }
        }
        if ports.is_empty() {
            return busy;
        }
        if self.calm {
            self.last_words.retain(|(port, to)| {
                host.send(cx, *port, to.0, to.1, 8 + cx.now as usize % 50, false).is_err()
            });
            if self.quota == 0 {
                return busy || !self.last_words.is_empty();
            }
        }
        let port = ports[cx.rng.usize(..ports.len())];
        let to = self.targets.get(cx.rng.usize(..self.targets.len().max(1))).copied();
        for _ in 0..cx.rng.u32(0..10).min(self.quota) {
            let Some(to) = to else { break };
            let mut len = self.size(cx);
            if !cx.ledger.is_distinct(host.index, port, to.0, to.1, len) {
                len += 8;
            }
            match host.send(cx, port, to.0, to.1, len, false) {
                Ok(_) => self.quota -= 1,
                Err(Refusal::TooLarge) => {}
                Err(_) => break,
            }
        }
        busy
    }

    /// Everything is well from now on: what is left is sent, and one message more on each pair.
    pub fn calm_down(&mut self, cx: &mut Ctx) {
        self.calm = true;
        self.deaf_until = 0;
        for port in &self.ports {
            for to in &self.targets {
                if cx.chance(128) {
                    self.last_words.push((*port, *to));
                }
            }
        }
    }
}
