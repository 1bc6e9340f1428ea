//! A socket of the kernel's RDS.

use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{SockAddr, Socket};

use super::control;
use super::error::{KernelBindError, KernelSendError, bind_error};
use super::info::KernelInfo;
use super::lent::{KernelCookie, Loans, Returned};
use crate::sys::af_rds::{self, CONTROL, Control};

/// An RDS socket of the kernel, bound to an address and a port.
///
/// Calls block unless [`KernelSocket::set_nonblocking`] says otherwise. Closing it (dropping it) cancels what the peer has not
/// acknowledged, as the kernel does.
#[derive(Debug)]
pub struct KernelSocket {
    info: KernelInfo,
    local: SocketAddr,
    loans: Mutex<Loans>,
}

/// What a receive brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelReceived {
    /// A message.
    Message {
        /// Bytes that were copied into the buffer.
        len: usize,
        /// Bytes of the message; what is beyond the buffer is lost.
        full_len: usize,
        /// Who sent it.
        from: SocketAddr,
    },
    /// Congestion may have cleared at the ports `p` for which bit `p % 64` is set. Only with the congestion monitor.
    CongestionCleared(u64),
    /// Nothing but messages that were lent came back: see [`KernelSocket::take_returned`].
    Returned,
}

/// What a socket is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// A message, a congestion update or a cookie is there; without the congestion monitor maybe nothing.
    pub readable: bool,
    /// The send buffer has room. The next send may be refused all the same, for congestion.
    pub writable: bool,
}

impl KernelSocket {
    /// Binds a socket to `address`; port 0 is any free one. Whichever transport has the address carries it: that is
    /// not TCP for loopback addresses.
    ///
    /// # Errors
    /// [`KernelBindError`]. Port 1 is reserved, addresses that are not unicast are refused.
    pub fn bind(address: SocketAddr) -> Result<Self, KernelBindError> {
        Self::open(address, false)
    }

    /// Binds a socket whose transport is TCP, whatever others there are; what may lend, also at a loopback address. Between two addresses
    /// of one host the kernel hands messages over itself all the same.
    ///
    /// # Errors
    /// As [`KernelSocket::bind`].
    pub fn bind_tcp(address: SocketAddr) -> Result<Self, KernelBindError> {
        Self::open(address, true)
    }

    fn open(address: SocketAddr, tcp: bool) -> Result<Self, KernelBindError> {
        let info = KernelInfo::open()?;
        let bind = |socket: &Socket| -> io::Result<SocketAddr> {
            if tcp {
                af_rds::force_tcp(socket.as_fd())?;
            }
            socket.bind(&address.into())?;
            Ok(socket.local_addr()?.as_socket().ok_or(io::ErrorKind::InvalidData)?)
        };
        let local = bind(&info.0).map_err(|e| bind_error(e, address))?;
        Ok(Self { info, local, loans: Mutex::default() })
    }

