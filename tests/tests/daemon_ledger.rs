//! Daemons that are killed under load, with zero copy on: their clients go on, and every message is accounted for.
//!
//! What is promised is written in `rds_tests::ledger::daemons`. Some seconds by default; `RDS_LEDGER_SECONDS=N` for longer, and
//! `RDS_LEDGER_SEED` for other runs.

use std::time::{Duration, Instant};

use rds_tests::address;
use rds_tests::daemon::{Daemon, Plan as DaemonPlan};
use rds_tests::ledger::daemons::Daemons;
use rds_tests::ledger::process::{Plan, Process, Scratch};

const PROGRAM: &str = env!("CARGO_BIN_EXE_rds-ledger");
/// TCP port of the daemons' nodes.
const NODE: u16 = 17411;

fn environment(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value}: give a whole number")))
}

/// Two daemons, and a client of each.
struct Two {
    scratch: Scratch,
    plans: [DaemonPlan; 2],
    running: [Option<Daemon>; 2],
    clients: [Process; 2],
    happened: Daemons,
}

impl Two {
    fn start(name: &str, net: u8) -> Self {
        let scratch = Scratch::new(name);
        let seed = environment("RDS_LEDGER_SEED").unwrap_or(1);
        let mut plans = [1, 2].map(|host| {
            DaemonPlan::new(&scratch, address(net, host))
                .with("listen-port", NODE)
                .with("dial-port", NODE)
                .with("zero-copy-send", "on")
        });
        let running = plans.each_mut().map(|plan| Some(plan.start()));
        let client = |plan: &DaemonPlan, ports: &[u16]| {
            Plan::new(PROGRAM, &scratch, plan.address(), ports)
                .with("backend", "daemon")
                .with("attach", plan.socket().display())
                .flag("lend")
                .with("longest", 256 << 10)
                .with("seed", seed)
                .with("rate", if environment("RDS_LEDGER_SECONDS").is_some() { 1000 } else { 0 })
        };
        let (near, far) = (client(&plans[0], &[10, 11, 12]), client(&plans[1], &[20, 21, 22]));
        let mut clients = [near.clone().sending_to(&far).start(), far.sending_to(&near).start()];
        clients.iter_mut().for_each(Process::load);
        Self { scratch, plans, running, clients, happened: Daemons::default() }
    }

    /// Kills these daemons, and starts them again.
    fn kill(&mut self, victims: [bool; 2]) {
        let both = || (0..2).filter(|index| victims[*index]);
        for index in both() {
            let daemon = self.running[index].take().expect("it runs");
            let address = self.plans[index].address();
            *self.happened.dropped.entry(address).or_default() += daemon.dropped();
            *self.happened.kills.entry(address).or_default() += 1;
            daemon.kill();
        }
        for index in both() {
            self.running[index] = Some(self.plans[index].start());
        }
    }

    /// Ends the clients, then the daemons, and compares the logs.
    fn settle(mut self) -> rds_tests::ledger::check::Report {
        self.clients.iter_mut().for_each(Process::drain);
        for client in &mut self.clients {
            client.drained();
        }
        self.clients.into_iter().for_each(Process::exit);
        for (plan, daemon) in self.plans.iter().zip(self.running) {
            let daemon = daemon.expect("it runs");
            *self.happened.dropped.entry(plan.address()).or_default() += daemon.dropped();
            daemon.stop();
        }
        self.happened.write(self.scratch.path()).expect("it can be written");
        self.scratch.check()
    }
}

#[test]
fn clients_of_two_daemons_get_everything_once_and_in_order() {
    let mut two = Two::start("daemons-quiet", 31);
    two.clients.iter_mut().for_each(|client| client.receives(3000));
    let report = two.settle();
    assert_eq!((report.delivered, report.received), (report.accepted, report.accepted));
}

#[test]
fn killed_daemons_cost_no_client_a_message_that_it_is_not_told_of() {
    let mut two = Two::start("daemons-killed", 32);
    let mut random = fastrand::Rng::with_seed(environment("RDS_LEDGER_SEED").unwrap_or(1));
    let least = environment("RDS_LEDGER_SECONDS").map(Duration::from_secs);
    let (began, mut rounds) = (Instant::now(), 0);
    while least.map_or(rounds < 4, |least| began.elapsed() < least) {
        // They go on by themselves, whatever was killed in the round before.
        for client in &mut two.clients {
            client.receives(random.u64(200..2000));
            client.delivers(100);
        }
        let victims = [[true, false], [false, true], [true, true]][rounds % 3];
        two.kill(victims);
        rounds += 1;
    }
    for client in &mut two.clients {
        client.receives(200);
        client.delivers(100);
    }
    let report = two.settle();
    println!("{rounds} rounds of kills: {report:#?}");
    assert!(report.unknown > 0, "the kills met nothing");
}
