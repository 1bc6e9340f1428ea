//! `rds-ping`: asks whether an RDS node is there, and how far away.

pub mod line;
pub mod summary;

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use clap::Parser;

use self::line::{Came, Lines, Way};
use self::summary::Summary;
use super::source::default_daemon;
use super::{complain, ended, print, text};
use crate::error::{Failure, failure};
use crate::number;

const PROGRAM: &str = "rds-ping";

/// Most sockets.
const SOCKETS: u16 = 32;
/// How long an answer may take before its socket is given to another ping.
const LOST: Duration = Duration::from_secs(1);
/// After so long without any answer, once, why.
const SILENCE: Duration = Duration::from_secs(3);
/// How often whoever waits looks whether it was interrupted.
const LOOK: Duration = Duration::from_millis(50);

const EXAMPLES: &str = "Examples:\n  \
    rds-ping 10.0.0.2                     over this host's daemon, or from a node of its own\n  \
    rds-ping -c 100 -i 1ms 10.0.0.2       a hundred, a millisecond apart\n  \
    rds-ping --embedded -I 10.0.0.1 10.0.0.2\n\n\
    Exit status: 0 if anything answered, otherwise 1, also after a wrong command line.";

/// The options as given.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "rds-ping",
    about = "Asks an RDS node whether it is there: sends empty messages to its port 0, which the node itself answers.",
    after_help = EXAMPLES,
    version,
    args_override_self = true,
    max_term_width = 110
)]
pub struct Cli {
    /// Host or address of the node
    pub destination: String,
    /// End after COUNT pings; 0: after Ctrl-C
    #[arg(short = 'c', value_name = "COUNT", default_value = "0", value_parser = count)]
    pub count: u64,
    /// RDS sockets that take turns, 1 to 32 [default: 8, or COUNT if that is less]
    #[arg(short = 'n', value_name = "SOCKETS", value_parser = sockets)]
    pub sockets: Option<u16>,
    /// From one ping to the next: seconds, or with ms or us behind
    #[arg(short = 'i', value_name = "INTERVAL", default_value = "1", value_parser = interval)]
    pub interval: Duration,
    /// Own RDS address [default: the daemon's first of the family, or the one the route has]
    #[arg(short = 'I', value_name = "SOURCE")]
    pub source: Option<IpAddr>,
    /// Type of service; without effect over TCP
    #[arg(short = 'Q', value_name = "TOS", default_value = "0", value_parser = clap::value_parser!(u8))]
    pub tos: u8,
    /// How long to wait for answers after the last ping [default: the interval, and 1 at least]
    #[arg(short = 'W', long = "timeout", value_name = "TIME", value_parser = interval)]
    pub timeout: Option<Duration>,
    /// One JSON object on stdout at the end; all other lines go to stderr
    #[arg(long)]
    pub json: bool,

    /// Over the daemon whose socket is PATH [default: $RDS_ATTACH, or /run/rds/rds.sock; if neither is there, a node of its own]
    #[arg(long, value_name = "PATH", help_heading = "Way", num_args = 0..=1, conflicts_with_all = ["embedded", "kernel"])]
    #[allow(clippy::option_option)]
    pub attach: Option<Option<PathBuf>>,
    /// From a node of its own, whatever the environment says
    #[arg(long, help_heading = "Way", conflicts_with = "kernel")]
    pub embedded: bool,
    /// Over the kernel's modules rds and rds_tcp (AF_RDS)
    #[arg(long, help_heading = "Way")]
    pub kernel: bool,
    /// TCP port on which a node of its own listens
    #[arg(long, value_name = "PORT", help_heading = "Way", default_value = "16385")]
    pub listen_port: u16,
    /// TCP port to which a node of its own connects
    #[arg(long, value_name = "PORT", help_heading = "Way", default_value = "16385")]
    pub dial_port: u16,
}

fn count(text: &str) -> Result<u64, String> {
    number::parse(text, u64::from(u32::MAX))
}

fn sockets(text: &str) -> Result<u16, String> {
    match number::parse(text, u64::from(SOCKETS))? {
        0 => Err(format!("'{text}' is too small: give 1 to {SOCKETS}")),
        n => Ok(n as u16),
    }
}

