//! A task: one RDS socket that exchanges with every task of the other side (rds-tools, section 3.5).

use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rds_client::{Event, Mode, Node, Readiness, Received, RecvError, Socket, TrySendError};

use crate::clock::{Gate, Phase};
use crate::exchange::{Accepted, Exchange};
use crate::message::{Header, Op};
use crate::out::{Out, line};
use crate::outbox::{Outbox, Refused};
use crate::pattern::{difference, pattern};
use crate::rtt::RoundTrips;
use crate::session::Session;
use crate::stats::{Counts, Published};
use crate::zerocopy::Modes;

/// Longest wait for something to happen.
const WAIT: Duration = Duration::from_secs(1);
/// How soon a congested destination is tried again without the congestion monitor: nothing else would tell.
const RETRY: Duration = Duration::from_millis(10);

/// What a task works with.
pub struct Task<'a> {
    /// What both sides agreed on.
    pub session: &'a Session,
    /// Its number, from 0.
    pub index: u16,
    /// The node of its socket.
    pub node: &'a Node,
    /// Its socket, bound to [`Session::task_port`].
    pub socket: Socket,
    /// Whether messages are lent when sent, and when received.
    pub zero_copy: Modes,
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

impl Task<'_> {
    /// Sends and receives from `start` until the run ends. Returns the round trips of the measured time.
    ///
    /// # Errors
    /// A check failed, or the socket.
    pub fn run(self, start: Instant) -> Result<RoundTrips, TaskFailure> {
        let mut worker = Worker::new(&self);
        self.gate.wait_start(start);
        let result = worker.run(self.gate, self.published);
        if let Some(out) = self.cancel {
            worker.cancel(out);
        }
        let rtt = worker.rtt;
        self.socket.close();
        result.map(|()| rtt).map_err(|mut failure| {
            failure.report = format!("task {}: {}", self.index, failure.report);
            failure
        })
    }
}

