//! A port with its members, as the engine sees it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rds_core::attach::{Sharing, Span};
use rds_core::buffer::SpanOwner;
use rds_core::engine::{Delivered, Sink, Wake};
use rds_core::proto::{Outcome, Token};

use super::ledger::{Count, Ledger, MemberId, Report};
use crate::session::{Outlet, Slot};

/// A member's place: the client's completion side, and its socket there.
#[derive(Clone, Debug)]
pub struct Member {
    /// Where what concerns the socket goes.
    pub outlet: Arc<Outlet>,
    /// The socket, as the outlet knows it.
    pub slot: Slot,
}

/// A port's sink. Its lock is taken under the node's and above an outlet's; it is held briefly.
#[derive(Debug)]
pub struct Group(Mutex<State>);

#[derive(Debug)]
struct State {
    ledger: Ledger,
    members: Vec<(MemberId, Member)>,
    /// Members that get nothing any more, but whose messages wait to be sent.
    lingering: Vec<(MemberId, Member)>,
    /// Memory that was given out, and not filled yet.
    lent: Vec<(Span, Arc<Outlet>)>,
    /// Outlets that something was put into since the last flush.
    touched: Vec<Arc<Outlet>>,
    /// Everything that is consumed is to be reported at once.
    pressed: bool,
}

impl State {
    /// Members have ascending numbers.
    fn place(&self, id: MemberId) -> Option<usize> {
        if let [(only, _)] = &self.members[..] {
            return (*only == id).then_some(0);
        }
        self.members.binary_search_by_key(&id, |(id, _)| *id).ok()
    }

    /// Something was put into a member's outlet.
    fn touch(&mut self, n: usize) {
        let outlet = &self.members[n].1.outlet;
        if !self.touched.iter().any(|o| Arc::ptr_eq(o, outlet)) {
            self.touched.push(Arc::clone(outlet));
        }
    }

    /// Whose memory this is. It is not lent any more then.
    fn take_lent(&mut self, span: &Span) -> Option<Arc<Outlet>> {
        let is = |(lent, _): &(Span, _)| {
            Arc::ptr_eq(lent.memory(), span.memory()) && lent.offset() == span.offset()
        };
        let n = self.lent.iter().position(is)?;
        Some(self.lent.swap_remove(n).1)
    }

    fn deliver_to_one(&mut self, from: SocketAddr, body: Delivered<'_>) {
        let len = body.len() as u64;
        let owner = match &body {
            Delivered::Placed(span) => self.take_lent(span),
            _ => None,
        };
        let Some(mut id) = self.ledger.choose() else {
            self.ledger.nobody(len);
            if let (Some(owner), Delivered::Placed(span)) = (owner, &body) {
                owner.give_back(span);
            }
            return;
        };
        if let Some(owner) = &owner {
            // Where it lies already, unless that one is full and another is not.
            let placed = self.members.iter().find(|(_, m)| Arc::ptr_eq(&m.outlet, owner)).map(|(id, _)| *id);
            id = placed.filter(|p| !self.ledger.is_full(*p)).unwrap_or(id);
        }
        self.ledger.deliver_to(id, len);
        let Some(n) = self.place(id) else { return };
        let member = &self.members[n].1;
        match (body, owner) {
            (Delivered::Placed(span), Some(owner)) if !Arc::ptr_eq(&member.outlet, &owner) => {
                member.outlet.deliver(member.slot, from, Delivered::Shared(&span));
                owner.give_back(&span);
            }
            (body, _) => member.outlet.deliver(member.slot, from, body),
        }
        self.touch(n);
    }

    fn deliver_to_all(&mut self, from: SocketAddr, body: Delivered<'_>) {
        if self.members.is_empty() {
            self.ledger.nobody(body.len() as u64);
            return;
        }
        self.ledger.deliver_to_all(body.len() as u64);
        for n in 0..self.members.len() {
            let member = &self.members[n].1;
            let copy = match &body {
                Delivered::Bytes(bytes) => Delivered::Bytes(bytes),
                Delivered::Shared(span) => Delivered::Shared(span),
                Delivered::Placed(span) => Delivered::Shared(span),
                Delivered::Owned(bytes) => Delivered::Bytes(bytes),
            };
            member.outlet.deliver(member.slot, from, copy);
            self.touch(n);
        }
    }
}

impl Group {
    /// A port shared in this way, without members. The node takes its receive buffer for `told` bytes.
    #[must_use]
    pub fn new(sharing: Sharing, told: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            ledger: Ledger::new(sharing, told),
            members: Vec::new(),
            lingering: Vec::new(),
            lent: Vec::new(),
            touched: Vec::new(),
            pressed: false,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the port is shared.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.state().ledger.sharing()
    }

