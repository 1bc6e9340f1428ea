//! What sockets have sent and not heard the end of: names for the daemon, and each socket's send buffer.

use crate::buffer::Chunk;
use crate::engine::Cookie;

/// A send buffer of `n` bytes holds at most `n / SMALLEST_SHARE` messages, as the node's own.
const SMALLEST_SHARE: u64 = 16;
/// ... but always this many.
const LEAST_MESSAGES: u64 = 1024;

/// Name of sends of which nothing is to be told but that their room is free again.
pub(super) const NAMELESS: u32 = u32::MAX;

/// A socket's send buffer: the node's own rule, kept here, so that a full buffer needs no question.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    /// Payload bytes.
    pub(super) limit: u64,
    used: u64,
    messages: u64,
    /// Of those, messages of which no end is told one by one.
    uncounted: u64,
}

impl Account {
    pub(super) const fn new(limit: u64) -> Self {
        Self { limit, used: 0, messages: 0, uncounted: 0 }
    }

    /// Room is what was free before this message, as in the kernel.
    pub(super) fn has_room(&self) -> bool {
        self.used < self.limit && self.messages < (self.limit / SMALLEST_SHARE).max(LEAST_MESSAGES)
    }

    /// Nothing is unfinished.
    pub(super) const fn is_drained(&self) -> bool {
        self.messages == 0
    }

    pub(super) const fn used(&self) -> u64 {
        self.used
    }

    pub(super) const fn messages(&self) -> u64 {
        self.messages
    }

    /// A message was handed over; `named`: its end will be told by its name.
    pub(super) fn charge(&mut self, len: u64, named: bool) {
        self.used += len;
        self.messages += 1;
        self.uncounted += u64::from(!named);
    }

    /// A message has ended of which that was told by its name.
    pub(super) fn ended(&mut self, len: u64) {
        self.used = self.used.saturating_sub(len);
        self.messages = self.messages.saturating_sub(1);
    }

    /// Messages have ended of which that is told by number.
    pub(super) fn credit(&mut self, bytes: u64, messages: u64) {
        self.used = self.used.saturating_sub(bytes);
        self.messages = self.messages.saturating_sub(messages);
        self.uncounted = self.uncounted.saturating_sub(messages);
    }

    /// The daemon is gone. Returns of how many messages nobody will hear how they ended.
    pub(super) fn lost(&mut self) -> u64 {
        (self.used, self.messages) = (0, 0);
        std::mem::take(&mut self.uncounted)
    }
}

/// Memory that a send keeps until the daemon has told that it is free.
pub(super) struct Held(pub(super) Chunk);

/// A send that has a name.
pub(super) struct Unfinished {
    /// Number of its socket.
    pub(super) socket: u32,
    pub(super) len: u32,
    /// Whom it concerns how it ended; taken when it is told.
    pub(super) cookie: Option<Cookie>,
    /// Its part of the arena; taken when that is free.
    pub(super) held: Option<Held>,
}

impl Unfinished {
    const fn is_over(&self) -> bool {
        self.cookie.is_none() && self.held.is_none()
    }
}

/// Sends that have a name, by it. A name is used again once nothing more is to be told of it.
#[derive(Default)]
pub(super) struct Book {
    sends: Vec<Option<Unfinished>>,
    free: Vec<u32>,
}

impl Book {
    /// The name that the next send will get.
    pub(super) fn next(&self) -> u32 {
        self.free.last().copied().unwrap_or(self.sends.len() as u32)
    }

    /// Notes a send, under the name that [`Book::next`] told.
    pub(super) fn add(&mut self, send: Unfinished) {
        match self.free.pop() {
            Some(id) => self.sends[id as usize] = Some(send),
            None => self.sends.push(Some(send)),
        }
    }

    /// How a send ended is told, once: its cookie and its length.
    pub(super) fn done(&mut self, id: u32) -> Option<(u32, Cookie, u32)> {
        let send = self.sends.get_mut(id as usize)?.as_mut()?;
        let told = (send.socket, send.cookie.take()?, send.len);
        self.settle(id);
        Some(told)
    }

