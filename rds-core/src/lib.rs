//! Reliable Datagram Sockets over TCP, outside the kernel.
//!
//! * [`attach`]: what a host's daemon and the programs that it serves say to each other.
//! * [`buffer`]: memory of payloads.
//! * [`wire`]: bytes to values and back; no state beyond one connection's framing.
//! * [`proto`]: the protocol as a state machine without I/O, clock or threads.
//! * [`info`]: counters and snapshots.
//! * [`engine`]: drives [`proto`] over real sockets.
//! * [`events`]: what is worth a line in the log.
//! * [`kernel`]: the kernel's own RDS sockets, for tools and tests that compare with them.
//! * [`zerocopy`]: the logic of zero copy, as pure as [`proto`].
//! * `sys`: raw system calls, the only home of `unsafe`.
pub mod attach;
#[doc(hidden)]
pub mod bench;
pub mod buffer;
pub mod engine;
pub mod events;
pub mod info;
pub mod kernel;
pub mod proto;
mod sys;
pub mod wire;
pub mod zerocopy;
