//! Shared parts of the whole-system tests.

pub mod ledger;
pub mod proxy;
#[cfg(doctest)]
mod book;
pub mod captures;
