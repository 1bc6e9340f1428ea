//! What the reference's tables show, taken from nodes or from the kernel.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use rds_client::NodeStatus;
use rds_core::kernel::{InfoMessage, KernelInfo, Queue};
use serde::Serialize;

use super::super::source::{Seen, comm};
use crate::error::Failure;

/// A row of `-k`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SocketRow {
    /// Where it is bound.
    pub bound: SocketAddr,
    /// To what it is connected; unspecified if nothing.
    pub connected: SocketAddr,
    /// Its buffers, in bytes.
    pub send_buffer: u64,
    /// The same for receiving.
    pub receive_buffer: u64,
    /// Its inode; 0 of ours, which have none.
    pub inode: u64,
    /// 1 if its port is congested, 0 if not, -1 if nobody knows.
    pub congested: i8,
    /// Whose it is, and what that is called.
    pub owner: Option<(i32, String)>,
}

/// A row of `-n`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConnectionRow {
    /// Own address.
    pub local: IpAddr,
    /// The peer's.
    pub remote: IpAddr,
    /// Numbers of the first lane.
    pub next_tx: u64,
    /// The same for what comes.
    pub next_rx: u64,
    /// `scCE`, or `-` for what is not so.
    pub flags: String,
}

/// A row of `-r`, `-s` or `-t`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MessageRow {
    /// Own end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
    /// Its number; 0 while it has none, and once it was received.
    pub sequence: u64,
    /// Bytes of payload.
    pub len: u32,
}

/// A row of `-T`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TcpRow {
    /// Own end.
    pub local: SocketAddr,
    /// The peer's end.
    pub remote: SocketAddr,
    /// Bytes of the header and of the payload that is coming which are not here yet.
    pub header_remain: u64,
    /// The same of the payload.
    pub data_remain: u64,
    /// Up to where the stream was sent, must be acknowledged, and was; modulo 2^32, as the kernel's.
    pub sent: u32,
    /// The second of these.
    pub expected: u32,
    /// The third.
    pub seen: u32,
}

/// All of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Rows {
    /// `-c`, all nodes together.
    pub counters: Vec<(String, u64)>,
    /// `-k`.
    pub sockets: Vec<SocketRow>,
    /// `-n`.
    pub connections: Vec<ConnectionRow>,
    /// `-r`.
    pub receive: Vec<MessageRow>,
    /// `-s`.
    pub send: Vec<MessageRow>,
    /// `-t`.
    pub retransmit: Vec<MessageRow>,
    /// `-T`.
    pub tcp: Vec<TcpRow>,
}

impl Rows {
    /// Of nodes.
    #[must_use]
    pub fn of_nodes(seen: &Seen) -> Self {
        let mut rows = Self::default();
        for status in &seen.nodes {
            for (i, (name, value)) in status.node.counters.iter().enumerate() {
                match rows.counters.get_mut(i) {
                    Some((_, sum)) => *sum = sum.wrapping_add(value),
                    None => rows.counters.push((name.to_owned(), value)),
                }
            }
            rows.add_sockets(status, seen.owner.as_ref());
            rows.add_peers(status);
            rows.receive.extend(status.node.received.iter().map(|message| MessageRow {
                local: message.local,
                remote: message.remote,
                sequence: 0,
                len: message.len,
            }));
        }
        rows
    }

    fn add_sockets(&mut self, status: &NodeStatus, owner: Option<&(i32, String)>) {
        let nothing = SocketAddr::new(unspecified(status.node.address), 0);
        for socket in &status.node.sockets {
            let holds =
                |client: &&rds_client::ClientInfo| client.sockets.iter().any(|s| s.bound == socket.bound);
            let clients = status.clients.iter().filter(holds);
            let mut owners: Vec<_> =
                clients.map(|client| Some((client.pid, client.program.clone()))).collect();
            if owners.is_empty() {
                owners.push(owner.cloned());
            }
            // A row for each that shares a port, as each has a socket.
            self.sockets.extend(owners.into_iter().map(|owner| SocketRow {
                bound: socket.bound,
                connected: nothing,
                send_buffer: socket.send_buffer,
                receive_buffer: socket.receive_buffer,
                inode: 0,
                congested: i8::from(socket.congested),
                owner,
            }));
        }
    }

