//! A poll loop of one's own: an RDS socket among other descriptors, in one thread that never blocks but in `poll`.
//!
//! `cargo run -p rds-client --example mio_loop`
//!
//! Two descriptors are watched, for receiving and for room to send. Both poll *readable*, and are never read. mio tells of changes only (it is
//! edge triggered), so each event is followed until there is nothing more.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use rds_client::{Event, Node, Received, RecvError, Socket, TrySendError};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const READABLE: Token = Token(0);
const WRITABLE: Token = Token(1);
const STOP: Token = Token(2);
const MESSAGES: u32 = 2000;
const SIZE: usize = 4096;

fn main() -> Result<()> {
    let there = Node::open("127.80.6.1".parse()?)?;
    let mut echo = Echo { socket: there.bind(4500)?, replies: VecDeque::new(), served: 0 };
    let address = echo.socket.local_addr();
    let poll = Poll::new()?;
    let waker = Arc::new(Waker::new(poll.registry(), STOP)?);

    // Kept here as well: a waker that is gone before the loop has looked wakes nobody.
    let stop = Arc::clone(&waker);
    let client = thread::spawn(move || {
        let result = ask(address);
        // Whatever became of it, the loop ends.
        stop.wake()?;
        result
    });
    echo.run(poll)?;
    drop(waker);
    client.join().expect("the client does not panic")?;
    println!("{} messages were echoed by one thread", echo.served);
    assert_eq!(echo.served, MESSAGES);
    Ok(())
}

struct Echo {
    socket: Socket,
    /// What could not be sent at once, oldest first. As long as clients do not ask without reading, it stays short; others would be ended here.
    replies: VecDeque<(Vec<u8>, SocketAddr)>,
    served: u32,
}

impl Echo {
    fn run(&mut self, mut poll: Poll) -> Result<()> {
        // Ports that were congested and are free again are told like a message.
        self.socket.set_congestion_monitor(true);
        for (fd, token) in [(self.socket.readable_fd()?, READABLE), (self.socket.writable_fd()?, WRITABLE)] {
            poll.registry().register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)?;
        }
        let mut events = Events::with_capacity(16);
        loop {
            match poll.poll(&mut events, None) {
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            for event in &events {
                match event.token() {
                    READABLE => self.receive()?,
                    WRITABLE => self.send()?,
                    _ => return Ok(()),
                }
            }
        }
    }

    fn receive(&mut self) -> Result<()> {
        let mut buffer = [0; SIZE];
        loop {
            match self.socket.try_recv_from(&mut buffer) {
                Ok(Received::Message { len, from, .. }) => {
                    self.replies.push_back((buffer[..len].to_vec(), from));
                    self.served += 1;
                }
                // Some may go now: all are tried.
                Ok(_) => {}
                Err(RecvError::Empty) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.send()
    }

    /// Sends what can be sent. The rest waits for room, or for its port.
    fn send(&mut self) -> Result<()> {
        let mut congested = VecDeque::new();
        while let Some((payload, to)) = self.replies.pop_front() {
            let behind = congested.iter().any(|(_, other)| *other == to);
            match if behind { Err(TrySendError::Congested) } else { self.socket.try_send_to(&payload, to) } {
                Ok(()) => {}
                // Others' ports may be free.
                Err(TrySendError::Congested) => congested.push_back((payload, to)),
                Err(TrySendError::Full) => {
                    self.replies.push_front((payload, to));
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        congested.append(&mut self.replies);
        self.replies = congested;
        Ok(())
    }
}

/// Sends a few messages ahead of the answers.
fn ask(server: SocketAddr) -> Result<()> {
    const AHEAD: u32 = 32;
    let socket = Node::open("127.80.6.2".parse()?)?.bind(0)?;
    // So small that the server finds its port congested, and has to wait for it.
    socket.set_recv_buffer(4 * SIZE as u64);
    socket.set_recv_timeout(Some(Duration::from_secs(10)));
    let (mut asked, mut answered) = (0_u32, 0_u32);
    while answered < MESSAGES {
        if asked < MESSAGES && asked - answered < AHEAD {
            socket.send_to(&asked.to_le_bytes().repeat(SIZE / 4), server)?;
            asked += 1;
        } else if let Event::Message(answer) = socket.recv_lease()? {
            assert_eq!(answer.payload[..], answered.to_le_bytes().repeat(SIZE / 4), "in order, and whole");
            answered += 1;
        }
    }
    Ok(())
}
