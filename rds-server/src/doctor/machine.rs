//! Where the facts of a host are read: /proc and /sys, or a folder with made-up ones.

use std::fs;
use std::path::{Path, PathBuf};

/// A host, and the process on it whose limits count.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    process: String,
}

impl Machine {
    /// This host, and this process.
    #[must_use]
    pub fn this() -> Self {
        Self::at("/")
    }

    /// This host, and another process.
    #[must_use]
    pub fn of_process(pid: u32) -> Self {
        Self { process: pid.to_string(), ..Self::this() }
    }

    /// One whose `proc` and `sys` are in a folder.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), process: "self".to_owned() }
    }

    /// Where a file of the host is.
    #[must_use]
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// The text of a file, without the white space around it; `None` if it cannot be read.
    #[must_use]
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_owned())
    }

    /// The numbers in a file of settings.
    #[must_use]
    pub fn numbers(&self, path: impl AsRef<Path>) -> Option<Vec<u64>> {
        self.text(path)?.split_whitespace().map(|number| number.parse().ok()).collect()
    }

    /// The text of a file of the process.
    #[must_use]
    pub fn of_self(&self, file: &str) -> Option<String> {
        self.text(Path::new("proc").join(&self.process).join(file))
    }

    /// The soft and the hard limit of the process that has this name in proc_pid_limits(5); `u64::MAX` for none.
    #[must_use]
    pub fn limit(&self, name: &str) -> Option<(u64, u64)> {
        let limits = self.of_self("limits")?;
        let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
        let mut values = line.split_whitespace().map(|value| match value {
            "unlimited" => Some(u64::MAX),
            number => number.parse().ok(),
        });
        Some((values.next()??, values.next()??))
    }

    /// Whether the process has this capability (its number in linux/capability.h), and in the first user namespace, whose capabilities the
    /// kernel's limits ask for.
    #[must_use]
    pub fn has_capability(&self, number: u32) -> bool {
        /// As proc_pid_ns(5) names it.
        const FIRST: &str = "user:[4026531837]";
        let namespace = self.path(Path::new("proc").join(&self.process).join("ns/user"));
        let status = self.of_self("status").unwrap_or_default();
        let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let set = set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0);
        set >> number & 1 == 1 && fs::read_link(namespace).is_ok_and(|name| name.as_os_str() == FIRST)
    }

    /// Whether a module is loaded.
    #[must_use]
    pub fn has_module(&self, name: &str) -> bool {
        let modules = self.text("proc/modules").unwrap_or_default();
        modules.lines().any(|line| line.split_whitespace().next() == Some(name))
    }
}

/// Made-up hosts.
#[cfg(test)]
pub(super) mod made_up {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A host in a folder, which goes with it.
    pub(crate) struct Made {
        folder: tempfile::TempDir,
        pub(crate) machine: Machine,
    }

    impl Made {
        pub(crate) fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let machine = Machine::at(folder.path());
            Self { folder, machine }
        }

        /// With one more file.
        pub(crate) fn with(self, path: &str, text: &str) -> Self {
            let path = self.folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
            self
        }

        /// With one more link.
        pub(crate) fn link(self, path: &str, to: &str) -> Self {
            let path = self.folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            symlink(to, path).unwrap();
            self
        }

        /// With a soft and a hard limit, as the kernel prints them.
        pub(crate) fn limit(self, name: &str, soft: &str, hard: &str) -> Self {
            let head = "Limit                     Soft Limit           Hard Limit           Units     \n";
            self.with("proc/self/limits", &format!("{head}{name:<26}{soft:<21}{hard:<21}bytes     \n"))
        }

        /// With all capabilities.
        pub(crate) fn root(self) -> Self {
            self.with("proc/self/status", "Name:\tx\nCapEff:\t000001ffffffffff\n")
                .link("proc/self/ns/user", "user:[4026531837]")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::made_up::Made;
    use super::*;

    #[test]
    fn limits_are_read_as_the_kernel_prints_them() {
        let made = Made::new().limit("Max locked memory", "8388608", "unlimited");
        assert_eq!(made.machine.limit("Max locked memory"), Some((8 << 20, u64::MAX)));
        assert_eq!(made.machine.limit("Max open files"), None);
        let (soft, hard) = Machine::this().limit("Max open files").unwrap();
        assert!(soft <= hard && soft > 0);
        assert_eq!(Machine::of_process(std::process::id()).limit("Max open files"), Some((soft, hard)));
    }

    #[test]
    fn a_capability_of_another_user_namespace_is_none() {
        let status = "CapEff:\t0000000000004000\n";
        let first =
            Made::new().with("proc/self/status", status).link("proc/self/ns/user", "user:[4026531837]");
        assert!(first.machine.has_capability(14) && !first.machine.has_capability(12));
        let other =
            Made::new().with("proc/self/status", status).link("proc/self/ns/user", "user:[4026532000]");
        assert!(!other.machine.has_capability(14));
        assert!(!Made::new().machine.has_capability(14));
    }

    #[test]
    fn a_module_is_found_by_its_whole_name() {
        let made =
            Made::new().with("proc/modules", "rds_tcp 28672 0 - Live 0x0\nrds 1 1 rds_tcp, Live 0x0\n");
        assert!(made.machine.has_module("rds_tcp") && made.machine.has_module("rds"));
        assert!(!made.machine.has_module("rds_") && !Made::new().machine.has_module("rds"));
    }

    #[test]
    fn a_file_of_settings_is_its_numbers_or_nothing() {
        let made = Made::new().with("proc/sys/x", "4096\t131072\t33554432\n").with("proc/sys/y", "1 x");
        assert_eq!(made.machine.numbers("proc/sys/x"), Some(vec![4096, 131_072, 33_554_432]));
        assert_eq!(made.machine.numbers("proc/sys/y"), None);
        assert_eq!(made.machine.numbers("proc/sys/z"), None);
    }
}
