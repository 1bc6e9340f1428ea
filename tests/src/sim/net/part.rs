//! Pieces of send queues: copies, and references to memory that is read when it is transmitted.

use std::sync::Arc;

use rds_core::buffer::Chunk;

use crate::sim::memory::Life;

/// Memory to which a queue refers.
#[derive(Clone, Debug)]
pub(super) enum Pages {
    /// A program's.
    Lent(Arc<Life>),
    /// The node's, such as headers, with what it held when it was pinned.
    Own { chunk: Chunk, then: Chunk },
}

/// A piece of a send queue.
#[derive(Clone, Debug)]
pub(super) enum Part {
    Copied(Chunk),
    Pinned { pages: Pages, at: usize, end: usize, call: u64 },
}

impl Part {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Copied(chunk) => chunk.len(),
            Self::Pinned { at, end, .. } => end - at,
        }
    }

    pub(super) fn split_to(&mut self, n: usize) -> Self {
        match self {
            Self::Copied(chunk) => Self::Copied(chunk.split_to(n)),
            Self::Pinned { pages, at, call, .. } => {
                let start = *at;
                *at += n;
                Self::Pinned { pages: pages.clone(), at: start, end: start + n, call: *call }
            }
        }
    }

    pub(super) fn call(&self) -> Option<u64> {
        match self {
            Self::Copied(_) => None,
            Self::Pinned { call, .. } => Some(*call),
        }
    }

    /// What goes over the wire now.
    ///
    /// # Errors
    /// It is not what was pinned.
    pub(super) fn bytes(&self) -> (Chunk, Result<(), String>) {
        match self {
            Self::Copied(chunk) => (chunk.clone(), Ok(())),
            Self::Pinned { pages: Pages::Lent(life), at, end, .. } => {
                let (bytes, live) = life.read(*at, *end);
                let broken = || {
                    format!(
                        "the kernel transmits from the buffer of message {}, which is free",
                        life.number()
                    )
                };
                (bytes.into(), if live { Ok(()) } else { Err(broken()) })
            }
            Self::Pinned { pages: Pages::Own { chunk, then }, at, end, .. } => {
                let bytes = chunk.slice(*at..*end).to_vec();
                let same = bytes == then.slice(*at..*end).to_vec();
                let broken = || {
                    "bytes of the node's own changed while the kernel might still transmit them".to_owned()
                };
                (bytes.into(), if same { Ok(()) } else { Err(broken()) })
            }
        }
    }
}
