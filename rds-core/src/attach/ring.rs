//! A ring of bytes between one writer and one reader who need not trust each other.
//!
//! The bytes, and four words, may lie in memory that the other side can write. Each side keeps its own position for itself and only shows it;
//! what it reads of the other's is checked. Layout and rules are in `docs/local-protocol.md`.

use super::fault::Violation;
use super::record::{Encoded, FULL, HEADER, Raw, SKIP, WORDS};

/// Records begin at multiples of this.
pub const ALIGN: u64 = 16;
/// Smallest and largest ring in bytes; a power of two.
pub const CAPACITIES: std::ops::RangeInclusive<u32> = 4096..=1 << 30;

/// The words of a ring. Positions are bytes since the beginning, and only grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The end of what is written. The producer's.
    Tail,
    /// The end of what is read. The consumer's.
    Head,
    /// Not 0: the consumer sleeps, and wants the doorbell; a different number each time. The consumer's.
    Sleeps,
    /// Not 0: the producer wants the doorbell once the head is here. The producer's.
    Wants,
}

/// Where a ring lies. The other side may change all of it at any moment.
pub trait Memory {
    /// The word, and all that the other side wrote before it (acquire).
    fn load(&self, word: Word) -> u64;
    /// Sets a word of one's own, after all that was written before (release).
    fn store(&self, word: Word, value: u64);
    /// Keeps a store before it apart from a load after it (sequentially consistent).
    fn fence(&self);
    /// Copies bytes in, at an offset from the ring's beginning. They lie within the ring.
    fn write(&self, at: usize, bytes: &[u8]);
    /// Copies bytes out, as they are at that moment.
    fn read(&self, at: usize, out: &mut [u8]);

    /// Copies words in, at a multiple of 16.
    fn write_words(&self, at: usize, words: &[u64]) {
        for (n, word) in words.iter().enumerate() {
            self.write(at + n * 8, &word.to_ne_bytes());
        }
    }

    /// Copies words out, from a multiple of 16; each is read once.
    fn read_words(&self, at: usize, out: &mut [u64]) {
        for (n, word) in out.iter_mut().enumerate() {
            let mut bytes = [0; 8];
            self.read(at + n * 8, &mut bytes);
            *word = u64::from_ne_bytes(bytes);
        }
    }
}

/// Checks a position that the other side says.
fn aligned(position: u64) -> Result<u64, Violation> {
    if position.is_multiple_of(ALIGN) { Ok(position) } else { Err(Violation::Unaligned(position)) }
}

/// A record's length with what fills it up.
fn padded(len: u32) -> u64 {
    u64::from(len).next_multiple_of(ALIGN)
}

/// The writing end.
#[derive(Debug)]
pub struct RingProducer<M> {
    memory: M,
    capacity: u64,
    /// The end of what is written, and of that the end of what is shown.
    tail: u64,
    published: u64,
    /// The consumer's position when last looked at.
    head: u64,
    /// The sleep for which the doorbell was rung.
    rung: u64,
    /// Something was shown without a look whether the consumer sleeps.
    quiet: bool,
    /// Whether the word `Wants` is set.
    wants: bool,
    violation: Option<Violation>,
}

impl<M: Memory> RingProducer<M> {
    /// The writing end of a ring of `capacity` bytes, all of whose words are 0.
    ///
    /// # Panics
    /// If the capacity is not a power of two within [`CAPACITIES`].
    pub fn new(memory: M, capacity: u32) -> Self {
        assert!(capacity.is_power_of_two() && CAPACITIES.contains(&capacity), "a capacity that was checked");
        Self {
            memory,
            capacity: capacity.into(),
            tail: 0,
            published: 0,
            head: 0,
            rung: 0,
            quiet: false,
            wants: false,
            violation: None,
        }
    }

    /// The longest record in bytes: such a one fits into an empty ring wherever its end is.
    pub fn max_record(&self) -> u32 {
        (self.capacity / 2) as u32
    }

