//! Sends, receives and writes down what became of every message; then compares the logs.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use rds_tests::ledger::run::{Settings, run};
use rds_tests::ledger::{check, log};

/// Exchanges numbered, checksummed messages and keeps an account of them that survives kill -9.
///
/// While it runs it obeys lines on standard input: `pause N` and `resume N` (socket N, counted from 0, neither sends nor receives),
/// `cancel N` (what socket N has not sent), `load` (send, after `--hold`), `drain` (make no more messages), `exit` (take what is queued and
/// go). It prints a line of JSON about its progress every 20 ms.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Sends to every target from every socket; takes what comes.
    Send(Sender),
    /// Receives only.
    Recv(Common),
    /// The same as `send`: for a process whose targets send to it, too.
    Both(Sender),
    /// Reads the logs of all incarnations and says whether what was promised was kept. Exit code 1 if it was not.
    Check {
        /// Directory of the logs.
        logs: PathBuf,
    },
}

#[derive(Args)]
struct Sender {
    #[command(flatten)]
    common: Common,
    /// Sockets to send to, as ADDRESS:PORT.
    #[arg(long, required = true, value_delimiter = ',')]
    to: Vec<SocketAddrV4>,
    /// Seed of lengths and content.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Longest message in bytes, 48 to 1048576.
    #[arg(long, default_value_t = 65536, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(48..=1 << 20))]
    longest: usize,
    /// Most messages that each socket sends in a second; 0 for as many as go.
    #[arg(long, default_value_t = 0)]
    rate: u64,
    /// Send nothing before a line `load` on standard input.
    #[arg(long)]
    hold: bool,
}

#[derive(Args)]
struct Common {
    /// Address of the node.
    #[arg(long)]
    address: Ipv4Addr,
    /// TCP port on which the node listens.
    #[arg(long, default_value_t = 16385)]
    listen_port: u16,
    /// TCP port to which the node connects.
    #[arg(long, default_value_t = 16385)]
    dial_port: u16,
    /// Lanes that the node offers, 1 to 8.
    #[arg(long, default_value_t = 1)]
    lanes: u8,
    /// RDS ports of the sockets.
    #[arg(long, required = true, value_delimiter = ',')]
    ports: Vec<u16>,
    /// Directory of the logs.
    #[arg(long)]
    logs: PathBuf,
    /// Which life of this process it is, counted from 1.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    incarnation: u32,
    /// Send buffer of each socket in bytes.
    #[arg(long, default_value_t = 1 << 20)]
    send_buffer: u64,
    /// Receive buffer of each socket in bytes.
    #[arg(long, default_value_t = 1 << 20)]
    receive_buffer: u64,
}

fn settings(common: Common) -> Settings {
    Settings {
        address: common.address,
        listen_port: common.listen_port,
        dial_port: common.dial_port,
        lanes: common.lanes,
        ports: common.ports,
        targets: Vec::new(),
        logs: common.logs,
        incarnation: common.incarnation,
        seed: 0,
        longest: 0,
        rate: 0,
        hold: false,
        send_buffer: common.send_buffer,
        receive_buffer: common.receive_buffer,
    }
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let done = match Cli::parse().command {
        Command::Recv(common) => run(&settings(common)),
        Command::Send(s) | Command::Both(s) => run(&Settings {
            targets: s.to,
            seed: s.seed,
            longest: s.longest,
            rate: s.rate,
            hold: s.hold,
            ..settings(s.common)
        }),
        Command::Check { logs } => compare(&logs),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("rds-ledger: {e}");
            ExitCode::FAILURE
        }
    }
}

fn compare(logs: &std::path::Path) -> Result<(), String> {
    let found = log::read_all(logs).map_err(|e| e.to_string())?;
    let report = check::check(&found, check::Limits::default());
    println!("{}", serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?);
    if report.broken > 0 {
        return Err(format!("{} rules were broken", report.broken));
    }
    Ok(())
}
