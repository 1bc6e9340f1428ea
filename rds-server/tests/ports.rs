//! Ports: shared and exclusive, who may bind them, how many, at which address; and the form without shared memory.

mod common;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use common::{Daemon, LONG, attach};
use rds_client::{BindError, Completion, Node, Received, RecvError, Sharing, Socket, TrySendError};

fn patient(socket: Socket) -> Socket {
    socket.set_recv_timeout(Some(LONG));
    socket.set_send_timeout(Some(LONG));
    socket
}

#[track_caller]
fn receive(socket: &Socket) -> (u64, SocketAddr) {
    let mut buffer = vec![0; 1 << 20];
    match socket.recv_from(&mut buffer) {
        Ok(Received::Message { from, .. }) => (u64::from_ne_bytes(buffer[..8].try_into().unwrap()), from),
        other => panic!("only a message can come: {other:?}"),
    }
}

fn try_receive(socket: &Socket) -> Option<u64> {
    let mut buffer = vec![0; 1 << 20];
    match socket.try_recv_from(&mut buffer) {
        Ok(Received::Message { .. }) => Some(u64::from_ne_bytes(buffer[..8].try_into().unwrap())),
        Err(RecvError::Empty) => None,
        other => panic!("only a message can come: {other:?}"),
    }
}

fn message(n: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len.max(8)];
    bytes[..8].copy_from_slice(&n.to_ne_bytes());
    bytes
}

#[test]
fn balanced_messages_go_to_one_each_in_order_and_none_is_lost_when_one_stops() {
    let (near, far) = (Daemon::at(&["127.43.3.1"]), Daemon::at(&["127.43.3.2"]));
    let members: Vec<_> =
        (0..3).map(|_| patient(far.attach().bind_shared(500, Sharing::Balance).unwrap())).collect();
    let stopped = patient(far.attach().bind_shared(500, Sharing::Balance).unwrap());
    let to: SocketAddr = "127.43.3.2:500".parse().unwrap();
    let sender = near.attach();
    let readers: Vec<_> = members
        .into_iter()
        .map(|member| {
            std::thread::spawn(move || {
                let mut got = Vec::new();
                loop {
                    let (n, _) = receive(&member);
                    if n == u64::MAX {
                        return got;
                    }
                    got.push(n);
                }
            })
        })
        .collect();
    let from = patient(sender.bind(0).unwrap());
    // Far more than all of them hold: whoever reads gets it, although one is full and stays so.
    const COUNT: u64 = 2000;
    for n in 0..COUNT {
        from.send_to(&message(n, 10_000), to).unwrap();
    }
    assert!(from.flush(LONG));
    // One word of the end for each: to one that gets two of them, the second never matters.
    let mut all: Vec<u64> = Vec::new();
    for n in std::iter::from_fn(|| try_receive(&stopped)) {
        all.push(n);
    }
    assert!(!all.is_empty() && all.len() < 500, "the one that stopped has its share: {}", all.len());
    drop(stopped);
    let mut readers: Vec<_> = readers.into_iter().collect();
    while !readers.is_empty() {
        from.send_to(&message(u64::MAX, 8), to).unwrap();
        assert!(from.flush(LONG));
        let (done, rest): (Vec<_>, Vec<_>) = readers.into_iter().partition(|r| r.is_finished());
        readers = rest;
        for reader in done {
            let got = reader.join().unwrap();
            assert!(got.is_sorted(), "in order");
            all.extend(got);
        }
    }
    all.sort_unstable();
    assert!(all.iter().copied().eq(0..COUNT), "each once: {} of {COUNT}", all.len());
}

#[test]
fn fanned_out_messages_go_to_all_and_the_slowest_sets_the_pace_until_it_leaves() {
    let daemon = Daemon::at(&["127.43.3.3"]);
    let fast = patient(daemon.attach().bind_shared(500, Sharing::FanOut).unwrap());
    let slow = patient(daemon.attach().bind_shared(500, Sharing::FanOut).unwrap());
    slow.set_recv_buffer(100_000);
    let from = daemon.attach().bind(0).unwrap();
    let to = fast.local_addr();
    let (mut sent, mut fast_got) = (0, Vec::new());
    loop {
        match from.try_send_to(&message(sent, 10_000), to) {
            Ok(()) => sent += 1,
            Err(TrySendError::Congested | TrySendError::Full) => break,
            Err(e) => panic!("{e}"),
        }
        assert!(sent < 1000, "never congested");
        // The fast one takes all that comes.
        fast_got.extend(std::iter::from_fn(|| try_receive(&fast)));
    }
    assert!(fast_got.len() < 50, "the slow one sets the pace: {}", fast_got.len());
    // It gets the same.
    for n in 0..3 {
        assert_eq!(receive(&slow).0, n);
    }
    drop(slow);
    // What waited may fill the fast one.
    let deadline = std::time::Instant::now() + LONG;
    while !from.wait_uncongested(to, Some(std::time::Duration::from_millis(1))) {
        fast_got.extend(std::iter::from_fn(|| try_receive(&fast)));
        assert!(std::time::Instant::now() < deadline, "congested by one that has left");
    }
    patient(from).send_to(&message(sent, 8), to).unwrap();
    while fast_got.last() != Some(&sent) {
        fast_got.push(receive(&fast).0);
    }
    assert!(fast_got.iter().copied().eq(0..=sent), "{fast_got:?}");
}

