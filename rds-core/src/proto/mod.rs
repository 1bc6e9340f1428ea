//! RDS over TCP as a pure state machine: time and bytes go in, actions come out.
//!
//! [`Node`] does no I/O, reads no clock and starts no thread, so the same code runs under real sockets
//! (`engine`) and under a deterministic simulator. Rules are those of Linux `net/rds` towards a kernel,
//! and of `docs/protocol.md` between own peers.
//!
//! How a driver uses it:
//!
//! 1. Program calls: [`Node::bind`], [`Node::send`], [`Node::consumed`], [`Node::cancel`], [`Node::close`].
//! 2. I/O results: [`Node::connected`], [`Node::connect_failed`], [`Node::accept`], [`Node::receive`],
//!    [`Node::drained`], [`Node::closed`], [`Node::writable`], [`Node::tcp_unacked`].
//! 3. After any of these: [`Node::poll_action`] until `None`, and for each connection that
//!    [`Node::poll_transmit`] names: [`Node::begin_transmit`], write, [`Node::end_transmit`].
//! 4. Before sleeping: [`Node::flush_acks`]. Sleep until [`Node::next_timeout`], then [`Node::handle_timeout`].

mod carry;
mod config;
mod connection;
mod dial;
mod error;
mod event;
mod filter;
mod grant;
mod kernel;
mod lane;
mod local;
mod node;
mod order;
mod past;
mod peer;
mod receive;
mod refuse;
mod send;
mod time;
mod transmit;

pub use config::{Config, ConfigError};
pub use error::{BindError, SendError};
pub use event::{Action, Body, CloseMode, ConnId, DropReason, Guarantee, Inbox, Outcome, SocketId, Token};
pub use filter::{PeerFilter, PeerRules};
pub use node::Node;
pub use order::{is_smaller, kernel_lane_of_port, lane_of_port, port_step};
pub use receive::Received;
pub(crate) use send::is_unicast;
pub use send::{Payload, Rejected};
pub use time::Time;
