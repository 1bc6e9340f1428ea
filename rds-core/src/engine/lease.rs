//! A received message in the memory into which it was received.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use bytes::BytesMut;

use super::inlet::Frees;
use super::mailbox::Mailbox;
use crate::buffer::Assembled;

/// Where a received message's bytes are.
pub(crate) enum Bytes {
    /// Cut from memory that several small messages share.
    Small(BytesMut),
    /// In memory of its own.
    Large(Assembled),
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Small(bytes) => bytes,
            Self::Large(message) => message,
        }
    }
}

/// A received message. Its bytes do not change while it is held; they lie in a buffer of the node's pool, or in the very pages in
/// which TCP received them ([`Lease::is_mapped`]). Those take them back when the lease is dropped.
///
/// A lease of more than 1 KiB counts as received and not taken while it is held: against the socket's receive buffer, past which the
/// port is congested, and the node's receive budget, past which peers may send no more. It does not keep the node open.
pub struct Lease {
    bytes: Bytes,
    account: Option<Account>,
}

/// Whom to tell when the memory is free.
struct Account {
    mailbox: Arc<Mailbox>,
    frees: Weak<dyn Frees>,
}

impl Lease {
    /// Of a message whose bytes are the program's own.
    pub(super) const fn taken(bytes: Bytes) -> Self {
        Self { bytes, account: None }
    }

    /// Of a message that counts as received until it is dropped.
    pub(super) fn counted(bytes: Bytes, mailbox: &Arc<Mailbox>, frees: Weak<dyn Frees>) -> Self {
        let account = Account { mailbox: Arc::clone(mailbox), frees };
        Self { bytes, account: Some(account) }
    }

    /// Whether the bytes were not copied since they came from the network: they lie in pages that the kernel has mapped. They begin at a
    /// page then.
    #[must_use]
    pub fn is_mapped(&self) -> bool {
        matches!(&self.bytes, Bytes::Large(message) if message.is_mapped())
    }

    /// The same bytes as shared, immutable ones; the lease goes with the last reference.
    #[must_use]
    pub fn into_bytes(self) -> bytes::Bytes {
        bytes::Bytes::from_owner(self)
    }
}

impl Deref for Lease {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl PartialEq for Lease {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Lease {}

impl PartialEq<[u8]> for Lease {
    fn eq(&self, other: &[u8]) -> bool {
        **self == *other
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(Account { mailbox, frees }) = self.account.take() else { return };
        let len = self.bytes.len();
        // The memory first: what waits for room may want it.
        self.bytes = Bytes::Small(BytesMut::new());
        let report = mailbox.freed(&mut mailbox.front(), len);
        if let Some(frees) = frees.upgrade() {
            frees.freed(&mailbox, report);
        }
    }
}