#[test]
fn an_exclusive_port_is_one_sockets_and_ways_of_sharing_do_not_mix() {
    let daemon = Daemon::at(&["127.43.3.4"]);
    let (a, b) = (daemon.attach(), daemon.attach());
    let held = a.bind(600).unwrap();
    assert_eq!(b.bind(600).unwrap_err(), BindError::InUse(600));
    assert_eq!(b.bind_shared(600, Sharing::Balance).unwrap_err(), BindError::InUse(600));
    let shared = a.bind_shared(601, Sharing::FanOut).unwrap();
    assert_eq!(b.bind(601).unwrap_err(), BindError::InUse(601));
    assert_eq!(b.bind_shared(601, Sharing::Balance).unwrap_err(), BindError::InUse(601));
    let other = b.bind_shared(601, Sharing::FanOut).unwrap();
    assert_eq!(b.bind(1).unwrap_err(), BindError::Reserved);
    drop((held, shared, other));
    // The other client's close may be on its way to the daemon.
    let eventually = |bind: &dyn Fn() -> Result<Socket, BindError>| {
        let deadline = std::time::Instant::now() + LONG;
        while let Err(e) = bind() {
            assert!(std::time::Instant::now() < deadline, "{e}");
        }
    };
    eventually(&|| b.bind(600));
    eventually(&|| b.bind_shared(601, Sharing::Balance));
}

#[test]
fn one_members_cancel_does_not_touch_anothers_messages() {
    let daemon = Daemon::at(&["127.43.3.5"]);
    let (a, b) = (daemon.attach(), daemon.attach());
    let a = patient(a.bind_shared(700, Sharing::Balance).unwrap());
    let b = patient(b.bind_shared(700, Sharing::Balance).unwrap());
    // Nobody is there yet.
    let to: SocketAddr = "127.43.3.6:9".parse().unwrap();
    for n in 0..10 {
        a.send_to(&message(n, 100), to).unwrap();
        b.send_to(&message(100 + n, 100), to).unwrap();
    }
    assert_eq!(a.cancel_all(), 10);
    assert!(a.flush(LONG));
    let far = Daemon::at(&["127.43.3.6"]);
    let there = patient(far.attach().bind(9).unwrap());
    b.send_to(&message(200, 100), to).unwrap();
    assert!(b.flush(LONG));
    let got: Vec<_> = std::iter::from_fn(|| try_receive(&there)).collect();
    assert!(got.iter().all(|n| *n >= 100) && got.last() == Some(&200), "{got:?}");
}

#[test]
fn rules_say_who_may_bind_which_port() {
    let daemon = Daemon::with(&["127.43.3.7", "127.43.3.8"], |settings| {
        let rules = [
            "deny,port=80",
            "allow,port=1-100,address=127.43.3.7",
            "allow,address=127.43.3.8,port=5000-5001",
        ];
        settings.rules = rules.map(|rule| rule.parse().unwrap()).into();
    });
    let first = daemon.attach();
    assert_eq!(first.bind(80).unwrap_err(), BindError::NotAllowed(80));
    assert_eq!(first.bind(101).unwrap_err(), BindError::NotAllowed(101));
    drop(first.bind(81).unwrap());
    let second = Node::attach_builder(daemon.path()).address("127.43.3.8".parse().unwrap()).open().unwrap();
    assert_eq!(second.bind(81).unwrap_err(), BindError::NotAllowed(81));
    // Any free port is one of those that are allowed.
    let some: Vec<_> = (0..2).map(|_| second.bind(0).unwrap()).collect();
    let mut ports: Vec<_> = some.iter().map(|s| s.local_addr().port()).collect();
    ports.sort_unstable();
    assert_eq!(ports, [5000, 5001]);
    assert_eq!(second.bind(0).unwrap_err(), BindError::Exhausted);
}

