//! What can be wrong with what the other side wrote.

use std::io;

use thiserror::Error;

/// The other side broke the rules of the local protocol (`docs/local-protocol.md`). It is not to be served any further; nothing else is harmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// The end of what is written went back.
    #[error("the ring's tail went back from {from} to {to}")]
    TailBack {
        /// Where it was, in bytes since the beginning.
        from: u64,
        /// Where it is said to be.
        to: u64,
    },
    /// More is said to be written than the ring holds.
    #[error("the ring's tail {tail} is more than {capacity} bytes past its head {head}")]
    TailAhead {
        /// The end of what is said to be written.
        tail: u64,
        /// The end of what was read.
        head: u64,
        /// Bytes in the ring.
        capacity: u64,
    },
    /// The end of what is read went back.
    #[error("the ring's head went back from {from} to {to}")]
    HeadBack {
        /// Where it was.
        from: u64,
        /// Where it is said to be.
        to: u64,
    },
    /// More is said to be read than was written.
    #[error("the ring's head {head} is past its tail {tail}")]
    HeadAhead {
        /// The end of what is said to be read.
        head: u64,
        /// The end of what was written.
        tail: u64,
    },
    /// A position that no record can begin at.
    #[error("the ring's position {0} is not a multiple of 16")]
    Unaligned(u64),
    /// A record that does not lie within what was written, or not within the ring.
    #[error("a record of {len} bytes where there are {available}")]
    Length {
        /// Its length in bytes, as its header says.
        len: u32,
        /// How long it could be.
        available: u64,
    },
    /// A kind that this direction does not have.
    #[error("a record of kind {0}, which is none of this direction")]
    Kind(u8),
    /// A body that its kind does not have.
    #[error("a record of kind {kind} with {len} bytes")]
    Size {
        /// Its kind.
        kind: u8,
        /// Its length in bytes, with the header.
        len: u32,
    },
    /// A field with a value that it cannot have.
    #[error("a record of kind {kind} with {field} {value}")]
    Field {
        /// Its kind.
        kind: u8,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// A part of the arena that is not in it.
    #[error("{len} bytes at {offset} are not within the arena of {arena}")]
    OutsideArena {
        /// Where it begins.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// Bytes of the arena.
        arena: u64,
    },
    /// Gives back what was not lent.
    #[error("nothing is out at {0} of the arena")]
    NotOut(u64),
}

/// Why nothing more will come from the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// It closed the connection.
    #[error("the other side closed the connection")]
    Closed,
    /// The connection failed.
    #[error("the connection failed: {0}")]
    Io(io::ErrorKind),
    /// It broke the rules.
    #[error("{0}")]
    Violation(#[from] Violation),
}

impl From<io::Error> for Fault {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Self::Closed,
            kind => Self::Io(kind),
        }
    }
}

impl From<rustix::io::Errno> for Fault {
    fn from(e: rustix::io::Errno) -> Self {
        io::Error::from(e).into()
    }
}
