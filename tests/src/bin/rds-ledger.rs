//! Sends, receives and writes down what became of every message; then compares the logs.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use rds_tests::ledger::daemons::Daemons;
use rds_tests::ledger::run::{Backend, Settings, run};
use rds_tests::ledger::{check, log};

/// Exchanges numbered, checksummed messages and keeps an account of them that survives kill -9.
///
/// While it runs it obeys lines on standard input: `pause N` and `resume N` (socket N, counted from 0, neither sends nor receives),
/// `cancel N` (what socket N has not sent), `load` (send, after `--hold`), `drain` (make no more messages), `exit` (take what is queued and
/// go). It prints a line of JSON about its progress now and then.
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

#[derive(Clone, Copy, clap::ValueEnum)]
enum Stack {
    /// A node in this process.
    Own,
    /// A node in a daemon, whose socket --attach names.
    Daemon,
    /// The kernel's, by AF_RDS sockets.
    Kernel,
}

#[derive(Args)]
struct Common {
    /// Whose RDS to use.
    #[arg(long, value_enum, default_value = "own")]
    backend: Stack,
    /// Address of the node.
    #[arg(long)]
    address: Ipv4Addr,
    /// TCP port on which the node listens. For a node of ours, as are the next two.
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
    /// Socket of the daemon, for `--backend daemon`.
    #[arg(long)]
    attach: Option<PathBuf>,
    /// Send from buffers of the node's pool (over a daemon: of the memory shared with it), instead of memory of the program's own.
    #[arg(long)]
    lend: bool,
    /// Milliseconds between two lines of progress.
    #[arg(long, default_value_t = 20)]
    report_every: u64,
}

fn settings(common: Common) -> Result<Settings, String> {
    Ok(Settings {
        backend: match common.backend {
            Stack::Own => Backend::Own,
            Stack::Daemon => Backend::Daemon(common.attach.ok_or("a client of a daemon needs --attach")?),
            Stack::Kernel => Backend::Kernel,
        },
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
        report_every: std::time::Duration::from_millis(common.report_every),
        lend: common.lend,
    })
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let done = match Cli::parse().command {
        Command::Recv(common) => settings(common).and_then(|settings| run(&settings)),
        Command::Send(s) | Command::Both(s) => settings(s.common).and_then(|settings| {
            run(&Settings {
                targets: s.to,
                seed: s.seed,
                longest: s.longest,
                rate: s.rate,
                hold: s.hold,
                ..settings
            })
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
    let daemons = Daemons::read(logs).map_err(|e| e.to_string())?;
    let report = check::check_with(&found, check::Limits::default(), daemons);
    println!("{}", serde_json::to_string_pretty(&report).map_err(|e| e.to_string())?);
    if report.broken > 0 {
        return Err(format!("{} rules were broken", report.broken));
    }
    Ok(())
}
