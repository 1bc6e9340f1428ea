//! The table of keys.

use std::time::Duration;

use super::catalogue::{Change, Key, Kind, Section};
use super::value::{
    Shown, address, count, each, group, maybe, mode, net, number, one, one_of, parsed, size, size_from,
    socket, switch, user, word,
};

const NODE: Section = Section {
    name: "node",
    heading: "Nodes",
    about: "The nodes: one for each address. What is said of a node here holds for each of them.",
};
const PEERS: Section = Section {
    name: "peers",
    heading: "Peers",
    about: "Which other hosts are served. Where two lists name an address, the longer prefix counts, and of two alike the refusal. \
            An address in no list is served, unless others are named as allowed.",
};
const ACCESS: Section = Section {
    name: "access",
    heading: "Access",
    about: "Who may attach, and bind what. Programs of a user who is not allowed any more keep what they have until they detach.",
};
const QUOTAS: Section = Section {
    name: "quotas",
    heading: "Quotas",
    about: "How much each program, and all programs of a user together, may have. A program that has more than a lowered quota keeps it, and gets \
            nothing more before it has less.",
};
const DATA: Section =
    Section { name: "data", heading: "Data path", about: "How messages go through the daemon." };
const LIFE: Section = Section { name: "life", heading: "Daemon", about: "How the daemon ends." };
const LOG: Section = Section { name: "log", heading: "Daemon", about: "What is written to standard error." };
const ADMIN: Section = Section {
    name: "admin",
    heading: "Daemon",
    about: "The admin pages: metrics, health, status, and a page for people.",
};

const LEVELS: &[&str] = &["error", "warn", "info", "debug", "trace"];

/// What programs are told when they attach.
const NEXT_PROGRAM: &str =
    "Programs that attach later get it; those that are attached keep what they were given.";

const fn key(section: &'static Section, name: &'static str, flag: &'static str, kind: Kind) -> Key {
    Key {
        section,
        name,
        flag,
        value: "BYTES",
        kind,
        help: "",
        more: "",
        unset: "",
        change: Change::Reload,
        set: |_, _| Ok(()),
        show: |_| Shown::Number(0),
    }
}

