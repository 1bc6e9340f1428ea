//! The program `rds-crowd`: one client.

use std::collections::{HashMap, VecDeque};
use std::io::{self, BufRead, Write};
use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rds_client::{BindError, Completion, Event, Node, Readiness, RecvError, Socket, TrySendError};

use super::Said;
use super::message::{Kind, LEAST, Message};

/// From this length on a message is sent from a buffer of the memory shared with the daemon.
const LENT_FROM: usize = 4096;
/// How long a command may wait.
const TICK: Duration = Duration::from_millis(20);
/// How long a port may stay taken by a process that was killed.
const FREED: Duration = Duration::from_secs(10);
/// Bytes of an answer.
const ANSWER: usize = 64;
const MOST_FAULTS: usize = 5;

/// What a client does.
#[derive(Clone, Debug, clap::Args)]
pub struct Settings {
    /// Socket of the daemon; without it the program has a node of its own.
    #[arg(long)]
    pub attach: Option<PathBuf>,
    /// Where it is bound, ADDRESS:PORT.
    #[arg(long)]
    pub at: SocketAddrV4,
    /// Which life of its place it is, from 1.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub life: u32,
    /// Whom to ask, so many requests at a time.
    #[arg(long)]
    pub to: Vec<SocketAddrV4>,
    /// Whom to ask as well, one request at a time, which is not measured.
    #[arg(long)]
    pub also: Vec<SocketAddrV4>,
    /// Requests under way to each of the first.
    #[arg(long, default_value_t = 4)]
    pub depth: u64,
    /// Bytes of requests, in turn.
    #[arg(long, value_delimiter = ',', default_values_t = [64],
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(32..=1 << 20))]
    pub sizes: Vec<usize>,
}

struct Target {
    at: SocketAddr,
    depth: u64,
    measured: bool,
    /// Number of the next request, and of the oldest one that may still be answered.
    next: u64,
    oldest: u64,
    answered: u64,
    /// Its last known life, 0 before it is known; and the first request that was sent after it had become known.
    life: u32,
    base: u64,
    congested: bool,
}

/// What is owed to one who asked.
#[derive(Default)]
struct Asker {
    life: u32,
    expected: u64,
    owed: VecDeque<Message>,
}

struct Client {
    node: Node,
    socket: Socket,
    life: u32,
    targets: Vec<Target>,
    askers: HashMap<SocketAddr, Asker>,
    sizes: Vec<usize>,
    sending: bool,
    asked: u64,
    faults: Vec<String>,
    base: Instant,
    measured_since: Instant,
    measured: u64,
    times: Histogram<u64>,
    completions: Vec<Completion>,
    buffer: Vec<u8>,
}

/// Runs a client until it is told to end, or its standard input does.
///
/// # Errors
/// It cannot begin.
pub fn run(settings: Settings) -> Result<(), String> {
    let builder = Node::builder(IpAddr::V4(*settings.at.ip()));
    let builder = match &settings.attach {
        Some(socket) => builder.attach(socket),
        None => builder,
    };
    let node = builder.open().map_err(|e| e.to_string())?;
    let socket = bind(&node, settings.at.port())?;
    socket.set_congestion_monitor(true);
    let target = |(at, measured): (&SocketAddrV4, bool)| Target {
        at: SocketAddr::V4(*at),
        depth: if measured { settings.depth } else { 1 },
        measured,
        next: 0,
        oldest: 0,
        answered: 0,
        life: 0,
        base: 0,
        congested: false,
    };
    let targets = settings.to.iter().map(|to| (to, true)).chain(settings.also.iter().map(|to| (to, false)));
    let mut client = Client {
        targets: targets.map(target).collect(),
        node,
        socket,
        life: settings.life,
        askers: HashMap::new(),
        sizes: settings.sizes,
        sending: false,
        asked: 0,
        faults: Vec::new(),
        base: Instant::now(),
        measured_since: Instant::now(),
        measured: 0,
        times: Histogram::new_with_max(60_000_000_000, 3).expect("bounds and digits are possible"),
        completions: Vec::new(),
        buffer: Vec::new(),
    };
    say("bound")?;
    let (sink, orders) = channel();
    std::thread::spawn(move || {
        io::stdin().lock().lines().map_while(Result::ok).try_for_each(|line| sink.send(line))
    });
    while client.obey(&orders)? {
        let full = client.pass();
        let interest = Readiness { readable: true, writable: full, completions: false };
        client.socket.wait(interest, Some(TICK));
    }
    client.socket.close();
    Ok(())
}

