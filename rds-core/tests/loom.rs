//! The shared ledger under every interleaving of a writer, a reaper and a close (model checker loom).
//!
//! Empty in normal builds. Run with a folder of its own, so that normal builds stay as they are:
//! `RUSTFLAGS="--cfg loom" cargo test -p rds-core --release --test loom --target-dir target/loom`.
#![cfg(loom)]

use std::collections::VecDeque;

use loom::sync::{Arc, Mutex};
use loom::thread;
use rds_core::proto::Time;
use rds_core::zerocopy::{Released, SharedLedger};

const NOW: Time = Time::ZERO;

/// What a call holds. Dropping it anywhere but in the hands of whoever got it back is a fault.
#[derive(Debug)]
struct Held {
    call: u32,
    returned: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        assert!(self.returned, "call {} was dropped by the ledger", self.call);
    }
}

/// The kernel's side of one socket.
#[derive(Default)]
struct Kernel {
    next: u32,
    /// Numbers whose pages it has let go, for the error queue.
    queue: VecDeque<u32>,
    disconnected: bool,
}

struct Socket {
    kernel: Mutex<Kernel>,
    ledger: SharedLedger<Held>,
}

impl Socket {
    fn new() -> Arc<Self> {
        Arc::new(Self { kernel: Mutex::default(), ledger: SharedLedger::new() })
    }

    /// One call with `MSG_ZEROCOPY`; the kernel may notify it before the writer is back. None if it was refused.
    fn write(&self, call: u32, returned: &mut Vec<u32>) -> Option<u32> {
        if !self.ledger.begin(NOW, 3) {
            return None;
        }
        let id = {
            let mut kernel = self.kernel.lock().unwrap();
            if kernel.disconnected {
                None
            } else {
                let id = kernel.next;
                kernel.next += 1;
                kernel.queue.push_back(id);
                Some(id)
            }
        };
        if id.is_some() {
            let back = self.ledger.commit(Held { call, returned: false });
            returned.extend(back.map(take));
        } else {
            assert_eq!(self.ledger.failed(), 3, "the pages that were charged come back");
        }
        id
    }

    /// Reads the error queue to its end, merging what is next to each other.
    fn reap(&self, returned: &mut Vec<u32>) {
        let range = {
            let mut kernel = self.kernel.lock().unwrap();
            let range = kernel.queue.front().copied().zip(kernel.queue.back().copied());
            kernel.queue.clear();
            range
        };
        let mut out = Vec::new();
        if let Some((first, last)) = range {
            self.ledger.notified(NOW, first, last, false, &mut out);
        }
        returned.extend(out.into_iter().map(take));
    }

    /// As the engine ends a socket: true if nothing was left; otherwise it reaps, and asks again.
    fn close(&self, returned: &mut Vec<u32>) -> bool {
        self.kernel.lock().unwrap().disconnected = true;
        self.reap(returned);
        self.ledger.finish()
    }
}

fn take(mut released: Released<Held>) -> u32 {
    released.held.returned = true;
    assert_eq!(released.pages, 3);
    released.held.call
}

#[test]
fn loom_what_a_writer_holds_comes_back_exactly_once_from_a_reaper() {
    loom::model(|| {
        let socket = Socket::new();
        let reaper = thread::spawn({
            let socket = Arc::clone(&socket);
            move || {
                let mut returned = Vec::new();
                socket.reap(&mut returned);
                socket.reap(&mut returned);
                returned
            }
        });
        let mut returned = Vec::new();
        for call in 0..3 {
            assert!(socket.write(call, &mut returned).is_some());
            if call == 1 {
                // As before it decides what an `ENOBUFS` means.
                socket.reap(&mut returned);
            }
        }
        returned.extend(reaper.join().unwrap());
        socket.reap(&mut returned);
        returned.sort_unstable();
        assert_eq!(returned, [0, 1, 2]);
        assert_eq!((socket.ledger.outstanding(), socket.ledger.pages()), (0, 0));
    });
}

#[test]
fn loom_a_close_returns_everything_exactly_once_whatever_writer_and_reaper_do() {
    loom::model(|| {
        let socket = Socket::new();
        let writer = thread::spawn({
            let socket = Arc::clone(&socket);
            move || {
                let mut returned = Vec::new();
                let accepted: Vec<_> =
                    (0..2).filter(|call| socket.write(*call, &mut returned).is_some()).collect();
                (accepted, returned)
            }
        });
        let reaper = thread::spawn({
            let socket = Arc::clone(&socket);
            move || {
                let mut returned = Vec::new();
                socket.reap(&mut returned);
                returned
            }
        });
        let mut returned = Vec::new();
        let finished = socket.close(&mut returned);
        if finished {
            assert_eq!(socket.ledger.outstanding(), 0, "nothing is left, and no call begins any more");
        }
        let (accepted, by_writer) = writer.join().unwrap();
        returned.extend(by_writer);
        returned.extend(reaper.join().unwrap());
        if !finished {
            socket.reap(&mut returned);
            assert!(socket.ledger.finish(), "the kernel has let everything go");
        }
        returned.sort_unstable();
        assert_eq!(returned, accepted);
        assert_eq!((socket.ledger.outstanding(), socket.ledger.pages()), (0, 0));
        assert!(!socket.ledger.begin(NOW, 3), "no call begins once the socket is finished");
    });
}
