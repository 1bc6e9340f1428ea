//! Some hundred TCP connections of one node: 13 peers with 8 lanes each.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use rds_client::{Node, Socket};
use rds_core::proto::lane_of_port;

use super::part::{Part, Since, bind, open_node, serve};
use super::traffic::{End, Taken, answer};

/// Peers, and lanes to each.
pub(crate) const PEERS: u8 = 13;
pub(crate) const LANES: u8 = 8;
/// How often a thread that gets nothing asks whether it is to end.
const TICK: Duration = Duration::from_millis(100);

/// Address of a peer; `base` is that of the first.
pub(crate) fn peer(base: IpAddr, index: u8) -> IpAddr {
    match base {
        IpAddr::V4(base) => IpAddr::V4(Ipv4Addr::from_bits(base.to_bits() + u32::from(index))),
        v6 @ IpAddr::V6(_) => v6,
    }
}

/// A port on each lane: a message takes the lane of its sender's port.
fn ports() -> impl Iterator<Item = u16> {
    (0..LANES).map(|lane| (6000..).find(|p| lane_of_port(*p, LANES) == lane).expect("some port has it"))
}

/// A socket on each lane.
pub(crate) fn sockets(node: &Node) -> Result<Vec<Socket>, String> {
    ports().map(|port| bind(node, port)).collect()
}

/// Where the sockets on the lane of `socket` are.
pub(crate) fn destinations(part: &Part, socket: &Socket) -> Vec<SocketAddr> {
    let port = socket.local_addr().port();
    (0..PEERS).map(|index| SocketAddr::new(peer(part.peer, index), port)).collect()
}

/// The peers: each socket of each answers what it gets.
pub(crate) fn servers(part: &Part) -> Result<(), String> {
    let mut ends = Vec::new();
    for index in 0..PEERS {
        let address = peer(part.own, index);
        let node = open_node(part, address, LANES)?;
        for socket in sockets(&node)? {
            socket.set_recv_timeout(Some(TICK));
            ends.push(End { node: node.clone(), to: socket.local_addr(), socket });
        }
    }
    let taken = Taken::default();
    let mut since = Since::default();
    thread::scope(|scope| {
        let workers: Vec<_> = ends.iter().map(|end| scope.spawn(|| answer(end, &taken))).collect();
        let served = serve(|_| Ok(since.cost(&taken.messages)));
        taken.stop.store(true, Relaxed);
        workers
            .into_iter()
            .map(|w| w.join().unwrap_or_else(|_| Err("a thread panicked".to_owned())))
            .fold(served, Result::and)
    })
}
