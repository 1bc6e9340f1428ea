//! The system calls of zero copy, for the writer that the engine uses too, and what the sockets of a process share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rds_core::buffer::{Chunk, OnRelease, Owned, Terms};
use rds_core::proto::Time;
use rds_core::wire::HEADER_LEN;
use rds_core::zerocopy::closing::Closing;
use rds_core::zerocopy::controller::ON_MINIMUM;
use rds_core::zerocopy::{
    Budget, Ending, Full, Held as HeldPieces, Limits, Mode, SendPath, Share, WhenFull, Wire, Writer, charge,
};
use rds_core::zerocopy::{Gauge, PathSettings, Refusal};

use super::time;
use crate::sim::coverage::Seen;
use crate::sim::ctx::Ctx;
use crate::sim::memory::{Event, Process};
use crate::sim::net::{End, Nanos, PAGE, Phase, Refused, Ticket, ZeroCopy};
use crate::sim::watch;

/// How a process sends without copies.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// Whether it does.
    pub mode: Mode,
    /// What becomes of a payload for which the budget has no room.
    pub when_full: WhenFull,
    /// Chance in 256 that a program lends a large payload; 255 stands for always.
    pub lends: u8,
    /// What its host's kernel does.
    pub kernel: ZeroCopy,
}

impl Default for Sending {
    fn default() -> Self {
        Self { mode: Mode::Off, when_full: WhenFull::Copy, lends: 180, kernel: ZeroCopy::default() }
    }
}

/// What the sockets of a process share.
pub(super) struct Pins {
    pub(super) sending: Sending,
    pub(super) process: Arc<Process>,
    pub(super) budget: Arc<Budget>,
    pub(super) gauge: Arc<Gauge>,
    /// CPU time that was used, in ns.
    cpu: Rc<Cell<u64>>,
    /// Sockets that the kernel may still read for, though their connections have ended.
    pub(super) ending: Vec<(Rc<Path>, Closing)>,
    /// When paths are next asked how old their calls are.
    pub(super) look_at: Nanos,
}

impl Pins {
    pub(super) fn new(sending: Sending) -> Self {
        let limits = Limits { memlock: sending.kernel.memlock, optmem: sending.kernel.optmem };
        Self {
            sending,
            process: Arc::default(),
            budget: Arc::new(Budget::new(limits.limit_pages(PAGE))),
            gauge: Arc::default(),
            cpu: Rc::default(),
            ending: Vec::new(),
            look_at: 0,
        }
    }

    /// Lends the payload of message `number` to the node, as a program does through the engine; none if the program chose not to, for want
    /// of room in the budget. `told`: it wants to know when the buffer is free.
    pub(super) fn lend(
        &self,
        cx: &mut Ctx,
        share: &Arc<Share>,
        number: usize,
        bytes: Vec<u8>,
        told: bool,
    ) -> Option<Chunk> {
        let (mut mode, mut reserved) = (None, 0);
        let eligible = self.sending.mode != Mode::Off && bytes.len() >= ON_MINIMUM;
        if told && eligible && self.sending.when_full != WhenFull::Copy {
            // The next header may ride along.
            let pages = charge(bytes.len() + HEADER_LEN, PAGE);
            match share.try_reserve(pages) {
                Ok(()) => reserved = pages,
                Err(Full::Never) if self.sending.when_full == WhenFull::Wait => {}
                Err(_) => {
                    cx.see(Seen::BudgetFull);
                    return None;
                }
            }
        }
        if self.sending.lends < 255 && cx.chance(20) {
            // A socket that wants it otherwise than its path.
            mode = Some([Mode::Off, Mode::On, Mode::Auto][cx.rng.usize(..3)]);
        }
        let foreign = self.sending.lends < 255 && cx.chance(3);
        let owned = Owned::new(cx.net.memory.allocate(&self.process, number, bytes, foreign));
        if !told {
            let Owned::Bytes(bytes) = owned else { return None };
            return Some(Chunk::payload(bytes));
        }
        let hook: Arc<dyn OnRelease> = Arc::<Process>::clone(&self.process);
        let terms = Terms { mode, share: Some(Arc::clone(share)) };
        Some(Chunk::of(owned.lend_on(Some((hook, number as u32)), terms, reserved)))
    }

