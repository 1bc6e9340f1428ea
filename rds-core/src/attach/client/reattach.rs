//! Attaching, and attaching again after the daemon has gone.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::super::{self as protocol, AttachError, Attached, Hello};
use super::core::Line;
use super::link::Link;
use super::seat::Place;
use super::shared::Shared;
use crate::engine::wait::Waits;

/// Pauses between attempts to attach again: from, up to, doubling.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long a daemon may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Starts the thread that sees the end of an attachment when no caller does, and looks for the next daemon.
pub(super) fn keep(shared: &Shared) -> std::io::Result<JoinHandle<()>> {
    let weak = shared.this.clone();
    std::thread::Builder::new().name("rds attach".to_owned()).spawn(move || while keep_on(&weak) {})
}

fn keep_on(weak: &Weak<Shared>) -> bool {
    let Some(shared) = weak.upgrade() else { return false };
    let (link, epoch) = {
        let inbox = shared.inbox();
        (inbox.link.clone(), inbox.epoch)
    };
    if shared.is_stopped() {
        return false;
    }
    let Some(link) = link else { return again(weak, shared) };
    drop(shared);
    // Nothing is asked for: its end is told in any case.
    let ended = match poll(&mut [PollFd::new(link.socket.as_fd(), PollFlags::empty())], PollTimeout::NONE) {
        Ok(n) => n > 0,
        Err(_) => false,
    };
    drop(link);
    if ended && let Some(shared) = weak.upgrade() {
        shared.hung_up(epoch);
    }
    true
}

/// Looks for a daemon until there is one.
fn again(weak: &Weak<Shared>, mut shared: Arc<Shared>) -> bool {
    let mut pause = FIRST_PAUSE;
    let mut told = false;
    loop {
        if shared.is_stopped() {
            return false;
        }
        match attach(&shared.path, &shared.hello) {
            Ok(attached) => {
                if install(&shared, attached) {
                    tracing::info!(path = %shared.path.display(), "attached again");
                    return true;
                }
            }
            Err(error) => {
                if !told {
                    told = true;
                    tracing::warn!(path = %shared.path.display(), %error, "cannot attach again yet; trying on");
                }
            }
        }
        // Many programs lose the same daemon at the same moment.
        let wait = pause.mul_f64(0.5 + fastrand::f64() / 2.0);
        pause = (pause * 2).min(LONGEST_PAUSE);
        let (halted, changed) = &shared.halt;
        let halted = halted.lock().unwrap_or_else(PoisonError::into_inner);
        let (halted, _) = changed
            .wait_timeout_while(halted, wait, |halted| !*halted)
            .unwrap_or_else(PoisonError::into_inner);
        if *halted {
            return false;
        }
        drop(halted);
        // Not kept over the next attempt alone: its last user may go.
        drop(shared);
        match weak.upgrade() {
            Some(still) => shared = still,
            None => return false,
        }
    }
}

/// Attaches once.
pub(super) fn attach(path: &Path, hello: &Hello) -> Result<Attached, AttachError> {
    protocol::attach(path, hello, ANSWER)
}

/// Takes an attachment into use: every socket is bound again. False if it is not the node that was left.
pub(super) fn install(shared: &Shared, attached: Attached) -> bool {
    let Attached { channel, welcome, send_arena, receive_arena } = attached;
    let mut inbox = shared.inbox();
    let mut core = shared.core();
    if shared.stopped.load(SeqCst) || core.line.is_some() {
        return false;
    }
    if welcome.address.ip != core.address {
        tracing::error!(
            was = %core.address, now = %welcome.address.ip,
            "the daemon has another address now: it is not the node that this program is attached to"
        );
        return false;
    }
    let link = Arc::new(Link::new(welcome, channel.socket, send_arena, receive_arena));
    inbox.consumer = Some(channel.consumer);
    inbox.wakeup = Some(channel.wakeup);
    inbox.link = Some(Arc::clone(&link));
    inbox.epoch += 1;
    core.line = Some(Line { link, producer: channel.producer });
    if inbox.epoch > 1 {
        core.reattachments += 1;
    }
    let seats: Vec<_> = core.seats.iter().flatten().filter(|seat| seat.place == Place::Wanted).collect();
    let numbers: Vec<_> = seats.iter().map(|seat| seat.number).collect();
    for number in numbers {
        if let Some(seat) = core.seat_mut(number) {
            seat.unsaid.bind = true;
        }
        core.say(number);
    }
    core.room_again();
    drop(inbox);
    shared.settle(core, true);
    // Whoever polls has other descriptors to watch.
    shared.right.kick();
    true
}
