//! The socket at which programs attach.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, Uid, access};
use socket2::SockAddr;

use super::finding::{Finding, Status, Todo};
use crate::settings::Settings;

/// Whether the daemon could listen at its socket's path.
#[must_use]
pub fn check(settings: &Settings) -> Finding {
    at("socket", &settings.socket, "--socket")
}

/// Whether it could listen at this path, which was given with this option.
pub(super) fn at(name: &str, path: &Path, option: &str) -> Finding {
    let shown = path.display();
    if SockAddr::unix(path).is_err() {
        let todo = Todo::everywhere(format!("give a path of less than 108 bytes with {option}"));
        return Finding::bad(
            Status::Fail,
            name,
            format!("{shown} is too long for a socket"),
            "the daemon does not start",
            todo,
        );
    }
    match fs::symlink_metadata(path) {
        Ok(file) if !file.file_type().is_socket() => {
            let todo = Todo::everywhere(format!("remove {shown}, or give another path with {option}"));
            return Finding::bad(
                Status::Fail,
                name,
                format!("{shown} is there and is not a socket"),
                "the daemon does not start",
                todo,
            );
        }
        Ok(_) => match UnixStream::connect(path) {
            Ok(_) => {
                let why =
                    "a second daemon there does not start; these checks are of how the next one would fare";
                return Finding::note(name, format!("a daemon, or systemd for it, listens at {shown}"), why);
            }
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let todo = Todo::new(
                    "run as the daemon's user, or as root",
                    "User= of the unit must be the socket's owner",
                    "docker run --user with the number of the socket's owner",
                );
                return Finding::bad(
                    Status::Warning,
                    name,
                    format!("{shown} is another user's"),
                    "whether a daemon serves there cannot be told",
                    todo,
                );
            }
            // A dead daemon's, which the next one replaces.
            Err(_) => {}
        },
        Err(_) => {}
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // It makes the last folder itself.
    let there = if folder.is_dir() { Some(folder) } else { folder.parent().filter(|above| above.is_dir()) };
    let writable = |folder: &Path| access(folder, AccessFlags::W_OK | AccessFlags::X_OK);
    match there.map(|folder| (folder, writable(folder))) {
        Some((_, Ok(()))) => Finding::ok(name, format!("{shown} can be made")),
        Some((_, Err(error))) => not_writable(name, path, folder, option, &error.to_string()),
        None => not_writable(name, path, folder, option, "it is not there, nor the folder above it"),
    }
}

fn not_writable(name: &str, path: &Path, folder: &Path, option: &str, error: &str) -> Finding {
    let (folder, user) = (folder.display(), Uid::effective());
    let own: PathBuf = std::env::temp_dir().join("rds.sock");
    let todo = Todo::new(
        format!("install -d -o {user} {folder} (as root), or {option} {}", own.display()),
        "RuntimeDirectory=rds and RuntimeDirectoryPreserve=yes, with the path below /run/rds",
        format!("docker run --volume or --tmpfs {folder} ..., writable for the container's user"),
    );
    let found = format!("{} cannot be made: user {user} and the folder {folder}: {error}", path.display());
    Finding::bad(Status::Fail, name, found, "the daemon does not start", todo)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn judge(path: &Path) -> Finding {
        let mut settings = Settings::new(Vec::new());
        settings.socket = path.to_owned();
        check(&settings)
    }

    #[test]
    fn a_socket_that_can_be_made_is_told_from_one_that_cannot() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rds.sock");
        assert_eq!(judge(&path).status, Status::Ok);
        assert_eq!(
            judge(&folder.path().join("made/rds.sock")).status,
            Status::Ok,
            "the daemon makes a folder"
        );
        let far = judge(&folder.path().join("a/b/rds.sock"));
        assert!(far.status == Status::Fail && far.found.contains("nor the folder above"), "{far:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "looking leaves nothing");
        let long = judge(&folder.path().join("x".repeat(200)));
        assert!(long.status == Status::Fail && long.found.contains("too long"), "{long:?}");
    }

    #[test]
    fn a_daemon_that_serves_a_dead_one_and_a_file_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rds.sock");
        let live = UnixListener::bind(&path).unwrap();
        assert_eq!(judge(&path).status, Status::Note);
        drop(live);
        assert_eq!(judge(&path).status, Status::Ok);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        assert_eq!(judge(&path).status, Status::Fail);
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_folder_of_another_user_says_who_would_write_there() {
        // Nobody writes there, root neither.
        let finding = judge(Path::new("/proc/self/rds.sock"));
        if finding.status == Status::Ok {
            println!("skipped: /proc counts as writable for this user");
            return;
        }
        assert!(finding.found.contains(&format!("user {}", Uid::effective())), "{finding:?}");
    }
}
