//! Over a node of ours.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::Duration;

use rds_client::{
    BindError, Event, Mode, Node, OpenError, Readiness, Received, RecvError, Snapshot, Socket, TrySendError,
};

use super::{Backend, Choice, Incoming, Port, Refused, Want, broken, warn_of_buffers};
use crate::control;
use crate::error::{Failure, failure};
use crate::lives::Lives;
use crate::out::Out;
use crate::outbox::Outbox;
use crate::roles::{Lanes, Settings};
use crate::session::{Role, Session};
use crate::stats::CounterList;
use crate::task::TaskFailure;
use crate::zerocopy::{Modes, Totals, ZeroCopy};

/// A node.
#[derive(Debug)]
pub struct Rds {
    node: Node,
    zero_copy: Modes,
    /// To a daemon.
    attached: bool,
}

impl Backend for Rds {
    const CHOICE: Choice = Choice::Rds;
    type Port = RdsPort;
    type Mark = Snapshot;

    fn open(address: IpAddr, _: Role, settings: &Settings) -> Result<Self, Failure> {
        let (node, zero_copy) = (&settings.node, settings.local.zero_copy);
        let attached = node.attach.is_some();
        let builder = Node::builder(address).listen_port(node.listen_port).dial_port(node.dial_port);
        let builder = match &node.attach {
            // Its own settings count.
            Some(path) => builder.attach(path),
            None => builder.embedded(),
        };
        let builder = match node.lanes {
            Lanes::Number(lanes) => builder.lanes(lanes),
            Lanes::Auto => builder.lanes_auto(),
        };
        let node = builder
            .zero_copy_send(zero_copy.send)
            .zero_copy_receive(zero_copy.receive)
            .pin_hold_limit(zero_copy.hold)
            .open()
            .map_err(|e| match e {
                OpenError::NotLocal(address) => control::not_local(address),
                OpenError::PortInUse(at) => failure!(
                    "TCP port {at} is in use, by another RDS node or the rds_tcp kernel module: stop that one, or give another port to both sides with --rds-port, or use the module with --backend kernel"
                ),
                e => failure!("{e}"),
            })?;
        Ok(Self { node, zero_copy, attached })
    }

    fn bind(&self, session: &Session, tasks: Range<u16>, out: Out) -> Result<Vec<RdsPort>, Failure> {
        let (wanted, buffer) = session.buffers();
        if tasks.start == 0 {
            warn_of_buffers(wanted, buffer, out);
        }
        let bind = |index| {
            let port = session.task_port(index);
            let socket = self.node.bind(port).map_err(|e: BindError| {
                failure!("cannot bind RDS port {port} of {} for task {index}: {e}", session.own)
            })?;
            socket.set_send_buffer(buffer);
            socket.set_recv_buffer(buffer);
            socket.set_congestion_monitor(session.cong_monitor);
            socket.set_tos(session.tos);
            // The mode that an own node was opened with is its sockets' as well; a daemon has another, unless somebody asked.
            if self.attached && self.zero_copy.shown {
                socket.set_zero_copy_send(self.zero_copy.send);
            }
            // A buffer is lent until TCP has it, which may be after its message was answered.
            let most = 2 * buffer;
            Ok(RdsPort {
                outbox: Outbox::new(self.zero_copy.send, session.header, session.verify, most),
                // A client of a daemon has its messages in memory that it shares with it: to copy them out would be one copy more.
                leases: self.attached || self.zero_copy.receive != Mode::Off,
                inbox: vec![0; session.longest()],
                node: self.node.clone(),
                socket,
            })
        };
        tasks.map(bind).collect()
    }

    fn counters(&self) -> CounterList {
        CounterList::of_node(&self.node.snapshot().counters)
    }

    fn totals(&self) -> Totals {
        Totals::of(&self.node.snapshot())
    }

    fn mark(&self) -> Snapshot {
        self.node.snapshot()
    }

    fn zero_copy(&self, modes: Modes, since: &Snapshot) -> ZeroCopy {
        ZeroCopy::new(modes, since, &self.node.snapshot())
    }

