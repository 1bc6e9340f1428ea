//! Sockets that whoever started the daemon has opened for it (LISTEN_FDS, sd_listen_fds(3)): one for programs, and one named `admin`.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;
use socket2::SockRef;

/// The admin endpoint's socket.
#[derive(Debug)]
#[non_exhaustive]
pub enum AdminSocket {
    /// A Unix socket.
    Unix(UnixListener),
    /// A TCP socket.
    Tcp(TcpListener),
}

/// Sockets that the daemon was started with. They listen already.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Inherited {
    /// Where programs attach.
    pub programs: Option<UnixListener>,
    /// The admin endpoint.
    pub admin: Option<AdminSocket>,
}

/// What is wrong with such a socket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the socket unit passed {0}; rds-server takes one listening Unix stream socket for programs, and one named admin (FileDescriptorName=admin)"
)]
pub struct InheritError(String);

impl Inherited {
    /// Takes what the environment names. To be called once, before threads are started: it changes the environment.
    ///
    /// # Errors
    /// A socket that the daemon has no use for: one forgotten would have programs wait for ever.
    pub fn take() -> Result<Self, InheritError> {
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let names: Vec<&str> = names.split(':').collect();
        Self::of(ListenFd::from_env(), &names)
    }

    fn of(mut sockets: ListenFd, names: &[&str]) -> Result<Self, InheritError> {
        let mut inherited = Self::default();
        for n in 0..sockets.len() {
            let wrong = |what: &str| InheritError(format!("{what} as number {}", n + 1));
            let unix = sockets.take_unix_listener(n).ok().flatten();
            if names.get(n) == Some(&"admin") {
                let socket = match unix {
                    Some(socket) => Some(AdminSocket::Unix(socket)),
                    None => sockets.take_tcp_listener(n).ok().flatten().map(AdminSocket::Tcp),
                };
                let socket = socket.ok_or_else(|| wrong("no stream socket"))?;
                let listens = match &socket {
                    AdminSocket::Unix(socket) => SockRef::from(socket).is_listener(),
                    AdminSocket::Tcp(socket) => SockRef::from(socket).is_listener(),
                };
                if !listens.unwrap_or(false) {
                    return Err(wrong("one named admin that does not listen"));
                }
                if inherited.admin.replace(socket).is_some() {
                    return Err(wrong("another one named admin"));
                }
                continue;
            }
            let socket = unix.ok_or_else(|| wrong("no Unix stream socket"))?;
            if !SockRef::from(&socket).is_listener().unwrap_or(false) {
                return Err(wrong("one that does not listen (Accept=no is needed)"));
            }
            if inherited.programs.replace(socket).is_some() {
                return Err(wrong("a second one for programs"));
            }
        }
        Ok(inherited)
    }
}
