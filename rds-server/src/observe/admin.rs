//! The admin endpoint: HTTP at a loopback address or a Unix socket, on a thread of its own that gives way to others.
//!
//! It has no password, so only programs of this host come to it; and those are not trusted either. There are so many connections at a time and no
//! more, each has one request with a small head, is heard and answered within seconds, and gives way to a newer one while it has not said what it
//! wants, or does not read what it was answered. Whatever they do, the service thread is asked four times a second.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::cache::Cache;
use super::pages;
use crate::life::Note;
use crate::listener::{ListenError, Listener};
use crate::service::Calls;
use crate::settings::{AdminAddress, Settings};

/// Connections at a time.
const CONNECTIONS: usize = 32;
/// Bytes of a request's head, and of its answer on the way out.
const BUFFER: usize = 8 << 10;
/// Lines of a request's head.
const HEADERS: usize = 64;
/// How long a request's head may take.
const HEAD: Duration = Duration::from_secs(5);
/// How long all of a connection may take.
const WHOLE: Duration = Duration::from_secs(10);
/// How long an answer may lie unread while others wait for a place.
const UNREAD: Duration = Duration::from_millis(250);
/// Connections are accepted at this distance, once so many have come at once: who connects without end has a small share of a processor.
const PACE: Duration = Duration::from_millis(1);
const BURST: u32 = 64;
/// Connections that wait to be accepted. At that pace they wait for an eighth of a second, behind however many; with the system's 4096 an honest
/// one would wait for seconds.
const BACKLOG: i32 = 128;
/// How long accepting waits when the system has no room.
const PAUSE: Duration = Duration::from_millis(100);
/// By how much its thread is less important than the others.
const NICE: i32 = 10;
/// Permissions of its Unix socket: its owner and group.
const MODE: u32 = 0o660;

/// Why there is no admin endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The socket is not to be had.
    #[error("cannot serve the admin pages at {address}: {source}; give another address with --admin")]
    Bind {
        /// Where.
        address: AdminAddress,
        /// Why.
        source: io::Error,
    },
    /// The Unix socket is not to be had.
    #[error("cannot serve the admin pages: {0}")]
    Unix(#[from] ListenError),
    /// A socket that was passed listens to other hosts.
    #[error(
        "the admin socket that was passed listens at {0}, which is no loopback address, and the pages have no password"
    )]
    NotLoopback(SocketAddr),
    /// Anything else.
    #[error("cannot start the thread that serves the admin pages: {0}")]
    Thread(#[from] io::Error),
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    /// With the file, if it is ours.
    Unix(UnixListener, Option<Listener>),
}

/// A socket that listens, and is not served yet.
#[derive(Debug)]
pub struct Open {
    socket: Socket,
    address: AdminAddress,
}

impl Open {
    /// Listens where the settings say.
    ///
    /// # Errors
    /// [`AdminError`].
    pub fn bind(address: &AdminAddress, settings: &Settings) -> Result<Self, AdminError> {
        match address {
            AdminAddress::Tcp(at) => {
                let fail = |source| AdminError::Bind { address: address.clone(), source };
                Self::tcp(listen(*at).map_err(fail)?)
            }
            AdminAddress::Unix(path) => {
                let file = Listener::bind(
                    path,
                    MODE,
                    settings.owner,
                    settings.group,
                    &Note::of_this(&settings.addresses),
                )?;
                let socket = file.socket().try_clone()?;
                Ok(Self { socket: Socket::Unix(socket, Some(file)), address: address.clone() })
            }
        }
    }

    /// A TCP socket that listens already.
    ///
    /// # Errors
    /// It listens to other hosts.
    pub fn tcp(socket: TcpListener) -> Result<Self, AdminError> {
        let at = socket.local_addr()?;
        if !at.ip().is_loopback() {
            return Err(AdminError::NotLoopback(at));
        }
        socket.set_nonblocking(true)?;
        Ok(Self { socket: Socket::Tcp(socket), address: AdminAddress::Tcp(at) })
    }

    /// A Unix socket that listens already, whose file is somebody else's.
    ///
    /// # Errors
    /// The system does not let it be used.
    pub fn unix(socket: UnixListener) -> Result<Self, AdminError> {
        socket.set_nonblocking(true)?;
        let path = socket.local_addr()?.as_pathname().map(Into::into);
        Ok(Self { socket: Socket::Unix(socket, None), address: AdminAddress::Unix(path.unwrap_or_default()) })
    }
}

