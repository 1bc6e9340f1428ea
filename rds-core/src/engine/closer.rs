//! Where sockets end that the kernel still reads for although they were disconnected: a network device is sending just
//! then, or a thread is in a call.
//!
//! One thread for all nodes of the process, while there is such a socket.

use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::link::{Link, Sending};
use super::shared::time_since;
use crate::buffer::Chunk;
use crate::zerocopy::{Closing, Step};

/// How often it looks: there is no event for a socket in no poll set, and it takes microseconds as a rule.
const PERIOD: Duration = Duration::from_millis(5);

/// Something to be ended.
pub(crate) enum Orphan {
    Link(Arc<Link>),
    /// Of a link that was dropped: what the kernel still reads, and what it does not.
    Rest {
        sending: Option<(TcpStream, Arc<Sending>)>,
        released: Vec<Chunk>,
    },
}

impl Orphan {
    /// Appends what may be dropped; returns the calls that the kernel still reads for.
    fn look(&mut self, out: &mut Vec<Chunk>) -> usize {
        match self {
            Self::Link(link) => {
                let done = link.finish(out);
                if done { 0 } else { link.path().outstanding().max(1) }
            }
            Self::Rest { sending, released } => {
                out.append(released);
                match sending {
                    Some((stream, sending)) if !sending.finish(stream, out) => {
                        sending.path.outstanding().max(1)
                    }
                    _ => 0,
                }
            }
        }
    }
}

struct State {
    running: bool,
    new: Vec<Orphan>,
}

static STATE: Mutex<State> = Mutex::new(State { running: false, new: Vec::new() });

/// Ends a socket in the background. Blocks for no longer than it takes to start a thread.
pub(crate) fn adopt(orphan: Orphan) {
    let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    state.new.push(orphan);
    if !state.running {
        state.running = std::thread::Builder::new().name("rds closer".to_owned()).spawn(run).is_ok();
        if !state.running {
            tracing::error!(
                "cannot start a thread; {} sockets stay open until the next one ends",
                state.new.len()
            );
        }
    }
}

fn run() {
    let origin = Instant::now();
    let mut all: Vec<(Orphan, Closing)> = Vec::new();
    loop {
        {
            let mut state = STATE.lock().unwrap_or_else(PoisonError::into_inner);
            let now = time_since(origin);
            for orphan in state.new.drain(..) {
                let mut closing = Closing::at_once(now);
                // It was disconnected before it came here.
                let _ = closing.next(now, 1, true);
                all.push((orphan, closing));
            }
            if all.is_empty() {
                state.running = false;
                return;
            }
        }
        let now = time_since(origin);
        let mut released = Vec::new();
        all.retain_mut(|(orphan, closing)| match closing.next(now, orphan.look(&mut released), true) {
            Step::Wait(_) | Step::Disconnect => true,
            Step::Close => false,
            Step::Leak => {
                tracing::error!(
                    "the kernel did not let go of a closed connection's memory, which is never freed"
                );
                false
            }
        });
        for chunk in released {
            if catch_unwind(AssertUnwindSafe(|| drop(chunk))).is_err() {
                tracing::error!("the drop of a payload panicked");
            }
        }
        if !all.is_empty() {
            std::thread::sleep(PERIOD);
        }
    }
}
