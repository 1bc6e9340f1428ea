//! Why the program ends early: one line, and an exit code.

use std::fmt;

/// A fatal error: what is wrong and what to do, in one line, and the exit code that goes with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The line, without the program's name.
    pub message: String,
    /// 1 for everything but usage errors, which are 2 (rds-tools, section 4.4).
    pub code: u8,
    /// Whether it only says that the other side went away, which has the reason.
    pub echo: bool,
}

impl Failure {
    /// A failure with exit code 1.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 1, echo: false }
    }

    /// The same, when it only says that the other side went away.
    #[must_use]
    pub fn echo(self) -> Self {
        Self { echo: true, ..self }
    }

    /// A wrong command line, exit code 2.
    #[must_use]
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), code: 2, echo: false }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

macro_rules! failure {
    ($($arg:tt)*) => { $crate::error::Failure::new(format!($($arg)*)) };
}
pub(crate) use failure;
