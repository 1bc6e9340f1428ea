//! A daemon that is killed and started again, while a peer sends all the time.

mod common;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use common::{LONG, PORT};
use rds_client::{Completion, Node, Received, RecvError};

const NEAR: &str = "127.43.5.1";
const FAR: &str = "127.43.5.2";

struct Program(Child);

impl Program {
    fn start(socket: &Path) -> Self {
        let port = PORT.to_string();
        let child = Command::new(env!("CARGO_BIN_EXE_rds-server"))
            .args(["--address", NEAR, "--listen-port", &port, "--dial-port", &port, "--socket"])
            .arg(socket)
            .stderr(Stdio::null())
            .spawn()
            .expect("the program is built");
        Self(child)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Attaches as soon as the daemon listens.
fn attach(socket: &Path) -> Node {
    let deadline = Instant::now() + LONG;
    loop {
        match Node::attach(socket) {
            Ok(node) => return node,
            Err(e) => assert!(Instant::now() < deadline, "{e}"),
        }
        std::thread::yield_now();
    }
}

#[test]
fn what_a_peer_sends_across_a_restart_is_delivered_to_who_binds_again_or_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("rds.sock");
    let mut daemon = Program::start(&socket);
    let receivers: Vec<_> = (0..3).map(|_| attach(&socket)).collect();
    let far =
        Node::builder(FAR.parse().unwrap()).listen_port(PORT).dial_port(PORT).embedded().open().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = receivers
        .into_iter()
        .enumerate()
        .map(|(n, node)| {
            let reader = node.bind(100 + n as u16).unwrap();
            reader.set_recv_timeout(Some(Duration::from_millis(10)));
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                let (mut got, mut buffer) = (HashSet::new(), [0; 100]);
                loop {
                    match reader.recv_from(&mut buffer) {
                        Ok(Received::Message { .. }) => {
                            let number = u64::from_ne_bytes(buffer[..8].try_into().unwrap());
                            assert!(got.insert(number), "{number} came twice");
                        }
                        Err(RecvError::TimedOut) if stop.load(Relaxed) => break,
                        Err(RecvError::TimedOut) => {}
                        other => panic!("{other:?}"),
                    }
                }
                (node, got)
            })
        })
        .collect();
    let sender = far.bind(0).unwrap();
    sender.set_send_timeout(Some(LONG));
    let mut open = HashMap::new();
    let (mut delivered, mut unknown) = (vec![HashSet::new(); 3], 0);
    let mut number = 0_u64;
    let mut restarts = 0;
    let mut ends = Vec::new();
    let mut since = 0;
    loop {
        // Few at a time, so that nothing is ever held for want of room.
        while open.len() < 30 && restarts < 3 {
            let to = (number % 3) as usize;
            let address = format!("{NEAR}:{}", 100 + to).parse().unwrap();
            let cookie = sender.send_owned(number.to_ne_bytes().to_vec(), address).unwrap();
            open.insert(cookie, (to, number));
            number += 1;
        }
        if open.is_empty() {
            break;
        }
        ends.clear();
        assert!(sender.wait_completions(&mut ends, Some(LONG)) > 0, "{} are open", open.len());
        for end in &ends {
            match end {
                Completion::Delivered { cookie, .. } => {
                    let (to, number) = open.remove(cookie).unwrap();
                    delivered[to].insert(number);
                    since += 1;
                }
                Completion::Unknown { cookie } => {
                    open.remove(cookie).unwrap();
                    unknown += 1;
                }
                Completion::Released { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        // Each life delivers something.
        if since > 2000 {
            since = 0;
            drop(daemon);
            daemon = Program::start(&socket);
            restarts += 1;
        }
    }
    stop.store(true, Relaxed);
    let mut missing = 0;
    for (reader, delivered) in readers.into_iter().zip(&delivered) {
        let (_node, got) = reader.join().unwrap();
        missing += delivered.difference(&got).count();
    }
    assert_eq!(missing, 0, "delivered, as the sender was told, and never received");
    assert!(unknown <= 3 * 30, "{unknown}: no more than what was under way at each restart");
}

#[test]
fn what_one_program_sends_another_of_the_same_daemon_waits_until_that_has_bound_again() {
    use common::raw::{MESSAGE, Raw};
    use rds_core::attach::{Submission, Where};
    let mut daemon = common::Daemon::at(&["127.43.5.3"]);
    let mut receiver = Raw::attach(&daemon.path());
    receiver.bind(1, 7);
    daemon.restart();
    let mut sender = Raw::attach(&daemon.path());
    sender.bind(1, 8);
    let to = "127.43.5.3:7".parse().unwrap();
    let payload = Where::Inline(5);
    let send = Submission::Send { socket: 1, id: 1, to, wants_end: true, mode: None, payload };
    sender.put(&send, b"early");
    sender.publish();
    // It was read before the port is bound.
    sender.put(&Submission::Snapshot { request: 5, queues: false }, &[]);
    sender.publish();
    sender.reply(5);
    let mut receiver = Raw::attach(&daemon.path());
    receiver.bind(1, 7);
    let said = receiver.wait();
    assert_eq!((said.kind, &said.rest[16..]), (MESSAGE, &b"early"[..]));
}
