//! Memory: what may be pinned, shared and queued.

use std::io;
use std::path::Path;

use rds_core::attach::{Access, SharedMemory};
use rds_core::zerocopy::Mode;

use super::finding::{Finding, Status, Todo, size};
use super::machine::Machine;
use crate::settings::Settings;

/// Bit of CAP_IPC_LOCK.
const CAP_IPC_LOCK: u32 = 14;
/// What the kernel counts for the largest message: its pages, and two more.
const ONE_MESSAGE: u64 = (1 << 20) + (2 << 12);
/// From here on the limit does not bind on a network of today: what 10 Gbit/s have under way in 50 ms.
const PLENTY: u64 = 64 << 20;

/// Whether the kernel may pin enough of what is sent without a copy.
#[must_use]
pub fn memlock(machine: &Machine, settings: &Settings) -> Finding {
    const NAME: &str = "memlock";
    if machine.has_capability(CAP_IPC_LOCK) {
        return Finding::ok(NAME, "no limit: the process has CAP_IPC_LOCK");
    }
    let Some((soft, hard)) = machine.limit("Max locked memory") else {
        return Finding::note(
            NAME,
            "the limit cannot be read",
            "the daemon pins nothing beyond what it is told",
        );
    };
    if soft == u64::MAX {
        return Finding::ok(NAME, "no limit");
    }
    let found = format!("{} for all processes of the user together (hard limit {})", size(soft), limit(hard));
    if settings.zero_copy_send == Mode::Off {
        return Finding::note(NAME, found, "without effect: zero-copy sending is off");
    }
    if soft >= PLENTY {
        return Finding::ok(NAME, found);
    }
    let why = if soft < ONE_MESSAGE {
        "not even one message of 1 MiB can be sent without a copy: all are copied"
    } else {
        "three quarters of it are used; what is sent beyond that is copied. 64 MiB are enough for 10 Gbit/s"
    };
    let shell = if hard >= PLENTY {
        "ulimit -S -l 65536".to_owned()
    } else {
        "as root: prlimit --pid $$ --memlock=67108864:67108864; for good: a line `rds - memlock 65536` in /etc/security/limits.d/rds.conf".to_owned()
    };
    let todo = Todo::new(shell, "LimitMEMLOCK=64M", "docker run --ulimit memlock=67108864:67108864 ...");
    Finding::bad(Status::Warning, NAME, found, why, todo)
}

fn limit(bytes: u64) -> String {
    if bytes == u64::MAX { "none".to_owned() } else { size(bytes) }
}

/// Whether a connection may have enough calls under way that send without a copy.
#[must_use]
pub fn optmem(machine: &Machine, settings: &Settings) -> Finding {
    const NAME: &str = "optmem";
    /// Default since Linux 6.7.
    const DEFAULT: u64 = 128 << 10;
    /// Bytes that the kernel keeps of each.
    const NOTIFICATION: u64 = 832;
    let found = machine.numbers("proc/sys/net/core/optmem_max");
    let Some(bytes) = found.and_then(|numbers| numbers.first().copied()) else {
        return Finding::note(
            NAME,
            "net.core.optmem_max is hidden here",
            "kernels before 6.7 hide it in network namespaces; the daemon counts with 20 KiB",
        );
    };
    let found = format!(
        "net.core.optmem_max is {bytes}: {} zero-copy calls under way on a connection",
        bytes / NOTIFICATION
    );
    if settings.zero_copy_send == Mode::Off {
        return Finding::note(NAME, found, "without effect: zero-copy sending is off");
    }
    if bytes >= DEFAULT {
        return Finding::ok(NAME, found);
    }
    let why = "with more under way the next messages are copied; Linux has 131072 since 6.7";
    Finding::bad(Status::Warning, NAME, found, why, Todo::sysctl("net.core.optmem_max", "131072"))
}

