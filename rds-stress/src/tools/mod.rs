//! The parts of `rds-info` and `rds-ping`, counterparts of Oracle's programs of those names.
//!
//! Documented for their users in docs/tools.md.

pub mod info;
pub mod ping;
pub mod source;
pub mod text;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches};

use crate::error::Failure;

/// What a command line says, or the exit code that goes with it once help or an error is printed: 1 for a wrong one, as in the reference.
fn parse<C: CommandFactory + FromArgMatches>(
    args: impl IntoIterator<Item = OsString>,
) -> Result<C, ExitCode> {
    let parsed = C::command().try_get_matches_from(args).and_then(|matches| C::from_arg_matches(&matches));
    parsed.map_err(|error| {
        // Nothing can be said if that fails.
        let _ = error.print();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
            _ => ExitCode::from(1),
        }
    })
}

/// The end of a program. What a daemon or a peer said may be part of the failure, so that it is shown as text alone.
fn ended(program: &str, result: Result<ExitCode, Failure>) -> ExitCode {
    result.unwrap_or_else(|failure| {
        complain(program, &failure.message);
        ExitCode::from(failure.code)
    })
}

/// A line on stderr.
fn complain(program: &str, what: &str) {
    let _ = writeln!(io::stderr(), "{program}: {}", text::plain(what));
}

/// Writes to stdout. When nobody reads it any more, the program ends.
fn print(text: &str) {
    let mut stdout = io::stdout().lock();
    if stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).is_err() {
        std::process::exit(1);
    }
}
