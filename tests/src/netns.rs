//! Network namespaces for tests: a loopback interface of one's own, whose settings and addresses nobody else sees.
//!
//! A namespace that a test makes has no name, only a descriptor: the kernel removes it with the last thread, process and socket in it, whatever
//! becomes of the test. Needs root, because a process of several threads cannot make a user namespace to be root in.

use std::fs::File;
use std::net::IpAddr;
use std::panic::resume_unwind;
use std::path::Path;
use std::process::{Command, Output};
use std::{fs, io, thread};

use nix::sched::{CloneFlags, setns, unshare};

use crate::skip::Unavailable;

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    descriptor: File,
}

impl Namespace {
    /// A new one, with nothing but `lo`, which is up.
    ///
    /// # Errors
    /// The process may not make one, or there is no ip(8).
    ///
    /// # Panics
    /// `lo` cannot be brought up.
    pub fn new() -> Result<Self, Unavailable> {
        // In a thread that ends with it: a thread cannot be trusted to find back.
        let made = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|e| Unavailable::because(format!("no network namespace can be made: {e}")))?;
            File::open("/proc/thread-self/ns/net")
                .map_err(|e| Unavailable::because(format!("no /proc/thread-self/ns/net: {e}")))
        });
        let namespace = Self { descriptor: made.join().expect("it panics nowhere")? };
        match namespace.ip(&["link", "set", "dev", "lo", "up"]) {
            Ok(done) => {
                assert!(done.status.success(), "lo stays down: {}", String::from_utf8_lossy(&done.stderr));
                Ok(namespace)
            }
            Err(e) => Err(Unavailable::because(format!("ip(8) cannot be run: {e}"))),
        }
    }

    /// One that `ip netns` knows by this name, and that somebody else removes.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn named(name: &str) -> io::Result<Self> {
        Ok(Self { descriptor: File::open(Path::new("/run/netns").join(name))? })
    }

    /// Runs `inside` in a thread within the namespace, and returns what it returns. Sockets that it opens, threads and processes
    /// that it starts belong to the namespace. A node connects from whichever thread uses it, so all use of one belongs in here.
    /// Blocks until it is done.
    ///
    /// # Panics
    /// If `inside` does, with the same payload.
    pub fn run<T: Send>(&self, inside: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let name = thread::current().name().unwrap_or("test").to_owned();
            let body = || {
                setns(&self.descriptor, CloneFlags::CLONE_NEWNET).expect("who made it may enter it");
                inside()
            };
            // The same name, so that a panic in it tells which test it was.
            let thread = thread::Builder::new().name(name).spawn_scoped(scope, body).expect("a thread");
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    /// Gives `lo` one more address.
    ///
    /// # Panics
    /// The kernel refuses: no IPv6, for one.
    pub fn add_address(&self, address: IpAddr) {
        let address = address.to_string();
        let v6: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
        let added =
            self.ip(&[&["addr", "add", &address, "dev", "lo"], v6].concat()).expect("ip(8) ran before");
        assert!(added.status.success(), "no {address}: {}", String::from_utf8_lossy(&added.stderr));
    }

    /// Sets a value below /proc/sys/net, such as `core/optmem_max`, for this namespace alone.
    ///
    /// # Errors
    /// There is no such value, or the kernel has one for all namespaces and does not show it here.
    pub fn set_sysctl(&self, name: &str, value: &str) -> io::Result<()> {
        // Each thread sees the values of its own namespace there.
        self.run(|| fs::write(format!("/proc/sys/net/{name}"), value))
    }

    /// Runs ip(8) in the namespace.
    ///
    /// # Errors
    /// There is none.
    pub fn ip(&self, arguments: &[&str]) -> io::Result<Output> {
        self.run(|| Command::new("ip").args(arguments).output())
    }
}
