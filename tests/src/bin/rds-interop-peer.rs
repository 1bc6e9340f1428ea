//! A node of ours in a process of its own, for the interoperability suite: `rds-interop-peer ADDRESS:PORT TO:PORT FIRST [--attach SOCKET]`.

use std::process::ExitCode;

use clap::Parser;

/// Sends numbered messages, and prints those that come, until standard input ends.
#[derive(Parser)]
struct Arguments {
    /// Where it is bound.
    at: std::net::SocketAddr,
    /// Where it sends.
    to: std::net::SocketAddr,
    /// Number of the first message that it sends.
    first: u64,
    /// Be a client of the daemon with this socket.
    #[arg(long)]
    attach: Option<std::path::PathBuf>,
}

fn main() -> ExitCode {
    let Arguments { at, to, first, attach } = Arguments::parse();
    match rds_tests::interop::process::peer(at, to, first, attach.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("rds-interop-peer: {why}");
            ExitCode::FAILURE
        }
    }
}
