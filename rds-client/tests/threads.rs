//! Many threads, which pass the poll loop among them.

mod common;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use common::{LONG, builder, message, net, pair};
use rds_client::{Received, RecvError, Socket};

/// Answers until a message of one byte.
fn echo(socket: &Socket) {
    loop {
        let (payload, from) = message(socket);
        socket.send_to(&payload, from).unwrap();
        if payload.len() == 1 {
            return;
        }
    }
}

#[test]
fn many_sockets_with_a_thread_each_exchange_messages_side_by_side() {
    let net = net();
    let (a, b) = (builder(net(1)).open().unwrap(), builder(net(2)).open().unwrap());
    const PAIRS: u16 = 8;
    const ROUNDS: u32 = 300;
    thread::scope(|scope| {
        for i in 0..PAIRS {
            let (x, y) = (a.bind(100 + i).unwrap(), b.bind(200 + i).unwrap());
            let to = y.local_addr();
            scope.spawn(move || {
                y.set_recv_timeout(Some(LONG));
                echo(&y);
            });
            scope.spawn(move || {
                x.set_recv_timeout(Some(LONG));
                for round in 0..ROUNDS {
                    x.send_to(&round.to_le_bytes(), to).unwrap();
                    assert_eq!(message(&x).0, round.to_le_bytes());
                }
                x.send_to(b"!", to).unwrap();
                message(&x);
            });
        }
    });
}

#[test]
fn many_threads_on_one_socket_take_every_message_once() {
    let p = pair();
    const COUNT: usize = 20_000;
    const THREADS: usize = 4;
    let taken = AtomicUsize::new(0);
    let sum = AtomicUsize::new(0);
    p.bob.set_recv_timeout(Some(Duration::from_millis(20)));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut buffer = [0; 8];
                while taken.load(Relaxed) < COUNT {
                    match p.bob.recv_from(&mut buffer) {
                        Ok(Received::Message { len: 8, .. }) => {
                            taken.fetch_add(1, Relaxed);
                            sum.fetch_add(usize::from_le_bytes(buffer), Relaxed);
                        }
                        Err(RecvError::TimedOut) => {}
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
        for i in 0..COUNT {
            p.alice.send_to(&i.to_le_bytes(), p.bob.local_addr()).unwrap();
        }
    });
    assert_eq!((taken.into_inner(), sum.into_inner()), (COUNT, COUNT * (COUNT - 1) / 2));
}

/// Without timeouts, a wake-up that is lost is a test that hangs.
#[test]
fn no_thread_of_many_on_one_socket_sleeps_through_its_message() {
    let p = pair();
    p.bob.set_recv_timeout(None);
    const THREADS: usize = 4;
    const ROUNDS: usize = 500;
    thread::scope(|scope| {
        let bob = &p.bob;
        for _ in 0..THREADS {
            scope.spawn(move || {
                let mut buffer = [0; 8];
                for _ in 0..ROUNDS {
                    let Received::Message { from, .. } = bob.recv_from(&mut buffer).unwrap() else {
                        panic!()
                    };
                    bob.send_to(&buffer, from).unwrap();
                }
            });
        }
        let mut outstanding = 0;
        let mut sent = 0;
        while sent < THREADS * ROUNDS || outstanding > 0 {
            while sent < THREADS * ROUNDS && outstanding < sent % 7 + 1 {
                p.alice.send_to(&sent.to_le_bytes(), bob.local_addr()).unwrap();
                sent += 1;
                outstanding += 1;
            }
            message(&p.alice);
            outstanding -= 1;
        }
    });
}

#[test]
fn many_threads_send_on_one_socket_and_each_keeps_its_order() {
    let p = pair();
    const THREADS: u32 = 4;
    const COUNT: u32 = 5000;
    thread::scope(|scope| {
        for t in 0..THREADS {
            let alice = &p.alice;
            let to = p.bob.local_addr();
            scope.spawn(move || {
                for i in 0..COUNT {
                    let mut payload = [0; 8];
                    payload[..4].copy_from_slice(&t.to_le_bytes());
                    payload[4..].copy_from_slice(&i.to_le_bytes());
                    alice.send_to(&payload, to).unwrap();
                }
            });
        }
        let mut next = [0; THREADS as usize];
        let mut buffer = [0; 8];
        for _ in 0..THREADS * COUNT {
            p.bob.recv_from(&mut buffer).unwrap();
            let t = u32::from_le_bytes(buffer[..4].try_into().unwrap()) as usize;
            assert_eq!(u32::from_le_bytes(buffer[4..].try_into().unwrap()), next[t]);
            next[t] += 1;
        }
    });
}

