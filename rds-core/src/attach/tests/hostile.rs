//! The other side writes whatever it likes, wherever it can, while this one runs.

use std::cell::Cell;

use proptest::prelude::*;

use super::super::record::{Encode, FULL, HEADER};
use super::super::ring::{ALIGN, Memory, RingConsumer, RingProducer, Word};
use super::super::*;

const CAPACITY: u32 = 4096;

/// Memory that changes whenever it is looked at, as `scribbles` says: the other side's words, and all bytes.
struct Scribbled<'a> {
    words: [Cell<u64>; 4],
    bytes: Vec<Cell<u8>>,
    theirs: [Word; 2],
    scribbles: &'a [(u8, u16, u64)],
    next: Cell<usize>,
}

impl<'a> Scribbled<'a> {
    fn new(theirs: [Word; 2], scribbles: &'a [(u8, u16, u64)]) -> Self {
        Self {
            words: Default::default(),
            bytes: vec![Cell::new(0); CAPACITY as usize],
            theirs,
            scribbles,
            next: Cell::new(0),
        }
    }

    fn scribble(&self) {
        let Some(&(what, at, value)) = self.scribbles.get(self.next.get()) else { return };
        self.next.set(self.next.get() + 1);
        let word = &self.words[self.theirs[usize::from(what & 1)] as usize];
        match what / 2 % 6 {
            0 => word.set(value),
            // Near what is right, so that more is reached than the first check.
            1 => word.set(word.get().wrapping_add(u64::from(at) / 64 * ALIGN)),
            2 => word.set(word.get().wrapping_sub(1)),
            3 => (0..8).for_each(|n| self.bytes[(usize::from(at) + n) % CAPACITY as usize].set(value as u8)),
            4 => {
                // A header that could be one.
                let at = usize::from(at) / 16 * 16 % CAPACITY as usize;
                let len = (value as u32 % 600).to_ne_bytes();
                (0..4).for_each(|n| self.bytes[at + n].set(len[n]));
                self.bytes[at + 4].set((value >> 32) as u8);
            }
            _ => {}
        }
    }
}

impl Memory for Scribbled<'_> {
    fn load(&self, word: Word) -> u64 {
        self.scribble();
        self.words[word as usize].get()
    }

    fn store(&self, word: Word, value: u64) {
        self.words[word as usize].set(value);
        self.scribble();
    }

    fn fence(&self) {
        self.scribble();
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        for (n, byte) in bytes.iter().enumerate() {
            self.bytes[at + n].set(*byte);
        }
        self.scribble();
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        for (n, byte) in out.iter_mut().enumerate() {
            *byte = self.bytes[at + n].get();
        }
        self.scribble();
    }
}

fn scribbles() -> impl Strategy<Value = Vec<(u8, u16, u64)>> {
    prop::collection::vec(any::<(u8, u16, u64)>(), 0..400)
}

proptest! {
    #[test]
    fn a_reader_stays_within_the_ring_and_within_what_is_shown_whatever_the_writer_does(scribbles in scribbles()) {
        let mut ring = RingConsumer::new(Scribbled::new([Word::Tail, Word::Wants], &scribbles), CAPACITY);
        for turn in 0..300 {
            match ring.next() {
                Ok(Some(record)) => {
                    // What was copied out is what counts, and lies where it can be read.
                    let len = record.raw.len() as usize;
                    prop_assert!(len >= HEADER && record.at + len <= CAPACITY as usize);
                    let _ = (Submission::decode(&record.raw), Completion::decode(&record.raw));
                    let mut body = vec![0; len];
                    ring.memory().read(record.at, &mut body);
                }
                Ok(None) => _ = ring.arm().is_ok_and(|sleeps| !sleeps || turn % 2 == 0),
                Err(violation) => {
                    prop_assert!(!violation.to_string().is_empty());
                    break;
                }
            }
            if turn % 3 == 0 {
                let _ = (ring.release(), ring.wanted());
            }
        }
    }

    #[test]
    fn a_writer_stays_within_the_ring_whatever_the_reader_does(
        scribbles in scribbles(), lens in prop::collection::vec(0..3000_u32, 1..200),
    ) {
        let mut ring = RingProducer::new(Scribbled::new([Word::Head, Word::Sleeps], &scribbles), CAPACITY);
        for (turn, len) in lens.into_iter().enumerate() {
            let said = Completion::Reply { request: 1, status: Status::Ok, value: 2, body_len: len };
            let record = said.encode();
            if let Some(mut slot) = ring.reserve(&record) {
                slot.write(&vec![7; len as usize]);
                if turn % 5 != 0 {
                    slot.commit();
                }
            } else if ring.publish() || !ring.want_room(record.len()) {
                ring.want_attention();
                ring.stop_wanting();
            }
        }
        if let Some(violation) = ring.violation() {
            prop_assert!(ring.reserve(&Submission::Free { offset: 1 }.encode()).is_none(), "{}", violation);
            prop_assert!(!ring.want_room(32));
        }
    }
}

