//! Receiving by mapping, as all connections of a node share it: address space, settings, counters.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::ZeroCopy;
use super::pins::is_local;
use crate::events::note;
use crate::info::{NodeReceiveZeroCopy, ReceiveZeroCopy};
use crate::proto::ConnId;
use crate::sys::region::{PathRegion, RegionPool, page_size};
use crate::zerocopy::{MapController, Mode, ReceiveCounts};

/// Address space of one path: what a peer may have sent ahead, which programs have not taken, and as much again for what passes.
const PATH_BYTES: usize = 8 << 20;
/// Bytes that are unmapped together. Unmapping interrupts the processors on which the process runs, so it must be seldom; and pages must
/// come back to the kernel while they are warm.
const LAP_BYTES: usize = 1 << 20;
/// Paths for which address space is set aside at once.
const PATHS: usize = 16;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) struct Maps {
    settings: ZeroCopy,
    page_size: usize,
    /// Made when the first path wants it; `None` within: the kernel does not map.
    regions: OnceLock<Option<RegionPool>>,
    paths: Mutex<HashMap<ConnId, Arc<MapPath>>>,
    /// Of paths that are gone.
    past: Mutex<ReceiveCounts>,
}

/// One connection's receiving side, as far as others than its reader look at it.
pub(crate) struct MapPath {
    peer: IpAddr,
    pub(crate) state: Mutex<MapState>,
}

pub(crate) struct MapState {
    pub(super) controller: MapController,
    /// For messages whose socket wants `auto` on a path that is off or on.
    auto: Option<Box<MapController>>,
    pub(crate) counts: ReceiveCounts,
    /// Pages that are being filled or held, and pages that are free and still mapped.
    pub(crate) lent_pages: u32,
    pub(crate) used_pages: u32,
}

impl MapPath {
    pub(crate) fn state(&self) -> MutexGuard<'_, MapState> {
        lock(&self.state)
    }
}

impl MapState {
    /// The controller that decides for a message whose socket wants `wanted`.
    pub(super) fn deciding(&mut self, wanted: Option<Mode>) -> &mut MapController {
        match wanted {
            Some(mode @ Mode::Auto) if self.controller.mode() != mode => {
                self.auto.get_or_insert_with(|| Box::new(self.controller.in_mode(mode)))
            }
            _ => &mut self.controller,
        }
    }

    /// Tells all controllers of the path.
    pub(super) fn each(&mut self, mut f: impl FnMut(&mut MapController)) {
        f(&mut self.controller);
        if let Some(auto) = &mut self.auto {
            f(auto);
        }
    }
}

impl Maps {
    pub(crate) fn new(settings: ZeroCopy) -> Arc<Self> {
        Arc::new(Self {
            settings,
            page_size: page_size(),
            regions: OnceLock::new(),
            paths: Mutex::default(),
            past: Mutex::default(),
        })
    }

    pub(crate) fn page_size(&self) -> usize {
        self.page_size
    }

    /// Sets the mode of the connections that there are to a peer.
    pub(crate) fn set_mode(&self, peer: IpAddr, mode: Mode) {
        for path in lock(&self.paths).values().filter(|path| path.peer == peer) {
            path.state().controller.set_mode(mode);
        }
    }

    /// A connection begins.
    pub(super) fn add(&self, id: ConnId, peer: IpAddr, mode: Mode) -> Arc<MapPath> {
        let controller = MapController::new(mode, is_local(peer)).with_page_size(self.page_size);
        let counts = ReceiveCounts::default();
        let state = MapState { controller, auto: None, counts, lent_pages: 0, used_pages: 0 };
        let path = Arc::new(MapPath { peer, state: Mutex::new(state) });
        lock(&self.paths).insert(id, Arc::clone(&path));
        path
    }

    /// A connection has ended.
    pub(super) fn remove(&self, id: ConnId) {
        if let Some(path) = lock(&self.paths).remove(&id) {
            lock(&self.past).add(&path.state().counts);
        }
    }

    /// Address space for a path; `None` if there is none to be had.
    pub(super) fn region(&self) -> Option<PathRegion> {
        let pool = self.regions.get_or_init(|| {
            let pool = RegionPool::new(PATHS, PATH_BYTES, LAP_BYTES, self.settings.map_limit);
            pool.inspect_err(|error| note!(ReceiveCopied, %error, "received messages are copied")).ok()
        });
        let region = pool.as_ref()?.take();
        region
            .inspect_err(|error| note!(ReceiveCopied, %error, "received messages of a connection are copied"))
            .ok()
    }

    /// Takes back what programs held of connections that have ended. Whether there is more to come back, of any.
    pub(crate) fn idle(&self) -> bool {
        let Some(Some(pool)) = self.regions.get() else { return false };
        pool.idle();
        pool.bytes_in_use() > 0
    }

    /// The node.
    pub(crate) fn info(&self) -> NodeReceiveZeroCopy {
        let mut counts = *lock(&self.past);
        lock(&self.paths).values().for_each(|path| counts.add(&path.state().counts));
        let region_bytes = self.regions.get().and_then(Option::as_ref).map_or(0, RegionPool::bytes_in_use);
        NodeReceiveZeroCopy { region_bytes, map_limit: self.settings.map_limit, counts }
    }

    /// One connection. `announced`: its peer sends so that it can be mapped.
    pub(crate) fn path_info(&self, id: ConnId, announced: bool) -> Option<ReceiveZeroCopy> {
        let paths = lock(&self.paths);
        let state = paths.get(&id)?.state();
        Some(ReceiveZeroCopy {
            decision: state.controller.state(announced),
            counts: state.counts,
            lent_pages: state.lent_pages,
            used_pages: state.used_pages,
        })
    }
}
