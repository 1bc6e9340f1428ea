//! Drives the protocol over real sockets.
//!
//! [`Engine`] is one node: the protocol's [`Node`](crate::proto::Node) under a lock that is held briefly, TCP connections,
//! and one poll loop. There is no thread hop on the fast path: a send writes on the caller's thread when the
//! connection is idle, and a thread that waits for a message runs the poll loop itself (`right`). A background thread polls only
//! while no caller does. Messages that are queued while something is on its way go out together, never on a timer.
//!
//! | module | purpose |
//! | --- | --- |
//! | `handle` | opening, binding, snapshots, shutdown |
//! | `socket`, `send`, `recv` | what programs call |
//! | `shared` | the transmit path |
//! | `wait`, `inlet`, `settings` | blocking, receiving, and what a socket keeps: for attached sockets ([`crate::attach`]) too |
//! | `core` | the node and its tables, under the core's lock |
//! | `sink`, `port` | sockets whose owner takes at once what concerns them, and sending for many of them |
//! | `completion`, `lease` | what became of sent payloads; received ones |
//! | `mailbox`, `queue` | received messages and notifications, outside the core's lock |
//! | `right`, `parker`, `tasks` | who polls, who sleeps, and how they are woken |
//! | `reactor`, `lifecycle`, `conn` | the poll loop, and connections as it sees them |
//! | `mapper`, `maps` | how a connection reads so that payloads can be mapped, and what all connections share of that |
//! | `link`, `wire` | the writing end, and its system calls |
//! | `pins` | what may be pinned, and where |
//! | `closer` | sockets that the kernel still reads for |
//! | `tcp`, `log`, `options` | TCP settings, log lines, settings |
//!
//! Locks, in the order in which they may be taken: poll right's state; reactor; core; a mailbox's front; its back. System calls that
//! move data are made with none of them but the reactor's.

mod closer;
pub(crate) mod completion;
mod conn;
mod core;
mod error;
mod event;
mod handle;
mod info_socket;
pub(crate) mod inlet;
pub(crate) mod lease;
mod lifecycle;
mod link;
mod log;
mod look;
pub(crate) mod mailbox;
mod mapper;
mod maps;
mod options;
pub(crate) mod parker;
mod pins;
mod port;
pub(crate) mod queue;
mod reactor;
mod recv;
pub(crate) mod right;
mod send;
pub(crate) mod settings;
mod shared;
mod sink;
mod socket;
pub(crate) mod tasks;
mod tcp;
pub(crate) mod wait;
mod wire;

pub use completion::{Completion, Cookie};
pub use error::{Blocked, RecvError, SendError, TrySendError};
pub use event::{Event, Message, Readiness, Received, ShutdownReport};
pub use handle::Engine;
pub use lease::Lease;
pub use options::{OpenError, Options, RDS_TCP_PORT, ZeroCopy};
pub use port::{Batch, Port};
pub use sink::{Delivered, EXACT_READS, Sink, Wake};
pub use socket::Socket;
#[doc(hidden)]
pub use tasks::task_key;
