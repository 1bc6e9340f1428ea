//! The environments that other tests run in are what they claim to be.

use std::fs;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::panic::catch_unwind;
use std::path::Path;

use rds_client::{Node, Received};
use rds_tests::copied::{Calls, Connection};
use rds_tests::netns::Namespace;
use rds_tests::program::rds_stress;
use rds_tests::skip::or_skip;
use rds_tests::unprivileged::{NOBODY, Unprivileged};
use rds_tests::xdp::XdpPass;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

#[test]
fn a_namespace_has_a_loopback_of_its_own() {
    let Some(here) = or_skip(Namespace::new()) else { return };
    let there = Namespace::new().expect("one could be made");
    // The same address and port at the same time, in two namespaces and outside.
    let address = (rds_tests::address(40, 1), 17490);
    let bind = || TcpListener::bind(address).expect("a free port");
    let listeners = [here.run(bind), there.run(bind), bind()];
    assert!(here.run(|| TcpListener::bind(address)).is_err());
    let client = here.run(|| TcpStream::connect(address)).expect("its own listener");
    let (_, from) = listeners[0].accept().expect("the connection");
    assert_eq!(from, client.local_addr().expect("it is connected"));
}

#[test]
fn threads_and_processes_started_in_a_namespace_are_in_it_and_the_caller_is_not() {
    let Some(namespace) = or_skip(Namespace::new()) else { return };
    let name = || fs::read_link("/proc/thread-self/ns/net").expect("a kernel with namespaces");
    let outside = name();
    let inside = namespace.run(name);
    assert_ne!(inside, outside);
    assert_eq!(namespace.run(|| std::thread::spawn(name).join().expect("no panic")), inside);
    let child = namespace.run(|| std::process::Command::new("readlink").arg("/proc/self/ns/net").output());
    let child = String::from_utf8(child.expect("readlink(1)").stdout).expect("text");
    assert_eq!(child.trim(), inside.to_str().expect("text"));
    assert_eq!(name(), outside);
}

#[test]
fn a_namespace_outlives_a_panic_in_it_and_passes_it_on() {
    let Some(namespace) = or_skip(Namespace::new()) else { return };
    let panic = catch_unwind(|| namespace.run(|| panic!("on purpose"))).expect_err("it panicked");
    assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
    assert_eq!(namespace.run(|| 7), 7);
}

#[test]
fn addresses_and_settings_of_a_namespace_are_its_own() {
    let Some(namespace) = or_skip(Namespace::new()) else { return };
    let optmem = || fs::read_to_string("/proc/sys/net/core/optmem_max").expect("a setting of the kernel");
    let before = optmem();
    namespace.set_sysctl("core/optmem_max", "4096").expect("root may");
    assert_eq!((namespace.run(optmem).trim(), optmem()), ("4096", before));
    for address in ["192.0.2.7", "fd00::7"] {
        namespace.add_address(ip(address));
        assert!(namespace.run(|| TcpListener::bind((ip(address), 0))).is_ok(), "{address}");
        assert!(TcpListener::bind((ip(address), 0)).is_err(), "{address}");
    }
}

#[test]
fn nodes_opened_in_a_namespace_speak_over_its_loopback() {
    let Some(namespace) = or_skip(Namespace::new()) else { return };
    let addresses = [ip("192.0.2.1"), ip("192.0.2.2")];
    for address in addresses {
        namespace.add_address(address);
    }
    let Some(pass) = or_skip(XdpPass::attach(&namespace)) else { return };
    namespace.run(|| {
        let [here, there] = addresses.map(|address| Node::open(address).expect("its own address"));
        let (sender, receiver) = (here.bind(0).expect("a port"), there.bind(5000).expect("a port"));
        let message = vec![0xa5; 1 << 20];
        for _ in 0..20 {
            sender.send_to(&message, receiver.local_addr()).expect("room");
            let mut buffer = vec![0; 1 << 20];
            match receiver.recv_from(&mut buffer).expect("a message") {
                Received::Message { len, from, .. } => {
                    assert_eq!((len, from), (message.len(), sender.local_addr()));
                    assert!(buffer == message);
                }
                other => panic!("no other event was asked for: {other:?}"),
            }
        }
    });
    pass.detach();
}