    /// How many members it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state().members.len()
    }

    /// Whether nobody is there, not even to send the rest.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let state = self.state();
        state.members.is_empty() && state.lingering.is_empty()
    }

    /// A member with a receive buffer of `limit` bytes comes.
    pub fn join(&self, member: Member, limit: u64) -> (MemberId, Report) {
        let mut state = self.state();
        let (id, report) = state.ledger.join(limit);
        if state.pressed {
            member.outlet.press(true);
        }
        state.members.push((id, member));
        (id, report)
    }

    /// A member goes. Of what concerns it, nothing reaches its outlet after this; if it lingers, only that it may send again.
    pub fn leave(&self, id: MemberId, lingers: bool) -> Report {
        let mut state = self.state();
        if let Ok(n) = state.members.binary_search_by_key(&id, |(id, _)| *id) {
            let member = state.members.remove(n);
            if state.pressed {
                member.1.outlet.press(false);
            }
            if lingers {
                state.lingering.push(member);
            }
        }
        state.ledger.leave(id)
    }

    /// One that lingered goes for good.
    pub fn forget(&self, id: MemberId) {
        self.state().lingering.retain(|(member, _)| *member != id);
    }

    /// A member's receive buffer changes.
    pub fn set_limit(&self, id: MemberId, limit: u64) -> Report {
        self.state().ledger.set_limit(id, limit)
    }

    /// A member has consumed messages.
    pub fn consume(&self, id: MemberId, count: Count) -> Report {
        self.state().ledger.consume(id, count)
    }

    /// The token of a send: whose, and that one's number for it.
    #[must_use]
    pub fn token(id: MemberId, number: u32) -> Token {
        Token(u64::from(id.0) << 32 | u64::from(number))
    }

    /// Whether a token is a member's.
    #[must_use]
    pub fn is_of(token: Token, id: MemberId) -> bool {
        token.0 >> 32 == u64::from(id.0)
    }

    fn each(&self, act: impl Fn(&Member)) {
        let mut state = self.state();
        for n in 0..state.members.len() {
            act(&state.members[n].1);
            state.touch(n);
        }
        let State { lingering, touched, .. } = &mut *state;
        for (_, member) in lingering {
            act(member);
            touched.push(Arc::clone(&member.outlet));
        }
    }
}

impl SpanOwner for Group {
    fn unused(&self, span: Span) {
        let owner = self.state().take_lent(&span);
        if let Some(owner) = owner {
            owner.give_back(&span);
        }
    }
}

impl Sink for Group {
    fn memory(&self, len: usize) -> Option<Span> {
        let mut state = self.state();
        // A message for all is copied to each anyway.
        if state.ledger.sharing() == Sharing::FanOut {
            return None;
        }
        let n = state.place(state.ledger.choose()?)?;
        let span = state.members[n].1.outlet.memory(len);
        match &span {
            Some(span) => {
                let outlet = Arc::clone(&state.members[n].1.outlet);
                state.lent.push((span.clone(), outlet));
            }
            // It is told by flush that it wants its client's ring looked at.
            None => state.touch(n),
        }
        span
    }

    fn deliver(&self, from: SocketAddr, body: Delivered<'_>) {
        let mut state = self.state();
        match state.ledger.sharing() {
            Sharing::FanOut => state.deliver_to_all(from, body),
            _ => state.deliver_to_one(from, body),
        }
    }

    fn ended(&self, token: Token, outcome: Outcome) {
        let mut state = self.state();
        // Who has left does not want to know.
        let Some(n) = state.place(MemberId((token.0 >> 32) as u32)) else { return };
        let Member { outlet, slot } = &state.members[n].1;
        outlet.ended(*slot, token.0 as u32, outcome);
        state.touch(n);
    }

    fn uncongested(&self, destination: SocketAddr) {
        self.each(|member| member.outlet.uncongested(member.slot, destination));
    }

    fn writable(&self) {
        self.each(|member| member.outlet.writable(member.slot));
    }

    fn flush(&self) -> Option<Arc<dyn Wake>> {
        let mut state = self.state();
        let mut bells: Vec<_> = std::mem::take(&mut state.touched);
        drop(state);
        bells.retain(|outlet| outlet.flush());
        match bells.len() {
            0 => None,
            1 => bells.pop().map(|outlet| outlet as Arc<dyn Wake>),
            _ => Some(Arc::new(Bells(bells))),
        }
    }

    fn take_consumed(&self) -> (u64, u64) {
        let count = self.state().ledger.take_consumed();
        (count.bytes, count.messages)
    }

    fn closed(&self) {
        if let Some((_, member)) = self.state().members.first() {
            member.outlet.node_closed();
        }
    }

    fn pressed(&self, on: bool) {
        let mut state = self.state();
        if std::mem::replace(&mut state.pressed, on) == on {
            return;
        }
        for n in 0..state.members.len() {
            state.members[n].1.outlet.press(on);
            state.touch(n);
        }
    }
}

/// Several to be woken.
struct Bells(Vec<Arc<Outlet>>);

impl Wake for Bells {
    fn wake(&self) {
        self.0.iter().for_each(|outlet| outlet.wake());
    }
}
