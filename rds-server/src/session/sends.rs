//! A socket's unfinished sends, and what they take of its send buffer. Pure.

/// A socket may have so many messages unfinished: a sixteenth of its send buffer's bytes, at least this.
const LEAST_MESSAGES: u64 = 1024;

/// A send that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sent {
    /// The client's number for it.
    pub(super) id: u32,
    /// Payload bytes.
    pub(super) len: u32,
    /// Whether its end is told by itself.
    pub(super) wants_end: bool,
}

/// The unfinished sends of one socket.
#[derive(Debug)]
pub(super) struct Sends {
    limit: u64,
    bytes: u64,
    table: Vec<Result<Sent, Option<u32>>>,
    free: Option<u32>,
    count: u64,
}

impl Sends {
    /// None, within a send buffer of `limit` bytes.
    #[must_use]
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, bytes: 0, table: Vec::new(), free: None, count: 0 }
    }

    /// Changes the send buffer.
    pub(super) fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// The kernel's rule, as the node has it: there is room while what was there before is below the buffer.
    #[must_use]
    pub(super) fn has_room(&self) -> bool {
        self.bytes < self.limit && self.count < (self.limit / 16).max(LEAST_MESSAGES)
    }

    /// Charges a send. Returns its number; `None` if there was no room.
    pub(super) fn begin(&mut self, sent: Sent) -> Option<u32> {
        if !self.has_room() {
            return None;
        }
        self.bytes += u64::from(sent.len);
        self.count += 1;
        let number = match self.free {
            Some(number) => {
                self.free = self.table[number as usize].err().flatten();
                number
            }
            None => {
                self.table.push(Err(None));
                self.table.len() as u32 - 1
            }
        };
        self.table[number as usize] = Ok(sent);
        Some(number)
    }

    /// A send ends: its room is free again. `None`: there is none of that number.
    pub(super) fn end(&mut self, number: u32) -> Option<Sent> {
        let entry = self.table.get_mut(number as usize)?;
        let sent = (*entry).ok()?;
        *entry = Err(self.free);
        self.free = Some(number);
        self.bytes -= u64::from(sent.len);
        self.count -= 1;
        Some(sent)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sent(id: u32, len: u32) -> Sent {
        Sent { id, len, wants_end: true }
    }

    #[test]
    fn one_message_may_go_beyond_the_buffer_and_no_more() {
        let mut sends = Sends::new(100);
        let first = sends.begin(sent(1, 99)).unwrap();
        let second = sends.begin(sent(2, 5000)).unwrap();
        assert_eq!(sends.begin(sent(3, 0)), None);
        assert_eq!(sends.end(second), Some(sent(2, 5000)));
        assert_eq!(sends.end(second), None, "once");
        assert!(sends.begin(sent(3, 0)).is_some());
        assert_eq!(sends.end(first).map(|s| s.id), Some(1));
        assert_eq!(sends.end(77), None);
    }

    #[test]
    fn empty_messages_are_bounded_too() {
        let mut sends = Sends::new(100);
        let begun = (0..5000).filter(|id| sends.begin(sent(*id, 0)).is_some()).count();
        assert_eq!(begun, 1024);
    }

    proptest! {
        #[test]
        fn each_send_ends_as_what_it_was(steps in proptest::collection::vec((any::<bool>(), 0..50_u32, 0..30_usize), 1..200)) {
            let mut sends = Sends::new(500);
            let mut open: Vec<(u32, Sent)> = Vec::new();
            for (id, (begin, len, which)) in steps.into_iter().enumerate() {
                if begin {
                    let used: u32 = open.iter().map(|(_, s)| s.len).sum();
                    let this = sent(id as u32, len);
                    let number = sends.begin(this);
                    prop_assert_eq!(number.is_some(), used < 500);
                    open.extend(number.map(|n| (n, this)));
                } else if !open.is_empty() {
                    let (number, this) = open.swap_remove(which % open.len());
                    prop_assert_eq!(sends.end(number), Some(this));
                }
            }
        }
    }
}
