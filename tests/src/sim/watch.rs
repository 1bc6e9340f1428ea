//! Reads every byte stream along, as it is written and as it is consumed, and holds what an own node writes against
//! the rules of the wire.

use std::collections::{BTreeMap, VecDeque};

use rds_core::proto::{Guarantee, Outcome, lane_of_port};
use rds_core::wire::{
    CongestionMap, Decoder, Flags, HandshakeExtensions, Header, Item, MAX_MESSAGE, MAX_MESSAGE_SLACK,
    checksum,
};

use super::coverage::Seen;
use super::ctx::{Ctx, HostKind};
use super::net::{End, Nanos};

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

/// Rules that a header shows as soon as it is written.
fn header_rules(cx: &mut Ctx, writer: End, h: &Header) -> Result<(), String> {
    let (me, peer) = (cx.net.host_of(writer), cx.net.host_of(writer.peer()));
    let (mine, theirs) = (cx.facts[me].clone(), cx.facts[peer].clone());
    let peer_own = theirs.kind == HostKind::Own;
    let link = cx.watch.links.entry(writer.link).or_default();
    let heard = link.heard[writer.side].clone();
    let lane = link.lane;
    let opened = link.opened[writer.side];
    let incarnations = link.incarnations;
    let dir = &mut link.directions[writer.side];
    let handshake = h.is_handshake_ping() || h.is_handshake_pong();
    let map = h.is_congestion_map();
    let ack_only = h.is_ack_only();
    let common = mine.capabilities.common(theirs.capabilities);
    let acks = peer_own && common.contains(rds_core::wire::Capabilities::ACKS);
    let window = peer_own && common.contains(rds_core::wire::Capabilities::WINDOW);

    if dir.count == 0 && !map {
        return Err("does not begin with its congestion map".into());
    }
    dir.count += 1;
    dir.map |= map;
    dir.ping |= h.is_handshake_ping();

    if h.extensions != [0; 16] {
        if !handshake {
            return Err("carries extensions on something that is no handshake".into());
        }
        let said = HandshakeExtensions::decode(&h.extensions);
        if said.encode() != h.extensions {
            return Err("carries extensions that are none of the handshake's".into());
        }
        if said.generation != Some(mine.generation) || said.lanes != Some(u16::from(mine.lanes)) {
            return Err(format!(
                "announces {said:?}, but is of generation {} with {} lanes",
                mine.generation, mine.lanes
            ));
        }
        if said.source_port_lane != (mine.lanes > 1) {
            return Err("announces lanes by source port wrongly".into());
        }
    } else if handshake {
        return Err("sends a handshake message that announces nothing".into());
    }
    if (map || handshake) != h.identity().is_own() || !(map || handshake || h.padding == [0; 4]) {
        return Err("shows its identity where it should not, or hides it".into());
    }
    if (map || handshake) && h.csum == 0 && checksum::checksum(&Header { csum: 0, ..*h }.encode()) != 0 {
        return Err("sends a map or handshake message without a checksum".into());
    }
    if h.is_handshake_pong() && !heard.ping {
        return Err("answers a handshake ping that it has not read".into());
    }

    let before_first = heard.messages == 0;
    let plain = !map && !handshake;
    if peer_own && before_first && plain {
        return Err("sends more than map and handshake ping before its peer's first message".into());
    }
    if peer_own && plain && !ack_only && !(heard.ping && heard.pong) {
        return Err("sends data before the handshake of its peer is complete".into());
    }
    if !peer_own && before_first && plain && h.dport != 0 {
        if cx.now < opened + mine.grace {
            return Err("sends data to a kernel that has not shown itself, and does not wait".into());
        }
        cx.seen.see(Seen::IdentityGrace);
    }
    if h.ack != 0 {
        if !acks {
            return Err("acknowledges towards a peer that has not asked for it".into());
        }
        if !dir.pong && !h.is_handshake_pong() {
            return Err("acknowledges before its handshake pong".into());
        }
        if let Some(lane) = lane {
            let key = (me, incarnations[writer.side], peer, incarnations[1 - writer.side], lane);
            let most = cx.watch.consumed.get(&key).copied().unwrap_or(0);
            if h.ack > most {
                return Err(format!(
                    "acknowledges {:#x} on lane {lane}, but has read no further than {most:#x}",
                    h.ack
                ));
            }
        }
        cx.seen.see(if ack_only { Seen::AckOnly } else { Seen::AckPiggybacked });
    }
    let dir = &mut cx.watch.links.get_mut(&writer.link).expect("made above").directions[writer.side];
    dir.pong |= h.is_handshake_pong();
    if ack_only {
        if !acks && !window {
            return Err("sends an ack-only header to a peer that knows none".into());
        }
        if !dir.pong {
            return Err("sends an ack-only header before its handshake pong".into());
        }
        if !window && h.sequence != 0 {
            return Err("advertises a window to a peer that knows none".into());
        }
        return Ok(());
    }
    if map {
        return if h.sequence == 0 && h.ack == 0 { Ok(()) } else { Err("numbers a congestion map".into()) };
    }
    if handshake {
        return Ok(());
    }
    if peer_own && h.csum == 0 && checksum::checksum(&Header { csum: 0, ..*h }.encode()) != 0 {
        return Err("sends without a checksum to an own peer".into());
    }
    if h.sequence <= mine.first_sequence {
        return Err(format!("gives a number that is not above {:#x}", mine.first_sequence));
    }
    if h.sequence <= dir.last_sequence {
        return Err(format!("does not count upwards behind {:#x}", dir.last_sequence));
    }
    dir.last_sequence = h.sequence;
    if window && h.sport != 0 {
        if dir.window_used >= heard.limit {
            return Err(format!(
                "begins a message at {} where the window allows {}",
                dir.window_used, heard.limit
            ));
        }
        dir.window_used += 48 + u64::from(h.len);
    }
    Ok(())
}

