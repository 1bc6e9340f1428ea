//! What the daemon is to do.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use rds_core::engine::{Options, RDS_TCP_PORT};
use rds_core::proto::PeerFilter;
use rds_core::zerocopy::Mode;

use crate::access::{Attach, Limits, Quotas, Rule};

/// Where the daemon listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/rds/rds.sock";

/// All settings, with their defaults in [`Settings::new`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// Addresses of the nodes; one node each.
    pub addresses: Vec<IpAddr>,
    /// Path of the Unix socket at which programs attach. Default /run/rds/rds.sock.
    pub socket: PathBuf,
    /// Permissions of the Unix socket. Default 0666: who may attach is told by `attach`.
    pub mode: u32,
    /// Owner of the Unix socket. Default: who runs the daemon.
    pub owner: Option<u32>,
    /// Group of the Unix socket. Default: that of who runs the daemon.
    pub group: Option<u32>,
    /// Who may attach. Default everybody.
    pub attach: Attach,
    /// Which ports and addresses may be bound by whom; the first rule that concerns a case decides. Default all by everybody.
    pub rules: Vec<Rule>,
    /// How much clients and users may have.
    pub quotas: Quotas,
    /// Bytes that the kernel may have pinned for a client. Default: a quarter of what the node may.
    pub pinned_per_client: Option<u64>,
    /// Bytes that the kernel may have pinned for all clients of a user at one node. Default: half of what the node may.
    pub pinned_per_user: Option<u64>,
    /// Bytes of each ring, unless the client asks for another size. Default 256 KiB.
    pub ring: u32,
    /// Bytes of each arena, unless the client asks for another size. Default 32 MiB.
    pub arena: u64,
    /// Whether clients get shared memory; without it, everything goes over the Unix socket. Default true.
    pub shared_memory: bool,
    /// How long the service thread looks for work before it sleeps. Default none.
    pub busy_poll: Duration,
    /// How long a client may take to say what it wants. Default 5 s.
    pub hello_timeout: Duration,
    /// Clients that may be about to say what they want. Default 64.
    pub max_hellos: usize,
    /// TCP port to listen on. Default 16385; 0 for any free one.
    pub listen_port: u16,
    /// TCP port to connect to. Default 16385.
    pub dial_port: u16,
    /// Lanes offered to own peers and kernels from 7.0 on. Default 1.
    pub lanes: u8,
    /// TCP congestion control. Default: the system's.
    pub congestion_control: Option<String>,
    /// Whether large payloads are sent from where they lie. Default auto.
    pub zero_copy_send: Mode,
    /// Bytes of received messages of a node that clients have not taken. Default 1 GiB.
    pub receive_budget: u64,
    /// Which peers are served, in either direction. Default all.
    pub peers: PeerFilter,
    /// How long the daemon, when it ends, delivers what is queued. Default 5 s.
    pub drain: Duration,
    /// What is logged, and how.
    pub log: Log,
    /// Where the admin pages are served. Default nowhere.
    pub admin: Option<AdminAddress>,
    /// The file that these were read from, to be shown in the status.
    pub file: Option<PathBuf>,
}

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Least important lines that are logged: `error`, `warn`, `info`, `debug` or `trace`. Default info.
    pub level: String,
    /// How a line looks. Default text.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: "info".to_owned(), format: LogFormat::Text }
    }
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl LogFormat {
    /// As in the configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("give text or json".to_owned()),
        }
    }
}

/// Where the admin pages are served: they have no password, so only programs of this host may come to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// At a loopback address; every user of this host can read them.
    Tcp(SocketAddr),
    /// At a Unix socket, for whoever may open it.
    Unix(PathBuf),
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        if let Some(path) = s.strip_prefix("unix:") {
            return match path.len() {
                0 => Err("give the path behind unix:, as unix:/run/rds/admin.sock".to_owned()),
                108.. => Err("the path is too long for a socket: give one of less than 108 bytes".to_owned()),
                _ => Ok(Self::Unix(path.into())),
            };
        }
        let address: SocketAddr =
            s.parse().map_err(|_| "give ADDRESS:PORT, as 127.0.0.1:9385, or unix:PATH".to_owned())?;
        if !address.ip().is_loopback() {
            return Err(format!(
                "{} is no loopback address, and the pages have no password: give 127.0.0.1, [::1] or unix:PATH",
                address.ip()
            ));
        }
        Ok(Self::Tcp(address))
    }
}

impl Settings {
    /// The defaults, for nodes at these addresses.
    #[must_use]
    pub fn new(addresses: Vec<IpAddr>) -> Self {
        let client = Limits {
            clients: 1,
            sockets: 1024,
            send_bytes: 256 << 20,
            receive_bytes: 256 << 20,
            arena: 512 << 20,
            peers: 512,
        };
        let user = Limits {
            clients: 256,
            sockets: 16384,
            send_bytes: 1 << 30,
            receive_bytes: 1 << 30,
            arena: 32 << 30,
            peers: 1024,
        };
        Self {
            addresses,
            socket: DEFAULT_SOCKET.into(),
            mode: 0o666,
            owner: None,
            group: None,
            attach: Attach::default(),
            rules: Vec::new(),
            quotas: Quotas { client, user, max_clients: 1024 },
            pinned_per_client: None,
            pinned_per_user: None,
            ring: 256 << 10,
            arena: 32 << 20,
            shared_memory: true,
            busy_poll: Duration::ZERO,
            hello_timeout: Duration::from_secs(5),
            max_hellos: 64,
            listen_port: RDS_TCP_PORT,
            dial_port: RDS_TCP_PORT,
            lanes: 1,
            congestion_control: None,
            zero_copy_send: Mode::Auto,
            receive_budget: 1 << 30,
            peers: PeerFilter::default(),
            drain: Duration::from_secs(5),
            log: Log::default(),
            admin: None,
            file: None,
        }
    }

    /// How the node at one of the addresses is opened.
    #[must_use]
    pub fn options(&self, address: IpAddr) -> Options {
        let mut options = Options::new(address);
        options.config.lanes = self.lanes;
        options.config.receive_budget = self.receive_budget;
        options.config.peers = self.peers.clone();
        options.listen_port = self.listen_port;
        options.dial_port = self.dial_port;
        options.congestion_control.clone_from(&self.congestion_control);
        options.zero_copy.send = self.zero_copy_send;
        options.busy_poll = self.busy_poll;
        options
    }
}
