//! The ledger with a kernel at one end or both: what each series promises is kept, and what those up to 6.18 do not promise is seen.
//!
//! Run as root, with QEMU. The long run, half an hour against each of two kernels, from which the figures in docs/interoperability.md are:
//!
//! ```text
//! RDS_SOAK_SECONDS=1800 cargo test -p rds-tests --test kernel_ledger -- mixed_traffic --nocapture
//! ```

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rds_client::{Completion, Guarantee, Node};
use rds_tests::guest::{Guest, Kernel};
use rds_tests::ledger::check::Report;
use rds_tests::ledger::process::{PATIENCE, Plan, Process, Scratch};
use rds_tests::program::static_rds_ledger;
use rds_tests::reset::Reset;
use rds_tests::skip::or_skip;

/// TCP port of kernels' RDS, and that of nodes of ours in guests, where the kernel has the other.
const KERNEL_PORT: u16 = 16385;
const OWN_PORT: u16 = 17485;
/// Directory of the logs in a guest.
const LOGS: &str = "/tmp/ledger";
/// What a process may keep above what it had, in bytes: the allocator's, and buffers that stay with connections.
const SLACK: u64 = 24 << 20;
/// The same from the first quarter of a long run to its last.
const LONG_SLACK: u64 = 8 << 20;

/// A process in a guest, with its sockets at `ports`.
fn in_guest(guest: &Guest, scratch: &Scratch, program: &str, ports: &[u16]) -> Plan {
    Plan::new("", scratch, guest.address(), ports).elsewhere(guest.words(program), LOGS)
}

/// Waits until a receiver gets nothing any more, though its senders have finished, or has got `all`.
fn has_all_that_comes(process: &mut Process, all: u64) -> u64 {
    let (mut before, mut same) = (0, 0);
    process.wait("it has all that comes", |p| {
        let now = p.received_in_all();
        same = if now == before { same + 1 } else { 0 };
        before = now;
        now >= all || same > 100
    });
    before
}

#[test]
fn a_peers_info_says_what_delivered_means_there() {
    let Some(guest) = or_skip(Guest::with_kernel(Kernel::V6_12)) else { return };
    for (ours, other) in [(Guest::HOST_BELOW, Guest::HOST_ABOVE), (Guest::HOST_ABOVE, Guest::HOST_BELOW)] {
        guest.host().run(|| {
            let node = Node::open(ours.into()).expect("the port is free in the rig's namespace");
            let peer = Node::open(other.into()).expect("the port is free in the rig's namespace");
            let socket = node.bind(4000).expect("a free port");
            for (address, by, name) in [
                (Guest::ADDRESS, Guarantee::Transport, "transport"),
                (other, Guarantee::Application, "application"),
            ] {
                // Nobody is at that port: the message is dropped there, which counts as delivered.
                let cookie = socket.send_owned(vec![7; 100], (address, 4001).into()).expect("room");
                let mut ends = Vec::new();
                let since = Instant::now();
                while !ends.iter().any(|e: &Completion| e.cookie() == cookie && !released(e)) {
                    assert!(since.elapsed() < PATIENCE, "{address}: {ends:?}");
                    socket.wait_completions(&mut ends, Some(Duration::from_secs(1)));
                }
                assert!(ends.contains(&Completion::Delivered { cookie, by }), "{address}: {ends:?}");
                let snapshot = node.snapshot();
                let info = snapshot.peers.iter().find(|p| p.address == address).expect("a known peer");
                assert_eq!(info.delivery, Some(name), "{address}");
            }
            drop(peer);
        });
    }
}

fn released(end: &Completion) -> bool {
    matches!(end, Completion::Released { .. })
}

