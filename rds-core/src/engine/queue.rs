//! Received messages in order, without an allocation a message.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::BytesMut;

use super::lease::Bytes;
use crate::buffer::{Assembled, Memory, Pool, Span};
use crate::proto::Body;
use crate::sys::shm::count_copy;

/// Payloads up to this size are copied into the ring; larger ones keep a buffer of their own, which an owned receive
/// hands out without another copy.
pub(crate) const SMALL: usize = 16 << 10;

/// Leases of messages up to this size share memory.
pub(crate) const CUT: usize = 1024;

/// A ring that is larger than this is given back when it has been little used for a while.
const KEEP: usize = 64 << 10;
/// How often the queue must have been emptied, little used, before memory is given back.
const PATIENCE: u32 = 256;

struct Meta {
    from: SocketAddr,
    len: u32,
    large: bool,
}

/// A queue of messages.
#[derive(Default)]
pub(crate) struct Queue {
    metas: VecDeque<Meta>,
    /// Small payloads, one after the other.
    ring: VecDeque<u8>,
    large: VecDeque<Assembled>,
    /// Most bytes in the ring since memory was given back, or was found to be needed.
    peak: usize,
    /// Times that the queue was emptied since.
    emptied: u32,
}

impl Queue {
    pub(crate) fn is_empty(&self) -> bool {
        self.metas.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.metas.len()
    }

    /// Who sent each message, and how long it is.
    pub(crate) fn messages(&self) -> impl Iterator<Item = (SocketAddr, u32)> + '_ {
        self.metas.iter().map(|meta| (meta.from, meta.len))
    }

    pub(crate) fn push(&mut self, from: SocketAddr, body: Body<'_>, pool: &Pool) {
        // A payload is at most a message, which is far below 4 GiB.
        let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
        let large = match body {
            Body::Borrowed(bytes) if bytes.len() <= SMALL => {
                self.ring.extend(bytes);
                self.peak = self.peak.max(self.ring.len());
                false
            }
            Body::Borrowed(bytes) => {
                let mut memory = pool.take(bytes.len());
                memory.copy_from_slice(bytes);
                self.large.push_back(Assembled::of(Memory::Pool(memory)));
                true
            }
            Body::Shared(span) => {
                self.large.push_back(copy_of(span, pool));
                true
            }
            Body::Owned(message) => {
                self.large.push_back(message.finish().unwrap_or_else(|placed| copy_of(placed.span(), pool)));
                true
            }
        };
        self.metas.push_back(Meta { from, len, large });
    }

    /// Appends a message of up to [`SMALL`] bytes; `fill` is given its memory, in two pieces.
    pub(crate) fn push_small(&mut self, from: SocketAddr, len: u32, fill: impl FnOnce(&mut [u8], &mut [u8])) {
        let before = self.ring.len();
        self.ring.resize(before + len as usize, 0);
        self.peak = self.peak.max(self.ring.len());
        let (a, b) = self.ring.as_mut_slices();
        let (start, cut) = (before.min(a.len()), before.saturating_sub(a.len()));
        fill(&mut a[start..], &mut b[cut..]);
        self.metas.push_back(Meta { from, len, large: false });
    }

    /// Appends a message that has memory of its own.
    pub(crate) fn push_large(&mut self, from: SocketAddr, message: Assembled) {
        let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
        self.large.push_back(message);
        self.metas.push_back(Meta { from, len, large: true });
    }

    /// Length of the oldest message.
    pub(crate) fn next_len(&self) -> Option<usize> {
        self.metas.front().map(|m| m.len as usize)
    }

    /// Copies the oldest message, as much as fits. Returns the bytes copied, its length, its sender.
    pub(crate) fn peek(&self, buffer: &mut [u8]) -> Option<(usize, usize, SocketAddr)> {
        let meta = self.metas.front()?;
        let len = meta.len as usize;
        let n = len.min(buffer.len());
        if meta.large {
            buffer[..n].copy_from_slice(&self.large.front()?[..n]);
        } else {
            let (a, b) = self.ring.as_slices();
            let first = n.min(a.len());
            buffer[..first].copy_from_slice(&a[..first]);
            buffer[first..n].copy_from_slice(&b[..n - first]);
        }
        count_copy(n);
        Some((n, len, meta.from))
    }

    /// Takes the oldest message away, as [`Queue::peek`] would copy it. The buffer of a large one is returned, to be
    /// dropped without a lock.
    pub(crate) fn pop_into(
        &mut self,
        buffer: &mut [u8],
    ) -> Option<(usize, usize, SocketAddr, Option<Assembled>)> {
        let (n, len, from) = self.peek(buffer)?;
        let large = self.metas.pop_front()?.large;
        let rest = if large {
            self.large.pop_front()
        } else {
            self.ring.drain(..len);
            None
        };
        self.trim();
        Some((n, len, from, rest))
    }

    /// Takes the oldest message away, into memory of its own: of `pool`, or cut from `store` if it is small.
    pub(crate) fn pop(&mut self, store: &mut BytesMut, pool: &Pool) -> Option<(Bytes, SocketAddr)> {
        let meta = self.metas.pop_front()?;
        let payload = if meta.large {
            Bytes::Large(self.large.pop_front()?)
        } else {
            let len = meta.len as usize;
            // A message that is kept keeps its piece of the store: a small one must not keep much more than itself.
            if len > CUT {
                let mut own = pool.memory(len);
                let mut rest = own.as_mut_slice();
                self.copy_front(len, |piece| {
                    let (to, after) = std::mem::take(&mut rest).split_at_mut(piece.len());
                    to.copy_from_slice(piece);
                    rest = after;
                });
                Bytes::Large(Assembled::of(own))
            } else {
                if store.capacity() < len {
                    *store = BytesMut::with_capacity(8 << 10);
                }
                self.copy_front(len, |piece| store.extend_from_slice(piece));
                Bytes::Small(store.split_to(len))
            }
        };
        self.trim();
        Some((payload, meta.from))
    }

    fn copy_front(&mut self, len: usize, mut put: impl FnMut(&[u8])) {
        let (a, b) = self.ring.as_slices();
        let first = len.min(a.len());
        put(&a[..first]);
        put(&b[..len - first]);
        self.ring.drain(..len);
    }

    /// Gives memory back that a burst left behind.
    fn trim(&mut self) {
        if !self.metas.is_empty() {
            return;
        }
        self.emptied += 1;
        if self.emptied < PATIENCE && self.ring.capacity() > KEEP {
            return;
        }
        let peak = std::mem::take(&mut self.peak);
        self.emptied = 0;
        if self.ring.capacity() > KEEP && peak < self.ring.capacity() / 4 {
            self.ring.shrink_to(KEEP.max(peak));
            self.metas.shrink_to(KEEP / size_of::<Meta>());
            self.large.shrink_to(64);
        }
    }
}

