//! What one local task and one remote task exchange: numbers, slots, and the checks of a receiver (rds-tools, section 3.4).

use std::fmt;
use std::net::SocketAddr;

use crate::message::{Header, Op};

/// The state of one pair of tasks.
#[derive(Debug)]
pub struct Exchange {
    /// The remote task.
    pub peer: SocketAddr,
    /// Whether its port was congested when last tried, and nothing has cleared it since.
    pub congested: bool,
    local: SocketAddr,
    depth: u32,
    send_seq: u32,
    recv_seq: u32,
    /// Slot of the next request to send, of the oldest that is not acked, of the next to receive, of the next to ack.
    send_slot: u32,
    oldest_slot: u32,
    recv_slot: u32,
    ack_slot: u32,
    outstanding: u32,
    owed: u32,
    /// When the request in each slot was sent; empty if this side issues none.
    sent_at: Box<[u64]>,
}

/// A message that passed every check of its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// A request: an ack is owed.
    Request,
    /// An ack of the request sent at this time.
    Ack {
        /// As given to [`Exchange::request_sent`].
        sent_at: u64,
    },
    /// A resend of something that came before: ignored.
    Stale,
}

/// A header that is not what had to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    expected: Header,
    received: Header,
    reason: &'static str,
}

impl Exchange {
    /// The state before the first message.
    #[must_use]
    pub fn new(local: SocketAddr, peer: SocketAddr, depth: u32, requests: bool) -> Self {
        Self {
            peer,
            congested: false,
            local,
            depth,
            send_seq: 0,
            recv_seq: 0,
            send_slot: 0,
            oldest_slot: 0,
            recv_slot: 0,
            ack_slot: 0,
            outstanding: 0,
            owed: 0,
            sent_at: if requests { vec![0; depth as usize].into() } else { Box::default() },
        }
    }

    /// Sequence number and slot of the next ack, if one is owed.
    #[inline]
    #[must_use]
    pub fn next_ack(&self) -> Option<(u32, u16)> {
        (self.owed > 0).then_some((self.send_seq, self.ack_slot as u16))
    }

    /// The ack of [`Exchange::next_ack`] was queued.
    #[inline]
    pub fn ack_sent(&mut self) {
        self.owed -= 1;
        self.send_seq = self.send_seq.wrapping_add(1);
        self.ack_slot = self.after(self.ack_slot);
    }

    /// Sequence number and slot of the next request, if depth allows one.
    #[inline]
    #[must_use]
    pub fn next_request(&self) -> Option<(u32, u16)> {
        (self.outstanding < self.depth).then_some((self.send_seq, self.send_slot as u16))
    }

    /// The request of [`Exchange::next_request`] was queued; `now` comes back with its ack.
    #[inline]
    pub fn request_sent(&mut self, now: u64) {
        self.sent_at[self.send_slot as usize] = now;
        self.outstanding += 1;
        self.send_seq = self.send_seq.wrapping_add(1);
        self.send_slot = self.after(self.send_slot);
    }

    /// Checks the header of a message that came from `from`, and takes it over if it is the one that had to come.
    ///
    /// # Errors
    /// What had to come, and what came.
    #[inline]
    pub fn accept(&mut self, op: Op, received: &Header, from: SocketAddr) -> Result<Accepted, Box<Mismatch>> {
        if received.retry && (received.seq.wrapping_sub(self.recv_seq) as i32) < 0 {
            return Ok(Accepted::Stale);
        }
        let slot = match op {
            Op::Request => self.recv_slot,
            Op::Ack => self.oldest_slot,
        };
        let expected = Header {
            seq: self.recv_seq,
            from,
            to: self.local,
            index: slot as u16,
            op: op.code(),
            retry: received.retry,
        };
        let mismatch = |reason| Box::new(Mismatch { expected, received: *received, reason });
        if expected != *received {
            return Err(mismatch("a message was lost, repeated, reordered or changed"));
        }
        let accepted = match op {
            Op::Request if self.owed == self.depth => {
                return Err(mismatch("the other side sends more requests than the depth allows"));
            }
            Op::Request => {
                self.owed += 1;
                self.recv_slot = self.after(slot);
                Accepted::Request
            }
            Op::Ack if self.outstanding == 0 => return Err(mismatch("no request waits for this ack")),
            Op::Ack => {
                self.outstanding -= 1;
                self.oldest_slot = self.after(slot);
                Accepted::Ack { sent_at: self.sent_at[slot as usize] }
            }
        };
        self.recv_seq = self.recv_seq.wrapping_add(1);
        Ok(accepted)
    }

