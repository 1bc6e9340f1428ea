//! Core NATS: a text protocol, at most once, no acknowledgement.

use crate::side::Side;
use crate::versus::client::{Link, Over, Protocol};

pub(crate) struct Nats {
    link: Link,
}

impl Nats {
    pub(crate) fn new(side: &Side) -> Result<Self, String> {
        let broker = side.broker.ok_or("a client of NATS needs --broker")?;
        let mut nats = Self { link: Link::new(broker)? };
        let greeted = nats.line().and_then(|info| {
            if !info.starts_with("INFO ") {
                return Err(Over::Broken(format!("no NATS server: it says {info:?}")));
            }
            nats.link.write(b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\n")?;
            nats.settle()
        });
        match greeted {
            Ok(()) => Ok(nats),
            Err(Over::Told) => Err("told to end before it began".to_owned()),
            Err(Over::Broken(why)) => Err(why),
        }
    }

    /// A line without its end; consumed.
    fn line(&mut self) -> Result<String, Over> {
        let mut seen = 0;
        loop {
            let ready = self.link.ready();
            if let Some(len) = ready[seen..].iter().position(|b| *b == b'\n').map(|at| seen + at) {
                let line = String::from_utf8_lossy(&ready[..len]).trim_end().to_owned();
                self.link.consume(len + 1);
                return Ok(line);
            }
            seen = ready.len();
            self.link.read()?;
        }
    }

    /// Everything sent before has been seen by the server when this returns.
    fn settle(&mut self) -> Result<(), Over> {
        self.link.write(b"PING\r\n")?;
        loop {
            match self.line()? {
                line if line.starts_with("PONG") => return Ok(()),
                line => self.other(&line)?,
            }
        }
    }

    fn other(&mut self, line: &str) -> Result<(), Over> {
        if line.starts_with("PING") {
            self.link.write(b"PONG\r\n")?;
        } else if line.starts_with("-ERR") {
            return Err(Over::Broken(format!("the NATS server says {line}")));
        }
        Ok(())
    }
}

impl Protocol for Nats {
    fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    fn subscribe(&mut self, subject: &str) -> Result<(), Over> {
        self.link.write(format!("SUB {subject} 1\r\n").as_bytes())?;
        self.settle()
    }

    fn frame(&self, subject: &str, len: usize) -> (Vec<u8>, Vec<u8>) {
        (format!("PUB {subject} {len}\r\n").into_bytes(), b"\r\n".to_vec())
    }

    fn next(&mut self) -> Result<u64, Over> {
        loop {
            // Without a String for each message.
            let ready = self.link.ready();
            let Some(end) = ready.iter().position(|b| *b == b'\n') else {
                self.link.read()?;
                continue;
            };
            let line = &ready[..end];
            if line.starts_with(b"MSG ") {
                let digits = line.trim_ascii_end().rsplit(|b| *b == b' ').next().unwrap_or_default();
                let len = digits.iter().fold(0, |len, d| len * 10 + usize::from(d.wrapping_sub(b'0')));
                self.link.consume(end + 1);
                let number = self.link.payload(len)?;
                self.link.skip(2)?;
                return Ok(number);
            }
            let line = self.line()?;
            self.other(&line)?;
        }
    }
}
