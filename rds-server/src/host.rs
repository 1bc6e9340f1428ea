//! One node of the daemon, with the ports that clients have bound.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rds_core::attach::Sharing;
use rds_core::engine::{Batch, Engine, Port};
use rds_core::proto::BindError;

use crate::access::Ports;
use crate::broker::{Group, Member, MemberId, Report};
use crate::remember::{Expected, Remembered};

/// What the node takes for a port's receive buffer when it is bound.
const DEFAULT_BUFFER: u64 = 1 << 20;
/// What each member's last message may take beyond its send buffer.
const ONE_MESSAGE: u64 = 1 << 20;

/// How long a node waits for the ports that its programs had before the daemon was started again. They attach again within a second, unless they are gone
/// as well.
pub const PATIENCE: Duration = Duration::from_millis(1500);

/// A bound port.
#[derive(Debug)]
pub struct Bound {
    /// The node's side; there until this is dropped.
    port: Option<Port>,
    /// Where it is bound.
    pub local: SocketAddr,
    /// Who has it.
    pub group: Arc<Group>,
    /// Send buffers of all members together, one message more for each. They are kept by the sessions; the node's must not be in the way.
    send_buffers: AtomicU64,
}

impl Bound {
    fn new(port: Port, group: Arc<Group>) -> Arc<Self> {
        let local = port.local_addr();
        Arc::new(Self { port: Some(port), local, group, send_buffers: AtomicU64::new(0) })
    }

    /// The node's side.
    #[must_use]
    pub fn port(&self) -> &Port {
        self.port.as_ref().expect("only the drop takes it")
    }

    /// Tells the node what members did.
    pub fn apply(&self, batch: &mut Batch<'_>, report: Report) {
        let Report { consumed, limit, clear } = report;
        if !consumed.is_none() {
            batch.consumed(self.port(), consumed.bytes, consumed.messages);
        }
        if clear {
            batch.set_receive_buffer(self.port(), u64::MAX);
        }
        if let Some(limit) = limit {
            batch.set_receive_buffer(self.port(), limit);
        }
    }

    /// A member's send buffer is `now` and was `before`.
    pub fn change_send_buffer(&self, batch: &mut Batch<'_>, before: u64, now: u64) {
        // The service thread alone does this.
        let total = (self.send_buffers.load(Relaxed) + now).saturating_sub(before);
        self.send_buffers.store(total, Relaxed);
        batch.set_send_buffer(self.port(), total);
    }

    /// What a member's send buffer counts for at the node.
    #[must_use]
    pub fn at_node(send_buffer: u64) -> u64 {
        send_buffer.saturating_add(ONE_MESSAGE)
    }
}

impl Drop for Bound {
    /// Unbinds the port. What was queued is still delivered: whoever did not want that has cancelled it.
    fn drop(&mut self) {
        if let Some(port) = self.port.take() {
            port.close(true);
        }
    }
}

/// Why a client cannot have a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The node says so.
    #[error(transparent)]
    Node(#[from] BindError),
    /// The rules say so.
    #[error("the rules do not allow it")]
    NotAllowed,
}

/// A node and its ports. The service thread's.
#[derive(Debug)]
pub struct Host {
    /// The node.
    pub engine: Engine,
    ports: HashMap<u16, Arc<Bound>>,
    remembered: Arc<Remembered>,
    /// The node is paused until these are bound, or that moment.
    expected: Option<(Expected, Instant)>,
}

