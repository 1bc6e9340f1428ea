//! Buffers of the pool against memory that is allocated for each message.

use super::figures::{Spread, size, table};
use super::part::{Buffers, Part, Role, Slice};
use super::place::{Path, Place};
use super::{Bench, Common, Direction};

/// The benchmark.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Pool {
    #[command(flatten)]
    common: Common,
    /// Message sizes in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [4 << 10, 64 << 10, 1 << 20])]
    sizes: Vec<usize>,
}

impl Bench for Pool {
    fn run(&self) -> Result<(), String> {
        let place = Place::open(Path::Loopback)?;
        let mut rows = Vec::new();
        for &bytes in &self.sizes {
            let mut pairs = Vec::new();
            for (index, buffers) in [Buffers::FilledPool, Buffers::Fresh].into_iter().enumerate() {
                let part =
                    super::part(Role::Sender, index, bytes, buffers, Direction::Both, self.common.port);
                // Both with zero copy off: memory is all that differs.
                let part = Part { send: "off".to_owned(), receive: "off".to_owned(), ..part };
                let (mut sender, receiver) = super::two(&place, &part, Role::Receiver)?;
                sender.work(self.common.warmup)?;
                pairs.push((sender, receiver));
            }
            let mut found: [Vec<(Slice, Slice)>; 2] = Default::default();
            for _ in 0..self.common.rounds {
                for ((sender, receiver), found) in pairs.iter_mut().zip(&mut found) {
                    receiver.cost()?;
                    let sent = sender.work(self.common.seconds)?;
                    found.push((sent, receiver.cost()?));
                }
            }
            let rate = |(s, _): &(Slice, Slice)| s.messages as f64 / s.seconds;
            let cpu = |(s, _): &(Slice, Slice)| super::ns_per_kib(s, bytes);
            for (name, found) in ["pool", "allocated"].iter().zip(&found) {
                rows.push(vec![
                    size(bytes),
                    (*name).to_owned(),
                    Spread::of(found, rate).show(0),
                    Spread::of(found, cpu).show(1),
                    format!("{:.1}", Spread::of(found, cpu).min),
                ]);
            }
            rows.push(vec![
                size(bytes),
                "pool/allocated".to_owned(),
                Spread::of_ratios(&found[0], &found[1], rate).show(2),
                Spread::of_ratios(&found[0], &found[1], cpu).show(2),
                String::new(),
            ]);
        }
        println!("Two processes, every byte of each message written before it is sent, zero copy off\n");
        let heading = ["size", "buffers", "messages/s", "sender's CPU ns a KiB", "best"];
        println!("{}", table(&heading, &rows));
        Ok(())
    }
}
