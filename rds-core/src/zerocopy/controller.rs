//! Whether a message is pinned or copied when it is sent: one controller a path.
//!
//! Pinning pays only where nothing copies behind it. Loopback, veth, and any device while somebody captures packets,
//! copy at delivery, and say so in the completion: pinning then costs its own price on top. So in `auto`
//!
//! * towards a peer on this host it starts off; elsewhere the first messages try;
//! * where at least 7 of 8 completions say that the kernel copied it is off for the path, and tried again after 1 s,
//!   then 2 s, up to 60 s, with 8 messages each time;
//! * where the kernel does not copy, measured CPU time decides for each size ([`super::compare`]);
//! * later, a share of copied completions above one half ends it.
//!
//! A probe spends of the same 1 % of the bytes as all exploration.

use std::time::Duration;

use super::compare::Comparison;
use super::probe::{Off, Tally};
use super::{Decision, Mode, Reason};
use crate::proto::Time;

/// Least length that `auto` pins unless told otherwise, in bytes.
pub const AUTO_MINIMUM: usize = 16 << 10;
/// Least length that `on` pins, in bytes.
pub const ON_MINIMUM: usize = 4096;

/// From the end of pinning to the first probe.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// How a message is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Pinned, not copied.
    pub pin: bool,
    /// Its CPU time is wanted: [`SendController::sample`].
    pub measure: bool,
}

/// See the [module](self). Calls cost a few ns and allocate nothing, but for [`state`](Self::state); a measured message costs
/// some 200 ns more here.
#[derive(Clone, Debug)]
pub struct SendController {
    mode: Mode,
    local_peer: bool,
    minimum: usize,
    comparison: Comparison,
    off: Option<Off>,
    /// The first completions.
    trial: Option<Tally>,
    /// Moving average of copied completions.
    copied_share: f32,
    lag: Duration,
}

impl SendController {
    /// A controller that knows nothing yet. `local_peer`: the peer's address is one of this host's.
    #[must_use]
    pub const fn new(mode: Mode, local_peer: bool) -> Self {
        Self {
            mode,
            local_peer,
            minimum: AUTO_MINIMUM,
            comparison: Comparison::new(),
            off: if local_peer { Some(Off::from_the_start(FIRST_RETRY, Reason::LocalPeer)) } else { None },
            trial: Some(Tally::new()),
            copied_share: 0.0,
            lag: Duration::ZERO,
        }
    }

    /// With another least length that `auto` pins, in bytes; at least 4096.
    #[must_use]
    pub const fn with_minimum(mut self, bytes: usize) -> Self {
        self.minimum = if bytes < ON_MINIMUM { ON_MINIMUM } else { bytes };
        self
    }

    /// How to send a message of `len` bytes.
    pub fn choose(&mut self, now: Time, len: usize) -> Choice {
        match self.mode {
            Mode::Off => Choice::default(),
            Mode::On => Choice { pin: len >= ON_MINIMUM, measure: false },
            Mode::Auto if len < self.minimum => Choice::default(),
            Mode::Auto => match &mut self.off {
                Some(off) => {
                    let wanted = off.wants(now);
                    let pin = self.comparison.pass(len, wanted);
                    if pin {
                        off.taken(now);
                    }
                    Choice { pin, measure: false }
                }
                None => {
                    let pick = self.comparison.choose(len);
                    Choice { pin: pick.zero_copy, measure: pick.measure }
                }
            },
        }
    }

    /// A message that was to be measured took `cpu` of the CPU time of its threads: its calls, and its share of reaping.
    /// `pinned` says how it was sent in the end.
    pub fn sample(&mut self, _now: Time, len: usize, pinned: bool, cpu: Duration) {
        if self.mode == Mode::Auto && self.off.is_none() {
            self.comparison.sample(len, pinned, cpu);
        }
    }

    /// The kernel notified `ids` calls, at most `lag` after they were made; `copied` is what it said of them.
    pub fn completed(&mut self, now: Time, ids: u32, copied: bool, lag: Duration) {
        if ids == 0 {
            return;
        }
        self.lag = lag;
        // A weight of 1/16 for each.
        let target = f32::from(u8::from(copied));
        let kept = (15.0_f32 / 16.0).powi(ids.min(256) as i32);
        self.copied_share = target + (self.copied_share - target) * kept;
        if self.mode != Mode::Auto {
            return;
        }
        if let Some(off) = &mut self.off {
            match off.outcome(ids, copied) {
                None => {}
                Some(share) if share >= 7.0 / 8.0 => {
                    off.back_off(now);
                    off.reason = Reason::Copied;
                }
                Some(share) => {
                    self.off = None;
                    self.trial = None;
                    self.copied_share = share.min(0.5);
                    self.comparison.forget_zero_copy();
                }
            }
            return;
        }
        let share = match &mut self.trial {
            None => self.copied_share > 0.5,
            Some(tally) => {
                tally.add(ids, copied);
                match tally.bad_share() {
                    None => return,
                    Some(share) => share >= 7.0 / 8.0,
                }
            }
        };
        self.trial = None;
        if share {
            self.off = Some(Off::from(now, FIRST_RETRY, Reason::Copied));
        }
    }

    /// Changes the mode. `auto` begins anew: what it knew may be old.
    pub fn set_mode(&mut self, mode: Mode) {
        if mode != self.mode {
            *self = Self::new(mode, self.local_peer).with_minimum(self.minimum);
        }
    }

    /// What it does, and why.
    #[must_use]
    pub fn state(&self) -> Decision {
        let (eligible_bytes, explored_bytes, warm_up_bytes) = self.comparison.bytes();
        let (zero_copy, reason) = match (self.mode, &self.off) {
            (Mode::Off, _) => (false, Reason::Setting),
            (Mode::On, _) => (true, Reason::Setting),
            (Mode::Auto, Some(off)) => (false, off.reason),
            (Mode::Auto, None) if self.trial.is_some() || self.comparison.undecided() => {
                (self.comparison.zero_copy(), Reason::Probing)
            }
            (Mode::Auto, None) => (self.comparison.zero_copy(), Reason::Measured),
        };
        Decision {
            mode: self.mode,
            zero_copy,
            reason,
            next_probe: self.off.as_ref().filter(|_| self.mode == Mode::Auto).and_then(|off| off.next),
            sizes: self.comparison.sizes(self.off.is_some()),
            failed_share: self.copied_share,
            lag: self.lag,
            eligible_bytes,
            explored_bytes,
            warm_up_bytes,
        }
    }
}
