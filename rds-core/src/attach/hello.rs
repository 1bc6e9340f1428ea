//! How an attachment begins: a Unix socket, a hello, an answer, and with it the descriptors of memory and doorbells.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, send, sendmsg,
};
use socket2::{Domain, SockAddr, Socket, Type};
use thiserror::Error;

use super::arena::{ReceiveArena, SubmittedArena};
use super::channel::{Channel, Rings};
use super::doorbell::{Bells, Doorbell, Wakeup};
use super::greeting::{Answer, Garbled, Hello, PREFIX, Prefix, Refusal, RefusalCode, Welcome};
use super::ring::CAPACITIES;
use super::shared::{Memories, arena_at};
use crate::sys::arena::{LeaseArena, SendArena};
use crate::sys::limits::page_size;
use crate::sys::shm::{Access, SharedMemory};

/// Largest arena in bytes.
pub const MAX_ARENA: u64 = 1 << 36;

/// Descriptors that come with a welcome: both memories, the daemon's bell, and what the program hears.
const DESCRIPTORS: usize = 4;

/// The capacity of a ring that comes closest to what is wanted (0: the default) and is allowed. In bytes.
#[must_use]
pub fn ring_capacity(wanted: u32, default: u32, most: u32) -> u32 {
    let most = most.clamp(*CAPACITIES.start(), *CAPACITIES.end());
    let most = 1 << most.ilog2();
    let wanted = if wanted == 0 { default } else { wanted };
    wanted.clamp(*CAPACITIES.start(), most).next_power_of_two()
}

/// The size of an arena that comes closest to what is wanted (0: the default) and is allowed: whole pages. In bytes.
#[must_use]
pub fn arena_size(wanted: u64, default: u64, most: u64) -> u64 {
    let page = page_size() as u64;
    let wanted = if wanted == 0 { default } else { wanted };
    let most = most.clamp(page, MAX_ARENA);
    wanted.clamp(page, most).next_multiple_of(page).min(most / page * page)
}

// ---- the program ----------------------------------------------------------------------------------------------------

/// Why a program could not attach.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Nobody listens there, or this user may not connect.
    #[error("{source}{}", what_to_do(source))]
    Connect {
        /// The socket's path.
        path: PathBuf,
        /// What connect(2) says.
        source: io::Error,
    },
    /// The daemon says no.
    #[error("the RDS daemon refuses: {0}")]
    Refused(Refusal),
    /// No answer in time.
    #[error("the RDS daemon does not answer: see whether it is stopped or overloaded, and try again")]
    TimedOut,
    /// The connection failed, or ended without an answer.
    #[error("the connection to the RDS daemon failed: {0}")]
    Io(#[from] io::Error),
    /// The answer is none of this protocol.
    #[error("what answers at that path is no RDS daemon that this program understands: {0}")]
    Garbled(#[from] Garbled),
    /// The memory cannot be shared; over the socket alone ([`Hello::stream`]) it works all the same.
    #[error("the memory of the RDS daemon cannot be shared: {0}")]
    Memory(io::Error),
}

/// What somebody who cannot connect is to do about it, to be put behind the error.
fn what_to_do(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => ": start rds-server there (--socket), or give the path of its socket",
        io::ErrorKind::ConnectionRefused => {
            ": no daemon listens there; start rds-server (--socket), or give the path of its socket"
        }
        io::ErrorKind::PermissionDenied => {
            ": have this user allowed to write to the socket (rds-server's --socket-mode, --socket-owner, --socket-group) and to enter its folder"
        }
        io::ErrorKind::InvalidInput => ": give a shorter path",
        _ => "",
    }
}

/// What a program has once it is attached.
#[derive(Debug)]
pub struct Attached {
    /// To and from the daemon.
    pub channel: Channel,
    /// What it was given.
    pub welcome: Welcome,
    /// Where it can build messages; none in the stream form.
    pub send_arena: Option<SendArena>,
    /// Where messages come; none in the stream form.
    pub receive_arena: Option<LeaseArena>,
}

