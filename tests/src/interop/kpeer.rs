//! Programs on the kernel's side: `tests/rig/kpeer.c`, run in a guest and listened to.

use std::ops::{Deref, DerefMut};

use super::said::Said;
use crate::guest::Guest;

/// A running kpeer. Is killed with its value, in the guest too.
#[derive(Debug)]
pub struct Kpeer {
    said: Said,
    /// Its number as a process of the guest.
    process: String,
}

impl Kpeer {
    pub(super) fn start(guest: &Guest, arguments: &str) -> Self {
        let mut command = guest.command(&format!("echo process=$$; exec kpeer {arguments} 2>&1"));
        let mut said = Said::start(format!("kpeer {arguments}"), &mut command);
        let first = said.says("its process", |line| line.starts_with("process="));
        Self { said, process: first["process=".len()..].to_owned() }
    }

    /// Waits until it is bound, and returns it.
    ///
    /// # Panics
    /// It does not come to that.
    #[must_use]
    #[track_caller]
    pub fn ready(mut self) -> Self {
        self.says("that it is ready", |line| line.starts_with("ready"));
        self
    }

    /// Stops it, as a program that does nothing for a while.
    pub fn stop(&self, guest: &Guest) {
        guest.shell(&format!("kill -STOP {}", self.process));
    }

    /// Lets it go on.
    pub fn go_on(&self, guest: &Guest) {
        guest.shell(&format!("kill -CONT {}", self.process));
    }

    /// Kills it, as a program that ends without a word: its socket closes with all that it has. Returns when it is gone.
    ///
    /// # Panics
    /// It has ended before; bytes were wrong.
    #[track_caller]
    pub fn kill(&mut self, guest: &Guest) {
        guest.shell(&format!("kill -KILL {}", self.process));
        self.was_killed();
    }
}

impl Deref for Kpeer {
    type Target = Said;

    fn deref(&self) -> &Said {
        &self.said
    }
}

impl DerefMut for Kpeer {
    fn deref_mut(&mut self) -> &mut Said {
        &mut self.said
    }
}
