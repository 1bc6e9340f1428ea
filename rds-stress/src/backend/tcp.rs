//! Over plain TCP: what the same traffic costs without RDS.
//!
//! Each pair of tasks has a connection of its own, as programs without RDS would; so a task shares nothing with another, and there is no
//! lock. A message is framed by its length, 4 bytes. What a pass sends to a peer goes out in one write, and a read takes what there
//! is, up to 256 KiB. No acknowledgement, no reconnecting, no congestion by port.

mod frames;
mod meet;

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::time::Duration;

use mio::{Events, Interest, Poll, Token};

use self::frames::{Frames, LENGTH};
use super::{Backend, Choice, Incoming, Port, Refused, Want, broken};
use crate::control;
use crate::error::{Failure, failure};
use crate::out::Out;
use crate::roles::Settings;
use crate::session::{MAX_MEMORY, Role, Session};
use crate::stats::CounterList;
use crate::task::TaskFailure;
use crate::zerocopy::{Modes, Totals, ZeroCopy};

/// Bytes that are read at a time, and that are gathered before they are written.
const BATCH: usize = 256 << 10;
/// From this length on a message is written from where it lies.
const UNCOPIED_FROM: usize = 16 << 10;

/// Where the passive side accepts, and where the active side connects to.
#[derive(Debug)]
pub struct Tcp {
    listener: Option<TcpListener>,
    own: IpAddr,
    dial_port: u16,
}

impl Backend for Tcp {
    const CHOICE: Choice = Choice::Tcp;
    type Port = TcpPort;
    type Mark = ();

    fn open(address: IpAddr, role: Role, settings: &Settings) -> Result<Self, Failure> {
        let port = settings.node.listen_port;
        let listener = (role == Role::Passive).then(|| TcpListener::bind((address, port))).transpose();
        let listener = listener.map_err(|e| match e.kind() {
            io::ErrorKind::AddrInUse => failure!(
                "TCP port {port} of {address} is in use, by an RDS node or the rds_tcp kernel module: give another port to both sides with --rds-port"
            ),
            io::ErrorKind::AddrNotAvailable => control::not_local(address),
            _ => failure!("cannot listen on TCP port {port} of {address}: {e}"),
        })?;
        Ok(Self { listener, own: address, dial_port: settings.node.dial_port })
    }

    fn bind(&self, session: &Session, bound: Range<u16>, _: Out) -> Result<Vec<TcpPort>, Failure> {
        let tasks = u64::from(session.tasks);
        let memory = tasks * BATCH as u64 + tasks * tasks * 2 * (BATCH + session.longest()) as u64;
        if memory > MAX_MEMORY {
            return Err(failure!(
                "{tasks} tasks have {} TCP connections, which may need {} MiB for what is on its way: {} is possible, take fewer tasks",
                tasks * tasks,
                memory >> 20,
                MAX_MEMORY >> 20
            ));
        }
        let port = || TcpPort::new(session.longest()).map_err(|e| failure!("cannot wait for input: {e}"));
        bound.map(|_| port()).collect()
    }

    fn connect(&self, session: &Session, ports: &mut [TcpPort], control: &TcpStream) -> Result<(), Failure> {
        let met = match &self.listener {
            Some(listener) => meet::accept(listener, session, control)?,
            None => meet::dial(self.own, SocketAddr::new(session.peer, self.dial_port), session)?,
        };
        for (own, peer, stream) in met {
            ports[usize::from(own)]
                .add(usize::from(peer), session.peer_task(peer), stream)
                .map_err(|e| failure!("cannot use a TCP connection: {e}"))?;
        }
        Ok(())
    }

    fn counters(&self) -> CounterList {
        CounterList::default()
    }

    fn totals(&self) -> Totals {
        Totals::default()
    }

    fn mark(&self) {}

    fn zero_copy(&self, modes: Modes, (): &()) -> ZeroCopy {
        ZeroCopy::idle(modes)
    }

    fn silence(&self, session: &Session, _: &Settings) -> String {
        format!("look at the output of the other side, at {}", session.peer)
    }
}

/// The connections of a task.
#[derive(Debug)]
pub struct TcpPort {
    poll: Poll,
    events: Events,
    /// By task of the other side, ascending.
    links: Vec<Link>,
    scratch: Box<[u8]>,
    longest: usize,
}

/// A connection.
#[derive(Debug)]
struct Link {
    peer: SocketAddr,
    stream: mio::net::TcpStream,
    frames: Frames,
    /// Bytes to be written, from `written` on.
    pending: Vec<u8>,
    written: usize,
    /// There may be something to read.
    readable: bool,
    /// TCP has no room.
    blocked: bool,
    /// The other side has gone: silence, as from an RDS peer that has.
    closed: bool,
}

