//! Cuts one TCP byte stream into messages (Linux `net/rds/tcp_recv.c`, `rds_tcp_data_recv`).
//!
//! Linux believes every length. Ours does not: a length that cannot be right means that the framing is
//! lost, and nothing behind it can be trusted.

use thiserror::Error;

use super::{HEADER_LEN, Header, checksum};

/// Why a stream cannot be read any further. The connection must be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FramingError {
    /// The announced payload is larger than this connection's limit.
    #[error(
        "header at stream offset {offset} announces {len} payload bytes, the limit is {limit}: framing lost"
    )]
    Oversized {
        /// Announced length, in bytes.
        len: u32,
        /// The limit, in bytes.
        limit: u32,
        /// Where the header begins, in bytes from the start of the stream.
        offset: u64,
    },
    /// The header has a checksum, and it is wrong.
    #[error("header at stream offset {offset} has a wrong checksum: framing lost")]
    Checksum {
        /// Where the header begins, in bytes from the start of the stream.
        offset: u64,
    },
}

/// What [`Decoder::next`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// The input is used up; the stream stands in the middle of a message or between two.
    NeedMore,
    /// A message that lay whole in the input.
    Message {
        /// Its header.
        header: Header,
        /// Its payload.
        payload: &'a [u8],
    },
    /// A header whose payload is not whole in the input; its bytes follow as [`Item::Chunk`].
    Begin {
        /// The header.
        header: Header,
    },
    /// More payload of the message begun last.
    Chunk {
        /// The bytes, never empty.
        data: &'a [u8],
        /// Whether the message is complete with them.
        last: bool,
    },
}

/// The framing state of one connection and direction.
#[derive(Clone, Debug)]
pub struct Decoder {
    partial: [u8; HEADER_LEN],
    have: usize,
    missing: u32,
    offset: u64,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { partial: [0; HEADER_LEN], have: 0, missing: 0, offset: 0 }
    }
}

impl Decoder {
    /// A decoder at the start of a stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next item from the front of `input`, and leaves the rest in it.
    ///
    /// `limit` is the largest payload that may be right, in bytes.
    ///
    /// Never blocks or allocates, and copies no byte but those of a header that is not whole in `input`.
    /// [`Item::NeedMore`] leaves `input` empty; every other item may have more behind it.
    ///
    /// # Errors
    /// [`FramingError`]: the stream is lost. The header at fault is used up, nothing behind it is, and
    /// every further call fails in the same way.
    #[inline]
    pub fn next<'a>(&mut self, input: &mut &'a [u8], limit: u32) -> Result<Item<'a>, FramingError> {
        if self.missing > 0 {
            if input.is_empty() {
                return Ok(Item::NeedMore);
            }
            let n = input.len().min(self.missing as usize);
            let data = take(input, n);
            self.advance_payload(n);
            return Ok(Item::Chunk { data, last: self.missing == 0 });
        }
        let header = if self.have == 0 {
            match input.split_first_chunk::<HEADER_LEN>() {
                Some((bytes, rest)) => {
                    *input = rest;
                    match self.check(bytes, limit) {
                        Ok(header) => header,
                        Err(e) => {
                            self.keep(&mut &bytes[..]);
                            return Err(e);
                        }
                    }
                }
                None => return Ok(self.keep(input)),
            }
        } else {
            let n = input.len().min(HEADER_LEN - self.have);
            self.partial[self.have..self.have + n].copy_from_slice(take(input, n));
            self.have += n;
            if self.have < HEADER_LEN {
                return Ok(Item::NeedMore);
            }
            // On an error the header stays, so that the next call meets it again.
            let header = self.check(&self.partial, limit)?;
            self.have = 0;
            header
        };
        self.offset += HEADER_LEN as u64;
        let len = header.len as usize;
        if input.len() >= len {
            self.offset += len as u64;
            return Ok(Item::Message { header, payload: take(input, len) });
        }
        self.missing = header.len;
        Ok(Item::Begin { header })
    }

    /// Payload bytes of the current message that have not come yet; 0 between messages and in a header.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.missing as usize
    }

    /// Bytes of the next header that have not come: all of them between messages, none within one.
    #[must_use]
    pub fn header_missing(&self) -> usize {
        if self.missing > 0 { 0 } else { HEADER_LEN - self.have }
    }

    /// Whether the stream stands between two messages.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        self.have == 0 && self.missing == 0
    }

    /// Bytes of the stream that were consumed so far.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset + self.have as u64
    }

    /// Says that `n` payload bytes of the current message were read elsewhere, past the decoder.
    ///
    /// When they are the last, no further item tells of that message's end.
    ///
    /// # Panics
    /// If `n` is more than [`Decoder::missing`].
    pub fn advance_payload(&mut self, n: usize) {
        let n32 = u32::try_from(n).expect("no more than is missing");
        self.missing = self.missing.checked_sub(n32).expect("no more than is missing");
        self.offset += n as u64;
    }

    #[inline]
    fn check(&self, bytes: &[u8; HEADER_LEN], limit: u32) -> Result<Header, FramingError> {
        let header = Header::decode(bytes);
        if !checksum::verify(bytes) {
            return Err(FramingError::Checksum { offset: self.offset });
        }
        if header.len > limit {
            return Err(FramingError::Oversized { len: header.len, limit, offset: self.offset });
        }
        Ok(header)
    }

    fn keep(&mut self, input: &mut &[u8]) -> Item<'static> {
        let n = input.len();
        self.partial[..n].copy_from_slice(take(input, n));
        self.have = n;
        Item::NeedMore
    }
}

#[inline]
fn take<'a>(input: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (head, tail) = input.split_at(n);
    *input = tail;
    head
}

#[cfg(test)]
mod tests;
