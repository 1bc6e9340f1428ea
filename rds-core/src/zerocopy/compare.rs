//! What copying and zero copy cost on one path, by the size of messages: measured seldom, judged robustly.
//!
//! CPU time is compared, not throughput: wake-ups and the other side dominate the latter. The first messages of each size
//! go either way in turns (the warm-up). Afterwards the way not preferred gets at most 1 % of the bytes of each size, and
//! while nothing is in doubt less, so that some is saved up for when something changes. The preferred way is measured
//! now and then too, as reading the clock of the CPU is a system call.
//!
//! * Noise only adds, and comes in bursts: an estimate is a mean without the lowest eighth and the highest three eighths.
//! * A switch needs a gain of 5 %, seen twice. Once both ways have many samples 2 % are enough: with 5 % for ever the
//!   choice could cost 5 % more than the better way for ever.
//! * A way whose samples all at once lie elsewhere has changed: its old samples are forgotten, and with those of the
//!   preferred way those of the other, which is then measured at once from what was saved up.

use std::time::Duration;

use super::mode::SizeDecision;

/// Size classes: powers of two from 4 KiB to 1 MiB and above.
const CLASSES: usize = 9;
/// The smallest is 2 to the power of this.
const SMALLEST: u32 = 12;
/// Samples kept of each way.
const WINDOW: usize = 64;
/// Fewer samples decide nothing.
const ENOUGH: usize = 8;
/// From so many on a small gain is believed.
const MANY: usize = 48;
/// Messages of each size that go either way at first.
const WARM_UP: u32 = 48;
/// Exploration: one byte in so many.
const SHARE: u64 = 100;
/// Messages whose exploration may be saved up.
const SAVED: u64 = 16;
/// Messages from one exploration to the next, while in doubt as the share allows.
const INTERVAL: u32 = 200;
/// The same while the difference is large.
const LONG_INTERVAL: u32 = 400;
/// The preferred way is measured once in so many messages.
const MEASURE: u32 = 32;
/// A sample so far off, either way, does not belong to the others.
const OFF: f32 = 1.4;

/// Samples of one way, CPU time a byte in ns.
#[derive(Clone, Copy, Debug)]
struct Samples {
    /// In the order in which they came, a ring.
    values: [f32; WINDOW],
    /// The same in ascending order.
    sorted: [f32; WINDOW],
    len: usize,
    next: usize,
    estimate: f32,
    /// Samples in a row that are far above (positive) or below the estimate.
    streak: i32,
}

impl Samples {
    const fn new() -> Self {
        Self { values: [0.0; WINDOW], sorted: [0.0; WINDOW], len: 0, next: 0, estimate: 0.0, streak: 0 }
    }

    /// Adds a sample. True if the last `changed_after` of them show that the cost has changed; then only they are left.
    fn push(&mut self, value: f32, changed_after: i32) -> bool {
        if self.len == WINDOW {
            let old = self.place(self.values[self.next]);
            self.sorted.copy_within(old + 1.., old);
            self.len -= 1;
        }
        self.values[self.next] = value;
        self.next = (self.next + 1) % WINDOW;
        let place = self.place(value);
        self.sorted.copy_within(place..self.len, place + 1);
        self.sorted[place] = value;
        self.len += 1;
        self.streak = if self.len <= ENOUGH {
            0
        } else if value > self.estimate * OFF {
            self.streak.max(0) + 1
        } else if value * OFF < self.estimate {
            self.streak.min(0) - 1
        } else {
            0
        };
        let changed = self.streak.abs() >= changed_after;
        if changed {
            self.len = self.streak.unsigned_abs() as usize;
            self.streak = 0;
            for i in 0..self.len {
                self.sorted[i] = self.values[(self.next + WINDOW - 1 - i) % WINDOW];
            }
            self.sorted[..self.len].sort_unstable_by(f32::total_cmp);
        }
        let kept = &self.sorted[self.len / 8..self.len - self.len * 3 / 8];
        self.estimate = kept.iter().sum::<f32>() / kept.len() as f32;
        changed
    }

    /// Where a value is, or belongs, in the sorted ones.
    fn place(&self, value: f32) -> usize {
        self.sorted[..self.len].partition_point(|v| v.total_cmp(&value).is_lt())
    }

