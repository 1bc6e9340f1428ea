//! Memory of payloads: lent to the node while it sends, taken from a pool while it receives.
//!
//! What is lent cannot be written by anybody in this process (a [`Span`] is shared with another, so nobody gets a reference to its bytes): a [`Chunk`] hands out shared references alone, and the memory comes back, or the
//! program hears that it is free, when the last reference goes. The kernel's own references are among them: whoever hands a
//! chunk to a MSG_ZEROCOPY call keeps a clone until the error queue tells that the call is over.

mod chunk;
mod filling;
mod lent;
mod pool;

pub use chunk::Chunk;
pub use filling::{Assembled, Filling, Memory, Placed, SpanOwner};
pub use lent::{Lent, OnRelease, Owned, Terms, View};
pub(crate) use pool::OnFree;
pub use pool::{Pool, PoolBuffer};

pub use crate::sys::region::MappedPages;
pub use crate::sys::shm::Span;
