//! Tests that need what not every machine has: root, a tool, a virtual machine.

use std::fmt;
use std::io::Write;

/// Why something cannot be had on this machine. Not for faults of what is tested, nor of the tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable(String);

impl Unavailable {
    /// For this reason, in a few words that fit behind "skipped: ".
    #[must_use]
    pub fn because(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

/// What was asked for; or `None`, after `skipped: ` and the reason were printed, upon which a test returns.
#[must_use]
pub fn or_skip<T>(what: Result<T, Unavailable>) -> Option<T> {
    match what {
        Ok(there) => Some(there),
        Err(why) => {
            let thread = std::thread::current();
            // Past the test harness, which swallows what a passing test prints with eprintln!.
            let said =
                writeln!(std::io::stderr(), "skipped: {why} ({})", thread.name().unwrap_or("unnamed test"));
            // Nobody reads it.
            drop(said);
            None
        }
    }
}
