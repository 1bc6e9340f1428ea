//! Between a browser and a daemon's admin page: hands everything on, and remembers each `/status` that the page was given.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use crate::ledger::process::PATIENCE;

/// Most bytes of an answer.
const MOST: u64 = 64 << 20;

type Statuses = Arc<Mutex<BTreeMap<u64, Value>>>;

/// A relay, which works until the process ends.
#[derive(Debug)]
pub struct Relay {
    here: SocketAddr,
    there: SocketAddr,
    statuses: Statuses,
}

impl Relay {
    /// To the daemon whose page is at `there`.
    ///
    /// # Panics
    /// There is no port left for it.
    #[must_use]
    pub fn to(there: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port for the browser");
        let here = listener.local_addr().expect("it is bound");
        let statuses = Statuses::default();
        let kept = Arc::clone(&statuses);
        std::thread::spawn(move || {
            for browser in listener.incoming().map_while(Result::ok) {
                let kept = Arc::clone(&kept);
                // A request that fails is one that the page must live with: the daemon may be away.
                std::thread::spawn(move || exchange(browser, there, &kept));
            }
        });
        Self { here, there, statuses }
    }

    /// The page's address, for a browser.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/", self.here)
    }

    /// The status that was handed on and was taken at this time, `at_ms`.
    #[must_use]
    pub fn status(&self, at_ms: u64) -> Option<Value> {
        self.statuses.lock().unwrap_or_else(PoisonError::into_inner).get(&at_ms).cloned()
    }

    /// What the daemon answers now, without the browser.
    ///
    /// # Errors
    /// It does not answer, or not with success.
    pub fn get(&self, path: &str) -> io::Result<Vec<u8>> {
        let answer = ask(self.there, path)?;
        let success = answer.starts_with(b"HTTP/1.1 200 ");
        let wrong =
            || io::Error::other(String::from_utf8_lossy(&answer[..answer.len().min(200)]).into_owned());
        if success { Ok(body(&answer).to_vec()) } else { Err(wrong()) }
    }
}

/// One request of a browser, and its answer.
fn exchange(browser: TcpStream, there: SocketAddr, kept: &Statuses) -> io::Result<()> {
    browser.set_read_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(&browser).lines();
    let first = lines.next().ok_or(io::ErrorKind::UnexpectedEof)??;
    // A request of a page has no body: it ends with an empty line.
    lines.find(|line| line.as_ref().is_ok_and(String::is_empty)).ok_or(io::ErrorKind::UnexpectedEof)??;
    let path = first.split(' ').nth(1).ok_or(io::ErrorKind::InvalidData)?;
    let answer = ask(there, path)?;
    if path == "/status" {
        let status: Value = serde_json::from_slice(body(&answer))?;
        let at = status["at_ms"].as_u64().unwrap_or_default();
        kept.lock().unwrap_or_else(PoisonError::into_inner).insert(at, status);
    }
    (&browser).write_all(&answer)
}

/// The whole answer, head and body, of a connection that ends with it.
fn ask(there: SocketAddr, path: &str) -> io::Result<Vec<u8>> {
    let mut daemon = TcpStream::connect(there)?;
    daemon.set_read_timeout(Some(PATIENCE))?;
    write!(daemon, "GET {path} HTTP/1.1\r\nHost: {there}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    daemon.take(MOST).read_to_end(&mut answer)?;
    Ok(answer)
}

/// What follows the head.
fn body(answer: &[u8]) -> &[u8] {
    let head = answer.windows(4).position(|four| four == b"\r\n\r\n");
    head.map_or(&[], |end| &answer[end + 4..])
}
