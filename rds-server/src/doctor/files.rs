//! Open files and processors.

use super::finding::{Finding, Status, Todo};
use super::machine::Machine;
use crate::settings::Settings;

/// What the daemon opens for itself: standard streams, sockets that listen, epoll, notes.
const OWN: u64 = 32;
/// Of each node: its listener, epoll, wake-ups.
const NODE: u64 = 8;
/// Of each attached program, at most.
pub const PROGRAM: u64 = 4;
/// Peers that a node is expected to have at one time.
const PEERS: u64 = 256;

/// Whether the process may open as many files as the settings allow programs and peers.
#[must_use]
pub fn check(machine: &Machine, settings: &Settings) -> Finding {
    const NAME: &str = "open-files";
    let Some((soft, hard)) = machine.limit("Max open files") else {
        return Finding::note(NAME, "the limit cannot be read", "nothing is known of it");
    };
    let nodes = settings.addresses.len().max(1) as u64;
    let peers = PEERS * u64::from(settings.lanes);
    let programs = settings.quotas.max_clients;
    let needed = OWN
        .saturating_add(nodes.saturating_mul(NODE + peers))
        .saturating_add(programs.saturating_mul(PROGRAM));
    let found = format!(
        "{soft} (hard limit {hard}); {programs} programs and {PEERS} peers of each node want {needed}",
        soft = number(soft),
        hard = number(hard)
    );
    if soft >= needed {
        return Finding::ok(NAME, found);
    }
    let wanted = needed.next_power_of_two().max(1 << 16);
    let shell = if hard >= needed {
        format!("ulimit -S -n {}", wanted.min(hard))
    } else {
        format!("as root: prlimit --pid $$ --nofile={wanted}:{wanted}")
    };
    let todo = Todo::new(
        shell,
        format!("LimitNOFILE={wanted}"),
        format!("docker run --ulimit nofile={wanted}:{wanted} ..."),
    );
    let (status, why) = if soft < OWN + nodes * (NODE + 1) + PROGRAM {
        (Status::Fail, "too few for the daemon itself and one program")
    } else {
        (Status::Warning, "programs beyond that cannot attach, and peers not connect, until others have left")
    };
    Finding::bad(status, NAME, found, why, todo)
}

fn number(limit: u64) -> String {
    if limit == u64::MAX { "no limit".to_owned() } else { limit.to_string() }
}

/// How many processors the daemon may use.
#[must_use]
pub fn processors(settings: &Settings) -> Finding {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    judge_processors(count, settings)
}

fn judge_processors(count: usize, settings: &Settings) -> Finding {
    const NAME: &str = "processors";
    let found = format!("{count} to be used");
    if count == 1 && !settings.busy_poll.is_zero() {
        let todo = Todo::new(
            "leave --busy-poll away, or let it use another processor: taskset -c 0,1 rds-server ...",
            "busy-poll = 0 in the configuration, or CPUAffinity= and CPUQuota= with room for two",
            "docker run --cpus 2 ..., or without --busy-poll",
        );
        let why = "with --busy-poll the daemon takes the only processor from the programs that it waits for";
        return Finding::bad(Status::Warning, NAME, found, why, todo);
    }
    if count == 1 {
        let why = "daemon and programs take turns: throughput is what one processor can do";
        return Finding::note(NAME, found, why);
    }
    Finding::ok(NAME, found)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::machine::made_up::Made;
    use super::*;

    fn settings(programs: u64) -> Settings {
        let mut settings = Settings::new(vec![[10, 0, 0, 1].into()]);
        settings.quotas.max_clients = programs;
        settings
    }

    #[test]
    fn open_files_are_judged_by_programs_and_peers() {
        for (soft, hard, programs, status) in [
            ("65536", "65536", 1024, Status::Ok),
            ("unlimited", "unlimited", u64::MAX, Status::Ok),
            ("1024", "1048576", 1024, Status::Warning),
            ("1024", "1024", 64, Status::Ok),
            ("40", "40", 1, Status::Fail),
            ("0", "0", 0, Status::Fail),
        ] {
            let made = Made::new().limit("Max open files", soft, hard);
            assert_eq!(check(&made.machine, &settings(programs)).status, status, "{soft} {programs}");
        }
        assert_eq!(check(&Made::new().machine, &settings(1)).status, Status::Note);
    }

    #[test]
    fn the_soft_limit_is_raised_where_the_hard_one_lets_it() {
        let todo = |soft, hard| {
            let made = Made::new().limit("Max open files", soft, hard);
            check(&made.machine, &settings(1024)).todo.unwrap()
        };
        assert_eq!(todo("1024", "1048576").shell, "ulimit -S -n 65536");
        assert_eq!(todo("1024", "8192").shell, "ulimit -S -n 8192");
        assert!(todo("1024", "4000").shell.starts_with("as root"));
        assert_eq!(todo("1024", "4000").systemd, "LimitNOFILE=65536");
    }

    #[test]
    fn one_processor_is_no_place_to_look_for_work() {
        let mut settings = settings(1);
        assert_eq!(judge_processors(1, &settings).status, Status::Note);
        settings.busy_poll = Duration::from_micros(50);
        assert_eq!(judge_processors(1, &settings).status, Status::Warning);
        assert_eq!(judge_processors(2, &settings).status, Status::Ok);
    }
}
