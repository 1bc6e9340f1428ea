//! Shared parts of the whole-system tests.

#[cfg(doctest)]
mod book;
pub mod browser;
pub mod captures;
pub mod compare;
pub mod copied;
pub mod crowd;
pub mod daemon;
pub mod guest;
pub mod http;
pub mod interop;
pub mod ledger;
pub mod netns;
pub mod program;
pub mod proxy;
pub mod relay;
pub mod reset;
pub mod sim;
pub mod skip;
pub mod stress;
pub mod unprivileged;
pub mod xdp;

/// Address `host` in net `net` of this process: a loopback address that no other test process is likely to use at the same time.
#[must_use]
pub fn address(net: u8, host: u8) -> std::net::Ipv4Addr {
    let process = u8::try_from(std::process::id() % 128).unwrap_or(0);
    std::net::Ipv4Addr::new(127, 100 + process, net, host)
}
