//! A host that is no RDS node: it connects, says nothing or nonsense, and does not answer.

use std::collections::VecDeque;

use bytes::Bytes;

use super::ctx::Ctx;
use super::net::{End, Notice, Read};

/// What strangers do with a connection that stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Nothing at all.
    Silent,
    /// Write this.
    Says(Bytes),
}

/// A host without RDS.
#[derive(Debug)]
pub struct Stranger {
    /// Number of the host.
    pub index: usize,
    /// Notices to be handled.
    pub pending: VecDeque<Notice>,
    /// Connections that others made, in the order of their coming.
    pub accepted: Vec<End>,
    open: Vec<(End, Manner)>,
}

impl Stranger {
    /// A stranger without connections. Its listener is to be closed by the caller.
    #[must_use]
    pub fn new(index: usize) -> Self {
        Self { index, pending: VecDeque::new(), accepted: Vec::new(), open: Vec::new() }
    }

    /// Connects to a host.
    pub fn dial(&mut self, cx: &mut Ctx, to: usize, manner: Manner) -> End {
        self.dial_lane(cx, to, None, manner)
    }

    /// Connects to a host, from a source port that tells the lane.
    pub fn dial_lane(&mut self, cx: &mut Ctx, to: usize, lane: Option<u8>, manner: Manner) -> End {
        let end = cx.net.connect(cx.now, self.index, to, lane.map(|lane| (lane, 8)));
        self.open.push((end, manner));
        end
    }

    /// Writes on a connection.
    pub fn say(&mut self, cx: &mut Ctx, end: End, bytes: &[u8]) {
        cx.net.write(cx.now, end, &[Bytes::copy_from_slice(bytes).into()], usize::MAX);
    }

    /// Handles what came, and forgets connections that have ended.
    pub fn run(&mut self, cx: &mut Ctx) -> bool {
        while let Some(notice) = self.pending.pop_front() {
            match notice {
                Notice::Connected(end) => {
                    if let Some((_, Manner::Says(bytes))) = self.open.iter().find(|(e, _)| *e == end) {
                        cx.net.write(cx.now, end, &[bytes.clone().into()], usize::MAX);
                    }
                }
                Notice::Readable(end) => loop {
                    match cx.net.read(cx.now, end, 1 << 20, &mut Vec::new()) {
                        Read::Data(_) => {}
                        Read::Nothing => break,
                        Read::Eof | Read::Failed(_) => {
                            cx.net.close(cx.now, end);
                            self.open.retain(|(e, _)| *e != end);
                            break;
                        }
                    }
                },
                Notice::Failed(end) => self.open.retain(|(e, _)| *e != end),
                Notice::Incoming(end) => {
                    cx.net.accept(end);
                    self.accepted.push(end);
                    self.open.push((end, Manner::Silent));
                    if cx.net.is_readable(end) {
                        self.pending.push_back(Notice::Readable(end));
                    }
                }
                Notice::Writable(_) | Notice::Errors(_) => {}
            }
        }
        false
    }

    /// Ends all connections.
    pub fn hang_up(&mut self, cx: &mut Ctx) {
        for (end, _) in std::mem::take(&mut self.open) {
            cx.net.close(cx.now, end);
        }
    }
}
