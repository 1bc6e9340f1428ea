//! Shared parts of the whole-system tests.

pub mod captures;