/// Whether memory can be shared with programs, tried.
#[must_use]
pub fn shared(settings: &Settings) -> Finding {
    judge_shared(settings.shared_memory, || SharedMemory::create(1 << 16, Access::ReadOnly).map(drop))
}

fn judge_shared(wanted: bool, attempt: impl FnOnce() -> io::Result<()>) -> Finding {
    const NAME: &str = "shared-memory";
    if !wanted {
        return Finding::note(
            NAME,
            "not used",
            "--no-shared-memory: everything goes through the Unix socket, with two copies more",
        );
    }
    match attempt() {
        Ok(()) => Finding::ok(NAME, "memfd_create(2) and its seals work"),
        Err(error) => Finding::bad(
            Status::Fail,
            NAME,
            format!("memfd_create(2), its seals or mmap(2) fail: {error}"),
            "programs could not attach; --no-shared-memory does without, with two copies more",
            Todo::new(
                "allow memfd_create in whatever filters system calls here, or give --no-shared-memory",
                "SystemCallFilter=@system-service (which has memfd_create), and no MemoryMax below what is asked for",
                "docker run --security-opt seccomp=PROFILE ..., with a profile that allows memfd_create, as the default one does",
            ),
        ),
    }
}

/// Whether what peers may send and programs leave would fit into memory.
#[must_use]
pub fn budget(machine: &Machine, settings: &Settings) -> Finding {
    const NAME: &str = "memory";
    let nodes = settings.addresses.len().max(1) as u64;
    let needed = nodes.saturating_mul(settings.receive_budget);
    let Some((available, of)) = available(machine) else {
        return Finding::note(NAME, "the size of memory cannot be read", "nothing is known of it");
    };
    let found = format!("{of} has {}; received messages may take {}", size(available), size(needed));
    if needed <= available / 2 {
        return Finding::ok(NAME, found);
    }
    let each = size(available / 4 / nodes).replace(' ', "");
    let todo = Todo::new(
        format!("rds-server --receive-budget below {each}"),
        format!("receive-budget below {each} in the configuration, or more MemoryMax= in the unit"),
        format!(
            "docker run --memory with more than {}, or --receive-budget below {each}",
            size(needed.saturating_mul(2))
        ),
    );
    let why = "programs that do not read let so much pile up, on top of arenas and buffers: the system might end the daemon first";
    Finding::bad(Status::Warning, NAME, found, why, todo)
}

/// Memory of the machine, or what the narrowest control group (version 2) of the process may have.
fn available(machine: &Machine) -> Option<(u64, &'static str)> {
    let info = machine.text("proc/meminfo")?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let total = line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)?;
    let mut least = (total, "the machine");
    let groups = machine.of_self("cgroup").unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
    for folder in Path::new(group).ancestors() {
        let max = machine.numbers(Path::new("sys/fs/cgroup").join(folder).join("memory.max"));
        if let Some(&[max]) = max.as_deref()
            && max < least.0
        {
            least = (max, "the control group");
        }
    }
    Some(least)
}

#[cfg(test)]
mod tests {
    use super::super::machine::made_up::Made;
    use super::*;

    fn settings(zero_copy: Mode) -> Settings {
        let mut settings = Settings::new(vec![[10, 0, 0, 1].into()]);
        settings.zero_copy_send = zero_copy;
        settings
    }

    #[test]
    fn the_limit_of_locked_memory_is_judged_by_what_it_is_needed_for() {
        for (soft, hard, mode, status) in [
            ("unlimited", "unlimited", Mode::Auto, Status::Ok),
            ("67108864", "67108864", Mode::Auto, Status::Ok),
            ("8388608", "8388608", Mode::Auto, Status::Warning),
            ("65536", "unlimited", Mode::On, Status::Warning),
            ("0", "0", Mode::Auto, Status::Warning),
            ("0", "0", Mode::Off, Status::Note),
        ] {
            let made = Made::new().limit("Max locked memory", soft, hard);
            let finding = memlock(&made.machine, &settings(mode));
            assert_eq!(finding.status, status, "{soft} {hard} {mode:?}");
            let advised = finding.todo.is_some();
            assert_eq!(advised, status == Status::Warning);
        }
        let root = Made::new().limit("Max locked memory", "0", "0").root();
        assert_eq!(memlock(&root.machine, &settings(Mode::Auto)).status, Status::Ok);
        assert_eq!(memlock(&Made::new().machine, &settings(Mode::Auto)).status, Status::Note);
    }

