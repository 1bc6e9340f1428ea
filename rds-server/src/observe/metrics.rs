//! The catalogue of metrics, and their text for Prometheus (text exposition format 0.0.4).
//!
//! All of them are read from one [`Status`], so that they and `/status` say the same. The kernel's counters keep its names.

use std::borrow::Cow;
use std::fmt::{Display, Write};

use rds_core::info::{ConnectionInfo, Counter, NodeStatus, PeerInfo, State, Status};

/// The type of the text.
pub const TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How a metric moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only up, from 0 at the start.
    Counter,
    /// Up and down.
    Gauge,
}

impl Kind {
    /// As in the text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// One metric.
#[derive(Clone, Debug)]
pub struct Metric {
    /// Its name.
    pub name: Cow<'static, str>,
    /// How it moves.
    pub kind: Kind,
    /// What it is, in a line, with its unit.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    read: Read,
}

/// How a metric is read, by what there is one of it for.
#[derive(Clone, Copy, Debug)]
enum Read {
    Daemon(fn(&Status) -> Option<f64>),
    /// With a last label of its own.
    Words(fn(&Status) -> Vec<(String, f64)>),
    Node(fn(&NodeStatus) -> Option<f64>),
    Counter(Counter),
    NodeWords(fn(&NodeStatus) -> Vec<(String, f64)>),
    Peer(fn(&PeerInfo) -> Option<f64>),
    PeerInfo,
    Lane(fn(&ConnectionInfo) -> Option<f64>),
    Client(fn(&rds_core::info::ClientInfo) -> Option<f64>),
    ClientInfo,
}

use Kind::{Counter as C, Gauge as G};
use Read::{Client, Daemon, Lane, Node, NodeWords, Peer, Words};

const NODE: &[&str] = &["node"];
const PEER: &[&str] = &["node", "peer"];
const LANE: &[&str] = &["node", "peer", "lane"];
const CLIENT: &[&str] = &["node", "client"];

/// A number as Prometheus has it. Whole ones are exact up to 2^53.
#[allow(clippy::cast_precision_loss)]
fn n(value: u64) -> f64 {
    value as f64
}

fn flag(value: bool) -> Option<f64> {
    Some(f64::from(u8::from(value)))
}

fn ms(value: u64) -> f64 {
    n(value) / 1e3
}

const fn metric(
    name: &'static str,
    kind: Kind,
    help: &'static str,
    labels: &'static [&'static str],
    read: Read,
) -> Metric {
    Metric { name: Cow::Borrowed(name), kind, help, labels, read }
}

/// Every metric, in the order of the text.
#[must_use]
pub fn catalogue() -> Vec<Metric> {
    let mut all = daemon();
    all.extend(Counter::ALL.iter().map(|counter| Metric {
        name: format!("rds_{}_total", counter.name()).into(),
        kind: C,
        help: counter.help(),
        labels: NODE,
        read: Read::Counter(*counter),
    }));
    all.extend(node());
    all.extend(peer());
    all.extend(client());
    all
}

fn daemon() -> Vec<Metric> {
    const STATES: [State; 4] = [State::Starting, State::Ready, State::Draining, State::Failed];
    vec![
        metric(
            "rds_build_info",
            G,
            "1; its label is the daemon's version.",
            &["version"],
            Words(|s| vec![(s.version.clone(), 1.0)]),
        ),
        metric(
            "rds_start_time_seconds",
            G,
            "When the daemon started, in seconds since 1970.",
            &[],
            Daemon(|s| Some(ms(s.started_ms))),
        ),
        metric(
            "rds_uptime_seconds",
            G,
            "How long the daemon has been running, in seconds.",
            &[],
            Daemon(|s| Some(ms(s.uptime_ms))),
        ),
        metric(
            "rds_state",
            G,
            "1 for the state in which the daemon is, 0 for the others.",
            &["state"],
            Words(|s| {
                STATES
                    .iter()
                    .map(|state| (state.name().to_owned(), f64::from(u8::from(*state == s.state))))
                    .collect()
            }),
        ),
        metric(
            "rds_config_loaded_time_seconds",
            G,
            "When the configuration in use was read, in seconds since 1970.",
            &[],
            Daemon(|s| Some(ms(s.config.loaded_ms))),
        ),
        metric(
            "rds_config_reloads_total",
            C,
            "How often the configuration was read again, by what came of it: ok, failed (all stayed as it was).",
            &["result"],
            Words(|s| {
                vec![
                    ("ok".to_owned(), n(s.config.reloads)),
                    ("failed".to_owned(), n(s.config.failed_reloads)),
                ]
            }),
        ),
        metric(
            "rds_config_last_reload_ok",
            G,
            "0 if the configuration could not be read again, the last time; else 1.",
            &[],
            Daemon(|s| flag(s.config.last_error.is_none())),
        ),
        metric(
            "rds_events_total",
            C,
            "How often what is worth a line in the log has happened, by the event's name; lines that were left out count.",
            &["event"],
            Words(|s| s.events.iter().map(|(event, times)| (event.clone(), n(*times))).collect()),
        ),
        metric(
            "rds_suppressed_log_lines_total",
            C,
            "Lines that were left out of the log because there were too many.",
            &[],
            Daemon(|s| Some(n(s.suppressed_log_lines))),
        ),
    ]
}

