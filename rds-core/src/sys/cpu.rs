//! CPU time.

use std::time::Duration;

/// CPU time that the calling thread has used so far, in user space and in the kernel (CLOCK_THREAD_CPUTIME_ID,
/// clock_gettime(2)). Only differences mean anything. Costs a system call.
pub(crate) fn thread_cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: clock_gettime(2) writes one timespec at the address given, which is that of `time`.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    debug_assert_eq!(rc, 0, "every Linux has this clock");
    // Both are positive, and the nanoseconds are fewer than a second.
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_computes_uses_cpu_time() {
        let start = thread_cpu_time();
        // Ends only if the clock goes on.
        while thread_cpu_time() - start < Duration::from_millis(5) {}
    }

    #[test]
    fn a_thread_that_waits_uses_none_of_anothers() {
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let waiting = std::thread::spawn(move || {
            let start = thread_cpu_time();
            wait.recv().unwrap();
            thread_cpu_time() - start
        });
        let start = thread_cpu_time();
        while thread_cpu_time() - start < Duration::from_millis(200) {}
        go.send(()).unwrap();
        assert!(waiting.join().unwrap() < Duration::from_millis(200));
    }
}
