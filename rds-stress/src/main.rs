//! `rds-stress`: loads, measures and verifies Reliable Datagram Sockets.

use std::io::{self, Write};
use std::process::ExitCode;

use rds_stress::backend::kernel::Kernel;
use rds_stress::backend::rds::Rds;
use rds_stress::backend::tcp::Tcp;
use rds_stress::backend::{Backend, Choice};
use rds_stress::child;
use rds_stress::cli::{self, Part, Plan, Stop};
use rds_stress::error::Failure;
use rds_stress::report::Report;
use rds_stress::roles;

fn main() -> ExitCode {
    if child::is_asked(std::env::args_os()) {
        return child::main();
    }
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
    match plan.backend {
        Choice::Rds => run_over::<Rds>(plan),
        Choice::Kernel => run_over::<Kernel>(plan),
        Choice::Tcp => run_over::<Tcp>(plan),
    }
}

fn run_over<B: Backend>(plan: &Plan) -> Result<(), Failure> {
    let (session, summary) = match &plan.part {
        Part::Passive => roles::passive::<B>(&plan.settings, plan.out),
        Part::Active(host) => roles::active::<B>(&plan.settings, &plan.offer, host, plan.out),
        Part::Loopback => roles::loopback::<B>(&plan.settings, &plan.offer, plan.out),
    }?;
    if plan.json {
        let json = Report::new(&session, &summary, plan.part == Part::Loopback, B::CHOICE).to_json();
        writeln!(io::stdout(), "{json}")
            .map_err(|e| Failure::new(format!("cannot write the JSON object: {e}")))?;
    }
    summary.failure.map_or(Ok(()), Err)
}
