//! What a host's daemon and the programs that it serves say to each other. `docs/local-protocol.md` has it byte for byte.
//!
//! * `hello`: how an attachment begins; `greeting` has the layout of its messages.
//! * `channel`: one end of an attachment, in whatever form; the rest uses this alone.
//! * [`ring`]: a ring of bytes between two who need not trust each other; `shared`: in shared memory. `stream`: records over the socket instead.
//! * [`record`]: what passes through.
//! * [`client`]: the program's end, as programs use it.
//! * `arena`: large payloads. `doorbell`: waking the other side. `fault`: what the other side can do wrong.

mod arena;
mod channel;
pub mod client;
mod doorbell;
mod fault;
mod greeting;
mod hello;
pub mod record;
pub mod ring;
mod shared;
mod stream;

#[cfg(test)]
mod tests;

pub use arena::{ReceiveArena, SubmittedArena};
pub use channel::{Channel, Consumer, Producer, Record, Slot};
pub use doorbell::{Doorbell, Wakeup};
pub use fault::{Fault, Violation};
pub use greeting::{Garbled, Hello, NodeAddress, Refusal, RefusalCode, VERSIONS, Welcome};
pub use hello::{
    Accepted, AttachError, Attached, Credentials, Greeting, GreetingError, MAX_ARENA, arena_size, attach,
    ring_capacity,
};
pub use record::{Completion, Encode, Setting, Sharing, Status, Submission, Where};

pub use crate::sys::arena::{ArenaBuffer, ArenaLease, LeaseArena, Returned, SendArena};
pub use crate::sys::shm::{Access, SharedMemory, Span, copied, count_copies};