/// A message of a neighbour, in memory of the node's own: out of memory that another process may change meanwhile.
fn copy_of(span: &Span, pool: &Pool) -> Assembled {
    let mut memory = pool.take(span.len());
    span.copy_to(&mut memory);
    Assembled::of(Memory::Pool(memory))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::buffer::Filling;

    fn from(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn a_cut_message_is_gone_whole_and_the_next_one_is_intact() {
        let mut q = Queue::default();
        q.push(from(1), Body::Borrowed(b"hello"), &Pool::new());
        q.push(from(2), Body::Borrowed(b"world"), &Pool::new());
        let mut buffer = [0; 2];
        assert_eq!(q.peek(&mut buffer), Some((2, 5, from(1))));
        let (n, len, sender, rest) = q.pop_into(&mut buffer).unwrap();
        assert_eq!((n, len, sender, rest.is_none(), &buffer), (2, 5, from(1), true, b"he"));
        let (payload, sender) = q.pop(&mut BytesMut::new(), &Pool::new()).unwrap();
        assert_eq!((&payload[..], sender), (&b"world"[..], from(2)));
        assert!(q.is_empty());
    }

    #[test]
    fn memory_of_a_burst_is_given_back() {
        let mut q = Queue::default();
        for _ in 0..10_000 {
            q.push(from(1), Body::Borrowed(&[7; 1024]), &Pool::new());
        }
        let mut buffer = [0; 1024];
        while q.pop_into(&mut buffer).is_some() {}
        let grown = q.ring.capacity();
        for _ in 0..2 * PATIENCE {
            q.push(from(1), Body::Borrowed(b"x"), &Pool::new());
            q.pop_into(&mut buffer).unwrap();
        }
        assert!(grown > 10_000_000 && q.ring.capacity() <= 2 * KEEP, "{grown} -> {}", q.ring.capacity());
    }

    proptest! {
        #[test]
        fn messages_come_out_whole_and_in_order(
            lens in proptest::collection::vec((prop_oneof![0..40usize, 1000..1100usize, SMALL - 1..SMALL + 2], any::<bool>(), 0..3u8), 1..200)
        ) {
            let mut q = Queue::default();
            let mut model = VecDeque::new();
            let mut store = BytesMut::new();
            for (i, (len, owned, pops)) in lens.into_iter().enumerate() {
                let payload = vec![u8::try_from(i % 251).unwrap(); len];
                let body = if owned { Body::Owned(Filling::whole(Memory::Heap(payload.clone().into_boxed_slice()))) } else { Body::Borrowed(&payload) };
                let sender = from(u16::try_from(i).unwrap());
                q.push(sender, body, &Pool::new());
                model.push_back((payload, sender));
                for pop in 0..pops {
                    prop_assert_eq!(q.next_len(), model.front().map(|m| m.0.len()));
                    let expected = model.pop_front();
                    let got = if pop == 0 {
                        let mut buffer = vec![0; SMALL + 2];
                        q.pop_into(&mut buffer).map(|(n, len, from, _)| { assert_eq!(n, len); buffer.truncate(n); (buffer, from) })
                    } else {
                        q.pop(&mut store, &Pool::new()).map(|(b, from)| (b.to_vec(), from))
                    };
                    prop_assert_eq!(got, expected);
                }
            }
            prop_assert_eq!(q.len(), model.len());
        }
    }
}