    /// Where it is bound.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Whether calls return instead of waiting.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        self.socket().set_nonblocking(on)
    }

    /// How long a send and a receive that block wait; `None`: for ever. Then they fail with `TimedOut`. A send to a congested port waits
    /// beyond it.
    ///
    /// # Errors
    /// The kernel's; zero is none.
    pub fn set_timeouts(&self, send: Option<Duration>, receive: Option<Duration>) -> io::Result<()> {
        self.socket().set_write_timeout(send)?;
        self.socket().set_read_timeout(receive)
    }

    /// Sets the send buffer (SO_SNDBUF), in bytes of payload, beyond net.core.wmem_max where the process may
    /// (CAP_NET_ADMIN). Returns what was granted: the largest message, too. Default 106496.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_send_buffer(&self, bytes: usize) -> io::Result<usize> {
        af_rds::set_buffer(self.as_fd(), false, bytes)
    }

    /// Sets the receive buffer (SO_RCVBUF), likewise. Beyond it the port is congested.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_recv_buffer(&self, bytes: usize) -> io::Result<usize> {
        af_rds::set_buffer(self.as_fd(), true, bytes)
    }

    /// Whether cleared congestion is reported as [`KernelReceived::CongestionCleared`] (RDS_CONG_MONITOR). Default off.
    ///
    /// # Errors
    /// The kernel's.
    pub fn set_congestion_monitor(&self, on: bool) -> io::Result<()> {
        af_rds::set_congestion_monitor(self.as_fd(), on)
    }

    /// Allows [`KernelSocket::send_lent`] (SO_ZEROCOPY), for good: without it cookies would not come back.
    ///
    /// # Errors
    /// The kernel's: one that cannot.
    pub fn enable_zero_copy(&self) -> io::Result<()> {
        af_rds::set_zero_copy(self.as_fd(), true)
    }

    /// Queues a copy of `message`. Blocks while the send buffer is full or the destination congested. Success means queued; a peer that
    /// cannot be reached is no error.
    ///
    /// # Errors
    /// [`KernelSendError`]
    pub fn send_to(&self, message: &[u8], to: SocketAddr) -> Result<(), KernelSendError> {
        self.socket().send_to(message, &SockAddr::from(to)).map(drop).map_err(KernelSendError::from)
    }

    /// Queues `message` without a copy: the kernel reads it until its cookie comes back, with or instead of a message that is
    /// received. Then [`KernelSocket::take_returned`] has it. [`KernelSocket::enable_zero_copy`] must have been called, the transport must be
    /// TCP, and the message must not be empty. What is out when the socket is dropped is never freed. A connection that breaks ends with
    /// what TCP had of it: what the kernel's TCP then still sends, maybe of memory that came back, the peer's RDS does not take.
    ///
    /// # Errors
    /// [`KernelSendError`], with the message. Without it, which is then never freed, where RDS is being unloaded.
    pub fn send_lent(
        &self,
        message: Vec<u8>,
        to: SocketAddr,
    ) -> Result<KernelCookie, (KernelSendError, Option<Vec<u8>>)> {
        // No lock during the call, which may block.
        let cookie = self.loans().reserve(to);
        let sent = af_rds::lend(self.as_fd(), message, &to.into(), cookie.0);
        let mut loans = self.loans();
        match sent {
            Ok(lent) => {
                loans.lent(cookie, lent);
                Ok(cookie)
            }
            Err((error, Ok(message))) => {
                loans.unreserve(cookie);
                Err((error.into(), Some(message)))
            }
            Err((error, Err(lent))) => {
                loans.lent(cookie, lent);
                Err((error.into(), None))
            }
        }
    }

    /// Receives what is next into `buffer`. Blocks until something comes; messages that come back alone do not end that, but make the
    /// socket readable: programs that lend do not block here.
    ///
    /// # Errors
    /// `WouldBlock`: nothing is there. `TimedOut`: nothing came in time.
    pub fn recv_from(&self, buffer: &mut [u8]) -> io::Result<KernelReceived> {
        let mut control = Control([0; CONTROL]);
        let taken = af_rds::receive(self.as_fd(), buffer, &mut control)?;
        let found = control::parse(control.0.get(..taken.control).unwrap_or_default());
        if !found.cookies().is_empty() {
            let mut loans = self.loans();
            found.cookies().iter().for_each(|cookie| loans.complete(*cookie));
        }
        Ok(match taken.from {
            Some(from) => {
                KernelReceived::Message { len: taken.len.min(buffer.len()), full_len: taken.len, from }
            }
            None if found.cleared != 0 => KernelReceived::CongestionCleared(found.cleared),
            None => KernelReceived::Returned,
        })
    }

    /// Appends to `into` the messages that were lent and came back.
    pub fn take_returned(&self, into: &mut Vec<Returned>) {
        self.loans().take(into);
    }

    /// Messages that are lent at present.
    #[must_use]
    pub fn lent(&self) -> usize {
        self.loans().out()
    }

    /// Forgets what was sent to `to` and is not acknowledged (RDS_CANCEL_SENT_TO). What TCP has already still arrives.
    ///
    /// # Errors
    /// The kernel's.
    pub fn cancel_sent_to(&self, to: SocketAddr) -> io::Result<()> {
        // Before the kernel completes them, and with no send between.
        let mut loans = self.loans();
        loans.cancel(to);
        af_rds::cancel_sent_to(self.as_fd(), to)
    }

    /// Waits until the socket is ready for what is asked for, at most for `timeout`; `None`: for ever. Nothing after the time. Rounded up to
    /// milliseconds.
    ///
    /// # Errors
    /// The kernel's, `Interrupted` by a signal among them.
    pub fn wait(&self, readable: bool, writable: bool, timeout: Option<Duration>) -> io::Result<Ready> {
        let mut events = PollFlags::empty();
        events.set(PollFlags::POLLIN, readable);
        events.set(PollFlags::POLLOUT, writable);
        let timeout = timeout.map_or(PollTimeout::NONE, |t| {
            let millis = t.as_nanos().div_ceil(1_000_000);
            i32::try_from(millis)
                .ok()
                .and_then(|ms| PollTimeout::try_from(ms).ok())
                .unwrap_or(PollTimeout::MAX)
        });
        let mut polled = [PollFd::new(self.as_fd(), events)];
        poll(&mut polled, timeout)?;
        let seen = polled[0].revents().unwrap_or(PollFlags::empty());
        Ok(Ready {
            readable: readable && seen.intersects(PollFlags::POLLIN | PollFlags::POLLERR),
            writable: writable && seen.intersects(PollFlags::POLLOUT | PollFlags::POLLERR),
        })
    }

    fn socket(&self) -> &Socket {
        &self.info.0
    }

    fn loans(&self) -> MutexGuard<'_, Loans> {
        self.loans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the kernel tells of all its RDS.
impl Deref for KernelSocket {
    type Target = KernelInfo;

    fn deref(&self) -> &KernelInfo {
        &self.info
    }
}

/// For a poll loop. Readable: a message, a congestion update or a cookie is there. Writable: the send buffer has room.
impl AsFd for KernelSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// What is sent and received over them is tested between guests: the machine that runs tests seldom has the modules.
    #[test]
    fn a_kernel_without_the_module_says_so_and_one_with_it_binds_loopback() {
        match KernelSocket::bind(([127, 43, 9, 1], 0).into()) {
            Ok(socket) => {
                assert!(socket.local_addr().port() > 1);
                assert!(!socket.counters().expect("every kernel has them").is_empty());
            }
            // Past the test harness, which swallows what a passing test prints with println!.
            Err(KernelBindError::NoModule) => {
                writeln!(std::io::stderr(), "skipped: no AF_RDS here").expect("stderr is open");
            }
            Err(e) => panic!("{e}"),
        }
    }
}
