//! What passes through the rings: records of a header of 32 bytes, maybe an address of 16, and maybe a body.
//!
//! Layout in `docs/local-protocol.md`. Both sides are on one host, so numbers are in its byte order.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use super::fault::Violation;
use crate::zerocopy::Mode;

mod completion;
mod submission;

pub use completion::{Completion, Status};
pub use submission::{Setting, Sharing, Submission};

/// Bytes of a header.
pub const HEADER: usize = 32;
/// Bytes of a header and the address that follows it.
pub const FULL: usize = HEADER + 16;
/// The same in words of 8 bytes.
pub const WORDS: usize = FULL / 8;

/// Kind of a record that only fills the rest of the ring.
pub const SKIP: u8 = 255;

/// A header as it was copied out, with the 16 bytes that follow it (of something else, if the record has no address).
///
/// In words, which a processor moves without a detour through memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raw([u64; WORDS]);

/// Both halves of a word, as they lie in memory.
#[inline]
fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_ne_bytes();
    (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]))
}

/// A word of which the halves lie in memory so.
#[inline]
fn word(first: u32, second: u32) -> u64 {
    let ([a, b, c, d], [e, f, g, h]) = (first.to_ne_bytes(), second.to_ne_bytes());
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

impl Raw {
    /// Of words that are the reader's own.
    #[must_use]
    #[inline]
    pub fn new(words: [u64; WORDS]) -> Self {
        Self(words)
    }

    /// Of bytes that are the reader's own.
    #[must_use]
    pub fn of_bytes(bytes: &[u8; FULL]) -> Self {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Self(words)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; FULL] {
        bytes_of(&self.0)
    }

    /// Bytes of the record, without what fills it up.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u32 {
        halves(self.0[0]).0
    }

    /// Never, in a record that was checked: it has a header at least.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its kind.
    #[must_use]
    #[inline]
    pub fn kind(&self) -> u8 {
        halves(self.0[0]).1.to_ne_bytes()[0]
    }

    /// Bytes of the header, and of the address if this kind has one.
    #[must_use]
    #[inline]
    pub fn head_len(&self) -> u32 {
        let addressed = match self.kind() {
            kind::SEND | kind::WATCH | kind::SET_PEER_MODES => true,
            kind::CANCEL => self.flags() & YES == 0,
            kind::MESSAGE | kind::CONGESTED | kind::UNCONGESTED => true,
            _ => false,
        };
        if addressed { FULL as u32 } else { HEADER as u32 }
    }

    /// Bytes that follow them.
    #[must_use]
    #[inline]
    pub fn body_len(&self) -> u32 {
        self.len().saturating_sub(self.head_len())
    }

    #[inline]
    fn flags(&self) -> u8 {
        halves(self.0[0]).1.to_ne_bytes()[1]
    }

    #[inline]
    fn port(&self) -> u16 {
        let [_, _, a, b] = halves(self.0[0]).1.to_ne_bytes();
        u16::from_ne_bytes([a, b])
    }

    #[inline]
    fn socket(&self) -> u32 {
        halves(self.0[1]).0
    }

    #[inline]
    fn id(&self) -> u32 {
        halves(self.0[1]).1
    }

    #[inline]
    fn a(&self) -> u64 {
        self.0[2]
    }

    #[inline]
    fn b(&self) -> u64 {
        self.0[3]
    }

    /// The address after the header.
    #[inline]
    fn ip(&self) -> IpAddr {
        if self.flags() & V6 == 0 {
            let [a, b, c, d, ..] = self.0[4].to_ne_bytes();
            return Ipv4Addr::new(a, b, c, d).into();
        }
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.0[4].to_ne_bytes());
        bytes[8..].copy_from_slice(&self.0[5].to_ne_bytes());
        Ipv6Addr::from(bytes).into()
    }

    /// With its port; the upper half of `b` is the scope of one of IPv6.
    #[inline]
    fn address(&self) -> SocketAddr {
        match self.ip() {
            IpAddr::V4(ip) => SocketAddr::from((ip, self.port())),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, self.port(), 0, (self.b() >> 32) as u32).into(),
        }
    }

    /// Where the payload is, of a record that has an address.
    #[inline]
    fn payload(&self) -> Result<Where, Violation> {
        if self.flags() & ARENA != 0 {
            self.exactly(FULL)?;
            return Ok(Where::Arena { offset: self.a(), len: self.b() as u32 });
        }
        Ok(Where::Inline(self.at_least(FULL)?))
    }

    /// The address of a record that has nothing else.
    fn addressed(&self) -> Result<SocketAddr, Violation> {
        self.exactly(FULL)?;
        self.only(V6)?;
        Ok(self.address())
    }

    fn exactly(&self, len: usize) -> Result<(), Violation> {
        if self.len() as usize == len { Ok(()) } else { Err(self.size()) }
    }

    /// Bytes after the first `len`.
    fn at_least(&self, len: usize) -> Result<u32, Violation> {
        self.len().checked_sub(len as u32).ok_or(self.size())
    }

    fn size(&self) -> Violation {
        Violation::Size { kind: self.kind(), len: self.len() }
    }

    fn only(&self, flags: u8) -> Result<(), Violation> {
        if self.flags() & !flags == 0 { Ok(()) } else { Err(self.field("flags", self.flags())) }
    }

    fn field(&self, field: &'static str, value: impl Into<u64>) -> Violation {
        Violation::Field { kind: self.kind(), field, value: value.into() }
    }

    fn mode(&self, code: u64) -> Result<Option<Mode>, Violation> {
        Ok(match code {
            0 => None,
            1 => Some(Mode::Off),
            2 => Some(Mode::On),
            3 => Some(Mode::Auto),
            _ => return Err(self.field("mode", code)),
        })
    }
}

