//! What programs say.

use std::net::{IpAddr, SocketAddr};

use super::super::fault::Violation;
use super::{
    ARENA, Draft, Encode, Encoded, FULL, HEADER, MODE_SHIFT, Raw, V6, WANTS_END, Where, YES, kind, mode_code,
};
use crate::zerocopy::Mode;

/// Who else may bind the same port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// Nobody, as in RDS.
    #[default]
    Exclusive,
    /// Others that balance: each message goes to one of them.
    Balance,
    /// Others that fan out: each gets each message.
    FanOut,
}

/// What [`Submission::Set`] sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Setting {
    /// Send buffer in bytes.
    SendBuffer,
    /// Receive buffer in bytes.
    ReceiveBuffer,
    /// Whether payloads are sent without a copy: the value is 0 as the path says, 1 off, 2 on, 3 auto.
    ZeroCopySend,
    /// Whether messages are mapped when they are received; values as above.
    ZeroCopyReceive,
}

/// From a program to the daemon. `request` is repeated in the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submission {
    /// Send a message.
    Send {
        /// The socket.
        socket: u32,
        /// Number of the send, of no other one that is not ended or still holds a part of the arena.
        id: u32,
        /// Destination.
        to: SocketAddr,
        /// How it ended is wanted ([`Completion::Done`](super::Completion::Done)), not only that it did ([`Completion::Credit`](super::Completion::Credit)).
        wants_end: bool,
        /// Whether it is sent without a copy; `None` as socket and path say.
        mode: Option<Mode>,
        /// The message.
        payload: Where,
    },
    /// Bind a socket.
    Bind {
        /// Number of the request.
        request: u32,
        /// Number that the socket is to have, of no other one of this client.
        socket: u32,
        /// Port; 0 for any.
        port: u16,
        /// Who else may have the port.
        sharing: Sharing,
        /// Send buffer in bytes; 0 for the node's default.
        send_buffer: u64,
        /// Receive buffer in bytes; 0 for the node's default.
        receive_buffer: u64,
    },
    /// Close a socket.
    Close {
        /// Number of the request.
        request: u32,
        /// The socket.
        socket: u32,
        /// What it has sent is still delivered.
        drain: bool,
    },
    /// Set something of a socket.
    Set {
        /// Number of the request.
        request: u32,
        /// The socket.
        socket: u32,
        /// What.
        what: Setting,
        /// To what.
        value: u64,
    },
    /// Forget messages of a socket.
    Cancel {
        /// Number of the request; the reply's value is how many.
        request: u32,
        /// The socket.
        socket: u32,
        /// Those to this destination alone.
        to: Option<SocketAddr>,
    },
    /// Is a destination congested? The reply's value is 1 if so, and [`Completion::Uncongested`](super::Completion::Uncongested) follows.
    Watch {
        /// Number of the request.
        request: u32,
        /// The socket.
        socket: u32,
        /// Destination.
        to: SocketAddr,
    },
    /// The program has taken received messages.
    Consumed {
        /// The socket.
        socket: u32,
        /// Their payload in bytes.
        bytes: u64,
        /// How many.
        messages: u64,
    },
    /// A part of the receive arena is free again.
    Free {
        /// Where it begins, as its message said.
        offset: u64,
    },
    /// A snapshot of the node. The reply's body is JSON.
    Snapshot {
        /// Number of the request.
        request: u32,
        /// With the messages in its queues.
        queues: bool,
    },
    /// Whether payloads to and from a peer travel without a copy; `None` as the node's options say.
    SetPeerModes {
        /// Number of the request.
        request: u32,
        /// The peer.
        peer: IpAddr,
        /// Sending.
        send: Option<Mode>,
        /// Receiving.
        receive: Option<Mode>,
    },
}

