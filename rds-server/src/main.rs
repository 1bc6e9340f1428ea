//! `rds-server`: the broker daemon of Reliable Datagram Sockets.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::mpsc;

use rds_server::cli;
use rds_server::server::Server;

fn main() -> ExitCode {
    let (settings, log) = match cli::parse(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(stop) => {
            let _ = stop.print();
            return ExitCode::from(u8::try_from(stop.exit_code()).unwrap_or(2));
        }
    };
    start_tracing(&log);
    // First, so that a signal that comes while it starts ends it in an orderly way too.
    let (signal, signals) = mpsc::channel();
    if let Err(error) = ctrlc::set_handler(move || _ = signal.send(())) {
        return failed(&format!("cannot catch SIGTERM and SIGINT: {error}"));
    }
    let (addresses, socket) = (settings.addresses.clone(), settings.socket.clone());
    let server = match Server::start(settings) {
        Ok(server) => server,
        Err(error) => return failed(&error),
    };
    for engine in server.engines() {
        tracing::info!(address = %engine.address(), listen = %engine.listen_addr(), "a node is open");
    }
    tracing::info!(nodes = addresses.len(), socket = %socket.display(), "serving");
    let calls = server.calls();
    // It ends with the process.
    std::thread::spawn(move || {
        if signals.recv().is_ok() {
            calls.stop();
        }
    });
    match server.join() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(why: &dyn std::fmt::Display) -> ExitCode {
    let _ = writeln!(io::stderr(), "rds-server: {why}");
    ExitCode::FAILURE
}

/// Log lines on stderr. `RUST_LOG` chooses others.
fn start_tracing(level: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    let stderr = std::io::stderr;
    let ansi = stderr().is_terminal();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(ansi).with_writer(stderr).try_init();
}
