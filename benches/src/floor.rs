//! The floor: what any implementation of RDS over TCP has to do at least, written as well as we can.
//!
//! A header of 48 bytes and a payload for each message, over one TCP connection. Short messages are copied together and written
//! 256 KiB at a time; payloads of long ones are gathered from where they lie. The receiver reads up to 256 KiB at a time, parses
//! every header and copies nothing out. No reliability, no acknowledgement, no queue, no second thread.

use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use socket2::SockRef;

use crate::case::{BATCH, Kind, UNCOPIED_FROM};
use crate::side::{Meter, Side, say, say_found, stop_at_end_of_input};

const HEADER: usize = 48;
const LEN_AT: usize = 16;
const SEQUENCE_AT: usize = 0;

pub(crate) fn receiver(side: &Side) -> Result<(), String> {
    let listener = TcpListener::bind("127.55.0.2:0").map_err(|e| format!("cannot listen: {e}"))?;
    say(&format!("ready {}", listener.local_addr().map_err(|e| e.to_string())?))?;
    let (stream, _) = listener.accept().map_err(|e| format!("cannot accept: {e}"))?;
    tune(&stream, side)?;
    let mut meter = Meter::new(side);
    match side.kind {
        Kind::RoundTrip => answer(stream, side, &mut meter),
        Kind::Ceiling => swallow(stream, &mut meter),
        Kind::Throughput => take(stream, side, &mut meter),
    }?;
    say_found(&meter.cost())
}

pub(crate) fn sender(side: &Side) -> Result<(), String> {
    let mut stream = TcpStream::connect(side.destination()?).map_err(|e| format!("cannot connect: {e}"))?;
    tune(&stream, side)?;
    let mut meter = Meter::new(side);
    let stop = stop_at_end_of_input();
    let go_on = || !stop.load(Relaxed);
    match side.kind {
        Kind::RoundTrip => ask(&mut stream, side, &mut meter, go_on),
        Kind::Ceiling => plain(&mut stream, &mut meter, go_on),
        Kind::Throughput if side.size < UNCOPIED_FROM => copy(&mut stream, side.size, &mut meter, go_on),
        Kind::Throughput => gather(&mut stream, side.size, &mut meter, go_on),
    }?;
    say_found(&meter.cost())
}

/// Writes go out at once. Buffers are left to the kernel: fixed ones are slower.
fn tune(stream: &TcpStream, side: &Side) -> Result<(), String> {
    let socket = SockRef::from(stream);
    if let Some(name) = side.congestion() {
        socket.set_tcp_congestion(name.as_bytes()).map_err(|e| format!("congestion control {name}: {e}"))?;
    }
    socket.set_tcp_nodelay(true).map_err(|e| format!("cannot set TCP_NODELAY: {e}"))
}

fn header(len: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[LEN_AT..LEN_AT + 4].copy_from_slice(&u32::try_from(len).expect("at most 1 MiB").to_be_bytes());
    header
}

fn plain(stream: &mut TcpStream, meter: &mut Meter, go_on: impl Fn() -> bool) -> Result<(), String> {
    let bytes = vec![7; BATCH];
    while go_on() {
        stream.write_all(&bytes).map_err(|e| format!("cannot write: {e}"))?;
        meter.count(1);
    }
    Ok(())
}

fn swallow(mut stream: TcpStream, meter: &mut Meter) -> Result<(), String> {
    let mut buffer = vec![0; BATCH];
    let mut bytes = 0;
    loop {
        match stream.read(&mut buffer).map_err(|e| format!("cannot read: {e}"))? {
            0 => return Ok(()),
            n => bytes += n,
        }
        meter.count((bytes / BATCH) as u64);
        bytes %= BATCH;
        if let Some(found) = meter.look(Instant::now()) {
            say_found(&found)?;
        }
    }
}

