//! What a check says.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How it is, from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing to be done unless it is not meant so.
    Note,
    /// The daemon works, and not as well as it could.
    Warning,
    /// The daemon does not start, or does not work.
    Fail,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fail => "FAIL",
        })
    }
}

/// What to do: where the daemon is started from a shell, by systemd, and in a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Todo {
    /// In a shell.
    pub shell: String,
    /// In the unit, or its drop-in (`systemctl edit rds-server`).
    pub systemd: String,
    /// For who starts the container.
    pub container: String,
}

impl Todo {
    /// One thing for each.
    #[must_use]
    pub fn new(shell: impl Into<String>, systemd: impl Into<String>, container: impl Into<String>) -> Self {
        Self { shell: shell.into(), systemd: systemd.into(), container: container.into() }
    }

    /// A setting below /proc/sys. Those below `net` are each network namespace's own, so that a container can have one.
    #[must_use]
    pub fn sysctl(name: &str, value: &str) -> Self {
        Self::new(
            format!("sysctl -w '{name}={value}'"),
            format!("echo '{name} = {value}' >/etc/sysctl.d/60-rds.conf && sysctl --system"),
            format!(
                "docker run --sysctl '{name}={value}' ..., or the same on the host where that is refused"
            ),
        )
    }

    /// The same in all three places.
    #[must_use]
    pub fn everywhere(what: impl Into<String>) -> Self {
        let what = what.into();
        Self::new(what.clone(), what.clone(), what)
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finding {
    /// Name of the check; the same in every version.
    pub name: String,
    /// How it is.
    pub status: Status,
    /// What is there.
    pub found: String,
    /// Why it matters; empty where all is well.
    pub why: String,
    /// What to do, if something should be done.
    pub todo: Option<Todo>,
}

impl Finding {
    /// All is well.
    pub fn ok(name: &str, found: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            status: Status::Ok,
            found: found.into(),
            why: String::new(),
            todo: None,
        }
    }

    /// Something to know, without anything to do.
    pub fn note(name: &str, found: impl Into<String>, why: impl Into<String>) -> Self {
        Self { status: Status::Note, why: why.into(), ..Self::ok(name, found) }
    }

    /// Something to be done.
    pub fn bad(
        status: Status,
        name: &str,
        found: impl Into<String>,
        why: impl Into<String>,
        todo: Todo,
    ) -> Self {
        Self { status, todo: Some(todo), ..Self::note(name, found, why) }
    }
}

/// Bytes as people write them.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut whole = bytes;
    while whole >= 1024 && unit + 1 < UNITS.len() {
        whole /= 1024;
        unit += 1;
    }
    let scale = 1_u64 << (10 * unit);
    if bytes.is_multiple_of(scale) {
        format!("{whole} {}", UNITS[unit])
    } else {
        format!("{}.{} {}", whole, bytes % scale * 10 / scale, UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_in_the_largest_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (8 << 20, "8 MiB"),
            ((8 << 20) + 1, "8.0 MiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn a_failure_is_worse_than_a_warning_and_that_than_a_note() {
        assert!(
            Status::Fail > Status::Warning && Status::Warning > Status::Note && Status::Note > Status::Ok
        );
    }
}
