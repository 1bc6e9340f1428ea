//! An options block that has been judged: what both sides have agreed to do.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::block::Block;
use crate::message::{HEADER_V6, HEADERS_V4, header_len};

/// Largest message in bytes, as in the kernel.
pub const MAX_MESSAGE: u32 = 1 << 20;
/// Most requests outstanding for each pair of tasks: slots are numbered in 16 bits.
pub const MAX_DEPTH: u32 = 1 << 16;
/// Memory, in bytes, that the tables and buffers of all tasks may take. Beyond it a session is refused.
pub const MAX_MEMORY: u64 = 1 << 30;
/// What a task needs beside its buffers and tables: its histogram and the touched part of its stack.
const TASK_MEMORY: u64 = 512 << 10;
/// Bytes that the send buffers (and again the receive buffers) of all tasks may hold: as much as a node keeps for
/// receivers. Without it `-t 8 -d 64 -q 1m` would queue 4 GiB.
const MAX_BUFFERS: u64 = 256 << 20;

/// Which side this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// Connects, decides the options and the end.
    Active,
    /// Waits for an active side, does as it is told.
    Passive,
}

/// What both sides do, as seen from this one. Every number has been checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools)]
pub struct Session {
    /// Which side this is.
    pub role: Role,
    /// This side's RDS address.
    pub own: IpAddr,
    /// The other side's RDS address.
    pub peer: IpAddr,
    /// Task `i` of either side binds `port + 1 + i`.
    pub port: u16,
    /// Tasks of either side, at least 1.
    pub tasks: u16,
    /// Requests outstanding for each pair of tasks, 1 to [`MAX_DEPTH`].
    pub depth: u32,
    /// Bytes of a request, header included.
    pub req_size: usize,
    /// Bytes of an ack, header included.
    pub ack_size: usize,
    /// Bytes of the header.
    pub header: usize,
    /// Whether the payload holds the pattern and is checked.
    pub verify: bool,
    /// Whether only the active side issues requests.
    pub one_way: bool,
    /// Measured time in seconds; 0 for ever. The passive side's is 0: it stops when it is told.
    pub run_time: u32,
    /// Whether only the final line is printed.
    pub summary_only: bool,
    /// Whether CSV lines are printed instead of the table.
    pub perfdata: bool,
    /// Whether the parent runs at real-time priority.
    pub rtprio: bool,
    /// Whether traces go to stderr.
    pub tracing: bool,
    /// Whether cleared congestion is reported to the tasks.
    pub cong_monitor: bool,
    /// Type of service; without effect on TCP.
    pub tos: u8,
}