    /// What the consumer did wrong, if it did. Nothing more can be written then.
    pub fn violation(&self) -> Option<Violation> {
        self.violation
    }

    /// Bytes of the ring that are left free at its end before a record of this length.
    fn skipped(&self, padded: u64) -> u64 {
        let to_end = self.capacity - (self.tail & (self.capacity - 1));
        if to_end < padded { to_end } else { 0 }
    }

    /// Whether `len` more bytes fit, as far as is known without another look.
    fn fits(&self, len: u64) -> bool {
        self.tail + len - self.head <= self.capacity
    }

    /// Looks at the consumer's position.
    fn look(&mut self) {
        let head = match aligned(self.memory.load(Word::Head)) {
            Ok(head) if head < self.head => Err(Violation::HeadBack { from: self.head, to: head }),
            Ok(head) if head > self.published => Err(Violation::HeadAhead { head, tail: self.published }),
            head => head,
        };
        match head {
            Ok(head) => self.head = head,
            Err(violation) => _ = self.violation.get_or_insert(violation),
        }
    }

    /// Whether a record of `len` bytes has room.
    pub fn has_room(&mut self, len: u32) -> bool {
        let padded = padded(len);
        if len > self.max_record() || self.violation.is_some() {
            return false;
        }
        let needed = self.skipped(padded) + padded;
        if !self.fits(needed) {
            self.look();
        }
        self.violation.is_none() && self.fits(needed)
    }

    /// Room for a record, whose header is written. None: there is no room for it now, or it is longer than [`RingProducer::max_record`].
    pub fn reserve(&mut self, record: &Encoded) -> Option<RingSlot<'_, M>> {
        let len = record.len();
        if !self.has_room(len) {
            return None;
        }
        let skipped = self.skipped(padded(len));
        if skipped >= HEADER as u64 {
            let at = (self.tail & (self.capacity - 1)) as usize;
            self.memory.write_words(at, Encoded::skip(skipped as u32).words());
        }
        let begin = self.tail + skipped;
        let at = (begin & (self.capacity - 1)) as usize;
        let head = record.words();
        self.memory.write_words(at, head);
        let (at, left) = (at + head.len() * 8, record.body_len() as usize);
        Some(RingSlot { next: begin + padded(len), ring: self, at, left })
    }

    /// Shows all that was written to the consumer. True: it sleeps, and the doorbell must be rung. Once a batch.
    #[must_use = "a consumer that sleeps must be woken"]
    pub fn publish(&mut self) -> bool {
        if self.tail == self.published && !self.quiet {
            return false;
        }
        self.publish_quietly();
        self.quiet = false;
        // Either we see that it sleeps, or it sees the new tail before it does.
        self.memory.fence();
        let sleep = self.memory.load(Word::Sleeps);
        let ring = sleep != 0 && sleep != self.rung;
        if ring {
            self.rung = sleep;
        }
        ring
    }

    /// Shows all that was written, but leaves a consumer that sleeps asleep: it sees this when it looks for other reasons.
    pub fn publish_quietly(&mut self) {
        if self.tail != self.published {
            self.memory.store(Word::Tail, self.tail);
            self.published = self.tail;
            self.quiet = true;
        }
    }

    /// Asks for room for a record of `len` bytes: true if there is. Otherwise the consumer rings the doorbell when it has read enough of what was
    /// shown, so [`RingProducer::publish`] must come before.
    pub fn want_room(&mut self, len: u32) -> bool {
        debug_assert!(self.tail == self.published, "what is not shown is never read");
        if self.has_room(len) {
            self.stop_wanting();
            return true;
        }
        if len > self.max_record() || self.violation.is_some() {
            return false;
        }
        let padded = padded(len);
        // Half of the ring at least, so that a full ring does not mean a doorbell for each record; the other half keeps the reader busy meanwhile.
        let room = (self.skipped(padded) + padded).max(self.capacity / 2);
        self.memory.store(Word::Wants, self.tail + room - self.capacity);
        self.wants = true;
        // Either it sees that we want room, or we see what it has read.
        self.memory.fence();
        let has = self.has_room(len);
        if has {
            self.stop_wanting();
        }
        has
    }

    /// Tells the consumer that something else than room in the ring is waited for, which what it writes in the other direction brings: see
    /// [`RingConsumer::wanted`]. Look at the other ring after this. A wish for room says the same.
    pub fn want_attention(&mut self) {
        if !self.wants {
            self.memory.store(Word::Wants, u64::MAX);
            self.wants = true;
        }
        // Either it sees that, or we see what it wrote.
        self.memory.fence();
    }

    /// Takes back a wish.
    pub fn stop_wanting(&mut self) {
        if std::mem::take(&mut self.wants) {
            self.memory.store(Word::Wants, 0);
        }
    }

    /// Where the ring lies.
    pub fn memory(&self) -> &M {
        &self.memory
    }
}