/// Seconds with a fraction, or a number with `ms`, `msec`, `us` or `usec` behind.
fn interval(text: &str) -> Result<Duration, String> {
    let units = [("msec", 1e-3), ("usec", 1e-6), ("ms", 1e-3), ("us", 1e-6)];
    let (number, unit) = units
        .into_iter()
        .find_map(|(suffix, unit)| text.strip_suffix(suffix).map(|number| (number, unit)))
        .unwrap_or((text, 1.0));
    let value: f64 = number
        .parse()
        .map_err(|_| format!("'{text}' is no time: give seconds, or a number with ms or us behind"))?;
    let seconds = value * unit;
    if (0.0..=86_400.0).contains(&seconds) {
        return Ok(Duration::from_secs_f64(seconds));
    }
    Err(format!("'{text}' is out of range: give 0 to 86400 seconds"))
}

/// Replies that are taken from a socket before it is looked whether the end has come: somebody may send more than can be printed.
const TAKEN: u32 = 64;

/// Set by Ctrl-C.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Runs it, the program's name first.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match super::parse::<Cli>(args) {
        Ok(cli) => ended(PROGRAM, run(&cli)),
        Err(code) => code,
    }
}

fn run(cli: &Cli) -> Result<ExitCode, Failure> {
    let to = resolve(&cli.destination, cli.source)?;
    // Without it Ctrl-C ends the program all the same, but without a summary.
    let _ = ctrlc::set_handler(|| INTERRUPTED.store(true, SeqCst));
    let (mut lines, source) = open(cli, to)?;
    let mut summary = Summary::new(to, source);
    let result = ping(cli, &mut lines, &mut summary);
    if cli.json {
        let json = text::json(&summary).map_err(|e| failure!("cannot write the JSON object: {e}"))?;
        print(&(json + "\n"));
    } else {
        print(&summary.to_string());
    }
    result?;
    Ok(ExitCode::from(u8::from(summary.received == 0)))
}

fn resolve(host: &str, source: Option<IpAddr>) -> Result<IpAddr, Failure> {
    let found =
        (host, 0).to_socket_addrs().map_err(|e| failure!("cannot find the address of {host}: {e}"))?;
    let found: Vec<IpAddr> = found.map(|address| address.ip()).collect();
    let fits = |address: &&IpAddr| source.is_none_or(|source| source.is_ipv4() == address.is_ipv4());
    found.iter().find(fits).copied().ok_or_else(|| match (found.first(), source) {
        (Some(other), Some(source)) => {
            failure!("{host} is {other}, and {source} is of another family: give a source (-I) of the same")
        }
        _ => failure!("{host} has no address"),
    })
}

fn open(cli: &Cli, to: IpAddr) -> Result<(Lines, IpAddr), Failure> {
    let most = cli.sockets.unwrap_or(8);
    let number = if cli.count > 0 { most.min(u16::try_from(cli.count).unwrap_or(most)) } else { most };
    let way = if cli.kernel {
        Way::Kernel(own_address(cli, to)?)
    } else if cli.embedded {
        Way::Own(own_address(cli, to)?)
    } else if let Some(path) = &cli.attach {
        Way::Daemon(path.clone().unwrap_or_else(default_daemon))
    } else {
        match found_daemon() {
            Some(path) => Way::Daemon(path),
            None => Way::Own(own_address(cli, to)?),
        }
    };
    Lines::open(&way, cli, to, number)
}

/// The daemon that the environment names, whether it is there or not; otherwise one at the usual place, if it is there.
fn found_daemon() -> Option<PathBuf> {
    let told = std::env::var_os(rds_client::ATTACH_VARIABLE).is_some_and(|path| !path.is_empty());
    Some(default_daemon()).filter(|path| told || is_there(path))
}

fn is_there(path: &Path) -> bool {
    std::os::unix::net::UnixStream::connect(path).is_ok()
}

/// The address from which the route to `to` begins, unless one is given.
fn own_address(cli: &Cli, to: IpAddr) -> Result<IpAddr, Failure> {
    if let Some(source) = cli.source {
        return Ok(source);
    }
    let any = if to.is_ipv4() { IpAddr::from([0, 0, 0, 0]) } else { IpAddr::from([0_u16; 8]) };
    let route = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect((to, 1))?;
        socket.local_addr()
    });
    route
        .map(|from| from.ip())
        .map_err(|e| failure!("there is no route to {to} ({e}): give an address of this host with -I"))
}

