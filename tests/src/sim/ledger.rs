//! The books about messages: what was accepted for sending, what arrived, how it ended, and whether that is what was
//! promised.

use std::collections::BTreeMap;

use rds_core::proto::{Guarantee, Outcome};

use super::ctx::{Fact, HostKind};
use super::net::{End, Nanos};

/// Lent payloads up to this many bytes are copied at once (`proto/send.rs`).
const OWNED_INLINE_MAX: usize = 512;

/// One message that a socket accepted.
#[derive(Debug)]
pub struct Message {
    /// Sending host.
    pub src: usize,
    /// Its incarnation.
    pub src_inc: u32,
    /// The sending socket, by the ledger's number.
    pub sock: usize,
    /// The sending socket's port.
    pub sport: u16,
    /// Receiving host.
    pub dst: usize,
    /// Its incarnation when the message was accepted.
    pub dst_inc: u32,
    /// Receiving port.
    pub dport: u16,
    /// Payload bytes.
    pub len: usize,
    /// Whether the sender wants to know how it ends.
    pub tracked: bool,
    /// When it was accepted.
    pub at: Nanos,
    /// Place among the messages of its flow.
    pub order: u32,
    /// Its flow.
    pub flow: usize,
    /// What runs at both ends.
    pub kinds: (HostKind, HostKind),
    /// Incarnations of the receiver that queued it for a socket.
    pub deliveries: Vec<u32>,
    /// Read by the receiving node when no socket had the port, or answered as a ping.
    pub dropped: bool,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// Whether its sender took it back.
    pub cancelled: bool,
    /// A kernel's rule lost it: allowed, and told by the model.
    pub may_be_lost: bool,
    /// A kernel's rule may repeat it.
    pub may_repeat: bool,
    /// Its sequence number once it was seen on a wire.
    pub sequence: u64,
    /// Its lane once it was seen on a wire with a known one.
    pub lane: Option<u8>,
    /// Its buffer was lent to the node.
    pub lent: bool,
    /// The node told that the buffer is free, and whether anything was copied.
    pub released: Option<bool>,
    /// Whether anything was copied, once the buffer is free.
    pub truly_copied: Option<bool>,
    /// Where it was written: the writing end, and the stream offset behind its last byte.
    pub written: Vec<(End, u64)>,
}

/// All messages of one socket to one port.
#[derive(Debug)]
pub struct Flow {
    /// Messages accepted.
    pub count: u32,
    /// Receiver's incarnation and place of the message delivered last.
    last: (u32, Option<u32>),
    /// Place of the message that went out for the first time last.
    pub last_first_write: Option<u32>,
    /// It changed lanes towards a peer whose TCP acknowledges: what it had not read there may be overtaken, as between kernels.
    pub loose: bool,
    /// Messages written and not ended, each lane.
    pub on_lane: [u32; 8],
    /// The lane of the message that was written last.
    pub last_lane: Option<u8>,
}

/// One life of a sending socket.
#[derive(Debug)]
pub struct Sock {
    /// Payload bytes of messages that have not ended.
    pub outstanding: u64,
    /// Tracked messages that have not ended.
    pub messages: u64,
    /// Whether every message is tracked, so that `outstanding` is exact.
    pub exact: bool,
    /// Whether it was closed: nobody is told any more how its messages end.
    pub closed: bool,
}

type SmallKey = (usize, u16, usize, u16, usize, u16);

/// The books.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Every message, by its number.
    pub messages: Vec<Message>,
    /// Every flow.
    pub flows: Vec<Flow>,
    /// Every sending socket.
    pub socks: Vec<Sock>,
    flow_index: BTreeMap<(usize, usize, u16), usize>,
    small: BTreeMap<SmallKey, usize>,
    /// Pings that sockets sent, by (source, source port), less pongs that came.
    pings: BTreeMap<(usize, u16), i64>,
    /// Accepted and not yet written anywhere, by (source, destination, port).
    pub unwritten: BTreeMap<(usize, usize, u16), std::collections::BTreeSet<usize>>,
}

/// The payload of message `id`.
#[must_use]
pub fn payload(id: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let tag = (id as u64).to_le_bytes();
    for (i, b) in bytes.iter_mut().enumerate() {
        *b = if i < 8 { tag[i] } else { pattern(id, i) };
    }
    bytes
}

fn pattern(id: usize, i: usize) -> u8 {
    (id.wrapping_mul(31) ^ i.wrapping_mul(7) ^ (i >> 8)) as u8
}

