//! The kernel's own RDS sockets (PF_RDS of the modules `rds` and `rds_tcp`), behind a safe interface.
//!
//! For tools and tests that run the same traffic over them as over a node of ours. A program that only wants RDS has no need of
//! this; a host that has `rds_tcp` loaded has its TCP port 16385 taken, in every network namespace.
//!
//! What calls do is the kernel's affair (`rds(7)`, and `net/rds` of its source where that page is old); the documentation of
//! each call says what matters.
mod control;
mod error;
mod info;
mod lent;
mod socket;

pub use error::{KernelBindError, KernelSendError};
pub use info::{Connection, InfoMessage, InfoSocket, KernelInfo, Queue, TcpSocket};
pub use lent::{KernelCookie, Returned};
pub use socket::{KernelReceived, KernelSocket, Ready};
