//! Hooks for the benchmarks of this workspace, which measure single mechanisms below the engine. Not for programs: not documented, and
//! changed without notice.

use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;

use bytes::Bytes;
use socket2::{Domain, SockRef, Socket, Type};

use crate::proto::Time;
use crate::sys::error_queue::ErrorQueue;
use crate::sys::pages::PageBuf;
use crate::sys::region::{PathRegion, RegionPool, page_size};
use crate::sys::zerocopy::{self, Gather, Held};
use crate::sys::{page_mss, path_mtu, send_mss, set_max_segment};
use crate::wire::HEADER_LEN;
use crate::zerocopy::{Ending, Ledger, Released};

/// Buffers that are sent in turn.
const BUFFERS: usize = 16;
/// Address space of the receiving end.
const REGION: usize = 16 << 20;

/// Maps `bytes` of memory, touches each page, and unmaps it.
pub fn map_touch_unmap(bytes: usize) {
    // Without address space there is nothing to disturb anybody with.
    if let Ok(mut pages) = PageBuf::new(bytes) {
        pages.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    }
}

/// What an exchange took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchanged {
    /// System calls of the mechanism: those that mapped, or those that looked into the error queue.
    pub calls: u64,
    /// Payload bytes that were mapped.
    pub mapped: u64,
    /// Numbers of calls that the kernel notified.
    pub notified: u64,
    /// Of these, those that it copied.
    pub copied: u64,
}

/// Both ends of a TCP connection, for one thread.
pub struct Pair {
    sender: TcpStream,
    receiver: TcpStream,
    payloads: Vec<Bytes>,
    header: Bytes,
    next: usize,
    ledger: Ledger<Held<Bytes>>,
    queue: ErrorQueue,
    gather: Gather,
    region: PathRegion,
    buffer: Vec<u8>,
}

impl Pair {
    /// Connects two sockets at `address`, with segments of whole pages, for payloads of `size` bytes: whole pages.
    ///
    /// # Errors
    /// What the kernel says; `Unsupported` where segments of whole pages are not to be had.
    pub fn open(address: IpAddr, size: usize) -> io::Result<Self> {
        let page = page_size();
        let listener = TcpListener::bind((address, 0))?;
        let to: SocketAddr = listener.local_addr()?;
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        let mss = page_mss(address, path_mtu(address, address)?, page as u32);
        set_max_segment(socket.as_fd(), mss.ok_or(io::ErrorKind::Unsupported)?)?;
        socket.connect(&to.into())?;
        // The default of some systems paces loopback. Who may not choose has what there is.
        let _ = socket.set_tcp_congestion(b"cubic");
        let sender = TcpStream::from(socket);
        let (receiver, _) = listener.accept()?;
        if !zerocopy::enable(sender.as_fd())? || send_mss(sender.as_fd())? as usize % page != 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        sender.set_nodelay(true)?;
        SockRef::from(&receiver).set_nonblocking(true)?;
        let buffers: io::Result<Vec<_>> =
            (0..BUFFERS).map(|_| PageBuf::new(size).map(Bytes::from_owner)).collect();
        Ok(Self {
            sender,
            receiver,
            payloads: buffers?,
            header: Bytes::from_static(&[7; HEADER_LEN]),
            next: 0,
            ledger: Ledger::new(),
            queue: ErrorQueue::new(),
            gather: Gather::default(),
            region: RegionPool::new(1, REGION, 1 << 20, u64::MAX)?.take()?,
            buffer: vec![0; 256 << 10],
        })
    }

