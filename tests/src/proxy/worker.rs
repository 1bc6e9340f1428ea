//! The proxy's thread: accepts, carries, obeys.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};
use socket2::SockRef;

use super::link::{Link, State};
use super::{Break, Command, Conditions, Counts, Route, Schedule};

const WAKE: Token = Token(usize::MAX);

pub(super) struct Worker {
    poll: Poll,
    waker: Arc<Waker>,
    listeners: Vec<(TcpListener, Route)>,
    links: HashMap<u64, Link>,
    next: u64,
    conditions: [Conditions; 2],
    stalled_lane: Option<u8>,
    refuse: bool,
    schedule: Option<(Schedule, fastrand::Rng)>,
    orders: Receiver<(Command, SyncSender<usize>)>,
    counts: Arc<Counts>,
    bytes: u64,
    scratch: Vec<u8>,
}

impl Worker {
    pub(super) fn new(
        routes: &[Route],
        orders: Receiver<(Command, SyncSender<usize>)>,
        counts: Arc<Counts>,
    ) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        let mut listeners = Vec::new();
        for (index, route) in routes.iter().enumerate() {
            let mut listener = TcpListener::bind(route.listen)?;
            poll.registry().register(&mut listener, Token(index), Interest::READABLE)?;
            listeners.push((listener, *route));
        }
        Ok(Self {
            poll,
            waker,
            listeners,
            links: HashMap::new(),
            next: 0,
            conditions: Default::default(),
            stalled_lane: None,
            refuse: false,
            schedule: None,
            orders,
            counts,
            bytes: 0,
            scratch: vec![0; 64 << 10],
        })
    }

    pub(super) fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }

    pub(super) fn run(mut self) {
        let mut events = Events::with_capacity(64);
        let mut wake: Option<Instant> = None;
        loop {
            let timeout =
                wake.map(|at| at.saturating_duration_since(Instant::now()).max(Duration::from_micros(100)));
            match self.poll.poll(&mut events, timeout) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => panic!("the proxy cannot poll: {e}"),
                _ => {}
            }
            while let Ok((command, done)) = self.orders.try_recv() {
                let stop = matches!(command, Command::Stop);
                let result = self.obey(command);
                // The caller waits, or has panicked.
                let _ = done.send(result);
                if stop {
                    return;
                }
            }
            self.accept();
            wake = self.pump();
            self.counts.open.store(self.links.len(), Relaxed);
        }
    }

    fn obey(&mut self, command: Command) -> usize {
        match command {
            Command::Break(how) => {
                let all: Vec<u64> = self.links.keys().copied().collect();
                for link in &all {
                    self.break_off(*link, how);
                }
                return all.len();
            }
            Command::Conditions(direction, conditions) => self.conditions[direction as usize] = conditions,
            Command::Bytes => return usize::try_from(self.bytes).unwrap_or(usize::MAX),
            Command::StallLane(lane) => self.stalled_lane = lane,
            Command::Refuse(refuse) => self.refuse = refuse,
            Command::Schedule(schedule) => {
                self.schedule = schedule.map(|s| {
                    let random = fastrand::Rng::with_seed(s.seed);
                    (s, random)
                });
                let all: Vec<u64> = self.links.keys().copied().collect();
                for link in all {
                    let draw = self.draw();
                    if let Some(link) = self.links.get_mut(&link) {
                        link.breaks_after(draw);
                    }
                }
            }
            Command::Stop => {
                for link in self.links.values_mut() {
                    link.break_off(Break::Reset);
                }
                self.links.clear();
            }
        }
        0
    }

    fn draw(&mut self) -> Option<(u64, Break)> {
        let (schedule, random) = self.schedule.as_mut()?;
        let bytes = random.u64(schedule.bytes.clone());
        Some((bytes, *random.choice(&schedule.ways)?))
    }

    fn accept(&mut self) {
        for index in 0..self.listeners.len() {
            loop {
                let (listener, route) = &self.listeners[index];
                let (stream, from) = match listener.accept() {
                    Ok(accepted) => accepted,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    // It was gone before it was taken.
                    Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
                    Err(e) => panic!("the proxy cannot accept: {e}"),
                };
                let target = route.target;
                if self.refuse {
                    reset(stream);
                    self.counts.refused.fetch_add(1, Relaxed);
                    continue;
                }
                match Link::open(stream, from, target) {
                    Ok(link) => self.add(link),
                    Err(e) => eprintln!("the proxy cannot lead {from} to {target}: {e}"),
                }
            }
        }
    }

    fn add(&mut self, mut link: Link) {
        self.counts.accepted.fetch_add(1, Relaxed);
        // Every link is looked at after every event, so one token serves all.
        let token = Token(self.listeners.len());
        for end in link.ends() {
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(end, token, interest).expect("a new socket can be polled");
        }
        let draw = self.draw();
        link.breaks_after(draw);
        self.links.insert(self.next, link);
        self.next += 1;
    }

    fn break_off(&mut self, id: u64, how: Break) {
        if let Some(link) = self.links.get_mut(&id)
            && !link.is_cut()
        {
            self.counts.broken.fetch_add(1, Relaxed);
            if !link.break_off(how) {
                self.links.remove(&id);
            }
        }
    }

    fn pump(&mut self) -> Option<Instant> {
        let mut wake: Option<Instant> = None;
        let mut over = Vec::new();
        for (id, link) in &mut self.links {
            if self.stalled_lane == Some(link.lane()) {
                continue;
            }
            match link.pump(&self.conditions, &mut self.scratch, &mut self.bytes) {
                State::Open(again) => wake = [wake, again].into_iter().flatten().min(),
                State::Ended => over.push((*id, None)),
                State::Failed => {
                    // What happened at one end, the other gets to see.
                    link.break_off(Break::Reset);
                    over.push((*id, None));
                }
                State::Due(how) => over.push((*id, Some(how))),
            }
        }
        for (id, how) in over {
            match how {
                None => drop(self.links.remove(&id)),
                Some(how) => {
                    self.break_off(id, how);
                    wake = Some(Instant::now());
                }
            }
        }
        wake
    }
}

fn reset(stream: TcpStream) {
    // The peer may be gone.
    let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
}