/// Attaches to the daemon that listens at `path`. Blocks up to `timeout`. The daemon must be trusted: it carries all that the program sends, and
/// can write what it lends.
///
/// # Errors
/// See [`AttachError`].
pub fn attach(path: &Path, hello: &Hello, timeout: Duration) -> Result<Attached, AttachError> {
    let deadline = Instant::now() + timeout;
    let connect = |source| AttachError::Connect { path: path.to_owned(), source };
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(connect)?;
    // Also for the connection itself: a daemon that does not accept has a full queue.
    socket.set_write_timeout(Some(left(deadline)?))?;
    let address = SockAddr::unix(path).map_err(connect)?;
    socket.connect(&address).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => AttachError::TimedOut,
        _ => connect(e),
    })?;
    greet(UnixStream::from(OwnedFd::from(socket)), hello, deadline)
}

/// Attaches over a socket that is connected.
pub(super) fn greet(socket: UnixStream, hello: &Hello, deadline: Instant) -> Result<Attached, AttachError> {
    match send_all(&socket, &hello.encode()) {
        // A daemon may refuse before it has heard anything: what it said is there to be read.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {}
        sent => sent?,
    }
    let mut prefix = [0; PREFIX];
    let mut fds = Vec::new();
    receive(&socket, &mut prefix, Some(&mut fds), deadline)?;
    let prefix = (prefix, Prefix::decode(&prefix)?);
    let mut bytes = vec![0; prefix.1.len];
    bytes[..PREFIX].copy_from_slice(&prefix.0);
    receive(&socket, &mut bytes[PREFIX..], None, deadline)?;
    match Answer::decode(prefix.1, &bytes)? {
        Answer::Refused(refusal) => Err(AttachError::Refused(refusal)),
        Answer::Welcome(welcome) => {
            socket.set_nonblocking(true)?;
            enter(socket, welcome, fds)
        }
    }
}

fn enter(socket: UnixStream, welcome: Welcome, fds: Vec<OwnedFd>) -> Result<Attached, AttachError> {
    if welcome.stream {
        let channel = Channel::stream(socket, welcome.max_message);
        return Ok(Attached { channel, welcome, send_arena: None, receive_arena: None });
    }
    let fds: [OwnedFd; DESCRIPTORS] =
        fds.try_into().map_err(|_| Garbled::Field("the number of descriptors"))?;
    let [client, daemon, bell, hears] = fds;
    let rings = Rings { submission: welcome.submission_ring, completion: welcome.completion_ring };
    let map = |fd: &OwnedFd, ring, access| {
        SharedMemory::map(fd.as_fd(), arena_at(ring), access).map_err(AttachError::Memory)
    };
    let memories = Memories {
        client: map(&client, rings.submission, Access::ReadWrite)?,
        daemon: map(&daemon, rings.completion, Access::ReadOnly)?,
    };
    let size = |bytes: u64| usize::try_from(bytes).map_err(|_| Garbled::Field("the size of an arena"));
    let (send, receive) = (size(welcome.send_arena)?, size(welcome.receive_arena)?);
    let send_arena = SendArena::map(client.as_fd(), arena_at(rings.submission), send);
    let receive_arena = LeaseArena::map(daemon.as_fd(), arena_at(rings.completion), receive);
    rustix::io::ioctl_fionbio(&hears, true).map_err(io::Error::from)?;
    let channel = Channel::of_program(socket, &memories, rings, Doorbell::new(bell), Wakeup::program(hears));
    Ok(Attached {
        channel,
        welcome,
        send_arena: Some(send_arena.map_err(AttachError::Memory)?),
        receive_arena: Some(receive_arena.map_err(AttachError::Memory)?),
    })
}

fn left(deadline: Instant) -> Result<Duration, AttachError> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(AttachError::TimedOut) } else { Ok(left) }
}

