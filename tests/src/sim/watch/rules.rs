//! Rules of the wire that an own node must keep (`docs/protocol.md`).

use rds_core::proto::{Outcome, lane_of_port};
use rds_core::wire::{Capabilities, Flags, HandshakeExtensions, Header, Identity, checksum};

use super::Passed;
use crate::sim::coverage::Seen;
use crate::sim::ctx::{Ctx, HostKind};
use crate::sim::net::End;

/// Rules that a header shows as soon as it is written.
pub(super) fn header_rules(cx: &mut Ctx, writer: End, h: &Header) -> Result<(), String> {
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
    let acks = peer_own && common.contains(Capabilities::ACKS);
    let window = peer_own && common.contains(Capabilities::WINDOW);

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
        if said.generation != Some(mine.generation) {
            return Err(format!("announces {said:?}, but is of generation {}", mine.generation));
        }
        // With more to offer than one, kernels alone are told how many, and only once they have shown their version.
        let shown = heard.ping || heard.pong;
        let right = match (theirs.kind, said.lanes) {
            _ if mine.lanes.max(mine.old_kernel_lanes) == 1 => said.lanes == Some(1),
            (_, None) => true,
            (HostKind::NewKernel, Some(lanes)) => shown && lanes == u16::from(mine.lanes),
            (HostKind::OldKernel, Some(lanes)) => shown && lanes == u16::from(mine.old_kernel_lanes),
            _ => false,
        };
        if !right {
            return Err(format!("announces {said:?}, but offers {} lanes", mine.lanes));
        }
        if said.source_port_lane != (mine.lanes > 1) {
            return Err("announces lanes by source port wrongly".into());
        }
    } else if handshake {
        return Err("sends a handshake message that announces nothing".into());
    }
    if let Identity::Own { capabilities, .. } = h.identity()
        && capabilities.lanes() != mine.lanes
    {
        return Err(format!("shows {} lanes to own peers, but offers {}", capabilities.lanes(), mine.lanes));
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
    if !peer_own && plain && writer.side == 0 && lane.is_some_and(|l| l > 0) && !heard.pong {
        // The kernel may have taken the connection for its first lane's. One that has what is unacknowledged does not answer before
        // it gets that again.
        if cx.now < opened + mine.grace || !h.flags.contains(Flags::RETRANSMITTED) {
            return Err("sends data on an upper lane of a kernel that has not answered there".into());
        }
    }
    if !peer_own && plain && h.sport != 0 && !(heard.ping || heard.pong) {
        // A kernel that has shown its generation before may be another life of it now.
        let before = cx.watch.generations.contains(&(me, incarnations[writer.side], peer));
        // On an upper lane it may have been silent until the grace was over, and spoken just then.
        let upper = lane.is_some_and(|l| l > 0);
        let since = if before_first || upper { opened } else { heard.since };
        if before && cx.now < since + mine.grace {
            return Err("sends to a kernel that may have restarted, and does not wait".into());
        }
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
pub(super) fn message_written(cx: &mut Ctx, writer: End, message: &Passed) -> Result<(), String> {
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
            && cx.facts[src].old_kernel_lanes.min(cx.facts[dst].old_kernel_lanes) > 1,
        own_src && cx.facts[dst].kind == HostKind::Own,
    );
    let links = &cx.watch.links;
    let told = !cx.ledger.socks[cx.ledger.messages[id].sock].closed;
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
    let (order, flow, open) = (m.order, m.flow, m.tracked && told && m.outcome.is_none());
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
        flow.loose |= changed && !capabilities.contains(Capabilities::ACKS);
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
pub(super) fn held_back(cx: &mut Ctx, src: usize, dst: usize, dport: u16, id: usize) {
    let Some(map) = cx.watch.maps.get(&(src, dst)).filter(|m| !m.is_empty()) else { return };
    let waiting = cx.ledger.unwritten.range((src, dst, 0)..=(src, dst, u16::MAX));
    let passed = waiting
        .filter(|((_, _, port), _)| *port != dport && map.contains(*port))
        .any(|(_, set)| set.first().is_some_and(|first| *first < id));
    if passed {
        cx.seen.see(Seen::HeldBack);
    }
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
