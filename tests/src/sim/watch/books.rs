//! What the streams say about the ends of messages.

use rds_core::proto::{Guarantee, Outcome};

use crate::sim::coverage::Seen;
use crate::sim::ctx::{Ctx, HostKind};
use crate::sim::net::End;

/// Whether all bytes of message `id` came into the receive buffer of its destination's TCP, on any connection.
#[must_use]
pub fn reached(cx: &Ctx, id: usize) -> bool {
    let Some(m) = cx.ledger.messages.get(id) else { return false };
    m.src == m.dst || m.written.iter().any(|(end, at)| cx.net.received_offset(end.peer()) >= *at)
}

/// Whether message `id` was written to an earlier life of its receiver, or, never seen on a wire, may have been begun there; or
/// to a kernel that had restarted and, though it was waited for, did not show its generation on that connection.
#[must_use]
pub fn went_to_the_dead(cx: &Ctx, id: usize) -> bool {
    let Some(m) = cx.ledger.messages.get(id) else { return false };
    let now = cx.facts[m.dst].incarnation;
    let silent = cx.facts[m.dst].kind == HostKind::NewKernel && now > 1;
    let past = |end: &End| {
        cx.watch.links.get(&end.link).is_some_and(|l| l.incarnations[1 - end.side] != now)
            || silent && !cx.watch.knows_generation(*end)
    };
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
