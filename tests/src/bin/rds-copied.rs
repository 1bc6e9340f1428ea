//! Sends with MSG_ZEROCOPY to an address where somebody reads, and says in which way the calls came back, as JSON. For tests, to be run
//! where the path of interest begins.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Parser;
use rds_tests::copied::Sender;

/// Asks the kernel whether the path to an address copies.
#[derive(Parser)]
struct Options {
    /// Address and TCP port to connect to.
    to: SocketAddr,
    /// Calls.
    #[arg(long, default_value_t = 100)]
    calls: u32,
    /// Bytes a call.
    #[arg(long, default_value_t = 64 << 10)]
    size: usize,
}

fn main() -> ExitCode {
    let options = Options::parse();
    match Sender::connect(None, options.to).and_then(|sender| sender.send(options.calls, options.size)) {
        Ok(calls) => {
            println!("{}", serde_json::json!({ "copied": calls.copied, "not_copied": calls.not_copied }));
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("rds-copied: {e}");
            ExitCode::FAILURE
        }
    }
}
