//! Messages both ways between our node and a kernel while something happens to the connection, and what became of each.

use std::collections::BTreeMap;

use rds_client::{Completion, Cookie, Guarantee, Readiness, Socket};

use super::kpeer::Kpeer;
use super::ours::{Ours, receive, receive_numbered};
use super::{Case, PATIENCE, pattern};

/// Ports: ours, and two of the kernel's.
const OURS: u16 = 4000;
const READER: u16 = 4000;
const WRITER: u16 = 5000;

/// Numbers of the kernel's programs in its next life begin at a multiple of this.
const LIFE: u64 = 1_000_000;

/// Payload bytes in turn. Large ones are cut in the middle when a connection ends.
const SIZES: [usize; 8] = [16, 1000, 60_000, 100, 17, 4096, 300, 20_000];

/// Numbered messages of one socket of ours to one of the kernel's, and of another one of the kernel's to ours.
#[derive(Debug)]
pub struct Exchange<'a> {
    case: &'a Case<'a>,
    ours: Ours,
    socket: Socket,
    reader: Kpeer,
    writer: Option<Kpeer>,
    /// Messages sent, which have the numbers from 0.
    sent: u64,
    /// Number of the kernel's next message.
    next: u64,
    ends: BTreeMap<u64, Completion>,
}

/// What became of our messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Became {
    /// Numbers that arrived at the kernel's program, in that order.
    pub arrived: Vec<u64>,
    /// Numbers that did not, though they were delivered as far as TCP says.
    pub lost: Vec<u64>,
}

impl<'a> Exchange<'a> {
    /// Begins it. The kernel sends `count` messages on its own, up to one a millisecond.
    ///
    /// # Panics
    /// It cannot.
    #[track_caller]
    #[must_use]
    pub fn begin(case: &'a Case<'a>, count: u64) -> Self {
        let ours = Ours::open(case);
        let socket = ours.bind(case, OURS);
        let reader = Self::reader(case);
        let mut this =
            Self { case, ours, socket, reader, writer: None, sent: 0, next: 0, ends: BTreeMap::new() };
        this.write(count);
        this
    }

    fn reader(case: &Case<'_>) -> Kpeer {
        let at = case.kernel_at(READER);
        case.kpeer(&format!("recv --at '{at}' --count 0 --timeout-ms 0 --allow-gaps -v")).ready()
    }

    /// Has the kernel's side send `count` messages from a new socket, numbered on.
    pub fn write(&mut self, count: u64) {
        let case = self.case;
        let (from, to) = (case.kernel_at(WRITER), case.ours_at(OURS));
        let sizes = SIZES.map(|size| size.to_string()).join(",");
        self.writer = Some(case.kpeer(&format!(
            "send --from '{from}' --to '{to}' --size {sizes} --first {} --count {count} --interval-ms 1 \
             --sndbuf 4M --timeout-ms {}",
            self.next,
            PATIENCE.as_millis()
        )));
    }

    /// Our node.
    #[must_use]
    pub fn ours(&self) -> &Ours {
        &self.ours
    }

    /// Sends our next message.
    #[track_caller]
    pub fn send(&mut self) {
        let number = self.sent;
        let payload = pattern::payload(number, SIZES[number as usize % SIZES.len()]);
        let to = self.case.kernel_at(READER);
        let cookie = Cookie(number.try_into().expect("not that many"));
        let sent = self.socket.send_owned_as(cookie, payload, to);
        sent.unwrap_or_else(|(why, _)| panic!("message {number} cannot be sent: {why}"));
        self.sent += 1;
        self.take_completions();
    }

    /// Receives the kernel's next message, whole and in its turn: a kernel loses none of those, and sends none twice.
    #[track_caller]
    pub fn receive(&mut self) {
        if !self.socket.wait(Readiness::READABLE, Some(PATIENCE)).readable {
            let (next, said) = (self.next, self.writer.as_mut().map(|writer| writer.tail()));
            panic!(
                "message {next} of the kernel's does not come: {said:#?}: {:#?}",
                self.ours.node.snapshot()
            );
        }
        // A lease's memory goes back at once.
        drop(receive_numbered(self.case, &self.socket, WRITER, self.next));
        self.next += 1;
    }

    /// So many of ours for each of theirs.
    #[track_caller]
    pub fn turns(&mut self, count: u64) {
        for _ in 0..count {
            self.receive();
            self.send();
        }
    }

    fn take_completions(&mut self) {
        let mut new = Vec::new();
        self.socket.completions(&mut new);
        for end in new {
            if !matches!(end, Completion::Released { .. }) {
                let earlier = self.ends.insert(end.cookie().0.into(), end);
                assert_eq!(earlier, None, "one end for each message");
            }
        }
    }

