//! The reference's tables: column by column, width by width (rds-tools, section 6).

use std::fmt::Write;
use std::net::IpAddr;

use super::rows::{ConnectionRow, MessageRow, SocketRow, TcpRow};
use crate::tools::text::name;

/// Which addresses are shown, and how wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// IPv6 as well (`-a`).
    pub all: bool,
}

impl Addresses {
    fn width(self) -> usize {
        if self.all { 37 } else { 15 }
    }

    fn shows(self, address: IpAddr) -> bool {
        self.all || address.is_ipv4()
    }
}

/// `-c`. With the time since the values before, a column more.
#[must_use]
pub fn counters(now: &[(String, u64)], before: Option<(&[(String, u64)], f64)>) -> String {
    let mut out = format!("\nCounters:\n{:>32} {:>16}", "CounterName", "Value");
    out.push_str(if before.is_some() { "           Rate/s\n" } else { "\n" });
    for (i, (counter, value)) in now.iter().enumerate() {
        let _ = write!(out, "{:>32} {value:>16}", name(counter, 64));
        if let Some((old, seconds)) = before {
            let then = old.get(i).map_or(0, |(_, value)| *value);
            let _ = write!(out, " {:>16.1}", value.wrapping_sub(then) as f64 / seconds);
        }
        out.push('\n');
    }
    out
}

/// `-k`.
#[must_use]
pub fn sockets(rows: &[SocketRow], addresses: Addresses) -> String {
    let w = addresses.width();
    let mut out = format!(
        "\nRDS Sockets:\n{:>w$} {:>5} {:>w$} {:>5} {:>10} {:>10} {:>8} {:>8} {:>10} {:>16}\n",
        "BoundAddr", "BPort", "ConnAddr", "CPort", "SndBuf", "RcvBuf", "Inode", "Cong", "Pid", "Comm"
    );
    for row in rows.iter().filter(|row| addresses.shows(row.bound.ip())) {
        let (pid, comm) =
            row.owner.as_ref().map_or_else(Default::default, |(pid, comm)| (pid.to_string(), name(comm, 16)));
        let _ = writeln!(
            out,
            "{:>w$} {:>5} {:>w$} {:>5} {:>10} {:>10} {:>8} {:>8} {pid:>10} {comm:>16}",
            row.bound.ip(),
            row.bound.port(),
            row.connected.ip(),
            row.connected.port(),
            row.send_buffer,
            row.receive_buffer,
            row.inode,
            row.congested,
        );
    }
    out
}

/// `-n`.
#[must_use]
pub fn connections(rows: &[ConnectionRow], addresses: Addresses) -> String {
    let w = addresses.width();
    let mut out = format!(
        "\nRDS Connections:\n{:>w$} {:>w$} {:>4} {:>16} {:>16} Flgs\n",
        "LocalAddr", "RemoteAddr", "Tos", "NextTX", "NextRX"
    );
    for row in rows.iter().filter(|row| addresses.shows(row.local)) {
        let _ = writeln!(
            out,
            "{:>w$} {:>w$} {:>4} {:>16} {:>16} {}",
            row.local, row.remote, 0, row.next_tx, row.next_rx, row.flags
        );
    }
    out
}

/// `-r`, `-s`, `-t`, as the title says.
#[must_use]
pub fn messages(title: &str, rows: &[MessageRow], addresses: Addresses) -> String {
    let w = addresses.width();
    let mut out = format!(
        "\n{title} Message Queue:\n{:>w$} {:>5} {:>w$} {:>5} {:>4} {:>16} {:>10}\n",
        "LocalAddr", "LPort", "RemoteAddr", "RPort", "Tos", "Seq", "Bytes"
    );
    for row in rows.iter().filter(|row| addresses.shows(row.local.ip())) {
        let _ = writeln!(
            out,
            "{:>w$} {:>5} {:>w$} {:>5} {:>4} {:>16} {:>10}",
            row.local.ip(),
            row.local.port(),
            row.remote.ip(),
            row.remote.port(),
            0,
            row.sequence,
            row.len
        );
    }
    out
}

