//! Two hosts and a quiet net, for scenarios that are written by hand.

use std::net::IpAddr;

use rds_core::proto::SocketId;

use super::coverage::Seen;
use super::net::{End, MS, SEC, Wire};
use super::own::Temper;
use super::world::{Host, OwnSpec, World};

/// Longest that anything may take here: a dead peer is noticed after 30 s.
pub const SOON: u64 = 60 * SEC;

/// A driver without whims.
#[must_use]
pub fn calm() -> Temper {
    Temper { skip: 0, nibble: 0, partial: 0, hold: 0, target: 0, reverse: 0 }
}

/// Net settings that disturb nobody.
#[must_use]
pub fn wire() -> Wire {
    Wire { latency: MS, jitter: 0, send_buffer: 1 << 20, receive_buffer: 1 << 20 }
}

/// Host 0 at the smaller address, host 1 at the larger.
pub struct Pair {
    /// The world that they live in.
    pub world: World,
}

/// The smaller host.
pub const SMALL: usize = 0;
/// The larger host.
pub const LARGE: usize = 1;

fn address(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

impl Pair {
    /// Two own hosts with default settings.
    #[must_use]
    pub fn new() -> Self {
        Self::with(OwnSpec::default(), OwnSpec::default())
    }

    /// Two own hosts.
    #[must_use]
    pub fn with(small: OwnSpec, large: OwnSpec) -> Self {
        let mut world = World::new(1, wire());
        world.add_own(address(1), small, calm());
        world.add_own(address(2), large, calm());
        Self { world }
    }

    /// An own host and a kernel; `own` tells which of the two addresses the own host has.
    #[must_use]
    pub fn with_kernel(own: usize, new: bool, spec: OwnSpec) -> Self {
        let mut world = World::new(1, wire());
        for host in [SMALL, LARGE] {
            if host == own {
                world.add_own(address(host as u8 + 1), spec.clone(), calm());
            } else {
                world.add_kernel(address(host as u8 + 1), new);
            }
        }
        Self { world }
    }

    /// Binds on an own host, with its buffers.
    pub fn bind(&mut self, host: usize, port: u16) -> SocketId {
        self.world.bind(host, port)
    }

    /// Binds on an own host, with a receive buffer.
    pub fn bind_small(&mut self, host: usize, port: u16, receive: u64) -> SocketId {
        let id = self.world.bind(host, port);
        let World { hosts, cx, .. } = &mut self.world;
        if let Host::Own(own) = &mut hosts[host] {
            own.set_buffers(cx, id, 16 << 20, receive);
        }
        id
    }

    /// Binds on a kernel.
    pub fn bind_kernel(&mut self, host: usize, port: u16) {
        let World { hosts, cx, .. } = &mut self.world;
        if let Host::Kernel(kernel) = &mut hosts[host] {
            kernel.bind(cx, port, 1 << 20, 1 << 20);
        }
    }

    /// Sends and expects that it is taken.
    ///
    /// # Panics
    /// If it is refused.
    #[track_caller]
    pub fn send(&mut self, from: usize, socket: SocketId, to: (usize, u16), len: usize) -> usize {
        self.world
            .send(from, socket, to, len)
            .unwrap_or_else(|e| panic!("host {from} refuses to send: {e:?}"))
    }

    /// Takes everything that a host's socket has.
    pub fn take_all(&mut self, host: usize, socket: SocketId) {
        let World { hosts, cx, .. } = &mut self.world;
        if let Host::Own(own) = &mut hosts[host] {
            own.take(cx, socket, usize::MAX);
        }
        self.world.settle_calls(host);
    }

    /// Waits until message `id` was queued for a socket.
    #[track_caller]
    pub fn arrive(&mut self, id: usize) {
        self.world.run_until(&format!("arrival of message {id}"), SOON, |w| w.has_arrived(id));
    }

    /// Waits until the sender was told how message `id` ended.
    #[track_caller]
    pub fn end(&mut self, id: usize) -> rds_core::proto::Outcome {
        self.world
            .run_until(&format!("end of message {id}"), SOON, |w| w.cx.ledger.messages[id].outcome.is_some());
        self.world.cx.ledger.messages[id].outcome.expect("waited for it")
    }

    /// Waits until a transition was seen.
    #[track_caller]
    pub fn see(&mut self, what: Seen) {
        self.world.run_until(what.name(), SOON, |w| w.cx.seen.count(what) > 0);
    }

    /// How often a transition was seen.
    #[must_use]
    pub fn seen(&self, what: Seen) -> u64 {
        self.world.cx.seen.count(what)
    }

    /// The connection between the two that stands; the newest if there are more.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn link(&self) -> usize {
        self.world.cx.net.live_links(SMALL, LARGE).last().expect("a connection stands")
    }

    /// The end of the newest connection that `host` owns.
    #[must_use]
    pub fn end_of(&self, host: usize) -> End {
        let end = End { link: self.link(), side: 0 };
        if self.world.cx.net.host_of(end) == host { end } else { end.peer() }
    }

    /// Resets the newest connection at the ends of `hosts`; the others are not told.
    pub fn reset_at(&mut self, hosts: &[usize]) {
        let now = self.world.cx.now;
        for host in hosts {
            let end = self.end_of(*host);
            self.world.cx.net.inject_rst(now, end);
        }
        for host in [SMALL, LARGE] {
            self.world.settle_calls(host);
        }
    }

    /// Everything that is owed by now.
    ///
    /// # Panics
    /// With the promise that was not kept.
    #[track_caller]
    pub fn settle(&self) {
        if let Some(broken) = &self.world.cx.broken {
            panic!("{broken}");
        }
        if let Err(promise) = super::watch::settle(&self.world.cx) {
            panic!("{promise}");
        }
    }
}

impl Default for Pair {
    fn default() -> Self {
        Self::new()
    }
}
