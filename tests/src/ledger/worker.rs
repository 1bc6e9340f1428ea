//! One socket of a ledger process: sends to its targets, receives, writes both down.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::endpoint::{Endpoint, Sent, Taken};
use super::log::{Event, Log, Owner};
use super::message::{self, Id, Pair};
use super::run::{Phase, Shared, Tally};

/// Messages that are taken, or announced in the log, at once.
const BATCH: usize = 64;
/// Most bytes that a program takes before it writes down what it took: a batch of the largest messages.
pub(super) const BATCH_BYTES: u64 = (BATCH as u64) << 20;

const COMMAND_TICK: Duration = Duration::from_millis(50);
/// How late a message may be that a rate allows: short, or an emulated machine has nothing left for its messages.
const RATE_TICK: Duration = Duration::from_millis(10);

/// How much and what a socket sends.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Longest message in bytes.
    pub(super) longest: usize,
    /// Most messages in a second; 0 for as many as go.
    pub(super) rate: u64,
}

struct Target {
    pair: Pair,
    next: u64,
    /// Announced in the log and not yet taken by the library.
    pending: VecDeque<(u64, Bytes)>,
}

/// The socket, and what it must remember.
pub(super) struct Worker {
    socket: Box<dyn Endpoint>,
    local: SocketAddrV4,
    incarnation: u32,
    index: usize,
    load: Load,
    targets: Vec<Target>,
    ends: Vec<(u32, Event)>,
    unfinished: HashMap<u32, (usize, u64, usize)>,
    /// Lost connections that the log knows of.
    breaks: u64,
    log: Log,
    shared: Arc<Shared>,
    random: fastrand::Rng,
    began: Instant,
    made: u64,
    /// To which target a message was made last, and which may send first.
    next_target: usize,
    turn: usize,
    full: bool,
}

impl Worker {
    pub(super) fn new(
        socket: Box<dyn Endpoint>,
        owner: Owner,
        index: usize,
        targets: &[SocketAddrV4],
        load: Load,
        log: Log,
        shared: Arc<Shared>,
    ) -> Self {
        let Owner { socket: local, incarnation, .. } = owner;
        let target = |destination: &SocketAddrV4| {
            let pair = Pair { source: local, destination: *destination };
            Target { pair, next: 0, pending: VecDeque::new() }
        };
        let seed = shared.seed ^ (u64::from(incarnation) << 32) ^ u64::from(local.port());
        Self {
            local,
            incarnation,
            index,
            load,
            targets: targets.iter().map(target).collect(),
            ends: Vec::new(),
            unfinished: HashMap::new(),
            breaks: 0,
            log,
            random: fastrand::Rng::with_seed(seed),
            began: Instant::now(),
            made: 0,
            next_target: 0,
            turn: 0,
            full: false,
            shared,
            socket,
        }
    }

    /// Works until the process ends. Returns when everything is written down.
    pub(super) fn work(mut self) -> Result<(), String> {
        loop {
            let phase = self.shared.phase();
            if phase != Phase::Exit && self.shared.wait_while_paused(self.index) {
                continue;
            }
            if self.shared.take_cancel(self.index) {
                self.socket.cancel().map_err(|e| format!("{}: {e}", self.local))?;
            }
            let took = self.receive()?;
            let sent = if phase == Phase::Load { self.send()? } else { 0 };
            self.write()?;
            let tally = self.shared.tally(self.index);
            tally.unfinished.store(self.unfinished.len() as u64, Relaxed);
            tally.idle.store(phase > Phase::Load, Relaxed);
            if phase == Phase::Exit && took == 0 {
                if self.socket.breaks() != self.breaks {
                    self.log.broke();
                    self.log.broke();
                }
                return self.log.end().map_err(|e| format!("cannot end the log: {e}"));
            }
            if took + sent == 0 {
                // The timeout is for commands and for the rate; everything else ends the wait.
                let writable = phase == Phase::Load && self.full;
                let limit = if self.load.rate > 0 && phase == Phase::Load { RATE_TICK } else { COMMAND_TICK };
                self.socket.wait(writable, limit).map_err(|e| format!("{}: {e}", self.local))?;
            }
        }
    }

    /// Takes a batch of what is there, and puts it on the log's batch.
    fn receive(&mut self) -> Result<usize, String> {
        let ended = self.take_ends()?;
        for taken in 0..BATCH {
            let (log, shared, local) = (&mut self.log, &self.shared, self.local);
            let tally = shared.tally(self.index);
            match self.socket.receive(&mut |from, payload| got(log, tally, local, from, payload)) {
                // The next round tries every target again.
                Ok(Taken::Message | Taken::Other) => {}
                Ok(Taken::Nothing) => return Ok(ended + taken),
                Err(e) => return Err(format!("{}: cannot receive: {e}", self.local)),
            }
        }
        Ok(BATCH)
    }