fn node() -> Vec<Metric> {
    vec![
        metric(
            "rds_peers",
            G,
            "Peers that the node knows.",
            NODE,
            Node(|s| Some(n(s.node.peers.len() as u64))),
        ),
        metric("rds_sockets", G, "Bound sockets.", NODE, Node(|s| Some(n(s.node.sockets.len() as u64)))),
        metric(
            "rds_congested_sockets",
            G,
            "Bound sockets whose port is congested.",
            NODE,
            Node(|s| Some(n(s.node.sockets.iter().filter(|socket| socket.congested).count() as u64))),
        ),
        metric(
            "rds_clients",
            G,
            "Programs that are attached.",
            NODE,
            Node(|s| Some(n(s.clients.len() as u64))),
        ),
        metric(
            "rds_ports",
            G,
            "Bound ports, by how their sockets share them.",
            &["node", "sharing"],
            NodeWords(|s| {
                use rds_core::info::SharingWord::{Balance, Exclusive, FanOut};
                let count = |word| s.ports.iter().filter(|port| port.sharing == word).count() as u64;
                [Exclusive, Balance, FanOut]
                    .iter()
                    .map(|word| (word.name().to_owned(), n(count(*word))))
                    .collect()
            }),
        ),
        metric(
            "rds_receive_queued_bytes",
            G,
            "Bytes of received messages that no program has taken yet, with 48 bytes a message added.",
            NODE,
            Node(|s| Some(n(s.node.receive_queued))),
        ),
        metric(
            "rds_receive_budget_bytes",
            G,
            "Limit of rds_receive_queued_bytes.",
            NODE,
            Node(|s| Some(n(s.node.receive_budget))),
        ),
        metric(
            "rds_pinned_bytes",
            G,
            "Bytes that the kernel has pinned now, as it counts them: whole pages, and two more a call.",
            NODE,
            Node(|s| Some(n(s.node.zero_copy.pinned_bytes))),
        ),
        metric(
            "rds_pinned_max_bytes",
            G,
            "Most bytes that the kernel had pinned at one time.",
            NODE,
            Node(|s| Some(n(s.node.zero_copy.pinned_bytes_max))),
        ),
        metric(
            "rds_pinned_limit_bytes",
            G,
            "Limit of rds_pinned_bytes; none without one.",
            NODE,
            Node(|s| s.node.zero_copy.pin_limit.map(n)),
        ),
        metric(
            "rds_pool_bytes",
            G,
            "Bytes of free buffers that the node keeps.",
            NODE,
            Node(|s| Some(n(s.node.zero_copy.pool_bytes))),
        ),
        metric(
            "rds_leaked_calls_total",
            C,
            "Sends that the kernel never said it was done with; 0 unless the kernel is at fault.",
            NODE,
            Node(|s| Some(n(s.node.zero_copy.leaked_calls))),
        ),
        metric(
            "rds_zero_copy_send_calls_total",
            C,
            "Sends whose payload was pinned.",
            NODE,
            Node(|s| Some(n(s.node.zero_copy.send.calls))),
        ),
        metric(
            "rds_zero_copy_send_bytes_total",
            C,
            "Bytes that sends whose payload was pinned have taken.",
            NODE,
            Node(|s| Some(n(s.node.zero_copy.send.bytes))),
        ),
        metric(
            "rds_zero_copy_send_copied_calls_total",
            C,
            "Sends whose payload was pinned, and of which the kernel said that it copied.",
            NODE,
            Node(|s| Some(n(s.node.zero_copy.send.copied))),
        ),
        metric(
            "rds_zero_copy_receive_messages_total",
            C,
            "Messages that were handed out in the pages in which they came.",
            NODE,
            Node(|s| Some(n(s.node.zero_copy.recv.counts.messages))),
        ),
        metric(
            "rds_zero_copy_receive_bytes_total",
            C,
            "Bytes of messages that were handed out in the pages in which they came.",
            NODE,
            Node(|s| Some(n(s.node.zero_copy.recv.counts.bytes))),
        ),
        metric(
            "rds_zero_copy_receive_region_bytes",
            G,
            "Bytes of pages that are being filled or held, or are free and still mapped.",
            NODE,
            Node(|s| Some(n(s.node.zero_copy.recv.region_bytes))),
        ),
    ]
}

