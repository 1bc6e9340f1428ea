//! The nodes' addresses, and their TCP port.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;

use socket2::{Domain, Protocol, Socket, Type};

use super::finding::{Finding, Status, Todo};
use super::holder::{self, Holder};
use super::machine::Machine;
use super::place;
use crate::settings::{AdminAddress, Settings};

/// What the kernel calls the daemon.
const DAEMON: &str = "rds-server";

/// Two findings for each address: whether it is this host's, and whether its port is free.
#[must_use]
pub fn check(machine: &Machine, settings: &Settings) -> Vec<Finding> {
    if settings.addresses.is_empty() {
        let why = "what concerns addresses and their port cannot be told: give --address, or address in the configuration";
        return vec![Finding::note("address", "none was given", why)];
    }
    // A daemon that has the port already is as it should be, if it is the one of these settings.
    let serving = UnixStream::connect(&settings.socket).is_ok();
    let mut findings = Vec::new();
    for &address in &settings.addresses {
        let local = judge_address(address, listen(SocketAddr::new(address, 0)));
        let usable = local.status < Status::Fail;
        findings.push(local);
        if usable {
            let at = SocketAddr::new(address, settings.listen_port);
            let tried = listen(at);
            let held = tried.is_err().then(|| holder::of(machine, at));
            findings.push(judge_port("port", at, tried, held, serving));
        }
    }
    findings
}

/// Whether the admin pages could be served, if they are to be.
#[must_use]
pub fn admin(machine: &Machine, settings: &Settings) -> Option<Finding> {
    const NAME: &str = "admin";
    match settings.admin.as_ref()? {
        AdminAddress::Unix(path) => Some(place::at(NAME, path, "--admin")),
        AdminAddress::Tcp(at) => {
            let tried = listen(*at);
            let held = tried.is_err().then(|| holder::of(machine, *at));
            let serving = UnixStream::connect(&settings.socket).is_ok();
            Some(judge_port(NAME, *at, tried, held, serving))
        }
    }
}

/// As the daemon listens.
fn listen(at: SocketAddr) -> io::Result<()> {
    let domain = if at.is_ipv4() { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::STREAM.cloexec(), Some(Protocol::TCP))?;
    if at.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_reuse_address(true)?;
    socket.bind(&at.into())?;
    socket.listen(1)?;
    drop(TcpListener::from(socket));
    Ok(())
}

fn judge_address(address: IpAddr, tried: io::Result<()>) -> Finding {
    const NAME: &str = "address";
    if address.is_unspecified() || address.is_multicast() || address == IpAddr::from([255; 4]) {
        let todo = Todo::everywhere("give an address that `ip -brief address` lists, one --address for each");
        let why = "a node is one address, under which its peers know it: the daemon does not start";
        return Finding::bad(Status::Fail, NAME, format!("{address} is no address of one host"), why, todo);
    }
    match tried {
        Ok(()) if address.is_loopback() => Finding::note(
            NAME,
            format!("{address} is this host's"),
            "on loopback: only programs of this host can reach it",
        ),
        Ok(()) => Finding::ok(NAME, format!("{address} is this host's")),
        Err(error) if error.raw_os_error() == Some(nix::libc::EAFNOSUPPORT) => {
            let todo = Todo::new(
                "boot without ipv6.disable=1, or give an IPv4 address",
                "RestrictAddressFamilies= must have AF_INET and AF_INET6, or give an address of the other family",
                "docker network create --ipv6 ..., or give an IPv4 address",
            );
            Finding::bad(
                Status::Fail,
                NAME,
                format!("{address}: {error}"),
                "the family cannot be used here: the daemon does not start",
                todo,
            )
        }
        Err(error) => {
            let prefix = if address.is_ipv4() { 32 } else { 128 };
            let todo = Todo::new(
                format!(
                    "ip address add {address}/{prefix} dev INTERFACE, or give one that `ip -brief address` lists"
                ),
                "After=network-online.target and Wants=network-online.target, if it comes later; otherwise give one that `ip -brief address` lists",
                format!("docker run --network host ..., or --network NETWORK --ip {address} ..."),
            );
            let found = format!("{address} is not this host's ({error})");
            Finding::bad(Status::Fail, NAME, found, "the daemon does not start", todo)
        }
    }
}

