//! A task: one RDS socket that exchanges with every task of the other side (rds-tools, section 3.5).

use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::backend::{Incoming, Port, Refused, Want};
use crate::clock::{Gate, Phase};
use crate::exchange::{Accepted, Exchange};
use crate::message::{Header, Op};
use crate::out::{Out, line};
use crate::pattern::{difference, pattern};
use crate::rtt::RoundTrips;
use crate::session::Session;
use crate::stats::{Counts, Published};

/// Longest wait for something to happen.
const WAIT: Duration = Duration::from_secs(1);
/// How soon a congested destination is tried again without the congestion monitor: nothing else would tell.
const RETRY: Duration = Duration::from_millis(10);

/// What a task works with.
pub struct Task<'a, P> {
    /// What both sides agreed on.
    pub session: &'a Session,
    /// Its number, from 0.
    pub index: u16,
    /// What it sends and receives through, at [`Session::task_port`].
    pub port: P,
    /// The run's phase.
    pub gate: &'a Gate,
    /// Where its counts go.
    pub published: &'a Published,
    /// Round trips longer than this many nanoseconds are printed to stderr.
    pub outliers: Option<u64>,
    /// Whether it cancels at its end what is on its way, and where to print how long that took.
    pub cancel: Option<Out>,
}

/// Why a task died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskFailure {
    /// What happened; several lines for a failed check.
    pub report: String,
    /// Whether a received message was not what had to come.
    pub check: bool,
}

impl<P: Port> Task<'_, P> {
    /// Sends and receives from `start` until the run ends. Returns the round trips of the measured time.
    ///
    /// # Errors
    /// A check failed, or the port.
    pub fn run(self, start: Instant) -> Result<RoundTrips, TaskFailure> {
        let mut worker = Worker { state: State::new(&self), port: self.port };
        self.gate.wait_start(start);
        let result = worker.run(self.gate, self.published);
        if let Some(out) = self.cancel {
            worker.cancel(out);
        }
        worker.port.close();
        result.map(|()| worker.state.rtt).map_err(|mut failure| {
            failure.report = format!("task {}: {}", self.index, failure.report);
            failure
        })
    }
}

/// What could not be sent in a pass, and why.
#[derive(Clone, Copy, Default)]
struct Left {
    /// For want of buffer.
    room: bool,
    /// Because too much is lent.
    lent: bool,
    /// For congestion that nobody will report.
    retry: bool,
}

struct Worker<'a, P> {
    port: P,
    state: State<'a>,
}

struct State<'a> {
    session: &'a Session,
    index: u16,
    outliers: u64,
    exchanges: Vec<Exchange>,
    /// Whole messages; only parts of the header change.
    request: Vec<u8>,
    ack: Vec<u8>,
    /// What every payload must be, with `-v`.
    pattern: Vec<u8>,
    counts: Counts,
    measuring: bool,
    rtt: RoundTrips,
    base: Instant,
}

impl<P: Port> Worker<'_, P> {
    fn run(&mut self, gate: &Gate, published: &Published) -> Result<(), TaskFailure> {
        let mut left = Left { room: true, ..Left::default() };
        loop {
            let timeout = if left.retry { RETRY } else { WAIT };
            let readable = self.port.wait(Want { room: left.room, lent: left.lent }, timeout);
            let phase = gate.phase();
            if phase == Phase::Ended {
                return Ok(());
            }
            self.state.measure(phase == Phase::Measuring);
            if readable {
                let state = &mut self.state;
                self.port.receive(|incoming| match incoming {
                    Incoming::Message { bytes, len, from } => state.receive(bytes, len, from),
                    Incoming::Cleared(mask) => {
                        state.cleared(mask);
                        Ok(())
                    }
                })?;
            }
            self.port.take_completions()?;
            left = if gate.phase() < Phase::Stopping { self.send_all()? } else { Left::default() };
            published.publish(&self.state.counts);
        }
    }

    /// One pass: to each task of the other side all acks that are owed, then requests up to the depth.
    fn send_all(&mut self) -> Result<Left, TaskFailure> {
        let mut left = Left::default();
        let state = &mut self.state;
        for i in 0..state.exchanges.len() {
            if state.exchanges[i].congested {
                continue;
            }
            match state.send_to(&mut self.port, i) {
                Ok(()) => {}
                Err(Refused::Lent) => left.lent = true,
                Err(Refused::Room) => left.room = true,
                Err(Refused::Congested) if state.session.cong_monitor => state.exchanges[i].congested = true,
                Err(Refused::Congested) => left.retry = true,
                Err(Refused::Failed(e)) => {
                    let report = format!("cannot send to {}: {e}", state.exchanges[i].peer);
                    return Err(TaskFailure { report, check: false });
                }
            }
        }
        self.port.flush();
        Ok(left)
    }

    fn cancel(&mut self, out: Out) {
        let mut lines = String::new();
        for exchange in &self.state.exchanges {
            let begin = Instant::now();
            let cancelled = self.port.cancel(exchange.peer);
            let us = begin.elapsed().as_micros();
            let (index, peer) = (self.state.index, exchange.peer);
            let _ = match cancelled {
                Ok(Some(n)) => writeln!(lines, "task {index}: cancelled {n} messages to {peer} in {us} us"),
                Ok(None) => writeln!(lines, "task {index}: cancelled messages to {peer} in {us} us"),
                Err(e) => writeln!(lines, "task {index}: cannot cancel messages to {peer}: {e}"),
            };
        }
        out.write(format_args!("{lines}"));
    }
}