#[inline]
fn mode_code(mode: Option<Mode>) -> u8 {
    match mode {
        None => 0,
        Some(Mode::Off) => 1,
        Some(Mode::On) => 2,
        Some(Mode::Auto) => 3,
    }
}

fn bytes_of(words: &[u64; WORDS]) -> [u8; FULL] {
    let mut bytes = [0; FULL];
    for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(words) {
        *bytes = word.to_ne_bytes();
    }
    bytes
}

/// The fields of a record to be written.
#[derive(Clone, Copy)]
struct Draft {
    kind: u8,
    flags: u8,
    port: u16,
    socket: u32,
    id: u32,
    a: u64,
    b: u64,
    address: Option<[u64; 2]>,
}

impl Draft {
    #[inline]
    fn new(kind: u8, socket: u32, id: u32) -> Self {
        Self { kind, flags: 0, port: 0, socket, id, a: 0, b: 0, address: None }
    }

    #[inline]
    fn flag(mut self, flag: u8, on: bool) -> Self {
        if on {
            self.flags |= flag;
        }
        self
    }

    #[inline]
    fn port(self, port: u16) -> Self {
        Self { port, ..self }
    }

    #[inline]
    fn a(self, a: u64) -> Self {
        Self { a, ..self }
    }

    #[inline]
    fn b(self, b: u64) -> Self {
        Self { b, ..self }
    }

