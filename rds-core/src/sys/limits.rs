//! How much memory the kernel pins for this process, and in which pieces.

use std::fs;
use std::sync::OnceLock;

/// net.core.optmem_max of kernels that do not show theirs: the default before Linux 6.7, below every later one. Kernels
/// whose setting is not per network namespace hide it outside the first one.
const OPTMEM_DEFAULT: u64 = 20 << 10;
/// Bit of CAP_IPC_LOCK in a capability set (linux/capability.h).
const CAP_IPC_LOCK: u32 = 14;
/// The first user namespace as /proc/self/ns/user names it (PROC_USER_INIT_INO).
const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";

/// Limits that Linux sets to pinned sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryLimits {
    /// Bytes that all processes of this user may pin together: the soft RLIMIT_MEMLOCK (getrlimit(2)). Pinned sends count
    /// against it with whole pages and two more each. `None`: no limit, also because CAP_IPC_LOCK exempts us.
    pub(crate) memlock: Option<u64>,
    /// Bytes of control memory that one socket may have in use (net.core.optmem_max); each notification that is
    /// outstanding takes some hundred.
    pub(crate) optmem: u64,
    /// Bytes of a page.
    pub(crate) page_size: usize,
}

impl MemoryLimits {
    /// The limits of the calling thread, which has those of its process unless it gave up capabilities of its own. Reads
    /// a few files below /proc; what cannot be read is taken for the stricter case.
    pub(crate) fn read() -> Self {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        // The kernel asks for the capability in the first user namespace: root of another one is bound by the limit.
        let first =
            fs::read_link("/proc/thread-self/ns/user").is_ok_and(|n| n.as_os_str() == FIRST_USER_NAMESPACE);
        let optmem = fs::read_to_string("/proc/sys/net/core/optmem_max").ok();
        Self {
            memlock: if first && may_lock(&status) { None } else { soft_memlock() },
            optmem: optmem.and_then(|o| o.trim().parse().ok()).unwrap_or(OPTMEM_DEFAULT),
            page_size: page_size(),
        }
    }
}

/// Bytes of a page (sysconf(3)).
pub(crate) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: sysconf(3) takes any value and touches no memory of ours.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        usize::try_from(size).ok().filter(|s| s.is_power_of_two()).unwrap_or(4096)
    })
}

/// The soft RLIMIT_MEMLOCK; `None` if infinite.
fn soft_memlock() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: getrlimit(2) writes one rlimit at the address given, which is that of `limit`.
    let rc = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    if rc < 0 {
        return Some(0);
    }
    #[allow(clippy::useless_conversion, reason = "32 bits wide on some platforms")]
    (limit.rlim_cur != libc::RLIM_INFINITY).then(|| limit.rlim_cur.into())
}

/// Whether the status of a thread (proc_pid_status(5)) shows CAP_IPC_LOCK among the effective capabilities.
fn may_lock(status: &str) -> bool {
    let set = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let set = set.and_then(|s| u64::from_str_radix(s.trim(), 16).ok());
    set.is_some_and(|s| s >> CAP_IPC_LOCK & 1 == 1)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_capability_is_read_from_the_effective_set_alone() {
        assert!(may_lock("Name:\tx\nCapPrm:\t0000000000000000\nCapEff:\t0000000000004000\n"));
        assert!(may_lock("CapEff:\t000001ffffffffff"));
        for none in ["", "CapEff:", "CapEff:\tzz", "CapEff:\t00000000ffffbfff", "CapPrm:\t0000000000004000\n"]
        {
            assert!(!may_lock(none), "{none}");
        }
    }

    #[test]
    fn the_limits_are_those_of_this_machine() {
        let limits = MemoryLimits::read();
        assert!(limits.page_size.is_power_of_two() && limits.page_size >= 4096);
        match fs::read_to_string("/proc/sys/net/core/optmem_max") {
            Ok(text) => assert_eq!(limits.optmem.to_string(), text.trim()),
            Err(_) => assert_eq!(limits.optmem, OPTMEM_DEFAULT),
        }
    }

    /// The name of the test below, which runs itself again under other limits.
    const CHILD: &str = "RDS_TEST_EXPECTED_MEMLOCK";

    #[test]
    fn the_limit_of_another_user_or_namespace_is_seen() {
        if let Ok(expected) = std::env::var(CHILD) {
            assert_eq!(format!("{:?}", MemoryLimits::read().memlock), expected);
            return;
        }
        let this = std::env::current_exe().unwrap();
        let test = "sys::limits::tests::the_limit_of_another_user_or_namespace_is_seen";
        for (expected, wrap) in [
            (
                "None",
                "ulimit -l unlimited && exec setpriv --reuid 65534 --clear-groups --bounding-set -ipc_lock",
            ),
            (
                "Some(65536)",
                "ulimit -S -l 64 && exec setpriv --reuid 65534 --clear-groups --bounding-set -ipc_lock",
            ),
            ("Some(0)", "ulimit -S -l 0 && exec unshare --user --map-root-user"),
            ("None", "ulimit -S -l 64 && exec env"),
        ] {
            let script = format!("{wrap} \"$0\" --exact {test} --nocapture");
            let output =
                Command::new("bash").arg("-c").arg(&script).arg(&this).env(CHILD, expected).output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            if !text.contains("running 1 test") || MemoryLimits::read().memlock.is_some() {
                let why = String::from_utf8_lossy(&output.stderr);
                println!("skipped: {wrap}: needs CAP_IPC_LOCK and CAP_SYS_RESOURCE: {}", why.trim());
                continue;
            }
            assert!(output.status.success() && text.contains("1 passed"), "{wrap}: {text}");
        }
    }
}
