//! Who may do what, and how much: rules and quotas. Pure: decided from credentials and counts alone.

mod quota;
mod rules;

pub use quota::{Client, Grant, Kind, Limits, OverQuota, Quotas, Table};
pub use rules::{Attach, Ports, Rule, RuleError, Rules, Who};
