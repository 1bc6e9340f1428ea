//! Each rule, kept and broken.

use super::super::log::{Owner, Record, Stack};
use super::super::message::Id;
use super::*;

const A: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 1), 5);
const B: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), 6);
const APP: Event = Event::DeliveredApplication;

fn log(socket: SocketAddrV4, incarnation: u32) -> Found {
    Found {
        owner: Owner { socket, incarnation, receive_buffer: 1000, stack: Stack::Own },
        records: Vec::new(),
    }
}

fn record(event: Event, incarnation: u32, number: u64) -> Record {
    Record { event, id: Id { pair: Pair { source: A, destination: B }, incarnation, number }, len: 100 }
}

/// A sender's log of one outcome for each message, numbered from 0. `None`: accepted, and then nothing.
fn sender(incarnation: u32, outcomes: &[Option<Event>]) -> Found {
    let mut log = log(A, incarnation);
    for (number, outcome) in (0..).zip(outcomes) {
        log.records.push(record(Event::Intent, incarnation, number));
        log.records.push(record(Event::Accepted, incarnation, number));
        log.records.extend(outcome.map(|o| record(o, incarnation, number)));
    }
    log
}

/// A receiver's log of these `(sender's incarnation, number)`.
fn receiver(incarnation: u32, got: &[(u32, u64)]) -> Found {
    let mut log = log(B, incarnation);
    log.records.extend(got.iter().map(|(i, n)| record(Event::Received, *i, *n)));
    log
}

fn end(mut log: Found) -> Found {
    log.records.push(record(Event::End, log.owner.incarnation, 0));
    log
}

fn broken(logs: &[Found]) -> Vec<String> {
    check(logs, Limits { port_hard_limit: 1, beyond: 0 }).first_broken
}

fn keeps(logs: &[Found]) {
    assert_eq!(broken(logs), Vec::<String>::new());
}

fn breaks(logs: &[Found], what: &str) {
    let found = broken(logs);
    assert!(found.iter().any(|b| b.contains(what)), "expected {what:?}, found {found:?}");
}

#[test]
fn a_run_without_incidents_keeps_every_rule() {
    let logs = [end(sender(1, &[Some(APP); 3])), end(receiver(1, &[(1, 0), (1, 1), (1, 2)]))];
    keeps(&logs);
    let report = check(&logs, Limits::default());
    assert_eq!((report.accepted, report.delivered, report.received), (3, 3, 3));
}

#[test]
fn a_lost_message_shows_wherever_it_was_in_the_stream() {
    for missing in 0..3 {
        let got: Vec<_> = (0..3).filter(|n| *n != missing).map(|n| (1, n)).collect();
        let found = check(&[end(sender(1, &[Some(APP); 3])), end(receiver(1, &got))], Limits::default());
        assert!(found.broken + found.lost_before_bind > 0, "message {missing} was lost");
    }
}

#[test]
fn what_a_killed_process_had_queued_may_be_missing_up_to_a_nodes_limit() {
    let lost = |n: usize| [end(sender(1, &vec![Some(APP); 1 + n])), receiver(1, &[(1, 0)])];
    keeps(&lost(10));
    breaks(&lost(11), "were lost with incarnation 1");
}

#[test]
fn a_hole_within_what_one_incarnation_received_shows_even_if_it_was_killed() {
    breaks(&[end(sender(1, &[Some(APP); 3])), receiver(1, &[(1, 0), (1, 2)])], "after a hole");
    breaks(&[sender(1, &[None, None]), end(receiver(1, &[(1, 1)]))], "earlier ones were not");
}

#[test]
fn a_duplicate_shows_within_one_incarnation_and_across_two() {
    breaks(&[end(sender(1, &[Some(APP)])), end(receiver(1, &[(1, 0), (1, 0)]))], "received twice");
    breaks(
        &[end(sender(1, &[Some(Event::Unknown)])), receiver(1, &[(1, 0)]), end(receiver(2, &[(1, 0)]))],
        "received twice",
    );
}