/// A hello is far smaller than any socket's buffer.
fn send_all(socket: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    loop {
        match send(socket, bytes, SendFlags::NOSIGNAL) {
            Ok(n) if n == bytes.len() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

/// Fills `out`, and takes the descriptors that come with its first byte.
fn receive(
    socket: &UnixStream,
    out: &mut [u8],
    mut fds: Option<&mut Vec<OwnedFd>>,
    deadline: Instant,
) -> Result<(), AttachError> {
    let mut done = 0;
    while done < out.len() {
        socket.set_read_timeout(Some(left(deadline)?))?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut out[done..])];
        let n = match recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(message) => message.bytes,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN) => return Err(AttachError::TimedOut),
            Err(e) => return Err(AttachError::Io(e.into())),
        };
        if n == 0 {
            return Err(AttachError::Io(io::ErrorKind::UnexpectedEof.into()));
        }
        done += n;
        for message in control.drain() {
            if let (RecvAncillaryMessage::ScmRights(came), Some(fds)) = (message, &mut fds) {
                fds.extend(came);
            }
        }
    }
    Ok(())
}

// ---- the daemon -----------------------------------------------------------------------------------------------------

/// Who is at the other end of a Unix socket, as the kernel says (SO_PEERCRED, SO_PEERGROUPS): as it was when it connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// Process; 0 if the daemon cannot see it (another PID namespace).
    pub pid: i32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
}

/// Why a connection came to nothing before it was an attachment.
#[derive(Debug, Error)]
pub enum GreetingError {
    /// It was closed.
    #[error("the program closed the connection")]
    Closed,
    /// It failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// What came is no hello that can be understood; the program was told.
    #[error("{0}")]
    Refused(Refusal),
}

/// A connection on which a hello is due. It holds a few hundred bytes, and no call blocks; how long it may take is the daemon's affair.
#[derive(Debug)]
pub struct Greeting {
    socket: UnixStream,
    credentials: Credentials,
    bytes: Vec<u8>,
}