#[test]
fn over_quota_the_client_is_told_and_nobody_else_notices() {
    let daemon = Daemon::with(&["127.43.3.9"], |settings| {
        settings.quotas.client.sockets = 2;
        settings.quotas.user.clients = 3;
        settings.quotas.client.send_bytes = 3 << 20;
    });
    let (a, b) = (daemon.attach(), daemon.attach());
    let sockets: Vec<_> = (0..2).map(|_| a.bind(0).unwrap()).collect();
    assert_eq!(a.bind(0).unwrap_err(), BindError::Quota);
    let other = b.bind(0).unwrap();
    let third = daemon.attach();
    let refused = Node::attach(daemon.path()).unwrap_err().to_string();
    assert!(refused.contains("no more than 3 clients for a user"), "{refused}");
    drop(third);
    // A buffer is as large as the quota allows; what it holds is bounded by that.
    sockets[0].set_send_buffer(100 << 20);
    let nobody = "127.43.255.9:9".parse().unwrap();
    let mut taken = 0;
    while let Ok(()) = sockets[0].try_send_to(&vec![0; 1 << 20], nobody) {
        taken += 1;
        assert!(taken < 10, "more than the quota");
    }
    assert!(taken >= 2);
    patient(other).send_to(b"fine", "127.43.3.9:4".parse().unwrap()).unwrap();
    drop(sockets);
    while daemon_full(&daemon) {}
    a.bind(0).unwrap();
}

/// Whether the place of a client that has left is not free yet.
fn daemon_full(daemon: &Daemon) -> bool {
    Node::attach(daemon.path()).is_err()
}

#[test]
fn who_is_not_on_the_list_may_not_attach() {
    let daemon = Daemon::with(&["127.43.3.10"], |settings| settings.attach.uids = vec![4_000_000]);
    let refused = Node::attach(daemon.path()).unwrap_err().to_string();
    assert!(refused.contains("may not attach"), "{refused}");
}

#[test]
fn one_daemon_serves_several_addresses_of_both_families() {
    let daemon = Daemon::at(&["127.43.3.11", "127.43.3.12", "::1"]);
    let at =
        |address: &str| Node::attach_builder(daemon.path()).address(address.parse().unwrap()).open().unwrap();
    let (a, b, c) = (at("127.43.3.11"), at("127.43.3.12"), at("::1"));
    let a = patient(a.bind(50).unwrap());
    let (b, c) = (patient(b.bind(50).unwrap()), patient(c.bind(50).unwrap()));
    a.send_to(&message(1, 100), b.local_addr()).unwrap();
    assert_eq!(receive(&b), (1, a.local_addr()));
    c.send_to(&message(2, 100), c.local_addr()).unwrap();
    assert_eq!(receive(&c).0, 2);
    let missing = Node::attach_builder(daemon.path()).address("127.43.3.13".parse().unwrap()).open();
    let missing = missing.unwrap_err().to_string();
    assert!(missing.contains("it serves 127.43.3.11, 127.43.3.12, ::1"), "{missing}");
}

#[test]
fn without_shared_memory_everything_passes_through_the_socket() {
    let daemon = Daemon::with(&["127.43.3.14"], |settings| settings.shared_memory = false);
    let (a, b) = (daemon.attach(), attach(&daemon.path()));
    let (a, b) = (patient(a.bind(0).unwrap()), patient(b.bind(0).unwrap()));
    for (n, len) in [0, 1, 5000, 200_000, 1 << 20].into_iter().enumerate() {
        a.send_to(&message(n as u64, len), b.local_addr()).unwrap();
        assert_eq!(receive(&b), (n as u64, a.local_addr()));
    }
    // More than the socket's buffers hold, and then all of it.
    let mut sent = 0;
    while let Ok(()) = a.try_send_to(&message(sent, 50_000), b.local_addr()) {
        sent += 1;
        assert!(sent < 1000, "never congested");
    }
    for n in 0..sent {
        assert_eq!(receive(&b).0, n, "of {sent}");
    }
    assert!(a.flush(LONG));
}

#[test]
fn a_snapshot_names_sockets_and_ports() {
    let daemon = Daemon::at(&["127.43.3.15"]);
    let a = daemon.attach();
    let _b = a.bind(71).unwrap();
    let snapshot = a.snapshot();
    assert_eq!(snapshot.address, a.address());
    assert!(snapshot.sockets.iter().any(|socket| socket.bound.port() == 71));
}

#[test]
fn order_holds_for_each_pair_of_sockets_through_congestion() {
    let (near, far) = (Daemon::at(&["127.43.3.16"]), Daemon::at(&["127.43.3.17"]));
    let to = patient(far.attach().bind(5).unwrap());
    to.set_recv_buffer(50_000);
    let destination = to.local_addr();
    let senders: Vec<_> = (0..3)
        .map(|_| {
            let socket = patient(near.attach().bind(0).unwrap());
            std::thread::spawn(move || {
                for n in 0..400 {
                    socket.send_to(&message(n, 5000), destination).unwrap();
                }
                assert!(socket.flush(LONG));
            })
        })
        .collect();
    let mut next: BTreeMap<SocketAddr, u64> = BTreeMap::new();
    for _ in 0..1200 {
        let (n, from) = receive(&to);
        let expected = next.entry(from).or_default();
        assert_eq!(n, *expected);
        *expected += 1;
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap());
}

