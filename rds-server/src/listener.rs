//! The Unix socket at which programs attach.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{Gid, Uid};
use socket2::{Domain, SockAddr, Socket, Type};

use crate::life::{Note, Occupant};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 256;

/// Why the daemon cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Somebody is there.
    #[error("{who} serves {}: stop it, or give another path with --socket", path.display())]
    Live {
        /// The path.
        path: PathBuf,
        /// Who has it.
        who: Occupant,
    },
    /// A socket that was passed has no path.
    #[error("the socket that was passed for programs has no path ({0}): give one to ListenStream")]
    NoPath(String),
    /// A file that is no socket.
    #[error("{} is there and is not a socket: remove it, or give another path with --socket", .0.display())]
    NotASocket(PathBuf),
    /// No socket can have such a path.
    #[error("the path {} is too long for a socket: give one of less than 108 bytes with --socket", .0.display())]
    TooLong(PathBuf),
    /// The folder is missing.
    #[error(
        "the folder {} is not there and cannot be made ({source}): make it and let this user write there, or give another path with --socket",
        folder.display()
    )]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Anything else.
    #[error("cannot {what} {}: {source}; let this user do so, or give another path with --socket", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A listening Unix socket, whose file goes with it.
#[derive(Debug)]
pub struct Listener {
    socket: UnixListener,
    path: PathBuf,
    /// The file as it was made: another daemon's is not ours to remove. `None`: it was passed, and stays for the next.
    file: Option<(u64, u64)>,
    /// Held as long as the daemon lives. The file stays: were it removed, two could hold locks of two files of one name.
    lock: Flock<File>,
}

impl Listener {
    /// Listens at `path`, with these permissions and owners. A file that a dead daemon left is replaced. Whoever comes meanwhile reads `note`.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(
        path: &Path,
        mode: u32,
        owner: Option<u32>,
        group: Option<u32>,
        note: &Note,
    ) -> Result<Self, ListenError> {
        let io = |what, at: &Path| {
            let path = at.to_owned();
            move |source| ListenError::Io { what, path, source }
        };
        // First what would leave a lock beside a path that can never be ours.
        let address = SockAddr::unix(path).map_err(|_| ListenError::TooLong(path.to_owned()))?;
        refuse_other_file(path)?;
        if let Some(folder) = path.parent().filter(|p| !p.as_os_str().is_empty())
            && !folder.is_dir()
        {
            fs::create_dir(folder)
                .map_err(|source| ListenError::Folder { folder: folder.to_owned(), source })?;
        }
        let lock = lock(path, note)?;
        remove_stale(path)?;
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None).map_err(io("make a socket for", path))?;
        socket.bind(&address).map_err(io("bind", path))?;
        // Nobody can connect before it listens, so nobody slips in before the permissions are set.
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(io("set the mode of", path))?;
        if owner.is_some() || group.is_some() {
            nix::unistd::chown(path, owner.map(Uid::from_raw), group.map(Gid::from_raw))
                .map_err(|e| io("set the owner of", path)(e.into()))?;
        }
        socket.listen(BACKLOG).map_err(io("listen at", path))?;
        socket.set_nonblocking(true).map_err(io("listen at", path))?;
        let file = fs::symlink_metadata(path).map_err(io("look at", path))?;
        let file = Some((file.dev(), file.ino()));
        Ok(Self { socket: socket.into(), path: path.to_owned(), file, lock })
    }

    /// Takes over a socket that listens already, at the path at which it is bound. Its permissions are whoever's who made it.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn inherit(socket: UnixListener, note: &Note) -> Result<Self, ListenError> {
        let address = socket.local_addr();
        let path = address.as_ref().ok().and_then(|address| address.as_pathname());
        let path = path.ok_or_else(|| ListenError::NoPath(format!("{address:?}")))?.to_owned();
        let lock = lock(&path, note)?;
        let io = |source| ListenError::Io { what: "listen at", path: path.clone(), source };
        socket.set_nonblocking(true).map_err(io)?;
        Ok(Self { socket, path, file: None, lock })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The lock's file, for the daemon's own notes; whoever has the socket has it.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn notes(&self) -> io::Result<File> {
        self.lock.try_clone()
    }

    /// The socket; it does not block.
    #[must_use]
    pub fn socket(&self) -> &UnixListener {
        &self.socket
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let is_ours = |file: fs::Metadata| Some((file.dev(), file.ino())) == self.file;
        if fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            // Whatever is wrong, whoever comes next finds a stale file and says what is wrong with it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// The lock that belongs to a path, with a note of who has it.
fn lock(path: &Path, note: &Note) -> Result<Flock<File>, ListenError> {
    let mut lock_path = path.as_os_str().to_owned();
    lock_path.push(".lock");
    let lock_path = PathBuf::from(lock_path);
    let live = |who| ListenError::Live { path: path.to_owned(), who };
    let io = |what| {
        let path = lock_path.clone();
        move |source| ListenError::Io { what, path, source }
    };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(nix::libc::O_NOFOLLOW)
        .open(&lock_path);
    let file = match file {
        // Another user's. If somebody listens, that is what is wrong.
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            return Err(match Occupant::listening(path) {
                Occupant::Unknown => io("open")(e),
                who => live(who),
            });
        }
        file => file.map_err(io("open"))?,
    };
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(file, _)| {
        live(Note::read(&file).map_or_else(|| Occupant::listening(path), Occupant::Daemon))
    })?;
    note.append(&lock).map_err(io("write"))?;
    Ok(lock)
}

