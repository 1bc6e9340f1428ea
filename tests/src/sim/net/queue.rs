//! What will happen, and when.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rds_core::buffer::Chunk;

use super::{End, Nanos};

/// What happens next, and when.
#[derive(Debug)]
pub enum Event {
    /// In the network.
    Net(NetEvent),
    /// A host runs. Counts only if it is still the wake that the host waits for.
    Wake(usize),
    /// A host's program does something.
    App(usize),
    /// The fault of this number begins or ends.
    Fault(usize),
}

/// Something that travels, or a timer of TCP's.
#[derive(Debug)]
pub enum NetEvent {
    /// The dialler's SYN arrives, the `u32`th attempt.
    Syn(usize, u32),
    /// The answer arrives.
    SynAck(usize),
    /// The refusal arrives.
    Refusal(usize),
    /// Bytes arrive at this end, beginning at this offset of the stream.
    Segment(End, u64, Chunk),
    /// The end of the stream arrives at this end, at this offset.
    Fin(End, u64),
    /// An acknowledgement arrives at this end: bytes received, and how far the sender may go.
    Ack(End, u64, u64),
    /// A reset arrives at this end.
    Rst(End),
    /// The call with MSG_ZEROCOPY of this serial number is over.
    Notify(End, u64),
    /// This end's keepalive or retransmission timer fires, the `u32`th time without an answer.
    Probe(End, u32),
}

/// The events to come, in order of time and then of their making.
#[derive(Debug, Default)]
pub struct Queue {
    heap: BinaryHeap<Reverse<Entry>>,
    serial: u64,
}

#[derive(Debug)]
struct Entry(Nanos, u64, Event);

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.1 == other.1
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

impl Queue {
    /// Makes `event` happen at `at`.
    pub fn push(&mut self, at: Nanos, event: Event) {
        self.serial += 1;
        self.heap.push(Reverse(Entry(at, self.serial, event)));
    }

    /// The next event and its time.
    pub fn pop(&mut self) -> Option<(Nanos, Event)> {
        self.heap.pop().map(|Reverse(Entry(at, _, event))| (at, event))
    }
}