fn copy(
    stream: &mut TcpStream,
    size: usize,
    meter: &mut Meter,
    go_on: impl Fn() -> bool,
) -> Result<(), String> {
    let (mut header, payload) = (header(size), vec![7; size]);
    let mut batch = Vec::with_capacity(BATCH);
    let mut sequence = 0_u64;
    while go_on() {
        batch.clear();
        let mut messages = 0;
        while batch.len() + HEADER + size <= BATCH {
            sequence += 1;
            header[SEQUENCE_AT..SEQUENCE_AT + 8].copy_from_slice(&sequence.to_be_bytes());
            batch.extend_from_slice(&header);
            batch.extend_from_slice(&payload);
            messages += 1;
        }
        stream.write_all(&batch).map_err(|e| format!("cannot write: {e}"))?;
        meter.count(messages);
    }
    Ok(())
}

fn gather(
    stream: &mut TcpStream,
    size: usize,
    meter: &mut Meter,
    go_on: impl Fn() -> bool,
) -> Result<(), String> {
    let payload = vec![7; size];
    let at_once = (BATCH / (HEADER + size)).max(1);
    let mut headers = vec![header(size); at_once];
    let mut sequence = 0_u64;
    while go_on() {
        for header in &mut headers {
            sequence += 1;
            header[SEQUENCE_AT..SEQUENCE_AT + 8].copy_from_slice(&sequence.to_be_bytes());
        }
        let mut pieces: Vec<IoSlice<'_>> =
            headers.iter().flat_map(|h| [IoSlice::new(h), IoSlice::new(&payload)]).collect();
        let mut rest = &mut pieces[..];
        while !rest.is_empty() {
            let n = stream.write_vectored(rest).map_err(|e| format!("cannot write: {e}"))?;
            IoSlice::advance_slices(&mut rest, n);
        }
        meter.count(at_once as u64);
    }
    Ok(())
}

/// Reads and parses. What is left of a buffer, a part of a header, goes to the front of the next.
fn take(mut stream: TcpStream, side: &Side, meter: &mut Meter) -> Result<(), String> {
    let mut buffer = vec![0; BATCH];
    let (mut have, mut skip, mut expected) = (0, 0, 1_u64);
    loop {
        match stream.read(&mut buffer[have..]).map_err(|e| format!("cannot read: {e}"))? {
            0 => return Ok(()),
            n => have += n,
        }
        let mut at = skip.min(have);
        skip -= at;
        let mut messages = 0;
        while let Some(header) = buffer[at..have].first_chunk::<HEADER>() {
            let (len, sequence) = parse(header);
            if len != side.size || sequence != expected {
                return Err(format!(
                    "read sequence {sequence} of {len} bytes, expected {expected} of {}",
                    side.size
                ));
            }
            expected += 1;
            messages += 1;
            let end = at + HEADER + len;
            at = end.min(have);
            skip = end - at;
        }
        buffer.copy_within(at..have, 0);
        have -= at;
        meter.count(messages);
        if let Some(found) = meter.look(Instant::now()) {
            say_found(&found)?;
        }
    }
}

fn parse(header: &[u8; HEADER]) -> (usize, u64) {
    let [s0, s1, s2, s3, s4, s5, s6, s7, ..] = *header;
    let len =
        u32::from_be_bytes([header[LEN_AT], header[LEN_AT + 1], header[LEN_AT + 2], header[LEN_AT + 3]]);
    (len as usize, u64::from_be_bytes([s0, s1, s2, s3, s4, s5, s6, s7]))
}

fn ask(
    stream: &mut TcpStream,
    side: &Side,
    meter: &mut Meter,
    go_on: impl Fn() -> bool,
) -> Result<(), String> {
    let mut message = header(side.size).to_vec();
    message.resize(HEADER + side.size, 7);
    let mut buffer = message.clone();
    while go_on() {
        let began = Instant::now();
        stream.write_all(&message).map_err(|e| format!("cannot write: {e}"))?;
        stream.read_exact(&mut buffer).map_err(|e| format!("cannot read: {e}"))?;
        let now = Instant::now();
        meter.count(1);
        meter.round_trip(now - began);
        if let Some(found) = meter.look(now) {
            say_found(&found)?;
        }
    }
    Ok(())
}

fn answer(mut stream: TcpStream, side: &Side, meter: &mut Meter) -> Result<(), String> {
    let mut buffer = vec![0; HEADER + side.size];
    loop {
        match stream.read_exact(&mut buffer) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(format!("cannot read: {e}")),
        }
        stream.write_all(&buffer).map_err(|e| format!("cannot write: {e}"))?;
        meter.count(1);
    }
}
