//! The command line: the reference's options under its names, with its defaults, and our own.

use std::error::Error as _;
use std::ffi::OsString;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::error::{ContextKind, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser};
use rds_client::Mode;

use crate::backend::Choice;
use crate::block::Block;
use crate::clock::Schedule;
use crate::error::{Failure, failure};
use crate::number;
use crate::out::Out;
use crate::roles::{Lanes, NodeSettings, Offer, Settings};
use crate::run::Local;
use crate::zerocopy::Modes;

const ABOUT: &str = "Loads, measures and verifies Reliable Datagram Sockets over TCP, in user space.\n\n\
    Without -s this is the passive side: it waits for an active one and does as it is told. With -s HOST it is the active side. \
    --loopback is both in one process.\n\n\
    Numbers are decimal, 0x hexadecimal or 0 octal, with k, m or g (2^10, 2^20, 2^30) behind if you like.";

/// Where the daemon's socket is by default.
const DAEMON: &str = rds_client::DEFAULT_PATH;

const EXAMPLES: &str = "Examples:\n  \
    rds-stress --loopback -T 10                             measure this host with itself\n  \
    rds-stress -r 10.0.0.1                                  wait at 10.0.0.1\n  \
    rds-stress -r 10.0.0.2 -s 10.0.0.1 -t 4 -d 8 -v -T 60   load it from 10.0.0.2, every byte checked\n  \
    rds-stress --attach --processes -r 10.0.0.1             the same over this host's daemon, a process a task\n\n\
    Exit status: 0 after a run, 1 after an error, 2 after a wrong command line.";

/// The options as given.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rds-stress",
    about = ABOUT,
    after_help = EXAMPLES,
    version,
    args_override_self = true,
    infer_long_args = true,
    disable_help_flag = true,
    disable_version_flag = true,
    max_term_width = 110
)]
#[allow(clippy::struct_excessive_bools, missing_docs)]
pub struct Cli {
    /// Be the active side; the passive one is at HOST
    #[arg(short = 's', long, value_name = "HOST", help_heading = "Roles", conflicts_with = "loopback")]
    pub send_addr: Option<String>,
    /// Be both sides, at 127.0.0.1 and 127.0.0.2, with real TCP between them
    #[arg(long, help_heading = "Roles")]
    pub loopback: bool,
    /// Own RDS address [default: passive: the one the active side connects to; active: the one the route has]
    #[arg(short = 'r', long, value_name = "HOST", help_heading = "Roles", value_parser = address, conflicts_with = "loopback")]
    pub recv_addr: Option<IpAddr>,
    /// Control port, TCP; task i uses RDS port PORT+1+i
    #[arg(short = 'p', long, value_name = "PORT", help_heading = "Roles", default_value = "4000", value_parser = num16)]
    pub port: u16,
    /// Try the control connection again N times, once a second
    #[arg(long, value_name = "N", help_heading = "Roles", default_value = "0", value_parser = num32)]
    pub connect_retries: u32,

    /// Tasks on each side; each exchanges with each of the other side
    #[arg(short = 't', long, value_name = "N", help_heading = "Load (the active side decides)", default_value = "1", value_parser = num16)]
    pub tasks: u16,
    /// Requests outstanding for each pair of tasks, at most 65536
    #[arg(short = 'd', long, value_name = "N", help_heading = "Load (the active side decides)", default_value = "1", value_parser = num32)]
    pub depth: u32,
    /// Bytes of a request, header (63) included, at most 1m
    #[arg(short = 'q', long, value_name = "BYTES", help_heading = "Load (the active side decides)", default_value = "1024", value_parser = num32)]
    pub req_bytes: u32,
    /// Bytes of an ack, header included, at most 1m [default: the header]
    #[arg(short = 'a', long, value_name = "BYTES", help_heading = "Load (the active side decides)", value_parser = num32)]
    pub ack_bytes: Option<u32>,
    /// Only the active side issues requests
    #[arg(short = 'o', long, help_heading = "Load (the active side decides)")]
    pub one_way: bool,
    /// Measured time in seconds; 0: until Ctrl-C
    #[arg(short = 'T', long, value_name = "SECONDS", help_heading = "Load (the active side decides)", default_value = "0", value_parser = num32)]
    pub time: u32,
    /// Fill payloads with a pattern and check every byte (headers are always checked)
    #[arg(short = 'v', long, help_heading = "Load (the active side decides)")]
    pub verify: bool,
    /// 1: be told when congestion clears; 0: try again every 10 ms
    #[arg(long, value_name = "0|1", help_heading = "Load (the active side decides)", default_value = "1", value_parser = bit)]
    pub use_cong_monitor: u8,