    fn lives(&self, peer: Option<IpAddr>) -> Option<Lives> {
        let attachment = self.node.attachment();
        let attached = attachment.is_none_or(|attachment| attachment.attached);
        let generation = |peer| self.node.snapshot().peers.iter().find(|p| p.address == peer)?.generation;
        Some(Lives {
            attached,
            restarts: attachment.map_or(0, |attachment| attachment.reattachments),
            unknown: attachment.map_or(0, |attachment| attachment.unknown),
            peer: peer.filter(|_| attached).and_then(generation),
        })
    }

    fn silence(&self, session: &Session, settings: &Settings) -> String {
        let (own, peer) = (session.own, session.peer);
        if self.attached {
            return format!(
                "the daemon of {own} must reach the node of {peer}, and that must reach it, on their TCP ports; look for a firewall, for a daemon that allows no such peer, or at the output of the other side"
            );
        }
        format!(
            "{own} must reach TCP port {} of {peer}, and {peer} must reach TCP port {} of {own}; look for a firewall, or for other ports (--rds-port) there",
            settings.node.dial_port, settings.node.listen_port
        )
    }
}

/// A socket of the node.
#[derive(Debug)]
pub struct RdsPort {
    node: Node,
    socket: Socket,
    outbox: Outbox,
    /// Messages are checked where they were received.
    leases: bool,
    inbox: Vec<u8>,
}

/// What an attempt to receive means that brought nothing.
fn nothing(error: RecvError) -> Result<(), TaskFailure> {
    match error {
        RecvError::Empty | RecvError::TimedOut => Ok(()),
        e => Err(broken(format_args!("cannot receive: {e}"))),
    }
}

impl RdsPort {
    fn receive_copies(
        &mut self,
        mut take: impl FnMut(Incoming<'_>) -> Result<(), TaskFailure>,
    ) -> Result<(), TaskFailure> {
        loop {
            match self.socket.try_recv_from(&mut self.inbox) {
                Ok(Received::Message { full_len: len, from, .. }) => {
                    // A message that is too long was cut.
                    let bytes = self.inbox.get(..len).unwrap_or(&self.inbox);
                    take(Incoming::Message { bytes, len, from })?;
                }
                Ok(Received::CongestionCleared(mask)) => take(Incoming::Cleared(mask))?,
                Ok(_) => {}
                Err(e) => return nothing(e),
            }
        }
    }

    fn receive_leases(
        &mut self,
        mut take: impl FnMut(Incoming<'_>) -> Result<(), TaskFailure>,
    ) -> Result<(), TaskFailure> {
        loop {
            match self.socket.try_recv_lease() {
                Ok(Event::Message(message)) => {
                    let bytes: &[u8] = &message.payload;
                    take(Incoming::Message { bytes, len: bytes.len(), from: message.from })?;
                }
                Ok(Event::CongestionCleared(mask)) => take(Incoming::Cleared(mask))?,
                Ok(_) => {}
                Err(e) => return nothing(e),
            }
        }
    }
}

impl Port for RdsPort {
    fn wait(&mut self, want: Want, timeout: Duration) -> bool {
        let interest = Readiness { readable: true, writable: want.room, completions: want.lent };
        self.socket.wait(interest, Some(timeout)).readable
    }

    #[inline]
    fn receive(
        &mut self,
        take: impl FnMut(Incoming<'_>) -> Result<(), TaskFailure>,
    ) -> Result<(), TaskFailure> {
        if self.leases { self.receive_leases(take) } else { self.receive_copies(take) }
    }

    fn take_completions(&mut self) -> Result<(), TaskFailure> {
        self.outbox
            .take_completions(&self.socket)
            .map_err(|e| broken(format_args!("a wrong completion: {e}")))
    }

    #[inline]
    fn send(&mut self, message: &[u8], _task: usize, to: SocketAddr) -> Result<(), Refused> {
        self.outbox.send(&self.node, &self.socket, message, to)
    }

    fn cancel(&mut self, to: SocketAddr) -> Result<Option<usize>, String> {
        Ok(Some(self.socket.cancel_sent_to(to)))
    }

    fn close(self) {
        self.socket.close();
    }
}

impl From<TrySendError> for Refused {
    #[inline]
    fn from(error: TrySendError) -> Self {
        match error {
            TrySendError::Full => Self::Room,
            TrySendError::Congested => Self::Congested,
            e => Self::Failed(e.to_string()),
        }
    }
}