#[test]
fn loopback_copies_what_is_sent_with_zero_copy() {
    for address in ["127.0.0.1", "::1"] {
        let Ok(connection) = Connection::open(ip(address), ip(address)) else {
            assert_eq!(address, "::1", "every machine has IPv4 loopback");
            continue;
        };
        let calls = connection.sender.send(200, 64 << 10).expect("loopback carries it");
        assert!(calls.copied >= 200 && calls.not_copied == 0, "{address}: {calls:?}");
        assert_eq!(connection.close().expect("it is open"), 200 * (64 << 10));
    }
}

#[test]
fn xdp_pass_on_loopback_makes_the_path_one_that_does_not_copy() {
    let Some(namespace) = or_skip(Namespace::new()) else { return };
    let Some(pass) = or_skip(XdpPass::attach(&namespace)) else { return };
    for address in ["127.0.0.1", "::1"] {
        let connection = namespace.run(|| Connection::open(ip(address), ip(address))).expect("a pair");
        let calls = connection.sender.send(200, 64 << 10).expect("loopback carries it");
        assert!(calls.not_copied >= 200 && calls.copied == 0, "{address}: {calls:?}");
        assert_eq!(connection.close().expect("it is open"), 200 * (64 << 10));
    }
    pass.detach();
}

#[test]
fn xdp_pass_can_come_and_go_under_an_open_connection() {
    let Some(namespace) = or_skip(Namespace::new()) else { return };
    let connection = namespace.run(|| Connection::open(ip("127.0.0.1"), ip("127.0.0.2"))).expect("a pair");
    let send = || connection.sender.send(20, 1 << 20).expect("loopback carries it");
    let all_copied = |calls: Calls| assert!(calls.copied >= 20 && calls.not_copied == 0, "{calls:?}");
    for _ in 0..3 {
        all_copied(send());
        let Some(pass) = or_skip(XdpPass::attach(&namespace)) else { return };
        let calls = send();
        assert!(calls.not_copied >= 20 && calls.copied == 0, "{calls:?}");
        pass.detach();
    }
    all_copied(send());
}

/// The values of a line of /proc/self/status or /proc/self/limits.
fn values<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).split_whitespace().collect()
}

#[test]
fn an_unprivileged_process_has_the_limit_that_it_is_given_and_no_capability() {
    let Some(cat) = or_skip(Unprivileged::new(Path::new("/bin/cat"))) else { return };
    let nobody = NOBODY.to_string();
    for limit in [0, 64 << 10, 256 << 10, 1 << 20] {
        let said =
            cat.command(limit).args(["/proc/self/status", "/proc/self/limits"]).output().expect("cat(1)");
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        let said = String::from_utf8(said.stdout).expect("text");
        let limit = limit.to_string();
        assert_eq!(values(&said, "Max locked memory"), [&limit, &limit, "bytes"]);
        for ids in ["Uid:", "Gid:"] {
            assert_eq!(values(&said, ids), [&nobody; 4], "{ids}");
        }
        assert!(values(&said, "Groups:").is_empty(), "{said}");
        for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
            assert_eq!(values(&said, set), ["0000000000000000"], "{set}");
        }
        assert_eq!(values(&said, "NoNewPrivs:"), ["1"]);
    }
}

#[test]
fn an_unprivileged_process_feels_its_limit_of_locked_memory() {
    let this = std::env::current_exe().expect("a running program");
    let Some(this) = or_skip(Unprivileged::new(&this)) else { return };
    // A user of its own: what others have locked counts as well.
    let this = this.with_user(NOBODY - 1000 - std::process::id() % 1000);
    // One call of 64 KiB locks (65536 >> 12) + 2 pages.
    for (limit, enough) in [(0, false), (17 << 12, false), (18 << 12, true)] {
        let test = ["--exact", "loopback_copies_what_is_sent_with_zero_copy", "--nocapture"];
        let done = this.command(limit).args(test).output().expect("this program again");
        let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.success(), enough, "{limit}: {said}");
        assert_eq!(said.contains("ENOBUFS") || said.contains("No buffer space"), !enough, "{limit}: {said}");
    }
}

#[test]
fn a_program_that_was_built_here_runs_unprivileged() {
    let Some(stress) = or_skip(Unprivileged::new(rds_stress())) else { return };
    let version = stress.command(0).arg("--version").output().expect("it runs");
    assert!(version.status.success() && version.stdout.starts_with(b"rds-stress "), "{version:?}");
}
