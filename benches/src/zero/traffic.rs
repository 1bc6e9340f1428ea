//! Messages between two nodes, sent from owned memory and received as leases, whatever the mode of zero copy.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rds_client::{Completion, Event, Node, RecvError, Socket};

use super::part::{Part, Since, Slice, serve};

/// Bytes that one thread sends before it receives them.
const BURST: usize = 256 << 10;
/// How often a receiver that gets nothing asks whether it is to end.
const TICK: Duration = Duration::from_millis(100);
/// Longest wait for what must come.
const PATIENCE: Duration = Duration::from_secs(30);
/// Longest round trip that is told from longer ones.
const MOST_NANOS: u64 = 60_000_000_000;
/// Messages whose completions are taken together.
const BATCH: u64 = 32;

/// A node with one socket, and where its messages go.
pub(crate) struct End {
    pub(crate) node: Node,
    pub(crate) socket: Socket,
    pub(crate) to: SocketAddr,
}

/// Takes completions, so that the library need not keep them.
#[derive(Default)]
struct Completions {
    sent: u64,
    batch: Vec<Completion>,
}

impl Completions {
    fn sent(&mut self, socket: &Socket) {
        self.sent += 1;
        if self.sent.is_multiple_of(BATCH) {
            self.batch.clear();
            socket.completions(&mut self.batch);
        }
    }
}

fn send_one(part: &Part, end: &End, completions: &mut Completions) -> Result<(), String> {
    let payload = part.payload(&end.node);
    end.socket.send_owned(payload, end.to).map_err(|(e, _)| format!("cannot send: {e}"))?;
    completions.sent(&end.socket);
    Ok(())
}

/// One thread: a burst out, and in again.
pub(crate) fn both(part: &Part, from: &End, to: &End, time: Duration) -> Result<Slice, String> {
    let burst = (BURST / part.size).max(1);
    let mut completions = Completions::default();
    let mut messages = 0;
    to.socket.set_recv_timeout(Some(PATIENCE));
    let begun = Instant::now();
    while begun.elapsed() < time {
        for _ in 0..burst {
            send_one(part, from, &mut completions)?;
        }
        for _ in 0..burst {
            receive(part, &to.socket)?;
        }
        messages += burst as u64;
    }
    Ok(Slice { messages, ..Slice::default() })
}

fn receive(part: &Part, socket: &Socket) -> Result<(), String> {
    loop {
        match socket.recv_lease().map_err(|e| format!("cannot receive: {e}"))? {
            Event::Message(message) if message.payload.len() == part.size => return Ok(()),
            Event::Message(message) => return Err(format!("got {} bytes", message.payload.len())),
            _ => {}
        }
    }
}

/// As much as goes, until it has all arrived.
pub(crate) fn send(part: &Part, end: &End, time: Duration) -> Result<Slice, String> {
    let mut completions = Completions::default();
    let mut messages = 0;
    let begun = Instant::now();
    while begun.elapsed() < time {
        send_one(part, end, &mut completions)?;
        messages += 1;
    }
    if !end.socket.flush(PATIENCE) {
        return Err("what was sent does not arrive".to_owned());
    }
    Ok(Slice { messages, ..Slice::default() })
}

/// A message there, a message back.
pub(crate) fn ask(part: &Part, end: &End, time: Duration) -> Result<Slice, String> {
    let mut completions = Completions::default();
    let mut times = Histogram::<u64>::new_with_max(MOST_NANOS, 3).map_err(|e| e.to_string())?;
    end.socket.set_recv_timeout(Some(PATIENCE));
    let begun = Instant::now();
    let mut before = begun;
    while before - begun < time {
        send_one(part, end, &mut completions)?;
        receive(part, &end.socket)?;
        let now = Instant::now();
        times.saturating_record((now - before).as_nanos() as u64);
        before = now;
    }
    let us = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    Ok(Slice { messages: times.len(), p50_us: us(0.5), p99_us: us(0.99), ..Slice::default() })
}

/// What a receiver counts, and whether it is to end.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) messages: AtomicU64,
    pub(crate) stop: AtomicBool,
}

/// Runs `work` in a thread while standard input has questions, each of which is answered with what it took since.
pub(crate) fn in_background(
    end: &End,
    work: impl FnOnce(&Taken) -> Result<(), String> + Send,
) -> Result<(), String> {
    end.socket.set_recv_timeout(Some(TICK));
    let taken = Taken::default();
    let mut since = Since::default();
    thread::scope(|scope| {
        let worker = scope.spawn(|| work(&taken));
        let served = serve(|_| Ok(since.cost(&taken.messages)));
        taken.stop.store(true, Relaxed);
        worker.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())).and(served)
    })
}

/// Receives.
pub(crate) fn take(part: &Part, end: &End, taken: &Taken) -> Result<(), String> {
    while !taken.stop.load(Relaxed) {
        match end.socket.recv_lease() {
            Ok(Event::Message(message)) if message.payload.len() == part.size => {
                taken.messages.fetch_add(1, Relaxed);
            }
            Ok(Event::Message(message)) => return Err(format!("got {} bytes", message.payload.len())),
            Ok(_) | Err(RecvError::TimedOut) => {}
            Err(e) => return Err(format!("cannot receive: {e}")),
        }
    }
    Ok(())
}

/// Answers each message with one of the same length, from the pool.
pub(crate) fn answer(end: &End, taken: &Taken) -> Result<(), String> {
    let mut completions = Completions::default();
    while !taken.stop.load(Relaxed) {
        match end.socket.recv_lease() {
            Ok(Event::Message(message)) => {
                let buffer = end.node.buffer(message.payload.len());
                end.socket.send_owned(buffer, message.from).map_err(|(e, _)| format!("cannot send: {e}"))?;
                completions.sent(&end.socket);
                taken.messages.fetch_add(1, Relaxed);
            }
            Ok(_) | Err(RecvError::TimedOut) => {}
            Err(e) => return Err(format!("cannot receive: {e}")),
        }
    }
    Ok(())
}
