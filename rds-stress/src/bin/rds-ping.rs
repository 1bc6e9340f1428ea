//! `rds-ping`: asks whether an RDS node is there, and how far away.

use std::process::ExitCode;

fn main() -> ExitCode {
    rds_stress::tools::ping::main(std::env::args_os())
}
