//! Sends that wait for a congested destination, in order for each.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;

use rds_core::attach::Span;
use rds_core::zerocopy::Mode;

/// Where a waiting payload is.
#[derive(Debug)]
pub(super) enum Bytes {
    /// Here.
    Own(Box<[u8]>),
    /// In the client's arena.
    Arena(Span),
}

/// A send that the node has not taken yet.
#[derive(Debug)]
pub(super) struct Send {
    /// The outlet's number for it.
    pub(super) number: u32,
    /// The client's number for it.
    pub(super) id: u32,
    pub(super) mode: Option<Mode>,
    pub(super) bytes: Bytes,
}

/// All that a socket has waiting. What it holds is bounded by the socket's send buffer, to which everything here is charged.
#[derive(Debug, Default)]
pub(super) struct Waiting(HashMap<SocketAddr, VecDeque<Send>>);

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_waiting(&self, to: SocketAddr) -> bool {
        !self.0.is_empty() && self.0.contains_key(&to)
    }

    pub(super) fn add(&mut self, to: SocketAddr, send: Send) {
        self.0.entry(to).or_default().push_back(send);
    }

    /// The one that came first.
    pub(super) fn take(&mut self, to: SocketAddr) -> Option<Send> {
        let queue = self.0.get_mut(&to)?;
        let send = queue.pop_front();
        if queue.is_empty() {
            self.0.remove(&to);
        }
        send
    }

    /// Gives back what [`Waiting::take`] returned.
    pub(super) fn put_back(&mut self, to: SocketAddr, send: Send) {
        self.0.entry(to).or_default().push_front(send);
    }

    pub(super) fn destinations(&self) -> Vec<SocketAddr> {
        self.0.keys().copied().collect()
    }

    pub(super) fn remove(&mut self, to: Option<SocketAddr>) -> Vec<Send> {
        match to {
            Some(to) => self.0.remove(&to).into_iter().flatten().collect(),
            None => self.0.drain().flat_map(|(_, queue)| queue).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.values().map(VecDeque::len).sum()
    }
}
