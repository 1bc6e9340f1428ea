//! What a node may pin, and where: limits of the system, settings of paths, and who waits for room.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::ZeroCopy;
use super::parker::Parker;
use super::tasks::Tasks;
use crate::events::note;
use crate::info::{NodeReceiveZeroCopy, NodeZeroCopy};
use crate::proto::Time;
use crate::sys::limits::MemoryLimits;
use crate::wire::HEADER_LEN;
use crate::zerocopy::controller::{AUTO_MINIMUM, ON_MINIMUM};
use crate::zerocopy::{
    Budget, Fallbacks, Full, Gauge, Limits, Mode, PathSettings, SendCounts, Share, WhenFull, charge,
};

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

/// Modes of all paths.
struct Paths {
    /// How is sent where a path does not say.
    send: Mode,
    own: HashMap<IpAddr, PathModes>,
}

/// Threads and tasks that wait for room in a budget, of all nodes that share it.
#[derive(Default)]
struct Waiting {
    somebody: AtomicBool,
    threads: Mutex<Vec<Arc<Parker>>>,
    tasks: Tasks,
}

pub(crate) struct Pins {
    pub(crate) settings: ZeroCopy,
    pub(crate) budget: Arc<Budget>,
    waiting: Arc<Waiting>,
    pub(crate) gauge: Arc<Gauge>,
    limits: MemoryLimits,
    origin: Instant,
    paths: Mutex<Paths>,
    /// Which addresses are this host's.
    local: Mutex<HashMap<IpAddr, bool>>,
    warned: Mutex<Option<Instant>>,
    /// Of paths that are gone.
    past: Mutex<SendCounts>,
    /// The poll loop looks at paths from time to time.
    pub(crate) ticking: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What nodes without a limit of their own share, as they share RLIMIT_MEMLOCK: as it was when the first of them was opened.
fn process_budget(limits: &MemoryLimits) -> (Arc<Budget>, Arc<Waiting>) {
    static SHARED: OnceLock<(Arc<Budget>, Arc<Waiting>)> = OnceLock::new();
    let pages = || system(limits).limit_pages(limits.page_size);
    SHARED.get_or_init(|| (Arc::new(Budget::new(pages())), Arc::default())).clone()
}

const fn system(limits: &MemoryLimits) -> Limits {
    Limits { memlock: limits.memlock, optmem: limits.optmem }
}

impl Pins {
    pub(crate) fn new(settings: ZeroCopy, origin: Instant) -> Arc<Self> {
        let limits = MemoryLimits::read();
        let (budget, waiting) = match settings.pin_limit {
            Some(bytes) => (Arc::new(Budget::new(bytes / limits.page_size as u64)), Arc::default()),
            None => process_budget(&limits),
        };
        Arc::new(Self {
            settings,
            budget,
            waiting,
            gauge: Arc::default(),
            limits,
            origin,
            paths: Mutex::new(Paths { send: settings.send, own: HashMap::new() }),
            local: Mutex::default(),
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

    /// Bytes of so many pages.
    pub(crate) const fn bytes(&self, pages: u64) -> u64 {
        pages.saturating_mul(self.limits.page_size as u64)
    }

    /// Bytes that may be pinned.
    pub(crate) fn limit(&self) -> u64 {
        self.bytes(self.budget.limit_pages())
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
        let paths = lock(&self.paths);
        let own = paths.own.get(&peer).copied().unwrap_or_default();
        (own.send.unwrap_or(paths.send), own.receive.unwrap_or(self.settings.receive))
    }

    pub(crate) fn set_modes(&self, peer: IpAddr, modes: PathModes) {
        let mut paths = lock(&self.paths);
        if modes.send.is_none() && modes.receive.is_none() {
            paths.own.remove(&peer);
        } else {
            paths.own.insert(peer, modes);
        }
    }

    pub(crate) fn set_send_mode(&self, mode: Mode) {
        lock(&self.paths).send = mode;
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
        let mut threads = lock(&self.waiting.threads);
        if !threads.iter().any(|p| Arc::ptr_eq(p, parker)) {
            threads.push(Arc::clone(parker));
        }
        self.waiting.somebody.store(true, SeqCst);
        // Either this thread sees the room, or whoever made it sees this thread.
        fence(SeqCst);
    }

    pub(crate) fn forget(&self, parker: &Arc<Parker>) {
        lock(&self.waiting.threads).retain(|p| !Arc::ptr_eq(p, parker));
    }

    /// Has a task woken when there may be room, as [`Pins::wait`] does a thread.
    pub(crate) fn watch(&self, key: u64, waker: &Waker) {
        self.waiting.tasks.add(key, waker);
    }

    pub(crate) fn unwatch(&self, key: u64) {
        self.waiting.tasks.remove(key);
    }

    /// There may be room. To be called after pages came back to the budget, whoever had them.
    pub(crate) fn wake(&self) {
        fence(SeqCst);
        if self.waiting.somebody.load(SeqCst) && self.waiting.somebody.swap(false, SeqCst) {
            let threads = std::mem::take(&mut *lock(&self.waiting.threads));
            threads.iter().for_each(|parker| parker.unpark());
        }
        self.waiting.tasks.wake();
    }

    // ---- telling -------------------------------------------------------------------------------------------------

    /// Says once in a while that messages were copied for want of room, which limit that is, and what to do.
    pub(crate) fn fell_back(&self, before: &Fallbacks, after: &Fallbacks, outstanding: usize) {
        let Fallbacks { budget, notifications, refused, .. } = *after;
        let (budget, notifications, refused) =
            (budget > before.budget, notifications > before.notifications, refused > before.refused);
        if !(budget || notifications || refused) || !self.may_warn() {
            return;
        }
        let optmem = self.limits.optmem;
        if notifications || (refused && self.limits.memlock.is_none()) {
            note!(
                SendCopied,
                outstanding,
                "payloads are copied, since the kernel keeps no more zero-copy notifications for the connection: \
                 net.core.optmem_max is {optmem} bytes a socket; raise it (sysctl net.core.optmem_max)"
            );
        } else if let (Some(bytes), true) = (self.settings.pin_limit, budget) {
            note!(
                SendCopied,
                outstanding,
                "payloads are copied, since the node's pin limit of {bytes} bytes has no room for them: raise it, or send less at a time"
            );
        } else {
            // Of a refusal the kernel does not say why; another process of the user may have what is missing.
            let bytes = self.limits.memlock.unwrap_or(u64::MAX);
            note!(
                SendCopied,
                outstanding,
                "payloads are copied, since no more memory may be pinned for zero-copy sending: RLIMIT_MEMLOCK is {bytes} bytes \
                 for all processes of this user, of which the nodes of this process take three quarters; raise it (ulimit -l, \
                 LimitMEMLOCK= of systemd)"
            );
        }
    }

    fn may_warn(&self) -> bool {
        let mut warned = lock(&self.warned);
        let may = warned.is_none_or(|at| at.elapsed() >= WARN_INTERVAL);
        if may {
            *warned = Some(Instant::now());
        }
        may
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
            recv: NodeReceiveZeroCopy::default(),
        }
    }
}

/// Calls whose notification never came.
pub(crate) fn leaked(calls: u64) {
    LEAKED.fetch_add(calls, Relaxed);
}

/// Whether an address is one of this host's; also where that cannot be found out, because descriptors are used up, for one:
/// whoever is on this host could change what is mapped.
pub(crate) fn is_local(address: IpAddr) -> bool {
    address.is_loopback() || can_be_ours(&UdpSocket::bind((address, 0)))
}

fn can_be_ours<T>(bound: &io::Result<T>) -> bool {
    !matches!(bound, Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::super::{Engine, Options};
    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 31, 91, 1));

    fn node(last: u8, pin_limit: Option<u64>) -> Engine {
        let mut options = Options::new(IpAddr::V4(Ipv4Addr::new(127, 31, 91, last)));
        (options.listen_port, options.zero_copy.send) = (0, Mode::On);
        (options.zero_copy.when_full, options.zero_copy.pin_limit) = (WhenFull::Wait, pin_limit);
        Engine::open(options).unwrap()
    }

    #[test]
    fn room_that_one_node_makes_wakes_those_who_share_its_budget() {
        let (a, b, own) = (node(1, None), node(2, None), node(3, Some(1 << 20)));
        let parker = Parker::take(&a.shared().right);
        a.shared().pins.wait(&parker);
        own.shared().pins.wake();
        b.shared().pins.wake();
        assert!(parker.notified());
    }

    #[test]
    fn an_address_of_which_nothing_is_known_is_taken_for_one_of_this_host() {
        assert!(is_local(ADDRESS) && !is_local(IpAddr::from([192, 0, 2, 1])));
        for error in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EACCES] {
            assert!(can_be_ours::<()>(&Err(io::Error::from_raw_os_error(error))));
        }
    }

    #[test]
    fn a_send_that_is_refused_gives_its_room_to_those_who_wait() {
        let node = node(4, Some(16 << 20));
        let socket = node.bind(0).unwrap();
        let parker = Parker::take(&node.shared().right);
        node.shared().pins.wait(&parker);
        let nowhere = SocketAddr::from((ADDRESS, 0));
        assert!(socket.try_send_owned(vec![1; 2 << 20], nowhere).is_err(), "larger than a message");
        assert!(parker.notified());
    }
}
