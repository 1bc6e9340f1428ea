//! What is worth a line in the log: the catalogue of it, how often it has happened, and how many lines there may be.
//!
//! A peer, a program and a client can each cause some of it as often as they like. So every event has a bucket of lines of its own: 32 may come
//! at once, 5 a second after that, and the others are left out and counted. The counts are of the whole process, as its log is.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::Level;

/// Lines of an event that may come at once, and how long each takes to be allowed again.
const BURST: u32 = 32;
const REFILL: Duration = Duration::from_millis(200);

macro_rules! events {
    ($($(#[doc = $help:literal])+ $variant:ident = $name:literal $level:ident,)+) => {
        /// Something that happened.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Event {
            $($(#[doc = $help])+ $variant,)+
        }

        impl Event {
            /// Every event, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Its name: the field `event` of its lines, and the key in `Status::events`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The level of its lines.
            #[must_use]
            pub const fn level(self) -> Level {
                match self { $(Self::$variant => Level::$level,)+ }
            }

            /// What it is, in a line.
            #[must_use]
            pub fn help(self) -> &'static str {
                match self { $(Self::$variant => concat!($($help),+).trim(),)+ }
            }
        }
    };
}

events! {
    /// A peer can be sent to: it was met for the first time, or again. Fields `peer`, `delivery`, `generation`, `lanes`, `restarted`.
    PeerUp = "peer_up" INFO,
    /// A peer has no connection any more. Field `peer`.
    PeerDown = "peer_down" INFO,
    /// A peer or the network ended a connection; what was unfinished is sent again on the next one. Fields `peer`, `lane`, `reason`.
    ConnectionLost = "connection_lost" INFO,
    /// The node ended a connection because of what the peer sent or did not send, or because of a limit. Fields `peer`, `lane`, `sequence`, `reason`.
    ConnectionDropped = "connection_dropped" WARN,
    /// The node ended a connection in the ordinary course of things. Fields `peer`, `lane`, `reason`.
    ConnectionClosed = "connection_closed" DEBUG,
    /// A connection of a peer could not be accepted, mostly for want of descriptors. Field `error`.
    AcceptFailed = "accept_failed" WARN,
    /// A kernel uses a lane that is not offered to it any more. Fields `peer`, `lane`, `lanes`.
    PeerRemembersLanes = "peer_remembers_lanes" WARN,
    /// There is no address space to map messages of a connection on their way in, so that they are copied. Field `error`.
    ReceiveCopied = "receive_copied" WARN,
    /// A payload that was to be sent from where it lies was copied for want of room: which limit that is, and what to do. Field `outstanding`.
    SendCopied = "send_copied" WARN,
    /// A program attached. Fields `client`, `pid`, `uid`, `program`, `address`, `stream`.
    Attached = "attached" DEBUG,
    /// A program detached or died. Fields `client`, `pid`, `uid`, `program`, `reason`.
    Detached = "detached" DEBUG,
    /// A program was not let in. Fields `client`, `pid`, `uid`, `program` as far as they are known, `reason`.
    AttachRefused = "attach_refused" INFO,
    /// A program could not be let in for want of something of the daemon's. Fields `client`, `pid`, `uid`, `program` as far as they are known, `error`.
    AttachFailed = "attach_failed" WARN,
    /// A program was ended because it broke the rules of the local protocol. Fields `client`, `pid`, `uid`, `program`, `reason`.
    ClientEnded = "client_ended" WARN,
    /// A program was not given a port. Fields `client`, `port`, `reason`.
    BindRefused = "bind_refused" DEBUG,
    /// A message of a program was not taken. Fields `client` or `socket`, `peer`, `reason`.
    MessageRefused = "message_refused" DEBUG,
}

/// Lines of one event.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: u32,
    refilled: Option<Instant>,
    left_out: u64,
}

impl Bucket {
    const FULL: Self = Self { left: BURST, refilled: None, left_out: 0 };

    /// Whether a line may come now; and how many have been left out since the last one.
    fn allow(&mut self, now: Instant) -> Option<u64> {
        let refilled = *self.refilled.get_or_insert(now);
        let periods = now.saturating_duration_since(refilled).as_millis() / REFILL.as_millis();
        if periods > 0 {
            self.left = BURST.min(self.left.saturating_add(u32::try_from(periods).unwrap_or(BURST)));
            self.refilled = Some(now);
        }
        if self.left == 0 {
            self.left_out += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// How often each event has happened, and its lines.
#[derive(Debug)]
struct Events {
    times: [AtomicU64; Event::ALL.len()],
    left_out: AtomicU64,
    buckets: Mutex<[Bucket; Event::ALL.len()]>,
}

static THIS: Events = Events::new();

impl Events {
    const fn new() -> Self {
        Self {
            times: [const { AtomicU64::new(0) }; Event::ALL.len()],
            left_out: AtomicU64::new(0),
            buckets: Mutex::new([Bucket::FULL; Event::ALL.len()]),
        }
    }

    fn allow(&self, event: Event, now: Instant) -> Option<u64> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let allowed = buckets[event as usize].allow(now);
        if allowed.is_none() {
            self.left_out.fetch_add(1, Relaxed);
        }
        allowed
    }
}

/// How often each event has happened in this process.
pub fn times() -> impl Iterator<Item = (Event, u64)> {
    Event::ALL.iter().map(|event| (*event, THIS.times[*event as usize].load(Relaxed)))
}

/// Lines that were left out of this process's log because there were too many.
#[must_use]
pub fn left_out() -> u64 {
    THIS.left_out.load(Relaxed)
}

/// It has happened.
#[doc(hidden)]
pub fn count(event: Event) {
    THIS.times[event as usize].fetch_add(1, Relaxed);
}

/// Whether it may have a line now. Says how many were left out before it.
#[doc(hidden)]
#[must_use]
pub fn may_log(event: Event) -> bool {
    let Some(lines) = THIS.allow(event, Instant::now()) else { return false };
    if lines > 0 {
        tracing::warn!(event = event.name(), lines, "log lines were left out, there were too many");
    }
    true
}

/// Counts an [`Event`], and writes a line with these fields if there may be one: `note!(PeerDown, %peer, "peer down")`.
///
/// Where the line is not wanted at its level, it costs one addition.
#[doc(hidden)]
#[macro_export]
macro_rules! note {
    ($event:ident, $($line:tt)+) => {{
        const EVENT: $crate::events::Event = $crate::events::Event::$event;
        $crate::events::count(EVENT);
        if ::tracing::enabled!(EVENT.level()) && $crate::events::may_log(EVENT) {
            ::tracing::event!(EVENT.level(), event = EVENT.name(), $($line)+);
        }
    }};
}

pub use note;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_one_event_is_cut_after_the_burst_and_counted_and_the_others_are_not() {
        let events = Events::new();
        let now = Instant::now();
        let allowed =
            |event, now, times| (0..times).filter_map(|_| events.allow(event, now)).collect::<Vec<_>>();
        assert_eq!(allowed(Event::AttachRefused, now, 1000), vec![0; BURST as usize]);
        let flood = 1000 - u64::from(BURST);
        assert_eq!(events.left_out.load(Relaxed), flood);
        assert_eq!(allowed(Event::PeerUp, now, 1), [0]);
        // The next line says how many were left out.
        let later = now + 2 * REFILL;
        assert_eq!(allowed(Event::AttachRefused, later, 10), [flood, 0]);
        assert_eq!(events.left_out.load(Relaxed), flood + 8);
        // A clock that stands still or goes back gives nothing.
        assert!(allowed(Event::AttachRefused, now, 1).is_empty());
    }

    #[test]
    fn events_have_names_of_their_own() {
        let mut names: Vec<_> = Event::ALL.iter().map(|event| event.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Event::ALL.len());
    }

    #[test]
    fn what_happens_is_counted_whether_or_not_it_has_a_line() {
        let of = |wanted| times().find(|(event, _)| *event == wanted).unwrap().1;
        let before = of(Event::BindRefused);
        for n in 0..100 {
            note!(BindRefused, n, "never said");
        }
        assert_eq!(of(Event::BindRefused), before + 100);
    }
}
