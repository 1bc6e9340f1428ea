//! How nodes are opened.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use rds_core::attach::client::{AttachOptions, Client};
use rds_core::engine::{Engine, Options};

use crate::{Config, Mode, Node, OpenError, Socket, WhenFull};

/// How to open a [`Node`].
#[derive(Clone, Debug)]
pub struct NodeBuilder {
    options: Options,
    auto_lanes: bool,
    place: Place,
}

/// Where the node is to be.
#[derive(Clone, Debug)]
enum Place {
    /// At the daemon that [`ATTACH_VARIABLE`] names; without it, in the program.
    Either,
    Embedded,
    Attached(PathBuf),
}

/// The environment variable with the path of the daemon to which programs attach that do not say otherwise.
pub const ATTACH_VARIABLE: &str = "RDS_ATTACH";

/// The environment variable with the path at which nodes are shown that do not say otherwise ([`NodeBuilder::info_socket`]).
pub const INFO_VARIABLE: &str = "RDS_INFO_SOCKET";

impl NodeBuilder {
    pub(crate) fn new(address: IpAddr) -> Self {
        Self { options: Options::new(address), auto_lanes: false, place: Place::Either }
    }

    /// Attaches to the daemon whose socket is at `path`, instead of making a node; the address must be one of the daemon's. The daemon's own
    /// settings count: all others of this builder but [`NodeBuilder::busy_poll`] are without effect, and [`NodeBuilder::when_pins_full`] with anything but
    /// [`WhenFull::Copy`] is refused.
    #[must_use]
    pub fn attach(mut self, path: impl Into<PathBuf>) -> Self {
        self.place = Place::Attached(path.into());
        self
    }

    /// Makes a node in this program, whatever the environment says (`RDS_ATTACH`).
    #[must_use]
    pub fn embedded(mut self) -> Self {
        self.place = Place::Embedded;
        self
    }

    /// TCP port to listen on. Default 16385, the port of Linux rds_tcp; 0 for any free one.
    #[must_use]
    pub fn listen_port(mut self, port: u16) -> Self {
        self.options.listen_port = port;
        self
    }

    /// TCP port to which the node connects. Default 16385.
    #[must_use]
    pub fn dial_port(mut self, port: u16) -> Self {
        self.options.dial_port = port;
        self
    }

    /// Lanes (TCP connections) offered to each own peer and each kernel from 7.0 on, 1 to 8. Default 1. See
    /// [`NodeBuilder::old_kernel_lanes`] for older kernels.
    #[must_use]
    pub fn lanes(mut self, lanes: u8) -> Self {
        self.options.config.lanes = lanes;
        self.auto_lanes = false;
        self
    }

    /// As many lanes as suit the processors that the calling thread may use when the node is opened: the largest power of two that is not
    /// above their number, at most 8. A later life of the node with fewer processors offers fewer, which strands what a kernel
    /// queued on the others meanwhile: with kernels give a number.
    #[must_use]
    pub fn lanes_auto(mut self) -> Self {
        self.auto_lanes = true;
        self
    }

    /// Lanes offered to kernels up to 6.18, 1 to 8. Default 1: those pair connections with lanes by the order in which they come, so that after
    /// a reset messages can be lost, come twice or out of order when there are several. Give 8 on a host that used the kernel's
    /// RDS before: peers remember its 8 lanes, and what they have queued on lanes above 0 would be stranded.
    #[must_use]
    pub fn old_kernel_lanes(mut self, lanes: u8) -> Self {
        self.options.config.old_kernel_lanes = lanes;
        self
    }

    /// Bytes of received messages that no program has taken. Default 256 MiB.
    #[must_use]
    pub fn receive_budget(mut self, bytes: u64) -> Self {
        self.options.config.receive_budget = bytes;
        self
    }

