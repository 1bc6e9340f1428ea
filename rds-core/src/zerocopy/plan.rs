//! How a run of stream pieces is cut into calls, so that the receiver can map pages instead of copying them.
//!
//! The bytes of the stream stay what they are: header, payload, header, payload. What moves are the borders of the
//! kernel's segment buffers. A receiver can map a page only if it begins where a page of the sender began, so each large
//! payload must begin a segment buffer of its own: what comes before it ends with `MSG_EOR`. Its *next* header may ride
//! behind it, in the same call and pinned with it, where it spoils nothing and saves a call.
//!
//! A run should not end between a header and its payload: the payload then follows in a later run, correct, but perhaps
//! in the segment buffer of its header, where it cannot be mapped.

/// Length of a header, in bytes.
const HEADER: usize = crate::wire::HEADER_LEN;

/// Most bytes that one pinned call carries besides a header: 1 MiB. A single call that pins more than `RLIMIT_MEMLOCK`
/// allows can never succeed, and the kernel does not shorten it.
pub const MAX_PINNED: usize = 1 << 20;

/// A piece of the stream, in one stretch of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Bytes.
    pub len: usize,
    /// A large payload (or what is left of one) that is to be sent without a copy. Longer than [`MAX_PINNED`] or empty it
    /// is copied nevertheless.
    pub pinnable: bool,
}

impl Piece {
    const fn pinned(self) -> bool {
        self.pinnable && self.len > 0 && self.len <= MAX_PINNED
    }
}

/// The next call to make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// So many pieces from the front of the run; 0 for an empty run only.
    pub pieces: usize,
    /// With `MSG_ZEROCOPY`: all of them are pinned, a header among them too.
    pub pinned: bool,
    /// With `MSG_EOR`: what follows begins a new segment buffer.
    pub end_record: bool,
    /// With `MSG_MORE`: the rest of the run must follow at once, or the bytes wait for 200 ms.
    pub more: bool,
}

/// The first call for a run of `pieces`, of at most `max_pieces` pieces (0 counts as 1). Costs as much as it takes pieces.
#[must_use]
pub fn next_call(pieces: &[Piece], max_pieces: usize) -> Call {
    let max = max_pieces.max(1);
    match pieces {
        [] => Call::default(),
        [payload, header, next, ..]
            if payload.pinned() && is_header(*header) && next.pinned() && max >= 2 =>
        {
            Call { pieces: 2, pinned: true, end_record: true, more: false }
        }
        // Without MSG_MORE: a large payload fills its segments, and holding back its last one gains nothing.
        [payload, ..] if payload.pinned() => Call { pieces: 1, pinned: true, end_record: true, more: false },
        _ => {
            let n = pieces.iter().take(max).take_while(|p| !p.pinned()).count();
            let next = pieces.get(n);
            Call {
                pieces: n,
                pinned: false,
                end_record: next.is_some_and(|p| p.pinned()),
                more: next.is_some(),
            }
        }
    }
}

const fn is_header(piece: Piece) -> bool {
    !piece.pinnable && piece.len == HEADER
}