/// Sends from the first guest to the second at a slow pace, and resets the sender's end of the connection each time when all is
/// acknowledged, until something was lost or `most` resets were made. Returns how many were.
///
/// A reset may come too late and be ignored: that a node of ours did not notice it shows, and it is made again.
fn resets_at_the_sender(guest: &Guest, port: u16, most: u32, both: &mut [Process; 2]) -> u32 {
    let reset = Reset { port, after: Guest::SECOND, victim: Guest::ADDRESS };
    let [sender, receiver] = both;
    for done in 1..=most {
        receiver.receives(30);
        let before = sender.now().resets;
        let since = Instant::now();
        let hit = loop {
            let hit = guest.host().run(|| reset.next(PATIENCE)).unwrap_or_else(|e| panic!("{e}"));
            let soon = Instant::now() + Duration::from_secs(1);
            while port == OWN_PORT && sender.now().resets == before && Instant::now() < soon {}
            if port != OWN_PORT || sender.now().resets > before {
                break hit;
            }
            assert!(since.elapsed() < PATIENCE, "{hit:?} cannot be reset");
        };
        // The receiver hears by its keep-alive, some seconds later, that its connection is gone.
        receiver.receives(30);
        let (sent, got) = (sender.now().delivered_in_all(), receiver.now().received_in_all());
        println!("reset {done}, {hit:?}: {sent} acknowledged, {got} received");
        // More than can be under way at this pace. A receiver that a busy machine makes wait catches up.
        if (0..50).all(|_| sender.now().delivered_in_all() > receiver.now().received_in_all() + 20) {
            return done;
        }
    }
    most
}

/// One run between the guests, with the resets of [`resets_at_the_sender`].
fn between_guests(
    guests: &[Guest],
    program: &str,
    options: &[(&str, String)],
    port: u16,
    most: u32,
) -> (Report, u32) {
    let scratch = Scratch::new(&format!("between-{port}"));
    for guest in guests {
        guest.shell(&format!("mkdir -p {LOGS}"));
    }
    let with = |plan: Plan| options.iter().fold(plan, |plan, (option, value)| plan.with(option, value));
    let mut far = with(in_guest(&guests[1], &scratch, program, &[20, 21, 22]));
    let near = with(in_guest(&guests[0], &scratch, program, &[10, 11, 12])).sending_to(&far);
    let mut near = near.with("rate", 20).with("longest", 2000);
    let mut both = [near.start(), far.start()];
    both[0].load();
    let resets = resets_at_the_sender(&guests[0], port, most, &mut both);
    let [mut sender, mut receiver] = both;
    sender.drain();
    let sent = sender.drained();
    has_all_that_comes(&mut receiver, sent.accepted.iter().sum());
    sender.exit();
    receiver.exit();
    for guest in guests {
        guest.fetch_all(LOGS, scratch.path());
        guest.shell(&format!("rm -r {LOGS}"));
    }
    (scratch.check(), resets)
}

#[test]
fn a_reset_costs_a_kernel_up_to_6_18_what_its_tcp_had_acknowledged_and_two_of_ours_nothing() {
    let Some(guests) = or_skip(Guest::several(Kernel::V6_12, 2)) else { return };
    let [program, _] = [0, 1].map(|i| guests[i].put(static_rds_ledger()));
    // All eight paths first: while such kernels make them, messages of one pair may overtake each other.
    guests[0].shell(&format!("kpeer ping --from {} --to {} --count 2", Guest::ADDRESS, Guest::SECOND));
    let paths = "ss -Htn state established dport = :16385 | wc -l";
    guests[0].shell(&format!("timeout 60 sh -c 'until [ $({paths}) = 8 ]; do sleep 0.1; done'"));
    let kernel = [("backend", "kernel".to_owned())];
    let (report, resets) = between_guests(&guests, &program, &kernel, KERNEL_PORT, 10);
    println!("kernels, {resets} resets: {report:#?}");
    // The checker has seen that each of these was acknowledged: the sender's cookie had come back.
    assert!(report.lost_by_kernel > 0, "{resets} resets cost nothing: {report:#?}");
    assert_eq!(report.delivered, report.accepted, "every message was acknowledged");
    assert_eq!(report.received + report.lost_by_kernel, report.accepted);

    let own = [("listen-port", OWN_PORT.to_string()), ("dial-port", OWN_PORT.to_string())];
    let (report, same) = between_guests(&guests, &program, &own, OWN_PORT, resets.max(3));
    println!("nodes of ours, {same} resets: {report:#?}");
    assert_eq!(same, resets.max(3), "a reset seemed to have cost something");
    assert_eq!((report.delivered, report.received), (report.accepted, report.accepted));
    assert_eq!(report.lost_by_kernel, 0);
}

