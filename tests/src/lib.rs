//! Shared parts of the whole-system tests.

pub mod ledger;
pub mod proxy;