    /// Puts the ends of messages on the log's batch. Where a connection was lost meanwhile, all that ended before it is lost stands before
    /// the second mark, and all that ended after it behind the first.
    fn take_ends(&mut self) -> Result<usize, String> {
        let mut ends = std::mem::take(&mut self.ends);
        let said = |e: String| format!("{}: {e}", self.local);
        self.socket.ends(&mut ends).map_err(said)?;
        let by_tcp = ends.iter().any(|(_, event)| *event == Event::DeliveredTransport);
        let breaks = if by_tcp { self.socket.breaks() } else { self.breaks };
        let broke = breaks != self.breaks;
        if broke {
            self.breaks = breaks;
            self.log.broke();
            // They may be from before or after it.
            self.socket.ends(&mut ends).map_err(said)?;
        }
        let ended = ends.len();
        for (cookie, event) in ends.drain(..) {
            self.ended(cookie, event)?;
        }
        if broke {
            self.log.broke();
        }
        self.ends = ends;
        Ok(ended)
    }

    fn ended(&mut self, cookie: u32, event: Event) -> Result<(), String> {
        let tally = self.shared.tally(self.index);
        let count = match event {
            Event::Unknown => &tally.unknown,
            Event::Cancelled => &tally.cancelled,
            _ => &tally.delivered,
        };
        let Some((target, number, len)) = self.unfinished.remove(&cookie) else {
            return Err(format!("{}: {event:?} of {cookie}, which is no unfinished message", self.local));
        };
        count.fetch_add(1, Relaxed);
        let id = Id { pair: self.targets[target].pair, incarnation: self.incarnation, number };
        self.log.add(event, &id, len);
        Ok(())
    }

    /// Announces messages in the log, then hands over what the library takes.
    fn send(&mut self) -> Result<usize, String> {
        self.announce()?;
        self.full = false;
        let mut sent = 0;
        for step in 0..self.targets.len() {
            let index = (self.turn + step) % self.targets.len();
            let pair = self.targets[index].pair;
            while let Some((number, payload)) = self.targets[index].pending.pop_front() {
                let len = payload.len();
                let sending = self.socket.send(&payload, pair.destination);
                match sending.map_err(|e| format!("{pair:?}: cannot send {len} bytes: {e}"))? {
                    Sent::Taken(cookie) => {
                        if let Some(cookie) = cookie {
                            self.unfinished.insert(cookie, (index, number, len));
                        }
                        let id = Id { pair, incarnation: self.incarnation, number };
                        self.log.add(Event::Accepted, &id, len);
                        self.shared.tally(self.index).accepted.fetch_add(1, Relaxed);
                        sent += 1;
                    }
                    why @ (Sent::Congested | Sent::Full) => {
                        self.targets[index].pending.push_front((number, payload));
                        self.full |= why == Sent::Full;
                        break;
                    }
                }
            }
        }
        self.turn = self.turn.wrapping_add(1);
        Ok(sent)
    }

    fn announce(&mut self) -> Result<(), String> {
        let mut due = u64::MAX;
        if self.load.rate > 0 {
            let millis = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
            due = (millis.saturating_mul(self.load.rate) / 1000).saturating_sub(self.made);
        }
        let share = (BATCH / self.targets.len().max(1)).max(1);
        // In turn, so that what the rate allows is shared among all that can take more.
        let mut passed_over = 0;
        while due > 0 && passed_over < self.targets.len() {
            self.next_target = (self.next_target + 1) % self.targets.len();
            let target = &mut self.targets[self.next_target];
            if target.pending.len() >= share {
                passed_over += 1;
                continue;
            }
            passed_over = 0;
            let len = length(&mut self.random, self.load.longest);
            let id = Id { pair: target.pair, incarnation: self.incarnation, number: target.next };
            target.pending.push_back((target.next, self.shared.writer.message(&id, len)));
            target.next += 1;
            self.log.add(Event::Intent, &id, len);
            self.made += 1;
            due -= 1;
        }
        self.write()
    }

    fn write(&mut self) -> Result<(), String> {
        self.log.write().map_err(|e| format!("{}: cannot write the log: {e}", self.local))
    }
}

fn got(log: &mut Log, tally: &Tally, local: SocketAddrV4, from: SocketAddr, payload: &[u8]) {
    match message::read(payload, from, local.into()) {
        Ok(id) => {
            tally.received.fetch_add(1, Relaxed);
            log.add(Event::Received, &id, payload.len());
        }
        Err(damage) => {
            eprintln!("{local}: damaged message from {from}: {damage}");
            tally.damaged.fetch_add(1, Relaxed);
            let source = message::v4(from).unwrap_or(local);
            let pair = Pair { source, destination: local };
            log.add(Event::Damaged, &Id { pair, incarnation: 0, number: 0 }, payload.len());
        }
    }
}

/// Short and long messages, as many of each order of magnitude.
fn length(random: &mut fastrand::Rng, longest: usize) -> usize {
    let range = longest.saturating_sub(message::LEAST);
    let magnitude = random.u32(0..=range.max(1).ilog2() + 1);
    message::LEAST + random.usize(0..=range.min((1 << magnitude) - 1))
}