/// One that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    number: u64,
    at: Instant,
    answered: bool,
}

fn ping(cli: &Cli, lines: &mut Lines, summary: &mut Summary) -> Result<(), Failure> {
    let to = SocketAddr::new(summary.destination, 0);
    let began = Instant::now();
    let mut sent: Vec<Option<Sent>> = vec![None; lines.len()];
    let (mut next_at, mut turn, mut told) = (began, 0, false);
    loop {
        if INTERRUPTED.load(SeqCst) {
            return Ok(());
        }
        let now = Instant::now();
        let all_sent = cli.count > 0 && summary.sent >= cli.count;
        if all_sent && (summary.received >= cli.count || now >= next_at) {
            // Sooner than it would be told below.
            if summary.received == 0 && summary.errors == 0 && !told {
                let to = summary.destination;
                complain(PROGRAM, &format!("no answer from {to}{}", lines.why(to)));
            }
            return Ok(());
        }
        if let Some(index) = free(&sent, turn, now).filter(|_| !all_sent && now >= next_at) {
            // A late answer must not count for the ping that comes now: it comes to a socket that is gone.
            if sent[index].is_some_and(|old| !old.answered) {
                lines.replace(index)?;
            }
            summary.sent += 1;
            let number = summary.sent;
            sent[index] = Some(Sent { number, at: Instant::now(), answered: false });
            turn = index + 1;
            if let Err(error) = lines.send(index, to) {
                say(cli, &reply(number, None, None, false, Some(&error)));
                summary.errors += 1;
                sent[index] = None;
            }
            let last = cli.count > 0 && summary.sent >= cli.count;
            next_at = match last {
                true => Instant::now() + cli.timeout.unwrap_or(cli.interval.max(LOST)),
                false => (next_at + cli.interval).max(now),
            };
            continue;
        }
        let until = wait_until(next_at, &sent, all_sent, now);
        let waiting: Vec<usize> = (0..sent.len()).filter(|i| sent[*i].is_some()).collect();
        lines.wait(&waiting, until.saturating_duration_since(now).min(LOOK));
        for (index, place) in sent.iter_mut().enumerate() {
            let Some(ping) = place else { continue };
            take(cli, || lines.receive(index), ping, summary);
        }
        if summary.received == 0 && !told && began.elapsed() >= SILENCE {
            told = true;
            complain(
                PROGRAM,
                &format!("no answer from {} yet{}", summary.destination, lines.why(summary.destination)),
            );
        }
    }
}

/// The next socket in turn that waits for nothing, or that has waited for so long that its ping counts as lost.
fn free(sent: &[Option<Sent>], turn: usize, now: Instant) -> Option<usize> {
    let waits = |i: &usize| sent[*i].is_some_and(|ping| !ping.answered);
    let order: Vec<usize> = (0..sent.len()).map(|i| (turn + i) % sent.len()).collect();
    order.iter().copied().find(|i| !waits(i)).or_else(|| {
        let oldest = order.into_iter().min_by_key(|i| sent[*i].map(|ping| ping.at))?;
        sent[oldest].is_some_and(|ping| now.duration_since(ping.at) >= LOST).then_some(oldest)
    })
}

/// When there is something to do, if nothing comes.
fn wait_until(next_at: Instant, sent: &[Option<Sent>], all_sent: bool, now: Instant) -> Instant {
    if all_sent || next_at > now {
        return next_at;
    }
    // All sockets wait.
    let oldest = sent.iter().flatten().map(|ping| ping.at).min().unwrap_or(now);
    oldest + LOST
}

/// Takes what has come to a socket; of what comes without end, a part.
fn take(cli: &Cli, mut receive: impl FnMut() -> Came, ping: &mut Sent, summary: &mut Summary) {
    for _ in 0..TAKEN {
        match receive() {
            Came::Nothing => return,
            Came::Reply(from) => {
                let took = ping.at.elapsed();
                let other = Some(from.ip()).filter(|from| *from != summary.destination);
                say(cli, &reply(ping.number, Some(took), other, ping.answered, None));
                if ping.answered {
                    summary.duplicates += 1;
                } else {
                    summary.answered(took);
                }
                ping.answered = true;
            }
            Came::Failed(error) => {
                say(cli, &reply(ping.number, None, None, false, Some(&error)));
                summary.errors += 1;
                return;
            }
        }
    }
}