impl Host {
    /// A node without ports, whose ports are noted in `remembered`. It was opened paused; it is resumed as soon as those are bound that an
    /// earlier daemon had, or [`PATIENCE`] later, or at once if there were none.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn new(engine: Engine, remembered: Arc<Remembered>, expected: Option<Expected>) -> io::Result<Self> {
        match &expected {
            None => engine.resume()?,
            Some(ports) => {
                let (address, ports) = (engine.address(), ports.len());
                tracing::info!(%address, ports, "waits for programs to bind their ports again");
            }
        }
        let expected = expected.map(|ports| (ports, Instant::now() + PATIENCE));
        Ok(Self { engine, ports: HashMap::new(), remembered, expected })
    }

    /// Until when it waits for ports.
    #[must_use]
    pub fn paused_until(&self) -> Option<Instant> {
        self.expected.as_ref().map(|(_, until)| *until)
    }

    /// Serves peers if there is nothing to wait for any longer; whether that was now.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn resume(&mut self, now: Instant) -> io::Result<bool> {
        let over = self.expected.as_ref().is_some_and(|(ports, until)| ports.is_empty() || *until <= now);
        if over {
            self.engine.resume()?;
            let missing = self.expected.take().map_or(0, |(ports, _)| ports.len());
            tracing::info!(address = %self.address(), missing, "serves peers again");
        }
        Ok(over)
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.engine.address()
    }

    /// Bound ports.
    pub fn ports(&self) -> impl Iterator<Item = &Arc<Bound>> {
        self.ports.values()
    }

    /// Binds a port for a member with these buffers, or joins those who share it in the same way.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn bind(
        &mut self,
        port: u16,
        sharing: Sharing,
        allowed: &Ports,
        member: Member,
        send_buffer: u64,
        receive_buffer: u64,
    ) -> Result<(Arc<Bound>, MemberId), Refused> {
        if port != 0 && !allowed.allows(port) {
            return Err(Refused::NotAllowed);
        }
        let (bound, id, report) = match self.ports.get(&port) {
            Some(bound) => {
                if sharing == Sharing::Exclusive || bound.group.sharing() != sharing {
                    return Err(BindError::InUse(port).into());
                }
                let (id, report) = bound.group.join(member, receive_buffer);
                (Arc::clone(bound), id, report)
            }
            None => {
                let group = Group::new(sharing, DEFAULT_BUFFER);
                let (id, report) = group.join(member, receive_buffer);
                let port = self.bind_node(port, allowed, &group)?;
                let bound = Bound::new(port, group);
                self.ports.insert(bound.local.port(), Arc::clone(&bound));
                (bound, id, report)
            }
        };
        self.engine.batch(|batch| {
            bound.apply(batch, report);
            bound.change_send_buffer(batch, 0, Bound::at_node(send_buffer));
        });
        let port = bound.local.port();
        self.remembered.came(self.address(), port, sharing);
        if let Some((expected, _)) = &mut self.expected
            && let Some(count) = expected.get_mut(&port)
        {
            *count -= 1;
            if *count == 0 {
                expected.remove(&port);
            }
        }
        Ok((bound, id))
    }

    fn bind_node(&self, port: u16, allowed: &Ports, group: &Arc<Group>) -> Result<Port, Refused> {
        let bind = |port| self.engine.bind_sink(port, Arc::clone(group) as _);
        if port != 0 || *allowed == Ports::All {
            return Ok(bind(port)?);
        }
        // Any free port of those that are allowed.
        let mut some = false;
        for port in allowed.candidates(fastrand::u16(..)) {
            some = true;
            if self.ports.contains_key(&port) {
                continue;
            }
            match bind(port) {
                Err(BindError::InUse(_)) => {}
                result => return Ok(result?),
            }
        }
        Err(if some { BindError::Exhausted.into() } else { Refused::NotAllowed })
    }

    /// A member leaves. Without `drain`, what it has sent is cancelled. With `linger`, the port stays, so that what waits for others can be sent, until
    /// [`Host::forget`].
    pub fn leave(&mut self, bound: Arc<Bound>, id: MemberId, send_buffer: u64, drain: bool, linger: bool) {
        let report = bound.group.leave(id, linger);
        self.remembered.left(self.address(), bound.local.port(), bound.group.sharing());
        self.engine.batch(|batch| {
            if !drain {
                let mine = |token: Option<_>| token.is_some_and(|token| Group::is_of(token, id));
                batch.cancel(bound.port(), None, mine);
            }
            bound.apply(batch, report);
            if !linger {
                bound.change_send_buffer(batch, Bound::at_node(send_buffer), 0);
            }
        });
        self.close_if_empty(&bound);
    }

    /// A member that lingered has nothing left.
    pub fn forget(&mut self, bound: Arc<Bound>, id: MemberId, send_buffer: u64) {
        bound.group.forget(id);
        self.engine.batch(|batch| bound.change_send_buffer(batch, Bound::at_node(send_buffer), 0));
        self.close_if_empty(&bound);
    }

    /// Unbinds a port that nobody has any more.
    fn close_if_empty(&mut self, bound: &Arc<Bound>) {
        if bound.group.is_empty() {
            self.ports.remove(&bound.local.port());
        }
    }
}
