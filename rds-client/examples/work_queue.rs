//! A work queue: jobs are sent to one port, and each goes to one of the workers that share it, the one with most room.
//!
//! ```sh
//! rds-server --address 127.0.0.1 --socket /tmp/rds.sock &
//! cargo run -p rds-client --example work_queue -- --attach /tmp/rds.sock
//! ```
//!
//! Ports are shared at a daemon. The workers are threads here, each attached for itself, as programs of their own would be.

use std::thread;
use std::time::Duration;

use rds_client::{DEFAULT_PATH, Event, Node, Received, RecvError, Sharing, Socket};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PORT: u16 = 4100;
const WORKERS: usize = 3;
const JOBS: u32 = 1000;

fn main() -> Result<()> {
    let attach = std::env::args().skip_while(|argument| argument != "--attach").nth(1);
    let path = attach.unwrap_or_else(|| DEFAULT_PATH.to_owned());

    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let node = Node::attach(&path)?;
        let socket = node.bind_shared(PORT, Sharing::Balance)?;
        // Room for some 40 jobs: what a worker has not taken yet goes to nobody else.
        socket.set_recv_buffer(160);
        workers.push((node, thread::spawn(move || work(&socket))));
    }

    let node = Node::attach(&path)?;
    let results = node.bind(0)?;
    let queue = (node.address(), PORT).into();
    let sum = thread::scope(|scope| -> Result<u64> {
        let collecting = scope.spawn(|| collect(&results));
        for job in 1..=JOBS {
            // Waits while all workers have as much as they can hold.
            results.send_to(&job.to_le_bytes(), queue)?;
        }
        collecting.join().expect("collecting does not panic")
    })?;
    assert_eq!(sum, (1..=u64::from(JOBS)).map(|job| job * job).sum::<u64>(), "each job was done, once");

    let mut done = 0;
    for (n, (node, worker)) in workers.into_iter().enumerate() {
        node.shutdown(Duration::from_secs(1));
        let jobs = worker.join().expect("a worker does not panic")?;
        println!("worker {n} did {jobs} jobs");
        done += jobs;
    }
    assert_eq!(done, JOBS);
    Ok(())
}

/// Squares numbers, and sends each result to whoever wants it.
fn work(socket: &Socket) -> Result<u32> {
    let mut done = 0;
    loop {
        match socket.recv_lease() {
            Ok(Event::Message(job)) => {
                let number = u64::from(u32::from_le_bytes(job.payload[..].try_into()?));
                socket.send_to(&(number * number).to_le_bytes(), job.from)?;
                done += 1;
            }
            Ok(_) => {}
            Err(RecvError::Shutdown) => return Ok(done),
            Err(error) => return Err(error.into()),
        }
    }
}

fn collect(results: &Socket) -> Result<u64> {
    let (mut sum, mut buffer) = (0, [0; 8]);
    results.set_recv_timeout(Some(Duration::from_secs(10)));
    for _ in 0..JOBS {
        if let Received::Message { len: 8, .. } = results.recv_from(&mut buffer)? {
            sum += u64::from_le_bytes(buffer);
        }
    }
    Ok(sum)
}
