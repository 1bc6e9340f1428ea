//! Clients of the admin endpoint: plain ones, and those that do it harm.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longer than the endpoint takes for anything.
const LONG: Duration = Duration::from_secs(60);
/// How long an attacker waits for a connection, and for a word.
const SHORT: Duration = Duration::from_millis(200);
/// Connections of the slow attackers; twice as many as the endpoint has.
const SLOW: usize = 64;

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its code; 0 if there was none.
    pub code: u16,
    /// Its headers, by their names in small letters.
    pub headers: BTreeMap<String, String>,
    /// Its body.
    pub body: String,
}

/// Sends these bytes and reads to the end.
///
/// # Errors
/// The connection breaks.
pub fn exchange(stream: &mut (impl Read + Write), bytes: &[u8]) -> io::Result<Answer> {
    stream.write_all(bytes)?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let mut lines = head.lines();
    let code = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
    let headers = lines.filter_map(|line| line.split_once(": "));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    Ok(Answer { code, headers, body: body.to_owned() })
}

/// The request for a path, as a browser of this host makes it.
#[must_use]
pub fn request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes()
}

/// Sends these bytes to the endpoint and reads to the end.
///
/// # Errors
/// The connection breaks.
pub fn send(at: SocketAddr, bytes: &[u8]) -> io::Result<Answer> {
    let mut stream = TcpStream::connect_timeout(&at, LONG)?;
    stream.set_read_timeout(Some(LONG))?;
    exchange(&mut stream, bytes)
}

/// Gets a path.
///
/// # Panics
/// There is no answer, and no second one either: under attack a connection may be ended in favour of a newer one.
#[track_caller]
#[must_use]
pub fn get(at: SocketAddr, path: &str) -> Answer {
    for _ in 0..20 {
        match send(at, &request(path)) {
            Ok(answer) if answer.code != 0 => return answer,
            _ => {}
        }
    }
    panic!("no answer to {path}");
}

/// What attackers have done.
#[derive(Debug, Default)]
pub struct Done {
    /// Connections that sent a byte now and then.
    pub slow: AtomicU64,
    /// Connections with garbage, a head without end, half a request, or nothing.
    pub broken: AtomicU64,
    /// Whole requests that were answered.
    pub answered: AtomicU64,
    /// Those that were not.
    pub unanswered: AtomicU64,
}

/// Attackers at work, until the value is dropped.
#[derive(Debug)]
pub struct Attack {
    stop: Arc<AtomicBool>,
    /// What they have done so far.
    pub done: Arc<Done>,
    threads: Vec<JoinHandle<()>>,
}

impl Attack {
    /// Slow, broken and many clients at once, as fast as the endpoint lets them.
    #[must_use]
    pub fn start(at: SocketAddr) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(Done::default()));
        let works: [fn(SocketAddr, &AtomicBool, &Done); 5] = [slow, broken, broken, many, many];
        let threads = works.map(|work| {
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            std::thread::spawn(move || work(at, &stop, &done))
        });
        Self { stop, done, threads: threads.into() }
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // It panicked where it said so.
            let _ = thread.join();
        }
    }
}

fn connect(at: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&at, SHORT)?;
    stream.set_read_timeout(Some(SHORT))?;
    stream.set_write_timeout(Some(SHORT))?;
    Ok(stream)
}

fn slow(at: SocketAddr, stop: &AtomicBool, done: &Done) {
    let bytes = request("/status");
    let mut all: Vec<(TcpStream, usize)> = Vec::new();
    while !stop.load(Relaxed) {
        while all.len() < SLOW && !stop.load(Relaxed) {
            let Ok(stream) = connect(at) else { break };
            done.slow.fetch_add(1, Relaxed);
            all.push((stream, 0));
        }
        // The last byte never comes.
        all.retain_mut(|(stream, sent)| {
            *sent = (*sent + 1).min(bytes.len() - 2);
            stream.write_all(&bytes[*sent - 1..*sent]).is_ok()
        });
        for _ in 0..10 {
            if !stop.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn broken(at: SocketAddr, stop: &AtomicBool, done: &Done) {
    let garbage: Vec<u8> = (0..4096u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let endless = [b"GET / HTTP/1.1\r\nX: ".as_slice(), &vec![b'a'; 256 << 10]].concat();
    for n in 0.. {
        if stop.load(Relaxed) {
            return;
        }
        let Ok(mut stream) = connect(at) else { continue };
        done.broken.fetch_add(1, Relaxed);
        // It may hang up in the middle.
        let _ = match n % 5 {
            0 => stream.write_all(&garbage),
            1 => stream.write_all(&endless),
            2 => stream.write_all(b"GET /sta").and_then(|()| stream.shutdown(Shutdown::Write)),
            // Asks, and does not take the answer.
            3 => stream.write_all(&request("/metrics")),
            _ => Ok(()),
        };
    }
}

fn many(at: SocketAddr, stop: &AtomicBool, done: &Done) {
    for path in ["/status", "/metrics", "/healthz", "/"].iter().cycle() {
        if stop.load(Relaxed) {
            return;
        }
        let answer = connect(at).and_then(|mut stream| exchange(&mut stream, &request(path)));
        let answered = answer.is_ok_and(|answer| answer.code == 200);
        let count = if answered { &done.answered } else { &done.unanswered };
        count.fetch_add(1, Relaxed);
    }
}