    /// No line each second, only the final one
    #[arg(short = 'z', long, help_heading = "Reports")]
    pub report_summary: bool,
    /// One JSON object on stdout at the end; all other lines go to stderr
    #[arg(long, help_heading = "Reports")]
    pub json: bool,
    /// Fill the cpu % column: a soaker at idle priority on each CPU
    #[arg(short = 'c', long, help_heading = "Reports")]
    pub report_cpu: bool,
    /// Print the options before connecting
    #[arg(long, help_heading = "Reports")]
    pub show_params: bool,
    /// CSV lines behind '::' instead of the table, with every RDS counter
    #[arg(long, help_heading = "Reports")]
    pub show_perfdata: bool,
    /// A histogram of round trips after the final line
    #[arg(long, help_heading = "Reports")]
    pub show_histogram: bool,
    /// Print each round trip above USEC microseconds to stderr, in hexadecimal
    #[arg(long, value_name = "USEC", help_heading = "Reports", value_parser = num64)]
    pub show_outliers: Option<u64>,
    /// Traces of the RDS engine on stderr; RUST_LOG chooses which
    #[arg(short = 'V', long, help_heading = "Reports")]
    pub trace: bool,

    /// From the agreement of both sides until tasks start
    #[arg(long, value_name = "SECONDS", help_heading = "Clock (of this side only)", default_value = "2", value_parser = seconds)]
    pub start_delay: Duration,
    /// From the agreement until measuring begins; not before the tasks start
    #[arg(long, value_name = "SECONDS", help_heading = "Clock (of this side only)", default_value = "4", value_parser = seconds)]
    pub warmup: Duration,
    /// From the end of measuring until tasks end; they receive, but send nothing
    #[arg(long, value_name = "SECONDS", help_heading = "Clock (of this side only)", default_value = "1", value_parser = seconds)]
    pub drain: Duration,
    /// Be killed (SIGALRM) this many seconds after measuring began
    #[arg(long, value_name = "SECONDS", help_heading = "Clock (of this side only)", default_value = "0", value_parser = num32)]
    pub abort_after: u32,
    /// At the end cancel what is on its way, and print how long that took
    #[arg(long, help_heading = "Clock (of this side only)")]
    pub cancel_sent_to: bool,
    /// Run the parent at real-time priority 1, round robin
    #[arg(short = 'R', long, help_heading = "Clock (of this side only)")]
    pub rtprio: bool,

    /// What carries the messages: rds, a node in this process; kernel, sockets of the modules rds and rds_tcp (AF_RDS), towards which either side may be
    /// rds; tcp, framed messages over a TCP connection for each pair of tasks, as a floor, on both sides
    #[arg(long, value_name = "NAME", help_heading = "RDS node (of this side only)", default_value = "rds", value_parser = backend)]
    pub backend: Choice,
    /// Be a client of the daemon (rds-server) whose socket is PATH, instead of a node of its own; for --backend rds
    #[arg(long, value_name = "PATH", help_heading = "RDS node (of this side only)", num_args = 0..=1, default_missing_value = DAEMON)]
    pub attach: Option<PathBuf>,
    /// Make each task a process of its own, as the reference does, instead of a thread: with --attach, or --backend kernel
    #[arg(long, help_heading = "RDS node (of this side only)")]
    pub processes: bool,
    /// TCP port of the RDS nodes of both sides
    #[arg(long, value_name = "PORT", help_heading = "RDS node (of this side only)", default_value = "16385", value_parser = num16)]
    pub rds_port: u16,
    /// TCP port on which the node listens, if it is another [default: --rds-port]
    #[arg(long, value_name = "PORT", help_heading = "RDS node (of this side only)", value_parser = num16)]
    pub listen_port: Option<u16>,
    /// TCP port to which the node connects, if it is another [default: --rds-port]
    #[arg(long, value_name = "PORT", help_heading = "RDS node (of this side only)", value_parser = num16)]
    pub dial_port: Option<u16>,
    /// TCP connections to offer the peer: 1 to 8, or auto, which looks at the processors
    #[arg(long, value_name = "N", help_heading = "RDS node (of this side only)", default_value = "1", value_parser = lanes)]
    pub lanes: Lanes,

