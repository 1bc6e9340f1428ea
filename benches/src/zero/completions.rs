//! What it brings to take completions in batches: one thread, one TCP connection, nothing of the engine.

use std::net::IpAddr;

use rds_core::bench::Pair;

use super::Bench;
use super::figures::{size, table};
use super::place::Path;
use super::single::{Row, Single, thread_cpu};

/// The benchmark.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Completions {
    #[command(flatten)]
    single: Single,
    /// Message size in bytes; whole pages.
    #[arg(long, default_value_t = 4096)]
    size: usize,
    /// Messages after which completions are taken and references dropped.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    batches: Vec<u32>,
    /// Over which paths.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Path::Loopback, Path::Uncopied])]
    paths: Vec<Path>,
}

impl Bench for Completions {
    fn run(&self) -> Result<(), String> {
        for path in &self.paths {
            let rows = self.single.compare(*path, &self.batches, |batch, messages| {
                let mut pair =
                    Pair::open(IpAddr::from([127, 55, 41, 1]), self.size).map_err(|e| e.to_string())?;
                let mut once = |messages| pair.reap_each(messages, batch as usize).map_err(|e| e.to_string());
                once(messages / 10 + 1)?;
                let before = thread_cpu();
                let done = once(messages)?;
                let cpu = thread_cpu() - before;
                Ok(Row {
                    cost: cpu * 1e9 / messages as f64,
                    rate: messages as f64 / cpu,
                    notes: vec![
                        format!("{:.1}", done.notified as f64 / done.calls.max(1) as f64),
                        format!("{:.0} %", 100.0 * done.copied as f64 / done.notified.max(1) as f64),
                    ],
                })
            });
            let rows = match rows {
                Ok(rows) => rows,
                Err(why) => {
                    println!("skipped: {path}: {why}\n");
                    continue;
                }
            };
            println!("{} messages in one thread, sent by zero copy and read, on {path}\n", size(self.size));
            let heading = [
                "messages a reap",
                "CPU ns a message, best",
                "median",
                "messages a CPU second",
                "completions a reap",
                "copied",
                "CPU to the last",
            ];
            println!("{}", table(&heading, &rows));
        }
        Ok(())
    }
}
