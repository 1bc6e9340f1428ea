//! The examples of README.md and docs/: rustdoc compiles and runs them with the tests.

#[doc = include_str!("../../README.md")]
mod readme {}
#[doc = include_str!("../../docs/quick-start.md")]
mod quick_start {}
#[doc = include_str!("../../docs/async.md")]
mod asynchronous {}
#[doc = include_str!("../../docs/api.md")]
mod api {}
