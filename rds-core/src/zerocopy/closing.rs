//! The end of a socket that the kernel may still read for.
//!
//! Closing the descriptor would go on to send the pages and report nothing, so it comes last: after the peer's end, or a
//! deadline, the socket is disconnected, which makes the kernel let go of all that it holds and say so. Only what a
//! network device is sending just then takes a moment longer.

use std::time::Duration;

use crate::proto::Time;

/// How long a device may take to let go after the socket was disconnected. A guess, far above what one needs.
pub const DEVICE_LIMIT: Duration = Duration::from_secs(10);

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reap, and ask again at that time or when something happens.
    Wait(Time),
    /// Disconnect (`connect` to `AF_UNSPEC`), reap, and ask again. Ask the kernel before how much the peer's TCP has not acknowledged.
    Disconnect,
    /// The kernel reads nothing: close.
    Close,
    /// The kernel does not say that it is done. Close, and never free what it held.
    Leak,
}

/// How far the end of a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closing {
    deadline: Time,
    disconnected: bool,
}

impl Closing {
    /// The socket was shut down for writing; the peer has until `deadline` to take what is left.
    #[must_use]
    pub const fn orderly(deadline: Time) -> Self {
        Self { deadline, disconnected: false }
    }

    /// It ends now.
    #[must_use]
    pub const fn at_once(now: Time) -> Self {
        Self { deadline: now, disconnected: false }
    }

    /// The next step. `outstanding`: calls that the kernel may still read for, after reaping. `ended`: the peer's end, or an
    /// error, was read.
    #[must_use]
    pub fn next(&mut self, now: Time, outstanding: usize, ended: bool) -> Step {
        let over = ended || now >= self.deadline;
        match (self.disconnected, outstanding) {
            (false, _) if !over => Step::Wait(self.deadline),
            (_, 0) => Step::Close,
            (false, _) => {
                self.disconnected = true;
                self.deadline = now + DEVICE_LIMIT;
                Step::Disconnect
            }
            (true, _) if now < self.deadline => Step::Wait(self.deadline),
            (true, _) => Step::Leak,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Time = |seconds| Time::from_nanos(seconds * 1_000_000_000);

    #[test]
    fn an_orderly_end_waits_for_the_peer_and_then_just_closes() {
        let mut closing = Closing::orderly(AT(5));
        assert_eq!(closing.next(AT(0), 3, false), Step::Wait(AT(5)));
        assert_eq!(closing.next(AT(1), 0, false), Step::Wait(AT(5)), "the peer may still send");
        assert_eq!(closing.next(AT(2), 0, true), Step::Close);
    }

    #[test]
    fn what_the_kernel_holds_is_disconnected_before_it_is_closed() {
        for (mut closing, ended) in [(Closing::orderly(AT(5)), true), (Closing::at_once(AT(1)), false)] {
            assert_eq!(closing.next(AT(1), 2, ended), Step::Disconnect);
            assert_eq!(closing.next(AT(1), 0, ended), Step::Close);
        }
        let mut closing = Closing::orderly(AT(5));
        assert_eq!(closing.next(AT(5), 1, false), Step::Disconnect);
        assert_eq!(closing.next(AT(5), 1, false), Step::Wait(AT(15)), "a device has it");
        assert_eq!(closing.next(AT(6), 0, false), Step::Close);
    }

    #[test]
    fn what_the_kernel_never_lets_go_is_never_freed() {
        let mut closing = Closing::at_once(AT(0));
        assert_eq!(closing.next(AT(0), 1, false), Step::Disconnect);
        assert_eq!(closing.next(AT(9), 1, true), Step::Wait(AT(10)));
        assert_eq!(closing.next(AT(10), 1, true), Step::Leak);
    }
}
