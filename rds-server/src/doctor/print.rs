//! A report for people.

use std::fmt::Write;

use super::{Report, Status};

/// A line for each check, with reason and advice below those that are not well, and a line with how many there are of each kind.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    let width = report.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for check in &report.checks {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{:<8} {:<width$}  {}", check.status, check.name, check.found);
        let mut below = |what: &str, line: &str| {
            let _ = writeln!(text, "{:9}{what:<11}{line}", "");
        };
        if !check.why.is_empty() {
            below("why:", &check.why);
        }
        if let Some(todo) = &check.todo {
            below("shell:", &todo.shell);
            below("systemd:", &todo.systemd);
            below("container:", &todo.container);
        }
    }
    let count = |status| report.checks.iter().filter(|check| check.status == status).count();
    let _ = writeln!(
        text,
        "\nok: {}, notes: {}, warnings: {}, failures: {}",
        count(Status::Ok),
        count(Status::Note),
        count(Status::Warning),
        count(Status::Fail)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::super::{Finding, Todo};
    use super::*;

    #[test]
    fn every_finding_has_its_line_and_what_to_do_in_three_places() {
        let report = Report::new(vec![
            Finding::ok("kernel", "Linux 6.18"),
            Finding::note("address", "127.0.0.1 is this host's", "on loopback"),
            Finding::bad(Status::Fail, "port", "held", "the daemon does not start", Todo::new("a", "b", "c")),
        ]);
        let expected = "ok       kernel   Linux 6.18\n\
                        note     address  127.0.0.1 is this host's\n         why:       on loopback\n\
                        FAIL     port     held\n         why:       the daemon does not start\n         shell:     a\n         systemd:   b\n         container: c\n\
                        \nok: 1, notes: 1, warnings: 0, failures: 1\n";
        assert_eq!(text(&report), expected);
        assert_eq!(report.status, Status::Fail);
    }
}
