//! `rds-info`: shows what RDS nodes hold and count.

use std::process::ExitCode;

fn main() -> ExitCode {
    rds_stress::tools::info::main(std::env::args_os())
}
