//! The broker daemon: owns a host's RDS addresses, and serves every local program as the kernel's module would.
//!
//! * [`settings`], [`config`], [`cli`]: what it is to do, and where that is said.
//! * [`access`]: who may do what, and how much.
//! * [`broker`]: ports with several members.
//! * [`session`]: one attached client.
//! * [`host`]: one node, and the ports that clients have bound.
//! * [`remember`]: which ports were bound, over a restart.
//! * [`service`]: the thread that serves all clients.
//! * [`listener`]: the Unix socket at which clients come.
//! * [`snapshot`]: all of it at one moment.
//! * [`server`]: the whole, as a value.
//! * [`life`]: the whole, as a process: signals, systemd, the end.
//! * [`observe`]: what it shows of itself: admin pages, metrics, events.
//! * [`doctor`]: what of a host keeps it from working well.
//!
//! Documented for its users in docs/daemon.md.

pub mod access;
pub mod broker;
pub mod cli;
pub mod config;
pub mod doctor;
pub mod host;
pub mod life;
pub mod listener;
pub mod observe;
pub mod remember;
pub mod server;
pub mod service;
pub mod session;
pub mod settings;
pub mod snapshot;
