//! What a node may pin, and where: limits of the system, settings of paths, and who waits for room.

use std::collections::HashMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::ZeroCopy;
use super::parker::Parker;
use crate::info::NodeZeroCopy;
use crate::proto::Time;
use crate::sys::limits::MemoryLimits;
use crate::wire::HEADER_LEN;
use crate::zerocopy::controller::{AUTO_MINIMUM, ON_MINIMUM};
use crate::zerocopy::{Budget, Full, Gauge, Limits, Mode, PathSettings, SendCounts, Share, WhenFull, charge};

/// A line about a limit appears once in so long.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// Calls that were never notified, of all nodes of the process; what they held stays for ever.
static LEAKED: AtomicU64 = AtomicU64::new(0);

/// Modes of one path that differ from the node's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PathModes {
    pub(crate) send: Option<Mode>,
    pub(crate) receive: Option<Mode>,
}

pub(crate) struct Pins {
    pub(crate) settings: ZeroCopy,
    pub(crate) budget: Arc<Budget>,
    pub(crate) gauge: Arc<Gauge>,
    limits: MemoryLimits,
    origin: Instant,
    paths: Mutex<HashMap<IpAddr, PathModes>>,
    /// Which addresses are this host's.
    local: Mutex<HashMap<IpAddr, bool>>,
    /// Somebody waits for room.
    waiting: AtomicBool,
    waiters: Mutex<Vec<Arc<Parker>>>,
    warned: Mutex<Option<Instant>>,
    /// Of paths that are gone.
    past: Mutex<SendCounts>,
    /// The poll loop looks at paths from time to time.
    pub(crate) ticking: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The process's limits, as they were when it opened its first node.
fn limits() -> MemoryLimits {
    static LIMITS: OnceLock<MemoryLimits> = OnceLock::new();
    *LIMITS.get_or_init(MemoryLimits::read)
}

/// What nodes without a limit of their own share, as they share RLIMIT_MEMLOCK.
fn process_budget(limits: &MemoryLimits) -> Arc<Budget> {
    static BUDGET: OnceLock<Arc<Budget>> = OnceLock::new();
    let pages = || system(limits).limit_pages(limits.page_size);
    Arc::clone(BUDGET.get_or_init(|| Arc::new(Budget::new(pages()))))
}

const fn system(limits: &MemoryLimits) -> Limits {
    Limits { memlock: limits.memlock, optmem: limits.optmem }
}

impl Pins {
    pub(crate) fn new(settings: ZeroCopy, origin: Instant) -> Arc<Self> {
        let limits = limits();
        let budget = match settings.pin_limit {
            Some(bytes) => Arc::new(Budget::new(bytes / limits.page_size as u64)),
            None => process_budget(&limits),
        };
        Arc::new(Self {
            settings,
            budget,
            gauge: Arc::default(),
            limits,
            origin,
            paths: Mutex::default(),
            local: Mutex::default(),
            waiting: AtomicBool::new(false),
            waiters: Mutex::default(),
            warned: Mutex::default(),
            past: Mutex::default(),
            ticking: AtomicBool::new(false),
        })
    }

    pub(crate) fn now(&self) -> Time {
        super::shared::time_since(self.origin)
    }

    // ---- payloads ------------------------------------------------------------------------------------------------

    /// Pages to reserve for a payload that is handed in, where the program wants to hear of a lack of room.
    ///
    /// # Errors
    /// There is none: to wait for it, or, if the program wants that, to fail.
    pub(crate) fn reserve(
        &self,
        share: &Share,
        wanted: Option<Mode>,
        peer: IpAddr,
        len: usize,
    ) -> Result<u32, Full> {
        if self.settings.when_full == WhenFull::Copy {
            return Ok(0);
        }
        let eligible = match wanted.unwrap_or_else(|| self.modes(peer).0) {
            Mode::Off => false,
            Mode::On => len >= ON_MINIMUM,
            Mode::Auto => len >= AUTO_MINIMUM && !self.is_local_cached(peer),
        };
        if !eligible {
            return Ok(0);
        }
        // The next header may ride along.
        let pages = charge(len + HEADER_LEN, self.limits.page_size);
        match share.try_reserve(pages) {
            Ok(()) => Ok(pages),
            Err(Full::Never) if self.settings.when_full == WhenFull::Wait => Ok(0),
            Err(full) => Err(full),
        }
    }

    /// Bytes that may be pinned.
    pub(crate) fn limit(&self) -> u64 {
        self.budget.limit_pages().saturating_mul(self.limits.page_size as u64)
    }

    fn is_local_cached(&self, peer: IpAddr) -> bool {
        /// Addresses kept.
        const MOST: usize = 4096;
        let mut local = lock(&self.local);
        if let Some(known) = local.get(&peer) {
            return *known;
        }
        let known = is_local(peer);
        if local.len() >= MOST {
            local.clear();
        }
        local.insert(peer, known);
        known
    }