fn tag_of(id: usize, len: usize) -> u16 {
    match len {
        0 => 0,
        1 => id as u16 & 0xff,
        _ => id as u16,
    }
}

impl Ledger {
    /// A new sending socket.
    pub fn add_sock(&mut self, exact: bool) -> usize {
        self.socks.push(Sock { outstanding: 0, messages: 0, exact, closed: false });
        self.socks.len() - 1
    }

    /// The number that the next accepted message will have.
    #[must_use]
    pub fn next_id(&self) -> usize {
        self.messages.len()
    }

    /// Whether the next message, of this length, could be told from all others when it arrives.
    #[must_use]
    pub fn is_distinct(&self, src: usize, sport: u16, dst: usize, dport: u16, len: usize) -> bool {
        len >= 8 || !self.small.contains_key(&(src, sport, dst, dport, len, tag_of(self.next_id(), len)))
    }

    /// A socket accepted a message; its payload must be that of [`Ledger::next_id`].
    #[allow(clippy::too_many_arguments)]
    pub fn accepted(
        &mut self,
        now: Nanos,
        facts: &[Fact],
        src: usize,
        sock: usize,
        sport: u16,
        dst: usize,
        dport: u16,
        len: usize,
        tracked: bool,
    ) -> usize {
        let id = self.messages.len();
        let flow = *self.flow_index.entry((sock, dst, dport)).or_insert_with(|| {
            self.flows.push(Flow {
                count: 0,
                last: (0, None),
                last_first_write: None,
                loose: false,
                on_lane: [0; 8],
                last_lane: None,
            });
            self.flows.len() - 1
        });
        let order = self.flows[flow].count;
        self.flows[flow].count += 1;
        if len < 8 {
            self.small.insert((src, sport, dst, dport, len, tag_of(id, len)), id);
        }
        if tracked {
            self.socks[sock].outstanding += len as u64;
            self.socks[sock].messages += 1;
        }
        if dport == 0 {
            *self.pings.entry((src, sport)).or_default() += 1;
        }
        if src != dst {
            self.unwritten.entry((src, dst, dport)).or_default().insert(id);
        }
        self.messages.push(Message {
            src,
            src_inc: facts[src].incarnation,
            sock,
            sport,
            dst,
            dst_inc: facts[dst].incarnation,
            dport,
            len,
            tracked,
            at: now,
            order,
            flow,
            kinds: (facts[src].kind, facts[dst].kind),
            deliveries: Vec::new(),
            dropped: false,
            outcome: None,
            cancelled: false,
            may_be_lost: false,
            may_repeat: false,
            sequence: 0,
            lane: None,
            lent: false,
            released: None,
            truly_copied: None,
            written: Vec::new(),
        });
        id
    }

    /// The message that a header and the first bytes of its payload stand for.
    #[must_use]
    pub fn find(
        &self,
        src: usize,
        sport: u16,
        dst: usize,
        dport: u16,
        len: usize,
        head: &[u8],
    ) -> Option<usize> {
        let id = if len >= 8 {
            usize::try_from(u64::from_le_bytes(head.get(..8)?.try_into().ok()?)).ok()?
        } else {
            let tag = match head {
                [] => 0,
                [a] => u16::from(*a),
                [a, b, ..] => u16::from_le_bytes([*a, *b]),
            };
            *self.small.get(&(src, sport, dst, dport, len, tag))?
        };
        let m = self.messages.get(id)?;
        (m.src == src && m.sport == sport && m.dst == dst && m.dport == dport && m.len == len).then_some(id)
    }

