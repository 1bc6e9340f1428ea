//! Request and reply: a server answers whoever asks it, over one socket, however many ask.
//!
//! `cargo run -p rds-client --example request_reply`
//!
//! Both are in one program here, each at an address of its own; between hosts nothing changes but the addresses.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use rds_client::{Node, Received, RecvError, Socket};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PORT: u16 = 4000;

fn main() -> Result<()> {
    let there = Node::open("127.80.1.1".parse()?)?;
    let server = there.bind(PORT)?;
    let address = server.local_addr();
    let serving = thread::spawn(move || serve(&server));

    let here = Node::open("127.80.1.2".parse()?)?;
    let client = here.bind(0)?;
    for question in ["what", "is", "the", "answer"] {
        let answer = ask(&client, address, question)?;
        println!("{question} -> {answer}");
        assert_eq!(answer, question.to_uppercase());
    }

    // Who waits at a socket of the node is told.
    there.shutdown(Duration::from_secs(1));
    let served = serving.join().expect("the server does not panic")?;
    assert_eq!(served, 4);
    Ok(())
}

/// Answers until the node is shut down. Returns how many questions there were.
fn serve(socket: &Socket) -> Result<u32> {
    let mut buffer = [0; 1024];
    let mut served = 0;
    loop {
        match socket.recv_from(&mut buffer) {
            Ok(Received::Message { len, from, .. }) => {
                let answer = buffer[..len].to_ascii_uppercase();
                // Waits while the asker reads nothing; a server with many of them takes `try_send_to`, or a send timeout.
                socket.send_to(&answer, from)?;
                served += 1;
            }
            Ok(_) => {}
            Err(RecvError::Shutdown) => return Ok(served),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Asks, and waits for the answer of this very server.
fn ask(socket: &Socket, server: SocketAddr, question: &str) -> Result<String> {
    socket.send_to(question.as_bytes(), server)?;
    // RDS delivers while both live. Of a server that is gone nobody tells; how long to wait for it is for the program to say.
    socket.set_recv_timeout(Some(Duration::from_secs(10)));
    let mut buffer = [0; 1024];
    loop {
        match socket.recv_from(&mut buffer)? {
            Received::Message { len, from, .. } if from == server => {
                return Ok(String::from_utf8(buffer[..len].to_vec())?);
            }
            _ => {}
        }
    }
}
