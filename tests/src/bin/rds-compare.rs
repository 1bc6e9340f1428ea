//! Runs the same traffic over the kernel's RDS and over ours, between two guests, and prints the ratios.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use rds_tests::compare::{Backend, CASES, Pair, Rounds, table};
use rds_tests::guest::Kernel;
use rds_tests::program::static_rds_stress;

/// Compares with the kernel's RDS: boots two guests, and runs rds-stress between them over either, in turns. Needs root and QEMU.
///
/// Where the guests are emulated only ratios mean anything.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// Kernel of the guests: 6.1, 6.12 or newest.
    #[arg(long, default_value = "newest", value_parser = kernel)]
    kernel: Kernel,
    /// Rounds; each runs every case once over either.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measured time of each run in seconds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..))]
    seconds: u32,
    /// Only requests of these sizes in bytes.
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<u32>,
    /// The program that runs in the guests; built without shared libraries if none is given.
    #[arg(long)]
    program: Option<PathBuf>,
}

fn kernel(text: &str) -> Result<Kernel, String> {
    let found = Kernel::ALL.into_iter().find(|k| k.name() == text);
    found.ok_or_else(|| format!("{text} is none of the kernels: give 6.1, 6.12 or newest"))
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let program = cli.program.unwrap_or_else(|| static_rds_stress().clone());
    let pair = match Pair::boot(cli.kernel, &program) {
        Ok(pair) => pair,
        Err(why) => {
            eprintln!("rds-compare: {why}");
            return ExitCode::FAILURE;
        }
    };
    let cases = CASES.into_iter().filter(|c| cli.sizes.is_empty() || cli.sizes.contains(&c.size));
    let mut results: Vec<_> = cases.map(|case| (case, Rounds::default())).collect();
    for round in 1..=cli.rounds {
        for (case, rounds) in &mut results {
            // In turn, so that what the machine does meanwhile meets both, and neither always comes first.
            let first = if round % 2 == 0 { Backend::Ours } else { Backend::Kernel };
            let second = if first == Backend::Ours { Backend::Kernel } else { Backend::Ours };
            for backend in [first, second] {
                let measured = pair.run(backend, *case, cli.seconds);
                eprintln!("round {round}, {case:?}, {backend:?}: {measured:?}");
                match backend {
                    Backend::Kernel => rounds.kernel.push(measured),
                    Backend::Ours => rounds.ours.push(measured),
                }
            }
        }
    }
    println!("Linux {}, {} rounds of {} s:\n\n{}", pair.kernel(), cli.rounds, cli.seconds, table(&results));
    ExitCode::SUCCESS
}
