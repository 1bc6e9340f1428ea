//! Reaping, the end of sockets that the kernel may still read for, and the books about every buffer.

use std::rc::Rc;
use std::time::Duration;

use rds_core::proto::ConnId;
use rds_core::zerocopy::Mode;
use rds_core::zerocopy::closing::{Closing, Step};

use super::pinned::Path;
use super::{OwnHost, time};
use crate::sim::coverage::Seen;
use crate::sim::ctx::Ctx;
use crate::sim::memory::Event;
use crate::sim::net::{End, Nanos, SEC};

/// How long the kernel may hold a call, and notify none, before its path is ended.
pub const PIN_LIMIT: Duration = Duration::from_secs(30);

impl OwnHost {
    /// Something is in the error queue of this end.
    pub(super) fn reap(&mut self, cx: &mut Ctx, end: End) {
        let open = self.by_end.get(&end).and_then(|conn| self.conns.get(conn)).map(|c| Rc::clone(&c.path));
        let path = open.or_else(|| {
            self.pins.ending.iter().find(|(path, _)| path.end == end).map(|(path, _)| Rc::clone(path))
        });
        if let Some(path) = path {
            path.reap(cx);
            self.hear(cx);
        }
    }

    /// The socket of a connection that has ended, or is given up, is closed as soon as the kernel reads nothing for it.
    pub(super) fn end_socket(&mut self, cx: &mut Ctx, path: Rc<Path>) {
        self.pins.ending.push((path, Closing::at_once(time(cx.now))));
        self.end_sockets(cx);
    }

    /// Takes the next steps of all sockets that are about to be closed.
    pub(super) fn end_sockets(&mut self, cx: &mut Ctx) {
        let mut ending = std::mem::take(&mut self.pins.ending);
        ending.retain_mut(|(path, closing)| {
            loop {
                // To ask what is outstanding first, and to finish then, would let a writer begin a call in between.
                let mut released = Vec::new();
                let done = path.send.finish(&mut path.wire(cx, 0), &mut released);
                drop(released);
                let outstanding = if done { 0 } else { path.send.outstanding().max(1) };
                match closing.next(time(cx.now), outstanding, true) {
                    Step::Wait(_) => return true,
                    Step::Disconnect => cx.net.disconnect(cx.now, path.end),
                    Step::Close => {
                        if !done {
                            cx.fail(format!("{:?} is closed although the kernel reads for it", path.end));
                        }
                        let counts = path.send.counts();
                        if counts.fallbacks.budget > 0 {
                            cx.see(Seen::CopiedForBudget);
                        }
                        if counts.fallbacks.notifications > 0 {
                            cx.see(Seen::CopiedForNotifications);
                        }
                        cx.net.close(cx.now, path.end);
                        return false;
                    }
                    Step::Leak => {
                        cx.fail(format!("{:?}: the kernel has not let go", path.end));
                        return false;
                    }
                }
            }
        });
        self.pins.ending = ending;
        self.hear(cx);
    }

    /// Ends the paths whose peers have taken nothing for so long that their pages have been pinned long enough.
    pub(super) fn end_overdue(&mut self, cx: &mut Ctx) {
        if cx.now < self.pins.look_at {
            return;
        }
        self.pins.look_at = cx.now + SEC;
        let all: Vec<(ConnId, Rc<Path>)> =
            self.conns.iter().map(|(id, c)| (*id, Rc::clone(&c.path))).collect();
        for (conn, path) in all {
            // What has come must not count against the peer: this process may have stood still.
            path.reap(cx);
            if path.send.is_overdue(time(cx.now), PIN_LIMIT) {
                cx.see(Seen::PinOverdue);
                cx.tell(|| {
                    format!("host {} gives up {:?}: its pages were pinned too long", self.index, path.end)
                });
                self.node.as_mut().expect("runs only while it is up").give_up(time(cx.now), conn);
                self.output(cx);
            }
        }
        self.end_sockets(cx);
        self.hear(cx);
    }

