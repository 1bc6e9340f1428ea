//! Runs the scenarios: every kernel at the same time, each with two guests.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use rds_client::RDS_TCP_PORT;

use super::capture::shown;
use super::rendezvous::Rendezvous;
use super::scenarios::{ALONE, DAEMON, TOGETHER};
use super::table::{Outcome, Results, Row};
use super::{Case, Role, Scenario};
use crate::guest::{Guest, Kernel};
use crate::program::rds_server;
use crate::skip::Unavailable;

/// The row that is about everything that was sent in the others of a guest.
const EXTENSIONS: &str = "extension headers of all that we sent (alone with a guest)";
const NEVER: &str = "NPATHS, GEN_NUM and SPORT_IDX in handshakes, and no other anywhere: never one of RDMA's";

/// Which of them are to run; all, by default.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Parts of "KERNEL, ROLE, SCENARIO", one of which must occur; none: all run.
    pub any_of: Vec<String>,
}

impl Selection {
    fn has(&self, kernel: Kernel, role: Role, scenario: &Scenario) -> bool {
        let name = format!("{kernel}, {role}, {}", scenario.name);
        self.any_of.is_empty() || self.any_of.iter().any(|part| name.contains(part.as_str()))
    }
}

/// Runs all that are selected. `program` is `rds-interop-peer`.
///
/// Kernels that cannot be had are in [`Results::missing`]; the others run all the same.
///
/// # Errors
/// No guest can be had on this machine, with any of the kernels.
pub fn all(selection: &Selection, program: &Path) -> Result<Results, Unavailable> {
    // Before threads in namespaces of guests ask for it.
    let _ = rds_server();
    let results = Mutex::new(Results::default());
    let missing = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for kernel in Kernel::ALL {
            for (number, (scenarios, shared)) in [(ALONE, false), (TOGETHER, true)].into_iter().enumerate() {
                let wanted = |s: &Scenario| Role::ALL.iter().any(|role| selection.has(kernel, *role, s));
                // The guest that both roles share has the time for the daemon's scenarios as well.
                let others: &[Scenario] = if shared { DAEMON } else { &[] };
                if !scenarios.iter().chain(others).any(wanted) {
                    continue;
                }
                let (results, missing) = (&results, &missing);
                let body = move || match Guest::with_kernel(kernel) {
                    Ok(guest) => {
                        if number == 0
                            || results.lock().expect("no panic").releases.iter().all(|r| r.0 != kernel)
                        {
                            let release = guest.shell("uname -r").trim().to_owned();
                            let mut results = results.lock().expect("no panic");
                            results.releases.retain(|r| r.0 != kernel);
                            results.releases.push((kernel, release));
                            results.releases.sort();
                        }
                        let run = Run { guest: &guest, kernel, program, selection, results };
                        if shared {
                            run.scenarios(others, ALONE.len() + TOGETHER.len() + 1, true);
                            run.scenarios(scenarios, ALONE.len(), true);
                        } else {
                            run.recorded(scenarios);
                        }
                    }
                    Err(why) => drop(missing.lock().expect("no panic").insert(kernel, why)),
                };
                let name = format!("kernel {kernel}");
                std::thread::Builder::new().name(name).spawn_scoped(scope, body).expect("a thread");
            }
        }
    });
    let mut results = results.into_inner().expect("no panic");
    let mut missing: Vec<_> = missing.into_inner().expect("no panic").into_iter().collect();
    // What the kernels that are there did must not be passed over because another is not.
    if results.rows.is_empty()
        && let Some((_, why)) = missing.pop()
    {
        return Err(why);
    }
    results.missing = missing;
    Ok(results)
}

struct Run<'a> {
    guest: &'a Guest,
    kernel: Kernel,
    program: &'a Path,
    selection: &'a Selection,
    results: &'a Mutex<Results>,
}

impl Run<'_> {
    /// Runs them while what we send is recorded, and looks at that: one row more for each role.
    fn recorded(&self, scenarios: &[Scenario]) {
        let file = tempfile::NamedTempFile::new().expect("a new file");
        let (v4, v6) = (Guest::ADDRESS, Guest::ADDRESS_V6);
        let filter = format!("tcp port {RDS_TCP_PORT} and not src host {v4} and not src host {v6}");
        self.guest.begin_capture(file.path(), &filter);
        self.scenarios(scenarios, 0, false);
        self.guest.end_capture();
        for role in Role::ALL {
            let selected = |s: &&Scenario| self.selection.has(self.kernel, role, s);
            if !scenarios.iter().any(|s| selected(&s)) {
                continue;
            }
            let since = Instant::now();
            let addresses = match role {
                Role::Smaller => [Guest::HOST_BELOW.into(), Guest::HOST_BELOW_V6.into()],
                Role::Larger => [Guest::HOST_ABOVE.into(), Guest::HOST_ABOVE_V6.into()],
            };
            let outcome = match shown(file.path(), &addresses) {
                Err(why) => Outcome::Failed(format!("the recording: {why}")),
                Ok(seen)
                    if seen.wrong.is_empty()
                        && seen.handshakes > 0
                        && seen.others > 0
                        && seen.read > seen.missed =>
                {
                    Outcome::Passed
                }
                Ok(seen) => Outcome::Failed(format!("{seen:?}")),
            };
            self.note(role, (ALONE.len() + TOGETHER.len(), EXTENSIONS), NEVER, outcome, since);
        }
    }

    fn scenarios(&self, scenarios: &[Scenario], first: usize, shared: bool) {
        let roles: &[&[Role]] = if shared { &[&Role::ALL] } else { &[&[Role::Smaller], &[Role::Larger]] };
        for roles in roles {
            for (number, scenario) in (first..).zip(scenarios) {
                let selected = |role: &&Role| self.selection.has(self.kernel, **role, scenario);
                let rendezvous = Rendezvous::default();
                let cases = roles.iter().filter(selected).map(|role| (*role, rendezvous.join()));
                let cases: Vec<_> = cases.collect();
                std::thread::scope(|scope| {
                    for (role, party) in cases {
                        let (guest, kernel, program) = (self.guest, self.kernel, self.program);
                        let case =
                            Case { guest, kernel, role, v6: false, daemon: false, program, number, party };
                        scope.spawn(move || self.scenario(case, (number, scenario)));
                    }
                });
            }
        }
    }

    fn scenario(&self, case: Case<'_>, (number, scenario): (usize, &Scenario)) {
        let since = Instant::now();
        let done = catch_unwind(AssertUnwindSafe(|| case.guest.host().run(|| (scenario.run)(&case))));
        let outcome = match done {
            Ok(()) => Outcome::Passed,
            Err(panic) => Outcome::Failed(reason(panic.as_ref())),
        };
        let promise = (scenario.promise)(case.kernel);
        self.note(case.role, (number, scenario.name), promise, outcome, since);
    }

    fn note(
        &self,
        role: Role,
        scenario: (usize, &'static str),
        promise: &'static str,
        outcome: Outcome,
        since: Instant,
    ) {
        let (kernel, time) = (self.kernel, since.elapsed());
        let how = if outcome == Outcome::Passed { "passed" } else { "FAILED" };
        let seconds = time.as_secs_f64();
        eprintln!("{how} after {seconds:5.1} s: kernel {kernel}, we are the {role} address: {}", scenario.1);
        if let Outcome::Failed(why) = &outcome {
            eprintln!("    {why}");
        }
        let row = Row { kernel, role, scenario, promise, outcome, time, before: None };
        self.results.lock().expect("no panic").rows.push(row);
    }
}

fn reason(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no reason given".into())
}
