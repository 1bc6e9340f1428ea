//! The logic of zero copy, pure: what the kernel holds, what may be pinned, how a stream is cut, and whether it pays.
//!
//! Nothing here does I/O, reads a clock or starts a thread: time comes in as [`crate::proto::Time`]. So all of it runs
//! under property tests, a model checker and simulations with virtual time. Its drivers do the system calls.
//!
//! * [`ledger`]: which calls with `MSG_ZEROCOPY` the kernel has not notified yet, and what each of them holds.
//! * [`shared`]: the same for a thread that writes and one that reaps.
//! * [`plan`]: how a run of stream pieces is cut into calls so that the receiver can map the pages.
//! * [`writer`]: all of a socket's sending side, over these; [`calls`]: what it needs of the socket; [`counts`]: what it did;
//!   [`closing`]: its end.
//! * [`budget`]: pages that may be pinned, for a node and for each of its sockets.
//! * [`controller`], [`map_controller`]: whether a message is pinned when sent, or mapped when received.
//! * [`compare`]: what two ways of moving a message cost, measured seldom and judged robustly.
//! * [`receiving`]: what a path counts while it receives.
//! * [`slots`]: which pages of a region are filled next, and when those that were used are unmapped.
//! * [`mode`]: settings of the controllers, and what they report.

pub mod budget;
pub mod calls;
pub mod closing;
pub mod compare;
pub mod controller;
mod controllers;
pub mod counts;
pub mod ledger;
pub mod map_controller;
pub mod mode;
pub mod plan;
mod probe;
pub mod receiving;
pub mod shared;
pub mod slots;
pub mod writer;

pub use budget::{Budget, Cap, Full, Limits, Share, WhenFull};
pub use calls::{Ending, Held, Refusal, Stop, Wire, Wrote};
pub use closing::{Closing, Step};
pub use controller::{Choice, SendController};
pub use counts::{Fallbacks, Gauge, SendCounts};
pub use ledger::{Ledger, Notified, Released, charge};
pub use map_controller::MapController;
pub use mode::{Decision, Mode, Reason};
pub use plan::{Call, Piece, next_call};
pub use receiving::{CopiedBytes, CopyReason, ReceiveCounts};
pub use shared::SharedLedger;
pub use slots::Slots;
pub use writer::{PathSettings, SendPath, Writer};
