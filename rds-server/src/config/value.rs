//! Values as they are written, and as they are shown.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use nix::unistd::{Group, User};

/// A value that cannot be: which of several, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Its place among the values that were given.
    pub at: usize,
    /// What would be right.
    pub why: String,
}

/// A value as the configuration shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// A number.
    Number(u64),
    /// A number of bytes.
    Size(u64),
    /// A text; empty where nothing is set.
    Text(String),
    /// Whether.
    Switch(bool),
    /// Any number of texts.
    List(Vec<String>),
}

impl Shown {
    /// As what was given, to be read again.
    #[must_use]
    pub fn texts(&self) -> Vec<String> {
        match self {
            Self::Number(n) => vec![n.to_string()],
            Self::Size(n) => vec![show_size(*n)],
            Self::Text(text) => vec![text.clone()],
            Self::Switch(is) => vec![is.to_string()],
            Self::List(list) => list.clone(),
        }
    }
}

/// As TOML.
impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(n) => n.fmt(f),
            Self::Size(n) if n.is_multiple_of(1024) && *n > 0 => f.write_str(&quoted(&show_size(*n))),
            Self::Size(n) => n.fmt(f),
            Self::Text(text) => f.write_str(&quoted(text)),
            Self::Switch(is) => is.fmt(f),
            Self::List(list) => {
                let list: Vec<_> = list.iter().map(|text| quoted(text)).collect();
                write!(f, "[{}]", list.join(", "))
            }
        }
    }
}

/// As a basic string of TOML.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// The one value, put where it belongs.
pub(super) fn one<T>(
    values: &[&str],
    parse: impl Fn(&str) -> Result<T, String>,
    put: impl FnOnce(T),
) -> Result<(), Wrong> {
    // What is given several times counts as it was given last.
    let at = values.len().saturating_sub(1);
    let value = parse(values.last().unwrap_or(&"")).map_err(|why| Wrong { at, why })?;
    put(value);
    Ok(())
}

/// The one value, or nothing if it is empty.
pub(super) fn maybe<T>(
    values: &[&str],
    parse: impl Fn(&str) -> Result<T, String>,
    put: impl FnOnce(Option<T>),
) -> Result<(), Wrong> {
    one(values, |text| if text.is_empty() { Ok(None) } else { parse(text).map(Some) }, put)
}

/// All values.
pub(super) fn each<T>(
    values: &[&str],
    parse: impl Fn(&str) -> Result<T, String>,
    put: impl FnOnce(Vec<T>),
) -> Result<(), Wrong> {
    let parsed = values.iter().enumerate().map(|(at, text)| parse(text).map_err(|why| Wrong { at, why }));
    put(parsed.collect::<Result<_, _>>()?);
    Ok(())
}

/// A number of bytes: 4096, 64k, 32m or 1g.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.as_bytes().last().map(u8::to_ascii_lowercase) {
        Some(b'k') => (&text[..text.len() - 1], 10),
        Some(b'm') => (&text[..text.len() - 1], 20),
        Some(b'g') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: u64 =
        digits.parse().map_err(|_| "give a number of bytes, as 4096, 64k, 32m or 1g".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "that is more than any machine has".to_owned())
}

pub(super) fn show_size(bytes: u64) -> String {
    for (letter, shift) in [('g', 30), ('m', 20), ('k', 10)] {
        if bytes > 0 && bytes.is_multiple_of(1_u64 << shift) {
            return format!("{}{letter}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// A number of bytes that is at least so many.
pub(super) fn size_from(least: u64) -> impl Fn(&str) -> Result<u64, String> {
    move |text| match size(text)? {
        bytes if bytes < least => Err(format!("give at least {}", show_size(least))),
        bytes => Ok(bytes),
    }
}

/// A whole number within a range.
pub(super) fn number(least: u64, most: u64) -> impl Fn(&str) -> Result<u64, String> {
    move |text| match text.parse() {
        Ok(n) if (least..=most).contains(&n) => Ok(n),
        _ if most == u64::MAX => Err(format!("give a whole number from {least} on")),
        _ => Err(format!("give a whole number from {least} to {most}")),
    }
}

/// Any number of things.
pub(super) fn count(text: &str) -> Result<u64, String> {
    // TOML has no larger ones.
    number(0, i64::MAX as u64)(text)
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("give true or false".to_owned()),
    }
}

pub(super) fn mode(text: &str) -> Result<u32, String> {
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| "give permissions in octal, as 0660".to_owned())
}

pub(super) fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| "give an address of this host, as 10.0.0.1 or fd00::1".to_owned())
}

pub(super) fn net(text: &str) -> Result<IpNet, String> {
    text.parse()
        .or_else(|_| text.parse::<IpAddr>().map(IpNet::from))
        .map_err(|_| "give an address, or a network as 10.0.0.0/8".to_owned())
}

pub(super) fn user(text: &str) -> Result<u32, String> {
    by_name(text, |name| User::from_name(name).ok().flatten().map(|user| user.uid.as_raw()), "user")
}

pub(super) fn group(text: &str) -> Result<u32, String> {
    by_name(text, |name| Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw()), "group")
}

fn by_name(text: &str, find: impl Fn(&str) -> Option<u32>, what: &str) -> Result<u32, String> {
    text.parse().ok().or_else(|| find(text)).ok_or_else(|| format!("this host has no such {what}"))
}

/// A path at which a Unix socket can be.
pub(super) fn socket(text: &str) -> Result<std::path::PathBuf, String> {
    match text.len() {
        0 => Err("give a path".to_owned()),
        108.. => Err("the path is too long for a socket: give one of less than 108 bytes".to_owned()),
        _ if text.contains('\0') => Err("a path has no zero bytes".to_owned()),
        _ => Ok(text.into()),
    }
}

pub(super) fn one_of(words: &'static [&'static str]) -> impl Fn(&str) -> Result<String, String> {
    move |text| {
        let known = words.contains(&text).then(|| text.to_owned());
        known.ok_or_else(|| format!("possible values: {}", words.join(", ")))
    }
}

pub(super) fn word(text: &str) -> Result<String, String> {
    let sane = text.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
    if sane { Ok(text.to_owned()) } else { Err("give a name of letters, digits, _, - and .".to_owned()) }
}

/// What the type's own reading says.
pub(super) fn parsed<T: std::str::FromStr<Err: fmt::Display>>(text: &str) -> Result<T, String> {
    text.parse().map_err(|e: T::Err| e.to_string())
}
