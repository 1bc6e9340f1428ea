//! Programs that a scenario listens to, on either side. What they receive they say in lines of one form.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use super::PATIENCE;

/// A running program, which is killed with its value.
#[derive(Debug)]
pub struct Said {
    name: String,
    pub(super) child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

/// A message that a program received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Port that sent it.
    pub from: u16,
    /// Its number.
    pub number: u64,
    /// Its bytes of payload.
    pub len: usize,
}

impl Said {
    /// Runs `command`. `name` is for messages.
    ///
    /// # Panics
    /// It cannot be started.
    #[must_use]
    #[track_caller]
    pub fn start(name: String, command: &mut Command) -> Self {
        let started = command.stdout(Stdio::piped()).spawn();
        let mut child = started.unwrap_or_else(|e| panic!("{name} cannot be started: {e}"));
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let (sink, lines) = channel();
        std::thread::spawn(move || out.lines().map_while(Result::ok).try_for_each(|line| sink.send(line)));
        Self { name, child, lines, said: Vec::new() }
    }

    /// The next line that is `wanted`, after those that were returned before.
    ///
    /// # Panics
    /// It does not come. `what` says what it would be.
    #[track_caller]
    pub fn says(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let since = Instant::now();
        loop {
            match self.lines.recv_timeout(PATIENCE.saturating_sub(since.elapsed())) {
                Ok(line) => {
                    self.said.push(line.clone());
                    if wanted(&line) {
                        return line;
                    }
                }
                Err(_) => panic!("{}", self.complaint(&format!("does not say {what}"))),
            }
        }
    }

    /// Returns when message `number` from port `from` has arrived, or a later one.
    ///
    /// # Panics
    /// It does not.
    #[track_caller]
    pub fn receives(&mut self, from: u16, number: u64) {
        let reached = |a: Arrived| a.from == from && a.number >= number;
        if !self.arrived().into_iter().any(reached) {
            let what = format!("that message {number} from port {from} came");
            self.says(&what, |line| arrived(line).is_some_and(reached));
        }
    }

    /// Messages that have arrived, as far as they have been waited for.
    #[must_use]
    pub fn arrived(&self) -> Vec<Arrived> {
        self.said.iter().filter_map(|line| arrived(line)).collect()
    }

    /// Numbers of those from a port.
    #[must_use]
    pub fn numbers(&self, from: u16) -> Vec<u64> {
        self.arrived().into_iter().filter(|a| a.from == from).map(|a| a.number).collect()
    }

    /// Waits until it ends by itself, and says that all went well. Returns all that it said.
    ///
    /// # Panics
    /// It does not end, or fails.
    #[track_caller]
    pub fn ends_well(&mut self) -> &[String] {
        let since = Instant::now();
        while let Ok(line) = self.lines.recv_timeout(PATIENCE.saturating_sub(since.elapsed())) {
            self.said.push(line);
        }
        if since.elapsed() >= PATIENCE {
            panic!("{}", self.complaint("does not end"));
        }
        let status = self.child.wait().expect("it is our child");
        if !status.success() {
            panic!("{}", self.complaint(&format!("ends with {status}")));
        }
        self.is_undamaged();
        &self.said
    }

    /// Waits for the end of one that was killed, and takes in what it had said.
    ///
    /// # Panics
    /// Bytes were wrong.
    #[track_caller]
    pub fn was_killed(&mut self) {
        self.child.wait().expect("it is our child");
        self.said.extend(self.lines.iter());
        self.is_undamaged();
    }

    /// # Panics
    /// It has said that a byte was wrong.
    #[track_caller]
    pub fn is_undamaged(&self) {
        let wrong: Vec<_> = self.said.iter().filter(|line| line.starts_with("corrupt")).collect();
        assert!(wrong.is_empty(), "{self}: {wrong:#?}");
    }

    fn complaint(&mut self, what: &str) -> String {
        let name = self.name.clone();
        format!("{name} {what}, after {:#?}", self.tail())
    }

    /// The last lines that it has said.
    pub fn tail(&mut self) -> &[String] {
        self.said.extend(self.lines.try_iter());
        &self.said[self.said.len().saturating_sub(12)..]
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        // It has ended, unless the scenario failed or needs it no more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `recv n=0 from=10.77.0.1:4000 seq=0 size=64`
fn arrived(line: &str) -> Option<Arrived> {
    let field = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    line.strip_prefix("recv ")?;
    Some(Arrived {
        from: field("from")?.rsplit(':').next()?.parse().ok()?,
        number: field("seq")?.parse().ok()?,
        len: field("size")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_messages_are_understood_and_others_are_not() {
        let expected = |number| Some(Arrived { from: 4000, number, len: 64 });
        assert_eq!(arrived("recv n=0 from=10.77.0.1:4000 seq=7 size=64"), expected(7));
        assert_eq!(arrived("recv n=0 from=[fd77::1]:4000 seq=8 size=64"), expected(8));
        assert_eq!(arrived("done recv messages=1 bytes=64 errors=0 elapsed_ms=3 rate_kBps=2"), None);
        assert_eq!(arrived("gap from=10.77.0.1:4000 want=1 got=2"), None);
    }
}
