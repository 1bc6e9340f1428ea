//! The configuration as text: what counts now, the shipped example, and the reference.

use std::fmt::Write;

use super::catalogue::{Change, Key, Kind, Section};
use super::{DEFAULT_FILE, FILE_VARIABLE, Loaded, Origin};

/// Columns of a comment.
const WIDTH: usize = 96;

/// The sections, each with its keys.
fn sections() -> Vec<(&'static Section, Vec<&'static Key>)> {
    let mut sections: Vec<(&Section, Vec<&Key>)> = Vec::new();
    for key in Key::all() {
        match sections.last_mut() {
            Some((section, keys)) if section.name == key.section.name => keys.push(key),
            _ => sections.push((key.section, vec![key])),
        }
    }
    sections
}

/// What counts, as TOML that says the same when it is read; each key with where its value came from.
#[must_use]
pub fn effective(loaded: &Loaded) -> String {
    let file = loaded.file.as_ref().map_or_else(|| "no file".to_owned(), |file| file.display().to_string());
    let mut out = format!(
        "# The configuration of rds-server {}: defaults, then {file}, then environment, then command line.\n",
        env!("CARGO_PKG_VERSION")
    );
    for (section, keys) in sections() {
        let _ = writeln!(out, "\n[{}]", section.name);
        for key in keys {
            let origin = match loaded.origin(key) {
                Origin::Default if key.unset.is_empty() => "default".to_owned(),
                Origin::Default => format!("default: {}", key.unset),
                Origin::File(line) => format!("{file}:{line}"),
                Origin::Environment => key.variable(),
                Origin::CommandLine => format!("--{}", key.flag),
            };
            let _ = writeln!(out, "{} = {}  # {origin}", key.name, key.show(&loaded.settings));
        }
    }
    out
}

/// The file that is shipped: every key with its documentation, commented out at its default.
#[must_use]
pub fn example() -> String {
    let mut out = String::new();
    let head = format!(
        "Configuration of rds-server, read from {DEFAULT_FILE} or the file that --config or {FILE_VARIABLE} names. Every key is here, \
         commented out at its default: take the # away from those that are to be different, and from nothing else.\n\
         Environment variables and options of the command line, named with each key, count more than this file. A list in the environment has \
         spaces between its values.\n\
         Try a changed file with `rds-server --check-config`, look at what counts with `rds-server --print-config`, and have a daemon \
         that runs read it again with SIGHUP (systemctl reload rds-server). If anything is wrong, everything stays as it was."
    );
    for paragraph in head.lines() {
        comment(&mut out, paragraph);
    }
    for (section, keys) in sections() {
        let _ = writeln!(out);
        comment(&mut out, section.about);
        let _ = writeln!(out, "[{}]", section.name);
        for key in keys {
            let _ = writeln!(out);
            comment(&mut out, &sentence(key));
            if !key.more.is_empty() && key.kind != Kind::Switch {
                comment(&mut out, key.more);
            }
            if !key.unset.is_empty() {
                comment(&mut out, &format!("Default: {}.", key.unset));
            }
            let counts = match key.change {
                Change::Reload => "a reload is enough",
                Change::Restart => "needs a restart",
            };
            let _ = writeln!(out, "# --{}, {}; {counts}", key.flag, key.variable());
            let _ = writeln!(out, "#{} = {}", key.name, key.default());
        }
    }
    out
}

/// What the file's value says: of a switch, whose option says the opposite, what else there is to say.
fn sentence(key: &Key) -> String {
    let text = if key.kind == Kind::Switch { key.more } else { key.help };
    if text.ends_with('.') { text.to_owned() } else { format!("{text}.") }
}

fn comment(out: &mut String, text: &str) {
    let mut line = String::from("#");
    for word in text.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(out, "{line}");
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    let _ = writeln!(out, "{line}");
}

/// The tables of docs/configuration.md.
#[must_use]
pub fn reference() -> String {
    let mut out = String::new();
    for (section, keys) in sections() {
        let _ = writeln!(out, "## `[{}]`\n\n{}\n", section.name, section.about);
        for key in keys {
            let _ = writeln!(out, "### `{}`\n", key.path());
            let more = if key.kind == Kind::Switch || key.more.is_empty() {
                String::new()
            } else {
                format!(" {}", key.more)
            };
            let _ = writeln!(out, "{}{more}\n", sentence(key));
            let option = if key.value.is_empty() {
                format!("`--{}` (for false)", key.flag)
            } else {
                format!("`--{} {}`", key.flag, key.value)
            };
            let change = match key.change {
                Change::Reload => "with a reload",
                Change::Restart => "with the next start",
            };
            let default = if key.unset.is_empty() {
                format!("`{}`", key.default())
            } else {
                format!("`{}`: {}", key.default(), key.unset)
            };
            let _ = writeln!(out, "| | |\n| --- | --- |\n| written as | {} |", key.kind.written());
            let _ = writeln!(out, "| default | {default} |\n| option | {option} |");
            let _ = writeln!(out, "| variable | `{}` |\n| a change counts | {change} |\n", key.variable());
        }
    }
    out
}
