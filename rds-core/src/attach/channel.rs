//! One end of an attachment, whether through shared memory or over the socket alone.

use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use bytes::BytesMut;

use super::doorbell::{Bells, Doorbell, Wakeup};
use super::fault::{Fault, Violation};
use super::record::{Completion, Encode, FULL, Raw, Submission, Where};
use super::ring::{RingConsumer, RingProducer, RingSlot};
use super::shared::{Memories, SharedRing};
use super::stream::{StreamConsumer, StreamProducer, StreamSlot};
use crate::sys::shm::Span;

/// One end of an attachment. The halves may be used by different threads.
#[derive(Debug)]
pub struct Channel {
    /// Writes records.
    pub producer: Producer,
    /// Reads records.
    pub consumer: Consumer,
    /// What to watch for reading while asleep ([`Consumer::arm`], [`Producer::want_room`]).
    pub wakeup: Arc<Wakeup>,
    /// The connection. It ends when the other side does, and with shared memory nothing else comes over it. In the stream form it is also what
    /// to watch for writing while [`Producer::has_pending`].
    pub socket: Arc<UnixStream>,
}

impl Channel {
    pub(super) fn stream(socket: UnixStream, max_message: u32) -> Self {
        let socket = Arc::new(socket);
        Self {
            producer: Producer(ProducerForm::Stream(StreamProducer::new(Arc::clone(&socket), max_message))),
            consumer: Consumer(ConsumerForm::Stream(StreamConsumer::new(Arc::clone(&socket), max_message))),
            wakeup: Wakeup::socket(Arc::clone(&socket)),
            socket,
        }
    }

    /// The daemon's end, and the bells of the program's.
    pub(super) fn of_daemon(socket: UnixStream, memories: &Memories, rings: Rings, bells: Bells) -> Self {
        Self::shared(
            socket,
            RingProducer::new(SharedRing::completion(memories), rings.completion),
            RingConsumer::new(SharedRing::submission(memories), rings.submission),
            Doorbell::new(bells.of_program),
            Wakeup::daemon(bells.daemon_hears),
        )
    }

    pub(super) fn of_program(
        socket: UnixStream,
        memories: &Memories,
        rings: Rings,
        bell: Arc<Doorbell>,
        wakeup: Arc<Wakeup>,
    ) -> Self {
        Self::shared(
            socket,
            RingProducer::new(SharedRing::submission(memories), rings.submission),
            RingConsumer::new(SharedRing::completion(memories), rings.completion),
            bell,
            wakeup,
        )
    }

    fn shared(
        socket: UnixStream,
        producer: RingProducer<SharedRing>,
        consumer: RingConsumer<SharedRing>,
        bell: Arc<Doorbell>,
        wakeup: Arc<Wakeup>,
    ) -> Self {
        Self {
            producer: Producer(ProducerForm::Shared { ring: producer, bell: Arc::clone(&bell) }),
            consumer: Consumer(ConsumerForm::Shared { ring: consumer, bell }),
            wakeup,
            socket: Arc::new(socket),
        }
    }
}

/// Capacities of the rings in bytes: powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rings {
    pub(super) submission: u32,
    pub(super) completion: u32,
}

/// The writing half.
#[derive(Debug)]
pub struct Producer(ProducerForm);

#[derive(Debug)]
enum ProducerForm {
    Shared { ring: RingProducer<SharedRing>, bell: Arc<Doorbell> },
    Stream(StreamProducer),
}