    #[inline]
    fn ip(self, ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self { address: Some([word(u32::from_ne_bytes(ip.octets()), 0), 0]), ..self },
            IpAddr::V6(ip) => {
                let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = ip.octets();
                let words = [[a, b, c, d, e, f, g, h], [i, j, k, l, m, n, o, p]].map(u64::from_ne_bytes);
                Self { address: Some(words), ..self }.flag(V6, true)
            }
        }
    }

    #[inline]
    fn address(self, address: SocketAddr) -> Self {
        let with = self.port(address.port()).ip(address.ip());
        match address {
            SocketAddr::V6(address) => with.b(u64::from(address.scope_id()) << 32),
            SocketAddr::V4(_) => with,
        }
    }

    /// With a body of `len` bytes.
    #[inline]
    fn body(self, len: u32) -> Encoded {
        let head = if self.address.is_some() { WORDS } else { HEADER / 8 };
        // What does not fit into 32 bits fits into no ring either.
        let whole = len.saturating_add(head as u32 * 8);
        let [low, high] = self.port.to_ne_bytes();
        let second = u32::from_ne_bytes([self.kind, self.flags, low, high]);
        let [c, d] = self.address.unwrap_or_default();
        let words = [word(whole, second), word(self.socket, self.id), self.a, self.b, c, d];
        Encoded { words, head: head as u8, body: len }
    }

    #[inline]
    fn payload(self, payload: Where) -> Encoded {
        match payload {
            Where::Inline(len) => self.body(len),
            Where::Arena { offset, len } => {
                self.flag(ARENA, true).a(offset).b(self.b | u64::from(len)).body(0)
            }
        }
    }
}

/// The beginning of a record to be written, and how many bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoded {
    words: [u64; WORDS],
    head: u8,
    body: u32,
}

impl Encoded {
    /// A record of `len` bytes that says nothing.
    pub(super) fn skip(len: u32) -> Self {
        Draft::new(SKIP, 0, 0).body(len - HEADER as u32)
    }

    /// The header, with the address if there is one.
    #[must_use]
    #[inline]
    pub fn words(&self) -> &[u64] {
        &self.words[..usize::from(self.head)]
    }

    /// The same in bytes, filled up with zeros; and how many of them count.
    #[must_use]
    pub fn bytes(&self) -> ([u8; FULL], usize) {
        (bytes_of(&self.words), usize::from(self.head) * 8)
    }

    /// Bytes of the whole record, without what fills it up.
    #[must_use]
    #[inline]
    pub fn len(&self) -> u32 {
        halves(self.words[0]).0
    }

    /// Never: it has a header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Bytes that follow the header and the address.
    #[must_use]
    #[inline]
    pub fn body_len(&self) -> u32 {
        self.body
    }
}

/// What can be written as a record.
pub trait Encode {
    /// Its beginning.
    fn encode(&self) -> Encoded;
}

/// Where a payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Where {
    /// In the record, so many bytes.
    Inline(u32),
    /// In the arena. The stream form has none.
    Arena {
        /// Bytes from the arena's beginning.
        offset: u64,
        /// Its length in bytes.
        len: u32,
    },
}

impl Where {
    /// Bytes of the payload.
    #[must_use]
    pub fn len(self) -> u32 {
        match self {
            Self::Inline(len) | Self::Arena { len, .. } => len,
        }
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// Flags of records that have an address or a payload.
const V6: u8 = 1;
const ARENA: u8 = 2;
/// SEND: a DONE is wanted, rather than a CREDIT. The mode takes the two bits above.
const WANTS_END: u8 = 4;
const MODE_SHIFT: u8 = 3;
/// CLOSE, CANCEL, SNAPSHOT, RELEASED: what their field says.
const YES: u8 = 2;

mod kind {
    pub(super) const SEND: u8 = 1;
    pub(super) const BIND: u8 = 2;
    pub(super) const CLOSE: u8 = 3;
    pub(super) const SET: u8 = 4;
    pub(super) const CANCEL: u8 = 5;
    pub(super) const WATCH: u8 = 6;
    pub(super) const CONSUMED: u8 = 7;
    pub(super) const FREE: u8 = 8;
    pub(super) const SNAPSHOT: u8 = 9;
    pub(super) const SET_PEER_MODES: u8 = 10;

    pub(super) const MESSAGE: u8 = 65;
    pub(super) const DONE: u8 = 66;
    pub(super) const RELEASED: u8 = 67;
    pub(super) const CREDIT: u8 = 68;
    pub(super) const CONGESTED: u8 = 69;
    pub(super) const UNCONGESTED: u8 = 70;
    pub(super) const REPLY: u8 = 71;
    pub(super) const GOODBYE: u8 = 72;
}
