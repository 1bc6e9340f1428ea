//! Why the kernel refused a call.

use std::io;
use std::net::SocketAddr;

/// Why there is no socket of the kernel's.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelBindError {
    /// The kernel knows no AF_RDS: the module is not loaded, or not there.
    #[error(
        "this kernel has no RDS sockets (AF_RDS): load its modules with 'modprobe rds' and 'modprobe rds_tcp' as root"
    )]
    NoModule,
    /// RDS is there, but nothing that could carry it from this address: the address is no host's own, or `rds_tcp` is not loaded.
    #[error(
        "RDS of the kernel cannot use {0}: it must be an address of this host, and 'modprobe rds_tcp' must have been done, as root"
    )]
    NoTransport(SocketAddr),
    /// Another socket has this address and port, in whichever network namespace.
    #[error("RDS port {} of {} is in use by another socket of the kernel", .0.port(), .0.ip())]
    InUse(SocketAddr),
    /// Anything else: port 1 and addresses that are not unicast are `InvalidInput`.
    #[error("cannot bind a kernel RDS socket to {0}: {1}")]
    Other(SocketAddr, #[source] io::Error),
}

/// Why the kernel did not take a message. It was not sent, not even in part.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelSendError {
    /// EAGAIN: as many bytes as the send buffer holds are queued. `writable` tells when there is room.
    #[error("the send buffer is full")]
    Full,
    /// ENOBUFS: the destination port is congested. With the congestion monitor a [`super::KernelReceived::CongestionCleared`] tells
    /// when to try again, without it being readable does.
    #[error("the destination port is congested")]
    Congested,
    /// EMSGSIZE: more than 1 MiB, or than the send buffer.
    #[error("the message is longer than 1 MiB or than the send buffer")]
    TooLong,
    /// ENOMEM: no memory, or, of a message that is lent, no more pages may be pinned (RLIMIT_MEMLOCK).
    #[error("no memory, or no more pages may be pinned (RLIMIT_MEMLOCK)")]
    NoMemory,
    /// Anything else; `EOPNOTSUPP` for a message that is lent where the transport is not TCP, `TimedOut` after a timeout that was set.
    #[error("the kernel refused the message: {0}")]
    Other(#[source] io::Error),
}

impl From<io::Error> for KernelSendError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Self::Full,
            Some(libc::ENOBUFS) => Self::Congested,
            Some(libc::EMSGSIZE) => Self::TooLong,
            Some(libc::ENOMEM) => Self::NoMemory,
            _ => Self::Other(error),
        }
    }
}

/// Tells what it means that there is no socket at all.
pub(super) fn no_module(error: io::Error) -> KernelBindError {
    bind_error(error, SocketAddr::from(([0, 0, 0, 0], 0)))
}

/// Tells what `bind` and the calls before it mean.
pub(super) fn bind_error(error: io::Error, address: SocketAddr) -> KernelBindError {
    match error.raw_os_error() {
        Some(libc::EAFNOSUPPORT | libc::EPROTONOSUPPORT | libc::ESOCKTNOSUPPORT) => KernelBindError::NoModule,
        Some(libc::EADDRNOTAVAIL | libc::ENOPROTOOPT) => KernelBindError::NoTransport(address),
        Some(libc::EADDRINUSE) => KernelBindError::InUse(address),
        _ => KernelBindError::Other(address, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_a_sender_can_act_upon_have_names() {
        let of = |errno| KernelSendError::from(io::Error::from_raw_os_error(errno));
        assert!(matches!(of(libc::EAGAIN), KernelSendError::Full));
        assert!(matches!(of(libc::ENOBUFS), KernelSendError::Congested));
        assert!(matches!(of(libc::EMSGSIZE), KernelSendError::TooLong));
        assert!(matches!(of(libc::ENOMEM), KernelSendError::NoMemory));
        assert!(
            matches!(of(libc::EOPNOTSUPP), KernelSendError::Other(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP))
        );
    }

    #[test]
    fn a_failed_bind_says_what_to_do() {
        let at = SocketAddr::from(([10, 0, 0, 1], 4001));
        for (errno, words) in [
            (libc::EAFNOSUPPORT, ["modprobe rds", "AF_RDS"]),
            (libc::EADDRNOTAVAIL, ["modprobe rds_tcp", "10.0.0.1"]),
            (libc::ENOPROTOOPT, ["modprobe rds_tcp", "10.0.0.1"]),
            (libc::EADDRINUSE, ["port 4001", "10.0.0.1"]),
            (libc::EINVAL, ["10.0.0.1:4001", "Invalid argument"]),
        ] {
            let text = bind_error(io::Error::from_raw_os_error(errno), at).to_string();
            assert!(words.iter().all(|w| text.contains(w)), "{text}");
        }
    }
}