/// Room for a record. Dropped without [`RingSlot::commit`], it was never there.
#[derive(Debug)]
pub struct RingSlot<'a, M> {
    ring: &'a mut RingProducer<M>,
    at: usize,
    left: usize,
    next: u64,
}

impl<M: Memory> RingSlot<'_, M> {
    /// Writes the next bytes of the body.
    ///
    /// # Panics
    /// If they are more than the record has.
    pub fn write(&mut self, bytes: &[u8]) {
        let at = self.advance(bytes.len());
        self.ring.memory.write(at, bytes);
    }

    /// Takes the next `len` bytes of the body, which begin at the offset returned, to be written in another way.
    ///
    /// # Panics
    /// If they are more than the record has.
    pub fn advance(&mut self, len: usize) -> usize {
        assert!(len <= self.left, "no more than the record's length");
        let at = self.at;
        self.at += len;
        self.left -= len;
        at
    }

    /// Where the ring lies.
    pub fn memory(&self) -> &M {
        &self.ring.memory
    }

    /// The record is complete; it goes out with the next [`RingProducer::publish`].
    ///
    /// # Panics
    /// If its body was not written to its end.
    pub fn commit(self) {
        assert!(self.left == 0, "a whole record");
        self.ring.tail = self.next;
    }
}

/// The reading end.
#[derive(Debug)]
pub struct RingConsumer<M> {
    memory: M,
    capacity: u64,
    /// The end of what was read, and of that the end of what is shown.
    head: u64,
    published: u64,
    /// The producer's position when last looked at.
    tail: u64,
    /// The number of the last sleep.
    sleeps: u64,
    /// The wish for room for which the doorbell was rung.
    rung: u64,
}

/// A record, whose header was copied out: nothing of it changes any more.
#[derive(Clone, Copy, Debug)]
pub struct RingRecord {
    /// The header, and the address that may follow it.
    pub raw: Raw,
    /// Offset of the record from the ring's beginning; all of its `raw.len()` bytes lie within the ring.
    pub at: usize,
}

impl<M: Memory> RingConsumer<M> {
    /// The reading end of a ring of `capacity` bytes, all of whose words are 0.
    ///
    /// # Panics
    /// If the capacity is not a power of two within [`CAPACITIES`].
    pub fn new(memory: M, capacity: u32) -> Self {
        assert!(capacity.is_power_of_two() && CAPACITIES.contains(&capacity), "a capacity that was checked");
        Self { memory, capacity: capacity.into(), head: 0, published: 0, tail: 0, sleeps: 0, rung: 0 }
    }

    /// Looks at the producer's position.
    fn look(&mut self) -> Result<(), Violation> {
        let tail = aligned(self.memory.load(Word::Tail))?;
        if tail < self.tail {
            return Err(Violation::TailBack { from: self.tail, to: tail });
        }
        // Against the head that was shown: what was read since is not yet to be written again.
        if tail - self.published > self.capacity {
            return Err(Violation::TailAhead { tail, head: self.published, capacity: self.capacity });
        }
        self.tail = tail;
        Ok(())
    }