    /// How long a thread that waits looks for input before it sleeps. Default 0. Some 50 µs spare a round trip its wake-ups,
    /// which take most of its time, and cost a processor while nothing comes.
    #[must_use]
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.options.busy_poll = time;
        self
    }

    /// TCP congestion control of the node's connections (`TCP_CONGESTION`), such as `cubic`; one that
    /// `/proc/sys/net/ipv4/tcp_allowed_congestion_control` lists. Default: the system's.
    #[must_use]
    pub fn congestion_control(mut self, name: &str) -> Self {
        self.options.congestion_control = Some(name.to_owned());
        self
    }

    /// Whether large payloads are sent from where they lie, without a copy. Default auto: where it was measured to cost less.
    #[must_use]
    pub fn zero_copy_send(mut self, mode: Mode) -> Self {
        self.options.zero_copy.send = mode;
        self
    }

    /// Whether large payloads are received without a copy. Default off. `Auto`: where it was measured to cost less, and never from
    /// a peer on this host.
    #[must_use]
    pub fn zero_copy_receive(mut self, mode: Mode) -> Self {
        self.options.zero_copy.receive = mode;
        self
    }

    /// Bytes that the kernel may have pinned for the node at one time. Default 75 % of `RLIMIT_MEMLOCK`, which the nodes of
    /// the process share. Nodes with limits of their own should stay below it together: past it, the kernel refuses and the
    /// message is copied.
    #[must_use]
    pub fn pin_limit(mut self, bytes: u64) -> Self {
        self.options.zero_copy.pin_limit = Some(bytes);
        self
    }

    /// What happens to a payload handed over ([`Socket::send_owned`], [`Socket::send_detached`]) that the pin limit has no room for.
    /// Default: it is copied. With [`WhenFull::Wait`] the `try_` forms return [`TrySendError::Full`](crate::TrySendError::Full), of which
    /// [`Socket::writable_fd`] knows nothing: there will be room after a [`Completion::Released`](crate::Completion::Released).
    #[must_use]
    pub fn when_pins_full(mut self, what: WhenFull) -> Self {
        self.options.zero_copy.when_full = what;
        self
    }

    /// How long the kernel may keep what was pinned, for a peer that does not take it, before its connection is ended and made
    /// anew. Default 30 s.
    #[must_use]
    pub fn pin_hold_limit(mut self, time: Duration) -> Self {
        self.options.zero_copy.hold_limit = time;
        self
    }

    /// Bytes of free buffers that the node keeps. Default 64 MiB.
    #[must_use]
    pub fn pool_limit(mut self, bytes: u64) -> Self {
        self.options.zero_copy.pool_limit = bytes;
        self
    }

    /// Bytes of mapped pages of the node, those that the program holds included; past it, messages are copied. Default 256 MiB.
    #[must_use]
    pub fn map_limit(mut self, bytes: u64) -> Self {
        self.options.zero_copy.map_limit = bytes;
        self
    }

    /// Shows the node to `rds-info --node PATH`: makes a Unix socket at `path` that answers every connection with one line of JSON for each node of this
    /// process that has the same path ([`NodeStatus`](crate::NodeStatus)). Its file has mode 0600, replaces one that a dead program left, and goes with the
    /// node. A thread of its own answers, which sleeps otherwise. Default: what the environment variable `RDS_INFO_SOCKET` says, where `%p` stands for the
    /// process's number; that one only warns (in the log) when it cannot have its socket, where this one is an [`OpenError::Info`]. Without effect on an
    /// attached node, which the daemon shows.
    #[must_use]
    pub fn info_socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.options.info_socket = Some(path.into());
        self
    }

    /// Changes any other setting of the protocol.
    #[must_use]
    pub fn configure(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.options.config);
        self
    }

    /// Opens the node: listens, starts its background thread. Or attaches to a daemon, if [`NodeBuilder::attach`] or the environment variable
    /// `RDS_ATTACH` says so, and blocks until that has answered, up to 5 s.
    ///
    /// # Errors
    /// [`OpenError`]; `NotAttached` where a daemon cannot keep what a setting promises.
    pub fn open(self) -> Result<Node, OpenError> {
        match self.path() {
            Some(path) => self.attached(path)?.open(),
            None => Engine::open(self.resolved()).map(Into::into),
        }
    }

    fn path(&self) -> Option<PathBuf> {
        match &self.place {
            Place::Either => {
                std::env::var_os(ATTACH_VARIABLE).filter(|path| !path.is_empty()).map(Into::into)
            }
            Place::Embedded => None,
            Place::Attached(path) => Some(path.clone()),
        }
    }

    fn attached(self, path: PathBuf) -> Result<AttachBuilder, OpenError> {
        // What is pinned is the daemon's affair: a program that counts on being told would not be.
        if self.options.zero_copy.when_full != WhenFull::Copy {
            return Err(OpenError::NotAttached {
                setting: "when_pins_full",
                instead: "leave it at copy, or open an embedded node",
            });
        }
        let builder = AttachBuilder::new(path).address(self.options.config.address);
        Ok(builder.busy_poll(self.options.busy_poll))
    }

    fn resolved(mut self) -> Options {
        if self.auto_lanes {
            let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
            self.options.config.lanes = Config::lanes_for(cpus);
        }
        if self.options.info_socket.is_none() {
            let path = std::env::var(INFO_VARIABLE).ok().filter(|path| !path.is_empty());
            let path = path.map(|path| PathBuf::from(path.replace("%p", &std::process::id().to_string())));
            (self.options.info_socket, self.options.info_required) = (path, false);
        }
        self.options
    }

    /// Opens the node with sockets bound to `ports`, in that order. Peers that are sending already find them there, where
    /// between [`NodeBuilder::open`] and [`Node::bind`] their messages would be dropped for want of a socket. A daemon's node is there before any
    /// program attaches, so that this is not so there.
    ///
    /// # Errors
    /// [`OpenError`]; `Bind` when a port cannot be had.
    pub fn open_bound(self, ports: &[u16]) -> Result<(Node, Vec<Socket>), OpenError> {
        match self.path() {
            Some(path) => {
                let node = self.attached(path)?.open()?;
                let sockets = ports.iter().map(|port| node.bind(*port)).collect::<Result<_, _>>()?;
                Ok((node, sockets))
            }
            None => {
                let (engine, sockets) = Engine::open_bound(self.resolved(), ports)?;
                Ok((engine.into(), sockets.into_iter().map(Into::into).collect()))
            }
        }
    }
}

