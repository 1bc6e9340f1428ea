//! What a socket keeps of its own, whoever carries its messages.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use super::{Cookie, SendError};
use crate::proto;
use crate::zerocopy::Mode;

const MODES: [Mode; 3] = [Mode::Off, Mode::On, Mode::Auto];
/// No timeout.
const FOR_EVER: u64 = u64::MAX;

pub(crate) struct Settings {
    peer: RwLock<Option<SocketAddr>>,
    send_timeout: AtomicU64,
    recv_timeout: AtomicU64,
    next_cookie: AtomicU32,
    /// 0: as the path does; otherwise one more than the mode's place in `MODES`.
    send_mode: AtomicU8,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            peer: RwLock::new(None),
            send_timeout: AtomicU64::new(FOR_EVER),
            recv_timeout: AtomicU64::new(FOR_EVER),
            next_cookie: AtomicU32::new(1),
            send_mode: AtomicU8::new(0),
        }
    }
}

impl Settings {
    /// Sets the default destination of a socket bound to `local`.
    pub(crate) fn connect(&self, local: IpAddr, destination: SocketAddr) -> Result<(), SendError> {
        let ip = destination.ip();
        let broadcast = matches!(ip, IpAddr::V4(a) if a.is_broadcast());
        if ip.is_unspecified() || ip.is_multicast() || broadcast {
            return Err(proto::SendError::InvalidDestination.into());
        }
        if ip.is_ipv4() != local.is_ipv4() {
            return Err(proto::SendError::FamilyMismatch.into());
        }
        *self.peer.write().unwrap_or_else(PoisonError::into_inner) = Some(destination);
        Ok(())
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        *self.peer.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next cookie that the socket chooses.
    pub(crate) fn cookie(&self) -> Cookie {
        Cookie(self.next_cookie.fetch_add(1, Relaxed))
    }

    pub(crate) fn set_send_mode(&self, mode: Option<Mode>) {
        let place = mode.and_then(|mode| MODES.iter().position(|m| *m == mode));
        self.send_mode.store(place.map_or(0, |n| n as u8 + 1), Relaxed);
    }

    /// Whether payloads are sent without a copy; `None`: as their path says.
    pub(crate) fn send_mode(&self) -> Option<Mode> {
        let n = usize::from(self.send_mode.load(Relaxed));
        n.checked_sub(1).and_then(|n| MODES.get(n).copied())
    }

    pub(crate) fn set_send_timeout(&self, timeout: Option<Duration>) {
        store(&self.send_timeout, timeout);
    }

    pub(crate) fn set_recv_timeout(&self, timeout: Option<Duration>) {
        store(&self.recv_timeout, timeout);
    }

    pub(crate) fn send_deadline(&self) -> Option<Instant> {
        deadline(&self.send_timeout)
    }

    pub(crate) fn recv_deadline(&self) -> Option<Instant> {
        deadline(&self.recv_timeout)
    }
}

fn store(cell: &AtomicU64, timeout: Option<Duration>) {
    let nanos = timeout.map_or(FOR_EVER, |t| u64::try_from(t.as_nanos()).unwrap_or(FOR_EVER));
    cell.store(nanos, Relaxed);
}

fn deadline(cell: &AtomicU64) -> Option<Instant> {
    match cell.load(Relaxed) {
        FOR_EVER => None,
        nanos => Instant::now().checked_add(Duration::from_nanos(nanos)),
    }
}
