//! Text for a terminal: programs call themselves what they like, and daemons say what they like.

use std::fmt::Write;
use std::time::Duration;

/// The text without anything that a terminal, or whoever reads it, would take for more than text: control characters and those that change
/// the direction of writing, each replaced by a question mark.
#[must_use]
pub fn plain(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
            || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
    };
    text.chars().map(|c| if hidden(c) { '?' } else { c }).collect()
}

/// The same, at most `width` characters.
#[must_use]
pub fn name(text: &str, width: usize) -> String {
    plain(text).chars().take(width).collect()
}

/// JSON in ASCII alone, in which what a terminal might take for more than text is escaped.
///
/// # Errors
/// As serde_json has them; none for what this crate writes.
pub fn json(value: &impl serde::Serialize) -> serde_json::Result<String> {
    let text = serde_json::to_string(value)?;
    if text.bytes().all(|b| (0x20..0x7f).contains(&b)) {
        return Ok(text);
    }
    // Whatever is not ASCII stands in a string.
    let mut out = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        if (' '..'\u{7f}').contains(&c) {
            out.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    Ok(out)
}

/// A moment, given in time since 1970, in UTC: `2026-12-01T04:05:06Z`.
#[must_use]
pub fn moment(since_1970: Duration) -> String {
    let seconds = since_1970.as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years that begin in March, in eras of 400: the day that is added in leap years comes last (Hinnant, "chrono-compatible low-level
    // date algorithms").
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    let year = era * 400 + year;
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_text_is_not_shown() {
        assert_eq!(plain("a\u{1b}[31mb\r\n\u{9b}2J\u{202e}c\u{7f}é"), "a?[31mb???2J?c?é");
        assert_eq!(name("a\u{7}bcdef", 3), "a?b");
    }

    #[test]
    fn json_is_ascii_and_means_the_same() {
        let nasty = "a\u{1b}[0m\u{9b}\u{7f}\u{202e}é\u{1f600}\"\\";
        let text = json(&[nasty]).unwrap();
        assert!(text.bytes().all(|b| (0x20..0x7f).contains(&b)), "{text}");
        assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), [nasty]);
        assert_eq!(json(&"plain").unwrap(), "\"plain\"");
    }

    #[test]
    fn moments_are_dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(moment(Duration::from_secs(seconds)), text);
        }
    }
}
