//! Memory of simulated programs. It outlives what its owner thinks of it, so that a kernel which still reads it finds out.
//!
//! A program lends a [`Payload`]; the node drops it when it believes that nobody reads it any more. From then on the memory is
//! dead: the real one would hold something else by now. The model of the kernel keeps its own reference to the
//! [`Life`] behind it, not to the payload, and looks at it whenever it transmits.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use rds_core::buffer::{Chunk, OnRelease};

/// What a kernel finds in memory that was freed.
const POISON: u8 = 0xdd;

/// Something that happened to a process's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The node told that a payload is free.
    Released {
        /// Number of the message.
        number: usize,
        /// Whether any byte was copied on its way.
        copied: bool,
    },
    /// A payload at this address was dropped.
    Freed(usize),
    /// A promise was broken.
    Broken(String),
}

/// One life of a process, as its memory knows it.
#[derive(Debug, Default)]
pub struct Process {
    dead: AtomicBool,
    events: Mutex<Vec<Event>>,
}

impl Process {
    /// The process died: its pages stay as they are while somebody reads them.
    pub fn die(&self) {
        self.dead.store(true, SeqCst);
    }

    /// Whether it died.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead.load(SeqCst)
    }

    /// What has happened since the last call.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut *self.events.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Notes an event, unless the process is dead.
    pub fn note(&self, event: Event) {
        if !self.is_dead() {
            self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
        }
    }
}

impl OnRelease for Process {
    fn released(&self, cookie: u32, copied: bool) {
        self.note(Event::Released { number: cookie as usize, copied });
    }
}

/// The memory of one payload.
#[derive(Debug)]
pub struct Life {
    number: usize,
    bytes: Vec<u8>,
    process: Arc<Process>,
    /// It cannot be pinned, such as memory of a device.
    foreign: bool,
    freed: AtomicBool,
    copied: AtomicBool,
    /// Calls with MSG_ZEROCOPY that carried a byte of it and of whose end the process has not read.
    calls: AtomicU32,
}

impl Life {
    /// What is there now; poison, and false, if it was freed.
    #[must_use]
    pub fn read(&self, at: usize, end: usize) -> (Vec<u8>, bool) {
        if self.freed.load(SeqCst) {
            (vec![POISON; end - at], false)
        } else {
            (self.bytes[at..end].to_vec(), true)
        }
    }

    /// Whether a kernel refuses to pin it.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// Number of the message.
    #[must_use]
    pub fn number(&self) -> usize {
        self.number
    }

    /// A call carries bytes of it.
    pub fn pin(&self) {
        self.calls.fetch_add(1, SeqCst);
    }

    /// The process has read that such a call ended.
    pub fn unpin(&self) {
        self.calls.fetch_sub(1, SeqCst);
    }

    /// The process knows that bytes of it were copied.
    pub fn mark_copied(&self) {
        self.copied.store(true, SeqCst);
    }

    /// Whether the process knows that bytes of it were copied.
    #[must_use]
    pub fn is_copied(&self) -> bool {
        self.copied.load(SeqCst)
    }
}

/// What a program lends.
#[derive(Debug)]
pub struct Payload(Arc<Life>);

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        if self.0.process.is_dead() {
            return;
        }
        self.0.freed.store(true, SeqCst);
        let calls = self.0.calls.load(SeqCst);
        if calls > 0 {
            self.0.process.note(Event::Broken(format!(
                "the buffer of message {} is free while {calls} calls with MSG_ZEROCOPY may still read it",
                self.0.number
            )));
        }
        self.0.process.note(Event::Freed(self.0.bytes.as_ptr() as usize));
    }
}

/// All payloads, by their addresses: so a kernel sees which memory a call names.
#[derive(Debug, Default)]
pub struct Memory {
    lives: BTreeMap<usize, Arc<Life>>,
}

impl Memory {
    /// Memory of a process for message `number`; `foreign` memory cannot be pinned.
    pub fn allocate(
        &mut self,
        process: &Arc<Process>,
        number: usize,
        bytes: Vec<u8>,
        foreign: bool,
    ) -> Payload {
        let life = Arc::new(Life {
            number,
            bytes,
            process: Arc::clone(process),
            foreign,
            freed: AtomicBool::new(false),
            copied: AtomicBool::new(false),
            calls: AtomicU32::new(0),
        });
        if !life.bytes.is_empty() {
            self.lives.insert(life.bytes.as_ptr() as usize, Arc::clone(&life));
        }
        Payload(life)
    }

    /// The memory in which a piece of a stream lies, and where in it; none if it is the node's own.
    #[must_use]
    pub fn find(&self, chunk: &Chunk) -> Option<(&Arc<Life>, usize)> {
        let address = chunk.as_slice()?.as_ptr() as usize;
        let (start, life) = self.lives.range(..=address).next_back()?;
        let at = address - start;
        (chunk.is_payload() && at + chunk.len() <= life.bytes.len()).then_some((life, at))
    }

    /// What was at this address is gone.
    pub fn forget(&mut self, address: usize) -> Option<Arc<Life>> {
        self.lives.remove(&address)
    }

    /// The process is gone.
    pub fn forget_process(&mut self, process: &Arc<Process>) {
        self.lives.retain(|_, life| !Arc::ptr_eq(&life.process, process));
    }

    /// Payloads of a process that are not free.
    #[must_use]
    pub fn count(&self, process: &Arc<Process>) -> usize {
        self.lives.values().filter(|life| Arc::ptr_eq(&life.process, process)).count()
    }
}