/// Binds the port, which the life before may still have: a daemon sees the end of a process a little after those who wait for it.
fn bind(node: &Node, port: u16) -> Result<Socket, String> {
    let since = Instant::now();
    loop {
        match node.bind(port) {
            Err(BindError::InUse(_)) if since.elapsed() < FREED => std::thread::sleep(TICK),
            bound => return bound.map_err(|e| e.to_string()),
        }
    }
}

fn say(line: &str) -> Result<(), String> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|e| format!("standard output: {e}"))
}

impl Client {
    /// Whether to go on.
    fn obey(&mut self, orders: &Receiver<String>) -> Result<bool, String> {
        loop {
            match orders.try_recv().as_deref() {
                Ok("go") => self.sending = true,
                Ok("rest") => self.sending = false,
                Ok("measure") => {
                    self.times.reset();
                    (self.measured, self.measured_since) = (0, Instant::now());
                }
                Ok("say") => say(&serde_json::to_string(&self.said()).map_err(|e| e.to_string())?)?,
                Ok("end") | Err(TryRecvError::Disconnected) => return Ok(false),
                Ok(other) => return Err(format!("{other:?}: not one of go, rest, measure, say, end")),
                Err(TryRecvError::Empty) => return Ok(true),
            }
        }
    }

    fn said(&self) -> Said {
        let us = |quantile| self.times.value_at_quantile(quantile) as f64 / 1e3;
        Said {
            answered: self.targets.iter().map(|t| t.answered).collect(),
            outstanding: self.targets.iter().map(|t| t.next - t.oldest).collect(),
            asked: self.asked,
            faults: self.faults.clone(),
            measured: self.measured,
            p50_us: us(0.5),
            p99_us: us(0.99),
            seconds: self.measured_since.elapsed().as_secs_f64(),
        }
    }

    fn fault(&mut self, what: String) {
        if self.faults.len() < MOST_FAULTS {
            self.faults.push(what);
        }
    }

    /// Takes what has come, answers, asks. Whether there was no room.
    fn pass(&mut self) -> bool {
        loop {
            match self.socket.try_recv_lease() {
                Ok(Event::Message(message)) => match Message::read(&message.payload) {
                    Some(read) => self.got(message.from, read),
                    None => self.fault(format!("damaged message from {}", message.from)),
                },
                Ok(Event::CongestionCleared(mask)) => {
                    for target in &mut self.targets {
                        target.congested &= mask >> (target.at.port() % 64) & 1 == 0;
                    }
                }
                Ok(_) => {}
                Err(RecvError::Empty) => break,
                Err(e) => {
                    self.fault(format!("cannot receive: {e}"));
                    break;
                }
            }
        }
        self.socket.completions(&mut self.completions);
        self.completions.clear();
        self.answer() || self.ask()
    }

