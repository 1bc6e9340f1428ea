//! Raw system calls: what no crate offers safely. The only home of `unsafe`.
//!
//! * `zerocopy`: sending without a copy (MSG_ZEROCOPY), and `error_queue`: hearing when the kernel has let go.
//! * `region`: mapping what was received (TCP_ZEROCOPY_RECEIVE), and leases of it.
//! * `pages`: page-aligned memory. `limits`: how much of it the kernel may pin for us.
//! * `tcp`: segment size, path MTU, output queue, low-water mark.
//! * `cpu`: CPU time.
//! * `shm`: memory shared with another process. `vectored`: the kernel's reads and writes of it. `arena`: slices of such memory that are
//!   trusted not to change; `ranges`: which are out.
//! * `peer`: who is at the other end of a Unix socket.
//! * `af_rds`: the kernel's own RDS sockets.
#![allow(unsafe_code)]

mod option;

pub(crate) mod af_rds;
pub(crate) mod arena;
pub(crate) mod cpu;
pub(crate) mod error_queue;
pub(crate) mod limits;
pub(crate) mod pages;
pub(crate) mod peer;
pub(crate) mod ranges;
pub(crate) mod region;
pub(crate) mod shm;
mod tcp;
pub(crate) mod vectored;
mod zc_receive;
pub(crate) mod zerocopy;

pub(crate) use tcp::{figures, page_mss, path_mtu, segmenting, send_mss, set_max_segment, unacknowledged};

#[cfg(test)]
mod testing;
