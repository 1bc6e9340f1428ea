//! Who listens on a TCP port.

use std::fmt;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use super::machine::Machine;

/// Who has a TCP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A process.
    Process {
        /// Its number.
        pid: u32,
        /// Its program, as the kernel shortens it: 15 bytes.
        program: String,
    },
    /// The kernel's module `rds_tcp`.
    Module,
    /// A process of this user that cannot be seen: another user's, or one in another container.
    Hidden {
        /// Its user.
        uid: u32,
    },
    /// Nobody listens there: the port is bound, or was a moment ago.
    Nobody,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, program } => write!(f, "{program} (pid {pid})"),
            Self::Module => f.write_str("the kernel's rds_tcp module"),
            Self::Hidden { uid } => write!(f, "a process of user {uid} that only root can see"),
            Self::Nobody => f.write_str("somebody who does not listen"),
        }
    }
}

/// A socket that listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listening {
    at: SocketAddr,
    uid: u32,
    inode: u64,
}

/// Who listens where `at` would have to. Reads /proc: the tables of this network namespace, and of each process which files it has open, as far
/// as this user may see them.
#[must_use]
pub fn of(machine: &Machine, at: SocketAddr) -> Holder {
    let tables = ["proc/net/tcp", "proc/net/tcp6"].map(|table| machine.text(table).unwrap_or_default());
    let found = tables.iter().flat_map(|table| table.lines()).filter_map(listening);
    let mut found: Vec<_> = found.filter(|socket| in_the_way(socket.at, at)).collect();
    // That of the very address first.
    found.sort_by_key(|socket| socket.at.ip() != at.ip());
    for socket in &found {
        if let Some((pid, program)) = owner(machine, socket.inode) {
            return Holder::Process { pid, program };
        }
    }
    match found.first() {
        None => Holder::Nobody,
        // Sockets of the kernel are root's.
        Some(socket) if socket.uid == 0 && machine.has_module("rds_tcp") => Holder::Module,
        Some(socket) => Holder::Hidden { uid: socket.uid },
    }
}

fn in_the_way(there: SocketAddr, wanted: SocketAddr) -> bool {
    there.port() == wanted.port()
        && (there.ip() == wanted.ip() || there.ip().is_unspecified() && (there.is_ipv6() || wanted.is_ipv4()))
}

/// A line of /proc/net/tcp or tcp6, if it is of a socket that listens.
fn listening(line: &str) -> Option<Listening> {
    const LISTEN: &str = "0A";
    let words: Vec<&str> = line.split_whitespace().collect();
    if *words.get(3)? != LISTEN {
        return None;
    }
    let (address, port) = words[1].split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some(Listening {
        at: SocketAddr::new(ip(address)?, port),
        uid: words.get(7)?.parse().ok()?,
        inode: words.get(9)?.parse().ok()?,
    })
}

