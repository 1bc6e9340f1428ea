//! A ring between two processes under every interleaving and every order of memory that the model checker loom knows: nothing is lost, nothing
//! comes twice or torn, and nobody sleeps for ever. That loom reports as a deadlock.
//!
//! Empty in normal builds. Run with a folder of its own, so that normal builds stay as they are:
//! `RUSTFLAGS="--cfg loom" cargo test -p rds-core --release --test loom_ring --target-dir target/loom`.
#![cfg(loom)]

use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use rds_core::attach::ring::{Memory, RingConsumer, RingProducer, Word};
use rds_core::attach::{Completion, Encode, Status};

/// The ring holds two records.
const CAPACITY: u32 = 4096;
const RECORD: u32 = CAPACITY / 2;
const BODY: u32 = RECORD - 32;
/// Words of a record that are looked at.
const HEAD: usize = 6;

/// Memory of which only the beginnings of both records are there.
#[derive(Clone)]
struct Modelled<const FENCED: bool> {
    words: Arc<[AtomicU64; 4]>,
    bytes: Arc<Vec<AtomicU64>>,
}

impl<const FENCED: bool> Modelled<FENCED> {
    fn new() -> Self {
        let word = || AtomicU64::new(0);
        Self {
            words: Arc::new([word(), word(), word(), word()]),
            bytes: Arc::new((0..2 * HEAD).map(|_| word()).collect()),
        }
    }

    /// The words of which bytes at an offset are made.
    fn at(&self, at: usize) -> impl Iterator<Item = &AtomicU64> {
        assert!(at % RECORD as usize == 0, "where a record begins");
        let first = at / RECORD as usize * HEAD;
        self.bytes[first..first + HEAD].iter()
    }
}

impl<const FENCED: bool> Memory for Modelled<FENCED> {
    fn load(&self, word: Word) -> u64 {
        self.words[word as usize].load(Acquire)
    }

    fn store(&self, word: Word, value: u64) {
        self.words[word as usize].store(value, Release);
    }

    fn fence(&self) {
        if FENCED {
            fence(SeqCst);
        }
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        unreachable!("{} bytes at {at}: only headers are written", bytes.len());
    }

    fn write_words(&self, at: usize, words: &[u64]) {
        for (word, value) in self.at(at).zip(words) {
            word.store(*value, Relaxed);
        }
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        unreachable!("{} bytes at {at}: only headers are read", out.len());
    }

    fn read_words(&self, at: usize, out: &mut [u64]) {
        for (word, out) in self.at(at).zip(out) {
            *out = word.load(Relaxed);
        }
    }
}

#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.heard.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !std::mem::take(&mut *rung) {
            rung = self.heard.wait(rung).unwrap();
        }
    }
}

fn record(n: u32) -> Completion {
    Completion::Reply { request: n, status: Status::Ok, value: u64::from(n) << 32 | 7, body_len: BODY }
}

/// One side writes records, the first of them quietly if `quiet`, and sleeps when the ring is full; the other reads them, and sleeps when
/// it is empty.
fn pass<const FENCED: bool>(count: u32, quiet: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let memory = Modelled::<FENCED>::new();
        let of_producer = Arc::new(Bell::default());
        let of_consumer = Arc::new(Bell::default());
        let writer = thread::spawn({
            let mut ring = RingProducer::new(memory.clone(), CAPACITY);
            let (mine, theirs) = (Arc::clone(&of_producer), Arc::clone(&of_consumer));
            move || {
                for n in 0..count {
                    while !ring.want_room(RECORD) {
                        mine.wait();
                    }
                    let mut slot = ring.reserve(&record(n).encode()).expect("there is room");
                    slot.advance(BODY as usize);
                    slot.commit();
                    if quiet && n == 0 {
                        ring.publish_quietly();
                    } else if ring.publish() {
                        theirs.ring();
                    }
                }
                assert_eq!(ring.violation(), None);
            }
        });
        let mut ring = RingConsumer::new(memory, CAPACITY);
        let mut got = 0;
        while got < count {
            if let Some(came) = ring.next().unwrap() {
                assert_eq!(Completion::decode(&came.raw).unwrap(), record(got));
                got += 1;
                if ring.release() {
                    of_producer.ring();
                }
            } else if ring.arm().unwrap() {
                of_consumer.wait();
                ring.disarm();
            }
        }
        assert!(ring.next().unwrap().is_none());
        writer.join().unwrap();
    });
}

#[test]
fn loom_a_reader_that_sleeps_is_woken_and_finds_all_records_whole() {
    pass::<true>(2, false);
}

#[test]
fn loom_a_writer_that_waits_for_room_is_woken() {
    pass::<true>(4, false);
}

#[test]
fn loom_what_was_shown_quietly_is_found_at_the_next_wake() {
    pass::<true>(2, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn loom_without_its_fences_a_wake_would_be_lost() {
    pass::<false>(2, false);
}

#[test]
fn loom_who_waits_for_an_arena_hears_of_what_is_given_back_quietly() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (submission, completion) = (Modelled::<true>::new(), Modelled::<true>::new());
        let of_daemon = Arc::new(Bell::default());
        let program = thread::spawn({
            let mut out = RingProducer::new(submission.clone(), CAPACITY);
            let of_completion = RingConsumer::new(completion.clone(), CAPACITY);
            let theirs = Arc::clone(&of_daemon);
            move || {
                let mut slot = out.reserve(&record(0).encode()).expect("an empty ring");
                slot.advance(BODY as usize);
                slot.commit();
                out.publish_quietly();
                if of_completion.wanted() && out.publish() {
                    theirs.ring();
                }
            }
        });
        let mut out = RingProducer::new(completion, CAPACITY);
        let mut ring = RingConsumer::new(submission, CAPACITY);
        out.want_attention();
        while ring.next().unwrap().is_none() {
            if ring.arm().unwrap() {
                of_daemon.wait();
                ring.disarm();
            }
        }
        out.stop_wanting();
        program.join().unwrap();
    });
}
