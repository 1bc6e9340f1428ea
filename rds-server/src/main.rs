//! `rds-server`: the broker daemon of Reliable Datagram Sockets.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use rds_server::cli::{self, Action};
use rds_server::config::{Errors, Loaded, Reloader, SetLevel, print};
use rds_server::settings::{Log, LogFormat};
use rds_server::{doctor, life};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt, reload};

/// A command line or a configuration that is wrong.
const WRONG: u8 = 2;

fn main() -> ExitCode {
    let mut cli = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(stop) => {
            let _ = stop.print();
            return ExitCode::from(u8::try_from(stop.exit_code()).unwrap_or(WRONG));
        }
    };
    cli.source.environment = std::env::vars_os().collect();
    let loaded = match cli.source.load() {
        Ok(loaded) => loaded,
        Err(errors) => return wrong(&errors),
    };
    match cli.action {
        Action::Doctor(args) => return doctor::main(&loaded.settings, &args),
        Action::PrintConfig => return say(&print::effective(&loaded)),
        Action::CheckConfig => return check(&loaded),
        _ => {}
    }
    if loaded.settings.addresses.is_empty()
        && let Err(errors) = loaded.check()
    {
        return wrong(&errors);
    }
    let set_level = start_tracing(&loaded.settings.log);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let mut reloader = Reloader::new(cli.source, &loaded, set_level);
    life::run(loaded.settings, Box::new(move |calls| reloader.reload(calls)))
}

fn check(loaded: &Loaded) -> ExitCode {
    for warning in &loaded.warnings {
        let _ = writeln!(io::stderr(), "rds-server: {warning}");
    }
    if let Err(errors) = loaded.check() {
        return wrong(&errors);
    }
    let file = loaded.file.as_ref().map_or_else(|| "no file".to_owned(), |file| file.display().to_string());
    say(&format!("the configuration is good ({file})\n"))
}

fn say(text: &str) -> ExitCode {
    // A reader that went away has seen enough.
    let _ = io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn wrong(errors: &Errors) -> ExitCode {
    for error in &errors.0 {
        let _ = writeln!(io::stderr(), "rds-server: {error}");
    }
    ExitCode::from(WRONG)
}

/// Log lines on stderr. `RUST_LOG` chooses others. Returns what changes the level.
fn start_tracing(log: &Log) -> SetLevel {
    let chosen = EnvFilter::try_from_default_env();
    let fixed = chosen.is_ok();
    let filter = chosen.unwrap_or_else(|_| EnvFilter::new(&log.level));
    let (filter, handle) = reload::Layer::new(filter);
    let stderr = std::io::stderr;
    let lines = fmt::layer().with_ansi(stderr().is_terminal()).with_writer(stderr);
    let lines = match log.format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    Box::new(move |level| {
        if fixed {
            return Err("RUST_LOG chooses the lines".to_owned());
        }
        handle.reload(EnvFilter::new(level)).map_err(|e| e.to_string())
    })
}
