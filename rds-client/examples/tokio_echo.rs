//! Tasks: an echo server and many clients in one runtime, none of which costs a thread.
//!
//! `cargo run -p rds-client --features tokio --example tokio_echo`

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rds_client::tokio::Socket;
use rds_client::{Event, Node, RecvError};
use tokio::task::JoinSet;
use tokio::time::timeout;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const CLIENTS: u32 = 20;
const REQUESTS: u32 = 50;

#[tokio::main]
async fn main() -> Result<()> {
    let there = Node::open("127.80.5.1".parse()?)?;
    let server = Arc::new(Socket::new(there.bind(4400)?)?);
    let address = server.local_addr();
    let serving = tokio::spawn(serve(server));

    let here = Node::open("127.80.5.2".parse()?)?;
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let socket = Socket::new(here.bind(0)?)?;
        clients.spawn(async move { ask(&socket, address, number).await });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }

    // It blocks until all is delivered: not in the runtime's own threads.
    tokio::task::spawn_blocking(move || there.shutdown(Duration::from_secs(1))).await?;
    let served = serving.await??;
    println!("{served} requests of {CLIENTS} clients were answered");
    assert_eq!(served, CLIENTS * REQUESTS);
    Ok(())
}

/// Sends everything back, until the node is shut down.
async fn serve(socket: Arc<Socket>) -> Result<u32> {
    let mut replies = JoinSet::new();
    let mut served = 0;
    loop {
        match socket.recv_lease().await {
            Ok(Event::Message(message)) => {
                served += 1;
                let socket = Arc::clone(&socket);
                // A task of its own: a client that reads nothing keeps only its own replies waiting. The payload is not copied.
                replies.spawn(async move {
                    let payload = message.payload.into_bytes();
                    socket.send_detached(payload, message.from).await.map_err(|(error, _)| error)
                });
                while let Some(reply) = replies.try_join_next() {
                    reply??;
                }
            }
            Ok(_) => {}
            Err(RecvError::Shutdown) => return Ok(served),
            Err(error) => return Err(error.into()),
        }
    }
}

async fn ask(socket: &Socket, server: SocketAddr, number: u32) -> Result<()> {
    for request in 0..REQUESTS {
        let question = format!("client {number}, request {request}");
        socket.send_to(question.as_bytes(), server).await?;
        // Every call can be cancelled, and nothing is lost by it.
        let Event::Message(answer) = timeout(Duration::from_secs(10), socket.recv_lease()).await?? else {
            return Err("no other event was asked for".into());
        };
        assert_eq!(&answer.payload[..], question.as_bytes());
    }
    Ok(())
}
