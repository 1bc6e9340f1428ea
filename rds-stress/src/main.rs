//! `rds-stress`: loads, measures and verifies Reliable Datagram Sockets.

use std::io::{self, Write};
use std::process::ExitCode;

use rds_stress::cli::{self, Part, Plan, Stop};
use rds_stress::error::Failure;
use rds_stress::report::Report;
use rds_stress::roles;

fn main() -> ExitCode {
    let result = match cli::parse(std::env::args_os()) {
        Ok(plan) => run(&plan),
        Err(Stop::Show(text, code)) => {
            let _ = io::stdout().write_all(text.as_bytes());
            return ExitCode::from(code);
        }
        Err(Stop::Wrong(failure)) => Err(failure),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let _ = writeln!(io::stderr(), "rds-stress: {failure}");
            ExitCode::from(failure.code)
        }
    }
}

fn run(plan: &Plan) -> Result<(), Failure> {
    let (session, summary) = match &plan.part {
        Part::Passive => roles::passive(&plan.settings, plan.out),
        Part::Active(host) => roles::active(&plan.settings, &plan.offer, host, plan.out),
        Part::Loopback => roles::loopback(&plan.settings, &plan.offer, plan.out),
    }?;
    if plan.json {
        let json = Report::new(&session, &summary, plan.part == Part::Loopback).to_json();
        writeln!(io::stdout(), "{json}")
            .map_err(|e| Failure::new(format!("cannot write the JSON object: {e}")))?;
    }
    summary.failure.map_or(Ok(()), Err)
}