/// What a message that was written completely means for the books.
fn message_written(cx: &mut Ctx, writer: End, message: &Passed) -> Result<(), String> {
    let h = &message.header;
    if h.is_congestion_map() || h.sport == 0 || h.is_handshake_ping() {
        return Ok(());
    }
    let (src, dst) = (cx.net.host_of(writer), cx.net.host_of(writer.peer()));
    let own_src = cx.facts[src].kind == HostKind::Own;
    let len = h.len as usize;
    let Some(id) = cx.ledger.find(src, h.sport, dst, h.dport, len, &message.head) else {
        // A ping with a port of the node's own is no socket's.
        return if !own_src || (h.dport == 0 && len == 0) {
            Ok(())
        } else {
            Err("writes a message that no socket sent".into())
        };
    };
    let lane = cx.watch.lane(writer.link);
    let watch = cx.watch.links.entry(writer.link).or_default();
    watch.directions[writer.side].on_the_way.push_back((message.end, id));
    let incarnations = watch.incarnations;
    let (old_multi, own_pair) = (
        (cx.facts[src].kind == HostKind::OldKernel || cx.facts[dst].kind == HostKind::OldKernel)
            && cx.facts[src].lanes.min(cx.facts[dst].lanes) > 1,
        own_src && cx.facts[dst].kind == HostKind::Own,
    );
    let links = &cx.watch.links;
    let m = &mut cx.ledger.messages[id];
    let flagged = h.flags.contains(Flags::RETRANSMITTED);
    let again = m.written.iter().any(|(end, _)| end.link != writer.link);
    if flagged {
        cx.seen.see(Seen::Retransmitted);
        if old_multi {
            // Old kernels pair lanes by arrival, so that a repeat may meet another lane's expectation.
            m.may_be_lost = true;
            m.may_repeat = true;
            cx.ledger.flows[m.flow].loose = true;
        }
    }
    let unknown = m.outcome == Some(Outcome::Unknown);
    if unknown && own_src {
        return Err(format!("sends message {id}, which it has reported unknown"));
    }
    if again {
        if !flagged && own_src {
            return Err(format!("repeats message {id} without the flag"));
        }
        if m.sequence != h.sequence {
            return Err(format!("repeats message {id} under another number than {:#x}", m.sequence));
        }
        let other = |(end, _): &(End, u64)| {
            links
                .get(&end.link)
                .is_some_and(|l| l.incarnations[1 - end.side] != incarnations[1 - writer.side])
        };
        if own_pair && m.written.iter().any(other) {
            return Err(format!("repeats message {id} to another incarnation"));
        }
    }
    let first = m.written.is_empty();
    m.written.push((writer, message.end));
    m.sequence = h.sequence;
    if !first {
        return Ok(());
    }
    let (order, flow, open) = (m.order, m.flow, m.tracked && m.outcome.is_none());
    if let Some(lane) = lane.filter(|_| open) {
        m.lane = Some(lane);
    }
    if let Some(set) = cx.ledger.unwritten.get_mut(&(src, dst, h.dport)) {
        set.remove(&id);
    }
    held_back(cx, src, dst, h.dport, id);
    let flow = &mut cx.ledger.flows[flow];
    if own_src && flow.last_first_write.is_some_and(|l| l >= order) {
        return Err(format!("sends message {id} behind a later one of its sockets"));
    }
    flow.last_first_write = Some(order);
    if let Some(lane) = lane {
        let others = flow.on_lane.iter().enumerate().any(|(l, n)| l != usize::from(lane) && *n > 0);
        if own_src && others {
            return Err(format!(
                "sends message {id} on lane {lane} while its sockets have others unacknowledged elsewhere"
            ));
        }
        if open {
            flow.on_lane[usize::from(lane)] += 1;
        }
        let changed = flow.last_lane.is_some_and(|l| l != lane);
        let capabilities = cx.facts[src].capabilities.common(cx.facts[dst].capabilities);
        flow.loose |= changed && !capabilities.contains(rds_core::wire::Capabilities::ACKS);
        flow.last_lane = Some(lane);
        let deferred = own_src
            && !changed
            && cx.watch.lanes.get(&(src, dst)).is_some_and(|n| lane_of_port(h.sport, *n) != lane);
        if own_src && changed {
            cx.seen.see(Seen::LaneChanged);
        }
        if deferred {
            cx.seen.see(Seen::LaneChangeDeferred);
        }
    }
    Ok(())
}

