//! What carries the messages: our node, the kernel's RDS, or plain TCP. The traffic is the same, and is compiled for each.

pub mod kernel;
pub mod rds;
pub mod tcp;

use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Failure;
use crate::lives::Lives;
use crate::out::Out;
use crate::roles::Settings;
use crate::session::{Role, Session};
use crate::stats::CounterList;
use crate::task::TaskFailure;
use crate::zerocopy::{Modes, Totals, ZeroCopy};

/// Which backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Choice {
    /// A node of ours.
    #[default]
    Rds,
    /// Sockets of the kernel's RDS.
    Kernel,
    /// Framed messages over plain TCP.
    Tcp,
}

impl Choice {
    /// As the command line and the JSON object name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rds => "rds",
            Self::Kernel => "kernel",
            Self::Tcp => "tcp",
        }
    }

    /// Why a given option, by its long name, does not apply.
    #[must_use]
    pub fn refuses(self, option: &str) -> Option<&'static str> {
        match (self, option) {
            (Self::Kernel, "rds-port" | "listen-port" | "dial-port") => {
                Some("the kernel's RDS has TCP port 16385")
            }
            (Self::Kernel | Self::Tcp, "attach") => Some("the daemon is for --backend rds"),
            (Self::Kernel, "lanes") => Some("the kernel decides how many connections it makes"),
            (Self::Kernel, "pin-hold") => Some("the kernel keeps what was pinned until it is acknowledged"),
            (Self::Kernel, "zcopy-recv") => Some("the kernel's RDS always copies what is received"),
            (Self::Tcp, "lanes") => Some("each pair of tasks has a TCP connection of its own"),
            (Self::Tcp, "zcopy" | "zcopy-send" | "zcopy-recv" | "pin-hold") => Some("it always copies"),
            (Self::Tcp, "cancel-sent-to") => Some("what TCP has cannot be cancelled"),
            (Self::Tcp, "use-cong-monitor") => Some("TCP has no congested ports"),
            _ => None,
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Rds, Self::Kernel, Self::Tcp]
            .into_iter()
            .find(|c| c.name() == text)
            .ok_or_else(|| format!("'{text}' is no backend: give rds, kernel or tcp"))
    }
}

/// What carries the messages of all tasks of one side.
pub trait Backend: Sized + Send + Sync {
    /// Which one it is.
    const CHOICE: Choice;
    /// What a task sends and receives through.
    type Port: Port;
    /// What was so before a measurement.
    type Mark;

    /// Opens it at `address`. What can go wrong without the other side should go wrong here.
    ///
    /// # Errors
    /// In words of the command line.
    fn open(address: IpAddr, role: Role, settings: &Settings) -> Result<Self, Failure>;

    /// Ports for these tasks, in order. From here on messages may come.
    ///
    /// # Errors
    /// In words of the command line.
    fn bind(&self, session: &Session, tasks: Range<u16>, out: Out) -> Result<Vec<Self::Port>, Failure>;

    /// Both sides have bound their ports: makes what connections there must be before the tasks start.
    ///
    /// # Errors
    /// In words of the command line.
    fn connect(
        &self,
        _session: &Session,
        _ports: &mut [Self::Port],
        _control: &TcpStream,
    ) -> Result<(), Failure> {
        Ok(())
    }

    /// What it counts, since it was opened.
    fn counters(&self) -> CounterList;

    /// What zero copy did so far.
    fn totals(&self) -> Totals;

    /// A moment to measure from.
    fn mark(&self) -> Self::Mark;

    /// What zero copy did since.
    fn zero_copy(&self, modes: Modes, since: &Self::Mark) -> ZeroCopy;

    /// Which lives its daemon and the node of the other side have, if that can be told. With `peer` it may ask the daemon, and wait for the answer.
    fn lives(&self, peer: Option<IpAddr>) -> Option<Lives> {
        let _ = peer;
        None
    }

    /// What to look at if nothing comes back.
    fn silence(&self, session: &Session, settings: &Settings) -> String;
}

/// What a task waits for besides messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Want {
    /// Room for messages that were refused.
    pub room: bool,
    /// Messages that are lent to come back.
    pub lent: bool,
}

/// What came.
#[derive(Debug)]
pub enum Incoming<'m> {
    /// A message of `len` bytes. `bytes` are fewer only if it is longer than any that may come.
    Message {
        /// The message.
        bytes: &'m [u8],
        /// Its length.
        len: usize,
        /// Who sent it.
        from: SocketAddr,
    },
    /// Congestion may have cleared at ports `p` with bit `p % 64` set.
    Cleared(u64),
}

/// Why a message was not sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused {
    /// Too many messages are lent: some must come back first.
    Lent,
    /// There is no room.
    Room,
    /// The destination port is congested.
    Congested,
    /// For good.
    Failed(String),
}

/// What a task sends and receives through. Nothing here blocks but [`Port::wait`], and nothing allocates for a message.
pub trait Port: Send {
    /// Waits until something may have come, or something of `want` is there, or for `timeout`. Whether something may have come.
    fn wait(&mut self, want: Want, timeout: Duration) -> bool;

    /// Gives all that has come to `take`.
    ///
    /// # Errors
    /// What `take` says, or that the port broke.
    fn receive(
        &mut self,
        take: impl FnMut(Incoming<'_>) -> Result<(), TaskFailure>,
    ) -> Result<(), TaskFailure>;

    /// Looks for messages that came back otherwise than through [`Port::receive`].
    ///
    /// # Errors
    /// The port broke.
    fn take_completions(&mut self) -> Result<(), TaskFailure> {
        Ok(())
    }

    /// Sends `message` to task `task` of the other side, which is at `to`.
    ///
    /// # Errors
    /// Why not.
    fn send(&mut self, message: &[u8], task: usize, to: SocketAddr) -> Result<(), Refused>;

    /// The pass of sending is over.
    fn flush(&mut self) {}

    /// Cancels what is on its way to `to`; how many messages, where that is known.
    ///
    /// # Errors
    /// Why not.
    fn cancel(&mut self, to: SocketAddr) -> Result<Option<usize>, String>;

    /// Closes it.
    fn close(self);
}

/// The failure of a port.
pub(crate) fn broken(what: impl fmt::Display) -> TaskFailure {
    TaskFailure { report: what.to_string(), check: false }
}

/// Says, once, that socket buffers are smaller than depth and tasks ask for.
pub(crate) fn warn_of_buffers(wanted: u64, granted: u64, out: Out) {
    if wanted > granted && out != Out::Nowhere {
        crate::out::line!(
            Out::Stderr,
            "rds-stress: socket buffers of {granted} bytes where depth and tasks ask for {wanted}: sends will wait"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_named_as_it_is_chosen() {
        for choice in [Choice::Rds, Choice::Kernel, Choice::Tcp] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("udp".parse::<Choice>().unwrap_err().contains("rds, kernel or tcp"));
    }
}
