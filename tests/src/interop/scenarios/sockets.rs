//! Sockets of the kernel's that are not there, go away, or change their mind.

use rds_client::{Counter, Socket, TrySendError};

use crate::interop::ours::{Ours, guest_link, receive, receive_numbered};
use crate::interop::{Case, PATIENCE, Scenario, pattern};

pub(super) const NONE: Scenario = Scenario {
    name: "no such socket",
    promise: |_| "the message vanishes and counts as delivered, either way; the next one arrives",
    run: none,
};

fn none(case: &Case<'_>) {
    let ours = Ours::open(case);
    let socket = ours.bind(case, 4000);
    let mut reader = case.kpeer(&format!("recv --at '{}' --count 1 -v", case.kernel_at(4000))).ready();
    for number in 0..20 {
        socket.send_to(&pattern::payload(number, 500), case.kernel_at(4999)).expect("it is queued");
    }
    assert!(socket.flush(PATIENCE), "as good as delivered");
    socket.send_to(&pattern::payload(0, 500), case.kernel_at(4000)).expect("it is queued");
    reader.ends_well();
    let dropped = ours.counter(Counter::RecvDropNoSock);
    let send =
        |to: u16| format!("send --from '{}' --to '{}' --size 500", case.kernel_at(5000), case.ours_at(to));
    case.kpeer(&send(4999)).ends_well();
    ours.until("it was dropped", |now| now.counters.get(Counter::RecvDropNoSock) == dropped + 1);
    let mut writer = case.kpeer(&send(4000));
    drop(receive_numbered(case, &socket, 5000, 0));
    writer.ends_well();
    drop(socket);
    ours.comes_to_rest();
}

/// Numbers of the messages from port 5000 of the kernel's that arrive until `last` does: in order, none twice, each undamaged.
fn receive_in_order(case: &Case<'_>, socket: &Socket, last: u64) -> Vec<u64> {
    let mut came = Vec::new();
    while came.last() != Some(&last) {
        let payload = receive(case, socket, 5000);
        let number = pattern::number(&payload).expect("each says its number");
        pattern::check(&payload, number).unwrap_or_else(|why| panic!("{why}"));
        came.push(number);
    }
    assert!(came.is_sorted_by(|a, b| a < b), "in order, none twice: {came:?}");
    came
}

pub(super) const CLOSES: Scenario = Scenario {
    name: "the kernel's sockets close",
    promise: |_| "a closed one is no longer congested, and what it had not sent is gone; others go on",
    run: closes,
};

fn closes(case: &Case<'_>) {
    let ours = Ours::open(case);
    let socket = ours.bind(case, 4000);
    let to = case.kernel_at(4000);
    // A reader that is congested and goes away unread.
    let reader = format!("recv --at '{to}' --count 0 --rcvbuf 16K --timeout-ms 0 -v --allow-gaps");
    let mut first = case.kpeer(&reader).ready();
    first.stop(case.guest);
    let mut sent = 0;
    loop {
        match socket.try_send_to(&pattern::payload(sent, 4000), to) {
            Ok(()) => sent += 1,
            Err(TrySendError::Congested) => break,
            Err(why) => panic!("{why}"),
        }
        assert!(socket.flush(PATIENCE) && sent < 1000, "congested some time");
    }
    first.kill(case.guest);
    assert!(socket.wait_uncongested(to, Some(PATIENCE)), "a closed socket is not congested");
    let mut second = case.kpeer(&reader).ready();
    for number in sent..sent + 10 {
        socket.send_to(&pattern::payload(number, 4000), to).expect("it is queued");
    }
    second.receives(case.port(4000), sent + 9);
    assert_eq!(
        second.numbers(case.port(4000)),
        (sent..sent + 10).collect::<Vec<_>>(),
        "only what came after"
    );
    // A writer that does not wait until all is sent.
    let (from, us) = (case.kernel_at(5000), case.ours_at(4000));
    // More than TCP takes: some wait in the kernel's RDS, and go with the socket.
    let many = format!("send --from '{from}' --to '{us}' --size 100000 --count 100 --sndbuf 16M --no-drain");
    guest_link(case.guest, false);
    case.kpeer(&many).ends_well();
    guest_link(case.guest, true);
    let mut last = case.kpeer(&format!("send --from '{from}' --to '{us}' --size 60 --first 1000"));
    let came = receive_in_order(case, &socket, 1000);
    last.ends_well();
    assert!(came.len() < 101, "some went with the socket");
    drop((second, socket));
    ours.comes_to_rest();
}

pub(super) const CANCELS: Scenario = Scenario {
    name: "the kernel's program cancels",
    promise: |_| "the gap in the numbers does no harm: the rest arrives, in order",
    run: cancels,
};

fn cancels(case: &Case<'_>) {
    let ours = Ours::open(case);
    let socket = ours.bind(case, 4000);
    let send = |first: u64, more: &str| {
        let (from, to) = (case.kernel_at(5000), case.ours_at(4000));
        case.kpeer(&format!("send --from '{from}' --to '{to}' --first {first} {more}"))
    };
    send(0, "--size 32 --count 2").ends_well();
    guest_link(case.guest, false);
    // More than TCP takes: some wait, and those go.
    send(2, "--size 100000 --count 100 --sndbuf 16M --cancel").ends_well();
    guest_link(case.guest, true);
    let mut last = send(102, "--size 32 --count 2 --timeout-ms 60000");
    let came = receive_in_order(case, &socket, 103);
    last.ends_well();
    assert!(came.starts_with(&[0, 1]) && came.ends_with(&[102, 103]), "what was not cancelled: {came:?}");
    assert!(came.len() < 104, "some were cancelled");
    drop(socket);
    ours.comes_to_rest();
}
