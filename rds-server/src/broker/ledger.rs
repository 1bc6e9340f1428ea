//! The books of a port's members: who gets a message, what has been consumed, when the port is congested. Pure.
//!
//! The node knows one socket for the port: it charges each message at delivery, congests the port when its count exceeds the socket's receive
//! buffer, and clears it below half. Members are mapped onto that by what is reported as consumed, and by the buffer that the node is told
//! ([`Report`]), so that a port is congested exactly
//!
//! * exclusive: as its member is;
//! * balance: when every member is full; again free when one is less than half full. What one message takes beyond a member's buffer, while
//!   others have room, is reported as consumed at once, or a stopped member's share would stand for the others' room;
//! * fan-out: when any member is full; again free when all are less than half full. A message counts until the last member has consumed it.

use rds_core::attach::Sharing;

/// Smallest receive buffer of a member: a balanced port is full one byte earlier than the node would have it.
const LEAST: u64 = 2;

/// Payload bytes and messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Payload bytes.
    pub bytes: u64,
    /// Messages.
    pub messages: u64,
}

impl Count {
    /// None.
    pub const NONE: Self = Self { bytes: 0, messages: 0 };

    /// Whether both are 0.
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.bytes == 0 && self.messages == 0
    }

    /// Adds another count.
    pub fn add(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.messages += other.messages;
    }

    /// Takes another count off, but not below 0.
    pub fn subtract(&mut self, other: Self) {
        self.bytes = self.bytes.saturating_sub(other.bytes);
        self.messages = self.messages.saturating_sub(other.messages);
    }

    /// Whether this holds all of `other`.
    #[must_use]
    pub const fn covers(self, other: Self) -> bool {
        self.bytes >= other.bytes && self.messages >= other.messages
    }

    fn least(self, other: Self) -> Self {
        Self { bytes: self.bytes.min(other.bytes), messages: self.messages.min(other.messages) }
    }
}

/// A member of a group: never used twice in the same group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(pub u32);

/// What the node is to be told after members did something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Report {
    /// Consumed of the port.
    pub consumed: Count,
    /// The port's receive buffer, if it has changed.
    pub limit: Option<u64>,
    /// End the port's congestion, whatever the node's own rule says.
    pub clear: bool,
}

#[derive(Clone, Debug)]
struct Member {
    id: MemberId,
    /// Its receive buffer.
    limit: u64,
    /// Delivered to it, and not consumed by it.
    queued: Count,
    /// Balance: of `queued`, the bytes that the node still counts.
    counted: u64,
    /// When it was chosen last.
    chosen: u64,
}

impl Member {
    fn is_full(&self) -> bool {
        self.queued.bytes >= self.limit
    }

    /// Free to take more, by the kernel's rule of hysteresis.
    fn has_drained(&self) -> bool {
        self.queued.bytes < self.limit / 2 || self.queued.bytes == 0
    }

    fn room(&self) -> i128 {
        i128::from(self.limit) - i128::from(self.queued.bytes)
    }
}

/// The books of one port.
#[derive(Clone, Debug)]
pub struct Ledger {
    sharing: Sharing,
    members: Vec<Member>,
    /// Of all that was delivered, what the node still counts.
    charged: Count,
    /// Consumed, and not told to the node yet.
    unreported: Count,
    /// What the node takes for the port's receive buffer.
    told: u64,
    /// The port has become congested by our rule.
    full: bool,
    next: u32,
    turns: u64,
}

impl Ledger {
    /// Books without members; the node takes the port's receive buffer for `told` bytes.
    #[must_use]
    pub fn new(sharing: Sharing, told: u64) -> Self {
        Self {
            sharing,
            members: Vec::new(),
            charged: Count::NONE,
            unreported: Count::NONE,
            told,
            full: false,
            next: 0,
            turns: 0,
        }
    }

    /// How the port is shared.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// Delivered to a member and not consumed by it.
    #[must_use]
    pub fn queued(&self, id: MemberId) -> Count {
        self.find(id).map_or(Count::NONE, |n| self.members[n].queued)
    }

    fn find(&self, id: MemberId) -> Option<usize> {
        self.members.iter().position(|m| m.id == id)
    }

    /// A member with a receive buffer of `limit` bytes.
    pub fn join(&mut self, limit: u64) -> (MemberId, Report) {
        let id = MemberId(self.next);
        self.next += 1;
        self.members.push(Member { id, limit: limit.max(LEAST), queued: Count::NONE, counted: 0, chosen: 0 });
        (id, self.report())
    }

    /// Changes a member's receive buffer.
    pub fn set_limit(&mut self, id: MemberId, limit: u64) -> Report {
        if let Some(n) = self.find(id) {
            self.members[n].limit = limit.max(LEAST);
        }
        self.report()
    }

    /// Who of a balanced or exclusive port the next message is for: the member with most room. `None` without members.
    #[must_use]
    pub fn choose(&self) -> Option<MemberId> {
        self.best().map(|n| self.members[n].id)
    }

