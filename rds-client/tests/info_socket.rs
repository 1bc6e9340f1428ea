//! A node is shown to rds-info while it lives, whatever those who look at it do.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use common::{LONG, PORT, message, net};
use rds_client::{Node, NodeBuilder, NodeStatus, OpenError};

fn shown(address: std::net::IpAddr, path: &Path) -> NodeBuilder {
    Node::builder(address).embedded().listen_port(PORT).dial_port(PORT).info_socket(path)
}

/// What the socket says.
fn look(path: &Path) -> Vec<NodeStatus> {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_node_is_shown_with_its_sockets_and_what_they_have_not_taken() {
    let (net, folder) = (net(), tempfile::tempdir().unwrap());
    let path = folder.path().join("info");
    let a = Node::builder(net(1)).embedded().listen_port(PORT).dial_port(PORT).open().unwrap();
    let b = shown(net(2), &path).open().unwrap();
    let (alice, bob) = (a.bind(1000).unwrap(), b.bind(2000).unwrap());
    alice.send_to(&[1; 33], bob.local_addr()).unwrap();
    assert!(alice.flush(LONG));
    let [status] = look(&path).try_into().unwrap();
    assert_eq!((status.node.address, status.addresses), (net(2), vec![net(2)]));
    assert_eq!((status.ports[0].bound, status.clients.len()), (bob.local_addr(), 0));
    let [received] = status.node.received.as_slice() else {
        panic!("one message: {:?}", status.node.received)
    };
    assert_eq!((received.local, received.remote, received.len), (bob.local_addr(), alice.local_addr(), 33));
    assert_eq!(status.node.peers[0].address, net(1));
    message(&bob);
    assert!(look(&path)[0].node.received.is_empty());
}

#[test]
fn only_this_user_may_look_and_the_file_goes_with_the_last_node() {
    let (net, folder) = (net(), tempfile::tempdir().unwrap());
    let path = folder.path().join("info");
    let a = shown(net(1), &path).open().unwrap();
    let file = fs::symlink_metadata(&path).unwrap();
    assert!(file.file_type().is_socket());
    assert_eq!(file.mode() & 0o7777, 0o600 & file.mode(), "nobody but the owner");
    let b = shown(net(2), &path).open().unwrap();
    let addresses: Vec<_> = look(&path).iter().map(|status| status.node.address).collect();
    assert_eq!(addresses, [net(1), net(2)], "a line each");
    drop(a);
    assert_eq!(look(&path).len(), 1);
    // A socket keeps the node alive.
    let socket = b.bind(7000).unwrap();
    drop(b);
    assert_eq!(look(&path).len(), 1);
    drop(socket);
    assert!(!path.exists());
}

#[test]
fn a_dead_programs_file_is_replaced_and_nothing_else() {
    let (net, folder) = (net(), tempfile::tempdir().unwrap());
    let path = folder.path().join("info");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(shown(net(1), &path).open().unwrap());

    let refused = |path: &Path| match shown(net(1), path).open() {
        Err(error @ OpenError::Info { .. }) => error.to_string(),
        other => panic!("it is refused: {other:?}"),
    };
    fs::write(&path, "mine").unwrap();
    assert!(refused(&path).contains("a file that is no socket"));
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    fs::remove_file(&path).unwrap();
    let live = UnixListener::bind(&path).unwrap();
    assert!(refused(&path).contains("another program answers there"));
    drop(live);
    assert!(refused(&folder.path().join("x".repeat(200))).contains("too long"));
}

#[test]
fn who_reads_nothing_or_says_much_keeps_neither_others_nor_the_node() {
    let (net, folder) = (net(), tempfile::tempdir().unwrap());
    let path = folder.path().join("info");
    let a = shown(net(1), &path).open().unwrap();
    let b = Node::builder(net(2)).embedded().listen_port(PORT).dial_port(PORT).open().unwrap();
    let (alice, bob) = (a.bind(1000).unwrap(), b.bind(2000).unwrap());
    alice.set_send_buffer(8 << 20);
    // So long an answer that it does not fit into the socket.
    let nobody = std::net::SocketAddr::new(net(3), 9);
    for _ in 0..20_000 {
        alice.try_send_to(b"", nobody).unwrap();
    }
    let idle: Vec<UnixStream> = (0..3).map(|_| UnixStream::connect(&path).unwrap()).collect();
    let mut talker = UnixStream::connect(&path).unwrap();
    talker.set_nonblocking(true).unwrap();
    while talker.write(&[b'x'; 4096]).is_ok() {}
    alice.send_to(b"goes on", bob.local_addr()).unwrap();
    assert_eq!(message(&bob).0, b"goes on");
    assert_eq!(
        look(&path)[0]
            .node
            .peers
            .iter()
            .flat_map(|p| &p.connections)
            .map(|c| c.send_queue.len())
            .sum::<usize>(),
        20_000
    );
    drop(idle);
    alice.cancel_sent_to(nobody);
}

#[test]
fn a_node_ends_at_once_while_somebody_looks() {
    let (net, folder) = (net(), tempfile::tempdir().unwrap());
    let path = folder.path().join("info");
    for _ in 0..20 {
        let node = shown(net(1), &path).open().unwrap();
        let at = path.clone();
        let looking = thread::spawn(move || {
            let Ok(mut stream) = UnixStream::connect(at) else { return };
            stream.set_read_timeout(Some(LONG)).unwrap();
            let _ = stream.read_to_end(&mut Vec::new());
        });
        node.shutdown(Duration::ZERO);
        drop(node);
        assert!(!path.exists());
        looking.join().unwrap();
    }
}
