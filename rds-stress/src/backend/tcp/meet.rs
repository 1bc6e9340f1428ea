//! How the two sides make a connection for each pair of tasks: the active one connects, says between whom, and hears it back.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::{Failure, failure};
use crate::session::Session;

/// How long all connections may take to be made.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long whoever connects may take to say who it is.
const WORD: Duration = Duration::from_secs(5);
const MAGIC: [u8; 8] = *b"rds-tcp1";
const HELLO: usize = MAGIC.len() + 4;

/// Own task, the other side's task, and their connection.
pub(super) type Met = (u16, u16, TcpStream);

fn hello(active: u16, passive: u16) -> [u8; HELLO] {
    let mut hello = [0; HELLO];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..10].copy_from_slice(&active.to_be_bytes());
    hello[10..].copy_from_slice(&passive.to_be_bytes());
    hello
}

/// Connects every pair of tasks; by own task, then by the other's.
pub(super) fn dial(own: IpAddr, to: SocketAddr, session: &Session) -> Result<Vec<Met>, Failure> {
    let deadline = Instant::now() + PATIENCE;
    let mut met = Vec::new();
    for active in 0..session.tasks {
        for passive in 0..session.tasks {
            let stream = dial_one(own, to, &hello(active, passive)).map_err(|e| {
                failure!("cannot connect task {active} to task {passive} at TCP port {to} ({e}): the other side must have --backend tcp, too, and the same --rds-port; with many tasks both need a higher limit of open files (ulimit -n)")
            })?;
            met.push((active, passive, stream));
        }
    }
    for (active, passive, stream) in &mut met {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut answer = [0; HELLO];
        let heard = stream.set_read_timeout(Some(left)).and_then(|()| stream.read_exact(&mut answer));
        if heard.is_err() || answer != hello(*active, *passive) {
            return Err(failure!(
                "what listens at TCP port {to} is no rds-stress --backend tcp: give both sides the same backend, and the same --rds-port"
            ));
        }
    }
    Ok(met)
}

fn dial_one(own: IpAddr, to: SocketAddr, hello: &[u8]) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.bind(&SocketAddr::new(own, 0).into())?;
    socket.connect_timeout(&to.into(), PATIENCE)?;
    let mut stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.write_all(hello)?;
    Ok(stream)
}

/// Waits for the connections of every pair of tasks; by own task, then by the other's. Whoever else connects is sent away.
pub(super) fn accept(
    listener: &TcpListener,
    session: &Session,
    control: &TcpStream,
) -> Result<Vec<Met>, Failure> {
    let deadline = Instant::now() + PATIENCE;
    let tasks = usize::from(session.tasks);
    let mut places: Vec<Option<TcpStream>> = (0..tasks * tasks).map(|_| None).collect();
    let mut missing = places.len();
    let broken = |e: io::Error| {
        failure!(
            "cannot accept a TCP connection of a pair of tasks ({e}): with many tasks both sides need a higher limit of open files (ulimit -n)"
        )
    };
    listener.set_nonblocking(true).map_err(broken)?;
    while missing > 0 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(failure!(
                "{missing} of {} TCP connections were not made in {} s: the active side must have --backend tcp, too, and the same --rds-port",
                places.len(),
                PATIENCE.as_secs()
            ));
        }
        let (stream, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if control_ended(listener, control, left) {
                    return Err(failure!("the active side ended before its tasks had connected: its own output says why; correct that and start both again").echo());
                }
                continue;
            }
            Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(e) => return Err(broken(e)),
        };
        if peer.ip().to_canonical() != session.peer {
            continue;
        }
        let Ok((active, passive)) = ask(&stream, WORD.min(left)) else { continue };
        let place = usize::from(passive) * tasks + usize::from(active);
        if usize::from(active) < tasks && usize::from(passive) < tasks && places[place].is_none() {
            places[place] = Some(stream);
            missing -= 1;
        }
    }
    let pairs = (0..session.tasks).flat_map(|own| (0..session.tasks).map(move |peer| (own, peer)));
    Ok(pairs.zip(places).filter_map(|((own, peer), stream)| Some((own, peer, stream?))).collect())
}

/// Waits for somebody to connect; whether the other side's program has ended meanwhile.
fn control_ended(listener: &TcpListener, control: &TcpStream, left: Duration) -> bool {
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    let of = |fd| PollFd::new(fd, PollFlags::POLLIN);
    let mut both = [of(listener.as_fd()), of(control.as_fd())];
    let _ = poll(&mut both, timeout);
    // Its side says nothing before the run: what can be read is its end.
    both[1].any().unwrap_or(false)
}

/// Who it is; answers with the same.
fn ask(mut stream: &TcpStream, patience: Duration) -> io::Result<(u16, u16)> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    let mut word = [0; HELLO];
    stream.read_exact(&mut word)?;
    let [.., a, b, c, d] = word;
    let (active, passive) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    if word != hello(active, passive) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    stream.write_all(&word)?;
    Ok((active, passive))
}
