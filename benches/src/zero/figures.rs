//! Medians, best values, and tables.

/// The middle of some values, and their range.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
}

impl Spread {
    /// Of a value of each of `of`.
    pub(crate) fn of<T>(of: &[T], value: impl Fn(&T) -> f64) -> Self {
        Self::of_values(of.iter().map(value).collect())
    }

    /// Of the ratios of two series, round by round.
    pub(crate) fn of_ratios<T>(above: &[T], below: &[T], value: impl Fn(&T) -> f64) -> Self {
        Self::of_values(above.iter().zip(below).map(|(a, b)| value(a) / value(b)).collect())
    }

    fn of_values(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (Some(min), Some(max)) = (values.first(), values.last()) else { return Self::default() };
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Self { median, min: *min, max: *max }
    }

    /// The median with its range, with so many digits behind the point.
    pub(crate) fn show(&self, digits: usize) -> String {
        format!("{:.digits$} ({:.digits$}..{:.digits$})", self.median, self.min, self.max)
    }
}

/// Bytes as people write them.
pub(crate) fn size(bytes: usize) -> String {
    match bytes {
        s if s >= 1 << 20 && s % (1 << 20) == 0 => format!("{} MiB", s >> 20),
        s if s >= 1 << 10 && s % (1 << 10) == 0 => format!("{} KiB", s >> 10),
        s => format!("{s} B"),
    }
}

/// Rows as a table in Markdown.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let heading: Vec<String> = heading.iter().map(|h| (*h).to_owned()).collect();
    let rule = vec!["---".to_owned(); heading.len()];
    let line = |row: &Vec<String>| format!("| {} |\n", row.join(" | "));
    [&heading, &rule].into_iter().chain(rows).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_the_middle_and_both_ends() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0], |v| *v), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0], |v| *v).median, 2.5);
        let ratios = Spread::of_ratios(&[2.0, 9.0], &[1.0, 3.0], |v| *v);
        assert_eq!(ratios, Spread { median: 2.5, min: 2.0, max: 3.0 });
        assert_eq!(Spread::of::<f64>(&[], |v| *v).show(1), "0.0 (0.0..0.0)");
    }

    #[test]
    fn a_table_is_one_of_markdown() {
        let text = table(&["a", "b"], &[vec!["1".to_owned(), "2".to_owned()]]);
        assert_eq!(text, "| a | b |\n| --- | --- |\n| 1 | 2 |\n");
    }
}
