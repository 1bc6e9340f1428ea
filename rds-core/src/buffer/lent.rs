//! A payload that the node keeps until nobody reads it any more.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use bytes::{Bytes, BytesMut};

use super::pool::{Pages, Pool, PoolBuffer};
use crate::sys::shm::Span;
use crate::sys::vectored::{Part, Source as _};
use crate::zerocopy::{Mode, Share};

/// Hears that a payload's memory is free.
pub trait OnRelease: Send + Sync {
    /// Nobody refers to the payload that was sent under `cookie` any more. `copied`: some byte of it was copied on its way;
    /// false if the kernel sent all of it from where it lay, or none of it was sent.
    ///
    /// Called once, from any thread, with no lock of the engine held but possibly others' frames on the stack: it must not panic.
    fn released(&self, cookie: u32, copied: bool);
}

/// How a payload may be sent without a copy.
#[derive(Clone, Debug, Default)]
pub struct Terms {
    /// Whether it is; `None`: as its path does.
    pub mode: Option<Mode>,
    /// Whose part of the pin budget it takes.
    pub share: Option<Arc<Share>>,
}

/// Where a payload's bytes are.
pub(super) enum Data {
    Bytes(Bytes),
    Pages(Pages),
    /// Of another process too, which may change them at any moment.
    Shared(Span),
    /// Taken away.
    None,
}

impl Data {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Pages(pages) => pages.len(),
            Self::Shared(span) => span.len(),
            Self::None => 0,
        }
    }
}

/// Bytes that a payload consists of.
#[derive(Clone, Debug)]
pub enum View<'a> {
    /// In memory of this process alone.
    Bytes(&'a [u8]),
    /// In memory that another process may change at any moment.
    Shared(Span),
}

impl View<'_> {
    /// Appends them to a buffer.
    pub fn append_to(&self, out: &mut BytesMut) {
        match self {
            Self::Bytes(bytes) => out.extend_from_slice(bytes),
            Self::Shared(span) => span.append_to(out),
        }
    }

    /// Copies the first of them, as many as `out` has.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn copy_to(&self, out: &mut [u8]) {
        match self {
            Self::Bytes(bytes) => out.copy_from_slice(&bytes[..out.len()]),
            Self::Shared(span) => span.copy_to(out),
        }
    }
}

/// What references to one payload share. Pool buffers keep theirs from one use to the next, so that sending one allocates nothing.
pub(super) struct Inner {
    pub(super) data: Data,
    pub(super) len: usize,
    copied: AtomicBool,
    hook: Option<(Arc<dyn OnRelease>, u32)>,
    terms: Terms,
    /// Pages of the share that wait for its first call.
    reserved: AtomicU32,
    pub(super) pool: Weak<Pool>,
}

impl Inner {
    pub(super) fn new(data: Data, pool: Weak<Pool>) -> Self {
        let len = data.len();
        Self {
            data,
            len,
            copied: AtomicBool::new(false),
            hook: None,
            terms: Terms::default(),
            reserved: AtomicU32::new(0),
            pool,
        }
    }

    /// What lies in memory of this process.
    pub(super) fn as_slice(&self) -> Option<&[u8]> {
        match &self.data {
            Data::Bytes(bytes) => Some(&bytes[..self.len]),
            Data::Pages(pages) => Some(&pages[..self.len]),
            Data::None => Some(&[]),
            Data::Shared(_) => None,
        }
    }

    pub(super) fn pages_mut(&mut self) -> Option<&mut Pages> {
        match &mut self.data {
            Data::Pages(pages) => Some(pages),
            _ => None,
        }
    }

    /// The last reference is gone: lets go of a program's payload, then tells. Pages stay.
    fn finish(&mut self) {
        /// Tells also when the payload's drop panics.
        struct Tell(Option<(Arc<dyn OnRelease>, u32)>, bool);
        impl Drop for Tell {
            fn drop(&mut self) {
                if let Some((to, cookie)) = self.0.take() {
                    to.released(cookie, self.1);
                }
            }
        }
        let _tell = Tell(self.hook.take(), std::mem::take(self.copied.get_mut()));
        self.forget_terms();
        if matches!(self.data, Data::Bytes(_) | Data::Shared(_)) {
            self.data = Data::None;
        }
    }

    fn forget_terms(&mut self) {
        let reserved = std::mem::take(self.reserved.get_mut());
        if let Some(share) = self.terms.share.take().filter(|_| reserved > 0) {
            share.release(reserved);
        }
        self.terms.mode = None;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.finish();
        // Two references went at the same moment, so neither brought the whole back.
        if let (Data::Pages(pages), Some(pool)) =
            (std::mem::replace(&mut self.data, Data::None), self.pool.upgrade())
        {
            pool.give_pages(pages);
        }
    }
}

