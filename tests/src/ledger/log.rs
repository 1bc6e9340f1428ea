//! The log of one socket in one incarnation: an append-only file that outlives `kill -9`.
//!
//! What `write(2)` took before the kill is in the page cache and stays. Each socket has a file of its own, written by one thread,
//! so a write that the kill cut short can only leave a torn record at the end.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::message::{Id, Pair};

/// Bytes of a record.
pub const RECORD: usize = 32;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Event {
    /// Sender: about to hand it to the library. Written before the call.
    Intent = 1,
    /// Sender: the library took it.
    Accepted,
    /// Sender: delivered, in the peer node's hands.
    DeliveredApplication,
    /// Sender: delivered, as far as the peer's TCP says.
    DeliveredTransport,
    /// Sender: ended as unknown.
    Unknown,
    /// Sender: ended as cancelled.
    Cancelled,
    /// Receiver: the program got it, whole and right.
    Received,
    /// Receiver: the program got something that is not what was sent. The id is not to be trusted.
    Damaged,
    /// Receiver, once all its sockets are bound: the record's number is how many messages its node had dropped before, because
    /// their socket was not bound yet.
    Bound,
    /// The process ended by itself, this socket's queues being empty. Absent after a kill.
    End,
    /// Sender: a connection was lost, one or more. Stands twice for each time that this was noticed: what ended before the loss stands
    /// before the second, what ended after it behind the first.
    Broke,
}

impl Event {
    const ALL: [Self; 11] = [
        Self::Intent,
        Self::Accepted,
        Self::DeliveredApplication,
        Self::DeliveredTransport,
        Self::Unknown,
        Self::Cancelled,
        Self::Received,
        Self::Damaged,
        Self::Bound,
        Self::End,
        Self::Broke,
    ];

    /// Whether the sender learns by this how a message ended.
    #[must_use]
    pub fn is_outcome(self) -> bool {
        matches!(
            self,
            Self::DeliveredApplication | Self::DeliveredTransport | Self::Unknown | Self::Cancelled
        )
    }
}

/// One line of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// What happened.
    pub event: Event,
    /// To which message.
    pub id: Id,
    /// Its length in bytes.
    pub len: u32,
}

/// Which implementation of RDS a process uses; what is promised depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stack {
    /// A node of ours.
    #[default]
    Own,
    /// A node of ours in a daemon, of which the process is a client.
    Daemon,
    /// Linux up to 6.18: a lost connection may cost what its TCP had acknowledged.
    KernelTo6,
    /// Linux from 7.0 on.
    KernelFrom7,
}

impl Stack {
    /// Whether it is our implementation.
    #[must_use]
    pub const fn is_ours(self) -> bool {
        matches!(self, Self::Own | Self::Daemon)
    }
}

/// Whose log it is: the file's first line, as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// The socket.
    pub socket: SocketAddrV4,
    /// Which life of its process, counted from 1.
    pub incarnation: u32,
    /// The socket's receive buffer in bytes.
    pub receive_buffer: u64,
    /// Who provides the socket.
    #[serde(default)]
    pub stack: Stack,
}

/// An open log.
pub struct Log {
    file: File,
    owner: Owner,
    batch: Vec<u8>,
}

impl Log {
    /// Creates the log of `owner` in `dir`. It must not be there yet.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn create(dir: &Path, owner: Owner) -> io::Result<Self> {
        let path =
            dir.join(format!("{}-{}-{}.log", owner.socket.ip(), owner.socket.port(), owner.incarnation));
        let mut file = OpenOptions::new().append(true).create_new(true).open(path)?;
        let mut line = serde_json::to_vec(&owner)?;
        line.push(b'\n');
        file.write_all(&line)?;
        Ok(Self { file, owner, batch: Vec::new() })
    }

    /// Adds a record to the batch.
    pub fn add(&mut self, event: Event, id: &Id, len: usize) {
        let remote = match event {
            Event::Received | Event::Damaged => id.pair.source,
            _ => id.pair.destination,
        };
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.batch.push(event as u8);
        self.batch.push(0);
        self.batch.extend_from_slice(&remote.port().to_be_bytes());
        self.batch.extend_from_slice(&remote.ip().octets());
        self.batch.extend_from_slice(&id.incarnation.to_be_bytes());
        self.batch.extend_from_slice(&len.to_be_bytes());
        self.batch.extend_from_slice(&id.number.to_be_bytes());
        self.batch.extend_from_slice(&[0; 8]);
    }

    /// Writes the batch. From then on it outlives the process.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&mut self) -> io::Result<()> {
        if !self.batch.is_empty() {
            self.file.write_all(&self.batch)?;
            self.batch.clear();
        }
        Ok(())
    }

    /// Writes the batch and that all sockets are bound, after the node had dropped `dropped` messages for want of one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn bound(&mut self, dropped: u64) -> io::Result<()> {
        self.about_process(Event::Bound, dropped)
    }

    /// Adds to the batch that a connection was lost.
    pub fn broke(&mut self) {
        let pair = Pair { source: self.owner.socket, destination: self.owner.socket };
        self.add(Event::Broke, &Id { pair, incarnation: self.owner.incarnation, number: 0 }, 0);
    }

    /// Writes the batch and the end: the process goes by itself and has taken everything.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn end(mut self) -> io::Result<()> {
        self.about_process(Event::End, 0)
    }

    fn about_process(&mut self, event: Event, number: u64) -> io::Result<()> {
        let pair = Pair { source: self.owner.socket, destination: self.owner.socket };
        self.add(event, &Id { pair, incarnation: self.owner.incarnation, number }, 0);
        self.write()
    }
}

/// A log as it was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Whose.
    pub owner: Owner,
    /// In the order in which they were written.
    pub records: Vec<Record>,
}

impl Found {
    /// Whether the process ended by itself.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.records.last().is_some_and(|r| r.event == Event::End)
    }
}

/// Reads every log in `dir`.
///
/// # Errors
/// A file cannot be read, or is no log. A torn record at the end of a file is what a kill leaves, and no error.
pub fn read_all(dir: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "log") {
            found
                .push(read(&path).map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", path.display())))?);
        }
    }
    found.sort_by_key(|f| f.owner);
    Ok(found)
}

fn read(path: &PathBuf) -> io::Result<Found> {
    let bytes = std::fs::read(path)?;
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let line = bytes.iter().position(|b| *b == b'\n').ok_or_else(|| bad("no first line"))?;
    let owner: Owner = serde_json::from_slice(&bytes[..line])?;
    let (records, _torn) = bytes[line + 1..].as_chunks::<RECORD>();
    let records = records.iter().map(|r| decode(r, &owner).ok_or_else(|| bad("a record of an unknown kind")));
    Ok(Found { owner, records: records.collect::<io::Result<_>>()? })
}

fn decode(b: &[u8; RECORD], owner: &Owner) -> Option<Record> {
    let event = *Event::ALL.get(usize::from(b[0]).checked_sub(1)?)?;
    let remote = SocketAddrV4::new(Ipv4Addr::new(b[4], b[5], b[6], b[7]), u16::from_be_bytes([b[2], b[3]]));
    let pair = match event {
        Event::Received | Event::Damaged => Pair { source: remote, destination: owner.socket },
        _ => Pair { source: owner.socket, destination: remote },
    };
    let u32_at = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
    let number = u64::from(u32_at(16)) << 32 | u64::from(u32_at(20));
    Some(Record { event, id: Id { pair, incarnation: u32_at(8), number }, len: u32_at(12) })
}
