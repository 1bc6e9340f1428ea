//! A virtual machine with a virtio network card, and a kernel that speaks RDS over TCP itself: the rig in `tests/rig`.
//!
//! A network card takes the sender's pages without a copy, so this is the nearest to another host that one machine has. The machine
//! that runs the tests is at the other end of the card's cable, in a network namespace that belongs to the rig.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use nix::unistd::Uid;

use crate::netns::Namespace;
use crate::skip::Unavailable;

/// What every name of a rig begins with that a test made; the process and a number follow.
const PREFIX: &str = "rds-test-";

/// Which kernel a guest runs. All are Debian's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kernel {
    /// 6.1.
    #[default]
    V6_1,
    /// 6.12.
    V6_12,
    /// The newest that Debian carries: 7.2 or later.
    Newest,
}

impl Kernel {
    /// All of them, oldest first.
    pub const ALL: [Self; 3] = [Self::V6_1, Self::V6_12, Self::Newest];

    /// As the rig calls it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
            Self::Newest => "newest",
        }
    }

    /// Whether a reset may cost it messages that its TCP had acknowledged: up to 6.18, what it had not read yet, and whatever came on a
    /// connection that it refused because the one before was still there.
    #[must_use]
    pub const fn loses_acknowledged(self) -> bool {
        !matches!(self, Self::Newest)
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A running guest. Ends with its value; one whose test was killed is ended by the next test that starts one.
///
/// The guest's kernel has RDS over TCP itself, which listens on port 16385 there.
#[derive(Debug)]
pub struct Guest {
    rig: Arc<Rig>,
    /// As the rig counts them, from 1.
    number: u8,
    host: Namespace,
}

impl Guest {
    /// Address of the guest, the first if there are several.
    pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
    /// Address of the second.
    pub const SECOND: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
    /// IPv6 address of the first.
    pub const ADDRESS_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);
    /// Address of this side, below the guest's.
    pub const HOST_BELOW: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
    /// Address of this side, above the guest's.
    pub const HOST_ABOVE: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 201);
    /// IPv6 address of this side, below the guest's.
    pub const HOST_BELOW_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
    /// IPv6 address of this side, above the guest's.
    pub const HOST_ABOVE_V6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 201);
    /// This side's network interface.
    pub const HOST_INTERFACE: &str = "br0";

    /// Boots one with kernel 6.1. As [`Guest::with_kernel`].
    ///
    /// # Errors
    /// As [`Guest::with_kernel`].
    ///
    /// # Panics
    /// It does not boot.
    pub fn start() -> Result<Self, Unavailable> {
        Self::with_kernel(Kernel::default())
    }

    /// Boots one and waits until its network is up: about 5 s, more where the image is not built yet. The rig's script is
    /// `tests/rig/kernel-guest.sh`, or the one that the environment variable `RDS_KERNEL_GUEST` names.
    ///
    /// # Errors
    /// QEMU is missing; the process is not root; the image cannot be built, for want of a package.
    ///
    /// # Panics
    /// It does not boot.
    pub fn with_kernel(kernel: Kernel) -> Result<Self, Unavailable> {
        Ok(Self::several(kernel, 1)?.remove(0))
    }

    /// Boots `count`, which reach each other as well. As [`Guest::with_kernel`].
    ///
    /// # Errors
    /// As [`Guest::with_kernel`].
    ///
    /// # Panics
    /// One does not boot.
    pub fn several(kernel: Kernel, count: u8) -> Result<Vec<Self>, Unavailable> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let script = script();
        if !Uid::effective().is_root() {
            return Err(Unavailable::because("only root can start guests"));
        }
        if let Err(e) = Command::new("qemu-system-x86_64").arg("--version").output() {
            return Err(Unavailable::because(format!("qemu-system-x86_64 cannot be run: {e}")));
        }
        end_orphans(&script);
        let name = format!("{PREFIX}{}-{}", std::process::id(), STARTED.fetch_add(1, Relaxed));
        let rig = Arc::new(Rig { script, name, kernel });
        let built = rig.call(&["build"]);
        if !built.status.success() {
            let errors = String::from_utf8_lossy(&built.stderr);
            let last = errors.lines().next_back().unwrap_or("no reason given").to_owned();
            return Err(Unavailable::because(format!("no image for guests: {last}")));
        }
        rig.done(&["start", &count.to_string()]);
        let guest = |number| {
            let host = Namespace::named(&rig.name).expect("the rig has made it");
            let guest = Self { rig: Arc::clone(&rig), number, host };
            guest.wait_for_cable();
            guest
        };
        Ok((1..=count).map(guest).collect())
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        let [a, b, c, first] = Self::ADDRESS.octets();
        Ipv4Addr::new(a, b, c, first + self.number - 1)
    }

    /// Runs a command of the rig that concerns this guest.
    #[track_caller]
    fn rig(&self, verb: &str, arguments: &[&str]) {
        self.rig.done(&[&[verb, &self.number.to_string()], arguments].concat());
    }

    fn wait_for_cable(&self) {
        // It is plugged while the machine boots.
        let carrier = "until grep -qx 1 /sys/class/net/eth0/carrier; do sleep 0.05; done";
        self.rig("exec", &["timeout", "60", "sh", "-c", carrier]);
    }

    /// Ends it as a loss of power would: nothing is closed, nothing said. Returns when it is gone.
    ///
    /// # Panics
    /// The rig fails.
    pub fn crash(&self) {
        self.rig("kill", &[]);
    }

    /// Boots it again after [`Guest::crash`].
    ///
    /// # Panics
    /// It does not boot.
    pub fn boot(&self) {
        self.rig("boot", &[]);
        self.wait_for_cable();
    }

    /// Records the packets that this side sends to, or gets from, TCP port 16385, in a pcap file, until [`Guest::end_capture`].
    ///
    /// # Panics
    /// tcpdump(8) does not run.
    pub fn begin_capture(&self, file: &Path, filter: &str) {
        self.rig.done(&["capture", file.to_str().expect("a path in UTF-8"), filter]);
    }

    /// Ends the recording, and returns when the file is whole.
    ///
    /// # Panics
    /// The rig fails.
    pub fn end_capture(&self) {
        self.rig.done(&["capture-stop"]);
    }

    /// Runs a line of the shell in it, and returns what it printed.
    ///
    /// # Panics
    /// It fails.
    #[track_caller]
    pub fn shell(&self, line: &str) -> String {
        let done = self.command(line).output().expect("the rig runs");
        let (out, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
        assert!(done.status.success(), "in the guest: {line}: {}: {out}{errors}", done.status);
        out.into_owned()
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
                self.rig("exec", &["mkdir", "-p", folder]);
                self.rig("put", &[library, library]);
            }
        }
        let name = program.file_name().and_then(|n| n.to_str()).expect("a name in UTF-8");
        let path = format!("/tmp/{name}");
        self.rig("put", &[program.to_str().expect("a path in UTF-8"), &path]);
        self.rig("exec", &["chmod", "755", &path]);
        path
    }

    /// A command that runs `program` in the guest, with the guest's standard output and error and exit status. Killing it kills what
    /// runs in the guest. Without arguments `program` is a line for the shell. At most 8 run at a time.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        self.rig.command(&["exec", &self.number.to_string(), program])
    }

    /// The words that run `program` in it, with arguments to follow and standard input: for a command of which a test wants more than
    /// [`Guest::command`] gives.
    #[must_use]
    pub fn words(&self, program: &str) -> Vec<String> {
        let mut words = vec!["env".to_owned(), format!("KG_NAME={}", self.rig.name)];
        if self.rig.kernel != Kernel::default() {
            words.push(format!("KG_KERNEL={}", self.rig.kernel.name()));
        }
        let script = self.rig.script.to_str().expect("a path in UTF-8");
        let number = self.number.to_string();
        words.extend(["bash", script, "exec", "-i", &number, program].map(str::to_owned));
        words
    }

    /// Copies all files of its folder `from` into folder `to` of this machine.
    ///
    /// # Panics
    /// The rig fails.
    #[track_caller]
    pub fn fetch_all(&self, from: &str, to: &Path) {
        for name in self.shell(&format!("ls {from}")).split_whitespace() {
            let file = to.join(name);
            self.rig("get", &[&format!("{from}/{name}"), file.to_str().expect("a path in UTF-8")]);
        }
    }
}