impl Session {
    /// Judges `block` before anything is allocated for it. `header` overrides the header length that the ack size shows.
    ///
    /// # Errors
    /// Which value cannot work, and what can.
    pub fn new(role: Role, block: &Block, own: IpAddr, header: Option<usize>) -> Result<Self, String> {
        let peer = match role {
            Role::Active => block.send_addr,
            Role::Passive => block.receive_addr,
        };
        check_addresses(own, peer)?;
        let header = match header {
            Some(len) if own.is_ipv4() && HEADERS_V4.contains(&len) || own.is_ipv6() && len == HEADER_V6 => {
                len
            }
            Some(len) => {
                return Err(format!(
                    "a header of {len} bytes: there are 56, 60 and 63 for IPv4, 96 for IPv6"
                ));
            }
            None => header_len(own.is_ipv6(), block.ack_size),
        };
        if block.depth == 0 || block.depth > MAX_DEPTH {
            return Err(format!("depth {}: 1 to {MAX_DEPTH} is possible", block.depth));
        }
        for (name, size) in [("a request", block.req_size), ("an ack", block.ack_size)] {
            if (size as usize) < header || size > MAX_MESSAGE {
                return Err(format!(
                    "{size} bytes {name}: {header} (the header) to {MAX_MESSAGE} is possible"
                ));
            }
        }
        if block.tasks == 0 {
            return Err("0 tasks: at least 1 is needed".into());
        }
        if block.starting_port == 0 {
            return Err(
                "port 0: the first task would bind RDS port 1, which is reserved; 1 and more is possible"
                    .into(),
            );
        }
        if u32::from(block.starting_port) + u32::from(block.tasks) > 65535 {
            let (port, tasks) = (block.starting_port, block.tasks);
            return Err(format!("port {port} with {tasks} tasks: port plus tasks may be 65535 at most"));
        }
        if block.rdma_size != 0 {
            return Err(format!("RDMA of {} bytes: TCP has no RDMA, leave out -D", block.rdma_size));
        }
        let session = Self {
            role,
            own,
            peer,
            port: block.starting_port,
            tasks: block.tasks,
            depth: block.depth,
            req_size: block.req_size as usize,
            ack_size: block.ack_size as usize,
            header,
            verify: block.verify,
            one_way: block.simplex,
            run_time: if role == Role::Active { block.run_time } else { 0 },
            summary_only: block.summary_only,
            perfdata: block.show_perfdata,
            rtprio: block.rtprio,
            tracing: block.tracing,
            cong_monitor: block.use_cong_monitor,
            tos: block.tos,
        };
        let memory = session.memory();
        if memory > MAX_MEMORY {
            let (tasks, depth) = (session.tasks, session.depth);
            return Err(format!(
                "{tasks} tasks at depth {depth} need {} MiB for their tables and buffers: {} is possible, take fewer tasks or less depth",
                memory >> 20,
                MAX_MEMORY >> 20
            ));
        }
        Ok(session)
    }

    /// Whether this side issues requests.
    #[must_use]
    pub fn requests(&self) -> bool {
        self.role == Role::Active || !self.one_way
    }

    /// Port that task `index` of either side binds.
    #[must_use]
    pub fn task_port(&self, index: u16) -> u16 {
        self.port + 1 + index
    }

    /// Where task `index` of the other side is.
    #[must_use]
    pub fn peer_task(&self, index: u16) -> SocketAddr {
        SocketAddr::new(self.peer, self.task_port(index))
    }

    /// Bytes of a longest message.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.req_size.max(self.ack_size)
    }

    /// Bytes of each task's send buffer, and of its receive buffer: what the reference sets, and what it gets.
    #[must_use]
    pub fn buffers(&self) -> (u64, u64) {
        let wanted =
            u64::from(self.tasks) * u64::from(self.depth) * (self.req_size as u64 + self.ack_size as u64) * 2;
        let most = (MAX_BUFFERS / u64::from(self.tasks)).max(4 * self.longest() as u64);
        (wanted, wanted.min(most))
    }

    /// Bytes that all tasks take for their tables and buffers.
    fn memory(&self) -> u64 {
        let tasks = u64::from(self.tasks);
        let times = if self.requests() { tasks * u64::from(self.depth) * 8 } else { 0 };
        let buffers = (self.req_size + self.ack_size + self.longest()) as u64;
        tasks * (times + tasks * 128 + buffers + TASK_MEMORY)
    }
}

