//! Programs that must not notice what others do.
#![allow(dead_code)]

use rds_client::{Received, Socket};

use super::{Daemon, LONG};

/// A pair of honest sockets that must not notice anything.
pub(crate) struct Honest {
    pub(crate) a: Socket,
    pub(crate) b: Socket,
    count: u64,
}

impl Honest {
    pub(crate) fn at(daemon: &Daemon) -> Self {
        let (a, b) = (daemon.attach().bind(0).unwrap(), daemon.attach().bind(0).unwrap());
        for socket in [&a, &b] {
            socket.set_recv_timeout(Some(LONG));
            socket.set_send_timeout(Some(LONG));
        }
        Self { a, b, count: 0 }
    }

    /// A round trip of a small message, and of one in the arena.
    #[track_caller]
    pub(crate) fn goes_on(&mut self) {
        for (from, to) in [(&self.a, &self.b), (&self.b, &self.a)] {
            for len in [8, 5000] {
                self.count += 1;
                let mut sent = vec![self.count as u8; len];
                sent[..8].copy_from_slice(&self.count.to_ne_bytes());
                from.send_to(&sent, to.local_addr()).unwrap();
                let mut got = vec![0; 6000];
                let Received::Message { len, .. } = to.recv_from(&mut got).unwrap() else {
                    panic!("only a message can come")
                };
                assert!(got[..len] == sent, "another message than was sent");
            }
        }
    }
}