impl Producer {
    /// Room for a record; its body is to be written next. None: there is no room for it now, it is longer than [`Producer::max_inline`]
    /// allows, or the other side is at [fault](Producer::fault).
    #[inline]
    pub fn reserve(&mut self, record: &impl Encode) -> Option<Slot<'_>> {
        let encoded = record.encode();
        Some(Slot(match &mut self.0 {
            ProducerForm::Shared { ring, .. } => SlotForm::Shared(ring.reserve(&encoded)?),
            ProducerForm::Stream(stream) => SlotForm::Stream(stream.reserve(&encoded)?),
        }))
    }

    /// Writes a record with all of its body. False: as [`Producer::reserve`].
    ///
    /// # Panics
    /// If the body is not as long as the record says.
    #[must_use = "there may be no room"]
    #[inline]
    pub fn push(&mut self, record: &impl Encode, body: &[u8]) -> bool {
        let Some(mut slot) = self.reserve(record) else { return false };
        slot.write(body);
        slot.commit();
        true
    }

    /// Shows all that was written to the other side; once a batch. A doorbell that comes back must be rung, best without a lock. The
    /// stream form writes to the socket instead.
    #[must_use = "the other side sleeps: ring"]
    pub fn publish(&mut self) -> Option<Arc<Doorbell>> {
        match &mut self.0 {
            ProducerForm::Shared { ring, bell } => ring.publish().then(|| Arc::clone(bell)),
            ProducerForm::Stream(stream) => {
                // What is wrong stays known.
                let _ = stream.flush();
                None
            }
        }
    }

    /// The same, but leaves the other side asleep: it sees this when it looks for other reasons, or after the next [`Producer::publish`]. The
    /// stream form keeps it until then.
    pub fn publish_quietly(&mut self) {
        if let ProducerForm::Shared { ring, .. } = &mut self.0 {
            ring.publish_quietly();
        }
    }

    /// Whether there is room for a record with `len` bytes of inline payload.
    pub fn has_room(&mut self, len: usize) -> bool {
        let Some(len) = record_len(len) else { return false };
        match &mut self.0 {
            ProducerForm::Shared { ring, .. } => ring.has_room(len),
            ProducerForm::Stream(stream) => stream.has_room(len),
        }
    }

    /// Asks for room for a record with `len` bytes of inline payload, of at most [`Producer::max_inline`]. True: there is. False: the wakeup
    /// becomes readable when there may be (in the stream form: the socket writable, then [`Producer::flush`]); ask again then. Publishes what
    /// was written.
    pub fn want_room(&mut self, len: usize) -> bool {
        if let Some(bell) = self.publish() {
            bell.ring();
        }
        let Some(record) = record_len(len) else { return false };
        match &mut self.0 {
            ProducerForm::Shared { ring, .. } => ring.want_room(record),
            ProducerForm::Stream(stream) => stream.has_room(record),
        }
    }

    /// Tells the other side that something else is waited for than room here, such as room in an arena: it does not keep quiet then what
    /// gives some ([`Consumer::wanted`]). Look at what it wrote after this.
    pub fn want_attention(&mut self) {
        if let ProducerForm::Shared { ring, .. } = &mut self.0 {
            ring.want_attention();
        }
    }

    /// Takes back a wish that is not needed any more.
    pub fn stop_wanting(&mut self) {
        if let ProducerForm::Shared { ring, .. } = &mut self.0 {
            ring.stop_wanting();
        }
    }

    /// The longest inline payload in bytes. Larger ones must lie in an arena.
    pub fn max_inline(&self) -> usize {
        let record = match &self.0 {
            ProducerForm::Shared { ring, .. } => ring.max_record(),
            ProducerForm::Stream(stream) => stream.max_record(),
        };
        record as usize - FULL
    }

    /// Whether the socket has yet to take something (stream form).
    pub fn has_pending(&self) -> bool {
        match &self.0 {
            ProducerForm::Shared { .. } => false,
            ProducerForm::Stream(stream) => stream.has_pending(),
        }
    }

    /// Writes what the socket takes; to be called when it is writable (stream form).
    ///
    /// # Errors
    /// The connection failed.
    pub fn flush(&mut self) -> Result<(), Fault> {
        match &mut self.0 {
            ProducerForm::Shared { .. } => Ok(()),
            ProducerForm::Stream(stream) => stream.flush(),
        }
    }

    /// What was found wrong while writing. Nothing more can be written then.
    pub fn fault(&self) -> Option<Fault> {
        match &self.0 {
            ProducerForm::Shared { ring, .. } => ring.violation().map(Fault::from),
            ProducerForm::Stream(stream) => stream.fault(),
        }
    }

    /// Whether payloads can only be inline, over the socket.
    pub fn is_stream(&self) -> bool {
        matches!(self.0, ProducerForm::Stream(_))
    }
}