    #[test]
    fn a_limit_below_one_message_says_that_all_is_copied_and_a_soft_one_how_to_raise_it() {
        let made = Made::new().limit("Max locked memory", "65536", "unlimited");
        let finding = memlock(&made.machine, &settings(Mode::Auto));
        assert!(finding.why.contains("not even one message"), "{finding:?}");
        assert!(finding.todo.unwrap().shell.starts_with("ulimit -S -l"));
        let made = Made::new().limit("Max locked memory", "8388608", "8388608");
        let finding = memlock(&made.machine, &settings(Mode::Auto));
        assert!(finding.why.contains("three quarters"), "{finding:?}");
        assert!(finding.todo.unwrap().shell.contains("as root"));
    }

    #[test]
    fn room_for_notifications_is_judged_where_it_is_needed() {
        let with = |text: &str, mode| {
            let made = Made::new().with("proc/sys/net/core/optmem_max", text);
            optmem(&made.machine, &settings(mode)).status
        };
        assert_eq!(with("131072\n", Mode::Auto), Status::Ok);
        assert_eq!(with("20480\n", Mode::Auto), Status::Warning);
        assert_eq!(with("20480\n", Mode::Off), Status::Note);
        assert_eq!(with("junk", Mode::Auto), Status::Note);
        assert_eq!(optmem(&Made::new().machine, &settings(Mode::Auto)).status, Status::Note);
    }

    #[test]
    fn memory_that_cannot_be_shared_is_a_failure_unless_it_is_not_wanted() {
        let refuse = || Err(io::Error::from_raw_os_error(1));
        assert_eq!(judge_shared(true, refuse).status, Status::Fail);
        assert_eq!(judge_shared(true, || Ok(())).status, Status::Ok);
        assert_eq!(judge_shared(false, || panic!("not to be tried")).status, Status::Note);
        assert_eq!(shared(&settings(Mode::Auto)).status, Status::Ok, "every machine that runs tests can");
    }

    #[test]
    fn the_narrowest_control_group_bounds_what_may_be_received() {
        let with = |group: &str| {
            let made = Made::new()
                .with("proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n")
                .with("proc/self/cgroup", "0::/a/b\n")
                .with("sys/fs/cgroup/a/memory.max", group)
                .with("sys/fs/cgroup/a/b/memory.max", "max\n");
            budget(&made.machine, &settings(Mode::Auto))
        };
        assert_eq!(with("max\n").status, Status::Ok);
        assert_eq!(with("8589934592\n").status, Status::Ok);
        let narrow = with("1073741824\n");
        assert_eq!(narrow.status, Status::Warning);
        assert!(narrow.found.contains("the control group has 1 GiB"), "{narrow:?}");
        assert_eq!(budget(&Made::new().machine, &settings(Mode::Auto)).status, Status::Note);
    }

    #[test]
    fn many_nodes_want_more_memory() {
        let made = Made::new().with("proc/meminfo", "MemTotal: 8388608 kB\n");
        let mut many = settings(Mode::Auto);
        assert_eq!(budget(&made.machine, &many).status, Status::Ok);
        many.addresses = (1..=8).map(|n| [10, 0, 0, n].into()).collect();
        assert_eq!(budget(&made.machine, &many).status, Status::Warning);
        many.receive_budget = u64::MAX / 2;
        assert_eq!(budget(&made.machine, &many).status, Status::Warning, "and nothing overflows");
    }
}
