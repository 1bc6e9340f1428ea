//! Comparisons within one thread on one CPU.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use super::figures::Spread;
use super::part::one_cpu;
use super::place::{Path, Place};

/// Options of such a comparison.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Single {
    /// Rounds; each measures every variant once.
    #[arg(long, default_value_t = 61)]
    rounds: u32,
    /// Messages of each measurement: few, so that some measurements meet nothing else on the CPU.
    #[arg(long, default_value_t = 500)]
    messages: usize,
}

/// What one measurement found.
pub(crate) struct Row {
    /// CPU time, in ns of whatever is compared.
    pub(crate) cost: f64,
    /// Messages a second of CPU time.
    pub(crate) rate: f64,
    /// More columns, shown as the last round has them.
    pub(crate) notes: Vec<String>,
}

impl Single {
    /// Measures every variant in turns, and returns a row of the table for each.
    pub(crate) fn compare(
        &self,
        path: Path,
        variants: &[u32],
        measure: impl Fn(u32, usize) -> Result<Row, String> + Sync,
    ) -> Result<Vec<Vec<String>>, String> {
        let place = Place::open(path)?;
        let found = place.run(|| {
            one_cpu()?;
            let mut found: Vec<Vec<Row>> = variants.iter().map(|_| Vec::new()).collect();
            for _ in 0..self.rounds {
                for (variant, found) in variants.iter().zip(&mut found) {
                    found.push(measure(*variant, self.messages)?);
                }
            }
            Ok::<_, String>(found)
        })?;
        let cost = |found: &Vec<Row>| Spread::of(found, |r| r.cost);
        let last = found.last().map_or(0.0, |f| cost(f).min);
        Ok(variants
            .iter()
            .zip(&found)
            .map(|(variant, found)| {
                let mut row = vec![
                    variant.to_string(),
                    format!("{:.1}", cost(found).min),
                    format!("{:.1}", cost(found).median),
                    format!("{:.0}", Spread::of(found, |r| r.rate).max),
                ];
                row.extend(found.last().map(|r| r.notes.clone()).unwrap_or_default());
                row.push(format!("{:.3}", cost(found).min / last));
                row
            })
            .collect())
    }
}

/// CPU time of this thread, in seconds.
pub(crate) fn thread_cpu() -> f64 {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).expect("Linux has this clock");
    Duration::from(time).as_secs_f64()
}
