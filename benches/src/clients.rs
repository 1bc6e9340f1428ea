//! Many clients of one daemon, of which some stand still or are killed: throughput and round trips of the others, with and without.

use std::net::{Ipv4Addr, SocketAddrV4};

use clap::Args;
use rds_tests::crowd::{Member, Plan, at, say_all};
use rds_tests::ledger::process::Scratch;

use crate::report::Spread;
use crate::versus::broker::Daemon;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 55, 0, 14);
/// RDS port of the first client.
const FIRST: u16 = 1000;

/// Options.
#[derive(Args, Clone, Debug)]
pub(crate) struct Clients {
    /// Clients, two by two; an even number.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(20..=1000))]
    clients: u16,
    /// How many of them stand still; one in twenty others asks each of these as well.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=10))]
    lame: u16,
    /// Rounds; each measures with all of them well, and with some standing still. After the last, those are killed and it is measured once
    /// more.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measured time in seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Requests under way from each client.
    #[arg(long, default_value_t = 2)]
    depth: u64,
    /// TCP port of the daemon's node.
    #[arg(long, default_value_t = 17385)]
    port: u16,
}

/// What was measured at once.
struct Found {
    rate: f64,
    p50_us: f64,
    p99_us: f64,
}

impl Clients {
    pub(crate) fn run(&self) -> Result<(), String> {
        if !self.clients.is_multiple_of(2) {
            return Err(format!(
                "--clients {}: an even number is needed, for they ask each other two by two",
                self.clients
            ));
        }
        let scratch = Scratch::new("bench-clients");
        let daemon = Daemon::start(scratch.path(), ADDRESS, self.port, None)?;
        let program = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        let place = |n: u16| -> SocketAddrV4 { at(ADDRESS, FIRST + n) };
        let mut members: Vec<Member> = (0..self.clients)
            .map(|n| {
                let mut plan = Plan::new(&program, &daemon.socket, place(n)).by_word("crowd");
                plan.to(place(n ^ 1));
                let lame = n / 20;
                if n % 20 >= 18 && lame < self.lame {
                    plan.also_to(place(lame));
                }
                plan.with("depth", self.depth).start()
            })
            .collect();
        members.iter_mut().for_each(Member::bound);
        members.iter_mut().for_each(Member::go);
        let mut others = members.split_off(usize::from(self.lame + self.lame % 2));
        let mut lame = members;
        let partner = if self.lame % 2 == 1 { lame.pop() } else { None };
        let (mut well, mut still) = (Vec::new(), Vec::new());
        for round in 1..=self.rounds {
            for stands in [false, true] {
                lame.iter().for_each(|member| member.stand_still(stands));
                let found = self.measure(&mut others);
                eprintln!(
                    "round {round} of {}, {}: {:.0} requests/s, p50 {:.0} us, p99 {:.0} us",
                    self.rounds,
                    if stands { "some stand still" } else { "all are well" },
                    found.rate,
                    found.p50_us,
                    found.p99_us
                );
                if stands { still.push(found) } else { well.push(found) }
            }
        }
        lame.into_iter().for_each(Member::kill);
        let killed = vec![self.measure(&mut others)];
        println!(
            "{} clients of one daemon, {} of them lame; the others' 64 B requests:\n",
            self.clients, self.lame
        );
        println!("| the lame ones | requests/s | p50 us | p99 us | rate to well | p99 to well |");
        println!("| --- | --- | --- | --- | --- | --- |");
        for (name, found) in [("are well", &well), ("stand still", &still), ("are dead", &killed)] {
            let median = |of: fn(&Found) -> f64| Spread::of(found.iter().map(of)).map_or(0.0, |s| s.median);
            let ratio = |of: fn(&Found) -> f64| {
                let pairs =
                    found.iter().zip(if name == "are dead" { &well[well.len() - 1..] } else { &well });
                Spread::of(pairs.map(|(a, b)| of(a) / of(b)))
                    .map_or_else(String::new, |s| format!("{:.2} ({:.2}..{:.2})", s.median, s.min, s.max))
            };
            println!(
                "| {name} | {:.0} | {:.0} | {:.0} | {} | {} |",
                median(|f| f.rate),
                median(|f| f.p50_us),
                median(|f| f.p99_us),
                ratio(|f| f.rate),
                ratio(|f| f.p99_us)
            );
        }
        others.into_iter().chain(partner).for_each(Member::end);
        drop(daemon);
        Ok(())
    }

    /// Measures those that are well. Of their 99th percentiles the median, for one of a few requests says little.
    fn measure(&self, others: &mut [Member]) -> Found {
        others.iter_mut().for_each(Member::measure);
        std::thread::sleep(std::time::Duration::from_secs_f64(self.seconds));
        let said = say_all(others);
        let median = |of: fn(&rds_tests::crowd::Said) -> f64| {
            Spread::of(said.iter().map(of)).map_or(0.0, |spread| spread.median)
        };
        Found {
            rate: said.iter().map(|s| s.measured as f64 / s.seconds).sum(),
            p50_us: median(|s| s.p50_us),
            p99_us: median(|s| s.p99_us),
        }
    }
}
