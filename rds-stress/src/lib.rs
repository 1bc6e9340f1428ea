//! The parts of `rds-stress`, a counterpart of Oracle's program of that name over userspace RDS.
//!
//! Documented for its users in docs/rds-stress.md.
pub mod backend;
pub mod block;
pub mod child;
pub mod cli;
pub mod clock;
pub mod control;
pub mod error;
pub mod exchange;
pub mod lives;
pub mod message;
pub mod number;
pub mod out;
pub mod outbox;
pub mod pattern;
pub mod perfdata;
pub mod processes;
pub mod report;
pub mod roles;
pub mod rtt;
pub mod run;
pub mod session;
pub mod soak;
pub mod stats;
pub mod table;
pub mod task;
pub mod tools;
pub mod zerocopy;
