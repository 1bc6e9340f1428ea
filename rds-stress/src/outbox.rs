//! How the messages of a task leave: copied, or lent to the node in buffers of its pool.

use std::net::SocketAddr;

use rds_client::{Completion, Mode, Node, Owned, PoolBuffer, Socket};

use crate::backend::Refused;

/// Shortest message that is lent: below, a page, zero copy cannot pay, and two completions a message would.
pub const SHORTEST_LENT: usize = 4096;
/// So many messages may be lent in any case.
const LEAST: u64 = 4;

/// What a task sends through. Takes the completions of what it has lent in batches.
#[derive(Debug)]
pub struct Outbox {
    lends: bool,
    /// Bytes from the start of each message that must be right: all, or the header.
    filled: usize,
    header: usize,
    /// Messages that may be lent at a time, per byte of a message.
    most_bytes: u64,
    /// Buffers that have not come back, and messages whose end is not known.
    buffers: u64,
    messages: u64,
    batch: Vec<Completion>,
    /// A filled buffer that was refused.
    spare: Option<PoolBuffer>,
}

impl Outbox {
    /// An outbox of messages with a header of `header` bytes. With `mode` off it copies. `whole`: the payloads matter as well.
    /// Otherwise what a lent buffer holds behind the header is what it held before. `most_bytes` may be lent at a time, but always a
    /// few messages.
    #[must_use]
    pub fn new(mode: Mode, header: usize, whole: bool, most_bytes: u64) -> Self {
        Self {
            lends: mode != Mode::Off,
            filled: if whole { usize::MAX } else { header },
            header,
            most_bytes,
            buffers: 0,
            messages: 0,
            batch: Vec::new(),
            spare: None,
        }
    }

    /// Sends `message` without blocking.
    ///
    /// # Errors
    /// Why not.
    #[inline]
    pub fn send(
        &mut self,
        node: &Node,
        socket: &Socket,
        message: &[u8],
        to: SocketAddr,
    ) -> Result<(), Refused> {
        if !self.lends || message.len() < SHORTEST_LENT {
            return Ok(socket.try_send_to(message, to)?);
        }
        self.lend(node, socket, message, to)
    }

    fn lend(&mut self, node: &Node, socket: &Socket, message: &[u8], to: SocketAddr) -> Result<(), Refused> {
        let most = (self.most_bytes / message.len() as u64).max(LEAST);
        if self.buffers.max(self.messages) >= most {
            return Err(Refused::Lent);
        }
        // What was refused before differs in the header alone: payloads of one length are the same.
        let spare = self.spare.take().filter(|b| b.len() == message.len());
        let (mut buffer, filled) = match spare {
            Some(buffer) => (buffer, self.header),
            None => (node.buffer(message.len()), self.filled.min(message.len())),
        };
        buffer[..filled].copy_from_slice(&message[..filled]);
        match socket.try_send_owned(buffer, to) {
            Ok(_cookie) => {
                self.buffers += 1;
                self.messages += 1;
                Ok(())
            }
            Err((error, payload)) => {
                if let Owned::Pool(buffer) = payload {
                    self.spare = Some(buffer);
                }
                Err(error.into())
            }
        }
    }

    /// Takes all completions that are there.
    ///
    /// # Errors
    /// There were more than messages sent.
    pub fn take_completions(&mut self, socket: &Socket) -> Result<(), String> {
        if self.buffers + self.messages == 0 {
            return Ok(());
        }
        socket.completions(&mut self.batch);
        for completion in self.batch.drain(..) {
            let open = match completion {
                Completion::Released { .. } => &mut self.buffers,
                _ => &mut self.messages,
            };
            let Some(left) = open.checked_sub(1) else {
                return Err(format!("{completion:?} although every message had its completions before"));
            };
            *open = left;
        }
        Ok(())
    }
}
