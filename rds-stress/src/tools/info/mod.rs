//! `rds-info`: shows what RDS nodes hold and count.

pub mod ours;
pub mod rows;
pub mod tables;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Parser;
use rds_client::NodeStatus;
use serde::Serialize;

use self::rows::Rows;
use self::tables::Addresses;
use super::source::{Source, default_daemon};
use super::{complain, ended, print, text};
use crate::error::{Failure, failure};

const PROGRAM: &str = "rds-info";

const EXAMPLES: &str = "Without an option that chooses a table, all are shown.\n\nExamples:\n  \
    rds-info                                   everything of this host's daemon\n  \
    rds-info -n --attach /tmp/rds.sock         the connections of another daemon\n  \
    rds-info --peers --watch                   peers and their rates, every second\n  \
    RDS_INFO_SOCKET=/tmp/p.sock program        then: rds-info --node /tmp/p.sock\n\n\
    Exit status: 0, or 1 after a wrong command line or when nobody answers.";

/// The options as given.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rds-info",
    about = "Shows what RDS nodes hold and count: those of the host's daemon, of a program, or the kernel's.",
    after_help = EXAMPLES,
    version,
    args_override_self = true,
    max_term_width = 110
)]
#[allow(clippy::struct_excessive_bools)]
pub struct Cli {
    /// Counters
    #[arg(short = 'c', help_heading = "Tables")]
    pub counters: bool,
    /// Sockets
    #[arg(short = 'k', help_heading = "Tables")]
    pub sockets: bool,
    /// Connections, one for each peer
    #[arg(short = 'n', help_heading = "Tables")]
    pub connections: bool,
    /// Paths (lanes): since when each is up or down, attempts, why it was lost
    #[arg(short = 'p', help_heading = "Tables")]
    pub paths: bool,
    /// Messages received and not taken; those of a daemon's programs are in the programs' memory
    #[arg(short = 'r', help_heading = "Tables")]
    pub receive: bool,
    /// Messages that wait for their first transmission
    #[arg(short = 's', help_heading = "Tables")]
    pub send: bool,
    /// Messages sent and not acknowledged
    #[arg(short = 't', help_heading = "Tables")]
    pub retransmit: bool,
    /// TCP connections; sequence numbers are counts of bytes, modulo 2^32
    #[arg(short = 'T', help_heading = "Tables")]
    pub tcp: bool,
    /// InfiniBand connections: there are none over TCP
    #[arg(short = 'I', help_heading = "Tables")]
    pub ib: bool,
    /// Peers: kind, guarantee, lanes, round trip, what waits; with --watch rates
    #[arg(long, help_heading = "Tables")]
    pub peers: bool,
    /// Bound ports, how they are shared, and by whom
    #[arg(long, help_heading = "Tables")]
    pub ports: bool,
    /// Programs that are attached to the daemon
    #[arg(long, help_heading = "Tables")]
    pub clients: bool,
    /// Who holds pinned memory
    #[arg(long, help_heading = "Tables")]
    pub pins: bool,

    /// Of the daemon whose socket is PATH [default: $RDS_ATTACH, or /run/rds/rds.sock]
    #[arg(long, value_name = "PATH", help_heading = "Where", num_args = 0..=1, conflicts_with_all = ["node", "kernel"])]
    #[allow(clippy::option_option)]
    pub attach: Option<Option<PathBuf>>,
    /// Of a program that shows its nodes at PATH (RDS_INFO_SOCKET, NodeBuilder::info_socket)
    #[arg(long, value_name = "PATH", help_heading = "Where", conflicts_with = "kernel")]
    pub node: Option<PathBuf>,
    /// Of the kernel's modules rds and rds_tcp, as far as they tell: -c -k -n -r -s -t -T
    #[arg(long, help_heading = "Where")]
    pub kernel: bool,

    /// IPv6 as well as IPv4 in the tables with letters
    #[arg(short = 'a', help_heading = "How")]
    pub all: bool,
    /// One JSON object with everything, a line each time
    #[arg(long, help_heading = "How")]
    pub json: bool,
    /// Again every SECONDS, with rates [default: 1]
    #[arg(long, value_name = "SECONDS", help_heading = "How", num_args = 0..=1, default_missing_value = "1", value_parser = watch_seconds)]
    pub watch: Option<Duration>,
    /// With --watch: end after so many times
    #[arg(long, value_name = "N", help_heading = "How", requires = "watch", value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: Option<u64>,
    /// Without effect: for InfiniBand's columns
    #[arg(short = 'v', help_heading = "Compatibility")]
    pub verbose: bool,
    /// Without effect: for InfiniBand's columns
    #[arg(short = 'o', value_name = "FIELDS", help_heading = "Compatibility")]
    pub fields: Option<String>,
    /// Refused: a node is of one network namespace, whose sockets' files are
    #[arg(short = 'N', help_heading = "Compatibility")]
    pub namespaces: bool,
}

fn watch_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("'{text}' is no number of seconds"))?;
    if (0.1..=86_400.0).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(format!("'{text}' is out of range: give 0.1 to 86400 seconds"))
}

/// Runs it, the program's name first.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match super::parse::<Cli>(args) {
        Ok(cli) => ended(PROGRAM, run(&cli)),
        Err(code) => code,
    }
}

/// What the JSON object has.
#[derive(Serialize)]
struct Json<'a> {
    /// Time since 1970, in ms.
    at_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodes: Option<&'a [NodeStatus]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<&'a Rows>,
}

/// What was seen at one time.
struct Look {
    at: Instant,
    since_1970: Duration,
    nodes: Vec<NodeStatus>,
    rows: Rows,
}

