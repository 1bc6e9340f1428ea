//! Compares the logs of all incarnations of all processes.
//!
//! What must hold, for the messages of one pair of sockets:
//!
//! 1. *Once*: no message is received twice, by whatever incarnations, and none that nobody sent, or that was refused.
//! 2. *Order*: they are received in the order in which they were sent, across incarnations of both sides.
//! 3. *Whole*: none is damaged.
//! 4. *One outcome*: a sender that ended by itself knows exactly one outcome of each message that was accepted. Between nodes of ours
//!    it is never `Delivered(transport)`; where either is a kernel it is never `Delivered(application)`.
//! 5. *No loss*: a message that was `Delivered(application)` is received, but for two cases: the receiving process was killed
//!    with the message in its queue, or its node got the message before the process had bound the socket. The first may concern
//!    only the messages that follow the last one which that incarnation received, up to what a node holds for a port
//!    ([`Limits::queue`]); the second at most as many as the node has counted,
//!    and one of each sender's that was half read.
//! 6. *No holes*: what one incarnation receives from one incarnation of the sender has no gaps but cancelled messages.
//! 7. *Unknown* needs a restart of the receiver, and an unknown message is never received by the receiver's last incarnation: the
//!    last one is never told of what an earlier one may have got.
//!
//! All of it holds where a kernel is at either end, with one exception: what was sent *to* a kernel up to 6.18 may be lost with a connection
//! after its TCP has acknowledged it. So there a message may be missing if it was `Delivered(transport)` before its sender had noticed that
//! the connection was lost, and what is received next was acknowledged after that. A sender that is a kernel itself does not notice lost
//! connections: of its messages only the first half is asked.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{Ipv4Addr, SocketAddrV4};

use serde::Serialize;

use super::daemons::{Daemons, Missing};
use super::log::{Event, Found, Stack};
use super::message::Pair;

/// What nodes may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A port's hard limit, in times its receive buffer (`port_hard_limit`).
    pub port_hard_limit: u64,
    /// What may come beyond it: the window granted before, one message, and what the program took and had not written down.
    pub beyond: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { port_hard_limit: 4, beyond: (4 << 20) + (64 << 10) + (1 << 20) + super::worker::BATCH_BYTES }
    }
}

impl Limits {
    /// Most payload bytes that a node holds for a port whose program does not take them.
    #[must_use]
    pub fn queue(&self, receive_buffer: u64) -> u64 {
        receive_buffer * self.port_hard_limit + self.beyond
    }
}

/// The result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Messages that the library took.
    pub accepted: u64,
    /// Of these, delivered.
    pub delivered: u64,
    /// Of these, unknown.
    pub unknown: u64,
    /// Of these, cancelled.
    pub cancelled: u64,
    /// Of these, without an outcome because the sender was killed.
    pub in_flight: u64,
    /// Messages that programs received.
    pub received: u64,
    /// Delivered to a node whose process was killed before it took them.
    pub lost_in_killed: u64,
    /// Delivered to a node whose process had not bound the socket yet.
    pub lost_before_bind: u64,
    /// Acknowledged by the TCP of a kernel up to 6.18 and lost with the connection.
    pub lost_by_kernel: u64,
    /// The first of these.
    pub first_lost_by_kernel: Vec<String>,
    /// Delivered to a daemon and not received, within what its kills explain.
    pub lost_with_daemon: u64,
    /// How many rules were broken.
    pub broken: u64,
    /// The first of them.
    pub first_broken: Vec<String>,
}

impl Report {
    fn lost_by_kernel(&mut self, what: impl FnOnce() -> String) {
        self.lost_by_kernel += 1;
        if self.first_lost_by_kernel.len() < 20 {
            self.first_lost_by_kernel.push(what());
        }
    }

    pub(super) fn broken(&mut self, what: impl FnOnce() -> String) {
        self.broken += 1;
        if self.first_broken.len() < 20 {
            self.first_broken.push(what());
        }
    }
}

/// What is known of one message. `by` is the incarnation that received it, 0 for none.
#[derive(Clone, Copy, Default)]
pub(super) struct Fate {
    pub(super) accepted: bool,
    pub(super) outcome: Option<Event>,
    pub(super) by: u32,
    pub(super) len: u32,
    /// Marks of lost connections in the log before the outcome, two for each time that the sender noticed one ([`Event::Broke`]).
    marks: u32,
}

