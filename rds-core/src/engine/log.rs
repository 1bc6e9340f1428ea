//! Log lines about connections, limited so that a flood of connections is not a flood of lines.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::proto::{DropReason, Guarantee};

/// Lines that may come at once, and how long each takes to be allowed again.
const BURST: u32 = 32;
const REFILL: Duration = Duration::from_millis(200);

/// A bucket of log lines.
pub(crate) struct Log {
    left: u32,
    refilled: Instant,
    suppressed: u64,
}

impl Default for Log {
    fn default() -> Self {
        Self { left: BURST, refilled: Instant::now(), suppressed: 0 }
    }
}

impl Log {
    /// The node dropped a connection.
    pub(crate) fn closed(&mut self, peer: IpAddr, reason: &DropReason) {
        match reason {
            // The ordinary course of things.
            DropReason::Poke | DropReason::PokeDone | DropReason::Replaced | DropReason::Shutdown => {
                tracing::debug!(%peer, %reason, "connection dropped");
            }
            _ => self.warn(peer, reason),
        }
    }

    fn warn(&mut self, peer: IpAddr, reason: &dyn fmt::Display) {
        if self.allow() {
            tracing::warn!(%peer, %reason, "connection dropped");
        }
    }

    /// The peer or the network ended a connection.
    pub(crate) fn lost(&mut self, peer: IpAddr, error: Option<&io::Error>) {
        if self.allow() {
            match error {
                Some(error) => tracing::info!(%peer, reason = %error, "connection lost"),
                None => tracing::info!(%peer, reason = "closed by the peer", "connection lost"),
            }
        }
    }

    pub(crate) fn accept_failed(&mut self, error: &io::Error) {
        if self.allow() {
            tracing::warn!(%error, "cannot accept a connection");
        }
    }

    pub(crate) fn up(
        &mut self,
        peer: IpAddr,
        guarantee: Guarantee,
        generation: Option<u32>,
        lanes: u8,
        restarted: bool,
    ) {
        if self.allow() {
            tracing::info!(%peer, delivery = guarantee.name(), generation, lanes, restarted, "peer up");
        }
    }

    /// A kernel remembers more lanes than are offered.
    pub(crate) fn remembers(&mut self, peer: IpAddr, lane: u8, lanes: u8) {
        if self.allow() {
            tracing::warn!(
                %peer, lane, lanes,
                "the peer uses a lane that this node does not offer: it remembers more lanes from before. What it queues there is \
                 stranded when such a connection breaks; offer 8 lanes"
            );
        }
    }

    pub(crate) fn down(&mut self, peer: IpAddr) {
        if self.allow() {
            tracing::info!(%peer, "peer down");
        }
    }

    fn allow(&mut self) -> bool {
        let now = Instant::now();
        let periods = now.duration_since(self.refilled).as_millis() / REFILL.as_millis();
        if periods > 0 {
            self.left = BURST.min(self.left.saturating_add(u32::try_from(periods).unwrap_or(BURST)));
            self.refilled = now;
        }
        if self.left == 0 {
            self.suppressed += 1;
            return false;
        }
        self.left -= 1;
        if self.suppressed > 0 {
            tracing::warn!(
                lines = std::mem::take(&mut self.suppressed),
                "log lines about connections were suppressed"
            );
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_after_the_burst_and_counted() {
        let mut log = Log { refilled: Instant::now() + Duration::from_secs(3600), ..Log::default() };
        let allowed = (0..1000).filter(|_| log.allow()).count();
        assert_eq!((allowed, log.suppressed), (BURST as usize, 1000 - u64::from(BURST)));
    }
}
