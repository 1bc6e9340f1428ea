//! What became of messages that were sent from memory of the program's.

use std::time::{Duration, Instant};

use super::Socket;
use crate::proto::{Guarantee, Outcome, Token};

/// Completions that a socket keeps for its program: those that were not taken, and those still to come of messages sent. Past it, sends
/// that would add more are refused.
pub(crate) const LIMIT: u64 = 1 << 20;

/// A program's name for a message that it sent, unique among a socket's messages as long as fewer than 2^32 are unfinished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cookie(pub u32);

/// What became of a message. Of each exactly one of `Delivered`, `Unknown` and `Cancelled`, and of its buffer exactly one `Released`;
/// the two come in any order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Completion {
    /// Nobody reads the payload's memory any more: it was given back to its pool, or dropped.
    Released {
        /// The message.
        cookie: Cookie,
        /// Whether any byte of it was copied on its way; false when the kernel sent it from where it lay, or it was never sent.
        copied: bool,
    },
    /// The message arrived.
    Delivered {
        /// The message.
        cookie: Cookie,
        /// What that means.
        by: Guarantee,
    },
    /// The peer restarted while the message was on its way: it may or may not have arrived.
    Unknown {
        /// The message.
        cookie: Cookie,
    },
    /// The message was cancelled, or its node was shut down; it may or may not arrive.
    Cancelled {
        /// The message.
        cookie: Cookie,
    },
}

impl Completion {
    /// The message's name.
    #[must_use]
    pub const fn cookie(&self) -> Cookie {
        match *self {
            Self::Released { cookie, .. }
            | Self::Delivered { cookie, .. }
            | Self::Unknown { cookie }
            | Self::Cancelled { cookie } => cookie,
        }
    }

    pub(crate) fn ended(token: Token, outcome: Outcome) -> Self {
        // The engine makes tokens of cookies alone.
        let cookie = Cookie(token.0 as u32);
        match outcome {
            Outcome::Delivered(by) => Self::Delivered { cookie, by },
            Outcome::Unknown => Self::Unknown { cookie },
            Outcome::Cancelled => Self::Cancelled { cookie },
        }
    }
}

impl Socket {
    /// Appends all completions that are there to `out`, oldest first, and returns how many. Does not block.
    pub fn completions(&self, out: &mut Vec<Completion>) -> usize {
        self.inlet().completions(out)
    }

    /// As [`Socket::completions`], blocking until there is one, the timeout has passed (`None`: never), or the node is shut down; 0 in
    /// the latter two cases.
    pub fn wait_completions(&self, out: &mut Vec<Completion>, timeout: Option<Duration>) -> usize {
        self.inlet().wait_completions(out, timeout.and_then(|t| Instant::now().checked_add(t)))
    }

    /// A descriptor that polls readable while there are completions. Level triggered; never read it.
    ///
    /// # Errors
    /// No descriptor can be made.
    pub fn completion_fd(&self) -> std::io::Result<std::os::fd::BorrowedFd<'_>> {
        self.mailbox.completion_fd()
    }
}
