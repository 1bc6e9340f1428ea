//! How much may come in: windows that own peers are granted, and when reading stops (docs/protocol.md, section 2.5).

use super::connection::{Conn, Phase};
use super::{Action, ConnId, Node};
use crate::wire::Capabilities;

/// Least that is granted to a connection while the budget is not used up, in window bytes.
const WINDOW_FLOOR: u64 = 64 << 10;

impl Node {
    /// Raises the window that the connection's peer has, as far as the budget allows.
    pub(super) fn grant(&mut self, index: u32) {
        let capabilities = self.config.capabilities;
        let Some(c) = self.conns.at(index) else { return };
        if !c.answered || c.phase != Phase::Carrying || !c.common(capabilities).contains(Capabilities::WINDOW)
        {
            return;
        }
        let left = c.rx_limit.saturating_sub(c.rx_used);
        let throttled = c.throttled_by.is_some_and(|s| self.local.past_hard_limit(s, &self.config));
        let budget = self.config.receive_budget;
        let grant = if throttled || self.local.queued >= budget {
            0
        } else {
            let free = budget.saturating_sub(self.local.queued).saturating_sub(self.granted - left);
            (free / 2).max(WINDOW_FLOOR).min(self.config.window)
        };
        let Some(c) = self.conns.at_mut(index) else { return };
        if !throttled {
            c.throttled_by = None;
        }
        c.stalled = grant < self.config.window;
        let limit = c.rx_used + grant;
        // Small steps would cost a header each: a quarter of the window is worth one, or half of what can be granted.
        let step = (self.config.window / 4).min((grant / 2).max(1));
        if limit > c.rx_limit && (limit - c.rx_limit >= step || left == 0) {
            self.granted += grant - left;
            c.rx_limit = limit;
            c.window_due = true;
        }
    }

    /// After something of the receive queues was consumed: connections that got less than they could use.
    pub(super) fn after_consumption(&mut self) {
        if self.stalled.is_empty() {
            return;
        }
        self.reconsidering = true;
        for id in std::mem::take(&mut self.stalled) {
            if let Some(c) = self.conns.get_mut(id) {
                c.stall_listed = false;
            }
            self.reconsider(id);
        }
        self.reconsidering = false;
        if self.stalled.is_empty() {
            self.actions.push_back(Action::Pressure { on: false });
        }
    }

    /// Remembers a connection that waits for room in the receive queues.
    pub(super) fn note_stalled(&mut self, id: ConnId) {
        if let Some(c) = self.conns.get_mut(id)
            && !std::mem::replace(&mut c.stall_listed, true)
        {
            if self.stalled.is_empty() && !self.reconsidering {
                self.actions.push_back(Action::Pressure { on: true });
            }
            self.stalled.push(id);
        }
    }

    /// A connection that has ended waits no longer.
    pub(super) fn forget_stalled(&mut self, id: ConnId, c: &Conn) {
        if c.stall_listed {
            self.stalled.retain(|s| *s != id);
            if self.stalled.is_empty() && !self.reconsidering {
                self.actions.push_back(Action::Pressure { on: false });
            }
        }
    }

    fn reconsider(&mut self, id: ConnId) {
        self.grant(id.index);
        let resume = !self.must_pause(id.index);
        let Some(c) = self.conns.get_mut(id) else { return };
        if c.paused && resume && c.phase != Phase::Parked {
            c.paused = false;
            self.actions.push_back(Action::Resume { conn: id });
        }
        let Some(c) = self.conns.get(id) else { return };
        let (due, waiting) = (c.window_due, c.stalled || c.paused);
        if due {
            self.mark_ready(id.index);
        }
        if waiting {
            self.note_stalled(id);
        }
    }

    /// Whether reading must stop: the budget is used up. Own peers keep to their window and are read all the same, unless
    /// one ignores it by far.
    pub(super) fn must_pause(&self, index: u32) -> bool {
        let Some(c) = self.conns.at(index) else { return false };
        let budget = self.config.receive_budget;
        let windowed = c.common(self.config.capabilities).contains(Capabilities::WINDOW);
        if matches!(c.phase, Phase::Draining | Phase::Closing) {
            // Something waits for its end; but not at any price.
            return !windowed && self.local.queued >= budget.saturating_mul(2);
        }
        if c.phase == Phase::Parked || !c.after.is_empty() {
            return true;
        }
        if windowed {
            return self.local.queued >= budget.saturating_mul(2);
        }
        self.local.queued >= budget
            || c.throttled_by.is_some_and(|s| self.local.past_hard_limit(s, &self.config))
    }
}
