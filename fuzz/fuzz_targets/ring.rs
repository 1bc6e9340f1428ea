//! The rings of the local protocol, whatever the other side writes and whenever: the reader stays within the ring and reads nothing twice, the
//! writer stays within the ring; records decode to a value that encodes to itself, or to an error.
//!
//! Input: which side (1 byte), how many changes (1), the tail in multiples of 16 (2), the changes (11 bytes each: what, where, value), then what the
//! ring holds at first.
#![no_main]

use std::cell::{Cell, RefCell};

use libfuzzer_sys::fuzz_target;
use rds_core::attach::record::{Encode, FULL, HEADER, Raw};
use rds_core::attach::ring::{Memory, RingConsumer, RingProducer, Word};
use rds_core::attach::{Completion, Status, Submission};

const CAPACITY: u32 = 4096;
const CHANGE: usize = 11;

struct Scribbled<'a> {
    words: [Cell<u64>; 4],
    bytes: RefCell<Vec<u8>>,
    theirs: [Word; 2],
    changes: Cell<&'a [u8]>,
}

impl Scribbled<'_> {
    /// The next change of the other side's.
    fn change(&self) {
        let Some((change, rest)) = self.changes.get().split_at_checked(CHANGE) else { return };
        self.changes.set(rest);
        let at = usize::from(u16::from_le_bytes([change[1], change[2]]));
        let value = u64::from_le_bytes(change[3..].try_into().unwrap());
        let word = &self.words[self.theirs[usize::from(change[0] & 1)] as usize];
        let mut bytes = self.bytes.borrow_mut();
        match change[0] / 2 % 4 {
            0 => word.set(value),
            1 => word.set(word.get().wrapping_add(at as u64 * 16)),
            2 => {
                let at = at % (CAPACITY as usize - 7);
                bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
            }
            _ => {}
        }
    }
}

impl Memory for Scribbled<'_> {
    fn load(&self, word: Word) -> u64 {
        self.change();
        self.words[word as usize].get()
    }

    fn store(&self, word: Word, value: u64) {
        self.words[word as usize].set(value);
        self.change();
    }

    fn fence(&self) {
        self.change();
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        self.change();
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes.borrow()[at..at + out.len()]);
        self.change();
    }
}

fn decode(raw: &Raw) {
    if let Ok(said) = Submission::decode(raw) {
        assert!(Completion::decode(raw).is_err(), "no kind is of both directions");
        again(raw, &said, |raw| Submission::decode(raw).unwrap());
    }
    if let Ok(said) = Completion::decode(raw) {
        again(raw, &said, |raw| Completion::decode(raw).unwrap());
    }
}

fn again<T: Encode + PartialEq + std::fmt::Debug>(raw: &Raw, said: &T, decode: impl Fn(&Raw) -> T) {
    let encoded = said.encode();
    assert_eq!((encoded.len(), encoded.body_len()), (raw.len(), raw.body_len()));
    let mut bytes = [0xa5; FULL];
    let (head, len) = encoded.bytes();
    bytes[..len].copy_from_slice(&head[..len]);
    assert_eq!(decode(&Raw::of_bytes(&bytes)), *said);
}

fn read(memory: Scribbled<'_>) {
    let mut ring = RingConsumer::new(memory, CAPACITY);
    for turn in 0..500 {
        match ring.next() {
            Ok(Some(record)) => {
                let len = record.raw.len() as usize;
                assert!(len >= HEADER && record.at + len <= CAPACITY as usize && record.at % 16 == 0);
                decode(&record.raw);
                ring.memory().read(record.at, &mut vec![0; len]);
            }
            Ok(None) => {
                if ring.arm().is_err() {
                    return;
                }
            }
            Err(violation) => {
                assert!(!violation.to_string().is_empty());
                return;
            }
        }
        if turn % 3 == 0 {
            let _ = (ring.release(), ring.wanted());
        }
    }
}

fn write(memory: Scribbled<'_>, lens: &[u8]) {
    let mut ring = RingProducer::new(memory, CAPACITY);
    for len in lens.iter().take(500) {
        let len = u32::from(*len) * 9;
        let record = Completion::Reply { request: 1, status: Status::Ok, value: 2, body_len: len }.encode();
        if let Some(mut slot) = ring.reserve(&record) {
            slot.write(&vec![7; len as usize]);
            slot.commit();
        } else if ring.publish() || !ring.want_room(record.len()) {
            ring.want_attention();
            ring.stop_wanting();
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&[side, changes, low, high], rest)) = input.split_first_chunk() else { return };
    let (changes, held) = rest.split_at(rest.len().min(usize::from(changes) * CHANGE));
    let mut bytes = held[..held.len().min(CAPACITY as usize)].to_vec();
    bytes.resize(CAPACITY as usize, 0);
    let theirs = if side & 1 == 0 { [Word::Tail, Word::Wants] } else { [Word::Head, Word::Sleeps] };
    let memory =
        Scribbled { words: Default::default(), bytes: bytes.into(), theirs, changes: Cell::new(changes) };
    if side & 1 == 0 {
        memory.words[Word::Tail as usize].set(u64::from(u16::from_le_bytes([low, high])) * 16);
        read(memory);
    } else {
        write(memory, held);
    }
});
