//! Nodes.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use rds_core::attach::client::Client;
use rds_core::engine::Engine;

use crate::either::{Kind, either};
use crate::{
    AttachBuilder, Attachment, BindError, Mode, NodeBuilder, NodeStatus, OpenError, PoolBuffer, Sharing,
    ShutdownReport, Snapshot, Socket,
};

/// One RDS node, in this process or at the host's daemon. Cheap to clone; when the last clone and the last socket are gone, it is drained
/// ([`Node::shutdown`] with 1 s).
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = rds_client::Node::builder("127.71.2.1".parse()?).listen_port(0).open()?;
/// let socket = node.bind(0)?;
/// assert_eq!(node.snapshot().sockets[0].bound, socket.local_addr());
/// assert_eq!(node.shutdown(std::time::Duration::from_secs(1)).undelivered, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Node(Kind<Engine, Client>);

impl From<Engine> for Node {
    fn from(engine: Engine) -> Self {
        Self(Kind::Embedded(engine))
    }
}

impl From<Client> for Node {
    fn from(client: Client) -> Self {
        Self(Kind::Attached(client))
    }
}

impl Node {
    /// Settings for a node at `address`.
    #[must_use]
    pub fn builder(address: IpAddr) -> NodeBuilder {
        NodeBuilder::new(address)
    }

    /// Opens a node at `address` with the defaults: in this program, or at the daemon that the environment variable `RDS_ATTACH` names.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(address: IpAddr) -> Result<Self, OpenError> {
        Self::builder(address).open()
    }

    /// Attaches to the daemon whose socket is at `path` ([`DEFAULT_PATH`](crate::DEFAULT_PATH), if it has the default), at its first address. Blocks
    /// until the daemon has answered, up to 5 s.
    ///
    /// # Errors
    /// [`OpenError::Attach`]: no daemon there, or it refuses.
    pub fn attach(path: impl Into<PathBuf>) -> Result<Self, OpenError> {
        Self::attach_builder(path).open()
    }

    /// Settings for attaching to the daemon whose socket is at `path`.
    #[must_use]
    pub fn attach_builder(path: impl Into<PathBuf>) -> AttachBuilder {
        AttachBuilder::new(path)
    }

    /// How the node stands with its daemon; `None` if it lives in this program.
    #[must_use]
    pub fn attachment(&self) -> Option<Attachment> {
        match &self.0 {
            Kind::Embedded(_) => None,
            Kind::Attached(client) => Some(client.attachment()),
        }
    }

    /// The node's address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        either!(&self.0, node => node.address())
    }

    /// The TCP address on which it listens. Port 0 of an attached node, for which the daemon listens.
    #[must_use]
    pub fn listen_addr(&self) -> SocketAddr {
        match &self.0 {
            Kind::Embedded(engine) => engine.listen_addr(),
            Kind::Attached(client) => SocketAddr::new(client.address(), 0),
        }
    }

    /// A page-aligned buffer of `len` bytes from the node's pool, to be filled and sent with [`Socket::send_owned`]. Its contents are
    /// unspecified. It returns to the pool when it is dropped, or when the message that was sent from it has ended. Does not block.
    ///
    /// Of an attached node: from the memory that is shared with the daemon, and sent from there without a copy. While that is full, or there is none, it
    /// is of this process alone, and copied when it is sent.
    #[must_use]
    pub fn buffer(&self, len: usize) -> PoolBuffer {
        either!(&self.0, node => node.buffer(len))
    }

    /// Binds a socket to `port` of the node's address; 0 for any free one. Of an attached node it blocks until the daemon has answered, up to 10 s.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(&self, port: u16) -> Result<Socket, BindError> {
        either!(&self.0, node => node.bind(port).map(Into::into))
    }

    /// Binds a socket to a port that other sockets may have too, of whatever programs, if they all bind it with the same `sharing`. With
    /// [`Sharing::Balance`] each message goes to one of them, the one with most room; with [`Sharing::FanOut`] to all. Order per pair of
    /// sockets holds in either. Blocks as [`Node::bind`].
    ///
    /// # Errors
    /// [`BindError`]; `NotShared` of an embedded node, which cannot share ports.
    pub fn bind_shared(&self, port: u16, sharing: Sharing) -> Result<Socket, BindError> {
        match &self.0 {
            Kind::Embedded(engine) if sharing == Sharing::Exclusive => engine.bind(port).map(Into::into),
            Kind::Embedded(_) => Err(BindError::NotShared(port)),
            Kind::Attached(client) => client.bind_shared(port, sharing).map(Into::into),
        }
    }

    /// Sets whether large payloads to and from a peer are sent and received without a copy, instead of as the node's settings
    /// say; `None` for as they say. Messages that begin from now on are sent so; what concerns segments comes with the next
    /// connection. Of an attached node: for all programs of the daemon, for whose answer this blocks up to 10 s; it does so for root and its own user
    /// only, and a refusal is logged.
    pub fn set_zero_copy(&self, peer: IpAddr, send: Option<Mode>, receive: Option<Mode>) {
        either!(&self.0, node => node.set_zero_copy(peer, send, receive));
    }

    /// The node at this moment, without the queues' messages. Of an attached node it is the daemon's, for whose answer this blocks up to 10 s; without
    /// one it has the address and the program's own sockets alone, and generation 0.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.snapshot_of(false)
    }

    /// The node at this moment, every queued message included.
    #[must_use]
    pub fn snapshot_with_queues(&self) -> Snapshot {
        self.snapshot_of(true)
    }

    /// The node at this moment, with every queued message, the bound ports and, of an attached node, the programs that are attached to the daemon. Of an
    /// attached node it blocks until the daemon has answered, up to 10 s.
    ///
    /// # Errors
    /// The daemon does not answer, or says what this version does not understand. None for a node in this program.
    pub fn status(&self) -> std::io::Result<NodeStatus> {
        match &self.0 {
            Kind::Embedded(engine) => Ok(NodeStatus::embedded(engine.snapshot(true))),
            Kind::Attached(client) => client.status(true),
        }
    }

    fn snapshot_of(&self, queues: bool) -> Snapshot {
        match &self.0 {
            Kind::Embedded(engine) => engine.snapshot(queues),
            Kind::Attached(client) => client.snapshot(queues).unwrap_or_else(|_| client.own_snapshot()),
        }
    }

    /// Refuses new sends, delivers what is queued, closes every connection in an orderly way. Blocks up to `deadline`, and up
    /// to one second more for the connections' ends. What could not be delivered is cancelled: when this returns, every message has
    /// all its [completions](crate::Completion). Afterwards receives return what is queued, then
    /// [`RecvError::Shutdown`](crate::RecvError::Shutdown).
    ///
    /// Of an attached node: waits for its own messages, and leaves the daemon and its connections alone.
    pub fn shutdown(&self, deadline: Duration) -> ShutdownReport {
        either!(&self.0, node => node.shutdown(deadline))
    }
}