/// One of the references to a payload. When the last goes, pages return to their pool, and whoever wanted to know is told.
///
/// Drop it where a program's own code may run: with no lock held.
pub struct Lent(Option<Arc<Inner>>);

impl Lent {
    pub(super) fn new(inner: Arc<Inner>) -> Self {
        Self(Some(inner))
    }

    fn inner(&self) -> &Inner {
        self.0.as_ref().expect("only a drop takes it")
    }

    /// Lends memory that is shared with another process; `hook` hears when nobody here, the kernel included, reads it any more.
    #[must_use]
    pub fn shared(span: Span, hook: Option<(Arc<dyn OnRelease>, u32)>, terms: Terms) -> Self {
        let mut inner = Inner::new(Data::Shared(span), Weak::new());
        (inner.hook, inner.terms) = (hook, terms);
        Self::new(Arc::new(inner))
    }

    /// The payload's length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner().len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Part of the payload.
    ///
    /// # Panics
    /// If the range is not within it.
    #[must_use]
    pub fn view(&self, range: Range<usize>) -> View<'_> {
        match (&self.inner().data, self.inner().as_slice()) {
            (Data::Shared(span), _) => View::Shared(span.slice(range)),
            (_, bytes) => View::Bytes(&bytes.unwrap_or_default()[range]),
        }
    }

    /// Where part of the payload is, for system calls alone.
    pub(crate) fn part(&self, range: Range<usize>) -> Part {
        let whole = match &self.inner().data {
            Data::Shared(span) => span.part(),
            _ => self.inner().as_slice().unwrap_or_default().into(),
        };
        assert!(range.start <= range.end && range.end <= whole.len, "a range within the payload");
        Part { at: whole.at.wrapping_add(range.start), len: range.len() }
    }

    /// Takes a payload back that was not sent: nobody will be told of its release.
    pub fn withdraw(mut self) {
        if let Some(inner) = self.0.as_mut().and_then(Arc::get_mut) {
            inner.hook = None;
        }
    }

    /// Some of it was copied on its way; [`OnRelease::released`] will say so.
    pub fn mark_copied(&self) {
        let copied = &self.inner().copied;
        // Read first: clones of one payload are marked by several threads.
        if !copied.load(Relaxed) {
            copied.store(true, Relaxed);
        }
    }

    /// How it may be sent without a copy.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.inner().terms
    }

    /// Pages of its share that were reserved for it, and are the caller's from now on.
    #[must_use]
    pub fn take_reserved(&self) -> u32 {
        let reserved = &self.inner().reserved;
        if reserved.load(Relaxed) == 0 { 0 } else { reserved.swap(0, Relaxed) }
    }

    /// Takes the payload back before it was sent: nobody will be told of its release. `None`, and the reference is gone, while
    /// there are others.
    #[must_use]
    pub fn reclaim(mut self) -> Option<Owned> {
        let mut arc = self.0.take()?;
        let Some(inner) = Arc::get_mut(&mut arc) else {
            drop(Self(Some(arc)));
            return None;
        };
        inner.hook = None;
        inner.forget_terms();
        *inner.copied.get_mut() = false;
        match std::mem::replace(&mut inner.data, Data::None) {
            Data::Bytes(bytes) => Some(Owned::Bytes(bytes)),
            // It is the other process's, which knows what became of it.
            Data::Shared(_) | Data::None => None,
            pages @ Data::Pages(_) => {
                inner.data = pages;
                Some(Owned::Pool(PoolBuffer::new(arc)))
            }
        }
    }
}

impl Clone for Lent {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(mut arc) = self.0.take() else { return };
        if let Some(inner) = Arc::get_mut(&mut arc) {
            inner.finish();
            if matches!(inner.data, Data::Pages(_))
                && let Some(pool) = inner.pool.upgrade()
            {
                pool.give(arc);
            }
        }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("len", &self.len()).finish_non_exhaustive()
    }
}

/// A payload to be sent from where it lies. Nothing can write it once it was handed over.
#[derive(Debug)]
#[non_exhaustive]
pub enum Owned {
    /// Shared, immutable bytes. [`Bytes::from_owner`] makes them of anything that is `AsRef<[u8]> + Send + 'static`, which is
    /// boxed first and asked for its bytes once.
    Bytes(Bytes),
    /// A buffer of a node's pool: page-aligned, and recycled without an allocation.
    Pool(PoolBuffer),
}