    // ---- paths ---------------------------------------------------------------------------------------------------

    /// Modes towards a peer: send, receive.
    pub(crate) fn modes(&self, peer: IpAddr) -> (Mode, Mode) {
        let own = lock(&self.paths).get(&peer).copied().unwrap_or_default();
        (own.send.unwrap_or(self.settings.send), own.receive.unwrap_or(self.settings.receive))
    }

    pub(crate) fn set_modes(&self, peer: IpAddr, modes: PathModes) {
        let mut paths = lock(&self.paths);
        if modes.send.is_none() && modes.receive.is_none() {
            paths.remove(&peer);
        } else {
            paths.insert(peer, modes);
        }
    }

    pub(crate) fn path(&self, peer: IpAddr) -> PathSettings {
        PathSettings {
            mode: self.modes(peer).0,
            local_peer: is_local(peer),
            page_size: self.limits.page_size,
            calls: system(&self.limits).notification_limit(),
            budget: Arc::clone(&self.budget),
            gauge: Arc::clone(&self.gauge),
        }
    }

    /// Whether segments of whole pages are worth it towards a peer, to send, and to receive. Where the peer is on this host
    /// only a program that says so wants them: they are smaller, and the kernel copies anyway.
    pub(crate) fn wants_segments(&self, peer: IpAddr) -> (bool, bool) {
        let (send, receive) = self.modes(peer);
        let auto = (send == Mode::Auto || receive == Mode::Auto) && !is_local(peer);
        let wants = |mode| mode == Mode::On || (mode == Mode::Auto && auto);
        (wants(send), wants(receive))
    }

    // ---- room ----------------------------------------------------------------------------------------------------

    /// Registers a thread that waits for room; it tries once more after that.
    pub(crate) fn wait(&self, parker: &Arc<Parker>) {
        let mut waiters = lock(&self.waiters);
        if !waiters.iter().any(|p| Arc::ptr_eq(p, parker)) {
            waiters.push(Arc::clone(parker));
        }
        self.waiting.store(true, SeqCst);
    }

    pub(crate) fn forget(&self, parker: &Arc<Parker>) {
        lock(&self.waiters).retain(|p| !Arc::ptr_eq(p, parker));
    }

    /// There may be room.
    pub(crate) fn wake(&self) {
        if self.waiting.load(SeqCst) && self.waiting.swap(false, SeqCst) {
            let waiters = std::mem::take(&mut *lock(&self.waiters));
            waiters.iter().for_each(|parker| parker.unpark());
        }
    }

    // ---- telling -------------------------------------------------------------------------------------------------

    /// The kernel refused to pin. Says so once in a while.
    pub(crate) fn refused(&self, outstanding: usize) {
        let mut warned = lock(&self.warned);
        if warned.is_some_and(|at| at.elapsed() < WARN_INTERVAL) {
            return;
        }
        *warned = Some(Instant::now());
        drop(warned);
        // Which of the two it was the kernel does not say.
        if let Some(bytes) = self.limits.memlock {
            tracing::warn!(
                outstanding,
                "the kernel pins no more memory for zero-copy sending (ENOBUFS), so payloads are copied: RLIMIT_MEMLOCK is \
                 {bytes} bytes for all processes of this user; raise it (ulimit -l, LimitMEMLOCK= of systemd), or lower the \
                 node's pin limit"
            );
        } else {
            tracing::warn!(
                outstanding,
                "the kernel has no room for another zero-copy notification (ENOBUFS), so payloads are copied: \
                 net.core.optmem_max is {} bytes a socket; raise it (sysctl net.core.optmem_max)",
                self.limits.optmem
            );
        }
    }

    /// A path is gone.
    pub(crate) fn add_past(&self, counts: &SendCounts) {
        lock(&self.past).add(counts);
    }

    /// The node, with the paths that it has.
    pub(crate) fn info(&self, paths: impl Iterator<Item = SendCounts>) -> NodeZeroCopy {
        let mut send = *lock(&self.past);
        paths.for_each(|counts| send.add(&counts));
        let page = self.limits.page_size as u64;
        let limit = self.budget.limit_pages();
        NodeZeroCopy {
            pinned_bytes: self.gauge.now() * page,
            pinned_bytes_max: self.gauge.max() * page,
            pin_limit: (limit != u64::MAX).then(|| limit.saturating_mul(page)),
            memlock: self.limits.memlock,
            optmem: self.limits.optmem,
            pool_bytes: 0,
            leaked_calls: LEAKED.load(Relaxed),
            send,
        }
    }
}

/// Calls whose notification never came.
pub(crate) fn leaked(calls: u64) {
    LEAKED.fetch_add(calls, Relaxed);
}

/// Whether an address is one of this host's.
fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || UdpSocket::bind((address, 0)).is_ok()
}
