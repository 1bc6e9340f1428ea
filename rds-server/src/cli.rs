//! The command line.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Parser};
use ipnet::IpNet;
use nix::unistd::{Group, User};
use rds_core::proto::{PeerFilter, PeerRules};
use rds_core::zerocopy::Mode;

use crate::access::Rule;
use crate::settings::{DEFAULT_SOCKET, Settings};

const ABOUT: &str = "Serves Reliable Datagram Sockets over TCP to all programs of a host, in user space.\n\n\
    It owns the given addresses on the RDS port (16385); programs attach to it at a Unix socket, with rds-client: \
    Node::attach(path), or RDS_ATTACH=path for a program that opens a node.";

const EXAMPLES: &str = "Examples:\n  \
    rds-server --address 10.0.0.1\n  \
    rds-server --address 10.0.0.1 --address fd00::1 --socket /run/rds/rds.sock --peer-in-allow 10.0.0.0/8\n  \
    rds-server --address 10.0.0.1 --bind deny,uid=1001,port=2-1023 --bind allow\n\n\
    Sizes are bytes, with k, m or g (2^10, 2^20, 2^30) behind if you like. Exit status: 0 after SIGTERM or SIGINT, 1 when it cannot start or go on, \
    2 after a wrong command line. RUST_LOG chooses other log lines than --log does.";

const QUOTAS: &str = "Quotas";
const ACCESS: &str = "Access";
const NODES: &str = "Nodes";
const DATA: &str = "Data path";

/// The options as given.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rds-server",
    about = ABOUT,
    after_help = EXAMPLES,
    version,
    max_term_width = 110
)]
#[allow(clippy::struct_excessive_bools, missing_docs)]
pub struct Cli {
    /// Address of this host to serve; once for each node
    #[arg(long, value_name = "ADDRESS", required = true, action = ArgAction::Append, help_heading = NODES)]
    pub address: Vec<IpAddr>,
    /// TCP port to listen on; 0 for any free one
    #[arg(long, value_name = "PORT", default_value_t = 16385, help_heading = NODES)]
    pub listen_port: u16,
    /// TCP port to connect to
    #[arg(long, value_name = "PORT", default_value_t = 16385, help_heading = NODES)]
    pub dial_port: u16,
    /// TCP connections offered to each peer, 1 to 8
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8), help_heading = NODES)]
    pub lanes: u8,
    /// TCP congestion control, such as cubic [default: the system's]
    #[arg(long, value_name = "NAME", help_heading = NODES)]
    pub congestion_control: Option<String>,
    /// Accept connections of these peers only; again for more
    #[arg(long, value_name = "CIDR", value_parser = net, help_heading = NODES)]
    pub peer_in_allow: Vec<IpNet>,
    /// Accept no connections of these peers; where both lists name one, the longer prefix counts
    #[arg(long, value_name = "CIDR", value_parser = net, help_heading = NODES)]
    pub peer_in_refuse: Vec<IpNet>,
    /// Send to these peers only
    #[arg(long, value_name = "CIDR", value_parser = net, help_heading = NODES)]
    pub peer_out_allow: Vec<IpNet>,
    /// Send nothing to these peers
    #[arg(long, value_name = "CIDR", value_parser = net, help_heading = NODES)]
    pub peer_out_refuse: Vec<IpNet>,
    /// Received bytes of a node that programs have not taken
    #[arg(long, value_name = "BYTES", default_value = "1g", value_parser = size, help_heading = NODES)]
    pub receive_budget: u64,

    /// Unix socket at which programs attach
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET, help_heading = ACCESS)]
    pub socket: PathBuf,
    /// Permissions of the socket, octal
    #[arg(long, value_name = "MODE", default_value = "0666", value_parser = mode, help_heading = ACCESS)]
    pub socket_mode: u32,
    /// Owner of the socket, by name or number [default: this user]
    #[arg(long, value_name = "USER", value_parser = user, help_heading = ACCESS)]
    pub socket_owner: Option<u32>,
    /// Group of the socket, by name or number [default: this group]
    #[arg(long, value_name = "GROUP", value_parser = group, help_heading = ACCESS)]
    pub socket_group: Option<u32>,
    /// Only this user may attach; again for more [default: everybody who may open the socket]
    #[arg(long, value_name = "USER", value_parser = user, help_heading = ACCESS)]
    pub allow_uid: Vec<u32>,
    /// Only members of this group may attach; again for more
    #[arg(long, value_name = "GROUP", value_parser = group, help_heading = ACCESS)]
    pub allow_gid: Vec<u32>,
    /// Who may bind what: `allow|deny[,uid=N][,gid=N][,port=N[-M]][,address=CIDR]`; the first that concerns a case counts, and without any everything is allowed
    #[arg(long, value_name = "RULE", help_heading = ACCESS)]
    pub bind: Vec<Rule>,

    /// Attached programs
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = QUOTAS)]
    pub max_clients: u64,
    /// Attached programs of a user
    #[arg(long, value_name = "N", default_value_t = 256, help_heading = QUOTAS)]
    pub max_clients_per_uid: u64,
    /// Sockets of a program
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = QUOTAS)]
    pub sockets_per_client: u64,
    /// Sockets of a user
    #[arg(long, value_name = "N", default_value_t = 16384, help_heading = QUOTAS)]
    pub sockets_per_uid: u64,
    /// Send buffers of a program's sockets together
    #[arg(long, value_name = "BYTES", default_value = "256m", value_parser = size, help_heading = QUOTAS)]
    pub send_bytes_per_client: u64,
    /// Send buffers of a user's sockets together
    #[arg(long, value_name = "BYTES", default_value = "1g", value_parser = size, help_heading = QUOTAS)]
    pub send_bytes_per_uid: u64,
    /// Receive buffers of a program's sockets together
    #[arg(long, value_name = "BYTES", default_value = "256m", value_parser = size, help_heading = QUOTAS)]
    pub receive_bytes_per_client: u64,
    /// Receive buffers of a user's sockets together
    #[arg(long, value_name = "BYTES", default_value = "1g", value_parser = size, help_heading = QUOTAS)]
    pub receive_bytes_per_uid: u64,
    /// Shared memory of a program: both arenas
    #[arg(long, value_name = "BYTES", default_value = "512m", value_parser = size, help_heading = QUOTAS)]
    pub arena_per_client: u64,
    /// Shared memory of a user
    #[arg(long, value_name = "BYTES", default_value = "32g", value_parser = size, help_heading = QUOTAS)]
    pub arena_per_uid: u64,
    /// Addresses that a program has sent to since it attached
    #[arg(long, value_name = "N", default_value_t = 512, help_heading = QUOTAS)]
    pub peers_per_client: u64,
    /// The same, of a user's programs together
    #[arg(long, value_name = "N", default_value_t = 1024, help_heading = QUOTAS)]
    pub peers_per_uid: u64,
    /// Bytes that the kernel may have pinned for a program [default: a quarter of the node's]
    #[arg(long, value_name = "BYTES", value_parser = size, help_heading = QUOTAS)]
    pub pinned_per_client: Option<u64>,
    /// Bytes that the kernel may have pinned for a user's programs together [default: half of the node's]
    #[arg(long, value_name = "BYTES", value_parser = size, help_heading = QUOTAS)]
    pub pinned_per_uid: Option<u64>,

    /// Send large payloads from where they lie: off, on, or auto (where it costs less)
    #[arg(long, value_name = "MODE", default_value = "auto", help_heading = DATA)]
    pub zero_copy_send: Mode,
    /// Size of each arena, unless the program asks for another
    #[arg(long, value_name = "BYTES", default_value = "32m", value_parser = size, help_heading = DATA)]
    pub arena: u64,
    /// Look for work that long before sleeping: spares wake-ups at the price of a processor
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 0, help_heading = DATA)]
    pub busy_poll: u64,
    /// Have everything go over the Unix socket
    #[arg(long, help_heading = DATA)]
    pub no_shared_memory: bool,

    /// Seconds for delivering what is queued when the daemon ends
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub drain: u64,
    /// Log lines: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = ["error", "warn", "info", "debug", "trace"], hide_possible_values = true)]
    pub log: String,
}