/// One incarnation of one socket.
#[derive(Clone, Copy)]
struct Life {
    incarnation: u32,
    ended: bool,
    receive_buffer: u64,
    stack: Stack,
}

type Stream = (Pair, u32);

struct Check {
    limits: Limits,
    report: Report,
    /// By number, of each pair and incarnation of the sender.
    fates: BTreeMap<Stream, Vec<Fate>>,
    /// Ascending incarnations of each socket.
    lives: HashMap<SocketAddrV4, Vec<Life>>,
    /// Messages that a node dropped before the socket was bound, and how many are accounted for, by node and incarnation.
    dropped: HashMap<(Ipv4Addr, u32), u64>,
    missed: HashMap<(Ipv4Addr, u32), (u64, HashSet<Ipv4Addr>)>,
    /// Marks of lost connections in all, by socket and incarnation.
    marks: HashMap<(SocketAddrV4, u32), u32>,
    /// Bytes delivered to a port whose process was killed, by port and incarnation.
    lost: HashMap<(SocketAddrV4, u32), u64>,
    /// What happened to daemons, and what is missing because of it.
    daemons: Daemons,
    missing: Missing,
}

/// Compares the logs, in which no process is a client of a daemon that was killed.
#[must_use]
pub fn check(logs: &[Found], limits: Limits) -> Report {
    check_with(logs, limits, Daemons::default())
}

/// Compares the logs.
#[must_use]
pub fn check_with(logs: &[Found], limits: Limits, daemons: Daemons) -> Report {
    let mut check = Check {
        limits,
        report: Report::default(),
        fates: BTreeMap::new(),
        lives: HashMap::new(),
        dropped: HashMap::new(),
        missed: HashMap::new(),
        marks: HashMap::new(),
        lost: HashMap::new(),
        daemons,
        missing: Missing::default(),
    };
    let mut logs: Vec<&Found> = logs.iter().collect();
    logs.sort_by_key(|l| l.owner);
    for log in &logs {
        check.sent(log);
    }
    for log in &logs {
        check.received(log);
    }
    for ((pair, incarnation), fates) in std::mem::take(&mut check.fates) {
        check.stream(pair, incarnation, &fates);
    }
    check.allowances();
    check.report
}

impl Check {
    fn sent(&mut self, log: &Found) {
        let owner = log.owner;
        let life = Life {
            incarnation: owner.incarnation,
            ended: log.ended(),
            receive_buffer: owner.receive_buffer,
            stack: owner.stack,
        };
        self.lives.entry(owner.socket).or_default().push(life);
        let marks = self.marks.entry((owner.socket, owner.incarnation)).or_default();
        for r in &log.records {
            *marks += u32::from(r.event == Event::Broke);
            if r.event == Event::Bound {
                *self.dropped.entry((*owner.socket.ip(), owner.incarnation)).or_default() += r.id.number;
            }
            let fates = self.fates.entry((r.id.pair, r.id.incarnation));
            if r.event == Event::Intent {
                let fates = fates.or_default();
                if fates.len() as u64 != r.id.number {
                    self.report.broken(|| format!("{:?}: intents are not numbered one by one", r.id));
                }
                fates.push(Fate { len: r.len, ..Fate::default() });
                continue;
            }
            if r.event != Event::Accepted && !r.event.is_outcome() {
                continue;
            }
            let index = usize::try_from(r.id.number).unwrap_or(usize::MAX);
            let Some(fate) = fates.or_default().get_mut(index) else {
                self.report.broken(|| format!("{:?}: {:?} without an intent", r.id, r.event));
                continue;
            };
            if r.event == Event::Accepted {
                fate.accepted = true;
                self.report.accepted += 1;
                continue;
            }
            if !fate.accepted {
                self.report.broken(|| format!("{:?}: {:?}, but it was never accepted", r.id, r.event));
            }
            if let Some(earlier) = fate.outcome.replace(r.event) {
                self.report.broken(|| format!("{:?}: two outcomes, {earlier:?} and {:?}", r.id, r.event));
                continue;
            }
            fate.marks = *marks;
            match r.event {
                Event::Unknown => self.report.unknown += 1,
                Event::Cancelled => self.report.cancelled += 1,
                _ => self.report.delivered += 1,
            }
        }
    }