fn peer() -> Vec<Metric> {
    vec![
        metric(
            "rds_peer_info",
            G,
            "1; its labels say what the peer is (kind) and what a delivered message was accepted by (delivery).",
            &["node", "peer", "kind", "delivery"],
            Read::PeerInfo,
        ),
        metric(
            "rds_peer_up",
            G,
            "1 while the peer has a connection that carries messages, else 0.",
            PEER,
            Peer(|p| flag(p.connections.iter().any(|lane| lane.state == "up"))),
        ),
        metric("rds_peer_lanes", G, "Lanes in use.", PEER, Peer(|p| Some(f64::from(p.lanes)))),
        metric(
            "rds_peer_congested_ports",
            G,
            "Ports of the peer that are congested.",
            PEER,
            Peer(|p| Some(f64::from(p.congested_ports))),
        ),
        metric(
            "rds_peer_attempts_total",
            C,
            "Connections that the node tried to make, all lanes together.",
            PEER,
            Peer(|p| Some(n(p.attempts))),
        ),
        metric(
            "rds_peer_resets_total",
            C,
            "Connections lost, all lanes together.",
            PEER,
            Peer(|p| Some(n(p.resets))),
        ),
        metric(
            "rds_lane_up",
            G,
            "1 while the lane has a connection that carries messages, else 0.",
            LANE,
            Lane(|l| flag(l.state == "up")),
        ),
        metric(
            "rds_lane_next_tx",
            G,
            "Sequence number that the next message sent will have; 1 again after a restart of either end.",
            LANE,
            Lane(|l| Some(n(l.next_tx))),
        ),
        metric(
            "rds_lane_next_rx",
            G,
            "One more than the sequence number accepted last; 1 again after a restart of either end.",
            LANE,
            Lane(|l| Some(n(l.next_rx))),
        ),
        metric(
            "rds_lane_queued_messages",
            G,
            "Messages that wait for their first transmission.",
            LANE,
            Lane(|l| Some(n(l.queued))),
        ),
        metric(
            "rds_lane_unacknowledged_messages",
            G,
            "Messages sent and not acknowledged.",
            LANE,
            Lane(|l| Some(n(l.unacknowledged))),
        ),
        metric(
            "rds_lane_rtt_seconds",
            G,
            "Smoothed round trip of TCP, in seconds; none without a connection.",
            LANE,
            Lane(|l| l.tcp.rtt_us.map(|us| f64::from(us) / 1e6)),
        ),
        metric(
            "rds_lane_tcp_sent_bytes",
            G,
            "Bytes that the peer's TCP has acknowledged on the connection that carries the lane now, headers included.",
            LANE,
            Lane(|l| l.tcp.tcp_bytes_sent.map(n)),
        ),
        metric(
            "rds_lane_tcp_received_bytes",
            G,
            "Bytes received in order on the connection that carries the lane now, headers included.",
            LANE,
            Lane(|l| l.tcp.tcp_bytes_received.map(n)),
        ),
        metric(
            "rds_lane_tcp_retransmits",
            G,
            "Segments that TCP sent again on the connection that carries the lane now.",
            LANE,
            Lane(|l| l.tcp.tcp_retransmits.map(f64::from)),
        ),
    ]
}

