//! What the daemon says.

use std::net::SocketAddr;

use super::super::fault::Violation;
use super::{ARENA, Draft, Encode, Encoded, HEADER, Raw, V6, Where, YES, kind};
use crate::proto::{Guarantee, Outcome};

/// How a request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// It was done.
    Ok,
    /// Port 1 cannot be bound.
    Reserved,
    /// Somebody else has the port, or has it in another way.
    InUse,
    /// No port is free.
    Exhausted,
    /// The daemon is shutting down.
    ShuttingDown,
    /// More than this client, or its user, may have.
    Quota,
    /// This user may not.
    NotAllowed,
    /// The client has no such socket, or has it already (bind).
    NoSuchSocket,
    /// The daemon cannot do this.
    Unsupported,
    /// One that this version does not know.
    Other(u32),
}

impl Status {
    const KNOWN: [Self; 9] = [
        Self::Ok,
        Self::Reserved,
        Self::InUse,
        Self::Exhausted,
        Self::ShuttingDown,
        Self::Quota,
        Self::NotAllowed,
        Self::NoSuchSocket,
        Self::Unsupported,
    ];

    fn code(self) -> u32 {
        match self {
            Self::Other(code) => code,
            known => Self::KNOWN.iter().position(|k| *k == known).map_or(u32::MAX, |n| n as u32),
        }
    }

    fn of(code: u32) -> Self {
        Self::KNOWN.get(code as usize).copied().unwrap_or(Self::Other(code))
    }
}

/// From the daemon to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// A message came.
    Message {
        /// The socket that it is for.
        socket: u32,
        /// Who sent it.
        from: SocketAddr,
        /// The message. A part of the arena is the program's until it says [`Submission::Free`](super::Submission::Free).
        payload: Where,
    },
    /// A send ended that asked for it.
    Done {
        /// The socket.
        socket: u32,
        /// Number of the send.
        id: u32,
        /// How.
        outcome: Outcome,
    },
    /// The daemon needs a send's part of the arena no more.
    Released {
        /// The socket.
        socket: u32,
        /// Number of the send.
        id: u32,
        /// The kernel copied it, though it was to be sent without a copy.
        copied: bool,
    },
    /// Sends ended that did not ask for more: so much room is there again in the send buffer.
    Credit {
        /// The socket.
        socket: u32,
        /// Their payload in bytes.
        bytes: u64,
        /// How many.
        messages: u64,
    },
    /// A destination is congested. Further sends wait, and [`Completion::Uncongested`] follows.
    Congested {
        /// The socket.
        socket: u32,
        /// Destination.
        to: SocketAddr,
    },
    /// A destination is not congested any more.
    Uncongested {
        /// The socket.
        socket: u32,
        /// Destination.
        to: SocketAddr,
    },
    /// The answer to a request.
    Reply {
        /// Its number.
        request: u32,
        /// How it went.
        status: Status,
        /// What its kind says.
        value: u64,
        /// Bytes that follow; what they are, its kind says.
        body_len: u32,
    },
    /// The daemon ends the attachment. The body says why.
    Goodbye {
        /// Why, as a number of [`RefusalCode`](crate::attach::RefusalCode).
        code: u16,
        /// Bytes of text that follow.
        body_len: u32,
    },
}

impl Encode for Completion {
    #[inline]
    fn encode(&self) -> Encoded {
        match *self {
            Self::Message { socket, from, payload } => {
                Draft::new(kind::MESSAGE, socket, 0).address(from).payload(payload)
            }
            Self::Done { socket, id, outcome } => {
                let outcome = match outcome {
                    Outcome::Delivered(Guarantee::Application) => 0,
                    Outcome::Delivered(Guarantee::Transport) => 1,
                    Outcome::Unknown => 2,
                    Outcome::Cancelled => 3,
                };
                Draft::new(kind::DONE, socket, id).flag(outcome, true).body(0)
            }
            Self::Released { socket, id, copied } => {
                Draft::new(kind::RELEASED, socket, id).flag(YES, copied).body(0)
            }
            Self::Credit { socket, bytes, messages } => {
                Draft::new(kind::CREDIT, socket, 0).a(bytes).b(messages).body(0)
            }
            Self::Congested { socket, to } => Draft::new(kind::CONGESTED, socket, 0).address(to).body(0),
            Self::Uncongested { socket, to } => Draft::new(kind::UNCONGESTED, socket, 0).address(to).body(0),
            Self::Reply { request, status, value, body_len } => {
                Draft::new(kind::REPLY, status.code(), request).a(value).body(body_len)
            }
            Self::Goodbye { code, body_len } => Draft::new(kind::GOODBYE, code.into(), 0).body(body_len),
        }
    }
}

impl Completion {
    /// What a record says.
    ///
    /// # Errors
    /// It says nothing that a daemon may say.
    #[inline]
    pub fn decode(raw: &Raw) -> Result<Self, Violation> {
        let (socket, id) = (raw.socket(), raw.id());
        Ok(match raw.kind() {
            kind::MESSAGE => {
                raw.only(V6 | ARENA)?;
                Self::Message { socket, from: raw.address(), payload: raw.payload()? }
            }
            kind::DONE => {
                raw.exactly(HEADER)?;
                let outcome = match raw.flags() {
                    0 => Outcome::Delivered(Guarantee::Application),
                    1 => Outcome::Delivered(Guarantee::Transport),
                    2 => Outcome::Unknown,
                    3 => Outcome::Cancelled,
                    other => return Err(raw.field("flags", other)),
                };
                Self::Done { socket, id, outcome }
            }
            kind::RELEASED => {
                raw.exactly(HEADER)?;
                raw.only(YES)?;
                Self::Released { socket, id, copied: raw.flags() == YES }
            }
            kind::CREDIT => {
                raw.exactly(HEADER)?;
                raw.only(0)?;
                Self::Credit { socket, bytes: raw.a(), messages: raw.b() }
            }
            kind::CONGESTED => Self::Congested { socket, to: raw.addressed()? },
            kind::UNCONGESTED => Self::Uncongested { socket, to: raw.addressed()? },
            kind::REPLY => {
                raw.only(0)?;
                let body_len = raw.at_least(HEADER)?;
                Self::Reply { request: id, status: Status::of(socket), value: raw.a(), body_len }
            }
            kind::GOODBYE => {
                raw.only(0)?;
                let code = u16::try_from(socket).map_err(|_| raw.field("code", socket))?;
                Self::Goodbye { code, body_len: raw.at_least(HEADER)? }
            }
            other => return Err(Violation::Kind(other)),
        })
    }
}