/// Of a record with so many bytes of payload.
fn record_len(payload: usize) -> Option<u32> {
    u32::try_from(payload.checked_add(FULL)?).ok()
}

/// Room for a record. Dropped without [`Slot::commit`], it was never there.
#[derive(Debug)]
pub struct Slot<'a>(SlotForm<'a>);

#[derive(Debug)]
enum SlotForm<'a> {
    Shared(RingSlot<'a, SharedRing>),
    Stream(StreamSlot<'a>),
}

impl Slot<'_> {
    /// Writes the next bytes of the body.
    ///
    /// # Panics
    /// If they are more than the record has.
    pub fn write(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            SlotForm::Shared(slot) => slot.write(bytes),
            SlotForm::Stream(slot) => {
                assert!(bytes.len() <= slot.left(), "no more than the record's length");
                slot.out.extend_from_slice(bytes);
            }
        }
    }

    /// Writes the bytes of shared memory, as they are at that moment.
    ///
    /// # Panics
    /// If they are more than the record has.
    pub fn write_span(&mut self, span: &Span) {
        match &mut self.0 {
            SlotForm::Shared(slot) => {
                let at = slot.advance(span.len());
                slot.memory().span(at, span.len()).fill_from(span);
            }
            SlotForm::Stream(slot) => {
                assert!(span.len() <= slot.left(), "no more than the record's length");
                span.append_to(slot.out);
            }
        }
    }

    /// The record is complete; it goes out with the next [`Producer::publish`].
    ///
    /// # Panics
    /// If its body was not written to its end.
    pub fn commit(self) {
        match self.0 {
            SlotForm::Shared(slot) => slot.commit(),
            SlotForm::Stream(slot) => slot.commit(),
        }
    }
}

/// The reading half.
#[derive(Debug)]
pub struct Consumer(ConsumerForm);

#[derive(Debug)]
enum ConsumerForm {
    Shared { ring: RingConsumer<SharedRing>, bell: Arc<Doorbell> },
    Stream(StreamConsumer),
}

impl Consumer {
    /// The next record. None: there is none now.
    ///
    /// # Errors
    /// The other side broke the rules, or is gone. Nothing more can be read then.
    #[expect(clippy::should_implement_trait, reason = "a record borrows from the ring")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, Fault> {
        match &mut self.0 {
            ConsumerForm::Shared { ring, .. } => {
                let Some(record) = ring.next()? else { return Ok(None) };
                Ok(Some(Record { raw: record.raw, place: Place::Shared(ring.memory(), record.at) }))
            }
            ConsumerForm::Stream(stream) => {
                let Some((raw, range)) = stream.next()? else { return Ok(None) };
                Ok(Some(Record { raw, place: Place::Bytes(stream.bytes(range)) }))
            }
        }
    }

    /// Whether something is there to be read, as [`Consumer::next`] would look, without reading it.
    ///
    /// # Errors
    /// As for [`Consumer::next`].
    pub fn has_next(&mut self) -> Result<bool, Fault> {
        match &mut self.0 {
            ConsumerForm::Shared { ring, .. } => Ok(ring.has_next()?),
            ConsumerForm::Stream(stream) => Ok(!stream.arm()?),
        }
    }

    /// Gives the room of all that was read back to the other side; once a batch, after what was read is used or copied. A doorbell that
    /// comes back must be rung, best without a lock.
    #[must_use = "the other side waits for room: ring"]
    pub fn release(&mut self) -> Option<Arc<Doorbell>> {
        match &mut self.0 {
            ConsumerForm::Shared { ring, bell } => ring.release().then(|| Arc::clone(bell)),
            ConsumerForm::Stream(_) => None,
        }
    }

    /// Whether the other side waits for room, here or in an arena: what gives it some is to be [published](Producer::publish) aloud. To be asked
    /// after [`Producer::publish_quietly`]. The stream form, where nothing is seen that is not written, always wants.
    pub fn wanted(&self) -> bool {
        match &self.0 {
            ConsumerForm::Shared { ring, .. } => ring.wanted(),
            ConsumerForm::Stream(_) => true,
        }
    }

    /// Announces a sleep. True: nothing is there, and the wakeup becomes readable when something comes; false: look again. Releases what was read.
    /// After waking: [`Wakeup::clear`], [`Consumer::disarm`], then look.
    ///
    /// # Errors
    /// As for [`Consumer::next`].
    pub fn arm(&mut self) -> Result<bool, Fault> {
        if let Some(bell) = self.release() {
            bell.ring();
        }
        match &mut self.0 {
            ConsumerForm::Shared { ring, .. } => Ok(ring.arm()?),
            ConsumerForm::Stream(stream) => stream.arm(),
        }
    }

    /// Spares the other side the doorbell while this one looks anyway.
    pub fn disarm(&mut self) {
        if let ConsumerForm::Shared { ring, .. } = &mut self.0 {
            ring.disarm();
        }
    }
}

