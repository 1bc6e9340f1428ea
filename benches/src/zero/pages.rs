//! What it brings to map many pages by one call: one thread, one TCP connection, nothing of the engine.

use std::net::IpAddr;

use rds_core::bench::{Exchanged, Pair};

use super::Bench;
use super::figures::{size, table};
use super::place::Path;
use super::single::{Row, Single, thread_cpu};

/// The benchmark.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Pages {
    #[command(flatten)]
    single: Single,
    /// Message size in bytes; whole pages.
    #[arg(long, default_value_t = 256 << 10)]
    size: usize,
    /// Most pages that a call maps.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 4, 16, 64])]
    pages: Vec<u32>,
}

impl Bench for Pages {
    fn run(&self) -> Result<(), String> {
        let rows = self.single.compare(Path::Loopback, &self.pages, |pages, messages| {
            let mut pair =
                Pair::open(IpAddr::from([127, 55, 40, 1]), self.size).map_err(|e| e.to_string())?;
            let mut once = |messages| pair.map(messages, pages).map_err(|e| e.to_string());
            once(messages / 10 + 1)?;
            let before = thread_cpu();
            let done: Exchanged = once(messages)?;
            let cpu = thread_cpu() - before;
            let mapped = done.mapped as f64 / (messages * self.size) as f64;
            let of_bytes = (messages * self.size) as f64 / 1024.0;
            Ok(Row {
                cost: cpu * 1e9 / of_bytes,
                rate: messages as f64 / cpu,
                notes: vec![
                    format!("{:.1}", done.mapped as f64 / 4096.0 / done.calls.max(1) as f64),
                    format!("{:.1} %", 100.0 * mapped),
                ],
            })
        })?;
        println!(
            "{} messages in one thread, sent by zero copy and mapped, by the most pages a call maps\n",
            size(self.size)
        );
        let heading = [
            "pages a call",
            "CPU ns a KiB, best",
            "median",
            "messages a CPU second",
            "pages a call, seen",
            "mapped",
            "CPU to the last",
        ];
        println!("{}", table(&heading, &rows));
        Ok(())
    }
}