/// The line of a reply, as the reference has it.
fn reply(
    number: u64,
    took: Option<Duration>,
    from: Option<IpAddr>,
    again: bool,
    error: Option<&str>,
) -> String {
    let mut line = format!(" {number:3}:");
    if let Some(took) = took {
        line.push_str(&format!(" {} usec", took.as_micros()));
    }
    if let Some(from) = from {
        line.push_str(&format!(" ({from})"));
    }
    if again {
        line.push_str(" DUP!");
    }
    if let Some(error) = error {
        line.push_str(&format!(" ERROR: {}", text::plain(error)));
    }
    line + "\n"
}

fn say(cli: &Cli, line: &str) {
    if cli.json {
        let _ = io::stderr().write_all(line.as_bytes());
    } else {
        print(line);
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn a_reply_is_a_line_as_the_reference_has_it() {
        let us = Duration::from_micros;
        assert_eq!(reply(1, Some(us(123)), None, false, None), "   1: 123 usec\n");
        assert_eq!(reply(1234, Some(us(7)), None, true, None), " 1234: 7 usec DUP!\n");
        assert_eq!(
            reply(12, Some(us(7)), Some([10, 0, 0, 1].into()), false, None),
            "  12: 7 usec (10.0.0.1)\n"
        );
        assert_eq!(reply(2, None, None, false, Some("no\u{1b}[0m")), "   2: ERROR: no?[0m\n");
    }

    #[test]
    fn intervals_and_counts_are_read_as_the_reference_reads_them() {
        let ms = Duration::from_millis;
        for (text, expected) in [
            ("1", ms(1000)),
            ("0.25", ms(250)),
            ("20ms", ms(20)),
            ("20msec", ms(20)),
            ("3000us", ms(3)),
            ("2000usec", ms(2)),
            ("0", ms(0)),
        ] {
            assert_eq!(interval(text), Ok(expected), "{text}");
        }
        for wrong in ["", "ms", "-1", "1h", "nan", "inf", "1e9"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
        assert_eq!((count("1k"), count("0x10")), (Ok(1024), Ok(16)));
        assert!(sockets("0").is_err() && sockets("33").is_err() && sockets("32") == Ok(32));
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
        let cli = Cli::try_parse_from([
            "rds-ping", "-c", "5", "-n", "2", "-i", "0.1", "-I", "10.0.0.1", "-Q", "3", "host",
        ])
        .unwrap();
        assert_eq!((cli.count, cli.sockets, cli.tos, cli.destination.as_str()), (5, Some(2), 3, "host"));
        assert!(
            Cli::try_parse_from(["rds-ping"]).is_err()
                && Cli::try_parse_from(["rds-ping", "a", "b"]).is_err()
        );
    }

    #[test]
    fn who_answers_without_end_does_not_keep_it_from_ending() {
        let cli = Cli::try_parse_from(["rds-ping", "10.0.0.1"]).unwrap();
        let mut summary = Summary::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let mut ping = Sent { number: 1, at: Instant::now(), answered: false };
        let mut came = 0;
        let flood = || {
            came += 1;
            assert!(came < 10_000, "it takes whatever comes");
            Came::Reply(([10, 0, 0, 1], 0).into())
        };
        take(&cli, flood, &mut ping, &mut summary);
        assert_eq!((summary.received, summary.duplicates), (1, u64::from(TAKEN) - 1));
    }

    #[test]
    fn a_socket_that_waits_is_given_away_only_after_a_time() {
        let now = Instant::now();
        let ping =
            |ago: u64, answered| Some(Sent { number: 1, at: now - Duration::from_millis(ago), answered });
        assert_eq!(free(&[None, None], 1, now), Some(1));
        assert_eq!(free(&[ping(5000, false), ping(1, true)], 0, now), Some(1));
        assert_eq!(free(&[ping(5, false), ping(10, false)], 0, now), None);
        assert_eq!(free(&[ping(1500, false), ping(2000, false)], 0, now), Some(1));
    }
}