fn run(cli: &Cli) -> Result<ExitCode, Failure> {
    if cli.namespaces {
        return Err(failure!(
            "-N does not apply: run rds-info for the socket of each namespace's daemon (--attach)"
        ));
    }
    for (asked, what) in [(cli.ib, "-I"), (cli.kernel && cli.paths, "-p")] {
        if asked {
            complain(
                PROGRAM,
                &format!(
                    "{what} does not apply to {}",
                    if cli.kernel { "the kernel's RDS over TCP" } else { "RDS over TCP" }
                ),
            );
        }
    }
    let mut before: Option<Look> = None;
    let mut round = 0;
    loop {
        round += 1;
        match look(cli) {
            Ok(now) => {
                show(cli, &now, before.as_ref(), round)?;
                before = Some(now);
            }
            // Whoever watches sees it come back.
            Err(failure) if cli.watch.is_some() && round > 1 => {
                complain(PROGRAM, &failure.message);
                before = None;
            }
            Err(failure) => return Err(failure),
        }
        let Some(pause) = cli.watch.filter(|_| cli.rounds.is_none_or(|rounds| round < rounds)) else {
            return Ok(ExitCode::SUCCESS);
        };
        std::thread::sleep(pause);
    }
}

fn look(cli: &Cli) -> Result<Look, Failure> {
    let (nodes, rows) = if cli.kernel {
        (Vec::new(), Rows::of_kernel(|what| complain(PROGRAM, what))?)
    } else {
        let source = match &cli.node {
            Some(path) => Source::Program(path.clone()),
            None => Source::Daemon(cli.attach.clone().flatten().unwrap_or_else(default_daemon)),
        };
        let seen = source.look()?;
        let rows = Rows::of_nodes(&seen);
        (seen.nodes, rows)
    };
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(Look { at: Instant::now(), since_1970, nodes, rows })
}

fn show(cli: &Cli, now: &Look, before: Option<&Look>, round: u64) -> Result<(), Failure> {
    if cli.json {
        let json = Json {
            at_ms: u64::try_from(now.since_1970.as_millis()).unwrap_or(u64::MAX),
            nodes: (!cli.kernel).then_some(&now.nodes),
            kernel: cli.kernel.then_some(&now.rows),
        };
        let line = text::json(&json).map_err(|e| failure!("cannot write the JSON object: {e}"))?;
        print(&(line + "\n"));
        return Ok(());
    }
    let mut out = String::new();
    if let Some(pause) = cli.watch {
        if std::io::stdout().is_terminal() {
            out.push_str("\u{1b}[H\u{1b}[2J");
        } else if round > 1 {
            out.push('\n');
        }
        out.push_str(&format!("{}  every {} s\n", text::moment(now.since_1970), pause.as_secs_f64()));
    }
    out.push_str(&tables(cli, now, before));
    print(&out);
    Ok(())
}

fn tables(cli: &Cli, now: &Look, before: Option<&Look>) -> String {
    let chosen = [
        cli.counters,
        cli.sockets,
        cli.connections,
        cli.paths,
        cli.receive,
        cli.send,
        cli.retransmit,
        cli.tcp,
        cli.ib,
        cli.peers,
        cli.ports,
        cli.clients,
        cli.pins,
    ];
    let all = !chosen.contains(&true);
    let addresses = Addresses { all: cli.all };
    let elapsed = |look: &Look| now.at.duration_since(look.at).as_secs_f64().max(1e-9);
    let (rows, nodes) = (&now.rows, now.nodes.as_slice());
    let of_nodes = |asked: bool| (asked || all) && !cli.kernel;
    let mut out = String::new();
    // In the order of the reference; then our own.
    if all || cli.tcp {
        out.push_str(&tables::tcp(&rows.tcp, addresses));
    }
    if all || cli.counters {
        let before = before.map(|look| (look.rows.counters.as_slice(), elapsed(look)));
        out.push_str(&tables::counters(&rows.counters, before));
    }
    if all || cli.sockets {
        out.push_str(&tables::sockets(&rows.sockets, addresses));
    }
    if all || cli.connections {
        out.push_str(&tables::connections(&rows.connections, addresses));
    }
    if of_nodes(cli.paths) {
        out.push_str(&ours::paths(nodes, addresses, now.since_1970));
    }
    for (asked, title, queue) in [
        (cli.receive, "Receive", &rows.receive),
        (cli.send, "Send", &rows.send),
        (cli.retransmit, "Retransmit", &rows.retransmit),
    ] {
        if all || asked {
            out.push_str(&tables::messages(title, queue, addresses));
        }
    }
    if of_nodes(cli.peers) {
        out.push_str(&ours::peers(nodes, before.map(|look| (look.nodes.as_slice(), elapsed(look)))));
    }
    if of_nodes(cli.ports) {
        out.push_str(&ours::ports(nodes));
    }
    if of_nodes(cli.clients) {
        out.push_str(&ours::clients(nodes));
    }
    if of_nodes(cli.pins) {
        out.push_str(&ours::pins(nodes));
    }
    out
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound_and_has_the_references_letters() {
        Cli::command().debug_assert();
        let cli = Cli::try_parse_from(["rds-info", "-acknprstITv", "-o", "x"]).unwrap();
        assert!(cli.all && cli.counters && cli.tcp && cli.ib && cli.fields.is_some());
        let cli = Cli::try_parse_from(["rds-info", "--watch", "-c", "--attach"]).unwrap();
        assert_eq!((cli.watch, cli.attach), (Some(Duration::from_secs(1)), Some(None)));
        for wrong in [
            &["--watch", "0"][..],
            &["--rounds", "2"],
            &["--node", "a", "--attach", "b"],
            &["--kernel", "--node", "a"],
            &["x"],
        ] {
            assert!(Cli::try_parse_from(["rds-info"].iter().chain(wrong)).is_err(), "{wrong:?}");
        }
    }
}
