//! The sockets from which pings go: a daemon's, an own node's, or the kernel's.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use rds_client::{Node, OpenError, Readiness, Received, RecvError, Socket};
use rds_core::kernel::{KernelReceived, KernelSocket};

use super::Cli;
use crate::error::{Failure, failure};
use crate::tools::source::unattached;

/// Which.
#[derive(Clone, Debug)]
pub enum Way {
    /// The daemon whose socket is there.
    Daemon(PathBuf),
    /// An own node at that address.
    Own(IpAddr),
    /// The kernel, at that address.
    Kernel(IpAddr),
}

/// What came to a socket.
#[derive(Debug)]
pub enum Came {
    /// Nothing more.
    Nothing,
    /// A reply from there.
    Reply(SocketAddr),
    /// An error.
    Failed(String),
}

/// The sockets.
#[derive(Debug)]
pub struct Lines {
    node: Option<Node>,
    address: IpAddr,
    tos: u8,
    sockets: Vec<Line>,
}

impl Drop for Lines {
    /// Nobody waits any more for what could not be sent: a daemon would keep it for a peer that never comes, and wait for it at its own end.
    fn drop(&mut self) {
        for line in &self.sockets {
            if let Line::Ours(socket) = line {
                socket.cancel_all();
            }
        }
    }
}

#[derive(Debug)]
enum Line {
    Ours(Socket),
    Kernel(KernelSocket),
}

impl Lines {
    /// `number` sockets towards `to`, and the address that they have.
    ///
    /// # Errors
    /// In words of the command line.
    pub fn open(way: &Way, cli: &Cli, to: IpAddr, number: u16) -> Result<(Self, IpAddr), Failure> {
        let (node, address) = match way {
            Way::Kernel(address) => (None, *address),
            Way::Own(address) => (Some(own(*address, cli)?), *address),
            Way::Daemon(path) => {
                let node = daemon(path, cli.source, to)?;
                let address = node.address();
                (Some(node), address)
            }
        };
        let mut lines = Self { node, address, tos: cli.tos, sockets: Vec::new() };
        for _ in 0..number.max(1) {
            lines.sockets.push(lines.bind()?);
        }
        Ok((lines, address))
    }

    fn bind(&self) -> Result<Line, Failure> {
        let Some(node) = &self.node else {
            let address = SocketAddr::new(self.address, 0);
            let socket = KernelSocket::bind(address).map_err(|e| failure!("{e}"))?;
            socket.set_nonblocking(true).map_err(|e| failure!("{e}"))?;
            return Ok(Line::Kernel(socket));
        };
        let socket =
            node.bind(0).map_err(|e| failure!("cannot bind an RDS port of {}: {e}", self.address))?;
        socket.set_tos(self.tos);
        Ok(Line::Ours(socket))
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sockets.len()
    }

    /// Whether there are none; never.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sockets.is_empty()
    }

    /// Another socket in place of one whose ping is lost: what it still has to send is cancelled with it.
    ///
    /// # Errors
    /// None can be bound.
    pub fn replace(&mut self, index: usize) -> Result<(), Failure> {
        let other = self.bind()?;
        if let Line::Ours(old) = std::mem::replace(&mut self.sockets[index], other) {
            old.cancel_all();
            old.close();
        }
        Ok(())
    }

    /// Sends a ping.
    ///
    /// # Errors
    /// Why not.
    pub fn send(&self, index: usize, to: SocketAddr) -> Result<(), String> {
        match &self.sockets[index] {
            Line::Ours(socket) => socket.try_send_to(b"", to).map_err(|e| e.to_string()),
            Line::Kernel(socket) => socket.send_to(b"", to).map_err(|e| e.to_string()),
        }
    }

    /// What has come to a socket. Does not block.
    pub fn receive(&self, index: usize) -> Came {
        match &self.sockets[index] {
            Line::Ours(socket) => match socket.try_recv_from(&mut [0; 1]) {
                Ok(Received::Message { from, .. }) => Came::Reply(from),
                Ok(_) | Err(RecvError::Empty | RecvError::TimedOut) => Came::Nothing,
                Err(e) => Came::Failed(e.to_string()),
            },
            Line::Kernel(socket) => match socket.recv_from(&mut [0; 1]) {
                Ok(KernelReceived::Message { from, .. }) => Came::Reply(from),
                Ok(_) => Came::Nothing,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Came::Nothing,
                Err(e) => Came::Failed(e.to_string()),
            },
        }
    }

    /// Waits until something comes to one of these, at most for `limit`.
    pub fn wait(&self, which: &[usize], limit: Duration) {
        // Who waits for one socket does its node's network work itself, which is quicker.
        if let ([index], [_]) | ([index, ..], [_]) = (which, self.sockets.as_slice())
            && let Line::Ours(socket) = &self.sockets[*index]
        {
            let _ = socket.wait(Readiness { readable: true, ..Readiness::default() }, Some(limit));
            return;
        }
        let fds = which.iter().filter_map(|index| self.fd(*index));
        let mut fds: Vec<PollFd<'_>> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        // Interrupted, or nothing came: whoever called looks.
        let _ = ppoll(&mut fds, Some(TimeSpec::from(limit)), None);
    }

    fn fd(&self, index: usize) -> Option<BorrowedFd<'_>> {
        match &self.sockets[index] {
            Line::Ours(socket) => socket.readable_fd().ok(),
            Line::Kernel(socket) => Some(socket.as_fd()),
        }
    }

    /// Why there may be no answer from `to`, to be put behind what says so.
    #[must_use]
    pub fn why(&self, to: IpAddr) -> String {
        let Some(node) = &self.node else { return String::new() };
        let snapshot = node.snapshot();
        let peer = snapshot.peers.iter().find(|peer| peer.address == to);
        match peer {
            Some(peer) if peer.connections.iter().any(|c| c.state == "up") => {
                ": it is connected, and does not answer".to_owned()
            }
            Some(peer) => match &peer.last_reason {
                Some(why) => format!(": {} attempts to connect, the last ended with: {why}", peer.attempts),
                None => format!(": {} attempts to connect", peer.attempts),
            },
            None => String::new(),
        }
    }
}

/// The daemon's node at `source`; at its first address of the destination's family if there is none.
fn daemon(path: &PathBuf, source: Option<IpAddr>, to: IpAddr) -> Result<Node, Failure> {
    let attach = |address: Option<IpAddr>| {
        let builder = Node::attach_builder(path).program("rds-ping").without_shared_memory();
        let builder = match address {
            Some(address) => builder.address(address),
            None => builder,
        };
        builder.open().map_err(|e| unattached(&e))
    };
    let node = attach(source)?;
    if source.is_some() || node.address().is_ipv4() == to.is_ipv4() {
        return Ok(node);
    }
    let status = node
        .status()
        .map_err(|e| failure!("the daemon at {} does not tell its addresses: {e}", path.display()))?;
    let fits = status.addresses.into_iter().find(|address| address.is_ipv4() == to.is_ipv4());
    match fits {
        Some(address) => attach(Some(address)),
        None => Err(failure!("the daemon at {} has no address of the family of {to}", path.display())),
    }
}

fn own(address: IpAddr, cli: &Cli) -> Result<Node, Failure> {
    let builder = Node::builder(address).embedded().listen_port(cli.listen_port).dial_port(cli.dial_port);
    builder.open().map_err(|e| match e {
        OpenError::PortInUse(at) => failure!(
            "TCP port {at} is in use, by a daemon, another RDS node or the rds_tcp kernel module: ping over the daemon (--attach) or the module (--kernel), or from another address (-I)"
        ),
        e => failure!("{e}"),
    })
}