    /// Zero copy in both directions: off, on, or auto where it was measured to cost less [default: auto for sending, off for receiving]
    #[arg(long, value_name = "MODE", help_heading = "Zero copy (of this side only)", value_parser = mode)]
    pub zcopy: Option<Mode>,
    /// The same for what is sent (MSG_ZEROCOPY) [default: --zcopy]
    #[arg(long, value_name = "MODE", help_heading = "Zero copy (of this side only)", value_parser = mode)]
    pub zcopy_send: Option<Mode>,
    /// The same for what is received (TCP_ZEROCOPY_RECEIVE) [default: --zcopy]
    #[arg(long, value_name = "MODE", help_heading = "Zero copy (of this side only)", value_parser = mode)]
    pub zcopy_recv: Option<Mode>,
    /// How long the kernel may keep what was pinned before the connection is ended and made anew
    #[arg(long, value_name = "SECONDS", help_heading = "Zero copy (of this side only)", default_value = "30", value_parser = seconds)]
    pub pin_hold: Duration,

    /// Header length: 56, 60 or 63, 96 for IPv6 [default: what fits into an ack]
    #[arg(long, value_name = "BYTES", help_heading = "Compatibility", value_parser = num32)]
    pub header_bytes: Option<u32>,
    /// Version to claim towards the reference, which must have the same, with -Q and IPv6
    #[arg(long, value_name = "VERSION", help_heading = "Compatibility", default_value = "2.0.7", value_parser = peer_version)]
    pub peer_version: String,
    /// Type of service; without effect over TCP
    #[arg(short = 'Q', long, value_name = "N", help_heading = "Compatibility", default_value = "0", value_parser = num8)]
    pub tos: u8,
    /// Without effect: there is no SO_RDS_INQ here
    #[arg(long, help_heading = "Compatibility")]
    pub disable_inq: bool,
    /// Refused: needs Oracle's kernel
    #[arg(long = "async", help_heading = "Compatibility")]
    pub async_sends: bool,
    /// Refused: needs Oracle's kernel
    #[arg(long, help_heading = "Compatibility")]
    pub reset: bool,
    /// Refused: needs the JSON exchange of 2.3.9 and later
    #[arg(long, help_heading = "Compatibility")]
    pub always_bursty: bool,
    /// Refused: needs the JSON exchange of 2.3.9 and later
    #[arg(long, help_heading = "Compatibility")]
    pub sync_always_bursty: bool,

    /// Bytes of an RDMA operation; only 0 is possible
    #[arg(short = 'D', long, value_name = "BYTES", help_heading = "RDMA (refused when -D asks for it: TCP has none)", default_value = "0", value_parser = num32)]
    pub rdma_bytes: u32,
    /// Buffers of an RDMA operation, at most 512
    #[arg(short = 'I', long, value_name = "N", help_heading = "RDMA (refused when -D asks for it: TCP has none)", default_value = "1", value_parser = rdma_buffers)]
    pub rdma_buffers: u32,
    /// 0 read and write, 1 read, 2 write
    #[arg(short = 'M', long, value_name = "N", help_heading = "RDMA (refused when -D asks for it: TCP has none)", default_value = "0", value_parser = rdma_mode)]
    pub rdma_mode: u8,
    #[arg(long, value_name = "0|1", hide = true, default_value = "0", value_parser = bit)]
    pub rdma_use_once: u8,
    #[arg(long, value_name = "0|1", hide = true, default_value = "0", value_parser = bit)]
    pub rdma_use_get_mr: u8,
    #[arg(long, value_name = "0|1", hide = true, default_value = "1", value_parser = bit)]
    pub rdma_use_fence: u8,
    #[arg(long, value_name = "0|1", hide = true, default_value = "0", value_parser = bit)]
    pub rdma_cache_mrs: u8,
    #[arg(long, value_name = "0|1", hide = true, default_value = "0", value_parser = bit)]
    pub rdma_use_notify: u8,
    #[arg(long, value_name = "BYTES", hide = true, default_value = "0", value_parser = rdma_alignment)]
    pub rdma_alignment: u32,
    #[arg(long, hide = true)]
    pub rdma_key_o_meter: bool,