impl Encode for Submission {
    #[inline]
    fn encode(&self) -> Encoded {
        match *self {
            Self::Send { socket, id, to, wants_end, mode, payload } => Draft::new(kind::SEND, socket, id)
                .address(to)
                .flag(WANTS_END, wants_end)
                .flag(mode_code(mode) << MODE_SHIFT, true)
                .payload(payload),
            Self::Bind { request, socket, port, sharing, send_buffer, receive_buffer } => {
                let sharing = match sharing {
                    Sharing::Exclusive => 0,
                    Sharing::Balance => 1,
                    Sharing::FanOut => 2,
                };
                let bind = Draft::new(kind::BIND, socket, request).port(port).flag(sharing, true);
                bind.a(send_buffer).b(receive_buffer).body(0)
            }
            Self::Close { request, socket, drain } => {
                Draft::new(kind::CLOSE, socket, request).flag(YES, drain).body(0)
            }
            Self::Set { request, socket, what, value } => {
                let what = match what {
                    Setting::SendBuffer => 0,
                    Setting::ReceiveBuffer => 1,
                    Setting::ZeroCopySend => 2,
                    Setting::ZeroCopyReceive => 3,
                };
                Draft::new(kind::SET, socket, request).flag(what, true).a(value).body(0)
            }
            Self::Cancel { request, socket, to } => {
                let cancel = Draft::new(kind::CANCEL, socket, request);
                match to {
                    Some(to) => cancel.address(to).body(0),
                    None => cancel.flag(YES, true).body(0),
                }
            }
            Self::Watch { request, socket, to } => {
                Draft::new(kind::WATCH, socket, request).address(to).body(0)
            }
            Self::Consumed { socket, bytes, messages } => {
                Draft::new(kind::CONSUMED, socket, 0).a(bytes).b(messages).body(0)
            }
            Self::Free { offset } => Draft::new(kind::FREE, 0, 0).a(offset).body(0),
            Self::Snapshot { request, queues } => {
                Draft::new(kind::SNAPSHOT, 0, request).flag(YES, queues).body(0)
            }
            Self::SetPeerModes { request, peer, send, receive } => {
                let modes = mode_code(send) | mode_code(receive) << 2;
                Draft::new(kind::SET_PEER_MODES, 0, request).ip(peer).a(modes.into()).body(0)
            }
        }
    }
}

impl Submission {
    /// What a record says.
    ///
    /// # Errors
    /// It says nothing that a program may say.
    #[inline]
    pub fn decode(raw: &Raw) -> Result<Self, Violation> {
        let (socket, id) = (raw.socket(), raw.id());
        Ok(match raw.kind() {
            kind::SEND => {
                raw.only(V6 | ARENA | WANTS_END | 3 << MODE_SHIFT)?;
                let mode = raw.mode(u64::from(raw.flags() >> MODE_SHIFT))?;
                let wants_end = raw.flags() & WANTS_END != 0;
                Self::Send { socket, id, to: raw.address(), wants_end, mode, payload: raw.payload()? }
            }
            kind::BIND => {
                raw.exactly(HEADER)?;
                let sharing = match raw.flags() {
                    0 => Sharing::Exclusive,
                    1 => Sharing::Balance,
                    2 => Sharing::FanOut,
                    other => return Err(raw.field("flags", other)),
                };
                let (send_buffer, receive_buffer) = (raw.a(), raw.b());
                Self::Bind { request: id, socket, port: raw.port(), sharing, send_buffer, receive_buffer }
            }
            kind::CLOSE => {
                raw.exactly(HEADER)?;
                raw.only(YES)?;
                Self::Close { request: id, socket, drain: raw.flags() == YES }
            }
            kind::SET => {
                raw.exactly(HEADER)?;
                let what = match raw.flags() {
                    0 => Setting::SendBuffer,
                    1 => Setting::ReceiveBuffer,
                    2 => Setting::ZeroCopySend,
                    3 => Setting::ZeroCopyReceive,
                    other => return Err(raw.field("flags", other)),
                };
                if matches!(what, Setting::ZeroCopySend | Setting::ZeroCopyReceive) {
                    raw.mode(raw.a())?;
                }
                Self::Set { request: id, socket, what, value: raw.a() }
            }
            kind::CANCEL if raw.flags() & YES != 0 => {
                raw.exactly(HEADER)?;
                raw.only(YES)?;
                Self::Cancel { request: id, socket, to: None }
            }
            kind::CANCEL => Self::Cancel { request: id, socket, to: Some(raw.addressed()?) },
            kind::WATCH => Self::Watch { request: id, socket, to: raw.addressed()? },
            kind::CONSUMED => {
                raw.exactly(HEADER)?;
                raw.only(0)?;
                Self::Consumed { socket, bytes: raw.a(), messages: raw.b() }
            }
            kind::FREE => {
                raw.exactly(HEADER)?;
                raw.only(0)?;
                Self::Free { offset: raw.a() }
            }
            kind::SNAPSHOT => {
                raw.exactly(HEADER)?;
                raw.only(YES)?;
                Self::Snapshot { request: id, queues: raw.flags() == YES }
            }
            kind::SET_PEER_MODES => {
                raw.exactly(FULL)?;
                raw.only(V6)?;
                let (send, receive) = (raw.mode(raw.a() & 3)?, raw.mode(raw.a() >> 2)?);
                Self::SetPeerModes { request: id, peer: raw.ip(), send, receive }
            }
            other => return Err(Violation::Kind(other)),
        })
    }
}