/// How a connection between us and the guest is broken.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Both ends get a reset.
    Both,
    /// A reset for the kernel's end alone; ours learns of it by the answer to its next packet.
    Kernel,
    /// A reset for our end alone.
    Ours,
    /// The kernel drops its connections by itself, while data comes.
    Dropped,
}

const WAYS: [Way; 4] = [Way::Both, Way::Kernel, Way::Ours, Way::Dropped];

fn break_connection(guest: &Guest, way: Way, ours: Ipv4Addr, value: u32) {
    let port = KERNEL_PORT;
    let kernels = Guest::ADDRESS;
    // Under load the numbers of what went by are soon old: then the ends ignore the forged reset, and nothing breaks.
    let forged = |after, victim| {
        let done = guest.host().run(|| Reset { port, after, victim }.next(Duration::from_millis(500)));
        if let Err(e) = done {
            println!("no reset: {e}");
        }
    };
    match way {
        Way::Both => {
            let mut kill = std::process::Command::new("ss");
            kill.args(["-K", "src", &ours.to_string(), "dst", &kernels.to_string()]);
            guest.host().run(|| kill.output()).expect("ss(8) belongs to iproute2, as ip(8) does");
        }
        Way::Kernel => forged(ours, kernels),
        Way::Ours => forged(kernels, ours),
        Way::Dropped => {
            guest.shell(&format!("echo {} >/proc/sys/net/rds/tcp/rds_tcp_sndbuf", 4_000_000 + value));
        }
    }
}

