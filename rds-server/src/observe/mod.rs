//! What the daemon shows of itself: pages at its admin address, metrics, and events in its log.
//!
//! * [`admin`]: the HTTP endpoint, on a thread of its own.
//! * `cache`: the daemon's status, asked of the service thread a few times a second at most, whoever wants it.
//! * `pages`: what is answered to which path.
//! * [`metrics`]: the catalogue of metrics.
//!
//! Documented for its users in docs/metrics.md.

pub mod admin;
mod cache;
pub mod metrics;
mod pages;
#[cfg(test)]
mod tests;
