//! The messages with which an attachment begins: bytes to values and back.
//!
//! Layout in `docs/local-protocol.md`. What a later version appends, an earlier one does not look at.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use thiserror::Error;

/// Oldest and newest version of the local protocol that this library speaks.
pub const VERSIONS: std::ops::RangeInclusive<u16> = 1..=1;

const MAGIC: [u8; 8] = *b"RDSLOCAL";
/// What each of the messages begins with.
pub(super) const PREFIX: usize = 16;
/// Bytes of a hello and of a welcome in version 1, and the most that any message has.
const HELLO: usize = 144;
const WELCOME: usize = 128;
pub(super) const LONGEST: usize = 4096;
/// Bytes of a program's name.
const NAME: usize = 64;

const KIND_HELLO: u16 = 1;
const KIND_WELCOME: u16 = 2;
const KIND_REFUSED: u16 = 3;

const FLAG_STREAM: u16 = 1;
const FLAG_ADDRESS: u16 = 2;
const FLAG_V6: u16 = 4;

/// An address of a node, with the scope of a link-local one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeAddress {
    /// The address.
    pub ip: IpAddr,
    /// The interface, for link-local addresses of IPv6; else 0.
    pub scope: u32,
}

impl From<IpAddr> for NodeAddress {
    fn from(ip: IpAddr) -> Self {
        Self { ip, scope: 0 }
    }
}

/// What a program wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The node; `None`: the daemon's only or first one.
    pub address: Option<NodeAddress>,
    /// No shared memory: everything goes over the socket.
    pub stream: bool,
    /// Capacity of the ring to the daemon in bytes; 0 for the daemon's default.
    pub submission_ring: u32,
    /// Capacity of the ring to the program in bytes; 0 for the daemon's default.
    pub completion_ring: u32,
    /// The arena in which the program builds messages, in bytes; 0 for the daemon's default.
    pub send_arena: u64,
    /// The arena for messages to the program, in bytes; 0 for the daemon's default.
    pub receive_arena: u64,
    /// What the program calls itself, of which the first 64 bytes count. For people to read.
    pub program: String,
}

/// What a program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Number of this attachment, of no other one of this daemon.
    pub session: u64,
    /// Number of the daemon: another one after it was started again.
    pub instance: u64,
    /// The node.
    pub address: NodeAddress,
    /// Everything goes over the socket; the rings and arenas below do not exist.
    pub stream: bool,
    /// Largest message in bytes.
    pub max_message: u32,
    /// Most sockets that the program may have.
    pub max_sockets: u32,
    /// Capacity of the ring to the daemon in bytes, a power of two from 4096 to 2^30.
    pub submission_ring: u32,
    /// Capacity of the ring to the program in bytes, likewise.
    pub completion_ring: u32,
    /// The arena in which the program builds messages, in bytes; a multiple of the page size.
    pub send_arena: u64,
    /// The arena for messages to the program, in bytes; a multiple of the page size.
    pub receive_arena: u64,
    /// Most that the send buffers of the program's sockets may have together, in bytes.
    pub max_send_buffer: u64,
    /// Most that their receive buffers may have together, in bytes.
    pub max_receive_buffer: u64,
}

/// Why a program may not attach, or not any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusalCode {
    /// No common version.
    Version,
    /// The daemon has no such node.
    NoSuchAddress,
    /// This user may not attach.
    NotAllowed,
    /// Too many are attached, or too many of this user.
    Quota,
    /// What came is no hello, or broke the rules later.
    Malformed,
    /// The daemon is shutting down.
    ShuttingDown,
    /// The daemon has too little memory or too few descriptors.
    Resources,
    /// The program was too slow.
    TimedOut,
    /// One that this version does not know.
    Other(u16),
}

impl RefusalCode {
    const KNOWN: [Self; 8] = [
        Self::Version,
        Self::NoSuchAddress,
        Self::NotAllowed,
        Self::Quota,
        Self::Malformed,
        Self::ShuttingDown,
        Self::Resources,
        Self::TimedOut,
    ];

    /// Its number on the wire.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            Self::Other(code) => code,
            known => Self::KNOWN.iter().position(|k| *k == known).map_or(0, |n| n as u16 + 1),
        }
    }

    /// The code of a number.
    #[must_use]
    pub fn of(code: u16) -> Self {
        let known = usize::from(code).checked_sub(1).and_then(|n| Self::KNOWN.get(n));
        known.copied().unwrap_or(Self::Other(code))
    }
}

/// The daemon does not serve a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why, for programs.
    pub code: RefusalCode,
    /// Why, for people, and what to do about it. Up to 4000 bytes.
    pub text: String,
}

