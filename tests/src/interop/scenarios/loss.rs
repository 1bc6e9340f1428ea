//! Connections that are lost.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::Duration;

use rds_client::{Counter, RDS_TCP_PORT};

use crate::guest::Kernel;
use crate::interop::exchange::Exchange;
use crate::interop::ours::{self, guest_link, our_link};
use crate::interop::{Case, PATIENCE, Scenario};
use crate::reset::Reset;

/// What holds when a connection ends while messages are on their way.
fn promise(kernel: Kernel) -> &'static str {
    if kernel.loses_acknowledged() {
        "to us nothing is lost; to the kernel only what its TCP had acknowledged; nothing comes twice or out of order"
    } else {
        "nothing is lost, comes twice or out of order"
    }
}

fn nothing_lost(_: Kernel) -> &'static str {
    "nothing is lost, comes twice or out of order"
}

pub(super) const RESET: Scenario = Scenario { name: "connection reset in mid-run", promise, run: reset };

/// Messages both ways, and a reset after each hundred.
pub(super) fn reset(case: &Case<'_>) {
    let mut exchange = Exchange::begin(case, 400);
    for _ in 0..3 {
        exchange.turns(100);
        ours::reset(case);
    }
    exchange.ours().until("three were lost", |now| now.counters.get(Counter::ConnReset) >= 3);
    exchange.finish(400, case.kernel.loses_acknowledged());
}

pub(super) const RESET_OF_KERNEL: Scenario = Scenario {
    name: "the kernel's end alone reset in mid-run",
    promise,
    run: |case| {
        let (IpAddr::V4(ours), IpAddr::V4(victim)) = (case.ours(), case.kernel_at(0).ip()) else {
            panic!("it forges IPv4");
        };
        let mut exchange = Exchange::begin(case, 400);
        for _ in 0..3 {
            exchange.turns(50);
            let done = std::thread::scope(|scope| {
                let body = || {
                    // Of the network namespace that the scenario is in, as all threads that it starts.
                    Reset { port: RDS_TCP_PORT, after: ours, victim }.next(PATIENCE)
                };
                let resetting = scope.spawn(body);
                while !resetting.is_finished() && exchange.received() < 350 {
                    exchange.turns(1);
                }
                resetting.join().expect("no panic")
            });
            done.expect("a packet goes by");
        }
        exchange.finish(400, case.kernel.loses_acknowledged());
    },
};

pub(super) const DROPPED_BY_KERNEL: Scenario =
    Scenario { name: "the kernel drops the connection in mid-run", promise, run: dropped_by_kernel };

fn dropped_by_kernel(case: &Case<'_>) {
    let mut exchange = Exchange::begin(case, 400);
    for _ in 0..3 {
        exchange.turns(100);
        // Each write there has it end all its connections, and make them anew.
        case.guest.shell("echo 4194304 >/proc/sys/net/rds/tcp/rds_tcp_sndbuf");
    }
    exchange.finish(400, case.kernel.loses_acknowledged());
}

/// Longer than a connection needs to be found dead: 5 s, and five probes 5 s apart.
const LONG: Duration = Duration::from_secs(36);
const SHORT: Duration = Duration::from_secs(4);

pub(super) const OUR_LINK: Scenario = Scenario {
    name: "our link down for 4 s in mid-run",
    promise: nothing_lost,
    run: |case| link_down(case, our_link, SHORT),
};

pub(super) const KERNEL_LINK: Scenario = Scenario {
    name: "the kernel's link down for 4 s in mid-run",
    promise: nothing_lost,
    run: |case| link_down(case, guest_link, SHORT),
};

pub(super) const OUR_LINK_LONG: Scenario = Scenario {
    name: "our link down for 36 s, longer than keepalive, in mid-run",
    promise,
    run: |case| link_down(case, our_link, LONG),
};

pub(super) const KERNEL_LINK_LONG: Scenario = Scenario {
    name: "the kernel's link down for 36 s, longer than keepalive, in mid-run",
    promise,
    run: |case| link_down(case, guest_link, LONG),
};

/// Both have messages on their way when it goes down, and we send some more meanwhile.
fn link_down(case: &Case<'_>, link: fn(&crate::guest::Guest, bool), time: Duration) {
    let mut exchange = Exchange::begin(case, 300);
    exchange.turns(100);
    case.together(|| link(case.guest, false));
    (0..10).for_each(|_| exchange.send());
    case.together(|| {
        // The time is what is tested.
        sleep(time);
        link(case.guest, true);
    });
    exchange.finish(300, time == LONG && case.kernel.loses_acknowledged());
}
