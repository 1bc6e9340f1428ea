//! Sockets of the kernel's own RDS (AF_RDS), for a ledger process in a guest.
//!
//! The kernel tells the end of a message only by the cookie of one that was lent without a copy: the peer's TCP has acknowledged it. So every
//! message is lent.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, SocketAddrV4};
use std::time::Duration;

use bytes::Bytes;
use rds_core::kernel::{KernelCookie, KernelReceived, KernelSendError, KernelSocket, Returned};

use super::endpoint::{Endpoint, Sent, Taken};
use super::log::{Event, Stack};

/// Larger than any message.
const ROOM: usize = 2 << 20;

/// Which stack the running kernel is.
pub(super) fn stack() -> Result<Stack, String> {
    let name = nix::sys::utsname::uname().map_err(|e| format!("uname: {e}"))?;
    let release = name.release().to_string_lossy();
    let major = release.split('.').next().and_then(|n| n.parse::<u32>().ok());
    let major = major.ok_or_else(|| format!("no number in the kernel's release {release}"))?;
    Ok(if major >= 7 { Stack::KernelFrom7 } else { Stack::KernelTo6 })
}

pub(super) struct Kernel {
    socket: KernelSocket,
    room: Vec<u8>,
    returned: Vec<Returned>,
    ended: Vec<u32>,
    numbers: HashMap<KernelCookie, u32>,
    next: u32,
}

impl Kernel {
    /// One that TCP carries. The kernel takes no message that is larger than `send_buffer`.
    pub(super) fn open(at: SocketAddrV4, send_buffer: u64, receive_buffer: u64) -> Result<Self, String> {
        let socket = KernelSocket::bind_tcp(at.into()).map_err(|e| e.to_string())?;
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let granted = socket.set_send_buffer(size(send_buffer)).and_then(|sends| {
            let receives = socket.set_recv_buffer(size(receive_buffer))?;
            socket.set_congestion_monitor(true)?;
            socket.enable_zero_copy()?;
            socket.set_nonblocking(true)?;
            Ok((sends, receives))
        });
        let granted = granted.map_err(|e| format!("{at}: {e}"))?;
        if granted < (size(send_buffer), size(receive_buffer)) {
            return Err(format!("{at}: the kernel grants buffers of {granted:?} bytes alone"));
        }
        let (returned, ended) = (Vec::new(), Vec::new());
        Ok(Self { socket, room: vec![0; ROOM], returned, ended, numbers: HashMap::new(), next: 0 })
    }

    /// Before the next message is lent, which may get the cookie of one that came back.
    fn take_returned(&mut self) {
        self.socket.take_returned(&mut self.returned);
        self.ended.extend(self.returned.drain(..).filter_map(|r| self.numbers.remove(&r.cookie)));
    }
}

impl Endpoint for Kernel {
    fn send(&mut self, payload: &Bytes, to: SocketAddrV4) -> Result<Sent, String> {
        match self.socket.send_lent(payload.to_vec(), to.into()) {
            Ok(cookie) => {
                self.next = self.next.wrapping_add(1);
                self.numbers.insert(cookie, self.next);
                Ok(Sent::Taken(Some(self.next)))
            }
            Err((KernelSendError::Congested, _)) => Ok(Sent::Congested),
            Err((KernelSendError::Full, _)) => Ok(Sent::Full),
            Err((e, _)) => Err(e.to_string()),
        }
    }

    fn ends(&mut self, ends: &mut Vec<(u32, Event)>) -> Result<(), String> {
        ends.extend(self.ended.drain(..).map(|number| (number, Event::DeliveredTransport)));
        Ok(())
    }

    fn receive(&mut self, got: &mut dyn FnMut(SocketAddr, &[u8])) -> Result<Taken, String> {
        let received = self.socket.recv_from(&mut self.room);
        self.take_returned();
        match received {
            Ok(KernelReceived::Message { len, from, .. }) => {
                got(from, &self.room[..len]);
                Ok(Taken::Message)
            }
            Ok(_) => Ok(Taken::Other),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Taken::Nothing),
            Err(e) => Err(e.to_string()),
        }
    }

    fn cancel(&mut self) -> Result<(), String> {
        Err("cancelling is for nodes of ours".into())
    }

    fn breaks(&self) -> u64 {
        // Programs are not told.
        0
    }

    fn wait(&mut self, writable: bool, limit: Duration) -> Result<(), String> {
        match self.socket.wait(true, writable, Some(limit)) {
            Err(e) if e.kind() != io::ErrorKind::Interrupted => Err(e.to_string()),
            _ => Ok(()),
        }
    }
}