    fn known(&self) -> Option<f32> {
        (self.len > 0).then_some(self.estimate)
    }
}

/// Messages of one size.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// By copying, with zero copy.
    ways: [Samples; 2],
    zero_copy: bool,
    decided: bool,
    /// Messages of the warm-up that are still to come.
    warm_up: u32,
    /// The way of the next message of the warm-up, the second of a pair.
    second: Option<bool>,
    /// Bytes earned for exploration, times [`SHARE`].
    saved: u64,
    /// The longest message, which bounds what is saved up.
    largest: u64,
    since_explored: u32,
    interval: u32,
    /// Messages of the preferred way to measure next to an explored one.
    beside: u32,
    /// Times in a row that a switch looked worth it.
    confirmed: u32,
    seen: bool,
}

impl Class {
    const fn new() -> Self {
        Self {
            ways: [Samples::new(); 2],
            zero_copy: false,
            decided: false,
            warm_up: WARM_UP,
            second: None,
            saved: 0,
            largest: 0,
            since_explored: 0,
            interval: INTERVAL,
            beside: 0,
            confirmed: 0,
            seen: false,
        }
    }

    fn earn(&mut self, len: u64) {
        self.seen = true;
        self.largest = self.largest.max(len);
        self.saved = self.saved.saturating_add(len).min(self.largest.saturating_mul(SAVED * SHARE));
    }

    fn spend(&mut self, len: u64) -> bool {
        let price = len.saturating_mul(SHARE);
        let can = self.saved >= price;
        if can {
            self.saved -= price;
        }
        can
    }

    /// What the other way would save, as a share of what the preferred one costs.
    fn gain(&self) -> Option<f32> {
        let (now, other) =
            (&self.ways[usize::from(self.zero_copy)], &self.ways[usize::from(!self.zero_copy)]);
        (now.len >= ENOUGH && other.len >= ENOUGH && now.estimate > 0.0)
            .then(|| 1.0 - other.estimate / now.estimate)
    }

    /// More samples of the other way are wanted as soon as possible.
    fn in_doubt(&self) -> bool {
        let other = self.ways[usize::from(!self.zero_copy)].len;
        other < ENOUGH || self.confirmed > 0 || (other < WINDOW && self.gain().is_none_or(|g| g.abs() < 0.12))
    }

    fn choose(&mut self, len: u64, random: u32) -> Pick {
        if self.warm_up > 0 {
            self.warm_up -= 1;
            self.seen = true;
            // In pairs of random order: equally often, and not in step with any pattern of the program.
            let zero_copy = match self.second.take() {
                Some(way) => way,
                None => {
                    self.second = Some(random & 1 == 0);
                    random & 1 == 1
                }
            };
            return Pick { zero_copy, measure: true, kind: Kind::WarmUp };
        }
        self.earn(len);
        self.since_explored = self.since_explored.saturating_add(1);
        // Every few messages at most: a burst of noise should not meet them all.
        let due = if self.in_doubt() { 2 + random % 4 } else { self.interval + random % 32 };
        if self.since_explored > due && self.spend(len) {
            self.since_explored = 0;
            self.beside = 1;
            return Pick { zero_copy: !self.zero_copy, measure: true, kind: Kind::Explored };
        }
        let measure = self.beside > 0 || (random >> 8).is_multiple_of(MEASURE);
        self.beside = 0;
        Pick { zero_copy: self.zero_copy, measure, kind: Kind::Preferred }
    }