    fn best(&self) -> Option<usize> {
        if let [_only] = &self.members[..] {
            return Some(0);
        }
        // Empty messages take no room: fewer messages, then who waits longest.
        (0..self.members.len()).max_by_key(|n| {
            let m = &self.members[*n];
            (m.room(), std::cmp::Reverse((m.queued.messages, m.chosen)))
        })
    }

    /// Whether a member of a balanced port is full, so that a message is better given to [`Ledger::choose`]'s, if that is not.
    #[must_use]
    pub fn is_full(&self, id: MemberId) -> bool {
        self.find(id).is_none_or(|n| self.members[n].is_full())
    }

    /// A message of `len` bytes is given to one member of a balanced or exclusive port.
    pub fn deliver_to(&mut self, id: MemberId, len: u64) {
        let Some(n) = self.find(id) else { return };
        self.turns += 1;
        let member = &mut self.members[n];
        let counted = match self.sharing {
            Sharing::Balance if !member.is_full() => len.min(member.limit - member.queued.bytes),
            _ => len,
        };
        member.chosen = self.turns;
        member.queued.add(Count { bytes: len, messages: 1 });
        member.counted += counted;
        self.unreported.bytes += len - counted;
        self.charged.add(Count { bytes: counted, messages: 1 });
        self.full |= self.members.iter().all(Member::is_full);
    }

    /// A message of `len` bytes is given to every member of a fan-out port.
    pub fn deliver_to_all(&mut self, len: u64) {
        let one = Count { bytes: len, messages: 1 };
        self.charged.add(one);
        for member in &mut self.members {
            member.queued.add(one);
            self.full |= member.queued.bytes > member.limit;
        }
    }

    /// A message found nobody: the node has charged it all the same.
    pub fn nobody(&mut self, len: u64) {
        self.unreported.add(Count { bytes: len, messages: 1 });
    }

    /// A member has consumed something of what was delivered to it.
    pub fn consume(&mut self, id: MemberId, consumed: Count) -> Report {
        if let Some(n) = self.find(id) {
            self.take(n, consumed);
        }
        self.report()
    }

    fn take(&mut self, n: usize, consumed: Count) {
        let member = &mut self.members[n];
        let consumed = consumed.least(member.queued);
        member.queued.subtract(consumed);
        if self.sharing == Sharing::FanOut {
            self.settle_fan_out();
            return;
        }
        let counted = member.counted.min(member.queued.bytes);
        let freed = Count {
            bytes: std::mem::replace(&mut member.counted, counted) - counted,
            messages: consumed.messages,
        };
        self.charged.subtract(freed);
        self.unreported.add(freed);
    }

    /// What the slowest member still holds is what counts.
    fn settle_fan_out(&mut self) {
        let mut held = Count::NONE;
        for member in &self.members {
            held.bytes = held.bytes.max(member.queued.bytes);
            held.messages = held.messages.max(member.queued.messages);
        }
        let mut freed = self.charged;
        freed.subtract(held);
        self.charged.subtract(freed);
        self.unreported.add(freed);
    }

    /// A member is gone: what it had not consumed counts as consumed.
    pub fn leave(&mut self, id: MemberId) -> Report {
        if let Some(n) = self.find(id) {
            self.take(n, self.members[n].queued);
            self.members.remove(n);
            if self.sharing == Sharing::FanOut {
                self.settle_fan_out();
            }
        }
        self.report()
    }

    /// What was consumed and has not been reported. It counts as reported with that.
    pub fn take_consumed(&mut self) -> Count {
        std::mem::take(&mut self.unreported)
    }

    fn report(&mut self) -> Report {
        let limit = self.limit();
        let clear = self.full && !self.members.is_empty() && self.may_clear();
        if clear {
            self.full = false;
        }
        let changed = limit != self.told;
        self.told = limit;
        Report { consumed: self.take_consumed(), limit: (changed || clear).then_some(limit), clear }
    }

    fn may_clear(&self) -> bool {
        match self.sharing {
            // Its member's own hysteresis is the node's.
            Sharing::Exclusive => false,
            Sharing::Balance => self.members.iter().any(Member::has_drained),
            Sharing::FanOut => self.members.iter().all(Member::has_drained),
        }
    }

    /// The receive buffer that makes the node congest the port when it should.
    fn limit(&self) -> u64 {
        let members = &self.members;
        let limit = match self.sharing {
            _ if members.is_empty() => self.told,
            Sharing::Exclusive => members[0].limit,
            // The node congests past its limit, and all are full as soon as each has reached its own.
            Sharing::Balance => {
                members.iter().map(|m| m.limit.max(m.counted)).fold(0, u64::saturating_add).saturating_sub(1)
            }
            Sharing::FanOut => {
                let room = members.iter().map(Member::room).min().unwrap_or_default();
                u64::try_from((i128::from(self.charged.bytes) + room).max(1)).unwrap_or(u64::MAX)
            }
        };
        limit.max(1)
    }
}

#[cfg(test)]
mod tests;
