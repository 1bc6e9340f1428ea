//! Numbers as the reference reads them: C notation with an optional suffix.

/// Reads a number in C notation (decimal, `0x` hexadecimal, `0` octal) with an optional suffix `k`, `m` or `g`
/// (times 2^10, 2^20, 2^30), at most `max`.
///
/// # Errors
/// One line that says what is wrong and what is allowed.
pub fn parse(text: &str, max: u64) -> Result<u64, String> {
    let unreadable = || {
        format!(
            "'{text}' is not a number: give decimal, 0x hexadecimal or 0 octal digits, with k, m or g behind if you like"
        )
    };
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (&digits[2..], 16),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    // from_str_radix would take a sign.
    if !digits.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        return Err(unreadable());
    }
    let value = match u64::from_str_radix(digits, radix) {
        Ok(value) => value.checked_mul(1 << shift),
        Err(e) if *e.kind() == std::num::IntErrorKind::PosOverflow => None,
        Err(_) => return Err(unreadable()),
    };
    value.filter(|v| *v <= max).ok_or_else(|| format!("'{text}' is too large: give at most {max}"))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn numbers_are_read_in_c_notation_with_suffixes() {
        for (text, value) in [
            ("0", 0),
            ("10", 10),
            ("0x10", 16),
            ("0X1f", 31),
            ("010", 8),
            ("4k", 4096),
            ("1K", 1024),
            ("1m", 1 << 20),
            ("2M", 2 << 20),
            ("1g", 1 << 30),
            ("0x1k", 1024),
            ("0k", 0),
        ] {
            assert_eq!(parse(text, u64::MAX), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_is_no_number_or_too_large_is_refused() {
        for text in
            ["", "k", "-1", "+1", " 1", "1 ", "0x", "09", "1kk", "1t", "ten", "0x-1", "1.5", "é", "1é"]
        {
            assert!(parse(text, u64::MAX).unwrap_err().contains("is not a number"), "{text}");
        }
        for text in ["65536", "64k", "0x10000", "99999999999999999999", "18014398509481984k"] {
            assert!(parse(text, 65535).unwrap_err().contains("at most 65535"), "{text}");
        }
        assert_eq!(parse("65535", 65535), Ok(65535));
    }
}