    /// This help; -h ends with status 2, as in the reference
    #[arg(long, action = ArgAction::Help, help_heading = "Help")]
    help: Option<bool>,
    #[arg(short = 'h', action = ArgAction::HelpShort, hide = true)]
    short_help: Option<bool>,
    /// The version
    #[arg(long, action = ArgAction::Version, help_heading = "Help")]
    version: Option<bool>,
}

/// What to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The passive side.
    Passive,
    /// The active side towards this host.
    Active(String),
    /// Both.
    Loopback,
}

/// The command line, understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What to be.
    pub part: Part,
    /// How.
    pub settings: Settings,
    /// What the active side asks for.
    pub offer: Offer,
    /// What carries the messages.
    pub backend: Choice,
    /// Whether to print a JSON object.
    pub json: bool,
    /// Where the other lines go.
    pub out: Out,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Something to print was asked for: the text, and the exit code.
    Show(String, u8),
    /// The command line is wrong, or asks for what cannot be.
    Wrong(Failure),
}

/// Understands a command line, the program's name first.
///
/// # Errors
/// Help and version, too, come as [`Stop`].
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Plan, Stop> {
    let args: Vec<OsString> = args.into_iter().collect();
    let matches = Cli::command().try_get_matches_from(&args).map_err(|e| stop(&e, &args))?;
    let cli = Cli::from_arg_matches(&matches).map_err(|e| stop(&e, &args))?;
    refuse_misplaced(&cli, &matches).and_then(|()| plan(&cli)).map_err(Stop::Wrong)
}

fn stop(error: &clap::Error, args: &[OsString]) -> Stop {
    let subject = |kind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let arg = subject(ContextKind::InvalidArg);
    let help = "'rds-stress --help' lists all";
    Stop::Wrong(match error.kind() {
        ErrorKind::DisplayHelp => {
            // The reference knows only -h, and takes it for a usage error.
            let long = args.iter().any(|a| a.to_str().is_some_and(|a| a.starts_with("--h")));
            return Stop::Show(error.render().to_string(), if long { 0 } else { 2 });
        }
        ErrorKind::DisplayVersion => return Stop::Show(error.render().to_string(), 0),
        // As in the reference: a bad number is an error like others, not a question of usage.
        ErrorKind::ValueValidation => {
            let reason = error.source().map(ToString::to_string).unwrap_or_default();
            failure!("{}: {reason}", arg.split(' ').next().unwrap_or_default())
        }
        ErrorKind::UnknownArgument if arg.starts_with('-') => {
            Failure::usage(format!("unknown option {arg}: {help}"))
        }
        ErrorKind::UnknownArgument => {
            Failure::usage(format!("'{arg}' is not an option: give hosts with -s and -r; {help}"))
        }
        ErrorKind::ArgumentConflict => Failure::usage(format!(
            "{arg} does not go with {}: leave one out",
            subject(ContextKind::PriorArg)
        )),
        ErrorKind::InvalidValue => Failure::usage(format!("{arg} needs a value: {help}")),
        _ => {
            let text = error.render().to_string();
            let first = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
            Failure::usage(format!("{first}: {help}"))
        }
    })
}

fn plan(cli: &Cli) -> Result<Plan, Failure> {
    refuse_impossible(cli)?;
    let part = match (&cli.send_addr, cli.loopback) {
        (_, true) => Part::Loopback,
        (Some(host), false) => Part::Active(host.clone()),
        (None, false) => Part::Passive,
    };
    let placeholder = IpAddr::from([0, 0, 0, 0]);
    let block = Block {
        depth: cli.depth,
        req_size: cli.req_bytes,
        rdma_size: cli.rdma_bytes,
        starting_port: cli.port,
        tasks: cli.tasks,
        run_time: cli.time,
        summary_only: cli.report_summary,
        rtprio: cli.rtprio,
        tracing: cli.trace,
        verify: cli.verify,
        show_params: cli.show_params,
        show_perfdata: cli.show_perfdata,
        use_cong_monitor: cli.use_cong_monitor != 0,
        rdma_use_once: cli.rdma_use_once != 0,
        rdma_use_get_mr: cli.rdma_use_get_mr != 0,
        rdma_use_fence: cli.rdma_use_fence != 0,
        rdma_cache_mrs: cli.rdma_cache_mrs != 0,
        rdma_key_o_meter: cli.rdma_key_o_meter,
        simplex: cli.one_way,
        rw_mode: cli.rdma_mode,
        rdma_vector: cli.rdma_buffers,
        rdma_alignment: cli.rdma_alignment,
        connect_retries: cli.connect_retries,
        tos: cli.tos,
        ..Block::new(placeholder, placeholder)
    };
    let local = Local {
        schedule: Schedule { start_delay: cli.start_delay, warmup: cli.warmup, drain: cli.drain },
        report_cpu: cli.report_cpu,
        outliers: cli.show_outliers,
        histogram: cli.show_histogram,
        cancel_sent_to: cli.cancel_sent_to,
        abort_after: cli.abort_after,
        interruptible: true,
        ends_together: false,
        zero_copy: modes(cli),
    };
    let settings = Settings {
        own: cli.recv_addr,
        port: cli.port,
        header: cli.header_bytes.map(|n| n as usize),
        peer_version: cli.peer_version.clone(),
        node: NodeSettings {
            listen_port: cli.listen_port.unwrap_or(cli.rds_port),
            dial_port: cli.dial_port.unwrap_or(cli.rds_port),
            lanes: cli.lanes,
            attach: attach(cli),
            processes: cli.processes,
        },
        local,
    };
    let out = if cli.json { Out::Stderr } else { Out::Stdout };
    let offer = Offer { ack_size: cli.ack_bytes, block };
    Ok(Plan { part, settings, offer, backend: cli.backend, json: cli.json, out })
}

