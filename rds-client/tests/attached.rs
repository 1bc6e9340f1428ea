//! The tests of sockets once more, over nodes of a daemon: the API is one.
#![allow(clippy::duplicate_mod, reason = "each file of tests brings what they have in common")]

#[path = "flow.rs"]
mod flow;
#[path = "messages.rs"]
mod messages;
#[path = "payloads.rs"]
mod payloads;
#[path = "readiness.rs"]
mod readiness;
#[path = "shutdown.rs"]
mod shutdown;
#[path = "tokio.rs"]
mod tasks;
#[path = "threads.rs"]
mod threads;