/// A ring of which the other side set the words and the first bytes so.
fn reader(tail: u64, bytes: &[u8]) -> Result<Option<u32>, Violation> {
    let memory = Scribbled::new([Word::Tail, Word::Wants], &[]);
    memory.words[Word::Tail as usize].set(tail);
    memory.write(0, bytes);
    let mut ring = RingConsumer::new(memory, CAPACITY);
    ring.next().map(|record| record.map(|r| r.raw.len()))
}

fn head(len: u32, kind: u8) -> [u8; FULL] {
    let mut bytes = [0; FULL];
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    bytes[4] = kind;
    bytes
}

#[test]
fn each_thing_that_a_writer_can_say_wrong_is_named() {
    let capacity = u64::from(CAPACITY);
    assert_eq!(reader(0, &[]), Ok(None));
    assert_eq!(reader(48, &head(48, 1)), Ok(Some(48)));
    assert_eq!(reader(8, &[]), Err(Violation::Unaligned(8)));
    let ahead = Violation::TailAhead { tail: capacity + 16, head: 0, capacity };
    assert_eq!(reader(capacity + 16, &[]), Err(ahead));
    assert_eq!(
        reader(u64::MAX - 15, &[]),
        Err(Violation::TailAhead { tail: u64::MAX - 15, head: 0, capacity })
    );
    for (tail, len) in [(48, 49), (48, 31), (48, 0), (48, u32::MAX), (capacity, CAPACITY + 1), (32, 48)] {
        assert_eq!(
            reader(tail, &head(len, 1)),
            Err(Violation::Length { len, available: tail }),
            "{tail} {len}"
        );
    }
    assert_eq!(reader(16, &head(16, 1)), Err(Violation::Length { len: 32, available: 16 }));
    // What fills the ring up ends where the ring does.
    assert_eq!(reader(48, &head(48, 255)), Err(Violation::Size { kind: 255, len: 48 }));
    assert_eq!(reader(capacity, &head(CAPACITY, 255)), Ok(None));
}

#[test]
fn positions_that_go_back_are_refused_on_either_side() {
    let mut ring = RingConsumer::new(Scribbled::new([Word::Tail, Word::Wants], &[]), CAPACITY);
    let memory = ring.memory();
    memory.words[Word::Tail as usize].set(96);
    memory.write(0, &head(96, 1));
    assert!(ring.next().unwrap().is_some());
    ring.memory().words[Word::Tail as usize].set(80);
    assert_eq!(ring.next().unwrap_err(), Violation::TailBack { from: 96, to: 80 });
    assert_eq!(ring.arm().unwrap_err(), Violation::TailBack { from: 96, to: 80 });
    assert_eq!(ring.memory().words[Word::Sleeps as usize].get(), 0, "it does not sleep");

    let room = |heads: &[u64]| {
        let mut ring = RingProducer::new(Scribbled::new([Word::Head, Word::Sleeps], &[]), CAPACITY);
        let record = Completion::Reply { request: 0, status: Status::Ok, value: 0, body_len: 1000 }.encode();
        for head in heads {
            while let Some(mut slot) = ring.reserve(&record) {
                slot.write(&[0; 1000]);
                slot.commit();
            }
            let _ = ring.publish();
            ring.memory().words[Word::Head as usize].set(*head);
        }
        ring.has_room(2000);
        ring.violation()
    };
    assert_eq!(room(&[1040]), None);
    assert_eq!(room(&[1040, 0]), Some(Violation::HeadBack { from: 1040, to: 0 }));
    assert_eq!(room(&[8]), Some(Violation::Unaligned(8)));
    assert_eq!(room(&[8000]), Some(Violation::HeadAhead { head: 8000, tail: 3120 }));
}

#[test]
fn a_writer_that_says_nothing_but_skips_does_not_keep_its_reader() {
    let memory = Scribbled::new([Word::Tail, Word::Wants], &[]);
    memory.write(0, &head(CAPACITY, 255));
    let mut ring = RingConsumer::new(memory, CAPACITY);
    for lap in 1..5 {
        ring.memory().words[Word::Tail as usize].set(lap * u64::from(CAPACITY));
        assert!(ring.next().unwrap().is_none());
        let _ = ring.release();
    }
}
