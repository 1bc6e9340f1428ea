//! Whether a message is mapped or copied when it is received: one controller a path.
//!
//! Mapping a page costs more than copying it into a hot buffer, and pays only for large payloads that would land in cold
//! memory. It works only where the sender begins each payload in a segment buffer of its own ([`super::plan`]), which a
//! peer announces. And pages from a process of this host could be changed by it while they are read, so towards a local
//! peer only [`Mode::On`] maps: that is a decision to trust it. In `auto`
//!
//! * messages of 64 KiB and more, and of whole pages, are eligible;
//! * more than 90 % of them, averaged over about the last 128, must be mapped whole; otherwise it is off for the path, and tried
//!   again after 10 ms, then 20 ms, up to 60 s, with 8 messages each time;
//! * measured CPU time decides for each size ([`super::compare`]).

use std::time::Duration;

use super::compare::Comparison;
use super::probe::{Off, Tally};
use super::{Decision, Mode, Reason};
use crate::proto::Time;

/// Least length that `auto` maps, in bytes.
pub const AUTO_MINIMUM: usize = 64 << 10;
/// A share of messages not mapped whole that is too many.
const TOO_MANY: f32 = 0.1;
/// The first try again. The sender begins each message anew, so what broke the alignment is often over at once.
const FIRST_RETRY: Duration = Duration::from_millis(10);

/// See the [module](self). Calls cost a few ns and allocate nothing, but for [`state`](Self::state); a measured message costs
/// some 200 ns more here.
#[derive(Clone, Debug)]
pub struct MapController {
    mode: Mode,
    local_peer: bool,
    page_size: usize,
    comparison: Comparison,
    off: Option<Off>,
    /// The first outcomes.
    trial: Option<Tally>,
    /// Moving average of messages that were not mapped whole.
    unmapped_share: f32,
    /// The message chosen last is to be measured.
    measure: bool,
}

impl MapController {
    /// A controller that knows nothing yet. `local_peer`: the peer's address is one of this host's.
    #[must_use]
    pub const fn new(mode: Mode, local_peer: bool) -> Self {
        Self {
            mode,
            local_peer,
            page_size: 4096,
            comparison: Comparison::new(),
            off: None,
            trial: Some(Tally::new()),
            unmapped_share: 0.0,
            measure: false,
        }
    }

    /// With the system's page size, in bytes, if it is not 4096.
    #[must_use]
    pub const fn with_page_size(mut self, bytes: usize) -> Self {
        self.page_size = if bytes == 0 { 1 } else { bytes };
        self
    }

    /// The mode that is set.
    #[must_use]
    pub const fn mode(&self) -> Mode {
        self.mode
    }

    /// Whether messages of `len` bytes may ever be mapped as things are: if so, [`MapController::choose`] is to be asked for each of
    /// them before any byte of it is read.
    #[must_use]
    pub const fn is_eligible(&self, len: usize, announced: bool) -> bool {
        let whole = len >= self.page_size && len.is_multiple_of(self.page_size);
        announced
            && match self.mode {
                Mode::Off => false,
                Mode::On => whole,
                Mode::Auto => whole && !self.local_peer && len >= AUTO_MINIMUM,
            }
    }

    /// Whether to map a message of `len` bytes. `announced`: the peer said on this connection that it sends by the
    /// pattern; without it nothing is mapped in any mode.
    pub fn choose(&mut self, now: Time, len: usize, announced: bool) -> bool {
        self.measure = false;
        if !announced {
            return false;
        }
        match self.mode {
            Mode::Off => false,
            Mode::On => len >= self.page_size,
            Mode::Auto if self.local_peer || len < AUTO_MINIMUM || !len.is_multiple_of(self.page_size) => {
                false
            }
            Mode::Auto => match &mut self.off {
                Some(off) => {
                    let wanted = off.wants(now);
                    let map = self.comparison.pass(len, wanted);
                    if map {
                        off.taken(now);
                    }
                    map
                }
                None => {
                    let pick = self.comparison.choose(len);
                    self.measure = pick.measure;
                    pick.zero_copy
                }
            },
        }
    }

    /// Whether the CPU time of the message chosen last is wanted, by [`mapped`](Self::mapped) or [`copied`](Self::copied).
    #[must_use]
    pub const fn measure(&self) -> bool {
        self.measure
    }

    /// A message was to be mapped; `mapped` if it was, whole. `cpu`: CPU time of its calls and its share of giving pages
    /// back, if it was measured.
    pub fn mapped(&mut self, now: Time, len: usize, mapped: bool, cpu: Option<Duration>) {
        // A weight of 1/128 for each. A window of the last 64 would end it by chance alone where 4 % are not mapped.
        self.unmapped_share += (f32::from(u8::from(!mapped)) - self.unmapped_share) / 128.0;
        if self.mode != Mode::Auto {
            return;
        }
        if let Some(off) = &mut self.off {
            match off.outcome(1, !mapped) {
                None => {}
                Some(share) if share > 0.2 => off.back_off(now),
                Some(_) => {
                    self.off = None;
                    self.trial = None;
                    self.unmapped_share = 0.0;
                    self.comparison.forget_zero_copy();
                }
            }
            return;
        }
        if let Some(cpu) = cpu {
            self.comparison.sample(len, true, cpu);
        }
        let mut too_many = self.unmapped_share > TOO_MANY;
        if let Some(tally) = &mut self.trial {
            tally.add(1, !mapped);
            if let Some(share) = tally.bad_share() {
                self.trial = None;
                too_many |= share > 0.2;
            }
        }
        if too_many {
            self.trial = None;
            self.off = Some(Off::from(now, FIRST_RETRY, Reason::Unmapped));
        }
    }

    /// A message was copied. `cpu`: CPU time of its calls, if it was measured.
    pub fn copied(&mut self, _now: Time, len: usize, cpu: Option<Duration>) {
        if let Some(cpu) = cpu
            && self.mode == Mode::Auto
            && self.off.is_none()
        {
            self.comparison.sample(len, false, cpu);
        }
    }

    /// Changes the mode. `auto` begins anew: what it knew may be old.
    pub fn set_mode(&mut self, mode: Mode) {
        if mode != self.mode {
            *self = self.in_mode(mode);
        }
    }

    /// A new one for the same path, in another mode.
    #[must_use]
    pub const fn in_mode(&self, mode: Mode) -> Self {
        Self::new(mode, self.local_peer).with_page_size(self.page_size)
    }

    /// What it does, and why. `announced`: as in [`choose`](Self::choose).
    #[must_use]
    pub fn state(&self, announced: bool) -> Decision {
        let (eligible_bytes, explored_bytes, warm_up_bytes) = self.comparison.bytes();
        let (zero_copy, reason) = match (self.mode, &self.off) {
            (Mode::Off, _) => (false, Reason::Setting),
            (Mode::Auto, _) if self.local_peer => (false, Reason::LocalPeer),
            _ if !announced => (false, Reason::NotAnnounced),
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
            failed_share: self.unmapped_share,
            lag: Duration::ZERO,
            eligible_bytes,
            explored_bytes,
            warm_up_bytes,
        }
    }
}
