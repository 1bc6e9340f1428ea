//! Reads every byte stream along, as it is written and as it is consumed, and holds what an own node writes against
//! the rules of the wire.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rds_core::wire::{
    CongestionMap, Decoder, HandshakeExtensions, Header, Item, MAX_MESSAGE, MAX_MESSAGE_SLACK,
};

use super::coverage::Seen;
use super::ctx::{Ctx, HostKind};
use super::net::{End, Nanos};

mod books;
mod rules;

pub use books::{completed, reached, settle, went_to_the_dead};
pub use rules::note_window;
use rules::{header_rules, message_written};

/// A message that has passed completely.
#[derive(Clone, Debug)]
pub struct Passed {
    /// Its header.
    pub header: Header,
    /// The first bytes of its payload, 8 at most.
    pub head: Vec<u8>,
    /// The map, if it is one of the right length.
    pub map: Option<CongestionMap>,
    /// Stream offset behind its last byte.
    pub end: u64,
}

/// Framing of one direction, and the message that is passing.
#[derive(Debug, Default)]
struct Track {
    decoder: Decoder,
    current: Option<(Header, Vec<u8>)>,
}

impl Track {
    /// Feeds bytes; gives the headers that began and the messages that ended.
    fn feed(&mut self, mut input: &[u8]) -> Result<(Vec<Header>, Vec<Passed>), String> {
        let (mut begun, mut passed) = (Vec::new(), Vec::new());
        loop {
            let item =
                self.decoder.next(&mut input, MAX_MESSAGE + MAX_MESSAGE_SLACK).map_err(|e| e.to_string())?;
            match item {
                Item::NeedMore => return Ok((begun, passed)),
                Item::Message { header, payload } => {
                    begun.push(header);
                    passed.push(Self::end(header, payload, self.decoder.offset()));
                }
                Item::Begin { header } => {
                    begun.push(header);
                    self.current = Some((header, Vec::new()));
                }
                Item::Chunk { data, last } => {
                    let (header, head) = self.current.as_mut().expect("a chunk follows its header");
                    let keep = if header.is_congestion_map() { usize::MAX } else { 8 - head.len().min(8) };
                    head.extend_from_slice(&data[..data.len().min(keep)]);
                    if last {
                        let (header, head) = self.current.take().expect("as above");
                        passed.push(Self::end(header, &head, self.decoder.offset()));
                    }
                }
            }
        }
    }

    fn end(header: Header, payload: &[u8], end: u64) -> Passed {
        let map = if header.is_congestion_map() { CongestionMap::decode(payload) } else { None };
        Passed { header, head: payload[..payload.len().min(8)].to_vec(), map, end }
    }
}

/// One direction of a connection, by the end that writes it.
#[derive(Debug, Default)]
struct Direction {
    written: Track,
    consumed: Track,
    /// Messages whose header was written.
    count: u64,
    map: bool,
    ping: bool,
    pong: bool,
    last_sequence: u64,
    window_used: u64,
    bytes_seen: bool,
    /// Messages written completely, not yet consumed: their place in the stream and the ledger's number.
    on_the_way: VecDeque<(u64, usize)>,
}

/// What the owner of an end has heard of its peer.
#[derive(Clone, Debug, Default)]
struct Heard {
    messages: u64,
    ping: bool,
    pong: bool,
    limit: u64,
    blocked: bool,
    /// When the first message was read.
    since: Nanos,
    /// A handshake message showed a generation.
    generation: bool,
}

/// What is known of one connection.
#[derive(Debug, Default)]
pub struct LinkWatch {
    directions: [Direction; 2],
    heard: [Heard; 2],
    incarnations: [u32; 2],
    opened: [Nanos; 2],
    /// Lane, where the dialler is an own node.
    pub lane: Option<u8>,
}

type LaneKey = (usize, u32, usize, u32, u8);

