//! Several sockets over 1, 2 and 4 lanes: what lanes bring, and what is left while one of them stalls.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use rds_client::{Event, Node, RecvError, SendError, Socket};
use rds_core::proto::lane_of_port;
use rds_tests::proxy::{Proxy, Route};

const SENDER: Ipv4Addr = Ipv4Addr::new(127, 55, 0, 3);
const RECEIVER: Ipv4Addr = Ipv4Addr::new(127, 55, 0, 4);
/// One socket a side for each of so many lanes.
const SOCKETS: u8 = 4;
/// How often a thread that waits asks whether it is to end.
const TICK: Duration = Duration::from_millis(50);
/// How long the first messages may take.
const START: Duration = Duration::from_secs(10);

/// Options.
#[derive(Args, Clone, Debug)]
pub(crate) struct Lanes {
    /// Rounds; each runs every case once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measured time of each run in seconds.
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Message sizes in bytes.
    #[arg(long, value_delimiter = ',', default_values_t = [64, 65536])]
    sizes: Vec<usize>,
    /// TCP port of both nodes; a proxy that stalls a lane listens on the next one.
    #[arg(long, default_value_t = 17395)]
    port: u16,
}

/// What the threads of both nodes' sockets have received, and whether they are to stop.
struct Traffic {
    received: [AtomicU64; SOCKETS as usize],
    stop: AtomicBool,
}

impl Lanes {
    pub(crate) fn run(&self) -> Result<(), String> {
        println!(
            "Four sockets a side, both nodes in one process; messages a second of all, medians of {} rounds.\n",
            self.rounds
        );
        println!(
            "| size | 1 lane | 2 lanes | 4 lanes | 2 over 1 | 4 over 1 | left while a lane stalls: 1 lane | 4 lanes |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
        for &size in &self.sizes {
            let mut rates: [Vec<f64>; 3] = Default::default();
            let mut left: [Vec<f64>; 2] = Default::default();
            for _round in 0..self.rounds {
                for (at, lanes) in [1, 2, 4].into_iter().enumerate() {
                    rates[at].push(self.measure(size, lanes, false)?.0);
                }
                for (at, lanes) in [1, 4].into_iter().enumerate() {
                    let (whole, stalled) = self.measure(size, lanes, true)?;
                    left[at].push(stalled / whole);
                }
            }
            let over = |at: usize| median(rates[at].iter().zip(&rates[0]).map(|(a, b)| a / b).collect());
            let [one, two, four] = [0, 1, 2].map(|at| median(rates[at].clone()));
            let [left_one, left_four] = left.map(median);
            println!(
                "| {size} | {one:.0} | {two:.0} | {four:.0} | {:.2} | {:.2} | {left_one:.2} | {left_four:.2} |",
                over(1),
                over(2)
            );
        }
        Ok(())
    }

    /// Messages a second; with `stall`, through a proxy, before and while the last lane carries nothing.
    fn measure(&self, size: usize, lanes: u8, stall: bool) -> Result<(f64, f64), String> {
        let dial = if stall { self.port + 1 } else { self.port };
        let open = |address: Ipv4Addr| {
            let builder =
                Node::builder(IpAddr::V4(address)).listen_port(self.port).dial_port(dial).lanes(lanes);
            builder.congestion_control("cubic").open_bound(&ports()).map_err(|e| e.to_string())
        };
        let (receiver, inlets) = open(RECEIVER)?;
        let proxy = stall.then(|| Proxy::start(&[Route::to(RECEIVER, self.port, dial)])).transpose();
        let proxy = proxy.map_err(|e| format!("the proxy: {e}"))?;
        let (sender, outlets) = open(SENDER)?;
        let traffic = Traffic { received: Default::default(), stop: AtomicBool::new(false) };
        let found = thread::scope(|scope| {
            for (socket, count) in inlets.iter().zip(&traffic.received) {
                scope.spawn(|| receive(socket, count, &traffic.stop));
            }
            for socket in &outlets {
                scope.spawn(|| send(socket, size, &traffic.stop));
            }
            let began = Instant::now();
            while traffic.received.iter().any(|r| r.load(Relaxed) == 0) {
                if began.elapsed() > START {
                    traffic.stop.store(true, Relaxed);
                    return Err(format!(
                        "nothing came over some lane within {START:?}: see that TCP ports {} and {dial} are free for {SENDER} and {RECEIVER} (--port)",
                        self.port
                    ));
                }
                thread::sleep(Duration::from_millis(1));
            }
            let whole = traffic.rate(self.seconds);
            let stalled = proxy.as_ref().map_or(0.0, |proxy| {
                proxy.stall_lane(Some(lanes - 1));
                // What was under way comes still.
                thread::sleep(Duration::from_millis(200));
                let rate = traffic.rate(self.seconds);
                proxy.stall_lane(None);
                rate
            });
            traffic.stop.store(true, Relaxed);
            Ok((whole, stalled))
        });
        drop((inlets, outlets));
        sender.shutdown(Duration::from_secs(1));
        receiver.shutdown(Duration::from_secs(1));
        found
    }
}

impl Traffic {
    fn total(&self) -> u64 {
        self.received.iter().map(|r| r.load(Relaxed)).sum()
    }

    fn rate(&self, seconds: f64) -> f64 {
        let (begin, before) = (Instant::now(), self.total());
        thread::sleep(Duration::from_secs_f64(seconds));
        (self.total() - before) as f64 / begin.elapsed().as_secs_f64()
    }
}

/// A port for each of four lanes.
fn ports() -> Vec<u16> {
    (0..SOCKETS).filter_map(|lane| (100..).find(|port| lane_of_port(*port, SOCKETS) == lane)).collect()
}

fn send(socket: &Socket, size: usize, stop: &AtomicBool) {
    let payload = vec![7; size];
    let to = SocketAddr::from((RECEIVER, socket.local_addr().port()));
    socket.set_send_timeout(Some(TICK));
    while !stop.load(Relaxed) {
        match socket.send_to(&payload, to) {
            Ok(()) | Err(SendError::TimedOut(..)) => {}
            Err(e) => panic!("cannot send: {e}"),
        }
    }
}

fn receive(socket: &Socket, count: &AtomicU64, stop: &AtomicBool) {
    socket.set_recv_timeout(Some(TICK));
    while !stop.load(Relaxed) {
        match socket.recv_lease() {
            Ok(Event::Message(_)) => drop(count.fetch_add(1, Relaxed)),
            Ok(_) | Err(RecvError::TimedOut) => {}
            Err(e) => panic!("cannot receive: {e}"),
        }
    }
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_has_a_socket() {
        let lanes: Vec<u8> = ports().into_iter().map(|port| lane_of_port(port, SOCKETS)).collect();
        assert_eq!(lanes, [0, 1, 2, 3]);
        assert!(ports().iter().all(|port| lane_of_port(*port, 1) == 0));
    }
}
