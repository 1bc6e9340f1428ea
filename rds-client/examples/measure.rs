//! Throughput and round trips between two nodes of this process, over loopback.
//!
//! `cargo run --release -p rds-client --example measure [seconds [busy-poll microseconds [size]...]]`

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use rds_client::{Bytes, Node, Socket};

const PORT: u16 = 26386;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let time = Duration::from_secs_f64(args.next().map_or(Ok(1.0), |a| a.parse())?);
    let spin = Duration::from_micros(args.next().map_or(Ok(0), |a| a.parse())?);
    let mut sizes = args.map(|a| a.parse()).collect::<Result<Vec<usize>, _>>()?;
    if sizes.is_empty() {
        sizes = vec![64, 1024, 4096, 65536, 1 << 20];
    }
    let open = |address: &str| -> Result<Node, Box<dyn Error>> {
        let builder = Node::builder(address.parse()?).listen_port(PORT).dial_port(PORT);
        Ok(builder.busy_poll(spin).congestion_control("cubic").open()?)
    };
    let (a, b) = (open("127.73.1.1")?, open("127.73.1.2")?);
    println!("{:>10} {:>14} {:>12} {:>12} {:>12}", "size", "messages/s", "MB/s", "CPU/message", "round trip");
    for size in sizes {
        let (x, y) = (a.bind(0)?, b.bind(0)?);
        for socket in [&x, &y] {
            socket.set_send_buffer(8 << 20);
            socket.set_recv_buffer(8 << 20);
        }
        let before = processor_time()?;
        let (count, elapsed) = flood(&x, &y, size, time)?;
        let each = (processor_time()? - before) / f64::from(count);
        let rate = f64::from(count) / elapsed;
        let (x, y) = (a.bind(0)?, b.bind(0)?);
        let trip = ping(&x, &y, size, time)?;
        let bytes = rate * f64::from(u32::try_from(size)?) / 1e6;
        println!("{size:>10} {rate:>14.0} {bytes:>12.1} {:>9.2} us {:>9.1} us", each * 1e6, trip * 1e6);
    }
    Ok(())
}

/// Seconds of processor time that this process has used, both nodes together.
fn processor_time() -> Result<f64, Box<dyn Error>> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF)?;
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Messages from one thread to another, and the seconds they took.
fn flood(x: &Socket, y: &Socket, size: usize, time: Duration) -> Result<(u32, f64), Box<dyn Error>> {
    let stop = AtomicBool::new(false);
    let start = Instant::now();
    let count = thread::scope(|scope| {
        scope.spawn(|| {
            let payload = vec![7; size];
            while !stop.load(Relaxed) {
                x.send_to(&payload, y.local_addr()).expect("the node is open");
            }
            x.send_detached(Bytes::new(), y.local_addr()).expect("the node is open");
        });
        let mut buffer = vec![0; size];
        let mut count = 0_u32;
        loop {
            let got = y.recv_from(&mut buffer).expect("the node is open");
            if matches!(got, rds_client::Received::Message { full_len: 0, .. }) {
                return count;
            }
            count += 1;
            if count.is_multiple_of(64) && start.elapsed() >= time {
                stop.store(true, Relaxed);
            }
        }
    });
    Ok((count, start.elapsed().as_secs_f64()))
}

/// Seconds a round trip takes.
fn ping(x: &Socket, y: &Socket, size: usize, time: Duration) -> Result<f64, Box<dyn Error>> {
    let start = Instant::now();
    let count = thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; size];
            loop {
                let got = y.recv_from(&mut buffer).expect("the node is open");
                let rds_client::Received::Message { len, from, .. } = got else { continue };
                if len == 0 {
                    return;
                }
                y.send_to(&buffer[..len], from).expect("the node is open");
            }
        });
        let payload = vec![7; size];
        let mut buffer = vec![0; size];
        let mut count = 0_u32;
        while start.elapsed() < time {
            x.send_to(&payload, y.local_addr()).expect("the node is open");
            x.recv_from(&mut buffer).expect("the node is open");
            count += 1;
        }
        x.send_to(&[], y.local_addr()).expect("the node is open");
        count
    });
    Ok(start.elapsed().as_secs_f64() / f64::from(count))
}
