//! Settings of TCP.

use super::finding::{Finding, Status, Todo, size};
use super::machine::Machine;
use crate::settings::Settings;

const CAP_NET_ADMIN: u32 = 12;
/// Linux's own default for sending, and what it receives with at most: fits a link of 10 Gbit/s at 3 ms, or 1 Gbit/s at 30 ms.
const WINDOW: u64 = 4 << 20;

/// Whether the congestion control exists, may be used, and is none that paces.
#[must_use]
pub fn congestion(machine: &Machine, settings: &Settings) -> Finding {
    const NAME: &str = "congestion-control";
    let words = |file: &str| {
        let text = machine.text(format!("proc/sys/net/ipv4/{file}")).unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let available = words("tcp_available_congestion_control");
    let allowed = words("tcp_allowed_congestion_control");
    let system = words("tcp_congestion_control").into_iter().next();
    let Some(name) = settings.congestion_control.clone().or_else(|| system.clone()) else {
        return Finding::note(NAME, "the system's cannot be read", "nothing is known of it");
    };
    let whose = if settings.congestion_control.is_some() { "as set" } else { "the system's" };
    let found = format!("{name} ({whose}); there are: {}", available.join(" "));
    if settings.congestion_control.is_some() {
        if !available.is_empty() && !available.contains(&name) {
            let load = format!("modprobe tcp_{name}");
            let todo = Todo::new(
                format!("{load}, or --congestion-control cubic"),
                format!(
                    "echo tcp_{name} >/etc/modules-load.d/rds.conf, or congestion-control = \"cubic\" in the configuration"
                ),
                format!("on the host: {load}; or --congestion-control cubic"),
            );
            // Who may load modules has it loaded by asking for it.
            let status = if machine.has_capability(CAP_NET_ADMIN) { Status::Warning } else { Status::Fail };
            return Finding::bad(
                status,
                NAME,
                found,
                "the kernel has none of that name loaded: the daemon may not start",
                todo,
            );
        }
        if !allowed.is_empty() && !allowed.contains(&name) && !machine.has_capability(CAP_NET_ADMIN) {
            let list = format!("{} {name}", allowed.join(" "));
            let todo = Todo::sysctl("net.ipv4.tcp_allowed_congestion_control", &list);
            return Finding::bad(
                Status::Fail,
                NAME,
                found,
                "only with CAP_NET_ADMIN may it be chosen: the daemon does not start",
                todo,
            );
        }
    }
    if name.starts_with("bbr") {
        let todo = Todo::new(
            "rds-server --congestion-control cubic",
            "congestion-control = \"cubic\" in the configuration",
            "rds-server --congestion-control cubic, or docker run --sysctl net.ipv4.tcp_congestion_control=cubic ...",
        );
        let why = "bbr paces what it sends: over loopback and fast local networks that costs a third of the throughput. For long, lossy paths it may be what you want";
        return Finding::bad(Status::Warning, NAME, found, why, todo);
    }
    Finding::ok(NAME, found)
}

/// How large a window TCP may open for what is received.
#[must_use]
pub fn receive_buffer(machine: &Machine) -> Finding {
    const NAME: &str = "tcp-receive-buffer";
    let moderated = machine.numbers("proc/sys/net/ipv4/tcp_moderate_rcvbuf");
    if moderated.is_some_and(|numbers| numbers.first() == Some(&0)) {
        let why = "buffers stay as they begin: the kernel does not make them larger as a path needs it";
        let found = "net.ipv4.tcp_moderate_rcvbuf is 0";
        return Finding::bad(
            Status::Warning,
            NAME,
            found,
            why,
            Todo::sysctl("net.ipv4.tcp_moderate_rcvbuf", "1"),
        );
    }
    buffer(machine, NAME, "tcp_rmem", "4096 131072 33554432")
}

/// How much TCP may have under way.
#[must_use]
pub fn send_buffer(machine: &Machine) -> Finding {
    buffer(machine, "tcp-send-buffer", "tcp_wmem", "4096 65536 16777216")
}

fn buffer(machine: &Machine, name: &str, setting: &str, advised: &str) -> Finding {
    let setting = format!("net.ipv4.{setting}");
    let numbers = machine.numbers(format!("proc/sys/{}", setting.replace('.', "/")));
    let Some(&[_, first, most]) = numbers.as_deref() else {
        return Finding::note(name, format!("{setting} cannot be read"), "nothing is known of it");
    };
    let found = format!(
        "{setting} begins at {} and goes up to {} (net.core's limits do not concern it: the daemon leaves buffers to the kernel)",
        size(first),
        size(most)
    );
    if most >= WINDOW {
        return Finding::ok(name, found);
    }
    let why = "a connection has no more under way than that, which bounds its throughput to so much each round trip";
    Finding::bad(Status::Warning, name, found, why, Todo::sysctl(&setting, advised))
}

/// How many peers may connect at one moment.
#[must_use]
pub fn backlog(machine: &Machine) -> Finding {
    const NAME: &str = "backlog";
    /// What the daemon asks for.
    const ASKED: u64 = 256;
    let found = machine.numbers("proc/sys/net/core/somaxconn").and_then(|numbers| numbers.first().copied());
    let Some(most) = found else {
        return Finding::note(NAME, "net.core.somaxconn cannot be read", "nothing is known of it");
    };
    let found = format!("net.core.somaxconn is {most}");
    if most >= ASKED {
        return Finding::ok(NAME, found);
    }
    let why =
        "when many peers or programs connect at one moment, after a restart say, some have to try again";
    Finding::bad(Status::Warning, NAME, found, why, Todo::sysctl("net.core.somaxconn", "4096"))
}

#[cfg(test)]
mod tests {
    use super::super::machine::made_up::Made;
    use super::*;

    fn host(system: &str, available: &str, allowed: &str) -> Made {
        Made::new()
            .with("proc/sys/net/ipv4/tcp_congestion_control", system)
            .with("proc/sys/net/ipv4/tcp_available_congestion_control", available)
            .with("proc/sys/net/ipv4/tcp_allowed_congestion_control", allowed)
    }

    fn set(name: Option<&str>) -> Settings {
        let mut settings = Settings::new(Vec::new());
        settings.congestion_control = name.map(str::to_owned);
        settings
    }

    #[test]
    fn congestion_control_that_paces_or_is_not_to_be_had_is_told() {
        let judge = |made: Made, name| congestion(&made.machine, &set(name)).status;
        let usual = || host("cubic\n", "reno cubic bbr\n", "reno cubic\n");
        assert_eq!(judge(usual(), None), Status::Ok);
        assert_eq!(judge(host("bbr\n", "reno bbr cubic", "reno bbr"), None), Status::Warning);
        assert_eq!(judge(usual(), Some("reno")), Status::Ok);
        assert_eq!(judge(usual(), Some("bbr")), Status::Fail, "not allowed");
        assert_eq!(judge(usual().root(), Some("bbr")), Status::Warning, "it paces");
        assert_eq!(judge(usual(), Some("vegas")), Status::Fail);
        assert_eq!(judge(usual().root(), Some("vegas")), Status::Warning, "asking for it may load it");
        assert_eq!(judge(Made::new(), None), Status::Note);
        assert_eq!(judge(Made::new(), Some("cubic")), Status::Ok);
    }

    #[test]
    fn what_the_systems_paces_is_replaced_by_a_setting() {
        let made = host("bbr", "reno bbr cubic", "reno bbr cubic");
        let finding = congestion(&made.machine, &set(None));
        assert_eq!(finding.todo.unwrap().shell, "rds-server --congestion-control cubic");
        assert_eq!(congestion(&made.machine, &set(Some("cubic"))).status, Status::Ok);
    }

    #[test]
    fn small_buffers_are_told_with_the_setting_that_enlarges_them() {
        let with = |rmem: &str, wmem: &str| {
            Made::new().with("proc/sys/net/ipv4/tcp_rmem", rmem).with("proc/sys/net/ipv4/tcp_wmem", wmem)
        };
        let good = with("4096 131072 33554432", "4096\t16384\t4194304\n");
        assert_eq!(receive_buffer(&good.machine).status, Status::Ok);
        assert_eq!(send_buffer(&good.machine).status, Status::Ok);
        let small = with("4096 131072 212992", "4096 16384 212992");
        for finding in [receive_buffer(&small.machine), send_buffer(&small.machine)] {
            assert_eq!(finding.status, Status::Warning);
            assert!(finding.todo.unwrap().shell.starts_with("sysctl -w 'net.ipv4.tcp_"));
        }
        let fixed = good.with("proc/sys/net/ipv4/tcp_moderate_rcvbuf", "0\n");
        assert_eq!(receive_buffer(&fixed.machine).status, Status::Warning);
        let junk = with("1 2", "a b c");
        assert_eq!(receive_buffer(&junk.machine).status, Status::Note);
        assert_eq!(send_buffer(&junk.machine).status, Status::Note);
    }

    #[test]
    fn a_short_backlog_is_told() {
        let with =
            |text: &str| backlog(&Made::new().with("proc/sys/net/core/somaxconn", text).machine).status;
        assert_eq!(with("4096\n"), Status::Ok);
        assert_eq!(with("128\n"), Status::Warning);
        assert_eq!(with(""), Status::Note);
    }
}
