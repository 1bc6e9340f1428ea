//! The ledger: programs that exchange messages, write down what became of each, and are compared afterwards.
//!
//! A sender writes down that it is about to send a message, that the library took it, and how it ended; a receiver what it got.
//! The logs outlive `kill -9`. [`check`] reads those of all incarnations of all processes and says what was broken.

pub mod check;
pub mod daemons;
mod endpoint;
mod kernel;
pub mod log;
pub mod message;
pub mod process;
pub mod run;
mod worker;
