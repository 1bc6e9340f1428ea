//! A deterministic simulator: real `proto::Node`s and models of kernels over a model of TCP, in virtual time, with
//! faults drawn from a seed, and a watch over every byte and every message.
//!
//! One number makes a run: hosts, settings, traffic, faults and all chance come from it, so that a failure is
//! replayed by its seed alone (`cargo run -p rds-tests --bin rds-sim -- --seed N --trace`).
//!
//! * [`net`]: TCP. [`own`]: drives a node over it. [`kernel`]: rds_tcp by its rules.
//! * [`memory`]: of simulated programs, which the model of MSG_ZEROCOPY in [`net`] reads where it lies.
//! * [`watch`]: reads every stream along and holds what nodes write against `docs/protocol.md`.
//! * [`ledger`]: what became of each message, and whether that was promised.
//! * [`plan`], [`faults`], [`traffic`]: what a seed draws. [`coverage`]: what a batch of seeds has hit.
//! * [`world`]: puts it together; scenario tests drive it by hand.

pub mod batch;
pub mod coverage;
pub mod ctx;
pub mod faults;
pub mod inbox;
pub mod kernel;
pub mod ledger;
pub mod memory;
pub mod net;
pub mod own;
pub mod pair;
pub mod plan;
pub mod stranger;
pub mod traffic;
pub mod watch;
pub mod world;

pub use world::World;