/// All keys, by section.
pub(super) static KEYS: &[Key] = &[
    Key {
        value: "ADDRESS",
        help: "Address of this host to serve; once for each node",
        more: "Required: a daemon without a node has nothing to do. IPv4 or IPv6, not link-local. A program that names no address gets the first.",
        unset: "none",
        change: Change::Restart,
        set: |s, v| each(v, address, |list| s.addresses = list),
        show: |s| list(&s.addresses),
        ..key(&NODE, "address", "address", Kind::List)
    },
    Key {
        value: "PORT",
        help: "TCP port to listen on; 0 for any free one",
        more: "Kernels and other nodes connect to 16385.",
        change: Change::Restart,
        set: |s, v| one(v, number(0, 65535), |n| s.listen_port = n as u16),
        show: |s| Shown::Number(s.listen_port.into()),
        ..key(&NODE, "listen-port", "listen-port", Kind::Number)
    },
    Key {
        value: "PORT",
        help: "TCP port to connect to",
        change: Change::Restart,
        set: |s, v| one(v, number(1, 65535), |n| s.dial_port = n as u16),
        show: |s| Shown::Number(s.dial_port.into()),
        ..key(&NODE, "dial-port", "dial-port", Kind::Number)
    },
    Key {
        value: "N",
        help: "TCP connections offered to each peer, 1 to 8",
        more: "Of own peers, and kernels from 7.0 on; older kernels get one.",
        change: Change::Restart,
        set: |s, v| one(v, number(1, 8), |n| s.lanes = n as u8),
        show: |s| Shown::Number(s.lanes.into()),
        ..key(&NODE, "lanes", "lanes", Kind::Number)
    },
    Key {
        value: "NAME",
        help: "TCP congestion control, such as cubic",
        unset: "the system's",
        change: Change::Restart,
        set: |s, v| maybe(v, word, |name| s.congestion_control = name),
        show: |s| Shown::Text(s.congestion_control.clone().unwrap_or_default()),
        ..key(&NODE, "congestion-control", "congestion-control", Kind::Text)
    },
    Key {
        help: "Received bytes of a node that programs have not taken",
        more: "Past it the node stops reading, so that peers wait. At least 1m.",
        change: Change::Restart,
        set: |s, v| one(v, size_from(1 << 20), |n| s.receive_budget = n),
        show: |s| Shown::Size(s.receive_budget),
        ..key(&NODE, "receive-budget", "receive-budget", Kind::Size)
    },
    Key {
        value: "CIDR",
        help: "Accept connections of these peers only; again for more",
        more: "A connection of a peer that a reload no longer allows is closed.",
        unset: "everybody's",
        set: |s, v| each(v, net, |list| s.peers.inbound.allow = list),
        show: |s| list(&s.peers.inbound.allow),
        ..key(&PEERS, "in-allow", "peer-in-allow", Kind::List)
    },
    Key {
        value: "CIDR",
        help: "Accept no connections of these peers",
        unset: "none",
        set: |s, v| each(v, net, |list| s.peers.inbound.refuse = list),
        show: |s| list(&s.peers.inbound.refuse),
        ..key(&PEERS, "in-refuse", "peer-in-refuse", Kind::List)
    },
    Key {
        value: "CIDR",
        help: "Send to these peers only",
        more: "What is queued for a peer that a reload no longer allows ends as a message to any peer that is not allowed: cancelled.",
        unset: "everybody",
        set: |s, v| each(v, net, |list| s.peers.outbound.allow = list),
        show: |s| list(&s.peers.outbound.allow),
        ..key(&PEERS, "out-allow", "peer-out-allow", Kind::List)
    },
    Key {
        value: "CIDR",
        help: "Send nothing to these peers",
        unset: "none",
        set: |s, v| each(v, net, |list| s.peers.outbound.refuse = list),
        show: |s| list(&s.peers.outbound.refuse),
        ..key(&PEERS, "out-refuse", "peer-out-refuse", Kind::List)
    },
    Key {
        value: "PATH",
        help: "Unix socket at which programs attach",
        change: Change::Restart,
        set: |s, v| one(v, socket, |path| s.socket = path),
        show: |s| Shown::Text(s.socket.display().to_string()),
        ..key(&ACCESS, "socket", "socket", Kind::Text)
    },
    Key {
        value: "MODE",
        help: "Permissions of the socket, octal",
        change: Change::Restart,
        set: |s, v| one(v, mode, |mode| s.mode = mode),
        show: |s| Shown::Text(format!("{:04o}", s.mode)),
        ..key(&ACCESS, "socket-mode", "socket-mode", Kind::Text)
    },
    Key {
        value: "USER",
        help: "Owner of the socket, by name or number",
        unset: "this user",
        change: Change::Restart,
        set: |s, v| maybe(v, user, |uid| s.owner = uid),
        show: |s| id(s.owner),
        ..key(&ACCESS, "socket-owner", "socket-owner", Kind::Id)
    },
    Key {
        value: "GROUP",
        help: "Group of the socket, by name or number",
        unset: "this group",
        change: Change::Restart,
        set: |s, v| maybe(v, group, |gid| s.group = gid),
        show: |s| id(s.group),
        ..key(&ACCESS, "socket-group", "socket-group", Kind::Id)
    },
    Key {
        value: "USER",
        help: "Only this user may attach; again for more",
        more: "By name or number. Who is in allow-gid may attach too.",
        unset: "everybody who may open the socket",
        set: |s, v| each(v, user, |list| s.attach.uids = list),
        show: |s| list(&s.attach.uids),
        ..key(&ACCESS, "allow-uid", "allow-uid", Kind::List)
    },
    Key {
        value: "GROUP",
        help: "Only members of this group may attach; again for more",
        more: "By name or number, supplementary groups included.",
        unset: "everybody who may open the socket",
        set: |s, v| each(v, group, |list| s.attach.gids = list),
        show: |s| list(&s.attach.gids),
        ..key(&ACCESS, "allow-gid", "allow-gid", Kind::List)
    },
    Key {
        value: "RULE",
        help: "Who may bind what: `allow|deny[,uid=N][,gid=N][,port=N[-M]][,address=CIDR]`; the first that concerns a case counts",
        more: "Without any rule everything is allowed; with rules, what none concerns is not. Ports that are bound stay so.",
        unset: "everybody may bind everything",
        set: |s, v| each(v, parsed, |list| s.rules = list),
        show: |s| list(&s.rules),
        ..key(&ACCESS, "bind", "bind", Kind::List)
    },
    Key {
        value: "N",
        help: "Attached programs",
        set: |s, v| one(v, count, |n| s.quotas.max_clients = n),
        show: |s| Shown::Number(s.quotas.max_clients),
        ..key(&QUOTAS, "max-clients", "max-clients", Kind::Number)
    },
    Key {
        value: "N",
        help: "Attached programs of a user",
        set: |s, v| one(v, count, |n| s.quotas.user.clients = n),
        show: |s| Shown::Number(s.quotas.user.clients),
        ..key(&QUOTAS, "max-clients-per-uid", "max-clients-per-uid", Kind::Number)
    },
    Key {
        value: "N",
        help: "Sockets of a program",
        set: |s, v| one(v, count, |n| s.quotas.client.sockets = n),
        show: |s| Shown::Number(s.quotas.client.sockets),
        ..key(&QUOTAS, "sockets-per-client", "sockets-per-client", Kind::Number)
    },
    Key {
        value: "N",
        help: "Sockets of a user",
        set: |s, v| one(v, count, |n| s.quotas.user.sockets = n),
        show: |s| Shown::Number(s.quotas.user.sockets),
        ..key(&QUOTAS, "sockets-per-uid", "sockets-per-uid", Kind::Number)
    },
    Key {
        help: "Send buffers of a program's sockets together",
        set: |s, v| one(v, size, |n| s.quotas.client.send_bytes = n),
        show: |s| Shown::Size(s.quotas.client.send_bytes),
        ..key(&QUOTAS, "send-bytes-per-client", "send-bytes-per-client", Kind::Size)
    },
    Key {
        help: "Send buffers of a user's sockets together",
        set: |s, v| one(v, size, |n| s.quotas.user.send_bytes = n),
        show: |s| Shown::Size(s.quotas.user.send_bytes),
        ..key(&QUOTAS, "send-bytes-per-uid", "send-bytes-per-uid", Kind::Size)
    },
    Key {
        help: "Receive buffers of a program's sockets together",
        set: |s, v| one(v, size, |n| s.quotas.client.receive_bytes = n),
        show: |s| Shown::Size(s.quotas.client.receive_bytes),
        ..key(&QUOTAS, "receive-bytes-per-client", "receive-bytes-per-client", Kind::Size)
    },
    Key {
        help: "Receive buffers of a user's sockets together",
        set: |s, v| one(v, size, |n| s.quotas.user.receive_bytes = n),
        show: |s| Shown::Size(s.quotas.user.receive_bytes),
        ..key(&QUOTAS, "receive-bytes-per-uid", "receive-bytes-per-uid", Kind::Size)
    },
    Key {
        help: "Shared memory of a program: both arenas",
        more: NEXT_PROGRAM,
        set: |s, v| one(v, size, |n| s.quotas.client.arena = n),
        show: |s| Shown::Size(s.quotas.client.arena),
        ..key(&QUOTAS, "arena-per-client", "arena-per-client", Kind::Size)
    },
    Key {
        help: "Shared memory of a user",
        set: |s, v| one(v, size, |n| s.quotas.user.arena = n),
        show: |s| Shown::Size(s.quotas.user.arena),
        ..key(&QUOTAS, "arena-per-uid", "arena-per-uid", Kind::Size)
    },
    Key {
        value: "N",
        help: "Addresses that a program has sent to since it attached",
        set: |s, v| one(v, count, |n| s.quotas.client.peers = n),
        show: |s| Shown::Number(s.quotas.client.peers),
        ..key(&QUOTAS, "peers-per-client", "peers-per-client", Kind::Number)
    },
    Key {
        value: "N",
        help: "The same, of a user's programs together",
        set: |s, v| one(v, count, |n| s.quotas.user.peers = n),
        show: |s| Shown::Number(s.quotas.user.peers),
        ..key(&QUOTAS, "peers-per-uid", "peers-per-uid", Kind::Number)
    },
    Key {
        help: "Bytes that the kernel may have pinned for a program",
        unset: "a quarter of the node's",
        set: |s, v| maybe(v, size, |n| s.pinned_per_client = n),
        show: |s| maybe_size(s.pinned_per_client),
        ..key(&QUOTAS, "pinned-per-client", "pinned-per-client", Kind::Size)
    },
    Key {
        help: "Bytes that the kernel may have pinned for a user's programs together",
        unset: "half of the node's",
        set: |s, v| maybe(v, size, |n| s.pinned_per_user = n),
        show: |s| maybe_size(s.pinned_per_user),
        ..key(&QUOTAS, "pinned-per-uid", "pinned-per-uid", Kind::Size)
    },
    Key {
        value: "MODE",
        help: "Send large payloads from where they lie: off, on, or auto (where it costs less)",
        set: |s, v| one(v, parsed, |mode| s.zero_copy_send = mode),
        show: |s| Shown::Text(s.zero_copy_send.to_string()),
        ..key(&DATA, "zero-copy-send", "zero-copy-send", Kind::Text)
    },
    Key {
        help: "Size of each arena, unless the program asks for another",
        more: NEXT_PROGRAM,
        set: |s, v| one(v, size, |n| s.arena = n),
        show: |s| Shown::Size(s.arena),
        ..key(&DATA, "arena", "arena", Kind::Size)
    },
    Key {
        value: "MICROSECONDS",
        help: "Look for work that long before sleeping: spares wake-ups at the price of a processor",
        more: "In microseconds, at most a second.",
        set: |s, v| one(v, number(0, 1_000_000), |n| s.busy_poll = Duration::from_micros(n)),
        show: |s| Shown::Number(s.busy_poll.as_micros() as u64),
        ..key(&DATA, "busy-poll", "busy-poll", Kind::Number)
    },
    Key {
        value: "",
        help: "Have everything go over the Unix socket",
        more: "With true, programs share memory with the daemon unless they ask for the Unix socket. Programs that attach later are concerned.",
        set: |s, v| one(v, switch, |is| s.shared_memory = is),
        show: |s| Shown::Switch(s.shared_memory),
        ..key(&DATA, "shared-memory", "no-shared-memory", Kind::Switch)
    },
    Key {
        value: "SECONDS",
        help: "Seconds for delivering what is queued when the daemon ends",
        more: "At most a day.",
        set: |s, v| one(v, number(0, 86400), |n| s.drain = Duration::from_secs(n)),
        show: |s| Shown::Number(s.drain.as_secs()),
        ..key(&LIFE, "drain", "drain", Kind::Number)
    },
    Key {
        value: "LEVEL",
        help: "Log lines: error, warn, info, debug or trace",
        more: "RUST_LOG chooses other lines than this does, and then a changed level changes nothing.",
        set: |s, v| one(v, one_of(LEVELS), |level| s.log.level = level),
        show: |s| Shown::Text(s.log.level.clone()),
        ..key(&LOG, "level", "log", Kind::Text)
    },
    Key {
        value: "FORMAT",
        help: "How a log line looks: text, or json for one object a line",
        change: Change::Restart,
        set: |s, v| one(v, parsed, |format| s.log.format = format),
        show: |s| Shown::Text(s.log.format.name().to_owned()),
        ..key(&LOG, "format", "log-format", Kind::Text)
    },
    Key {
        value: "WHERE",
        help: "Serve the admin pages at a loopback ADDRESS:PORT, such as 127.0.0.1:9385, or at unix:PATH",
        more: "They have no password: at a TCP port every user of this host may read them, at a Unix socket who may open it.",
        unset: "nowhere",
        change: Change::Restart,
        set: |s, v| maybe(v, parsed, |address| s.admin = address),
        show: |s| Shown::Text(s.admin.as_ref().map(ToString::to_string).unwrap_or_default()),
        ..key(&ADMIN, "listen", "admin", Kind::Text)
    },
];

fn list<T: ToString>(list: &[T]) -> Shown {
    Shown::List(list.iter().map(ToString::to_string).collect())
}

fn id(id: Option<u32>) -> Shown {
    Shown::Text(id.map(|id| id.to_string()).unwrap_or_default())
}

fn maybe_size(bytes: Option<u64>) -> Shown {
    bytes.map_or_else(|| Shown::Text(String::new()), Shown::Size)
}