    /// The memory of a send is free, once.
    pub(super) fn released(&mut self, id: u32) -> Option<Held> {
        let held = self.sends.get_mut(id as usize)?.as_mut()?.held.take()?;
        self.settle(id);
        Some(held)
    }

    /// Nobody wants to know any more how the sends of a socket end.
    pub(super) fn forget(&mut self, socket: u32) {
        for id in 0..self.sends.len() {
            if let Some(send) = self.sends[id].as_mut().filter(|send| send.socket == socket) {
                send.cookie = None;
                self.settle(id as u32);
            }
        }
    }

    /// Everything, when the daemon is gone.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Unfinished> + use<> {
        self.free.clear();
        std::mem::take(&mut self.sends).into_iter().flatten()
    }

    fn settle(&mut self, id: u32) {
        let place = &mut self.sends[id as usize];
        if place.as_ref().is_some_and(Unfinished::is_over) {
            *place = None;
            self.free.push(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn send(socket: u32, cookie: Option<u32>, held: bool) -> Unfinished {
        let held = held.then(|| Held(Chunk::from(vec![0; 8])));
        Unfinished { socket, len: 8, cookie: cookie.map(Cookie), held }
    }

    #[test]
    fn a_full_buffer_is_what_the_node_calls_full() {
        let mut account = Account::new(100);
        account.charge(99, false);
        assert!(account.has_room());
        account.charge(1_000_000, true);
        assert!(!account.has_room(), "the last one may go beyond, and none after it");
        account.credit(99, 1);
        assert!(!account.has_room());
        account.ended(1_000_000);
        assert!(account.has_room() && account.is_drained());
        for _ in 0..LEAST_MESSAGES {
            assert!(account.has_room());
            account.charge(0, false);
        }
        assert!(!account.has_room(), "empty messages are bounded too");
        assert_eq!(account.lost(), LEAST_MESSAGES);
        assert!(account.has_room());
    }

    proptest! {
        /// Whatever the daemon says, in whatever order, and how often: each end is told once, and each piece of memory comes back once.
        #[test]
        fn every_end_is_told_once(steps in proptest::collection::vec((0..5u8, 0..12u32, any::<bool>(), any::<bool>()), 0..200)) {
            let mut book = Book::default();
            let (mut ends, mut frees) = (std::collections::BTreeSet::new(), 0);
            let (mut made, mut held_made, mut cookie) = (std::collections::BTreeSet::new(), 0, 0);
            for (what, id, with_cookie, with_memory) in steps {
                match what {
                    0 | 1 if with_cookie || with_memory => {
                        let next = book.next();
                        prop_assert!(book.sends.get(next as usize).is_none_or(Option::is_none), "the name is free");
                        cookie += 1;
                        if with_cookie { made.insert(cookie); }
                        held_made += u32::from(with_memory);
                        book.add(send(id % 3, with_cookie.then_some(cookie), with_memory));
                    }
                    2 => if let Some((_, cookie, len)) = book.done(id) {
                        prop_assert!(ends.insert(cookie.0) && len == 8);
                    },
                    3 => frees += u32::from(book.released(id).is_some()),
                    _ => {}
                }
            }
            for send in book.take_all() {
                if let Some(cookie) = send.cookie { prop_assert!(ends.insert(cookie.0)); }
                frees += u32::from(send.held.is_some());
            }
            prop_assert_eq!(ends, made);
            prop_assert_eq!(frees, held_made);
            prop_assert_eq!(book.next(), 0, "and nothing is left");
        }
    }

    #[test]
    fn what_a_closed_socket_lent_still_comes_back() {
        let mut book = Book::default();
        book.add(send(7, Some(1), true));
        book.add(send(7, Some(2), false));
        book.add(send(8, Some(3), false));
        book.forget(7);
        assert!(book.done(0).is_none() && book.done(1).is_none());
        assert!(book.released(0).is_some());
        assert_eq!(book.done(2).map(|(socket, cookie, _)| (socket, cookie)), Some((8, Cookie(3))));
    }
}