#[test]
fn a_sender_that_never_waits_still_gets_rid_of_its_messages() {
    let p = pair();
    for i in 0..200_u32 {
        p.alice.send_to(&i.to_le_bytes(), p.bob.local_addr()).unwrap();
    }
    // From here on this thread is in no call of that node.
    for i in 0..200_u32 {
        assert_eq!(message(&p.bob).0, i.to_le_bytes());
    }
}

#[test]
fn messages_left_when_a_thread_stops_polling_are_sent_all_the_same() {
    let p = pair();
    for round in 0..50_u32 {
        // Alice has just polled, so nobody holds her poll right when she sends a burst and goes away.
        p.bob.send_to(b"go", p.alice.local_addr()).unwrap();
        message(&p.alice);
        for i in 0..20_u32 {
            p.alice.send_to(&(round * 20 + i).to_le_bytes(), p.bob.local_addr()).unwrap();
        }
        for i in 0..20_u32 {
            assert_eq!(message(&p.bob).0, (round * 20 + i).to_le_bytes());
        }
    }
}

#[test]
fn a_chain_of_nodes_in_one_thread_each_passes_everything_on() {
    let net = net();
    const NODES: u8 = 4;
    let nodes: Vec<_> = (1..=NODES).map(|i| builder(net(i)).open().unwrap()).collect();
    let sockets: Vec<_> = nodes.iter().map(|n| n.bind(9).unwrap()).collect();
    let addresses: Vec<SocketAddr> = sockets.iter().map(Socket::local_addr).collect();
    thread::scope(|scope| {
        for (i, socket) in sockets.iter().enumerate().skip(1) {
            let next = addresses[(i + 1) % addresses.len()];
            scope.spawn(move || {
                socket.set_recv_timeout(Some(LONG));
                for _ in 0..500 {
                    let (payload, _) = message(socket);
                    socket.send_to(&payload, next).unwrap();
                }
            });
        }
        sockets[0].set_recv_timeout(Some(LONG));
        for i in 0..500_u32 {
            sockets[0].send_to(&i.to_le_bytes(), addresses[1]).unwrap();
            if i % 3 == 2 {
                for k in i - 2..=i {
                    assert_eq!(message(&sockets[0]).0, k.to_le_bytes());
                }
            }
        }
        for k in 498..500_u32 {
            assert_eq!(message(&sockets[0]).0, k.to_le_bytes());
        }
    });
}

#[test]
fn a_connection_that_comes_while_programs_send_carries_their_messages() {
    for _ in 0..40 {
        let net = net();
        // Without a limit on handshakes a connection that was forgotten is not made again.
        let patient = |c: &mut rds_client::Config| c.handshake_timeout = Duration::from_secs(3600);
        // The larger node accepts; its programs are in the middle of sending when the connection comes.
        let b = builder(net(2)).configure(patient).open().unwrap();
        let senders: Vec<_> = (0..3).map(|i| b.bind(100 + i).unwrap()).collect();
        let to = SocketAddr::new(net(1), 5);
        let arrived = AtomicUsize::new(0);
        let send = |sender: &Socket| {
            while arrived.load(Relaxed) == 0 {
                let _ = sender.try_send_to(&[0; 20_000], to);
            }
            sender.flush(LONG)
        };
        thread::scope(|scope| {
            let threads: Vec<_> = senders.iter().map(|s| scope.spawn(|| send(s))).collect();
            let a = builder(net(1)).configure(patient).open().unwrap();
            let alice = a.bind(5).unwrap();
            alice.set_recv_timeout(Some(LONG));
            alice.set_recv_buffer(1 << 30);
            let first = alice.recv_lease();
            arrived.store(1, Relaxed);
            first.unwrap();
            assert!(threads.into_iter().all(|t| t.join().unwrap()));
        });
    }
}
