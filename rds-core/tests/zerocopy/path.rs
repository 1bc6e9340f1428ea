//! A simulated path: what a message costs each way, with the noise of a shared machine, in virtual time.

use std::time::Duration;

use rds_core::proto::Time;

/// CPU time in ns that reading the thread's clock twice costs.
pub(super) const MEASURING: f64 = 500.0;

/// CPU time of a message of `len` bytes, in ns.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    pub(super) copy: fn(f64) -> f64,
    pub(super) zero_copy: fn(f64) -> f64,
    /// The kernel copies what is pinned.
    pub(super) copied: bool,
}

fn plain(len: f64) -> f64 {
    2500.0 + len * 0.04
}

/// Loopback: everything is copied, and pinned besides.
pub(super) const LOOPBACK: Path = Path { copy: plain, zero_copy: |len| plain(len) * 1.5, copied: true };

/// Nothing copies: even at 16 KiB, 26 % less at 64 KiB, half at 1 MiB.
pub(super) const NO_COPY: Path = Path {
    copy: plain,
    zero_copy: |len| {
        if len <= 65536.0 {
            plain(16384.0) + (len - 16384.0) * (0.74 * plain(65536.0) - plain(16384.0)) / 49152.0
        } else {
            0.74 * plain(65536.0)
                + (len - 65536.0) * (0.5 * plain(1048576.0) - 0.74 * plain(65536.0)) / 983040.0
        }
    },
    copied: false,
};

/// Nothing says that it copies, but pinning costs more at every size.
pub(super) const DEAR: Path = Path { copy: plain, zero_copy: |len| plain(len) * 1.3, copied: false };

/// Copying costs three times what it did: the buffers are cold.
pub(super) const COLD: Path = Path { copy: |len| plain(len) * 3.0, ..NO_COPY };

/// Noise that is the same whichever way a message goes: it spreads, has outliers, and bursts of them.
pub(super) struct Noise {
    rng: fastrand::Rng,
    burst: u32,
    /// Each message costs this much more or less at most.
    spread: f64,
}

impl Noise {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: fastrand::Rng::with_seed(seed), burst: 0, spread: 0.15 }
    }

    /// Of a machine where hardly two messages cost the same.
    pub(super) fn loud(seed: u64) -> Self {
        Self { spread: 0.5, ..Self::new(seed) }
    }

    /// The factor of the next message.
    pub(super) fn next(&mut self) -> f64 {
        if self.burst > 0 {
            self.burst -= 1;
        } else if self.rng.u32(..1000) == 0 {
            self.burst = self.rng.u32(5..40);
        }
        let spread = 1.0 + self.spread * (2.0 * self.rng.f64() - 1.0);
        let outlier = if self.burst > 0 { self.rng.u32(..2) == 0 } else { self.rng.u32(..200) == 0 };
        if outlier { spread * 10.0 } else { spread }
    }
}

/// What a run cost, in ns of CPU time, from some message on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    pub(super) adaptive: f64,
    pub(super) copying: f64,
    pub(super) zero_copying: f64,
    pub(super) bytes: u64,
    pub(super) zero_copy_bytes: u64,
}

impl Cost {
    /// Against the better fixed mode: 1.03 is 3 % more.
    pub(super) fn ratio(&self) -> f64 {
        self.adaptive / self.copying.min(self.zero_copying)
    }
}

/// What a controller is told and asked, whichever its direction.
pub(super) trait Controller {
    /// Whether by zero copy, and whether to measure.
    fn choose(&mut self, now: Time, len: usize) -> (bool, bool);
    /// A message was moved, with its CPU time if measured.
    fn moved(&mut self, now: Time, len: usize, zero_copy: bool, cpu: Option<Duration>, path: &Path);
    /// Called before each message: what is late may arrive.
    fn pump(&mut self, now: Time);
}

/// A run in virtual time.
pub(super) struct Run<'a, C> {
    pub(super) controller: &'a mut C,
    pub(super) noise: Noise,
    pub(super) now: Time,
    /// From one message to the next.
    pub(super) step: Duration,
}

impl<C: Controller> Run<'_, C> {
    /// `n` messages, of lengths that `len` picks, over `path`.
    pub(super) fn messages(&mut self, n: u32, path: &Path, mut len: impl FnMut(u32) -> usize) -> Cost {
        let mut cost = Cost::default();
        for i in 0..n {
            let len = len(i);
            self.now = self.now + self.step;
            self.controller.pump(self.now);
            let (zero_copy, measure) = self.controller.choose(self.now, len);
            let factor = self.noise.next();
            let (copying, zero_copying) =
                ((path.copy)(len as f64) * factor, (path.zero_copy)(len as f64) * factor);
            let cpu = if zero_copy { zero_copying } else { copying };
            cost.adaptive += cpu + if measure { MEASURING } else { 0.0 };
            cost.copying += copying;
            cost.zero_copying += zero_copying;
            cost.bytes += len as u64;
            cost.zero_copy_bytes += if zero_copy { len as u64 } else { 0 };
            let cpu = measure.then(|| Duration::from_nanos(cpu as u64));
            self.controller.moved(self.now, len, zero_copy, cpu, path);
        }
        cost
    }
}