/// What an attempt to receive means that brought nothing.
fn nothing(error: RecvError) -> Result<bool, TaskFailure> {
    match error {
        RecvError::Empty | RecvError::TimedOut => Ok(false),
        e => Err(TaskFailure { report: format!("cannot receive: {e}"), check: false }),
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

struct Worker<'a> {
    session: &'a Session,
    index: u16,
    socket: &'a Socket,
    outbox: Outbox<'a>,
    /// Messages are checked where they were received.
    leases: bool,
    outliers: u64,
    exchanges: Vec<Exchange>,
    /// Whole messages; only parts of the header change.
    request: Vec<u8>,
    ack: Vec<u8>,
    inbox: Vec<u8>,
    /// What every payload must be, with `-v`.
    pattern: Vec<u8>,
    counts: Counts,
    measuring: bool,
    rtt: RoundTrips,
    base: Instant,
}

impl<'a> Worker<'a> {
    fn new(task: &'a Task<'_>) -> Self {
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
        let (_, buffer) = session.buffers();
        // A buffer is lent until TCP has it, which may be after its message was answered.
        let most = 2 * buffer;
        let zero_copy = task.zero_copy;
        Self {
            session,
            index: task.index,
            socket: &task.socket,
            outbox: Outbox::new(
                task.node,
                &task.socket,
                zero_copy.send,
                session.header,
                session.verify,
                most,
            ),
            leases: zero_copy.receive != Mode::Off,
            outliers: task.outliers.unwrap_or(u64::MAX),
            exchanges: (0..session.tasks).map(exchange).collect(),
            request: message(Op::Request, session.req_size),
            ack: message(Op::Ack, session.ack_size),
            inbox: vec![0; session.longest()],
            pattern,
            counts: Counts::default(),
            measuring: false,
            rtt: RoundTrips::default(),
            base: Instant::now(),
        }
    }

    fn run(&mut self, gate: &Gate, published: &Published) -> Result<(), TaskFailure> {
        let mut left = Left { room: true, ..Left::default() };
        loop {
            let interest = Readiness { readable: true, writable: left.room, completions: left.lent };
            let timeout = if left.retry { RETRY } else { WAIT };
            let ready = self.socket.wait(interest, Some(timeout));
            let phase = gate.phase();
            if phase == Phase::Ended {
                return Ok(());
            }
            if self.measuring != (phase == Phase::Measuring) {
                self.measuring = phase == Phase::Measuring;
                if self.measuring {
                    self.rtt.clear();
                }
            }
            if ready.readable {
                self.receive_all()?;
            }
            self.outbox
                .take_completions()
                .map_err(|e| TaskFailure { report: format!("a wrong completion: {e}"), check: false })?;
            left = if gate.phase() < Phase::Stopping { self.send_all()? } else { Left::default() };
            published.publish(&self.counts);
        }
    }

    /// Receives until nothing is queued.
    fn receive_all(&mut self) -> Result<(), TaskFailure> {
        // Lent out while messages in it are checked.
        let mut inbox = std::mem::take(&mut self.inbox);
        let result = loop {
            let received = if self.leases { self.next_lease() } else { self.next_copy(&mut inbox) };
            match received {
                Ok(true) => {}
                Ok(false) => break Ok(()),
                Err(failure) => break Err(failure),
            }
        };
        self.inbox = inbox;
        result
    }

    /// Receives into `inbox`; whether there was anything.
    fn next_copy(&mut self, inbox: &mut [u8]) -> Result<bool, TaskFailure> {
        match self.socket.try_recv_from(inbox) {
            Ok(Received::Message { full_len, from, .. }) => {
                // A message that is too long was cut.
                let bytes = inbox.get(..full_len).unwrap_or(inbox);
                self.receive(bytes, full_len, from)?;
            }
            Ok(Received::CongestionCleared(mask)) => self.cleared(mask),
            Ok(_) => {}
            Err(e) => return nothing(e),
        }
        Ok(true)
    }

    /// Receives a message where it lies; whether there was anything.
    fn next_lease(&mut self) -> Result<bool, TaskFailure> {
        match self.socket.try_recv_lease() {
            Ok(Event::Message(message)) => {
                self.receive(&message.payload, message.payload.len(), message.from)?
            }
            Ok(Event::CongestionCleared(mask)) => self.cleared(mask),
            Ok(_) => {}
            Err(e) => return nothing(e),
        }
        Ok(true)
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

    /// One pass: to each task of the other side all acks that are owed, then requests up to the depth.
    fn send_all(&mut self) -> Result<Left, TaskFailure> {
        let mut left = Left::default();
        for i in 0..self.exchanges.len() {
            if self.exchanges[i].congested {
                continue;
            }
            match self.send_to(i) {
                Ok(()) => {}
                Err(Refused::Lent) => left.lent = true,
                Err(Refused::Node(TrySendError::Full)) => left.room = true,
                Err(Refused::Node(TrySendError::Congested)) if self.session.cong_monitor => {
                    self.exchanges[i].congested = true
                }
                Err(Refused::Node(TrySendError::Congested)) => left.retry = true,
                Err(Refused::Node(e)) => {
                    let report = format!("cannot send to {}: {e}", self.exchanges[i].peer);
                    return Err(TaskFailure { report, check: false });
                }
            }
        }
        Ok(left)
    }

    fn send_to(&mut self, i: usize) -> Result<(), Refused> {
        let exchange = &mut self.exchanges[i];
        let peer = exchange.peer;
        while let Some((seq, slot)) = exchange.next_ack() {
            Header::patch(&mut self.ack, seq, peer.port(), slot);
            self.outbox.send(&self.ack, peer)?;
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
            self.outbox.send(&self.request, peer)?;
            exchange.request_sent(before);
            let after = now(&self.base);
            self.counts.tx += 1;
            self.counts.bytes += self.request.len() as u64;
            self.counts.send_ns += after - before;
            before = after;
        }
        Ok(())
    }

    fn cancel(&self, out: Out) {
        let mut lines = String::new();
        for exchange in &self.exchanges {
            let begin = Instant::now();
            let cancelled = self.socket.cancel_sent_to(exchange.peer);
            let us = begin.elapsed().as_micros();
            let _ = writeln!(
                lines,
                "task {}: cancelled {cancelled} messages to {} in {us} us",
                self.index, exchange.peer
            );
        }
        out.write(format_args!("{lines}"));
    }

    #[inline]
    fn now(&self) -> u64 {
        self.base.elapsed().as_nanos() as u64
    }
}