    #[inline]
    fn after(&self, slot: u32) -> u32 {
        if slot + 1 == self.depth { 0 } else { slot + 1 }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (e, r) = (&self.expected, &self.received);
        writeln!(f, "wrong header: {}", self.reason)?;
        writeln!(f, "  {:<10} {:>39} {:>39}", "field", "expected", "received")?;
        let rows: [(&str, &dyn fmt::Display, &dyn fmt::Display); 7] = [
            ("seq", &e.seq, &r.seq),
            ("from_addr", &e.from.ip(), &r.from.ip()),
            ("from_port", &e.from.port(), &r.from.port()),
            ("to_addr", &e.to.ip(), &r.to.ip()),
            ("to_port", &e.to.port(), &r.to.port()),
            ("index", &e.index, &r.index),
            ("op", &e.op, &r.op),
        ];
        for (i, (name, expected, received)) in rows.into_iter().enumerate() {
            let (expected, received) = (expected.to_string(), received.to_string());
            let mark = if expected == received { "" } else { " *" };
            let end = if i < 6 { "\n" } else { "" };
            write!(f, "  {name:<10} {expected:>39} {received:>39}{mark}{end}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(depth: u32) -> (Exchange, Exchange) {
        let (a, b) = ("10.0.0.1:4001".parse().unwrap(), "10.0.0.2:4001".parse().unwrap());
        (Exchange::new(a, b, depth, true), Exchange::new(b, a, depth, true))
    }

    fn header(from: &Exchange, op: Op, (seq, index): (u32, u16)) -> Header {
        Header { seq, from: from.local, to: from.peer, index, op: op.code(), retry: false }
    }

    fn request(from: &mut Exchange, to: &mut Exchange, now: u64) -> Result<Accepted, Box<Mismatch>> {
        let header = header(from, Op::Request, from.next_request().unwrap());
        from.request_sent(now);
        to.accept(Op::Request, &header, from.local)
    }

    fn ack(from: &mut Exchange, to: &mut Exchange) -> Result<Accepted, Box<Mismatch>> {
        let header = header(from, Op::Ack, from.next_ack().unwrap());
        from.ack_sent();
        to.accept(Op::Ack, &header, from.local)
    }

    #[test]
    fn numbers_count_requests_and_acks_alike_and_slots_go_round() {
        let (mut a, mut b) = pair(2);
        let mut seen = Vec::new();
        for now in 0..5 {
            seen.push(a.next_request().unwrap());
            assert_eq!(request(&mut a, &mut b, now), Ok(Accepted::Request));
            assert_eq!(request(&mut b, &mut a, now + 100), Ok(Accepted::Request));
            assert_eq!(ack(&mut b, &mut a), Ok(Accepted::Ack { sent_at: now }));
            assert_eq!(ack(&mut a, &mut b), Ok(Accepted::Ack { sent_at: now + 100 }));
        }
        assert_eq!(seen, [(0, 0), (2, 1), (4, 0), (6, 1), (8, 0)]);
    }

    #[test]
    fn no_more_requests_go_out_than_the_depth_allows() {
        let (mut a, mut b) = pair(3);
        for now in 0..3 {
            request(&mut a, &mut b, now).unwrap();
        }
        assert_eq!(a.next_request(), None);
        ack(&mut b, &mut a).unwrap();
        assert_eq!(a.next_request(), Some((3, 0)));
    }

    #[test]
    fn the_deepest_exchange_numbers_its_slots_in_16_bits() {
        let (mut a, mut b) = pair(65536);
        for now in 0..65536 {
            request(&mut a, &mut b, now).unwrap();
        }
        assert_eq!(a.next_request(), None);
        assert_eq!(ack(&mut b, &mut a), Ok(Accepted::Ack { sent_at: 0 }));
        assert_eq!(request(&mut a, &mut b, 65536), Ok(Accepted::Request));
    }

    #[test]
    fn the_sequence_number_wraps() {
        let (mut a, mut b) = pair(1);
        (a.send_seq, b.recv_seq) = (u32::MAX, u32::MAX);
        request(&mut a, &mut b, 0).unwrap();
        ack(&mut b, &mut a).unwrap();
        assert_eq!(a.next_request(), Some((0, 0)));
        request(&mut a, &mut b, 1).unwrap();
    }

    #[test]
    fn every_wrong_field_is_reported() {
        let good = || {
            let (a, b) = pair(4);
            (header(&a, Op::Request, a.next_request().unwrap()), b)
        };
        let from = good().0.from;
        let other = "10.0.0.9:9".parse::<SocketAddr>().unwrap();
        let wrong: [(&str, Header); 6] = [
            ("seq", Header { seq: 1, ..good().0 }),
            ("from_addr", Header { from: SocketAddr::new(other.ip(), from.port()), ..good().0 }),
            ("from_port", Header { from: SocketAddr::new(from.ip(), 9), ..good().0 }),
            ("to_addr", Header { to: SocketAddr::new(other.ip(), good().0.to.port()), ..good().0 }),
            ("to_port", Header { to: SocketAddr::new(good().0.to.ip(), 9), ..good().0 }),
            ("index", Header { index: 1, ..good().0 }),
        ];
        for (field, header) in wrong {
            let report = good().1.accept(Op::Request, &header, from).unwrap_err().to_string();
            let marked: Vec<_> = report.lines().filter(|l| l.ends_with('*')).collect();
            assert_eq!(marked.len(), 1, "{report}");
            assert!(marked[0].trim_start().starts_with(field), "{report}");
        }
        let (header, mut b) = good();
        assert_eq!(b.accept(Op::Request, &header, from), Ok(Accepted::Request));
    }

    #[test]
    fn an_ack_without_a_request_and_a_request_beyond_the_depth_are_errors() {
        let (mut a, mut b) = pair(1);
        let early = Header { seq: 0, from: b.local, to: a.local, index: 0, op: 2, retry: false };
        assert!(a.accept(Op::Ack, &early, b.local).unwrap_err().to_string().contains("no request waits"));
        request(&mut a, &mut b, 0).unwrap();
        let beyond = Header { seq: 1, from: a.local, to: b.local, index: 0, op: 1, retry: false };
        assert!(b.accept(Op::Request, &beyond, a.local).unwrap_err().to_string().contains("depth"));
    }

    #[test]
    fn a_resend_of_something_old_is_ignored_and_one_from_the_future_is_not() {
        let (mut a, mut b) = pair(2);
        let first = Header { retry: true, ..header(&a, Op::Request, a.next_request().unwrap()) };
        request(&mut a, &mut b, 0).unwrap();
        assert_eq!(b.accept(Op::Request, &first, a.local), Ok(Accepted::Stale));
        assert!(b.accept(Op::Request, &Header { seq: 7, ..first }, a.local).is_err());
        assert!(b.accept(Op::Request, &Header { retry: false, ..first }, a.local).is_err());
        assert_eq!(request(&mut a, &mut b, 1), Ok(Accepted::Request));
    }
}
