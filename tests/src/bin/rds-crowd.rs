//! One of many clients of a daemon: asks others, and answers them. For tests.

use std::process::ExitCode;

use clap::Parser;
use rds_tests::crowd::client::{Settings, run};

/// Sends numbered requests, answers those that come, and obeys lines on standard input: `go`, `rest`, `measure`, `say`, `end`.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    settings: Settings,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let settings = Cli::parse().settings;
    let at = settings.at;
    match run(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("rds-crowd {at}: {e}");
            ExitCode::FAILURE
        }
    }
}
