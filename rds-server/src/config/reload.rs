//! Reading the configuration again while the daemon runs.

use std::time::Duration;

use super::catalogue::{Change, Key};
use super::{Loaded, Source};
use crate::service::Calls;
use crate::settings::Settings;

/// How long the service thread may take to change over. It does so between two turns, which take well below a millisecond.
const PATIENCE: Duration = Duration::from_secs(10);

/// One key whose value is another.
#[derive(Clone, Debug)]
pub struct Difference {
    /// Which.
    pub key: &'static Key,
    /// The value before, as TOML.
    pub old: String,
    /// The value now, as TOML.
    pub new: String,
}

/// What differs, in the order of the file.
#[must_use]
pub fn differences(old: &Settings, new: &Settings) -> Vec<Difference> {
    let shown = Key::all().iter().map(|key| (key, key.show(old), key.show(new)));
    let differ = shown.filter(|(_, old, new)| old != new);
    differ.map(|(key, old, new)| Difference { key, old: old.to_string(), new: new.to_string() }).collect()
}

/// Changes which lines are logged; says whether it could.
pub type SetLevel = Box<dyn FnMut(&str) -> Result<(), String> + Send>;

/// Has a daemon that runs follow its configuration.
pub struct Reloader {
    source: Source,
    /// What it runs with.
    running: Settings,
    set_level: SetLevel,
}

impl Reloader {
    /// Of a daemon that runs with what was loaded from there. `set_level` is called when the level of log lines has changed.
    #[must_use]
    pub fn new(source: Source, loaded: &Loaded, set_level: SetLevel) -> Self {
        Self { source, running: loaded.settings.clone(), set_level }
    }

    /// Reads everything again, and has the daemon use what it can use without a restart. Each changed key is logged, with its old and new
    /// value, and so is each that needs a restart. Blocks until the service thread has changed over: less than a millisecond, unless
    /// it hangs.
    ///
    /// # Errors
    /// All that is wrong, in one line. Nothing has changed then.
    pub fn reload(&mut self, calls: &Calls) -> Result<String, String> {
        let result = self.try_reload(calls);
        calls.configured(result.as_ref().err().cloned());
        result
    }

    fn try_reload(&mut self, calls: &Calls) -> Result<String, String> {
        let loaded = self.source.load().and_then(|loaded| loaded.check().map(|()| loaded));
        let loaded = loaded.map_err(|errors| errors.0.join("; "))?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let all = differences(&self.running, &loaded.settings);
        let (now, later): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|difference| difference.key.change == Change::Reload);
        let mut settings = loaded.settings;
        for Difference { key, .. } in &later {
            let texts = key.show(&self.running).texts();
            let texts: Vec<_> = texts.iter().map(String::as_str).collect();
            // It was shown, so it can be read.
            key.put(&mut settings, &texts).map_err(|wrong| format!("{}: {}", key.path(), wrong.why))?;
        }
        if !now.is_empty() {
            calls.reload(settings.clone(), PATIENCE)?;
        }
        for Difference { key, old, new } in &now {
            tracing::info!(key = key.path(), old, new, "the configuration has changed");
        }
        for Difference { key, old, new } in &later {
            tracing::warn!(
                key = key.path(),
                running = old,
                configured = new,
                "the configuration has changed, but this key needs a restart"
            );
        }
        if settings.log.level != self.running.log.level {
            (self.set_level)(&settings.log.level)
                .unwrap_or_else(|why| tracing::warn!("the level of log lines stays: {why}"));
        }
        self.running = settings;
        Ok(summary(&now, &later))
    }
}

impl std::fmt::Debug for Reloader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reloader").field("source", &self.source).finish_non_exhaustive()
    }
}

fn summary(now: &[Difference], later: &[Difference]) -> String {
    let names = |list: &[Difference]| list.iter().map(|one| one.key.path()).collect::<Vec<_>>().join(", ");
    let changed = match now {
        [] => "nothing has changed".to_owned(),
        now => format!("changed: {}", names(now)),
    };
    match later {
        [] => changed,
        later => format!("{changed}; needs a restart: {}", names(later)),
    }
}