/// All streams.
#[derive(Debug, Default)]
pub struct Watch {
    links: BTreeMap<usize, LinkWatch>,
    /// Highest sequence that a node consumed, by (reader, its life, writer, its life, lane).
    consumed: BTreeMap<LaneKey, u64>,
    /// The map that a host read last, by (reader, writer).
    pub maps: BTreeMap<(usize, usize), CongestionMap>,
    /// Everything that is written, by the end that writes it; kept only if there is a map.
    pub tap: Option<BTreeMap<End, Vec<u8>>>,
    /// Lanes in use, as an own node said, by (node, peer).
    pub lanes: BTreeMap<(usize, usize), u8>,
    /// Who has seen a generation of whom: (node, its life, peer).
    generations: BTreeSet<(usize, u32, usize)>,
}

impl Watch {
    /// A connection exists for this end's owner from now on.
    pub fn open(&mut self, end: End, incarnation: u32, now: Nanos, lane: Option<u8>) {
        let link = self.links.entry(end.link).or_default();
        link.incarnations[end.side] = incarnation;
        link.opened[end.side] = now;
        if lane.is_some() {
            link.lane = lane;
        }
    }

    /// Whether a message stands half written in the direction that `writer` writes.
    #[must_use]
    pub fn is_mid_message(&self, writer: End) -> bool {
        self.links
            .get(&writer.link)
            .is_some_and(|l| !l.directions[writer.side].consumed.decoder.at_boundary())
    }

    /// The header of the message that `reader`'s owner has consumed a part of.
    #[must_use]
    pub fn in_between(&self, reader: End) -> Option<Header> {
        let link = self.links.get(&reader.link)?;
        link.directions[1 - reader.side].consumed.current.as_ref().map(|(header, _)| *header)
    }

    /// Messages of the ledger in the direction that `writer` writes that lie in the peer's receive buffer, whole,
    /// and were not consumed.
    #[must_use]
    pub fn unread_messages(&self, writer: End, received: u64) -> Vec<usize> {
        let Some(link) = self.links.get(&writer.link) else { return Vec::new() };
        let way = &link.directions[writer.side].on_the_way;
        way.iter().filter(|(end, _)| *end <= received).map(|(_, id)| *id).collect()
    }

    /// Whether the peer at the other end of `end` has said anything that `end`'s owner consumed.
    #[must_use]
    pub fn heard_anything(&self, end: End) -> bool {
        self.links.get(&end.link).is_some_and(|l| l.heard[end.side].messages > 0)
    }

    /// Whether the peer of `end`'s owner has shown its generation on that connection.
    #[must_use]
    pub fn knows_generation(&self, end: End) -> bool {
        self.links.get(&end.link).is_some_and(|l| l.heard[end.side].generation)
    }

    /// Whether both pong and ping were heard at `end`.
    #[must_use]
    pub fn handshaken(&self, end: End) -> bool {
        self.links.get(&end.link).is_some_and(|l| l.heard[end.side].ping && l.heard[end.side].pong)
    }

    /// The lane of a connection, when an own node dialled it.
    #[must_use]
    pub fn lane(&self, link: usize) -> Option<u8> {
        self.links.get(&link).and_then(|l| l.lane)
    }

    /// Whether anything was written in the direction that `writer` writes.
    #[must_use]
    pub fn wrote_anything(&self, writer: End) -> bool {
        self.links.get(&writer.link).is_some_and(|l| l.directions[writer.side].bytes_seen)
    }
}

/// `writer` wrote these bytes.
///
/// # Errors
/// The rule of the wire that they break.
pub fn written(cx: &mut Ctx, writer: End, bytes: &[u8]) -> Result<(), String> {
    if let Some(tap) = &mut cx.watch.tap {
        tap.entry(writer).or_default().extend_from_slice(bytes);
    }
    let link = cx.watch.links.entry(writer.link).or_default();
    let direction = &mut link.directions[writer.side];
    direction.bytes_seen |= !bytes.is_empty();
    let (begun, passed) =
        direction.written.feed(bytes).map_err(|e| format!("{writer:?} writes nonsense: {e}"))?;
    let own = cx.facts[cx.net.host_of(writer)].kind == HostKind::Own;
    for header in begun {
        cx.tell(|| format!("{} writes {}", name(writer), line(&header)));
        if own {
            header_rules(cx, writer, &header).map_err(|e| format!("{} {e}: {header:?}", name(writer)))?;
        }
    }
    for message in passed {
        if let Some(map) = &message.map
            && own
            && (map.contains(0) || map.contains(1))
        {
            return Err(format!("{} marks port 0 or 1 as congested", name(writer)));
        }
        message_written(cx, writer, &message)
            .map_err(|e| format!("{} {e}: {:?}", name(writer), message.header))?;
    }
    Ok(())
}

