//! `rds-server doctor`: what of this host keeps the daemon from working, or from working well, and what to do about it.
//!
//! * [`machine`]: where the facts of a host are read.
//! * [`finding`]: what a check says. [`mod@print`]: the same for people.
//! * [`kernel`], [`memory`], [`files`], [`tcp`]: limits and settings.
//! * [`address`]: the nodes' addresses and their TCP port; [`holder`]: who has a port.
//! * [`place`]: the socket at which programs attach.
//! * [`probe`]: zero copy, tried.
//!
//! A check looks, and judges: what it judges by are values, so that each is tested with made-up ones.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::settings::Settings;

pub mod address;
pub mod files;
pub mod finding;
pub mod holder;
pub mod kernel;
pub mod machine;
pub mod memory;
pub mod place;
pub mod print;
pub mod probe;
pub mod tcp;

pub use finding::{Finding, Status, Todo};
pub use machine::Machine;

/// What `rds-server doctor` is asked for, beside the daemon's own options.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Args {
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// Look at the limits of this process, a running daemon's say, instead of those of this shell
    #[arg(long, value_name = "PID")]
    pub pid: Option<u32>,
}

/// All findings. As JSON: `{"version", "status", "checks": [{"name", "status", "found", "why", "todo": {"shell", "systemd", "container"} or null}]}`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// Of the program that looked.
    pub version: String,
    /// The worst of the findings.
    pub status: Status,
    /// What each check found.
    pub checks: Vec<Finding>,
}

impl Report {
    /// Of these findings.
    #[must_use]
    pub fn new(checks: Vec<Finding>) -> Self {
        let status = checks.iter().map(|finding| finding.status).max().unwrap_or(Status::Ok);
        Self { version: env!("CARGO_PKG_VERSION").to_owned(), status, checks }
    }
}

/// Looks at everything that a daemon with these settings needs. Opens sockets on loopback, binds the nodes' addresses for a moment, and changes
/// nothing. Takes a second or two where zero copy is slow to be tried, and at most some ten.
#[must_use]
pub fn look(settings: &Settings, machine: &Machine) -> Report {
    let mut checks = vec![kernel::version(machine, settings), kernel::module(machine)];
    checks.extend(address::check(machine, settings));
    checks.push(place::check(settings));
    checks.extend(address::admin(machine, settings));
    checks.push(memory::shared(settings));
    checks.push(memory::budget(machine, settings));
    checks.push(memory::memlock(machine, settings));
    checks.push(memory::optmem(machine, settings));
    checks.push(files::check(machine, settings));
    checks.push(files::processors(settings));
    checks.push(tcp::congestion(machine, settings));
    checks.push(tcp::receive_buffer(machine));
    checks.push(tcp::send_buffer(machine));
    checks.push(tcp::backlog(machine));
    checks.extend(probe::check(settings));
    Report::new(checks)
}

/// Looks and prints to standard output. Exit code 0 if nothing has failed, however many notes and warnings there are; 1 if something has.
#[must_use]
pub fn main(settings: &Settings, args: &Args) -> ExitCode {
    let machine = args.pid.map_or_else(Machine::this, Machine::of_process);
    let report = look(settings, &machine);
    let text = if args.json {
        serde_json::to_string_pretty(&report)
            .map_or_else(|e| format!("{{\"error\": {:?}}}", e.to_string()), |json| json + "\n")
    } else {
        print::text(&report)
    };
    // A reader that went away has seen enough.
    let _ = io::stdout().write_all(text.as_bytes());
    if report.status == Status::Fail { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