fn client() -> Vec<Metric> {
    vec![
        metric(
            "rds_client_info",
            G,
            "1; its labels say who the client is, and by its number the other metrics of clients are joined to them.",
            &["node", "client", "pid", "uid", "program"],
            Read::ClientInfo,
        ),
        metric(
            "rds_client_sockets",
            G,
            "The client's sockets.",
            CLIENT,
            Client(|c| Some(n(c.sockets.len() as u64))),
        ),
        metric(
            "rds_client_waiting_sends",
            G,
            "Sends of the client that wait for congested ports.",
            CLIENT,
            Client(|c| Some(n(c.sockets.iter().map(|socket| socket.waiting as u64).sum()))),
        ),
        metric(
            "rds_client_shared_memory",
            G,
            "1 if the client shares memory with the daemon, 0 if everything goes over the Unix socket.",
            CLIENT,
            Client(|c| flag(c.shared_memory)),
        ),
        metric(
            "rds_client_arena_bytes",
            G,
            "Bytes of shared memory of the client.",
            CLIENT,
            Client(|c| Some(n(c.arena))),
        ),
        metric(
            "rds_client_send_buffer_bytes",
            G,
            "Send buffers of the client's sockets together.",
            CLIENT,
            Client(|c| Some(n(c.send_buffers))),
        ),
        metric(
            "rds_client_receive_buffer_bytes",
            G,
            "Receive buffers of the client's sockets together.",
            CLIENT,
            Client(|c| Some(n(c.receive_buffers))),
        ),
        metric(
            "rds_client_pinned_bytes",
            G,
            "Bytes that the kernel has pinned for the client now, whole pages.",
            CLIENT,
            Client(|c| Some(n(c.pinned_bytes))),
        ),
        metric(
            "rds_client_pinned_limit_bytes",
            G,
            "Limit of rds_client_pinned_bytes; none if only the node limits it.",
            CLIENT,
            Client(|c| c.pinned_limit.map(n)),
        ),
        metric(
            "rds_client_held_records",
            G,
            "Records that have no room in the client's ring or arena now.",
            CLIENT,
            Client(|c| Some(n(c.held.records))),
        ),
        metric(
            "rds_client_held_bytes",
            G,
            "Payload bytes of messages that have no room in the client's ring or arena now.",
            CLIENT,
            Client(|c| Some(n(c.held.bytes))),
        ),
        metric(
            "rds_client_held_total",
            C,
            "Messages that had to wait for room in the client's ring or arena.",
            CLIENT,
            Client(|c| Some(n(c.held.ever))),
        ),
    ]
}

/// The text of all metrics.
#[must_use]
pub fn render(status: &Status) -> String {
    let mut text = String::with_capacity(32 << 10);
    for metric in catalogue() {
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP {} {}", metric.name, metric.help);
        let _ = writeln!(text, "# TYPE {} {}", metric.name, metric.kind.name());
        metric.samples(status, &mut text);
    }
    text
}

/// Adds a sample with these labels, if there is a value.
type Add<'a> = dyn FnMut(&[&dyn Display], Option<f64>) + 'a;

impl Metric {
    fn samples(&self, status: &Status, text: &mut String) {
        let mut add = |labels: &[&dyn Display], value: Option<f64>| {
            if let Some(value) = value {
                self.sample(text, labels, value);
            }
        };
        match self.read {
            Daemon(read) => add(&[], read(status)),
            Words(read) => read(status).iter().for_each(|(word, value)| add(&[word], Some(*value))),
            _ => {
                for node in &status.nodes {
                    self.of_node(node, &mut add);
                }
            }
        }
    }

    fn of_node(&self, node: &NodeStatus, add: &mut Add<'_>) {
        let at = &node.node.address;
        let peers = &node.node.peers;
        match self.read {
            Daemon(_) | Words(_) => {}
            Node(read) => add(&[at], read(node)),
            Read::Counter(counter) => add(&[at], Some(n(node.node.counters.get(counter)))),
            NodeWords(read) => read(node).iter().for_each(|(word, value)| add(&[at, word], Some(*value))),
            Peer(read) => peers.iter().for_each(|peer| add(&[at, &peer.address], read(peer))),
            Read::PeerInfo => {
                for peer in peers {
                    add(&[at, &peer.address, &peer.kind, &peer.delivery.unwrap_or("unknown")], Some(1.0));
                }
            }
            Lane(read) => {
                for peer in peers {
                    for lane in &peer.connections {
                        add(&[at, &peer.address, &lane.lane], read(lane));
                    }
                }
            }
            Client(read) => node.clients.iter().for_each(|client| add(&[at, &client.session], read(client))),
            Read::ClientInfo => {
                for client in &node.clients {
                    add(&[at, &client.session, &client.pid, &client.uid, &client.program], Some(1.0));
                }
            }
        }
    }

    fn sample(&self, text: &mut String, labels: &[&dyn Display], value: f64) {
        text.push_str(&self.name);
        for (n, (name, label)) in self.labels.iter().zip(labels).enumerate() {
            text.push(if n == 0 { '{' } else { ',' });
            let _ = write!(text, "{name}=\"");
            // A client's program may be any text.
            for c in label.to_string().chars() {
                match c {
                    '\\' => text.push_str("\\\\"),
                    '"' => text.push_str("\\\""),
                    '\n' => text.push_str("\\n"),
                    c => text.push(c),
                }
            }
            text.push('"');
        }
        if !labels.is_empty() {
            text.push('}');
        }
        let _ = writeln!(text, " {value}");
    }
}
