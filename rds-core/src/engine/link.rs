//! The writing end of a connection, shared by whoever holds its transmit right and the poll loop.

use std::io::{self, IoSlice};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use socket2::SockRef;

use crate::buffer::Chunk;

/// Most slices a call takes (IOV_MAX).
const IOV_MAX: usize = 1024;

/// A TCP connection.
///
/// Edge-triggered readiness for writing reaches the poll loop while another thread may be writing: the thread that met a
/// full socket must not say so after the edge that ended it was seen. `edges` counts them; the writer compares, see
/// [`Link::stays_blocked`].
pub(crate) struct Link {
    pub(crate) stream: TcpStream,
    edges: AtomicU32,
    blocked: AtomicBool,
}

impl Link {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, edges: AtomicU32::new(0), blocked: AtomicBool::new(false) }
    }

    /// To be called before writing, for [`Link::stays_blocked`].
    pub(crate) fn edges(&self) -> u32 {
        self.edges.load(SeqCst)
    }

    /// The writer met a full socket, under the core's lock: whether no edge came since `seen`. If true,
    /// [`Link::writable_edge`] will say so once one comes.
    pub(crate) fn stays_blocked(&self, seen: u32) -> bool {
        self.blocked.store(true, SeqCst);
        let stays = self.edges.load(SeqCst) == seen;
        if !stays {
            self.blocked.store(false, SeqCst);
        }
        stays
    }

    /// The poll loop saw that the connection is writable: whether a writer waits for that.
    pub(crate) fn writable_edge(&self) -> bool {
        self.edges.fetch_add(1, SeqCst);
        self.blocked.swap(false, SeqCst)
    }

    /// Writes what the kernel takes now.
    pub(crate) fn write(&self, batch: &mut Batch) -> Wrote {
        let socket = SockRef::from(&self.stream);
        let mut bytes = 0;
        for chunk in batch.slices.chunks(IOV_MAX) {
            let mut parts: Vec<IoSlice<'_>> = std::mem::take(&mut batch.parts);
            parts.extend(chunk.iter().map(|b| IoSlice::new(b)));
            let wanted: usize = chunk.iter().map(Chunk::len).sum();
            let result = loop {
                match socket.send_vectored_with_flags(&parts, libc::MSG_NOSIGNAL) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    other => break other,
                }
            };
            batch.parts = recycle(parts);
            match result {
                Ok(n) if n == wanted => bytes += n,
                Ok(n) => return Wrote { bytes: bytes + n, stop: Some(Stop::Full) },
                Err(error) => {
                    let stop = match error.kind() {
                        io::ErrorKind::WouldBlock => Stop::Full,
                        // No edge will announce memory.
                        _ if matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM)) => {
                            Stop::NoMemory
                        }
                        // The poll loop meets the same error, reads what is left and ends the connection.
                        _ => Stop::Failed,
                    };
                    return Wrote { bytes, stop: Some(stop) };
                }
            }
        }
        Wrote { bytes, stop: None }
    }
}

/// What a write came to.
pub(crate) struct Wrote {
    pub(crate) bytes: usize,
    pub(crate) stop: Option<Stop>,
}

/// Why not all was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// TCP's send buffer is full.
    Full,
    /// The kernel has no memory at the moment.
    NoMemory,
    /// The connection is broken.
    Failed,
}

/// Slices to be written, with the memory for the call; used again and again.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) slices: Vec<Chunk>,
    parts: Vec<IoSlice<'static>>,
}

/// An empty vector in the same memory, free of the lifetime.
fn recycle(mut parts: Vec<IoSlice<'_>>) -> Vec<IoSlice<'static>> {
    parts.clear();
    // The standard library collects in place.
    parts.into_iter().map(|_| IoSlice::new(&[])).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (Link, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let a = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        a.set_nonblocking(true).unwrap();
        (Link::new(a), listener.accept().unwrap().0)
    }

    #[test]
    fn more_slices_than_one_call_takes_arrive_in_order() {
        let (link, mut peer) = pair();
        let mut batch = Batch::default();
        let expected: Vec<u8> = (0..3 * IOV_MAX).map(|i| u8::try_from(i % 251).unwrap()).collect();
        batch.slices = expected.iter().map(|b| Chunk::from(vec![*b])).collect();
        let wrote = link.write(&mut batch);
        assert_eq!((wrote.bytes, wrote.stop), (expected.len(), None));
        let mut got = vec![0; expected.len()];
        peer.read_exact(&mut got).unwrap();
        assert_eq!(got, expected);
    }

    #[test]
    fn memory_for_the_call_is_used_again() {
        let parts: Vec<IoSlice<'_>> = Vec::with_capacity(100);
        let at = parts.as_ptr().cast::<()>();
        let again = recycle(parts);
        assert_eq!((again.capacity(), again.as_ptr().cast::<()>()), (100, at));
    }

    #[test]
    fn a_full_socket_and_a_broken_one_are_told_apart() {
        let (link, peer) = pair();
        let mut batch = Batch { slices: vec![Chunk::from(vec![0; 64 << 20])], ..Batch::default() };
        assert_eq!(link.write(&mut batch).stop, Some(Stop::Full));
        link.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(link.write(&mut batch).stop, Some(Stop::Failed));
        drop(peer);
    }

    #[test]
    fn an_edge_between_a_full_write_and_its_report_is_not_lost() {
        let (link, _peer) = pair();
        let seen = link.edges();
        assert!(!link.writable_edge(), "nobody waits yet");
        assert!(!link.stays_blocked(seen), "the edge came after the write began");
        let seen = link.edges();
        assert!(link.stays_blocked(seen));
        assert!(link.writable_edge(), "the writer waits for this one");
    }
}
