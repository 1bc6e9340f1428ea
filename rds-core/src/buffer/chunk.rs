//! Pieces of the outgoing byte stream.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use super::lent::{Lent, OnRelease, Terms, View};
use crate::sys::shm::Span;
use crate::sys::vectored::Part;

/// A piece of a connection's byte stream: headers and small messages, or (part of) a payload that was lent. A clone refers to
/// the same bytes. Nothing here changes them; of a payload that another process shares, that one may, so its bytes can be copied, or be read by the
/// kernel, and nobody gets a reference to them.
#[derive(Clone, Debug)]
pub struct Chunk(Repr);

#[derive(Clone, Debug)]
enum Repr {
    /// Headers and small messages.
    Bytes(Bytes),
    /// (Part of) a payload of which nobody wants to know when it is free.
    Payload(Bytes),
    /// (Part of) a payload.
    Lent { lent: Lent, at: u32, end: u32 },
}

impl Chunk {
    /// No bytes.
    #[must_use]
    pub const fn empty() -> Self {
        Self(Repr::Bytes(Bytes::new()))
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Repr::Bytes(bytes) | Repr::Payload(bytes) => bytes.len(),
            Repr::Lent { at, end, .. } => (end - at) as usize,
        }
    }

    /// Part of it.
    ///
    /// # Panics
    /// If the range is not within it.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "a range within the chunk");
        Self(match &self.0 {
            Repr::Bytes(bytes) => Repr::Bytes(bytes.slice(range)),
            Repr::Payload(bytes) => Repr::Payload(bytes.slice(range)),
            // Within `at..end`, hence in u32.
            Repr::Lent { lent, at, .. } => {
                Repr::Lent { lent: lent.clone(), at: at + range.start as u32, end: at + range.end as u32 }
            }
        })
    }

    /// Cuts the first `n` bytes off.
    ///
    /// # Panics
    /// If it is shorter.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.len(), "no more than there is");
        match &mut self.0 {
            Repr::Bytes(bytes) | Repr::Payload(bytes) => bytes::Buf::advance(bytes, n),
            Repr::Lent { at, .. } => *at += n as u32,
        }
    }

    /// Cuts the first `n` bytes off and returns them.
    ///
    /// # Panics
    /// If it is shorter.
    #[must_use]
    pub fn split_to(&mut self, n: usize) -> Self {
        let front = self.slice(0..n);
        self.advance(n);
        front
    }

    /// The payload of which it is part, if it was lent.
    #[must_use]
    pub const fn lent(&self) -> Option<&Lent> {
        match &self.0 {
            Repr::Lent { lent, .. } => Some(lent),
            Repr::Bytes(_) | Repr::Payload(_) => None,
        }
    }

    /// Whether it is (part of) a payload in memory of its own, which may be worth sending from where it lies.
    #[must_use]
    pub const fn is_payload(&self) -> bool {
        !matches!(&self.0, Repr::Bytes(_))
    }

    /// Some of its bytes were copied on their way.
    pub fn mark_copied(&self) {
        if let Some(lent) = self.lent() {
            lent.mark_copied();
        }
    }
}

impl Chunk {
    /// Its bytes.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        match &self.0 {
            Repr::Bytes(bytes) | Repr::Payload(bytes) => View::Bytes(bytes),
            Repr::Lent { lent, at, end } => lent.view(*at as usize..*end as usize),
        }
    }

    /// Its bytes, unless another process shares them.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        match self.view() {
            View::Bytes(bytes) => Some(bytes),
            View::Shared(_) => None,
        }
    }

    /// A copy of its bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.len()];
        self.view().copy_to(&mut out);
        out
    }

    /// Appends its bytes to a buffer.
    pub fn append_to(&self, out: &mut BytesMut) {
        self.view().append_to(out);
    }

    /// Where its bytes are, for system calls alone.
    pub(crate) fn part(&self) -> Part {
        match &self.0 {
            Repr::Bytes(bytes) | Repr::Payload(bytes) => bytes[..].into(),
            Repr::Lent { lent, at, end } => lent.part(*at as usize..*end as usize),
        }
    }
}

impl<B: Into<Bytes>> From<B> for Chunk {
    fn from(bytes: B) -> Self {
        Self(Repr::Bytes(bytes.into()))
    }
}

impl Chunk {
    /// A whole payload of which nobody wants to know when it is free.
    #[must_use]
    pub const fn payload(bytes: Bytes) -> Self {
        Self(Repr::Payload(bytes))
    }

    /// A whole payload that was lent. Its bytes beyond 4 GiB, which no message has, are left out.
    #[must_use]
    pub fn of(lent: Lent) -> Self {
        let end = u32::try_from(lent.len()).unwrap_or(u32::MAX);
        Self(Repr::Lent { lent, at: 0, end })
    }

    /// A whole payload in memory that another process shares; see [`Lent::shared`].
    #[must_use]
    pub fn shared(span: Span, hook: Option<(Arc<dyn OnRelease>, u32)>, terms: Terms) -> Self {
        Self::of(Lent::shared(span, hook, terms))
    }

    /// Takes a payload back that was not sent: nobody will be told of its release.
    pub fn withdraw(self) {
        if let Repr::Lent { lent, .. } = self.0 {
            lent.withdraw();
        }
    }

    /// The payload back, if this is the whole of it and nobody else refers to it; see [`Lent::reclaim`].
    #[must_use]
    pub fn reclaim(self) -> Option<super::Owned> {
        match self.0 {
            Repr::Bytes(bytes) | Repr::Payload(bytes) => Some(bytes.into()),
            Repr::Lent { lent, .. } => lent.reclaim(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Owned;
    use super::*;
    use crate::sys::shm::{Access, SharedMemory};

    proptest! {
        #[test]
        fn all_kinds_are_cut_alike(len in 0..300usize, cuts in proptest::collection::vec((0..300usize, 0..300usize), 0..6)) {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut plain = Chunk::from(bytes.clone());
            let mut lent = Chunk::of(Owned::from(bytes.clone()).lend(None));
            let (_, memory) = SharedMemory::create(len + 8, Access::ReadWrite).unwrap();
            memory.copy_in(5, &bytes);
            let mut shared = Chunk::shared(memory.span(5, len as u64).unwrap(), None, Terms::default());
            let mut model = &bytes[..];
            for (a, b) in cuts {
                let (a, b) = (a.min(model.len()), b.min(model.len()));
                if a <= b {
                    (plain, lent, model) = (plain.slice(a..b), lent.slice(a..b), &model[a..b]);
                    shared = shared.slice(a..b);
                } else {
                    plain.advance(b);
                    lent.advance(b);
                    shared.advance(b);
                    model = &model[b..];
                }
                prop_assert_eq!(plain.as_slice(), Some(model));
                prop_assert_eq!(lent.as_slice(), Some(model));
                prop_assert_eq!((shared.as_slice(), shared.to_vec()), (None, model.to_vec()));
                prop_assert_eq!((plain.len(), lent.is_empty()), (model.len(), model.is_empty()));
            }
        }
    }
}
