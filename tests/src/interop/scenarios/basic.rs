//! Messages, with nothing going wrong.

use rds_client::Counter;

use crate::interop::ours::{Ours, receive, receive_numbered};
use crate::interop::{Case, PATIENCE, Role, Scenario, pattern};

pub(super) const WAKE_UP: Scenario = Scenario {
    name: "who sleeps is woken",
    promise: |_| "the smaller address, which alone connects, is woken by a knock of the larger one",
    run: wake_up,
};

/// The larger one has something to say to a smaller one that has never heard of it.
fn wake_up(case: &Case<'_>) {
    let ours = Ours::open(case);
    let socket = ours.bind(case, 4000);
    match case.role {
        Role::Larger => {
            let mut reader =
                case.kpeer(&format!("recv --at '{}' --count 1 -v", case.kernel_at(4000))).ready();
            socket.send_to(&pattern::payload(0, 100), case.kernel_at(4000)).expect("it is queued");
            reader.receives(case.port(4000), 0);
            assert!(ours.counter(Counter::ConnPokes) > 0, "a knock");
            reader.ends_well();
        }
        Role::Smaller => {
            let (from, to) = (case.kernel_at(5000), case.ours_at(4000));
            let mut writer = case.kpeer(&format!("send --from '{from}' --to '{to}' --size 100"));
            drop(receive_numbered(case, &socket, 5000, 0));
            writer.ends_well();
        }
    }
    drop(socket);
    ours.comes_to_rest();
}

pub(super) const PING: Scenario =
    Scenario { name: "ping", promise: |_| "each answers the other's pings", run: ping };

pub(super) fn ping(case: &Case<'_>) {
    let ours = Ours::open(case);
    let socket = ours.bind(case, 4000);
    for _ in 0..3 {
        socket.send_to(b"", case.kernel_at(0)).expect("it is queued");
        assert!(receive(case, &socket, 0).is_empty(), "a pong is empty");
    }
    let arguments =
        format!("ping --from '{}' --to '{}' --count 3 --interval-ms 1", bare(case, true), bare(case, false));
    let mut theirs = case.kpeer(&arguments);
    let pongs = theirs.ends_well().iter().filter(|line| line.starts_with("pong ")).count();
    assert_eq!(pongs, 3);
    assert!(ours.counter(Counter::RecvPing) >= 3, "ours were answered by the node");
    drop(socket);
    ours.comes_to_rest();
}

/// An address without a port, as `kpeer ping` takes it.
fn bare(case: &Case<'_>, kernels: bool) -> String {
    if kernels { case.kernel_at(0).ip().to_string() } else { case.ours().to_string() }
}

pub(super) const SIZES: Scenario =
    Scenario { name: "0 B to 1 MiB", promise: |_| "every byte arrives, in order, both ways", run: sizes };

/// Around the limits of headers, segments, pages and buffers.
const LENGTHS: &[usize] = &[
    0, 1, 2, 3, 7, 8, 15, 16, 17, 47, 48, 49, 63, 64, 65, 511, 512, 513, 1399, 1400, 1401, 1447, 1448, 1449,
    4048, 4095, 4096, 4097, 8191, 8192, 8193, 16_383, 16_385, 65_487, 65_535, 65_536, 65_537, 106_496,
    131_072, 262_144, 524_287, 1_048_575, 1_048_576,
];

pub(super) fn sizes(case: &Case<'_>) {
    let ours = Ours::open(case);
    let socket = ours.bind(case, 4000);
    let count = LENGTHS.len();
    let mut reader =
        case.kpeer(&format!("recv --at '{}' --count {count} --rcvbuf 4M -v", case.kernel_at(4000))).ready();
    for (number, len) in (0..).zip(LENGTHS) {
        socket.send_to(&pattern::payload(number, *len), case.kernel_at(4000)).expect("it is queued");
    }
    reader.ends_well();
    let arrived: Vec<usize> = reader.arrived().iter().map(|a| a.len).collect();
    assert_eq!(arrived, LENGTHS);
    let list = LENGTHS.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let (from, to) = (case.kernel_at(5000), case.ours_at(4000));
    let mut writer = case.kpeer(&format!(
        "send --from '{from}' --to '{to}' --size {list} --count {count} --sndbuf 4M --timeout-ms 60000"
    ));
    for (number, len) in (0..).zip(LENGTHS) {
        assert_eq!(receive_numbered(case, &socket, 5000, number).len(), *len);
    }
    writer.ends_well();
    assert!(socket.flush(PATIENCE));
    drop(socket);
    ours.comes_to_rest();
}

pub(super) const BOTH_DIRECTIONS: Scenario = Scenario {
    name: "both directions at once",
    promise: |_| "four sockets each way: every byte arrives, in the order of each pair",
    run: both_directions,
};

pub(super) fn both_directions(case: &Case<'_>) {
    const SOCKETS: u16 = 4;
    const EACH: u64 = 60;
    let ours = Ours::open(case);
    let sockets: Vec<_> = (0..SOCKETS).map(|i| ours.bind(case, 4000 + i)).collect();
    let all = u64::from(SOCKETS) * EACH;
    // All of ours send to one socket of theirs, and all of theirs to one of ours.
    let reader =
        format!("recv --at '{}' --count {all} --rcvbuf 1M -v --timeout-ms 60000", case.kernel_at(4000));
    let mut reader = case.kpeer(&reader).ready();
    let (from, to) = (case.kernel_at(5000), case.ours_at(4000));
    let sizes = "0,100,9000,64,40000,1,16,1448";
    let mut writer = case.kpeer(&format!(
        "send --from '{from}' --to '{to}' --sockets {SOCKETS} --count {all} --size {sizes} --sndbuf 1M --timeout-ms 60000"
    ));
    std::thread::scope(|scope| {
        for socket in &sockets {
            scope.spawn(move || {
                for number in 0..EACH {
                    let len = [16, 5000, 200, 70_000, 20, 1448][number as usize % 6];
                    let sent = socket.send_to(&pattern::payload(number, len), case.kernel_at(4000));
                    sent.expect("it is queued");
                }
            });
        }
        // kpeer numbers each of its sockets' messages from 0.
        let mut next = [0; SOCKETS as usize];
        for _ in 0..all {
            let Ok(rds_client::Event::Message(message)) = sockets[0].recv_lease() else {
                panic!("a message is missing: {next:?}")
            };
            assert_eq!(message.from.ip(), case.kernel_at(0).ip());
            let next = &mut next[usize::from(message.from.port() - case.port(5000))];
            pattern::check(&message.payload, *next)
                .unwrap_or_else(|why| panic!("from {}: {why}", message.from));
            *next += 1;
        }
        assert_eq!(next, [EACH; SOCKETS as usize]);
    });
    writer.ends_well();
    reader.ends_well();
    let everything: Vec<u64> = (0..EACH).collect();
    for i in 0..SOCKETS {
        assert_eq!(reader.numbers(case.port(4000) + i), everything, "from our port {}", 4000 + i);
    }
    drop(sockets);
    ours.comes_to_rest();
}

pub(super) const IPV6: Scenario = Scenario {
    name: "IPv6",
    promise: |_| "the same: ping, all sizes, both directions, a reset",
    run: |case| {
        let party = crate::interop::rendezvous::Rendezvous::default();
        let case = Case { v6: true, party: party.join(), ..*case };
        for run in [wake_up, ping, sizes, both_directions, super::loss::reset] {
            run(&case);
        }
    },
};