    fn received(&mut self, log: &Found) {
        for r in &log.records {
            if r.event == Event::Damaged {
                self.report.broken(|| {
                    format!(
                        "{} in incarnation {} got a damaged message, number {} or so, from {}",
                        log.owner.socket, log.owner.incarnation, r.id.number, r.id.pair.source
                    )
                });
            }
            if r.event != Event::Received {
                continue;
            }
            self.report.received += 1;
            let index = usize::try_from(r.id.number).unwrap_or(usize::MAX);
            let fate = self.fates.get_mut(&(r.id.pair, r.id.incarnation)).and_then(|f| f.get_mut(index));
            let Some(fate) = fate else {
                self.report.broken(|| format!("{:?}: received, but nobody sent it", r.id));
                continue;
            };
            if fate.by != 0 {
                self.report.broken(|| {
                    format!(
                        "{:?}: received twice, by incarnations {} and {}",
                        r.id, fate.by, log.owner.incarnation
                    )
                });
            }
            if fate.len != r.len {
                self.report.broken(|| format!("{:?}: {} bytes sent, {} received", r.id, fate.len, r.len));
            }
            fate.by = log.owner.incarnation;
        }
        // Order, with the sender's incarnations in their order, too.
        let mut newest: HashMap<Pair, (u32, u64)> = HashMap::new();
        for r in log.records.iter().filter(|r| r.event == Event::Received) {
            let this = (r.id.incarnation, r.id.number);
            let newest = newest.entry(r.id.pair).or_insert(this);
            if this < *newest {
                self.report.broken(|| format!("{:?}: received after {newest:?}", r.id));
            }
            *newest = this.max(*newest);
        }
    }

    /// Walks along what one incarnation of a socket sent to another socket.
    fn stream(&mut self, pair: Pair, sender: u32, fates: &[Fate]) {
        let killed =
            self.lives.get(&pair.source).into_iter().flatten().any(|l| l.incarnation == sender && !l.ended);
        let lives = self.lives.get(&pair.destination).cloned().unwrap_or_default();
        self.guarantees(pair, fates, &lives);
        let senders = self.lives.get(&pair.source).map_or(0, Vec::len);
        if lives.iter().any(|l| l.stack == Stack::Daemon) {
            let unfinished = fates.iter().filter(|f| f.accepted && f.outcome.is_none()).count() as u64;
            self.report.in_flight += unfinished;
            if unfinished > 0 && !killed {
                self.report.broken(|| format!("{pair:?}: {unfinished} messages without an outcome"));
            }
            let restarts = (senders + lives.len()).saturating_sub(2) as u64;
            let buffer = lives.iter().map(|l| l.receive_buffer).max().unwrap_or(0);
            let (missing, daemons) = (&mut self.missing, &self.daemons);
            let about = (pair, restarts, buffer, killed);
            return missing.stream(daemons, about, fates, &mut self.report, &mut |r, what| r.broken(|| what));
        }
        let (first, last) =
            (lives.first().map_or(0, |l| l.incarnation), lives.last().map_or(0, |l| l.incarnation));
        // The incarnation that received last, whether something is missing since, and whether something unknown is.
        let (mut now, mut hole, mut unknown) = (0, false, false);
        for (number, fate) in fates.iter().enumerate() {
            let name = || {
                format!(
                    "message {number} of incarnation {sender} from {} to {}",
                    pair.source, pair.destination
                )
            };
            if fate.accepted && fate.outcome.is_none() {
                if killed {
                    self.report.in_flight += 1;
                } else {
                    self.report.broken(|| format!("{}: no outcome", name()));
                }
            }
            if fate.by != 0 {
                if !fate.accepted && !killed {
                    self.report.broken(|| format!("{}: refused, but received", name()));
                }
                if fate.by < now {
                    self.report.broken(|| {
                        format!(
                            "{}: received by incarnation {}, a later one had earlier ones",
                            name(),
                            fate.by
                        )
                    });
                } else if fate.by == now && hole {
                    self.report.broken(|| format!("{}: received by incarnation {now} after a hole", name()));
                } else if fate.by == first && hole {
                    self.report
                        .broken(|| format!("{}: the first received, but earlier ones were not", name()));
                }
                if fate.outcome == Some(Event::Unknown) && fate.by == last {
                    self.report
                        .broken(|| format!("{}: unknown, but received by the last incarnation", name()));
                }
                (now, hole, unknown) = (fate.by, false, false);
                continue;
            }
            match fate.outcome {
                Some(Event::Cancelled) => {}
                Some(Event::Unknown) => {
                    (hole, unknown) = (true, true);
                    if last <= now.max(first) {
                        self.report
                            .broken(|| format!("{}: unknown, but the receiver did not restart", name()));
                    }
                }
                Some(_) if self.lost_with_connection(pair, sender, &fates[number..], &lives) => {
                    self.report.lost_by_kernel(name);
                }
                Some(_) => {
                    let next = fates[number..].iter().map(|f| f.by).find(|by| *by != 0).unwrap_or(u32::MAX);
                    // Killed incarnations that may have had it in their queue.
                    let from = if unknown { now + 1 } else { now };
                    let mut holders =
                        lives.iter().filter(|l| !l.ended && (from.max(1)..next).contains(&l.incarnation));
                    if let Some(life) = holders.next() {
                        hole = true;
                        self.report.lost_in_killed += 1;
                        *self.lost.entry((pair.destination, life.incarnation)).or_default() +=
                            u64::from(fate.len);
                    } else if next != u32::MAX && next > now {
                        self.report.lost_before_bind += 1;
                        let (count, senders) = self.missed.entry((*pair.destination.ip(), next)).or_default();
                        *count += 1;
                        senders.insert(*pair.source.ip());
                    } else {
                        hole = true;
                        self.report.broken(|| format!("{}: delivered, but not received", name()));
                    }
                }
                // Also those that were never accepted: nothing of the pair is sent before they are.
                None => hole = true,
            }
        }
    }

