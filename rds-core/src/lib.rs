//! Reliable Datagram Sockets over TCP, outside the kernel.
//!
//! * [`wire`]: bytes to values and back; no state beyond one connection's framing.
//! * [`proto`]: the protocol as a state machine without I/O, clock or threads.
//! * [`info`]: counters and snapshots.
//! * [`engine`]: drives [`proto`] over real sockets.
//! * [`zerocopy`]: what zero copy is decided by; pure as `proto` is.
//! * `sys`: raw system calls, the only home of `unsafe`.
pub mod engine;
pub mod info;
pub mod proto;
mod sys;
pub mod wire;
pub mod zerocopy;
