//! Compares RDS with the least that any implementation over TCP must do: a raw framed TCP loop on the same machine. Subcommands measure
//! the mechanisms of zero copy instead.
//!
//! Each case runs between two processes, in turns of floor and RDS, so that what the machine does meanwhile meets both. How to read and
//! rerun it: `docs/benchmarks.md`.

mod admin;
mod case;
mod clients;
mod floor;
mod lanes;
mod pair;
mod rds;
mod report;
mod ring;
mod side;
mod versus;
mod zero;

use std::process::ExitCode;

use clap::builder::TypedValueParser;
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
    #[arg(long, value_parser = clap::builder::PossibleValuesParser::new(["floor", "rds"])
        .map(|name| if name == "floor" { Transport::Floor } else { Transport::Rds }))]
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
    /// A daemon; started by the program itself.
    #[command(hide = true)]
    Serve(versus::Serve),
    /// One of many clients; started by the program itself.
    #[command(hide = true)]
    Crowd(rds_tests::crowd::client::Settings),
    /// Two programs of one daemon while its admin endpoint is attacked: what their round trips lose by that.
    Admin(admin::Admin),
    /// Many clients of one daemon, of which some stand still: what the others lose by that.
    Clients(clients::Clients),
    /// Throughput of 1, 2 and 4 lanes, and what is left of it while one of them stalls.
    Lanes(lanes::Lanes),
    /// Programs that attach to one daemon, or to two, beside programs with nodes of their own.
    Daemon(versus::Daemon),
    /// NATS and MQTT through their brokers beside RDS: rate, throughput, round trip.
    Peers(versus::Peers),
    /// What a record costs in the rings between a program and the daemon.
    Ring(ring::Ring),
    #[command(flatten)]
    Zero(zero::What),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match &cli.what {
        Some(What::Side(side)) => side.run(),
        Some(What::Serve(serve)) => serve.run(),
        Some(What::Crowd(settings)) => rds_tests::crowd::client::run(settings.clone()),
        Some(What::Admin(admin)) => admin.run(),
        Some(What::Clients(clients)) => clients.run(),
        Some(What::Lanes(lanes)) => lanes.run(),
        Some(What::Daemon(daemon)) => daemon.run(),
        Some(What::Peers(peers)) => peers.run(),
        Some(What::Ring(ring)) => ring.run(),
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

impl Cli {
    fn setup(&self) -> pair::Setup {
        pair::Setup {
            seconds: self.seconds,
            warmup: self.warmup,
            port: self.port,
            send_buffer: self.send_buffer,
            receive_buffer: self.receive_buffer,
            congestion_control: self.congestion_control.clone(),
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
                    let way = pair::Way { transport, sender: &[], receiver: &[] };
                    let result = pair::run(&cli.setup(), *case, &way)
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
