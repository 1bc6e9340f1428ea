//! Tables that the reference does not have, or only for its own kernels: paths, peers, ports, clients, pinned memory.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rds_client::NodeStatus;
use rds_core::info::{ConnectionInfo, PeerInfo};

use super::tables::Addresses;
use crate::tools::text::{moment, name, plain};

/// What was there before, and how many seconds ago.
pub type Before<'a> = Option<(&'a [NodeStatus], f64)>;

/// Columns to the right, but for a last one to the left.
struct Table {
    title: &'static str,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(title: &'static str, heading: &[&str]) -> Self {
        Self { title, rows: vec![heading.iter().map(ToString::to_string).collect()] }
    }

    fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.rows[0].len());
        self.rows.push(cells);
    }

    fn text(&self) -> String {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        let mut out = format!("\n{}:\n", self.title);
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let blank = if column == 0 { "" } else { " " };
                let _ = match column + 1 == row.len() {
                    true => write!(line, "{blank}{cell}"),
                    false => write!(line, "{blank}{cell:>width$}"),
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn seconds(ms: Option<u64>) -> String {
    or_dash(ms.map(|ms| ms / 1000))
}

/// `-p`. `now`: time since 1970, from which ages are counted back.
#[must_use]
pub fn paths(nodes: &[NodeStatus], addresses: Addresses, now: Duration) -> String {
    let w = if addresses.all { 37 } else { 15 };
    let mut out = format!(
        "\nRDS Paths:\n{:>w$} {:>w$} {:>4} {:>5}\n  {:>1} {:>20} {:>20} {:>20} {:>8} Flgs {:>10} Reason\n",
        "LocalAddr",
        "RemoteAddr",
        "Tos",
        "Trans",
        "P",
        "Connected@",
        "Attempt@",
        "Reset@",
        "Attempts",
        "Down(Secs)"
    );
    let at = |ms: Option<u64>| or_dash(ms.map(|ms| moment(now.saturating_sub(Duration::from_millis(ms)))));
    for node in nodes.iter().filter(|node| addresses.all || node.node.address.is_ipv4()) {
        for peer in &node.node.peers {
            let _ = writeln!(out, "{:>w$} {:>w$} {:>4} {:>5}", node.node.address, peer.address, 0, "tcp");
            for lane in &peer.connections {
                let down = if lane.state == "up" { None } else { lane.reset_ms };
                let _ = writeln!(
                    out,
                    "  {:>1} {:>20} {:>20} {:>20} {:>8} {} {:>10} {}",
                    lane.lane,
                    at(lane.connected_ms),
                    at(lane.attempted_ms),
                    at(lane.reset_ms),
                    lane.attempts,
                    path_flags(lane),
                    seconds(down),
                    or_dash(lane.last_reason.as_deref().map(plain)),
                );
            }
        }
    }
    out
}

fn path_flags(lane: &ConnectionInfo) -> String {
    let flag = |is_so, letter| if is_so { letter } else { '-' };
    [
        flag(lane.state == "up" && (lane.queued > 0 || lane.unacknowledged > 0), 's'),
        flag(matches!(lane.state, "connecting" | "handshake"), 'c'),
        flag(lane.state == "up", 'C'),
        flag(lane.state == "down" && lane.last_reason.is_some(), 'E'),
    ]
    .iter()
    .collect()
}

/// `--peers`. With something from before, rates as well.
#[must_use]
pub fn peers(nodes: &[NodeStatus], before: Before<'_>) -> String {
    let mut heading = vec![
        "LocalAddr",
        "RemoteAddr",
        "Kind",
        "Delivery",
        "Lanes",
        "State",
        "Since(s)",
        "RTT(us)",
        "Queued",
        "Unacked",
        "CongPorts",
        "Attempts",
        "Resets",
    ];
    if before.is_some() {
        heading.extend(["tx/s", "rx/s", "out K/s", "in K/s"]);
    }
    heading.push("Reason");
    let mut table = Table::new("Peers", &heading);
    for node in nodes {
        let address = node.node.address;
        for peer in &node.node.peers {
            let sum =
                |of: fn(&ConnectionInfo) -> u64| peer.connections.iter().map(of).fold(0, u64::saturating_add);
            let mut row = vec![
                address.to_string(),
                peer.address.to_string(),
                plain(peer.kind),
                or_dash(peer.delivery),
                peer.lanes.to_string(),
                state(peer).to_owned(),
                seconds(peer.connected_ms.or(peer.down_ms)),
                or_dash(peer.connections.iter().filter_map(|c| c.tcp.rtt_us).min()),
                sum(|c| c.queued).to_string(),
                sum(|c| c.unacknowledged).to_string(),
                peer.congested_ports.to_string(),
                peer.attempts.to_string(),
                peer.resets.to_string(),
            ];
            if let Some((nodes, seconds)) = before {
                row.extend(rates(peer, find(nodes, address, peer.address), seconds));
            }
            row.push(or_dash(peer.last_reason.as_deref().map(plain)));
            table.row(row);
        }
    }
    table.text()
}

/// The state of its best lane.
#[must_use]
pub fn state(peer: &PeerInfo) -> &'static str {
    let states = ["up", "handshake", "connecting"];
    states.into_iter().find(|state| peer.connections.iter().any(|c| c.state == *state)).unwrap_or("down")
}

fn find(nodes: &[NodeStatus], own: IpAddr, peer: IpAddr) -> Option<&PeerInfo> {
    let node = nodes.iter().find(|node| node.node.address == own)?;
    node.node.peers.iter().find(|other| other.address == peer)
}

/// Messages and KiB a second, out and in.
fn rates(now: &PeerInfo, before: Option<&PeerInfo>, seconds: f64) -> [String; 4] {
    let mut sums = [0_u64; 4];
    for lane in &now.connections {
        let Some(old) = before.and_then(|p| p.connections.iter().find(|old| old.lane == lane.lane)) else {
            continue;
        };
        // What another connection has sent does not count for this one.
        let same = old.tcp.local == lane.tcp.local && old.tcp.remote == lane.tcp.remote;
        let bytes = |now: Option<u64>, old: Option<u64>| {
            now.unwrap_or(0).saturating_sub(if same { old.unwrap_or(0) } else { 0 })
        };
        let new = [
            lane.next_tx.saturating_sub(old.next_tx),
            // 0 until something has come.
            if old.next_rx > 1 { lane.next_rx.saturating_sub(old.next_rx) } else { 0 },
            bytes(lane.tcp.tcp_bytes_sent, old.tcp.tcp_bytes_sent),
            bytes(lane.tcp.tcp_bytes_received, old.tcp.tcp_bytes_received),
        ];
        sums.iter_mut().zip(new).for_each(|(sum, new)| *sum = sum.saturating_add(new));
    }
    let [tx, rx, out, inward] = sums.map(|sum| sum as f64 / seconds);
    [
        format!("{tx:.1}"),
        format!("{rx:.1}"),
        format!("{:.1}", out / 1024.0),
        format!("{:.1}", inward / 1024.0),
    ]
}

/// `--ports`.
#[must_use]
pub fn ports(nodes: &[NodeStatus]) -> String {
    let mut table = Table::new("Ports", &["BoundAddr", "BPort", "Sharing", "Members", "Cong", "Programs"]);
    for node in nodes {
        for port in &node.ports {
            let holders = node.clients.iter().filter(|c| c.sockets.iter().any(|s| s.bound == port.bound));
            let holders: Vec<_> = holders.map(|c| format!("{}({})", name(&c.program, 16), c.pid)).collect();
            let congested =
                node.node.sockets.iter().find(|s| s.bound == port.bound).map(|s| u8::from(s.congested));
            table.row(vec![
                port.bound.ip().to_string(),
                port.bound.port().to_string(),
                port.sharing.name().to_owned(),
                port.members.to_string(),
                or_dash(congested),
                if holders.is_empty() { "-".to_owned() } else { holders.join(" ") },
            ]);
        }
    }
    table.text()
}

/// `--clients`.
#[must_use]
pub fn clients(nodes: &[NodeStatus]) -> String {
    let mut table = Table::new(
        "Clients",
        &[
            "Address",
            "Session",
            "Pid",
            "Uid",
            "Attached(s)",
            "Memory",
            "Arena",
            "SndBuf",
            "RcvBuf",
            "Pinned",
            "Sockets",
            "Waiting",
            "HeldMsgs",
            "HeldBytes",
            "Comm",
        ],
    );
    for node in nodes {
        for client in &node.clients {
            table.row(vec![
                node.node.address.to_string(),
                client.session.to_string(),
                client.pid.to_string(),
                client.uid.to_string(),
                (client.attached_ms / 1000).to_string(),
                if client.shared_memory { "shared" } else { "stream" }.to_owned(),
                client.arena.to_string(),
                client.send_buffers.to_string(),
                client.receive_buffers.to_string(),
                client.pinned_bytes.to_string(),
                client.sockets.len().to_string(),
                client.sockets.iter().map(|s| s.waiting).fold(0, usize::saturating_add).to_string(),
                client.held.records.to_string(),
                client.held.bytes.to_string(),
                name(&client.program, 64),
            ]);
        }
    }
    table.text()
}

/// `--pins`: who holds pinned memory.
#[must_use]
pub fn pins(nodes: &[NodeStatus]) -> String {
    let mut out = Table::new(
        "Pinned Memory",
        &["Address", "Pinned", "Most", "Limit", "Memlock", "Optmem", "Mapped", "MapLimit", "Leaked"],
    );
    let mut holders =
        Table::new("Pinned By", &["Address", "Pinned", "Limit", "Calls", "Oldest(ms)", "Holder"]);
    for node in nodes {
        let (address, zero_copy) = (node.node.address.to_string(), &node.node.zero_copy);
        out.row(vec![
            address.clone(),
            zero_copy.pinned_bytes.to_string(),
            zero_copy.pinned_bytes_max.to_string(),
            or_dash(zero_copy.pin_limit),
            or_dash(zero_copy.memlock),
            zero_copy.optmem.to_string(),
            zero_copy.recv.region_bytes.to_string(),
            zero_copy.recv.map_limit.to_string(),
            zero_copy.leaked_calls.to_string(),
        ]);
        let mut add = |pinned: String,
                       limit: Option<u64>,
                       calls: Option<u64>,
                       oldest: Option<u64>,
                       who: String| {
            holders.row(vec![address.clone(), pinned, or_dash(limit), or_dash(calls), or_dash(oldest), who]);
        };
        for client in &node.clients {
            let who = format!("program {}({})", name(&client.program, 64), client.pid);
            add(client.pinned_bytes.to_string(), client.pinned_limit, None, None, who);
        }
        for socket in node.node.sockets.iter().filter(|s| s.pinned_bytes > 0 || node.clients.is_empty()) {
            add(
                socket.pinned_bytes.to_string(),
                None,
                None,
                None,
                format!("socket {}", socket_name(socket.bound)),
            );
        }
        for peer in &node.node.peers {
            for (lane, send) in
                peer.connections.iter().filter_map(|c| Some((c.lane, c.zero_copy.send.as_ref()?)))
            {
                let decision = &send.decision;
                let how = if decision.zero_copy { "pinned" } else { "copied" };
                let who = format!("peer {} lane {lane}: {how}, {}", peer.address, decision.reason);
                add(
                    format!("{}p", send.pinned_pages),
                    None,
                    Some(send.outstanding),
                    Some(send.oldest_ms),
                    who,
                );
            }
        }
    }
    out.text() + &holders.text()
}

fn socket_name(bound: SocketAddr) -> String {
    format!("{} port {}", bound.ip(), bound.port())
}

#[cfg(test)]
mod tests {
    use super::super::rows::Rows;
    use super::*;
    use crate::tools::source::Seen;

    /// A node of a daemon, from what a daemon would say.
    fn node() -> NodeStatus {
        let lane = |lane: u8, state: &str, tx: u64, sent: u64| {
            serde_json::json!({
                "lane": lane, "state": state, "next_tx": tx, "next_rx": 50, "send_queue": [], "retransmit_queue": [],
                "zero_copy": {"send": null, "recv": null}, "queued": 2, "unacknowledged": 1, "attempts": 3, "resets": 1,
                "connected_ms": if state == "up" { Some(5_500) } else { None }, "attempted_ms": 6_000, "reset_ms": 7_000,
                "last_reason": "connection\u{1b}[2J refused", "rtt_us": 90, "local": "10.0.0.1:50000", "remote": "10.0.0.2:16385",
                "tcp_bytes_sent": sent, "tcp_bytes_received": 10_240,
            })
        };
        let mut status = base();
        status["peers"] = serde_json::json!([{
            "address": "10.0.0.2", "delivery": "application", "generation": 7, "lanes": 2, "kind": "own", "congested_ports": 1,
            "connected_ms": 5_500, "attempts": 6, "resets": 2, "last_reason": "closed by the peer",
            "connections": [lane(0, "up", 100, 2048), lane(1, "down", 1, 0)],
        }]);
        status["clients"] = serde_json::json!([{
            "session": 3, "pid": 77, "uid": 1000, "program": "a\u{9b}b", "attached_ms": 61_000, "shared_memory": true, "arena": 4096,
            "send_buffers": 1, "receive_buffers": 2, "pinned_bytes": 8192, "pinned_limit": 16384,
            "held": {"records": 4, "bytes": 5, "ever": 6}, "sockets": [{"bound": "10.0.0.1:80", "waiting": 9}],
        }]);
        status["ports"] = serde_json::json!([{"bound": "10.0.0.1:80", "sharing": "fan-out", "members": 2}]);
        serde_json::from_value(status).unwrap()
    }

    /// A node that has nothing.
    fn base() -> serde_json::Value {
        let config = rds_client::Config::new([10, 0, 0, 1].into(), std::num::NonZeroU32::MIN);
        let node = rds_core::proto::Node::new(config).unwrap();
        serde_json::to_value(NodeStatus::embedded(node.snapshot(true))).unwrap()
    }

    #[test]
    fn paths_have_a_line_for_the_peer_and_one_for_each_lane() {
        let now = Duration::from_secs(1_735_689_600);
        let expected = "\nRDS Paths:\n\
            \x20     LocalAddr      RemoteAddr  Tos Trans\n\
            \x20 P           Connected@             Attempt@               Reset@ Attempts Flgs Down(Secs) Reason\n\
            \x20      10.0.0.1        10.0.0.2    0   tcp\n\
            \x20 0 2024-12-31T23:59:54Z 2024-12-31T23:59:54Z 2024-12-31T23:59:53Z        3 s-C-          - connection?[2J refused\n\
            \x20 1                    - 2024-12-31T23:59:54Z 2024-12-31T23:59:53Z        3 ---E          7 connection?[2J refused\n";
        assert_eq!(paths(&[node()], Addresses { all: false }, now), expected);
    }

    #[test]
    fn peers_show_their_guarantee_and_with_something_from_before_their_rates() {
        let text = peers(&[node()], None);
        let row: Vec<&str> = text.lines().nth(3).unwrap().split_whitespace().collect();
        assert_eq!(
            row[..13],
            ["10.0.0.1", "10.0.0.2", "own", "application", "2", "up", "5", "90", "4", "2", "1", "6", "2"]
        );
        assert!(text.ends_with(" closed by the peer\n"), "{text}");

        let mut now = node();
        let lane = &mut now.node.peers[0].connections[0];
        (lane.next_tx, lane.next_rx) = (300, 60);
        (lane.tcp.tcp_bytes_sent, lane.tcp.tcp_bytes_received) = (Some(2048 + 4096), Some(10_240));
        let rates = |now: &NodeStatus, before: NodeStatus| -> Vec<String> {
            let text = peers(std::slice::from_ref(now), Some((&[before], 2.0)));
            text.lines().nth(3).unwrap().split_whitespace().skip(13).take(4).map(str::to_owned).collect()
        };
        assert_eq!(rates(&now, node()), ["100.0", "5.0", "2.0", "0.0"]);
        // Another connection has counted from 0.
        now.node.peers[0].connections[0].tcp.local = Some(([10, 0, 0, 1], 50_001).into());
        assert_eq!(rates(&now, node()), ["100.0", "5.0", "3.0", "5.0"]);
    }

    #[test]
    fn figures_that_cannot_be_are_shown_and_end_nothing() {
        let mut before = node();
        for lane in &mut before.node.peers[0].connections {
            (lane.next_tx, lane.next_rx) = (2, 2);
        }
        let mut now = node();
        for lane in &mut now.node.peers[0].connections {
            (lane.state, lane.queued, lane.unacknowledged) = ("up", u64::MAX, u64::MAX);
            (lane.next_tx, lane.next_rx) = (u64::MAX, u64::MAX);
            (lane.connected_ms, lane.reset_ms) = (Some(u64::MAX), Some(u64::MAX));
            (lane.tcp.tcp_bytes_sent, lane.tcp.tcp_bytes_received) = (Some(u64::MAX), Some(u64::MAX));
        }
        let socket = now.clients[0].sockets[0];
        now.clients[0].sockets = vec![socket; 2];
        now.clients[0].sockets.iter_mut().for_each(|socket| socket.waiting = usize::MAX);
        let nodes = [now];
        let most = u64::MAX.to_string();
        assert!(paths(&nodes, Addresses { all: false }, Duration::ZERO).contains("s-C-"));
        assert!(peers(&nodes, Some((&[before], 1e-9))).contains(&most));
        assert!(clients(&nodes).contains(&most));
        let seen = Seen { nodes: nodes.to_vec(), owner: None };
        assert_eq!(Rows::of_nodes(&seen).connections[0].flags, "s-C-");
    }

    #[test]
    fn ports_clients_and_pins_say_who_it_is() {
        let nodes = [node()];
        let cells = |text: &str, line| {
            text.lines().nth(line).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(cells(&ports(&nodes), 3), ["10.0.0.1", "80", "fan-out", "2", "-", "a?b(77)"]);
        let row = [
            "10.0.0.1", "3", "77", "1000", "61", "shared", "4096", "1", "2", "8192", "1", "9", "4", "5",
            "a?b",
        ];
        assert_eq!(cells(&clients(&nodes), 3), row);
        let pins = pins(&nodes);
        assert!(
            pins.lines().any(|line| line.ends_with("8192 16384     -          - program a?b(77)")),
            "{pins}"
        );
    }
}