#[test]
fn peers_are_refused_in_either_direction_by_their_networks() {
    use rds_core::proto::{PeerFilter, PeerRules};
    let refuse = |net: &str| PeerRules::new(Vec::new(), vec![net.parse().unwrap()]);
    let open = Daemon::at(&["127.43.3.20"]);
    let closed = Daemon::with(&["127.43.3.21"], |settings| {
        settings.peers = PeerFilter::new(refuse("127.43.3.20/32"), refuse("127.43.3.0/24"));
    });
    let (a, b) = (open.attach(), closed.attach());
    let (a, b) = (patient(a.bind(5).unwrap()), patient(b.bind(5).unwrap()));
    // Out: it ends at once, without arriving.
    let cookie = b.send_owned(message(1, 100), a.local_addr()).unwrap();
    let mut ends = Vec::new();
    while !ends.contains(&rds_client::Completion::Cancelled { cookie }) {
        assert!(b.wait_completions(&mut ends, Some(LONG)) > 0, "{ends:?}");
    }
    // In: it waits at the sender, as for a peer that cannot be reached.
    a.send_to(&message(2, 100), b.local_addr()).unwrap();
    assert_eq!(try_receive(&a), None);
    assert_eq!(try_receive(&b), None);
    assert_eq!(a.cancel_all(), 1);
}

#[test]
fn peers_that_one_user_sends_to_leave_room_for_those_of_others() {
    let daemon = Daemon::with(&["127.43.3.40"], |settings| {
        settings.quotas.client.peers = 2;
        settings.quotas.user.peers = 3;
    });
    let send = |socket: &Socket, to: &str| socket.send_owned(vec![1; 9000], to.parse().unwrap()).unwrap();
    let cancelled = |socket: &Socket, cookie| {
        let mut ends = Vec::new();
        let is = |end: &Completion| matches!(end, Completion::Cancelled { cookie: c } if *c == cookie);
        while !ends.iter().any(is) {
            assert!(socket.wait_completions(&mut ends, Some(LONG)) > 0, "{ends:?}");
        }
        let outcomes = ends.iter().filter(|end| !matches!(end, Completion::Released { .. }));
        assert_eq!(outcomes.count(), 1, "{ends:?}");
    };
    // Nobody is at these addresses, so what is sent to them stays with the node.
    let (a, b) = (daemon.attach(), daemon.attach());
    let (first, second) = (patient(a.bind(0).unwrap()), patient(b.bind(0).unwrap()));
    for to in ["127.43.3.51:9", "127.43.3.52:9", "127.43.3.51:10"] {
        send(&first, to);
    }
    cancelled(&first, send(&first, "127.43.3.53:9"));
    send(&second, "127.43.3.54:9");
    cancelled(&second, send(&second, "127.43.3.55:9"));
    // Its own node is no peer.
    first.send_to(&message(7, 8), second.local_addr()).unwrap();
    assert_eq!(receive(&second).0, 7);
    // What a program had is free when it is gone: once the daemon has noticed that.
    drop((first, a));
    let room = || daemon_has_room(&second, "127.43.3.55:9");
    let deadline = std::time::Instant::now() + LONG;
    while !room() {
        assert!(std::time::Instant::now() < deadline, "the daemon has not noticed");
    }
}

/// Whether a message to a peer that is not there is kept, instead of refused.
fn daemon_has_room(socket: &Socket, to: &str) -> bool {
    let cookie = socket.send_owned(vec![1; 9], to.parse().unwrap()).unwrap();
    // Answered after what the daemon said of the send.
    socket.set_send_buffer(1 << 20);
    let mut ends = Vec::new();
    socket.completions(&mut ends);
    !ends.iter().any(|end| matches!(end, Completion::Cancelled { cookie: c } if *c == cookie))
}

#[test]
fn a_message_that_is_larger_than_the_arena_a_program_asked_for_arrives() {
    let daemon = Daemon::at(&["127.43.3.41"]);
    let small = Node::attach_builder(daemon.path()).receive_arena(4096).open().unwrap();
    let (to, from) = (patient(small.bind(0).unwrap()), patient(daemon.attach().bind(0).unwrap()));
    for n in 0..3 {
        from.send_to(&message(n, 1 << 20), to.local_addr()).unwrap();
        assert_eq!(receive(&to).0, n);
    }
}
