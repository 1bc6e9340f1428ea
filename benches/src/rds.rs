//! The same traffic between two RDS nodes, each embedded in a program.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rds_client::{Bytes, Event, Node, Received, RecvError, Socket};

use crate::case::{Kind, UNCOPIED_FROM};
use crate::side::{Meter, Side, say, say_found, stop_at_end_of_input};

const SENDER: Ipv4Addr = Ipv4Addr::new(127, 55, 0, 1);
const RECEIVER: Ipv4Addr = Ipv4Addr::new(127, 55, 0, 2);
/// RDS port of the receiver; the sender has the next one.
const PORT: u16 = 5;
/// The clock is read once in so many short messages.
const LOOK_EVERY: u64 = 64;
/// How often a receiver that gets nothing asks whether it is to end.
const TICK: Duration = Duration::from_millis(100);

fn open(side: &Side, address: Ipv4Addr, port: u16) -> Result<(Node, Socket), String> {
    let address = side.at.unwrap_or(address);
    let mut builder = Node::builder(IpAddr::V4(address)).listen_port(side.port).dial_port(side.port);
    builder = match &side.attach {
        Some(socket) => builder.attach(socket),
        None => builder.embedded(),
    };
    if let Some(name) = side.congestion() {
        builder = builder.congestion_control(name);
    }
    let node = builder.open().map_err(|e| e.to_string())?;
    let socket = node.bind(port).map_err(|e| e.to_string())?;
    socket.set_send_buffer(side.send_buffer);
    socket.set_recv_buffer(side.receive_buffer);
    socket.set_recv_timeout(Some(TICK));
    Ok((node, socket))
}

pub(crate) fn receiver(side: &Side) -> Result<(), String> {
    let (node, socket) = open(side, RECEIVER, PORT)?;
    say(&format!("ready {}", socket.local_addr()))?;
    let stop = stop_at_end_of_input();
    let go_on = || !stop.load(Relaxed);
    let mut meter = Meter::new(side);
    if side.kind == Kind::RoundTrip {
        let mut buffer = vec![0; side.size];
        while go_on() {
            if let Some((len, from)) = take(&socket, &mut buffer)? {
                socket.send_to(&buffer[..len], from).map_err(|e| format!("cannot send: {e}"))?;
                meter.count(1);
            }
        }
    } else if side.size < UNCOPIED_FROM {
        let mut buffer = vec![0; side.size];
        while go_on() {
            for _ in 0..LOOK_EVERY {
                let Some((len, _)) = take(&socket, &mut buffer)? else { break };
                expect(side, len)?;
                meter.count(1);
            }
            look(&mut meter)?;
        }
    } else {
        while go_on() {
            match socket.recv_lease() {
                Ok(Event::Message(message)) => expect(side, message.payload.len())?,
                Ok(_) | Err(RecvError::TimedOut) => continue,
                Err(e) => return Err(format!("cannot receive: {e}")),
            }
            meter.count(1);
            look(&mut meter)?;
        }
    }
    say_found(&meter.cost())?;
    node.shutdown(TICK);
    Ok(())
}

pub(crate) fn sender(side: &Side) -> Result<(), String> {
    let (node, socket) = open(side, SENDER, PORT + 1)?;
    let to = side.destination()?;
    let stop = stop_at_end_of_input();
    let go_on = || !stop.load(Relaxed);
    let mut meter = Meter::new(side);
    let payload = Bytes::from(vec![7; side.size]);
    if side.kind == Kind::RoundTrip {
        let mut buffer = vec![0; side.size];
        while go_on() {
            let began = Instant::now();
            socket.send_to(&payload, to).map_err(|e| format!("cannot send: {e}"))?;
            while take(&socket, &mut buffer)?.is_none() {
                if !go_on() {
                    break;
                }
            }
            let now = Instant::now();
            meter.count(1);
            meter.round_trip(now - began);
            if let Some(found) = meter.look(now) {
                say_found(&found)?;
            }
        }
    } else if side.size < UNCOPIED_FROM {
        while go_on() {
            socket.send_to(&payload, to).map_err(|e| format!("cannot send: {e}"))?;
            meter.count(1);
        }
    } else {
        while go_on() {
            socket.send_detached(payload.clone(), to).map_err(|(e, _)| format!("cannot send: {e}"))?;
            meter.count(1);
        }
    }
    say_found(&meter.cost())?;
    node.shutdown(TICK);
    Ok(())
}

/// The next message, or nothing for now.
fn take(socket: &Socket, buffer: &mut [u8]) -> Result<Option<(usize, SocketAddr)>, String> {
    match socket.recv_from(buffer) {
        Ok(Received::Message { len, from, .. }) => Ok(Some((len, from))),
        Ok(_) | Err(RecvError::TimedOut) => Ok(None),
        Err(e) => Err(format!("cannot receive: {e}")),
    }
}

fn expect(side: &Side, len: usize) -> Result<(), String> {
    if len == side.size { Ok(()) } else { Err(format!("got {len} bytes, expected {}", side.size)) }
}

fn look(meter: &mut Meter) -> Result<(), String> {
    meter.look(Instant::now()).map_or(Ok(()), |found| say_found(&found))
}
