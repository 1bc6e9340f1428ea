//! What a ledger socket is built on: a socket of a node of ours, or one of the kernel.

use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use bytes::Bytes;
use rds_client::{Completion, Event as Got, Guarantee, Owned, Readiness, RecvError, Socket, TrySendError};

use super::log::Event;

/// What became of a message that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It was taken. Its end comes with this number, if the stack tells the ends of messages.
    Taken(Option<u32>),
    /// Its destination is congested.
    Congested,
    /// The send buffer is full.
    Full,
}

/// One message, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// A message was taken.
    Message,
    /// Something else was taken: there may be more.
    Other,
    /// Nothing is there.
    Nothing,
}

/// A bound socket, whoever provides it. No call blocks but `wait`.
pub(super) trait Endpoint: Send {
    /// Hands `payload` over.
    fn send(&mut self, payload: &Bytes, to: SocketAddrV4) -> Result<Sent, String>;

    /// Adds the ends of messages that are known by now, by the number of [`Sent::Taken`].
    fn ends(&mut self, ends: &mut Vec<(u32, Event)>) -> Result<(), String>;

    /// Takes a message, if one is there, and shows it to `got`.
    fn receive(&mut self, got: &mut dyn FnMut(SocketAddr, &[u8])) -> Result<Taken, String>;

    /// Forgets what is not delivered.
    fn cancel(&mut self) -> Result<(), String>;

    /// How many connections were lost so far. Of a message that ended with a lost connection, [`Endpoint::ends`] tells if it is called
    /// after this.
    fn breaks(&self) -> u64;

    /// Blocks until something comes, there is room (if `writable`), a message has ended, or the time is over.
    fn wait(&mut self, writable: bool, limit: Duration) -> Result<(), String>;
}

/// A socket of a node of ours.
pub(super) struct Own {
    socket: Socket,
    completions: Vec<Completion>,
    node: rds_client::Node,
    lend: bool,
}

impl Own {
    /// With `lend` it sends from buffers of the node's pool.
    pub(super) fn new(node: &rds_client::Node, socket: Socket, lend: bool) -> Self {
        socket.set_congestion_monitor(true);
        Self { socket, completions: Vec::new(), node: node.clone(), lend }
    }
}

impl Endpoint for Own {
    fn send(&mut self, payload: &Bytes, to: SocketAddrV4) -> Result<Sent, String> {
        let payload = if self.lend {
            let mut buffer = self.node.buffer(payload.len());
            buffer.copy_from_slice(payload);
            Owned::Pool(buffer)
        } else {
            Owned::Bytes(payload.clone())
        };
        match self.socket.try_send_owned(payload, to.into()) {
            Ok(cookie) => Ok(Sent::Taken(Some(cookie.0))),
            Err((TrySendError::Congested, _)) => Ok(Sent::Congested),
            Err((TrySendError::Full, _)) => Ok(Sent::Full),
            Err((why, _)) => Err(why.to_string()),
        }
    }

    fn ends(&mut self, ends: &mut Vec<(u32, Event)>) -> Result<(), String> {
        self.socket.completions(&mut self.completions);
        for end in self.completions.drain(..) {
            let event = match end {
                Completion::Delivered { by: Guarantee::Application, .. } => Event::DeliveredApplication,
                Completion::Delivered { by: Guarantee::Transport, .. } => Event::DeliveredTransport,
                Completion::Unknown { .. } => Event::Unknown,
                Completion::Cancelled { .. } => Event::Cancelled,
                _ => continue,
            };
            ends.push((end.cookie().0, event));
        }
        Ok(())
    }

    fn receive(&mut self, got: &mut dyn FnMut(SocketAddr, &[u8])) -> Result<Taken, String> {
        match self.socket.try_recv_lease() {
            Ok(Got::Message(m)) => {
                got(m.from, &m.payload);
                Ok(Taken::Message)
            }
            Ok(_) => Ok(Taken::Other),
            Err(RecvError::Empty) => Ok(Taken::Nothing),
            Err(e) => Err(e.to_string()),
        }
    }

    fn cancel(&mut self) -> Result<(), String> {
        self.socket.cancel_all();
        Ok(())
    }

    fn breaks(&self) -> u64 {
        self.node.snapshot().counters.get(rds_client::Counter::ConnReset)
    }

    fn wait(&mut self, writable: bool, limit: Duration) -> Result<(), String> {
        self.socket.wait(Readiness { readable: true, writable, completions: true }, Some(limit));
        Ok(())
    }
}
