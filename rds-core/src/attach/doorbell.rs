//! Waking the other side.
//!
//! What the daemon rings must not be able to make it wait. The flag O_NONBLOCK belongs to an open file, not to a descriptor, so of an eventfd that
//! both have the program could clear it, fill the counter, and block the daemon's next write for ever. So the program is woken through a pipe
//! whose writing end only the daemon has; the daemon through an eventfd, which it never reads.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rustix::event::{EventfdFlags, eventfd};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::engine::Wake;

/// Wakes the other side.
#[derive(Debug)]
pub struct Doorbell {
    fd: OwnedFd,
    rung: AtomicU64,
}

impl Doorbell {
    pub(super) fn new(fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self { fd, rung: AtomicU64::new(0) })
    }

    /// Wakes the other side. Never blocks; a bell that is full is one that rings already. A system call, so best called without a lock.
    pub fn ring(&self) {
        self.rung.fetch_add(1, Relaxed);
        // Should the other side be gone, the connection says so.
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
    }

    /// How often it was rung.
    pub fn rung(&self) -> u64 {
        self.rung.load(Relaxed)
    }
}

impl Wake for Doorbell {
    fn wake(&self) {
        self.ring();
    }
}

/// What a side that sleeps watches, for reading.
#[derive(Debug)]
pub struct Wakeup(Kind);

#[derive(Debug)]
enum Kind {
    /// The program's.
    Pipe(OwnedFd),
    /// The daemon's.
    Event(OwnedFd),
    /// The stream form's.
    Socket(Arc<UnixStream>),
}

impl Wakeup {
    pub(super) fn program(fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self(Kind::Pipe(fd)))
    }

    pub(super) fn daemon(fd: OwnedFd) -> Arc<Self> {
        Arc::new(Self(Kind::Event(fd)))
    }

    pub(super) fn socket(socket: Arc<UnixStream>) -> Arc<Self> {
        Arc::new(Self(Kind::Socket(socket)))
    }

    /// Forgets that the bell was rung; look at the ring after that, not before. Nothing to be done for the daemon, which watches for edges
    /// (EPOLLET) and must not read what a program can make block, nor in the stream form.
    pub fn clear(&self) {
        if let Kind::Pipe(fd) = &self.0 {
            let mut bytes = [0; 512];
            while rustix::io::read(fd, &mut bytes).is_ok_and(|n| n == bytes.len()) {}
        }
    }
}

impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Pipe(fd) | Kind::Event(fd) => fd.as_fd(),
            Kind::Socket(socket) => socket.as_fd(),
        }
    }
}

/// What the daemon keeps, and what it passes on: both ends of both bells.
pub(super) struct Bells {
    pub(super) of_program: OwnedFd,
    pub(super) program_hears: OwnedFd,
    pub(super) of_daemon: OwnedFd,
    pub(super) daemon_hears: OwnedFd,
}

impl Bells {
    pub(super) fn new() -> io::Result<Self> {
        let (program_hears, of_program) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let of_daemon = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let daemon_hears = of_daemon.try_clone()?;
        Ok(Self { of_program, program_hears, of_daemon, daemon_hears })
    }
}