#[test]
fn reordering_shows_within_and_across_incarnations_of_both_sides() {
    breaks(&[end(sender(1, &[Some(APP); 2])), end(receiver(1, &[(1, 1), (1, 0)]))], "received after");
    breaks(
        &[sender(1, &[None]), end(sender(2, &[Some(APP)])), end(receiver(1, &[(2, 0), (1, 0)]))],
        "received after",
    );
    breaks(
        &[end(sender(1, &[Some(APP); 2])), receiver(1, &[(1, 1)]), end(receiver(2, &[(1, 0)]))],
        "a later one had earlier ones",
    );
}

#[test]
fn unknown_needs_a_restart_and_never_reaches_the_new_incarnation() {
    let sent = || end(sender(1, &[Some(APP), Some(Event::Unknown), Some(APP)]));
    keeps(&[sent(), receiver(1, &[(1, 0)]), end(receiver(2, &[(1, 2)]))]);
    keeps(&[sent(), receiver(1, &[(1, 0), (1, 1)]), end(receiver(2, &[(1, 2)]))]);
    let last = end(sender(1, &[Some(APP), Some(Event::Unknown)]));
    breaks(&[last, end(receiver(1, &[(1, 0)]))], "did not restart");
    breaks(&[sent(), end(receiver(1, &[(1, 0), (1, 1), (1, 2)]))], "by the last incarnation");
    breaks(&[sent(), receiver(1, &[(1, 0)]), end(receiver(2, &[(1, 1), (1, 2)]))], "by the last incarnation");
}

#[test]
fn a_sender_that_ended_by_itself_knows_one_outcome_of_each_message() {
    breaks(&[end(sender(1, &[None])), end(receiver(1, &[(1, 0)]))], "no outcome");
    keeps(&[sender(1, &[None]), end(receiver(1, &[(1, 0)]))]);
    keeps(&[sender(1, &[None]), end(receiver(1, &[]))]);
    let mut twice = sender(1, &[Some(APP)]);
    twice.records.push(record(Event::Cancelled, 1, 0));
    breaks(&[end(twice), end(receiver(1, &[(1, 0)]))], "two outcomes");
}

const TCP: Event = Event::DeliveredTransport;

fn at(mut log: Found, stack: Stack) -> Found {
    log.owner.stack = stack;
    log
}

/// A sender's log of messages that TCP acknowledged one after the other; a mark of a lost connection stands before those of `marks`, which
/// may be as many as there are messages.
fn acknowledged(messages: u64, marks: &[u64]) -> Found {
    let mut log = log(A, 1);
    log.records.extend((0..messages).map(|number| record(Event::Intent, 1, number)));
    log.records.extend((0..messages).map(|number| record(Event::Accepted, 1, number)));
    for number in 0..=messages {
        let here = marks.iter().filter(|before| **before == number);
        log.records.extend(here.map(|_| record(Event::Broke, 1, 0)));
        if number < messages {
            log.records.push(record(TCP, 1, number));
        }
    }
    end(log)
}

#[test]
fn delivered_means_by_tcp_exactly_where_a_kernel_is_at_either_end() {
    let sent = |event| end(sender(1, &[Some(event)]));
    let got = || end(receiver(1, &[(1, 0)]));
    breaks(&[sent(TCP), got()], "DeliveredTransport");
    for kernel in [Stack::KernelTo6, Stack::KernelFrom7] {
        keeps(&[sent(TCP), at(got(), kernel)]);
        keeps(&[at(sent(TCP), kernel), got()]);
        breaks(&[sent(APP), at(got(), kernel)], "DeliveredApplication");
        breaks(&[at(sent(APP), kernel), got()], "DeliveredApplication");
    }
}

