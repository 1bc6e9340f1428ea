//! A client of a broker, either role: what NATS and MQTT have in common.
//!
//! As little as a client can do, so that the broker is measured and not a library: short messages go out many to a write, long ones in a write
//! each; what comes is read 256 KiB at a time, parsed, and not copied out. Each payload begins with its number, so that what a broker drops
//! is counted.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::case::{BATCH, Kind};
use crate::side::{Meter, Role, Side, say, say_found, stop_at_end_of_input};

/// How often somebody that gets nothing asks whether it is to end.
const TICK: Duration = Duration::from_millis(100);
/// Bytes of a payload that are its number.
const NUMBER: usize = 8;
/// The clock is read once in so many short messages.
const LOOK_EVERY: u64 = 64;
/// Bytes of short messages that are written at once.
const WRITE: usize = 64 << 10;

/// A connection to a broker.
pub(crate) struct Link {
    stream: TcpStream,
    buffer: Vec<u8>,
    from: usize,
    to: usize,
    stop: Arc<AtomicBool>,
}

/// It is over: told to end, or broken.
#[derive(Debug)]
pub(crate) enum Over {
    Told,
    Broken(String),
}

impl From<String> for Over {
    fn from(why: String) -> Self {
        Self::Broken(why)
    }
}

impl Link {
    pub(crate) fn new(broker: SocketAddr) -> Result<Self, String> {
        let stream =
            TcpStream::connect(broker).map_err(|e| format!("cannot connect to the broker {broker}: {e}"))?;
        let set = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(TICK)));
        set.map_err(|e| format!("cannot set up a connection: {e}"))?;
        Ok(Self { stream, buffer: vec![0; BATCH], from: 0, to: 0, stop: stop_at_end_of_input() })
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Over> {
        self.stream.write_all(bytes).map_err(|e| Over::Broken(format!("cannot write to the broker: {e}")))
    }

    /// What has been read and not consumed.
    pub(crate) fn ready(&self) -> &[u8] {
        &self.buffer[self.from..self.to]
    }

    pub(crate) fn consume(&mut self, len: usize) {
        self.from += len;
    }

    /// Reads once, waiting for it. At most 256 KiB may stand unconsumed.
    pub(crate) fn read(&mut self) -> Result<(), Over> {
        if self.from > 0 {
            self.buffer.copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
        loop {
            match self.stream.read(&mut self.buffer[self.to..]) {
                Ok(0) => return Err(Over::Broken("the broker hung up".to_owned())),
                Ok(len) => {
                    self.to += len;
                    return Ok(());
                }
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if self.stop.load(Relaxed) {
                        return Err(Over::Told);
                    }
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Over::Broken(format!("cannot read from the broker: {e}"))),
            }
        }
    }

    /// Waits until so many bytes are there.
    pub(crate) fn need(&mut self, len: usize) -> Result<(), Over> {
        while self.ready().len() < len {
            self.read()?;
        }
        Ok(())
    }

    /// Passes over so many bytes, however many they are.
    pub(crate) fn skip(&mut self, mut len: usize) -> Result<(), Over> {
        loop {
            let part = len.min(self.ready().len());
            self.consume(part);
            len -= part;
            if len == 0 {
                return Ok(());
            }
            self.read()?;
        }
    }

    /// The number at the beginning of a payload of `len` bytes, which is passed over.
    pub(crate) fn payload(&mut self, len: usize) -> Result<u64, Over> {
        self.need(NUMBER)?;
        let number = self.ready().first_chunk().map_or(0, |n| u64::from_be_bytes(*n));
        self.skip(len)?;
        Ok(number)
    }
}

/// What a broker's protocol must say of itself.
pub(crate) trait Protocol {
    /// The connection.
    fn link(&mut self) -> &mut Link;

    /// Asks for what is sent to `subject`; returns once the broker has agreed.
    fn subscribe(&mut self, subject: &str) -> Result<(), Over>;

    /// What stands before and behind a payload of `len` bytes sent to `subject`.
    fn frame(&self, subject: &str, len: usize) -> (Vec<u8>, Vec<u8>);

    /// What the last two bytes before the next message's payload must be, if each message has others.
    fn stamp(&mut self) -> Option<u16> {
        None
    }

    /// Before so many messages are written: waits until so many may be under way.
    fn admit(&mut self, _messages: usize) -> Result<(), Over> {
        Ok(())
    }