fn check_addresses(own: IpAddr, peer: IpAddr) -> Result<(), String> {
    let usable = match peer {
        IpAddr::V4(a) => !a.is_unspecified() && !a.is_multicast() && !a.is_broadcast(),
        IpAddr::V6(a) => !a.is_unspecified() && !a.is_multicast(),
    };
    if !usable {
        return Err(format!("{peer} as the other side's address: a unicast address is needed"));
    }
    if own.is_ipv4() != peer.is_ipv4() {
        return Err(format!("{own} on this side and {peer} on the other: both must be IPv4, or both IPv6"));
    }
    if own == peer {
        return Err(format!(
            "{own} on both sides: two nodes need two addresses; give the active side another one with -r, or use --loopback"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> Block {
        Block::new([10, 0, 0, 2].into(), [10, 0, 0, 1].into())
    }

    fn passive(block: &Block) -> Result<Session, String> {
        Session::new(Role::Passive, block, [10, 0, 0, 2].into(), None)
    }

    #[test]
    fn each_side_sees_the_other_as_its_peer() {
        let active = Session::new(Role::Active, &block(), [10, 0, 0, 1].into(), None).unwrap();
        assert_eq!(active.peer, IpAddr::from([10, 0, 0, 2]));
        assert_eq!(active.peer_task(3), "10.0.0.2:4004".parse().unwrap());
        assert_eq!(passive(&block()).unwrap().peer, IpAddr::from([10, 0, 0, 1]));
    }

    #[test]
    fn only_the_active_side_obeys_the_run_time_and_issues_requests_one_way() {
        let block = Block { run_time: 7, simplex: true, ..block() };
        let active = Session::new(Role::Active, &block, [10, 0, 0, 1].into(), None).unwrap();
        assert_eq!((active.run_time, active.requests()), (7, true));
        let passive = passive(&block).unwrap();
        assert_eq!((passive.run_time, passive.requests()), (0, false));
    }

    #[test]
    fn values_that_cannot_work_are_refused_by_name() {
        let cases = [
            (Block { depth: 0, ..block() }, "depth 0"),
            (Block { depth: 65537, ..block() }, "depth 65537"),
            (Block { req_size: 62, ..block() }, "62 bytes a request"),
            (Block { req_size: (1 << 20) + 1, ..block() }, "1048577 bytes a request"),
            (Block { ack_size: 55, ..block() }, "55 bytes an ack"),
            (Block { ack_size: u32::MAX, ..block() }, "bytes an ack"),
            (Block { tasks: 0, ..block() }, "0 tasks"),
            (Block { starting_port: 0, ..block() }, "port 0"),
            (Block { starting_port: 65535, ..block() }, "port 65535 with 1 tasks"),
            (Block { rdma_size: 4096, ..block() }, "RDMA"),
            (Block { tasks: 60000, ..block() }, "60000 tasks at depth 1"),
            (Block { tasks: 1024, depth: 65536, ..block() }, "1024 tasks at depth 65536"),
            (Block { receive_addr: [0, 0, 0, 0].into(), ..block() }, "0.0.0.0"),
            (Block { receive_addr: [224, 0, 0, 1].into(), ..block() }, "224.0.0.1"),
            (Block { receive_addr: [10, 0, 0, 2].into(), ..block() }, "on both sides"),
            (Block { receive_addr: "::1".parse().unwrap(), ..block() }, "both IPv6"),
        ];
        for (block, word) in cases {
            let reason = passive(&block).unwrap_err();
            assert!(reason.contains(word), "{reason}");
        }
        for block in [
            Block { depth: 65536, ..block() },
            Block { req_size: 63, ack_size: 1 << 20, ..block() },
            Block { starting_port: 65534, ..block() },
            Block { tasks: 64, depth: 64, req_size: 1 << 20, ..block() },
        ] {
            passive(&block).unwrap();
        }
    }

    #[test]
    fn the_header_follows_the_ack_size_unless_given() {
        let own = [10, 0, 0, 2].into();
        let short = Block { ack_size: 60, ..block() };
        assert_eq!(passive(&short).unwrap().header, 60);
        assert_eq!(Session::new(Role::Passive, &short, own, Some(56)).unwrap().header, 56);
        let reason = Session::new(Role::Passive, &short, own, Some(63)).unwrap_err();
        assert!(reason.contains("60 bytes an ack"), "{reason}");
        assert!(Session::new(Role::Passive, &block(), own, Some(64)).unwrap_err().contains("64"));
    }

    #[test]
    fn buffers_hold_what_the_depth_can_queue_up_to_a_limit() {
        assert_eq!(passive(&block()).unwrap().buffers(), (2174, 2174));
        let deep = Block { tasks: 8, depth: 65536, req_size: 1 << 20, ack_size: 1 << 20, ..block() };
        let (wanted, granted) = passive(&deep).unwrap().buffers();
        assert_eq!((wanted, granted), (1 << 41, 32 << 20));
    }
}