    /// Waits until each of our messages has its end.
    #[track_caller]
    pub fn all_ended(&mut self) {
        assert!(
            self.socket.flush(PATIENCE),
            "not all was delivered: {:#?}",
            self.ours.node.snapshot_with_queues()
        );
        self.take_completions();
        while (self.ends.len() as u64) < self.sent {
            let ready = self.socket.wait(Readiness::COMPLETIONS, Some(PATIENCE));
            assert!(ready.completions, "{} ends of {} messages", self.ends.len(), self.sent);
            self.take_completions();
        }
    }

    /// Waits until the kernel's writer has sent everything and knows it acknowledged.
    #[track_caller]
    pub fn writer_ends(&mut self) {
        if let Some(mut writer) = self.writer.take() {
            writer.ends_well();
        }
    }

    /// Kills the kernel's programs.
    #[track_caller]
    pub fn kill_kernel_programs(&mut self) {
        if let Some(mut writer) = self.writer.take() {
            writer.kill(self.case.guest);
        }
        self.reader.kill(self.case.guest);
    }

    /// Starts the kernel's programs again, as they are after it has restarted: the writer sends `count` messages with higher numbers. Our
    /// program takes what is left of those before.
    ///
    /// # Panics
    /// What was left is not in order.
    #[track_caller]
    pub fn begin_again(&mut self, count: u64) {
        self.reader = Self::reader(self.case);
        let (mut old, first) = (self.next, (self.next / LIFE + 1) * LIFE);
        self.next = first;
        self.write(count);
        loop {
            let payload = receive(self.case, &self.socket, WRITER);
            let number = pattern::number(&payload).expect("each says its number");
            pattern::check(&payload, number).unwrap_or_else(|why| panic!("{why}"));
            if number == first {
                break;
            }
            assert_eq!(number, old, "what the kernel sent before it ended, in order");
            old += 1;
        }
        self.next += 1;
    }

    /// How many messages of the kernel's first life have come.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.next
    }

    /// How many messages we have sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Ends.
    #[must_use]
    pub fn ends(&self) -> &BTreeMap<u64, Completion> {
        &self.ends
    }

    /// Waits until our last message has arrived, and tells what arrived since the reader was started, in strictly ascending order.
    ///
    /// # Panics
    /// It does not arrive; some come twice or out of order, or damaged.
    #[track_caller]
    pub fn last_arrives(&mut self) -> Became {
        self.all_ended();
        let port = self.case.port(OURS);
        self.reader.receives(port, self.sent - 1);
        self.reader.is_undamaged();
        let arrived = self.reader.numbers(port);
        self.became(arrived)
    }

    fn became(&self, arrived: Vec<u64>) -> Became {
        let backwards = arrived.windows(2).find(|pair| pair[0] >= pair[1]);
        assert_eq!(backwards, None, "each comes once, and in the order in which it was sent");
        let by_tcp = |n: &u64| {
            matches!(self.ends.get(n), Some(Completion::Delivered { by: Guarantee::Transport, .. }))
        };
        let mut lost: Vec<u64> = (0..self.sent).filter(by_tcp).collect();
        lost.retain(|n| arrived.binary_search(n).is_err());
        Became { arrived, lost }
    }

    /// Receives the rest up to `count`, sends as many as that, lets both sides come to their end, and judges: nothing is lost; with a
    /// kernel up to 6.18, none that its TCP had not acknowledged.
    ///
    /// # Panics
    /// It is not so.
    #[track_caller]
    pub fn finish(mut self, count: u64, may_lose: bool) {
        let rest = count.saturating_sub(self.next);
        self.turns(rest);
        self.writer_ends();
        let Became { arrived, lost } = self.last_arrives();
        assert_eq!((arrived.len() + lost.len()) as u64, self.sent, "{:?}", self.unaccounted(&arrived));
        assert!(may_lose || lost.is_empty(), "lost although TCP had acknowledged them: {lost:?}");
        self.comes_to_rest();
    }

    /// Closes all.
    #[track_caller]
    pub fn comes_to_rest(self) {
        drop((self.reader, self.writer, self.socket));
        self.ours.comes_to_rest();
    }

    fn unaccounted(&self, arrived: &[u64]) -> Vec<(u64, Option<Completion>)> {
        let missing = (0..self.sent).filter(|n| arrived.binary_search(n).is_err());
        missing.map(|n| (n, self.ends.get(&n).copied())).collect()
    }
}
