//! Soakers: threads that use up every idle CPU, so that what they do not get is what the run needs (`-c`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use thread_priority::{
    NormalThreadSchedulePolicy, RealtimeThreadSchedulePolicy, ThreadPriority, ThreadPriorityValue,
    ThreadSchedulePolicy, set_thread_priority_and_policy, thread_native_id,
};

use crate::error::{Failure, failure};
use crate::report::CpuTime;

/// Work between two calls, so that the count is not that of a system call alone.
const SPINS: u64 = 10_000;

/// One soaker for each online CPU.
#[derive(Debug)]
pub struct Soakers {
    shared: Vec<Arc<Soaker>>,
    threads: Vec<JoinHandle<()>>,
    /// Calls at the last look, and the best rate ever seen, for each.
    seen: Vec<(u64, f64)>,
    looked: Instant,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Soaker {
    stop: AtomicBool,
    calls: AtomicU64,
    user_us: AtomicU64,
    system_us: AtomicU64,
}

impl Soakers {
    /// Starts them.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn start() -> Result<Self, Failure> {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        let shared: Vec<_> = (0..cpus).map(|_| Arc::new(Soaker::default())).collect();
        let mut soakers =
            Self { seen: vec![(0, 0.0); cpus], threads: Vec::new(), shared, looked: Instant::now() };
        for soaker in &soakers.shared {
            let soaker = Arc::clone(soaker);
            let thread = thread::Builder::new()
                .name("soaker".into())
                .spawn(move || soaker.soak())
                .map_err(|e| failure!("cannot start a soaker: {e}: leave out -c"))?;
            soakers.threads.push(thread);
        }
        Ok(soakers)
    }

    /// What they did not get since the last look, in percent of what they got at best.
    pub fn cpu_percent(&mut self) -> f64 {
        let seconds = self.looked.elapsed().as_secs_f64().max(1e-9);
        self.looked = Instant::now();
        let (mut capacity, mut soaked) = (0.0, 0.0);
        for (soaker, (before, best)) in self.shared.iter().zip(&mut self.seen) {
            let calls = soaker.calls.load(Ordering::Relaxed);
            let rate = (calls - *before) as f64 / seconds;
            *before = calls;
            *best = best.max(rate);
            capacity += *best;
            soaked += best.min(rate);
        }
        if capacity > 0.0 { 100.0 * (capacity - soaked) / capacity } else { 0.0 }
    }

    /// CPU time that they used, to be left out of the run's.
    #[must_use]
    pub fn used(&self) -> CpuTime {
        let sum = |f: fn(&Soaker) -> &AtomicU64| {
            self.shared.iter().map(|s| f(s).load(Ordering::Relaxed)).sum::<u64>() as f64 / 1e6
        };
        CpuTime { user: sum(|s| &s.user_us), system: sum(|s| &s.system_us) }
    }
}

impl Drop for Soakers {
    fn drop(&mut self) {
        self.shared.iter().for_each(|s| s.stop.store(true, Ordering::Relaxed));
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Soaker {
    fn soak(&self) {
        // Only what nobody else wants. Where this is refused, the run is slowed down, but the column holds.
        let idle = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
        let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, idle);
        while !self.stop.load(Ordering::Relaxed) {
            let mut work = 0u64;
            for i in 0..SPINS {
                work = std::hint::black_box(work.wrapping_mul(31).wrapping_add(i));
            }
            if let Ok(usage) = getrusage(UsageWho::RUSAGE_THREAD) {
                let us = |t: nix::sys::time::TimeVal| t.tv_sec() as u64 * 1_000_000 + t.tv_usec() as u64;
                self.user_us.store(us(usage.user_time()), Ordering::Relaxed);
                self.system_us.store(us(usage.system_time()), Ordering::Relaxed);
            }
            self.calls.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Runs this thread at real-time priority 1, round robin (`-R`).
///
/// # Errors
/// Not allowed.
pub fn set_realtime() -> Result<(), Failure> {
    let round_robin = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::RoundRobin);
    ThreadPriorityValue::try_from(1u8)
        .map_err(|e| failure!("{e}"))
        .and_then(|one| {
            set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Crossplatform(one), round_robin)
                .map_err(|e| failure!("cannot run at real-time priority ({e}): run as root or with CAP_SYS_NICE, or leave out -R"))
        })
}
