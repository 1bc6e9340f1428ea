//! The configuration: one catalogue of keys, whose values come from a TOML file, the environment and the command line; a later one of these counts
//! more than an earlier.
//!
//! * [`Key`]: what is known of each key.
//! * [`Source`]: where values come from. [`Loaded`]: what came of them.
//! * [`Reloader`]: reads the file again, and tells the daemon that runs.
//! * [`mod@print`]: the shipped example, the reference, and what `--print-config` shows.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

mod catalogue;
mod file;
mod keys;
pub mod print;
mod reload;
mod value;

pub use self::catalogue::{Change, Key, Kind, Section};
pub use self::reload::{Difference, Reloader, SetLevel, differences};
pub use self::value::{Shown, Wrong};

use self::catalogue::nearest;
use self::file::shorten;
use crate::settings::Settings;

/// The file that is read when none is named, if it is there.
pub const DEFAULT_FILE: &str = "/etc/rds/rds-server.toml";

/// The environment variable that names the file.
pub const FILE_VARIABLE: &str = "RDS_SERVER_CONFIG";

/// What all variables of the daemon begin with.
const PREFIX: &str = "RDS_SERVER_";

/// Where values come from.
#[derive(Clone, Debug, Default)]
pub struct Source {
    /// The file that was named; otherwise [`DEFAULT_FILE`] is read, if it is there.
    pub file: Option<PathBuf>,
    /// Variables of the environment.
    pub environment: Vec<(OsString, OsString)>,
    /// What the command line says.
    pub given: Vec<(&'static Key, Vec<String>)>,
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// From nowhere: it is the default.
    Default,
    /// From this line of the file.
    File(usize),
    /// From the environment.
    Environment,
    /// From the command line.
    CommandLine,
}

/// A configuration that was read.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it says.
    pub settings: Settings,
    /// The file; none if none was read.
    pub file: Option<PathBuf>,
    /// What looks like a mistake, and may be none.
    pub warnings: Vec<String>,
    origins: Vec<Origin>,
}

/// All that is wrong with a configuration; a line for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(pub Vec<String>);

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Errors {}

impl Source {
    /// Reads everything. What is wrong in a value counts even where a later one takes its place.
    ///
    /// # Errors
    /// All that is wrong, each with file and line, variable, or option.
    pub fn load(&self) -> Result<Loaded, Errors> {
        let mut loaded = Loaded {
            settings: Settings::new(Vec::new()),
            file: None,
            warnings: Vec::new(),
            origins: vec![Origin::Default; Key::all().len()],
        };
        let mut errors = Vec::new();
        self.read_file(&mut loaded, &mut errors);
        self.read_environment(&mut loaded, &mut errors);
        for (key, values) in &self.given {
            if let Err(why) = loaded.put(key, values, Origin::CommandLine) {
                errors.push(format!("--{} {why}", key.flag));
            }
        }
        if errors.is_empty() { Ok(loaded) } else { Err(Errors(errors)) }
    }

    /// Which file is read, and whether it must be there.
    fn path(&self) -> (PathBuf, bool) {
        let named = self.file.clone().or_else(|| {
            let variable = self.environment.iter().find(|(name, _)| name == FILE_VARIABLE);
            variable.map(|(_, path)| path.into()).filter(|path: &PathBuf| !path.as_os_str().is_empty())
        });
        named.map_or_else(|| (DEFAULT_FILE.into(), false), |path| (path, true))
    }

    fn read_file(&self, loaded: &mut Loaded, errors: &mut Vec<String>) {
        let (path, must) = self.path();
        let shown = path.display();
        let text = match file::read(&path) {
            Ok(text) => text,
            Err(e) if !must && e.kind() == io::ErrorKind::NotFound => return,
            Err(e) => {
                errors.push(format!("{shown}: cannot be read: {e}"));
                return;
            }
        };
        let (said, mistakes) = file::parse(&text);
        errors.extend(mistakes.iter().map(|mistake| format!("{shown}:{}: {}", mistake.line, mistake.text)));
        for said in said {
            if let Err(why) = loaded.put(said.key, &said.values, Origin::File(said.line)) {
                errors.push(format!("{shown}:{}: {}: {why}", said.line, said.key.path()));
            }
        }
        loaded.settings.file = Some(path.clone());
        loaded.file = Some(path);
    }

    fn read_environment(&self, loaded: &mut Loaded, errors: &mut Vec<String>) {
        let keys: Vec<_> = Key::all().iter().map(|key| (key.variable(), key)).collect();
        for (name, value) in &self.environment {
            let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else { continue };
            if name == FILE_VARIABLE {
                continue;
            }
            let Some((_, key)) = keys.iter().find(|(variable, _)| variable == name) else {
                // An error would keep the daemon from starting where others make such names: Kubernetes does, of a service that is called rds-server.
                let like = nearest(name, keys.iter().map(|(variable, _)| variable.as_str()));
                let like = like.map(|like| format!(": did you mean {like}?")).unwrap_or_default();
                loaded.warnings.push(format!("the environment's {} is not known{like}", shorten(name)));
                continue;
            };
            let Some(value) = value.to_str() else {
                errors.push(format!("{name} in the environment: it is not UTF-8"));
                continue;
            };
            let values: Vec<String> = match key.kind {
                Kind::List => value.split_whitespace().map(str::to_owned).collect(),
                _ => vec![value.to_owned()],
            };
            if let Err(why) = loaded.put(key, &values, Origin::Environment) {
                errors.push(format!("{name} in the environment: {why}"));
            }
        }
    }
}

impl Loaded {
    /// Where a key's value came from.
    #[must_use]
    pub fn origin(&self, key: &Key) -> &Origin {
        let at = Key::all().iter().position(|one| std::ptr::eq(one, key));
        at.map_or(&Origin::Default, |at| &self.origins[at])
    }

    /// Whether a daemon can be started so, as far as the values tell.
    ///
    /// # Errors
    /// What is missing, or does not go together.
    pub fn check(&self) -> Result<(), Errors> {
        let mut errors = Vec::new();
        let addresses = &self.settings.addresses;
        if addresses.is_empty() {
            errors.push(no_address(self.file.as_deref()));
        }
        let mut seen = HashSet::new();
        for &address in addresses {
            if !seen.insert(address) {
                errors.push(format!("node.address: address {address} is given twice"));
            }
            if let Err(e) = self.settings.options(address).config.validate() {
                errors.push(format!("node: {e}"));
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(Errors(errors)) }
    }

    fn put(&mut self, key: &'static Key, values: &[String], origin: Origin) -> Result<(), String> {
        let given: Vec<_> = values.iter().map(String::as_str).collect();
        key.put(&mut self.settings, &given).map_err(|Wrong { at, why }| {
            format!("'{}': {why}", shorten(given.get(at).copied().unwrap_or_default()))
        })?;
        if let Some(at) = Key::all().iter().position(|one| std::ptr::eq(one, key)) {
            self.origins[at] = origin;
        }
        Ok(())
    }
}

fn no_address(file: Option<&Path>) -> String {
    let file = file.unwrap_or(Path::new(DEFAULT_FILE));
    format!(
        "no node to serve: give an address of this host, with --address ADDRESS, or as `address` under [node] in {}",
        file.display()
    )
}

#[cfg(test)]
mod tests;
