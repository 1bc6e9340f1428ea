//! Nodes and kernels that end and begin again.

use std::collections::BTreeMap;

use rds_client::Completion;

use crate::guest::Kernel;
use crate::interop::exchange::Exchange;
use crate::interop::process::Process;
use crate::interop::{Case, Scenario};

fn promise(kernel: Kernel) -> &'static str {
    if kernel.loses_acknowledged() {
        "what was under way is lost or comes once; what is sent afterwards arrives, both ways, in order"
    } else {
        "the same, and of what was under way when the kernel's generation changed we are told `Unknown`"
    }
}

pub(super) const CRASH: Scenario = Scenario {
    name: "the kernel crashes and boots again",
    promise,
    run: |case| {
        let ends = kernel_restarts(case, || case.guest.crash(), || case.guest.boot());
        // The connections looked well when they were sent, so all of these had begun.
        let unknown = ends.values().filter(|end| matches!(end, Completion::Unknown { .. })).count();
        let expected = if case.kernel.loses_acknowledged() { 0 } else { ends.len() };
        assert_eq!(unknown, expected, "a kernel from 7.0 on shows that it is another: {ends:?}");
    },
};

pub(super) const MODULE: Scenario = Scenario {
    name: "rds_tcp unloaded and loaded again, then rds as well",
    promise,
    run: |case| {
        for modules in ["rds_tcp", "rds_tcp rds"] {
            let unload = || drop(case.guest.shell(&format!("rmmod {modules}")));
            kernel_restarts(case, unload, || drop(case.guest.shell("modprobe rds_tcp")));
        }
    },
};

/// Messages both ways in mid-run, when the kernel's side ends; some of ours meanwhile, and again both ways when it is back. Returns what
/// became of those meanwhile.
fn kernel_restarts(case: &Case<'_>, end: impl FnOnce(), begin: impl FnOnce()) -> BTreeMap<u64, Completion> {
    let mut exchange = Exchange::begin(case, 5000);
    exchange.turns(50);
    exchange.last_arrives();
    // Sockets would keep a module from being unloaded.
    exchange.kill_kernel_programs();
    case.together(end);
    let meanwhile = exchange.sent();
    (0..5).for_each(|_| exchange.send());
    case.together(begin);
    exchange.begin_again(50);
    let after = exchange.sent();
    exchange.turns(49);
    exchange.writer_ends();
    let arrived = exchange.last_arrives().arrived;
    let expected: Vec<u64> = (after..exchange.sent()).collect();
    assert!(arrived.ends_with(&expected), "what was sent since it is back: {expected:?}, not {arrived:?}");
    let late = |n: &u64| (meanwhile..after).contains(n);
    assert!(
        arrived[..arrived.len() - expected.len()].iter().all(late),
        "of the rest only these: {arrived:?}"
    );
    let mut ends = exchange.ends().clone();
    let unknown = |end: &Completion| matches!(end, Completion::Unknown { .. });
    assert!(ends.iter().all(|(n, end)| late(n) || !unknown(end)), "it had the others: {ends:?}");
    exchange.comes_to_rest();
    ends.retain(|n, _| late(n));
    ends
}

pub(super) const OURS: Scenario = Scenario {
    name: "our process is killed and started again",
    promise: |_| "messages between two lives are lost or come twice; within one, each comes once and in order",
    run: ours_restarts,
};

/// A node in a process of its own, which sends and receives all the time.
fn ours_restarts(case: &Case<'_>) {
    const COUNT: u64 = 600;
    const SECOND: u64 = 1_000_000;
    let mut reader = case
        .kpeer(&format!("recv --at '{}' --count 0 --timeout-ms 0 --allow-gaps -v", case.kernel_at(4000)))
        .ready();
    let mut first = Process::start(case, case.ours_at(4000), case.kernel_at(4000), 0);
    let (from, to) = (case.kernel_at(5000), case.ours_at(4000));
    let mut writer = case.kpeer(&format!(
        "send --from '{from}' --to '{to}' --size 16,1000,100,9000 --count {COUNT} --interval-ms 2 --sndbuf 4M --timeout-ms 60000"
    ));
    first.receives(case.port(5000), 100);
    reader.receives(case.port(4000), 100);
    first.kill();
    let mut second = Process::start(case, case.ours_at(4000), case.kernel_at(4000), SECOND);
    second.receives(case.port(5000), COUNT - 1);
    writer.ends_well();
    let last = second.end();
    reader.receives(case.port(4000), last);
    reader.is_undamaged();

    let arrived = reader.numbers(case.port(4000));
    let (old, new) = arrived.split_at(arrived.partition_point(|n| *n < SECOND));
    assert_eq!(
        old,
        (0..old.len() as u64).collect::<Vec<_>>(),
        "of our first life: none is missing before another"
    );
    assert_eq!(new, (SECOND..=last).collect::<Vec<_>>(), "of our second life");
    let before = first.numbers(case.port(5000));
    assert_eq!(before, (0..before.len() as u64).collect::<Vec<_>>(), "what our first life got");
    second_life_got(case, &second.numbers(case.port(5000)), COUNT);
}

/// What a new life of ours may get of `count` messages of the kernel's.
#[track_caller]
pub(super) fn second_life_got(case: &Case<'_>, after: &[u64], count: u64) {
    const UNDER_WAY: usize = 32;
    // Up to 6.18 one that was under way when the first life ended may be missing between others that were and are sent again.
    let under_way = if case.kernel.loses_acknowledged() { after.len().min(UNDER_WAY) } else { 0 };
    let (again, settled) = after.split_at(under_way);
    assert!(
        again.is_sorted_by(|a, b| a < b) && again.last() < settled.first(),
        "what our second life got: {after:?}"
    );
    let expected: Vec<u64> = (count - settled.len() as u64..count).collect();
    assert_eq!(settled, expected, "what our second life got");
}
