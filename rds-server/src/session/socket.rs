//! One socket of a client, as the service thread has it.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::net::SocketAddr;
use std::sync::Arc;

use rds_core::buffer::{Chunk, OnRelease, Terms};
use rds_core::engine::Batch;
use rds_core::events::note;
use rds_core::proto::{Outcome, Payload, SendError};
use rds_core::zerocopy::{Mode, Share};

use super::outlet::{Outlet, Releases, Slot};
use super::waiting::{Bytes, Send, Waiting};
use crate::access::Grant;
use crate::broker::{Group, MemberId};
use crate::host::Bound;
use rds_core::attach::Completion;

/// By the number that the client gave. Looked up for each record; a client that chooses numbers which collide is slow by its own fault, within its
/// quota of sockets.
pub(super) type Sockets = HashMap<u32, Socket, BuildHasherDefault<Mixer>>;

/// Spreads the bits of a number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    fn write_u32(&mut self, n: u32) {
        // The golden ratio's bits: both ends of the product depend on all of the number's.
        let product = (self.0 ^ u64::from(n)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }
}

/// A bound socket.
pub(super) struct Socket {
    pub(super) number: u32,
    pub(super) slot: Slot,
    pub(super) bound: Arc<Bound>,
    pub(super) member: MemberId,
    pub(super) mode: Option<Mode>,
    /// Sends that wait for a congested port.
    pub(super) waiting: Waiting,
    /// Sends that came when the daemon was ending already. They are never sent, and end as cancelled.
    pub(super) late: Vec<(SocketAddr, Send)>,
    /// Destinations that the client takes for congested.
    pub(super) told: HashSet<SocketAddr>,
    /// Closed by the client, but what it sent still waits.
    pub(super) lingers: bool,
    pub(super) releases: Arc<Releases>,
    pub(super) send_buffer: Grant,
    pub(super) receive_buffer: Grant,
    /// That it is one of the client's sockets.
    pub(super) _place: Grant,
}

impl Socket {
    fn outlet(&self) -> &Arc<Outlet> {
        &self.releases.outlet
    }

    /// Sends, or has it wait behind what waits for the same destination.
    pub(super) fn send(
        &mut self,
        batch: &mut Batch<'_>,
        to: SocketAddr,
        send: Send,
        share: &Arc<Share>,
        inline: Option<Payload<'_>>,
        paused: bool,
    ) {
        // While the node waits for ports to be bound again, one of its own may be among them.
        if self.waiting.is_waiting(to) || (paused && to.ip() == self.bound.local.ip()) {
            self.wait(to, send, inline);
            return;
        }
        match self.attempt(batch, to, &send, inline.as_ref().map(reborrow), share) {
            Ok(()) => {}
            Err(SendError::Congested | SendError::Full) => {
                if !self.lingers && self.told.insert(to) {
                    self.outlet().tell(Completion::Congested { socket: self.number, to }, &[]);
                }
                self.wait(to, send, inline);
            }
            Err(error) => self.refuse(&send, to, error),
        }
    }

    fn wait(&mut self, to: SocketAddr, mut send: Send, inline: Option<Payload<'_>>) {
        if let Some(payload) = inline {
            let mut copy = Vec::with_capacity(payload.len());
            match payload {
                Payload::Copy(bytes) => copy.extend_from_slice(bytes),
                Payload::Shared(span) => copy = span.to_vec(),
                _ => {}
            }
            send.bytes = Bytes::Own(copy.into());
        }
        self.waiting.add(to, send);
    }

