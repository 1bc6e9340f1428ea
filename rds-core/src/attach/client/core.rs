//! What an attached node knows, under its lock: its sockets, what they have sent, and what is still to be said to the daemon.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::{Producer, Setting, Status, Submission};
use super::book::Book;
use super::link::Link;
use super::seat::{Place, Seat};
use crate::engine::mailbox::Wakes;
use crate::engine::parker::Parker;
use crate::proto::BindError;
use crate::zerocopy::{Budget, Share};

/// How long a port that somebody else has is asked for again after the daemon was started anew.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// How often.
pub(super) const AGAIN: Duration = Duration::from_millis(100);

/// What was asked, so that the answer can be told from others.
pub(super) enum Request {
    Bind(u32),
    Close(u32),
    Set { socket: u32, what: Setting },
    Call(Call),
}

/// A question for whose answer a thread waits.
#[derive(Default)]
pub(super) struct Call {
    /// The answer may come in parts.
    pub(super) partial: bool,
    /// It concerns what was said to the daemon that is there now: without one it is not asked.
    pub(super) at_once: bool,
    /// Of which destination it is asked, for which socket, whether it is congested.
    pub(super) watched: Option<(u32, SocketAddr)>,
    pub(super) body: Vec<u8>,
    pub(super) answer: Option<(Status, u64)>,
    pub(super) waiter: Option<Arc<Parker>>,
}

/// The submission side of an attachment.
pub(super) struct Line {
    pub(super) link: Arc<Link>,
    pub(super) producer: Producer,
}

/// What the daemon does not see.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Payload bytes copied into ring and arena.
    pub(super) copied_in: u64,
    /// Sends refused, or that waited, because the send buffer was full.
    pub(super) full: u64,
    /// Sends refused because the port was congested.
    pub(super) congested: u64,
    /// Sends that waited for that.
    pub(super) waits: u64,
    /// Payload bytes copied out by sockets that are closed.
    pub(super) copied_out: u64,
}

pub(super) struct Core {
    /// `None` while there is no daemon.
    pub(super) line: Option<Line>,
    pub(super) address: IpAddr,
    pub(super) seats: Vec<Option<Seat>>,
    serial: u16,
    pub(super) book: Book,
    pub(super) requests: HashMap<u32, Request>,
    next_request: u32,
    /// Seats with something to be said to the daemon, by place in the table.
    pub(super) unsaid: Vec<usize>,
    /// Threads that wait for room in the submission ring, or for a daemon.
    pub(super) room: Vec<Arc<Parker>>,
    /// Seats whose sends found no room in ring or arena.
    pub(super) starved: bool,
    pub(super) shutting_down: bool,
    pub(super) wakes: Wakes,
    /// Bytes of the receive arena given back since the daemon was last woken for it.
    pub(super) given_back: u64,
    pub(super) reattachments: u64,
    pub(super) unknown: u64,
    /// Sends that an end of the node has cancelled.
    pub(super) cancelled: u64,
    /// What this program counts itself, beside what the daemon does.
    pub(super) counts: Counts,
    /// For mailboxes, which want one; what may be pinned is the daemon's affair.
    pub(super) share: Arc<Share>,
}

impl Core {
    pub(super) fn new(address: IpAddr) -> Self {
        Self {
            line: None,
            address,
            seats: Vec::new(),
            serial: 0,
            book: Book::default(),
            requests: HashMap::new(),
            next_request: 0,
            unsaid: Vec::new(),
            room: Vec::new(),
            starved: false,
            shutting_down: false,
            wakes: Wakes::default(),
            given_back: 0,
            reattachments: 0,
            unknown: 0,
            cancelled: 0,
            counts: Counts::default(),
            share: Arc::new(Share::new(&Arc::new(Budget::new(0)))),
        }
    }

    /// A free number for a socket, whose lower half is its place in the table.
    pub(super) fn free_number(&mut self) -> Result<u32, BindError> {
        let place = self.seats.iter().position(Option::is_none).unwrap_or(self.seats.len());
        let place = u16::try_from(place).map_err(|_| BindError::Exhausted)?;
        self.serial = self.serial.wrapping_add(1);
        Ok(u32::from(self.serial) << 16 | u32::from(place))
    }

