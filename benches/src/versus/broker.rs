//! Brokers as processes: NATS, mosquitto, and our own daemon.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Where the brokers of others listen: on loopback, for nobody else.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 55, 0, 9);
/// How long one may take to begin.
const START: Duration = Duration::from_secs(10);

/// Why a broker is left out.
#[derive(Debug)]
pub(crate) enum NoBroker {
    /// It is not installed.
    Missing(String),
    /// It does not work.
    Broken(String),
}

/// A running broker, killed with its value.
#[derive(Debug)]
pub(crate) struct Broker {
    child: Child,
    /// What it is, with its version.
    pub(crate) name: String,
    /// Where clients find it.
    pub(crate) at: SocketAddr,
}

impl Broker {
    /// `nats-server` with its own defaults.
    pub(crate) fn nats() -> Result<Self, NoBroker> {
        let name = version("nats-server", &["--version"])?.replace(": ", " ");
        let at = free()?;
        let mut command = Command::new(program("nats-server"));
        command.args(["-a", &at.ip().to_string(), "-p", &at.port().to_string()]);
        Self::start(command, name, at)
    }

    /// `mosquitto`, open to all, writes sent at once, nothing kept on disk, and more queued than it would by itself, for it drops what it cannot
    /// queue; the rest as it comes.
    pub(crate) fn mosquitto(scratch: &Path) -> Result<Self, NoBroker> {
        // -h ends with status 3 and says the version first.
        let name = version("mosquitto", &["-h"])?.replace("version ", "");
        let at = free()?;
        let settings = format!(
            "listener {} {}\nallow_anonymous true\nset_tcp_nodelay true\npersistence false\nmax_queued_messages 100000\nlog_dest none\n",
            at.port(),
            at.ip()
        );
        let file = scratch.join("mosquitto.conf");
        std::fs::write(&file, settings).map_err(|e| NoBroker::Broken(format!("{}: {e}", file.display())))?;
        let mut command = Command::new(program("mosquitto"));
        command.arg("-c").arg(file);
        Self::start(command, name, at)
    }

    fn start(mut command: Command, name: String, at: SocketAddr) -> Result<Self, NoBroker> {
        let broken = |what: String| NoBroker::Broken(format!("{name}: {what}"));
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = quiet.spawn().map_err(|e| broken(e.to_string()))?;
        let mut broker = Self { child, name: name.clone(), at };
        let since = Instant::now();
        // It says nothing that could be waited for.
        while TcpStream::connect(at).is_err() {
            let ended = broker.child.try_wait().ok().flatten();
            if let Some(status) = ended {
                return Err(broken(format!("it ended: {status}")));
            }
            if since.elapsed() > START {
                return Err(broken(format!("nobody listens at {at}")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(broker)
    }

    /// Its processor time so far, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.child.id())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have died.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A daemon of ours, killed with its value.
#[derive(Debug)]
pub(crate) struct Daemon {
    child: Child,
    /// The socket to attach to.
    pub(crate) socket: PathBuf,
    /// Where its admin endpoint is.
    pub(crate) admin: Option<SocketAddr>,
}

impl Daemon {
    /// Starts it with a node at `address`, whose TCP ports are `port`, and an admin endpoint.
    pub(crate) fn start(
        scratch: &Path,
        address: Ipv4Addr,
        port: u16,
        ring: Option<u32>,
    ) -> Result<Self, String> {
        let socket = scratch.join(format!("{address}.sock"));
        let this = std::env::current_exe().map_err(|e| format!("cannot find this program: {e}"))?;
        let mut command = Command::new(this);
        command.args(["serve", "--address", &address.to_string(), "--socket"]).arg(&socket);
        command.args(["--port", &port.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.args(ring.map(|ring| format!("--ring={ring}")));
        let child = command.spawn().map_err(|e| format!("cannot start a daemon: {e}"))?;
        let mut daemon = Self { child, socket, admin: None };
        let mut line = String::new();
        let out = daemon.child.stdout.take().expect("piped");
        // It says so once clients can attach.
        let read = BufReader::new(out).read_line(&mut line);
        daemon.admin = line.trim().strip_prefix("ready ").and_then(|at| at.parse().ok());
        match read {
            Ok(len) if len > 0 => Ok(daemon),
            _ => Err(format!("the daemon at {address} does not start")),
        }
    }

    /// Its processor time so far, in seconds.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        cpu_seconds(self.child.id())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have died.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process's user and system time, from `/proc`, where a tick is 10 ms.
fn cpu_seconds(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // Behind the name, which may have anything in it.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Where a program is: daemons are often not where ordinary users look.
fn program(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    let found = folders.map(|folder| folder.join(name)).find(|file| file.is_file());
    found.unwrap_or_else(|| name.into())
}

/// The first line that it says when asked.
fn version(name: &str, question: &[&str]) -> Result<String, NoBroker> {
    let missing = |e| NoBroker::Missing(format!("{name} is not installed ({e}): apt-get install {name}"));
    let said = Command::new(program(name)).args(question).output().map_err(missing)?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    Ok(text.lines().next().unwrap_or(name).to_owned())
}

fn free() -> Result<SocketAddr, NoBroker> {
    let listener = TcpListener::bind((ADDRESS, 0)).and_then(|l| l.local_addr());
    listener.map_err(|e| NoBroker::Broken(format!("no free port: {e}")))
}