impl Refusal {
    /// Of a code and a text.
    pub fn new(code: RefusalCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What is no message of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Garbled {
    /// The first bytes are others.
    #[error("the first 8 bytes are not those of the local RDS protocol")]
    Magic,
    /// Shorter than its version says, or longer than any.
    #[error("a message of {0} bytes, which is too short or too long")]
    Length(u32),
    /// Neither hello nor the answer to one.
    #[error("a message of kind {0}")]
    Kind(u16),
    /// A field with a value that it cannot have.
    #[error("{0} is out of range")]
    Field(&'static str),
}

/// The first 16 bytes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix {
    pub(super) len: usize,
    kind: u16,
    version: u16,
}

impl Prefix {
    pub(super) fn decode(bytes: &[u8; PREFIX]) -> Result<Self, Garbled> {
        if bytes[..8] != MAGIC {
            return Err(Garbled::Magic);
        }
        let len = Reader(&bytes[8..]).u32();
        let (kind, version) = (Reader(&bytes[12..]).u16(), Reader(&bytes[14..]).u16());
        let least = match kind {
            KIND_HELLO => HELLO,
            KIND_WELCOME => WELCOME,
            KIND_REFUSED => PREFIX + 4,
            other => return Err(Garbled::Kind(other)),
        };
        if !(least..=LONGEST).contains(&(len as usize)) {
            return Err(Garbled::Length(len));
        }
        Ok(Self { len: len as usize, kind, version })
    }

    fn encode(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len);
        bytes.extend(MAGIC);
        bytes.extend((self.len as u32).to_ne_bytes());
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend(self.version.to_ne_bytes());
        bytes
    }
}

/// Reads fields one after the other from bytes that are long enough.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.0[..N]);
        self.0 = &self.0[N..];
        out
    }

    fn u16(&mut self) -> u16 {
        u16::from_ne_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_ne_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes(self.take())
    }

    fn address(&mut self, v6: bool) -> NodeAddress {
        let scope = self.u32();
        let bytes: [u8; 16] = self.take();
        let v4 = [bytes[0], bytes[1], bytes[2], bytes[3]];
        let ip = if v6 { Ipv6Addr::from(bytes).into() } else { Ipv4Addr::from(v4).into() };
        NodeAddress { ip, scope: if v6 { scope } else { 0 } }
    }
}

fn put_address(bytes: &mut Vec<u8>, address: NodeAddress) {
    bytes.extend(address.scope.to_ne_bytes());
    match address.ip {
        IpAddr::V4(ip) => {
            bytes.extend(ip.octets());
            bytes.extend([0; 12]);
        }
        IpAddr::V6(ip) => bytes.extend(ip.octets()),
    }
}

fn v6_flag(address: NodeAddress) -> u16 {
    if address.ip.is_ipv6() { FLAG_V6 } else { 0 }
}

impl Hello {
    /// As it goes over the socket.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.encode_for(VERSIONS)
    }

    pub(super) fn encode_for(&self, versions: std::ops::RangeInclusive<u16>) -> Vec<u8> {
        let mut bytes = Prefix { len: HELLO, kind: KIND_HELLO, version: *versions.end() }.encode();
        let mut flags = if self.stream { FLAG_STREAM } else { 0 };
        if let Some(address) = self.address {
            flags |= FLAG_ADDRESS | v6_flag(address);
        }
        bytes.extend(versions.start().to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        put_address(&mut bytes, self.address.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED).into()));
        // What follows begins at a multiple of 8.
        bytes.extend([0; 8]);
        bytes.extend(self.submission_ring.to_ne_bytes());
        bytes.extend(self.completion_ring.to_ne_bytes());
        bytes.extend(self.send_arena.to_ne_bytes());
        bytes.extend(self.receive_arena.to_ne_bytes());
        let mut end = self.program.len().min(NAME);
        while !self.program.is_char_boundary(end) {
            end -= 1;
        }
        bytes.extend(&self.program.as_bytes()[..end]);
        bytes.resize(HELLO, 0);
        bytes
    }

    /// Of a whole message, as long as its prefix says.
    ///
    /// # Errors
    /// It is no hello, or there is no common version: what to answer.
    pub(super) fn decode(prefix: Prefix, bytes: &[u8]) -> Result<Self, Refusal> {
        let garbled = |what: Garbled| Refusal::new(RefusalCode::Malformed, what.to_string());
        if prefix.kind != KIND_HELLO {
            return Err(garbled(Garbled::Kind(prefix.kind)));
        }
        let mut fields = Reader(&bytes[PREFIX..]);
        let (oldest, newest) = (fields.u16(), prefix.version);
        if oldest > newest {
            return Err(garbled(Garbled::Field("the range of versions")));
        }
        let (ours_oldest, ours_newest) = (*VERSIONS.start(), *VERSIONS.end());
        if oldest > ours_newest || newest < ours_oldest {
            let side = if oldest > ours_newest { "daemon" } else { "program" };
            let text = format!(
                "the program speaks versions {oldest} to {newest} of the local protocol, this daemon {ours_oldest} to \
                 {ours_newest}: upgrade the {side}"
            );
            return Err(Refusal::new(RefusalCode::Version, text));
        }
        let flags = fields.u16();
        let address = fields.address(flags & FLAG_V6 != 0);
        fields.u64();
        let (submission_ring, completion_ring) = (fields.u32(), fields.u32());
        let (send_arena, receive_arena) = (fields.u64(), fields.u64());
        let name: [u8; NAME] = fields.take();
        let end = name.iter().position(|b| *b == 0).unwrap_or(NAME);
        let program = String::from_utf8_lossy(&name[..end]).chars().filter(|c| !c.is_control()).collect();
        let stream = flags & FLAG_STREAM != 0;
        let address = (flags & FLAG_ADDRESS != 0).then_some(address);
        Ok(Self { address, stream, submission_ring, completion_ring, send_arena, receive_arena, program })
    }
}