    /// The number of the next message that comes, which is passed over.
    fn next(&mut self) -> Result<u64, Over>;

    /// Most messages that may be under way between publisher and broker.
    fn window(&self) -> usize {
        usize::MAX
    }
}

/// Messages that are written at once. Only their numbers change.
struct Messages {
    bytes: Vec<u8>,
    each: usize,
    head: usize,
}

impl Messages {
    fn new(protocol: &impl Protocol, subject: &str, len: usize, most: usize) -> Self {
        let (head, tail) = protocol.frame(subject, len);
        let each = head.len() + len + tail.len();
        let count = (WRITE / each).clamp(1, most);
        let one: Vec<u8> = [&head[..], &vec![7; len], &tail].concat();
        Self { bytes: one.repeat(count), each, head: head.len() }
    }

    fn count(&self) -> usize {
        self.bytes.len() / self.each
    }

    fn send(&mut self, protocol: &mut impl Protocol, next: &mut u64) -> Result<(), Over> {
        protocol.admit(self.count())?;
        for message in self.bytes.chunks_exact_mut(self.each) {
            if let Some(stamp) = protocol.stamp() {
                message[self.head - 2..self.head].copy_from_slice(&stamp.to_be_bytes());
            }
            message[self.head..self.head + NUMBER].copy_from_slice(&next.to_be_bytes());
            *next += 1;
        }
        protocol.link().write(&self.bytes)
    }
}

pub(crate) fn run(side: &Side, protocol: impl Protocol) -> Result<(), String> {
    if side.size < NUMBER {
        return Err(format!("{} bytes: a message of {NUMBER} and more is needed", side.size));
    }
    let mut meter = Meter::new(side);
    let mut lost = 0;
    let over = match side.role {
        Role::Receiver => receive(side, protocol, &mut meter, &mut lost),
        Role::Sender => send(side, protocol, &mut meter),
    };
    match over {
        Err(Over::Broken(why)) => Err(why),
        Ok(()) | Err(Over::Told) => {
            let mut found = meter.cost();
            found.lost = lost;
            say_found(&found)
        }
    }
}

/// Names of what goes to the receiver and of what comes back, of this run alone.
fn subjects(receiver: &str) -> (String, String) {
    (receiver.to_owned(), format!("{receiver}b"))
}

fn receive(side: &Side, mut protocol: impl Protocol, meter: &mut Meter, lost: &mut u64) -> Result<(), Over> {
    let name = format!("m{}", std::process::id());
    let (there, back) = subjects(&name);
    protocol.subscribe(&there)?;
    say(&format!("ready {name}"))?;
    let mut expected = 0;
    let mut answer = Messages::new(&protocol, &back, side.size, 1);
    let mut answered = 0;
    loop {
        let number = protocol.next()?;
        *lost += number.saturating_sub(expected);
        expected = number + 1;
        meter.count(1);
        if side.kind == Kind::RoundTrip {
            answer.send(&mut protocol, &mut answered)?;
        } else if (number.is_multiple_of(LOOK_EVERY) || side.size >= 4096)
            && let Some(found) = meter.look(Instant::now())
        {
            say_found(&found)?;
        }
    }
}

fn send(side: &Side, mut protocol: impl Protocol, meter: &mut Meter) -> Result<(), Over> {
    let receiver = side.to.as_ref().ok_or_else(|| "a sender needs --to".to_owned())?;
    let (there, back) = subjects(receiver);
    let stop = Arc::clone(&protocol.link().stop);
    let mut number = 0;
    if side.kind != Kind::RoundTrip {
        let most = protocol.window() / 2;
        let mut messages = Messages::new(&protocol, &there, side.size, most.max(1));
        while !stop.load(Relaxed) {
            messages.send(&mut protocol, &mut number)?;
            meter.count(messages.count() as u64);
        }
        return Ok(());
    }
    protocol.subscribe(&back)?;
    let mut message = Messages::new(&protocol, &there, side.size, 1);
    while !stop.load(Relaxed) {
        let began = Instant::now();
        message.send(&mut protocol, &mut number)?;
        protocol.next()?;
        let now = Instant::now();
        meter.count(1);
        meter.round_trip(now - began);
        if let Some(found) = meter.look(now) {
            say_found(&found)?;
        }
    }
    Ok(())
}
