//! Round trips between two programs of one daemon while its admin endpoint is attacked.
//!
//! Attackers take processor time of their own, which on a small machine the programs miss. So they also attack the endpoint of another daemon that
//! does nothing else: what is worse than that is what the attack costs the data path of the one that is attacked.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use clap::Args;
use hdrhistogram::Histogram;
use rds_client::{Node, Received, Socket};
use rds_tests::http::Attack;
use rds_tests::ledger::process::Scratch;

use crate::report::Spread;
use crate::versus::broker::Daemon;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 55, 0, 16);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 55, 0, 17);
const WAYS: [&str; 3] = ["nobody", "another daemon", "this daemon"];

/// Options.
#[derive(Args, Clone, Debug)]
pub(crate) struct Admin {
    /// Rounds; each measures without an attack, with one on another daemon, and with one on this daemon.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measured time of each in seconds.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// TCP port of the daemons' nodes.
    #[arg(long, default_value_t = 17385)]
    port: u16,
}

struct Found {
    p50_us: f64,
    p99_us: f64,
}

impl Admin {
    pub(crate) fn run(&self) -> Result<(), String> {
        let scratch = Scratch::new("bench-admin");
        let daemon = Daemon::start(scratch.path(), ADDRESS, self.port, None)?;
        let other = Daemon::start(scratch.path(), OTHER, self.port, None)?;
        let none = "the daemon has no admin endpoint";
        let (here, there) = (daemon.admin.ok_or(none)?, other.admin.ok_or(none)?);
        let (_a, asks) = program(&daemon.socket, 1)?;
        let (_b, answers) = program(&daemon.socket, 2)?;
        let mut found: [Vec<Found>; 3] = Default::default();
        std::thread::scope(|scope| {
            let answering = scope.spawn(|| answer(&answers));
            for round in 1..=self.rounds {
                for (way, at) in [None, Some(there), Some(here)].into_iter().enumerate() {
                    let one = self.measure(&asks, answers.local_addr(), at)?;
                    let (rounds, way_name) = (self.rounds, WAYS[way]);
                    eprintln!(
                        "round {round} of {rounds}, attack on {way_name}: p50 {:.1} us, p99 {:.1} us",
                        one.p50_us, one.p99_us
                    );
                    found[way].push(one);
                }
            }
            // An empty message ends it.
            asks.send_to(&[], answers.local_addr()).map_err(|e| e.to_string())?;
            answering.join().map_err(|_| "the one that answers panicked".to_owned())?
        })?;
        println!("64 B round trips between two programs of one daemon:\n");
        println!(
            "| attack on | p50 us | p99 us | p50 to nobody | p99 to nobody | p50 to another | p99 to another |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- |");
        for (way, all) in found.iter().enumerate() {
            let median = |of: fn(&Found) -> f64| Spread::of(all.iter().map(of)).map_or(0.0, |s| s.median);
            let ratio = |to: usize, of: fn(&Found) -> f64| {
                Spread::of(all.iter().zip(&found[to]).map(|(a, b)| of(a) / of(b)))
                    .map_or_else(String::new, |s| format!("{:.2} ({:.2}..{:.2})", s.median, s.min, s.max))
            };
            println!(
                "| {} | {:.1} | {:.1} | {} | {} | {} | {} |",
                WAYS[way],
                median(|f| f.p50_us),
                median(|f| f.p99_us),
                ratio(0, |f| f.p50_us),
                ratio(0, |f| f.p99_us),
                ratio(1, |f| f.p50_us),
                ratio(1, |f| f.p99_us)
            );
        }
        Ok(())
    }

    fn measure(&self, asks: &Socket, to: SocketAddr, attacked: Option<SocketAddr>) -> Result<Found, String> {
        let attack = attacked.map(Attack::start);
        let mut trips = Histogram::<u64>::new(3).map_err(|e| e.to_string())?;
        let mut room = [0; 64];
        let begun = Instant::now();
        let whole = Duration::from_secs_f64(self.seconds);
        while begun.elapsed() < whole {
            let since = Instant::now();
            asks.send_to(&[7; 64], to).map_err(|e| e.to_string())?;
            asks.recv_from(&mut room).map_err(|e| e.to_string())?;
            trips.saturating_record(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        if let Some(attack) = attack {
            let done = &attack.done;
            eprintln!(
                "  {} slow, {} broken, {} answered, {} unanswered",
                done.slow.load(Relaxed),
                done.broken.load(Relaxed),
                done.answered.load(Relaxed),
                done.unanswered.load(Relaxed)
            );
        }
        let at = |quantile| trips.value_at_quantile(quantile) as f64 / 1e3;
        Ok(Found { p50_us: at(0.5), p99_us: at(0.99) })
    }
}

fn program(daemon: &Path, port: u16) -> Result<(Node, Socket), String> {
    let node = Node::attach(daemon).map_err(|e| e.to_string())?;
    let socket = node.bind(port).map_err(|e| e.to_string())?;
    socket.set_recv_timeout(Some(Duration::from_secs(60)));
    Ok((node, socket))
}

fn answer(socket: &Socket) -> Result<(), String> {
    let mut room = [0; 64];
    loop {
        match socket.recv_from(&mut room).map_err(|e| e.to_string())? {
            Received::Message { len: 0, .. } => return Ok(()),
            Received::Message { len, from, .. } => {
                socket.send_to(&room[..len], from).map_err(|e| e.to_string())?;
            }
            _ => {}
        }
    }
}
