//! Our node against the kernels of guests. See `tests/rig/README.md`.

use std::path::Path;

use rds_tests::interop::run::{self, Selection};
use rds_tests::skip::{Unavailable, or_skip};

/// `RDS_INTEROP_ONLY` takes parts of "KERNEL, ROLE, SCENARIO", separated by `|`; `RDS_INTEROP_RESULTS` names the page to be written, by a path
/// from the repository's root.
#[test]
fn our_node_and_each_kernel_keep_what_the_protocol_promises() {
    let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let only = variable("RDS_INTEROP_ONLY").unwrap_or_default();
    let any_of = only.split('|').filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let program = Path::new(env!("CARGO_BIN_EXE_rds-interop-peer"));
    let Some(mut results) = or_skip(run::all(&Selection { any_of }, program)) else { return };
    let doubtful = results.doubtful();
    if !doubtful.is_empty() {
        eprintln!("once more: {doubtful:#?}");
        if let Ok(second) = run::all(&Selection { any_of: doubtful }, program) {
            results.again(&second);
        }
    }
    for (kernel, why) in &results.missing {
        let why = Unavailable::because(format!("kernel {kernel}: {why}"));
        let _: Option<()> = or_skip(Err(why));
    }
    if let Some(page) = variable("RDS_INTEROP_RESULTS") {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
        std::fs::write(root.join(page), results.markdown()).expect("the page can be written");
    }
    assert!(!results.rows.is_empty(), "nothing was selected");
    let failures = results.failures();
    assert!(
        failures.is_empty(),
        "{} of {} failed:\n{}",
        failures.len(),
        results.rows.len(),
        failures.join("\n")
    );
}
