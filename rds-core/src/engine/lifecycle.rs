//! Connections as they come, stand and go.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Instant;

use mio::unix::SourceFd;
use mio::{Interest, Token};
use socket2::SockRef;

use super::conn::{Conn, Progress, Stage};
use super::link::Link;
use super::log;
use super::reactor::{ACCEPT_PAUSE, ACCEPTS, Reactor, deregister, enqueue, first_map_tick};
use super::shared::Shared;
use super::tcp;
use crate::proto::ConnId;

impl Reactor {
    pub(super) fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        self.conns.get_mut(id.index())?.as_mut().filter(|c| c.id == id)
    }

    pub(super) fn enqueue(&mut self, id: ConnId) {
        if let Some(conn) = self.conns.get_mut(id.index()).and_then(Option::as_mut).filter(|c| c.id == id) {
            enqueue(&mut self.ready, conn, id.index());
        }
    }

    pub(super) fn add(
        &mut self,
        id: ConnId,
        peer: IpAddr,
        stream: TcpStream,
        stage: Stage,
    ) -> io::Result<Arc<Link>> {
        let index = id.index();
        if self.conns.len() <= index {
            self.conns.resize_with(index + 1, || None);
        }
        if let Some(old) = self.conns[index].take() {
            deregister(self.poll.registry(), &old);
        }
        let fd = stream.as_raw_fd();
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut SourceFd(&fd), Token(index), interest)?;
        let link = Arc::new(Link::new(stream, peer, &self.pins));
        self.conns[index] = Some(Conn::new(id, peer, Arc::clone(&link), stage));
        Ok(link)
    }

    /// Forgets a connection. Its socket closes once nobody writes to it any more, and the kernel reads nothing of ours.
    pub(super) fn remove(&mut self, shared: &Shared, id: ConnId) {
        let mut link = None;
        if self.conn(id).is_some()
            && let Some(conn) = self.conns[id.index()].take()
        {
            deregister(self.poll.registry(), &conn);
            link = Some(conn.link);
        }
        let mut core = shared.core();
        let link = core.remove_link(id).or(link);
        core.dispatch(shared.now());
        drop(core);
        self.retire(link);
    }

    /// Has the kernel let go of what it reads for a connection that has ended, and drops it.
    fn retire(&mut self, link: Option<Arc<Link>>) {
        if let Some(link) = link {
            link.retire(&mut self.wakes.released);
        }
        self.wakes.fire();
    }

    /// An attempt to connect has come to its end.
    pub(super) fn established(&mut self, shared: &Shared, index: usize) {
        let Some(conn) = self.conns.get_mut(index).and_then(Option::as_mut) else { return };
        let id = conn.id;
        self.timed.retain(|(_, c)| *c != id);
        match tcp::connect_result(&conn.link.stream) {
            Ok(()) => {
                conn.stage = Stage::Open;
                conn.readable = true;
                enqueue(&mut self.ready, conn, index);
                let mut core = shared.core();
                core.add_link(id, Arc::clone(&conn.link));
                let now = shared.now();
                core.node.connected(now, id);
                if self.pins.wants_segments(conn.peer).0
                    && let Some(mss) = tcp::page_segments(&conn.link.stream)
                {
                    conn.link.set_segment(mss);
                    core.node.announce_segmentation(id);
                }
                core.dispatch(now);
                self.dirty = true;
            }
            Err(error) => {
                if let Some(conn) = self.conns[index].take() {
                    deregister(self.poll.registry(), &conn);
                }
                self.connect_failed(shared, id, &error);
            }
        }
    }

    pub(super) fn accept(&mut self, shared: &Shared) {
        if self.accept_at.is_some() {
            self.accepting = false;
            return;
        }
        for _ in 0..ACCEPTS {
            let Some(listener) = &self.listener else {
                self.accepting = false;
                return;
            };
            match listener.accept() {
                Ok((stream, from)) => {
                    if let Err(error) = self.accepted(shared, stream, from) {
                        log::accept_failed(&error);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.accepting = false;
                    return;
                }
                Err(error) => {
                    log::accept_failed(&error);
                    // Out of descriptors or memory: more attempts at once would fail as well. Everything else concerns the
                    // one connection only (accept(2)).
                    let exhausted = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
                    if error.raw_os_error().is_some_and(|e| exhausted.contains(&e)) {
                        self.accepting = false;
                        self.accept_at = Some(Instant::now() + ACCEPT_PAUSE);
                        return;
                    }
                }
            }
        }
    }

    pub(super) fn accepted(
        &mut self,
        shared: &Shared,
        stream: TcpStream,
        from: SocketAddr,
    ) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let mut core = shared.core();
        let now = shared.now();
        let id = match core.node.accept(now, from.ip(), from.port()) {
            Ok(id) => id,
            Err(reason) => {
                core.dispatch(now);
                drop(core);
                self.dirty = true;
                log::closed(from.ip(), None, &reason);
                return Ok(());
            }
        };
        // Under the same lock: the node may name the connection to anybody who transmits from now on.
        let added = self.add(id, from.ip(), stream, Stage::Open);
        match &added {
            Ok(link) => {
                core.add_link(id, Arc::clone(link));
                if self.pins.wants_segments(from.ip()).0
                    && let Some(mss) = tcp::page_segments(&link.stream)
                {
                    link.set_segment(mss);
                    core.node.announce_segmentation(id);
                }
            }
            Err(_) => core.node.closed(now, id, None),
        }
        core.dispatch(now);
        drop(core);
        self.dirty = true;
        tcp::prepare(&SockRef::from(&added?.stream), &shared.options)
    }

    /// Reads from a connection once, within its share, and feeds what came.
    pub(super) fn serve(&mut self, shared: &Shared, index: usize) {
        let Some(conn) = self.conns.get_mut(index).and_then(Option::as_mut) else { return };
        conn.queued = false;
        if conn.paused {
            return;
        }
        let progress = conn.serve(shared, &mut self.buffer, &mut self.wakes, &mut self.dirty);
        self.wakes.fire();
        if self.map_tick_at.is_none() && conn.wants_tick() {
            self.map_tick_at = Some(first_map_tick());
        }
        let id = conn.id;
        match progress {
            Progress::More => enqueue(&mut self.ready, conn, index),
            Progress::Paused => {}
            Progress::Empty => {
                if std::mem::take(&mut conn.draining) {
                    self.drained(shared, id);
                }
            }
            Progress::Ended(error) => self.end(shared, id, error),
        }
    }

    pub(super) fn drained(&mut self, shared: &Shared, id: ConnId) {
        let mut core = shared.core();
        let unacked = self.conn(id).and_then(|c| tcp::unacknowledged(&c.link.stream));
        let now = shared.now();
        if let Some(unacked) = unacked {
            core.node.tcp_unacked(now, id, unacked);
        }
        core.node.drained(now, id);
        core.dispatch(now);
        self.dirty = true;
    }

    /// The end of a connection: everything readable was fed.
    pub(super) fn end(&mut self, shared: &Shared, id: ConnId, error: Option<io::Error>) {
        self.timed.retain(|(_, c)| *c != id);
        let Some(conn) = self.conns.get_mut(id.index()).and_then(Option::take) else { return };
        deregister(self.poll.registry(), &conn);
        let (peer, stage) = (conn.peer, conn.stage);
        let connecting = stage == Stage::Connecting;
        let mut core = shared.core();
        let lane = core.node.lane(id);
        let link = core.remove_link(id).unwrap_or_else(|| Arc::clone(&conn.link));
        // Under the lock: what a program wrote meanwhile must not count as written but not as unacknowledged.
        let unacked = tcp::unacknowledged(&conn.link.stream);
        let now = shared.now();
        if let Some(error) = &error {
            core.node.note_error(id, error.kind());
        }
        if connecting {
            if error.is_none() {
                core.node.note_error(id, io::ErrorKind::TimedOut);
            }
            core.node.connect_failed(now, id);
        } else {
            conn.return_target(&mut core, now);
            core.node.closed(now, id, unacked);
        }
        core.dispatch(now);
        drop(core);
        if stage == Stage::Open {
            log::lost(peer, lane, error.as_ref());
        }
        self.retire(Some(link));
        self.dirty = true;
    }
}
