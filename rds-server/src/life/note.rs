//! Who serves a socket path: a line in the lock file, for whoever finds the path taken.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

const MARK: &str = "# pid ";
/// Bytes of a lock file that are looked at.
const LONGEST: u64 = 8 << 20;
/// The lock file's other lines are shorter.
const LINE: u64 = 4096;

/// A daemon, as its lock file names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Its process.
    pub pid: u32,
    /// When it started, in seconds since 1970.
    pub since: u64,
    /// Addresses of its nodes.
    pub addresses: Vec<IpAddr>,
}

impl Note {
    /// This process, from now on.
    #[must_use]
    pub fn of_this(addresses: &[IpAddr]) -> Self {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Self { pid: std::process::id(), since, addresses: addresses.to_vec() }
    }

    /// As a line of the file, its end included.
    #[must_use]
    pub fn line(&self) -> String {
        let Self { pid, since, addresses } = self;
        format!("{MARK}{pid} since {since} addresses {}\n", list(addresses, ","))
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix(MARK)?.split(' ');
        let pid = words.next()?.parse().ok()?;
        let since = words.nth(1)?.parse().ok()?;
        let addresses = words.nth(1)?.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
        Some(Self { pid, since, addresses })
    }

    /// Writes it behind what is in `file`, of which a line without its end goes: somebody died while writing it.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn append(&self, file: &File) -> io::Result<()> {
        let len = file.metadata()?.len();
        let mut tail = vec![0; usize::try_from(len.min(LINE)).unwrap_or(0)];
        let from = len - tail.len() as u64;
        file.read_exact_at(&mut tail, from)?;
        // Where there are no other lines, older notes make way.
        let notes =
            from == 0 && tail.split_inclusive(|byte| *byte == b'\n').all(|line| line.starts_with(b"#"));
        if notes {
            tail.clear();
        }
        let whole = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last as u64 + 1);
        file.set_len(from + whole)?;
        file.write_all_at(self.line().as_bytes(), from + whole)
    }

    /// The newest in `file`.
    #[must_use]
    pub fn read(file: &File) -> Option<Self> {
        let len = file.metadata().ok()?.len().min(LONGEST);
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        // Its owner may write meanwhile: what is missing then is found to be no line.
        let _ = file.read_exact_at(&mut bytes, 0);
        String::from_utf8_lossy(&bytes).lines().rev().find_map(Self::parse)
    }
}

fn list(addresses: &[IpAddr], between: &str) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(between)
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, since, addresses } = self;
        write!(f, "pid {pid}, since {}, addresses {}", Utc(*since), list(addresses, ", "))
    }
}

/// Seconds since 1970, as a date and a time.
struct Utc(u64);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const DAY: u64 = 86400;
        // What is beyond year 9999 is no date of ours.
        let (mut days, time) = ((self.0 / DAY).min(2_932_896), self.0 % DAY);
        let mut year = 1970;
        let leap =
            |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        while days >= 365 + u64::from(leap(year)) {
            days -= 365 + u64::from(leap(year));
            year += 1;
        }
        let mut month = 1;
        for length in [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            if days < length {
                break;
            }
            days -= length;
            month += 1;
        }
        let (day, hour, minute, second) = (days + 1, time / 3600, time / 60 % 60, time % 60);
        write!(f, "{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
    }
}

/// Who has a socket path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Occupant {
    /// A daemon that says so in the lock file.
    Daemon(Note),
    /// A process that listens there.
    Process {
        /// Its number.
        pid: u32,
        /// Its program, as the kernel shortens it: 15 bytes.
        program: String,
    },
    /// Nobody knows.
    Unknown,
}

impl Occupant {
    /// Who listens at `path`, as far as the kernel says who.
    #[must_use]
    pub fn listening(path: &Path) -> Self {
        // A listener whose queue is full must not hold this up.
        let connect = || -> Option<UnixStream> {
            let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None).ok()?;
            socket.connect_timeout(&socket2::SockAddr::unix(path).ok()?, Duration::from_millis(200)).ok()?;
            Some(socket.into())
        };
        let pid =
            connect().and_then(|socket| getsockopt(&socket, PeerCredentials).ok()).map(|peer| peer.pid());
        let Some(pid) = pid.and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0) else {
            return Self::Unknown;
        };
        let program = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let program: String = program.trim_end().chars().filter(|c| !c.is_control()).collect();
        Self::Process { pid, program: if program.is_empty() { "unknown".to_owned() } else { program } }
    }
}

impl fmt::Display for Occupant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Daemon(note) => write!(f, "another rds-server ({note})"),
            Self::Process { pid, program } => write!(f, "another process ({program}, pid {pid})"),
            Self::Unknown => f.write_str("another daemon"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_note_is_found_among_other_lines_and_anything_else_is_none() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(Note::read(&file), None);
        file.write_all_at(b"# pid 7 since 1 addresses 10.0.0.9\n+ 10.0.0.1 80 exclusive\n+ 10.0.0.1 8", 0)
            .unwrap();
        assert_eq!(Note::read(&file).map(|note| note.pid), Some(7));
        let note = Note::of_this(&["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()]);
        note.append(&file).unwrap();
        let len = file.metadata().unwrap().len();
        file.write_all_at(b"# pid x since 1 addresses ::1\n# pid 3\n\xff\xfe", len).unwrap();
        assert_eq!(Note::read(&file), Some(note));
        let mut text = vec![0; 100];
        let read = file.read_at(&mut text, 0).unwrap();
        let text = String::from_utf8_lossy(&text[..read]);
        assert!(text.contains("+ 10.0.0.1 80 exclusive\n# pid"), "half a line is gone: {text}");
    }

    #[test]
    fn a_file_of_notes_alone_does_not_grow() {
        let file = tempfile::tempfile().unwrap();
        let note = Note::of_this(&["10.0.0.1".parse().unwrap()]);
        for _ in 0..3 {
            note.append(&file).unwrap();
        }
        assert_eq!(file.metadata().unwrap().len(), note.line().len() as u64);
        assert_eq!(Note::read(&file), Some(note));
    }

    #[test]
    fn a_note_says_who_and_since_when() {
        for (since, date) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_709_251_199, "2024-02-29 23:59:59"),
            (1_735_689_600, "2025-01-01 00:00:00"),
            (1_796_098_016, "2026-12-01 04:06:56"),
        ] {
            let note = Note { pid: 5, since, addresses: vec!["::1".parse().unwrap()] };
            assert_eq!(note.to_string(), format!("pid 5, since {date} UTC, addresses ::1"));
        }
        let far = Note { pid: 5, since: u64::MAX, addresses: vec!["::1".parse().unwrap()] };
        assert!(far.to_string().contains("since 9999-"), "{far}");
    }
}
