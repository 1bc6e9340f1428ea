//! Shared parts of the whole-system tests.

#[cfg(doctest)]
mod book;
pub mod captures;
pub mod sim;
