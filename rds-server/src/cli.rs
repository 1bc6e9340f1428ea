//! The command line: the options of the [configuration](crate::config), and subcommands.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, CommandFactory, FromArgMatches};

use crate::config::{Key, Kind, Source};
use crate::doctor;

const ABOUT: &str = "Serves Reliable Datagram Sockets over TCP to all programs of a host, in user space.\n\n\
    It owns the given addresses on the RDS port (16385); programs attach to it at a Unix socket, with rds-client: \
    Node::attach(path), or RDS_ATTACH=path for a program that opens a node.";

const EXAMPLES: &str = "Examples:\n  \
    rds-server --address 10.0.0.1\n  \
    rds-server --address 10.0.0.1 --address fd00::1 --socket /run/rds/rds.sock --peer-in-allow 10.0.0.0/8\n  \
    rds-server --config /etc/rds/rds-server.toml --check-config\n  \
    rds-server doctor --address 10.0.0.1\n\n\
    Each option is a key of the configuration file too, and an environment variable: what is given here counts more than the environment, and \
    that more than the file. SIGHUP has the daemon read the file again. Sizes are bytes, with k, m or g (2^10, 2^20, 2^30) behind if you like. \
    Exit status: 0 after SIGTERM or SIGINT, 1 when it cannot start or go on, 2 after a wrong command line or configuration. RUST_LOG chooses other \
    log lines than --log does.";

const DOCTOR: &str =
    "Look at what keeps this host from serving RDS, or from serving it well, and say what to do about it";

const CONFIGURATION: &str = "Configuration";

/// What is to be done.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Action {
    /// Run the daemon.
    Run,
    /// Say whether it could run with this configuration.
    CheckConfig,
    /// Print the configuration that counts.
    PrintConfig,
    /// Look at the host.
    Doctor(doctor::Args),
}

/// A command line that was read.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Cli {
    /// What is to be done.
    pub action: Action,
    /// Where the configuration comes from: the command line's part of it, and its file; the environment is to be added by who wants it.
    pub source: Source,
}

/// Reads a command line.
///
/// # Errors
/// It is wrong, or asks for help: what to print.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(&Cli::command().try_get_matches_from(args)?)
}

impl CommandFactory for Cli {
    fn command() -> Command {
        let command = Command::new("rds-server")
            .about(ABOUT)
            .after_help(EXAMPLES)
            .version(env!("CARGO_PKG_VERSION"))
            .max_term_width(110)
            .subcommand_value_name("COMMAND")
            .arg(
                Arg::new("config")
                    .long("config")
                    .value_name("FILE")
                    .value_parser(clap::value_parser!(PathBuf))
                    .global(true)
                    .help_heading(CONFIGURATION)
                    .help("Read this file [default: /etc/rds/rds-server.toml, if it is there]"),
            )
            .arg(
                Arg::new("check-config")
                    .long("check-config")
                    .action(ArgAction::SetTrue)
                    .conflicts_with("print-config")
                    .help_heading(CONFIGURATION)
                    .help("Say whether the daemon could run with this configuration, and end"),
            )
            .arg(
                Arg::new("print-config")
                    .long("print-config")
                    .action(ArgAction::SetTrue)
                    .help_heading(CONFIGURATION)
                    .help(
                        "Print the configuration that counts, each key with where its value is from, and end",
                    ),
            )
            .subcommand(doctor::Args::augment_args(Command::new("doctor")).about(DOCTOR));
        command.args(Key::all().iter().map(option))
    }

    fn command_for_update() -> Command {
        Self::command()
    }
}

