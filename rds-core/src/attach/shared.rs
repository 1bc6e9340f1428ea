//! A ring in memory that two processes share, and where its words are.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use super::ring::{Memory, Word};
use crate::sys::shm::{SharedMemory, Span};

/// The program's memory ("C"), which both may write, and the daemon's ("D"), which the program can only read.
#[derive(Clone, Debug)]
pub(super) struct Memories {
    pub(super) client: Arc<SharedMemory>,
    pub(super) daemon: Arc<SharedMemory>,
}

/// One ring. Bytes, tail and wish for room are in the memory of who writes it, head and sleep in that of who reads it.
#[derive(Debug)]
pub(super) struct SharedRing {
    writer: Arc<SharedMemory>,
    reader: Arc<SharedMemory>,
    /// Where its bytes begin.
    start: usize,
    tail: usize,
    head: usize,
}

const SLEEPS: usize = 128;
const WANTS: usize = 192;

/// Where the rings begin in either memory: after the page of words.
pub(super) fn ring_at() -> usize {
    crate::sys::limits::page_size()
}

/// Where an arena begins, after a ring of this capacity.
pub(super) fn arena_at(ring: u32) -> usize {
    (ring_at() + ring as usize).next_multiple_of(crate::sys::limits::page_size())
}

impl SharedRing {
    /// From the program to the daemon.
    pub(super) fn submission(memories: &Memories) -> Self {
        let Memories { client, daemon } = memories.clone();
        Self { writer: client, reader: daemon, start: ring_at(), tail: 0, head: 0 }
    }

    /// From the daemon to the program.
    pub(super) fn completion(memories: &Memories) -> Self {
        let Memories { client, daemon } = memories.clone();
        Self { writer: daemon, reader: client, start: ring_at(), tail: 64, head: 64 }
    }

    /// Part of the ring's memory.
    ///
    /// # Panics
    /// If it is not within the memory.
    pub(super) fn span(&self, at: usize, len: usize) -> Span {
        self.writer.span((self.start + at) as u64, len as u64).expect("within the ring, as was checked")
    }

    fn word(&self, word: Word) -> &std::sync::atomic::AtomicU64 {
        match word {
            Word::Tail => self.writer.word(self.tail),
            Word::Wants => self.writer.word(WANTS),
            Word::Head => self.reader.word(self.head),
            Word::Sleeps => self.reader.word(SLEEPS),
        }
    }
}

impl Memory for SharedRing {
    fn load(&self, word: Word) -> u64 {
        self.word(word).load(Acquire)
    }

    fn store(&self, word: Word, value: u64) {
        self.word(word).store(value, Release);
    }

    fn fence(&self) {
        fence(SeqCst);
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.writer.copy_in(self.start + at, bytes);
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        self.writer.copy_out(self.start + at, out);
    }
    fn write_words(&self, at: usize, words: &[u64]) {
        for (to, word) in self.writer.words(self.start + at, words.len()).iter().zip(words) {
            to.store(*word, Relaxed);
        }
    }

    fn read_words(&self, at: usize, out: &mut [u64]) {
        for (from, word) in self.writer.words(self.start + at, out.len()).iter().zip(out) {
            *word = from.load(Relaxed);
        }
    }
}