/// The rig's script, and the name of our own set of guests.
#[derive(Debug)]
struct Rig {
    script: PathBuf,
    name: String,
    kernel: Kernel,
}

impl Rig {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("bash");
        command.arg(&self.script).args(arguments).env("KG_NAME", &self.name).stdin(Stdio::null());
        if self.kernel != Kernel::default() {
            // A rig of somebody else's need not know our names for kernels.
            command.env("KG_KERNEL", self.kernel.name());
        }
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

fn script() -> PathBuf {
    // Whoever names one wants it used: that it is not there is no reason to skip.
    if let Some(named) = std::env::var_os("RDS_KERNEL_GUEST").map(PathBuf::from) {
        let found = named.canonicalize().ok().filter(|path| path.is_file());
        return found.unwrap_or_else(|| panic!("RDS_KERNEL_GUEST: {} is no file", named.display()));
    }
    Path::new(env!("CARGO_MANIFEST_DIR")).join("rig/kernel-guest.sh")
}

/// Ends the guests of tests that were killed before they could.
fn end_orphans(script: &Path) {
    let Ok(entries) = std::fs::read_dir("/tmp") else { return };
    for entry in entries.flatten() {
        let file = entry.file_name();
        let Some(name) = file.to_str().and_then(|f| f.strip_prefix("kernel-guest-")) else { continue };
        let Some(process) = name.strip_prefix(PREFIX).and_then(|n| n.split('-').next()) else { continue };
        if !Path::new("/proc").join(process).exists() {
            drop(Rig { script: script.to_owned(), name: name.to_owned(), kernel: Kernel::default() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::or_skip;

    #[test]
    fn what_a_killed_test_left_behind_is_removed_and_what_others_have_is_not() {
        let script = script();
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