    /// Whether messages ended as delivered in the sense in which these two stacks can tell.
    fn guarantees(&mut self, pair: Pair, fates: &[Fate], lives: &[Life]) {
        let senders = self.lives.get(&pair.source).into_iter().flatten();
        let stacks = |lives: &mut dyn Iterator<Item = &Life>| {
            let all: Vec<bool> = lives.map(|l| l.stack.is_ours()).collect();
            (all.is_empty() || all.contains(&true), all.contains(&false))
        };
        let (from, to) = (stacks(&mut senders.into_iter()), stacks(&mut lives.iter()));
        let (own, kernel) = (from.0 && to.0, from.1 || to.1);
        for (number, fate) in fates.iter().enumerate() {
            let wrong = match fate.outcome {
                Some(Event::DeliveredTransport) => !kernel,
                Some(Event::DeliveredApplication) => !own,
                _ => false,
            };
            if wrong {
                self.report.broken(|| {
                    format!(
                        "message {number} from {} to {}: {:?}",
                        pair.source, pair.destination, fate.outcome
                    )
                });
            }
        }
    }

    /// Whether a kernel up to 6.18 may have lost the first of `fates` with a connection: its TCP had acknowledged it before the sender
    /// noticed the loss, and it acknowledged what is received next after that.
    fn lost_with_connection(&self, pair: Pair, sender: u32, fates: &[Fate], lives: &[Life]) -> bool {
        let first = &fates[0];
        if first.outcome != Some(Event::DeliveredTransport)
            || !lives.iter().any(|l| l.stack == Stack::KernelTo6)
        {
            return false;
        }
        let senders = self.lives.get(&pair.source).into_iter().flatten();
        if senders.filter(|l| l.incarnation == sender).any(|l| !l.stack.is_ours()) {
            return true;
        }
        let all = self.marks.get(&(pair.source, sender)).copied().unwrap_or(0);
        let next = fates.iter().find(|f| f.by != 0).filter(|f| f.outcome.is_some());
        first.marks / 2 < next.map_or(all, |f| f.marks).div_ceil(2)
    }

    fn allowances(&mut self) {
        let report = &mut self.report;
        std::mem::take(&mut self.missing).judge(&self.daemons, self.limits, |what| report.broken(|| what));
        for ((node, incarnation), (missed, senders)) in &self.missed {
            let dropped = self.dropped.get(&(*node, *incarnation)).copied().unwrap_or(0);
            if *missed > dropped + senders.len() as u64 {
                self.report.broken(|| {
                    format!("{missed} messages delivered to {node} in incarnation {incarnation} were not received; it dropped {dropped} before its sockets were bound")
                });
            }
        }
        for ((socket, incarnation), bytes) in &self.lost {
            let life = self.lives[socket].iter().find(|l| l.incarnation == *incarnation);
            // A kernel's queue has no limit.
            let own = life.is_none_or(|l| l.stack.is_ours());
            let most = self.limits.queue(life.map_or(0, |l| l.receive_buffer));
            if own && *bytes > most {
                self.report.broken(|| {
                    format!("{bytes} bytes delivered to {socket} were lost with incarnation {incarnation}; a node holds at most {most}")
                });
            }
        }
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
