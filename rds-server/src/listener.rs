//! The Unix socket at which programs attach.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{Gid, Uid};
use socket2::{Domain, SockAddr, Socket, Type};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 256;

/// Why the daemon cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another daemon is there.
    #[error("another daemon serves {}: stop it, or give another path with --socket", .0.display())]
    Live(PathBuf),
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
    /// The file as it was made: another daemon's is not ours to remove.
    file: (u64, u64),
    /// Held as long as the daemon lives. The file stays: were it removed, two could hold locks of two files of one name.
    lock: Flock<File>,
}

impl Listener {
    /// Listens at `path`, with these permissions and owners. A file that a dead daemon left is replaced.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn bind(path: &Path, mode: u32, owner: Option<u32>, group: Option<u32>) -> Result<Self, ListenError> {
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
        let mut lock_path = path.as_os_str().to_owned();
        lock_path.push(".lock");
        let lock_path = PathBuf::from(lock_path);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(nix::libc::O_NOFOLLOW)
            .open(&lock_path);
        let lock = Flock::lock(file.map_err(io("open", &lock_path))?, FlockArg::LockExclusiveNonblock)
            .map_err(|_| ListenError::Live(path.to_owned()))?;
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
        let file = (file.dev(), file.ino());
        Ok(Self { socket: socket.into(), path: path.to_owned(), file, lock })
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
        let is_ours = |file: fs::Metadata| (file.dev(), file.ino()) == self.file;
        if fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            // Whatever is wrong, whoever comes next finds a stale file and says what is wrong with it.
            let _ = fs::remove_file(&self.path);
        }
    }
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
        _ => Err(ListenError::Live(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(path: &Path) -> Result<Listener, ListenError> {
        Listener::bind(path, 0o600, None, None)
    }

    #[test]
    fn a_live_daemons_socket_is_left_alone_and_a_dead_ones_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made").join("rds.sock");
        let live = bind(&path).unwrap();
        assert!(matches!(bind(&path), Err(ListenError::Live(_))));
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
        assert!(matches!(bind(&path), Err(ListenError::Live(_))), "one without a lock");
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
