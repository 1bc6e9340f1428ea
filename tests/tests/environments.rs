//! The environments that other tests run in are what they claim to be.

use std::fs;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::panic::catch_unwind;

use rds_tests::copied::{Calls, Connection};
use rds_tests::netns::Namespace;
use rds_tests::skip::or_skip;
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
fn loopback_copies_what_is_sent_with_zero_copy() {
    for address in ["127.0.0.1", "::1"] {
        let Ok(connection) = Connection::open(ip(address), ip(address)) else {
            assert_eq!(address, "::1", "every machine has IPv4 loopback");
            continue;
        };
        let calls = connection.send(200, 64 << 10).expect("loopback carries it");
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
        let calls = connection.send(200, 64 << 10).expect("loopback carries it");
        assert!(calls.not_copied >= 200 && calls.copied == 0, "{address}: {calls:?}");
        assert_eq!(connection.close().expect("it is open"), 200 * (64 << 10));
    }
    pass.detach();
}

#[test]
fn xdp_pass_can_come_and_go_under_an_open_connection() {
    let Some(namespace) = or_skip(Namespace::new()) else { return };
    let connection = namespace.run(|| Connection::open(ip("127.0.0.1"), ip("127.0.0.2"))).expect("a pair");
    let send = || connection.send(20, 1 << 20).expect("loopback carries it");
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