impl FromArgMatches for Cli {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let (check, print) = (matches.get_flag("check-config"), matches.get_flag("print-config"));
        let action = match matches.subcommand() {
            Some(_) if check || print => {
                let text = "--check-config and --print-config go without a subcommand";
                return Err(Self::command().error(ErrorKind::ArgumentConflict, text));
            }
            Some((_, matches)) => Action::Doctor(doctor::Args::from_arg_matches(matches)?),
            None if check => Action::CheckConfig,
            None if print => Action::PrintConfig,
            None => Action::Run,
        };
        let given = Key::all().iter().filter_map(|key| Some((key, values(key, matches)?))).collect();
        let file = matches.get_one::<PathBuf>("config").cloned();
        Ok(Self { action, source: Source { file, environment: Vec::new(), given } })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A key's option.
fn option(key: &'static Key) -> Arg {
    let arg = Arg::new(key.flag).long(key.flag).global(true).help_heading(key.section.heading);
    if key.kind == Kind::Switch {
        return arg.action(ArgAction::SetTrue).help(key.help);
    }
    let check = |text: &str| key.check(&[text]).map(|()| text.to_owned()).map_err(|wrong| wrong.why);
    let action = if key.kind == Kind::List { ArgAction::Append } else { ArgAction::Set };
    arg.value_name(key.value).action(action).value_parser(check).help(format!(
        "{} [default: {}]",
        key.help,
        key.default_words()
    ))
}

/// What the command line says of a key; nothing if it is not there.
fn values(key: &Key, matches: &ArgMatches) -> Option<Vec<String>> {
    if key.kind == Kind::Switch {
        return matches.get_flag(key.flag).then(|| vec![false.to_string()]);
    }
    Some(matches.get_many::<String>(key.flag)?.cloned().collect())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rds_core::zerocopy::Mode;

    use super::*;
    use crate::settings::Settings;

    fn parsed(args: &str) -> Result<Cli, String> {
        let args = std::iter::once("rds-server").chain(args.split_whitespace()).map(OsString::from);
        parse(args).map_err(|e| e.to_string())
    }

    fn settings(args: &str) -> Settings {
        let mut cli = parsed(args).unwrap();
        cli.source.file = Some("/dev/null".into());
        cli.source.load().unwrap().settings
    }

    #[test]
    fn a_command_line_without_options_has_the_documented_defaults() {
        let (mut ours, theirs) = (settings("--address 10.0.0.1"), Settings::new(vec![[10, 0, 0, 1].into()]));
        ours.file = None;
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    }

    #[test]
    fn every_option_reaches_its_setting() {
        let settings = settings(
            "--address 10.0.0.1 --address fd00::1 --socket /tmp/x --socket-mode 0660 --socket-owner root --socket-group 7 \
             --allow-uid 5 --allow-gid 6 --bind deny,port=80 --bind allow --max-clients 3 --max-clients-per-uid 2 \
             --sockets-per-client 4 --sockets-per-uid 8 --send-bytes-per-client 1k --send-bytes-per-uid 2k \
             --receive-bytes-per-client 3k --receive-bytes-per-uid 4k --arena-per-client 5k --arena-per-uid 6k --peers-per-client 9 --peers-per-uid 10 \
             --pinned-per-client 7k --pinned-per-uid 8k --zero-copy-send off --arena 1m --busy-poll 50 --no-shared-memory --listen-port 1 \
             --dial-port 2 --lanes 4 --congestion-control cubic --receive-budget 1m --drain 9 --log warn --log-format json --admin [::1]:9385 \
             --peer-in-allow 10.0.0.0/8 --peer-in-refuse 10.0.0.1 --peer-out-allow fd00::/8 --peer-out-refuse fd00::1",
        );
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
        assert_eq!((settings.log.level.as_str(), settings.log.format.name()), ("warn", "json"));
        assert_eq!(settings.admin.unwrap().to_string(), "[::1]:9385");
        let shown = |list: &[ipnet::IpNet]| list[0].to_string();
        let peers = &settings.peers;
        assert_eq!(
            (shown(&peers.inbound.allow), shown(&peers.inbound.refuse)),
            ("10.0.0.0/8".into(), "10.0.0.1/32".into())
        );
        assert_eq!(
            (shown(&peers.outbound.allow), shown(&peers.outbound.refuse)),
            ("fd00::/8".into(), "fd00::1/128".into())
        );
    }

    #[test]
    fn options_go_before_and_behind_a_subcommand() {
        for args in ["doctor --address ::1 --json", "--address ::1 doctor --json"] {
            let cli = parsed(args).unwrap();
            assert!(matches!(&cli.action, Action::Doctor(args) if args.json), "{args}");
            assert_eq!(cli.source.given[0].1, ["::1"], "{args}");
        }
        assert!(matches!(parsed("--check-config").unwrap().action, Action::CheckConfig));
        assert!(parsed("--check-config doctor").unwrap_err().contains("without a subcommand"));
        assert!(parsed("--check-config --print-config").unwrap_err().contains("cannot be used with"));
    }

    #[test]
    fn the_parser_is_sound_and_its_help_names_every_option() {
        Cli::command().debug_assert();
        let help = Cli::command().render_help().to_string();
        for key in Key::all() {
            assert!(help.contains(&format!("--{}", key.flag)), "{}", key.flag);
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        for (args, says) in [
            ("--address x", "invalid value 'x' for '--address"),
            ("--address ::1 --socket-mode 999", "give permissions in octal"),
            ("--address ::1 --allow-uid nobody-of-that-name", "this host has no such user"),
            ("--address ::1 --arena much", "give a number of bytes"),
            ("--address ::1 --peer-in-allow here", "give an address, or a network"),
            ("--address ::1 --bind may", "write allow or deny"),
            ("--address ::1 --lanes 9", "give a whole number from 1 to 8"),
            ("--address ::1 --drain 9999999999", "give a whole number from 0 to 86400"),
            ("--address ::1 --log loud", "possible values: error, warn, info, debug, trace"),
            ("--address ::1 --admin 0.0.0.0:80", "0.0.0.0 is no loopback address"),
            ("--adress ::1", "'--address'"),
        ] {
            let error = parsed(args).unwrap_err();
            assert!(error.contains(says), "{args}: {error}");
        }
    }
}