    fn sample(&mut self, zero_copy: bool, value: f32) {
        let preferred = zero_copy == self.zero_copy;
        let changed = self.ways[usize::from(zero_copy)].push(value, if preferred { 6 } else { 3 });
        if changed && self.decided {
            self.interval = INTERVAL;
            if preferred {
                self.ways[usize::from(!zero_copy)] = Samples::new();
            }
        }
        let Some(gain) = self.gain() else { return };
        if !self.decided {
            if self.warm_up == 0 {
                self.decided = true;
                self.zero_copy ^= gain > 0.0;
            }
            return;
        }
        if preferred {
            return;
        }
        self.interval = if gain < -0.2 { LONG_INTERVAL } else { INTERVAL };
        let many = self.ways.iter().all(|w| w.len >= MANY);
        self.confirmed = if gain > if many { 0.02 } else { 0.05 } { self.confirmed + 1 } else { 0 };
        if self.confirmed >= 2 {
            self.confirmed = 0;
            self.zero_copy = zero_copy;
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Preferred,
    WarmUp,
    Explored,
}

/// How a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// With zero copy.
    pub zero_copy: bool,
    /// Its CPU time is wanted: [`Comparison::sample`].
    pub measure: bool,
    kind: Kind,
}

/// Both ways of one path and direction, some 10 KiB. No call allocates, but [`sizes`](Self::sizes).
#[derive(Clone, Debug)]
pub struct Comparison {
    classes: [Class; CLASSES],
    random: u64,
    eligible: u64,
    explored: u64,
    warm_up: u64,
}

impl Default for Comparison {
    fn default() -> Self {
        Self::new()
    }
}

impl Comparison {
    /// Nothing known yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            classes: [Class::new(); CLASSES],
            random: 0x9e37_79b9_7f4a_7c15,
            eligible: 0,
            explored: 0,
            warm_up: 0,
        }
    }

    /// A cheap generator (xorshift) is enough to be out of step with the program, and the same in every run.
    fn random(&mut self) -> u32 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32) as u32
    }

    /// How a message of `len` bytes goes.
    pub fn choose(&mut self, len: usize) -> Pick {
        let random = self.random();
        let pick = self.classes[class(len)].choose(len as u64, random);
        self.eligible += len as u64;
        match pick.kind {
            Kind::Preferred => {}
            Kind::WarmUp => self.warm_up += len as u64,
            Kind::Explored => self.explored += len as u64,
        }
        pick
    }

    /// A message of `len` bytes while zero copy is off for the whole path; `probe` if it should go by zero copy
    /// nevertheless. Returns whether it may, by what was saved up for exploration. The warm-up passes meanwhile.
    pub fn pass(&mut self, len: usize, probe: bool) -> bool {
        let class = &mut self.classes[class(len)];
        class.warm_up = class.warm_up.saturating_sub(1);
        class.earn(len as u64);
        self.eligible += len as u64;
        let probe = probe && class.spend(len as u64);
        if probe {
            self.explored += len as u64;
        }
        probe
    }

    /// A message of `len` bytes took `cpu` of CPU time.
    pub fn sample(&mut self, len: usize, zero_copy: bool, cpu: Duration) {
        if len > 0 {
            let nanos = cpu.as_nanos() as f32;
            self.classes[class(len)].sample(zero_copy, nanos / len as f32);
        }
    }

    /// The path does something else with zero copy than before: what it cost is no longer known.
    pub fn forget_zero_copy(&mut self) {
        for class in &mut self.classes {
            class.ways[1] = Samples::new();
            class.zero_copy = false;
            class.confirmed = 0;
            class.decided |= class.warm_up == 0;
        }
    }

    /// Zero copy is preferred for a size of which messages came.
    #[must_use]
    pub fn zero_copy(&self) -> bool {
        self.classes.iter().any(|c| c.seen && c.zero_copy)
    }

    /// No size of which messages came is decided yet.
    #[must_use]
    pub fn undecided(&self) -> bool {
        !self.classes.iter().any(|c| c.seen && c.decided)
    }

    /// What is known of each size of which messages came; no zero copy for any if it is `off` for the whole path.
    #[must_use]
    pub fn sizes(&self, off: bool) -> Vec<SizeDecision> {
        let seen = self.classes.iter().enumerate().filter(|(_, c)| c.seen);
        seen.map(|(i, c)| SizeDecision {
            from: 1 << (SMALLEST as usize + i),
            zero_copy: c.zero_copy && !off,
            copying: c.ways[0].known().map(|v| v * 1024.0),
            zero_copying: c.ways[1].known().map(|v| v * 1024.0),
        })
        .collect()
    }

    /// Bytes chosen for; of these explored; of these in the warm-up.
    #[must_use]
    pub const fn bytes(&self) -> (u64, u64, u64) {
        (self.eligible, self.explored, self.warm_up)
    }
}

/// The size class of a message.
const fn class(len: usize) -> usize {
    let log = if len == 0 { 0 } else { len.ilog2() };
    let index = log.saturating_sub(SMALLEST) as usize;
    if index < CLASSES { index } else { CLASSES - 1 }
}
