//! A client made by hand, which can do everything wrong.
#![allow(dead_code)]

use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use rds_core::attach::{Access, Encode, Hello, SharedMemory, Submission};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::LONG;

/// Bytes of each ring, of each arena, and of the page before the ring.
pub(crate) const RING: usize = 64 << 10;
pub(crate) const ARENA: usize = 1 << 20;
pub(crate) const PAGE: usize = 4096;

/// Words of the client's memory.
pub(crate) const TAIL: usize = 0;
pub(crate) const HEAD: usize = 64;

pub(crate) struct Raw {
    pub(crate) socket: UnixStream,
    /// What the client writes, and what the daemon writes.
    pub(crate) ours: Arc<SharedMemory>,
    pub(crate) theirs: Arc<SharedMemory>,
    pub(crate) bell: OwnedFd,
    pub(crate) hears: OwnedFd,
    /// Ends of what was written, and read.
    pub(crate) tail: u64,
    head: u64,
}

/// A record of the daemon's: its kind, its fields `socket`, `id`, `a` and `b`, and what follows the header.
#[derive(Clone, Debug)]
pub(crate) struct Said {
    pub(crate) kind: u8,
    pub(crate) socket: u32,
    pub(crate) id: u32,
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) rest: Vec<u8>,
}

pub(crate) const MESSAGE: u8 = 65;
pub(crate) const REPLY: u8 = 71;
pub(crate) const GOODBYE: u8 = 72;

pub(crate) fn connect(path: &Path) -> UnixStream {
    let socket = UnixStream::connect(path).expect("the daemon listens");
    socket.set_read_timeout(Some(LONG)).expect("a timeout");
    socket
}

impl Raw {
    pub(crate) fn attach(path: &Path) -> Self {
        let mut socket = connect(path);
        let hello = Hello {
            submission_ring: RING as u32,
            completion_ring: RING as u32,
            send_arena: ARENA as u64,
            receive_arena: ARENA as u64,
            program: "hostile".to_owned(),
            ..Hello::default()
        };
        socket.write_all(&hello.encode()).expect("room");
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let parts = &mut [IoSliceMut::new(&mut bytes)];
        recvmsg(&socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC).expect("a welcome");
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(came) = message {
                fds.extend(came);
            }
        }
        let [ours, theirs, bell, hears]: [OwnedFd; 4] = fds.try_into().expect("four descriptors");
        let map = |fd: &OwnedFd, access| {
            SharedMemory::map(fd.as_fd(), PAGE + RING + ARENA, access).expect("memory as asked for")
        };
        let (ours, theirs) = (map(&ours, Access::ReadWrite), map(&theirs, Access::ReadOnly));
        Self { socket, ours, theirs, bell, hears, tail: 0, head: 0 }
    }

    /// Writes bytes into the ring, filled up to a multiple of 16; without showing them.
    pub(crate) fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(16) {
            let mut padded = [0; 16];
            padded[..chunk.len()].copy_from_slice(chunk);
            self.ours.copy_in(PAGE + self.tail as usize % RING, &padded);
            self.tail += 16;
        }
    }

    /// Writes a record as it should be. It must not wrap.
    pub(crate) fn put(&mut self, record: &Submission, payload: &[u8]) {
        let (head, len) = record.encode().bytes();
        let mut bytes = head[..len].to_vec();
        bytes.extend(payload);
        let to_end = RING - self.tail as usize % RING;
        if to_end < bytes.len().next_multiple_of(16) {
            let mut skip = vec![0; to_end];
            if to_end >= 32 {
                skip[..4].copy_from_slice(&(to_end as u32).to_ne_bytes());
                skip[4] = 255;
            }
            self.write(&skip);
        }
        self.write(&bytes);
    }

    /// Shows all that was written, and rings.
    pub(crate) fn publish(&self) {
        self.show(self.tail);
    }

    pub(crate) fn show(&self, tail: u64) {
        self.ours.word(TAIL).store(tail, SeqCst);
        self.ring();
    }

    pub(crate) fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Bytes of the ring that the daemon has not given back.
    pub(crate) fn unread(&self) -> u64 {
        self.tail - self.theirs.word(0).load(SeqCst)
    }

    /// The next record, if there is one. Gives back what it had.
    pub(crate) fn next(&mut self) -> Option<Said> {
        loop {
            if self.head == self.theirs.word(64).load(SeqCst) {
                return None;
            }
            let at = self.head as usize % RING;
            let to_end = RING - at;
            if to_end < 32 {
                self.head += to_end as u64;
                continue;
            }
            let mut header = [0; 32];
            self.theirs.copy_out(PAGE + at, &mut header);
            let u32_at = |n: usize| u32::from_ne_bytes(header[n..n + 4].try_into().expect("four"));
            let u64_at = |n: usize| u64::from_ne_bytes(header[n..n + 8].try_into().expect("eight"));
            let len = u32_at(0) as usize;
            let mut rest = vec![0; len - 32];
            self.theirs.copy_out(PAGE + at + 32, &mut rest);
            self.head += len.next_multiple_of(16) as u64;
            self.ours.word(HEAD).store(self.head, SeqCst);
            self.ring();
            if header[4] != 255 {
                let (socket, id, a, b) = (u32_at(8), u32_at(12), u64_at(16), u64_at(24));
                return Some(Said { kind: header[4], socket, id, a, b, rest });
            }
        }
    }

    /// Waits for the next record.
    pub(crate) fn wait(&mut self) -> Said {
        loop {
            // Sleeps as an honest client would, so that the bell rings.
            let sleep = self.ours.word(128).load(Relaxed) + 1;
            self.ours.word(128).store(sleep, SeqCst);
            if let Some(said) = self.next() {
                return said;
            }
            let mut byte = [0; 64];
            let mut poll = [rustix::event::PollFd::new(&self.hears, rustix::event::PollFlags::IN)];
            let timeout = rustix::event::Timespec { tv_sec: LONG.as_secs() as i64, tv_nsec: 0 };
            assert!(rustix::event::poll(&mut poll, Some(&timeout)).expect("polls") > 0, "nothing is told");
            let _ = rustix::io::read(&self.hears, &mut byte);
        }
    }

    /// Waits for the reply to a request.
    pub(crate) fn reply(&mut self, request: u32) -> Said {
        loop {
            let said = self.wait();
            if said.kind == REPLY && said.id == request {
                return said;
            }
        }
    }

    pub(crate) fn bind(&mut self, socket: u32, port: u16) -> Said {
        let sharing = rds_core::attach::Sharing::Exclusive;
        let bind = Submission::Bind {
            request: 1_000_000 + socket,
            socket,
            port,
            sharing,
            send_buffer: 0,
            receive_buffer: 0,
        };
        self.put(&bind, &[]);
        self.publish();
        self.reply(1_000_000 + socket)
    }

    /// Waits until the daemon has hung up, and returns why, if it could say so.
    pub(crate) fn ended(mut self) -> String {
        let mut byte = [0; 1];
        match self.socket.read(&mut byte) {
            Ok(0) => {}
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => {}
            other => panic!("the daemon has not ended this client: {other:?}"),
        }
        let mut why = String::new();
        while let Some(said) = self.next() {
            if said.kind == GOODBYE {
                why = String::from_utf8(said.rest).expect("text");
            }
        }
        why
    }
}
