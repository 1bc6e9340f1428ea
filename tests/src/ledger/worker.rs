//! One socket of a ledger process: sends to its targets, receives, writes both down.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rds_client::{
    Completion, Cookie, Event as Got, Guarantee, Owned, Readiness, RecvError, Socket, TrySendError,
};

use super::log::{Event, Log};
use super::message::{self, Id, Pair};
use super::run::{Phase, Shared};

/// Messages that are taken, or announced in the log, at once.
const BATCH: usize = 64;
/// Most bytes that a program takes before it writes down what it took: a batch of the largest messages.
pub(super) const BATCH_BYTES: u64 = (BATCH as u64) << 20;

const COMMAND_TICK: Duration = Duration::from_millis(50);
const RATE_TICK: Duration = Duration::from_millis(1);

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
    pending: VecDeque<(u64, Owned)>,
}

/// The socket, and what it must remember.
pub(super) struct Worker {
    socket: Socket,
    local: SocketAddrV4,
    incarnation: u32,
    index: usize,
    load: Load,
    targets: Vec<Target>,
    ends: Vec<Completion>,
    unfinished: HashMap<Cookie, (usize, u64, usize)>,
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
        socket: Socket,
        index: usize,
        incarnation: u32,
        targets: &[SocketAddrV4],
        load: Load,
        log: Log,
        shared: Arc<Shared>,
    ) -> Self {
        let local = message::v4(socket.local_addr()).expect("the node's address is an IPv4 address");
        let target = |destination: &SocketAddrV4| {
            let pair = Pair { source: local, destination: *destination };
            Target { pair, next: 0, pending: VecDeque::new() }
        };
        socket.set_congestion_monitor(true);
        let seed = shared.seed ^ (u64::from(incarnation) << 32) ^ u64::from(local.port());
        Self {
            local,
            incarnation,
            index,
            load,
            targets: targets.iter().map(target).collect(),
            ends: Vec::new(),
            unfinished: HashMap::new(),
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
                self.socket.cancel_all();
            }
            let took = self.receive()?;
            let sent = if phase == Phase::Load { self.send()? } else { 0 };
            self.write()?;
            let tally = self.shared.tally(self.index);
            tally.unfinished.store(self.unfinished.len() as u64, Relaxed);
            tally.idle.store(phase > Phase::Load, Relaxed);
            if phase == Phase::Exit && took == 0 {
                return self.log.end().map_err(|e| format!("cannot end the log: {e}"));
            }
            if took + sent == 0 {
                // The timeout is for commands and for the rate; everything else ends the wait.
                let writable = phase == Phase::Load && self.full;
                let interest = Readiness { readable: true, writable, completions: true };
                let limit = if self.load.rate > 0 { RATE_TICK } else { COMMAND_TICK };
                self.socket.wait(interest, Some(limit));
            }
        }
    }

    /// Takes a batch of what is there, and puts it on the log's batch.
    fn receive(&mut self) -> Result<usize, String> {
        let mut ends = std::mem::take(&mut self.ends);
        let ended = self.socket.completions(&mut ends);
        for end in ends.drain(..) {
            self.ended(end)?;
        }
        self.ends = ends;
        for taken in 0..BATCH {
            match self.socket.try_recv_lease() {
                Ok(Got::Message(m)) => self.got(m.from, &m.payload),
                // The next round tries every target again.
                Ok(_) => {}
                Err(RecvError::Empty) => return Ok(ended + taken),
                Err(e) => return Err(format!("{}: cannot receive: {e}", self.local)),
            }
        }
        Ok(BATCH)
    }

    fn got(&mut self, from: SocketAddr, payload: &[u8]) {
        let tally = self.shared.tally(self.index);
        match message::read(payload, from, self.local.into()) {
            Ok(id) => {
                tally.received.fetch_add(1, Relaxed);
                self.log.add(Event::Received, &id, payload.len());
            }
            Err(damage) => {
                eprintln!("{}: damaged message from {from}: {damage}", self.local);
                tally.damaged.fetch_add(1, Relaxed);
                let source = message::v4(from).unwrap_or(self.local);
                let pair = Pair { source, destination: self.local };
                self.log.add(Event::Damaged, &Id { pair, incarnation: 0, number: 0 }, payload.len());
            }
        }
    }

    fn ended(&mut self, end: Completion) -> Result<(), String> {
        let tally = self.shared.tally(self.index);
        let (count, event) = match end {
            Completion::Delivered { by: Guarantee::Application, .. } => {
                (&tally.delivered, Event::DeliveredApplication)
            }
            Completion::Delivered { by: Guarantee::Transport, .. } => {
                (&tally.delivered, Event::DeliveredTransport)
            }
            Completion::Unknown { .. } => (&tally.unknown, Event::Unknown),
            Completion::Cancelled { .. } => (&tally.cancelled, Event::Cancelled),
            _ => return Ok(()),
        };
        let Some((target, number, len)) = self.unfinished.remove(&end.cookie()) else {
            return Err(format!(
                "{}: {end:?}, but that is not the cookie of an unfinished message",
                self.local
            ));
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
                match self.socket.try_send_owned(payload, pair.destination.into()) {
                    Ok(cookie) => {
                        self.unfinished.insert(cookie, (index, number, len));
                        self.log.add(
                            Event::Accepted,
                            &Id { pair, incarnation: self.incarnation, number },
                            len,
                        );
                        self.shared.tally(self.index).accepted.fetch_add(1, Relaxed);
                        sent += 1;
                    }
                    Err((why @ (TrySendError::Congested | TrySendError::Full), payload)) => {
                        self.targets[index].pending.push_front((number, payload));
                        self.full |= why == TrySendError::Full;
                        break;
                    }
                    Err((why, _)) => return Err(format!("{pair:?}: cannot send {len} bytes: {why}")),
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
            target.pending.push_back((target.next, self.shared.writer.message(&id, len).into()));
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

/// Short and long messages, as many of each order of magnitude.
fn length(random: &mut fastrand::Rng, longest: usize) -> usize {
    let range = longest.saturating_sub(message::LEAST);
    let magnitude = random.u32(0..=range.max(1).ilog2() + 1);
    message::LEAST + random.usize(0..=range.min((1 << magnitude) - 1))
}
