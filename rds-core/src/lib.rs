//! Reliable Datagram Sockets over TCP, outside the kernel.
//!
//! * [`buffer`]: memory of payloads.
//! * [`wire`]: bytes to values and back; no state beyond one connection's framing.
//! * [`proto`]: the protocol as a state machine without I/O, clock or threads.
//! * [`info`]: counters and snapshots.
//! * [`engine`]: drives [`proto`] over real sockets.
//! * [`zerocopy`]: the logic of zero copy, as pure as [`proto`].
//! * `sys`: raw system calls, the only home of `unsafe`.
#[doc(hidden)]
pub mod bench;
pub mod buffer;
pub mod engine;
pub mod info;
pub mod proto;
mod sys;
pub mod wire;
pub mod zerocopy;
