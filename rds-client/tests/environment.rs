//! Programs that say nothing of a daemon, and are switched to one by the environment; and what only one kind of node can have.

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use rds_client::{ATTACH_VARIABLE, BindError, Node, OpenError, Received, Sharing, WhenFull};
use rds_server::server::Server;
use rds_server::settings::Settings;

/// Set for a process that a test has started: the address of the daemon's node.
const PROGRAM: &str = "RDS_TEST_PROGRAM";
const LONG: Duration = Duration::from_secs(20);

#[test]
fn an_unchanged_program_attaches_where_the_environment_says() {
    if let Ok(address) = std::env::var(PROGRAM) {
        return unchanged(address.parse().unwrap());
    }
    let address: IpAddr = "127.48.7.1".parse().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut settings = Settings::new(vec![address]);
    settings.socket = folder.path().join("rds.sock");
    (settings.listen_port, settings.dial_port) = (26385, 26385);
    let path = settings.socket.clone();
    let server = Server::start(settings).unwrap();
    let inbox = Node::attach(&path).unwrap().bind(5000).unwrap();
    inbox.set_recv_timeout(Some(LONG));

    let test = "an_unchanged_program_attaches_where_the_environment_says";
    let program = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test])
        .env(PROGRAM, address.to_string())
        .env(ATTACH_VARIABLE, &path)
        .output()
        .unwrap();
    assert!(program.status.success(), "{}", String::from_utf8_lossy(&program.stdout));
    let mut buffer = [0; 100];
    let Ok(Received::Message { len, from, .. }) = inbox.recv_from(&mut buffer) else {
        panic!("the program's message is lost")
    };
    assert_eq!((&buffer[..len], from.ip(), from.port()), (&b"unchanged"[..], address, 6000));
    server.stop().unwrap();
}

/// The program: but for what it asserts, it could be any that opens a node.
fn unchanged(address: IpAddr) {
    let (node, sockets) = Node::builder(address).open_bound(&[6000]).unwrap();
    assert!(node.attachment().is_some_and(|attachment| attachment.attached));
    sockets[0].send_to(b"unchanged", (address, 5000).into()).unwrap();
    assert!(sockets[0].flush(LONG));
    assert!(Node::open(address).unwrap().attachment().is_some());

    let own = Node::builder("127.48.7.2".parse().unwrap()).listen_port(0).embedded().open().unwrap();
    assert!(own.attachment().is_none(), "it has said that it wants a node of its own");

    let error = Node::open("127.48.7.3".parse().unwrap()).unwrap_err();
    assert!(matches!(error, OpenError::Attach { .. }), "{error}");
    assert!(error.to_string().contains("it serves 127.48.7.1"), "{error}");
}

#[test]
fn what_a_kind_of_node_cannot_do_is_refused_with_what_to_do_instead() {
    let address = "127.48.7.4".parse().unwrap();
    let own = Node::builder(address).listen_port(0).embedded().open().unwrap();
    let shared = own.bind_shared(7, Sharing::Balance).unwrap_err();
    assert_eq!(shared, BindError::NotShared(7));
    assert!(own.bind_shared(7, Sharing::Exclusive).is_ok());

    let builder = Node::builder(address).attach("/nowhere/rds.sock");
    let pins = builder.clone().when_pins_full(WhenFull::Wait).open().unwrap_err();
    assert!(matches!(pins, OpenError::NotAttached { setting: "when_pins_full", .. }), "{pins}");
    let nobody = builder.open().unwrap_err().to_string();
    assert!(nobody.contains("/nowhere/rds.sock") && nobody.contains("start rds-server"), "{nobody}");
}
