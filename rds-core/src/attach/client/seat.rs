//! A socket's seat at the daemon: where it is bound, what it may send, and what it has taken.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use super::super::Sharing;
use super::book::Account;
use crate::engine::mailbox::{Mailbox, Taken};
use crate::engine::parker::Parker;
use crate::engine::queue::Queue;
use crate::info::SocketInfo;
use crate::proto::BindError;

/// Whether the daemon has the port for us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Asked for, or to be asked for.
    Wanted,
    Bound,
    /// Somebody else has it at the moment; it is asked for again.
    Taken {
        since: Instant,
        again: Instant,
    },
    /// It cannot be had.
    Refused(BindError),
    /// It was had before the daemon was started anew, and cannot be had again.
    Lost(BindError),
    /// Closed; the daemon has not said so yet.
    Closing,
}

/// What the daemon is still to be told of a seat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unsaid {
    pub(super) bind: bool,
    pub(super) send_buffer: bool,
    pub(super) receive_buffer: bool,
    /// Closed: whether what is queued is still to be delivered.
    pub(super) close: Option<bool>,
    /// Listed among those with something to say.
    pub(super) listed: bool,
}

pub(super) struct Seat {
    pub(super) number: u32,
    pub(super) port: u16,
    pub(super) sharing: Sharing,
    pub(super) place: Place,
    /// `None` once it is closed.
    pub(super) mailbox: Option<Arc<Mailbox>>,
    pub(super) account: Account,
    /// As the program wants them; the daemon may grant less.
    pub(super) send_buffer: u64,
    pub(super) receive_buffer: u64,
    /// Destinations that take nothing at the moment.
    pub(super) congested: HashSet<SocketAddr>,
    pub(super) unsaid: Unsaid,
    /// Taken, and not reported.
    pub(super) taken: Taken,
    /// Received from this daemon, and not reported.
    pub(super) owed: Taken,
    /// Received from one before it, and not taken: this one never hears of it.
    pub(super) stale: Taken,
    /// A send that could wait was refused for want of room in ring or arena.
    pub(super) starved: bool,
    /// What came before the daemon said that it is bound.
    pub(super) early: Queue,
    /// Threads that wait until it is bound.
    pub(super) waiters: Vec<Arc<Parker>>,
}

impl Seat {
    /// Whether a send might be taken, beside congestion.
    pub(super) fn is_writable(&self) -> bool {
        self.place == Place::Bound && !self.starved && self.account.has_room()
    }

    /// The program has taken messages. Those of an earlier daemon concern nobody.
    pub(super) fn took(&mut self, taken: Taken) {
        let (bytes, messages) = (taken.bytes.min(self.stale.bytes), taken.messages.min(self.stale.messages));
        self.stale.bytes -= bytes;
        self.stale.messages -= messages;
        // Never more than was received.
        let bytes = (taken.bytes - bytes).min(self.owed.bytes);
        let messages = (taken.messages - messages).min(self.owed.messages);
        self.owed.bytes -= bytes;
        self.owed.messages -= messages;
        self.taken.bytes += bytes;
        self.taken.messages += messages;
    }

    /// A message has come.
    pub(super) fn received(&mut self, len: u64) {
        self.owed.bytes += len;
        self.owed.messages += 1;
    }

    /// What a snapshot shows of it.
    pub(super) fn info(&self, address: IpAddr) -> SocketInfo {
        SocketInfo {
            bound: SocketAddr::new(address, self.port),
            send_buffer: self.account.limit,
            send_queued: self.account.used(),
            receive_buffer: self.receive_buffer,
            receive_queued: self.owed.bytes,
            congested: self.owed.bytes > self.receive_buffer,
            pinned_bytes: 0,
        }
    }

    /// The daemon is gone; another one will be asked for the port. Returns of how many sends nobody will hear how they ended.
    pub(super) fn detached(&mut self) -> u64 {
        // What was taken and could not be reported any more is not among what is still to be taken.
        self.taken = Taken::default();
        self.stale.bytes += self.owed.bytes;
        self.stale.messages += self.owed.messages;
        self.owed = Taken::default();
        self.starved = false;
        if matches!(self.place, Place::Bound | Place::Taken { .. } | Place::Wanted) {
            self.place = Place::Wanted;
        }
        self.account.lost()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn seat() -> Seat {
        Seat {
            number: 1,
            port: 7,
            sharing: Sharing::Exclusive,
            place: Place::Bound,
            mailbox: None,
            account: Account::new(1 << 20),
            send_buffer: 1 << 20,
            receive_buffer: 1 << 20,
            congested: HashSet::new(),
            unsaid: Unsaid::default(),
            taken: Taken::default(),
            owed: Taken::default(),
            stale: Taken::default(),
            starved: false,
            early: Queue::default(),
            waiters: Vec::new(),
        }
    }

    #[test]
    fn a_daemon_hears_only_of_what_came_from_itself() {
        let mut seat = seat();
        seat.received(100);
        seat.received(50);
        seat.took(Taken { bytes: 100, messages: 1 });
        assert_eq!(seat.taken, Taken { bytes: 100, messages: 1 });
        seat.detached();
        assert_eq!(seat.taken, Taken::default());
        seat.received(10);
        seat.took(Taken { bytes: 50, messages: 1 });
        assert_eq!(seat.taken, Taken::default(), "it came from the one before");
        seat.took(Taken { bytes: 10, messages: 1 });
        assert_eq!(seat.taken, Taken { bytes: 10, messages: 1 });
    }
}
