//! The attached node in a program: what [`engine::Engine`](crate::engine::Engine) and its sockets are to a program with a node of its own, over
//! a daemon's node.
//!
//! A caller that waits brings in what the daemon writes by itself, so no other thread is between it and its message. Sends are written straight into
//! the submission ring, and what the daemon would refuse is refused here, by the same rules, without asking.
//!
//! | module | purpose |
//! | --- | --- |
//! | `handle`, `socket`, `send` | what programs call |
//! | `core`, `seat`, `book` | what is known of sockets and unfinished sends, under the core's lock |
//! | `incoming` | what the daemon says, and the end of an attachment |
//! | `shared`, `link` | the poll loop; one attachment's memory |
//! | `reattach` | the next attachment |
//!
//! Locks, in the order in which they may be taken: poll right's state; poller; inbox; core; a mailbox's front; its back; a link's.

mod book;
mod core;
mod handle;
mod incoming;
mod link;
mod options;
mod reattach;
mod seat;
mod send;
mod shared;
mod socket;

#[cfg(test)]
mod tests;

pub use handle::Client;
pub use options::{AttachOptions, Attachment, DEFAULT_PATH};
pub use socket::Socket;