/// Options that were given and do not apply to the backend.
fn refuse_misplaced(cli: &Cli, matches: &ArgMatches) -> Result<(), Failure> {
    let backend = cli.backend;
    for id in matches.ids() {
        let option = id.as_str().replace('_', "-");
        let given = matches.value_source(id.as_str()) == Some(ValueSource::CommandLine);
        if let Some(why) = backend.refuses(&option).filter(|_| given) {
            return Err(failure!("--{option} does not go with --backend {backend}: {why}; leave it out"));
        }
    }
    if attach(cli).is_some() {
        refuse_of_daemon(matches)?;
    }
    if cli.processes {
        refuse_of_processes(cli)?;
    }
    let auto = cli.zcopy == Some(Mode::Auto) || cli.zcopy_send == Some(Mode::Auto);
    if backend == Choice::Kernel && auto {
        return Err(failure!(
            "zero copy cannot be auto with --backend kernel, which measures nothing: give on or off"
        ));
    }
    Ok(())
}

/// The daemon to attach to: the one that was named, or that of the environment, as for all programs over `rds-client`.
fn attach(cli: &Cli) -> Option<PathBuf> {
    let named = std::env::var_os("RDS_ATTACH").filter(|path| !path.is_empty() && cli.backend == Choice::Rds);
    cli.attach.clone().or_else(|| named.map(PathBuf::from))
}

/// Options that say how a node is opened, of one that is open.
fn refuse_of_daemon(matches: &ArgMatches) -> Result<(), Failure> {
    for (id, why) in [
        ("rds_port", "the daemon has its ports from its own settings"),
        ("listen_port", "the daemon has its ports from its own settings"),
        ("dial_port", "the daemon has its ports from its own settings"),
        ("lanes", "the daemon has its lanes from its own settings"),
        ("pin_hold", "the daemon decides that for all its clients"),
        ("zcopy_recv", "what comes in is read straight into memory shared with the daemon, and never mapped"),
    ] {
        if matches.value_source(id) == Some(ValueSource::CommandLine) {
            let option = id.replace('_', "-");
            return Err(failure!("--{option} does not go with --attach: {why}; leave it out"));
        }
    }
    Ok(())
}

/// Tasks in several processes need what several processes can use.
fn refuse_of_processes(cli: &Cli) -> Result<(), Failure> {
    let zero_copy = cli.zcopy.or(cli.zcopy_send).unwrap_or(Mode::Off) != Mode::Off;
    match cli.backend {
        Choice::Rds if attach(cli).is_none() => Err(failure!(
            "--processes needs a node that several processes can use, and a node of this program lives in one: give --attach as well, for the daemon's, or --backend kernel"
        )),
        Choice::Tcp => Err(failure!(
            "--processes does not go with --backend tcp, whose connections are made in one process: leave one out"
        )),
        Choice::Kernel if zero_copy => Err(failure!(
            "--processes does not go with zero copy over --backend kernel, whose counts are each process's own: leave one out"
        )),
        Choice::Rds | Choice::Kernel => Ok(()),
    }
}

