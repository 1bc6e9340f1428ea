//! The rings between a program and the daemon: what a record costs either side, beside a plain copy of its payload.

use std::hint::black_box;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use clap::Args;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rds_core::attach::{
    Accepted, Attached, Channel, Consumer, Fault, Greeting, Hello, Producer, Submission, Welcome, Where,
    attach,
};

/// Options.
#[derive(Args, Clone, Debug)]
pub(crate) struct Ring {
    /// Rounds; each runs every case once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Payload sizes in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [0, 64, 256, 1024, 4096, 16384],
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(0..=32 << 10))]
    sizes: Vec<usize>,
    /// Records that are shown at a time.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Records of a measurement.
    #[arg(long, default_value_t = 400_000, value_parser = clap::value_parser!(u32).range(1000..))]
    records: u32,
}

/// Of one size, in ns a record.
#[derive(Default)]
struct Cost {
    write: Vec<f64>,
    read: Vec<f64>,
    copy: Vec<f64>,
    /// Between two threads; and how many records a doorbell was rung for.
    threads: Vec<f64>,
    bells: Vec<f64>,
}

impl Ring {
    pub(crate) fn run(&self) -> Result<(), String> {
        println!(
            "One record in ns, {} shown at a time, medians of {} rounds. Copy: the payload into a ring of the same size, without anything else. \
             Threads: one writes while another reads, shown one by one.\n",
            self.batch, self.rounds
        );
        println!(
            "| payload | write | read | copy | write over copy | read over copy | threads | records a doorbell |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
        for &size in &self.sizes {
            let mut cost = Cost::default();
            for _round in 0..self.rounds {
                self.round(size, &mut cost).map_err(|e| format!("{size} B: {e}"))?;
            }
            let [write, read, copy, threads, bells] =
                [&mut cost.write, &mut cost.read, &mut cost.copy, &mut cost.threads, &mut cost.bells]
                    .map(|values| median(values));
            println!(
                "| {size} | {write:.1} | {read:.1} | {copy:.1} | {:.1} | {:.1} | {threads:.1} | {bells:.0} |",
                write / copy,
                read / copy
            );
        }
        Ok(())
    }

    fn round(&self, size: usize, cost: &mut Cost) -> Result<(), Box<dyn std::error::Error>> {
        let (mut program, mut daemon) = pair()?;
        let payload = vec![7; size];
        let (mut write, mut read) = (Vec::new(), Vec::new());
        let mut out = vec![0; size];
        let fits = program.channel.producer.max_inline() / (size + 64);
        let batch = self.batch.min(u32::try_from(fits)?).max(1);
        let batches = self.records.div_ceil(batch);
        for _ in 0..batches {
            let start = Instant::now();
            for id in 0..batch {
                send(&mut program.channel.producer, id, &payload);
            }
            if let Some(bell) = program.channel.producer.publish() {
                bell.ring();
            }
            let between = Instant::now();
            let n = take(&mut daemon.channel.consumer, &mut out)?;
            if let Some(bell) = daemon.channel.consumer.release() {
                bell.ring();
            }
            read.push(between.elapsed().as_nanos() as f64 / f64::from(batch));
            write.push((between - start).as_nanos() as f64 / f64::from(batch));
            assert_eq!(n, batch);
        }
        // Medians of the batches: what else the machine does meets few of them.
        cost.write.push(median(&mut write));
        cost.read.push(median(&mut read));
        cost.copy.push(copy(&payload, batches, batch));
        let (nanos, bells) = self.threads(&payload, program, daemon)?;
        cost.threads.push(nanos);
        cost.bells.push(bells);
        Ok(())
    }

    /// One thread writes, another reads, each at its own speed and asleep when there is nothing to do.
    fn threads(
        &self,
        payload: &[u8],
        mut program: Attached,
        mut daemon: Accepted,
    ) -> Result<(f64, f64), Box<dyn std::error::Error>> {
        let records = self.records;
        let start = Instant::now();
        let bells = std::thread::scope(|scope| {
            let reader = scope.spawn(move || -> Result<Accepted, Fault> {
                let mut out = vec![0; payload.len()];
                let mut left = records;
                while left > 0 {
                    left -= take(&mut daemon.channel.consumer, &mut out)?;
                    if left > 0 && daemon.channel.consumer.arm()? {
                        wait(&daemon.channel);
                        daemon.channel.consumer.disarm();
                    } else if let Some(bell) = daemon.channel.consumer.release() {
                        bell.ring();
                    }
                }
                Ok(daemon)
            });
            let mut bells = 0;
            for id in 0..records {
                while !program.channel.producer.want_room(payload.len()) {
                    wait(&program.channel);
                }
                send(&mut program.channel.producer, id, payload);
                if let Some(bell) = program.channel.producer.publish() {
                    bell.ring();
                    bells += 1;
                }
            }
            reader.join().map(|done| done.map(|_| bells))
        });
        let bells: u32 = bells.map_err(|_| "the reader panicked")??;
        let nanos = start.elapsed().as_nanos() as f64 / f64::from(records);
        Ok((nanos, f64::from(records) / f64::from(bells.max(1))))
    }
}

/// Sleeps until the bell rings. A bell that is not read by the daemon, which watches for edges, is read here.
fn wait(channel: &Channel) {
    let fd = channel.wakeup.as_fd();
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    // An error shows as a look too many.
    let _ = poll(&mut fds, PollTimeout::from(100_u8));
    channel.wakeup.clear();
    let _ = nix::unistd::read(fd, &mut [0; 8]);
}

fn send(producer: &mut Producer, id: u32, payload: &[u8]) {
    let to = ([127, 42, 0, 2], 7).into();
    let inline = Where::Inline(payload.len() as u32);
    let record = Submission::Send { socket: 1, id, to, wants_end: false, mode: None, payload: inline };
    assert!(producer.push(&record, payload), "there is room");
}

/// Reads what is there: how many records.
fn take(consumer: &mut Consumer, out: &mut [u8]) -> Result<u32, Fault> {
    let mut n = 0;
    while let Some(record) = consumer.next()? {
        black_box(record.submission()?);
        record.copy_to(out);
        black_box(&out);
        n += 1;
    }
    Ok(n)
}

/// What a copy of the payload alone costs, in ns.
fn copy(payload: &[u8], batches: u32, batch: u32) -> f64 {
    let mut ring = vec![0_u8; 256 << 10];
    let mut at = 0;
    let mut nanos = Vec::new();
    for _ in 0..batches {
        let start = Instant::now();
        for _ in 0..batch {
            let end = at + payload.len();
            if end > ring.len() {
                at = 0;
            }
            let payload = black_box(payload);
            ring[at..at + payload.len()].copy_from_slice(payload);
            at += payload.len().next_multiple_of(16);
            black_box(&mut ring);
        }
        nanos.push(start.elapsed().as_nanos() as f64 / f64::from(batch));
    }
    median(&mut nanos)
}

/// A program and a daemon, attached over a socket.
fn pair() -> Result<(Attached, Accepted), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("rds-bench-{}.sock", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(&path)?;
    let program = std::thread::spawn({
        let path = path.clone();
        move || attach(&path, &Hello::default(), Duration::from_secs(10))
    });
    let mut greeting = Greeting::new(listener.accept()?.0)?;
    while greeting.read()?.is_none() {
        std::thread::yield_now();
    }
    let welcome = Welcome {
        session: 1,
        instance: 1,
        address: std::net::IpAddr::from([127, 42, 0, 1]).into(),
        stream: false,
        max_message: 1 << 20,
        max_sockets: 1,
        submission_ring: 256 << 10,
        completion_ring: 256 << 10,
        send_arena: 1 << 20,
        receive_arena: 1 << 20,
        max_send_buffer: 1 << 20,
        max_receive_buffer: 1 << 20,
    };
    let daemon = greeting.welcome(&welcome)?;
    std::fs::remove_file(&path)?;
    Ok((program.join().map_err(|_| "the program panicked")??, daemon))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
