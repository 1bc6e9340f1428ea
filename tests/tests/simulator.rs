//! Seeds of the simulator: a bounded number of them, and that one number makes a run.

use std::cell::RefCell;
use std::rc::Rc;

use rds_tests::sim::batch::{Report, run_many, run_seed};

/// Seeds that every test run goes through; `rds-sim` runs as many as asked.
const SEEDS: u64 = 60;

fn lines(failures: &[Report]) -> String {
    failures.iter().map(Report::line).collect::<Vec<_>>().join("\n")
}

#[test]
fn random_seeds_keep_every_promise() {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (coverage, failures) = run_many(0, SEEDS, threads, 3);
    assert!(failures.is_empty(), "replay with:\n{}\n", lines(&failures));
    assert!(coverage.messages >= 1000 * SEEDS, "only {} messages in {SEEDS} seeds", coverage.messages);
    assert!(coverage.faults_total() >= 5 * SEEDS, "only {} faults in {SEEDS} seeds", coverage.faults_total());
}

#[test]
fn one_seed_is_one_run() {
    let run = |seed| {
        let text = Rc::new(RefCell::new(String::new()));
        let sink = Rc::clone(&text);
        let report = run_seed(
            seed,
            Some(Box::new(move |line| {
                sink.borrow_mut().push_str(line);
                sink.borrow_mut().push('\n');
            })),
        );
        (report.digest, report.coverage, text.take())
    };
    let (first, again) = (run(4), run(4));
    assert!(first.2.lines().count() > 1000, "the run tells what happens");
    assert_eq!(first.0, again.0, "digests of two runs of one seed");
    assert_eq!(first.1, again.1, "coverage of two runs of one seed");
    assert!(first.2 == again.2, "two runs of one seed tell different stories");
    assert_ne!(first.0, run(5).0, "another seed is another run");
}

#[test]
fn a_broken_promise_names_the_command_that_replays_it() {
    let report = Report {
        seed: 1234,
        broken: Some("message 7 was lost".into()),
        coverage: Default::default(),
        digest: 0,
    };
    let line = report.line();
    assert_eq!(line.lines().count(), 1);
    assert!(
        line.starts_with("cargo run --release -p rds-tests --bin rds-sim -- --seed 1234 --trace"),
        "{line}"
    );
    assert!(line.contains("message 7 was lost"), "{line}");
}
