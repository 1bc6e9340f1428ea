//! What a key of the configuration is, and all of them. The command line, the environment, the file, the shipped example and the reference
//! are all made from this.

use crate::settings::Settings;

use super::keys::KEYS;
use super::value::{Shown, Wrong};

/// How a value is written in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A whole number.
    Number,
    /// Bytes: a whole number, or a string with k, m or g behind it.
    Size,
    /// A string.
    Text,
    /// A string, or a whole number.
    Id,
    /// true or false.
    Switch,
    /// An array of strings, or one string.
    List,
}

impl Kind {
    /// What to write.
    #[must_use]
    pub const fn written(self) -> &'static str {
        match self {
            Self::Number => "a whole number",
            Self::Size => "bytes: a whole number, or a string such as \"64k\", \"32m\", \"1g\"",
            Self::Text => "a string",
            Self::Id => "a name as a string, or a whole number",
            Self::Switch => "true or false",
            Self::List => "an array of strings",
        }
    }
}

/// When a changed value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// With SIGHUP, or with `systemctl reload`.
    Reload,
    /// With the next start.
    Restart,
}

/// A part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name in the file, in brackets there.
    pub name: &'static str,
    /// Its heading in `--help`.
    pub heading: &'static str,
    /// What it is about.
    pub about: &'static str,
}

/// One key.
#[derive(Debug)]
pub struct Key {
    /// The part of the file that it is in.
    pub section: &'static Section,
    /// Its name there.
    pub name: &'static str,
    /// Its option of the command line, without the dashes. Where that is a switch, it sets the key to false.
    pub flag: &'static str,
    /// What stands for the value in `--help`.
    pub value: &'static str,
    /// How it is written.
    pub kind: Kind,
    /// What it is: one line, with the unit.
    pub help: &'static str,
    /// What else there is to say; may be empty. One paragraph.
    pub more: &'static str,
    /// What an empty value stands for; empty where there is a value by default.
    pub unset: &'static str,
    /// When a changed value counts.
    pub change: Change,
    pub(super) set: fn(&mut Settings, &[&str]) -> Result<(), Wrong>,
    pub(super) show: fn(&Settings) -> Shown,
}

impl Key {
    /// All keys, in the order of the file.
    #[must_use]
    pub fn all() -> &'static [Self] {
        KEYS
    }

    /// Section and name, with a dot between.
    #[must_use]
    pub fn path(&self) -> String {
        format!("{}.{}", self.section.name, self.name)
    }

    /// Its environment variable.
    #[must_use]
    pub fn variable(&self) -> String {
        format!("RDS_SERVER_{}", self.path().to_uppercase().replace(['.', '-'], "_"))
    }

    /// Its value.
    #[must_use]
    pub fn show(&self, settings: &Settings) -> Shown {
        (self.show)(settings)
    }

    /// Its value by default.
    #[must_use]
    pub fn default(&self) -> Shown {
        self.show(&Settings::new(Vec::new()))
    }

    /// Its value by default, for people.
    #[must_use]
    pub fn default_words(&self) -> String {
        if self.unset.is_empty() { self.default().texts().join(" ") } else { self.unset.to_owned() }
    }

    /// Whether the values could be its.
    ///
    /// # Errors
    /// Which could not, and what would be right.
    pub fn check(&self, values: &[&str]) -> Result<(), Wrong> {
        self.put(&mut Settings::new(Vec::new()), values)
    }

    /// Gives it the values.
    ///
    /// # Errors
    /// Which cannot be, and what would be right.
    pub(super) fn put(&self, settings: &mut Settings, values: &[&str]) -> Result<(), Wrong> {
        (self.set)(settings, values)
    }
}

/// The valid name that looks most like this one, if any does.
pub(super) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    /// Less likeness than this is none.
    const LEAST: f64 = 0.55;
    let scored = names.map(|name| (strsim::normalized_damerau_levenshtein(wanted, name), name));
    scored.filter(|(score, _)| *score >= LEAST).max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, name)| name)
}

/// The valid key that looks most like this one, if any does: of the same name in another section, or of a name like it.
pub(super) fn nearest_key(section: &str, name: &str) -> Option<String> {
    let dashed = name.replace('_', "-");
    let mut same = KEYS.iter().filter(|key| key.name == dashed || key.flag == dashed);
    if let Some(key) = same.next() {
        return Some(key.path());
    }
    let paths: Vec<_> = KEYS.iter().map(Key::path).collect();
    let wanted = if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") };
    nearest(&wanted, paths.iter().map(String::as_str)).map(str::to_owned).or_else(|| {
        let name = nearest(&dashed, KEYS.iter().map(|key| key.name))?;
        KEYS.iter().find(|key| key.name == name).map(Key::path)
    })
}