    /// The path of a new socket.
    pub(super) fn path(&self, end: End) -> Rc<Path> {
        let kernel = &self.sending.kernel;
        let limits = Limits { memlock: kernel.memlock, optmem: kernel.optmem };
        let settings = PathSettings {
            mode: self.sending.mode,
            local_peer: false,
            page_size: PAGE,
            calls: limits.notification_limit(),
            budget: Arc::clone(&self.budget),
            gauge: Arc::clone(&self.gauge),
        };
        Rc::new(Path {
            end,
            send: SendPath::starting_at(settings, kernel.first_call),
            writer: RefCell::default(),
            was_closed: Cell::new(false),
            starves: self.sending.lends < 255,
            closes: kernel.reset,
            process: Arc::clone(&self.process),
            cpu: Rc::clone(&self.cpu),
        })
    }
}

/// One socket's sending side.
pub(super) struct Path {
    pub(super) end: End,
    pub(super) send: SendPath<Pinned>,
    pub(super) writer: RefCell<Writer>,
    /// Another thread disconnected it while its writer was in a call.
    pub(super) was_closed: Cell<bool>,
    /// Its kernel is short of memory now and then.
    starves: bool,
    /// Chance in 256 that that happens in a call.
    closes: u8,
    process: Arc<Process>,
    cpu: Rc<Cell<u64>>,
}

impl Path {
    /// Reads the error queue. What comes back is dropped where a program's code may run.
    pub(super) fn reap(&self, cx: &mut Ctx) -> u64 {
        let mut released = Vec::new();
        let n = self.send.reap(&mut self.wire(cx, 0), &mut released);
        drop(released);
        n
    }

    pub(super) fn wire<'a>(&'a self, cx: &'a mut Ctx, most: usize) -> Socket<'a> {
        Socket { cx, path: self, most, last: None, meanwhile: Vec::new() }
    }

    /// Writes of `batch` what TCP takes, at most `most` bytes.
    pub(super) fn write(&self, cx: &mut Ctx, batch: &mut [Chunk], most: usize) -> rds_core::zerocopy::Wrote {
        let mut released = Vec::new();
        let mut wire = self.wire(cx, most);
        let wrote = self.send.write(&mut self.writer.borrow_mut(), &mut wire, batch, &mut released);
        let Socket { last, meanwhile, .. } = wire;
        if last.is_some_and(|ending| ending.more) && wrote.stop.is_none() {
            cx.fail(format!("{:?}: nothing follows what was written with MSG_MORE", self.end));
        }
        drop((released, meanwhile));
        wrote
    }
}

/// What a call holds.
#[derive(Debug)]
pub(super) struct Pinned {
    pieces: Vec<Chunk>,
    ticket: Arc<Ticket>,
    process: Arc<Process>,
}

impl HeldPieces for Pinned {
    fn pieces(&self) -> &[Chunk] {
        &self.pieces
    }

    fn release(mut self) -> Vec<Chunk> {
        if !self.ticket.is_over() {
            self.process.note(Event::Broken("lets go of what a call holds before its notification".into()));
        }
        std::mem::take(&mut self.pieces)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if !self.pieces.is_empty() {
            // The engine would leak it rather than free what the kernel reads.
            self.process.note(Event::Broken("leaks what a call holds".into()));
        }
    }
}

/// A socket for one visit of its writer.
pub(super) struct Socket<'a> {
    cx: &'a mut Ctx,
    path: &'a Path,
    most: usize,
    /// How the last call ended.
    last: Option<Ending>,
    /// What another thread reaped.
    meanwhile: Vec<Chunk>,
}

