//! What a path does to MSG_ZEROCOPY, asked of the kernel without our own code: the measure for what our own code reports.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::libc::{self, c_int};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, sendmsg, setsockopt};
use nix::{cmsg_space, setsockopt_impl, sockopt_impl};
use socket2::{Domain, Protocol, Socket, Type};

use crate::ledger::process::PATIENCE;

/// Linux `asm-generic/socket.h`.
const SO_ZEROCOPY: c_int = 60;
/// Linux `uapi/linux/errqueue.h`: what a record of the error queue is about, and that the kernel copied.
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;

sockopt_impl!(
    /// Lets a socket send with MSG_ZEROCOPY.
    ZeroCopy,
    SetOnly,
    libc::SOL_SOCKET,
    SO_ZEROCOPY,
    bool
);

/// One record of the error queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Number of the first call that it is about.
    pub first: u32,
    /// Number of the last one, inclusive.
    pub last: u32,
    /// Whether the kernel says that it copied.
    pub copied: bool,
}

impl Notification {
    /// Calls that it is about.
    #[must_use]
    pub fn calls(&self) -> u32 {
        self.last.wrapping_sub(self.first).wrapping_add(1)
    }
}

/// How many calls came back in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// With the COPIED code.
    pub copied: u32,
    /// Without it: the network device read the sender's pages.
    pub not_copied: u32,
}

/// One end of a TCP connection, which sends with MSG_ZEROCOPY.
#[derive(Debug)]
pub struct Sender(TcpStream);

impl Sender {
    /// Connects, from any address if none is given. The sender belongs to the network namespace in which it connected, wherever it is
    /// used.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn connect(from: Option<IpAddr>, to: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
        if let Some(from) = from {
            socket.bind(&SocketAddr::from((from, 0)).into())?;
        }
        socket.connect(&to.into())?;
        setsockopt(&socket, ZeroCopy, &true)?;
        Ok(Self(socket.into()))
    }

    /// Sends `calls` times `size` bytes, and waits until the kernel has notified every call.
    ///
    /// # Errors
    /// What the kernel says; `TimedOut` when a notification does not come.
    ///
    /// # Panics
    /// A record of the error queue is about something else.
    pub fn send(&self, calls: u32, size: usize) -> io::Result<Calls> {
        let payload = vec![0x5a; size];
        let (mut sent, mut done) = (0, Calls::default());
        for _ in 0..calls {
            let mut rest = &payload[..];
            // A call that takes a part has a number as well.
            while !rest.is_empty() {
                let flags = MsgFlags::from_bits_retain(libc::MSG_ZEROCOPY);
                let part = [IoSlice::new(rest)];
                match sendmsg::<()>(self.0.as_raw_fd(), &part, &[], flags, None) {
                    Ok(n) => {
                        rest = &rest[n..];
                        sent += 1;
                    }
                    Err(Errno::EINTR) => {}
                    // Too many unnotified calls for optmem_max or the limit of locked memory.
                    Err(Errno::ENOBUFS) if done.copied + done.not_copied < sent => self.wait(&mut done)?,
                    Err(e) => return Err(e.into()),
                }
            }
        }
        while done.copied + done.not_copied < sent {
            self.wait(&mut done)?;
        }
        Ok(done)
    }

    /// Waits for notifications, and counts them all.
    fn wait(&self, done: &mut Calls) -> io::Result<()> {
        // POLLERR needs no asking.
        let mut sets = [PollFd::new(self.0.as_fd(), PollFlags::empty())];
        let patience = PollTimeout::try_from(PATIENCE).expect("a minute fits");
        match poll(&mut sets, patience) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        while let Some(notification) = self.notification()? {
            let calls = notification.calls();
            *(if notification.copied { &mut done.copied } else { &mut done.not_copied }) += calls;
        }
        Ok(())
    }

    /// The next record of the error queue, if there is one.
    fn notification(&self) -> io::Result<Option<Notification>> {
        let mut nothing = [0; 1];
        let mut parts = [IoSliceMut::new(&mut nothing)];
        let mut control = cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
        let flags = MsgFlags::MSG_ERRQUEUE;
        let message = match recvmsg::<()>(self.0.as_raw_fd(), &mut parts, Some(&mut control), flags) {
            Err(Errno::EAGAIN) => return Ok(None),
            message => message?,
        };
        let mut found = None;
        for part in message.cmsgs()? {
            let (ControlMessageOwned::Ipv4RecvErr(error, _) | ControlMessageOwned::Ipv6RecvErr(error, _)) =
                part
            else {
                panic!("not a record of an error: {part:?}");
            };
            assert_eq!((error.ee_errno, error.ee_origin), (0, SO_EE_ORIGIN_ZEROCOPY), "{error:?}");
            let copied = error.ee_code == SO_EE_CODE_ZEROCOPY_COPIED;
            found = Some(Notification { first: error.ee_info, last: error.ee_data, copied });
        }
        Ok(Some(found.expect("a record in the error queue has its control message")))
    }
}

/// Reads all that comes on the next connection in a thread, which returns how many bytes that were.
#[must_use]
pub fn sink(listener: TcpListener) -> JoinHandle<io::Result<u64>> {
    thread::spawn(move || {
        let (mut receiver, _) = listener.accept()?;
        let mut buffer = vec![0; 256 << 10];
        let mut got = 0;
        loop {
            match receiver.read(&mut buffer)? {
                0 => return Ok(got),
                n => got += n as u64,
            }
        }
    })
}

/// A connection between two local addresses, with a sender at one end and a [`sink`] at the other.
#[derive(Debug)]
pub struct Connection {
    /// The sending end.
    pub sender: Sender,
    sink: JoinHandle<io::Result<u64>>,
}

impl Connection {
    /// Connects, within the network namespace of the calling thread.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn open(from: IpAddr, to: IpAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((to, 0))?;
        let to = listener.local_addr()?;
        Ok(Self { sender: Sender::connect(Some(from), to)?, sink: sink(listener) })
    }

    /// Ends the connection, and returns how many bytes have arrived.
    ///
    /// # Errors
    /// What the kernel says.
    ///
    /// # Panics
    /// If the reading thread has.
    pub fn close(self) -> io::Result<u64> {
        drop(self.sender);
        self.sink.join().expect("reading does not panic")
    }
}
