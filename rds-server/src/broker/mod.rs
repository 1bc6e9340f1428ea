//! Ports with one or several members: which of them a message is for, and what the node counts of what they hold.

mod group;
mod ledger;

pub use group::{Group, Member};
pub use ledger::{Count, Ledger, MemberId, Report};