    /// Another thread has found the end of a connection, and closed its socket.
    pub(super) fn closed_elsewhere(&mut self, cx: &mut Ctx, conn: ConnId) {
        let Some(c) = self.forget(conn) else { return };
        let unacked = cx.net.unacked(c.end);
        self.end_socket(cx, c.path);
        if let Some(node) = self.node.as_mut() {
            node.closed(time(cx.now), conn, Some(unacked));
        }
    }

    /// Whether paths pin from now on.
    pub fn set_mode(&mut self, mode: Mode) {
        self.pins.sending.mode = mode;
        self.conns.values().for_each(|c| c.path.send.set_mode(mode));
    }

    /// When paths must be looked at.
    pub(super) fn next_look(&self) -> Option<Nanos> {
        let busy = !self.pins.ending.is_empty() || self.pins.gauge.now() > 0;
        busy.then_some(self.pins.look_at)
    }

    /// Books what became of this process's memory.
    pub(super) fn hear(&mut self, cx: &mut Ctx) {
        if let Some(node) = self.node.as_mut() {
            if node.has_actions() {
                return; // the end of a message comes with that of its buffer
            }
            // What the node let go of is dropped here, where a program's code may run.
            let mut released = Vec::new();
            node.take_released(&mut released);
        }
        for event in self.pins.process.take_events() {
            match event {
                Event::Broken(text) => cx.fail(format!("host {}: {text}", self.index)),
                Event::Freed(address) => {
                    let Some(life) = cx.net.memory.forget(address) else { continue };
                    if let Some(m) = cx.ledger.messages.get_mut(life.number()) {
                        m.truly_copied = Some(life.is_copied());
                    }
                }
                Event::Released { number, copied } => {
                    let result = cx.ledger.released(self.index, number, copied);
                    cx.check(result);
                    cx.see(if copied { Seen::ReleasedCopied } else { Seen::ReleasedUncopied });
                }
            }
        }
    }

    /// What must hold whenever the node is at rest.
    pub(super) fn pin_invariants(&mut self, cx: &mut Ctx) {
        let pins = &self.pins;
        let (used, limit) = (pins.budget.used(), pins.budget.limit_pages());
        if used > limit {
            cx.fail(format!("host {} pins {used} pages, which is more than {limit}", self.index));
        }
        let open = self.conns.values().map(|c| &c.path).chain(pins.ending.iter().map(|(path, _)| path));
        let (mut pages, mut unknown) = (0, 0);
        for path in open {
            pages += path.send.pages();
            unknown += path.send.counts().unknown;
        }
        if pages != pins.gauge.now() || pages > used {
            let gauge = pins.gauge.now();
            cx.fail(format!(
                "host {}: {pages} pages are pinned, {gauge} counted, {used} of the budget used",
                self.index
            ));
        }
        if unknown > 0 {
            cx.fail(format!("host {} hears of the end of {unknown} calls that it never made", self.index));
        }
    }

    /// Pages that the process has pinned, as it believes.
    #[must_use]
    pub fn pinned(&self) -> u64 {
        self.pins.gauge.now()
    }

    /// Most pages that it had pinned at one time.
    #[must_use]
    pub fn most_pinned(&self) -> u64 {
        self.pins.gauge.max()
    }

    /// Whether nothing is pinned, reserved or lent; what is, otherwise.
    ///
    /// # Errors
    /// What is left.
    pub fn all_released(&self, cx: &Ctx) -> Result<(), String> {
        let (used, pinned) = (self.pins.budget.used(), self.pins.gauge.now());
        let lent = cx.net.memory.count(&self.pins.process);
        let ending = self.pins.ending.len();
        if used > 0 || pinned > 0 || lent > 0 || ending > 0 {
            return Err(format!(
                "host {} still has {lent} payloads lent, {pinned} pages pinned, {used} pages of the budget used, and {ending} sockets to close",
                self.index
            ));
        }
        Ok(())
    }
}
