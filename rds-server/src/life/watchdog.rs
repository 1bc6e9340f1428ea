//! Signs of life for systemd (WatchdogSec), given only while the daemon proves to be alive: the thread that serves programs has come round, and
//! each node's poll loop has made a whole turn, since they were asked. A thread that only says that it lives would prove nothing but itself.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rds_core::engine::Engine;

use super::notify;
use crate::service::Calls;

/// Something that must live.
pub(super) struct Part {
    name: String,
    /// Whether it shows a sign of life within this time.
    lives: Box<dyn Fn(Duration) -> bool + Send>,
}

impl Part {
    pub(super) fn new(name: impl Into<String>, lives: impl Fn(Duration) -> bool + Send + 'static) -> Self {
        Self { name: name.into(), lives: Box::new(lives) }
    }
}

/// All parts of a daemon.
pub(super) fn parts(calls: &Arc<Calls>, engines: &[Engine]) -> Vec<Part> {
    let calls = Arc::clone(calls);
    let service = Part::new("the thread that serves programs", move |time| calls.has_pulse(time));
    let nodes = engines.iter().map(|engine| {
        let (name, engine) = (format!("the node at {}", engine.address()), engine.clone());
        Part::new(name, move |time| engine.has_pulse(time))
    });
    std::iter::once(service).chain(nodes).collect()
}

/// Asks, and tells.
pub(super) struct Watchdog<T> {
    parts: Vec<Part>,
    /// Within what time a sign must be given again and again.
    period: Duration,
    tell: T,
    /// Since when there is none.
    silent: Option<Instant>,
}

impl<T: FnMut() -> io::Result<()>> Watchdog<T> {
    pub(super) fn new(parts: Vec<Part>, period: Duration, tell: T) -> Self {
        Self { parts, period, tell, silent: None }
    }

    /// Asks every part once, and gives a sign if all of them live. Takes up to half of the period.
    fn look(&mut self) {
        let began = Instant::now();
        let until = began + self.period / 2;
        // Each is asked for what is left of the time, so that one that hangs does not take more of it than there is.
        let dead =
            self.parts.iter().find(|part| !(part.lives)(until.saturating_duration_since(Instant::now())));
        match (dead, self.silent) {
            (Some(part), None) => {
                let name = &part.name;
                tracing::error!("{name} shows no sign of life: the watchdog gets none until it does");
                notify::status(&format!("hangs: {name} shows no sign of life"));
                self.silent = Some(began);
            }
            (Some(_), Some(_)) => {}
            (None, silent) => {
                if let Some(since) = silent {
                    let ms = crate::service::ms(since.elapsed());
                    tracing::warn!("all parts live again after {ms} ms");
                    notify::status("lives again after it hung");
                    self.silent = None;
                }
                if let Err(error) = (self.tell)() {
                    tracing::warn!(%error, "cannot tell the watchdog that all is well");
                }
            }
        }
    }

    /// Asks and tells again and again.
    pub(super) fn run(mut self) -> ! {
        loop {
            self.look();
            std::thread::sleep(self.period / 4);
        }
    }
}

/// Starts a thread that gives signs of life, if somebody wants them. It ends with the process.
///
/// # Errors
/// There is no thread to be had.
pub(super) fn start(calls: &Arc<Calls>, engines: &[Engine]) -> io::Result<()> {
    let Some(period) = notify::watchdog() else { return Ok(()) };
    let watchdog = Watchdog::new(parts(calls, engines), period, notify::alive);
    std::thread::Builder::new().name("rds watchdog".to_owned()).spawn(move || watchdog.run())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

    use super::*;

    #[test]
    fn a_sign_is_given_only_when_every_part_has_given_one() {
        let alive: Vec<_> = (0..3).map(|_| Arc::new(AtomicBool::new(true))).collect();
        let parts = alive.iter().enumerate().map(|(n, alive)| {
            let alive = Arc::clone(alive);
            Part::new(format!("part {n}"), move |_| alive.load(SeqCst))
        });
        let told = AtomicU32::new(0);
        let tell = || Ok(_ = told.fetch_add(1, SeqCst));
        let mut watchdog = Watchdog::new(parts.collect(), Duration::from_millis(20), tell);
        watchdog.look();
        assert_eq!(told.load(SeqCst), 1);
        for part in &alive {
            let before = told.load(SeqCst);
            part.store(false, SeqCst);
            watchdog.look();
            watchdog.look();
            assert_eq!(told.load(SeqCst), before, "one of them hangs");
            part.store(true, SeqCst);
            watchdog.look();
            assert_eq!(told.load(SeqCst), before + 1);
        }
    }

    #[test]
    fn a_part_that_hangs_takes_no_more_than_the_time_there_is() {
        let given = Arc::new(std::sync::Mutex::new(Vec::new()));
        let parts = (0..2).map(|n| {
            let given = Arc::clone(&given);
            Part::new("slow", move |time| {
                given.lock().unwrap().push(time);
                if n == 0 {
                    std::thread::sleep(time);
                }
                true
            })
        });
        Watchdog::new(parts.collect(), Duration::from_millis(20), || Ok(())).look();
        let given = given.lock().unwrap();
        assert!(given[0] <= Duration::from_millis(10) && given[1].is_zero(), "{given:?}");
    }
}