impl Socket<'_> {
    fn wrote(&mut self, pieces: &[Chunk], n: usize, ending: Ending) {
        self.most -= n;
        self.last = Some(ending);
        let mut left = n;
        for piece in pieces {
            let n = piece.len().min(left);
            let result = watch::written(self.cx, self.path.end, &piece.slice(0..n).to_vec());
            self.cx.check(result);
            left -= n;
        }
    }

    /// Another thread may close the connection while this one is about to make its call, or comes back from it. It has read all that
    /// came before.
    fn closed_meanwhile(&mut self) {
        let end = self.path.end;
        if !self.cx.chance(self.path.closes)
            || !self.cx.watch.unread_messages(end.peer(), self.cx.net.received_offset(end)).is_empty()
        {
            return;
        }
        self.cx.see(Seen::ClosedInCall);
        self.path.was_closed.set(true);
        for disconnected in [false, true] {
            if disconnected {
                self.cx.net.disconnect(self.cx.now, self.path.end);
            }
            let mut released = Vec::new();
            if self.path.send.finish(&mut self.path.wire(self.cx, 0), &mut released) {
                self.cx.fail(format!("{:?} counts as done although a thread is in a call", self.path.end));
            }
            self.meanwhile.append(&mut released);
        }
    }

    fn spend(&self, ns: usize) {
        self.path.cpu.set(self.path.cpu.get() + ns as u64);
    }
}

impl Wire for Socket<'_> {
    type Held = Pinned;

    fn now(&self) -> Time {
        time(self.cx.now)
    }

    fn cpu_time(&self) -> Duration {
        Duration::from_nanos(self.path.cpu.get())
    }

    fn copy(&mut self, pieces: &[Chunk], ending: Ending) -> Result<usize, Refusal> {
        let end = self.path.end;
        if self.cx.net.phase(end) != Phase::Open || self.cx.net.is_failed(end) {
            return Err(Refusal::Failed);
        }
        if self.path.starves && self.cx.rng.u16(..2000) == 0 {
            self.cx.see(Seen::EnobufsCopy);
            return Err(Refusal::NoMemory);
        }
        let n = self.cx.net.write(self.cx.now, end, pieces, self.most);
        self.spend(1000 + n / 8);
        if n == 0 {
            return Err(Refusal::Full);
        }
        self.wrote(pieces, n, ending);
        Ok(n)
    }

    fn pin(&mut self, pieces: Vec<Chunk>, ending: Ending) -> Result<(usize, Pinned), (Refusal, Vec<Chunk>)> {
        let end = self.path.end;
        // The receiver can map a payload only if it begins a segment of its own.
        let begins = self.cx.net.memory.find(&pieces[0]).is_some_and(|(_, at)| at == 0);
        if begins && self.last.is_some_and(|last| !last.record) {
            self.cx.fail(format!("{end:?}: a pinned payload does not begin a segment"));
        }
        self.closed_meanwhile();
        match self.cx.net.pin(self.cx.now, end, &pieces, self.most) {
            Ok((n, ticket)) => {
                self.spend(1500 + n / 40);
                self.wrote(&pieces, n, ending);
                if self.cx.chance(40) {
                    // Another thread reaps before this one is back from its call.
                    let mut wire = self.path.wire(self.cx, 0);
                    let mut released = Vec::new();
                    self.path.send.reap(&mut wire, &mut released);
                    self.meanwhile.append(&mut released);
                }
                self.closed_meanwhile();
                if ticket.is_over() {
                    self.cx.see(Seen::NotifiedEarly);
                }
                if pieces.len() > 1 {
                    self.cx.see(Seen::HeaderPinned);
                }
                Ok((n, Pinned { pieces, ticket, process: Arc::clone(&self.path.process) }))
            }
            Err(Refused::Full) => Err((Refusal::Full, pieces)),
            Err(Refused::Memlock | Refused::Optmem) => Err((Refusal::NoMemory, pieces)),
            Err(Refused::Fault) => Err((Refusal::Unpinnable, pieces)),
            Err(Refused::Broken) => Err((Refusal::Failed, pieces)),
        }
    }

    fn reap(&mut self, on: &mut dyn FnMut(u32, u32, bool)) {
        while let Some(record) = self.cx.net.reap(self.path.end) {
            self.spend(300);
            on(record.first, record.last, record.copied);
        }
    }
}
