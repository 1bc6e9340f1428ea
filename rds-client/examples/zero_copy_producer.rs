//! Large messages without a copy on our side: buffers of the node's pool are filled in place, sent from where they lie, and come back to the pool.
//!
//! `cargo run -p rds-client --example zero_copy_producer`
//!
//! Whether the kernel copies as well depends on the path: over loopback, as here, it does. See docs/zero-copy.md.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use rds_client::{Completion, Event, Mode, Node, Socket};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const BLOCK: usize = 256 << 10;
const BLOCKS: u64 = 200;
/// So many are out at one time: the memory that this program needs, whatever the receiver does.
const WINDOW: usize = 8;

fn main() -> Result<()> {
    // Unless told so, a node sends this way only where it measured that it pays; never to its own host.
    let open = |address: &str| -> Result<Node> {
        Ok(Node::builder(address.parse()?).zero_copy_send(Mode::On).open()?)
    };
    let (here, there) = (open("127.80.4.1")?, open("127.80.4.2")?);
    let (producer, consumer) = (here.bind(0)?, there.bind(4300)?);
    let to = consumer.local_addr();
    let consuming = thread::spawn(move || consume(&consumer));

    let mut under_way = HashMap::new();
    let mut ends = Vec::new();
    let mut copied_blocks = 0;
    let mut number = 0;
    while number < BLOCKS || !under_way.is_empty() {
        if number < BLOCKS && under_way.len() < WINDOW {
            // One that came back, as a rule.
            let mut block = here.buffer(BLOCK);
            produce(number, &mut block);
            // From here on it is the node's: it cannot be changed any more. An error would give it back.
            let cookie = producer.send_owned(block, to).map_err(|(error, _block)| error)?;
            under_way.insert(cookie, 2);
            number += 1;
        } else {
            producer.wait_completions(&mut ends, None);
        }
        // Each message has two completions, in any order: how it ended, and that its memory is free.
        producer.completions(&mut ends);
        for end in ends.drain(..) {
            match end {
                Completion::Delivered { .. } => {}
                Completion::Released { copied, .. } => copied_blocks += u64::from(copied),
                other => return Err(format!("a block did not arrive: {other:?}").into()),
            }
            let left =
                under_way.get_mut(&end.cookie()).ok_or("a completion of something that was not sent")?;
            *left -= 1;
            if *left == 0 {
                under_way.remove(&end.cookie());
            }
        }
    }

    let bytes = consuming.join().expect("the consumer does not panic")?;
    assert_eq!(bytes, BLOCKS * BLOCK as u64);
    let sent = here.snapshot().zero_copy.send;
    println!("{BLOCKS} blocks of {BLOCK} bytes arrived; {} calls were pinned", sent.calls);
    println!("{copied_blocks} blocks were copied by the kernel, {} of the calls all the same", sent.copied);
    Ok(())
}

/// What there is to be sent.
fn produce(number: u64, block: &mut [u8]) {
    for (n, word) in block.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(number * 1_000_003 + n as u64).to_le_bytes());
    }
}

/// Looks at each block in the memory into which it was received.
fn consume(socket: &Socket) -> Result<u64> {
    socket.set_recv_timeout(Some(Duration::from_secs(10)));
    let mut bytes = 0;
    for number in 0..BLOCKS {
        let Event::Message(block) = socket.recv_lease()? else { continue };
        let mut words = block.payload.chunks_exact(8).enumerate();
        let right = words.all(|(n, word)| word == (number * 1_000_003 + n as u64).to_le_bytes());
        assert!(right, "block {number} came as another than was sent");
        bytes += block.payload.len() as u64;
        // Dropping the block gives its memory back.
    }
    Ok(bytes)
}
