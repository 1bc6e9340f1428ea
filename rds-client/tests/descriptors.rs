//! A process that runs out of descriptors. Alone in its process, because it takes them all.

mod common;

use std::fs::File;
use std::net::SocketAddr;

use common::{LONG, builder, message, net};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

#[test]
fn a_node_without_descriptors_accepts_again_once_there_are_some() {
    let net = net();
    // The larger address accepts.
    let (a, b) = (builder(net(1)).open().unwrap(), builder(net(2)).open().unwrap());
    let (alice, bob) = (a.bind(5).unwrap(), b.bind(5).unwrap());
    bob.set_recv_timeout(Some(LONG));
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
    let mut files = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    // One for the end that dials, none for the one that accepts.
    files.pop();
    alice.send_to(b"patience", SocketAddr::new(net(2), 5)).unwrap();
    assert!(!alice.flush(std::time::Duration::from_millis(300)));
    files.clear();
    assert_eq!(message(&bob).0, b"patience");
}
