//! Which ports were bound, kept in a file over the daemon's death.
//!
//! A daemon that is started again must not serve peers before its clients have bound their ports again: what came meanwhile would find no socket,
//! and be dropped as delivered. So it opens its nodes paused while it expects ports (`host`).
//!
//! It is the lock's file, and has the daemon's own note (`life::Note`) as well. It has a line for each member that came (`+ address port sharing`) or left (`-`), and is written anew now and then. It is only
//! appended to otherwise, so that a daemon can die at any moment. What cannot be read of it is left out: at worst a node waits in vain
//! for a port, and no longer than its deadline.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rds_core::attach::Sharing;

/// Bytes of a file that are looked at.
const LONGEST: usize = 8 << 20;
/// Lines more than there are members before the file is written anew.
const STALE_LINES: usize = 4096;

/// How many members each port of a node had.
pub type Expected = HashMap<u16, u32>;

/// The file, and what is in it.
#[derive(Debug)]
pub struct Remembered(Mutex<State>);

#[derive(Debug)]
struct State {
    file: File,
    end: u64,
    lines: usize,
    members: HashMap<(IpAddr, u16, &'static str), u32>,
    frozen: bool,
    /// The first line of a file that is written anew.
    note: String,
}

fn name(sharing: Sharing) -> &'static str {
    match sharing {
        Sharing::Exclusive => "exclusive",
        Sharing::Balance => "balance",
        Sharing::FanOut => "fan-out",
    }
}

fn parse(line: &str) -> Option<(bool, IpAddr, u16)> {
    let mut words = line.split(' ');
    let came = match words.next()? {
        "+" => true,
        "-" => false,
        _ => return None,
    };
    Some((came, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// What a file's lines come to.
fn replay(text: &str) -> HashMap<IpAddr, Expected> {
    let mut all: HashMap<IpAddr, Expected> = HashMap::new();
    // A line without its end was being written.
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let Some((came, address, port)) = parse(line) else { continue };
        let count = all.entry(address).or_default().entry(port).or_default();
        *count = if came { count.saturating_add(1) } else { count.saturating_sub(1) };
    }
    for ports in all.values_mut() {
        ports.retain(|_, count| *count > 0);
    }
    all.retain(|_, ports| !ports.is_empty());
    all
}

impl Remembered {
    /// Reads what an earlier daemon left in `file`, and goes on from there. The file stays as it is until [`Remembered::renew`], which begins
    /// it with the line `note`.
    #[must_use]
    pub fn new(file: File, note: String) -> (Self, HashMap<IpAddr, Expected>) {
        let mut bytes = vec![0; LONGEST];
        let mut len = 0;
        while let Ok(n @ 1..) = file.read_at(&mut bytes[len..], len as u64) {
            len += n;
        }
        let expected = replay(&String::from_utf8_lossy(&bytes[..len]));
        let state = State { file, end: len as u64, lines: 0, members: HashMap::new(), frozen: false, note };
        (Self(Mutex::new(state)), expected)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A port has one member more.
    pub fn came(&self, address: IpAddr, port: u16, sharing: Sharing) {
        let mut state = self.state();
        *state.members.entry((address, port, name(sharing))).or_default() += 1;
        state.append('+', address, port, name(sharing));
    }

    /// A port has one member less.
    pub fn left(&self, address: IpAddr, port: u16, sharing: Sharing) {
        let mut state = self.state();
        if state.frozen {
            return;
        }
        let key = (address, port, name(sharing));
        if let Some(count) = state.members.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                state.members.remove(&key);
            }
        }
        state.append('-', address, port, name(sharing));
    }

    /// Writes the file anew, with what is bound now alone.
    pub fn renew(&self) {
        self.state().renew();
    }

    /// The daemon ends: what is bound now is what the next one is to expect.
    pub fn freeze(&self) {
        self.state().frozen = true;
    }
}

impl State {
    fn append(&mut self, sign: char, address: IpAddr, port: u16, sharing: &str) {
        let line = format!("{sign} {address} {port} {sharing}\n");
        self.write(&line);
        self.lines += 1;
        let members: u32 = self.members.values().sum();
        if self.lines > members as usize + STALE_LINES {
            self.renew();
        }
    }

    fn write(&mut self, text: &str) {
        match self.file.write_all_at(text.as_bytes(), self.end) {
            Ok(()) => self.end += text.len() as u64,
            Err(e) => told(&e),
        }
    }

    fn renew(&mut self) {
        let mut text = self.note.clone();
        self.lines = 0;
        for ((address, port, sharing), count) in &self.members {
            for _ in 0..*count {
                text.push_str(&format!("+ {address} {port} {sharing}\n"));
                self.lines += 1;
            }
        }
        self.end = 0;
        self.write(&text);
        if let Err(e) = self.file.set_len(self.end) {
            told(&e);
        }
    }
}

fn told(e: &io::Error) {
    tracing::warn!(
        "cannot note which ports are bound ({e}): after a restart, messages that come before programs have bound again may be dropped"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn again(file: &File) -> (Remembered, HashMap<IpAddr, Expected>) {
        Remembered::new(file.try_clone().unwrap(), "# pid 1 since 2 addresses ::1\n".to_owned())
    }

    #[test]
    fn what_was_bound_when_the_daemon_died_is_expected_by_the_next() {
        let file = tempfile::tempfile().unwrap();
        let (first, expected) = again(&file);
        assert!(expected.is_empty());
        first.came(HERE, 80, Sharing::Exclusive);
        first.came(HERE, 81, Sharing::Balance);
        first.came(HERE, 81, Sharing::Balance);
        first.came(HERE, 82, Sharing::FanOut);
        first.left(HERE, 82, Sharing::FanOut);
        let (second, expected) = again(&file);
        assert_eq!(expected, HashMap::from([(HERE, HashMap::from([(80, 1), (81, 2)]))]));
        // Until the ports are bound again, a third expects the same.
        assert_eq!(again(&file).1, expected);
        second.came(HERE, 80, Sharing::Exclusive);
        second.renew();
        assert_eq!(again(&file).1, HashMap::from([(HERE, HashMap::from([(80, 1)]))]));
        second.freeze();
        second.left(HERE, 80, Sharing::Exclusive);
        assert_eq!(again(&file).1, HashMap::from([(HERE, HashMap::from([(80, 1)]))]));
    }

    #[test]
    fn a_file_of_anything_is_read_as_far_as_it_makes_sense() {
        for (text, ports) in [
            (
                &b"\xff\xfe garbage\n+ 10.0.0.1 80 exclusive\n+ x y\n+ 10.0.0.1 99999 a\n- 10.0.0.1 7 a\n"[..],
                vec![80],
            ),
            (b"+ 10.0.0.1 80 exclusive\n+ 10.0.0.1 8", vec![80]),
            (b"", vec![]),
        ] {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(text, 0).unwrap();
            let expected = again(&file).1;
            let found: Vec<u16> = expected.get(&HERE).into_iter().flat_map(|p| p.keys().copied()).collect();
            assert_eq!(found, ports);
        }
    }

    #[test]
    fn the_file_stays_small_however_often_ports_are_bound() {
        let file = tempfile::tempfile().unwrap();
        let (remembered, _) = again(&file);
        for _ in 0..20_000 {
            remembered.came(HERE, 80, Sharing::Exclusive);
            remembered.left(HERE, 80, Sharing::Exclusive);
        }
        assert!(file.metadata().unwrap().len() < 200_000);
        assert!(again(&file).1.is_empty());
    }
}
