//! A daemon's node, of which our programs are clients.

use crate::interop::process::Process;
use crate::interop::rendezvous::Rendezvous;
use crate::interop::scenarios::{basic, congestion, loss, restart};
use crate::interop::{Case, Scenario};

/// One of the others, with a daemon's node.
macro_rules! through {
    ($name:literal, $other:expr, $run:path) => {
        Scenario {
            name: concat!("through a daemon: ", $name),
            promise: $other.promise,
            run: |case| $run(&case.through_daemon(&Rendezvous::default())),
        }
    };
}

pub(super) const PING: Scenario = through!("ping", basic::PING, basic::ping);
pub(super) const SIZES: Scenario = through!("0 B to 1 MiB", basic::SIZES, basic::sizes);
pub(super) const BOTH_DIRECTIONS: Scenario =
    through!("both directions at once", basic::BOTH_DIRECTIONS, basic::both_directions);
pub(super) const KERNEL_STOPS: Scenario =
    through!("the kernel's program stops reading", congestion::KERNEL_STOPS, congestion::kernel_stops);
pub(super) const WE_STOP: Scenario =
    through!("our program stops reading", congestion::WE_STOP, congestion::we_stop);
pub(super) const RESET: Scenario = through!("connection reset in mid-run", loss::RESET, loss::reset);

pub(super) const RESTART: Scenario = Scenario {
    name: "the daemon is killed and started again",
    promise: |_| "its client goes on by itself, and sends nothing twice; messages between two lives of the daemon are lost or come twice to us",
    run: daemon_restarts,
};

/// A process that sends and receives all the time, and stays the same while its daemon does not.
fn daemon_restarts(case: &Case<'_>) {
    const COUNT: u64 = 600;
    let scratch = case.scratch();
    let mut plan = case.daemon_plan(&scratch);
    let daemon = plan.start();
    let mut reader = case
        .kpeer(&format!("recv --at '{}' --count 0 --timeout-ms 0 --allow-gaps -v", case.kernel_at(4000)))
        .ready();
    let mut ours = Process::attached(case, case.ours_at(4000), case.kernel_at(4000), daemon.socket());
    let (from, to) = (case.kernel_at(5000), case.ours_at(4000));
    let mut writer = case.kpeer(&format!(
        "send --from '{from}' --to '{to}' --size 16,1000,100,9000 --count {COUNT} --interval-ms 2 --sndbuf 4M --timeout-ms 60000"
    ));
    ours.receives(case.port(5000), 100);
    reader.receives(case.port(4000), 100);
    daemon.kill();
    let daemon = plan.start();
    ours.receives(case.port(5000), COUNT - 1);
    writer.ends_well();
    let last = ours.end();
    reader.receives(case.port(4000), last);
    reader.is_undamaged();

    // Of ours some are missing where the daemon was killed, which the client knows; none comes twice or out of order.
    let arrived = reader.numbers(case.port(4000));
    assert!(arrived.is_sorted_by(|a, b| a < b), "{arrived:?}");
    let holes = arrived.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    assert!(holes <= 1 && arrived.first() == Some(&0) && arrived.last() == Some(&last), "{arrived:?}");

    let got = ours.numbers(case.port(5000));
    let first = got.iter().zip(0..).take_while(|(n, expected)| *n == expected).count();
    assert!(first > 100, "{got:?}");
    if first < got.len() {
        restart::second_life_got(case, &got[first..], COUNT);
    }
    daemon.stop();
}
