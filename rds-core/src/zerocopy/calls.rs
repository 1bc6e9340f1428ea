//! What a writer needs of a TCP socket: calls that copy and calls that pin, and notifications.

use std::time::Duration;

use crate::buffer::Chunk;
use crate::proto::Time;

/// How a call ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// What comes next starts a new segment buffer (MSG_EOR).
    pub record: bool,
    /// More follows at once (MSG_MORE); without it the data waits for 200 ms.
    pub more: bool,
}

/// Why a call took nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The send buffer has no room; an event tells when it has again.
    Full,
    /// No memory: of a call that pins, no more may be pinned (ENOBUFS). No event tells when there is some.
    NoMemory,
    /// These pages cannot be pinned (EFAULT).
    Unpinnable,
    /// The connection is broken.
    Failed,
}

/// What the kernel may read: references that must live until the call that was given them is notified.
pub trait Held {
    /// What was given to the call.
    fn pieces(&self) -> &[Chunk];
    /// The references. To be called when the call was notified, and not before.
    fn release(self) -> Vec<Chunk>;
}

/// One TCP socket.
pub trait Wire {
    /// What a pinned call holds.
    type Held: Held;

    /// The time.
    fn now(&self) -> Time;

    /// CPU time that this thread has used.
    fn cpu_time(&self) -> Duration;

    /// One call that copies: the bytes it took, at least one.
    ///
    /// # Errors
    /// It took nothing.
    fn copy(&mut self, pieces: &[Chunk], ending: Ending) -> Result<usize, Refusal>;

    /// Longest payload, a whole number of pages, that one pinned call should carry at present; longer ones take several. `None`: any.
    fn cut(&self) -> Option<usize> {
        None
    }

    /// One call that pins: the bytes it took, at least one. It uses up a number of the socket.
    ///
    /// # Errors
    /// It took nothing, used up no number, and gives the pieces back.
    fn pin(
        &mut self,
        pieces: Vec<Chunk>,
        ending: Ending,
    ) -> Result<(usize, Self::Held), (Refusal, Vec<Chunk>)>;

    /// Reads all notifications that are there: first and last number, and whether the kernel copied.
    fn reap(&mut self, on: &mut dyn FnMut(u32, u32, bool));
}

/// What a write came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wrote {
    /// Bytes that TCP has.
    pub bytes: usize,
    /// Why not all.
    pub stop: Option<Stop>,
}

/// Why not all was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// TCP's send buffer is full.
    Full,
    /// The kernel has no memory at the moment, and no event will tell.
    NoMemory,
    /// The connection is broken.
    Failed,
}