fn name(end: End) -> String {
    format!("connection {} side {}", end.link, end.side)
}

fn line(h: &Header) -> String {
    let kind = if h.is_congestion_map() {
        "map"
    } else if h.is_handshake_ping() {
        "handshake ping"
    } else if h.is_handshake_pong() {
        "handshake pong"
    } else if h.is_ack_only() {
        "ack-only"
    } else if h.dport == 0 {
        "ping"
    } else if h.sport == 0 {
        "pong"
    } else {
        "data"
    };
    format!(
        "{kind} seq {:#x} ack {:#x} len {} ports {}->{} flags {}",
        h.sequence, h.ack, h.len, h.sport, h.dport, h.flags.0
    )
}

/// The owner of `reader` consumed these bytes. Returns the messages that are complete with them. With `superseded` a newer
/// connection has spoken already: maps of this one say nothing about the present.
///
/// # Errors
/// The stream makes no sense.
pub fn consumed(cx: &mut Ctx, reader: End, bytes: &[u8], superseded: bool) -> Result<Vec<Passed>, String> {
    let writer = reader.peer();
    let link = cx.watch.links.entry(reader.link).or_default();
    let direction = &mut link.directions[writer.side];
    let (_, passed) =
        direction.consumed.feed(bytes).map_err(|e| format!("{} reads nonsense: {e}", name(reader)))?;
    let (me, peer) = (cx.net.host_of(reader), cx.net.host_of(writer));
    for message in &passed {
        let h = &message.header;
        let link = cx.watch.links.get_mut(&reader.link).expect("made above");
        while link.directions[writer.side].on_the_way.front().is_some_and(|(end, _)| *end <= message.end) {
            link.directions[writer.side].on_the_way.pop_front();
        }
        let heard = &mut link.heard[reader.side];
        if heard.messages == 0 {
            heard.since = cx.now;
        }
        heard.messages += 1;
        heard.ping |= h.is_handshake_ping();
        heard.pong |= h.is_handshake_pong();
        if h.is_handshake_ping() || h.is_handshake_pong() {
            let key = (me, link.incarnations[reader.side], peer);
            if HandshakeExtensions::decode(&h.extensions).generation.is_some() {
                heard.generation = true;
                // What is read out for a newer one says nothing of the present.
                if !superseded {
                    cx.watch.generations.insert(key);
                }
            } else {
                cx.watch.generations.remove(&key);
            }
        }
        if h.is_ack_only() {
            heard.limit = heard.limit.max(h.sequence);
            if heard.blocked && heard.limit > link.directions[reader.side].window_used {
                heard.blocked = false;
                cx.seen.see(Seen::WindowReopened);
            }
        }
        let numbered =
            !h.is_congestion_map() && !h.is_ack_only() && !h.is_handshake_ping() && !h.is_handshake_pong();
        if numbered && let Some(lane) = link.lane {
            let key = (me, link.incarnations[reader.side], peer, link.incarnations[writer.side], lane);
            let most = cx.watch.consumed.entry(key).or_default();
            if h.sequence <= *most
                && cx.facts[peer].kind == HostKind::Own
                && cx.facts[me].kind == HostKind::Own
            {
                cx.seen.see(Seen::DuplicateDropped);
            }
            *most = h.sequence.max(*most);
        }
        if let Some(map) = message.map.as_ref().filter(|_| !superseded) {
            cx.watch.maps.insert((me, peer), map.clone());
        }
    }
    Ok(passed)
}