impl TcpPort {
    fn new(longest: usize) -> io::Result<Self> {
        let events = Events::with_capacity(64);
        Ok(Self { poll: Poll::new()?, events, links: Vec::new(), scratch: vec![0; BATCH].into(), longest })
    }

    /// Connections come in the order of the other side's tasks.
    fn add(&mut self, task: usize, peer: SocketAddr, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = mio::net::TcpStream::from_std(stream);
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut stream, Token(task), both)?;
        self.links.push(Link {
            peer,
            stream,
            frames: Frames::new(self.longest),
            pending: Vec::new(),
            written: 0,
            // Edges tell of what comes from here on.
            readable: true,
            blocked: false,
            closed: false,
        });
        Ok(())
    }
}

impl Link {
    fn queued(&self) -> usize {
        self.pending.len() - self.written
    }

    /// Writes what is pending, as far as TCP takes it.
    fn flush(&mut self) {
        while self.queued() > 0 && !self.blocked && !self.closed {
            match self.stream.write(&self.pending[self.written..]) {
                Ok(n) => self.written += n,
                Err(e) => self.stopped(&e),
            }
        }
        if self.queued() == 0 || self.closed {
            self.pending.clear();
            self.written = 0;
        } else if self.written > BATCH {
            self.pending.drain(..self.written);
            self.written = 0;
        }
    }

    fn stopped(&mut self, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::WouldBlock => self.blocked = true,
            io::ErrorKind::Interrupted => {}
            _ => self.closed = true,
        }
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<(), Refused> {
        if self.queued() >= BATCH {
            self.flush();
        }
        if self.closed || self.queued() >= BATCH {
            return Err(Refused::Room);
        }
        let length = (message.len() as u32).to_be_bytes();
        let mut taken = 0;
        if message.len() >= UNCOPIED_FROM {
            self.flush();
            if self.queued() == 0 && !self.blocked && !self.closed {
                let parts = [IoSlice::new(&length), IoSlice::new(message)];
                match self.stream.write_vectored(&parts) {
                    Ok(n) => taken = n,
                    Err(e) => self.stopped(&e),
                }
            }
        }
        self.pending.extend_from_slice(length.get(taken..).unwrap_or_default());
        self.pending.extend_from_slice(&message[taken.saturating_sub(LENGTH)..]);
        Ok(())
    }

    fn receive(
        &mut self,
        scratch: &mut [u8],
        take: &mut impl FnMut(Incoming<'_>) -> Result<(), TaskFailure>,
    ) -> Result<(), TaskFailure> {
        self.readable = false;
        let peer = self.peer;
        while !self.closed {
            // What was begun goes to its place, and what follows it into the scratch buffer.
            let begun = self.frames.rest();
            let begun_len = begun.len();
            let room = begun_len + scratch.len();
            let read = if begun_len == 0 {
                self.stream.read(scratch)
            } else {
                self.stream.read_vectored(&mut [IoSliceMut::new(begun), IoSliceMut::new(scratch)])
            };
            let n = match read {
                Ok(0) => {
                    self.closed = true;
                    break;
                }
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => {
                    self.stopped(&e);
                    continue;
                }
            };
            let placed = n.min(begun_len);
            self.frames.placed(placed);
            self.frames.feed(&scratch[..n - placed], |bytes| match bytes {
                Ok(bytes) => take(Incoming::Message { bytes, len: bytes.len(), from: peer }),
                Err(length) => Err(broken(format_args!(
                    "a frame of {length} bytes from {peer}: no message has that length"
                ))),
            })?;
            // All there was, and what comes later makes an edge.
            if n < room {
                break;
            }
        }
        Ok(())
    }
}

impl Port for TcpPort {
    fn wait(&mut self, _: Want, timeout: Duration) -> bool {
        if !self.links.iter().any(|link| link.readable)
            && self.poll.poll(&mut self.events, Some(timeout)).is_ok()
        {
            for event in &self.events {
                let Some(link) = self.links.get_mut(event.token().0) else { continue };
                link.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
                if event.is_writable() {
                    link.blocked = false;
                    link.flush();
                }
            }
        }
        self.links.iter().any(|link| link.readable)
    }

    fn receive(
        &mut self,
        mut take: impl FnMut(Incoming<'_>) -> Result<(), TaskFailure>,
    ) -> Result<(), TaskFailure> {
        let Self { links, scratch, .. } = self;
        links.iter_mut().filter(|link| link.readable).try_for_each(|link| link.receive(scratch, &mut take))
    }

    #[inline]
    fn send(&mut self, message: &[u8], task: usize, _: SocketAddr) -> Result<(), Refused> {
        self.links[task].send(message)
    }

    fn flush(&mut self) {
        self.links.iter_mut().for_each(Link::flush);
    }

    fn cancel(&mut self, _: SocketAddr) -> Result<Option<usize>, String> {
        Err("what TCP has cannot be cancelled".into())
    }

    fn close(self) {}
}
