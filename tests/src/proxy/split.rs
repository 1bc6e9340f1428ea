//! Cutting a stream into pieces.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

/// How the stream of a direction is cut. Counted from the first byte that a connection carries after the order.
///
/// No TCP segment crosses a cut (MSG_EOR). There may be more cuts, where the proxy has no more bytes. A receiver that is slower than the
/// pieces come still finds several at once, unless there is a pause between them.
///
/// To meet a message of `n` bytes, header included, with every split point, send `n` of them and cut every `n` + 1 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    pieces: Pieces,
    pause: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pieces {
    Every(NonZeroUsize),
    Random { seed: u64, most: NonZeroUsize },
}

impl Split {
    /// Every so many bytes.
    #[must_use]
    pub const fn every(bytes: NonZeroUsize) -> Self {
        Self { pieces: Pieces::Every(bytes), pause: Duration::ZERO }
    }

    /// After 1 to `most` bytes each time, drawn anew. Every connection and direction has the same draws.
    #[must_use]
    pub const fn random(seed: u64, most: NonZeroUsize) -> Self {
        Self { pieces: Pieces::Random { seed, most }, pause: Duration::ZERO }
    }

    /// With a pause after each piece; of a millisecond at least, which is as fine as the proxy's clock is.
    #[must_use]
    pub const fn with_pause(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }
}

/// Where the next cut of one stream is.
#[derive(Default)]
pub(super) struct Cutter {
    split: Option<Split>,
    random: fastrand::Rng,
    /// Bytes up to the next cut, if there is a split.
    left: usize,
    paused: Option<Instant>,
}

impl Cutter {
    /// Begins anew if this is another order than before.
    pub(super) fn follow(&mut self, split: Option<Split>) {
        if self.split != split {
            self.split = split;
            self.paused = None;
            if let Some(Split { pieces: Pieces::Random { seed, .. }, .. }) = split {
                self.random.seed(seed);
            }
            self.left = self.next();
        }
    }

    /// When the pause is over, if there is one.
    pub(super) fn paused(&self, now: Instant) -> Option<Instant> {
        self.paused.filter(|until| *until > now)
    }

    /// Bytes that one write may have, and whether they would end a piece.
    pub(super) fn piece(&self, there: usize) -> (usize, bool) {
        match self.split {
            None => (there, false),
            Some(_) => (there.min(self.left), there >= self.left),
        }
    }

    /// So many bytes of the piece are gone.
    pub(super) fn wrote(&mut self, bytes: usize, now: Instant) {
        let Some(split) = self.split else { return };
        self.left -= bytes;
        if self.left == 0 {
            self.left = self.next();
            self.paused = Some(now + split.pause);
        }
    }

    fn next(&mut self) -> usize {
        match self.split.map(|s| s.pieces) {
            None => 0,
            Some(Pieces::Every(bytes)) => bytes.get(),
            Some(Pieces::Random { most, .. }) => self.random.usize(1..=most.get()),
        }
    }
}
