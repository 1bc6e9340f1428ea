//! Writing messages into a client's ring and arena, wherever there is room.

use std::net::SocketAddr;

use rds_core::attach::{Completion, Producer, ReceiveArena, Span, Violation, Where};
use rds_core::buffer::Assembled;
use rds_core::engine::Delivered;

/// Messages up to this many bytes go into the ring; larger ones into the arena, from which they can be lent.
pub(super) const INLINE: usize = 2048;

/// Where a client is told.
pub(super) struct Pipe {
    pub(super) producer: Producer,
    pub(super) arena: Option<ReceiveArena>,
    /// Parts of the arena in which messages are arriving: offset and length.
    pub(super) lent: Vec<(u64, u64)>,
}

/// The payload of a message that has no room yet.
pub(super) enum Body {
    Bytes(Box<[u8]>),
    Assembled(Assembled),
    /// In the client's arena already.
    Placed(Span),
}

impl Body {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Assembled(bytes) => bytes.len(),
            Self::Placed(span) => span.len(),
        }
    }
}

impl Pipe {
    /// Memory for a message that arrives in pieces. At most half of the arena: peers that never send the rest of theirs must leave room for
    /// whole messages.
    pub(super) fn lend(&mut self, len: usize) -> Option<Span> {
        let arena = self.arena.as_mut()?;
        let lent: u64 = self.lent.iter().map(|(_, len)| len).sum();
        if lent + len as u64 > arena.len() as u64 / 2 {
            return None;
        }
        let span = arena.allocate(len)?;
        self.lent.push((arena.offset_of(&span), len as u64));
        Some(span)
    }

    /// What was lent has its message, or is to be free again.
    pub(super) fn settle(&mut self, span: &Span) {
        if let Some(arena) = &self.arena {
            let offset = arena.offset_of(span);
            self.lent.retain(|(lent, _)| *lent != offset);
        }
    }

    /// Takes back a part of the arena that the client was never told of.
    pub(super) fn give_back(&mut self, span: &Span) {
        self.settle(span);
        if let Some(arena) = &mut self.arena {
            // Given out by this very arena, and by nobody else given back.
            let _ = arena.free(arena.offset_of(span));
        }
    }

    /// Takes back what the client says that it needs no more.
    pub(super) fn free(&mut self, offset: u64) -> Result<(), Violation> {
        match &mut self.arena {
            // Nor what is still to be filled.
            Some(arena) if self.lent.iter().all(|(lent, _)| *lent != offset) => arena.free(offset).map(drop),
            _ => Err(Violation::NotOut(offset)),
        }
    }

    /// Writes a message, wherever there is room. `Err` gives it back.
    pub(super) fn message<'a>(
        &mut self,
        socket: u32,
        from: SocketAddr,
        body: Delivered<'a>,
    ) -> Result<(), Delivered<'a>> {
        let len = body.len();
        let inline = Completion::Message { socket, from, payload: Where::Inline(len as u32) };
        if let (Delivered::Placed(span), Some(arena)) = (&body, &self.arena) {
            let payload = Where::Arena { offset: arena.offset_of(span), len: len as u32 };
            let pushed = self.producer.push(&Completion::Message { socket, from, payload }, &[]);
            return if pushed { Ok(()) } else { Err(body) };
        }
        if len > INLINE
            && let Some(arena) = &mut self.arena
        {
            if let Some(span) = arena.allocate(len) {
                fill(&span, &body);
                let offset = arena.offset_of(&span);
                let payload = Where::Arena { offset, len: len as u32 };
                if self.producer.push(&Completion::Message { socket, from, payload }, &[]) {
                    return Ok(());
                }
                // It was allocated just now.
                let _ = arena.free(offset);
                return Err(body);
            }
            if len > self.producer.max_inline() / 4 {
                return Err(body);
            }
        }
        let Some(mut slot) = self.producer.reserve(&inline) else { return Err(body) };
        match &body {
            Delivered::Bytes(bytes) => slot.write(bytes),
            Delivered::Shared(span) => slot.write_span(span),
            Delivered::Placed(span) => slot.write_span(span),
            Delivered::Owned(bytes) => slot.write(bytes),
        }
        slot.commit();
        Ok(())
    }
}

fn fill(span: &Span, body: &Delivered<'_>) {
    match body {
        Delivered::Bytes(bytes) => span.fill(bytes),
        Delivered::Shared(from) => span.fill_from(from),
        Delivered::Placed(from) => span.fill_from(from),
        Delivered::Owned(bytes) => span.fill(bytes),
    }
}
