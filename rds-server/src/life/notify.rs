//! What the daemon tells systemd, or whoever else listens at NOTIFY_SOCKET (sd_notify(3)). Without NOTIFY_SOCKET, nothing.

use std::io;
use std::time::Duration;

use sd_notify::NotifyState as State;

/// What ending takes beyond the drain: connections' ends, and programs' goodbyes.
const ENDING: Duration = Duration::from_secs(10);

fn tell(states: &[State<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "cannot tell NOTIFY_SOCKET");
    }
}

/// One line: what follows a line break would be another message.
fn line(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ")
}

/// It serves, as `status` says; after [`reloading`], again.
pub(super) fn ready(status: &str) {
    tell(&[State::Ready, State::Status(&line(status))]);
}

/// It has begun to read its configuration again; [`ready`] tells the end of that.
pub(super) fn reloading() {
    let mut states = vec![State::Reloading, State::Status("reads its configuration again")];
    // Since systemd 253, which ignores a reload without it.
    states.extend(State::monotonic_usec_now());
    tell(&states);
}

/// It ends, and takes up to `drain` for what was accepted, whatever the unit's TimeoutStopSec.
pub(super) fn stopping(drain: Duration) {
    let most = u32::try_from((drain + ENDING).as_micros()).unwrap_or(u32::MAX);
    let status = format!("ends: delivers what was accepted, for up to {} s", drain.as_secs());
    tell(&[State::Stopping, State::ExtendTimeoutUsec(most), State::Status(&status)]);
}

/// How it is.
pub(super) fn status(status: &str) {
    tell(&[State::Status(&line(status))]);
}

/// It lives.
///
/// # Errors
/// It cannot be told.
pub(super) fn alive() -> io::Result<()> {
    sd_notify::notify(&[State::Watchdog])
}

/// Within what time [`alive`] must be called again and again; `None` if nobody wants that.
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}