/// Whether a file that is no socket is in the way.
fn refuse_other_file(path: &Path) -> Result<(), ListenError> {
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => Err(ListenError::NotASocket(path.to_owned())),
        _ => Ok(()),
    }
}

/// Removes a socket file at which nobody listens.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    refuse_other_file(path)?;
    match UnixStream::connect(path) {
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(|source| {
            ListenError::Io { what: "remove the stale socket", path: path.to_owned(), source }
        }),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => Err(ListenError::Live { path: path.to_owned(), who: Occupant::listening(path) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(path: &Path) -> Result<Listener, ListenError> {
        Listener::bind(path, 0o600, None, None, &Note::of_this(&[[10, 0, 0, 1].into()]))
    }

    #[test]
    fn a_live_daemons_socket_is_left_alone_and_a_dead_ones_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made").join("rds.sock");
        let live = bind(&path).unwrap();
        let says = bind(&path).unwrap_err().to_string();
        assert!(says.contains(&format!("another rds-server (pid {}, since 2", std::process::id())), "{says}");
        assert!(says.contains("addresses 10.0.0.1) serves"), "{says}");
        assert!(UnixStream::connect(&path).is_ok());
        drop(live);
        assert!(!path.exists());
        // One that died leaves its file.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let again = bind(&path).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(again);
    }

    #[test]
    fn somebody_elses_socket_and_a_file_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rds.sock");
        let other = UnixListener::bind(&path).unwrap();
        let says = bind(&path).unwrap_err().to_string();
        let (who, own) = ("another process (", format!("pid {}) serves", std::process::id()));
        assert!(says.contains(who) && says.contains(&own), "one without a lock: {says}");
        drop(other);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        let error = bind(&path).unwrap_err().to_string();
        assert!(error.contains("is not a socket"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
        let own = folder.path().join("notes");
        fs::write(&own, "").unwrap();
        assert!(bind(&own).is_err() && !folder.path().join("notes.lock").exists());
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_refused_as_too_long() {
        let folder = tempfile::tempdir().unwrap();
        let error = bind(&folder.path().join("x".repeat(200))).unwrap_err().to_string();
        assert!(error.contains("is too long for a socket"), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/rds.sock");
        let error = bind(&path).unwrap_err().to_string();
        assert!(error.contains("/a/b is not there and cannot be made"), "{error}");
    }

    #[test]
    fn a_socket_that_was_passed_is_used_as_it_is_and_left_for_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rds.sock");
        let passed = UnixListener::bind(&path).unwrap();
        let note = Note::of_this(&[[10, 0, 0, 1].into()]);
        let first = Listener::inherit(passed.try_clone().unwrap(), &note).unwrap();
        assert_eq!(first.path(), path);
        let second = Listener::inherit(passed.try_clone().unwrap(), &note);
        assert!(matches!(second, Err(ListenError::Live { who: Occupant::Daemon(_), .. })), "{second:?}");
        drop(first);
        assert!(UnixStream::connect(&path).is_ok(), "it listens as before");
        let error = Listener::inherit(UnixListener::bind_addr(&unnamed()).unwrap(), &note).unwrap_err();
        assert!(error.to_string().contains("ListenStream"), "{error}");
    }

    fn unnamed() -> std::os::unix::net::SocketAddr {
        use std::os::linux::net::SocketAddrExt;
        let name = format!("rds-test-{}", std::process::id());
        std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap()
    }

    #[test]
    fn a_socket_that_took_its_place_is_not_removed_with_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rds.sock");
        let first = bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(first);
        assert!(path.exists());
        drop(other);
    }
}
