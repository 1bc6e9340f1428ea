//! The controllers of a path: its own, and one for messages that want something else.

use super::controller::{AUTO_MINIMUM, ON_MINIMUM};
use super::{Choice, Decision, Mode, SendController};
use crate::proto::Time;

#[derive(Debug)]
pub(super) struct Controllers {
    mode: Mode,
    path: SendController,
    /// For messages that want `auto` on a path that is off or on.
    auto: Option<Box<SendController>>,
}

impl Controllers {
    pub(super) fn new(mode: Mode, local_peer: bool) -> Self {
        Self { mode, path: SendController::new(mode, local_peer), auto: None }
    }

    /// For messages that begin from now on.
    pub(super) fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
        self.path.set_mode(mode);
    }

    /// What the path's own does.
    pub(super) fn state(&self) -> Decision {
        self.path.state()
    }

    /// Whether a message is copied in any case, now and later: nothing to be remembered.
    pub(super) fn copies(&self, wanted: Option<Mode>, len: usize) -> bool {
        match wanted.unwrap_or(self.mode) {
            Mode::Off => true,
            Mode::On => len < ON_MINIMUM,
            Mode::Auto => len < AUTO_MINIMUM,
        }
    }

    pub(super) fn choose(&mut self, now: Time, wanted: Option<Mode>, len: usize, local_peer: bool) -> Choice {
        match wanted.unwrap_or(self.mode) {
            Mode::Off => Choice::default(),
            Mode::On => Choice { pin: len >= ON_MINIMUM, measure: false },
            Mode::Auto if self.mode == Mode::Auto => self.path.choose(now, len),
            Mode::Auto => {
                let new = || Box::new(SendController::new(Mode::Auto, local_peer));
                self.auto.get_or_insert_with(new).choose(now, len)
            }
        }
    }

    pub(super) fn each(&mut self, mut f: impl FnMut(&mut SendController)) {
        f(&mut self.path);
        if let Some(auto) = &mut self.auto {
            f(auto);
        }
    }
}