/// `-T`.
#[must_use]
pub fn tcp(rows: &[TcpRow], addresses: Addresses) -> String {
    let w = addresses.width();
    let mut out = format!(
        "\nTCP Connections:\n{:>w$} {:>5} {:>w$} {:>5} {:>10} {:>10} {:>10} {:>10} {:>10}\n",
        "LocalAddr",
        "LPort",
        "RemoteAddr",
        "RPort",
        "HdrRemain",
        "DataRemain",
        "SentNxt",
        "ExpectUna",
        "SeenUna"
    );
    for row in rows.iter().filter(|row| addresses.shows(row.local.ip())) {
        let _ = writeln!(
            out,
            "{:>w$} {:>5} {:>w$} {:>5} {:>10} {:>10} {:>10} {:>10} {:>10}",
            row.local.ip(),
            row.local.port(),
            row.remote.ip(),
            row.remote.port(),
            row.header_remain,
            row.data_remain,
            row.sent,
            row.expected,
            row.seen
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Addresses = Addresses { all: false };
    const ALL: Addresses = Addresses { all: true };

    #[test]
    fn counters_are_as_the_reference_has_them() {
        let rows = [("conn_reset".to_owned(), 7), ("recv_drop_bad_checksum".to_owned(), 0)];
        let expected = "\nCounters:\n\
            \x20                    CounterName            Value\n\
            \x20                     conn_reset                7\n\
            \x20         recv_drop_bad_checksum                0\n";
        assert_eq!(counters(&rows, None), expected);
        let before = [("conn_reset".to_owned(), 2), ("recv_drop_bad_checksum".to_owned(), 0)];
        let watched = counters(&rows, Some((&before, 2.0)));
        assert!(
            watched.contains("Value           Rate/s\n") && watched.contains("7              2.5\n"),
            "{watched}"
        );
    }

    #[test]
    fn sockets_are_as_the_reference_has_them() {
        let row = |bound: &str, owner| SocketRow {
            bound: bound.parse().unwrap(),
            connected: "0.0.0.0:0".parse().unwrap(),
            send_buffer: 1_048_576,
            receive_buffer: 65536,
            inode: 0,
            congested: 1,
            owner,
        };
        let rows = [
            row("192.168.100.200:65535", Some((4711, "a\u{1b}[31m program of a very long name".to_owned()))),
            row("10.0.0.1:80", None),
            row("[fd00::1]:80", None),
        ];
        let expected = "\nRDS Sockets:\n\
            \x20     BoundAddr BPort        ConnAddr CPort     SndBuf     RcvBuf    Inode     Cong        Pid             Comm\n\
            192.168.100.200 65535         0.0.0.0     0    1048576      65536        0        1       4711 a?[31m program o\n\
            \x20      10.0.0.1    80         0.0.0.0     0    1048576      65536        0        1                            \n";
        assert_eq!(sockets(&rows, SHORT), expected);
        let all = sockets(&rows, ALL);
        assert_eq!(all.lines().count(), 6, "{all}");
        assert!(all.contains(&format!("\n{:>37}    80 ", "fd00::1")), "{all}");
    }

    #[test]
    fn connections_are_as_the_reference_has_them() {
        let row = ConnectionRow {
            local: "10.0.0.1".parse().unwrap(),
            remote: "10.0.0.2".parse().unwrap(),
            next_tx: 1_234_567_890_123_456,
            next_rx: 5,
            flags: "s-C-".to_owned(),
        };
        let expected = "\nRDS Connections:\n\
            \x20     LocalAddr      RemoteAddr  Tos           NextTX           NextRX Flgs\n\
            \x20      10.0.0.1        10.0.0.2    0 1234567890123456                5 s-C-\n";
        assert_eq!(connections(&[row], SHORT), expected);
    }

    #[test]
    fn queues_are_as_the_reference_has_them() {
        let row = MessageRow {
            local: "10.0.0.1:4000".parse().unwrap(),
            remote: "10.0.0.2:4001".parse().unwrap(),
            sequence: 17,
            len: 1024,
        };
        let expected = "\nRetransmit Message Queue:\n\
            \x20     LocalAddr LPort      RemoteAddr RPort  Tos              Seq      Bytes\n\
            \x20      10.0.0.1  4000        10.0.0.2  4001    0               17       1024\n";
        assert_eq!(messages("Retransmit", &[row], SHORT), expected);
    }

    #[test]
    fn tcp_connections_are_as_the_reference_has_them() {
        let row = TcpRow {
            local: "10.0.0.1:50000".parse().unwrap(),
            remote: "10.0.0.2:16385".parse().unwrap(),
            header_remain: 48,
            data_remain: 0,
            sent: u32::MAX,
            expected: 1,
            seen: 2,
        };
        let expected = "\nTCP Connections:\n\
            \x20     LocalAddr LPort      RemoteAddr RPort  HdrRemain DataRemain    SentNxt  ExpectUna    SeenUna\n\
            \x20      10.0.0.1 50000        10.0.0.2 16385         48          0 4294967295          1          2\n";
        assert_eq!(tcp(&[row], SHORT), expected);
    }
}
