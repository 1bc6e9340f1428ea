//! Compares RDS with the least that any implementation over TCP must do: a raw framed TCP loop on the same machine. Subcommands measure
//! the mechanisms of zero copy instead.
//!
//! Each case runs between two processes, in turns of floor and RDS, so that what the machine does meanwhile meets both. How to read and
//! rerun it: `docs/benchmarks.md`.

mod case;
mod floor;
mod pair;
mod rds;
mod report;
mod side;
mod zero;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use case::{Case, Kind, Transport};
use report::Report;

/// Measures RDS against a raw framed TCP loop, both between two processes on this machine.
#[derive(Parser, Clone, Debug)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    what: Option<What>,
    /// Rounds; each runs every case once over either transport.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measured time of each run in seconds.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Time before it that is not measured, in seconds.
    #[arg(long, default_value_t = 0.5)]
    warmup: f64,
    /// Message sizes in bytes, without header, 1 to 1048576.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 4096, 65536, 1 << 20],
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    sizes: Vec<usize>,
    /// Size of the messages whose round trip is measured, in bytes.
    #[arg(long, default_value_t = 64, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=1 << 20))]
    rtt_size: usize,
    /// Only this transport.
    #[arg(long, value_enum)]
    only: Option<Transport>,
    /// Only throughput, only round trips, or only the ceiling.
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    /// TCP port of both RDS nodes, which are at 127.55.0.1 and 127.55.0.2.
    #[arg(long, default_value_t = 17385)]
    port: u16,
    /// Send buffer of the sending RDS socket in bytes.
    #[arg(long, default_value_t = 8 << 20)]
    send_buffer: u64,
    /// Receive buffer of the receiving RDS socket in bytes.
    #[arg(long, default_value_t = 8 << 20)]
    receive_buffer: u64,
    /// TCP congestion control of both transports; `system` for the system's default, which may pace loopback (bbr does).
    #[arg(long, default_value = "cubic")]
    congestion_control: String,
    /// Prints JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// What else than the comparison with the floor.
#[derive(Subcommand, Clone, Debug)]
enum What {
    /// One of the two processes of a run; started by the program itself.
    #[command(hide = true)]
    Side(side::Side),
    #[command(flatten)]
    Zero(zero::What),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.what {
        Some(What::Side(side)) => side.run(),
        Some(What::Zero(what)) => what.run(),
        None => measure(&cli),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("rds-bench: {e}");
            ExitCode::FAILURE
        }
    }
}

fn measure(cli: &Cli) -> Result<(), String> {
    let mut cases = vec![Case { kind: Kind::Ceiling, size: case::BATCH }];
    cases.extend(cli.sizes.iter().map(|size| Case { kind: Kind::Throughput, size: *size }));
    cases.push(Case { kind: Kind::RoundTrip, size: cli.rtt_size });
    cases.retain(|c| cli.kind.is_none_or(|k| k == c.kind));
    let mut report = Report::new(&cases);
    for round in 0..cli.rounds {
        for (index, case) in cases.iter().enumerate() {
            for transport in [Transport::Floor, Transport::Rds] {
                let has = transport == Transport::Floor || case.kind != Kind::Ceiling;
                if has && cli.only.is_none_or(|t| t == transport) {
                    let result = pair::run(cli, *case, transport)
                        .map_err(|e| format!("{case} over {transport}: {e}"))?;
                    eprintln!(
                        "round {} of {}: {case} over {transport}: {}",
                        round + 1,
                        cli.rounds,
                        result.show(case.kind)
                    );
                    report.add(index, transport, result);
                }
            }
        }
    }
    if cli.json {
        println!("{}", report.json(cli)?);
    } else {
        print!("{report}");
    }
    Ok(())
}
