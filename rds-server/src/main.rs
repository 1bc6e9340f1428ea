//! `rds-server`: the broker daemon of Reliable Datagram Sockets.

use std::io::IsTerminal;
use std::process::ExitCode;

use rds_server::{cli, life};

fn main() -> ExitCode {
    let (settings, log) = match cli::parse(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(stop) => {
            let _ = stop.print();
            return ExitCode::from(u8::try_from(stop.exit_code()).unwrap_or(2));
        }
    };
    start_tracing(&log);
    let reload =
        |_: &_| Err("everything was said on the command line; start it again to change that".to_owned());
    life::run(settings, Box::new(reload))
}

/// Log lines on stderr. `RUST_LOG` chooses others.
fn start_tracing(level: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    let stderr = std::io::stderr;
    let ansi = stderr().is_terminal();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).with_writer(stderr).try_init();
}
