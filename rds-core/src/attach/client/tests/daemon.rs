//! A daemon that says what a test has it say.

use std::net::SocketAddr;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::super::super::{
    Accepted, Completion, Greeting, Refusal, RefusalCode, Status, Submission, Welcome, Where,
};
use super::super::{AttachOptions, Client, Socket};

/// Far longer than anything takes.
pub(super) const LONG: Duration = Duration::from_secs(20);
pub(super) const ARENA: u64 = 1 << 20;

pub(super) struct Daemon {
    dir: tempfile::TempDir,
    listener: UnixListener,
    stream: bool,
    ring: u32,
    instance: u64,
    pub(super) attached: Option<Accepted>,
}

/// A message that the program has sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) socket: u32,
    pub(super) id: u32,
    pub(super) to: SocketAddr,
    pub(super) wants_end: bool,
    pub(super) place: Where,
    pub(super) payload: Vec<u8>,
}

impl Daemon {
    pub(super) fn new(stream: bool, ring: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("sock")).unwrap();
        Self { dir, listener, stream, ring, instance: 1, attached: None }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir.path().join("sock")
    }

    pub(super) fn options(&self) -> AttachOptions {
        let mut options = AttachOptions::new(self.path());
        options.without_shared_memory = self.stream;
        options
    }

    /// A program that attaches meanwhile.
    pub(super) fn client(&mut self) -> Client {
        let options = self.options();
        let opening = std::thread::spawn(move || Client::open(options).unwrap());
        self.accept();
        opening.join().unwrap()
    }

    pub(super) fn address() -> std::net::IpAddr {
        [127, 44, 0, 1].into()
    }

    pub(super) fn accept(&mut self) {
        let (socket, _) = self.listener.accept().unwrap();
        let mut greeting = Greeting::new(socket).unwrap();
        until(|| greeting.read().unwrap());
        let welcome = Welcome {
            session: 1,
            instance: self.instance,
            address: Self::address().into(),
            stream: self.stream,
            max_message: 1 << 20,
            max_sockets: 100,
            submission_ring: self.ring,
            completion_ring: self.ring,
            send_arena: ARENA,
            receive_arena: ARENA,
            max_send_buffer: 1 << 30,
            max_receive_buffer: 1 << 30,
        };
        self.attached = Some(greeting.welcome(&welcome).unwrap());
    }

    /// Turns the next program that knocks away.
    pub(super) fn refuse(&self) {
        let (socket, _) = self.listener.accept().unwrap();
        let mut greeting = Greeting::new(socket).unwrap();
        until(|| greeting.read().unwrap());
        greeting.refuse(&Refusal::new(RefusalCode::Quota, "not now".to_owned()));
    }

    /// Is killed: the connection ends, and what was published stays readable.
    pub(super) fn die(&mut self) {
        self.attached = None;
        self.instance += 1;
    }

    fn accepted(&mut self) -> &mut Accepted {
        self.attached.as_mut().expect("a program is attached")
    }

    /// What the program says next, if it has said anything.
    pub(super) fn poll(&mut self) -> Option<(Submission, Vec<u8>)> {
        let Accepted { channel, submitted, .. } = self.accepted();
        let record = channel.consumer.next().unwrap()?;
        let said = record.submission().unwrap();
        let mut body = vec![0; record.body_len()];
        record.copy_to(&mut body);
        if let Submission::Send { payload: Where::Arena { offset, len }, .. } = said {
            body = submitted.as_ref().unwrap().span(offset, len).unwrap().to_vec();
        }
        if let Some(bell) = channel.consumer.release() {
            bell.ring();
        }
        Some((said, body))
    }

    pub(super) fn next(&mut self) -> (Submission, Vec<u8>) {
        until(|| self.poll())
    }

    /// The next message that is sent; what is said beside that is passed over.
    pub(super) fn sent(&mut self) -> Sent {
        loop {
            if let (Submission::Send { socket, id, to, wants_end, payload: place, .. }, payload) = self.next()
            {
                return Sent { socket, id, to, wants_end, place, payload };
            }
        }
    }

    pub(super) fn say(&mut self, said: &Completion, body: &[u8]) {
        let channel = &mut self.accepted().channel;
        assert!(channel.producer.push(said, body), "room in the ring");
        if let Some(bell) = channel.producer.publish() {
            bell.ring();
        }
    }

    pub(super) fn reply(&mut self, request: u32, status: Status, value: u64, body: &[u8]) {
        self.say(&Completion::Reply { request, status, value, body_len: body.len() as u32 }, body);
    }

    /// A part of an answer, if there is room for it.
    pub(super) fn try_reply(&mut self, request: u32, value: u64, body: &[u8]) -> bool {
        let said = Completion::Reply { request, status: Status::Ok, value, body_len: body.len() as u32 };
        let channel = &mut self.accepted().channel;
        let said = channel.producer.push(&said, body);
        if let Some(bell) = channel.producer.publish() {
            bell.ring();
        }
        said
    }

    /// Answers the next bind, and returns what was asked for and the socket's number.
    pub(super) fn answer_bind(&mut self, status: Status) -> (Submission, u32) {
        loop {
            if let (asked @ Submission::Bind { request, socket, port, send_buffer, receive_buffer, .. }, _) =
                self.next()
            {
                let mut granted = send_buffer.to_ne_bytes().to_vec();
                granted.extend_from_slice(&receive_buffer.to_ne_bytes());
                let port = if port == 0 { 1234 } else { port };
                self.reply(request, status, port.into(), &granted);
                return (asked, socket);
            }
        }
    }

    /// A socket of the program's, and its number.
    pub(super) fn bind(&mut self, client: &Client, port: u16) -> (Socket, u32) {
        let binding = client.clone();
        let thread = std::thread::spawn(move || binding.bind(port).unwrap());
        let (_, number) = self.answer_bind(Status::Ok);
        let socket = thread.join().unwrap();
        socket.set_recv_timeout(Some(LONG));
        socket.set_send_timeout(Some(LONG));
        (socket, number)
    }

    /// Delivers a message, in the arena if it is `large`.
    pub(super) fn deliver(&mut self, socket: u32, from: SocketAddr, payload: &[u8], large: bool) {
        let arena = self.accepted().receive.as_mut().filter(|_| large);
        match arena.and_then(|arena| Some((arena.allocate(payload.len())?, arena))) {
            Some((span, arena)) => {
                span.fill(payload);
                let place = Where::Arena { offset: arena.offset_of(&span), len: payload.len() as u32 };
                self.say(&Completion::Message { socket, from, payload: place }, &[]);
            }
            None => {
                let place = Where::Inline(payload.len() as u32);
                self.say(&Completion::Message { socket, from, payload: place }, payload);
            }
        }
    }
}

/// Waits for something, however long it takes within reason.
pub(super) fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + LONG;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "it never came");
        std::thread::yield_now();
    }
}