    /// A node queued a message for a socket. Returns the message's number.
    ///
    /// # Errors
    /// The promise that this breaks.
    pub fn delivered(
        &mut self,
        facts: &[Fact],
        src: usize,
        sport: u16,
        dst: usize,
        dport: u16,
        body: &[u8],
    ) -> Result<Option<usize>, String> {
        if facts[src].kind == HostKind::Stranger {
            return Ok(None); // its messages are not in the books
        }
        if sport == 0 {
            let open = self.pings.entry((dst, dport)).or_default();
            *open -= 1;
            // A port that was bound again may get pongs of its predecessor; more pongs than pings are nobody's.
            return if *open < 0 && facts[src].kind == HostKind::Own && facts[dst].incarnation == 1 {
                Err(format!("host {dst} port {dport} got more pongs than it sent pings"))
            } else {
                Ok(None)
            };
        }
        let Some(id) = self.find(src, sport, dst, dport, body.len(), body) else {
            return Err(format!(
                "host {dst} port {dport} got {} bytes from host {src} port {sport} that nobody sent",
                body.len()
            ));
        };
        if let Some(i) = (8..body.len()).find(|i| body[*i] != pattern(id, *i)) {
            return Err(format!("message {id} arrived with byte {i} changed"));
        }
        let inc = facts[dst].incarnation;
        let own_pair = facts[src].kind == HostKind::Own && facts[dst].kind == HostKind::Own;
        let m = &mut self.messages[id];
        let repeated = if own_pair { !m.deliveries.is_empty() } else { m.deliveries.contains(&inc) };
        if repeated && !m.may_repeat {
            return Err(format!("message {id} was delivered twice: {}", self.describe(id)));
        }
        if m.outcome == Some(Outcome::Unknown) {
            return Err(format!(
                "message {id} was delivered after it was reported unknown: {}",
                self.describe(id)
            ));
        }
        m.deliveries.push(inc);
        let (order, flow, loose) = (m.order, m.flow, m.may_repeat);
        let loose = loose || self.flows[flow].loose;
        let last = &mut self.flows[flow].last;
        if last.0 != inc {
            *last = (inc, None);
        }
        if last.1.is_some_and(|l| l >= order) && !loose {
            return Err(format!(
                "message {id} came behind a later one of its sockets: {}",
                self.describe(id)
            ));
        }
        last.1 = last.1.max(Some(order));
        Ok(Some(id))
    }

    /// A node reported how a message ended. `reached` tells whether the receiving host's TCP had all of it, `to_the_dead`
    /// whether it went out, or may have begun to, on a connection to an earlier life of the receiver.
    ///
    /// # Errors
    /// The promise that this breaks.
    pub fn completed(
        &mut self,
        facts: &[Fact],
        src: usize,
        token: u64,
        outcome: Outcome,
        reached: bool,
        to_the_dead: bool,
    ) -> Result<usize, String> {
        let id = token as usize;
        let Some(m) = self.messages.get_mut(id).filter(|m| m.tracked && m.src == src) else {
            return Err(format!(
                "host {src} reports the end of a message that it never sent (token {token})"
            ));
        };
        if m.src_inc != facts[src].incarnation {
            return Err(format!("host {src} reports a message of its earlier life (token {token})"));
        }
        if let Some(before) = m.outcome {
            return Err(format!("message {id} ended twice: {before:?}, then {outcome:?}"));
        }
        m.outcome = Some(outcome);
        let arrived = !m.deliveries.is_empty() || m.dropped;
        let complaint = match outcome {
            Outcome::Delivered(Guarantee::Application) => {
                (!arrived).then_some("was reported delivered to its application, and was not")
            }
            Outcome::Delivered(Guarantee::Transport) => {
                (!reached).then_some("was reported delivered to its peer's TCP, and was not")
            }
            Outcome::Unknown if facts[m.dst].kind == HostKind::OldKernel && !facts[m.dst].changed_kind => {
                Some("ended as unknown towards a kernel that shows no generation")
            }
            Outcome::Unknown => (facts[m.dst].incarnation == m.dst_inc && !to_the_dead)
                .then_some("ended as unknown without a restart of its peer"),
            Outcome::Cancelled => (!m.cancelled).then_some("ended as cancelled, and nobody cancelled it"),
        };
        let (sock, flow, lane, len) = (m.sock, m.flow, m.lane, m.len as u64);
        let key = (m.src, m.dst, m.dport);
        self.socks[sock].outstanding -= len;
        self.socks[sock].messages -= 1;
        if let Some(lane) = lane {
            self.flows[flow].on_lane[usize::from(lane)] -= 1;
        }
        if let Some(set) = self.unwritten.get_mut(&key) {
            set.remove(&id);
        }
        match complaint {
            Some(text) => Err(format!("message {id} {text}: {}", self.describe(id))),
            None => Ok(id),
        }
    }

    /// A socket was closed: nobody is told any more how its messages end, nor on which lane one of them still is.
    pub fn close(&mut self, sock: usize) {
        self.socks[sock].closed = true;
        for m in self.messages.iter_mut().filter(|m| m.sock == sock && m.outcome.is_none()) {
            if let Some(lane) = m.lane.take() {
                self.flows[m.flow].on_lane[usize::from(lane)] -= 1;
            }
        }
    }