    fn got(&mut self, from: SocketAddr, message: Message) {
        if message.kind == Kind::Answer {
            return self.answered(from, message);
        }
        self.asked += 1;
        let asker = self.askers.entry(from).or_default();
        if asker.life != message.life {
            // What we owed the one before is not wanted any more. Who was there before the other began gets all that it sends.
            let lives = (asker.life, message.life);
            let expected = if self.life == 1 { 0 } else { message.number };
            *asker = Asker { life: message.life, expected, owed: VecDeque::new() };
            if lives.1 < lives.0 {
                self.fault(format!("{from}: a request of life {} after life {}", lives.1, lives.0));
            }
        }
        let asker = self.askers.entry(from).or_default();
        let expected = std::mem::replace(&mut asker.expected, message.number + 1);
        asker.owed.push_back(Message { kind: Kind::Answer, asker_life: message.life, ..message });
        if expected != message.number {
            self.fault(format!("{from}: request {} where {expected} had to come", message.number));
        }
        if let Some(target) = self.targets.iter_mut().find(|t| t.at == from) {
            target.heard(message.life);
        }
    }

    fn answered(&mut self, from: SocketAddr, message: Message) {
        if message.asker_life != self.life {
            // Asked by an earlier life of this place, and answered late.
            return;
        }
        let Some(target) = self.targets.iter_mut().find(|t| t.at == from) else {
            return self.fault(format!("{from}: an answer, though it was never asked"));
        };
        target.heard(message.life);
        let (oldest, next) = (target.oldest, target.next);
        if message.number < target.base {
            // Sent when its life was not known: others of that time are lost.
            return;
        }
        if message.number != oldest || message.number >= next {
            return self.fault(format!(
                "{from}: answer {} where {oldest} had to come, of {next} requests",
                message.number
            ));
        }
        target.oldest = message.number + 1;
        target.answered += 1;
        if target.measured {
            let ns = (self.base.elapsed().as_nanos() as u64).saturating_sub(message.sent_at);
            self.times.saturating_record(ns);
            self.measured += 1;
        }
    }

    /// Whether there was no room.
    fn answer(&mut self) -> bool {
        for (at, asker) in &mut self.askers {
            while let Some(owed) = asker.owed.front() {
                let message = Message { life: self.life, ..*owed };
                self.buffer.resize(ANSWER.max(LEAST), 0);
                message.write(&mut self.buffer);
                match self.socket.try_send_to(&self.buffer, *at) {
                    Ok(()) => drop(asker.owed.pop_front()),
                    Err(TrySendError::Full) => return true,
                    Err(TrySendError::Congested) => break,
                    Err(e) => {
                        let fault = format!("cannot answer {at}: {e}");
                        self.fault(fault);
                        return false;
                    }
                }
            }
        }
        false
    }

    /// Whether there was no room.
    fn ask(&mut self) -> bool {
        if !self.sending {
            return false;
        }
        for index in 0..self.targets.len() {
            loop {
                let target = &mut self.targets[index];
                if target.congested || target.next - target.oldest >= target.depth {
                    break;
                }
                let (at, number) = (target.at, target.next);
                let size = self.sizes[number as usize % self.sizes.len()].max(LEAST);
                let sent_at = self.base.elapsed().as_nanos() as u64;
                let message =
                    Message { kind: Kind::Request, life: self.life, asker_life: self.life, number, sent_at };
                let sent = if size >= LENT_FROM {
                    let mut buffer = self.node.buffer(size);
                    message.write(&mut buffer);
                    self.socket.try_send_owned(buffer, at).map(drop).map_err(|(e, _)| e)
                } else {
                    self.buffer.resize(size, 0);
                    message.write(&mut self.buffer);
                    self.socket.try_send_to(&self.buffer, at)
                };
                match sent {
                    Ok(()) => self.targets[index].next += 1,
                    Err(TrySendError::Full) => return true,
                    Err(TrySendError::Congested) => {
                        self.targets[index].congested = true;
                        break;
                    }
                    Err(e) => {
                        self.fault(format!("cannot ask {at}: {e}"));
                        return false;
                    }
                }
            }
        }
        false
    }
}

impl Target {
    /// It is in this life. What was under way to an earlier one is lost. In its first it was there before anybody sent.
    fn heard(&mut self, life: u32) {
        let renewed = self.life != life && life > 1;
        self.life = life;
        if renewed {
            (self.oldest, self.base) = (self.next, self.next);
        }
    }
}