#[test]
fn an_old_kernel_may_lose_what_its_tcp_acknowledged_before_a_connection_was_lost_and_nothing_else() {
    let old = |got: &[(u32, u64)]| at(end(receiver(1, got)), Stack::KernelTo6);
    // 1 and 2 were acknowledged before it, 3 after it.
    let lost = [acknowledged(4, &[3, 3]), old(&[(1, 0), (1, 3)])];
    keeps(&lost);
    assert_eq!(check(&lost, Limits::default()).lost_by_kernel, 2);
    // When it was lost is known as far as the marks are apart.
    keeps(&[acknowledged(4, &[1, 4]), old(&[(1, 0), (1, 3)])]);
    // All that there was.
    keeps(&[acknowledged(2, &[2, 2]), old(&[])]);
    // No connection was lost; or only before, or after both.
    breaks(&[acknowledged(4, &[]), old(&[(1, 0), (1, 3)])], "not received");
    breaks(&[acknowledged(4, &[1, 1]), old(&[(1, 0), (1, 3)])], "not received");
    breaks(&[acknowledged(4, &[4, 4]), old(&[(1, 0), (1, 3)])], "not received");
    // Never twice, never out of order.
    breaks(&[acknowledged(2, &[1, 1]), old(&[(1, 0), (1, 0), (1, 1)])], "received twice");
    breaks(&[acknowledged(2, &[1, 1]), old(&[(1, 1), (1, 0)])], "received after");
    // Newer kernels lose nothing, and neither does a node of ours.
    for stack in [Stack::KernelFrom7, Stack::Own] {
        let got = at(end(receiver(1, &[(1, 0), (1, 3)])), stack);
        breaks(&[acknowledged(4, &[3, 3]), got], "not received");
    }
}

#[test]
fn what_an_old_kernel_sends_to_us_is_never_missing() {
    let sent = || at(acknowledged(3, &[]), Stack::KernelTo6);
    keeps(&[sent(), end(receiver(1, &[(1, 0), (1, 1), (1, 2)]))]);
    breaks(&[sent(), end(receiver(1, &[(1, 0), (1, 2)]))], "not received");
    // Two kernels: it was acknowledged, and more is not known.
    keeps(&[sent(), at(end(receiver(1, &[(1, 0), (1, 2)])), Stack::KernelTo6)]);
    let mut sent = sent();
    sent.records.retain(|r| r.event != TCP || r.id.number != 1);
    let got = at(end(receiver(1, &[(1, 0), (1, 2)])), Stack::KernelTo6);
    breaks(&[sent, got], "no outcome");
}

#[test]
fn a_cancelled_message_may_leave_a_hole() {
    let sent = || end(sender(1, &[Some(APP), Some(Event::Cancelled), Some(APP)]));
    keeps(&[sent(), end(receiver(1, &[(1, 0), (1, 2)]))]);
    keeps(&[sent(), end(receiver(1, &[(1, 0), (1, 1), (1, 2)]))]);
}

#[test]
fn what_came_before_the_bind_may_be_missing_as_far_as_the_node_counted_it() {
    let logs = |dropped: u64| {
        let mut first = log(B, 1);
        first.records.push(record(Event::Bound, 1, dropped));
        first.records[0].id.pair = Pair { source: B, destination: B };
        first.records.push(record(Event::Received, 1, 3));
        [end(sender(1, &[Some(APP); 4])), end(first)]
    };
    keeps(&logs(3));
    // One was half read when the sockets were bound.
    keeps(&logs(2));
    breaks(&logs(1), "before its sockets were bound");
}

#[test]
fn foreign_damaged_and_refused_messages_show() {
    breaks(&[end(sender(1, &[])), end(receiver(1, &[(1, 0)]))], "nobody sent it");
    let mut damaged = receiver(1, &[]);
    damaged.records.push(record(Event::Damaged, 1, 0));
    breaks(&[end(sender(1, &[])), end(damaged)], "damaged");
    let mut refused = log(A, 1);
    refused.records.push(record(Event::Intent, 1, 0));
    breaks(&[end(refused), end(receiver(1, &[(1, 0)]))], "refused, but received");
}
