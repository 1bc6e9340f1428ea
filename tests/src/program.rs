//! Programs of the workspace, built as the tests that run them are.

use std::io::BufRead;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Where `rds-stress` is; builds it first, once a process.
///
/// # Panics
/// If it does not build.
pub fn rds_stress() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--package", "rds-stress", "--bin", "rds-stress", "--message-format", "json"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        let built = build.stderr(Stdio::inherit()).output().expect("cargo runs");
        assert!(built.status.success(), "rds-stress does not build");
        let messages = built.stdout.lines().map_while(Result::ok);
        let program = messages.filter_map(|line| {
            let message: serde_json::Value = serde_json::from_str(&line).ok()?;
            message["executable"].as_str().map(PathBuf::from)
        });
        program.last().expect("cargo says where the program is")
    })
}
