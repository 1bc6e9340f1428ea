//! A virtual machine with a virtio network card, in the rig that `../shared/interop` beside the repository holds.
//!
//! A network card takes the sender's pages without a copy, so this is the nearest to another host that one machine has. The machine
//! that runs the tests is at the other end of the card's cable, in a network namespace that belongs to the rig.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use nix::unistd::Uid;

use crate::netns::Namespace;
use crate::skip::Unavailable;

/// What every name of a rig begins with that a test made; the process and a number follow.
const PREFIX: &str = "rds-test-";

/// A running guest. Ends with its value; one whose test was killed is ended by the next test that starts one.
///
/// The guest's kernel has RDS over TCP itself, which listens on port 16385 there.
#[derive(Debug)]
pub struct Guest {
    rig: Rig,
    host: Namespace,
}

impl Guest {
    /// Address of the guest.
    pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
    /// Address of this side, below the guest's.
    pub const HOST_BELOW: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
    /// Address of this side, above the guest's.
    pub const HOST_ABOVE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 201);

    /// Boots one and waits until its network is up: about 5 s, more where the image is not built yet. The rig's script is the one
    /// beside the repository, or the one that the environment variable `RDS_KERNEL_GUEST` names.
    ///
    /// # Errors
    /// There is no rig; QEMU is missing; the process is not root; the image cannot be built, for want of a package.
    ///
    /// # Panics
    /// It does not boot.
    pub fn start() -> Result<Self, Unavailable> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let script = script()?;
        if !Uid::effective().is_root() {
            return Err(Unavailable::because("only root can start guests"));
        }
        if let Err(e) = Command::new("qemu-system-x86_64").arg("--version").output() {
            return Err(Unavailable::because(format!("qemu-system-x86_64 cannot be run: {e}")));
        }
        end_orphans(&script);
        let name = format!("{PREFIX}{}-{}", std::process::id(), STARTED.fetch_add(1, Relaxed));
        let rig = Rig { script, name };
        let built = rig.call(&["build"]);
        if !built.status.success() {
            let errors = String::from_utf8_lossy(&built.stderr);
            let last = errors.lines().next_back().unwrap_or("no reason given").to_owned();
            return Err(Unavailable::because(format!("no image for guests: {last}")));
        }
        rig.done(&["start", "1"]);
        let host = Namespace::named(&rig.name).expect("the rig has made it");
        let guest = Self { rig, host };
        // The cable is plugged while the machine boots.
        let carrier = "until grep -qx 1 /sys/class/net/eth0/carrier; do sleep 0.05; done";
        guest.rig.done(&["exec", "1", "timeout", "60", "sh", "-c", carrier]);
        Ok(guest)
    }

    /// The network namespace of this side.
    #[must_use]
    pub fn host(&self) -> &Namespace {
        &self.host
    }

    /// Puts a program of this machine into the guest, with the shared libraries that it lacks there, and returns its path there. About
    /// 2 s for 50 MB.
    ///
    /// # Panics
    /// The file cannot be read, or the guest is full.
    #[must_use]
    pub fn put(&self, program: &Path) -> String {
        let libraries = Command::new("ldd").arg(program).output().expect("ldd(1) comes with the C library");
        let libraries = String::from_utf8_lossy(&libraries.stdout).into_owned();
        // "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x...)"; a static program has no such lines.
        for library in libraries.split_whitespace().filter(|word| word.starts_with('/')) {
            let there = self.command("test").args(["-e", library]).status().expect("the rig runs");
            if !there.success() {
                let folder = Path::new(library).parent().and_then(Path::to_str).expect("a path in UTF-8");
                self.rig.done(&["exec", "1", "mkdir", "-p", folder]);
                self.rig.done(&["put", "1", library, library]);
            }
        }
        let name = program.file_name().and_then(|n| n.to_str()).expect("a name in UTF-8");
        let path = format!("/tmp/{name}");
        self.rig.done(&["put", "1", program.to_str().expect("a path in UTF-8"), &path]);
        self.rig.done(&["exec", "1", "chmod", "755", &path]);
        path
    }

    /// A command that runs `program` in the guest, with the guest's standard output and error and exit status. Killing it kills what
    /// runs in the guest. Without arguments `program` is a line for the shell. At most 8 run at a time.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        self.rig.command(&["exec", "1", program])
    }
}

/// The rig's script, and the name of our own set of guests.
#[derive(Debug)]
struct Rig {
    script: PathBuf,
    name: String,
}

impl Rig {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("bash");
        command.arg(&self.script).args(arguments).env("KG_NAME", &self.name).stdin(Stdio::null());
        command
    }

    fn call(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("bash(1)")
    }

    #[track_caller]
    fn done(&self, arguments: &[&str]) {
        let done = self.call(arguments);
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "the rig cannot {arguments:?}: {}: {errors}", done.status);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Where nothing was started there is nothing to stop.
        let _ = self.call(&["stop"]);
    }
}

fn script() -> Result<PathBuf, Unavailable> {
    // Whoever names one wants it used: that it is not there is no reason to skip.
    if let Some(named) = std::env::var_os("RDS_KERNEL_GUEST").map(PathBuf::from) {
        let found = named.canonicalize().ok().filter(|path| path.is_file());
        return Ok(found.unwrap_or_else(|| panic!("RDS_KERNEL_GUEST: {} is no file", named.display())));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/interop/kernel-guest.sh");
    path.canonicalize()
        .map_err(|e| Unavailable::because(format!("no rig for guests, {}: {e}", path.display())))
}

/// Ends the guests of tests that were killed before they could.
fn end_orphans(script: &Path) {
    let Ok(entries) = std::fs::read_dir("/tmp") else { return };
    for entry in entries.flatten() {
        let file = entry.file_name();
        let Some(name) = file.to_str().and_then(|f| f.strip_prefix("kernel-guest-")) else { continue };
        let Some(process) = name.strip_prefix(PREFIX).and_then(|n| n.split('-').next()) else { continue };
        if !Path::new("/proc").join(process).exists() {
            drop(Rig { script: script.to_owned(), name: name.to_owned() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::or_skip;

    #[test]
    fn what_a_killed_test_left_behind_is_removed_and_what_others_have_is_not() {
        let Some(script) = or_skip(script()) else { return };
        if !Uid::effective().is_root() {
            let _: Option<()> = or_skip(Err(Unavailable::because("only root can stop guests")));
            return;
        }
        let mut ended = Command::new("true").spawn().expect("true(1)");
        ended.wait().expect("it is our child");
        let left = |process: u32| PathBuf::from(format!("/tmp/kernel-guest-{PREFIX}{process}-77"));
        let (orphan, alive) = (left(ended.id()), left(std::process::id()));
        for directory in [&orphan, &alive] {
            std::fs::create_dir(directory).expect("a new directory");
        }
        end_orphans(&script);
        let found = [orphan.exists(), alive.exists()];
        std::fs::remove_dir(&alive).expect("it is still there");
        assert_eq!(found, [false, true]);
    }
}
