//! One attached client: what it submits, and what it is told.

mod outlet;
mod pipe;
mod requests;
mod sends;
mod socket;
mod state;
mod submissions;
mod waiting;

pub use outlet::{Ends, Outlet, Slot};
pub use submissions::{End, Session, Setup, Turn};