/// Words of 32 bits in this machine's order.
fn ip(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let mut bytes = [0; 16];
            for (n, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(n * 8)?);
            }
            Some(Ipv6Addr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

/// The process that has a socket open, and its program.
fn owner(machine: &Machine, inode: u64) -> Option<(u32, String)> {
    let wanted = format!("socket:[{inode}]");
    let has = |pid: &u32| {
        let files = fs::read_dir(machine.path(format!("proc/{pid}/fd")));
        files.is_ok_and(|files| {
            files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|to| to == Path::new(&wanted)))
        })
    };
    let processes = fs::read_dir(machine.path("proc")).ok()?;
    let mut numbers = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pid = numbers.find(has)?;
    let program = machine.text(format!("proc/{pid}/comm")).unwrap_or_else(|| "a program".to_owned());
    Some((pid, program))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::machine::made_up::Made;
    use super::*;

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    fn table(lines: &[(&str, &str, u32, u64)]) -> String {
        let mut text = HEAD.to_owned();
        for (n, (at, state, uid, inode)) in lines.iter().enumerate() {
            text += &format!(
                "{n:4}: {at} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 {uid:5}        0 {inode} 1 0000000000000000 100 0 0 10 0\n"
            );
        }
        text
    }

    /// An address as the kernel prints it.
    fn printed(at: &str) -> String {
        let at: SocketAddr = at.parse().unwrap();
        let bytes = match at.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let words =
            bytes.chunks_exact(4).map(|w| format!("{:08X}", u32::from_ne_bytes(w.try_into().unwrap())));
        format!("{}:{:04X}", words.collect::<String>(), at.port())
    }

    fn asked(made: &Made, at: &str) -> Holder {
        of(&made.machine, at.parse().unwrap())
    }

    #[test]
    fn the_process_that_listens_there_is_named() {
        let (mine, any, other) =
            (printed("10.0.0.1:16385"), printed("0.0.0.0:16385"), printed("10.0.0.2:16385"));
        let made = Made::new()
            .with("proc/net/tcp", &table(&[(&any, "0A", 0, 7), (&mine, "0A", 1000, 8), (&other, "01", 0, 9)]))
            .with("proc/40/comm", "other\n")
            .link("proc/40/fd/3", "socket:[7]")
            .with("proc/41/comm", "rds-server\n")
            .link("proc/41/fd/3", "/dev/null")
            .link("proc/41/fd/9", "socket:[8]");
        let named = |pid, program: &str| Holder::Process { pid, program: program.to_owned() };
        assert_eq!(asked(&made, "10.0.0.1:16385"), named(41, "rds-server"));
        assert_eq!(asked(&made, "10.0.0.2:16385"), named(40, "other"), "one of every address is in the way");
        assert_eq!(asked(&made, "10.0.0.1:16386"), Holder::Nobody);
    }

    #[test]
    fn a_listener_of_both_families_is_in_the_way_of_either() {
        let any = printed("[::]:16385");
        let made = Made::new()
            .with("proc/net/tcp6", &table(&[(&any, "0A", 0, 7)]))
            .with("proc/40/comm", "x\n")
            .link("proc/40/fd/3", "socket:[7]");
        for at in ["10.0.0.1:16385", "[fd00::1]:16385"] {
            assert!(matches!(asked(&made, at), Holder::Process { pid: 40, .. }), "{at}");
        }
    }

    #[test]
    fn a_socket_that_no_process_has_is_the_modules_if_it_is_loaded_and_hidden_otherwise() {
        let any = printed("0.0.0.0:16385");
        let made = |uid| Made::new().with("proc/net/tcp", &table(&[(&any, "0A", uid, 7)]));
        let loaded = "rds_tcp 28672 0 - Live 0x0\n";
        assert_eq!(asked(&made(0), "10.0.0.1:16385"), Holder::Hidden { uid: 0 });
        assert_eq!(asked(&made(0).with("proc/modules", loaded), "10.0.0.1:16385"), Holder::Module);
        assert_eq!(asked(&made(5).with("proc/modules", loaded), "10.0.0.1:16385"), Holder::Hidden { uid: 5 });
    }

    #[test]
    fn what_the_kernel_never_prints_is_passed_over() {
        for line in
            ["", "x", "0: 0100007F:4001 0 0A", "0: 01:4001 0 0A 0 0 0 0 0 7", "0: é:4001 0 0A 0 0 0 0 0 7"]
        {
            assert_eq!(listening(line), None, "{line}");
            assert_eq!(asked(&Made::new().with("proc/net/tcp", line), "127.0.0.1:16385"), Holder::Nobody);
        }
    }

    #[test]
    fn this_very_program_is_found_on_this_host() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(at) else {
                assert_eq!(at, "[::1]:0", "every machine has IPv4 loopback");
                println!("skipped: no IPv6 here");
                continue;
            };
            let holder = of(&Machine::this(), listener.local_addr().unwrap());
            assert!(matches!(holder, Holder::Process { pid, .. } if pid == std::process::id()), "{holder}");
        }
    }
}