/// A record. Its header was copied out and checked, and does not change any more; its body is where it is until
/// [`Consumer::release`], and in shared memory may change at any moment.
#[derive(Debug)]
pub struct Record<'a> {
    raw: Raw,
    place: Place<'a>,
}

#[derive(Debug)]
enum Place<'a> {
    Shared(&'a SharedRing, usize),
    Bytes(&'a [u8]),
}

impl Record<'_> {
    /// What a program says.
    ///
    /// # Errors
    /// It is nothing that one may say.
    #[inline]
    pub fn submission(&self) -> Result<Submission, Fault> {
        let said = Submission::decode(&self.raw)?;
        if let Submission::Send { payload, .. } = said {
            self.check(payload)?;
        }
        Ok(said)
    }

    /// What the daemon says.
    ///
    /// # Errors
    /// It is nothing that one may say.
    #[inline]
    pub fn completion(&self) -> Result<Completion, Fault> {
        let said = Completion::decode(&self.raw)?;
        if let Completion::Message { payload, .. } = said {
            self.check(payload)?;
        }
        Ok(said)
    }

    /// The stream form has no arena.
    fn check(&self, payload: Where) -> Result<(), Violation> {
        match (payload, &self.place) {
            (Where::Arena { offset, len }, Place::Bytes(_)) => {
                Err(Violation::OutsideArena { offset, len: len.into(), arena: 0 })
            }
            _ => Ok(()),
        }
    }

    /// Bytes of the body: the inline payload, or a reply's.
    #[inline]
    pub fn body_len(&self) -> usize {
        self.raw.body_len() as usize
    }

    #[inline]
    fn body(&self) -> Range<usize> {
        // A record that is too short for its kind has no body.
        let head = self.raw.head_len().min(self.raw.len()) as usize;
        head..head + self.body_len()
    }

    /// Copies the first bytes of the body, as many as `out` has.
    ///
    /// # Panics
    /// If it has more than the body.
    #[inline]
    pub fn copy_to(&self, out: &mut [u8]) {
        let range = self.body();
        assert!(out.len() <= range.len(), "no more than there is");
        match self.place {
            Place::Shared(ring, at) => super::ring::Memory::read(ring, at + range.start, out),
            Place::Bytes(bytes) => out.copy_from_slice(&bytes[range.start..range.start + out.len()]),
        }
    }

    /// Appends the body to a buffer.
    pub fn append_to(&self, out: &mut BytesMut) {
        let range = self.body();
        match self.place {
            Place::Shared(ring, at) => ring.span(at + range.start, range.len()).append_to(out),
            Place::Bytes(bytes) => out.extend_from_slice(&bytes[range]),
        }
    }

    /// The body in shared memory; `None` in the stream form.
    pub fn span(&self) -> Option<Span> {
        let range = self.body();
        match self.place {
            Place::Shared(ring, at) => Some(ring.span(at + range.start, range.len())),
            Place::Bytes(_) => None,
        }
    }

    /// The body, in the stream form; `None` where it may change.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self.place {
            Place::Shared(..) => None,
            Place::Bytes(bytes) => Some(&bytes[self.body()]),
        }
    }
}
