//! Programs of the workspace, built as the tests that run them are.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// What a static program is built for.
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Where `rds-stress` is; builds it first, once a process.
///
/// # Panics
/// If it does not build.
pub fn rds_stress() -> &'static PathBuf {
    &programs()[0]
}

/// Where `rds-server` is; builds it first, once a process.
///
/// # Panics
/// If it does not build.
pub fn rds_server() -> &'static PathBuf {
    &programs()[1]
}

/// Where `rds-info` is; builds it first, once a process.
///
/// # Panics
/// If it does not build.
pub fn rds_info() -> &'static PathBuf {
    &programs()[2]
}

/// Where `rds-ping` is; builds it first, once a process.
///
/// # Panics
/// If it does not build.
pub fn rds_ping() -> &'static PathBuf {
    &programs()[3]
}

/// All by one command: each by itself would build what they share with other features, once more.
fn programs() -> &'static [PathBuf; 4] {
    static PROGRAMS: OnceLock<[PathBuf; 4]> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let names = ["rds-stress", "rds-server", "rds-info", "rds-ping"];
        let mut build = cargo(names[0], names[0]);
        build.args(["--package", names[1], "--bin", names[1], "--bin", names[2], "--bin", names[3]]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        let built = all_built(build);
        names.map(|name| {
            let found = built.iter().find(|path| path.ends_with(name));
            found.expect("cargo says where each program is").clone()
        })
    })
}

/// Where an `rds-stress` is that needs no library of the machine on which it runs: for guests with another C library. Builds it first,
/// once a process, as `just static` does; in release, for emulated machines are slow.
///
/// # Panics
/// If it does not build.
pub fn static_rds_stress() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| built(cargo_static("rds-stress", "rds-stress")))
}

/// The same of `rds-ledger`.
///
/// # Panics
/// If it does not build.
pub fn static_rds_ledger() -> &'static PathBuf {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| built(cargo_static("rds-tests", "rds-ledger")))
}

fn cargo(package: &str, program: &str) -> Command {
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.args(["build", "--package", package, "--bin", program, "--message-format", "json"]);
    build
}

fn cargo_static(package: &str, program: &str) -> Command {
    let mut build = cargo(package, program);
    // A folder of its own: other flags would build everything else anew.
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/static");
    build.args(["--release", "--target", TARGET, "--target-dir"]).arg(folder);
    // What cargo was told by variables that outrank this one would not be static.
    build.env_remove("CARGO_ENCODED_RUSTFLAGS");
    build.env("RUSTFLAGS", "-C target-feature=+crt-static -C strip=symbols");
    build
}

fn built(build: Command) -> PathBuf {
    all_built(build).pop().expect("cargo says where the program is")
}

fn all_built(mut build: Command) -> Vec<PathBuf> {
    let built = build.stderr(Stdio::inherit()).output().expect("cargo runs");
    assert!(built.status.success(), "a program does not build");
    let messages = built.stdout.lines().map_while(Result::ok);
    let program = messages.filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(&line).ok()?;
        message["executable"].as_str().map(PathBuf::from)
    });
    program.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::{Unavailable, or_skip};

    /// Whether this machine can link without shared libraries for what guests run.
    fn static_builds() -> Result<(), Unavailable> {
        if !cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
            return Err(Unavailable::because("static programs are for guests, which are amd64 with glibc"));
        }
        let asked = Command::new("cc").arg("-print-file-name=libc.a").output();
        let found =
            asked.is_ok_and(|told| PathBuf::from(String::from_utf8_lossy(&told.stdout).trim()).is_absolute());
        let why = "there is no static C library (libc.a: libc6-dev, or glibc-static)";
        if found { Ok(()) } else { Err(Unavailable::because(why)) }
    }

    #[test]
    fn the_static_program_needs_no_library_and_runs() {
        if or_skip(static_builds()).is_none() {
            return;
        }
        let program = static_rds_stress();
        let listed = Command::new("ldd").arg(program).output().expect("ldd(1) comes with the C library");
        let listed = [listed.stdout, listed.stderr].concat();
        let listed = String::from_utf8_lossy(&listed);
        assert!(!listed.contains("=>"), "{listed}");
        let version = Command::new(program).arg("--version").output().expect("it runs");
        assert!(version.stdout.starts_with(b"rds-stress "), "{version:?}");
    }
}
