//! Why a call on a socket failed.

use std::fmt;
use std::io;

use crate::proto;

/// Why a blocking send failed. The message was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// Never possible: wrong destination, too large, closed, shutting down.
    #[error(transparent)]
    Refused(#[from] proto::SendError),
    /// No destination was given and none is connected (kernel: ENOTCONN).
    #[error("no destination: connect the socket, or use send_to")]
    NotConnected,
    /// The send timeout passed (kernel: ETIMEDOUT).
    #[error("the send timeout passed while the {0}")]
    TimedOut(Blocked),
    /// The program has left 2^20 completions untaken, those to come of messages under way included.
    #[error("too many completions are untaken: take them (Socket::completions)")]
    CompletionsUntaken,
    /// The payload was to be pinned, the kernel may pin no more for the node (or the socket's part of it), and the node's options say that
    /// this is an error ([`WhenFull::Error`](crate::zerocopy::WhenFull)).
    #[error(
        "no more than {limit} bytes may be pinned for zero-copy sending: take completions, raise the limit, or let it copy"
    )]
    PinLimit {
        /// Bytes that may be pinned for the node.
        limit: u64,
    },
    /// The daemon was started anew and did not give the port again.
    #[error("the daemon was started anew and the port is lost ({0}): bind another socket")]
    PortLost(proto::BindError),
}

/// What a send waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// The destination port is congested.
    Congested,
    /// The send buffer is full.
    Full,
    /// The kernel may pin no more, and the node's options say to wait.
    Pins,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Congested => "destination port was congested",
            Self::Full => "send buffer was full",
            Self::Pins => "pin limit was reached",
        })
    }
}

/// Why a non-blocking send did not queue the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrySendError {
    /// The destination port is congested (kernel: ENOBUFS).
    #[error("the destination port is congested: wait until it is not (Socket::wait_uncongested)")]
    Congested,
    /// The send buffer is full (kernel: EAGAIN).
    #[error("the send buffer is full: wait until the socket is writable")]
    Full,
    /// Never possible.
    #[error(transparent)]
    Refused(SendError),
}

impl From<proto::SendError> for TrySendError {
    fn from(error: proto::SendError) -> Self {
        match error {
            proto::SendError::Congested => Self::Congested,
            proto::SendError::Full => Self::Full,
            other => Self::Refused(SendError::Refused(other)),
        }
    }
}

/// Why a receive returned nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// Nothing is queued (kernel: EAGAIN); only from the non-blocking calls.
    #[error("nothing is queued")]
    Empty,
    /// The receive timeout passed (kernel: ETIMEDOUT).
    #[error("the receive timeout passed")]
    TimedOut,
    /// The node was shut down.
    #[error("the node is shut down")]
    Shutdown,
    /// The daemon was started anew and did not give the port again.
    #[error("the daemon was started anew and the port is lost ({0}): bind another socket")]
    PortLost(proto::BindError),
}

/// As the kernel's `sendmsg` would fail, with its error number.
impl From<SendError> for io::Error {
    fn from(error: SendError) -> Self {
        use proto::SendError as E;
        let code = match error {
            SendError::Refused(E::Closed) => libc::EBADF,
            SendError::Refused(E::InvalidDestination) => libc::EINVAL,
            SendError::Refused(E::FamilyMismatch) => libc::EOPNOTSUPP,
            SendError::Refused(E::TooLarge { .. }) => libc::EMSGSIZE,
            SendError::Refused(E::ShuttingDown) => libc::ENETUNREACH,
            SendError::Refused(E::NotAllowed) => libc::EACCES,
            SendError::Refused(E::TooManyPeers) => libc::ENOMEM,
            SendError::Refused(E::Congested) => libc::ENOBUFS,
            SendError::Refused(E::Full) => libc::EAGAIN,
            SendError::NotConnected => libc::ENOTCONN,
            SendError::TimedOut(_) => libc::ETIMEDOUT,
            SendError::CompletionsUntaken => libc::ENOMEM,
            SendError::PinLimit { .. } => libc::ENOBUFS,
            SendError::PortLost(_) => libc::EADDRNOTAVAIL,
        };
        Self::from_raw_os_error(code)
    }
}

/// As the kernel's `sendmsg` would fail, with its error number.
impl From<TrySendError> for io::Error {
    fn from(error: TrySendError) -> Self {
        match error {
            TrySendError::Congested => Self::from_raw_os_error(libc::ENOBUFS),
            TrySendError::Full => Self::from_raw_os_error(libc::EAGAIN),
            TrySendError::Refused(error) => error.into(),
        }
    }
}

/// As the kernel's `recvmsg` would fail, with its error number.
impl From<RecvError> for io::Error {
    fn from(error: RecvError) -> Self {
        Self::from_raw_os_error(match error {
            RecvError::Empty => libc::EAGAIN,
            RecvError::TimedOut => libc::ETIMEDOUT,
            RecvError::Shutdown => libc::ENETDOWN,
            RecvError::PortLost(_) => libc::EADDRNOTAVAIL,
        })
    }
}
