//! The kernel, and its own RDS.

use super::finding::{Finding, Status, Todo};
use super::machine::Machine;
use crate::settings::Settings;

/// F_SEAL_FUTURE_WRITE, without which memory cannot be shared for reading only.
const SHARES: (u32, u32) = (5, 1);
/// TCP_ZEROCOPY_RECEIVE with a buffer for headers.
const MAPS: (u32, u32) = (5, 11);

/// Whether the kernel has what the daemon needs.
#[must_use]
pub fn version(machine: &Machine, settings: &Settings) -> Finding {
    const NAME: &str = "kernel";
    let Some(release) = machine.text("proc/sys/kernel/osrelease") else {
        let todo = Todo::new(
            "mount -t proc proc /proc",
            "take ProcSubset=pid out of the unit",
            "start the container with /proc, as every engine does by default",
        );
        return Finding::bad(
            Status::Warning,
            NAME,
            "/proc/sys cannot be read",
            "the kernel's version and settings cannot be told; the daemon takes the stricter case for each",
            todo,
        );
    };
    let found = format!("Linux {release}");
    let todo = Todo::new(
        "boot a kernel from 5.11 on",
        "boot a kernel from 5.11 on",
        "a container has the host's kernel: boot one from 5.11 on there",
    );
    match number(&release) {
        None => Finding::note(NAME, found, "a version that this program cannot read"),
        Some(version) if version < SHARES && settings.shared_memory => Finding::bad(
            Status::Fail,
            NAME,
            found,
            "memory cannot be shared with programs before Linux 5.1: no program could attach; --no-shared-memory does without",
            todo,
        ),
        Some(version) if version < MAPS => Finding::bad(
            Status::Warning,
            NAME,
            found,
            "received pages cannot be mapped before Linux 5.11: nodes that are to do so copy",
            todo,
        ),
        Some(_) => Finding::ok(NAME, found),
    }
}

fn number(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// Whether the kernel's own RDS is there.
#[must_use]
pub fn module(machine: &Machine) -> Finding {
    const NAME: &str = "kernel-rds";
    if machine.has_module("rds_tcp") {
        let todo = Todo::new(
            "rmmod rds_tcp; echo 'install rds_tcp /bin/false' >/etc/modprobe.d/no-rds-tcp.conf",
            "rmmod rds_tcp; echo 'install rds_tcp /bin/false' >/etc/modprobe.d/no-rds-tcp.conf",
            "on the host: rmmod rds_tcp; echo 'install rds_tcp /bin/false' >/etc/modprobe.d/no-rds-tcp.conf",
        );
        return Finding::bad(
            Status::Warning,
            NAME,
            "the module rds_tcp is loaded",
            "it listens on TCP port 16385 of every address, in each network namespace; programs with PF_RDS sockets use it, and not the daemon",
            todo,
        );
    }
    if machine.has_module("rds") {
        return Finding::note(
            NAME,
            "the module rds is loaded, without rds_tcp",
            "it takes no port; loading rds_tcp, which a PF_RDS socket may cause, would",
        );
    }
    Finding::ok(NAME, "not loaded")
}

#[cfg(test)]
mod tests {
    use super::super::machine::made_up::Made;
    use super::*;

    fn kernel(release: &str, shared_memory: bool) -> Status {
        let made = Made::new().with("proc/sys/kernel/osrelease", release);
        let mut settings = Settings::new(Vec::new());
        settings.shared_memory = shared_memory;
        version(&made.machine, &settings).status
    }

    #[test]
    fn a_kernel_is_judged_by_what_it_has() {
        for (release, shared, status) in [
            ("6.18.44-amd64\n", true, Status::Ok),
            ("5.11", true, Status::Ok),
            ("5.10.0-28-amd64", true, Status::Warning),
            ("5.1.0", true, Status::Warning),
            ("5.0.21", true, Status::Fail),
            ("4.19.0", true, Status::Fail),
            ("4.19.0", false, Status::Warning),
            ("10.0", true, Status::Ok),
            ("custom", true, Status::Note),
            ("99999999999.1", true, Status::Note),
        ] {
            assert_eq!(kernel(release, shared), status, "{release}");
        }
        assert_eq!(version(&Made::new().machine, &Settings::new(Vec::new())).status, Status::Warning);
    }

    #[test]
    fn the_kernels_own_rds_is_named_when_it_is_in_the_way() {
        let line = |name: &str| format!("{name} 28672 0 - Live 0x0000000000000000\n");
        let with = |text: String| module(&Made::new().with("proc/modules", &text).machine).status;
        assert_eq!(with(line("rds_tcp") + &line("rds")), Status::Warning);
        assert_eq!(with(line("rds")), Status::Note);
        assert_eq!(with(line("tls")), Status::Ok);
        assert_eq!(module(&Made::new().machine).status, Status::Ok, "a kernel without modules");
    }
}