/// What a daemon answers.
pub(super) enum Answer {
    Welcome(Welcome),
    Refused(Refusal),
}

impl Answer {
    pub(super) fn decode(prefix: Prefix, bytes: &[u8]) -> Result<Self, Garbled> {
        match prefix.kind {
            KIND_WELCOME => {
                if !VERSIONS.contains(&prefix.version) {
                    return Err(Garbled::Field("the version that the daemon chose"));
                }
                Welcome::decode(&bytes[PREFIX..]).map(Self::Welcome)
            }
            KIND_REFUSED => {
                let code = RefusalCode::of(Reader(&bytes[PREFIX..]).u16());
                let text = String::from_utf8_lossy(&bytes[PREFIX + 4..]);
                let text = text.chars().filter(|c| !c.is_control()).collect();
                Ok(Self::Refused(Refusal { code, text }))
            }
            other => Err(Garbled::Kind(other)),
        }
    }
}

impl Welcome {
    /// As it goes over the socket.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Prefix { len: WELCOME, kind: KIND_WELCOME, version: *VERSIONS.end() }.encode();
        bytes.extend(self.session.to_ne_bytes());
        bytes.extend(self.instance.to_ne_bytes());
        let flags = v6_flag(self.address) | if self.stream { FLAG_STREAM } else { 0 };
        bytes.extend(flags.to_ne_bytes());
        bytes.extend([0; 2]);
        put_address(&mut bytes, self.address);
        for word in [self.max_message, self.max_sockets, self.submission_ring, self.completion_ring] {
            bytes.extend(word.to_ne_bytes());
        }
        for word in [self.send_arena, self.receive_arena, self.max_send_buffer, self.max_receive_buffer] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.resize(WELCOME, 0);
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, Garbled> {
        let mut fields = Reader(bytes);
        let (session, instance, flags) = (fields.u64(), fields.u64(), fields.u16());
        fields.u16();
        let address = fields.address(flags & FLAG_V6 != 0);
        let welcome = Self {
            session,
            instance,
            address,
            stream: flags & FLAG_STREAM != 0,
            max_message: fields.u32(),
            max_sockets: fields.u32(),
            submission_ring: fields.u32(),
            completion_ring: fields.u32(),
            send_arena: fields.u64(),
            receive_arena: fields.u64(),
            max_send_buffer: fields.u64(),
            max_receive_buffer: fields.u64(),
        };
        welcome.check()?;
        Ok(welcome)
    }

    /// Whether such memory can be.
    pub(super) fn check(&self) -> Result<(), Garbled> {
        if self.stream {
            return Ok(());
        }
        for ring in [self.submission_ring, self.completion_ring] {
            if !ring.is_power_of_two() || !super::ring::CAPACITIES.contains(&ring) {
                return Err(Garbled::Field("the capacity of a ring"));
            }
        }
        for arena in [self.send_arena, self.receive_arena] {
            let pages = arena.is_multiple_of(crate::sys::limits::page_size() as u64);
            if !pages || arena == 0 || arena > super::hello::MAX_ARENA {
                return Err(Garbled::Field("the size of an arena"));
            }
        }
        Ok(())
    }
}

impl Refusal {
    /// As it goes over the socket.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut end = self.text.len().min(4000);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        let len = PREFIX + 4 + end;
        let mut bytes = Prefix { len, kind: KIND_REFUSED, version: *VERSIONS.end() }.encode();
        bytes.extend(self.code.code().to_ne_bytes());
        bytes.extend(VERSIONS.start().to_ne_bytes());
        bytes.extend(&self.text.as_bytes()[..end]);
        bytes
    }
}