/// Mixed traffic between the guest's kernel and two nodes of ours, one below and one above it, while connections break every few seconds.
fn soak(kernel: Kernel) {
    let Some(guest) = or_skip(Guest::with_kernel(kernel)) else { return };
    let seconds = match std::env::var("RDS_SOAK_SECONDS") {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("RDS_SOAK_SECONDS={text}: a number of seconds")),
        Err(_) => 20,
    };
    let scratch = Scratch::new(&format!("soak-{kernel}"));
    let program = guest.put(static_rds_ledger());
    guest.shell(&format!("mkdir -p {LOGS}"));
    // The same on this side: built for speed, whatever the tests are.
    let here = static_rds_ledger().to_str().expect("a path in UTF-8");
    let plan = |address, ports: &[u16]| Plan::new(here, &scratch, address, ports).with("rate", 4);
    let sized = |plan: Plan| {
        plan.with("longest", 1 << 20).with("send-buffer", 4 << 20).with("receive-buffer", 1 << 20)
    };
    let (below, above) = (plan(Guest::HOST_BELOW, &[10, 11, 12]), plan(Guest::HOST_ABOVE, &[30, 31, 32]));
    let theirs = in_guest(&guest, &scratch, &program, &[20, 21, 22]).with("backend", "kernel");
    let [mut below, mut above] = [below, above].map(|plan| sized(plan.sending_to(&theirs)));
    let mut theirs =
        sized(theirs.sending_to(&below).sending_to(&above).with("rate", 8).with("report-every", 200));

    let mut theirs = theirs.start();
    let mut ours = [&mut below, &mut above].map(|plan| guest.host().run(|| plan.start()));
    ours.iter_mut().for_each(Process::load);
    theirs.load();
    for process in &mut ours {
        goes_on(process);
        process.logs("what delivered means there", |l| l.contains("peer up") && l.contains("transport"));
    }
    let mut random = fastrand::Rng::with_seed(seconds);
    let began = Instant::now();
    let (mut made, mut memory) = (0_u32, Vec::new());
    let mut line = Instant::now();
    while began.elapsed().as_secs() < seconds || made < 4 {
        let (way, victim) = (WAYS[random.usize(0..WAYS.len())], random.usize(0..2));
        let address = [Guest::HOST_BELOW, Guest::HOST_ABOVE][victim];
        break_connection(&guest, way, address, made % 97);
        made += 1;
        // Until traffic goes again in both directions, and then a while.
        goes_on(&mut ours[victim]);
        let until = Instant::now() + Duration::from_millis(random.u64(500..4000));
        while Instant::now() < until {
            ours.iter_mut().for_each(|process| drop(process.now()));
            theirs.now();
        }
        memory.push(ours.each_ref().map(Process::memory));
        if line.elapsed().as_secs() >= 10 || seconds < 60 {
            line = Instant::now();
            let (a, b, k) = (ours[0].now(), ours[1].now(), theirs.now());
            println!(
                "{kernel} {:5} s: {made} breaks, {} connections lost; sent {}, received {} (kernel sent {}); RSS {:?} KiB",
                began.elapsed().as_secs(),
                a.resets + b.resets,
                a.accepted.iter().chain(&b.accepted).sum::<u64>(),
                a.received_in_all() + b.received_in_all(),
                k.accepted.iter().sum::<u64>(),
                memory.last().map(|m| m.map(|bytes| bytes >> 10)).unwrap_or_default(),
            );
        }
    }
    for process in &mut ours {
        goes_on(process);
    }
    ours.iter_mut().chain([&mut theirs]).for_each(Process::drain);
    let lost: u64 = ours.each_mut().map(|p| p.drained().resets).iter().sum();
    let kernels = theirs.drained();
    let sent: u64 = ours.each_mut().map(|p| p.now().accepted.iter().sum::<u64>()).iter().sum();
    has_all_that_comes(&mut theirs, sent);
    let sent_by_kernel: u64 = kernels.accepted.iter().sum();
    let mut received = 0;
    for process in &mut ours {
        received += has_all_that_comes(process, u64::MAX);
    }
    println!("{kernel}: the kernel sent {sent_by_kernel}, we received {received}; {lost} connections lost");
    let release = guest.shell("uname -r");
    ours.into_iter().chain([theirs]).for_each(Process::exit);
    guest.fetch_all(LOGS, scratch.path());
    let report = scratch.check();
    let table: Vec<[u64; 2]> = memory.iter().map(|m| m.map(|bytes| bytes >> 10)).collect();
    let (early, late) = (highest(&table[..table.len().div_ceil(4)]), highest(&table[table.len() * 3 / 4..]));
    println!("{kernel} ({}), {seconds} s, {made} breaks: {report:#?}", release.trim());
    println!("{kernel}: highest RSS of our nodes in KiB: first quarter {early:?}, last quarter {late:?}");
    assert!(lost >= u64::from(made) / 4, "of {made} breaks only {lost} were noticed");
    assert_eq!(received, sent_by_kernel, "a kernel's message is missing");
    assert_eq!(report.delivered, report.accepted);
    if kernel.loses_acknowledged() {
        assert_eq!(report.received + report.lost_by_kernel, report.accepted);
    } else {
        assert_eq!(report.received, report.accepted);
    }
    let slack = if seconds < 600 { SLACK } else { LONG_SLACK };
    for (early, late) in early.into_iter().zip(late) {
        assert!(late <= early + (slack >> 10), "memory grew from {early} to {late} KiB");
    }
}

/// Waits until a message is delivered and one received. Emulated kernels on a busy machine may be very slow.
fn goes_on(process: &mut Process) {
    let (before, since) = (process.now(), Instant::now());
    loop {
        let now = process.now();
        if now.delivered_in_all() > before.delivered_in_all()
            && now.received_in_all() > before.received_in_all()
        {
            return;
        }
        assert!(since.elapsed() < 5 * PATIENCE, "traffic stands still: {now:?}\n{}", process.errors());
    }
}

fn highest(table: &[[u64; 2]]) -> [u64; 2] {
    table.iter().fold([0; 2], |most, here| [most[0].max(here[0]), most[1].max(here[1])])
}

#[test]
fn mixed_traffic_under_resets_loses_to_6_12_at_most_what_its_tcp_acknowledged_and_nothing_to_us() {
    soak(Kernel::V6_12);
}

#[test]
fn mixed_traffic_under_resets_loses_nothing_either_way_with_the_newest_kernel() {
    soak(Kernel::Newest);
}