fn judge_port(
    name: &str,
    at: SocketAddr,
    tried: io::Result<()>,
    held: Option<Holder>,
    serving: bool,
) -> Finding {
    let Err(error) = tried else {
        let found = if at.port() == 0 { format!("any of {}", at.ip()) } else { format!("{at} is free") };
        return Finding::ok(name, found);
    };
    match error.kind() {
        io::ErrorKind::AddrInUse => {}
        io::ErrorKind::PermissionDenied => {
            let todo = Todo::new(
                "give a port from 1024 on; peers must dial the same",
                "AmbientCapabilities=CAP_NET_BIND_SERVICE, or a port from 1024 on",
                "docker run --cap-add NET_BIND_SERVICE ..., or a port from 1024 on",
            );
            return Finding::bad(
                Status::Fail,
                name,
                format!("{at}: {error}"),
                "this user may not listen there: the daemon does not start",
                todo,
            );
        }
        _ => {
            let todo = Todo::everywhere(
                "see what keeps this user from listening there: ss -ltn, and the kernel's log",
            );
            return Finding::bad(
                Status::Fail,
                name,
                format!("{at}: {error}"),
                "the daemon does not start",
                todo,
            );
        }
    }
    let holder = held.unwrap_or(Holder::Nobody);
    let found = format!("{at} is held by {holder}");
    let why = "the daemon does not start: two cannot listen there";
    let another = "give it another address: each may have one of its own";
    let todo = match &holder {
        Holder::Process { program, pid } if program == DAEMON && serving => {
            return Finding::ok(name, format!("{at} is served by the daemon that runs (pid {pid})"));
        }
        Holder::Process { program, pid } if program == DAEMON => Todo::new(
            format!("kill {pid}, or attach to it; {another}"),
            format!("systemctl stop rds-server, if it is that one (pid {pid}); {another}"),
            format!("stop the other container (pid {pid} on this side); {another}"),
        ),
        Holder::Process { program, pid } => Todo::new(
            format!("end {program} (kill {pid}), or have it listen elsewhere; {another}"),
            format!("systemctl status {pid} says which unit it is: stop it, and Conflicts= it; {another}"),
            format!(
                "a container with a network of its own has the port for itself: leave --network host away; {another}"
            ),
        ),
        Holder::Module => Todo::new(
            "rmmod rds_tcp, once no program uses PF_RDS; echo 'install rds_tcp /bin/false' >/etc/modprobe.d/no-rds-tcp.conf",
            "ExecStartPre=+-/sbin/rmmod rds_tcp, and echo 'install rds_tcp /bin/false' >/etc/modprobe.d/no-rds-tcp.conf",
            "on the host: rmmod rds_tcp; it listens in every network namespace",
        ),
        Holder::Hidden { .. } => Todo::new(
            format!("as root: ss -ltnp 'sport = :{}' names it; {another}", at.port()),
            format!("as root: ss -ltnp 'sport = :{}' names it; {another}", at.port()),
            format!("on the host, as root: ss -ltnp 'sport = :{}' names it", at.port()),
        ),
        Holder::Nobody => Todo::everywhere(format!(
            "ss -tanp 'sport = :{}' shows what is bound there; {another}",
            at.port()
        )),
    };
    Finding::bad(Status::Fail, name, found, why, todo)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(errno: i32) -> io::Result<()> {
        Err(io::Error::from_raw_os_error(errno))
    }

    #[test]
    fn an_address_is_local_or_says_how_to_get_it() {
        let v4 = IpAddr::from([192, 0, 2, 1]);
        assert_eq!(judge_address(v4, Ok(())).status, Status::Ok);
        assert_eq!(judge_address([127, 0, 0, 1].into(), Ok(())).status, Status::Note);
        let finding = judge_address(v4, failed(nix::libc::EADDRNOTAVAIL));
        assert_eq!(finding.status, Status::Fail);
        assert!(finding.todo.unwrap().shell.starts_with("ip address add 192.0.2.1/32 dev"));
        let finding = judge_address("fd00::1".parse().unwrap(), failed(nix::libc::EADDRNOTAVAIL));
        assert!(finding.todo.unwrap().shell.starts_with("ip address add fd00::1/128 dev"));
        let finding = judge_address("fd00::1".parse().unwrap(), failed(nix::libc::EAFNOSUPPORT));
        assert!(finding.status == Status::Fail && finding.why.contains("family"));
        for none in ["0.0.0.0", "::", "224.0.0.1", "ff02::1", "255.255.255.255"] {
            assert_eq!(judge_address(none.parse().unwrap(), Ok(())).status, Status::Fail, "{none}");
        }
    }

    #[test]
    fn a_port_that_is_held_names_the_holder_and_what_to_do_about_it() {
        let at = "10.0.0.1:16385".parse().unwrap();
        let used = || failed(nix::libc::EADDRINUSE);
        let program = |program: &str| Some(Holder::Process { pid: 7, program: program.to_owned() });
        assert_eq!(judge_port("port", at, Ok(()), None, false).status, Status::Ok);
        let finding = judge_port("port", at, used(), program("nginx"), true);
        assert_eq!(finding.status, Status::Fail);
        assert!(finding.found.contains("nginx (pid 7)"), "{finding:?}");
        assert!(finding.todo.unwrap().shell.contains("kill 7"));
        assert_eq!(judge_port("port", at, used(), program(DAEMON), true).status, Status::Ok);
        assert_eq!(judge_port("port", at, used(), program(DAEMON), false).status, Status::Fail);
        let finding = judge_port("port", at, used(), Some(Holder::Module), false);
        assert!(
            finding.found.contains("rds_tcp") && finding.todo.unwrap().shell.starts_with("rmmod rds_tcp")
        );
        for held in [Some(Holder::Hidden { uid: 3 }), Some(Holder::Nobody), None] {
            let finding = judge_port("port", at, used(), held, false);
            assert!(finding.status == Status::Fail && finding.todo.unwrap().shell.contains("ss -"));
        }
        let finding =
            judge_port("port", "10.0.0.1:80".parse().unwrap(), failed(nix::libc::EACCES), None, false);
        assert!(finding.todo.unwrap().systemd.contains("CAP_NET_BIND_SERVICE"));
        assert_eq!(judge_port("port", at, failed(nix::libc::EPERM), None, false).status, Status::Fail);
    }

    #[test]
    fn without_addresses_nothing_fails_for_them() {
        let findings = check(&Machine::this(), &Settings::new(Vec::new()));
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].status, Status::Note);
    }

    #[test]
    fn an_address_that_is_not_local_has_no_port_to_be_judged() {
        let findings = check(&Machine::this(), &Settings::new(vec!["192.0.2.199".parse().unwrap()]));
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].status, Status::Fail);
    }

    #[test]
    fn the_admin_address_is_looked_at_where_there_is_one() {
        let mut settings = Settings::new(Vec::new());
        assert_eq!(admin(&Machine::this(), &settings), None);
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        settings.admin = Some(AdminAddress::Tcp(taken.local_addr().unwrap()));
        let finding = admin(&Machine::this(), &settings).unwrap();
        assert_eq!((finding.name.as_str(), finding.status), ("admin", Status::Fail));
        assert!(finding.found.contains(&format!("pid {}", std::process::id())), "{finding:?}");
        drop(taken);
        assert_eq!(admin(&Machine::this(), &settings).unwrap().status, Status::Ok);
        settings.admin = Some(AdminAddress::Unix("/nowhere/at/all/admin.sock".into()));
        let finding = admin(&Machine::this(), &settings).unwrap();
        assert!(finding.status == Status::Fail && finding.todo.unwrap().shell.contains("--admin"));
    }
}
