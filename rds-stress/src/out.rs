//! Where lines go.

use std::fmt;
use std::io::{self, Write};

use crate::child::{self, Said};

/// Where the lines of one side go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Out {
    /// To stdout.
    Stdout,
    /// To stderr: stdout is for the JSON object.
    Stderr,
    /// To the parent of a task in a process of its own, which prints them where its own lines go.
    Parent,
    /// Nowhere: the other side of `--loopback` shows the same.
    Nowhere,
}

impl Out {
    /// Writes a line.
    pub fn line(self, line: fmt::Arguments<'_>) {
        self.write(format_args!("{line}\n"));
    }

    /// Writes what must not be lost: to stderr where other lines go nowhere.
    pub fn report(self, text: &str) {
        let out = if self == Self::Nowhere { Self::Stderr } else { self };
        out.line(format_args!("{text}"));
    }

    /// Writes a part of a line, and shows it at once. When nobody reads the output any more the program ends, as one that
    /// SIGPIPE kills does.
    pub fn write(self, text: fmt::Arguments<'_>) {
        let result = match self {
            Self::Stdout => {
                let mut stdout = io::stdout().lock();
                stdout.write_fmt(text).and_then(|()| stdout.flush())
            }
            Self::Stderr => io::stderr().lock().write_fmt(text),
            Self::Parent => {
                child::say(&Said::Lines(text.to_string()));
                Ok(())
            }
            Self::Nowhere => Ok(()),
        };
        if result.is_err() {
            std::process::exit(1);
        }
    }
}

macro_rules! line {
    ($out:expr, $($arg:tt)*) => { $out.line(format_args!($($arg)*)) };
}
pub(crate) use line;