    /// A node told that the buffer of message `number` is free.
    ///
    /// # Errors
    /// The promise that this breaks.
    pub fn released(&mut self, src: usize, number: usize, copied: bool) -> Result<(), String> {
        let Some(m) = self.messages.get_mut(number).filter(|m| m.lent && m.src == src) else {
            return Err(format!(
                "host {src} releases the buffer of message {number}, which was not lent to it"
            ));
        };
        let before = m.released.replace(copied);
        // Small payloads are copied behind their headers at once, and local ones into their socket's queue.
        let held = m.len > OWNED_INLINE_MAX && m.src != m.dst;
        let told = m.tracked && !self.socks[m.sock].closed;
        let complaint = if before.is_some() {
            Some("is released twice")
        } else if m.truly_copied.is_none() && m.len > 0 {
            Some("is released, and still there")
        } else if held && m.truly_copied != Some(copied) {
            Some(if copied { "was not copied, as is said" } else { "was copied, as is not said" })
        } else if held && told && m.outcome.is_none() && !m.cancelled {
            Some("is released before the message ended")
        } else {
            None
        };
        match complaint {
            Some(text) => Err(format!("the buffer of message {number} {text}: {}", self.describe(number))),
            None => Ok(()),
        }
    }

    /// A host's life ended: nothing more is owed by it.
    pub fn host_died(&mut self, host: usize) {
        self.unwritten.retain(|(src, _, _), _| *src != host);
        self.pings.retain(|(src, _), _| *src != host);
    }

    /// What is still owed when everything should have ended.
    ///
    /// # Errors
    /// The first promise that was not kept.
    pub fn settle(&self, facts: &[Fact], to_the_dead: impl Fn(usize) -> bool) -> Result<(), String> {
        for id in 0..self.messages.len() {
            if let Some(text) = self.owed(facts, id, &to_the_dead) {
                return Err(format!("message {id} {text}: {}", self.describe(id)));
            }
        }
        Ok(())
    }

    /// Whether something is owed for message `id`, and what.
    #[must_use]
    pub fn owed(
        &self,
        facts: &[Fact],
        id: usize,
        to_the_dead: impl Fn(usize) -> bool,
    ) -> Option<&'static str> {
        let m = &self.messages[id];
        if facts[m.src].incarnation != m.src_inc {
            return None;
        }
        let told = m.tracked && !self.socks[m.sock].closed;
        if told && m.outcome.is_none() {
            return Some("never ended");
        }
        if m.lent && m.released.is_none() {
            return Some("has a buffer that was never released");
        }
        let arrived = !m.deliveries.is_empty() || m.dropped;
        if arrived || m.cancelled || m.may_be_lost {
            return None;
        }
        let restarted = facts[m.dst].incarnation != m.dst_inc || to_the_dead(id);
        match (facts[m.src].kind, facts[m.dst].kind) {
            // A restart may swallow what kernels on either side took for delivered.
            (_, HostKind::OldKernel | HostKind::NewKernel)
            | (HostKind::OldKernel | HostKind::NewKernel, _)
                if restarted =>
            {
                None
            }
            _ if m.outcome == Some(Outcome::Unknown) || (restarted && !told) => None,
            // Without acknowledgements between own peers TCP's are all there is, and die with the receiver.
            _ if restarted && m.outcome == Some(Outcome::Delivered(Guarantee::Transport)) => None,
            _ => Some("was lost"),
        }
    }

    /// A message in words.
    #[must_use]
    pub fn describe(&self, id: usize) -> String {
        let m = &self.messages[id];
        format!(
            "{:?} {}.{} port {} -> {:?} {}.{} port {}, {} bytes, number {} of its flow, sequence {:#x} lane {:?}, \
             accepted at {}.{:06}, written {:?}, delivered {:?}, dropped {}, outcome {:?}, cancelled {}",
            m.kinds.0,
            m.src,
            m.src_inc,
            m.sport,
            m.kinds.1,
            m.dst,
            m.dst_inc,
            m.dport,
            m.len,
            m.order,
            m.sequence,
            m.lane,
            m.at / 1_000_000_000,
            m.at / 1_000 % 1_000_000,
            m.written,
            m.deliveries,
            m.dropped,
            m.outcome,
            m.cancelled,
        )
    }
}