/// Notices when a message passes an older one that waits for a congested port.
fn held_back(cx: &mut Ctx, src: usize, dst: usize, dport: u16, id: usize) {
    let Some(map) = cx.watch.maps.get(&(src, dst)).filter(|m| !m.is_empty()) else { return };
    let waiting = cx.ledger.unwritten.range((src, dst, 0)..=(src, dst, u16::MAX));
    let passed = waiting
        .filter(|((_, _, port), _)| *port != dport && map.contains(*port))
        .any(|(_, set)| set.first().is_some_and(|first| *first < id));
    if passed {
        cx.seen.see(Seen::HeldBack);
    }
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
        heard.messages += 1;
        heard.ping |= h.is_handshake_ping();
        heard.pong |= h.is_handshake_pong();
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

/// Notices a window that stops its sender: all that it allows is used, and messages wait.
pub fn note_window(cx: &mut Ctx, writer: End) {
    let (src, dst) = (cx.net.host_of(writer), cx.net.host_of(writer.peer()));
    let waiting =
        || cx.ledger.unwritten.range((src, dst, 0)..=(src, dst, u16::MAX)).any(|(_, set)| !set.is_empty());
    let Some(link) = cx.watch.links.get(&writer.link) else { return };
    let heard = &link.heard[writer.side];
    let used = link.directions[writer.side].window_used;
    if heard.limit > 0 && used >= heard.limit && !heard.blocked && waiting() {
        cx.watch.links.get_mut(&writer.link).expect("found above").heard[writer.side].blocked = true;
        cx.seen.see(Seen::WindowBlocked);
    }
}

/// Whether all bytes of message `id` came into the receive buffer of its destination's TCP, on any connection.
#[must_use]
pub fn reached(cx: &Ctx, id: usize) -> bool {
    let Some(m) = cx.ledger.messages.get(id) else { return false };
    m.src == m.dst || m.written.iter().any(|(end, at)| cx.net.received_offset(end.peer()) >= *at)
}

/// Whether message `id` was written to an earlier life of its receiver, or, never seen on a wire, may have been begun there.
#[must_use]
pub fn went_to_the_dead(cx: &Ctx, id: usize) -> bool {
    let Some(m) = cx.ledger.messages.get(id) else { return false };
    let now = cx.facts[m.dst].incarnation;
    let past = |end: &End| cx.watch.links.get(&end.link).is_some_and(|l| l.incarnations[1 - end.side] != now);
    if m.written.is_empty() { now > 1 } else { m.written.iter().any(|(end, _)| past(end)) }
}

/// Holds the books against what is owed when everything should have ended.
///
/// # Errors
/// The first promise that was not kept.
pub fn settle(cx: &Ctx) -> Result<(), String> {
    cx.ledger.settle(&cx.facts, |id| went_to_the_dead(cx, id))
}

/// Books the end of a message that a node reported.
pub fn completed(cx: &mut Ctx, host: usize, token: u64, outcome: Outcome) {
    let reached = matches!(outcome, Outcome::Delivered(Guarantee::Transport)) && reached(cx, token as usize);
    let to_the_dead = outcome == Outcome::Unknown && went_to_the_dead(cx, token as usize);
    match cx.ledger.completed(&cx.facts, host, token, outcome, reached, to_the_dead) {
        Err(promise) => cx.fail(promise),
        Ok(id) => {
            let m = &cx.ledger.messages[id];
            let arrived = !m.deliveries.is_empty();
            match outcome {
                Outcome::Delivered(Guarantee::Application) => cx.see(Seen::ApplicationDelivered),
                Outcome::Delivered(Guarantee::Transport) => cx.see(Seen::TransportDelivered),
                Outcome::Unknown => {
                    cx.see(Seen::Unknown);
                    if arrived {
                        cx.see(Seen::UnknownArrived);
                    }
                }
                Outcome::Cancelled => cx.see(Seen::Cancelled),
            }
        }
    }
}