    fn attempt(
        &self,
        batch: &mut Batch<'_>,
        to: SocketAddr,
        send: &Send,
        inline: Option<Payload<'_>>,
        share: &Arc<Share>,
    ) -> Result<(), SendError> {
        let token = Some(Group::token(self.member, send.number));
        let payload = match (&send.bytes, inline) {
            (_, Some(inline)) => inline,
            (Bytes::Own(bytes), None) => Payload::Copy(bytes),
            (Bytes::Arena(span), None) => {
                let hook = Arc::clone(&self.releases) as Arc<dyn OnRelease>;
                let terms = Terms { mode: send.mode.or(self.mode), share: Some(Arc::clone(share)) };
                Payload::Owned(Chunk::shared(span.clone(), Some((hook, send.id)), terms))
            }
        };
        batch.send(self.bound.port(), to, payload, token).map_err(|rejected| {
            if let Payload::Owned(chunk) = rejected.payload {
                // It is made anew for the next attempt, or the client is told here.
                chunk.withdraw();
            }
            rejected.error
        })
    }

    /// Ends a send that the node will not have.
    fn refuse(&self, send: &Send, to: SocketAddr, error: SendError) {
        note!(MessageRefused, socket = %self.bound.local, peer = %to, reason = %error, "a message was refused");
        self.end(send);
    }

    /// Ends a send that never reached the node.
    pub(super) fn end(&self, send: &Send) {
        self.outlet().ended(self.slot, send.number, Outcome::Cancelled);
        self.release(send);
    }

    fn release(&self, send: &Send) {
        if let Bytes::Arena(_) = send.bytes {
            let released = Completion::Released { socket: self.number, id: send.id, copied: false };
            self.outlet().tell(released, &[]);
        }
    }

    /// Tries again what waits for a destination that may be free.
    pub(super) fn retry(&mut self, batch: &mut Batch<'_>, to: SocketAddr, share: &Arc<Share>) {
        while let Some(send) = self.waiting.take(to) {
            match self.attempt(batch, to, &send, None, share) {
                Ok(()) => {}
                Err(SendError::Congested | SendError::Full) => {
                    self.waiting.put_back(to, send);
                    return;
                }
                Err(error) => self.refuse(&send, to, error),
            }
        }
        if self.told.remove(&to) && !self.lingers {
            self.outlet().tell(Completion::Uncongested { socket: self.number, to }, &[]);
        }
    }

    /// Tries again everything that waits.
    pub(super) fn retry_all(&mut self, batch: &mut Batch<'_>, share: &Arc<Share>) {
        for to in self.waiting.destinations() {
            self.retry(batch, to, share);
        }
    }

    /// Forgets what waits for `to`, or all of it. Returns how many.
    pub(super) fn cancel_waiting(&mut self, to: Option<SocketAddr>) -> usize {
        let sends = self.waiting.remove(to);
        sends.iter().for_each(|send| self.end(send));
        sends.len()
    }

    /// The same of what came too late.
    pub(super) fn cancel_late(&mut self, to: Option<SocketAddr>) -> usize {
        let late: Vec<_> = self.late.extract_if(.., |(its, _)| to.is_none_or(|to| to == *its)).collect();
        late.iter().for_each(|(_, send)| self.end(send));
        late.len()
    }

    /// Destinations, this one or all, for which something waits.
    pub(super) fn waited_for(&self, to: Option<SocketAddr>) -> Vec<SocketAddr> {
        match to {
            Some(to) => Some(to).filter(|to| self.waiting.is_waiting(*to)).into_iter().collect(),
            None => self.waiting.destinations(),
        }
    }

    /// Nothing waits for these destinations any more. What is congested is told of by the node when it is free, as without a cancel; but what
    /// waited for the node's room alone is told of only while it waits.
    pub(super) fn settle_told(&mut self, batch: &mut Batch<'_>, waited: Vec<SocketAddr>) {
        for to in waited {
            if self.told.contains(&to) && !batch.watch_congestion(self.bound.port(), to) {
                self.told.remove(&to);
                self.outlet().tell(Completion::Uncongested { socket: self.number, to }, &[]);
            }
        }
    }
}

fn reborrow<'a>(payload: &'a Payload<'_>) -> Payload<'a> {
    match payload {
        Payload::Copy(bytes) => Payload::Copy(bytes),
        Payload::Shared(span) => Payload::Shared(span),
        _ => Payload::Copy(&[]),
    }
}