/// How to attach to a daemon.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = rds_client::Node::attach_builder("/run/rds/rds.sock").address("192.0.2.7".parse()?).open()?;
/// let socket = node.bind(4000)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct AttachBuilder(AttachOptions);

impl AttachBuilder {
    pub(crate) fn new(path: impl Into<PathBuf>) -> Self {
        Self(AttachOptions::new(path))
    }

    /// Which of the daemon's addresses the node has. Default: the daemon's first.
    #[must_use]
    pub fn address(mut self, address: IpAddr) -> Self {
        self.0.address = Some(address);
        self
    }

    /// Does without shared memory: everything is copied through the socket. For programs that cannot share memory with the daemon, in another
    /// container, say; it has to be asked for ([`AttachError::Memory`](crate::AttachError::Memory) says when).
    #[must_use]
    pub fn without_shared_memory(mut self) -> Self {
        self.0.without_shared_memory = true;
        self
    }

    /// Size of the memory for messages that are sent, in bytes. The daemon may give less. Default: as the daemon has it, 32 MiB. Only what was
    /// used takes memory.
    #[must_use]
    pub fn send_arena(mut self, bytes: u64) -> Self {
        self.0.send_arena = bytes;
        self
    }

    /// The same for messages that are received.
    #[must_use]
    pub fn receive_arena(mut self, bytes: u64) -> Self {
        self.0.receive_arena = bytes;
        self
    }

    /// Size of each of the two rings, in bytes; rounded to a power of two, and the daemon may give less. Default: as the daemon has it, 256 KiB.
    #[must_use]
    pub fn rings(mut self, bytes: u32) -> Self {
        self.0.rings = bytes;
        self
    }

    /// As [`NodeBuilder::busy_poll`].
    #[must_use]
    pub fn busy_poll(mut self, time: Duration) -> Self {
        self.0.busy_poll = time;
        self
    }

    /// Name under which the daemon lists the program. Default: that of its executable.
    #[must_use]
    pub fn program(mut self, name: &str) -> Self {
        self.0.program = name.to_owned();
        self
    }

    /// Attaches. Blocks until the daemon has answered, up to 5 s.
    ///
    /// # Errors
    /// [`OpenError::Attach`]: no daemon there, or it refuses.
    pub fn open(self) -> Result<Node, OpenError> {
        Client::open(self.0).map(Into::into)
    }
}
