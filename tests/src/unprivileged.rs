//! Programs run as an ordinary user, with a limit of locked memory.
//!
//! RLIMIT_MEMLOCK bounds what a user may pin, zero-copy sends included, unless he has CAP_IPC_LOCK: so as root no test ever meets it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::Uid;
use tempfile::TempDir;

use crate::skip::Unavailable;

/// The user and the group that own nothing, by number: the name of the group differs between systems.
pub const NOBODY: u32 = 65534;

/// A copy of a program where every user can read and run it.
#[derive(Debug)]
pub struct Unprivileged {
    program: PathBuf,
    user: u32,
    /// Removed with this.
    _directory: TempDir,
}

impl Unprivileged {
    /// For this program, whose file may lie where only root can read.
    ///
    /// # Errors
    /// The process is not root, or may not drop capabilities; setpriv(1) or prlimit(1) is missing (both of util-linux); there is no place
    /// for temporary files from which another user may run programs.
    ///
    /// # Panics
    /// The program cannot be copied, or the tools cannot do what they are used for.
    pub fn new(program: &Path) -> Result<Self, Unavailable> {
        if !Uid::effective().is_root() {
            return Err(Unavailable::because("only root can become another user"));
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let name = program.file_name().expect("a program has a name");
        let copy = directory.path().join(name);
        fs::copy(program, &copy).unwrap_or_else(|e| panic!("cannot copy {}: {e}", program.display()));
        for path in [directory.path(), &copy] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).expect("the owner may");
        }
        let new = Self { program: copy, user: NOBODY, _directory: directory };
        let tried = new.start(0, Path::new("test")).arg("-x").arg(&new.program).output();
        let tried = tried.map_err(|e| Unavailable::because(format!("prlimit(1) cannot be run: {e}")))?;
        let errors = String::from_utf8_lossy(&tried.stderr);
        match tried.status.code() {
            Some(0) => Ok(new),
            _ if errors.contains("not permitted") || errors.contains("No such file") => {
                Err(Unavailable::because(errors.trim()))
            }
            // What test(1) ends with, saying nothing.
            Some(1) if errors.is_empty() => {
                Err(Unavailable::because(format!("nobody cannot run {}", new.program.display())))
            }
            _ => panic!("{}: {errors}", tried.status),
        }
    }

    /// As the user of this number instead of [`NOBODY`]. What all processes of a user have locked counts together.
    #[must_use]
    pub fn with_user(self, user: u32) -> Self {
        Self { user, ..self }
    }

    /// A command that runs the program as the user, without capabilities and without a way to get any, with `memlock` bytes that it may
    /// lock (soft and hard limit; above our own hard limit only with CAP_SYS_RESOURCE). The process has the number of the one that is started, so killing that kills it.
    #[must_use]
    pub fn command(&self, memlock: u64) -> Command {
        self.start(memlock, &self.program)
    }

    fn start(&self, memlock: u64, program: &Path) -> Command {
        let mut command = Command::new("prlimit");
        command.arg(format!("--memlock={memlock}:{memlock}"));
        command.args(["setpriv", &format!("--reuid={}", self.user), &format!("--regid={NOBODY}")]);
        command.args(["--clear-groups", "--inh-caps=-all", "--ambient-caps=-all", "--bounding-set=-all"]);
        command.args(["--no-new-privs", "--"]).arg(program);
        command
    }
}
