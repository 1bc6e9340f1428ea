//! The scenarios.

mod basic;
mod congestion;
mod daemon;
mod lanes;
mod loss;
mod restart;
mod sockets;

use super::Scenario;

/// Scenarios that a case goes through alone with its guest, in this order: a kernel sleeps only before it has been spoken to.
pub const ALONE: &[Scenario] = &[
    basic::WAKE_UP,
    basic::PING,
    basic::SIZES,
    basic::BOTH_DIRECTIONS,
    congestion::KERNEL_STOPS,
    congestion::WE_STOP,
    sockets::NONE,
    sockets::CLOSES,
    sockets::CANCELS,
    loss::RESET,
    loss::RESET_OF_KERNEL,
    loss::DROPPED_BY_KERNEL,
    loss::OUR_LINK,
    loss::KERNEL_LINK,
    restart::OURS,
    basic::IPV6,
    lanes::LANES_AT_REST,
    lanes::LANES_RESET,
];

/// Scenarios that take long and strike the whole guest: both roles go through them at the same time.
pub const TOGETHER: &[Scenario] =
    &[restart::MODULE, loss::OUR_LINK_LONG, restart::CRASH, loss::KERNEL_LINK_LONG];

/// Scenarios with a daemon's node for ours. The two roles go through them at the same time, each with a daemon of its own.
pub const DAEMON: &[Scenario] = &[
    daemon::PING,
    daemon::SIZES,
    daemon::BOTH_DIRECTIONS,
    daemon::KERNEL_STOPS,
    daemon::WE_STOP,
    daemon::RESET,
    daemon::RESTART,
];
