//! The file: TOML, with the line of everything that is wrong.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use super::catalogue::{Key, Kind, nearest, nearest_key};
use super::value::Wrong;

/// No configuration is larger.
const MOST: u64 = 1 << 20;
/// Of a file that is something else altogether, so many errors say enough.
const MOST_ERRORS: usize = 20;

/// What a file says of one key.
#[derive(Debug)]
pub(super) struct Said {
    pub(super) key: &'static Key,
    pub(super) values: Vec<String>,
    pub(super) line: usize,
}

/// Something that is wrong in a file.
#[derive(Debug)]
pub(super) struct Mistake {
    pub(super) line: usize,
    pub(super) text: String,
}

/// Reads a file as text.
///
/// # Errors
/// It cannot be read, or is none.
pub(super) fn read(path: &Path) -> io::Result<String> {
    let mut text = Vec::new();
    File::open(path)?.take(MOST + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MOST {
        return Err(io::Error::other("it is larger than 1 MiB, so it is no configuration"));
    }
    String::from_utf8(text).map_err(|e| {
        let line = 1 + e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|b| **b == b'\n').count();
        io::Error::other(format!("it is not UTF-8: see line {line}"))
    })
}

/// What a text says, and what is wrong with it.
pub(super) fn parse(text: &str) -> (Vec<Said>, Vec<Mistake>) {
    let (table, errors) = DeTable::parse_recoverable(text);
    let mut reader = Reader { text, said: Vec::new(), mistakes: Vec::new() };
    for error in errors {
        reader.wrong(error.span().unwrap_or(0..0), format!("this is no TOML: {}", error.message()));
    }
    // What is behind a mistake of the syntax may be taken for something else than was meant.
    if reader.mistakes.is_empty() {
        reader.sections(table.get_ref());
    }
    reader.mistakes.sort_by_key(|mistake| mistake.line);
    reader.said.sort_by_key(|said| said.line);
    reader.mistakes.truncate(MOST_ERRORS);
    (reader.said, reader.mistakes)
}

struct Reader<'a> {
    text: &'a str,
    said: Vec<Said>,
    mistakes: Vec<Mistake>,
}

impl Reader<'_> {
    fn line(&self, at: usize) -> usize {
        let before = self.text.as_bytes().get(..at).unwrap_or(self.text.as_bytes());
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    fn wrong(&mut self, span: Range<usize>, text: String) {
        self.mistakes.push(Mistake { line: self.line(span.start), text });
    }

    fn sections(&mut self, table: &DeTable<'_>) {
        for (name, value) in table {
            let known = Key::all().iter().any(|key| key.section.name == name.get_ref());
            match value.get_ref() {
                DeValue::Table(keys) if known || !keys.is_empty() => self.section(name.get_ref(), keys),
                DeValue::Table(_) => {
                    let names = Key::all().iter().map(|key| key.section.name);
                    let like = nearest(name.get_ref(), names).map(|name| format!("[{name}]"));
                    self.unknown(name.span(), &format!("section [{}]", shorten(name.get_ref())), like);
                }
                _ => {
                    let like = nearest_key("", name.get_ref());
                    self.unknown(name.span(), &format!("key '{}'", shorten(name.get_ref())), like);
                }
            }
        }
    }

    fn section(&mut self, section: &str, keys: &DeTable<'_>) {
        for (name, value) in keys {
            let key = Key::all().iter().find(|key| key.section.name == section && key.name == name.get_ref());
            match key {
                Some(key) => self.key(key, name.span(), value),
                None => {
                    let path = shorten(&format!("{section}.{}", name.get_ref()));
                    let like = nearest_key(section, name.get_ref());
                    self.unknown(name.span(), &format!("key '{path}'"), like);
                }
            }
        }
    }

    fn unknown(&mut self, span: Range<usize>, what: &str, like: Option<String>) {
        let like = like.map_or_else(
            || "docs/configuration.md lists all".to_owned(),
            |like| format!("did you mean '{like}'?"),
        );
        self.wrong(span, format!("unknown {what}: {like}"));
    }

    fn key(&mut self, key: &'static Key, at: Range<usize>, value: &Spanned<DeValue<'_>>) {
        let (texts, spans): (Vec<_>, Vec<_>) = match (key.kind, value.get_ref()) {
            (Kind::List, DeValue::Array(list)) => {
                let text = |item: &Spanned<DeValue<'_>>| (scalar(item.get_ref()), item.span());
                list.iter().map(text).unzip()
            }
            (kind, it) => {
                let fits = match it {
                    DeValue::String(_) => !matches!(kind, Kind::Number | Kind::Switch),
                    DeValue::Integer(_) => matches!(kind, Kind::Number | Kind::Size | Kind::Id),
                    DeValue::Boolean(_) => kind == Kind::Switch,
                    _ => false,
                };
                (vec![scalar(it).filter(|_| fits)], vec![value.span()])
            }
        };
        let mut values = Vec::new();
        for (text, span) in texts.into_iter().zip(&spans) {
            match text {
                Some(text) => values.push(text),
                None => {
                    let kind = key.kind.written();
                    self.wrong(span.clone(), format!("{}: write {kind}", key.path()));
                    return;
                }
            }
        }
        let given: Vec<_> = values.iter().map(String::as_str).collect();
        if let Err(Wrong { at, why }) = key.check(&given) {
            let given = given.get(at).copied().unwrap_or_default();
            let span = spans.get(at).cloned().unwrap_or(value.span());
            self.wrong(span, format!("{} = '{}': {why}", key.path(), shorten(given)));
            return;
        }
        let line = self.line(at.start);
        self.said.push(Said { key, values, line });
    }
}

/// A value that is no table or array, as text.
fn scalar(value: &DeValue<'_>) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Boolean(is) => Some(is.to_string()),
        DeValue::Integer(n) => Some(integer(n)),
        _ => None,
    }
}

/// In decimal; a number that is too large stays as it is written, for an error to show.
fn integer(n: &DeInteger<'_>) -> String {
    i64::from_str_radix(n.as_str(), n.radix()).map_or_else(|_| n.as_str().to_owned(), |n| n.to_string())
}

/// So much of a text as an error shows, on one line.
pub(super) fn shorten(text: &str) -> String {
    /// Longer texts are cut.
    const MOST: usize = 60;
    let mut short: String = text.chars().take(MOST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(MOST).is_some() {
        short.push_str("...");
    }
    short
}
