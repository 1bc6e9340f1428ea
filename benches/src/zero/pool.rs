//! Buffers of the pool against memory that is allocated for each message.

use super::child::Child;
use super::figures::{Spread, size, table};
use super::part::{Buffers, Part, Role, Slice};
use super::place::{Path, Place};
use super::{Bench, Common};

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
            let part = |buffers, role| Part {
                buffers,
                ..super::part(role, usize::from(buffers == Buffers::Fresh), bytes, buffers, self.common.port)
            };
            let mut pairs = Vec::new();
            for buffers in [Buffers::FilledPool, Buffers::Fresh] {
                // Both with zero copy off: memory is all that differs.
                let off = |role| Part { mode: "off".to_owned(), ..part(buffers, role) };
                let mut receiver = off(Role::Receiver);
                std::mem::swap(&mut receiver.own, &mut receiver.peer);
                let receiver = Child::start(&place, &receiver)?;
                let mut sender = Child::start(&place, &off(Role::Sender))?;
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