impl<'a> State<'a> {
    fn new<P>(task: &Task<'a, P>) -> Self {
        let session = task.session;
        let local = SocketAddr::new(session.own, session.task_port(task.index));
        let pattern = if session.verify { pattern(session.longest() - session.header) } else { Vec::new() };
        let message = |op: Op, size: usize| {
            let mut bytes = vec![0; size];
            let to = session.peer_task(0);
            Header { seq: 0, from: local, to, index: 0, op: op.code(), retry: false }
                .write(&mut bytes[..session.header]);
            if session.verify {
                bytes[session.header..].copy_from_slice(&pattern[..size - session.header]);
            }
            bytes
        };
        let exchange = |i| Exchange::new(local, session.peer_task(i), session.depth, session.requests());
        Self {
            session,
            index: task.index,
            outliers: task.outliers.unwrap_or(u64::MAX),
            exchanges: (0..session.tasks).map(exchange).collect(),
            request: message(Op::Request, session.req_size),
            ack: message(Op::Ack, session.ack_size),
            pattern,
            counts: Counts::default(),
            measuring: false,
            rtt: RoundTrips::default(),
            base: Instant::now(),
        }
    }

    fn measure(&mut self, measuring: bool) {
        if measuring && !self.measuring {
            self.rtt.clear();
        }
        self.measuring = measuring;
    }

    fn cleared(&mut self, mask: u64) {
        for exchange in &mut self.exchanges {
            if mask >> (exchange.peer.port() % 64) & 1 == 1 {
                exchange.congested = false;
            }
        }
    }

    /// Checks a message of `len` bytes and counts it. `bytes` are fewer only if it is longer than any that may come.
    fn receive(&mut self, bytes: &[u8], len: usize, from: SocketAddr) -> Result<(), TaskFailure> {
        let failed = |what: fmt::Arguments<'_>| TaskFailure {
            report: format!("message from {from}: {what}"),
            check: true,
        };
        let session = self.session;
        let from_task = from.port().wrapping_sub(session.port).wrapping_sub(1);
        if from.ip() != session.peer || from_task >= session.tasks {
            let (first, last) = (session.peer_task(0), session.task_port(session.tasks - 1));
            return Err(failed(format_args!(
                "no task of the other side has this address: they are {first} to port {last}"
            )));
        }
        if len < session.header {
            return Err(failed(format_args!("{len} bytes are less than a header of {}", session.header)));
        }
        let header = Header::read(&bytes[..session.header]);
        let Some(op) = Op::from_code(header.op) else {
            return Err(failed(format_args!("operation {} is neither request (1) nor ack (2)", header.op)));
        };
        let size = match op {
            Op::Request => session.req_size,
            Op::Ack => session.ack_size,
        };
        if len != size {
            return Err(failed(format_args!("{op:?} of {len} bytes where {size} had to come")));
        }
        let exchange = &mut self.exchanges[usize::from(from_task)];
        let accepted = exchange.accept(op, &header, from).map_err(|m| failed(format_args!("{m}")))?;
        if accepted == Accepted::Stale {
            return Ok(());
        }
        if session.verify {
            let payload = &bytes[session.header..len];
            let expected = &self.pattern[..payload.len()];
            if payload != expected {
                let (first, bad) = difference(expected, payload).unwrap_or_default();
                return Err(failed(format_args!(
                    "payload of {op:?} {} differs from the pattern: {bad} bad bytes of {}, the first at offset {first}: expected {:#04x}, received {:#04x}",
                    header.seq,
                    payload.len(),
                    expected[first],
                    payload[first]
                )));
            }
        }
        self.counts.bytes += len as u64;
        match accepted {
            Accepted::Request => self.counts.rx += 1,
            Accepted::Ack { sent_at } => self.round_trip(sent_at, from),
            Accepted::Stale => {}
        }
        Ok(())
    }

    #[inline]
    fn round_trip(&mut self, sent_at: u64, from: SocketAddr) {
        let ns = self.now().saturating_sub(sent_at);
        self.counts.acked += 1;
        self.counts.rtt_ns += ns;
        if self.measuring {
            self.rtt.record(ns);
        }
        if ns > self.outliers {
            line!(Out::Stderr, "task {} to {from}: rtt 0x{:x} us", self.index, ns / 1000);
        }
    }

    fn send_to(&mut self, port: &mut impl Port, i: usize) -> Result<(), Refused> {
        let exchange = &mut self.exchanges[i];
        let peer = exchange.peer;
        while let Some((seq, slot)) = exchange.next_ack() {
            Header::patch(&mut self.ack, seq, peer.port(), slot);
            port.send(&self.ack, i, peer)?;
            exchange.ack_sent();
            self.counts.bytes += self.ack.len() as u64;
        }
        if !self.session.requests() || exchange.next_request().is_none() {
            return Ok(());
        }
        let now = |base: &Instant| base.elapsed().as_nanos() as u64;
        // The time after one send is the time before the next: one look at the clock for each request.
        let mut before = now(&self.base);
        while let Some((seq, slot)) = exchange.next_request() {
            Header::patch(&mut self.request, seq, peer.port(), slot);
            port.send(&self.request, i, peer)?;
            exchange.request_sent(before);
            let after = now(&self.base);
            self.counts.tx += 1;
            self.counts.bytes += self.request.len() as u64;
            self.counts.send_ns += after - before;
            before = after;
        }
        Ok(())
    }

    #[inline]
    fn now(&self) -> u64 {
        self.base.elapsed().as_nanos() as u64
    }
}
