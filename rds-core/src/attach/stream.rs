//! The records over the Unix socket alone, for programs that cannot share memory with the daemon.
//!
//! The same records, one after the other, filled up to multiples of 16 bytes; payloads are in them. Buffers are bounded by the longest record.

use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::fault::{Fault, Violation};
use super::record::{Encoded, FULL, HEADER, Raw};
use super::ring::ALIGN;

/// What a buffer has when little passes.
const SMALL: usize = 64 << 10;

/// The longest record in bytes, for messages of up to `max_message` bytes.
fn longest(max_message: u32) -> u32 {
    // Replies have text, also where messages are tiny.
    max_message.max(SMALL as u32).saturating_add(FULL as u32).min(u32::MAX - 2 * ALIGN as u32)
}

/// A record's length with what fills it up.
fn padded(len: u32) -> usize {
    len as usize + fill(len)
}

/// Bytes that fill it up.
fn fill(len: u32) -> usize {
    (ALIGN as usize - len as usize % ALIGN as usize) % ALIGN as usize
}

/// The writing end.
#[derive(Debug)]
pub(super) struct StreamProducer {
    socket: Arc<UnixStream>,
    /// What the socket has not taken yet.
    out: BytesMut,
    max_record: u32,
    fault: Option<Fault>,
}

impl StreamProducer {
    pub(super) fn new(socket: Arc<UnixStream>, max_message: u32) -> Self {
        Self { socket, out: BytesMut::new(), max_record: longest(max_message), fault: None }
    }

    pub(super) fn max_record(&self) -> u32 {
        self.max_record
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Whether it has room: for as much as a longest record, besides what is there.
    pub(super) fn has_room(&self, len: u32) -> bool {
        let limit = 2 * padded(self.max_record);
        self.fault.is_none() && len <= self.max_record && self.out.len() + padded(len) <= limit
    }

    pub(super) fn reserve(&mut self, record: &Encoded) -> Option<StreamSlot<'_>> {
        if !self.has_room(record.len()) {
            return None;
        }
        let begin = self.out.len();
        self.out.reserve(padded(record.len()));
        let (head, len) = record.bytes();
        self.out.extend_from_slice(&head[..len]);
        let end = begin + record.len() as usize;
        Some(StreamSlot { out: &mut self.out, begin, end, committed: false })
    }

    pub(super) fn has_pending(&self) -> bool {
        !self.out.is_empty() && self.fault.is_none()
    }

    /// Writes what the socket takes.
    pub(super) fn flush(&mut self) -> Result<(), Fault> {
        while self.has_pending() {
            match send(&self.socket, &self.out, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => self.out.advance(n),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(e) => self.fault = Some(e.into()),
            }
        }
        if self.out.is_empty() && self.out.capacity() > SMALL {
            self.out = BytesMut::new();
        }
        self.fault.map_or(Ok(()), Err)
    }
}

/// Room for a record in what goes out.
#[derive(Debug)]
pub(super) struct StreamSlot<'a> {
    pub(super) out: &'a mut BytesMut,
    begin: usize,
    end: usize,
    committed: bool,
}

impl StreamSlot<'_> {
    /// Bytes of the body that are still to come.
    pub(super) fn left(&self) -> usize {
        self.end - self.out.len()
    }

    pub(super) fn commit(mut self) {
        assert!(self.left() == 0, "a whole record");
        let fill = fill((self.end - self.begin) as u32);
        self.out.extend_from_slice(&[0; ALIGN as usize][..fill]);
        self.committed = true;
    }
}

impl Drop for StreamSlot<'_> {
    fn drop(&mut self) {
        if !self.committed {
            self.out.truncate(self.begin);
        }
    }
}

/// The reading end.
#[derive(Debug)]
pub(super) struct StreamConsumer {
    socket: Arc<UnixStream>,
    buffer: Vec<u8>,
    /// What of it was read from the socket, and is not yet taken.
    unread: Range<usize>,
    max_record: u32,
}

impl StreamConsumer {
    pub(super) fn new(socket: Arc<UnixStream>, max_message: u32) -> Self {
        Self { socket, buffer: Vec::new(), unread: 0..0, max_record: longest(max_message) }
    }

    /// The next record, and where in [`StreamConsumer::bytes`] it is.
    pub(super) fn next(&mut self) -> Result<Option<(Raw, Range<usize>)>, Fault> {
        loop {
            let (needed, record) = self.first()?;
            if let Some(raw) = record {
                let begin = self.unread.start;
                self.unread.start += needed;
                return Ok(Some((raw, begin..begin + raw.len() as usize)));
            }
            if !self.read(needed)? {
                return Ok(None);
            }
        }
    }

    /// True: nothing whole is there, nor at the socket.
    pub(super) fn arm(&mut self) -> Result<bool, Fault> {
        loop {
            let (needed, record) = self.first()?;
            if record.is_some() {
                return Ok(false);
            }
            if !self.read(needed)? {
                return Ok(true);
            }
        }
    }

    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// The record at the front, if it is whole; and how many bytes it takes, as far as is known.
    fn first(&self) -> Result<(usize, Option<Raw>), Violation> {
        let unread = &self.buffer[self.unread.clone()];
        if unread.len() < HEADER {
            return Ok((HEADER, None));
        }
        let mut head = [0; FULL];
        let n = unread.len().min(FULL);
        head[..n].copy_from_slice(&unread[..n]);
        let raw = Raw::of_bytes(&head);
        if (raw.len() as usize) < HEADER || raw.len() > self.max_record {
            return Err(Violation::Length { len: raw.len(), available: self.max_record.into() });
        }
        let needed = padded(raw.len());
        Ok((needed, (unread.len() >= needed).then_some(raw)))
    }

    /// Reads what the socket has, with room for `needed` bytes at the front. False: it has nothing.
    fn read(&mut self, needed: usize) -> Result<bool, Fault> {
        if self.unread.is_empty() {
            self.unread = 0..0;
        }
        if self.unread.start + needed > self.buffer.len() || self.unread.end == self.buffer.len() {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        let size = needed.max(SMALL);
        if self.buffer.len() < needed {
            self.buffer.resize(size, 0);
        } else if self.buffer.len() > size && self.unread.end <= size {
            self.buffer.truncate(size);
            self.buffer.shrink_to_fit();
        }
        loop {
            match recv(&self.socket, &mut self.buffer[self.unread.end..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(Fault::Closed),
                Ok((_, n)) => {
                    self.unread.end += n;
                    return Ok(true);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
    }
}
