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
//! | `shared` | the transmit path, and blocking |
//! | `core` | the node and its tables, under the core's lock |
//! | `completion`, `lease` | what became of sent payloads; received ones |
//! | `mailbox`, `queue` | received messages and notifications, outside the core's lock |
//! | `right`, `parker` | who polls, who sleeps, and how they are woken |
//! | `reactor`, `lifecycle`, `conn` | the poll loop, and connections as it sees them |
//! | `link`, `wire` | the writing end, and its system calls |
//! | `pins` | what may be pinned, and where |
//! | `closer` | sockets that the kernel still reads for |
//! | `tcp`, `log`, `options` | TCP settings, log lines, settings |
//!
//! Locks, in the order in which they may be taken: poll right's state; reactor; core; a mailbox's front; its back. System calls that
//! move data are made with none of them but the reactor's.

mod closer;
mod completion;
mod conn;
mod core;
mod error;
mod event;
mod handle;
mod lease;
mod lifecycle;
mod link;
mod log;
mod mailbox;
mod mapper;
mod maps;
mod options;
mod parker;
mod pins;
mod queue;
mod reactor;
mod recv;
mod right;
mod send;
mod shared;
mod socket;
mod tcp;
mod wire;

pub use completion::{Completion, Cookie};
pub use error::{Blocked, RecvError, SendError, TrySendError};
pub use event::{Event, Message, Readiness, Received, ShutdownReport};
pub use handle::Engine;
pub use lease::Lease;
pub use options::{OpenError, Options, RDS_TCP_PORT, ZeroCopy};
pub use socket::Socket;
