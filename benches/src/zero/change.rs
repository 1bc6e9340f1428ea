//! The controller against both fixed modes where the better of them changes while it runs.

use super::child::Child;
use super::figures::{Spread, size, table};
use super::part::{Buffers, Role, Slice};
use super::place::Place;
use super::{Bench, Common, Direction, MODES};

/// The benchmark.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Change {
    #[command(flatten)]
    common: Common,
    /// Message size in bytes.
    #[arg(long, default_value_t = 256 << 10)]
    size: usize,
    /// Times that the path changes from one that copies to one that does not, or back.
    #[arg(long, default_value_t = 3)]
    changes: u32,
    /// Rounds between two changes; each has a slice of every mode.
    #[arg(long, default_value_t = 20)]
    between: u32,
    /// In which direction modes are compared.
    #[arg(long, value_enum, default_value_t = Direction::Send)]
    direction: Direction,
}

impl Bench for Change {
    fn run(&self) -> Result<(), String> {
        let mut place = match Place::private() {
            Ok(place) => place,
            Err(why) => {
                println!("skipped: {why}");
                return Ok(());
            }
        };
        let mut children = super::each_mode(|mode| {
            let part =
                super::part(Role::Both, mode, self.size, Buffers::Pool, self.direction, self.common.port);
            let mut child = Child::start(&place, &part)?;
            child.work(self.common.warmup)?;
            Ok(child)
        })?;
        let cost = |s: &Slice| super::ns_per_kib(s, self.size);
        let mut rows = Vec::new();
        let (mut auto, mut better) = (0.0, 0.0);
        for change in 0..=self.changes {
            let copying = change % 2 == 0;
            place.set_copying(copying)?;
            let mut found: [Vec<Slice>; 3] = Default::default();
            for _ in 0..self.between {
                for (child, found) in children.iter_mut().zip(&mut found) {
                    found.push(child.work(self.common.seconds)?);
                }
            }
            let best = [0, 1, 2].map(|i| Spread::of(&found[i], cost));
            let wins = usize::from(best[1].median < best[0].median);
            // When the controller has come over: from there on its median is within 3 % of the better one's.
            let settled = (0..found[2].len())
                .find(|&from| Spread::of(&found[2][from..], cost).median <= best[wins].median * 1.03);
            let pinned: f64 = found[2].iter().map(|s| s.pinned as f64).sum();
            let sent: f64 = found[2].iter().map(|s| s.messages as f64 * 1.1 * self.size as f64).sum();
            let mean = |i: usize| found[i].iter().map(cost).sum::<f64>() / found[i].len() as f64;
            auto += mean(2);
            better += mean(wins);
            rows.push(vec![
                format!("{}: {}", change + 1, if copying { "copies" } else { "does not copy" }),
                best[0].show(1),
                best[1].show(1),
                best[2].show(1),
                MODES[wins].to_owned(),
                format!("{:.0} %", 100.0 * pinned / sent),
                format!("{:.3}", mean(2) / mean(wins)),
                format!("{:.3}", best[2].min / best[wins].min),
                settled.map_or("never".to_owned(), |n| {
                    let each = self.common.seconds * 1.1;
                    format!("slice {} ({:.1} s of its own traffic)", n + 1, n as f64 * each)
                }),
            ]);
        }
        println!(
            "{} messages, one thread and one CPU, {} s a slice: ns of CPU a KiB by phase, the path changing in between\n",
            size(self.size),
            self.common.seconds
        );
        let heading = [
            "phase",
            "off",
            "on",
            "auto",
            "better",
            "auto pinned",
            "auto/better, mean",
            "best slices",
            "settled from",
        ];
        println!("{}", table(&heading, &rows));
        println!("auto over all phases, against the better mode of each: {:.3}\n", auto / better);
        Ok(())
    }
}