/// Reads a command line.
///
/// # Errors
/// It is wrong, or asks for help: what to print.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<(Settings, String), clap::Error> {
    let cli = Cli::try_parse_from(args)?;
    let log = cli.log.clone();
    Ok((settings(cli), log))
}

fn settings(cli: Cli) -> Settings {
    let mut settings = Settings::new(cli.address);
    settings.socket = cli.socket;
    settings.mode = cli.socket_mode;
    settings.owner = cli.socket_owner;
    settings.group = cli.socket_group;
    settings.attach.uids = cli.allow_uid;
    settings.attach.gids = cli.allow_gid;
    settings.rules = cli.bind;
    settings.quotas.max_clients = cli.max_clients;
    let client = &mut settings.quotas.client;
    client.sockets = cli.sockets_per_client;
    client.send_bytes = cli.send_bytes_per_client;
    client.receive_bytes = cli.receive_bytes_per_client;
    client.arena = cli.arena_per_client;
    client.peers = cli.peers_per_client;
    let user = &mut settings.quotas.user;
    user.clients = cli.max_clients_per_uid;
    user.sockets = cli.sockets_per_uid;
    user.send_bytes = cli.send_bytes_per_uid;
    user.receive_bytes = cli.receive_bytes_per_uid;
    user.arena = cli.arena_per_uid;
    user.peers = cli.peers_per_uid;
    settings.pinned_per_client = cli.pinned_per_client;
    settings.pinned_per_user = cli.pinned_per_uid;
    settings.arena = cli.arena;
    settings.shared_memory = !cli.no_shared_memory;
    settings.busy_poll = Duration::from_micros(cli.busy_poll);
    settings.listen_port = cli.listen_port;
    settings.dial_port = cli.dial_port;
    settings.lanes = cli.lanes;
    settings.congestion_control = cli.congestion_control;
    settings.zero_copy_send = cli.zero_copy_send;
    settings.receive_budget = cli.receive_budget;
    settings.peers = PeerFilter::new(
        PeerRules::new(cli.peer_in_allow, cli.peer_in_refuse),
        PeerRules::new(cli.peer_out_allow, cli.peer_out_refuse),
    );
    settings.drain = Duration::from_secs(cli.drain);
    settings
}

fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last().map(u8::to_ascii_lowercase) {
        Some(b'k') => (&text[..text.len() - 1], 10),
        Some(b'm') => (&text[..text.len() - 1], 20),
        Some(b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 =
        digits.parse().map_err(|_| "give a number of bytes, as 4096, 64k, 32m or 1g".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is more than any machine has".to_owned())
}

fn mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "give permissions in octal, as 0660".to_owned())
}

fn net(text: &str) -> Result<IpNet, String> {
    text.parse()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| "give an address, or a network as 10.0.0.0/8".to_owned())
}

fn user(text: &str) -> Result<u32, String> {
    by_name(text, |name| User::from_name(name).ok().flatten().map(|user| user.uid.as_raw()), "user")
}

fn group(text: &str) -> Result<u32, String> {
    by_name(text, |name| Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw()), "group")
}

fn by_name(text: &str, find: impl Fn(&str) -> Option<u32>, what: &str) -> Result<u32, String> {
    text.parse().ok().or_else(|| find(text)).ok_or_else(|| format!("this host has no such {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(args: &str) -> Result<Settings, String> {
        let args = std::iter::once("rds-server").chain(args.split_whitespace()).map(OsString::from);
        parse(args).map(|(settings, _)| settings).map_err(|e| e.to_string())
    }

    #[test]
    fn a_command_line_without_options_has_the_documented_defaults() {
        let (ours, theirs) =
            (parsed("--address 10.0.0.1").unwrap(), Settings::new(vec![[10, 0, 0, 1].into()]));
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    }

    #[test]
    fn every_option_reaches_its_setting() {
        let settings = parsed(
            "--address 10.0.0.1 --address fd00::1 --socket /tmp/x --socket-mode 0660 --socket-owner root --socket-group 7 \
             --allow-uid 5 --allow-gid 6 --bind deny,port=80 --bind allow --max-clients 3 --max-clients-per-uid 2 \
             --sockets-per-client 4 --sockets-per-uid 8 --send-bytes-per-client 1k --send-bytes-per-uid 2k \
             --receive-bytes-per-client 3k --receive-bytes-per-uid 4k --arena-per-client 5k --arena-per-uid 6k --peers-per-client 9 --peers-per-uid 10 \
             --pinned-per-client 7k --pinned-per-uid 8k --zero-copy-send off --arena 1m --busy-poll 50 --no-shared-memory --listen-port 1 \
             --dial-port 2 --lanes 4 --congestion-control cubic --receive-budget 1m --drain 9",
        )
        .unwrap();
        assert_eq!(settings.addresses.len(), 2);
        assert_eq!((settings.mode, settings.owner, settings.group), (0o660, Some(0), Some(7)));
        assert_eq!((settings.attach.uids, settings.attach.gids, settings.rules.len()), (vec![5], vec![6], 2));
        let (client, user) = (settings.quotas.client, settings.quotas.user);
        assert_eq!((settings.quotas.max_clients, user.clients, client.sockets, user.sockets), (3, 2, 4, 8));
        assert_eq!((client.send_bytes, user.send_bytes), (1 << 10, 2 << 10));
        assert_eq!((client.receive_bytes, user.receive_bytes), (3 << 10, 4 << 10));
        assert_eq!((client.arena, user.arena), (5 << 10, 6 << 10));
        assert_eq!((client.peers, user.peers), (9, 10));
        assert_eq!((settings.pinned_per_client, settings.pinned_per_user), (Some(7 << 10), Some(8 << 10)));
        assert_eq!(
            (settings.zero_copy_send, settings.arena, settings.shared_memory),
            (Mode::Off, 1 << 20, false)
        );
        assert_eq!((settings.busy_poll, settings.drain), (Duration::from_micros(50), Duration::from_secs(9)));
        assert_eq!((settings.listen_port, settings.dial_port, settings.lanes), (1, 2, 4));
        assert_eq!(
            (settings.congestion_control.as_deref(), settings.receive_budget),
            (Some("cubic"), 1 << 20)
        );
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        for (args, says) in [
            ("", "--address"),
            ("--address x", "invalid value 'x' for '--address"),
            ("--address ::1 --socket-mode 999", "give permissions in octal"),
            ("--address ::1 --allow-uid nobody-of-that-name", "this host has no such user"),
            ("--address ::1 --arena much", "give a number of bytes"),
            ("--address ::1 --peer-in-allow here", "give an address, or a network"),
            ("--address ::1 --bind may", "write allow or deny"),
            ("--address ::1 --lanes 9", "9 is not in 1..=8"),
            ("--address ::1 --log loud", "possible values: error, warn, info, debug, trace"),
        ] {
            let error = parsed(args).unwrap_err();
            assert!(error.contains(says), "{args}: {error}");
        }
    }
}
