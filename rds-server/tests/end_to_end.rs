//! Programs that attach with the client library, through one daemon and through two.

mod common;

use common::{Daemon, LONG};
use rds_client::{Completion, Received, Socket};

fn receive(socket: &Socket) -> (Vec<u8>, std::net::SocketAddr) {
    socket.set_recv_timeout(Some(LONG));
    let mut buffer = vec![0; 1 << 20];
    match socket.recv_from(&mut buffer).unwrap_or_else(|e| panic!("{e}")) {
        Received::Message { len, from, .. } => {
            buffer.truncate(len);
            (buffer, from)
        }
        other => panic!("only a message can come: {other:?}"),
    }
}

fn pattern(n: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + n * 7) as u8).collect()
}

const LENGTHS: [usize; 9] = [0, 1, 64, 2048, 2049, 4096, 16 << 10, 100_000, 1 << 20];

fn exchange(a: &Socket, b: &Socket) {
    a.set_send_timeout(Some(LONG));
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let sent = pattern(n, len);
        a.send_to(&sent, b.local_addr()).unwrap_or_else(|e| panic!("{len}: {e}"));
        let (got, from) = receive(b);
        assert!(got == sent, "{len} bytes arrive as they were sent");
        assert_eq!(from, a.local_addr());
    }
    assert!(a.flush(LONG));
}

#[test]
fn two_sockets_of_one_daemon_exchange_messages_of_any_length() {
    let daemon = Daemon::at(&["127.43.1.1"]);
    let (a, b) = (daemon.attach(), daemon.attach());
    let (a, b) = (a.bind(4001).unwrap(), b.bind(4002).unwrap());
    exchange(&a, &b);
    exchange(&b, &a);
}

#[test]
fn programs_of_two_daemons_exchange_messages_of_any_length() {
    let (one, two) = (Daemon::at(&["127.43.1.2"]), Daemon::at(&["127.43.1.3"]));
    let (a, b) = (one.attach(), two.attach());
    let (a, b) = (a.bind(4001).unwrap(), b.bind(4001).unwrap());
    exchange(&a, &b);
    exchange(&b, &a);
}

#[test]
fn what_is_sent_with_a_cookie_is_reported_delivered_and_released_once() {
    let (one, two) = (Daemon::at(&["127.43.1.4"]), Daemon::at(&["127.43.1.5"]));
    let (a, b) = (one.attach(), two.attach());
    let (socket, b) = (a.bind(4001).unwrap(), b.bind(4001).unwrap());
    let mut buffer = a.buffer(50_000);
    buffer[..].copy_from_slice(&pattern(3, 50_000));
    let cookie = socket.send_owned(buffer, b.local_addr()).unwrap();
    assert!(receive(&b).0 == pattern(3, 50_000));
    let mut all = Vec::new();
    while all.len() < 2 {
        assert!(socket.wait_completions(&mut all, Some(LONG)) > 0);
    }
    assert!(all.iter().all(|c| c.cookie() == cookie));
    let released = all.iter().filter(|c| matches!(c, Completion::Released { .. })).count();
    let delivered = all.iter().filter(|c| matches!(c, Completion::Delivered { .. })).count();
    assert_eq!((all.len(), released, delivered), (2, 1, 1));
}