    pub(super) fn seat_mut(&mut self, number: u32) -> Option<&mut Seat> {
        self.seats.get_mut(number as usize & 0xffff)?.as_mut().filter(|seat| seat.number == number)
    }

    pub(super) fn seat(&self, number: u32) -> Option<&Seat> {
        self.seats.get(number as usize & 0xffff)?.as_ref().filter(|seat| seat.number == number)
    }

    pub(super) fn add_seat(&mut self, seat: Seat) {
        let place = seat.number as usize & 0xffff;
        if self.seats.len() <= place {
            self.seats.resize_with(place + 1, || None);
        }
        self.seats[place] = Some(seat);
    }

    pub(super) fn remove_seat(&mut self, number: u32) {
        if self.seat(number).is_some()
            && let Some(seat) = self.seats[number as usize & 0xffff].take()
        {
            self.wakes.parkers.extend(seat.waiters);
        }
    }

    /// Whether the daemon knows the socket, so that records about it make sense.
    pub(super) fn is_attached(&self) -> bool {
        self.line.is_some()
    }

    /// Notes a question; the record carries the number.
    pub(super) fn request(&mut self, request: Request) -> u32 {
        loop {
            self.next_request = self.next_request.wrapping_add(1);
            if !self.requests.contains_key(&self.next_request) {
                self.requests.insert(self.next_request, request);
                return self.next_request;
            }
        }
    }

    /// Lists a seat that has something to say.
    pub(super) fn say(&mut self, number: u32) {
        if let Some(seat) = self.seat_mut(number)
            && !seat.unsaid.listed
        {
            seat.unsaid.listed = true;
            self.unsaid.push(number as usize & 0xffff);
        }
    }

    /// Writes a record without a body, if there is room and a daemon.
    pub(super) fn push(&mut self, record: &Submission) -> bool {
        self.line.as_mut().is_some_and(|line| line.producer.push(record, &[]))
    }

    /// Writes what is to be said, as far as there is room. True if all of it was.
    pub(super) fn flush(&mut self) -> bool {
        let Some(line) = &mut self.line else { return true };
        let mut said = true;
        while let Some((offset, len)) = line.link.next_return() {
            if !line.producer.push(&Submission::Free { offset }, &[]) {
                line.link.keep_return(offset, len);
                said = false;
                break;
            }
            self.given_back += len;
        }
        while said && let Some(place) = self.unsaid.pop() {
            said = self.flush_seat(place);
            if !said {
                self.unsaid.push(place);
            }
        }
        if !said && let Some(line) = &mut self.line {
            // Woken when there is.
            said = line.producer.want_room(256);
        }
        said
    }

    fn flush_seat(&mut self, place: usize) -> bool {
        while let Some(seat) = self.seats.get(place).and_then(Option::as_ref) {
            let (socket, unsaid) = (seat.number, seat.unsaid);
            let bound = seat.place == Place::Bound;
            let (request, record) = if unsaid.bind {
                let (port, sharing) = (seat.port, seat.sharing);
                let (send_buffer, receive_buffer) = (seat.send_buffer, seat.receive_buffer);
                let request = self.request(Request::Bind(socket));
                let bind = Submission::Bind { request, socket, port, sharing, send_buffer, receive_buffer };
                (Some(request), bind)
            } else if bound && unsaid.send_buffer {
                let what = Setting::SendBuffer;
                let value = seat.send_buffer;
                let request = self.request(Request::Set { socket, what });
                (Some(request), Submission::Set { request, socket, what, value })
            } else if bound && unsaid.receive_buffer {
                let what = Setting::ReceiveBuffer;
                let value = seat.receive_buffer;
                let request = self.request(Request::Set { socket, what });
                (Some(request), Submission::Set { request, socket, what, value })
            } else if bound && seat.taken.messages > 0 {
                let taken = seat.taken;
                (None, Submission::Consumed { socket, bytes: taken.bytes, messages: taken.messages })
            } else if let Some(drain) = unsaid.close {
                let request = self.request(Request::Close(socket));
                (Some(request), Submission::Close { request, socket, drain })
            } else {
                break;
            };
            let wrote = self.push(&record);
            if !wrote {
                if let Some(request) = request {
                    self.requests.remove(&request);
                }
                return false;
            }
            let Some(seat) = self.seats[place].as_mut() else { break };
            match record {
                Submission::Bind { .. } => seat.unsaid.bind = false,
                Submission::Set { what: Setting::SendBuffer, .. } => seat.unsaid.send_buffer = false,
                Submission::Set { .. } => seat.unsaid.receive_buffer = false,
                Submission::Consumed { .. } => seat.taken = Default::default(),
                _ => seat.unsaid.close = None,
            }
        }
        if let Some(seat) = self.seats.get_mut(place).and_then(Option::as_mut) {
            seat.unsaid.listed = false;
        }
        true
    }