    fn add_peers(&mut self, status: &NodeStatus) {
        let own = status.node.address;
        for peer in &status.node.peers {
            let any = |state: &[&str]| peer.connections.iter().any(|c| state.contains(&c.state));
            let up = any(&["up"]);
            let flag = |is_so, letter| if is_so { letter } else { '-' };
            self.connections.push(ConnectionRow {
                local: own,
                remote: peer.address,
                next_tx: peer.connections.first().map_or(0, |c| c.next_tx),
                next_rx: peer.connections.first().map_or(0, |c| c.next_rx),
                flags: [
                    flag(up && peer.connections.iter().any(|c| c.queued > 0 || c.unacknowledged > 0), 's'),
                    flag(any(&["connecting", "handshake"]), 'c'),
                    flag(up, 'C'),
                    flag(!up && peer.last_reason.is_some(), 'E'),
                ]
                .iter()
                .collect(),
            });
            for lane in &peer.connections {
                let row = |message: &rds_core::info::MessageInfo| MessageRow {
                    local: SocketAddr::new(own, message.local_port),
                    remote: SocketAddr::new(peer.address, message.remote_port),
                    sequence: message.sequence,
                    len: message.len,
                };
                self.send.extend(lane.send_queue.iter().map(row));
                self.retransmit.extend(lane.retransmit_queue.iter().map(row));
                if let (Some(local), Some(remote)) = (lane.tcp.local, lane.tcp.remote) {
                    self.tcp.push(TcpRow {
                        local,
                        remote,
                        header_remain: lane.header_remain.unwrap_or(0),
                        data_remain: lane.data_remain.unwrap_or(0),
                        sent: lane.last_sent.unwrap_or(0) as u32,
                        expected: lane.last_expected.unwrap_or(0) as u32,
                        seen: lane.tcp.last_una.unwrap_or(0) as u32,
                    });
                }
            }
        }
    }

    /// Of the kernel. What it does not tell is complained of, and left out.
    ///
    /// # Errors
    /// There is no RDS in the kernel.
    pub fn of_kernel(complain: impl Fn(&str)) -> Result<Self, Failure> {
        let kernel = KernelInfo::open().map_err(|e| Failure::new(e.to_string()))?;
        fn told<T>(what: &str, list: std::io::Result<Vec<T>>, complain: &impl Fn(&str)) -> Vec<T> {
            list.unwrap_or_else(|e| {
                complain(&format!("the kernel does not tell of {what}: {e}"));
                Vec::new()
            })
        }
        let messages = |what, queue| {
            let row = |m: InfoMessage| MessageRow {
                local: m.local,
                remote: m.remote,
                sequence: m.sequence,
                len: m.len,
            };
            told(what, kernel.messages(queue), &complain).into_iter().map(row).collect()
        };
        let flag = |is_so, letter| if is_so { letter } else { '-' };
        Ok(Self {
            counters: told("counters", kernel.counters(), &complain),
            sockets: told("sockets", kernel.sockets(), &complain)
                .into_iter()
                .map(|socket| SocketRow {
                    bound: socket.bound,
                    connected: socket.connected,
                    send_buffer: socket.send_buffer.into(),
                    receive_buffer: socket.recv_buffer.into(),
                    inode: socket.inode,
                    congested: -1,
                    owner: holder(socket.inode),
                })
                .collect(),
            connections: told("connections", kernel.connections(), &complain)
                .into_iter()
                .map(|c| ConnectionRow {
                    local: c.local,
                    remote: c.remote,
                    next_tx: c.next_tx,
                    next_rx: c.next_rx,
                    flags: [flag(c.sending, 's'), flag(c.connecting, 'c'), flag(c.connected, 'C'), '-']
                        .iter()
                        .collect(),
                })
                .collect(),
            receive: messages("received messages", Queue::Receive),
            send: messages("messages to be sent", Queue::Send),
            retransmit: messages("messages that were sent", Queue::Retransmit),
            tcp: told("TCP connections", kernel.tcp_sockets(), &complain)
                .into_iter()
                .map(|t| TcpRow {
                    local: t.local,
                    remote: t.remote,
                    header_remain: t.header_remaining,
                    data_remain: t.data_remaining,
                    sent: t.last_sent_next,
                    expected: t.last_expected_una,
                    seen: t.last_seen_una,
                })
                .collect(),
        })
    }
}

/// The address that stands for none.
fn unspecified(like: IpAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { std::net::Ipv6Addr::UNSPECIFIED.into() }
}

/// Who has a socket of that inode open, as far as this user may see it.
fn holder(inode: u64) -> Option<(i32, String)> {
    let name = format!("socket:[{inode}]");
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|pid| pid.parse::<i32>().ok()) else {
            continue;
        };
        let Ok(files) = std::fs::read_dir(process.path().join("fd")) else { continue };
        if files
            .flatten()
            .any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == name.as_str()))
        {
            return Some((pid, comm(pid)));
        }
    }
    None
}