impl Owned {
    /// Of anything that holds bytes.
    pub fn new(owner: impl AsRef<[u8]> + Send + 'static) -> Self {
        Self::Bytes(Bytes::from_owner(owner))
    }

    /// Lends it; `hook` hears when it is free again.
    #[must_use]
    pub fn lend(self, hook: Option<(Arc<dyn OnRelease>, u32)>) -> Lent {
        self.lend_on(hook, Terms::default(), 0)
    }

    /// As [`Owned::lend`], on terms; `reserved` pages of the share have been reserved for it.
    #[must_use]
    pub fn lend_on(self, hook: Option<(Arc<dyn OnRelease>, u32)>, terms: Terms, reserved: u32) -> Lent {
        let mut arc = match self {
            Self::Bytes(bytes) => Arc::new(Inner::new(Data::Bytes(bytes), Weak::new())),
            Self::Pool(buffer) => buffer.into_inner(),
        };
        let inner = Arc::get_mut(&mut arc).expect("a payload has one owner");
        inner.hook = hook;
        inner.terms = terms;
        *inner.reserved.get_mut() = reserved;
        Lent::new(arc)
    }
}

impl Deref for Owned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Pool(buffer) => buffer,
        }
    }
}

impl From<Bytes> for Owned {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl From<Vec<u8>> for Owned {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

impl From<&'static [u8]> for Owned {
    fn from(bytes: &'static [u8]) -> Self {
        Self::Bytes(Bytes::from_static(bytes))
    }
}

impl From<&'static str> for Owned {
    fn from(text: &'static str) -> Self {
        Self::Bytes(text.into())
    }
}

impl From<PoolBuffer> for Owned {
    fn from(buffer: PoolBuffer) -> Self {
        Self::Pool(buffer)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Heard(Mutex<Vec<(u32, bool)>>);

    impl OnRelease for Heard {
        fn released(&self, cookie: u32, copied: bool) {
            self.0.lock().unwrap().push((cookie, copied));
        }
    }

    fn hook(heard: &Arc<Heard>, cookie: u32) -> Option<(Arc<dyn OnRelease>, u32)> {
        Some((Arc::clone(heard) as Arc<dyn OnRelease>, cookie))
    }

    #[test]
    fn release_is_told_once_when_the_last_reference_goes() {
        let heard = Arc::new(Heard::default());
        let lent = Owned::from(vec![1; 100]).lend(hook(&heard, 7));
        let other = lent.clone();
        drop(lent);
        assert!(heard.0.lock().unwrap().is_empty());
        other.mark_copied();
        drop(other);
        assert_eq!(*heard.0.lock().unwrap(), [(7, true)]);
    }

    #[test]
    fn references_that_go_at_the_same_moment_tell_once() {
        let (heard, pool) = (Arc::new(Heard::default()), Pool::new());
        for cookie in 0..2000 {
            let lent = Owned::from(pool.take(5000)).lend(hook(&heard, cookie));
            std::thread::scope(|scope| {
                for lent in [lent.clone(), lent.clone(), lent] {
                    scope.spawn(move || drop(lent));
                }
            });
        }
        let heard = heard.0.lock().unwrap();
        assert!(heard.iter().map(|h| h.0).eq(0..2000), "{}", heard.len());
    }

    #[test]
    fn the_release_of_a_payload_whose_drop_panics_is_told() {
        struct Panics;
        impl AsRef<[u8]> for Panics {
            fn as_ref(&self) -> &[u8] {
                b"x"
            }
        }
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("a payload that does not go quietly");
            }
        }
        let heard = Arc::new(Heard::default());
        let lent = Owned::new(Panics).lend(hook(&heard, 3));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(lent))).is_err());
        assert_eq!(*heard.0.lock().unwrap(), [(3, false)]);
    }

    #[test]
    fn a_payload_that_was_not_sent_comes_back_and_nobody_is_told() {
        let (heard, pool) = (Arc::new(Heard::default()), Pool::new());
        let mut buffer = pool.take(8192);
        buffer[0] = 9;
        let at = buffer.as_ptr();
        let lent = Owned::from(buffer).lend(hook(&heard, 1));
        let other = lent.clone();
        assert!(lent.reclaim().is_none(), "there is another reference");
        let Some(Owned::Pool(buffer)) = other.reclaim() else { panic!("it was a pool buffer") };
        assert_eq!((buffer.as_ptr(), buffer[0], buffer.len()), (at, 9, 8192));
        assert!(heard.0.lock().unwrap().is_empty());
    }
}
