//! Attaching without end. Alone in its process, whose descriptors it counts.

mod common;

use std::io::{Read, Write};

use common::honest::Honest;
use common::raw::connect;
use common::{Daemon, LONG};
use rds_core::attach::Hello;

#[test]
fn ten_thousand_attempts_leave_nothing_behind() {
    let daemon = Daemon::with(&["127.43.2.5"], |settings| settings.quotas.user.clients = 20);
    let mut honest = Honest::at(&daemon);
    let count = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let whole = Hello::default().encode();
    // Threads of the honest programs may still make some of their own.
    let most = count() + 8;
    for n in 0..10_000 {
        let mut socket = connect(&daemon.path());
        // Some say nothing, some half of a hello, some all of it and go, and some are let in.
        let bytes = match n % 4 {
            0 => &[],
            1 => &whole[..n % whole.len()],
            _ => &whole[..],
        };
        let _ = socket.write_all(bytes);
        if n % 100 == 3 {
            let _ = socket.read(&mut [0; 1]);
        }
        if n % 500 == 0 {
            honest.goes_on();
        }
    }
    // All of them are forgotten as soon as the daemon has come round.
    let deadline = std::time::Instant::now() + LONG;
    while count() > most && std::time::Instant::now() < deadline {
        honest.goes_on();
    }
    assert!(count() <= most, "descriptors: {} of {most}", count());
    let all: Vec<_> = (0..18).map(|_| daemon.attach()).collect();
    drop(all);
    honest.goes_on();
}