/// Zero copy as it was asked for, or as the backend has it.
fn modes(cli: &Cli) -> Modes {
    let (send, receive) = match cli.backend {
        Choice::Rds if attach(cli).is_some() => (Mode::default(), None),
        Choice::Rds => (Mode::default(), cli.zcopy),
        // The kernel always copies what is received: its option for both is about sending.
        Choice::Kernel | Choice::Tcp => (Mode::Off, None),
    };
    Modes {
        send: cli.zcopy_send.or(cli.zcopy).unwrap_or(send),
        receive: cli.zcopy_recv.or(receive).unwrap_or(Mode::Off),
        hold: cli.pin_hold,
        shown: cli.zcopy.or(cli.zcopy_send).or(cli.zcopy_recv).is_some(),
    }
}

fn refuse_impossible(cli: &Cli) -> Result<(), Failure> {
    if cli.rdma_bytes != 0 {
        return Err(failure!("RDMA is not supported: TCP has none; leave out -D"));
    }
    if cli.async_sends {
        return Err(failure!("--async needs completions that only Oracle's kernels have: leave it out"));
    }
    if cli.reset {
        return Err(failure!(
            "--reset resets connections of the RDS of Oracle's kernels: here they end with the program, leave it out"
        ));
    }
    if cli.always_bursty || cli.sync_always_bursty {
        return Err(failure!(
            "--always-bursty and --sync-always-bursty need options exchanged as JSON, which is not supported: leave them out"
        ));
    }
    for (option, port) in [("--rds-port", cli.rds_port), ("--dial-port", cli.dial_port.unwrap_or(1))] {
        if port == 0 {
            return Err(failure!("{option} 0: the other side's port must be known, give 1 to 65535"));
        }
    }
    Ok(())
}

fn num8(text: &str) -> Result<u8, String> {
    number::parse(text, u8::MAX.into()).map(|n| n as u8)
}

fn num16(text: &str) -> Result<u16, String> {
    number::parse(text, u16::MAX.into()).map(|n| n as u16)
}

fn num32(text: &str) -> Result<u32, String> {
    number::parse(text, u32::MAX.into()).map(|n| n as u32)
}

fn num64(text: &str) -> Result<u64, String> {
    number::parse(text, u64::MAX)
}

fn bit(text: &str) -> Result<u8, String> {
    number::parse(text, 1).map(|n| n as u8)
}

fn rdma_buffers(text: &str) -> Result<u32, String> {
    number::parse(text, 512).map(|n| n as u32)
}

fn rdma_mode(text: &str) -> Result<u8, String> {
    number::parse(text, 2).map(|n| n as u8)
}

fn rdma_alignment(text: &str) -> Result<u32, String> {
    number::parse(text, 4096).map(|n| n as u32)
}

fn lanes(text: &str) -> Result<Lanes, String> {
    if text == "auto" {
        return Ok(Lanes::Auto);
    }
    match number::parse(text, 8) {
        Ok(n @ 1..) => Ok(Lanes::Number(n as u8)),
        _ => Err(format!("{text} lanes cannot be: give 1 to 8, or auto")),
    }
}

fn backend(text: &str) -> Result<Choice, String> {
    text.parse()
}

fn mode(text: &str) -> Result<Mode, String> {
    text.parse().map_err(|_| format!("'{text}' is no mode of zero copy: give off, on or auto"))
}

/// An address or a name of this host.
fn address(text: &str) -> Result<IpAddr, String> {
    let found = (text, 0).to_socket_addrs().ok().and_then(|mut all| all.next());
    let found = found
        .ok_or_else(|| format!("'{text}' is no address and no name that is known: give one of this host"))?;
    Ok(found.ip().to_canonical())
}

fn peer_version(text: &str) -> Result<String, String> {
    let versioned =
        text.as_bytes().first().is_some_and(u8::is_ascii_digit) && text.as_bytes().get(1) == Some(&b'.');
    if versioned && text.len() < 16 && text.is_ascii() {
        Ok(text.into())
    } else {
        Err(format!("'{text}' is not a version of rds-tools: give one such as 2.0.7 or 2.3.0"))
    }
}

/// Seconds with a fraction, at most a day.
fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a time: give seconds from 0 to 86400, such as 2 or 0.1");
    let seconds: f64 = text.parse().map_err(|_| wrong())?;
    if (0.0..=86400.0).contains(&seconds) { Ok(Duration::from_secs_f64(seconds)) } else { Err(wrong()) }
}
