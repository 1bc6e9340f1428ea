//! The daemon at one moment, for tools.

use std::net::SocketAddr;

use rds_core::attach::Credentials;
use rds_core::info::Snapshot;
use serde::Serialize;

use crate::access::{Kind, Who};
use crate::host::Host;
use crate::session::{HeldInfo, Session};

/// Who is at the other end of a connection.
#[must_use]
pub fn who(credentials: &Credentials) -> Who {
    let mut gids = vec![credentials.gid];
    gids.extend(&credentials.groups);
    Who { pid: credentials.pid, uid: credentials.uid, gids }
}

/// A node, and what the daemon adds. A reader who knows only nodes sees one.
#[derive(Debug, Serialize)]
struct WithClients {
    #[serde(flatten)]
    node: Snapshot,
    clients: Vec<ClientInfo>,
    ports: Vec<PortInfo>,
}

/// One attached client.
#[derive(Debug, Serialize)]
struct ClientInfo {
    session: u64,
    pid: i32,
    uid: u32,
    program: String,
    /// Bytes of shared memory.
    arena: u64,
    /// Send and receive buffers of its sockets together, in bytes.
    send_buffers: u64,
    receive_buffers: u64,
    /// What it has not taken, past its rings and arenas.
    held: HeldInfo,
    sockets: Vec<SocketInfo>,
}

#[derive(Debug, Serialize)]
struct SocketInfo {
    bound: SocketAddr,
    /// Sends that wait for congested ports.
    waiting: usize,
}

/// One bound port.
#[derive(Debug, Serialize)]
struct PortInfo {
    bound: SocketAddr,
    /// `exclusive`, `balance` or `fan-out`.
    sharing: &'static str,
    members: usize,
}

/// The text of a snapshot.
pub(crate) fn to_json<'a>(node: Snapshot, clients: impl Iterator<Item = &'a Session>, host: &Host) -> String {
    use rds_core::attach::Sharing;
    let address = node.address;
    let clients = clients.map(|session| {
        let quota = session.quota();
        let sockets = session.sockets().filter(|(bound, _)| bound.ip() == address);
        ClientInfo {
            session: session.id(),
            pid: session.who().pid,
            uid: session.who().uid,
            program: session.program().to_owned(),
            arena: quota.used(Kind::Arena),
            send_buffers: quota.used(Kind::SendBytes),
            receive_buffers: quota.used(Kind::ReceiveBytes),
            held: session.outlet().held(),
            sockets: sockets.map(|(bound, waiting)| SocketInfo { bound, waiting }).collect(),
        }
    });
    let ports = host.ports().map(|bound| PortInfo {
        bound: bound.local,
        sharing: match bound.group.sharing() {
            Sharing::Exclusive => "exclusive",
            Sharing::Balance => "balance",
            Sharing::FanOut => "fan-out",
        },
        members: bound.group.len(),
    });
    let all = WithClients { node, clients: clients.collect(), ports: ports.collect() };
    serde_json::to_string(&all).unwrap_or_else(|e| format!("{{\"error\":\"{e}\"}}"))
}
