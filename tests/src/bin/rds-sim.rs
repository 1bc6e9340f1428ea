//! Runs seeds of the simulator and tells what they hit.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use rds_tests::sim::batch;
use rds_tests::sim::ctx::Sink;

/// Runs the protocol's simulator: real nodes and models of kernels over a model of TCP, with faults drawn from seeds.
#[derive(Parser)]
struct Options {
    /// Run this seed alone.
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// Print every event of the seed.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Run so many seeds.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// Begin with this seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Threads; as many as there are cores by default.
    #[arg(long)]
    threads: Option<usize>,
    /// Stop after so many failures.
    #[arg(long, default_value_t = 10)]
    failures: usize,
    /// Do not fail when something was never hit.
    #[arg(long)]
    no_coverage: bool,
}

/// Prints one line of a trace. Whoever reads may have seen enough.
fn print_line(line: &str) {
    if writeln!(std::io::stdout().lock(), "{line}").is_err() {
        std::process::exit(1);
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(seed) = options.seed {
        let sink: Option<Sink> = if options.trace { Some(Box::new(print_line)) } else { None };
        let report = batch::run_seed(seed, sink);
        println!("{}", report.coverage);
        println!("{}", report.line());
        return if report.broken.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let threads = options
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    // A panic in a node is a broken promise like any other: one line, not a report each.
    std::panic::set_hook(Box::new(|_| {}));
    let started = Instant::now();
    let (coverage, failures) = batch::run_many(options.first, options.seeds, threads, options.failures);
    print!("{coverage}");
    println!(
        "{} seeds asked for, {:.1} s, {threads} threads",
        options.seeds,
        started.elapsed().as_secs_f64()
    );
    for failure in &failures {
        println!("FAILED: {}", failure.line());
    }
    let missing = if options.no_coverage { Vec::new() } else { coverage.missing() };
    if !missing.is_empty() {
        println!("FAILED: never hit: {}", missing.join("; "));
    }
    if failures.is_empty() && missing.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
