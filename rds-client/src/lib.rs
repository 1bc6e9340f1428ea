//! Reliable Datagram Sockets for Linux programs, without the kernel module.
//!
//! A [`Node`] is one RDS engine with one address; a [`Socket`] is bound to a port of it. From one socket a program sends whole
//! messages, reliably and in order, to any port on any node. Nodes speak to each other, and to the Linux kernel's
//! `rds_tcp`, over TCP port 16385.
//!
//! ```
//! use rds_client::{Node, Received};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Two nodes of one host; anywhere else each would be a host of its own. Without the ports, both are 16385.
//! let a = Node::builder("127.71.1.1".parse()?).listen_port(26385).dial_port(26385).open()?;
//! let b = Node::builder("127.71.1.2".parse()?).listen_port(26385).dial_port(26385).open()?;
//!
//! let alice = a.bind(4000)?;
//! let bob = b.bind(4000)?;
//! alice.send_to(b"hello", bob.local_addr())?;
//!
//! let mut buffer = [0; 100];
//! let Received::Message { len, from, .. } = bob.recv_from(&mut buffer)? else { panic!("only a message can come") };
//! assert_eq!((&buffer[..len], from), (&b"hello"[..], alice.local_addr()));
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! * A message that a send accepted reaches the socket bound to its destination, once, whole, and in the order of the sends from one
//!   socket to one destination, however often connections break, as long as that socket and both nodes live.
//! * No socket there: the message is dropped, and that counts as delivered. Never an error for the sender.
//! * Peer not reachable: the message is kept, within the send buffer, until it is.
//! * A send succeeds when the message is queued. [`Socket::flush`] and [`Socket::completions`] tell when it has arrived.
//!
//! # Blocking
//!
//! Calls that may block say so; their `try_` forms never do. [`Socket::readable_fd`] and [`Socket::writable_fd`] are for programs with a
//! poll loop of their own. A thread that waits does the node's network work meanwhile, so there is no other thread between
//! it and its message.
//!
//! In a [tokio] runtime, with the feature `tokio`, `rds_client::tokio::Socket` has the blocking calls as `async` ones.
//!
//! [tokio]: https://docs.rs/tokio
//!
//! # With a node of its own, or at the host's daemon
//!
//! [`Node::open`] makes a node that lives in the program. Where several programs of a host share its address, the daemon `rds-server` has the
//! node, and programs attach to it: [`Node::attach`], [`NodeBuilder::attach`], or, for a program that knows nothing of it, the environment variable
//! `RDS_ATTACH` with the path of the daemon's socket. Sockets are of the same type and do the same; what differs is said where it does:
//!
//! * Messages go through memory that is shared with the daemon. [`Node::buffer`] gives buffers there, which are sent without another copy, and a
//!   [`Lease`] is such memory.
//! * The daemon's settings count: those of [`NodeBuilder`] that only a node of one's own can have are without effect, or refused.
//! * When the daemon goes away, everything unfinished is [unknown](Completion::Unknown), and the node attaches again by itself; meanwhile `try_` sends
//!   say [`TrySendError::Full`] and blocking calls wait. [`Node::attachment`] tells how it stands.
//! * Ports can be [shared](Node::bind_shared), as only a daemon can do it.
//!
//! # Processes that are forked
//!
//! A child has none of the node's threads, and shares what the parent goes on using: it must leave nodes and sockets alone, also not drop them, and
//! replace itself (execve) or end (_exit). All descriptors are closed by execve. It can open nodes of its own.

mod builder;
mod either;
mod node;
#[cfg(doctest)]
mod ownership;
mod socket;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use builder::{ATTACH_VARIABLE, AttachBuilder, INFO_VARIABLE, NodeBuilder};
pub use bytes::Bytes;
pub use node::Node;
pub use rds_core::attach::client::{Attachment, DEFAULT_PATH};
pub use rds_core::attach::{AttachError, Sharing};
pub use rds_core::buffer::{Owned, PoolBuffer};
pub use rds_core::engine::{
    Blocked, Completion, Cookie, Event, Lease, Message, OpenError, RDS_TCP_PORT, Readiness, Received,
    RecvError, SendError, ShutdownReport, TrySendError,
};
pub use rds_core::info::{ClientInfo, Counter, Counters, NodeStatus, PortInfo, Snapshot};
/// Why the node refused a message; inside [`SendError::Refused`].
pub use rds_core::proto::SendError as Refusal;
pub use rds_core::proto::{BindError, Config, ConfigError, Guarantee};
pub use rds_core::zerocopy::{CopiedBytes, Decision, Fallbacks, Mode, Reason, WhenFull};
pub use socket::Socket;
