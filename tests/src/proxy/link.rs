//! One connection through the proxy: two TCP sockets and what is on its way between them.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use nix::libc::{MSG_EOR, MSG_NOSIGNAL};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::split::Cutter;
use super::{Break, Conditions, Direction};

/// Bytes that a direction holds; more stays in TCP, so that the sender feels it.
const HELD: usize = 256 << 10;
/// Reads and writes of a direction at one go.
const TURNS: usize = 16;
/// How long a cut connection may swallow what its ends still send.
const SWALLOW: Duration = Duration::from_secs(1);

/// Bytes on their way in one direction.
#[derive(Default)]
struct Pipe {
    chunks: VecDeque<(Instant, Vec<u8>)>,
    /// Bytes of the first chunk that are gone already.
    gone: usize,
    held: usize,
    /// The source has ended, and whether the other end has been told.
    ended: bool,
    told: bool,
    /// Tokens of the rate limit, in bytes, and when they were counted.
    allowance: f64,
    counted: Option<Instant>,
    cutter: Cutter,
}

/// A connection.
pub(super) struct Link {
    /// The end that connected to the proxy, and the end to which the proxy connected.
    ends: [TcpStream; 2],
    pipes: [Pipe; 2],
    /// Of the port that connected.
    lane: u8,
    /// Bytes after which it breaks.
    breaks_at: Option<(u64, Break)>,
    carried: u64,
    cut: Option<Instant>,
}

/// What became of a connection.
pub(super) enum State {
    /// Goes on. Must be looked at again by then, if a time is given.
    Open(Option<Instant>),
    /// Has ended at both ends.
    Ended,
    /// An end was reset, or failed.
    Failed,
    /// Has carried what its schedule allows.
    Due(Break),
}

impl Link {
    /// Connects onward. The connection is under way when this returns.
    pub(super) fn open(dialer: TcpStream, from: SocketAddr, target: SocketAddr) -> io::Result<Self> {
        let onward = connect(from, target)?;
        for end in [SockRef::from(&dialer), SockRef::from(&onward)] {
            end.set_tcp_nodelay(true)?;
        }
        let lane = (from.port() % 8) as u8;
        Ok(Self {
            ends: [dialer, onward],
            pipes: Default::default(),
            lane,
            breaks_at: None,
            carried: 0,
            cut: None,
        })
    }

    /// Which lane it carries, if its end announces lanes by source ports.
    pub(super) fn lane(&self) -> u8 {
        self.lane
    }

    /// Both sockets, to be registered.
    pub(super) fn ends(&mut self) -> &mut [TcpStream; 2] {
        &mut self.ends
    }

    /// Makes it break after so many bytes from now on, in this way; or not.
    pub(super) fn breaks_after(&mut self, bytes: Option<(u64, Break)>) {
        self.breaks_at = bytes.map(|(bytes, how)| (self.carried + bytes, how));
    }