    /// Keeps the writable descriptor, if there is one, in step, and wakes those who wait for room where there is some.
    pub(super) fn update_writable(&mut self, number: u32) {
        let Some(seat) = self.seats.get(number as usize & 0xffff).and_then(Option::as_ref) else { return };
        if seat.number == number
            && let Some(mailbox) = &seat.mailbox
            && mailbox.has_writable()
        {
            mailbox.set_writable(&mut mailbox.back(), seat.is_writable());
        }
    }

    /// Room has come back in ring or arena: whoever was refused for want of it may try again.
    pub(super) fn room_again(&mut self) {
        if self.starved {
            self.starved = false;
            for place in 0..self.seats.len() {
                if let Some(seat) = self.seats[place].as_mut().filter(|seat| seat.starved) {
                    seat.starved = false;
                    let number = seat.number;
                    self.wake_senders(number);
                }
            }
        }
        let wakes = &mut self.wakes;
        wakes.parkers.append(&mut self.room);
    }

    /// Wakes who waits to send on a socket, or for the end of what it has sent.
    pub(super) fn wake_senders(&mut self, number: u32) {
        let Some(seat) = self.seats.get(number as usize & 0xffff).and_then(Option::as_ref) else { return };
        if seat.number == number
            && let Some(mailbox) = &seat.mailbox
        {
            let mut back = mailbox.back();
            mailbox.set_writable(&mut back, seat.is_writable());
            mailbox.wake_senders(&mut back, &mut self.wakes);
        }
    }

    /// A destination takes messages again.
    pub(super) fn uncongested(&mut self, number: u32, destination: SocketAddr) {
        let Some(seat) = self.seats.get_mut(number as usize & 0xffff).and_then(Option::as_mut) else {
            return;
        };
        if seat.number != number {
            return;
        }
        seat.congested.remove(&destination);
        if let Some(mailbox) = &seat.mailbox {
            let mut back = mailbox.back();
            mailbox.wake_senders(&mut back, &mut self.wakes);
            let bit = 1 << (destination.port() % 64);
            if back.armed & bit != 0 {
                back.armed &= !bit;
                back.cleared |= bit;
                mailbox.notice(&mut back, &mut self.wakes);
            }
        }
    }

    /// When ports that somebody else has are to be asked for again.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let again = |seat: &Seat| match seat.place {
            Place::Taken { again, .. } => Some(again),
            _ => None,
        };
        self.seats.iter().flatten().filter_map(again).min()
    }

    /// Asks again for ports for which it is time.
    pub(super) fn ask_again(&mut self, now: Instant) {
        for place in 0..self.seats.len() {
            if let Some(seat) = self.seats[place].as_mut()
                && let Place::Taken { again, since } = seat.place
                && again <= now
            {
                seat.place = Place::Taken { since, again: now + AGAIN };
                seat.unsaid.bind = true;
                let number = seat.number;
                self.say(number);
            }
        }
    }
}
