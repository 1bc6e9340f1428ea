//! Sending: what a program hands in.

use bytes::Bytes;

use super::SendError;

/// The payload of a message to be sent.
#[derive(Debug)]
pub enum Payload<'a> {
    /// Copied before the call returns.
    Copy(&'a [u8]),
    /// Copied, piece after piece, before the call returns.
    Gather(&'a [std::io::IoSlice<'a>]),
    /// Kept until the message has ended; sent from where it lies.
    Owned(Bytes),
}

impl Payload<'_> {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Copy(b) => b.len(),
            Self::Gather(v) => v.iter().map(|s| s.len()).sum(),
            Self::Owned(b) => b.len(),
        }
    }

    /// Whether it is empty; an empty message is a message.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A message that was not queued.
#[derive(Debug)]
pub struct Rejected<'a> {
    /// Why.
    pub error: SendError,
    /// The payload, untouched.
    pub payload: Payload<'a>,
}
