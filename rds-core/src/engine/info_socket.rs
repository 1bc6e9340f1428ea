//! A Unix socket at which the nodes of a program can be looked at, with rds-info.
//!
//! To whoever connects, it writes a line of JSON for each node ([`NodeStatus`]), and closes. A thread of its own does so, which sleeps otherwise, for
//! one connection at a time; what the other end does costs the node nothing but the snapshot.

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::Mode;
use socket2::{Domain, SockAddr, Socket, Type};

use super::shared::Shared;
use crate::info::NodeStatus;

/// Connections that may wait.
const BACKLOG: i32 = 16;
/// How long the other end may take to read an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// From one answer to the next: a snapshot holds up the node's traffic for a moment.
const PAUSE: Duration = Duration::from_millis(20);

/// The sockets of this process: nodes with the same path have one together.
static SOCKETS: Mutex<Vec<(PathBuf, Weak<Listening>)>> = Mutex::new(Vec::new());

/// A node that is shown. With the last of them goes the socket.
pub(super) struct InfoSocket {
    listening: Arc<Listening>,
    shared: Weak<Shared>,
}

struct Listening {
    nodes: Arc<Nodes>,
    /// Its end ends the thread.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    path: PathBuf,
    /// The file as it was made: another's is not ours to remove.
    file: (u64, u64),
}

#[derive(Default)]
struct Nodes(Mutex<Vec<Weak<Shared>>>);

impl InfoSocket {
    /// Shows a node at `path`. The socket's file is for this user alone (mode 0600); one that a dead program left is replaced.
    pub(super) fn open(path: &Path, shared: &Arc<Shared>) -> io::Result<Self> {
        let mut sockets = lock(&SOCKETS);
        sockets.retain(|(_, listening)| listening.strong_count() > 0);
        let there = sockets.iter().find(|(other, _)| other == path).and_then(|(_, there)| there.upgrade());
        let listening = match there {
            Some(listening) => listening,
            None => {
                let listening = Arc::new(Listening::start(path)?);
                sockets.push((path.to_owned(), Arc::downgrade(&listening)));
                listening
            }
        };
        let shared = Arc::downgrade(shared);
        lock(&listening.nodes.0).push(Weak::clone(&shared));
        Ok(Self { listening, shared })
    }
}

impl Drop for InfoSocket {
    fn drop(&mut self) {
        lock(&self.listening.nodes.0).retain(|node| !node.ptr_eq(&self.shared));
    }
}

impl Listening {
    fn start(path: &Path) -> io::Result<Self> {
        let address = SockAddr::unix(path).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "too long for a socket: give a path of less than 108 bytes",
            )
        })?;
        remove_stale(path, &address)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        // The file gets the mode that the socket has when it is bound: there is no moment at which others could connect.
        nix::sys::stat::fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
        socket.bind(&address)?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let file = fs::symlink_metadata(path)?;
        let file = (file.dev(), file.ino());
        let (stop, stopped) = UnixStream::pair()?;
        let nodes = Arc::new(Nodes::default());
        let shown = Arc::clone(&nodes);
        let serve = move || serve(&socket.into(), &stopped, &shown);
        let thread = std::thread::Builder::new().name("rds info".to_owned()).spawn(serve)?;
        Ok(Self { nodes, stop: Some(stop), thread: Some(thread), path: path.to_owned(), file })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // Whoever opens the same path meanwhile waits until the file is gone.
        let _sockets = lock(&SOCKETS);
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the file of a socket at which nobody listens.
fn remove_stale(path: &Path, address: &SockAddr) -> io::Result<()> {
    let Ok(file) = fs::symlink_metadata(path) else { return Ok(()) };
    if !file.file_type().is_socket() {
        let what = "there is a file that is no socket: give another path, or remove it";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    }
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    match socket.connect(address) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        // Also one that has no room to connect.
        _ => {
            let what = "another program answers there: give another path";
            Err(io::Error::new(io::ErrorKind::AddrInUse, what))
        }
    }
}

fn serve(listener: &UnixListener, stop: &UnixStream, nodes: &Nodes) {
    while let Some(true) = wait(listener, PollFlags::POLLIN, stop, None) {
        // Whoever went away again, or no descriptor is left.
        if let Ok((stream, _)) = listener.accept() {
            let answer = nodes.answer();
            if write(stream, &answer, stop).is_none() {
                return;
            }
        }
        if wait(stop, PollFlags::POLLIN, stop, Some(PAUSE)).is_none() {
            return;
        }
    }
}

impl Nodes {
    /// A line of JSON each.
    fn answer(&self) -> Vec<u8> {
        let nodes: Vec<Arc<Shared>> = lock(&self.0).iter().filter_map(Weak::upgrade).collect();
        let mut answer = Vec::new();
        for node in nodes {
            // Numbers, texts and lists alone: nothing that could fail.
            let _ = serde_json::to_writer(&mut answer, &NodeStatus::embedded(node.snapshot(true)));
            answer.push(b'\n');
        }
        answer
    }
}

/// Writes an answer, as far as the other end takes it in time. `None` when the thread is to end.
fn write(mut stream: UnixStream, answer: &[u8], stop: &UnixStream) -> Option<()> {
    let deadline = Instant::now() + PATIENCE;
    let mut left = answer;
    stream.set_nonblocking(true).ok()?;
    while !left.is_empty() {
        match stream.write(left) {
            Ok(n) => left = &left[n..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let patience = deadline.saturating_duration_since(Instant::now());
                if !wait(&stream, PollFlags::POLLOUT, stop, Some(patience))? {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    Some(())
}

/// Waits for `fd`, at most for `limit`; whether it came. `None` when the thread is to end.
fn wait(fd: &impl AsFd, flags: PollFlags, stop: &UnixStream, limit: Option<Duration>) -> Option<bool> {
    let timeout = limit.map_or(PollTimeout::NONE, |limit| {
        PollTimeout::try_from(limit.as_millis() + 1).unwrap_or(PollTimeout::MAX)
    });
    let mut fds = [PollFd::new(stop.as_fd(), PollFlags::POLLIN), PollFd::new(fd.as_fd(), flags)];
    match poll(&mut fds, timeout) {
        Err(nix::errno::Errno::EINTR) => return Some(true),
        Err(_) => return None,
        Ok(_) => {}
    }
    let came = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
    if came(&fds[0]) { None } else { Some(came(&fds[1])) }
}
