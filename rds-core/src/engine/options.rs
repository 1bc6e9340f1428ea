//! How an engine is set up.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use socket2::SockRef;

use crate::proto::{BindError, Config, ConfigError};
use crate::zerocopy::{Mode, WhenFull};

/// TCP port of Linux rds_tcp (`RDS_TCP_PORT`).
pub const RDS_TCP_PORT: u16 = 16385;

/// How to open an [`Engine`](super::Engine).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Settings of the protocol.
    pub config: Config,
    /// TCP port to listen on, at the node's address. Default 16385; 0 for any free one.
    pub listen_port: u16,
    /// TCP port to which the node connects. Default 16385.
    pub dial_port: u16,
    /// How long a thread that waits looks for input without sleeping. Default none. A few dozen microseconds spare
    /// a round trip two wake-ups, at the price of a processor.
    pub busy_poll: Duration,
    /// TCP congestion control, as in `TCP_CONGESTION`. Default: the system's.
    pub congestion_control: Option<String>,
    /// Sending and receiving without copies.
    pub zero_copy: ZeroCopy,
    /// A Unix socket at which the node can be looked at with rds-info: to whoever connects it writes a line of JSON for each node of this process
    /// that has the same path. Its file has mode 0600. Default none.
    pub info_socket: Option<PathBuf>,
    /// Whether the node is not opened when it cannot have that socket. Default true; otherwise it is a warning in the log.
    pub info_required: bool,
}

/// Settings of zero copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ZeroCopy {
    /// Whether large payloads are sent from where they lie (MSG_ZEROCOPY). Default auto.
    pub send: Mode,
    /// Whether large payloads are mapped on their way in (TCP_ZEROCOPY_RECEIVE). Default off. `auto` and `on` trust that no process of this host
    /// owns the pages that it sends, see `docs/zero-copy.md`.
    pub receive: Mode,
    /// Bytes that the kernel may have pinned for the node at one time. Default 75 % of RLIMIT_MEMLOCK, shared by all nodes of the
    /// process that have the default; no limit where that one does not bind.
    pub pin_limit: Option<u64>,
    /// What happens to a message for which that has no room. Default copy.
    pub when_full: WhenFull,
    /// How long the kernel may keep what was pinned before its connection is ended and made anew. Default 30 s.
    pub hold_limit: Duration,
    /// Bytes of free buffers that the node keeps. Default 64 MiB.
    pub pool_limit: u64,
    /// Bytes of mapped pages, those that programs hold included. Default 256 MiB.
    pub map_limit: u64,
}

impl Default for ZeroCopy {
    fn default() -> Self {
        Self {
            send: Mode::Auto,
            receive: Mode::Off,
            pin_limit: None,
            when_full: WhenFull::Copy,
            hold_limit: Duration::from_secs(30),
            pool_limit: 64 << 20,
            map_limit: 256 << 20,
        }
    }
}

impl Options {
    /// Defaults for a node at `address`: a new incarnation, whose sequence numbers begin at the wall clock.
    #[must_use]
    pub fn new(address: IpAddr) -> Self {
        let generation = NonZeroU32::new(fastrand::u32(1..)).unwrap_or(NonZeroU32::MIN);
        let mut config = Config::new(address, generation);
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        config.first_sequence = Config::first_sequence_at(u64::try_from(since_1970.as_millis()).unwrap_or(0));
        config.seed = fastrand::u64(..);
        Self {
            config,
            listen_port: RDS_TCP_PORT,
            dial_port: RDS_TCP_PORT,
            busy_poll: Duration::ZERO,
            congestion_control: None,
            zero_copy: ZeroCopy::default(),
            info_socket: None,
            info_required: true,
        }
    }

    /// Tries the congestion control on the listener: later each connection would fail by itself.
    pub(super) fn check_congestion_control(&self, listener: &TcpListener) -> Result<(), OpenError> {
        let Some(name) = &self.congestion_control else { return Ok(()) };
        SockRef::from(listener)
            .set_tcp_congestion(name.as_bytes())
            .map_err(|source| OpenError::CongestionControl { name: name.clone(), source })
    }
}

/// Why a node could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A setting cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address is not one of this host.
    #[error("{0} is not an address of this host: add it to an interface, or give another")]
    NotLocal(IpAddr),
    /// Another process (or the rds_tcp module) has the listening port.
    #[error(
        "TCP port {0} is in use: another RDS node or the rds_tcp kernel module has it; choose another listen port or stop it"
    )]
    PortInUse(SocketAddr),
    /// The kernel does not have the TCP congestion control, or not for this user.
    #[error(
        "TCP congestion control {name:?} cannot be used ({source}): give one that /proc/sys/net/ipv4/tcp_allowed_congestion_control lists"
    )]
    CongestionControl {
        /// As given.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A socket cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A daemon was to be attached to, and cannot be.
    #[error("cannot attach to the daemon at {}: {source}", path.display())]
    Attach {
        /// The daemon's socket.
        path: std::path::PathBuf,
        /// Why.
        source: crate::attach::AttachError,
    },
    /// The node cannot be shown to rds-info.
    #[error("cannot show the node to rds-info at {}: {source}", path.display())]
    Info {
        /// The socket that was to be made.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A setting would break a promise at a daemon, where the daemon's own settings count.
    #[error("an attached node cannot have {setting}: {instead}")]
    NotAttached {
        /// The setting.
        setting: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// Anything else.
    #[error("cannot open the node at {address}: {source}")]
    Io {
        /// Where.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
}

impl OpenError {
    pub(super) fn io(address: SocketAddr, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::AddrInUse => Self::PortInUse(address),
            io::ErrorKind::AddrNotAvailable => Self::NotLocal(address.ip()),
            _ => Self::Io { address, source },
        }
    }
}