impl Greeting {
    /// Of a connection that was accepted.
    ///
    /// # Errors
    /// What fcntl(2) and getsockopt(2) say.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let who = getsockopt(&socket, PeerCredentials)?;
        let groups = crate::sys::peer::groups(socket.as_fd())?;
        let credentials = Credentials { pid: who.pid(), uid: who.uid(), gid: who.gid(), groups };
        Ok(Self { socket, credentials, bytes: Vec::new() })
    }

    /// Who is there.
    #[must_use]
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Reads what has come; to be called when the socket is readable. None: the hello is not whole yet.
    ///
    /// # Errors
    /// See [`GreetingError`]; the connection is of no use any more.
    pub fn read(&mut self) -> Result<Option<Hello>, GreetingError> {
        loop {
            let wanted = match self.prefix() {
                Ok(Some(prefix)) if self.bytes.len() == prefix.len => {
                    return Hello::decode(prefix, &self.bytes).map(Some).map_err(|r| self.refused(r));
                }
                Ok(prefix) => prefix.map_or(PREFIX, |p| p.len),
                Err(e) => return Err(self.refused(Refusal::new(RefusalCode::Malformed, e.to_string()))),
            };
            // No further than the hello's end: what is after it is not to be read here.
            let have = self.bytes.len();
            self.bytes.resize(wanted, 0);
            let got = recv(&self.socket, &mut self.bytes[have..], RecvFlags::DONTWAIT);
            self.bytes.truncate(have + got.as_ref().map_or(0, |(_, n)| *n));
            match got {
                Ok((_, 0)) => return Err(GreetingError::Closed),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::CONNRESET | Errno::PIPE) => return Err(GreetingError::Closed),
                Err(e) => return Err(io::Error::from(e).into()),
            }
        }
    }

    fn prefix(&self) -> Result<Option<Prefix>, Garbled> {
        self.bytes.first_chunk().map(Prefix::decode).transpose()
    }

    fn refused(&self, refusal: Refusal) -> GreetingError {
        self.tell(&refusal);
        GreetingError::Refused(refusal)
    }

    fn tell(&self, refusal: &Refusal) {
        // To a program that does not listen nothing can be told.
        let _ = send(&self.socket, &refusal.encode(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Says no, and hangs up.
    pub fn refuse(self, refusal: &Refusal) {
        self.tell(refusal);
    }

    /// Lets the program in: makes the memory, and passes it on.
    ///
    /// # Errors
    /// No memory, too many descriptors, sizes that cannot be (see [`ring_capacity`], [`arena_size`]), a connection that failed. The program was told
    /// that it is refused, where that is possible.
    pub fn welcome(self, welcome: &Welcome) -> io::Result<Accepted> {
        welcome.check().map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let made = if welcome.stream { Ok(None) } else { Made::new(welcome).map(Some) };
        let made = made.inspect_err(|e| {
            self.tell(&Refusal::new(
                RefusalCode::Resources,
                format!("the daemon cannot make the memory to be shared: {e}"),
            ));
        })?;
        let Some(made) = made else {
            pass(&self.socket, &welcome.encode(), &[])?;
            let channel = Channel::stream(self.socket, welcome.max_message);
            return Ok(Accepted { channel, submitted: None, receive: None });
        };
        let fds = [
            made.client.as_fd(),
            made.daemon.as_fd(),
            made.bells.of_daemon.as_fd(),
            made.bells.program_hears.as_fd(),
        ];
        pass(&self.socket, &welcome.encode(), &fds)?;
        let Memories { client, daemon } = &made.memories;
        let (submitted, receive) = (arena_at(made.rings.submission), arena_at(made.rings.completion));
        // As long as the memory, which was made for it.
        let submitted = SubmittedArena::new(client.clone(), submitted, client.len() - submitted);
        let receive = ReceiveArena::new(daemon.clone(), receive, daemon.len() - receive);
        let channel = Channel::of_daemon(self.socket, &made.memories, made.rings, made.bells);
        Ok(Accepted { channel, submitted: Some(submitted), receive: Some(receive) })
    }
}

impl AsFd for Greeting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A program that was let in.
#[derive(Debug)]
pub struct Accepted {
    /// To and from the program.
    pub channel: Channel,
    /// Where the program builds messages; none in the stream form.
    pub submitted: Option<SubmittedArena>,
    /// Where messages to it go; none in the stream form.
    pub receive: Option<ReceiveArena>,
}

/// What an attachment is made of.
struct Made {
    memories: Memories,
    client: OwnedFd,
    daemon: OwnedFd,
    bells: Bells,
    rings: Rings,
}

impl Made {
    fn new(welcome: &Welcome) -> io::Result<Self> {
        let rings = Rings { submission: welcome.submission_ring, completion: welcome.completion_ring };
        let len = |ring, arena: u64| {
            let arena = usize::try_from(arena).map_err(|_| io::ErrorKind::OutOfMemory)?;
            arena_at(ring).checked_add(arena).ok_or(io::Error::from(io::ErrorKind::OutOfMemory))
        };
        let (client, client_memory) =
            SharedMemory::create(len(rings.submission, welcome.send_arena)?, Access::ReadWrite)?;
        let (daemon, daemon_memory) =
            SharedMemory::create(len(rings.completion, welcome.receive_arena)?, Access::ReadOnly)?;
        let memories = Memories { client: client_memory, daemon: daemon_memory };
        Ok(Self { memories, client, daemon, bells: Bells::new()?, rings })
    }
}

/// Sends a message with descriptors. It is the first on its connection, so there is room for it.
fn pass(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        let pushed = control.push(SendAncillaryMessage::ScmRights(fds));
        debug_assert!(pushed, "there is room for them");
    }
    loop {
        match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
        {
            Ok(n) if n == bytes.len() => return Ok(()),
            Ok(_) => return Err(io::ErrorKind::WriteZero.into()),
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
}