fn listen(at: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(at), socket2::Type::STREAM, None)?;
    // Not refused for connections of an earlier daemon that have ended.
    socket.set_reuse_address(true)?;
    socket.bind(&at.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// The endpoint, served. Dropping it ends it.
#[derive(Debug)]
pub struct Admin {
    address: AdminAddress,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    file: Option<Listener>,
}

impl Admin {
    /// Serves it, asking this service.
    ///
    /// # Errors
    /// No thread or descriptors.
    pub fn serve(open: Open, calls: Arc<Calls>) -> Result<Self, AdminError> {
        let Open { socket, address } = open;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (socket, file) = {
            // What registers a socket is the runtime it is in.
            let _in = runtime.enter();
            match socket {
                Socket::Tcp(socket) => (Accept::Tcp(tokio::net::TcpListener::from_std(socket)?), None),
                Socket::Unix(socket, file) => {
                    (Accept::Unix(tokio::net::UnixListener::from_std(socket)?), file)
                }
            }
        };
        // A browser does not come to a Unix socket by any name.
        let router = pages::router(Cache::new(calls), matches!(socket, Accept::Tcp(_)));
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new().name("rds admin".to_owned()).spawn(move || {
            // Of this thread alone. Refused: it is as important as the others, and paced.
            let _ = rustix::process::nice(NICE);
            runtime.block_on(async {
                let serve = serve(socket, router);
                tokio::select! {
                    () = serve => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread), file })
    }

    /// Where it is served, with the port that it got.
    #[must_use]
    pub fn address(&self) -> &AdminAddress {
        &self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        drop(self.file.take());
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // If it panicked, that was reported where it happened.
            let _ = thread.join();
        }
    }
}

enum Accept {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

enum Connection {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

impl Accept {
    async fn next(&self) -> io::Result<Connection> {
        match self {
            Self::Tcp(listener) => Ok(Connection::Tcp(listener.accept().await?.0)),
            Self::Unix(listener) => Ok(Connection::Unix(listener.accept().await?.0)),
        }
    }
}

/// Serves until it is dropped, with all connections.
async fn serve(socket: Accept, router: Router) {
    let slots = Slots::default();
    let mut tasks = JoinSet::new();
    let mut due = Instant::now();
    for id in 0.. {
        let connection = match socket.next().await {
            Ok(connection) => connection,
            Err(_) => {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        while tasks.try_join_next().is_some() {}
        while !slots.make_room() {
            // All are being answered, which ends soon, or have been a moment ago.
            let _ = tokio::time::timeout(UNREAD, tasks.join_next()).await;
        }
        let slot = Slot { id, slots: slots.clone() };
        let router = router.clone();
        let task = match connection {
            Connection::Tcp(socket) => tasks.spawn(answer(socket, router, slot)),
            Connection::Unix(socket) => tasks.spawn(answer(socket, router, slot)),
        };
        slots.add(id, task);
        // Those that were ended go now, and not after the burst.
        tokio::task::yield_now().await;
        let now = Instant::now();
        due = due.max(now - PACE * BURST) + PACE;
        if due > now {
            tokio::time::sleep_until(due).await;
        }
    }
}

/// Answers one request.
async fn answer(socket: impl AsyncRead + AsyncWrite + Unpin, router: Router, slot: Slot) {
    let pages = TowerToHyperService::new(router);
    let service = service_fn(|request| {
        slot.is(Stage::Asked);
        let answer = pages.call(request);
        let slot = &slot;
        async move {
            let answer = answer.await;
            // It is there as a whole: what is left is up to the other end.
            slot.is(Stage::Answered(Instant::now()));
            answer
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(BUFFER)
        .max_headers(HEADERS)
        .keep_alive(false)
        // Who has said all may close that half.
        .half_close(true)
        .serve_connection(TokioIo::new(socket), service);
    // Whatever is wrong is the other end's.
    let _ = tokio::time::timeout(WHOLE, connection).await;
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It has not said what it wants.
    Silent,
    Asked,
    /// It has its answer, or would have if it read it.
    Answered(Instant),
}

/// The connections that there are, in the order in which they came: how each is ended, and how far it is.
#[derive(Clone, Debug, Default)]
struct Slots(Arc<Mutex<BTreeMap<u64, (AbortHandle, Stage)>>>);

impl Slots {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, (AbortHandle, Stage)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, id: u64, task: AbortHandle) {
        // On a runtime of one thread, it has not begun yet.
        self.lock().insert(id, (task, Stage::Silent));
    }

    /// Whether there is room for one more, for which the oldest that has not said what it wants is ended, or else the oldest that has not read its
    /// answer.
    fn make_room(&self) -> bool {
        let mut slots = self.lock();
        if slots.len() < CONNECTIONS {
            return true;
        }
        let oldest =
            |of: fn(&Stage) -> bool| slots.iter().find(|(_, (_, stage))| of(stage)).map(|(id, _)| *id);
        let unread = |stage: &Stage| matches!(stage, Stage::Answered(at) if at.elapsed() >= UNREAD);
        let idle = oldest(|stage| *stage == Stage::Silent).or_else(|| oldest(unread));
        let Some((task, _)) = idle.and_then(|id| slots.remove(&id)) else { return false };
        // What is dropped by it takes the lock.
        drop(slots);
        task.abort();
        true
    }
}

/// A connection's place, as long as it lives.
struct Slot {
    id: u64,
    slots: Slots,
}

impl Slot {
    fn is(&self, stage: Stage) {
        if let Some((_, its)) = self.slots.lock().get_mut(&self.id) {
            *its = stage;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.lock().remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use axum::routing::get;

    use super::*;

    /// More than the kernel keeps for who does not read.
    const LARGE: usize = 16 << 20;

    fn ask(at: SocketAddr, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).unwrap();
        stream
    }

    #[test]
    fn who_does_not_read_answers_gives_way_to_who_wants_one() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let at = listener.local_addr().unwrap();
        let large = axum::body::Bytes::from(vec![b'x'; LARGE]);
        let router = Router::new()
            .route("/large", get(move || std::future::ready(large.clone())))
            .route("/small", get(|| async { "here" }));
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve(Accept::Tcp(listener), router) => {}
                    _ = stopped => {}
                }
            });
        });
        let mut unread: Vec<_> = (0..CONNECTIONS).map(|_| ask(at, "/large")).collect();
        // Each has the first byte of its answer, and will not take the rest.
        unread.iter_mut().for_each(|stream| stream.read_exact(&mut [0]).unwrap());
        let mut text = String::new();
        ask(at, "/small").read_to_string(&mut text).unwrap();
        assert!(text.ends_with("\r\n\r\nhere"), "{text}");
        // It was the oldest alone that made way: the others' time is not over.
        for (n, mut stream) in unread.into_iter().enumerate().skip(1) {
            let mut body = Vec::new();
            let end = stream.read_to_end(&mut body);
            assert!(end.is_ok() && body.len() > LARGE, "number {n}: {end:?} after {} bytes", body.len());
        }
        drop(stop);
        thread.join().unwrap();
    }
}
