//! The daemon at one moment, for tools.

use rds_core::attach::{Credentials, Sharing};
use rds_core::info::{ClientInfo, ClientSocket, NodeStatus, PortInfo, SharingWord, Snapshot};

use crate::access::{Kind, Who};
use crate::host::Host;
use crate::session::Session;

/// Who is at the other end of a connection.
#[must_use]
pub fn who(credentials: &Credentials) -> Who {
    let mut gids = vec![credentials.gid];
    gids.extend(&credentials.groups);
    Who { pid: credentials.pid, uid: credentials.uid, gids }
}

/// A node, and what the daemon adds. `clients`: those of this node, and whether each shares memory.
pub(crate) fn status<'a>(
    node: Snapshot,
    clients: impl Iterator<Item = (&'a Session, bool)>,
    host: &Host,
) -> NodeStatus {
    let mut clients: Vec<_> = clients.map(|(session, shares)| client(session, shares, host)).collect();
    clients.sort_by_key(|client| client.session);
    let ports = host.ports().map(|bound| PortInfo {
        bound: bound.local,
        sharing: match bound.group.sharing() {
            Sharing::Exclusive => SharingWord::Exclusive,
            Sharing::Balance => SharingWord::Balance,
            Sharing::FanOut => SharingWord::FanOut,
        },
        members: bound.group.len(),
    });
    NodeStatus::new(node, clients, ports.collect())
}

fn client(session: &Session, shared_memory: bool, host: &Host) -> ClientInfo {
    let quota = session.quota();
    let (pinned_bytes, pinned_limit) = host.engine.pinned(session.share());
    ClientInfo {
        session: session.id(),
        pid: session.who().pid,
        uid: session.who().uid,
        program: session.program().to_owned(),
        attached_ms: u64::try_from(session.age().as_millis()).unwrap_or(u64::MAX),
        shared_memory,
        arena: quota.used(Kind::Arena),
        send_buffers: quota.used(Kind::SendBytes),
        receive_buffers: quota.used(Kind::ReceiveBytes),
        pinned_bytes,
        pinned_limit,
        held: session.outlet().held(),
        sockets: session.sockets().map(|(bound, waiting)| ClientSocket { bound, waiting }).collect(),
    }
}