    /// The next record; it stays where it is until [`RingConsumer::release`].
    ///
    /// # Errors
    /// The producer broke the rules. The ring cannot be read any further.
    #[expect(clippy::should_implement_trait, reason = "it can fail")]
    pub fn next(&mut self) -> Result<Option<RingRecord>, Violation> {
        if self.head == self.tail {
            self.look()?;
        }
        // At most one lap's end lies before the next record, and each costs the producer the rest of a lap.
        while self.head != self.tail {
            let available = self.tail - self.head;
            let at = self.head & (self.capacity - 1);
            let to_end = self.capacity - at;
            if to_end < HEADER as u64 {
                // No header has room here.
                if available < to_end {
                    return Err(Violation::Length { len: HEADER as u32, available });
                }
                self.head += to_end;
                continue;
            }
            let available = available.min(to_end);
            if available < HEADER as u64 {
                return Err(Violation::Length { len: HEADER as u32, available });
            }
            let mut head = [0; WORDS];
            // Multiples of 16, both.
            let n = FULL.min(available as usize) / 8;
            self.memory.read_words(at as usize, &mut head[..n]);
            let raw = Raw::new(head);
            let len = raw.len();
            if (len as usize) < HEADER || padded(len) > available {
                return Err(Violation::Length { len, available });
            }
            self.head += padded(len);
            if raw.kind() != SKIP {
                return Ok(Some(RingRecord { raw, at: at as usize }));
            }
            if padded(len) != to_end {
                return Err(Violation::Size { kind: SKIP, len });
            }
        }
        Ok(None)
    }

    /// Whether something is there to be read.
    ///
    /// # Errors
    /// As for [`RingConsumer::next`].
    pub fn has_next(&mut self) -> Result<bool, Violation> {
        if self.head == self.tail {
            self.look()?;
        }
        Ok(self.head != self.tail)
    }

    /// Gives the room of all that was read back to the producer. True: it waits for room, and the doorbell must be rung. Once a batch.
    #[must_use = "a producer that waits must be woken"]
    pub fn release(&mut self) -> bool {
        if self.head == self.published {
            return false;
        }
        self.memory.store(Word::Head, self.head);
        self.published = self.head;
        // Either we see that it wants room, or it sees the new head before it sleeps.
        self.memory.fence();
        let wants = self.memory.load(Word::Wants);
        let ring = wants != 0 && wants <= self.head && wants != self.rung;
        if ring {
            self.rung = wants;
        }
        ring
    }

    /// Whether the producer waits for room, in the ring or elsewhere, so that what gives it some is not to be kept quiet. To be asked after
    /// that was shown.
    pub fn wanted(&self) -> bool {
        self.memory.fence();
        self.memory.load(Word::Wants) != 0
    }

    /// Announces a sleep. True: nothing is there, and the producer will ring the doorbell; false: there is something to be read.
    ///
    /// # Errors
    /// As for [`RingConsumer::next`].
    pub fn arm(&mut self) -> Result<bool, Violation> {
        if self.head != self.tail {
            return Ok(false);
        }
        self.sleeps = self.sleeps.wrapping_add(1).max(1);
        self.memory.store(Word::Sleeps, self.sleeps);
        // Either it sees that we sleep, or we see what it wrote.
        self.memory.fence();
        let looked = self.look();
        let nothing = looked.is_ok() && self.head == self.tail;
        if !nothing {
            self.disarm();
        }
        looked.map(|()| nothing)
    }

    /// Takes the announcement back: no doorbell is needed while the ring is being read.
    pub fn disarm(&mut self) {
        self.memory.store(Word::Sleeps, 0);
    }

    /// Where the ring lies.
    pub fn memory(&self) -> &M {
        &self.memory
    }
}