    /// Whether it is cut and only swallows what still comes.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.is_some()
    }

    /// Carries what can be carried. Adds the bytes carried to `bytes`.
    pub(super) fn pump(
        &mut self,
        conditions: &[Conditions; 2],
        scratch: &mut [u8],
        bytes: &mut u64,
    ) -> State {
        if let Some(until) = self.cut {
            return self.swallow(until, scratch);
        }
        let mut wake: Option<Instant> = None;
        for (direction, conditions) in conditions.iter().enumerate() {
            for turn in 0.. {
                let now = Instant::now();
                let read = match self.read(direction, conditions, now, scratch) {
                    Ok(read) => read,
                    Err(_) => return State::Failed,
                };
                let (written, again) = match self.write(direction, conditions, now) {
                    Ok(done) => done,
                    Err(_) => return State::Failed,
                };
                *bytes += written as u64;
                self.carried += written as u64;
                if let Some((at, how)) = self.breaks_at
                    && self.carried >= at
                {
                    return State::Due(how);
                }
                // Others want a turn, too.
                let again = if turn == TURNS { Some(now) } else { again };
                if read + written == 0 || turn == TURNS {
                    wake = [wake, again].into_iter().flatten().min();
                    break;
                }
            }
        }
        if self.pipes.iter().all(|p| p.told) { State::Ended } else { State::Open(wake) }
    }

    fn read(
        &mut self,
        direction: usize,
        conditions: &Conditions,
        now: Instant,
        scratch: &mut [u8],
    ) -> io::Result<usize> {
        let pipe = &mut self.pipes[direction];
        if conditions.stalled || pipe.ended || pipe.held >= HELD {
            return Ok(0);
        }
        match self.ends[direction].read(scratch) {
            Ok(0) => {
                pipe.ended = true;
                Ok(0)
            }
            Ok(n) => {
                pipe.chunks.push_back((now + conditions.delay, scratch[..n].to_vec()));
                pipe.held += n;
                Ok(n)
            }
            Err(e) if not_yet(&e) => Ok(0),
            Err(e) => Err(e),
        }
    }

    /// Returns the bytes written, and when more may be.
    fn write(
        &mut self,
        direction: usize,
        conditions: &Conditions,
        now: Instant,
    ) -> io::Result<(usize, Option<Instant>)> {
        let pipe = &mut self.pipes[direction];
        let sink = &mut self.ends[1 - direction];
        if conditions.stalled {
            return Ok((0, None));
        }
        pipe.cutter.follow(conditions.split);
        let Some((due, chunk)) = pipe.chunks.front() else {
            if pipe.ended && !pipe.told {
                match sink.shutdown(std::net::Shutdown::Write) {
                    Err(e) if !not_yet(&e) => return Err(e),
                    Err(_) => return Ok((0, None)),
                    Ok(()) => pipe.told = true,
                }
            }
            return Ok((0, None));
        };
        if *due > now {
            return Ok((0, Some(*due)));
        }
        if let Some(until) = pipe.cutter.paused(now) {
            return Ok((0, Some(until)));
        }
        let rest = &chunk[pipe.gone..];
        let mut most = rest.len();
        if conditions.rate > 0 {
            let rate = conditions.rate as f64;
            let passed = pipe.counted.replace(now).map_or(0.0, |then| (now - then).as_secs_f64());
            // A tenth of a second's worth may gather.
            pipe.allowance = (pipe.allowance + passed * rate).min((rate / 10.0).max(1.0));
            if pipe.allowance < 1.0 {
                return Ok((0, Some(now + Duration::from_millis(5))));
            }
            most = most.min(pipe.allowance as usize);
        }
        if let Some((at, _)) = self.breaks_at {
            most = most.min(usize::try_from(at.saturating_sub(self.carried)).unwrap_or(usize::MAX));
        }
        let (most, ends) = pipe.cutter.piece(most);
        let flags = MSG_NOSIGNAL | if ends { MSG_EOR } else { 0 };
        let written = match SockRef::from(&*sink).send_with_flags(&rest[..most], flags) {
            Ok(written) => written,
            Err(e) if not_yet(&e) => return Ok((0, None)),
            Err(e) => return Err(e),
        };
        pipe.cutter.wrote(written, now);
        pipe.gone += written;
        pipe.held -= written;
        pipe.allowance -= written as f64;
        if pipe.gone == chunk.len() {
            pipe.chunks.pop_front();
            pipe.gone = 0;
        }
        Ok((written, None))
    }

    /// Breaks the connection. Returns whether it must be kept until [`Link::pump`] says that it has ended.
    pub(super) fn break_off(&mut self, how: Break) -> bool {
        let reset: &[Direction] = match how {
            Break::Cut => {
                for end in &self.ends {
                    // It may have ended already.
                    let _ = end.shutdown(std::net::Shutdown::Write);
                }
                self.cut = Some(Instant::now() + SWALLOW);
                return true;
            }
            Break::Reset => &[Direction::FromDialer, Direction::FromTarget],
            Break::ResetDialer => &[Direction::FromDialer],
            Break::ResetTarget => &[Direction::FromTarget],
        };
        for (index, end) in self.ends.iter().enumerate() {
            if reset.iter().any(|d| *d as usize == index) {
                // Closing with linger 0 sends RST.
                let _ = SockRef::from(end).set_linger(Some(Duration::ZERO));
            } else {
                let _ = end.shutdown(std::net::Shutdown::Write);
            }
        }
        false
    }

    fn swallow(&mut self, until: Instant, scratch: &mut [u8]) -> State {
        for (end, pipe) in self.ends.iter_mut().zip(&mut self.pipes) {
            while !pipe.ended {
                match end.read(scratch) {
                    Ok(0) => pipe.ended = true,
                    Ok(_) => {}
                    Err(e) if not_yet(&e) => break,
                    Err(_) => return State::Ended,
                }
            }
        }
        let over = self.pipes.iter().all(|p| p.ended) || Instant::now() >= until;
        if over { State::Ended } else { State::Open(Some(until)) }
    }
}

fn not_yet(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted | io::ErrorKind::NotConnected)
}

/// Connects from `from`'s address and a port that is `from`'s modulo 8.
fn connect(from: SocketAddr, target: SocketAddr) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..64 {
        let socket = Socket::new(Domain::for_address(from), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_reuse_address(true)?;
        let port = fastrand::u16(1024 / 8..u16::MAX / 8) * 8 + from.port() % 8;
        let ip: IpAddr = from.ip();
        if let Err(e) = socket.bind(&SocketAddr::new(ip, port).into()) {
            last = e;
            continue;
        }
        match socket.connect(&target.into()) {
            Ok(()) => {}
            Err(e) if e.raw_os_error() == Some(EINPROGRESS) => {}
            // An earlier connection of the same two ports is in TIME_WAIT.
            Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => {
                last = e;
                continue;
            }
            Err(e) => return Err(e),
        }
        return Ok(TcpStream::from_std(socket.into()));
    }
    Err(last)
}

/// Linux `errno-base`: operation now in progress.
const EINPROGRESS: i32 = 115;
