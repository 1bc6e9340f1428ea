//! How a program attaches, and how it stands.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// How to attach to a daemon.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AttachOptions {
    /// The daemon's socket. Default `/run/rds/rds.sock`.
    pub path: PathBuf,
    /// Which of the daemon's addresses the node has. Default: its first.
    pub address: Option<IpAddr>,
    /// Whether to do without shared memory: everything is copied through the socket. For programs that cannot share memory with the
    /// daemon. Default false.
    pub without_shared_memory: bool,
    /// Size of the submission and the completion ring in bytes, a power of two; 0 (default) as the daemon has it.
    pub rings: u32,
    /// Size of the memory for messages that are sent, in bytes; the daemon may give less. 0 (default) as the daemon has it.
    pub send_arena: u64,
    /// The same for messages that are received.
    pub receive_arena: u64,
    /// How long a thread that waits looks for what comes before it sleeps. Default 0.
    pub busy_poll: Duration,
    /// Name under which the daemon lists the program. Default: that of the executable.
    pub program: String,
}

/// Where the daemon listens if nothing else is said.
pub const DEFAULT_PATH: &str = "/run/rds/rds.sock";

impl AttachOptions {
    /// Defaults, for the daemon that listens at `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let program = std::env::current_exe().ok();
        let program = program.as_deref().and_then(|path| path.file_name());
        Self {
            path: path.into(),
            address: None,
            without_shared_memory: false,
            rings: 0,
            send_arena: 0,
            receive_arena: 0,
            busy_poll: Duration::ZERO,
            program: program.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        }
    }
}

/// How an attached node stands with its daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attachment {
    /// Whether it is attached now. If not, it goes on trying.
    pub attached: bool,
    /// How often it has attached again.
    pub reattachments: u64,
    /// Sends that were unfinished when a daemon went away: nobody can say whether they arrived. Those with a cookie have each been told so
    /// ([`Completion::Unknown`](crate::engine::Completion::Unknown)); of the others this number is all there is.
    pub unknown: u64,
    /// Whether it has memory in common with the daemon; otherwise everything is copied through the socket.
    pub shares_memory: bool,
}