    /// Sends `messages` and maps them, at most `pages` pages a call. What follows each payload, a header, comes with the last call.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn map(&mut self, messages: usize, pages: u32) -> io::Result<Exchanged> {
        let mut done = Exchanged::default();
        for _ in 0..messages {
            let mut rest = self.message();
            let payload = rest[0].len();
            let mut header = [0; HEADER_LEN];
            let mut left = payload + HEADER_LEN;
            while left > 0 {
                self.send(&mut rest)?;
                let whole = (left.saturating_sub(HEADER_LEN) / page_size()) as u32;
                // A header that did not come with the last page, or pages that TCP has cut.
                let mut skip = left - whole as usize * page_size();
                if whole > 0 {
                    let mut target =
                        self.region.target(whole.min(pages)).map_err(|_| io::ErrorKind::OutOfMemory)?;
                    let with_header = (whole <= pages).then_some(&mut header);
                    let got = target.receive(self.receiver.as_fd(), with_header)?;
                    drop(self.region.finish(target));
                    done.calls += 1;
                    done.mapped += got.bytes as u64;
                    left =
                        left.checked_sub(got.bytes + got.header_bytes).ok_or(io::ErrorKind::InvalidData)?;
                    skip = got.skip_hint as usize;
                }
                left -= self.read(skip.min(left))?;
            }
            self.reap(&mut done)?;
        }
        Ok(done)
    }

    /// Sends `messages` by zero copy, reads them, and takes completions after every `each` of them.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn reap_each(&mut self, messages: usize, each: usize) -> io::Result<Exchanged> {
        let mut done = Exchanged::default();
        for n in 1..=messages {
            let mut rest = self.message();
            let mut left: usize = rest.iter().map(Bytes::len).sum();
            while left > 0 {
                self.send(&mut rest)?;
                left -= self.read(left)?;
            }
            if n % each == 0 {
                self.reap(&mut done)?;
            }
        }
        Ok(done)
    }

    /// Reads up to `most` bytes, as many as are there.
    fn read(&mut self, most: usize) -> io::Result<usize> {
        let most = most.min(self.buffer.len());
        match self.receiver.read(&mut self.buffer[..most]) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(0),
            other => other,
        }
    }

    /// A payload and the header of the next message.
    fn message(&mut self) -> Vec<Bytes> {
        self.next = (self.next + 1) % BUFFERS;
        vec![self.payloads[self.next].clone(), self.header.clone()]
    }

    /// Sends what there is room for, and leaves the rest.
    fn send(&mut self, rest: &mut Vec<Bytes>) -> io::Result<()> {
        while !rest.is_empty() {
            let ending = Ending { record: true, more: false };
            let bytes: usize = rest.iter().map(Bytes::len).sum();
            self.ledger.begin(Time::ZERO, crate::zerocopy::charge(bytes, 4096));
            let pieces = rest.clone();
            match zerocopy::send_pinned(self.sender.as_fd(), pieces, ending, &mut self.gather) {
                Ok((mut taken, held)) => {
                    // One thread: nothing was notified meanwhile.
                    drop(self.ledger.commit(held));
                    while let Some(first) = rest.first_mut() {
                        if taken < first.len() {
                            bytes::Buf::advance(first, taken);
                            break;
                        }
                        taken -= first.len();
                        rest.remove(0);
                    }
                }
                Err(refused) => {
                    self.ledger.failed();
                    match refused.error {
                        Some(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                        Some(e) => return Err(e),
                        None => return Ok(()),
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes all completions, and drops what they release.
    fn reap(&mut self, done: &mut Exchanged) -> io::Result<()> {
        let (ledger, mut out) = (&mut self.ledger, Vec::new());
        self.queue.drain(self.sender.as_fd(), |first, last, copied| {
            let notified = ledger.notified(Time::ZERO, first, last, copied, &mut out);
            done.notified += notified.ids;
            done.copied += if copied { notified.ids } else { 0 };
        })?;
        done.calls += 1;
        out.into_iter().for_each(free);
        Ok(())
    }
}

fn free(released: Released<Held<Bytes>>) {
    drop(released.held.release());
}

impl Drop for Pair {
    fn drop(&mut self) {
        // What the kernel still had is released by breaking the connection off, and only then.
        if zerocopy::disconnect(self.sender.as_fd()).is_ok() {
            let _ = self.reap(&mut Exchanged::default());
        }
    }
}
