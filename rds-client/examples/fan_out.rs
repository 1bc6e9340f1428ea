//! A feed: what is sent to one port, every subscriber gets, each in the order in which it was sent.
//!
//! ```sh
//! rds-server --address 127.0.0.1 --socket /tmp/rds.sock &
//! cargo run -p rds-client --example fan_out -- --attach /tmp/rds.sock
//! ```
//!
//! Ports are shared at a daemon. The subscribers are threads here, each attached for itself, as programs of their own would be.

use std::thread;
use std::time::Duration;

use rds_client::{DEFAULT_PATH, Event, Node, Sharing, Socket};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PORT: u16 = 4200;
const SUBSCRIBERS: usize = 3;
const UPDATES: u64 = 1000;

fn main() -> Result<()> {
    let attach = std::env::args().skip_while(|argument| argument != "--attach").nth(1);
    let path = attach.unwrap_or_else(|| DEFAULT_PATH.to_owned());

    // Who joins gets what comes from then on: when the bind has returned, it has joined.
    let mut subscribers = Vec::new();
    for _ in 0..SUBSCRIBERS {
        let socket = Node::attach(&path)?.bind_shared(PORT, Sharing::FanOut)?;
        subscribers.push(thread::spawn(move || follow(&socket)));
    }

    let node = Node::attach(&path)?;
    let feed = node.bind(0)?;
    feed.connect((node.address(), PORT).into())?;
    for number in 0..UPDATES {
        // Waits for the slowest: nobody misses an update. A feed whose subscribers may miss some takes `try_send_to`, and skips.
        feed.send(&number.to_le_bytes())?;
    }

    for (n, subscriber) in subscribers.into_iter().enumerate() {
        let seen = subscriber.join().expect("a subscriber does not panic")?;
        println!("subscriber {n} saw {seen} updates");
        assert_eq!(seen, UPDATES);
    }
    Ok(())
}

/// Takes all updates, which must come in order and without a gap.
fn follow(socket: &Socket) -> Result<u64> {
    socket.set_recv_timeout(Some(Duration::from_secs(10)));
    let mut next = 0;
    while next < UPDATES {
        if let Event::Message(update) = socket.recv_lease()? {
            assert_eq!(u64::from_le_bytes(update.payload[..].try_into()?), next);
            next += 1;
        }
    }
    Ok(next)
}
