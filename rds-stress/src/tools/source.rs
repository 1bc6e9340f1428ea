//! Where the tools look: at a daemon, or at the nodes of another program.

use std::io::{self, Read};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rds_client::{Node, NodeStatus, OpenError};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::error::{Failure, failure};

/// Most nodes of one daemon or program that are looked at.
const NODES: usize = 256;
/// Longest answer of a program, in bytes.
const LONGEST: u64 = 64 << 20;
/// Most that is kept of all of them, in rows of tables.
const ROWS: usize = 1 << 20;
/// How long a program may take for it.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The daemon whose socket is there.
    Daemon(PathBuf),
    /// The nodes of the program whose socket is there (`NodeBuilder::info_socket`).
    Program(PathBuf),
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The nodes, ascending by address as far as the other side has them so.
    pub nodes: Vec<NodeStatus>,
    /// The process in which they are, and its name; of a daemon's nodes, which have clients instead, none.
    pub owner: Option<(i32, String)>,
}

/// The daemon that programs use which say nothing else.
#[must_use]
pub fn default_daemon() -> PathBuf {
    let told = std::env::var_os(rds_client::ATTACH_VARIABLE).filter(|path| !path.is_empty());
    told.map_or_else(|| rds_client::DEFAULT_PATH.into(), PathBuf::from)
}

impl Source {
    /// Looks, for at most some seconds a node.
    ///
    /// # Errors
    /// Nobody is there, or says what can be understood; in words of the command line.
    pub fn look(&self) -> Result<Seen, Failure> {
        match self {
            Self::Daemon(path) => daemon(path),
            Self::Program(path) => program(path),
        }
    }
}

fn daemon(path: &Path) -> Result<Seen, Failure> {
    let first = status(path, None)?;
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in &first.addresses {
        if addresses.len() < NODES && !addresses.contains(address) {
            addresses.push(*address);
        }
    }
    let own = first.node.address;
    let mut rows = 0;
    add(&mut rows, &first)?;
    let mut nodes = vec![first];
    for address in addresses {
        if address != own {
            let status = status(path, Some(address))?;
            add(&mut rows, &status)?;
            nodes.push(status);
        }
    }
    Ok(Seen { nodes, owner: None })
}

/// Adds what is kept of a node: each answer is bounded, but there may be many.
fn add(rows: &mut usize, status: &NodeStatus) -> Result<(), Failure> {
    let lanes = status.node.peers.iter().flat_map(|peer| &peer.connections);
    let messages: usize =
        lanes.map(|lane| 1 + lane.send_queue.len() + lane.retransmit_queue.len()).sum::<usize>();
    let sockets: usize = status.clients.iter().map(|client| 1 + client.sockets.len()).sum();
    let (node, ports) = (&status.node, status.ports.len() + status.addresses.len());
    *rows += messages + sockets + ports + node.peers.len() + node.sockets.len() + node.received.len();
    if *rows <= ROWS {
        return Ok(());
    }
    Err(failure!("there is more to show than the {ROWS} rows that this program keeps"))
}

fn status(path: &Path, address: Option<IpAddr>) -> Result<NodeStatus, Failure> {
    // What little there is to say needs no memory of the daemon's.
    let builder = Node::attach_builder(path).program("rds-info").without_shared_memory();
    let builder = match address {
        Some(address) => builder.address(address),
        None => builder,
    };
    let node = builder.open().map_err(|e| unattached(&e))?;
    let at = path.display();
    let mut status = node.status().map_err(|e| match e.kind() {
        io::ErrorKind::TimedOut => failure!(
            "the daemon at {at} does not answer: see whether it is stopped or overloaded, and try again"
        ),
        _ => failure!(
            "the daemon at {at} says what this program does not understand, is it of another version? {e}"
        ),
    })?;
    // Who looks is not what is looked for.
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    status.clients.retain(|client| client.pid != me);
    Ok(status)
}

/// Why a daemon could not be attached to.
pub(super) fn unattached(error: &OpenError) -> Failure {
    failure!("{error}")
}

fn program(path: &Path) -> Result<Seen, Failure> {
    let at = path.display();
    let deadline = Instant::now() + PATIENCE;
    let stream = connect(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => failure!(
            "no node is shown at {at} ({e}): start its program with RDS_INFO_SOCKET={at}, or give the path of another; a daemon's nodes are shown with --attach"
        ),
        io::ErrorKind::PermissionDenied => failure!("cannot connect to {at} ({e}): only the user of its program may"),
        _ => failure!("cannot connect to {at}: {e}"),
    })?;
    let owner = getsockopt(&stream, PeerCredentials).ok().map(|peer| (peer.pid(), comm(peer.pid())));
    let text = read(stream, deadline)
        .map_err(|e| failure!("what answers at {at} is no RDS node that this program understands: {e}"))?;
    let lines = text.split(|b| *b == b'\n').filter(|line| !line.is_empty()).take(NODES);
    let (mut nodes, mut rows) = (Vec::new(), 0);
    for line in lines {
        let status = serde_json::from_slice(line).map_err(|e| {
            failure!("what answers at {at} is no RDS node that this program understands: {e}")
        })?;
        add(&mut rows, &status)?;
        nodes.push(status);
    }
    if nodes.is_empty() {
        return Err(failure!("the program at {at} has no node any more: it is ending, try again"));
    }
    Ok(Seen { nodes, owner })
}

/// Without waiting where nobody accepts.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_write_timeout(Some(PATIENCE))?;
    let address = SockAddr::unix(path).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidInput, "the path is too long for a socket: give a shorter one")
    })?;
    socket.connect(&address)?;
    Ok(UnixStream::from(std::os::fd::OwnedFd::from(socket)))
}

/// All that is said, within bounds of time and memory.
fn read(mut stream: UnixStream, deadline: Instant) -> io::Result<Vec<u8>> {
    let (mut text, mut part) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it takes too long for its answer"));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part) {
            Ok(0) => return Ok(text),
            Ok(n) => text.extend_from_slice(&part[..n]),
            Err(e) if e.kind() == io::ErrorKind::Interrupted || e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => return Err(e),
        }
        if text.len() as u64 > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer is too long"));
        }
    }
}

/// The name of a process, blank where it is not known.
pub(super) fn comm(pid: i32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_of_many_nodes_than_of_one() {
        let config = rds_client::Config::new([10, 0, 0, 1].into(), std::num::NonZeroU32::MIN);
        let node = rds_core::proto::Node::new(config).unwrap();
        let mut status = NodeStatus::embedded(node.snapshot(true));
        status.addresses = vec![[10, 0, 0, 1].into(); ROWS / 2];
        let mut rows = 0;
        add(&mut rows, &status).unwrap();
        add(&mut rows, &status).unwrap();
        assert!(add(&mut rows, &status).unwrap_err().message.contains("more to show"));
    }
}
