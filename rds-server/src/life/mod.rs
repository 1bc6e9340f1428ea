//! The daemon as a process: started, told to read its configuration again, told to end.
//!
//! * [`run`]: the whole of it.
//! * [`Inherited`]: sockets that it is started with. [`Note`]: who serves a path already.
//! * `signals`: SIGTERM, SIGINT, SIGHUP.
//! * `notify`: what systemd is told. `watchdog`: that it lives, if that is proved.

mod inherit;
mod note;
mod notify;
mod signals;
mod watchdog;

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

pub use self::inherit::{AdminSocket, InheritError, Inherited};
pub use self::note::{Note, Occupant};
use self::signals::{Signals, Target};
use crate::server::Server;
use crate::service::Calls;
use crate::settings::Settings;

/// Reads the configuration again and hands it to the daemon that runs: what changed, in one line, or why nothing did.
pub type Reload = Box<dyn FnMut(&Arc<Calls>) -> Result<String, String> + Send>;

/// Runs the daemon until a signal ends it, and returns the process's exit status: 0 after an orderly end, 1 where it cannot start or go on.
/// `reload` is called for each SIGHUP, on a thread of its own; several that come while it works are one.
///
/// To be called by `main` once, before it starts threads.
#[must_use]
pub fn run(settings: Settings, reload: Reload) -> ExitCode {
    let inherited = match Inherited::take() {
        Ok(inherited) => inherited,
        Err(error) => return failed(&error),
    };
    // First, so that a signal that comes while it starts ends it in an orderly way too.
    let signals = match Signals::catch() {
        Ok(signals) => signals,
        Err(error) => return failed(&format!("cannot catch SIGTERM, SIGINT and SIGHUP: {error}")),
    };
    let addresses = settings.addresses.clone();
    let server = match Server::start_with(settings, inherited) {
        Ok(server) => server,
        Err(error) => return failed(&error),
    };
    for engine in server.engines() {
        tracing::info!(address = %engine.address(), listen = %engine.listen_addr(), "a node is open");
    }
    if let Some(admin) = server.admin() {
        tracing::info!(%admin, "the admin pages are served");
    }
    let socket = server.socket();
    tracing::info!(nodes = addresses.len(), socket = %socket.display(), "serving");
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let status = format!("serves {} at {}", addresses.join(", "), socket.display());
    notify::ready(&status);
    let target = Target { calls: server.calls(), engines: server.engines().to_vec() };
    let hangups = signals.aim(target);
    if let Err(error) = watchdog::start(&server.calls(), server.engines()) {
        return failed(&format!("cannot start the watchdog's thread: {error}"));
    }
    let calls = server.calls();
    let reloads = std::thread::Builder::new()
        .name("rds reload".to_owned())
        .spawn(move || serve_reloads(&hangups, &calls, reload, &status));
    if let Err(error) = reloads {
        return failed(&format!("cannot start the thread that reads the configuration again: {error}"));
    }
    match server.join() {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

/// Ends with the process.
fn serve_reloads(hangups: &Receiver<()>, calls: &Arc<Calls>, mut reload: Reload, status: &str) {
    while hangups.recv().is_ok() {
        notify::reloading();
        match reload(calls) {
            Ok(what) => {
                tracing::info!("SIGHUP: {what}");
                notify::ready(&format!("{status}; {what}"));
            }
            Err(why) => {
                tracing::error!("SIGHUP: the configuration stays as it was: {why}");
                notify::ready(&format!("{status}; the last reload failed: {why}"));
            }
        }
    }
}

fn failed(why: &dyn Display) -> ExitCode {
    notify::status(&format!("failed: {why}"));
    let _ = writeln!(io::stderr(), "rds-server: {why}");
    ExitCode::FAILURE
}
